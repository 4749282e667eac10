// SPDX-License-Identifier: MIT OR Apache-2.0
//! From which size on the engine wins: by a copy's time, by the CPU time that it costs the copying thread, and by what an
//! application on another CPU loses.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use memwarden_copies::cftu::{self, Copy, Session};
use memwarden_platform::{affinity, clock};
use memwarden_run::statistics::{Ratio, ratio_of_medians};
use memwarden_run::{Case, Existing, Figure, Metric, Sample, Summary};
use memwarden_workloads::automotive::Application;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::copier::{Repeated, beside};
use super::victim::Victim;
use super::{Bench, Engine, Operation, Policies, bytes_text, copy, list, named, powers};
use crate::pinned::Pinned;
use crate::settings::{check_sizes, not_twice};
use crate::{Error, Interrupt, Progress, Settings, folder};

/// Name of the experiment in run folders.
pub const EXPERIMENT: &str = "copy-breakeven";

/// Where the threshold is that cftu reads.
pub const THRESHOLD: &str = "/sys/module/cftu/parameters/min_bytes";

/// Times that the CPU's time is read for each size: enough for an interval, and for a clock that is coarse.
const ROUNDS: u32 = 10;

/// What the engine can win.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Answer {
    /// A copy takes less time.
    Latency,
    /// It costs the copying thread less CPU time.
    CpuTime,
    /// An application on another CPU loses less.
    Slowdown,
}

named!(Answer, "answer");

impl Answer {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::Latency, Self::CpuTime, Self::Slowdown];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::CpuTime => "cpu-time",
            Self::Slowdown => "slowdown",
        }
    }

    /// What is measured for it.
    fn metric(self) -> &'static str {
        match self {
            Self::Latency => "time_ns",
            Self::CpuTime => "cpu_time_ns",
            Self::Slowdown => "victim_ns",
        }
    }
}

/// The experiment's settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The device, or `null`.
    pub device: PathBuf,
    /// The engine that is to win.
    pub engine: Engine,
    /// From where to where: it must win in all of them.
    pub operation: Vec<Operation>,
    /// Bytes of a copy.
    pub sizes: Vec<u64>,
    /// Copies of each size.
    pub count: u32,
    /// The application that is to lose less.
    pub victim: String,
    /// Its runs beside each size.
    pub victim_runs: u32,
    /// The CPU that copies.
    pub cpu: usize,
    /// The application's CPU.
    pub victim_cpu: usize,
    /// Settings of the policies.
    pub policy: Policies,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            device: cftu::DEVICE.into(),
            engine: Engine::Shared,
            operation: vec![Operation::From, Operation::To],
            sizes: powers(1, 1 << 25),
            count: 100,
            victim: "susan_corners_medium".into(),
            victim_runs: 20,
            cpu: 0,
            victim_cpu: 1,
            policy: Policies::default(),
        }
    }
}

impl Settings for Config {
    /// The settings that suit the emulated machine.
    fn for_lab() -> Self {
        Self {
            sizes: powers(1 << 6, 1 << 20),
            count: 20,
            victim: "susan_corners_small".into(),
            victim_runs: 6,
            ..Self::default()
        }
    }

    fn to_arguments(&self) -> Vec<String> {
        let mut words = vec!["--device".to_owned(), self.device.display().to_string()];
        for (option, value) in [
            ("--engine", self.engine.to_string()),
            ("--operation", list(&self.operation)),
            ("--sizes", list(&self.sizes)),
            ("--count", self.count.to_string()),
            ("--victim", self.victim.clone()),
            ("--victim-runs", self.victim_runs.to_string()),
            ("--cpu", self.cpu.to_string()),
            ("--victim-cpu", self.victim_cpu.to_string()),
        ] {
            words.extend([option.to_owned(), value]);
        }
        words.extend(self.policy.arguments());
        words
    }

    fn check(&self) -> Result<(), Error> {
        let bad = |text: String| Err(Error::BadInput(text));
        if !self.engine.is_dma() {
            return bad("--engine cpu: give a DMA engine, it is compared with the CPU".into());
        }
        check_sizes(&self.sizes, cftu::MAX_BYTES)?;
        if self.operation.is_empty() {
            return bad("no operation: give --operation from,to, for example".into());
        }
        not_twice("--operation", &self.operation)?;
        if !(ROUNDS..=1_000_000).contains(&self.count) {
            return bad(format!("--count {}: give {ROUNDS} to 1000000", self.count));
        }
        if !(1..=10_000).contains(&self.victim_runs) {
            return bad(format!(
                "--victim-runs {}: give 1 to 10000",
                self.victim_runs
            ));
        }
        if self.cpu == self.victim_cpu {
            return bad(format!(
                "--cpu and --victim-cpu are both {}: give two CPUs",
                self.cpu
            ));
        }
        Application::named(&self.victim)?;
        self.policy.check()
    }
}

