// SPDX-License-Identifier: MIT OR Apache-2.0
//! One regulated core. Its thread wakes when a period ends or a counter overflows. When the core has used its budget,
//! the thread keeps the core busy, so that nothing else runs on it.
//!
//! The thread runs under SCHED_FIFO, pinned to the core. Its loop allocates no memory. `policy/` makes the decisions;
//! `kernel/memguard/core.c` is the same host in the kernel.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use memwarden_platform::clock::monotonic_ns;
use memwarden_platform::overflow::{EventCode, FAR, IdleWitness, Of, OverflowCounter, Standstill};
use memwarden_platform::shared::SharedWords;
use memwarden_platform::spin::{COARSE_NS, relax, wait_for_change};
use memwarden_platform::{affinity, cpus, sched};
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

/// Priority of the core threads: above every regulated task, below the watchdogs.
pub(crate) const PRIORITY: i32 = 98;

/// At each overflow, the estimate of a [`Reaction`] decays by one part in this many.
const REACTION_PART: u64 = 16;

/// However small the budget, the core's tasks run for about this long between two throttles, in nanoseconds, but for no
/// more than 1/8 of a period. The thread's own work may use the whole budget, if its event is one of the hardware. This is
/// less than the thread takes from an overflow to a throttle.
const RUN_MIN_NS: u64 = 10_000;

/// How often the thread measures what its own work uses; the least is the one without interrupts.
const TRIALS: u32 = 10;

/// How often the thread wakes on a core without limits while no core shares budget. The core's counts may be this old.
const QUIET_NS: u64 = 100_000_000;

/// When the thread of such a core posts its figures again if a reader was looking at them.
const POST_AGAIN_NS: u64 = 100_000;

/// How often the thread checks whether an offline core is back.
const PARKED_NS: i64 = 100_000_000;

/// For how long a core that sysfs has online refuses its thread before it counts as forbidden. While a CPU goes offline or
/// comes online, the scheduler refuses threads for a moment.
const FORBIDDEN_NS: u64 = 1_000_000_000;

/// What other threads may do with a core.
#[derive(Debug)]
pub(super) struct Handle {
    pub cpu: usize,
    pub settings: CoreSettings,
    pub board: Board,
    pub record: Record,
    /// Number of kicks so far. When it changes, the core's thread checks everything again.
    kicks: AtomicU64,
    bell: OwnedFd,
    reset: AtomicBool,
    stop: AtomicBool,
    /// A counter of this core has stopped counting since the last check.
    counter_lost: AtomicBool,
    /// Events that the thread's own work in a period uses, by budget; 0 before the core was online.
    own: [AtomicU64; 2],
}

impl Handle {
    pub fn new(cpu: usize, settings: CoreSettings) -> Result<Self, Error> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| Error::System(format!("cannot make an event descriptor: {errno}")))?;
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
            own: [AtomicU64::new(0), AtomicU64::new(0)],
        })
    }

    /// Makes the core's thread read the settings now; returns the kick's number.
    pub fn kick(&self) -> u64 {
        let number = self.kicks.fetch_add(1, Ordering::Release) + 1;
        // The write fails only if the eventfd is full, and a full eventfd wakes the thread.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        number
    }

    /// Resets the figures.
    pub fn reset(&self) {
        self.reset.store(true, Ordering::Release);
        self.kick();
    }

    /// True if a counter of this core was lost since the last call.
    pub fn take_counter_lost(&self) -> bool {
        self.counter_lost.swap(false, Ordering::AcqRel)
    }

    /// The smallest budgets, in events per period: the thread's own work uses half of them.
    pub fn least_events(&self) -> [u64; 2] {
        self.own
            .each_ref()
            .map(|own| 2 * own.load(Ordering::Acquire))
    }

    /// Ends the thread, which releases the core.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.kick();
    }
}

/// State that all cores share.
#[derive(Debug)]
pub(super) struct Common {
    pub policy: Arc<Policy>,
    pub clock: PeriodClock,
    pub event: Event,
    pub user_only: bool,
    pub cores: Vec<Handle>,
    /// Time until which each core's thread intends to run, by index in `cores`; 0 while it
    /// sleeps. The watchdogs read it.
    pub running_until: Arc<SharedWords>,
    pub fault: Option<Fault>,
}

