// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden mymem`: the memory devices, in C and in Rust, and what a counter in their memory comes to.

mod counter;
mod throughput;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use memwarden_experiments::mymem::Subject;
use memwarden_run::{Existing, Summary};

use super::interfere::Target;

/// Measure the memory devices: transfers of all sizes, and counters that several workers increment
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Throughput(throughput::Args),
    Counter(counter::Args),
}

/// Carries out `memwarden mymem ...`.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.verb {
        Verb::Throughput(args) => throughput::run(&args),
        Verb::Counter(args) => counter::run(&args),
    }
}

/// What both take.
#[derive(clap::Args)]
struct Common {
    /// A device's path, or in-kernel (repeatable) [default: /dev/mymem, /dev/mymem_rust and in-kernel, those that are
    /// there]
    #[arg(long, value_name = "PATH|in-kernel")]
    device: Vec<Subject>,
    /// Where: native (this machine) or lab (an emulated one)
    #[arg(long, value_enum, default_value = "native")]
    on: Target,
    #[cfg(feature = "host")]
    #[command(flatten)]
    machine: super::on_lab::MachineArgs,
    /// Settings from a TOML file; options given here come before it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the settings as TOML and do nothing else
    #[arg(long)]
    print_config: bool,
    /// The run folder [default: out/mymem-EXPERIMENT-TIME]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Replace the run folder if it is there
    #[arg(long)]
    replace: bool,
    /// Print the summary as JSON instead of tables
    #[arg(long)]
    json: bool,
}

impl Common {
    fn existing(&self) -> Existing {
        Existing::replace_if(self.replace)
    }

    /// What is said of the emulated machine must not be meant for this one.
    fn check(&self) -> anyhow::Result<()> {
        #[cfg(feature = "host")]
        if let (Target::Native, Some(option)) = (self.on, self.machine.given()) {
            anyhow::bail!("{option}: this chooses the lab's machine; add --on lab");
        }
        Ok(())
    }

    /// The same on the emulated machine. `turns` is whether its CPUs must take turns often.
    #[cfg(feature = "host")]
    fn on_lab(
        &self,
        verb: &str,
        arguments: Vec<String>,
        turns: bool,
    ) -> anyhow::Result<(PathBuf, Summary)> {
        use super::on_lab;

        let mut command = ["memwarden", "mymem", verb].map(str::to_owned).to_vec();
        command.extend(arguments);
        let mut machine = self.machine.machine()?;
        if !turns {
            machine.tick_us = 0;
        }
        let mut home = on_lab::run(&machine, command)?;
        for note in memwarden_report::notes::of_lab(&home.recorded.run.experiment) {
            home.recorded.summary.note(*note);
        }
        let folder = home.keep(self.out.as_deref(), self.existing())?;
        Ok((folder, home.recorded.summary))
    }

    #[cfg(not(feature = "host"))]
    fn on_lab(&self, _: &str, _: Vec<String>, _: bool) -> anyhow::Result<(PathBuf, Summary)> {
        anyhow::bail!("--on lab: this memwarden was built without the lab (feature `host`)")
    }

    fn out(&self) -> Option<&Path> {
        self.out.as_deref()
    }
}
