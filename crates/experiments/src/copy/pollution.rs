// SPDX-License-Identifier: MIT OR Apache-2.0
//! Slowdown and cache misses of an application while another CPU copies: without copies, with copies by the CPU, and
//! with copies by a DMA engine.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use memwarden_copies::cftu;
use memwarden_platform::counters::groups::Reading;
use memwarden_platform::counters::{self, Counting};
use memwarden_platform::names::unknown;
use memwarden_platform::{Root, as_text, clock, topology};
use memwarden_run::statistics::ratio_of_medians;
use memwarden_run::studies::copy_pollution::{Case, NAME, Summary, Whole};
use memwarden_run::{Metric, Sample, title};
use memwarden_workloads::automotive::Application;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, VariantArray};

use super::copier::{Repeated, beside};
use super::victim::Victim;
use super::{Bench, Engine, Operation, Policies, note_cpu_parts};
use crate::pinned::Pinned;
use crate::request::finished;
use crate::settings::{
    check_seed, check_within, not_empty, not_twice, two_cpus, usable, usable_or_first,
    usual_or_beside,
};
use crate::{Error, Interrupt, RunRequest, Settings};

/// The copies beside the application.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    JsonSchema,
    Display,
    EnumString,
    VariantArray,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case", parse_err_ty = String, parse_err_fn = unknown::<Self>)]
pub enum System {
    /// No copies.
    Ideal,
    /// Copies by the CPU.
    Cpu,
    /// Copies by the DMA engine.
    Dma,
}

/// A repeated copy, such as `from:224`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pair {
    /// Direction.
    pub operation: Operation,
    /// Bytes.
    pub bytes: u64,
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.operation, self.bytes)
    }
}

impl FromStr for Pair {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let pair = text.split_once(':').and_then(|(operation, bytes)| {
            Some(Self {
                operation: operation.parse().ok()?,
                bytes: bytes.parse().ok()?,
            })
        });
        pair.filter(|pair| (1..=cftu::MAX_BYTES).contains(&pair.bytes))
            .ok_or_else(|| {
                Error::BadInput(format!(
                    "pair `{text}`: give OPERATION:BYTES, such as from:224, to:4096 or from+to:16"
                ))
            })
    }
}

as_text!(Pair);

/// The experiment's settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The device, or `null`.
    pub device: PathBuf,
    /// The engine of the system `dma`.
    pub engine: Engine,
    /// Systems to measure; each is measured separately.
    pub system: Vec<System>,
    /// Copies to repeat; each is measured separately.
    #[schemars(with = "Vec<String>")]
    pub pairs: Vec<Pair>,
    /// The applications by name; empty means all.
    pub application: Vec<String>,
    /// Runs of an application in each case.
    #[serde(alias = "count")]
    pub repeat: u32,
    /// The CPU on which the copies are made.
    pub copy_cpu: usize,
    /// The application's CPU.
    pub application_cpu: usize,
    /// Seed of the applications' inputs.
    pub seed: u64,
    /// Settings of the policies.
    pub policy: Policies,
}

impl Default for Config {
    fn default() -> Self {
        // The most frequent sizes on a real system.
        let pairs = [
            (Operation::Both, 16),
            (Operation::From, 224),
            (Operation::From, 1124),
            (Operation::From, 16_064),
            (Operation::To, 1448),
            (Operation::To, 4096),
        ];
        Self {
            device: cftu::DEVICE.into(),
            engine: Engine::DmaShared,
            system: System::VARIANTS.into(),
            pairs: pairs
                .map(|(operation, bytes)| Pair { operation, bytes })
                .into(),
            application: Vec::new(),
            repeat: 300,
            copy_cpu: 0,
            application_cpu: 1,
            seed: 1,
            policy: Policies::default(),
        }
    }
}

impl Settings for Config {
    type Whole = Whole;

    const COMMAND: &str = "copy pollution";

    const RENAMED: &[(&str, &str)] = &[("count", "repeat")];

    /// The CPUs are those of two cores, if this process may run on two.
    fn for_native() -> Result<Self, Error> {
        let config = Self::default();
        let usable = usable()?;
        let copy_cpu = usable_or_first(config.copy_cpu, &usable);
        let application_cpu =
            usual_or_beside(&Root::system(), config.application_cpu, copy_cpu, &usable);
        Ok(Self {
            copy_cpu,
            application_cpu,
            ..config
        })
    }

