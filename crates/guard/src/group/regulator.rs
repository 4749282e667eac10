// SPDX-License-Identifier: MIT OR Apache-2.0
//! The process that regulates a group: one real-time thread, which wakes when a period ends or an alarm rings.
//!
//! To `policy/` the group is a machine with one core: it is handed a budget, runs, and is throttled. Only the counters
//! know where the group's threads run.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use memwarden_platform::clock::monotonic_ns;
use memwarden_platform::cpus::{self, CpuSet};
use memwarden_platform::overflow::{EventCode, Of, OverflowCounter};
use memwarden_platform::shared::SharedWords;
use memwarden_platform::{Root, sched};
use memwarden_policy::{Action, Core, Policy, Resource, UNLIMITED};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::claim::{Claim, Sweep, sweep};
use super::counters::Counters;
use super::figures::{Figures, Stop, Summary, Terms};
use super::ledger::Ledger;
use super::stopper::Stopper;
use super::{GroupPlan, folder};
use crate::budget::{Amount, Unit};
use crate::event::{self, Event};
use crate::user::clock::Reading;
use crate::user::core::PRIORITY;
use crate::user::fault::Fault;
use crate::user::places::Places;
use crate::user::process;
use crate::user::supervisor::READY;
use crate::{Error, StartOptions, units};

/// How often the online CPUs are checked.
const CPUS_NS: u64 = 100_000_000;

/// CPU time reserved for the thread in each [`RUNTIME_PERIOD_NS`]: the first value that the kernel grants. On a board
/// the thread needs far less, but it spins while it waits for other CPUs' counters, and once it has used its
/// reservation it cannot run until the next millisecond. The thread uses SCHED_DEADLINE instead of SCHED_FIFO because,
/// from Linux 6.12 on, the fair server lets starving ordinary threads run ahead of SCHED_FIFO. A group that is stopped
/// and released repeatedly looks starved.
const RUNTIMES_NS: [u64; 2] = [800_000, 200_000];
const RUNTIME_PERIOD_NS: u64 = 1_000_000;

/// How long the watcher waits for the thread to release the group at the end.
const RELEASE_LOOK: Duration = Duration::from_millis(1);
const RELEASE_LOOKS: u32 = 20;

/// While the group stops, each alarm records the time in steps of one part in this many of the budget.
const LATE_PARTS: u64 = 64;

/// Regulates until a signal or the supervisor's end stops it. Passes [`READY`] to `tell`, and at the end the summary.
///
/// # Errors
/// The reason why it cannot regulate, or no longer can.
pub(crate) fn regulate(
    options: &StartOptions,
    plan: &GroupPlan,
    words: OwnedFd,
    tell: impl Fn(&str),
) -> Result<(), Error> {
    let (stop, words) = process::enter(words)?;
    let claim = plan
        .claim
        .clone()
        .ok_or_else(|| Error::BadInput("user-regulator: no claim on the group".into()))?;
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|errno| Error::System(format!("cannot make an event descriptor: {errno}")))?;
    let bell = Arc::new(bell);
    let free = {
        let (claim, bell, words) = (claim.clone(), Arc::clone(&bell), Arc::clone(&words));
        move || {
            let _ = rustix::io::write(&*bell, &1_u64.to_ne_bytes());
            // The thread releases the group by itself, unless it is stuck. Only the thread knows what other processes did.
            let mut looks = RELEASE_LOOKS;
            while may_be_stopped(&words) && looks > 0 {
                std::thread::sleep(RELEASE_LOOK);
                looks -= 1;
            }
            if let Err(error) = let_go(&claim, &words) {
                eprintln!("memwarden: {error}");
            }
        }
    };
    let supervisor = rustix::process::getppid();
    let watcher = process::start_watcher(Arc::clone(&words), &stop, free)?;
    let outcome = go(options, plan, &claim, &words, &bell, &stop, || tell(READY));
    stop.store(true, Ordering::Release);
    let _ = watcher.join();
    // The watcher may already have released the group; twice is harmless.
    let freed = let_go(&claim, &words);
    if rustix::process::getppid() != supervisor {
        // No other process is left to restore the group.
        sweep(&Places::of_system(), Sweep::PutBack)?;
        return Err(Error::Regulator(
            "the regulator's supervisor was killed".into(),
        ));
    }
    let summary = outcome?;
    tell(&serde_json::to_string(&summary).map_err(|error| Error::System(error.to_string()))?);
    freed
}

