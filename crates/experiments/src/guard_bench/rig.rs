// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs loads under a guard and records every period.

use std::collections::BTreeMap;
use std::time::Duration;

use memwarden_guard::budget::Request;
use memwarden_guard::units;
use memwarden_guard::{
    BestEffort, CoreStatistics, ModuleSource, Regulator, Resource, Session, StartOptions,
};

use memwarden_platform::clock::monotonic_ns;
use memwarden_platform::units::Size;

use super::{Bench, Event};
use crate::workload::{Task, Until};
use crate::{Child, Error, Interrupt, Proof, Workload};

/// Periods between the start of the loads and the first that counts.
const SETTLE_PERIODS: u32 = 5;

/// Spare records for periods that end between the end of a watch and the end of its recording.
const ROOM_BEHIND: u64 = 2000;

/// The longest sleep between two checks for Ctrl-C.
const SLEEP: Duration = Duration::from_millis(500);

/// Time in which a load must be running; otherwise it has failed.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// The load of one core.
#[derive(Debug, Clone)]
pub(super) struct Load {
    pub cpu: usize,
    pub workload: Workload,
    /// `-m`.
    pub memory: Size,
    /// `--mb`: the pace; `None` runs at full speed.
    pub pace_mib_s: Option<u64>,
}

impl Load {
    /// Makes as many events as the core can.
    pub fn hungry(event: &Event, cpu: usize) -> Self {
        let (kind, buffer) = event.counted.traffic(cpu);
        Self {
            cpu,
            workload: Workload::Bandwidth(kind.into()),
            memory: Size::of_bytes(buffer),
            pace_mib_s: None,
        }
    }

    /// Makes as many page faults as the core can.
    pub fn faults(cpu: usize) -> Self {
        Self::hungry(&Event::page_faults(), cpu)
    }

    /// Runs in the first-level cache, without memory traffic.
    pub fn busy(cpu: usize) -> Self {
        Self {
            cpu,
            workload: Workload::Bandwidth("read".into()),
            memory: Size::kib(16),
            pace_mib_s: None,
        }
    }

    fn start(&self) -> Result<Child, Error> {
        let mut arguments = self.workload.arguments(Task {
            cpu: self.cpu,
            memory: Some(self.memory),
            until: Until::Told,
        });
        if let Some(pace) = self.pace_mib_s {
            arguments.extend(["--mb".into(), pace.to_string()]);
        }
        Child::start(&arguments, true)
    }
}

/// Figures of a watch.
#[derive(Debug)]
pub(super) struct Seen {
    pub proof: Proof,
    /// Statistics of each core over the watched time.
    pub cores: BTreeMap<usize, CoreStatistics>,
}

impl Seen {
    /// Mean events of `cpu` per period, over the whole watch.
    pub fn rate(&self, cpu: usize, period_us: u64) -> Option<f64> {
        let core = self.proof.cores.get(&cpu)?;
        let (first, last) = (core.t_ns.first()?, core.t_ns.last()?);
        let periods = (last - first) as f64 / (period_us as f64 * 1000.0);
        // The first record is of the period before the watched time.
        let used: u64 = core.used.iter().skip(1).sum();
        (periods > 0.0).then(|| used as f64 / periods)
    }
}

/// Figures of a long watch.
#[derive(Debug)]
pub(super) struct Held {
    pub seen: Seen,
    /// Mean events per period by each load's own count, by CPU.
    pub load_events: BTreeMap<usize, f64>,
}

/// A guard for the benchmark: started, watched under different settings, stopped.
pub(super) struct Rig<'a> {
    session: Session,
    interrupt: &'a Interrupt,
    pub period_us: u64,
}

impl<'a> Rig<'a> {
    /// Starts the guard.
    pub fn start(bench: &Bench<'a>, event: &Event, period_us: u64) -> Result<Self, Error> {
        let module = bench.subject.module.clone().map(ModuleSource::Path);
        let guard = bench.subject.backend.regulator(module, true)?;
        if guard.is_running() {
            return Err(Error::BadInput(
                "a guard is running: stop it first (memwarden guard stop)".into(),
            ));
        }
        let options = StartOptions {
            event: Some(event.name.clone()),
            period_us,
            user_only: event.user_only,
            ..StartOptions::default()
        };
        Ok(Self {
            session: Session::begin(guard, &options)?,
            interrupt: bench.interrupt,
            period_us,
        })
    }

