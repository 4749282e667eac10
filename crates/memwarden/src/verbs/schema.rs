// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden schema`: JSON schemas of what the commands print with `--json`, and of settings files.

use std::process::ExitCode;

use anyhow::Context;
use memwarden_experiments::schema::{self, Schemas};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};

use super::output::{self, outln};
use super::terminal::{lines, table};
use super::{bandwidth, guard, jobs, lab, latency, periodic, report, sim, top};

/// Print the JSON schemas of a command's --json, and of an experiment's settings
#[derive(clap::Args)]
#[command(
    after_help = "Without a command it lists all that have a schema. For an experiment the schemas are those of its settings file and\n\
    of its summary.json, which --json prints; the `experiment` of a run folder is also accepted.\n\
    Examples:\n  memwarden schema\n  \
    memwarden schema guard show\n  \
    memwarden schema copy latency"
)]
pub struct Args {
    /// The command: interfere, copy latency, guard show, ...
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,
}

/// A command that is no experiment, with the schema of what it prints with `--json`.
type Plain = (&'static str, fn() -> Schema);

/// All of them.
const PLAIN: &[Plain] = &[
    ("bandwidth", of::<bandwidth::Printed>),
    ("doctor", of::<memwarden_platform::doctor::Diagnosis>),
    ("guard calibrate", of::<guard::printed::Calibrated>),
    ("guard events", of::<guard::printed::Events>),
    ("guard run", of::<guard::printed::Run>),
    ("guard show", of::<guard::show::Shown>),
    ("jobs", of::<jobs::Printed>),
    ("lab kernel", of::<lab::KernelOutcome>),
    ("lab prepare", of::<memwarden_lab::LabFacts>),
    ("lab qemu", of::<lab::QemuOutcome>),
    ("lab run", of::<memwarden_lab::LabOutcome>),
    ("lab status", of::<lab::Status>),
    ("latency", of::<latency::Printed>),
    ("maps", of::<memwarden_platform::maps::Explanation>),
    ("periodic", of::<periodic::Printed>),
    ("report", of::<report::Printed>),
    ("sim calibrate", of::<sim::printed::Calibrated>),
    ("sim check", of::<sim::printed::Checked>),
    ("sim memories", of::<sim::printed::Memories>),
    ("sim platforms", of::<sim::printed::Platforms>),
    ("sim replay", of::<sim::printed::Replayed>),
    ("top", of::<top::Printed>),
];

/// The schema of what a type prints.
fn of<T: JsonSchema>() -> Schema {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    settings.into_generator().into_root_schema_for::<T>()
}

/// Runs `memwarden schema`.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let experiments = schema::all();
    if args.command.is_empty() {
        output::write(&list(&experiments))?;
        return Ok(ExitCode::SUCCESS);
    }
    let asked = args.command.join(" ");
    let plain = PLAIN.iter().find(|(command, _)| is(command, &asked));
    let text = match plain {
        Some((command, schema)) => {
            let mut schema = schema();
            schema.insert("title".into(), format!("{command} --json").into());
            serde_json::to_string_pretty(&schema)?
        }
        None => {
            let of_asked = |one: &&Schemas| is(one.command, &asked) || one.name == asked;
            let found = experiments.iter().find(of_asked).with_context(|| {
                format!("`{asked}` is no command with a schema; `memwarden schema` lists all")
            })?;
            serde_json::to_string_pretty(found)?
        }
    };
    outln!("{text}")?;
    Ok(ExitCode::SUCCESS)
}

/// True if a command is asked for, by its words or joined by hyphens.
fn is(command: &str, asked: &str) -> bool {
    command == asked || command.replace(' ', "-") == asked
}

fn list(experiments: &[Schemas]) -> String {
    let mut rows: Vec<(&str, &str)> = PLAIN
        .iter()
        .map(|(command, _)| (*command, "--json"))
        .collect();
    rows.extend(
        experiments
            .iter()
            .map(|one| (one.command, "settings, --json (summary.json)")),
    );
    rows.sort_unstable();
    let mut all = table(&["command", "schemas"]);
    for (command, schemas) in rows {
        all.add_row(vec![command, schemas]);
    }
    lines(all, 0..0) + "\n"
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The commands below `command` that have `--json`.
    fn with_json(command: &clap::Command, words: &str, found: &mut BTreeSet<String>) {
        let has = |argument: &clap::Arg| argument.get_long() == Some("json");
        if command.get_arguments().any(has) {
            found.insert(words.to_owned());
        }
        for below in command.get_subcommands() {
            with_json(below, format!("{words} {}", below.get_name()).trim(), found);
        }
    }

    #[test]
    fn every_command_with_json_has_a_schema_and_no_other() {
        let mut printing = BTreeSet::new();
        with_json(&crate::command(), "", &mut printing);
        let experiments = schema::all();
        let plain = PLAIN.iter().map(|(command, _)| *command);
        let listed: Vec<&str> = plain
            .chain(experiments.iter().map(|one| one.command))
            .collect();
        let distinct: BTreeSet<String> = listed.iter().map(|&one| one.to_owned()).collect();
        assert_eq!(printing, distinct);
        assert_eq!(listed.len(), distinct.len());
    }

    #[test]
    fn a_command_is_named_by_its_words() {
        for (asked, found) in [("guard show", true), ("guard-show", true), ("show", false)] {
            assert_eq!(is("guard show", asked), found);
        }
        let listed = list(&schema::all());
        for line in ["guard bench", "trace copies", "guard show", "interfere"] {
            assert!(listed.contains(line), "{listed}");
        }
    }

    #[test]
    fn the_schema_of_guard_show_is_that_of_its_output() {
        use memwarden_guard::Regulator;
        let mut guard = memwarden_guard::Null::new((0..2).collect());
        guard
            .start(&memwarden_guard::StartOptions::default())
            .unwrap();
        let sample = memwarden_guard::rates::Sample::take(&guard).unwrap();
        let shown = guard::show::document(guard.name(), &sample);
        let shown = serde_json::to_value(&shown).unwrap();
        let schema = of::<guard::show::Shown>();
        let validator = jsonschema::validator_for(schema.as_value()).unwrap();
        validator
            .validate(&shown)
            .unwrap_or_else(|error| panic!("{error}"));
        let mut other = shown;
        other["cores"] = "none".into();
        assert!(!validator.is_valid(&other));
    }
}