/// Runs the experiment and leaves its run folder.
///
/// # Errors
/// When a setting makes no sense here, the device is not there, refuses or gives other bytes back, or somebody
/// interrupts; what was measured is then in `DIR.partial`.
pub fn run(
    config: &Config,
    out: Option<&Path>,
    existing: Existing,
    interrupt: &Interrupt,
    progress: &mut dyn Progress,
) -> Result<(PathBuf, Summary), Error> {
    config.check()?;
    let mut summary = Summary::new(EXPERIMENT, "native");
    let bench = Bench::open(&config.device, &config.policy)?;
    bench.choose(config.engine)?;
    let mut sizes = config.sizes.clone();
    sizes.sort_unstable();
    let largest = sizes.last().copied().unwrap_or(1);
    let mut session = bench.session(largest, true)?;
    // A machine with one CPU has no other application's loss to tell.
    let mut victim = match affinity::get()?.len() {
        1 => None,
        _ => Some(Victim::new(Application::named(&config.victim)?, 1)),
    };
    let mut folder = folder::begin(EXPERIMENT, config, out, existing)?;

    let steps = sizes.len() * config.operation.len();
    let mut step = 0;
    for &size in &sizes {
        for engine in [Engine::Cpu, config.engine] {
            bench.check(session.as_mut(), engine, size)?;
        }
        for &operation in &config.operation {
            progress.step(step, steps, &format!("{operation}, {}", bytes_text(size)));
            step += 1;
            let one = |engine| Repeated {
                operation,
                engine,
                bytes: size,
            };
            let both = [one(Engine::Cpu), one(config.engine)];
            let mut found = Vec::new();
            let pinned = Pinned::to(config.cpu)?;
            let own = both.map(|one| own_times(one, config.count, session.as_mut(), interrupt));
            drop(pinned);
            let [cpu, dma] = own;
            let (cpu, dma) = (cpu?, dma?);
            found.push((Answer::Latency, [cpu.0, dma.0]));
            found.push((Answer::CpuTime, [cpu.1, dma.1]));
            if let Some(victim) = &mut victim {
                let pinned = Pinned::to(config.victim_cpu)?;
                let mut times = [Vec::new(), Vec::new()];
                for (one, times) in both.into_iter().zip(&mut times) {
                    let work = || victim_times(victim, config.victim_runs, interrupt);
                    *times = beside(one, config.cpu, session.as_mut(), interrupt, work)?.0;
                }
                drop(pinned);
                found.push((Answer::Slowdown, times));
            }
            for (answer, times) in found {
                let name = format!("{answer}, {operation}, {}", bytes_text(size));
                folder.append_all(&samples(&name, answer, &times))?;
                let case = case(name, answer, &times)
                    .with("operation", operation.name())
                    .with("size_bytes", size);
                summary.cases.push(case);
            }
            folder.flush()?;
        }
    }
    progress.step(steps, steps, "done");
    for answer in Answer::ALL {
        let (bytes, reason) = match first_win(&summary, answer, &sizes) {
            Ok(bytes) => (json!(bytes), Value::Null),
            Err(reason) => (Value::Null, json!(reason)),
        };
        let key = answer.name().replace('-', "_");
        summary
            .figures
            .insert(format!("{key}_bytes"), Figure::Other(bytes));
        if let Value::String(reason) = &reason {
            summary.note(format!(
                "By {answer} there is no size from which the engine wins: {reason}."
            ));
        }
        summary
            .figures
            .insert(format!("{key}_reason"), Figure::Other(reason));
    }
    let engine = Figure::Other(json!(config.engine.name()));
    summary.figures.insert("engine".into(), engine);
    bench.tell(&mut summary);
    summary.note(format!(
        "The engine wins from a size on if at that size and every larger one that was measured, in each direction, the 95 % \
         interval of its ratio to the CPU is below 1. The application that may lose is {}.",
        config.victim
    ));
    let path = folder.finish(&summary)?;
    Ok((path, summary))
}

/// The copies' times, and the CPU time of the calling thread for each, a figure a round.
fn own_times(
    one: Repeated,
    count: u32,
    session: &mut dyn Session,
    interrupt: &Interrupt,
) -> Result<(Vec<f64>, Vec<f64>), Error> {
    let in_a_round = usize::try_from(count / ROUNDS).unwrap_or(1);
    let (mut times, mut cpu_times) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let mut copies = one.operation.copies(one.engine, one.bytes, in_a_round);
        let before = clock::thread_cpu_ns();
        copy(session, &mut copies, interrupt)?;
        let spent = clock::thread_cpu_ns() - before;
        #[allow(clippy::cast_precision_loss)]
        {
            times.extend(copies.iter().map(|copy: &Copy| copy.elapsed_ns() as f64));
            cpu_times.push(spent as f64 / in_a_round as f64);
        }
    }
    Ok((times, cpu_times))
}