/// True while the regulator may have stopped the group.
fn may_be_stopped(words: &SharedWords) -> bool {
    words[0].load(Ordering::Acquire) != 0
}

/// Releases the group if the regulator may have left it stopped.
fn let_go(claim: &Claim, words: &SharedWords) -> Result<(), Error> {
    if may_be_stopped(words) {
        claim.let_go()
    } else {
        Ok(())
    }
}

fn go(
    options: &StartOptions,
    plan: &GroupPlan,
    claim: &Claim,
    words: &SharedWords,
    bell: &OwnedFd,
    stop: &AtomicBool,
    ready: impl FnOnce(),
) -> Result<Summary, Error> {
    let group = File::open(&plan.path).map_err(Error::file("opening", &plan.path))?;
    let online = cpus::online().map_err(Error::platform)?;
    let first = online.iter().next().unwrap_or(0);
    let of = Of::Group(group.as_fd());
    let counts = |code| OverflowCounter::open(first, code, of, options.user_only).is_ok();
    if !counts(EventCode::PAGE_FAULTS) {
        folder::let_perf_count(&Root::system(), &plan.path)?;
    }
    let event = event::choose(options, counts)?;
    let budget = budget(plan, options.period_us, event.bytes)?;
    let counters = Counters::open(&group, online, &event, options.user_only);
    let counters = counters.map_err(|error| uncounted(error, plan))?;
    if let Some((_, why)) = counters.left_out.first() {
        return Err(Error::BadInput(why.clone()));
    }
    let policy = Policy::new();
    let mut core = Core::new(&policy).map_err(|error| Error::System(error.to_string()))?;
    core.settings()
        .set_budget(Resource::Read, budget.unwrap_or(UNLIMITED))
        .map_err(|error| Error::BadInput(error.to_string()))?;
    core.online();
    let stopper = Stopper::open(&plan.path, plan.stop_with, claim.cpu_max.as_deref())?;
    // If other threads have reserved too much CPU time, a real-time priority must do.
    let set_aside = |runtime_ns| sched::set_deadline(runtime_ns, RUNTIME_PERIOD_NS).is_ok();
    if !RUNTIMES_NS.into_iter().any(set_aside) {
        sched::set_fifo(PRIORITY).map_err(Error::platform)?;
    }

    let begin_ns = monotonic_ns();
    let mib_s = |events: u64| units::mib_s(events as f64, options.period_us, event.bytes);
    let terms = Terms {
        cgroup: plan.path.clone(),
        event: event.name.clone(),
        bytes_per_event: event.bytes,
        period_us: options.period_us,
        stop_with: plan.stop_with,
        budget_events: budget,
        budget_mib_s: budget.map(mib_s),
    };
    let mut going = Loop {
        counting: Counting {
            group: &group,
            event: &event,
            user_only: options.user_only,
            looked_ns: begin_ns,
        },
        core,
        counters,
        stopper,
        clock: Reading::new(begin_ns, options.period_us * 1000),
        boundary_ns: 0,
        words,
        bell,
        stopped: None,
        ledger: budget.map(|events| Ledger::new(events, options.period_us)),
        handed: UNLIMITED,
        figures: Figures::new(options.period_us),
        fault: Fault::from_environment(),
    };
    // So far, this word has held the supervisor's deadline for the start.
    words[0].store(0, Ordering::Release);
    ready();
    let outcome = going.go_round(stop);
    let end_ns = monotonic_ns();
    let rest = going.rest();
    let why = |why| Error::Regulator(format!("{}: {why}", plan.path.display()));
    // Whatever failed, the group must run.
    going.stopper.go().map_err(why)?;
    words[0].store(0, Ordering::Release);
    outcome.and(rest).map_err(why)?;
    Ok(going.figures.finish(end_ns - begin_ns, terms))
}

