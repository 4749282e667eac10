// SPDX-License-Identifier: MIT OR Apache-2.0
//! Other holders of performance counters, as far as /proc and the kernel report them.

use std::fmt;
use std::fs;
use std::path::PathBuf;

use crate::Root;

/// Target of the link of a perf event in /proc/PID/fd.
const PERF_EVENT: &str = "anon_inode:[perf_event]";

/// The kernel's lockup detector counts cycles on every CPU of most PMUs.
const NMI_WATCHDOG: &str = "/proc/sys/kernel/nmi_watchdog";

/// A holder of open counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// A process.
    Process {
        /// Its process ID.
        pid: u32,
        /// Its name, as in /proc/PID/comm.
        name: String,
        /// Its open perf events; not all need be hardware events.
        events: usize,
    },
    /// The kernel's NMI watchdog.
    NmiWatchdog,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { pid, name, events } => {
                write!(
                    f,
                    "{name} (pid {pid}) with {events} perf event{}",
                    if *events == 1 { "" } else { "s" }
                )
            }
            Self::NmiWatchdog => {
                f.write_str("the NMI watchdog (sysctl kernel.nmi_watchdog=0 ends it)")
            }
        }
    }
}

/// All holders except this program's own processes. Processes that this user may not inspect are missing.
#[must_use]
pub fn others(root: &Root) -> Vec<Holder> {
    let own = fs::read_link(root.path("/proc/self/exe")).ok();
    let mut found: Vec<Holder> = root
        .names("/proc")
        .into_iter()
        .filter_map(|name| name.parse().ok())
        .filter_map(|pid: u32| process(root, pid, own.as_ref()))
        .collect();
    found.sort_by_key(|holder| match holder {
        Holder::Process { pid, .. } => *pid,
        Holder::NmiWatchdog => u32::MAX,
    });
    if root
        .text(NMI_WATCHDOG)
        .is_some_and(|text| text.trim() == "1")
    {
        found.push(Holder::NmiWatchdog);
    }
    found
}

fn process(root: &Root, pid: u32, own: Option<&PathBuf>) -> Option<Holder> {
    let folder = root.path(&format!("/proc/{pid}"));
    let program = fs::read_link(folder.join("exe")).ok();
    if own.is_some() && program.as_ref() == own {
        return None;
    }
    let events = fs::read_dir(folder.join("fd"))
        .ok()?
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .filter(|target| target.as_os_str() == PERF_EVENT)
        .count();
    (events > 0).then(|| Holder::Process {
        pid,
        name: root
            .text(&format!("/proc/{pid}/comm"))
            .map_or_else(|| "?".into(), |name| name.trim().to_owned()),
        events,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn those_with_perf_events_are_named_and_this_program_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let proc = folder.path().join("proc");
        for (pid, name, exe, links) in [
            ("self", "memwarden", "/bin/memwarden", vec![]),
            (
                "7",
                "perf",
                "/bin/perf",
                vec![PERF_EVENT, PERF_EVENT, "/dev/null"],
            ),
            ("12", "sh", "/bin/sh", vec!["/dev/null"]),
            ("13", "memwarden", "/bin/memwarden", vec![PERF_EVENT]),
        ] {
            let fds = proc.join(pid).join("fd");
            fs::create_dir_all(&fds).unwrap();
            fs::write(proc.join(pid).join("comm"), format!("{name}\n")).unwrap();
            symlink(exe, proc.join(pid).join("exe")).unwrap();
            for (number, link) in links.iter().enumerate() {
                symlink(link, fds.join(number.to_string())).unwrap();
            }
        }
        let root = Root::at(folder.path());
        let said: Vec<String> = others(&root).iter().map(ToString::to_string).collect();
        assert_eq!(said, ["perf (pid 7) with 2 perf events"]);
        fs::create_dir_all(proc.join("sys/kernel")).unwrap();
        fs::write(proc.join("sys/kernel/nmi_watchdog"), "1\n").unwrap();
        assert_eq!(others(&root).last(), Some(&Holder::NmiWatchdog));
    }
}
