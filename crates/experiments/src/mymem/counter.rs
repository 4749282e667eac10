// SPDX-License-Identifier: MIT OR Apache-2.0
//! A counter in a device's memory that several workers increment: updates lost without a lock, and with one.

mod config;
mod workers;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use memwarden_copies::mymem::{Count, Device, Lock};
use memwarden_platform::{affinity, clock};
use memwarden_run::studies::mymem_counter::{Case, NAME, Summary};
use memwarden_run::{Metric, Sample};

use super::{Client, Subject, ended, exclusive, open};
use crate::request::finished;
use crate::threads::{Gate, at_once};
use crate::{Error, Interrupt, RunRequest, Settings};

pub use config::Config;
pub use workers::Workers;

/// Offset of the counter in the device's memory.
const OFFSET: u64 = 0;

/// Increments between checks for an interrupt: a fraction of a second on any machine, and cheap among so many calls.
const LOOK_EVERY: u64 = 1024;

/// One case to measure, with its results.
struct Plan<'a> {
    subject: &'a Subject,
    client: &'a Client,
    lock: Lock,
    workers: u32,
    increments: u64,
    counts: Vec<Count>,
}

impl Plan<'_> {
    fn name(&self) -> String {
        let lock = match self.lock {
            Lock::None => "no lock".to_owned(),
            lock => lock.to_string(),
        };
        let plural = if self.workers == 1 { "" } else { "s" };
        format!(
            "{}, {lock}, {} worker{plural}",
            self.subject.name(),
            self.workers
        )
    }

    fn measure(&mut self, interrupt: &Interrupt) -> Result<&Count, Error> {
        interrupt.check()?;
        let count = match self.client {
            Client::Device(device) => count(
                device.path(),
                self.workers,
                self.increments,
                self.lock,
                interrupt,
            )?,
            Client::InKernel { kernel, .. } => kernel
                .count(self.workers, self.increments, self.lock, || {
                    interrupt.came()
                })
                .map_err(|error| ended(error, interrupt))?,
        };
        self.counts.push(count);
        Ok(&self.counts[self.counts.len() - 1])
    }
}

fn plans<'a>(config: &Config, clients: &'a [(Subject, Client)]) -> Vec<Plan<'a>> {
    let mut plans = Vec::new();
    for &lock in &config.lock {
        for (subject, client) in clients {
            let (workers, increments) = config.of(subject);
            plans.extend(workers.iter().map(|workers| Plan {
                subject,
                client,
                lock,
                workers,
                increments,
                counts: Vec::new(),
            }));
        }
    }
    plans
}

/// Runs the experiment and leaves its run folder. An update lost under a lock is no error: [`faults`] reports it.
///
/// # Errors
/// When a setting makes no sense, a device is not there or refuses, or the run is interrupted; what was measured is then in
/// `DIR.partial`.
pub fn run(config: &Config, request: RunRequest) -> Result<(PathBuf, Summary), Error> {
    config.check()?;
    let interrupt = request.interrupt;
    let mut summary = Summary::new(NAME, "native");
    let clients = open(&config.device, &mut summary)?;
    can_be_opened_again(&clients, exclusive)?;
    if config.lock.contains(&Lock::FetchAdd) {
        can_add(&clients)?;
    }
    let mut folder = request.begin(NAME, config)?;

    let mut plans = plans(config, &clients);
    let mut steps = request.steps(plans.len() * config.repeat as usize);
    for repeat in 0..config.repeat {
        for plan in &mut plans {
            let name = plan.name();
            steps.next(&name);
            let rows = samples(&name, repeat, plan.measure(interrupt)?);
            folder.append_all(&rows)?;
            folder.flush()?;
        }
    }
    steps.end();
    summary.cases = plans.iter().map(case).collect();
    if affinity::get()?.len() == 1 && config.lock.contains(&Lock::None) {
        summary.note(
            "The workers had one CPU: an update is lost only if a worker is interrupted between its read and its \
             write.",
        );
    }
    finished(folder, summary)
}

