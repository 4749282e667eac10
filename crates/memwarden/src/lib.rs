// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command line: parses it, calls the verb, prints the error. It is a library, so that the `dist` profile can optimise
//! it for size while the program's link-time optimisation keeps the hot loops fast (see `Cargo.toml`).

#![warn(clippy::print_stdout, clippy::print_stderr)]

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

mod verbs;

/// Measures, traces and regulates memory traffic on multicore Linux.
#[derive(Parser)]
#[command(version, arg_required_else_help = true, after_help = after_help())]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Latency(verbs::latency::Args),
    Bandwidth(verbs::bandwidth::Args),
    Periodic(verbs::periodic::Args),
    Jobs(verbs::jobs::Args),
    Doctor(verbs::doctor::Args),
    Maps(verbs::maps::Args),
    Interfere(Box<verbs::interfere::Args>),
    Realtime(Box<verbs::realtime::Args>),
    Mmap(Box<verbs::mmap::Args>),
    Mymem(verbs::mymem::Args),
    Copy(verbs::copy::Args),
    Trace(verbs::trace::Args),
    Guard(Box<verbs::guard::Args>),
    Top(verbs::top::Args),
    #[command(hide = true)]
    Traffic(verbs::traffic::Args),
    #[cfg(feature = "host")]
    Lab(verbs::lab::Args),
    #[cfg(feature = "host")]
    Report(verbs::report::Args),
    #[cfg(feature = "host")]
    Schema(verbs::schema::Args),
    #[cfg(feature = "host")]
    Sim(verbs::sim::Args),
    #[cfg(feature = "host")]
    Plan(Box<verbs::plan::Args>),
    #[cfg(feature = "host")]
    #[command(hide = true)]
    Completions(verbs::completions::Args),
    #[cfg(feature = "host")]
    #[command(hide = true)]
    Manual(verbs::manual::Args),
}

fn after_help() -> String {
    let rule = memwarden_platform::units::RULE;
    format!(
        "{rule}\n\n\
         Examples:\n  memwarden doctor\n  \
         memwarden interfere --on sim:raspberry-pi-3 --guard 1000,100,100,100"
    )
}

/// Runs the program's command line.
#[must_use]
pub fn main() -> ExitCode {
    memwarden_platform::process::set_title();
    memwarden_run::set_git_revision(env!("MEMWARDEN_GIT_REVISION"));
    let words = command_line(std::env::args_os());
    let matches = command()
        .try_get_matches_from(words.clone())
        .unwrap_or_else(|error| refuse(&error, &words));
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let outcome: anyhow::Result<ExitCode> = match cli.verb {
        Verb::Latency(args) => verbs::latency::run(args),
        Verb::Bandwidth(args) => verbs::bandwidth::run(args),
        Verb::Periodic(args) => verbs::periodic::run(args),
        Verb::Jobs(args) => verbs::jobs::run(args),
        Verb::Doctor(args) => verbs::doctor::run(args),
        Verb::Maps(args) => verbs::maps::run(&args),
        Verb::Interfere(args) => verbs::interfere::run(*args),
        Verb::Realtime(args) => verbs::realtime::run(*args),
        Verb::Mmap(args) => verbs::mmap::run(&args),
        Verb::Mymem(args) => verbs::mymem::run(args),
        Verb::Copy(args) => verbs::copy::run(args),
        Verb::Trace(args) => verbs::trace::run(args),
        Verb::Guard(args) => verbs::guard::run(*args),
        Verb::Top(args) => verbs::top::run(&args),
        Verb::Traffic(args) => verbs::traffic::run(&args),
        #[cfg(feature = "host")]
        Verb::Lab(args) => verbs::lab::run(args),
        #[cfg(feature = "host")]
        Verb::Report(args) => verbs::report::run(args),
        #[cfg(feature = "host")]
        Verb::Schema(args) => verbs::schema::run(&args),
        #[cfg(feature = "host")]
        Verb::Sim(args) => verbs::sim::run(args),
        #[cfg(feature = "host")]
        Verb::Plan(args) => verbs::plan::run(&args),
        #[cfg(feature = "host")]
        Verb::Completions(args) => verbs::completions::run(&args, &command()),
        #[cfg(feature = "host")]
        Verb::Manual(args) => verbs::manual::run(&args, command()),
    };
    outcome.unwrap_or_else(|error| {
        verbs::output::fail(format_args!("{error:#}"));
        verbs::foreign::exit_code_of(&error)
    })
}

/// Exits with the parser's error, or with the help that was requested.
fn refuse(error: &clap::Error, words: &[OsString]) -> ! {
    if error.kind() == ErrorKind::InvalidUtf8 {
        verbs::output::fail(format_args!("{}", not_text(words)));
        std::process::exit(error.exit_code());
    }
    error.exit()
}

/// Names the word that is not UTF-8, as clap's error does not.
fn not_text(words: &[OsString]) -> String {
    let found: Vec<String> = words
        .iter()
        .take_while(|word| *word != "--")
        .filter(|word| word.to_str().is_none())
        .map(|word| format!("{word:?}"))
        .collect();
    format!(
        "{}: not UTF-8, where an option takes text only; a command behind -- may have any bytes",
        found.join(", ")
    )
}

/// Width of the help text.
const HELP_WIDTH: usize = 120;

/// The command line's grammar. A narrower terminal wraps the help at its width; a pipe gets it
/// as written.
fn command() -> clap::Command {
    let command = Cli::command().max_term_width(HELP_WIDTH);
    if std::io::stdout().is_terminal() {
        command
    } else {
        command.term_width(HELP_WIDTH)
    }
}

/// Names of symbolic links that run a verb directly.
const OWN_NAMES: [&str; 2] = ["latency", "bandwidth"];

/// The command line as typed, with the verb inserted if the program's own name
/// implies it.
fn command_line(typed: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = typed.collect();
    let name = words
        .first()
        .and_then(|program| Path::new(program).file_name()?.to_str());
    if let Some(verb) = OWN_NAMES.into_iter().find(|verb| name == Some(verb)) {
        words.splice(..1, ["memwarden".into(), verb.into()]);
    }
    words
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn a_word_that_is_no_text_is_named() {
        let words = [
            &b"memwarden"[..],
            b"realtime",
            b"--on-miss",
            b"caf\xe9",
            b"--",
            b"\xff",
        ];
        let words: Vec<OsString> = words.map(|word| OsString::from_vec(word.to_vec())).into();
        let error = command().try_get_matches_from(words.clone()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUtf8);
        let message = not_text(&words);
        assert!(message.starts_with(r#""caf\xE9": not UTF-8"#), "{message}");
    }
}
