// SPDX-License-Identifier: MIT OR Apache-2.0
//! `periodic`: a real-time task that goes over a frame of memory once a period; each of these jobs has a deadline.
//!
//! If a job is still running at the next releases, these are skipped, as a video player drops frames, and the task
//! continues with the first release that is still ahead. So lateness does not accumulate: every job begins at its own
//! release, and the delay between the two is only the release jitter.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use memwarden_platform::{affinity, clock, faults, process, sched};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::bandwidth::{self, Access};
use crate::{BufferConfig, Descriptor, Error, Limit, Placement, Result, Stop};

/// Settings of a run.
#[derive(Debug, Clone)]
pub struct Config {
    /// The access of a job to its frame.
    pub access: Access,
    /// The memory of a frame.
    pub buffer: BufferConfig,
    /// Frames in memory; the jobs alternate between them.
    pub frames: u64,
    /// CPU and priority of the task; with a SCHED_FIFO priority its memory is locked, too.
    pub placement: Placement,
    /// Time between two releases.
    pub period: Duration,
    /// Time from a release to its deadline; at most the period.
    pub deadline: Duration,
    /// Number of releases.
    pub jobs: u64,
}

/// One job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Job {
    /// Number of its release, from 0.
    pub number: u64,
    /// Time from the planned release to the job's start.
    pub release_jitter_ns: u64,
    /// Time from the planned release to the job's end, which the deadline limits.
    pub response_ns: u64,
    /// Time from the job's start to its end.
    pub execution_ns: u64,
    /// True if the job missed its deadline.
    pub missed: bool,
}

/// The result of a run.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Outcome {
    /// The access of a job to its frame.
    pub access: &'static str,
    /// The CPU on which the task ended.
    pub cpu: usize,
    /// Bytes that a job goes over.
    pub frame_bytes: u64,
    /// Frames in memory; the jobs alternated between them.
    pub frames: u64,
    /// Time between two releases.
    pub period_ns: u64,
    /// Time from a release to its deadline.
    pub deadline_ns: u64,
    /// Releases that occurred.
    pub releases: u64,
    /// Releases whose job never began, because the previous one was still running.
    pub skipped: u64,
    /// Releases whose job was late or skipped.
    pub misses: u64,
    /// Every job that ran, in order.
    pub jobs: Vec<Job>,
    /// Minor page faults of all jobs, as the kernel counted them.
    pub page_faults: u64,
    /// Mean share of the frames on other NUMA nodes than the CPU's; `null` on a machine with one node.
    pub remote_share: Option<f64>,
}

/// Release times and deadlines.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    /// The first release.
    pub first_ns: u64,
    /// Time between two releases.
    pub period_ns: u64,
    /// Time from a release to its deadline.
    pub deadline_ns: u64,
}

impl Schedule {
    /// Release time of job `number`.
    #[must_use]
    pub fn release_ns(&self, number: u64) -> u64 {
        self.first_ns + number * self.period_ns
    }

    /// The job of release `number` that began and ended at these times.
    #[must_use]
    pub fn job(&self, number: u64, begin_ns: u64, end_ns: u64) -> Job {
        let release_ns = self.release_ns(number);
        let response_ns = end_ns.saturating_sub(release_ns);
        Job {
            number,
            release_jitter_ns: begin_ns.saturating_sub(release_ns),
            response_ns,
            execution_ns: end_ns.saturating_sub(begin_ns),
            missed: response_ns > self.deadline_ns,
        }
    }

    /// The first release after `number` that is still ahead at `now_ns`.
    #[must_use]
    pub fn after(&self, number: u64, now_ns: u64) -> u64 {
        let passed = now_ns
            .saturating_sub(self.first_ns)
            .div_ceil(self.period_ns);
        passed.max(number + 1)
    }
}

/// Tells another thread the first missed deadline, by two stores, which do not delay a job.
#[derive(Debug, Clone, Default)]
pub struct FirstMiss(Arc<[AtomicU64; 2]>);

impl FirstMiss {
    /// Number and lateness in nanoseconds of the first job that missed its deadline, if any.
    #[must_use]
    pub fn get(&self) -> Option<(u64, u64)> {
        let [number, late_ns] = &*self.0;
        // Stored plus one, as 0 means none.
        let number = number.load(Ordering::Acquire).checked_sub(1)?;
        Some((number, late_ns.load(Ordering::Relaxed)))
    }

    fn tell(&self, job: &Job, deadline_ns: u64) {
        let [number, late_ns] = &*self.0;
        if number.load(Ordering::Relaxed) == 0 {
            late_ns.store(job.response_ns - deadline_ns, Ordering::Relaxed);
            number.store(job.number + 1, Ordering::Release);
        }
    }
}