/// State of a core's thread.
pub(super) struct Loop {
    common: Arc<Common>,
    index: usize,
    core: Core,
    counters: Counters,
    figures: Figures,
    second: Second,
    /// The accounts at the last reset; the policy's totals are never reset.
    base: [Account; 2],
    boundary_ns: u64,
    number: u64,
    /// Other budgets follow in a later period.
    pending: bool,
    kicks_seen: u64,
    overflow_ns: u64,
    throttled_since_ns: u64,
    /// The resource whose overflow throttled the core last.
    stopped_by: Resource,
    /// The core is throttled, but the thread does not hold it yet.
    to_be_held: bool,
    /// The throttle whose events are not charged yet.
    held: Option<Held>,
    /// For how long the thread has slept since it last held the core.
    slept_ns: u64,
    released_ns: u64,
    best_effort_since_ns: u64,
}

/// The beginning of a hold: the thread has the core, and no task runs any more.
#[derive(Debug, Clone, Copy)]
struct Held {
    at_ns: u64,
    /// Events of the period until then, of the resource whose overflow throttled the core.
    used: u64,
}

/// An event that is counted this often while the thread holds the core counts the time that the thread spins.
const SPIN_EVENT_NS: u64 = 20;

impl Held {
    /// Events of the throttle when the period ends at `now_ns` with `used`. Interrupts and the thread's own work cause
    /// events while the core is held.
    fn used_by(&self, now_ns: u64, used: u64) -> u64 {
        let meanwhile = used.saturating_sub(self.used);
        let spins = meanwhile.saturating_mul(SPIN_EVENT_NS) > now_ns.saturating_sub(self.at_ns);
        if spins { self.used } else { used }
    }
}

/// Estimate of the events between an overflow and this thread's response, from recent overflows.
///
/// If the next overflow is set nearer than that, overflows repeat while the thread is being scheduled, and their
/// interrupts keep it from running.
#[derive(Debug, Clone, Copy)]
struct Reaction {
    /// `None` while unknown.
    events: Option<u64>,
    /// The count of this period at which the next overflow is due.
    due: u64,
}

impl Reaction {
    /// Handling the overflow of a software event causes no such event; handling that of a
    /// hardware event may cause any number.
    fn to(code: EventCode) -> Self {
        Self {
            events: (!code.is_hardware()).then_some(0),
            due: 0,
        }
    }

    /// Returns the distance to the next overflow, in events. `used` is the count so far, `left` the wanted distance. A
    /// whole budget is always far enough.
    fn set(&mut self, used: u64, left: u64, budget: u64) -> u64 {
        let nearest = self.events.map_or(budget, |events| events.min(budget));
        let distance = left.max(nearest);
        self.due = used + distance;
        distance
    }

    /// Learns from an overflow that the thread handles when the count is `used`. The estimate follows the largest
    /// recent value and decays slowly.
    fn looked(&mut self, used: u64) {
        let events = used.saturating_sub(self.due);
        let before = self.events.unwrap_or(0);
        self.events = Some(events.max(before - before.div_ceil(REACTION_PART)));
    }
}

/// The counters that are open on the core's CPU.
struct Counters {
    read: OverflowCounter,
    /// Counts writes, or with [`Self::split`] the other events of the same budget.
    write: Option<OverflowCounter>,
    witness: IdleWitness,
    /// Counts at the beginning of the period.
    begin: [u64; 2],
    /// Counts when each counter was last read.
    last: [u64; 2],
    /// Counters that did not count for all of this period.
    lost: [bool; 2],
    /// For how long the first counter has counted, as last read; `None` if it was lost.
    running_ns: Option<u64>,
    still: Standstill,
    /// For tests: treats the refill counter as lost.
    blind: bool,
    reaction: [Reaction; 2],
    /// One of them counts an event of the hardware, which the thread's own work may cause.
    hardware: bool,
    /// If both counters count one budget: how it is split, and the counts at the last split.
    split: Option<(Split, [u64; 2])>,
}

