// SPDX-License-Identifier: MIT OR Apache-2.0
//! Warns where the scheduler's fair server may starve real-time tasks on a core with a small budget.
//!
//! Since Linux 6.12 the server reserves `runtime` of each `period` for ordinary tasks. Throttled time doesn't count as
//! theirs. On a core that runs for less than `runtime`, they therefore always run first and use up the budget.

use memwarden_platform::Root;
use memwarden_platform::task::{SCHED_FIFO, SCHED_RR, Task};

use crate::CoreStatistics;

/// One folder per CPU, with `runtime` and `period` in nanoseconds.
const FAIR_SERVER: &str = "/sys/kernel/debug/sched/fair_server";

/// One sentence for each core on which real-time tasks may get none of the budget. With PREEMPT_RT the kernel has such
/// tasks on every core.
#[must_use]
pub fn warnings(root: &Root, cores: &[CoreStatistics]) -> Vec<String> {
    let small: Vec<(&CoreStatistics, f64)> = cores
        .iter()
        .filter_map(|core| Some((core, kept(root, core.cpu)?)))
        .filter(|(core, kept)| core.online && !core.rt && ran(core).is_some_and(|ran| ran < *kept))
        .collect();
    if small.is_empty() {
        return Vec::new();
    }
    let preempt_rt = root.number("/sys/kernel/realtime") == Some(1);
    let tasks = if preempt_rt {
        Vec::new()
    } else {
        real_time_tasks(root)
    };
    let mut warnings = Vec::new();
    for (core, kept) in small {
        let cpu = core.cpu;
        let task = tasks.iter().find(|task| task.cpu == cpu);
        let who = match task {
            Some(task) => format!(
                "real-time tasks there ({}, thread {})",
                task.name, task.thread
            ),
            None if preempt_rt => "the kernel's own real-time threads there".to_owned(),
            None => continue,
        };
        warnings.push(format!(
            "CPU{cpu} ran for {:.1} % of the last second, and the fair server keeps {:.1} % for ordinary tasks: {who} may \
             get none of the budget; give the server less: echo 1000000 >{FAIR_SERVER}/cpu{cpu}/runtime",
            ran(core).unwrap_or_default() * 100.0,
            kept * 100.0,
        ));
    }
    warnings
}

/// The server's share of a CPU's time; `None` if there is no server or it is off.
fn kept(root: &Root, cpu: usize) -> Option<f64> {
    let number = |file: &str| root.number(&format!("{FAIR_SERVER}/cpu{cpu}/{file}"));
    let (runtime, period) = (number("runtime")?, number("period")?);
    (runtime > 0 && period > 0).then(|| runtime as f64 / period as f64)
}

/// The share of the last second in which a core was not throttled; `None` before the first second or without a budget.
fn ran(core: &CoreStatistics) -> Option<f64> {
    let second = &core.last_second;
    core.read.budget?;
    (second.ns > 0).then(|| 1.0 - second.throttled_ns as f64 / second.ns as f64)
}

/// A thread under SCHED_FIFO or SCHED_RR.
#[derive(Debug, PartialEq, Eq)]
struct RealTimeTask {
    thread: String,
    name: String,
    /// The CPU that it ran on last.
    cpu: usize,
}

/// All real-time tasks except kernel threads: every core has those, and they cause hardly any events.
fn real_time_tasks(root: &Root) -> Vec<RealTimeTask> {
    let mut tasks = Vec::new();
    for process in root.names("/proc") {
        if !process.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        for thread in root.names(&format!("/proc/{process}/task")) {
            // A thread may end in the meantime.
            let line = root.bytes(&format!("/proc/{process}/task/{thread}/stat"));
            tasks.extend(line.and_then(|line| real_time(&line, thread)));
        }
    }
    tasks
}

/// `None` if the line isn't that of a user's real-time task.
fn real_time(line: &[u8], thread: String) -> Option<RealTimeTask> {
    let task = Task::parse(line)?;
    let real_time = !task.is_of_kernel && matches!(task.policy, SCHED_FIFO | SCHED_RR);
    real_time.then_some(RealTimeTask {
        thread,
        name: task.name,
        cpu: task.cpu,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::statistics::{LastSecond, ResourceStatistics};

    /// As the kernel writes it: flags, CPU and policy are fields 9, 39 and 41.
    fn stat(name: &str, flags: u64, cpu: usize, policy: u64) -> String {
        let mut fields = vec!["0".to_owned(); 50];
        (fields[0], fields[6]) = ("R".into(), flags.to_string());
        (fields[36], fields[38]) = (cpu.to_string(), policy.to_string());
        format!("77 ({name}) {}\n", fields.join(" "))
    }

    fn core(cpu: usize, throttled_ns: u64) -> CoreStatistics {
        CoreStatistics {
            cpu,
            online: true,
            last_second: LastSecond {
                ns: 1_000_000_000,
                throttled_ns,
                ..LastSecond::default()
            },
            read: ResourceStatistics {
                budget: Some(5),
                ..ResourceStatistics::default()
            },
            ..CoreStatistics::default()
        }
    }

    /// Two CPUs with a server, and a real-time task on CPU1.
    fn machine() -> (tempfile::TempDir, Root) {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::at(folder.path());
        let write = |path: String, text: &str| {
            let path = root.path(&path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for cpu in 0..2 {
            write(format!("{FAIR_SERVER}/cpu{cpu}/runtime"), "50000000\n");
            write(format!("{FAIR_SERVER}/cpu{cpu}/period"), "1000000000\n");
        }
        write(
            "/proc/1/task/1/stat".into(),
            &stat("migration/0", 0x0020_0000, 0, 1),
        );
        write("/proc/7/task/7/stat".into(), &stat("shell", 0, 1, 0));
        write("/proc/7/task/8/stat".into(), &stat("a (b) c", 0, 1, 1));
        (folder, root)
    }

    #[test]
    fn a_core_that_runs_for_less_than_the_server_keeps_is_told_with_its_real_time_task() {
        let (_folder, root) = machine();
        let cores = [core(0, 980_000_000), core(1, 980_000_000)];
        assert_eq!(
            warnings(&root, &cores),
            [
                "CPU1 ran for 2.0 % of the last second, and the fair server keeps 5.0 % for ordinary tasks: real-time tasks \
                 there (a (b) c, thread 8) may get none of the budget; give the server less: echo 1000000 \
                 >/sys/kernel/debug/sched/fair_server/cpu1/runtime"
            ]
        );
        // No warning for a larger budget, a core that is never throttled, a small or disabled server, or no server.
        assert!(warnings(&root, &[core(1, 940_000_000)]).is_empty());
        let mut rt = core(1, 980_000_000);
        rt.rt = true;
        assert!(warnings(&root, &[rt]).is_empty());
        let runtime = root.path(&format!("{FAIR_SERVER}/cpu1/runtime"));
        for small in ["1000000\n", "0\n"] {
            fs::write(&runtime, small).unwrap();
            assert!(warnings(&root, &cores).is_empty());
        }
        fs::remove_file(runtime).unwrap();
        assert!(warnings(&root, &cores).is_empty());
    }

    #[test]
    fn preempt_rt_has_real_time_threads_on_every_core() {
        let (_folder, root) = machine();
        fs::write(root.path("/sys/kernel/realtime"), "1\n").unwrap();
        let told = warnings(&root, &[core(0, 980_000_000)]);
        assert!(told[0].contains("the kernel's own real-time threads there"));
    }
}
