// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guard's benchmark: accuracy, reaction time and overhead of the regulation.
//!
//! Its parts need different machines: other numbers of CPUs, or another clock (instructions or time). Each part is one
//! run folder; [`Part::ALL`] says what machine a part needs, and the caller merges the folders.

mod event;
mod hold;
mod overhead;
mod pmu;
mod regulated;
mod rig;
mod scaling;
mod sharing;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use memwarden_guard::Error as GuardError;
use memwarden_run::studies::guard_bench::{Case, Figure, NAME, Reached, Settings, Summary};
use memwarden_run::{Metric, RunFolder, Sample};

pub use event::Event;

use memwarden_platform::names::unknown;
use strum::{Display, EnumString, VariantArray};

use crate::request::finished;
use crate::{Backend, Error, Interrupt, Progress, RunRequest};

/// One part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display, EnumString, VariantArray)]
#[strum(serialize_all = "kebab-case", parse_err_ty = String, parse_err_fn = unknown::<Self>)]
pub enum Part {
    /// Used events against the budget, overshoot and reaction, one core at a time.
    Alone,
    /// The same with all cores at once, and period boundaries.
    Together,
    /// Mean and largest period over a minute, on one core and on all cores.
    Hold,
    /// Overhead of an armed guard.
    Overhead,
    /// Reaction with a growing number of CPUs.
    Scaling,
    /// Spare and proportional sharing, reclaim.
    Sharing,
    /// Overflow interrupts of a hardware counter.
    Pmu,
}

/// The machine that a part runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Boot {
    /// Which part.
    pub part: Part,
    /// Number of CPUs.
    pub cpus: u32,
}

impl Part {
    /// True if the part also makes sense with the regulator in user space.
    #[must_use]
    pub fn compares_backends(self) -> bool {
        !matches!(self, Self::Scaling | Self::Hold)
    }

    /// Parts that work with any event that counts traffic.
    pub const OF_ANY_EVENT: [Self; 4] = [Self::Alone, Self::Together, Self::Hold, Self::Sharing];

    /// Every part with each machine that it runs on.
    pub const ALL: [Boot; 12] = [
        Boot {
            part: Self::Alone,
            cpus: 4,
        },
        Boot {
            part: Self::Together,
            cpus: 4,
        },
        // With one CPU, the benchmark itself is regulated, too.
        Boot {
            part: Self::Hold,
            cpus: 1,
        },
        Boot {
            part: Self::Hold,
            cpus: 4,
        },
        // With one CPU, the clock counts only this core's instructions.
        Boot {
            part: Self::Overhead,
            cpus: 1,
        },
        Boot {
            part: Self::Scaling,
            cpus: 2,
        },
        Boot {
            part: Self::Scaling,
            cpus: 4,
        },
        Boot {
            part: Self::Scaling,
            cpus: 8,
        },
        Boot {
            part: Self::Scaling,
            cpus: 16,
        },
        Boot {
            part: Self::Sharing,
            cpus: 4,
        },
        Boot {
            part: Self::Pmu,
            cpus: 1,
        },
        Boot {
            part: Self::Pmu,
            cpus: 2,
        },
    ];
}

/// Growth of a median from few CPUs to many that still counts as no growth.
const SCALING: f64 = 0.05;

/// The settings.
#[derive(Debug, Clone)]
pub struct Subject {
    /// The regulator.
    pub backend: Backend,
    /// The module's file; none uses the installed one.
    pub module: Option<PathBuf>,
    /// The event that the guard counts.
    pub event: Event,
    /// Budgets of [`Part::Alone`], the machine's pages a millisecond; empty uses the part's own list.
    pub pages: Vec<u64>,
    /// Length of each run of the part [`Part::Hold`].
    pub hold: Duration,
    /// True if time is a count of instructions: runs then repeat, and a few are enough.
    pub counted_clock: bool,
}

impl Subject {
    /// A case's name, which includes the regulator if several are measured.
    fn case(&self, name: &str) -> String {
        match self.backend {
            Backend::Auto | Backend::Module => name.to_owned(),
            other => format!("{name}, {other}"),
        }
    }

    /// The budgets of [`Part::Alone`].
    fn budgets(&self) -> &[u64] {
        match self.pages.as_slice() {
            [] => &regulated::ALONE,
            given => given,
        }
    }

    /// Largest relative difference between used and budgeted events.
    fn accuracy(&self) -> f64 {
        match self.backend {
            Backend::User => 0.05,
            _ => 0.01,
        }
    }
}

