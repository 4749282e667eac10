// SPDX-License-Identifier: MIT OR Apache-2.0
//! A trace that is written: where, and in which form.

use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;

use anyhow::{Context, Result};
use memwarden_platform::units::size_text;
use memwarden_sim::trace::{Format, Writer};

use super::output::Output;
use crate::verbs::output::print;

#[derive(clap::Args)]
pub struct TraceFile {
    /// Write the binary form, which is faster to read
    #[arg(long)]
    binary: bool,
    /// Where to write it
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// Replace the file if it is there
    #[arg(long)]
    replace: bool,
}

impl TraceFile {
    /// Begins it beside where it is to be.
    pub fn begin(&self) -> Result<Output<'_>> {
        Output::begin(&self.output, self.replace)
    }

    /// What writes to it.
    pub fn writer<'a>(&self, output: &'a Output) -> Result<Writer<BufWriter<&'a File>>> {
        let format = if self.binary {
            Format::Binary
        } else {
            Format::Text
        };
        let buffered = BufWriter::with_capacity(1 << 16, output.file());
        Writer::new(buffered, format).with_context(|| output.writing())
    }

    /// It is complete: puts it where it is to be, and says what is in it.
    pub fn keep(&self, output: Output, what: &str) -> Result<()> {
        let bytes = output.file().metadata();
        let bytes = bytes.with_context(|| output.writing())?.len();
        output.keep()?;
        let path = self.output.display();
        print(&format!("{path}: {what}, {}", size_text(bytes)))
    }
}
