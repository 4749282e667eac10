// SPDX-License-Identifier: MIT OR Apache-2.0
//! The regulator's process: one thread per core, a watcher, and the socket for clients.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind::{Interrupted, WouldBlock};
use std::io::{self, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use memwarden_platform::clock::monotonic_ns;
use memwarden_platform::cpus::{self, CpuSet};
use memwarden_platform::overflow::{Of, OverflowCounter};
use memwarden_platform::sched;
use memwarden_platform::shared::SharedWords;
use memwarden_policy::{Core, Policy, UNLIMITED};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::clock::PeriodClock;
use super::core::{Common, Handle};
use super::fault::Fault;
use super::figures::Figures;
use super::places::Places;
use super::process::{self, Mailbox, spawn};
use super::wire::{Plan, Reply, Request, receive, send};
use super::{core, record};
use crate::budget::{COMBINED_ALONE, Events};
use crate::control::BestEffort;
use crate::event;
use crate::reservations::{Basis, Reservations, guaranteed_mib_s};
use crate::units::{PERIOD_US_MAX, PERIOD_US_MIN};
use crate::{Control, CoreStatistics, Error, Resource, Settings};

/// The longest wait for a client before the server checks its threads and whether to stop.
const LOOK: Duration = Duration::from_millis(20);

/// A client that sends nothing for this long is disconnected.
const IDLE_CLIENT: Duration = Duration::from_secs(60);

/// After a request, a core's figures are ready within a few of these waits, unless its thread cannot run.
const FRESH_WAIT: Duration = Duration::from_micros(200);
const FRESH_TRIES: u32 = 100;

/// Number of clients served at a time; others wait.
const CLIENTS: usize = 16;

/// Priority of a client's thread: above ordinary loads, which may fill the machine, and below all other real-time
/// threads, especially the core threads. An answer may take milliseconds of CPU time.
const CLIENT_PRIORITY: i32 = 1;

struct Host {
    common: Arc<Common>,
    user_only: bool,
    state: Mutex<State>,
    stop: Arc<AtomicBool>,
}

struct State {
    maxbw_mib_s: u64,
    period_us: u64,
    /// Indexed by [`Resource`].
    reservations: [Reservations; 2],
}

/// Regulates until a client, a signal or the supervisor's end stops it. Calls `ready` once regulation is on.
///
/// # Errors
/// The reason why it cannot regulate, or no longer can.
pub(super) fn run(
    plan: &Plan,
    places: &Places,
    words: OwnedFd,
    ready: impl FnOnce(),
) -> Result<(), Error> {
    let (stop, words) = process::enter(words)?;

    let (host, cores) = Host::new(plan, words, Arc::clone(&stop))?;
    let listener = places.listen()?;
    let told = Arc::new(Mailbox::default());
    let threads = host.start_cores(cores, &told)?;
    let (common, saved) = (Arc::clone(&host.common), places.clone());
    let free = move || {
        for core in &common.cores {
            core.stop();
        }
        if let Err(error) = saved.restore_rt_throttling() {
            eprintln!("memwarden: {error}");
        }
    };
    let watcher = process::start_watcher(Arc::clone(&host.common.running_until), &stop, free)?;
    let mut outcome = host.wait_for_cores(&told);
    if outcome.is_ok() {
        ready();
        outcome = host.serve(&listener, &told);
    }

    stop.store(true, Ordering::Release);
    for core in &host.common.cores {
        core.stop();
    }
    for thread in threads {
        let _ = thread.join();
    }
    let _ = watcher.join();
    outcome
}

/// A message from a core's thread.
enum Told {
    Ready,
    /// The thread was ordered to end.
    Ended,
    Failed(String),
}

impl Host {
    fn new(
        plan: &Plan,
        words: Arc<SharedWords>,
        stop: Arc<AtomicBool>,
    ) -> Result<(Arc<Self>, Vec<Core>), Error> {
        let options = &plan.options;
        let present = cpus::present().map_err(Error::platform)?;
        let first = event::first_cpu(options)?;
        let counts = |code| OverflowCounter::open(first, code, Of::Cpu, options.user_only).is_ok();
        let event = event::choose(options, counts)?;
        let policy = Policy::new();
        let mut handles = Vec::new();
        let mut cores = Vec::new();
        let regulated: CpuSet = present
            .iter()
            .filter(|&cpu| options.regulates(cpu))
            .collect();
        event.covers(&regulated)?;
        for cpu in regulated.iter() {
            let core = Core::new(&policy).map_err(|error| Error::System(error.to_string()))?;
            handles.push(Handle::new(cpu, core.settings())?);
            cores.push(core);
        }
        let common = Common {
            clock: PeriodClock::new(monotonic_ns(), options.period_us * 1000, handles.len()),
            policy,
            event,
            user_only: options.user_only,
            cores: handles,
            running_until: words,
            fault: Fault::from_environment(),
        };
        let unlimited = Reservations::unlimited(&regulated);
        let host = Self {
            common: Arc::new(common),
            user_only: options.user_only,
            state: Mutex::new(State {
                maxbw_mib_s: options.maxbw_mib_s.unwrap_or(0),
                period_us: options.period_us,
                reservations: [unlimited.clone(), unlimited],
            }),
            stop,
        };
        Ok((Arc::new(host), cores))
    }

    fn start_cores(
        &self,
        cores: Vec<Core>,
        told: &Arc<Mailbox<Told>>,
    ) -> Result<Vec<JoinHandle<()>>, Error> {
        let start = |(index, core): (usize, Core)| {
            let (common, told) = (Arc::clone(&self.common), Arc::clone(told));
            spawn(&format!("cpu{}", self.common.cores[index].cpu), move || {
                let ready = || told.put(Told::Ready);
                told.put(match core::run(&common, index, core, ready) {
                    Ok(()) => Told::Ended,
                    Err(why) => Told::Failed(why),
                });
            })
        };
        cores.into_iter().enumerate().map(start).collect()
    }

    /// Waits until every core is regulated, or one cannot be.
    fn wait_for_cores(&self, told: &Mailbox<Told>) -> Result<(), Error> {
        for _ in &self.common.cores {
            match told.wait() {
                Told::Ready => {}
                Told::Failed(why) => return Err(Error::Regulator(why)),
                Told::Ended => break,
            }
        }
        Ok(())
    }

    /// Serves clients until the regulator must stop.
    fn serve(self: &Arc<Self>, listener: &UnixListener, told: &Mailbox<Told>) -> Result<(), Error> {
        listener
            .set_nonblocking(true)
            .map_err(|error| Error::System(format!("cannot listen to clients: {error}")))?;
        let mut clients = Clients::default();
        let mut told_of_lost = BTreeSet::new();
        while !self.stop.load(Ordering::Acquire) {
            if let Some(Told::Failed(why)) = told.take() {
                return Err(Error::Regulator(why));
            }
            self.tell_of_lost_counters(&mut told_of_lost);
            let wait = Timespec {
                tv_sec: 0,
                tv_nsec: i64::try_from(LOOK.as_nanos()).unwrap_or(0),
            };
            let _ = poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&wait));
            if clients.count.load(Ordering::Acquire) >= CLIENTS {
                thread::sleep(LOOK);
                continue;
            }
            let accepted = listener.accept().map(|(stream, _)| stream);
            let host = Arc::clone(self);
            let talk = move |stream| {
                // The thread inherits its parent's priority, which is that of the watchdogs.
                if sched::set_fifo(CLIENT_PRIORITY).is_ok() {
                    // An error concerns only this client: it disconnected or sent an invalid request.
                    let _ = host.talk(stream);
                }
            };
            if !clients.admit(accepted, talk, |body| spawn("client", body)) {
                thread::sleep(LOOK);
            }
        }
        Ok(())
    }

    /// Logs, once for each core, that the core lost a counter.
    fn tell_of_lost_counters(&self, told: &mut BTreeSet<usize>) {
        for core in &self.common.cores {
            if !core.take_counter_lost() || !told.insert(core.cpu) {
                continue;
            }
            eprintln!(
                "memwarden: CPU{}: a counter does not count: another user of the PMU or an error took it. The core is \
                 not regulated until it counts again; `guard show` reports the number of such periods (unregulated).",
                core.cpu
            );
        }
    }

    fn talk(&self, mut stream: UnixStream) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(IDLE_CLIENT))?;
        let mut reader = BufReader::new(stream.try_clone()?);
        loop {
            let request = match receive::<Request>(&mut reader) {
                Ok(Some(request)) => request,
                Ok(None) => return Ok(()),
                Err(error) => {
                    return send(
                        &mut stream,
                        &Reply::Refused(format!("cannot parse the request: {error}")),
                    );
                }
            };
            let stop = request == Request::Stop;
            let reply = self
                .answer(request)
                .unwrap_or_else(|error| Reply::Refused(error.to_string()));
            send(&mut stream, &reply)?;
            if stop {
                self.stop.store(true, Ordering::Release);
                return Ok(());
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, request: Request) -> Result<Reply, Error> {
        let common = &self.common;
        match request {
            Request::Settings => return Ok(Reply::Settings(Box::new(self.settings()?))),
            Request::Statistics => return Ok(Reply::Statistics(self.statistics())),
            Request::Budgets { resource, request } => {
                if resource == Resource::Write && self.common.event.combined {
                    return Err(Error::BadInput(COMBINED_ALONE.into()));
                }
                if resource == Resource::Write && self.common.event.write.is_none() {
                    return Err(Error::BadInput(format!(
                        "event {} counts no write-backs: start with --write-event CODE",
                        self.common.event.name
                    )));
                }
                let online = self.cpus(|figures| figures.regulated);
                let mut state = self.state();
                let index = resource as usize;
                let mut new = state.reservations.clone();
                new[index] = new[index].with(&request, &online)?;
                self.take(&mut state, new, None, None)?;
            }
            Request::Mode {
                best_effort,
                reclaim,
            } => {
                if let Some(mode) = best_effort {
                    common.policy.set_best_effort(policy_mode(mode));
                }
                if let Some(reclaim) = reclaim {
                    common.policy.set_reclaim(reclaim);
                }
            }
            Request::Maxbw(mib_s) => {
                let mut state = self.state();
                let same = state.reservations.clone();
                self.take(&mut state, same, Some(mib_s), None)?;
            }
            Request::Period(us) => {
                if !(PERIOD_US_MIN..=PERIOD_US_MAX).contains(&us) {
                    return Err(Error::BadInput(format!(
                        "period {us} us: give {PERIOD_US_MIN} to {PERIOD_US_MAX}"
                    )));
                }
                let mut state = self.state();
                let same = state.reservations.clone();
                self.take(&mut state, same, None, Some(us))?;
            }
            Request::Rt { cpu, rt } => {
                let core = common.cores.iter().find(|core| core.cpu == cpu);
                let core = core
                    .ok_or_else(|| Error::BadInput(format!("rt: this machine has no CPU {cpu}")))?;
                core.settings.set_rt(rt);
            }
            Request::Record { periods } => {
                for core in &common.cores {
                    core.record.start(periods);
                }
                return Ok(Reply::Done);
            }
            Request::Recording => {
                let records = common.cores.iter().map(|core| &core.record);
                return Ok(Reply::Recording(record::collect(records)));
            }
            Request::Reset => common.cores.iter().for_each(Handle::reset),
            Request::Stop => {}
        }
        for core in &common.cores {
            core.kick();
        }
        Ok(Reply::Done)
    }

    /// Validates all budgets before it publishes them together with the period.
    fn take(
        &self,
        state: &mut State,
        reservations: [Reservations; 2],
        maxbw_mib_s: Option<u64>,
        period_us: Option<u64>,
    ) -> Result<(), Error> {
        let basis = Basis {
            period_us: period_us.unwrap_or(state.period_us),
            bytes_per_event: self.common.event.bytes,
            maxbw_mib_s: maxbw_mib_s.unwrap_or(state.maxbw_mib_s),
        };
        let events = [
            reservations[0].events(basis)?,
            reservations[1].events(basis)?,
        ];
        // A budget beyond the largest limit is the same as no limit.
        let of = |events: &BTreeMap<usize, Events>, cpu| {
            let budget = events.get(&cpu).copied().flatten();
            budget.map_or(UNLIMITED, |budget| budget.min(UNLIMITED))
        };
        let cores = self.common.cores.iter();
        let budgets = cores.map(|core| events.each_ref().map(|events| of(events, core.cpu)));
        let budgets: Vec<_> = budgets.collect();
        for (core, budgets) in self.common.cores.iter().zip(&budgets) {
            for (events, least) in budgets.iter().zip(core.least_events()) {
                if *events < least {
                    return Err(Error::BadInput(format!(
                        "{events} events per period are too few for CPU{}: give {least} or more; the regulator's own \
                         work uses half of them",
                        core.cpu
                    )));
                }
            }
        }
        let clock = &self.common.clock;
        clock.publish(basis.period_us * 1000, budgets);
        state.reservations = reservations;
        state.period_us = basis.period_us;
        state.maxbw_mib_s = basis.maxbw_mib_s;
        Ok(())
    }

    fn cpus(&self, which: impl Fn(&Figures) -> bool) -> CpuSet {
        self.common
            .cores
            .iter()
            .filter(|core| which(&core.board.look()))
            .map(|core| core.cpu)
            .collect()
    }

    fn settings(&self) -> Result<Settings, Error> {
        let state = self.state();
        let basis = Basis {
            period_us: state.period_us,
            bytes_per_event: self.common.event.bytes,
            maxbw_mib_s: state.maxbw_mib_s,
        };
        let online = self.cpus(|figures| figures.regulated);
        let of = |resource: Resource| -> Result<BTreeMap<usize, _>, Error> {
            let mut events = state.reservations[resource as usize].events(basis)?;
            events.retain(|cpu, _| online.contains(*cpu));
            Ok(events)
        };
        let read = of(Resource::Read)?;
        let write = if self.common.event.has_write_budgets() {
            of(Resource::Write)?
        } else {
            BTreeMap::new()
        };
        let policy = &self.common.policy;
        let rt = self.common.cores.iter().filter(|core| core.settings.rt());
        let control = Control {
            maxbw_mib_s: state.maxbw_mib_s,
            period_us: state.period_us,
            reclaim: policy.reclaim(),
            best_effort: match policy.best_effort() {
                memwarden_policy::BestEffort::None => BestEffort::None,
                memwarden_policy::BestEffort::Spare => BestEffort::Spare,
                memwarden_policy::BestEffort::Proportional => BestEffort::Proportional,
            },
            qmin: policy.qmin(),
            event: self.common.event.name.clone(),
            write_event: self.common.event.write.clone(),
            combined: self.common.event.combined,
            bytes_per_event: self.common.event.bytes,
            user_only: self.user_only,
            idle: "spin".into(),
            cpus: self.common.cores.iter().map(|core| core.cpu).collect(),
            rt: rt.map(|core| core.cpu).collect(),
            active: self.cpus(|figures| figures.active),
            throttled: self.cpus(|figures| figures.throttled),
            online,
            guaranteed_mib_s: guaranteed_mib_s(&read, basis),
        };
        Ok(Settings {
            control,
            read_budget_events: read,
            write_budget_events: write,
        })
    }

    /// Wakes the threads of cores without limits, which otherwise wake rarely, so that their counts are current.
    fn wake_quiet_cores(&self) {
        let quiet = self.common.cores.iter().filter(|core| {
            let figures = core.board.look();
            figures.regulated && figures.quiet
        });
        let asked: Vec<_> = quiet.map(|core| (core, core.kick())).collect();
        for _ in 0..FRESH_TRIES {
            if asked
                .iter()
                .all(|(core, kick)| core.board.look().kicks >= *kick)
            {
                return;
            }
            thread::sleep(FRESH_WAIT);
        }
    }

    fn statistics(&self) -> Vec<CoreStatistics> {
        self.wake_quiet_cores();
        let writes = self.common.event.has_write_budgets();
        self.common
            .cores
            .iter()
            .map(|core| {
                core.board
                    .look()
                    .statistics(core.cpu, core.settings.rt(), writes)
            })
            .collect()
    }
}