    /// The settings for the emulated machine, on which large inputs take long.
    fn for_lab() -> Self {
        let small = [
            "susan_smoothing_small",
            "susan_edges_small",
            "susan_corners_small",
            "qsort_small",
        ];
        Self {
            application: small.map(str::to_owned).into(),
            repeat: 10,
            ..Self::default()
        }
    }

    fn check(&self) -> Result<(), Error> {
        let bad = |text: String| Err(Error::BadInput(text));
        if !self.engine.is_dma() {
            return bad(
                "--engine cpu: give a DMA engine (the CPU's copies are a system of their own)"
                    .into(),
            );
        }
        not_empty(&self.system, "no system: give --system ideal,cpu,dma")?;
        not_empty(&self.pairs, "no pair: give --pairs from:224, for example")?;
        not_twice("--system", &self.system)?;
        not_twice("--pairs", &self.pairs)?;
        not_twice("--application", &self.application)?;
        self.applications()?;
        check_within("--repeat", self.repeat, 1..=100_000)?;
        two_cpus(
            ("--copy-cpu", self.copy_cpu),
            ("--application-cpu", self.application_cpu),
        )?;
        check_seed(self.seed)?;
        self.policy.check()
    }
}

impl Config {
    fn applications(&self) -> Result<Vec<&'static Application>, Error> {
        if self.application.is_empty() {
            return Ok(Application::all().collect());
        }
        let named = |name: &String| Application::named(name);
        let found: Result<Vec<_>, _> = self.application.iter().map(named).collect();
        Ok(found?)
    }
}

/// Runs the experiment and leaves its run folder.
///
/// # Errors
/// When a setting makes no sense here, the device is not there or refuses, an application computes something else than
/// before, or the run is interrupted; what was measured is then in `DIR.partial`.
pub fn run(config: &Config, request: RunRequest) -> Result<(PathBuf, Summary), Error> {
    config.check()?;
    let interrupt = request.interrupt;
    let mut summary = Summary::new(NAME, "native");
    let bench = Bench::open(&config.device, &config.policy)?;
    bench.choose(config.engine)?;
    let largest = config
        .pairs
        .iter()
        .map(|pair| pair.bytes)
        .max()
        .unwrap_or(1);
    let mut session = bench.session(largest, true)?;
    let pinned = Pinned::to(config.application_cpu)?;
    let mut folder = request.begin(NAME, config)?;

    let mut counted = Counted::new(
        config.application_cpu,
        config.repeat,
        interrupt,
        &mut summary,
    );
    let base_ns = clock::monotonic_ns();
    let plans = config.plans();
    let applications = config.applications()?;
    let mut steps = request.steps(applications.len() * plans.len());
    for application in applications {
        let mut victim = Victim::new(application, config.seed);
        let mut ideal: Option<Vec<f64>> = None;
        for (system, pair) in &plans {
            let name = match pair {
                Some(pair) => format!("{}, {system}, {pair}", application.name()),
                None => format!("{}, {system}", application.name()),
            };
            let copy = pair.map(|pair| pair.to_string());
            let title =
                title::beside_copies(application.name(), &system.to_string(), copy.as_deref());
            steps.next(&title);
            let mut runs = Vec::new();
            let outcome = match pair {
                None => counted.runs(&mut victim, &mut runs).map(|()| None),
                Some(pair) => {
                    let repeated = Repeated {
                        operation: pair.operation,
                        engine: if *system == System::Cpu {
                            Engine::Cpu
                        } else {
                            config.engine
                        },
                        bytes: pair.bytes,
                    };
                    let cpu = config.copy_cpu;
                    let work = || counted.runs(&mut victim, &mut runs);
                    let done = beside(repeated, cpu, session.as_mut(), interrupt, work);
                    done.map(|((), made)| Some(made))
                }
            };
            // The runs before an interrupt are written, too. A write after each run would disturb the next one's caches.
            folder.append_all(&samples(&name, &runs, config.application_cpu, base_ns))?;
            folder.flush()?;
            let made = outcome?;
            let times: Vec<f64> = runs.iter().map(Run::time).collect();
            let slowdown = ideal.as_ref().map(|ideal| ratio_of_medians(&times, ideal));
            let by_engine = made.filter(|_| *system == System::Dma);
            summary.cases.push(Case {
                application: application.name().into(),
                system: system.to_string(),
                pair: copy,
                copies: made.map(|made| made.copies),
                engine_share: by_engine.map(|made| made.moved.engine_share()),
                slowdown: slowdown.and_then(|slowdown| slowdown.ratio),
                slowdown_ci95: slowdown.and_then(|slowdown| slowdown.ci95),
                ..case(name, &runs, counted.why_not())
            });
            if *system == System::Ideal {
                ideal = Some(times);
            }
        }
    }
    steps.end();
    drop(pinned);
    summary.whole = Whole {
        clock_base_ns: base_ns,
        engine: config.engine.to_string(),
        device: bench.device(),
    };
    bench.tell(&mut summary)?;
    note_shared_counters(&mut summary);
    let copying = [config.copy_cpu].into_iter().collect();
    topology::remarks(
        &Root::system(),
        "the application",
        config.application_cpu,
        &copying,
    )
    .into_iter()
    .for_each(|remark| summary.note(remark));
    // Cases of the other systems have no engine share.
    let cases = summary.cases.iter();
    let note = note_cpu_parts(cases.map(|case| (case.title(), case.engine_share)));
    note.into_iter().for_each(|note| summary.note(note));
    finished(folder, summary)
}

