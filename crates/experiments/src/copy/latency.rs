// SPDX-License-Identifier: MIT OR Apache-2.0
//! Time of one copy, by size: out of and into user memory, with warm and with flushed caches, by CPU and by DMA.

use std::path::PathBuf;

use memwarden_copies::cftu::{self, Copy};
use memwarden_platform::{affinity, clock};
use memwarden_run::studies::copy_latency::{Case, NAME, Summary, Whole};
use memwarden_run::{Metric, Sample, title};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Bench, Engine, HEAVY_LOAD, Load, Operation, Policies, bytes_text, copy, engine_share,
    note_cpu_parts, powers,
};
use crate::pinned::Pinned;
use crate::request::finished;
use crate::settings::{check_sizes, check_within, not_empty, not_twice, usable, usable_or_first};
use crate::{Error, RunRequest, Settings};

/// The default largest size: 32 MiB.
pub const LARGEST: u64 = 1 << 25;

/// A median below this multiple of the clock's shortest time is mostly clock error.
const COARSE: f64 = 5.0;

/// The experiment's settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The device, or `null`.
    pub device: PathBuf,
    /// The engines; empty means all available.
    pub engine: Vec<Engine>,
    /// Directions of the copies.
    pub operation: Vec<Operation>,
    /// Sizes of a copy, bytes.
    pub sizes: Vec<u64>,
    /// Copies of each size.
    #[serde(alias = "count")]
    pub repeat: u32,
    /// Loads beside the copies; each is measured separately.
    pub load: Vec<Load>,
    /// Each copy pins its user memory within the measured time.
    pub pin_inside: bool,
    /// The CPU on which the copies are made.
    pub cpu: usize,
    /// Settings of the policies.
    pub policy: Policies,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            device: cftu::DEVICE.into(),
            engine: Vec::new(),
            operation: vec![
                Operation::From,
                Operation::To,
                Operation::FromUncached,
                Operation::ToUncached,
            ],
            sizes: powers(1, LARGEST),
            repeat: 300,
            load: vec![Load::Idle],
            pin_inside: false,
            cpu: 0,
            policy: Policies::default(),
        }
    }
}

impl Settings for Config {
    type Whole = Whole;

    const COMMAND: &str = "copy latency";

    const RENAMED: &[(&str, &str)] = &[("count", "repeat")];

    /// The CPU is one on which this process may run.
    fn for_native() -> Result<Self, Error> {
        let config = Self::default();
        Ok(Self {
            cpu: usable_or_first(config.cpu, &usable()?),
            ..config
        })
    }

    /// The settings for the emulated machine: it has no caches to flush, and a copy of 32 MiB takes long.
    fn for_lab() -> Self {
        Self {
            operation: vec![Operation::From, Operation::To],
            sizes: powers(1, 1 << 20),
            repeat: 30,
            ..Self::default()
        }
    }

    fn check(&self) -> Result<(), Error> {
        let bad = |text: String| Err(Error::BadInput(text));
        check_sizes(&self.sizes, cftu::MAX_BYTES)?;
        not_empty(
            &self.operation,
            "no operation: give --operation from,to, for example",
        )?;
        if self.operation.contains(&Operation::Both) {
            return bad("--operation from+to: a copy goes one way (bandwidth has from+to)".into());
        }
        not_empty(&self.load, "no load: give --load idle")?;
        not_twice("--operation", &self.operation)?;
        not_twice("--engine", &self.engine)?;
        not_twice("--load", &self.load)?;
        check_within("--repeat", self.repeat, 1..=1_000_000)?;
        self.policy.check()
    }
}

