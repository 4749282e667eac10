// SPDX-License-Identifier: MIT OR Apache-2.0
//! The regulator in user space. It shares the module's policy (`policy/`), but needs no module.
//!
//! ```text
//! client  --socket-->  regulator: one real-time thread per core, policy/, perf counters
//!                          | child of, shared memory
//!                      supervisor: kills a regulator that hangs, restores the scheduler's settings
//! ```
//!
//! [`User`] is the client. Regulator and supervisor are processes of the same program, under a hidden verb.

pub(crate) mod clock;
pub(crate) mod core;
pub(crate) mod fault;
mod figures;
mod host;
pub(crate) mod launch;
pub(crate) mod places;
pub(crate) mod process;
mod record;
pub(crate) mod supervisor;
pub(crate) mod wire;

use std::io::{self, BufReader, ErrorKind};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ChildStdin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use memwarden_platform::{affinity, cpus};

use crate::budget::Request as Budgets;
use crate::event::{Meaning, meaning_of};
use crate::trace::Recording;
use crate::{
    BestEffort, CoreStatistics, Error, Recorder, Regulator, Resource, Settings, StartOptions,
};
use launch::launch;
use places::Places;
use wire::{Plan, Reply, Request, receive, send};

pub use supervisor::run as run_hidden_verb;

/// Above the core threads' priority, because the watchdogs must preempt them.
const WATCHDOG_PRIORITY: i32 = 99;

/// How long the client waits for an answer. A regulator that takes longer is stuck.
const ANSWER: Duration = Duration::from_secs(5);

/// How long the client waits for the end, which takes a period and some tens of milliseconds.
const END: Duration = Duration::from_secs(10);

/// A client of the regulator in user space.
#[derive(Debug, Clone)]
pub struct User {
    places: Places,
    program: PathBuf,
    tied: bool,
    /// A tied regulator runs until the last clone of this is dropped.
    lease: Option<Arc<ChildStdin>>,
}

impl User {
    /// A client of this machine's regulator. A regulator that it starts runs until it is stopped.
    #[must_use]
    pub fn new() -> Self {
        Self {
            places: Places::of_system(),
            program: "/proc/self/exe".into(),
            tied: false,
            lease: None,
        }
    }

    /// Like [`User::new`], but a regulator that it starts ends with this process, even if the process is killed.
    #[must_use]
    pub fn tied() -> Self {
        Self {
            tied: true,
            ..Self::new()
        }
    }