    /// The guard.
    pub fn guard(&mut self) -> &mut dyn Regulator {
        self.session.guard()
    }

    /// Sets budgets for these cores, in events a period; the other cores have none.
    pub fn budgets(&mut self, budgets: &[(usize, u64)]) -> Result<(), Error> {
        let guard = self.session.guard();
        for cpu in guard.settings()?.control.online.iter() {
            let events = budgets
                .iter()
                .find(|(of, _)| *of == cpu)
                .map(|(_, events)| *events);
            guard.set_budgets(Resource::Read, &Request::events_for_cpu(cpu, events))?;
        }
        Ok(())
    }

    /// Sets sharing and reclaim.
    pub fn mode(&mut self, best_effort: BestEffort, reclaim: bool) -> Result<(), Error> {
        Ok(self
            .session
            .guard()
            .set_mode(Some(best_effort), Some(reclaim))?)
    }

    /// Watches `loads` for about `periods` periods.
    pub fn watch(&mut self, loads: &[Load], periods: u32) -> Result<Seen, Error> {
        self.interrupt.check()?;
        let period = Duration::from_micros(self.period_us);
        let mut children = loads
            .iter()
            .map(Load::start)
            .collect::<Result<Vec<_>, _>>()?;
        for child in &mut children {
            child.wait_ready(READY_WITHIN, self.interrupt)?;
        }
        let recorder = self
            .session
            .regulator()
            .record(u64::from(periods) + ROOM_BEHIND)?;
        std::thread::sleep(SETTLE_PERIODS * period);
        let before = self.session.regulator().statistics()?;
        recorder.restart()?;
        std::thread::sleep(periods * period);
        let recording = recorder.stop()?;
        let after = self.session.regulator().statistics()?;
        Child::end_all(&mut children)?;
        for child in children {
            child.collect()?;
        }
        let cores = after
            .iter()
            .zip(&before)
            .map(|(after, before)| (after.cpu, after.since(before)))
            .collect();
        Ok(Seen {
            proof: Proof::of(&recording),
            cores,
        })
    }

    /// Watches `loads` for `length`. The recording is read after the loads have ended and the budgets are lifted:
    /// reading causes page faults and would take minutes on throttled cores.
    pub fn hold(&mut self, loads: &[Load], length: Duration) -> Result<Held, Error> {
        let period_ns = self.period_us * 1000;
        let length_ns = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
        let mut children = loads
            .iter()
            .map(Load::start)
            .collect::<Result<Vec<_>, _>>()?;
        for child in &mut children {
            child.wait_ready(READY_WITHIN, self.interrupt)?;
        }
        let guard = self.session.regulator();
        let recorder = guard.record(length_ns / period_ns + ROOM_BEHIND)?;
        std::thread::sleep(SETTLE_PERIODS * Duration::from_nanos(period_ns));
        let before = guard.statistics()?;
        recorder.restart()?;
        // The current period began before the watch.
        let begin_ns = monotonic_ns() + period_ns;
        let end_ns = begin_ns + length_ns;
        while let Some(left_ns) = end_ns.checked_sub(monotonic_ns()) {
            self.interrupt.check()?;
            std::thread::sleep(SLEEP.min(Duration::from_nanos(left_ns + 1)));
        }
        let after = guard.statistics()?;
        let bytes_per_event = guard.settings()?.control.bytes_per_event;
        Child::end_all(&mut children)?;
        let mut load_events = BTreeMap::new();
        for (child, load) in children.into_iter().zip(loads) {
            let result = child.collect()?;
            let mib_s = result.get("mib_s").and_then(serde_json::Value::as_f64);
            load_events.extend(mib_s.map(|mib_s| {
                let of_one = units::mib_s(1.0, self.period_us, bytes_per_event);
                (load.cpu, mib_s / of_one)
            }));
        }
        self.budgets(&[])?;
        let mut recording = recorder.stop()?;
        recording
            .events
            .retain(|event| (begin_ns..=end_ns).contains(&event.t_ns));
        let cores = after
            .iter()
            .zip(&before)
            .map(|(after, before)| (after.cpu, after.since(before)))
            .collect();
        Ok(Held {
            seen: Seen {
                proof: Proof::of(&recording),
                cores,
            },
            load_events,
        })
    }

    /// Stops the guard.
    pub fn end(self) -> Result<(), Error> {
        Ok(self.session.end()?)
    }
}