/// The settings of a run of these parts, whose subjects differ in the regulator only.
#[must_use]
pub fn settings<'a>(parts: impl IntoIterator<Item = (Part, &'a Subject)>) -> Settings {
    let mut settings = Settings::default();
    let add = |list: &mut Vec<String>, name: String| {
        if !list.contains(&name) {
            list.push(name);
        }
    };
    for (part, subject) in parts {
        add(&mut settings.parts, part.to_string());
        add(&mut settings.backends, subject.backend.to_string());
        settings.event = subject.event.name.clone();
        settings.user_only = subject.event.user_only;
        settings.faults = subject.budgets().to_vec();
        settings.hold_s = subject.hold.as_secs_f64();
        let module = subject.module.as_ref();
        settings.module = module.map(|path| path.display().to_string());
    }
    settings
}

/// State that every part uses.
struct Bench<'a> {
    subject: &'a Subject,
    interrupt: &'a Interrupt,
    progress: &'a mut dyn Progress,
    folder: RunFolder,
    summary: Summary,
}

impl Bench<'_> {
    /// Writes raw samples; returns their metric.
    fn metric<'a>(
        &mut self,
        case: &str,
        metric: &str,
        unit: &str,
        values: impl IntoIterator<Item = (usize, &'a u64)>,
    ) -> Result<Metric, Error> {
        let mut all = Vec::new();
        for (cpu, value) in values {
            let value = *value as f64;
            let cpu = u32::try_from(cpu).unwrap_or(u32::MAX);
            self.keep(&Sample::new(case, 0, "guard", metric, unit, value).on_cpu(cpu))?;
            all.push(value);
        }
        Ok(Metric::from_samples(metric, &all))
    }

    /// Writes one sample.
    fn keep(&mut self, sample: &Sample) -> Result<(), Error> {
        let sample = sample.clone().in_case(self.subject.case(&sample.case));
        Ok(self.folder.append(&sample)?)
    }

    /// True if the guard accepted the budgets of `case`. A budget that the guard's own work would use up is refused;
    /// the refusal is reported and the case misses its target.
    fn takes(&mut self, case: &str, budgets: Result<(), Error>) -> Result<bool, Error> {
        match budgets {
            Err(Error::Guard(error @ GuardError::RefusedSetting { .. })) => {
                self.summary.note(format!("{case}: not measured: {error}."));
                let case = Case {
                    name: case.into(),
                    ..Case::default()
                };
                self.add(judged(case, "to be measured", false))?;
                Ok(false)
            }
            other => other.map(|()| true),
        }
    }

    /// Adds a case.
    fn add(&mut self, mut case: Case) -> Result<(), Error> {
        self.folder.flush()?;
        if self.subject.backend == Backend::User {
            case = compared(case);
            self.summary.note(
                "The targets are the kernel module's. The regulator in user space has its own target, an accuracy of 5 \
                 %; its other figures are only compared: it wakes a thread for each period and each overflow, and \
                 suits periods of a millisecond and more.",
            );
        }
        case.name = self.subject.case(&case.name);
        case.backend = Some(self.subject.backend.to_string());
        self.summary.cases.push(case);
        Ok(())
    }
}

/// Adds the target and whether it was reached, in the same words for every table.
fn judged(case: Case, target: &str, reached: bool) -> Case {
    Case {
        target: Some(target.into()),
        reached: Some(if reached { Reached::Yes } else { Reached::No }),
        ..case
    }
}

/// Marks a case as one without a target.
fn without_target(case: Case) -> Case {
    Case {
        target: Some("-".into()),
        reached: Some(Reached::NoTarget),
        ..case
    }
}

/// The target of a budget's accuracy.
fn target(limit: f64) -> String {
    format!(
        "within {} %, no period above budget + overshoot",
        limit * 100.0
    )
}

/// A case of the regulator in user space: missing a target of the kernel module is reported but is no failure. Only its
/// own accuracy target is binding.
fn compared(case: Case) -> Case {
    let judged = matches!(case.figure, Some(Figure::Accuracy(_) | Figure::Hold(_)));
    match case.reached {
        Some(Reached::No) if !judged => Case {
            reached: Some(Reached::Compared),
            ..case
        },
        _ => case,
    }
}

/// Judges how the reaction grows with the number of CPUs, once the cases of all machines are merged: each regulator's
/// median against its own median with the fewest CPUs.
pub fn judge_scaling(summary: &mut Summary) {
    let of_case = |case: &Case| match &case.figure {
        Some(Figure::Scaling(scaling)) => {
            let metric = scaling.throttle_latency_ns.as_ref();
            Some((scaling.cpus, metric.and_then(|metric| metric.median)))
        }
        _ => None,
    };
    let mut fewest: BTreeMap<Option<String>, (u64, f64)> = BTreeMap::new();
    for case in &summary.cases {
        if let Some((cpus, Some(median))) = of_case(case) {
            let fewest = fewest.entry(case.backend.clone()).or_insert((cpus, median));
            if cpus < fewest.0 {
                *fewest = (cpus, median);
            }
        }
    }
    for case in &mut summary.cases {
        let Some((_, median)) = of_case(case) else {
            continue;
        };
        let reached = median
            .zip(fewest.get(&case.backend))
            .is_some_and(|(median, fewest)| median <= fewest.1 * (1.0 + SCALING));
        *case = judged(
            std::mem::take(case),
            "median at most 5 % above that with the fewest CPUs",
            reached,
        );
        if case.backend.as_deref() == Some("user") {
            *case = compared(std::mem::take(case));
        }
    }
}

