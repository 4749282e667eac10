// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts a supervisor, and ties it to its client where that is asked for.
//!
//! A tied supervisor learns of its client's end in two ways. It holds one end of a pipe, the lease, which is closed
//! when the client has ended. But a killed process ends only when it has run once more, and on a throttled core an
//! ordinary one waits for that until the period is over. So the supervisor is started by a thread of the highest
//! real-time priority, whose end waits for nobody, and is sent a signal by it (`PR_SET_PDEATHSIG`: the parent that it
//! means is the thread, prctl(2)).

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

/// A supervisor whose regulator runs.
pub(crate) struct Launched {
    /// A tied one ends when this is dropped.
    pub lease: Option<ChildStdin>,
    /// What supervisor and regulator say from here on; it ends when both are gone.
    pub said: Option<Lines<BufReader<ChildStdout>>>,
}

/// Starts `program` as the supervisor and waits until its regulator runs, or not. `what` is what an error calls it;
/// `after` is called when the supervisor is gone.
///
/// # Errors
/// When it can't be started, or says why it can't regulate.
pub(crate) fn launch(
    program: &Path,
    places: &Places,
    plan: &Plan,
    what: &str,
    after: impl FnOnce() + Send + 'static,
) -> Result<Launched, Error> {
    let tied = plan.tied;
    let plan = serde_json::to_string(plan).map_err(|error| Error::System(error.to_string()))?;
    let mut command = Command::new(program);
    command
        .arg0(TITLE)
        .args(["guard", "user-regulator", &plan])
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
            // Where this is refused, the supervisor is refused it too, and says so.
            let _ = sched::set_fifo(WATCHDOG_PRIORITY);
        }
        let _ = tell.send(Ok((supervisor.stdin.take(), supervisor.stdout.take())));
        wait(&mut supervisor, tied);
        after();
    };
    let thread = spawn("lease", body)?;
    let (lease, out) = told
        .recv()
        .map_err(|_| Error::System("start a supervisor".into()))?
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

/// Until it is gone. A tied one that is stopped looks after nobody: it is killed, and its regulator ends.
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