#[allow(clippy::cast_precision_loss)]
fn victim_times(victim: &mut Victim, runs: u32, interrupt: &Interrupt) -> Result<Vec<f64>, Error> {
    let once = |_| {
        interrupt.check()?;
        let [begin_ns, end_ns] = victim.run()?;
        Ok(end_ns.saturating_sub(begin_ns) as f64)
    };
    (0..runs).map(once).collect()
}

/// Raw samples of one case; the role is who copied.
fn samples(case: &str, answer: Answer, times: &[Vec<f64>; 2]) -> Vec<Sample> {
    let metric = answer.metric();
    let of = |role: &'static str, times: &[f64]| -> Vec<Sample> {
        (0..)
            .zip(times)
            .map(|(number, ns)| Sample::new(case, number, role, metric, "ns", *ns))
            .collect()
    };
    let mut samples = of("cpu", &times[0]);
    samples.extend(of("dma", &times[1]));
    samples
}

/// The figures of one case: both, and the engine's over the CPU's.
fn case(name: String, answer: Answer, times: &[Vec<f64>; 2]) -> Case {
    let metric = |times: &[f64]| Metric::from_samples(answer.metric(), times);
    let Ratio { ratio, ci95 } = ratio_of_medians(&times[1], &times[0]);
    Case::new(name)
        .with("answer", answer.name())
        .with_metric("cpu", metric(&times[0]))
        .with_metric("dma", metric(&times[1]))
        .with("ratio", json!(ratio))
        .with("ratio_ci95", json!(ci95))
}

/// The smallest size from which on the engine wins at every one, or why there is none.
fn first_win(summary: &Summary, answer: Answer, sizes: &[u64]) -> Result<u64, String> {
    let of_size = |size: u64| {
        let mine = summary.cases.iter().filter(move |case| {
            case.text("answer") == Some(answer.name())
                && case.value("size_bytes").and_then(Value::as_u64) == Some(size)
        });
        mine.collect::<Vec<&Case>>()
    };
    let high = |case: &Case| case.value("ratio_ci95")?.get(1)?.as_f64();
    let wins = |size: &&u64| {
        let cases = of_size(**size);
        !cases.is_empty()
            && cases
                .iter()
                .all(|case| high(case).is_some_and(|high| high < 1.0))
    };
    if let Some(size) = sizes.iter().rev().take_while(wins).last() {
        return Ok(*size);
    }
    let last = sizes.last().copied().unwrap_or(0);
    let worst = of_size(last)
        .into_iter()
        .filter_map(|case| case.number("ratio"))
        .fold(None, |worst: Option<f64>, ratio| {
            Some(worst.map_or(ratio, |worst| worst.max(ratio)))
        });
    Err(match worst {
        None if answer == Answer::Slowdown => {
            "the machine has one CPU, or the clock told no time".into()
        }
        None => "the clock told no time".into(),
        Some(ratio) => {
            let spread = if ratio < 1.0 {
                ", which is no more than the spread explains"
            } else {
                ""
            };
            format!(
                "at {}, the largest that was measured, the engine's figure is {ratio:.2} of the CPU's{spread}",
                bytes_text(last)
            )
        }
    })
}

/// The answer of a run.
#[must_use]
pub fn answer(summary: &Summary, answer: Answer) -> Option<u64> {
    let key = format!("{}_bytes", answer.name().replace('-', "_"));
    match summary.figures.get(&key)? {
        Figure::Other(value) => value.as_u64(),
        Figure::Metric(_) => None,
    }
}

/// The line for a file in /etc/modprobe.d.
#[must_use]
pub fn modprobe_line(bytes: u64) -> String {
    format!("options cftu min_bytes={bytes}")
}

