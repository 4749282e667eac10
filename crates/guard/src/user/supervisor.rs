// SPDX-License-Identifier: MIT OR Apache-2.0
//! The regulator's parent: whatever becomes of the regulator, cores are free again within 100 ms and the scheduler's
//! settings are what they were.
//!
//! It is small, so that it can be trusted: it starts the regulator, looks at it every 10 ms at the highest real-time
//! priority, kills it when a core's thread runs past its time or the process was stopped, and cleans up. A regulator
//! whose supervisor dies ends itself ([`super::host`]); if both are killed at once, no core is held either, and the
//! next start or stop puts the settings back.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use memwarden_platform::clock::monotonic_ns;
use memwarden_platform::cpus;
use memwarden_platform::sched;
use memwarden_platform::shared::{SharedWords, inherited};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::places::Places;
use super::wire::Plan;
use super::{WATCHDOG_PRIORITY, host};
use crate::Error;

/// How often it looks.
const LOOK: Duration = Duration::from_millis(10);

/// In so many looks one after another a core's thread may be found past its time, and still at the same. With the time
/// to kill this stays below 100 ms. Looks are counted and not milliseconds: where the whole machine stood still (a
/// virtual one does), nobody is to blame.
const OVERDUE_LOOKS: u32 = 5;

/// Looks at the lock before another regulator is believed to hold it.
const LOCK_TRIES: u32 = 20;

/// What standard output is told when the regulator runs.
pub(super) const READY: &str = "ready";

/// Carries out `memwarden guard user-regulator PLAN [FD]`: the supervisor, or with the shared words' descriptor its
/// child.
///
/// Prints [`READY`] once cores are regulated, or one line that says why they can't be.
pub fn run(arguments: &[String]) -> Result<(), Error> {
    let bad =
        || Error::BadInput("user-regulator is started by `memwarden guard start` alone".into());
    let (plan, rest) = arguments.split_first().ok_or_else(bad)?;
    let decoded: Plan = serde_json::from_str(plan).map_err(|_| bad())?;
    let places = Places::of_system();
    let outcome = match rest {
        [] => supervise(plan, &decoded, &places),
        [fd] => {
            let words = inherited(fd.parse().map_err(|_| bad())?).map_err(Error::platform)?;
            host::run(&decoded, &places, words, || tell(READY))
        }
        _ => return Err(bad()),
    };
    if let Err(error) = &outcome {
        tell(&error.to_string());
    }
    outcome
}

/// To whoever started us, if they still listen.
fn tell(line: &str) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn supervise(plan: &str, decoded: &Plan, places: &Places) -> Result<(), Error> {
    // A session of its own: what becomes of the terminal is no matter.
    let _ = rustix::process::setsid();
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(|error| Error::System(format!("catch signal {signal}: {error}")))?;
    }
    places.create()?;
    // A client that looks whether somebody holds the lock has it for a moment.
    let mut lock = places.lock()?;
    for _ in 0..LOCK_TRIES {
        if lock.is_none() {
            thread::sleep(LOOK);
            lock = places.lock()?;
        }
    }
    let Some(_lock) = lock else {
        return Err(Error::System(format!(
            "another regulator in user space holds {}",
            places.folder().join("guard.lock").display()
        )));
    };
    places.begin()?;
    sched::set_fifo(WATCHDOG_PRIORITY).map_err(Error::platform)?;
    sched::lock_memory().map_err(Error::platform)?;
    let cores = cpus::present().map_err(Error::platform)?.len();
    let words = SharedWords::create(cores + 1).map_err(Error::platform)?;
    words.inherit().map_err(Error::platform)?;
    words[cores].store(monotonic_ns(), Ordering::Release);
    places.release_rt_throttling()?;

    let outcome = start(plan, &words).and_then(|mut child| {
        let outcome = watch(&mut child, &words, decoded.tied, &stop);
        // It may be in any state: what isn't dead by now must be.
        let _ = child.kill();
        let _ = child.wait();
        outcome
    });
    let restored = places.restore_rt_throttling();
    places.end(outcome.as_ref().err().map(ToString::to_string).as_deref());
    restored?;
    outcome
}

