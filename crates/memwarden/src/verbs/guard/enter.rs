// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden guard enter`, a hidden verb: moves this process to its cores and into its group, then executes the
//! command in its place. The command and all its children are thus regulated from their first instruction.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use memwarden_platform::affinity;
use memwarden_platform::cpus::CpuSet;
use memwarden_platform::process::this_program;

use super::Run;
use crate::verbs::foreign::NotStarted;

/// Where a command runs.
#[derive(Default, clap::Args)]
pub(super) struct Place {
    #[arg(long)]
    cpus: Option<CpuSet>,
    /// The group's directory
    #[arg(long)]
    cgroup: Option<PathBuf>,
}

#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    place: Place,
    #[arg(required = true, last = true)]
    command: Vec<OsString>,
}

impl Place {
    pub(super) fn of(run: &Run, cgroup: Option<&Path>) -> Self {
        Self {
            cpus: run.cpus.clone(),
            cgroup: cgroup.map(Path::to_owned),
        }
    }

    /// True if no placement was requested.
    pub(super) fn is_anywhere(&self) -> bool {
        self.cpus.is_none() && self.cgroup.is_none()
    }

    /// The command line of this program that executes `command` in its place.
    pub(super) fn command(&self, command: &[OsString]) -> Command {
        let mut enter = this_program();
        enter.args(["guard", "enter"]);
        if let Some(cpus) = &self.cpus {
            enter.args(["--cpus", &cpus.to_string()]);
        }
        if let Some(cgroup) = &self.cgroup {
            enter.arg("--cgroup").arg(cgroup);
        }
        enter.arg("--").args(command);
        enter
    }
}

/// Returns only on an error.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(cpus) = &args.place.cpus {
        affinity::set(cpus.clone())?;
    }
    if let Some(cgroup) = &args.place.cgroup {
        let processes = cgroup.join("cgroup.procs");
        std::fs::write(&processes, "0").with_context(|| {
            format!(
                "moving the command into {} (a group that is threaded, or that delegates controllers, accepts no \
                 processes)",
                cgroup.display()
            )
        })?;
    }
    let Some((program, arguments)) = args.command.split_first() else {
        bail!("no command");
    };
    let error = Command::new(program).args(arguments).exec();
    Err(NotStarted::of(program)(error).into())
}
