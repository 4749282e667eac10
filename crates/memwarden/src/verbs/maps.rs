// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden maps`: explains a process's mappings and their pages in memory.

use std::process::ExitCode;

use anyhow::Result;
use memwarden_platform::Root;
use memwarden_platform::maps::{Address, Aslr, Explained, Explanation, Object, Role, Sum, explain};
use memwarden_platform::units::size_text;

use super::output::print;
use super::terminal::{lines, table};

const EXAMPLES: &str = "\
KiB are 1024 bytes; a dash is a figure that the kernel does not report, with the reason in the notes. Changes nothing.
Another user's process takes root.

Examples:
  memwarden maps $$                     this shell
  memwarden maps $(pidof -s sshd)       a daemon, as root
  setarch -R memwarden maps             memwarden itself, without randomisation
  memwarden maps $$ --json | jq '.regions[] | select(.dirty_pages > 0) | .what'";

/// Explains a process's mappings: ELF sections, pages in memory, what ASLR moved.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The process [default: memwarden itself, as an illustration]
    #[arg(value_name = "PID", value_parser = process_id, allow_negative_numbers = true)]
    pid: Option<u32>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

fn process_id(text: &str) -> Result<u32, String> {
    // pid_t is a signed number.
    let number = text.parse::<i32>().ok().filter(|pid| *pid > 0);
    number
        .and_then(|pid| u32::try_from(pid).ok())
        .ok_or_else(|| "a process ID is a whole number from 1 on (`ps -e` lists them)".to_owned())
}