/// Runs all jobs, or until `stop` is requested.
///
/// # Errors
/// When the settings are invalid, a privilege is missing, or memory does not have the contents that the jobs write.
pub fn run(config: &Config, stop: &Stop, first_miss: &FirstMiss) -> Result<Outcome> {
    let (period_ns, deadline_ns) = check(config)?;
    config.placement.apply()?;
    let mut frames = (0..config.frames)
        .map(|_| bandwidth::passes(&config.access, &config.buffer, stop))
        .collect::<Result<Vec<_>>>()?;
    // Allocates and touches the pages before the first job, so that pushing never faults or allocates.
    let nothing = Job {
        number: 0,
        release_jitter_ns: 0,
        response_ns: 0,
        execution_ns: 0,
        missed: false,
    };
    let capacity = usize::try_from(config.jobs).unwrap_or(usize::MAX);
    let mut jobs = vec![nothing; capacity];
    jobs.clear();
    if config.placement.fifo_priority.is_some() {
        process::lock_memory()?;
    } else {
        // With timer slack the kernel merges wake-ups, and each release would be up to 50 us late.
        sched::no_timer_slack()?;
    }
    // Warm up caches, TLB and code pages.
    for frame in &mut frames {
        frame.once()?;
    }

    let faults_before = faults::minor()?;
    let schedule = Schedule {
        first_ns: clock::monotonic_ns() + period_ns,
        period_ns,
        deadline_ns,
    };
    let mut number = 0;
    while number < config.jobs {
        let release_ns = schedule.release_ns(number);
        // A signal ends a sleep early.
        while clock::monotonic_ns() < release_ns && !stop.requested() {
            clock::sleep_until(release_ns)?;
        }
        if stop.requested() {
            break;
        }
        let turn = jobs.len() % frames.len();
        let begin_ns = clock::monotonic_ns();
        frames[turn].once()?;
        let end_ns = clock::monotonic_ns();
        let job = schedule.job(number, begin_ns, end_ns);
        jobs.push(job);
        if job.missed {
            first_miss.tell(&job, deadline_ns);
        }
        number = schedule.after(number, end_ns);
    }
    let page_faults = faults::minor()? - faults_before;

    if jobs.is_empty() {
        return Err(Error::Invalid(
            "stopped before the first job: nothing was measured".into(),
        ));
    }
    for frame in &frames {
        frame.check()?;
    }
    let expected = frames[0].faults() * jobs.len() as u64;
    if page_faults < expected {
        return Err(Error::Invalid(format!(
            "{expected} pages cost only {page_faults} faults: the kernel maps several pages a fault, figures withheld"
        )));
    }
    let releases = number.min(config.jobs);
    let skipped = releases - jobs.len() as u64;
    Ok(Outcome {
        access: config.access.name(),
        cpu: affinity::current()?,
        frame_bytes: frames[0].bytes(),
        frames: config.frames,
        period_ns,
        deadline_ns,
        releases,
        skipped,
        misses: skipped + jobs.iter().filter(|job| job.missed).count() as u64,
        jobs,
        page_faults,
        remote_share: frames
            .iter()
            .map(|frame| frame.remote_share())
            .sum::<Option<f64>>()
            .map(|sum| sum / frames.len() as f64),
    })
}

/// Checks the settings; returns period and deadline in nanoseconds.
fn check(config: &Config) -> Result<(u64, u64)> {
    let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let (period_ns, deadline_ns) = (nanoseconds(config.period), nanoseconds(config.deadline));
    if !(PERIOD_NS_MIN..=PERIOD_NS_MAX).contains(&period_ns) {
        return Err(Error::Invalid(format!(
            "a period of {:?}: give one from 100us to 60s",
            config.period
        )));
    }
    if deadline_ns == 0 || deadline_ns > period_ns {
        return Err(Error::Invalid(format!(
            "a deadline of {:?}: give one above 0 and not above the period of {:?}",
            config.deadline, config.period
        )));
    }
    for (option, number, what) in [
        ("--jobs", config.jobs, "jobs"),
        ("--frames", config.frames, "frames"),
    ] {
        let limit = DESCRIPTOR.limit(option);
        if !limit.contains(&number) {
            return Err(Error::Invalid(format!(
                "{number} {what}: {} to {} are possible",
                limit.start(),
                limit.end()
            )));
        }
    }
    Ok((period_ns, deadline_ns))
}

/// Below this, waking up takes a large part of the period.
const PERIOD_NS_MIN: u64 = 100_000;