impl Config {
    /// The cases, `ideal` first: slowdowns are relative to it.
    fn plans(&self) -> Vec<(System, Option<Pair>)> {
        let mut plans = Vec::new();
        if self.system.contains(&System::Ideal) {
            plans.push((System::Ideal, None));
        }
        for pair in &self.pairs {
            for system in self
                .system
                .iter()
                .filter(|system| **system != System::Ideal)
            {
                plans.push((*system, Some(*pair)));
            }
        }
        plans
    }
}

/// One run of the application.
#[derive(Debug, Clone, Copy)]
struct Run {
    begin_ns: u64,
    end_ns: u64,
    /// Cache references and misses; none if they were not counted, or the counters had no turn.
    cache: Option<[f64; 2]>,
    /// Share of its time in which the counters counted.
    running_share: Option<f64>,
}

impl Run {
    fn of([begin_ns, end_ns]: [u64; 2], reading: Option<&Reading>) -> Self {
        let cache = reading.and_then(|reading| match reading.counts[..] {
            [(_, Some(references)), (_, Some(misses))] => Some([references, misses]),
            _ => None,
        });
        Self {
            begin_ns,
            end_ns,
            cache,
            running_share: reading.map(|reading| reading.running_share),
        }
    }

    fn time(&self) -> f64 {
        self.end_ns.saturating_sub(self.begin_ns) as f64
    }
}

/// Runs an application with its cache counters.
struct Counted<'a> {
    count: u32,
    interrupt: &'a Interrupt,
    counting: Result<Counting, String>,
}

impl<'a> Counted<'a> {
    /// Prepares `count` runs on `cpu`.
    fn new(cpu: usize, count: u32, interrupt: &'a Interrupt, summary: &mut Summary) -> Self {
        let events = counters::of_last_level(&Root::system(), cpu);
        let counting = Counting::open(&events, cpu).map_err(|error| {
            let source = std::error::Error::source(&error);
            source.map_or_else(|| error.to_string(), |why| format!("{error}: {why}"))
        });
        match &counting {
            Err(reason) => summary.note(format!(
                "Cache references and misses could not be measured: {reason}."
            )),
            Ok(counting) => summary.note(format!(
                "Cache references and misses are {} and {}{}.",
                events[0],
                events[1],
                if counting.user_only() {
                    ", of user space only"
                } else {
                    ""
                }
            )),
        }
        Self {
            count,
            interrupt,
            counting,
        }
    }

    fn why_not(&self) -> Option<&str> {
        self.counting.as_ref().err().map(String::as_str)
    }

    /// Runs the application; runs before an error are in `runs`.
    fn runs(&mut self, victim: &mut Victim, runs: &mut Vec<Run>) -> Result<(), Error> {
        for _ in 0..self.count {
            self.interrupt.check()?;
            if let Ok(counting) = &mut self.counting {
                counting.start()?;
            }
            let [begin_ns, end_ns] = victim.run()?;
            let reading = match &mut self.counting {
                Ok(counting) => Some(counting.stop()?),
                Err(_) => None,
            };
            runs.push(Run::of([begin_ns, end_ns], reading.as_ref()));
        }
        Ok(())
    }
}

