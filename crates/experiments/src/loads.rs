// SPDX-License-Identifier: MIT OR Apache-2.0
//! Workloads on the cores of a simulated machine, in the form of the command line: WORKLOAD@CORES.

use std::fmt;
use std::str::FromStr;

use memwarden_platform::as_text;
use memwarden_platform::cpus::CpuSet;
use memwarden_sim::Platform;

use crate::Error;

/// A workload with its cores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadSpec {
    workload: String,
    cores: CpuSet,
}

impl fmt::Display for LoadSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.workload, self.cores)
    }
}

as_text!(LoadSpec);

impl FromStr for LoadSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (workload, cores) = text
            .rsplit_once('@')
            .ok_or("give WORKLOAD@CORES, such as bandwidth:write@1-3")?;
        let workload = match workload {
            "screen" => "bandwidth:screen",
            other => other,
        };
        Ok(Self {
            workload: workload.into(),
            cores: cores
                .parse()
                .map_err(|error| format!("cores `{cores}`: {error}"))?,
        })
    }
}

/// The workload of each core that has one. `taken` is a core with other work; `option` is the option that errors name.
///
/// # Errors
/// When a workload is not modelled, no core is named, or a core is busy or not on the platform.
pub fn spread(
    option: &str,
    loads: &[LoadSpec],
    platform: &Platform,
    bytes: u64,
    taken: Option<usize>,
) -> Result<Vec<(String, usize)>, Error> {
    let bad = |why: String| Err(Error::BadInput(format!("{option}: {why}")));
    let last = platform.machine.cores - 1;
    let mut all: Vec<(String, usize)> = Vec::new();
    for load in loads {
        platform
            .workload(&load.workload, bytes, 0)
            .map_err(|error| Error::BadInput(format!("{option}: {}", error.with_causes())))?;
        for core in load.cores.iter() {
            if core > last {
                return bad(format!(
                    "core {core} is not one of {}'s 0-{last}",
                    platform.name
                ));
            }
            if taken == Some(core) || all.iter().any(|(_, other)| *other == core) {
                return bad(format!("core {core} already has a workload"));
            }
            all.push((load.workload.clone(), core));
        }
    }
    if all.is_empty() {
        return bad("name a core, as in bandwidth:write@1-3".into());
    }
    Ok(all)
}