/// Reads and explains the mappings, and prints them.
pub fn run(args: &Args) -> Result<ExitCode> {
    let pid = args.pid.unwrap_or_else(std::process::id);
    let explanation = explain(&Root::system(), pid)?;
    if args.json {
        print(&serde_json::to_string_pretty(&explanation)?)?;
    } else {
        if args.pid.is_none() {
            print("No PID was given: this is memwarden itself.\n")?;
        }
        print(&text(&explanation))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn text(explanation: &Explanation) -> String {
    let process = &explanation.process;
    let program = process
        .program
        .as_deref()
        .unwrap_or("its program is hidden");
    let architecture = process
        .architecture
        .map_or("unknown architecture", |machine| machine.name());
    let mut parts = vec![
        shown(&format!(
            "process {}: {} ({program}), {architecture}, pages of {}, from {}",
            process.pid,
            process.name,
            size_text(process.page_bytes),
            process.source
        )),
        regions(&explanation.regions),
        totals(explanation),
        objects(&explanation.objects),
        aslr(&explanation.aslr),
    ];
    let notes = explanation
        .notes
        .iter()
        .map(|note| shown(&format!("note: {note}")));
    parts.push(notes.collect::<Vec<_>>().join("\n"));
    parts.retain(|part| !part.is_empty());
    parts.join("\n\n")
}

/// A file name may contain anything: a newline or a terminal's control character is printed as `\n`, `\u{1b}`.
fn shown(text: &str) -> String {
    text.chars()
        .flat_map(|letter| {
            let escaped = letter.is_control().then(|| letter.escape_default());
            let plain = escaped.is_none().then_some(letter);
            escaped.into_iter().flatten().chain(plain)
        })
        .collect()
}

fn kib(bytes: Option<u64>) -> String {
    bytes.map_or("-".to_owned(), |bytes| (bytes / 1024).to_string())
}

fn regions(regions: &[Explained]) -> String {
    let mut rows = table(&[
        "address", "perm", "size KiB", "resident", "private", "dirty", "swapped", "what",
    ]);
    for region in regions {
        let usage = &region.usage;
        let sections: Vec<String> = region
            .sections
            .iter()
            .map(|part| match part.whole {
                true => part.name.clone(),
                false => format!("{} (part)", part.name),
            })
            .collect();
        let mut what = shown(&region.what);
        if !sections.is_empty() {
            what += &format!("\n  {}", shown(&sections.join(" ")));
        }
        rows.add_row([
            format!(
                "{:012x}-{:012x}",
                region.start_address.0, region.end_address.0
            ),
            region.permissions.clone(),
            kib(Some(region.size_bytes)),
            kib(usage.resident_bytes),
            kib(usage.private_bytes),
            kib(usage.dirty_bytes),
            kib(usage.swapped_bytes),
            what,
        ]);
    }
    lines(rows, 2..7)
}

fn totals(explanation: &Explanation) -> String {
    let totals = &explanation.totals;
    let mut rows = table(&[
        "total", "regions", "size KiB", "resident", "private", "dirty", "swapped",
    ]);
    let mut add = |name: &str, sum: &Sum| {
        rows.add_row([
            name.to_owned(),
            sum.regions.to_string(),
            kib(Some(sum.size_bytes)),
            kib(sum.resident_bytes),
            kib(sum.private_bytes),
            kib(sum.dirty_bytes),
            kib(sum.swapped_bytes),
        ]);
    };
    add("files", &totals.file);
    add("anonymous", &totals.anonymous);
    add("shared memory", &totals.shared);
    add("kernel, devices", &totals.kernel);
    add("all", &totals.all);
    lines(rows, 1..7)
}

fn objects(objects: &[Object]) -> String {
    if objects.is_empty() {
        return String::new();
    }
    let mut rows = table(&["loaded at", "linked at", "moved by", "ELF object"]);
    for object in objects {
        let role = match (object.role, object.movable) {
            (Role::Program, true) => "program, PIE",
            (Role::Program, false) => "program",
            (Role::Loader, _) => "dynamic loader",
            (Role::Library, _) => "library",
        };
        rows.add_row([
            object.load_address.to_string(),
            object.link_address.to_string(),
            // Modulo 2^64: for an object linked at 0 the offset is a plain address.
            format!("{:#x}", object.moved_bytes),
            format!("{} ({role})", shown(&object.file)),
        ]);
    }
    lines(rows, 0..3)
}

fn aslr(aslr: &Aslr) -> String {
    let setting = match aslr.randomize_va_space {
        Some(0) => "0 (nothing is moved)",
        Some(1) => "1 (stack, mappings and PIEs are moved)",
        Some(2) => "2 (stack, mappings, PIEs and heap are moved)",
        Some(_) => "none that is known",
        None => "unknown",
    };
    let personality = match (aslr.addr_no_randomize, &aslr.personality) {
        (Some(true), Some(bits)) => format!("personality {bits} switches it off here"),
        (Some(false), Some(bits)) => format!("personality {bits} leaves it on"),
        _ => "the personality is unknown".to_owned(),
    };
    let outcome = match aslr.moved {
        Some(true) => "this process was moved",
        Some(false) => "nothing was moved",
        None => "it is unknown whether anything was moved",
    };
    let mut rows = table(&["part", "address", "without ASLR", "moved by", ""]);
    let address = |address: Option<Address>| address.map_or("-".to_owned(), |it| it.to_string());
    for base in &aslr.bases {
        rows.add_row([
            base.part.to_owned(),
            address(base.address),
            address(base.default_address),
            moved(base.moved_bytes),
            base.note.clone().unwrap_or_default(),
        ]);
    }
    format!(
        "ASLR: kernel.randomize_va_space is {setting} for programs started now; {personality}; {outcome}\n{}",
        lines(rows, 1..4)
    )
}

/// `+0xcaf29000 (3.2 GiB)`.
fn moved(bytes: Option<i64>) -> String {
    match bytes {
        None => "-".to_owned(),
        Some(0) => "0".to_owned(),
        Some(bytes) => {
            let sign = if bytes < 0 { '-' } else { '+' };
            let distance = bytes.unsigned_abs();
            format!("{sign}{distance:#x} ({})", size_text(distance))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_id_is_a_positive_number() {
        assert_eq!(process_id("1"), Ok(1));
        assert_eq!(process_id("4194304"), Ok(4_194_304));
        for text in ["0", "-1", "x", "", "1.5", "2147483648", "0x10"] {
            assert!(
                process_id(text).unwrap_err().contains("from 1 on"),
                "{text}"
            );
        }
    }

    #[test]
    fn a_distance_has_a_sign_and_a_size() {
        for (bytes, expected) in [
            (None, "-"),
            (Some(0), "0"),
            (Some(0x3000), "+0x3000 (12 KiB)"),
            (Some(-(3 << 29)), "-0x60000000 (1.5 GiB)"),
        ] {
            assert_eq!(moved(bytes), expected);
        }
    }

    #[test]
    fn a_name_cannot_command_the_terminal() {
        assert_eq!(shown("/tmp/a\nb\x1b[31m é"), "/tmp/a\\nb\\u{1b}[31m é");
    }

    #[test]
    fn every_region_of_this_process_has_a_line() {
        let explanation = explain(&Root::system(), std::process::id()).unwrap();
        let text = text(&explanation);
        for region in &explanation.regions {
            let address = format!("{:012x}-", region.start_address.0);
            assert!(text.contains(&address), "{address}\n{text}");
        }
        for words in [
            "\ntotal ",
            "ELF object",
            "ASLR: ",
            "without ASLR",
            " .text ",
        ] {
            assert!(text.contains(words), "{words}\n{text}");
        }
        assert!(text.lines().all(|line| line == line.trim_end()));
    }
}