/// A minute: longer than any frame's period, and far from overflow.
const PERIOD_NS_MAX: u64 = 60_000_000_000;

/// Each job takes 40 bytes and a row of the samples: 40 MB.
const JOBS_MOST: u64 = 1_000_000;

/// More than any player buffers.
const FRAMES_MOST: u64 = 1024;

/// Its description for the command line.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: "periodic",
    help: "Runs a real-time task: goes over a frame of memory once a period, and reports the missed deadlines",
    limits: &[
        Limit {
            option: "--jobs",
            least: 1,
            most: JOBS_MOST,
        },
        Limit {
            option: "--frames",
            least: 1,
            most: FRAMES_MOST,
        },
    ],
};

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEDULE: Schedule = Schedule {
        first_ns: 1000,
        period_ns: 100,
        deadline_ns: 65,
    };

    #[test]
    fn times_count_from_the_planned_release() {
        let job = SCHEDULE.job(3, 1310, 1365);
        assert_eq!(
            (job.release_jitter_ns, job.response_ns, job.execution_ns),
            (10, 65, 55)
        );
        assert!(!job.missed, "the deadline itself is in time");
        assert!(SCHEDULE.job(3, 1310, 1366).missed);
        assert!(SCHEDULE.job(0, 1066, 1067).missed, "a late start alone");
    }

    #[test]
    fn releases_that_passed_are_skipped_and_the_task_catches_up() {
        for (end_ns, next) in [
            (1001, 1),
            (1099, 1),
            (1100, 1),
            (1101, 2),
            (1200, 2),
            (1250, 3),
            (1999, 10),
        ] {
            assert_eq!(SCHEDULE.after(0, end_ns), next, "{end_ns}");
        }
        assert_eq!(SCHEDULE.after(7, 500), 8, "never the same one again");
    }

    fn config(access: &str, jobs: u64) -> Config {
        Config {
            access: Access::named(access).unwrap(),
            buffer: BufferConfig {
                bytes: 1 << 20,
                ..BufferConfig::default()
            },
            frames: 3,
            placement: Placement::default(),
            period: Duration::from_millis(1),
            deadline: Duration::from_millis(1),
            jobs,
        }
    }

    #[test]
    fn every_release_is_a_job_or_skipped() {
        for access in ["read", "fresh-pages", "screen", "triad"] {
            let outcome = run(&config(access, 20), &Stop::new(), &FirstMiss::default()).unwrap();
            assert_eq!(outcome.releases, 20);
            assert_eq!(outcome.jobs.len() as u64 + outcome.skipped, 20);
            let late = outcome.jobs.iter().filter(|job| job.missed).count() as u64;
            assert_eq!(outcome.misses, late + outcome.skipped);
            for job in &outcome.jobs {
                assert_eq!(job.response_ns, job.release_jitter_ns + job.execution_ns);
            }
            assert!(outcome.jobs.is_sorted_by(|a, b| a.number < b.number));
            if access == "fresh-pages" {
                assert!(outcome.page_faults >= outcome.jobs.len() as u64 * 256);
            }
        }
    }

    #[test]
    fn the_first_miss_is_told_and_no_later_one() {
        let first = FirstMiss::default();
        assert_eq!(first.get(), None);
        let config = Config {
            deadline: Duration::from_nanos(1),
            ..config("read", 5)
        };
        let outcome = run(&config, &Stop::new(), &first).unwrap();
        assert_eq!(outcome.misses, 5);
        assert_eq!(first.get(), Some((0, outcome.jobs[0].response_ns - 1)));
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        let with = |change: fn(&mut Config)| {
            let mut config = config("read", 1);
            change(&mut config);
            let outcome = run(&config, &Stop::new(), &FirstMiss::default());
            outcome.unwrap_err().to_string()
        };
        assert!(with(|c| c.period = Duration::from_micros(99)).contains("100us to 60s"));
        assert!(with(|c| c.period = Duration::from_secs(61)).contains("100us to 60s"));
        assert!(with(|c| c.deadline = Duration::ZERO).contains("above 0"));
        assert!(with(|c| c.deadline = Duration::from_micros(1001)).contains("above the period"));
        assert!(with(|c| c.jobs = 0).contains("0 jobs"));
        assert!(with(|c| c.frames = 0).contains("0 frames: 1 to 1024"));
    }

    #[test]
    fn a_task_that_is_stopped_at_once_gives_no_figure() {
        let stop = Stop::new();
        stop.request();
        let outcome = run(&config("read", 1), &stop, &FirstMiss::default());
        assert!(
            outcome
                .unwrap_err()
                .to_string()
                .contains("nothing was measured")
        );
    }
}