/// Events per period; `None` if there is no limit.
fn budget(plan: &GroupPlan, period_us: u64, bytes: u64) -> Result<Option<u64>, Error> {
    let (unit, amount) = (plan.amount.unit, plan.amount.amounts.first());
    let events = match (unit, amount) {
        (_, Some(Amount::Max)) => return Ok(None),
        (Unit::Events, Some(Amount::Limited(events))) => *events,
        (Unit::Mb, Some(Amount::Limited(mib_s))) => {
            units::some_events_per_period(*mib_s, period_us, bytes)?
        }
        _ => {
            return Err(Error::BadInput(
                "a group's budget is given as MB/s or events".into(),
            ));
        }
    };
    // A budget beyond the largest limit is the same as no limit.
    Ok((events < UNLIMITED).then_some(events))
}

fn uncounted(error: memwarden_platform::Error, plan: &GroupPlan) -> Error {
    let hint = folder::why_uncounted(&Root::system());
    let hint = hint.map_or_else(String::new, |hint| format!(" ({hint})"));
    Error::Regulator(format!(
        "events of {} cannot be counted: {}{hint}",
        plan.path.display(),
        Error::platform(error)
    ))
}

/// How the group's events are counted; needed again when CPUs come online.
struct Counting<'a> {
    group: &'a File,
    event: &'a Event,
    user_only: bool,
    looked_ns: u64,
}

/// A group that is currently stopped.
#[derive(Clone, Copy)]
struct Stopped {
    /// When the alarm rang; `None` if the group was already stopped when this period began.
    overflow_ns: Option<u64>,
    /// When the group stopped, or when this period began if that is later.
    since_ns: u64,
}

struct Loop<'a> {
    counting: Counting<'a>,
    core: Core,
    counters: Counters,
    stopper: Stopper,
    clock: Reading,
    boundary_ns: u64,
    /// The first word is the time until which the group may stay stopped and the thread may run; 0 if neither applies. It
    /// is never 0 while the regulator has stopped the group.
    words: &'a SharedWords,
    bell: &'a OwnedFd,
    stopped: Option<Stopped>,
    /// `None` if there is no budget.
    ledger: Option<Ledger>,
    /// Events that this period may use.
    handed: u64,
    figures: Figures,
    fault: Option<Fault>,
}

type Outcome = Result<(), String>;

fn explain(error: memwarden_platform::Error) -> String {
    Error::platform(error).to_string()
}