/// Names the cases whose counts are estimates.
fn note_shared_counters(summary: &mut Summary) {
    let estimated: Vec<String> = summary
        .cases
        .iter()
        .filter(|case| case.running_share.is_some_and(|share| share < 1.0))
        .map(Case::title)
        .collect();
    if !estimated.is_empty() {
        summary.note(format!(
            "Other users of the PMU left too few counters: the cache events took turns with theirs (multiplexing), and \
             their counts are scaled to the whole time, or null for a run in which they had no turn. running_share has \
             the smallest share of the time that was counted. Cases with such counts: {}.",
            estimated.join("; ")
        ));
    }
}

/// Raw samples of one case.
fn samples(case: &str, runs: &[Run], cpu: usize, base_ns: u64) -> Vec<Sample> {
    let cpu = u32::try_from(cpu).unwrap_or(u32::MAX);
    let mut samples = Vec::new();
    for (number, run) in (0..).zip(runs) {
        let count = |which: usize| run.cache.map(|counts| counts[which]);
        for (metric, unit, value) in [
            ("time_ns", "ns", Some(run.time())),
            ("cache_references", "events", count(0)),
            ("cache_misses", "events", count(1)),
        ] {
            samples.push(
                Sample::new(case, number, "victim", metric, unit, value)
                    .on_cpu(cpu)
                    .at_ns(run.begin_ns.saturating_sub(base_ns)),
            );
        }
    }
    samples
}

/// The figures of the application in one case.
fn case(name: String, runs: &[Run], why_not: Option<&str>) -> Case {
    let times: Vec<f64> = runs.iter().map(Run::time).collect();
    let of_cache = |name: &str, value: fn([f64; 2]) -> f64| match why_not {
        // One note gives the reason; without this each case would repeat it three times.
        Some(_) => Some(Metric {
            metric: name.into(),
            ..Metric::default()
        }),
        None => {
            let values: Vec<f64> = runs.iter().filter_map(|run| run.cache).map(value).collect();
            if values.is_empty() {
                return Some(Metric::unmeasured(
                    name,
                    "its counter had no turn on the CPU's PMU",
                ));
            }
            Some(Metric::from_samples(name, &values))
        }
    };
    Case {
        name,
        victim: Some(Metric::from_samples("time_ns", &times)),
        references: of_cache("cache_references_events", |[references, _]| references),
        misses: of_cache("cache_misses_events", |[_, misses]| misses),
        miss_share: of_cache("miss_share", |[references, misses]| misses / references),
        running_share: runs
            .iter()
            .filter_map(|run| run.running_share)
            .min_by(f64::total_cmp),
        ..Case::default()
    }
}

#[cfg(test)]
mod tests {
    use memwarden_platform::affinity;
    use memwarden_run::Recorded;

    use super::*;
    use crate::settings;

    /// One application beside the null device; none on a machine with one CPU.
    fn short() -> Option<Config> {
        let cpus: Vec<usize> = affinity::get().unwrap().iter().collect();
        let [copy_cpu, application_cpu, ..] = cpus[..] else {
            eprintln!("skipped: one CPU runs no two things at once");
            return None;
        };
        Some(Config {
            device: cftu::NULL.into(),
            application: vec!["susan_corners_small".into()],
            copy_cpu,
            application_cpu,
            ..Config::default()
        })
    }