/// The clients that are served.
#[derive(Debug, Default)]
struct Clients {
    count: Arc<AtomicUsize>,
    /// A failure was logged; one line suffices.
    told: bool,
}

/// A client's place among [`CLIENTS`]; dropped, it is free.
struct Seat(Arc<AtomicUsize>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Clients {
    /// Lets `talk` serve the client that was accepted, in a thread that `start` starts. Returns `false` if that failed for
    /// want of descriptors, threads or memory: the client is disconnected, the cores stay regulated, and the caller
    /// pauses. Otherwise a client that waits would keep it busy, at the watchdogs' priority.
    fn admit<T>(
        &mut self,
        accepted: io::Result<UnixStream>,
        talk: impl FnOnce(UnixStream) + Send + 'static,
        start: impl FnOnce(Box<dyn FnOnce() + Send>) -> Result<T, Error>,
    ) -> bool {
        let outcome = match accepted {
            Ok(stream) => {
                self.count.fetch_add(1, Ordering::AcqRel);
                let seat = Seat(Arc::clone(&self.count));
                start(Box::new(move || {
                    talk(stream);
                    drop(seat);
                }))
                .map(drop)
                .map_err(|error| error.to_string())
            }
            Err(error) if matches!(error.kind(), WouldBlock | Interrupted) => return true,
            Err(error) => Err(format!("cannot accept it: {error}")),
        };
        let Err(why) = outcome else {
            return true;
        };
        if !std::mem::replace(&mut self.told, true) {
            eprintln!(
                "memwarden: a client of the guard is not served, and others may not be later: {why}"
            );
        }
        false
    }
}

fn policy_mode(mode: BestEffort) -> memwarden_policy::BestEffort {
    match mode {
        BestEffort::None => memwarden_policy::BestEffort::None,
        BestEffort::Spare => memwarden_policy::BestEffort::Spare,
        BestEffort::Proportional => memwarden_policy::BestEffort::Proportional,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_client_without_a_thread_or_descriptor_is_dropped_and_the_next_is_served() {
        let mut clients = Clients::default();
        let refuse = |_: Box<dyn FnOnce() + Send>| -> Result<(), Error> {
            Err(Error::System("cannot start a thread: EAGAIN".into()))
        };
        for _ in 0..2 * CLIENTS {
            let (mut client, served) = UnixStream::pair().unwrap();
            assert!(!clients.admit(Ok(served), drop, refuse));
            assert_eq!(clients.count.load(Ordering::Acquire), 0);
            assert_eq!(client.read(&mut [0]).unwrap(), 0, "it is disconnected");
        }
        assert!(clients.told);
        let full = || Err(io::Error::from(rustix::io::Errno::MFILE));
        assert!(!clients.admit(full(), drop, refuse));
        // Nobody has called.
        assert!(clients.admit(Err(WouldBlock.into()), drop, refuse));

        let (mut client, served) = UnixStream::pair().unwrap();
        let talk = |stream: UnixStream| send(&mut &stream, &Reply::Done).unwrap();
        let mut thread = None;
        assert!(clients.admit(Ok(served), talk, |body| {
            thread = Some(spawn("client", body)?);
            Ok(())
        }));
        let mut said = String::new();
        client.read_to_string(&mut said).unwrap();
        assert_eq!(said, "\"done\"\n");
        thread.unwrap().join().unwrap();
        assert_eq!(clients.count.load(Ordering::Acquire), 0);
    }
}
