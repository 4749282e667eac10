// SPDX-License-Identifier: MIT OR Apache-2.0
//! One regulated core: its thread, which wakes when a period ends or a counter overflows, and keeps the core to itself
//! while the core has nothing left.
//!
//! The thread runs under SCHED_FIFO, pinned. It allocates nothing once it goes round. What is decided is decided in
//! `policy/`; `kernel/memguard/core.c` is the same host in the kernel.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use memwarden_platform::clock::monotonic_ns;
use memwarden_platform::overflow::{EventCode, FAR, IdleWitness, Of, OverflowCounter};
use memwarden_platform::shared::SharedWords;
use memwarden_platform::spin::{COARSE_NS, relax, wait_for_change};
use memwarden_platform::{affinity, sched};
use memwarden_policy::{
    Account, Action, BestEffort, Core, CoreSettings, Policy, Resource, Split, UNLIMITED,
};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use super::clock::PeriodClock;
use super::fault::Fault;
use super::figures::{Board, Ended, Figures, Second};
use super::record::Record;
use crate::Error;
use crate::event::{Codes, Event};
use crate::trace::What;

/// Priority of the core threads: above whatever is regulated, below the watchdogs.
pub(crate) const PRIORITY: i32 = 98;

/// The events of a reaction are forgotten by this part at each overflow.
const REACTION_PART: u64 = 16;

/// A core without a limit, and with nobody to share with, is looked after this often: its counts may be so old.
const QUIET_NS: u64 = 100_000_000;

/// A core that is offline is looked for this often.
const PARKED_NS: i64 = 100_000_000;

/// What others may do to a core.
#[derive(Debug)]
pub(super) struct Handle {
    pub cpu: usize,
    pub settings: CoreSettings,
    pub board: Board,
    pub record: Record,
    /// Counts up with every kick; the core's thread looks at everything anew when it changes.
    kicks: AtomicU64,
    bell: OwnedFd,
    reset: AtomicBool,
    stop: AtomicBool,
    /// A counter of this core has not counted, at least once.
    counter_lost: AtomicBool,
}

impl Handle {
    pub fn new(cpu: usize, settings: CoreSettings) -> Result<Self, Error> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| Error::System(format!("make an event descriptor: {errno}")))?;
        Ok(Self {
            cpu,
            settings,
            board: Board::default(),
            record: Record::default(),
            kicks: AtomicU64::new(0),
            bell,
            reset: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            counter_lost: AtomicBool::new(false),
        })
    }

    /// Makes the core's thread look at the settings now; returns the kick's number.
    pub fn kick(&self) -> u64 {
        let number = self.kicks.fetch_add(1, Ordering::Release) + 1;
        // It can only be full, and then it rings already.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        number
    }

    /// Figures begin anew.
    pub fn reset(&self) {
        self.reset.store(true, Ordering::Release);
        self.kick();
    }

    /// True if a counter of this core was lost since the last call.
    pub fn take_counter_lost(&self) -> bool {
        self.counter_lost.swap(false, Ordering::AcqRel)
    }

    /// Ends the thread; the core is let go.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.kick();
    }
}

/// What all cores share.
#[derive(Debug)]
pub(super) struct Common {
    pub policy: Arc<Policy>,
    pub clock: PeriodClock,
    pub event: Event,
    pub user_only: bool,
    pub cores: Vec<Handle>,
    /// Until when a core's thread means to run, by index in `cores`; 0 while it sleeps. The watchdogs read it.
    pub running_until: Arc<SharedWords>,
    pub fault: Option<Fault>,
}

/// The thread's own.
pub(super) struct Loop {
    common: Arc<Common>,
    index: usize,
    core: Core,
    counters: Counters,
    figures: Figures,
    second: Second,
    /// The accounts at the last reset: the policy's totals never begin anew.
    base: [Account; 2],
    boundary_ns: u64,
    number: u64,
    kicks_seen: u64,
    overflow_ns: u64,
    throttled_since_ns: u64,
    /// Whose overflow throttled the core last.
    stopped_by: Resource,
    /// Throttled, and not yet held.
    to_be_held: bool,
    released_ns: u64,
    best_effort_since_ns: u64,
}

