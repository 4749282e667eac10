// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests a second on one DDR4-2400 channel with every rule on, four reads to a
//! write, random and streaming. Takes the number of requests, 10^6 by default.

use std::time::Instant;

use memwarden_sim::dram::{Controller, ControllerSettings, Memory, checks};

fn most_memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.map_or("unknown".into(), |line| line.trim().to_owned())
}

/// This process's time on a CPU, ns: others' turns don't count.
fn cpu_ns() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let count = std::env::args()
        .nth(1)
        .map_or(Ok(1_000_000), |text| text.parse())?;
    let memory = Memory::named("ddr4-2400")?;
    let line_bytes = memory.organisation.burst_bytes();
    let lines = memory.organisation.capacity_bytes() / line_bytes;
    for random_lines in [true, false] {
        let mut random = fastrand::Rng::with_seed(1);
        let mut controller = Controller::new(&memory, &ControllerSettings::default())?;
        let (begin, begin_ns) = (Instant::now(), cpu_ns());
        let end_ps = checks::saturate(&mut controller, count, |index| {
            let line = if random_lines {
                random.u64(..lines)
            } else {
                index
            };
            (line * line_bytes, index % 5 == 4)
        });
        let wall_s = begin.elapsed().as_secs_f64();
        let cpu_s = cpu_ns()
            .zip(begin_ns)
            .map(|(end, begin)| (end - begin) as f64 / 1e9);
        let statistics = controller.statistics();
        println!(
            "{}: {count} requests, {:.2} M/s by the CPU's time, {:.2} M/s by the wall's; \
             {:.0} MB/s of {:.0}, {:.1} % row hits, VmHWM {}",
            if random_lines { "random" } else { "streaming" },
            count as f64 / cpu_s.unwrap_or(wall_s) / 1e6,
            count as f64 / wall_s / 1e6,
            (count * line_bytes) as f64 * 1e6 / end_ps as f64,
            memory.peak_bytes_per_s() / 1e6,
            100.0 * statistics.row_hits as f64 / (statistics.reads + statistics.writes) as f64,
            most_memory()
        );
    }
    Ok(())
}
