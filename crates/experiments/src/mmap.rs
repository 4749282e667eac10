// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cost of a mapping: walks over memory that is mapped in six ways, with their effect on caches, TLB and pages, alone
//! and beside a competitor for memory.

mod config;
mod counting;
mod figures;
mod measure;
pub mod reclaim;
mod rival;

use std::path::PathBuf;

use memwarden_cachesim::Geometry;
use memwarden_platform::mapping::Mapping;
use memwarden_platform::mapping::kind::Mapped;
use memwarden_platform::units::size_text;
use memwarden_platform::usage::NOT_MAINTAINED;
use memwarden_platform::{Root, affinity, cache, clock, data_cache, free_memory, mapping, oom};
use memwarden_run::statistics::ratio_of_medians;
use memwarden_run::studies::mmap::{CountedBy, NAME, Summary};
use memwarden_workloads::mapped::Walk;

use crate::pinned::Pinned;
use crate::request::finished;
use crate::{Error, Interrupt, RunRequest, Settings};

pub use config::{Access, Compete, Config, Counters, Flush, Switch, THIS_MACHINE, Way};
use counting::{Counter, Modelled, model};
use measure::{Bench, Plan, Taken};

/// Size of the eviction buffer in multiples of the last-level cache: enough to evict everything else.
const CACHES_FULL: u64 = 4;

/// Size of the eviction buffer if the cache sizes are unknown.
const UNKNOWN_CACHE_BYTES: u64 = 32 << 20;

/// Runs the experiment and leaves its run folder.
///
/// # Errors
/// When a setting is invalid here, memory or disk space is short, requested counters are missing, or the run is
/// interrupted; what was measured is then in `DIR.partial`.
pub fn run(config: &Config, request: RunRequest) -> Result<(PathBuf, Summary), Error> {
    config.check()?;
    let interrupt = request.interrupt;
    fits(config)?;
    let mut summary = Summary::new(NAME, "native");
    let elsewhere = affinity::get()?;
    let pinned = match config.cpu {
        Some(cpu) => Pinned::to(cpu)?,
        None => Pinned::to_last()?,
    };
    let mut counter = Counter::open(config, pinned.cpu, &mut summary)?;
    let bench = Bench {
        config,
        pinned: &pinned,
        elsewhere: &elsewhere,
        other: other(config, pinned.cpu)?,
        interrupt,
    };
    let mut folder = request.begin(NAME, config)?;
    let _protected = protect(config, &mut summary);

    let base_ns = clock::monotonic_ns();
    let plans = plans(config);
    let mut steps = request.steps(plans.len() * config.repeat as usize);
    let mut speed = Speed::default();
    let mut times = Vec::new();
    for plan in &plans {
        let walk = config.walk(plan.access, plan.locality);
        let mut runs: Vec<Taken> = Vec::new();
        for repeat in 0..config.repeat {
            steps.next(&plan.name());
            let run = bench.run(plan, &walk, &mut counter)?;
            folder.append_all(&figures::samples(plan, repeat, &run, pinned.cpu, base_ns))?;
            folder.flush()?;
            runs.push(run);
        }
        let modelled = modelled(config, &counter, plan, &walk, &runs, interrupt)?;
        speed.add(modelled.as_ref());
        folder.append_all(&figures::modelled_samples(plan, modelled.as_ref()))?;
        folder.flush()?;
        let lines = summary.whole.l1d_lines;
        let mut case = figures::case(config, plan, &walk, &runs, modelled.as_ref(), lines);
        // Cases without a competitor come first.
        let mine = figures::times_of_its_kind(&runs);
        let alone = times.iter().find(|(other, _): &&(Plan, Vec<f64>)| {
            other.way == plan.way && other.access == plan.access && other.locality == plan.locality
        });
        match alone {
            Some((_, alone)) if !mine.is_empty() => {
                let slowdown = ratio_of_medians(&mine, alone);
                (case.slowdown, case.slowdown_ci95) = (slowdown.ratio, slowdown.ci95);
            }
            None if plan.compete == Compete::None => times.push((*plan, mine)),
            _ => {}
        }
        summary.cases.push(case);
    }
    steps.end();
    summary.whole.clock_base_ns = base_ns;
    summary.whole.cpu = pinned.cpu as u64;
    summary.whole.model_accesses_per_s = speed.per_second();
    remarks(config, &speed, &mut summary);
    drop(bench);
    drop(pinned);
    finished(folder, summary)
}

/// All cases, those without a competitor first.
fn plans(config: &Config) -> Vec<Plan> {
    let mut competing = config.compete.clone();
    competing.sort_by_key(|one| *one != Compete::None);
    let mut plans = Vec::new();
    for compete in competing {
        for way in config.ways() {
            for &access in &config.access {
                for &locality in &config.locality {
                    plans.push(Plan {
                        way,
                        access,
                        locality,
                        compete,
                    });
                }
            }
        }
    }
    plans
}

/// Refuses a mapping that does not fit: it would start the OOM killer or swapping, which is not what is measured.
fn fits(config: &Config) -> Result<(), Error> {
    if let Some(way) = config.ways().into_iter().find(|way| way.0.is_file()) {
        // Fails before anything is measured if the directory takes no file.
        Mapped::new(way.0, mapping::page_bytes(), &config.directory())?;
    }
    let needed = config.memory_bytes();
    match free_memory::free(&Root::system()) {
        Some(free) if needed > free.bytes => Err(Error::BadInput(format!(
            "--size: {} is more than the {free}{}",
            size_text(needed),
            if needed > config.size_bytes {
                format!(
                    ": {} is in memory, so a private mapping of a file there takes its size twice (choose another --dir)",
                    config.directory().display()
                )
            } else {
                String::new()
            }
        ))),
        _ => Ok(()),
    }
}