/// Runs the experiment and leaves its run folder.
///
/// # Errors
/// When a setting makes no sense here, the device is not there, refuses or gives other bytes back, or the run is
/// interrupted; what was measured is then in `DIR.partial`.
pub fn run(config: &Config, request: RunRequest) -> Result<(PathBuf, Summary), Error> {
    config.check()?;
    let interrupt = request.interrupt;
    let mut summary = Summary::new(NAME, "native");
    let bench = Bench::open(&config.device, &config.policy)?;
    let engines = bench.engines(&config.engine, &mut summary)?;
    let largest = config.sizes.iter().copied().max().unwrap_or(1);
    let mut session = bench.session(largest, !config.pin_inside)?;
    let others: Vec<usize> = affinity::get()?
        .iter()
        .filter(|cpu| *cpu != config.cpu)
        .collect();
    for load in &config.load {
        load.check(&others)?;
    }
    let pinned = Pinned::to(config.cpu)?;
    let mut folder = request.begin(NAME, config)?;
    let more = &mut folder.run_mut().more;
    more.insert("heavy_load".into(), HEAVY_LOAD.into());

    let shortest_ns = clock::shortest_ns();
    let base_ns = clock::monotonic_ns();
    let each = config.sizes.len() * config.operation.len();
    let mut steps = request.steps(each * engines.len() * config.load.len());
    for &load in &config.load {
        let mut running = load.start(&others, interrupt)?;
        for &engine in &engines {
            bench.choose(engine)?;
            for &size in &config.sizes {
                bench.check(session.as_mut(), engine, size)?;
                for &operation in &config.operation {
                    let name = name(operation, engine, size, load);
                    let (of, by, beside) =
                        (operation.to_string(), engine.to_string(), load.to_string());
                    let title = title::copies_beside(&of, &by, size, &beside);
                    steps.next(&title);
                    let count = usize::try_from(config.repeat).unwrap_or(usize::MAX);
                    let mut copies = operation.copies(engine, size, count);
                    let outcome = copy(session.as_mut(), &mut copies, interrupt);
                    copies.retain(Copy::is_made);
                    folder.append_all(&samples(&name, &copies, base_ns))?;
                    // The copies before an interrupt are written, too.
                    outcome?;
                    let case = case(name, &copies, operation, engine, load);
                    summary.cases.push(case);
                }
            }
            folder.flush()?;
            running.check()?;
        }
    }
    steps.end();
    drop(pinned);
    summary.whole = Whole {
        clock_shortest_ns: shortest_ns,
        clock_base_ns: base_ns,
        device: bench.device(),
    };
    bench.tell(&mut summary)?;
    remarks(config, shortest_ns, &mut summary);
    finished(folder, summary)
}

fn name(operation: Operation, engine: Engine, size: u64, load: Load) -> String {
    let beside = match load {
        Load::Idle => "",
        Load::Heavy => ", heavy load",
    };
    format!("{operation}, {engine}, {}{beside}", bytes_text(size))
}

/// Raw samples of one case.
fn samples(case: &str, copies: &[Copy], base_ns: u64) -> Vec<Sample> {
    let sample = |(number, copy): (u32, &Copy)| {
        Sample::new(
            case,
            number,
            "copy",
            "time_ns",
            "ns",
            copy.elapsed_ns() as f64,
        )
        .on_cpu(copy.cpu())
        .at_ns(copy.begin_ns().saturating_sub(base_ns))
    };
    (0..).zip(copies).map(sample).collect()
}

/// The figures of one case.
fn case(name: String, copies: &[Copy], operation: Operation, engine: Engine, load: Load) -> Case {
    let times: Vec<f64> = copies.iter().map(|copy| copy.elapsed_ns() as f64).collect();
    let size = copies.first().map_or(0, Copy::bytes);
    let time = Metric::from_samples("time_ns", &times);
    // One byte per nanosecond is 10^9 bytes a second.
    let mib_s = time
        .median
        .filter(|ns| *ns > 0.0)
        .map(|ns| size as f64 / ns * 1e9 / f64::from(1 << 20));
    Case {
        name,
        guard: (),
        size_bytes: size,
        time: Some(time),
        mib_s,
        engine_share: Some(engine_share(copies)),
        operation: operation.to_string(),
        engine: engine.to_string(),
        load: load.to_string(),
    }
}

/// Adds the notes that a reader needs.
fn remarks(config: &Config, shortest_ns: u64, summary: &mut Summary) {
    let engines = summary
        .cases
        .iter()
        .filter(|case| case.engine != Engine::Cpu.to_string());
    let note = note_cpu_parts(engines.map(|case| (case.title(), case.engine_share)));
    note.into_iter().for_each(|note| summary.note(note));
    let limit = COARSE * shortest_ns as f64;
    let coarse = summary.cases.iter().filter(|case| {
        let median = case.time.as_ref().and_then(|time| time.median);
        median.is_some_and(|ns| ns < limit)
    });
    let coarse = coarse.count();
    if coarse > 0 {
        summary.note(format!(
            "The shortest time that this clock measures is {shortest_ns} ns (its step, or the cost of reading it). The \
             medians of {coarse} cases are below five times that and no more exact."
        ));
    }
    if config.load.contains(&Load::Heavy) {
        summary.note(format!("The heavy load: {HEAVY_LOAD}."));
    }
    summary.note(if config.pin_inside {
        "Each copy pinned and released its user memory within the measured time (--pin-inside). The CPU's copy does \
         not pin."
    } else {
        "User memory was pinned before the measured time, as on a system that never swaps; --pin-inside includes it."
    });
    summary.note(
        "The kernel read the clock around each copy, so the time includes no system call. For each engine and size, \
         data copied out and back was compared with the original.",
    );
}