/// Runs one part on this machine and writes its run folder.
///
/// # Errors
/// When the guard can't run here, a workload fails, or the run is interrupted.
pub fn run(
    part: Part,
    subject: &Subject,
    request: RunRequest,
) -> Result<(PathBuf, Summary), Error> {
    subject.event.check(part)?;
    let folder = request.begin(NAME, &settings([(part, subject)]))?;
    let mut bench = Bench {
        subject,
        interrupt: request.interrupt,
        progress: request.progress,
        folder,
        summary: Summary::new(NAME, "native"),
    };
    match part {
        Part::Alone => regulated::alone(&mut bench),
        Part::Together => regulated::together(&mut bench),
        Part::Hold => hold::run(&mut bench),
        Part::Overhead => overhead::run(&mut bench),
        Part::Scaling => scaling::run(&mut bench),
        Part::Sharing => sharing::run(&mut bench),
        Part::Pmu => pmu::run(&mut bench),
    }?;
    let Bench {
        folder, summary, ..
    } = bench;
    finished(folder, summary)
}

#[cfg(test)]
mod tests {
    use memwarden_run::studies::guard_bench::{Accuracy, Hold, Overhead, Scaling};

    use super::*;

    #[test]
    fn a_reaction_that_grows_with_the_cpus_is_found() {
        let case = |backend: &str, cpus: u64, ns: f64| Case {
            backend: Some(backend.into()),
            ..Case::new(
                format!("scaling: {cpus} CPUs, {backend}"),
                Figure::Scaling(Scaling {
                    cpus,
                    throttle_latency_ns: Some(Metric::from_samples("throttle_latency_ns", &[ns])),
                    ..Scaling::default()
                }),
            )
        };
        let mut summary = Summary::new(NAME, "lab");
        summary.cases = vec![
            case("module", 2, 2000.0),
            case("module", 4, 2100.0),
            case("module", 16, 4000.0),
            case("user", 4, 9000.0),
            case("user", 2, 9000.0),
            case("user", 8, 9900.0),
        ];
        judge_scaling(&mut summary);
        let reached: Vec<_> = summary
            .cases
            .iter()
            .map(|case| case.reached.unwrap())
            .collect();
        use Reached::{Compared, No, Yes};
        assert_eq!(reached, [Yes, Yes, No, Yes, Yes, Compared]);
    }

    #[test]
    fn what_user_space_does_not_reach_is_said_and_only_its_accuracy_judged() {
        let of = |figure: Figure, reached| {
            let case = Case::new("a case", figure);
            compared(judged(case, "a target", reached)).reached.unwrap()
        };
        let overhead = || Figure::Overhead(Overhead::default());
        assert_eq!(
            of(Figure::Accuracy(Accuracy::default()), false),
            Reached::No
        );
        assert_eq!(of(Figure::Hold(Hold::default()), false), Reached::No);
        assert_eq!(of(overhead(), false), Reached::Compared);
        assert_eq!(of(overhead(), true), Reached::Yes);
    }

    #[test]
    fn the_settings_of_a_run_are_all_that_was_chosen() {
        let subject = |backend| Subject {
            backend,
            module: Some("/a/memguard.ko".into()),
            event: Event::named("armv8", true).unwrap(),
            pages: Vec::new(),
            hold: Duration::from_secs(10),
            counted_clock: false,
        };
        let (module, user) = (subject(Backend::Module), subject(Backend::User));
        let of_all = settings([
            (Part::Alone, &module),
            (Part::Hold, &module),
            (Part::Hold, &module),
            (Part::Alone, &user),
        ]);
        let expected = Settings {
            parts: vec!["alone".into(), "hold".into()],
            backends: vec!["module".into(), "user".into()],
            event: "armv8".into(),
            user_only: true,
            faults: vec![5, 10, 25, 50, 100, 200],
            hold_s: 10.0,
            module: Some("/a/memguard.ko".into()),
        };
        assert_eq!(of_all, expected);
        let of_one = settings([(Part::Hold, &user)]);
        assert_eq!((of_one.parts.len(), of_one.backends.len()), (1, 1));
    }

    #[test]
    fn every_part_is_known_by_its_name() {
        for boot in Part::ALL {
            assert_eq!(boot.part.to_string().parse::<Part>().unwrap(), boot.part);
        }
        assert!(
            "accuracy"
                .parse::<Part>()
                .unwrap_err()
                .to_string()
                .contains("together")
        );
    }
}
