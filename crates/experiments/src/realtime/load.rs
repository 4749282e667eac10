// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loads beside the real-time task: a workload, an X server with a scrolling terminal, or a command.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use memwarden_guard::Settings;
use memwarden_platform::as_text;
use memwarden_platform::cpus::CpuSet;
use memwarden_platform::units::Size;
use memwarden_platform::{Root, process};
use serde_json::Value;

use super::xserver::Xserver;
use crate::group::Group;
use crate::workload::{COMMAND, Task, Until, on_its_cpu};
use crate::{Child, Error, Interrupt, Workload};

/// The kind of `bandwidth` that scrolls a frame buffer.
const SCREEN: &str = "screen";

/// A load in the form of the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Load {
    /// A workload of memwarden, on each of the load's CPUs. `screen` is short for `bandwidth:screen`.
    Workload(Workload),
    /// A real X server with a terminal that scrolls.
    Xserver,
    /// A command for the shell.
    Command(String),
}

impl Load {
    /// A frame buffer that scrolls.
    pub fn screen() -> Self {
        Self::Workload(Workload::Bandwidth(SCREEN.into()))
    }

    /// A command given as words. The shell line is valid text whatever bytes the words have.
    pub fn command(words: &[OsString]) -> Self {
        Self::Command(
            words
                .iter()
                .map(|word| quoted(word))
                .collect::<Vec<_>>()
                .join(" "),
        )
    }

    /// Checks that the load can run here.
    ///
    /// # Errors
    /// What is missing, and how to get it.
    pub(super) fn check(&self) -> Result<(), Error> {
        match self {
            Self::Xserver => Xserver::check(),
            _ => Ok(()),
        }
    }
}

/// Quotes a word for the shell. Bytes that are not UTF-8 become escapes of its printf.
fn quoted(word: &OsStr) -> String {
    if word.is_empty() {
        return "''".into();
    }
    let mut line = String::new();
    for part in word.as_encoded_bytes().utf8_chunks() {
        line += &quoted_text(part.valid());
        if !part.invalid().is_empty() {
            let octal: String = part
                .invalid()
                .iter()
                .map(|byte| format!("\\{byte:03o}"))
                .collect();
            line += &format!("\"$(printf '{octal}')\"");
        }
    }
    line
}

fn quoted_text(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

impl FromStr for Load {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if let Some(command) = text.strip_prefix(COMMAND) {
            return match command.trim() {
                "" => Err(Error::BadInput(format!(
                    "load `{text}`: give a command behind {COMMAND}"
                ))),
                command => Ok(Self::Command(command.to_owned())),
            };
        }
        match text {
            SCREEN => Ok(Self::screen()),
            "xserver" => Ok(Self::Xserver),
            _ => text.parse().map(Self::Workload).map_err(|_| {
                Error::BadInput(format!(
                    "load `{text}`: give screen, xserver, latency, bandwidth:KIND, trace:FILE (as `memwarden interfere` has them) \
                     or '{COMMAND} COMMAND'"
                ))
            }),
        }
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            load if *load == Self::screen() => f.write_str(SCREEN),
            Self::Workload(workload) => workload.fmt(f),
            Self::Xserver => f.write_str("xserver"),
            Self::Command(command) => write!(f, "{COMMAND} {command}"),
        }
    }
}

as_text!(Load);

/// Where a load runs, and with what.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    /// Its CPUs.
    pub cpus: &'a CpuSet,
    /// All CPUs but the task's, for processes that only feed the load.
    pub others: &'a CpuSet,
    /// Its buffer, if it has one.
    pub memory: Option<Size>,
    /// Settings of the guard, if there is one.
    pub guard: Option<&'a Settings>,
    /// File for the standard error of the user's programs.
    pub log: &'a Path,
}

