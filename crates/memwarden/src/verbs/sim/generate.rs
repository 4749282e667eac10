// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden sim generate`: a trace after a pattern.

use std::fs::Permissions;
use std::io::{BufWriter, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use memwarden_experiments::Interrupt;
use memwarden_platform::units::size_text;
use memwarden_sim::trace::{Format, Pattern, Patterned, Writer};

use super::memory;
use crate::verbs::workload::print;

/// Requests between two looks at whether a signal came.
const BETWEEN_LOOKS: u64 = 1 << 16;

/// Write a trace of requests after a pattern
#[derive(clap::Args)]
#[command(
    after_help = "The same options give the same trace. The file appears when it is complete.\n\
    Examples:\n  memwarden sim generate --pattern random --count 1000000 -o random.trace\n  \
    memwarden sim generate --pattern stream --count 10000000 --write-share 0 --binary -o stream.trace"
)]
pub(super) struct Args {
    /// Which lines: any each time, or one after the other
    #[arg(long, value_enum)]
    pattern: Order,
    /// Requests
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    /// Which part of them are writes, from 0 to 1; they are spread evenly
    #[arg(long, value_name = "SHARE", default_value_t = 0.2, value_parser = share)]
    write_share: f64,
    /// The memory whose lines they are of: a name (`memwarden sim memories` lists them) or a TOML file
    #[arg(long, value_name = "MEMORY", default_value = "ddr4-2400")]
    memory: String,
    /// Chooses the random lines
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
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

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Order {
    Random,
    Stream,
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok();
    share
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| "a share is from 0 (reads only) to 1 (writes only), such as 0.2".to_owned())
}

/// Nothing but a plain file is replaced, and that only on request.
fn may_write(path: &Path, replace: bool) -> Result<()> {
    let shown = path.display();
    match path.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| format!("looking at {shown}")),
        Ok(found) if !found.is_file() => bail!("{shown} is there, and no plain file"),
        Ok(_) if !replace => {
            bail!("{shown} exists already: choose another --output, or --replace it")
        }
        Ok(_) => Ok(()),
    }
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let memory = memory(&args.memory)?;
    let path = &args.output;
    may_write(path, args.replace)?;
    let interrupt = Interrupt::catch()?;
    let writing = || format!("writing {}", path.display());
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    // Removed on every way out of here but the last.
    let file = tempfile::Builder::new()
        .prefix(".memwarden-")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder)
        .with_context(writing)?;
    let format = if args.binary {
        Format::Binary
    } else {
        Format::Text
    };
    let pattern = match args.pattern {
        Order::Random => Pattern::Random,
        Order::Stream => Pattern::Stream,
    };
    let requests = Patterned::new(pattern, &memory, args.write_share, args.seed);
    let output = BufWriter::with_capacity(1 << 16, file.as_file());
    let mut writer = Writer::new(output, format).with_context(writing)?;
    let mut writes = 0_u64;
    for (index, request) in (0..args.count).zip(requests) {
        if index % BETWEEN_LOOKS == 0 {
            interrupt.check()?;
        }
        writes += u64::from(request.write);
        writer.write(&request).with_context(writing)?;
    }
    writer.finish().with_context(writing)?;
    interrupt.check()?;
    let bytes = file.as_file().metadata().with_context(writing)?.len();
    let kept = if args.replace {
        file.persist(path)
    } else {
        // Somebody may have made it in the meantime.
        file.persist_noclobber(path)
    };
    kept.map_err(|error| error.error).with_context(writing)?;
    print(&format!(
        "{}: {} requests, {writes} of them writes, {}",
        path.display(),
        args.count,
        size_text(bytes)
    ))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_from_0_to_1() {
        assert_eq!(share("0"), Ok(0.0));
        assert_eq!(share("0.2"), Ok(0.2));
        assert_eq!(share("1"), Ok(1.0));
        for text in ["-0.1", "1.1", "NaN", "inf", "", "4:1"] {
            assert!(share(text).unwrap_err().contains("from 0"), "{text}");
        }
    }

    #[test]
    fn a_folder_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let error = may_write(folder.path(), true).unwrap_err();
        assert!(error.to_string().contains("no plain file"), "{error}");
        assert!(may_write(&folder.path().join("new"), false).is_ok());
    }
}
