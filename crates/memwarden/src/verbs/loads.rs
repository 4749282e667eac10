// SPDX-License-Identifier: MIT OR Apache-2.0
//! Workloads on the cores of a simulated machine, as they are typed: WORKLOAD@CORES.

use std::str::FromStr;

use anyhow::{Context, bail};
use memwarden_platform::cpus::CpuSet;
use memwarden_sim::Platform;

/// A load as it is typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadSpec {
    workload: String,
    cores: CpuSet,
}

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

/// Each core that has something to do, with the workload's name. `taken` is a core that
/// does something else; `option` is what errors name.
pub fn spread(
    option: &str,
    loads: &[LoadSpec],
    platform: &Platform,
    bytes: u64,
    taken: Option<usize>,
) -> anyhow::Result<Vec<(String, usize)>> {
    let last = platform.machine.cores - 1;
    let mut all: Vec<(String, usize)> = Vec::new();
    for load in loads {
        platform
            .workload(&load.workload, bytes, 0)
            .with_context(|| option.to_owned())?;
        for core in load.cores.iter() {
            if core > last {
                bail!(
                    "{option}: core {core} is not one of {}'s 0-{last}",
                    platform.name
                );
            }
            if taken == Some(core) || all.iter().any(|(_, other)| *other == core) {
                bail!("{option}: core {core} has something else to do already");
            }
            all.push((load.workload.clone(), core));
        }
    }
    if all.is_empty() {
        bail!("{option}: name a core, as in bandwidth:write@1-3");
    }
    Ok(all)
}
