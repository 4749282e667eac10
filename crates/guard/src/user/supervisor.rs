// SPDX-License-Identifier: MIT OR Apache-2.0
//! The regulator's parent process. Whatever happens to the regulator, what it held is released within 100 ms, or later by
//! the share of a fair server that stays on, and every setting is restored.
//!
//! It is small so that it can be trusted. It starts the regulator and checks it every 10 ms at the highest real-time
//! priority. It kills the regulator if a thread runs past its time or the process was stopped, and cleans up. What
//! it cleans up is its [`Charge`]: cores ([`Cores`]) or a control group ([`crate::group`]). A regulator whose
//! supervisor dies ends itself ([`super::process`]). If both are killed at once, no core is held either, and the
//! next start or stop restores the settings.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use memwarden_platform::clock::monotonic_ns;
use memwarden_platform::cpus;
use memwarden_platform::process::this_program;
use memwarden_platform::sched;
use memwarden_platform::shared::{SharedWords, inherited};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitOptions, set_parent_process_death_signal, waitpid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

use super::places::Places;
use super::process::ASKED_TO_END;
use super::wire::Plan;
use super::{WATCHDOG_PRIORITY, host};
use crate::{Error, claims, group};

/// How often it checks, if nothing wakes it earlier.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 10_000_000,
};

/// Each thread of the regulator must regulate within this time; opening counters takes milliseconds. A thread that
/// hangs longer would hold its CPU forever.
const START_WITHIN_NS: u64 = 10_000_000_000;

/// Number of consecutive checks that may find a thread past its time, or a group stopped for too long. With the time
/// for the kill, this stays below 100 ms. Checks are counted as well as milliseconds: if the whole machine stood still,
/// as a virtual machine may, no thread is at fault.
const OVERDUE_LOOKS: u32 = 5;
/// Least time past the limit: signals cause additional checks. A fair server that is on adds its share.
const OVERDUE_NS: u64 = 50_000_000;

/// Attempts to take the lock, and the pause between two of them, before another regulator is assumed to hold it.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// The line on standard output that reports a running regulator.
pub(crate) const READY: &str = "ready";
/// The supervisor's line after another process than its client has ended a group's regulator.
pub(crate) const STOPPED: &str = "it was stopped (`memwarden guard stop`, or a signal)";

/// What a supervisor protects while its regulator runs.
pub(crate) trait Charge {
    /// Number of the regulator's threads to watch.
    fn threads(&self) -> usize;

    /// Name of a thread of the regulator, for errors.
    fn thread(&self, index: usize) -> String;

    /// Makes the changes that must precede the regulator, and returns the plan to start it with.
    fn begin(&mut self) -> Result<Plan, Error>;

    /// For how long the scheduler may keep a thread of the regulator from running, in nanoseconds.
    fn kept_waiting_ns(&self) -> u64 {
        0
    }

    /// True if a process other than the client that started the regulator relies on it.
    fn in_use(&self) -> bool {
        false
    }

    /// Releases what is held and restores every setting. `words` are those of the regulator's threads, as it left them.
    fn free(&self, words: &[AtomicU64]) -> Result<(), Error>;

    /// Called at the end, with the reason unless the end was requested.
    fn ended(&self, why: Option<&str>);
}

/// Carries out `memwarden guard user-regulator ROLE of CPUS [words FD]` with the plan in the environment: as the
/// supervisor or, with the descriptor of the shared words, as its child.
///
/// Prints [`READY`] once regulation is on, or one line with the reason why it cannot be.
pub fn run(arguments: &[String]) -> Result<(), Error> {
    let bad = || Error::BadInput("only `memwarden guard` can start user-regulator".into());
    let plan = Plan::given().ok_or_else(bad)?;
    let places = Places::of_system();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["supervisor", "of", _] => supervise(&plan, &places),
        ["regulator", "of", _, "words", fd] => {
            let words = inherited(fd.parse().map_err(|_| bad())?).map_err(Error::platform)?;
            match &plan.group {
                None => host::run(&plan, &places, words, || tell(READY)),
                Some(group) => group::regulate(&plan.options, group, words, tell),
            }
        }
        _ => return Err(bad()),
    };
    if let Err(error) = &outcome {
        tell(&error.to_string());
    }
    outcome
}

