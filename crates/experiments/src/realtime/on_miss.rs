// SPDX-License-Identifier: MIT OR Apache-2.0
//! `--on-miss`: runs a command at the first deadline miss of a case, outside the task's own time.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use memwarden_run::studies::realtime::OnMiss as Told;
use serde::Deserialize;

use crate::group::Group;
use crate::{Error, Interrupt};

/// Time in which the command must end after its case; then it is ended with all its descendants.
const END_WITHIN: Duration = Duration::from_secs(60);

/// What the task prints at its first miss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
struct Miss {
    job: u64,
    late_ns: u64,
}

#[derive(Deserialize)]
struct Line {
    miss: Miss,
}

/// The command of one case.
#[derive(Debug)]
pub(super) struct OnMiss<'a> {
    command: &'a str,
    case: &'a str,
    deadline: Duration,
    started: Option<Result<(Miss, Group), Error>>,
}

impl<'a> OnMiss<'a> {
    /// An empty `command` means none.
    pub fn new(command: &'a str, case: &'a str, deadline: Duration) -> Self {
        Self {
            command,
            case,
            deadline,
            started: None,
        }
    }

    /// Takes a line that the task printed; the first one that reports a miss starts the command.
    pub fn hear(&mut self, line: &str) {
        if self.command.is_empty() || self.started.is_some() {
            return;
        }
        if let Ok(Line { miss }) = serde_json::from_str(line) {
            self.started = Some(self.start(miss).map(|group| (miss, group)));
        }
    }

    fn start(&self, miss: Miss) -> Result<Group, Error> {
        let mut command = Command::new("sh");
        command
            .args(["-c", self.command])
            .env("MEMWARDEN_CASE", self.case)
            .env("MEMWARDEN_JOB", miss.job.to_string())
            .env("MEMWARDEN_LATE_NS", miss.late_ns.to_string())
            .env(
                "MEMWARDEN_DEADLINE_NS",
                self.deadline.as_nanos().to_string(),
            )
            .stdin(Stdio::null())
            // Standard output belongs to the experiment.
            .stdout(std::io::stderr());
        Group::start(command, self.command)
    }

    /// Waits for the command; returns the miss that started it and how it ended, or `None` if there was no miss.
    ///
    /// # Errors
    /// When the command could not be started, or the run is interrupted.
    pub fn finish(self, interrupt: &Interrupt) -> Result<Option<Told>, Error> {
        let Some(started) = self.started else {
            return Ok(None);
        };
        let (miss, mut group) = started?;
        let begin = Instant::now();
        let status = loop {
            interrupt.check()?;
            match group.ended()? {
                Some(status) => break Some(status),
                None if begin.elapsed() > END_WITHIN => break None,
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        Ok(Some(Told {
            job: miss.job,
            late_ns: miss.late_ns,
            exit_code: status.and_then(|status| status.code()),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_miss_and_no_other_runs_the_command() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("told");
        let command = format!(
            "echo $MEMWARDEN_CASE $MEMWARDEN_JOB $MEMWARDEN_LATE_NS $MEMWARDEN_DEADLINE_NS >>{}; exit 5",
            file.display()
        );
        let mut on_miss = OnMiss::new(&command, "screen", Duration::from_millis(13));
        for line in [
            "",
            "{\"progress\":1}",
            "{\"miss\":{\"job\":7,\"late_ns\":1500}}",
            "{\"miss\":{\"job\":9,\"late_ns\":1}}",
        ] {
            on_miss.hear(line);
        }
        let told = on_miss.finish(&Interrupt::default()).unwrap();
        assert_eq!(
            told,
            Some(Told {
                job: 7,
                late_ns: 1500,
                exit_code: Some(5)
            })
        );
        let text = std::fs::read_to_string(file).unwrap();
        assert_eq!(text, "screen 7 1500 13000000\n");
    }

    #[test]
    fn without_a_command_or_a_miss_nothing_runs() {
        let mut none = OnMiss::new("", "screen", Duration::ZERO);
        none.hear("{\"miss\":{\"job\":7,\"late_ns\":1500}}");
        assert_eq!(none.finish(&Interrupt::default()).unwrap(), None);
        let unneeded = OnMiss::new("false", "screen", Duration::ZERO);
        assert_eq!(unneeded.finish(&Interrupt::default()).unwrap(), None);
    }
}