impl Counters {
    fn open(common: &Common, cpu: usize, codes: Codes) -> Result<Self, memwarden_platform::Error> {
        let open = |code| OverflowCounter::open(cpu, code, Of::Cpu, common.user_only);
        let read = open(codes.read)?;
        let second = codes.read_too.or(codes.write);
        let one_budget = codes.read_too.is_some() || common.event.combined && second.is_some();
        let write = second.map(open).transpose()?;
        let begin = [
            read.read()?,
            write.as_ref().map_or(Ok(0), OverflowCounter::read)?,
        ];
        let both = [codes.read, second.unwrap_or(codes.read)];
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        Ok(Self {
            read,
            write,
            witness: IdleWitness::open(cpu, u32::try_from(own).unwrap_or_default())?,
            begin,
            last: begin,
            lost: [false; 2],
            running_ns: None,
            still: Standstill::default(),
            blind: common.fault.as_ref().is_some_and(|fault| fault.blinds(cpu)),
            reaction: both.map(Reaction::to),
            hardware: both.into_iter().any(EventCode::is_hardware),
            split: one_budget.then(|| (Split::default(), begin)),
        })
    }

    fn get(&mut self, resource: Resource) -> Option<&mut OverflowCounter> {
        match resource {
            Resource::Read => Some(&mut self.read),
            Resource::Write => self.write.as_mut(),
        }
    }

    /// Events of this period, by budget. A lost counter contributes its events up to the loss.
    fn used(&mut self) -> Result<[u64; 2], Failure> {
        for resource in Resource::ALL {
            let index = resource as usize;
            let Some(counter) = self.get(resource) else {
                continue;
            };
            let reading = counter.read_if_counting()?;
            if index == 0 {
                self.running_ns = reading.map(|reading| reading.running_ns);
            }
            match reading {
                Some(reading) if !(self.blind && index == 0) => self.last[index] = reading.events,
                _ => self.lost[index] = true,
            }
        }
        let counted = self.counted();
        Ok(match self.split {
            Some(_) => [counted[0] + counted[1], 0],
            None => counted,
        })
    }

    /// Events of this period by counter, as last read.
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

    /// If the kernel has removed the counters from the CPU: when they counted last.
    fn removed(&mut self, now_ns: u64) -> Option<u64> {
        let Some(running_ns) = self.running_ns else {
            // It is lost, and revived in each period. Then it counts again, or is found removed.
            self.still = Standstill::default();
            return None;
        };
        let removed = self.still.found(running_ns, now_ns);
        removed.then(|| self.still.since_ns())
    }

