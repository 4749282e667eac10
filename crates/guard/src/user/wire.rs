// SPDX-License-Identifier: MIT OR Apache-2.0
//! The protocol between clients and the regulator: one line of JSON in each direction, over a Unix socket.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::Command;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::budget::Request as Budgets;
use crate::group::GroupPlan;
use crate::trace::Recording;
use crate::{BestEffort, CoreStatistics, Error, Resource, Settings, StartOptions};

/// Longest line that is read: a recording of a hundred cores.
const LONGEST: u64 = 1 << 30;

/// What the regulator is started with.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub options: StartOptions,
    /// The supervisor ends when standard input is closed, that is, when the process at the pipe's other end has ended.
    pub tied: bool,
    /// Regulates a control group instead of cores.
    #[serde(default)]
    pub group: Option<GroupPlan>,
}

/// The variable with the plan in a supervisor's or regulator's environment. Its arguments are for readers of `ps`.
const PLAN: &str = "MEMWARDEN_PLAN";

impl Plan {
    /// Makes `command` the one that carries out this plan in a role, `supervisor` or `regulator`.
    pub(super) fn give(&self, command: &mut Command, role: &str) -> Result<(), Error> {
        let plan = serde_json::to_string(self).map_err(|error| Error::System(error.to_string()))?;
        let regulated = match (&self.group, &self.options.cpus) {
            (Some(group), _) => format!("the group {}", group.path.display()),
            (None, Some(cpus)) => format!("CPUs {cpus}"),
            (None, None) => "all CPUs".to_owned(),
        };
        command
            .args(["guard", "user-regulator", role, "of", &regulated])
            .env(PLAN, plan);
        Ok(())
    }

    /// The plan that this process was given; none if it was started in another way.
    pub(super) fn given() -> Option<Self> {
        serde_json::from_str(&std::env::var(PLAN).ok()?).ok()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Request {
    Settings,
    Statistics,
    Budgets {
        resource: Resource,
        request: Budgets,
    },
    Mode {
        best_effort: Option<BestEffort>,
        reclaim: Option<bool>,
    },
    Maxbw(u64),
    Period(u64),
    Rt {
        cpu: usize,
        rt: bool,
    },
    Reset,
    /// Starts a recording, or restarts it, with room for this many periods of each core.
    Record {
        periods: u64,
    },
    /// Ends the recording and requests its events.
    Recording,
    Stop,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Reply {
    Done,
    Settings(Box<Settings>),
    Statistics(Vec<CoreStatistics>),
    Recording(Recording),
    /// The reason for a refusal.
    Refused(String),
}

/// Writes one line.
pub(super) fn send<T: Serialize>(to: &mut impl Write, message: &T) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line)
}

/// Reads one line; `None` at the end of the stream.
pub(super) fn receive<T: DeserializeOwned>(
    from: &mut BufReader<impl Read>,
) -> io::Result<Option<T>> {
    let mut line = String::new();
    if from.take(LONGEST).read_line(&mut line)? == 0 {
        return Ok(None);
    }
    Ok(Some(serde_json::from_str(&line)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Unit;
    use proptest::prelude::*;

    #[test]
    fn what_is_sent_is_received() {
        let requests = [
            Request::Settings,
            Request::Budgets {
                resource: Resource::Write,
                request: Budgets::parse(Unit::Mb, "1000,max").unwrap(),
            },
            Request::Mode {
                best_effort: Some(BestEffort::Spare),
                reclaim: None,
            },
            Request::Rt { cpu: 3, rt: true },
            Request::Stop,
        ];
        let mut bytes = Vec::new();
        for request in &requests {
            send(&mut bytes, request).unwrap();
        }
        let mut reader = BufReader::new(bytes.as_slice());
        for request in requests {
            assert_eq!(receive::<Request>(&mut reader).unwrap(), Some(request));
        }
        assert_eq!(receive::<Request>(&mut reader).unwrap(), None);
    }

    proptest! {
        #[test]
        fn garbage_is_an_error_and_no_panic(bytes in prop::collection::vec(any::<u8>(), 1..200)) {
            let _ = receive::<Request>(&mut BufReader::new(bytes.as_slice()));
            let _ = receive::<Reply>(&mut BufReader::new(bytes.as_slice()));
        }
    }
}