/// The buffer that is read to empty the caches, if that is the method.
fn other(config: &Config, cpu: usize) -> Result<Option<Mapping>, Error> {
    if config.flush == Flush::Off || (config.flush == Flush::Lines && data_cache::BY_ADDRESS) {
        return Ok(None);
    }
    let llc = cache::last_level(&Root::system(), cpu).and_then(|cache| cache.size_bytes);
    let bytes = CACHES_FULL * llc.unwrap_or(UNKNOWN_CACHE_BYTES);
    let mapping = Mapping::anonymous(usize::try_from(bytes).unwrap_or(usize::MAX))?;
    for offset in (0..mapping.bytes()).step_by(4096) {
        // Pages that were never written all map to the same zero page.
        mapping.touch(offset);
    }
    Ok(Some(mapping))
}

/// Makes the OOM killer prefer other processes while there is a competitor.
fn protect(config: &Config, summary: &mut Summary) -> Option<oom::Score> {
    if config.compete.iter().all(|one| *one == Compete::None) {
        return None;
    }
    match oom::Score::set(oom::NEVER) {
        Ok(score) => Some(score),
        Err(error) => {
            let why = std::error::Error::source(&error).map(|why| format!(": {why}"));
            summary.note(format!(
                "The measuring process is not protected from the OOM killer: {error}{}. Its competitor is still killed \
                 first.",
                why.unwrap_or_default()
            ));
            None
        }
    }
}

/// Models the walk of a case. The model has no competitor, so it skips cases with one.
fn modelled(
    config: &Config,
    counter: &Counter,
    plan: &Plan,
    walk: &Walk,
    runs: &[Taken],
    interrupt: &Interrupt,
) -> Result<Option<Modelled>, Error> {
    let (Counter::Model(geometry), Some(last)) = (counter, runs.last()) else {
        return Ok(None);
    };
    if plan.compete != Compete::None {
        return Ok(None);
    }
    let geometry: &Geometry = geometry;
    let huge = last.huge_bytes * 2 > config.size_bytes;
    let most = config.model_outer;
    model(geometry, walk, most, last.base, huge, interrupt).map(Some)
}

/// Speed of the model.
#[derive(Default)]
struct Speed {
    accesses: u64,
    cpu_ns: u64,
}

impl Speed {
    fn add(&mut self, modelled: Option<&Modelled>) {
        if let Some(modelled) = modelled {
            self.accesses += modelled.accesses;
            self.cpu_ns += modelled.cpu_ns;
        }
    }

    fn per_second(&self) -> Option<f64> {
        (self.cpu_ns > 0).then(|| (self.accesses as f64 / self.cpu_ns as f64 * 1e9).round())
    }
}

/// Adds the notes that a reader needs.
fn remarks(config: &Config, speed: &Speed, summary: &mut Summary) {
    if let Some(rate) = speed.per_second() {
        summary.note(format!(
            "The model simulated {:.1} million accesses a second of CPU time.",
            rate / 1e6
        ));
    }
    summary.note(format!(
        "Time, getrusage and counters cover only the walk, after the mapping was filled. Linux does not maintain {}, \
         so they are not reported.",
        NOT_MAINTAINED.join(", ")
    ));
    match config.flush {
        Flush::Off => summary.note("The caches were not emptied before the walks."),
        Flush::Lines if data_cache::BY_ADDRESS => {}
        _ => summary.note("The caches were emptied by reading a larger buffer."),
    }
    let rivals = config.compete.iter().any(|one| *one != Compete::None);
    if rivals && summary.whole.counted_by == Some(CountedBy::Model) {
        summary.note("The model has no competitor: cases beside one have no counters.");
    }
    if summary
        .cases
        .iter()
        .any(|case| case.multiplexed == Some(true))
    {
        summary.note(
            "The machine has too few counters: groups of them took turns (multiplexing), and the counts are scaled to \
             the whole time. Cases with such counts are marked.",
        );
    }
    let huge: Vec<String> = summary
        .cases
        .iter()
        .filter(|case| case.huge_bytes > 0)
        .map(|case| {
            format!(
                "{} ({} of {})",
                case.name,
                size_text(case.huge_bytes),
                size_text(case.size_bytes)
            )
        })
        .collect();
    if !huge.is_empty() {
        summary.note(format!(
            "The kernel gave huge pages to: {}. One fault then brings 2 MiB or more, and the TLB holds much more of the mapping.",
            huge.join("; ")
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_keeps_the_walks_before_it() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("run");
        let config = Config {
            flags: vec![Way::ALL[0]],
            size_bytes: 1 << 20,
            outer: 16,
            counters: Counters::Model,
            platform: "raspberry-pi-3".into(),
            ..Config::default()
        };
        let interrupt = Interrupt::default();
        let mut after = interrupt.after(1);
        let ended = run(&config, RunRequest::to(&out, &interrupt, &mut after));
        assert!(matches!(ended, Err(Error::Interrupted)), "{ended:?}");
        let samples = out.with_extension("partial").join("samples.csv");
        let rows = memwarden_run::read_samples(&samples).unwrap();
        let times: Vec<u32> = rows
            .iter()
            .filter(|row| row.role == "walk" && row.metric == "time_ns")
            .map(|row| row.repeat)
            .collect();
        assert_eq!(times, [0]);
    }
}
