// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden trace copies`: traces copies between user and kernel memory.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::NonEmptyStringValueParser;
use memwarden_experiments::copy::trace::{self, Beside, Config, Function};
use memwarden_experiments::{Error, Interrupt, RunRequest};
use memwarden_platform::units::{Time, parse_seconds};
use memwarden_run::studies::copy_trace::Summary;
use serde::Serialize;

use super::command::Command;
use super::live::Screen;
use crate::verbs::experiment::{OnMachine, on};
use crate::verbs::foreign;

/// Record size, latency and caller of every copy between user and kernel memory
#[derive(clap::Args, Serialize)]
#[command(
    after_help = "from and to are copy_from_user() and copy_to_user(), __from and __to their forms with two underscores.\n\
    The whole machine is traced, not only the command. Without a command the trace lasts until --for has passed or Ctrl-C;\n\
    both leave a complete run. The exit code is the command's. On a kernel without the hooks, the notes say which copies\n\
    the trace cannot see. If the module copytrace is missing, it is loaded, and unloaded afterwards.\n\
    Examples:\n  memwarden trace copies --for 100s\n  \
    memwarden trace copies -- tar cf /dev/null /etc\n  \
    memwarden trace copies --ops from,to --dat --out out/copies\n  \
    memwarden trace copies --on lab --for 2s"
)]
pub(super) struct Args {
    /// from, to, __from, __to [default: all four]
    #[arg(long, value_name = "OPERATION,...", value_delimiter = ',')]
    ops: Option<Vec<Function>>,
    /// Duration: seconds, or with a unit (5m) [default: until the command ends, or Ctrl-C; lab: 1s]
    #[arg(long = "for", value_name = "TIME", value_parser = parse_seconds)]
    #[serde(rename = "for")]
    time: Option<Time>,
    /// Longest interval between two reads of the records [default: 100ms]
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    every: Option<Time>,
    /// Also write a line for each record to mem_trace_from.dat and the like, in the run folder
    #[arg(long)]
    #[serde(serialize_with = "on")]
    dat: bool,
    /// The directory of the devices; null generates records, to try the command [default: /dev/copytrace]
    #[arg(long, value_name = "PATH|null", value_parser = NonEmptyStringValueParser::new())]
    device: Option<String>,
    #[command(flatten)]
    #[serde(skip)]
    on: OnMachine,
    /// Trace while this command runs, with its arguments
    #[arg(last = true, value_name = "COMMAND")]
    #[serde(skip)]
    command: Vec<OsString>,
}

impl Args {
    fn settings(&self) -> anyhow::Result<Config> {
        self.on.settings(self, |config: &mut Config| {
            if !self.command.is_empty() {
                // The command ends the trace, even if the file has a time.
                config.time = self.time;
                config.command.clone_from(&self.command);
            }
            if self.on.place.on.is_lab() && config.command.is_empty() {
                config.time.get_or_insert(trace::LAB_TIME);
            }
        })
    }

    fn here(&self, config: &Config, request: RunRequest) -> Result<(PathBuf, Summary), Error> {
        let mut command = Command::new(&config.command, self.on.place.json, request.interrupt);
        command.check()?;
        let beside: Option<&mut dyn Beside> = if config.command.is_empty() {
            None
        } else {
            Some(&mut command)
        };
        let mut screen = Screen::new(beside.is_some());
        trace::run(config, request, &mut screen, beside)
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = args.settings()?;
    let lab = || Ok(args.on.machine.lab()?.with_our_patches());
    let here = |config: &Config, request: RunRequest| args.here(config, request);
    let found = args.on.place.carry_out(&config, lab, here)?;
    Ok(found.map_or(ExitCode::SUCCESS, |(_, summary)| exit_code(&summary)))
}

/// The command's exit code, if there was a command; otherwise that after the signal which ended the trace.
fn exit_code(summary: &Summary) -> ExitCode {
    match summary.whole.command_exit_code {
        Some(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        None => Interrupt::last().map_or(ExitCode::SUCCESS, foreign::after_signal),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use clap::Parser;

    use memwarden_experiments::Settings as _;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn settings(words: &[impl AsRef<OsStr>]) -> anyhow::Result<Config> {
        let words = words.iter().map(AsRef::as_ref);
        Cli::try_parse_from(std::iter::once(OsStr::new("copies")).chain(words))?
            .args
            .settings()
    }

    #[test]
    fn every_option_is_a_setting() {
        let command = <Cli as clap::CommandFactory>::command();
        crate::verbs::experiment::options::are_settings(&command, &[], |words| settings(words));
    }

    #[test]
    fn a_command_keeps_its_bytes_on_its_way_through_a_file() {
        let typed = [&b"caf\xe9"[..], b"plain", b"\xff\n"].map(OsStr::from_bytes);
        let words = [&["--device", "null", "--"].map(OsStr::new)[..], &typed].concat();
        let config = settings(&words).unwrap();
        assert_eq!(config.command, typed);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), config.to_toml().unwrap()).unwrap();
        let read = settings(&[OsStr::new("--config"), file.path().as_os_str()]).unwrap();
        assert_eq!(read, config);
    }

    #[test]
    fn the_lab_has_an_end_and_a_command_is_one() {
        assert_eq!(settings(&[""; 0]).unwrap().time, None);
        let lab = settings(&["--on", "lab"]).unwrap();
        assert_eq!(lab.time, Some(trace::LAB_TIME));
        assert_eq!(settings(&["--on", "lab", "--", "true"]).unwrap().time, None);
        // The settings that are printed for a command can be read again.
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "command = [\"true\"]\n").unwrap();
        let path = file.path().to_str().unwrap();
        let again = settings(&["--on", "lab", "--config", path]).unwrap();
        assert_eq!((again.time, again.command), (None, vec!["true".into()]));
    }

    #[test]
    fn bad_input_gets_one_line_that_names_it() {
        for (words, expected) in [
            (
                &["--ops", "at"][..],
                "'at' for '--ops <OPERATION,...>': give one of from, to, __from, __to",
            ),
            (&["--ops", "to,to"], "--ops to is given twice"),
            (&["--for", "soon"], "'soon' for '--for"),
            (&["--for", "0"], "--for 0s: give 1ms"),
            (&["--for", "0s"], "--for 0s: give 1ms"),
            (&["--for", ""], "--for"),
            (&["--every", "1m"], "--every 60s: give 1ms to 10s"),
            (&["--for", "1s", "--", "true"], "give one of the two"),
            (&["--device", ""], "--device"),
            (&["true"], "true"),
            (&["--config", "/nonexistent.toml"], "/nonexistent.toml"),
            (&["--on", "moon"], "moon"),
            #[cfg(feature = "host")]
            (&["--cpus", "2"], "--cpus: this chooses the lab's machine"),
        ] {
            let message = format!(
                "{:#}",
                settings(words)
                    .err()
                    .unwrap_or_else(|| panic!("{words:?} was taken"))
            );
            assert!(message.contains(expected), "{words:?}: {message}");
        }
    }
}