    #[test]
    fn every_system_has_its_cases_and_the_ideal_no_slowdown() {
        let Some(config) = short() else { return };
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("run");
        let config = Config {
            pairs: vec!["from+to:16".parse().unwrap(), "to:4096".parse().unwrap()],
            repeat: 3,
            ..config
        };
        run(
            &config,
            RunRequest::to(&out, &Interrupt::default(), &mut ()),
        )
        .unwrap();
        let run = Recorded::read(&out).unwrap();
        let summary: Summary = run.summary.typed().unwrap();
        let names: Vec<&str> = summary.cases.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "susan_corners_small, ideal",
                "susan_corners_small, cpu, from+to:16",
                "susan_corners_small, dma, from+to:16",
                "susan_corners_small, cpu, to:4096",
                "susan_corners_small, dma, to:4096",
            ]
        );
        assert_eq!(run.samples.len(), 5 * 3 * 3);
        assert_eq!(summary.cases[0].slowdown, None);
        for case in &summary.cases[1..] {
            assert!(case.slowdown.is_some_and(|slowdown| slowdown > 0.0));
            assert!(case.copies.is_some());
            let dma = case.system == "dma";
            assert_eq!(case.engine_share, dma.then_some(1.0));
        }
        // Without counters the summary says so and shows no zeros.
        let misses = summary.cases[1].misses.as_ref().unwrap();
        let said = |note: &String| note.starts_with("Cache references and misses could not be");
        assert!(misses.median.is_some() != summary.notes.iter().any(said));
    }

    #[test]
    fn an_interrupt_keeps_the_runs_before_it() {
        let Some(config) = short() else { return };
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("run");
        let interrupt = Interrupt::after_checks(1);
        let ended = run(&config, RunRequest::to(&out, &interrupt, &mut ()));
        assert!(matches!(ended, Err(Error::Interrupted)), "{ended:?}");
        let samples = out.with_extension("partial").join("samples.csv");
        let rows = memwarden_run::read_samples(&samples).unwrap();
        assert_eq!(rows.len(), 3, "a time and two counts");
        assert!(rows.iter().all(|row| row.repeat == 0));
    }

    #[test]
    fn counts_of_a_shared_pmu_are_scaled_or_null_and_said_to_be() {
        let reading = |counts: [Option<f64>; 2], running_share| Reading {
            counts: vec![("cache-references", counts[0]), ("cache-misses", counts[1])],
            running_share,
        };
        let run = |reading: &Reading| Run::of([0, 1000], Some(reading));
        let whole = run(&reading([Some(400.0), Some(100.0)], 1.0));
        let half = run(&reading([Some(500.0), Some(100.0)], 0.5));
        let none = run(&reading([None, None], 0.0));
        let mut summary = Summary::new(NAME, "native");
        let of = |name: &str, runs: &[Run]| Case {
            application: name.into(),
            system: "ideal".into(),
            ..case(name.into(), runs, None)
        };
        summary.cases = vec![
            of("a", &[whole, whole, whole]),
            of("b", &[whole, half, half]),
            of("c", &[none]),
        ];
        note_shared_counters(&mut summary);
        let shares = [Some(1.0), Some(0.5), Some(0.0)];
        assert!(
            summary
                .cases
                .iter()
                .map(|case| case.running_share)
                .eq(shares)
        );
        let references = |at: usize| summary.cases[at].references.as_ref().unwrap();
        assert_eq!(references(1).median, Some(500.0));
        assert_eq!(references(2).median, None);
        assert!(samples("c", &[none], 0, 0)[1].value.is_none());
        assert_eq!(summary.notes.len(), 1);
        let note = &summary.notes[0];
        assert!(
            note.contains("Cases with such counts: b") && note.contains("; c"),
            "{note}"
        );
        let mut alone = Summary::new(NAME, "native");
        alone.cases = vec![of("a", &[whole])];
        note_shared_counters(&mut alone);
        assert!(alone.notes.is_empty());
    }

    #[test]
    fn pairs_read_as_they_print() {
        for pair in Config::default().pairs {
            assert_eq!(pair.to_string().parse::<Pair>().unwrap(), pair);
        }
        for text in [
            "",
            "from",
            "from:",
            "from:0",
            "from:x",
            "at:16",
            "to:2000000000",
            ":16",
        ] {
            let message = text.parse::<Pair>().unwrap_err().to_string();
            assert!(message.starts_with("pair `"), "{text}: {message}");
        }
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        let with = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert!(with(|c| c.engine = Engine::Cpu).contains("give a DMA engine"));
        assert!(with(|c| c.system.clear()).contains("--system ideal"));
        assert!(with(|c| c.pairs.clear()).contains("--pairs from:224"));
        assert!(with(|c| c.pairs.push(c.pairs[0])).contains("from+to:16 is given twice"));
        assert!(with(|c| c.application.push("doom".into())).contains("doom"));
        assert!(with(|c| c.repeat = 0).contains("--repeat 0"));
        assert!(with(|c| c.copy_cpu = 1).contains("give two CPUs"));
        assert!(with(|c| c.seed = u64::MAX).contains("--seed"));
        let config = Config::for_lab();
        config.check().unwrap();
        let back = settings::tests::read(&config.to_toml().unwrap(), &Config::default()).unwrap();
        assert_eq!(back, config);
    }
}
