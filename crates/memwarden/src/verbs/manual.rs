// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden manual`: writes the help of all verbs as manual pages.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

/// Write the manual pages, one for each verb
#[derive(clap::Args)]
pub struct Args {
    /// The directory, created if it is missing
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Runs `memwarden manual` with this grammar.
pub fn run(args: &Args, command: Command) -> Result<ExitCode> {
    let folder = &args.folder;
    let mut command = command.disable_help_subcommand(true);
    command.build();
    fs::create_dir_all(folder)
        .and_then(|()| write_pages(&command, folder))
        .with_context(|| format!("cannot write the manual pages to {}", folder.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the page of a verb, and those of its subcommands.
fn write_pages(command: &Command, folder: &Path) -> io::Result<()> {
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        write_pages(verb, folder)?;
    }
    let page = Man::new(command.clone()).source(concat!("memwarden ", env!("CARGO_PKG_VERSION")));
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    if command.has_subcommands() {
        page.render_subcommands_section(&mut text)?;
    }
    let after = command.get_after_long_help().or(command.get_after_help());
    if let Some(after) = after {
        render_after_help(&after.to_string(), &mut text)?;
    }
    fs::write(folder.join(page.get_filename()), text)
}

/// Renders the text after the options: prose as notes, command lines verbatim.
fn render_after_help(help: &str, page: &mut Vec<u8>) -> io::Result<()> {
    let mut roff = Roff::new();
    let mut section = "";
    for line in help.lines() {
        let example = line
            .strip_prefix("Examples:")
            .or(line.strip_prefix("Example:"));
        let text = example.unwrap_or(line).trim_start();
        let wanted = if example.is_some() || text.starts_with("memwarden ") {
            "EXAMPLES"
        } else if line.starts_with(' ') && !section.is_empty() {
            section
        } else {
            "NOTES"
        };
        if section != wanted {
            section = wanted;
            // Prose is filled; commands keep their lines.
            roff.control("fi", []).control("SH", [section]);
            if section == "EXAMPLES" {
                roff.control("nf", []);
            }
        }
        if !text.is_empty() {
            roff.text([roman(text)]);
        }
    }
    page.write_all(roff.control("fi", []).to_roff().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page_of(help: &str) -> String {
        let mut page = Vec::new();
        render_after_help(help, &mut page).unwrap();
        String::from_utf8(page).unwrap()
    }

    #[test]
    fn examples_keep_their_lines() {
        let page = page_of("Prose that\ngoes on.\nExamples:\n  memwarden a\n  memwarden b");
        let notes = page.find(".SH NOTES\nProse that\ngoes on.").expect("notes");
        let examples = page
            .find(".SH EXAMPLES\n.nf\nmemwarden a\nmemwarden b\n.fi")
            .expect("examples");
        assert!(notes < examples, "{page}");
        for one in ["Prose.\nExample: memwarden c", "memwarden c"] {
            let page = page_of(one);
            assert!(page.contains(".SH EXAMPLES\n.nf\nmemwarden c\n"), "{page}");
        }
    }
}
