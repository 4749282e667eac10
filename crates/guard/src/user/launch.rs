// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts a supervisor, and ties it to its client if requested.
//!
//! A tied supervisor detects its client's end in two ways. It holds one end of a pipe, the lease, which closes when the
//! client ends. But a killed process must run once more before it ends, and on a throttled core an ordinary process
//! cannot run until the period is over. Therefore a thread with the highest real-time priority starts the supervisor.
//! This thread ends without delay, and the kernel then signals the supervisor (`PR_SET_PDEATHSIG`: the parent in its
//! sense is the thread, prctl(2)).

use std::io::{BufRead, BufReader, Lines};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc;

use memwarden_platform::{process::TITLE, sched};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, WaitOptions, waitpid};

use super::WATCHDOG_PRIORITY;
use super::places::Places;
use super::process::spawn;
use super::supervisor::{READY, open_log};
use super::wire::Plan;
use crate::Error;

/// A supervisor whose regulator is running.
pub(crate) struct Launched {
    /// A tied supervisor ends when this is dropped.
    pub lease: Option<ChildStdin>,
    /// Further output lines of the supervisor and the regulator; they end when both processes have ended.
    pub said: Option<Lines<BufReader<ChildStdout>>>,
}

/// Starts `program` as the supervisor and waits until its regulator runs or fails. `what` is its name in errors;
/// `after` is called when the supervisor has ended.
///
/// # Errors
/// When the supervisor cannot be started, or reports why it cannot regulate.
pub(crate) fn launch(
    program: &Path,
    places: &Places,
    plan: &Plan,
    what: &str,
    after: impl FnOnce() + Send + 'static,
) -> Result<Launched, Error> {
    let tied = plan.tied;
    let mut command = Command::new(program);
    command.arg0(TITLE);
    plan.give(&mut command, "supervisor")?;
    command
        .stdin(if tied { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(open_log(places)?)
        .current_dir("/");
    let (tell, told) = mpsc::channel();
    let body = move || {
        let mut supervisor = match command.spawn() {
            Ok(supervisor) => supervisor,
            Err(error) => {
                let _ = tell.send(Err(error));
                return;
            }
        };
        if tied {
            // The supervisor requests the same priority, and reports a refusal.
            let _ = sched::set_fifo(WATCHDOG_PRIORITY);
        }
        let _ = tell.send(Ok((supervisor.stdin.take(), supervisor.stdout.take())));
        wait(&mut supervisor, tied);
        after();
    };
    let thread = spawn("lease", body)?;
    let (lease, out) = told
        .recv()
        .map_err(|_| Error::System("cannot start the supervisor".into()))?
        .map_err(Error::file("starting", program))?;
    let mut said = out.map(|out| BufReader::new(out).lines());
    let first = said.as_mut().and_then(|lines| lines.next()?.ok());
    match first.as_deref() {
        Some(READY) => return Ok(Launched { lease, said }),
        Some(why) => Err(Error::Regulator(format!("{what} did not start: {why}"))),
        None => Err(Error::Regulator(format!(
            "{what} did not start (its log: {})",
            places.log().display()
        ))),
    }
    .inspect_err(|_| {
        drop(lease);
        let _ = thread.join();
    })
}

/// Waits until the supervisor has ended. A tied supervisor that is stopped (SIGSTOP) cannot watch its regulator, so it
/// is killed; the regulator then ends.
fn wait(supervisor: &mut Child, tied: bool) {
    let pid = Pid::from_child(supervisor);
    let options = if tied {
        WaitOptions::UNTRACED
    } else {
        WaitOptions::empty()
    };
    while let Ok(Some((_, status))) = retry_on_intr(|| waitpid(Some(pid), options)) {
        if !status.stopped() {
            return;
        }
        let _ = supervisor.kill();
    }
}