/// Figures of a load on one CPU; for a command, on all its CPUs.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Achieved {
    pub cpu: usize,
    /// MiB/s, if the load reports it.
    pub mib_s: Option<f64>,
    /// CPU time over time, while the task ran.
    pub cpu_share: Option<f64>,
}

/// A running load; ended when dropped.
#[derive(Debug)]
pub(super) struct Running {
    parts: Parts,
    cpus: Vec<usize>,
    watched: Option<(Instant, Vec<Option<Duration>>)>,
}

#[derive(Debug)]
enum Parts {
    Workload(Workload, Vec<Child>),
    Xserver(Xserver),
    Command(Group, String),
}

impl Running {
    /// Starts the load; returns once it runs.
    pub fn start(load: &Load, place: Place, interrupt: &Interrupt) -> Result<Self, Error> {
        let mut cpus: Vec<usize> = place.cpus.iter().collect();
        let parts = match load {
            Load::Workload(workload) => {
                let children = start_workloads(workload, &cpus, place, interrupt)?;
                Parts::Workload(workload.clone(), children)
            }
            Load::Xserver => {
                cpus.truncate(1);
                Parts::Xserver(Xserver::start(place, interrupt)?)
            }
            Load::Command(line) => {
                cpus.truncate(1);
                let mut command = Command::new("sh");
                command
                    .args(["-c", line])
                    .stdin(Stdio::null())
                    .stdout(Stdio::null());
                command.stderr(log(place.log)?);
                process::run_on(&mut command, place.cpus);
                Parts::Command(Group::start(command, line)?, line.clone())
            }
        };
        Ok(Self {
            parts,
            cpus,
            watched: None,
        })
    }

    /// Starts the measurement of its CPU share.
    pub fn watch(&mut self) {
        self.watched = Some((Instant::now(), self.cpu_times()));
    }

    fn cpu_times(&self) -> Vec<Option<Duration>> {
        match &self.parts {
            Parts::Workload(_, children) => children
                .iter()
                .map(|child| process::cpu_time(&Root::system(), child.id()))
                .collect(),
            Parts::Xserver(xserver) => vec![xserver.cpu_time()],
            Parts::Command(group, _) => vec![Some(group.cpu_time())],
        }
    }

    fn cpu_shares(&self) -> Vec<Option<f64>> {
        let Some((since, before)) = &self.watched else {
            return vec![None; self.cpus.len()];
        };
        let elapsed = since.elapsed().as_secs_f64();
        let share = |(now, before): (Option<Duration>, &Option<Duration>)| {
            Some(now?.saturating_sub((*before)?).as_secs_f64() / elapsed)
        };
        self.cpu_times()
            .into_iter()
            .zip(before)
            .map(share)
            .collect()
    }

    /// Ends the load and returns its figures since [`Running::watch`].
    ///
    /// # Errors
    /// When it ended early, or printed something unreadable.
    pub fn end(self) -> Result<Vec<Achieved>, Error> {
        let shares = self.cpu_shares();
        let rates = match self.parts {
            Parts::Workload(workload, children) => end_workloads(&workload, &self.cpus, children)?,
            Parts::Xserver(mut xserver) => {
                xserver.check_runs()?;
                vec![None]
            }
            Parts::Command(mut group, line) => {
                still_runs(&mut group, &line)?;
                vec![None]
            }
        };
        let achieved = self.cpus.iter().zip(rates).zip(shares);
        Ok(achieved
            .map(|((&cpu, mib_s), cpu_share)| Achieved {
                cpu,
                mib_s,
                cpu_share,
            })
            .collect())
    }
}

/// Opens the file for a program's errors.
pub(super) fn log(path: &Path) -> Result<File, Error> {
    let open = File::options().create(true).append(true).open(path);
    open.map_err(|source| Error::process("opening", path.display(), source))
}

/// Fails if the load has ended before the task.
pub(super) fn still_runs(group: &mut Group, what: &str) -> Result<(), Error> {
    match group.ended()? {
        None => Ok(()),
        Some(status) => Err(Error::workload(
            what,
            format!(
                "ended ({status}) before the task did: give a load that runs until it is ended; its standard error is \
                 in load.log"
            ),
        )),
    }
}

