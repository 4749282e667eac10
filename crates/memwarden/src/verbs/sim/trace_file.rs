// SPDX-License-Identifier: MIT OR Apache-2.0
//! Options of a trace file that is written: path and format.

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
    /// File to write
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// Replace the file if it exists
    #[arg(long)]
    replace: bool,
}

impl TraceFile {
    /// Begins the file beside its final path.
    pub fn begin(&self) -> Result<Output<'_>> {
        Output::begin(&self.output, self.replace)
    }

    /// The trace writer.
    pub fn writer<'a>(&self, output: &'a Output) -> Result<Writer<BufWriter<&'a File>>> {
        let format = if self.binary {
            Format::Binary
        } else {
            Format::Text
        };
        let buffered = BufWriter::with_capacity(1 << 16, output.file());
        Writer::new(buffered, format).with_context(|| output.writing())
    }

    /// Moves the complete file to its final path, and prints its contents in words.
    pub fn keep(&self, output: Output, what: &str) -> Result<()> {
        let bytes = output.file().metadata();
        let bytes = bytes.with_context(|| output.writing())?.len();
        output.keep()?;
        let path = self.output.display();
        print(&format!("{path}: {what}, {}", size_text(bytes)))
    }
}