    fn ask(&self, request: &Request) -> Result<Reply, Error> {
        let stream = self.places.connect().map_err(|error| match error.kind() {
            ErrorKind::PermissionDenied => Error::NotRoot("the regulator's socket"),
            _ => self.not_running(),
        })?;
        let talk = |mut stream: UnixStream| -> io::Result<Option<Reply>> {
            stream.set_read_timeout(Some(ANSWER))?;
            send(&mut stream, request)?;
            receive(&mut BufReader::new(stream))
        };
        match talk(stream) {
            Ok(Some(Reply::Refused(why))) => Err(Error::BadInput(why)),
            Ok(Some(reply)) => Ok(reply),
            Ok(None) => Err(self.not_running()),
            // The regulator ended before it had answered.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
                ) =>
            {
                Err(self.not_running())
            }
            Err(error) => Err(Error::System(format!(
                "the regulator in user space does not answer: {error} (its log: {})",
                self.places.log().display()
            ))),
        }
    }

    fn order(&self, request: &Request) -> Result<(), Error> {
        self.ask(request).map(drop)
    }

    fn not_running(&self) -> Error {
        match self.places.why_ended() {
            Some(why) => Error::Regulator(format!(
                "no guard is running: {why} (its log: {}); `memwarden guard start` starts it again",
                self.places.log().display()
            )),
            None => Error::NotRunning,
        }
    }

    /// The options of a regulator for a command: without `cpus` it leaves out the CPUs that this process's cpuset forbids,
    /// since the command cannot run there either. A regulator that is not tied would not start.
    fn usable(&self, options: &StartOptions) -> Result<StartOptions, Error> {
        let mut options = options.clone();
        if self.tied && options.cpus.is_none() {
            let online = cpus::online().map_err(Error::platform)?;
            let usable = affinity::usable().map_err(Error::platform)?;
            let forbidden = |cpu: &usize| online.contains(*cpu) && !usable.contains(*cpu);
            if online.iter().any(|cpu| forbidden(&cpu)) {
                let present = cpus::present().map_err(Error::platform)?;
                options.cpus = Some(present.iter().filter(|cpu| !forbidden(cpu)).collect());
            }
        }
        Ok(options)
    }

    /// Waits until the supervisor has cleaned up.
    fn wait_for_end(&self) -> Result<(), Error> {
        let deadline = Instant::now() + END;
        while self.places.is_locked() {
            if Instant::now() > deadline {
                return Err(Error::System(format!(
                    "the regulator in user space does not end (its log: {})",
                    self.places.log().display()
                )));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Default for User {
    fn default() -> Self {
        Self::new()
    }
}

impl Regulator for User {
    fn name(&self) -> &'static str {
        "user"
    }

    fn foretell(&self, options: &StartOptions) -> Option<Meaning> {
        meaning_of(options).ok()
    }

    fn start(&mut self, options: &StartOptions) -> Result<(), Error> {
        if let Ok(settings) = self.settings() {
            return Err(Error::AlreadyRunning {
                event: settings.control.event,
                period_us: settings.control.period_us,
            });
        }
        // Refuses bad names and codes early. Only the regulator finds out what the machine counts. Until then, an event
        // that was not given may also count writes and stand for any number of bytes.
        let given = options.event.is_some();
        let named = StartOptions {
            combined: options.combined && (given || options.write_event.is_some()),
            bytes_per_event: options.bytes_per_event.or((!given).then_some(1)),
            ..options.clone()
        };
        crate::event::choose(&named, |_| false)?;
        self.places.create()?;
        let plan = Plan {
            options: self.usable(options)?,
            tied: self.tied,
            group: None,
        };
        let what = "the regulator in user space";
        let launched = launch(&self.program, &self.places, &plan, what, || {})
            // The supervisor has ended, too. A regulator that never regulated is not one that ended.
            .inspect_err(|_| self.places.forget_end())?;
        self.lease = launched.lease.map(Arc::new);
        Ok(())
    }

    fn is_running(&self) -> bool {
        self.places.connect().is_ok()
    }

    fn instance(&self) -> Option<String> {
        // The socket alone proves nothing: a killed regulator leaves it behind.
        Some(if self.is_running() {
            self.places.instance()
        } else {
            String::new()
        })
    }

    fn settings(&self) -> Result<Settings, Error> {
        match self.ask(&Request::Settings)? {
            Reply::Settings(settings) => Ok(*settings),
            _ => Err(unexpected()),
        }
    }

    fn set_budgets(&mut self, resource: Resource, request: &Budgets) -> Result<(), Error> {
        self.order(&Request::Budgets {
            resource,
            request: request.clone(),
        })
    }

    fn set_mode(
        &mut self,
        best_effort: Option<BestEffort>,
        reclaim: Option<bool>,
    ) -> Result<(), Error> {
        self.order(&Request::Mode {
            best_effort,
            reclaim,
        })
    }

    fn set_maxbw(&mut self, maxbw_mib_s: u64) -> Result<(), Error> {
        self.order(&Request::Maxbw(maxbw_mib_s))
    }

    fn set_period(&mut self, period_us: u64) -> Result<(), Error> {
        self.order(&Request::Period(period_us))
    }

    fn set_rt(&mut self, cpu: usize, rt: bool) -> Result<(), Error> {
        self.order(&Request::Rt { cpu, rt })
    }

    fn statistics(&self) -> Result<Vec<CoreStatistics>, Error> {
        match self.ask(&Request::Statistics)? {
            Reply::Statistics(statistics) => Ok(statistics),
            _ => Err(unexpected()),
        }
    }

    fn reset_statistics(&mut self) -> Result<(), Error> {
        self.order(&Request::Reset)
    }

    fn record(&self, periods: u64) -> Result<Box<dyn Recorder>, Error> {
        let recorder = UserRecorder {
            user: self.clone(),
            periods,
        };
        recorder.restart()?;
        Ok(Box::new(recorder))
    }

    fn stop(&mut self) -> Result<(), Error> {
        let outcome = self.order(&Request::Stop);
        self.lease = None;
        self.wait_for_end()?;
        // If the regulator was killed together with its supervisor, this setting is still changed.
        let left = self.places.restore_rt_throttling()?;
        match outcome {
            Err(Error::NotRunning) if left => Ok(()),
            outcome => outcome,
        }
    }
}

/// A recording that the regulator keeps for this client.
struct UserRecorder {
    user: User,
    periods: u64,
}

impl Recorder for UserRecorder {
    fn restart(&self) -> Result<(), Error> {
        self.user.order(&Request::Record {
            periods: self.periods,
        })
    }

    fn stop(&self) -> Result<Recording, Error> {
        match self.user.ask(&Request::Recording)? {
            Reply::Recording(mut recording) => {
                recording
                    .events
                    .sort_by_key(|event| (event.cpu, event.t_ns));
                Ok(recording)
            }
            _ => Err(unexpected()),
        }
    }
}

impl Drop for UserRecorder {
    fn drop(&mut self) {
        let _ = self.user.ask(&Request::Recording);
    }
}

fn unexpected() -> Error {
    Error::System("the regulator in user space sent an unexpected reply".into())
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    #[test]
    fn a_regulator_that_dies_before_it_answers_is_not_running() {
        let folder = tempfile::tempdir().unwrap();
        let user = User {
            places: Places::below(folder.path().join("run")),
            ..User::new()
        };
        user.places.create().unwrap();
        let listener = user.places.listen().unwrap();
        let dies = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            // Close the connection with the request unread: the client gets a reset.
            poll(&mut [PollFd::new(&stream, PollFlags::IN)], None).unwrap();
        });
        assert!(matches!(user.settings(), Err(Error::NotRunning)));
        dies.join().unwrap();
    }
}