/// How many events lately came between an overflow and this thread's look at it.
///
/// An overflow that is set nearer comes again and again while the thread is on its way to it, and keeps it from
/// arriving.
#[derive(Debug, Clone, Copy)]
struct Reaction {
    /// `None` as long as nobody knows.
    events: Option<u64>,
    /// Where in this period's count the next overflow was set.
    due: u64,
}

impl Reaction {
    /// The overflow of a software event makes no such event itself; a hardware event's may make any number.
    fn to(code: EventCode) -> Self {
        Self {
            events: (!code.is_hardware()).then_some(0),
            due: 0,
        }
    }

    /// How far off the next overflow is set, `used` events into the period, where `left` would be wanted. A whole
    /// budget is always far enough.
    fn set(&mut self, used: u64, left: u64, budget: u64) -> u64 {
        let nearest = self.events.map_or(budget, |events| events.min(budget));
        let distance = left.max(nearest);
        self.due = used + distance;
        distance
    }

    /// The thread looks, and finds so many used. The most of lately counts; what was long ago is forgotten by and by.
    fn looked(&mut self, used: u64) {
        let events = used.saturating_sub(self.due);
        let before = self.events.unwrap_or(0);
        self.events = Some(events.max(before - before.div_ceil(REACTION_PART)));
    }
}

/// What is open on the core's CPU.
struct Counters {
    read: OverflowCounter,
    write: Option<OverflowCounter>,
    witness: IdleWitness,
    /// Counts at the period's begin.
    begin: [u64; 2],
    /// Counts when each was last read.
    last: [u64; 2],
    /// Those that have not counted in this period, or not in all of it.
    lost: [bool; 2],
    /// For tests: refills are taken for lost.
    blind: bool,
    reaction: [Reaction; 2],
    /// Where both count one budget: how it is shared, and the counts when it was shared last.
    split: Option<(Split, [u64; 2])>,
}

impl Counters {
    fn open(common: &Common, cpu: usize, codes: Codes) -> Result<Self, memwarden_platform::Error> {
        let open = |code| OverflowCounter::open(cpu, code, Of::Cpu, common.user_only);
        let read = open(codes.read)?;
        let write = codes.write.map(open).transpose()?;
        let begin = [
            read.read()?,
            write.as_ref().map_or(Ok(0), OverflowCounter::read)?,
        ];
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        Ok(Self {
            read,
            write,
            witness: IdleWitness::open(cpu, u32::try_from(own).unwrap_or_default())?,
            begin,
            last: begin,
            lost: [false; 2],
            blind: common.fault.as_ref().is_some_and(|fault| fault.blinds(cpu)),
            reaction: [codes.read, codes.write.unwrap_or(codes.read)].map(Reaction::to),
            split: (common.event.combined && codes.write.is_some())
                .then(|| (Split::default(), begin)),
        })
    }

    fn get(&mut self, resource: Resource) -> Option<&mut OverflowCounter> {
        match resource {
            Resource::Read => Some(&mut self.read),
            Resource::Write => self.write.as_mut(),
        }
    }

    /// Events of this period by budget; of a lost counter, those until it was lost.
    fn used(&mut self) -> Result<[u64; 2], Failure> {
        for resource in Resource::ALL {
            let index = resource as usize;
            let Some(counter) = self.get(resource) else {
                continue;
            };
            match counter.read_if_counting()? {
                Some(count) if !(self.blind && index == 0) => self.last[index] = count,
                _ => self.lost[index] = true,
            }
        }
        let counted = self.counted();
        Ok(match self.split {
            Some(_) => [counted[0] + counted[1], 0],
            None => counted,
        })
    }

    /// By each counter, as they were last read.
    fn counted(&self) -> [u64; 2] {
        [self.last[0] - self.begin[0], self.last[1] - self.begin[1]]
    }

    /// The resource whose budget a counter counts.
    fn budget_of(&self, counter: Resource) -> Resource {
        match self.split {
            Some(_) => Resource::Read,
            None => counter,
        }
    }

    /// Whether a counter was lost in this period. It is asked to count again, for the next one.
    fn take_lost(&mut self) -> Result<bool, Failure> {
        let lost = std::mem::take(&mut self.lost);
        for resource in Resource::ALL {
            if lost[resource as usize] {
                if let Some(counter) = self.get(resource) {
                    counter.revive()?;
                }
            }
        }
        Ok(lost != [false; 2])
    }
}