impl Loop<'_> {
    fn go_round(&mut self, stop: &AtomicBool) -> Outcome {
        self.end_period(monotonic_ns())?;
        while !stop.load(Ordering::Acquire) {
            self.sleep()?;
            let now_ns = monotonic_ns();
            self.words[0].store(now_ns, Ordering::Release);
            if now_ns >= self.boundary_ns {
                self.end_period(now_ns)?;
            } else if self.stopped.is_none() {
                if let Some((first_ns, _)) = self.counters.rang() {
                    self.look(first_ns)?;
                }
            }
        }
        Ok(())
    }

    /// Waits until the period ends, an alarm rings, or regulation must end.
    fn sleep(&self) -> Outcome {
        let left_ns = self.boundary_ns.saturating_sub(monotonic_ns());
        let wait = Timespec {
            tv_sec: i64::try_from(left_ns / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(left_ns % 1_000_000_000).unwrap_or(0),
        };
        let mut ends = vec![PollFd::new(self.bell, PollFlags::IN)];
        if self.stopped.is_some() {
            self.words[0].store(self.boundary_ns, Ordering::Release);
            if let Some(fault) = &self.fault {
                fault.go_wrong();
            }
        } else {
            self.words[0].store(0, Ordering::Release);
            ends.extend(self.counters.alarms());
        }
        match poll(&mut ends, Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(format!("cannot wait for a counter: {errno}")),
        }
    }

    /// Ends the period, if one has begun, and begins the one that contains `now_ns`.
    fn end_period(&mut self, now_ns: u64) -> Outcome {
        let used = self.counters.used().map_err(explain)?;
        let stopped = self.stopped.take();
        // Events before the first period belong to no period.
        if self.figures.periods > 0 {
            let late_ns = now_ns.saturating_sub(self.boundary_ns);
            self.settle(1 + late_ns / self.clock.period_ns, used, stopped, now_ns);
        }
        let mut budget = UNLIMITED;
        if let Some(ledger) = &self.ledger {
            (self.handed, budget) = (ledger.handed(), ledger.alarm_at().min(UNLIMITED));
        }
        let stays = stopped.is_some() && self.handed == 0;
        if stopped.is_some() && !stays {
            self.stopper.go()?;
        }
        self.core
            .settings()
            .set_budget(Resource::Read, budget)
            .map_err(|error| error.to_string())?;
        let number = self.clock.number_at(now_ns);
        // The action is Run: the group shares with no other group, and a period has ended.
        let _ = self.core.period_begin(number, false, [used, 0]);
        self.counters.next_period();
        self.figures.periods += 1;
        self.boundary_ns = self.clock.next_boundary_ns(now_ns);
        if now_ns - self.counting.looked_ns > CPUS_NS {
            self.follow_cpus(now_ns)?;
        }
        if stays {
            self.stopped = Some(Stopped {
                overflow_ns: None,
                since_ns: now_ns,
            });
            return Ok(());
        }
        if self.handed == 0 {
            return self.stop(now_ns);
        }
        self.look(now_ns)
    }

    /// Records `periods` periods that end now; all but the first were missed.
    fn settle(&mut self, periods: u64, used: u64, stopped: Option<Stopped>, now_ns: u64) {
        let stood_ns = stopped.map(|stopped| now_ns.saturating_sub(stopped.since_ns));
        self.figures.passed(periods, used, stood_ns);
        if let Some(ledger) = &mut self.ledger {
            ledger.settle(periods, used);
        }
        let Some(stopped) = stopped else { return };
        let late_ns = self.counters.rang().map_or(0, |(_, last_ns)| last_ns);
        let stop = stopped.overflow_ns.map(|overflow_ns| Stop {
            overshoot: used.saturating_sub(self.handed),
            reaction_ns: stopped.since_ns.saturating_sub(overflow_ns),
            stop_ns: late_ns.max(stopped.since_ns).saturating_sub(overflow_ns),
        });
        self.figures.stopped(stop);
        let alarm_at = self.core.account(Resource::Read).assigned;
        // If nothing was handed out, no alarm was set.
        if let Some(ledger) = &mut self.ledger {
            if stop.is_some() && self.handed > 0 {
                ledger.learn(used.saturating_sub(alarm_at));
            }
        }
    }

    /// Records the events of the period that has not ended, and what the counters missed.
    fn rest(&mut self) -> Outcome {
        let used = self.counters.used().map_err(explain)?;
        if self.figures.periods > 0 {
            self.figures.rest(used);
        }
        self.note_shared()
    }

    /// Records the CPUs whose counter other events had for a part of the time.
    fn note_shared(&mut self) -> Outcome {
        for (cpu, share) in self.counters.shared().map_err(explain)? {
            self.figures.uncounted(format!(
                "on CPU{cpu} its events were counted for {:.0} % of its time only, as other users had the counter",
                100.0 * share
            ));
        }
        Ok(())
    }

    /// Reopens the counters if the online CPUs have changed, or if the kernel has removed the counters of one.
    fn follow_cpus(&mut self, now_ns: u64) -> Outcome {
        self.counting.looked_ns = now_ns;
        let online = cpus::online().map_err(explain)?;
        let removed = self.counters.removed(now_ns).map_err(explain)?;
        if online == self.counters.online && removed.is_empty() {
            return Ok(());
        }
        let Counting {
            group,
            event,
            user_only,
            ..
        } = self.counting;
        for cpu in online
            .iter()
            .filter(|cpu| !self.counters.online.contains(*cpu))
        {
            self.figures.uncounted(format!(
                "CPU{cpu} came online, and its events were not counted for up to {} ms",
                CPUS_NS / 1_000_000
            ));
        }
        let back: CpuSet = removed
            .into_iter()
            .filter(|cpu| online.contains(*cpu))
            .collect();
        if let Some(first) = back.iter().next() {
            let were = match back.len() {
                1 => format!("CPU{first} was"),
                _ => format!("CPUs {back} were"),
            };
            let why = format!(
                "{were} offline for a moment or the machine was suspended, which ended the counters there: events were \
                 not counted until they were opened again"
            );
            eprintln!("memwarden: {why}");
            self.figures.uncounted(why);
        }
        self.note_shared()?;
        let opened = match Counters::open(group, online, event, user_only) {
            // A CPU has gone offline since the list was read. The counters on the others go on until the next look.
            Err(error) if error.is_no_device() => return Ok(()),
            opened => opened.map_err(explain)?,
        };
        let before = std::mem::replace(&mut self.counters, opened).left_out;
        // The group's events on this CPU are not counted; on the others it stays regulated.
        for (cpu, why) in &self.counters.left_out {
            self.figures
                .uncounted(format!("its events on CPU{cpu} were not counted: {why}"));
            if !before.iter().any(|(other, _)| other == cpu) {
                eprintln!("memwarden: {why}: the group is not counted on it");
            }
        }
        Ok(())
    }

    /// Checks what the group has used. Sets the alarms again, or stops the group.
    fn look(&mut self, overflow_ns: u64) -> Outcome {
        loop {
            self.figures.looks += 1;
            let used = self.counters.used().map_err(explain)?;
            if self.core.overflow(Resource::Read, used) == Action::Throttle {
                return self.stop(overflow_ns);
            }
            let left = self.core.until_overflow(Resource::Read);
            if left >= UNLIMITED {
                return self.counters.disarm().map_err(explain);
            }
            if self.counters.arm(left).map_err(explain)? {
                return Ok(());
            }
        }
    }

    fn stop(&mut self, overflow_ns: u64) -> Outcome {
        self.words[0].store(self.boundary_ns, Ordering::Release);
        self.stopper.stop()?;
        self.stopped = Some(Stopped {
            overflow_ns: Some(overflow_ns),
            since_ns: monotonic_ns(),
        });
        let step = (self.handed / LATE_PARTS).max(1);
        self.counters.arm_each(step).map_err(explain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Request;
    use crate::group::StopWith;

    #[test]
    fn a_budget_comes_to_its_events() {
        let of = |unit, text: &str, period_us, bytes| {
            let plan = GroupPlan {
                path: "/sys/fs/cgroup/a".into(),
                home: "/sys/fs/cgroup".into(),
                stop_with: StopWith::Freezer,
                amount: Request::parse(unit, text).unwrap(),
                claim: None,
            };
            budget(&plan, period_us, bytes).map_err(|error| error.to_string())
        };
        assert_eq!(of(Unit::Mb, "100", 1000, 4096), Ok(Some(25)));
        assert_eq!(of(Unit::Mb, "1000", 1000, 64), Ok(Some(16384)));
        assert_eq!(of(Unit::Events, "7", 1000, 64), Ok(Some(7)));
        assert_eq!(of(Unit::Mb, "max", 1000, 64), Ok(None));
        assert_eq!(of(Unit::Events, "18446744073709551615", 1000, 64), Ok(None));
        let message = of(Unit::Mb, "3", 1000, 4096).unwrap_err();
        assert!(message.contains("give 4 or more"), "{message}");
        assert!(of(Unit::Percent, "3", 1000, 4096).is_err());
    }
}