/// Sends a line to the parent process, if that still listens.
fn tell(line: &str) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn supervise(plan: &Plan, places: &Places) -> Result<(), Error> {
    // A new session: the process must outlive the terminal.
    let _ = rustix::process::setsid();
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(|error| Error::System(format!("cannot catch signal {signal}: {error}")))?;
    }
    let client_gone = Arc::new(AtomicBool::new(false));
    if plan.tied {
        // Not a signal that ends the supervisor: another client may use the guard.
        signal_hook::flag::register(SIGUSR1, Arc::clone(&client_gone))
            .map_err(|error| Error::System(format!("cannot catch signal {SIGUSR1}: {error}")))?;
        set_parent_process_death_signal(Some(Signal::USR1)).map_err(|errno| {
            Error::System(format!(
                "cannot request a signal at the client's end: {errno}"
            ))
        })?;
    }
    places.create()?;
    let mut charge: Box<dyn Charge + '_> = match &plan.group {
        None => Box::new(Cores::take(plan, places)?),
        Some(_) => Box::new(group::Charge::take(plan, places)),
    };
    sched::set_fifo(WATCHDOG_PRIORITY).map_err(Error::platform)?;
    sched::lock_memory().map_err(Error::platform)?;
    let threads = charge.threads();
    let words = SharedWords::create(threads + 1).map_err(Error::platform)?;
    words.inherit().map_err(Error::platform)?;
    let ready = charge.begin()?;
    let now_ns = monotonic_ns();
    for word in &words[..threads] {
        word.store(now_ns + START_WITHIN_NS, Ordering::Release);
    }
    words[threads].store(now_ns, Ordering::Release);

    let outcome = start(&ready, &words).and_then(|mut child| {
        let lease = plan.tied.then_some(client_gone.as_ref());
        let outcome = watch(&mut child, charge.as_ref(), &words, lease, &stop);
        // The regulator may be in any state; from here on it must be dead.
        let _ = child.kill();
        let _ = child.wait();
        outcome
    });
    let freed = charge.free(&words[..threads]);
    charge.ended(outcome.as_ref().err().map(ToString::to_string).as_deref());
    freed?;
    if outcome? == By::Another && plan.group.is_some() {
        tell(STOPPED);
    }
    Ok(())
}

/// The process that ended the regulator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// The client, by its own end or that of the lease.
    Client,
    /// Another process, by a signal.
    Another,
}

/// The regulated cores, and the scheduler's limit on real-time threads.
struct Cores<'a> {
    plan: Plan,
    places: &'a Places,
    cpus: Vec<usize>,
    /// The process that started this one.
    client: u32,
    /// The share of the fair servers that stay on, in nanoseconds of each second.
    fair_server_ns: u64,
    _lock: File,
}

impl<'a> Cores<'a> {
    fn take(plan: &Plan, places: &'a Places) -> Result<Self, Error> {
        // A client that checks for a running regulator holds the lock for a moment.
        let mut lock = places.lock()?;
        for _ in 0..LOCK_TRIES {
            if lock.is_none() {
                thread::sleep(LOCK_PAUSE);
                lock = places.lock()?;
            }
        }
        let Some(lock) = lock else {
            return Err(Error::System(format!(
                "another regulator in user space holds {}",
                places.folder().join("guard.lock").display()
            )));
        };
        places.begin()?;
        Ok(Self {
            plan: plan.clone(),
            places,
            cpus: cpus::present()
                .map_err(Error::platform)?
                .iter()
                .filter(|&cpu| plan.options.regulates(cpu))
                .collect(),
            client: rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get() as u32),
            fair_server_ns: 0,
            _lock: lock,
        })
    }
}

impl Charge for Cores<'_> {
    fn threads(&self) -> usize {
        self.cpus.len()
    }

    fn thread(&self, index: usize) -> String {
        format!("the thread of CPU {}", self.cpus[index])
    }

    fn begin(&mut self) -> Result<Plan, Error> {
        // The client warns of servers that stay on.
        let on = self.places.release_rt_throttling()?;
        self.fair_server_ns = on.map_or(0, |on| on.runtime_ns);
        Ok(self.plan.clone())
    }

    fn kept_waiting_ns(&self) -> u64 {
        self.fair_server_ns
    }

    fn in_use(&self) -> bool {
        claims::in_use(self.places, self.client)
    }

    fn free(&self, _words: &[AtomicU64]) -> Result<(), Error> {
        self.places.restore_rt_throttling().map(drop)
    }

    fn ended(&self, why: Option<&str>) {
        self.places.end(why);
    }
}

fn start(plan: &Plan, words: &SharedWords) -> Result<Child, Error> {
    let mut program = this_program();
    plan.give(&mut program, "regulator")?;
    program
        .args(["words", &words.as_fd().as_raw_fd().to_string()])
        .stdin(Stdio::null())
        .spawn()
        .map_err(Error::file("starting", "the regulator"))
}