#[cfg(test)]
mod tests {
    use memwarden_run::Recorded;

    use strum::VariantArray;

    use super::*;
    use crate::Interrupt;
    use crate::settings;

    fn small() -> Config {
        Config {
            device: cftu::NULL.into(),
            sizes: vec![1, 4096],
            repeat: 7,
            ..Config::default()
        }
    }

    #[test]
    fn every_copy_is_in_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("run");
        let interrupt = Interrupt::default();
        run(&small(), RunRequest::to(&out, &interrupt, &mut ())).unwrap();
        let run = Recorded::read(&out).unwrap();
        let summary: Summary = run.summary.typed().unwrap();
        // 4 operations, 4 engines, 2 sizes.
        assert_eq!(summary.cases.len(), 32);
        assert_eq!(run.samples.len(), 32 * 7);
        let case = &summary.cases[31];
        assert_eq!(case.name, "to_nc, dma-priority, 4096 bytes");
        assert_eq!(case.time.as_ref().unwrap().samples, 7);
        assert_eq!(case.engine_share, Some(1.0));
        assert_eq!(summary.cases[0].engine_share, Some(0.0));
        let times: Vec<u64> = run.samples.iter().filter_map(|s| s.t_ns).collect();
        assert!(times.is_sorted(), "one thread copies");
        assert!(summary.notes[0].starts_with("No kernel was involved"));
    }

    #[test]
    fn an_interrupt_keeps_the_copies_before_it() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("run");
        let batch = u32::try_from(cftu::MAX_BATCH).unwrap();
        let config = Config {
            engine: vec![Engine::Cpu],
            operation: vec![Operation::To],
            sizes: vec![1],
            repeat: batch + 1,
            ..small()
        };
        let interrupt = Interrupt::after_checks(1);
        let ended = run(&config, RunRequest::to(&out, &interrupt, &mut ()));
        assert!(matches!(ended, Err(Error::Interrupted)), "{ended:?}");
        let samples = out.with_extension("partial").join("samples.csv");
        let rows = memwarden_run::read_samples(&samples).unwrap();
        assert_eq!(rows.len(), cftu::MAX_BATCH, "one request of two");
        assert!(rows.iter().all(|row| row.t_ns.is_some()));
    }

    #[test]
    fn a_named_engine_is_measured_alone() {
        let folder = tempfile::tempdir().unwrap();
        let config = Config {
            engine: vec![Engine::DmaShared],
            operation: vec![Operation::To],
            pin_inside: true,
            ..small()
        };
        let (_, summary) = run(
            &config,
            RunRequest::to(&folder.path().join("run"), &Interrupt::default(), &mut ()),
        )
        .unwrap();
        let names: Vec<&str> = summary.cases.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(
            names,
            ["to, dma-shared, 1 byte", "to, dma-shared, 4096 bytes"]
        );
        assert!(
            summary
                .notes
                .iter()
                .any(|note| note.contains("--pin-inside"))
        );
    }

    #[test]
    fn settings_round_trip_through_toml() {
        let mut config = Config {
            engine: Engine::VARIANTS.into(),
            load: Load::VARIANTS.into(),
            ..Config::for_lab()
        };
        config.policy.high = vec![1];
        config.check().unwrap();
        let back = settings::tests::read(&config.to_toml().unwrap(), &Config::default()).unwrap();
        assert_eq!(back, config);
        assert_eq!(Config::default().sizes.len(), 26);
    }

    #[test]
    fn the_default_cpu_is_one_that_this_process_may_use() {
        let config = Config::for_native().unwrap();
        assert!(usable().unwrap().contains(config.cpu));
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        let with = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert!(with(|c| c.sizes.clear()).contains("--sizes 64"));
        assert!(with(|c| c.sizes.push(0)).contains("--sizes 0"));
        assert!(with(|c| c.sizes.push(2 << 30)).contains("--sizes 2147483648"));
        assert!(with(|c| c.sizes.push(1)).contains("--sizes 1 is given twice"));
        assert!(with(|c| c.repeat = 0).contains("--repeat 0"));
        assert!(with(|c| c.operation.clear()).contains("--operation from"));
        assert!(with(|c| c.operation.push(Operation::Both)).contains("goes one way"));
        assert!(with(|c| c.load = vec![Load::Heavy; 2]).contains("--load heavy is given twice"));
        assert!(with(|c| c.engine = vec![Engine::Cpu; 2]).contains("--engine cpu is given twice"));
        assert!(with(|c| c.policy.high = vec![64]).contains("--high 64"));
        assert!(with(|c| c.policy.quantum_low_ns = 5).contains("--quantum-low 5"));
    }
}