/// Why a core's thread can't go on.
#[derive(Debug)]
pub(super) enum Failure {
    /// Its CPU went offline: it waits for it.
    CpuGone,
    /// Anything else ends the regulator.
    Broken(String),
}

impl From<memwarden_platform::Error> for Failure {
    fn from(error: memwarden_platform::Error) -> Self {
        use std::error::Error as _;
        Self::Broken(match error.source() {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        })
    }
}

/// The body of a core's thread. `ready` is told once, when the core is regulated or known to be offline.
///
/// # Errors
/// Why the core can't be regulated (any longer).
pub(super) fn run(
    common: &Arc<Common>,
    index: usize,
    mut core: Core,
    ready: impl FnOnce(),
) -> Result<(), String> {
    let handle = &common.cores[index];
    let explain = |failure| match failure {
        Failure::CpuGone => format!("CPU {} went offline", handle.cpu),
        Failure::Broken(why) => format!("CPU {}: {why}", handle.cpu),
    };
    sched::set_fifo(PRIORITY).map_err(|error| explain(error.into()))?;
    if let Some(fault) = &common.fault {
        fault.strike_at_start(handle.cpu);
    }
    // Until now it was to run by when the supervisor said.
    let mut ready = Some(|| {
        common.running_until[index].store(0, Ordering::Release);
        ready();
    });
    let mut said = false;
    while !handle.stop.load(Ordering::Acquire) {
        if affinity::pin(handle.cpu).is_err() {
            if let Some(ready) = ready.take() {
                ready();
            }
            park(handle);
            continue;
        }
        let codes = match common.event.on(handle.cpu) {
            Ok(codes) => codes,
            Err(error) if ready.is_some() => return Err(error.to_string()),
            // One that came online later: the others are regulated all the same.
            Err(error) => {
                if !std::mem::replace(&mut said, true) {
                    eprintln!("memwarden: {error}: the core is not regulated");
                }
                park(handle);
                continue;
            }
        };
        let counters =
            Counters::open(common, handle.cpu, codes).map_err(|error| explain(error.into()))?;
        core.online();
        let mut going = Loop::new(Arc::clone(common), index, core, counters);
        // Whoever is told may ask at once.
        going.post();
        if let Some(ready) = ready.take() {
            ready();
        }
        let outcome = going.go_round();
        going.leave();
        match outcome {
            Ok(()) => return Ok(()),
            Err(Failure::CpuGone) => {}
            Err(failure) => return Err(explain(failure)),
        }
        core = going.core;
    }
    Ok(())
}

/// Waits for a CPU that is offline.
fn park(handle: &Handle) {
    let wait = Timespec {
        tv_sec: 0,
        tv_nsec: PARKED_NS,
    };
    let _ = wait_for_any(&mut [PollFd::new(&handle.bell, PollFlags::IN)], &wait);
}

/// What to wait for of a counter. One that was lost is ready all the time: the bell stands in for it.
fn end_of<'a>(counter: Option<&'a OverflowCounter>, lost: bool, bell: &PollFd<'a>) -> PollFd<'a> {
    match counter {
        Some(counter) if !lost => PollFd::from_borrowed_fd(counter.as_fd(), PollFlags::IN),
        _ => bell.clone(),
    }
}