/// Watches the regulator until it has ended, and returns the process that ended it, or until it must be killed. `lease` is
/// set when the client has ended.
fn watch(
    child: &mut Child,
    charge: &dyn Charge,
    words: &SharedWords,
    lease: Option<&AtomicBool>,
    stop: &AtomicBool,
) -> Result<By, Error> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| Error::System("the regulator has no process ID".into()))?;
    let (beat, threads) = words.split_last().expect("one word more than threads");
    let mut asked = None;
    let mut gone = false;
    let allowed_ns = OVERDUE_NS + charge.kept_waiting_ns();
    let mut overdue = vec![Overdue::default(); threads.len()];
    loop {
        gone |= look_up(lease.is_some() && !gone);
        gone |= lease.is_some_and(|gone| gone.load(Ordering::Acquire));
        let now_ns = monotonic_ns();
        if asked.is_none() {
            beat.store(now_ns, Ordering::Release);
        }
        let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
        if let Ok(Some((_, status))) = waitpid(Some(pid), options) {
            if status.stopped() {
                return Err(Error::Regulator(
                    "the regulator was stopped (by SIGSTOP or a debugger) and therefore killed"
                        .into(),
                ));
            }
            return match (status.exit_status(), status.terminating_signal()) {
                (Some(0), _) => Ok(asked.unwrap_or(By::Another)),
                (_, Some(signal)) if asked.is_none() => Err(Error::Regulator(format!(
                    "the regulator was killed by signal {signal}"
                ))),
                (_, Some(_)) => Ok(asked.unwrap_or(By::Another)),
                // The regulator has logged the reason.
                _ => Err(Error::Regulator("the regulator failed".into())),
            };
        }
        for (index, (word, overdue)) in threads.iter().zip(&mut overdue).enumerate() {
            let until_ns = word.load(Ordering::Acquire);
            if let Some(past_ns) = overdue.look(until_ns, now_ns, allowed_ns) {
                return Err(Error::Regulator(format!(
                    "{} ran {} ms past its time, and the regulator was killed",
                    charge.thread(index),
                    past_ns / 1_000_000
                )));
            }
        }
        if asked.is_none() && (stop.load(Ordering::Acquire) || gone && !charge.in_use()) {
            asked = Some(if gone { By::Client } else { By::Another });
            // Not a signal: an ordinary thread would handle it, and may have to wait for a throttled core.
            beat.store(ASKED_TO_END, Ordering::Release);
        }
    }
}

/// A thread that is past its time.
#[derive(Debug, Clone, Copy, Default)]
struct Overdue {
    until_ns: u64,
    looks: u32,
}

impl Overdue {
    /// `until_ns` is the time until which the thread intends to run, 0 while it sleeps. Returns how far past it the
    /// thread is, once too many checks have found it so and it is `allowed_ns` past it.
    fn look(&mut self, until_ns: u64, now_ns: u64, allowed_ns: u64) -> Option<u64> {
        if until_ns == 0 || now_ns <= until_ns {
            *self = Self::default();
            return None;
        }
        if until_ns != self.until_ns {
            *self = Self { until_ns, looks: 0 };
        }
        self.looks += 1;
        let past_ns = now_ns - until_ns;
        (self.looks > OVERDUE_LOOKS && past_ns >= allowed_ns).then_some(past_ns)
    }
}

/// Waits for the next check. A signal ends the wait early, and so does the end of the lease, a hang-up on standard
/// input. Returns `true` in the latter case.
fn look_up(leased: bool) -> bool {
    let input = io::stdin();
    let mut lease = [PollFd::new(&input, PollFlags::IN)];
    let watched = if leased { &mut lease[..] } else { &mut [] };
    poll(watched, Some(&LOOK)).is_ok_and(|ready| ready > 0)
}

/// The log that a supervisor writes to.
pub(crate) fn open_log(places: &Places) -> Result<File, Error> {
    let path = places.log();
    File::options()
        .create(true)
        .append(true)
        .open(&path)
        .map_err(|error| match error.kind() {
            ErrorKind::PermissionDenied if !rustix::process::geteuid().is_root() => {
                Error::NotRoot("the regulator in user space")
            }
            _ => Error::file("opening", &path)(error),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn look_at(overdue: &mut Overdue, until_ms: u64, now_ms: u64) -> Option<u64> {
        overdue.look(until_ms * MS, now_ms * MS, OVERDUE_NS)
    }

    #[test]
    fn a_thread_that_stays_past_its_time_is_found_within_six_looks() {
        let mut overdue = Overdue::default();
        let found = (1..).find_map(|look| Some((look, look_at(&mut overdue, 5, 5 + look * 10)?)));
        assert_eq!(found, Some((6, 60 * MS)));
    }

    #[test]
    fn a_thread_that_the_fair_server_keeps_waiting_is_not_past_its_time() {
        let mut overdue = Overdue::default();
        let found = (1..).find_map(|look| {
            Some((
                look,
                overdue.look(5 * MS, 5 * MS + look * 10 * MS, OVERDUE_NS + 50 * MS)?,
            ))
        });
        assert_eq!(found, Some((10, 100 * MS)));
    }

    #[test]
    fn no_regulator_is_blamed_when_the_machine_stood_still() {
        let mut overdue = Overdue::default();
        // 200 ms between two checks; then the thread continues, and is late again and again.
        for (until_ms, now_ms) in [
            (5, 3),
            (5, 203),
            (205, 213),
            (215, 223),
            (0, 233),
            (235, 243),
        ] {
            assert_eq!(look_at(&mut overdue, until_ms, now_ms), None);
        }
        for now_ms in [250, 260, 270, 280] {
            assert_eq!(look_at(&mut overdue, 235, now_ms), None);
        }
        assert_eq!(look_at(&mut overdue, 290, 285), None);
    }
}