fn start_workloads(
    workload: &Workload,
    cpus: &[usize],
    place: Place,
    interrupt: &Interrupt,
) -> Result<Vec<Child>, Error> {
    let task = |&cpu| Task {
        cpu,
        memory: place.memory,
        until: Until::Told,
    };
    workload.start_all(cpus.iter().map(task), place.guard, interrupt)
}

fn end_workloads(
    workload: &Workload,
    cpus: &[usize],
    mut children: Vec<Child>,
) -> Result<Vec<Option<f64>>, Error> {
    Child::end_all(&mut children)?;
    let mut rates = Vec::new();
    for (child, &cpu) in children.into_iter().zip(cpus) {
        let result = child.collect()?;
        on_its_cpu(workload, cpu, &result)?;
        rates.push(result.get("mib_s").and_then(Value::as_f64));
    }
    Ok(rates)
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_read_and_print_as_typed() {
        for name in [
            "screen",
            "xserver",
            "latency",
            "bandwidth:write",
            "cmd: stress-ng --vm 1",
        ] {
            assert_eq!(name.parse::<Load>().unwrap().to_string(), name);
        }
        assert_eq!("bandwidth:screen".parse::<Load>().unwrap(), Load::screen());
        for name in [
            "",
            "cmd:",
            "cmd:  ",
            "bandwidth",
            "xserve",
            "stress-ng --vm 1",
        ] {
            let message = name.parse::<Load>().unwrap_err().to_string();
            assert!(message.starts_with(&format!("load `{name}`")), "{message}");
        }
    }

    /// Printable ASCII, or any bytes but NUL, which ends a word.
    fn word() -> impl Strategy<Value = OsString> {
        let bytes = prop::collection::vec(1..=u8::MAX, 0..8);
        prop_oneof![
            "[ -~]{0,8}".prop_map(OsString::from),
            bytes.prop_map(OsString::from_vec)
        ]
    }

    proptest! {
        #[test]
        fn words_reach_the_command_as_they_were(words in prop::collection::vec(word(), 1..4)) {
            let load = Load::command(&words);
            // Survives a round trip through a file.
            prop_assert_eq!(&load.to_string().parse::<Load>().unwrap(), &load);
            let Load::Command(line) = load else { unreachable!() };
            let output = Command::new("sh").args(["-c", &format!("printf '%s\\n' {line}")]).output().unwrap();
            let lines: Vec<u8> = words.iter().flat_map(|word| [word.as_bytes(), b"\n"].concat()).collect();
            prop_assert_eq!(output.stdout, lines);
        }
    }

    #[test]
    fn a_command_s_use_of_the_cpu_is_seen_and_an_early_end_refused() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("load.log");
        let all = memwarden_platform::affinity::get().unwrap();
        let place = Place {
            cpus: &all,
            others: &all,
            memory: None,
            guard: None,
            log: &log,
        };
        let start = |line: &str| {
            let load: Load = line.parse().unwrap();
            Running::start(&load, place, &Interrupt::default()).unwrap()
        };
        let mut busy = start("cmd: while :; do :; done");
        busy.watch();
        std::thread::sleep(Duration::from_millis(200));
        let achieved = busy.end().unwrap();
        assert_eq!(achieved[0].mib_s, None);
        assert!(achieved[0].cpu_share.unwrap() > 0.0);

        let mut short = start("cmd: echo why >&2; exit 3");
        short.watch();
        let Parts::Command(group, _) = &mut short.parts else {
            panic!("a command's load is a command");
        };
        while group.ended().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let message = short.end().unwrap_err().to_string();
        assert!(message.contains("exit status: 3"), "{message}");
        assert_eq!(std::fs::read_to_string(&log).unwrap(), "why\n");
    }
}