/// Fails before anything is measured if each worker's open file would be refused.
fn can_be_opened_again(
    clients: &[(Subject, Client)],
    exclusive: impl Fn(&Path) -> bool,
) -> Result<(), Error> {
    for (_, client) in clients {
        let Client::Device(device) = client else {
            continue;
        };
        if exclusive(device.path()) {
            let module = device.path().file_name().unwrap_or_default();
            let module = module.to_string_lossy();
            return Err(Error::BadInput(format!(
                "{}: its module {module} was loaded with exclusive=1, and each worker opens the device; load it again \
                 with exclusive=0 (modprobe -r {module} && modprobe {module} exclusive=0)",
                device.path().display()
            )));
        }
    }
    Ok(())
}

/// Fails before anything is measured if a file does not support the addition.
fn can_add(clients: &[(Subject, Client)]) -> Result<(), Error> {
    for (_, client) in clients {
        if let Client::Device(device) = client {
            device.fetch_add(OFFSET, 0)?;
        }
    }
    Ok(())
}

/// Runs `workers` threads, each with its own file descriptor, that increment the counter of the device at `path`.
pub(super) fn count(
    path: &Path,
    workers: u32,
    increments: u64,
    lock: Lock,
    interrupt: &Interrupt,
) -> Result<Count, Error> {
    let devices = (0..workers)
        .map(|_| Device::open(path))
        .collect::<Result<Vec<_>, _>>()?;
    let cpus: Vec<usize> = affinity::get()?.iter().collect();
    let shared = Shared {
        lock,
        increments,
        mutex: Mutex::new(()),
        failed: AtomicBool::new(false),
    };
    devices[0].write_at(OFFSET, &0_u64.to_ne_bytes())?;
    let works = devices
        .iter()
        .zip(cpus.iter().cycle())
        .map(|(device, cpu)| {
            let shared = &shared;
            move |gate: &Gate| shared.work(device, *cpu, gate, interrupt)
        });
    let ended = at_once(works.collect())?;
    interrupt.check()?;
    let first = ended.iter().map(|(start, _)| *start).min().unwrap_or(0);
    let last = ended.iter().map(|(_, end)| *end).max().unwrap_or(0);
    Ok(Count {
        expected: u64::from(workers) * increments,
        actual: value(&devices[0])?,
        elapsed_ns: last - first,
    })
}

/// State that the workers of one run share.
struct Shared {
    lock: Lock,
    increments: u64,
    mutex: Mutex<()>,
    failed: AtomicBool,
}

impl Shared {
    /// The body of a worker; returns its begin and end, in nanoseconds of the clock.
    fn work(
        &self,
        device: &Device,
        cpu: usize,
        gate: &Gate,
        interrupt: &Interrupt,
    ) -> Result<(u64, u64), Error> {
        let pinned = affinity::pin(cpu);
        // Reached after an error, too: the other workers wait at this gate.
        gate.wait()?;
        if let Err(error) = pinned {
            self.failed.store(true, Ordering::Relaxed);
            return Err(error.into());
        }
        let start = clock::now_ns();
        let mut left = self.increments;
        while left > 0 && !interrupt.came() && !self.failed.load(Ordering::Relaxed) {
            let now = left.min(LOOK_EVERY);
            if let Err(error) = self.increment(device, now) {
                self.failed.store(true, Ordering::Relaxed);
                return Err(error);
            }
            left -= now;
        }
        Ok((start, clock::now_ns()))
    }

    fn increment(&self, device: &Device, times: u64) -> Result<(), Error> {
        for _ in 0..times {
            match self.lock {
                Lock::None => add_one(device)?,
                Lock::Mutex => {
                    let _held = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
                    add_one(device)?;
                }
                Lock::FetchAdd => drop(device.fetch_add(OFFSET, 1)?),
            }
        }
        Ok(())
    }
}

fn value(device: &Device) -> Result<u64, Error> {
    let mut word = [0; 8];
    device.read_at(OFFSET, &mut word)?;
    Ok(u64::from_ne_bytes(word))
}

/// Read, add one, write back: three steps that no lock makes atomic.
fn add_one(device: &Device) -> Result<(), Error> {
    let next = value(device)?.wrapping_add(1);
    Ok(device.write_at(OFFSET, &next.to_ne_bytes())?)
}

/// |actual - expected| / expected.
fn error_share(count: &Count) -> f64 {
    count.actual.abs_diff(count.expected) as f64 / count.expected as f64
}