/// Until the bell rings, a counter overflows or so much time has passed; the bell, the first of `ends`, is silent then.
///
/// It is silenced here, whatever is known of kicks: whoever kicks counts first and rings then, and the core may
/// have seen the count before the bell rang. A bell that nobody silences would keep this thread, and so its core, for
/// itself for ever.
fn wait_for_any(ends: &mut [PollFd<'_>], wait: &Timespec) -> Result<(), Errno> {
    match poll(ends, Some(wait)) {
        Ok(_) => {
            if ends[0].revents().contains(PollFlags::IN) {
                let _ = rustix::io::read(ends[0].as_fd(), &mut [0; 8]);
            }
            Ok(())
        }
        Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}

impl Loop {
    fn new(common: Arc<Common>, index: usize, core: Core, counters: Counters) -> Self {
        let now_ns = monotonic_ns();
        let clock = common.clock.read();
        let base = Resource::ALL.map(|resource| core.account(resource));
        let figures = Figures {
            regulated: true,
            ..Figures::default()
        };
        Self {
            boundary_ns: clock.next_boundary_ns(now_ns),
            number: clock.number_at(now_ns),
            kicks_seen: common.cores[index].kicks.load(Ordering::Acquire),
            common,
            index,
            core,
            counters,
            second: Second::begin(now_ns, &figures),
            figures,
            base,
            overflow_ns: 0,
            throttled_since_ns: 0,
            stopped_by: Resource::Read,
            to_be_held: false,
            released_ns: 0,
            best_effort_since_ns: 0,
        }
    }

    fn handle(&self) -> &Handle {
        &self.common.cores[self.index]
    }

    fn mean_to_run_until(&self, when_ns: u64) {
        self.common.running_until[self.index].store(when_ns, Ordering::Release);
    }

    fn go_round(&mut self) -> Result<(), Failure> {
        self.begin_period(monotonic_ns())?;
        self.arm()?;
        loop {
            if self.core.is_throttled() {
                self.hold()?;
            } else {
                self.sleep()?;
            }
            if self.handle().stop.load(Ordering::Acquire) {
                return Ok(());
            }
            if affinity::current()? != self.handle().cpu {
                return Err(Failure::CpuGone);
            }
            let now_ns = monotonic_ns();
            self.mean_to_run_until(now_ns + self.common.clock.read().period_ns);
            if self.look_for_kick() {
                self.on_kick(now_ns)?;
            }
            if now_ns >= self.boundary_ns {
                self.on_boundary(now_ns)?;
            }
            for resource in Resource::ALL {
                self.on_overflow(resource)?;
            }
        }
    }

    /// Until the period ends, a counter overflows, or somebody kicks.
    fn sleep(&mut self) -> Result<(), Failure> {
        let now_ns = monotonic_ns();
        if self.released_ns > 0 {
            self.book_return(now_ns);
        }
        self.post();
        let wake_ns = if self.is_quiet() {
            now_ns + QUIET_NS.max(self.common.clock.read().period_ns)
        } else {
            self.boundary_ns
        };
        let left_ns = wake_ns.saturating_sub(now_ns);
        let wait = Timespec {
            tv_sec: i64::try_from(left_ns / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(left_ns % 1_000_000_000).unwrap_or(0),
        };
        self.mean_to_run_until(0);
        let bell = PollFd::new(&self.common.cores[self.index].bell, PollFlags::IN);
        let Counters {
            read, write, lost, ..
        } = &mut self.counters;
        let mut ends = [
            bell.clone(),
            end_of(Some(read), lost[0], &bell),
            end_of(write.as_ref(), lost[1], &bell),
        ];
        let count = if write.is_some() { 3 } else { 2 };
        wait_for_any(&mut ends[..count], &wait)
            .map_err(|errno| Failure::Broken(format!("waiting for a counter: {errno}")))?;
        for (end, lost) in ends[1..count].iter().zip(lost) {
            *lost |= end.revents().intersects(PollFlags::ERR | PollFlags::HUP);
        }
        Ok(())
    }

    /// Nothing is limited, and nobody waits for what this core uses.
    fn is_quiet(&self) -> bool {
        let settings = &self.handle().settings;
        self.common.policy.best_effort() == BestEffort::None
            && !self.common.policy.reclaim()
            && Resource::ALL.into_iter().all(|resource| {
                self.core.account(resource).budget == UNLIMITED
                    && settings.budget(resource) == UNLIMITED
            })
    }

    /// Keeps the core until the period ends or somebody kicks.
    fn hold(&mut self) -> Result<(), Failure> {
        if std::mem::take(&mut self.to_be_held) {
            self.book_hold()?;
        }
        self.mean_to_run_until(self.boundary_ns);
        if let Some(fault) = &self.common.fault {
            fault.strike(self.handle().cpu);
        }
        let kicks = &self.common.cores[self.index].kicks;
        loop {
            let now_ns = monotonic_ns();
            if now_ns >= self.boundary_ns || kicks.load(Ordering::Acquire) != self.kicks_seen {
                return Ok(());
            }
            if self.boundary_ns - now_ns > COARSE_NS {
                wait_for_change(kicks, self.kicks_seen);
            } else {
                relax();
            }
        }
    }

    /// How late the core is its own again.
    fn book_return(&mut self, now_ns: u64) {
        let latency_ns = now_ns.saturating_sub(self.released_ns);
        let longest = &mut self.figures.release_latency_ns_max;
        *longest = latency_ns.max(*longest);
        let what = What::Unthrottle {
            epoch: self.core.epoch(),
            throttled_ns: self.released_ns.saturating_sub(self.throttled_since_ns),
            latency_ns,
        };
        self.released_ns = 0;
        self.handle().record.keep(self.handle().cpu, now_ns, what);
    }

    /// How late, and how far past what was handed out the core is, now that nothing else runs here.
    fn book_hold(&mut self) -> Result<(), Failure> {
        let now_ns = monotonic_ns();
        let latency_ns = now_ns.saturating_sub(self.overflow_ns);
        let longest = &mut self.figures.throttle_latency_ns_max;
        *longest = latency_ns.max(*longest);
        let resource = self.stopped_by;
        let used = self.counters.used()?[resource as usize];
        let account = self.core.account(resource);
        let assigned = account.assigned;
        // It spins from here on, which some events count: what is known of a stop ends here.
        self.core
            .settle_stop(resource, used, used, account.allowed());
        let what = What::Throttle {
            epoch: self.core.epoch(),
            used,
            assigned,
            overshoot: used.saturating_sub(assigned),
            latency_ns,
        };
        self.handle().record.keep(self.handle().cpu, now_ns, what);
        self.post();
        Ok(())
    }

    fn look_for_kick(&mut self) -> bool {
        let kicks = self.handle().kicks.load(Ordering::Acquire);
        let kicked = kicks != self.kicks_seen;
        self.kicks_seen = kicks;
        kicked
    }

    /// Another core, or a setting, says: look again.
    fn on_kick(&mut self, now_ns: u64) -> Result<(), Failure> {
        self.common.clock.take_wanted_period(now_ns);
        self.begin_period(now_ns)?;
        self.boundary_ns = self.common.clock.read().next_boundary_ns(now_ns);
        if self.core.release() == Action::Run {
            self.book_release(now_ns);
            if self.core.is_best_effort() {
                self.book_best_effort(now_ns);
            }
            self.arm()?;
        }
        self.reset_if_asked();
        Ok(())
    }

    fn on_boundary(&mut self, now_ns: u64) -> Result<(), Failure> {
        let clock = self.common.clock.read();
        let late = now_ns - self.boundary_ns;
        if !self.is_quiet() {
            self.figures.late_ns_sum += late;
            self.figures.late_ns_max = self.figures.late_ns_max.max(late);
            self.figures.missed_periods += late / clock.period_ns;
        }
        self.begin_period(now_ns)?;
        self.boundary_ns = self.common.clock.read().next_boundary_ns(now_ns);
        Ok(())
    }

    fn begin_period(&mut self, now_ns: u64) -> Result<(), Failure> {
        let best_effort = self.common.policy.best_effort();
        // Who shares wants to know who is idle to the task; else no traffic is near enough.
        self.counters
            .witness
            .switch(best_effort != BestEffort::None)?;
        let used = self.counters.used()?;
        let idle = match self.counters.witness.others_ran() {
            Some(others) => !others,
            None => used == [0, 0],
        };
        let (throttled, free) = (self.core.is_throttled(), self.core.is_best_effort());
        let epoch = self.core.epoch();
        let assigned = Resource::ALL.map(|resource| self.core.account(resource).assigned);
        let quiet = self.is_quiet();
        let number = self.common.clock.read().number_at(now_ns);
        if number != self.number && !(throttled || free || self.handle().settings.rt()) {
            // This thread came when the period was over, or several were: so much was not stopped.
            let missed = number.saturating_sub(self.number + 1);
            for (resource, used) in Resource::ALL.into_iter().zip(used) {
                let account = self.core.account(resource);
                let allowed = account
                    .allowed()
                    .saturating_add(missed.saturating_mul(account.budget));
                self.core.owe(resource, used, used, allowed);
            }
        }
        let action = self.core.period_begin(number, idle, used);
        if action == Action::Continue {
            return Ok(());
        }
        if throttled {
            self.book_release(now_ns);
        }
        // A quiet core sleeps through many.
        let periods = if quiet {
            number.saturating_sub(self.number).max(1)
        } else {
            1
        };
        let what = What::Period {
            epoch,
            periods,
            late_ns: now_ns.saturating_sub(self.boundary_ns),
            used_read: used[0],
            assigned_read: assigned[0],
            used_write: used[1],
            assigned_write: assigned[1],
            throttled_ns: if throttled {
                now_ns - self.throttled_since_ns
            } else {
                0
            },
        };
        self.handle().record.keep(self.handle().cpu, now_ns, what);
        if free {
            self.figures.best_effort_ns += now_ns - self.best_effort_since_ns;
        }
        let lost = self.counters.take_lost()?;
        if lost {
            self.handle().counter_lost.store(true, Ordering::Release);
        }
        let ended = Ended {
            at_ns: now_ns,
            periods,
            used,
            assigned,
            stopped_by: throttled.then_some(self.stopped_by),
            exempt: free || self.handle().settings.rt(),
            counted: !lost,
        };
        let period_ns = self.common.clock.read().period_ns;
        self.figures.ended(&ended, period_ns, &mut self.second);
        self.number = number;
        self.counters.begin = self.counters.last;
        // What overflowed in the ended period says nothing about this one.
        for resource in Resource::ALL {
            self.counters.get(resource).and_then(OverflowCounter::take);
        }
        self.arm()?;
        self.carry_out(action, now_ns)
    }

    fn on_overflow(&mut self, resource: Resource) -> Result<(), Failure> {
        let Some(when_ns) = self.counters.get(resource).and_then(OverflowCounter::take) else {
            return Ok(());
        };
        if self.core.is_throttled() {
            return Ok(());
        }
        let used = self.counters.used()?;
        let counted = self.counters.counted()[resource as usize];
        self.counters.reaction[resource as usize].looked(counted);
        let resource = self.counters.budget_of(resource);
        let used = used[resource as usize];
        self.figures.overflows += 1;
        self.overflow_ns = when_ns;
        if !self.core.is_active() {
            self.core.active();
        }
        let free = self.core.is_best_effort();
        let action = self.core.overflow(resource, used);
        if action == Action::Throttle {
            self.stopped_by = resource;
        }
        self.arm()?;
        let now_ns = monotonic_ns();
        if self.core.is_best_effort() && !free {
            self.book_best_effort(now_ns);
        }
        self.carry_out(action, now_ns)?;
        if action == Action::NewPeriod {
            self.on_kick(now_ns)?;
        }
        Ok(())
    }

    fn carry_out(&mut self, action: Action, now_ns: u64) -> Result<(), Failure> {
        match action {
            Action::Continue | Action::Run => {}
            Action::Throttle => {
                self.figures.throttled_periods += 1;
                self.throttled_since_ns = now_ns;
                self.to_be_held = true;
            }
            Action::ReleaseAll => self.kick_others(),
            Action::NewPeriod => {
                let number = self.common.policy.census().epoch;
                self.common.clock.restart(number, now_ns);
                self.kick_others();
            }
        }
        Ok(())
    }

    fn kick_others(&self) {
        for (index, other) in self.common.cores.iter().enumerate() {
            if index != self.index {
                other.kick();
            }
        }
    }

    /// Each counter's next overflow is where what the core has left ends, but no nearer than a [`Reaction`] reaches.
    fn arm(&mut self) -> Result<(), Failure> {
        if self.counters.split.is_some() {
            return self.arm_split();
        }
        for resource in Resource::ALL {
            let account = self.core.account(resource);
            let left = match self.core.until_overflow(resource) {
                _ if self.core.is_throttled() => FAR,
                UNLIMITED.. => FAR,
                left => {
                    let reaction = &mut self.counters.reaction[resource as usize];
                    reaction.set(account.used, left, account.budget)
                }
            };
            if let Some(counter) = self.counters.get(resource) {
                counter.arm(left)?;
            }
        }
        Ok(())
    }

    /// Of one budget each counter has a share, so that their sum can't pass what is left.
    fn arm_split(&mut self) -> Result<(), Failure> {
        let left = if self.core.is_throttled() {
            UNLIMITED
        } else {
            self.core.until_overflow(Resource::Read)
        };
        let budget = self.core.account(Resource::Read).budget;
        let counted = self.counters.counted();
        let last = self.counters.last;
        let Some((split, shared)) = &mut self.counters.split else {
            return Ok(());
        };
        let since = [last[0] - shared[0], last[1] - shared[1]];
        *shared = last;
        let shares = split.shares(since, left);
        for resource in Resource::ALL {
            let index = resource as usize;
            let distance = match shares[index] {
                UNLIMITED.. => FAR,
                // As long as a reaction is unknown, both together are a budget away.
                share => {
                    self.counters.reaction[index].set(counted[index], share, (budget / 2).max(1))
                }
            };
            if let Some(counter) = self.counters.get(resource) {
                counter.arm(distance)?;
            }
        }
        Ok(())
    }

    fn book_release(&mut self, now_ns: u64) {
        self.figures.throttled_ns += now_ns - self.throttled_since_ns;
        self.released_ns = now_ns;
    }

    fn book_best_effort(&mut self, now_ns: u64) {
        self.figures.best_effort_periods += 1;
        self.best_effort_since_ns = now_ns;
    }

    fn reset_if_asked(&mut self) {
        if !self.handle().reset.swap(false, Ordering::AcqRel) {
            return;
        }
        self.figures = Figures {
            regulated: true,
            ..Figures::default()
        };
        self.base = Resource::ALL.map(|resource| self.core.account(resource));
        let now_ns = monotonic_ns();
        self.second = Second::begin(now_ns, &self.figures);
        (self.throttled_since_ns, self.best_effort_since_ns) = (now_ns, now_ns);
    }

    fn post(&mut self) {
        self.figures.quiet = self.is_quiet();
        self.figures.kicks = self.kicks_seen;
        self.figures.active = self.core.is_active();
        self.figures.throttled = self.core.is_throttled();
        for resource in Resource::ALL {
            let account = self.core.account(resource);
            let base = &self.base[resource as usize];
            self.figures.resource[resource as usize].account = Account {
                total_used: account.total_used - base.total_used,
                total_assigned: account.total_assigned - base.total_assigned,
                total_donated: account.total_donated - base.total_donated,
                total_reclaimed: account.total_reclaimed - base.total_reclaimed,
                reclaim_errors: account.reclaim_errors - base.reclaim_errors,
                ..account
            };
        }
        self.handle().board.leave(&self.figures);
    }

    /// The core is let go: its donations return, and nobody waits for it.
    fn leave(&mut self) {
        self.mean_to_run_until(0);
        let action = self.core.offline();
        // A failure here has nobody left to be told.
        let _ = self.carry_out(action, monotonic_ns());
        self.figures.regulated = false;
        self.post();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overflow_is_set_no_nearer_than_the_thread_is_away() {
        // Page faults: exact from the first.
        let mut software = Reaction::to(EventCode::PAGE_FAULTS);
        assert_eq!(software.set(0, 1, 50), 1);
        software.looked(1);
        assert_eq!(software.set(1, 1, 50), 1);

        // Cycles: nobody knows, so a whole budget; then what came, which does not grow by being waited for.
        let mut hardware = Reaction::to(EventCode::CYCLES);
        assert_eq!(hardware.set(0, 1, 50_000), 50_000);
        hardware.looked(66_000);
        assert_eq!(hardware.set(66_000, 1, 50_000), 16_000);
        hardware.looked(66_000 + 16_000 + 15_500);
        assert_eq!(hardware.set(97_500, 1, 50_000), 15_500);
        assert_eq!(hardware.set(97_500, 40_000, 50_000), 40_000);
        // One that was held up is never waited for longer than a budget, and is forgotten.
        hardware.looked(97_500 + 40_000 + 1_000_000);
        assert_eq!(hardware.set(0, 1, 50_000), 50_000);
        for _ in 0..200 {
            let due = hardware.set(0, 1, 50_000);
            hardware.looked(due);
        }
        assert_eq!(hardware.set(0, 1, 50_000), 1);
    }

    #[test]
    fn a_kick_that_was_seen_before_its_bell_rang_wakes_once() {
        let core = Core::new(&Policy::new()).unwrap();
        let handle = Handle::new(0, core.settings()).unwrap();
        handle.kick();
        // The core has seen the count, and looks at nothing but its bell from here on.
        let second = Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        };
        let none = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let wakes = |wait| {
            let mut ends = [PollFd::new(&handle.bell, PollFlags::IN)];
            wait_for_any(&mut ends, wait).unwrap();
            ends[0].revents().contains(PollFlags::IN)
        };
        assert!(wakes(&second));
        assert!(!wakes(&none));
        handle.kick();
        assert!(wakes(&second));
    }
}