fn start(plan: &str, words: &SharedWords) -> Result<Child, Error> {
    let program = "/proc/self/exe";
    Command::new(program)
        .args(["guard", "user-regulator", plan])
        .arg(words.as_fd().as_raw_fd().to_string())
        .stdin(Stdio::null())
        .spawn()
        .map_err(Error::file("starting", program))
}

/// Until the regulator has ended, or has to be.
fn watch(
    child: &mut Child,
    words: &SharedWords,
    tied: bool,
    stop: &AtomicBool,
) -> Result<(), Error> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| Error::System("the regulator has no process number".into()))?;
    let (beat, cores) = words.split_last().expect("one word more than cores");
    let mut asked = false;
    let mut overdue = vec![Overdue::default(); cores.len()];
    loop {
        thread::sleep(LOOK);
        let now_ns = monotonic_ns();
        beat.store(now_ns, Ordering::Release);
        let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
        if let Ok(Some((_, status))) = waitpid(Some(pid), options) {
            if status.stopped() {
                return Err(Error::Regulator(
                    "the regulator was stopped (SIGSTOP or a debugger), and so ended".into(),
                ));
            }
            return match (status.exit_status(), status.terminating_signal()) {
                (Some(0), _) => Ok(()),
                (_, Some(signal)) if !asked => Err(Error::Regulator(format!(
                    "the regulator was killed by signal {signal}"
                ))),
                (_, Some(_)) => Ok(()),
                // It has said why.
                _ => Err(Error::Regulator(
                    "the regulator failed; its log says why".into(),
                )),
            };
        }
        for (index, (word, overdue)) in cores.iter().zip(&mut overdue).enumerate() {
            if let Some(past_ns) = overdue.look(word.load(Ordering::Acquire), now_ns) {
                return Err(Error::Regulator(format!(
                    "the thread of core {index} ran {} ms past its time, and the regulator was killed",
                    past_ns / 1_000_000
                )));
            }
        }
        if !asked && (stop.load(Ordering::Acquire) || (tied && hung_up())) {
            asked = true;
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

/// A core's thread that is past its time.
#[derive(Debug, Clone, Copy, Default)]
struct Overdue {
    until_ns: u64,
    looks: u32,
}

impl Overdue {
    /// `until_ns`: until when the thread means to run, 0 while it sleeps. How far past that it is, once it was found so
    /// too often.
    fn look(&mut self, until_ns: u64, now_ns: u64) -> Option<u64> {
        if until_ns == 0 || now_ns <= until_ns {
            *self = Self::default();
            return None;
        }
        if until_ns != self.until_ns {
            *self = Self { until_ns, looks: 0 };
        }
        self.looks += 1;
        (self.looks > OVERDUE_LOOKS).then(|| now_ns - until_ns)
    }
}

/// Whoever held the other end of standard input is gone.
fn hung_up() -> bool {
    let input = io::stdin();
    let mut end = [PollFd::new(&input, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut end, Some(&now)).is_ok_and(|_| {
        end[0]
            .revents()
            .intersects(PollFlags::HUP | PollFlags::IN | PollFlags::ERR)
    })
}

/// The log that a supervisor writes to.
pub(super) fn open_log(places: &Places) -> Result<File, Error> {
    let path = places.log();
    File::options()
        .create(true)
        .append(true)
        .open(&path)
        .map_err(Error::file("opening", &path))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_thread_that_stays_past_its_time_is_found_within_six_looks() {
        let mut overdue = Overdue::default();
        let found =
            (1..).find_map(|look| Some((look, overdue.look(5 * MS, 5 * MS + look * 10 * MS)?)));
        assert_eq!(found, Some((6, 60 * MS)));
    }

    #[test]
    fn a_machine_that_stood_still_blames_nobody() {
        let mut overdue = Overdue::default();
        // 200 ms between two looks; then the thread goes on, and is late again and again.
        for (until_ms, now_ms) in [
            (5, 3),
            (5, 203),
            (205, 213),
            (215, 223),
            (0, 233),
            (235, 243),
        ] {
            assert_eq!(overdue.look(until_ms * MS, now_ms * MS), None);
        }
        for now_ms in [250, 260, 270, 280] {
            assert_eq!(overdue.look(235 * MS, now_ms * MS), None);
        }
        assert_eq!(overdue.look(290 * MS, 285 * MS), None);
    }
}