/// Raw samples of one run.
fn samples(case: &str, repeat: u32, count: &Count) -> [Sample; 3] {
    let sample =
        |metric, unit, value: f64| Sample::new(case, repeat, "workers", metric, unit, value);
    [
        sample("count", "increments", count.actual as f64),
        sample("error_share", "1", error_share(count)),
        sample("elapsed_ns", "ns", count.elapsed_ns as f64),
    ]
}

/// The figures of one case.
fn case(plan: &Plan<'_>) -> Case {
    let metric = |name: &str, of: fn(&Count) -> f64| {
        let values: Vec<f64> = plan.counts.iter().map(of).collect();
        Some(Metric::from_samples(name, &values))
    };
    let wrong = |count: &&Count| count.actual != count.expected;
    Case {
        name: plan.name(),
        guard: (),
        subject: plan.subject.name(),
        lock: plan.lock.to_string(),
        workers: plan.workers,
        increments: plan.increments,
        expected: u64::from(plan.workers) * plan.increments,
        count: metric("count", |count| count.actual as f64),
        error: metric("error_share", error_share),
        increment: metric("increment_ns", |count| {
            count.elapsed_ns as f64 / count.expected as f64
        }),
        runs: plan.counts.len() as u64,
        wrong_runs: plan.counts.iter().filter(wrong).count() as u64,
    }
}

/// The cases in which an update was lost under a lock, a fault of the device or of the lock, in one line. None if there
/// is no such case.
#[must_use]
pub fn faults(summary: &Summary) -> Option<String> {
    let wrong = |case: &&Case| case.lock != Lock::None.to_string() && case.wrong_runs > 0;
    let faults: Vec<_> = summary
        .cases
        .iter()
        .filter(wrong)
        .map(|case| case.name.as_str())
        .collect();
    (!faults.is_empty()).then(|| format!("updates were lost under a lock: {}", faults.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(4096).unwrap();
        file
    }

    #[test]
    fn a_mutex_loses_no_update() {
        let (file, interrupt) = (file(), Interrupt::default());
        for workers in [1, 7] {
            let count = count(file.path(), workers, 3000, Lock::Mutex, &interrupt).unwrap();
            assert_eq!(count.actual, u64::from(workers) * 3000);
            assert_eq!(count.actual, count.expected);
        }
    }

    #[test]
    fn one_worker_s_failure_ends_all() {
        let (file, interrupt) = (file(), Interrupt::default());
        let error = count(file.path(), 8, 1_000_000, Lock::FetchAdd, &interrupt).unwrap_err();
        assert!(error.to_string().starts_with("fetch-add on "), "{error}");
    }

    #[test]
    fn a_device_that_one_file_may_open_is_refused_with_the_parameter() {
        let file = file();
        let client = Client::Device(Device::open(file.path()).unwrap());
        let clients = [(Subject::Device(file.path().into()), client)];
        can_be_opened_again(&clients, |_| false).unwrap();
        let message = can_be_opened_again(&clients, |_| true).unwrap_err();
        let message = message.to_string();
        assert!(
            message.contains("was loaded with exclusive=1") && message.ends_with(" exclusive=0)"),
            "{message}"
        );
    }

    #[test]
    fn only_a_lock_is_at_fault_for_a_lost_update() {
        let client = Client::Device(Device::open(file().path()).unwrap());
        let subject = Subject::Device("/dev/mymem".into());
        let mut plan = Plan {
            subject: &subject,
            client: &client,
            lock: Lock::None,
            workers: 2,
            increments: 50,
            counts: vec![Count {
                expected: 100,
                actual: 60,
                elapsed_ns: 1000,
            }],
        };
        let mut summary = Summary::new(NAME, "native");
        summary.cases.push(case(&plan));
        assert_eq!(summary.cases[0].error.as_ref().unwrap().median, Some(0.4));
        assert_eq!(faults(&summary), None);
        plan.lock = Lock::FetchAdd;
        summary.cases.push(case(&plan));
        assert_eq!(
            faults(&summary).unwrap(),
            "updates were lost under a lock: C device, fetch-add, 2 workers"
        );
    }
}