    /// Whether a counter was lost in this period. A lost counter is revived for the next period.
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

/// Why a core's thread cannot continue.
#[derive(Debug)]
pub(super) enum Failure {
    /// The CPU went offline; the thread waits for it.
    CpuGone,
    /// The CPU went offline and came back unnoticed, and nothing was counted in these periods.
    CountersRemoved { periods: u64 },
    /// Any other failure, which ends the regulator.
    Broken(String),
}

impl From<memwarden_policy::Error> for Failure {
    fn from(error: memwarden_policy::Error) -> Self {
        Self::Broken(error.to_string())
    }
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

/// The body of a core's thread. `ready` is called once, when the core is regulated or known to be offline.
///
/// # Errors
/// The reason why the core cannot be regulated, or no longer can.
pub(super) fn run(
    common: &Arc<Common>,
    index: usize,
    mut core: Core,
    ready: impl FnOnce(),
) -> Result<(), String> {
    let handle = &common.cores[index];
    let explain = |failure| match failure {
        Failure::CpuGone | Failure::CountersRemoved { .. } => {
            format!("CPU {} went offline", handle.cpu)
        }
        Failure::Broken(why) => format!("CPU {}: {why}", handle.cpu),
    };
    sched::set_fifo(PRIORITY).map_err(|error| explain(error.into()))?;
    if let Some(fault) = &common.fault {
        fault.strike_at_start(handle.cpu);
    }
    // So far, this word has held the supervisor's deadline for the start.
    let mut ready = Some(|| {
        common.running_until[index].store(0, Ordering::Release);
        ready();
    });
    let mut said = false;
    let mut refusals = Refusals::default();
    let mut unregulated_periods = 0;
    while !handle.stop.load(Ordering::Acquire) {
        if let Err(error) = affinity::pin(handle.cpu) {
            let online = cpus::online().is_ok_and(|online| online.contains(handle.cpu));
            match refusals.look(online, monotonic_ns()) {
                Refusal::Offline => {
                    if let Some(ready) = ready.take() {
                        ready();
                    }
                }
                Refusal::Forbidden if ready.is_some() => {
                    return Err(format!(
                        "{}; --cpus regulates some CPUs only",
                        explain(error.into())
                    ));
                }
                // The cpuset has changed, or the CPU came online later; the others stay regulated.
                Refusal::Forbidden => eprintln!(
                    "memwarden: {}: the core is not regulated",
                    explain(error.into())
                ),
                Refusal::Pending => {}
            }
            park(handle);
            continue;
        }
        refusals = Refusals::default();
        let codes = match common.event.on(handle.cpu) {
            Ok(codes) => codes,
            Err(error) if ready.is_some() => return Err(error.to_string()),
            // This CPU came online later; the others stay regulated.
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
        let online = common.clock.online(index, &mut core, monotonic_ns());
        online.map_err(|error| explain(error.into()))?;
        let mut going = Loop::new(Arc::clone(common), index, core, counters);
        going.figures.unregulated_periods = std::mem::take(&mut unregulated_periods);
        going.measure_own().map_err(explain)?;
        // A client may ask for the figures as soon as the core is ready. The first sleep posts again.
        going.post();
        if let Some(ready) = ready.take() {
            ready();
        }
        let outcome = going.go_round();
        going.leave();
        match outcome {
            Ok(()) => return Ok(()),
            Err(Failure::CpuGone) => {}
            Err(Failure::CountersRemoved { periods }) => {
                unregulated_periods = going.figures.unregulated_periods + periods;
                eprintln!(
                    "memwarden: CPU{}: the CPU was offline for a moment or the machine was suspended, which ended the \
                     CPU's counters: the core was not regulated for {periods} periods, and is again",
                    handle.cpu
                );
            }
            Err(failure) => return Err(explain(failure)),
        }
        core = going.core;
    }
    Ok(())
}

/// Consecutive failures to pin a core's thread.
#[derive(Debug, Default)]
struct Refusals {
    /// The first of them while the CPU was online.
    since_ns: Option<u64>,
    found: bool,
}

/// What a failure to pin a core's thread means.
#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    /// The CPU is offline.
    Offline,
    /// The CPU is online and has refused the thread for so long that a cpuset must forbid it. Returned once.
    Forbidden,
    /// Not known yet, or returned before.
    Pending,
}

impl Refusals {
    /// `online` is whether sysfs has the CPU online.
    fn look(&mut self, online: bool, now_ns: u64) -> Refusal {
        if !online {
            *self = Self::default();
            return Refusal::Offline;
        }
        let since_ns = *self.since_ns.get_or_insert(now_ns);
        if now_ns - since_ns < FORBIDDEN_NS || std::mem::replace(&mut self.found, true) {
            return Refusal::Pending;
        }
        Refusal::Forbidden
    }
}

/// Pauses before the next check of a CPU that is offline or has no event.
fn park(handle: &Handle) {
    let wait = Timespec {
        tv_sec: 0,
        tv_nsec: PARKED_NS,
    };
    let _ = wait_for_any(&mut [PollFd::new(&handle.bell, PollFlags::IN)], &wait);
}

/// The descriptor to poll for a counter. A lost counter would always be ready, so the bell takes its place.
fn end_of<'a>(counter: Option<&'a OverflowCounter>, lost: bool, bell: &PollFd<'a>) -> PollFd<'a> {
    match counter {
        Some(counter) if !lost => PollFd::from_borrowed_fd(counter.as_fd(), PollFlags::IN),
        _ => bell.clone(),
    }
}

/// Waits until the bell rings, a counter overflows, or `wait` has passed. Clears the bell, the first of `ends`.
///
/// The bell is cleared even if no kick seems pending. A sender increments the count before it rings, so the
/// core may have handled the kick before the bell rang. A bell that stays set would keep this thread running,
/// and so block its core, forever.
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
        let figures = Figures::begin(now_ns, clock.period_ns);
        Self {
            boundary_ns: clock.next_boundary_ns(now_ns),
            number: clock.number_at(now_ns),
            pending: false,
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
            held: None,
            slept_ns: 0,
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
        // The settings may have changed while no core was there to take them.
        self.on_kick(monotonic_ns())?;
        self.arm()?;
        loop {
            if self.core.is_throttled() {
                self.hold()?;
            } else {
                let since_ns = monotonic_ns();
                self.sleep()?;
                self.slept_ns += monotonic_ns() - since_ns;
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

    /// Waits until the period ends, a counter overflows, or a kick arrives.
    fn sleep(&mut self) -> Result<(), Failure> {
        let now_ns = monotonic_ns();
        if self.released_ns > 0 {
            self.book_return(now_ns);
        }
        let posted = self.post();
        let wake_ns = if self.is_quiet() && !posted {
            // The reader waits for these figures, and nothing else would wake this thread soon.
            now_ns + POST_AGAIN_NS
        } else if self.is_quiet() {
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
            .map_err(|errno| Failure::Broken(format!("cannot wait for a counter: {errno}")))?;
        for (end, lost) in ends[1..count].iter().zip(lost) {
            *lost |= end.revents().intersects(PollFlags::ERR | PollFlags::HUP);
        }
        Ok(())
    }

    /// True if the core has no limit and no other core depends on what it uses.
    fn is_quiet(&self) -> bool {
        self.common.policy.best_effort() == BestEffort::None
            && !self.common.policy.reclaim()
            && !self.pending
            && Resource::ALL
                .into_iter()
                .all(|resource| self.core.account(resource).budget == UNLIMITED)
    }

    /// Holds the core until the period ends or a kick arrives.
    fn hold(&mut self) -> Result<(), Failure> {
        if std::mem::take(&mut self.to_be_held) {
            self.let_tasks_run();
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

    /// Before a throttle: if the core's tasks have hardly run since the last one, lets them run now. A software event
    /// counts only while they run.
    fn let_tasks_run(&mut self) {
        let least_ns = RUN_MIN_NS.min(self.common.clock.read().period_ns / 8);
        if std::mem::take(&mut self.slept_ns) < least_ns && self.counters.hardware {
            self.mean_to_run_until(0);
            std::thread::sleep(Duration::from_nanos(least_ns));
        }
    }

    /// Measures what the thread's own work in a period uses.
    fn measure_own(&mut self) -> Result<(), Failure> {
        let mut least = [u64::MAX; 2];
        for _ in 0..TRIALS {
            let before = self.counters.used()?;
            self.arm()?;
            let mut ends = [PollFd::new(&self.handle().bell, PollFlags::IN)];
            wait_for_any(&mut ends, &Timespec::default())
                .map_err(|errno| Failure::Broken(format!("cannot wait: {errno}")))?;
            self.post();
            let after = self.counters.used()?;
            least = [0, 1].map(|index| least[index].min(after[index] - before[index]));
        }
        for (own, least) in self.handle().own.iter().zip(least) {
            own.store(least, Ordering::Release);
        }
        Ok(())
    }

    /// Records how late the core's tasks run again after a throttle.
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

    /// Records the latency and the overshoot of a throttle, now that nothing else runs on the core.
    fn book_hold(&mut self) -> Result<(), Failure> {
        let now_ns = monotonic_ns();
        let latency_ns = now_ns.saturating_sub(self.overflow_ns);
        let longest = &mut self.figures.throttle_latency_ns_max;
        *longest = latency_ns.max(*longest);
        let resource = self.stopped_by;
        let used = self.counters.used()?[resource as usize];
        let assigned = self.core.account(resource).assigned;
        self.held = Some(Held {
            at_ns: now_ns,
            used,
        });
        let what = What::Throttle {
            epoch: self.core.epoch(),
            used,
            assigned,
            overshoot: used.saturating_sub(assigned),
            latency_ns,
        };
        self.handle().record.keep(self.handle().cpu, now_ns, what);
        // If a reader is looking, the next period's figures include these.
        self.post();
        Ok(())
    }

    /// Charges the events of a throttle that ends now; `used` counts those of its resource until now.
    fn settle_stop(&mut self, now_ns: u64, used: [u64; 2]) {
        let Some(held) = self.held.take() else {
            return;
        };
        let resource = self.stopped_by;
        let used = held.used_by(now_ns, used[resource as usize]);
        let allowed = self.core.account(resource).allowed();
        self.core.settle_stop(resource, used, held.used, allowed);
    }

    fn look_for_kick(&mut self) -> bool {
        let kicks = self.handle().kicks.load(Ordering::Acquire);
        let kicked = kicks != self.kicks_seen;
        self.kicks_seen = kicks;
        kicked
    }

    /// Handles a kick: another core, or a new setting, requires a check.
    fn on_kick(&mut self, now_ns: u64) -> Result<(), Failure> {
        let policy = &self.common.policy;
        self.common
            .clock
            .take_wanted(now_ns, || policy.census().epoch);
        self.begin_period(now_ns)?;
        self.boundary_ns = self.common.clock.read().next_boundary_ns(now_ns);
        if self.core.release() == Action::Run {
            let used = self.counters.used()?;
            self.settle_stop(now_ns, used);
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
        // Best effort needs to know whether the core was idle. Otherwise, no traffic is a good enough sign of it.
        self.counters
            .witness
            .switch(best_effort != BestEffort::None)?;
        let used = self.counters.used()?;
        if let Some(since_ns) = self.counters.removed(now_ns) {
            let period_ns = self.common.clock.read().period_ns;
            return Err(Failure::CountersRemoved {
                // The counters stopped in the period before that.
                periods: (now_ns - since_ns) / period_ns + 1,
            });
        }
        let idle = match self.counters.witness.others_ran() {
            Some(others) => !others,
            None => used == [0, 0],
        };
        let (throttled, free) = (self.core.is_throttled(), self.core.is_best_effort());
        let epoch = self.core.epoch();
        let assigned = Resource::ALL.map(|resource| self.core.account(resource).assigned);
        let quiet = self.is_quiet();
        let now = self.common.clock.read();
        let (number, period_ns) = (now.number_at(now_ns), now.period_ns);
        if number != self.number && !(throttled || free || self.handle().settings.rt()) {
            // The period, or several, ended before this thread could throttle the core: excess events are owed.
            let missed = number.saturating_sub(self.number + 1);
            let mut each = Resource::ALL.map(|resource| self.core.account(resource).budget);
            if missed > 0 {
                // If the budgets have changed, it is unknown how many of the missed periods had the old ones.
                let now = self.common.clock.budgets(self.index, number, now_ns);
                each = [0, 1].map(|resource| each[resource].min(now.events[resource]));
            }
            for (resource, used) in Resource::ALL.into_iter().zip(used) {
                let missed = missed.saturating_mul(each[resource as usize]);
                let allowed = self.core.account(resource).allowed();
                let allowed = allowed.saturating_add(missed);
                self.core.owe(resource, used, used, allowed);
            }
        }
        if number != self.number {
            self.settle_stop(now_ns, used);
        }
        let (index, clock) = (self.index, &self.common.clock);
        let (action, in_force) = clock.begin(index, &mut self.core, number, now_ns, idle, used)?;
        self.pending = in_force.pending;
        if action == Action::Continue {
            return Ok(());
        }
        if throttled {
            self.book_release(now_ns);
        }
        // A quiet core sleeps through several periods.
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
        self.figures.ended(&ended, period_ns, &mut self.second);
        self.number = number;
        self.counters.begin = self.counters.last;
        // Overflows of the ended period say nothing about this one.
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
                let epoch = self.common.policy.census().epoch;
                self.common.clock.restart(epoch, now_ns);
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

    /// Sets each counter's next overflow where the remaining budget ends, but no nearer than its [`Reaction`] allows.
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

    /// Gives each counter a share of the one budget, so that their sum cannot exceed the remaining events unnoticed.
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
                // While a reaction is unknown, each distance is at least half a budget.
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
        let now_ns = monotonic_ns();
        self.figures = Figures::begin(now_ns, self.figures.period_ns());
        self.base = Resource::ALL.map(|resource| self.core.account(resource));
        self.second = Second::begin(now_ns, &self.figures);
        (self.throttled_since_ns, self.best_effort_since_ns) = (now_ns, now_ns);
    }

    /// Shows the figures to readers; false if one was looking at this moment.
    fn post(&mut self) -> bool {
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
        self.handle().board.leave(&self.figures)
    }

    /// Releases the core: its donations return, and no other core waits for it.
    fn leave(&mut self) {
        self.mean_to_run_until(0);
        let action = self.core.offline();
        // A failure changes nothing: the thread is about to end.
        let _ = self.carry_out(action, monotonic_ns());
        self.figures.regulated = false;
        // The thread is about to end or to wait for its CPU: a reader may finish first.
        while !self.post() {
            std::thread::sleep(Duration::from_nanos(POST_AGAIN_NS));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_that_is_online_and_refuses_its_thread_is_found_once() {
        let mut refusals = Refusals::default();
        let second = FORBIDDEN_NS;
        // A CPU that goes offline refuses its thread before sysfs has it offline.
        assert_eq!(refusals.look(true, 0), Refusal::Pending);
        assert_eq!(refusals.look(true, second - 1), Refusal::Pending);
        assert_eq!(refusals.look(false, second), Refusal::Offline);
        assert_eq!(refusals.look(true, second), Refusal::Pending);
        assert_eq!(refusals.look(true, 2 * second - 1), Refusal::Pending);
        assert_eq!(refusals.look(true, 2 * second), Refusal::Forbidden);
        assert_eq!(refusals.look(true, 3 * second), Refusal::Pending);
    }

    #[test]
    fn events_of_a_hold_are_charged_unless_they_count_time() {
        let held = Held {
            at_ns: 1_000_000,
            used: 3276,
        };
        // 150 lines in half a millisecond.
        assert_eq!(held.used_by(1_500_000, 3426), 3426);
        // Cycles at 1.2 GHz, or instructions of a loop that waits.
        assert_eq!(held.used_by(1_500_000, 603_276), 3276);
        assert_eq!(held.used_by(1_500_000, 3276 + 25_001), 3276);
        assert_eq!(held.used_by(1_500_000, 3276 + 25_000), 3276 + 25_000);
        assert_eq!(held.used_by(1_000_000, 3276), 3276);
    }

    #[test]
    fn an_overflow_is_set_no_nearer_than_the_thread_is_away() {
        // Page faults: the reaction is known from the start.
        let mut software = Reaction::to(EventCode::PAGE_FAULTS);
        assert_eq!(software.set(0, 1, 50), 1);
        software.looked(1);
        assert_eq!(software.set(1, 1, 50), 1);

        // Cycles: unknown at first, so a whole budget; then the observed events. A longer distance
        // does not increase the estimate.
        let mut hardware = Reaction::to(EventCode::CYCLES);
        assert_eq!(hardware.set(0, 1, 50_000), 50_000);
        hardware.looked(66_000);
        assert_eq!(hardware.set(66_000, 1, 50_000), 16_000);
        hardware.looked(66_000 + 16_000 + 15_500);
        assert_eq!(hardware.set(97_500, 1, 50_000), 15_500);
        assert_eq!(hardware.set(97_500, 40_000, 50_000), 40_000);
        // After a long delay, the distance is a budget at most, and the estimate decays.
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
        // The core has seen the count, and from here on polls only its bell.
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
