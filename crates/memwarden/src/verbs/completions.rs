// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden completions`: prints a shell's completions for `memwarden`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Command;
use clap_complete::Shell;

use super::output;

/// Print a shell's completions, as in `source <(memwarden completions bash)`
#[derive(clap::Args)]
pub struct Args {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Runs `memwarden completions` with this grammar.
pub fn run(args: &Args, command: &Command) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut shown(command), "memwarden", &mut script);
    output::write(&String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}

/// The grammar without hidden verbs, which clap_complete would include, and without `help VERB`, which repeats all
/// verbs.
fn shown(command: &Command) -> Command {
    let visible = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    let mut copy = Command::new(command.get_name().to_owned())
        .disable_help_subcommand(true)
        .args(command.get_arguments())
        .groups(command.get_groups())
        .subcommands(visible.map(shown));
    if let Some(about) = command.get_about() {
        copy = copy.about(about.clone());
    }
    if let Some(version) = command.get_version() {
        copy = copy.version(version.to_owned());
    }
    copy
}