/// Writes the threshold where a loaded cftu reads it.
///
/// # Errors
/// When there is none, or this is not root.
pub fn apply(bytes: u64, threshold: &Path) -> Result<(), Error> {
    if !threshold.exists() {
        return Err(Error::BadInput(format!(
            "--apply: {} is not there, as cftu is not loaded now (put the line in /etc/modprobe.d)",
            threshold.display()
        )));
    }
    std::fs::write(threshold, format!("{bytes}\n")).map_err(|error| {
        Error::BadInput(format!("--apply: writing {}: {error}", threshold.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings;

    /// A summary in which the engine's figure is so much of the CPU's, by size.
    fn summary(answer: Answer, ratios: &[(u64, f64)]) -> Summary {
        let mut summary = Summary::new(EXPERIMENT, "native");
        for (size, ratio) in ratios {
            for operation in ["from", "to"] {
                let cpu = vec![100.0, 101.0, 102.0, 100.0, 101.0, 102.0];
                let dma = cpu.iter().map(|ns| ns * ratio).collect();
                let case = case(format!("{operation} {size}"), answer, &[cpu, dma])
                    .with("size_bytes", *size);
                summary.cases.push(case);
            }
        }
        summary
    }

    #[test]
    fn the_engine_wins_from_where_it_never_loses_again() {
        let sizes = [1, 64, 4096, 65_536];
        let won = |ratios: [f64; 4]| {
            let all: Vec<_> = sizes.into_iter().zip(ratios).collect();
            first_win(&summary(Answer::Latency, &all), Answer::Latency, &sizes)
        };
        assert_eq!(won([9.0, 3.0, 0.8, 0.4]), Ok(4096));
        assert_eq!(won([0.5, 3.0, 0.8, 0.4]), Ok(4096));
        assert_eq!(won([0.5, 0.5, 0.8, 0.4]), Ok(1));
        // A ratio whose interval has 1 in it is no win.
        assert_eq!(won([9.0, 3.0, 0.995, 0.4]), Ok(65_536));
        assert_eq!(
            won([0.5, 0.5, 0.8, 1.8]).unwrap_err(),
            "at 65536 bytes, the largest that was measured, the engine's figure is 1.80 of the CPU's"
        );
        let near = won([0.5, 0.5, 0.8, 0.995]).unwrap_err();
        assert!(
            near.ends_with("0.99 of the CPU's, which is no more than the spread explains"),
            "{near}"
        );
    }

    #[test]
    fn an_answer_without_a_case_is_no_answer() {
        let empty = Summary::new(EXPERIMENT, "native");
        assert!(
            first_win(&empty, Answer::Slowdown, &[1])
                .unwrap_err()
                .contains("one CPU")
        );
        assert_eq!(answer(&empty, Answer::Latency), None);
    }

    #[test]
    fn a_run_gives_three_answers_or_their_reasons() {
        let cpus: Vec<usize> = affinity::get().unwrap().iter().collect();
        let [cpu, victim_cpu, ..] = cpus[..] else {
            return; // one CPU has two answers
        };
        let folder = tempfile::tempdir().unwrap();
        let config = Config {
            device: cftu::NULL.into(),
            sizes: vec![4096, 1],
            count: 10,
            victim: "susan_corners_small".into(),
            victim_runs: 2,
            cpu,
            victim_cpu,
            ..Config::default()
        };
        let (_, summary) = run(
            &config,
            Some(&folder.path().join("run")),
            Existing::Refuse,
            &Interrupt::default(),
            &mut (),
        )
        .unwrap();
        // 2 sizes, 2 operations, 3 answers.
        assert_eq!(summary.cases.len(), 12);
        assert_eq!(summary.cases[0].name, "latency, from, 1 byte");
        for key in ["latency", "cpu_time", "slowdown"] {
            let other = |end: &str| match &summary.figures[&format!("{key}_{end}")] {
                Figure::Other(value) => value.clone(),
                Figure::Metric(_) => panic!("{key}_{end}"),
            };
            assert!(other("bytes").is_null() != other("reason").is_null());
        }
    }

    #[test]
    fn the_threshold_is_written_where_it_is() {
        let file = tempfile::NamedTempFile::new().unwrap();
        apply(4096, file.path()).unwrap();
        assert_eq!(std::fs::read_to_string(file.path()).unwrap(), "4096\n");
        let message = apply(1, Path::new("/nonexistent/min_bytes"))
            .unwrap_err()
            .to_string();
        assert!(message.contains("/etc/modprobe.d"), "{message}");
        assert_eq!(modprobe_line(512), "options cftu min_bytes=512");
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        let with = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert!(with(|c| c.engine = Engine::Cpu).contains("give a DMA engine"));
        assert!(with(|c| c.count = 9).contains("--count 9: give 10 to"));
        assert!(with(|c| c.victim = "doom".into()).contains("doom"));
        assert!(with(|c| c.victim_runs = 0).contains("--victim-runs 0"));
        assert!(with(|c| c.victim_cpu = 0).contains("give two CPUs"));
        let config = Config::for_lab();
        config.check().unwrap();
        let back = settings::parse(&config.to_toml(), &Config::default()).unwrap();
        assert_eq!(back, config);
    }
}
