// SPDX-License-Identifier: MIT OR Apache-2.0
//! The scheduler's limits for real-time threads, which also apply to throttle threads.
//!
//! A SCHED_FIFO thread occupies a throttled core. Up to Linux 6.11, the scheduler stops real-time threads that have run
//! for `sched_rt_runtime_us` out of `sched_rt_period_us` (0.95 s of each second). Since 6.12, its fair server gives
//! ordinary threads `runtime` nanoseconds of each second if they would starve. Either limit lets a throttled core run
//! for a while once a second.
//!
//! A fair server whose setting cannot be changed stays on ([`FairServersOn`]).

use std::fs;
use std::path::PathBuf;

use memwarden_platform::Root;
use memwarden_platform::cpus::CpuSet;
use memwarden_platform::fair_server::{self, FairServers, Obstacle};
use serde::{Deserialize, Serialize};

use crate::Error;

/// Limit of all real-time threads together, in microseconds; -1 means no limit.
const RUNTIME: &str = "/proc/sys/kernel/sched_rt_runtime_us";

/// Earlier values of the limits, to be restored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    files: Vec<(PathBuf, String)>,
}

impl Saved {
    /// The saved values, for reports: file and value.
    pub fn iter(&self) -> impl Iterator<Item = (&std::path::Path, &str)> {
        self.files
            .iter()
            .map(|(path, value)| (path.as_path(), value.as_str()))
    }
}

/// Reads the limits that are on and can be removed. [`FairServersOn`] has the others.
pub fn save(root: &Root) -> Saved {
    save_of(root, FairServers::of(root).as_ref())
}

fn save_of(root: &Root, servers: Option<&FairServers>) -> Saved {
    let runtime = root.text(RUNTIME).filter(|value| value != "-1");
    let mut files: Vec<_> = runtime
        .map(|value| (root.path(RUNTIME), value))
        .into_iter()
        .collect();
    if let Some(servers) = servers {
        for server in servers.all() {
            if let (Some(runtime_ns @ 1..), None) = (server.runtime_ns, &server.obstacle) {
                files.push((servers.path(server.cpu), runtime_ns.to_string()));
            }
        }
    }
    Saved { files }
}

/// True if real-time threads have no limit: [`release`] removes it first, and [`restore`] sets it last.
pub(crate) fn is_released(root: &Root) -> bool {
    root.text(RUNTIME).is_some_and(|value| value == "-1")
}

/// Removes the limits that can be removed; [`FairServersOn`] has the others.
///
/// # Errors
/// When a file can't be written; those written before it are restored.
pub fn release(root: &Root) -> Result<Saved, Error> {
    let servers = FairServers::of(root);
    let saved = save_of(root, servers.as_ref());
    let runtime = root.path(RUNTIME);
    for (index, (path, _)) in saved.files.iter().enumerate() {
        let off = if *path == runtime { "-1" } else { "0" };
        if let Err(source) = write(servers.as_ref(), path, off) {
            let _ = restore_in(
                servers.as_ref(),
                &Saved {
                    files: saved.files[..index].to_vec(),
                },
            );
            return Err(Error::file("writing", path)(source));
        }
    }
    Ok(saved)
}

/// Restores all limits, even if one fails, in reverse order: the kernel refuses the limit of all real-time threads
/// (EBUSY) if the fair servers' shares don't fit into it.
///
/// # Errors
/// That of the first file that can't be written.
pub fn restore(root: &Root, saved: &Saved) -> Result<(), Error> {
    restore_in(FairServers::of(root).as_ref(), saved)
}

fn restore_in(servers: Option<&FairServers>, saved: &Saved) -> Result<(), Error> {
    let mut first = Ok(());
    for (path, value) in saved.files.iter().rev() {
        if let Err(source) = write(servers, path, value) {
            if first.is_ok() {
                first = Err(Error::file("writing", path)(source));
            }
        }
    }
    first
}

fn write(
    servers: Option<&FairServers>,
    path: &std::path::Path,
    value: &str,
) -> std::io::Result<()> {
    match servers {
        Some(servers) => fs::write(servers.reach(path), value),
        None => fs::write(path, value),
    }
}

/// Fair servers that are on although real-time threads hold cores: they let ordinary tasks run on a throttled core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FairServersOn {
    /// Their CPUs.
    pub cpus: CpuSet,
    /// The largest share of them, in nanoseconds of each second.
    pub runtime_ns: u64,
    /// The reason why one of them cannot be turned off; `None` if it can.
    pub obstacle: Option<Obstacle>,
}

impl FairServersOn {
    /// Finds them; `None` if all are off, and before Linux 6.12.
    #[must_use]
    pub fn find(root: &Root) -> Option<Self> {
        let mut servers = fair_server::servers(root);
        servers.retain(|server| server.takes_ns() > 0);
        Some(Self {
            runtime_ns: servers.iter().map(fair_server::Server::takes_ns).max()?,
            cpus: servers.iter().map(|server| server.cpu).collect(),
            obstacle: servers.into_iter().find_map(|server| server.obstacle),
        })
    }
}

impl std::fmt::Display for FairServersOn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "CPU {}: the fair server is on, and lets ordinary tasks run on a throttled core for up to {} ms of each second",
            self.cpus,
            self.runtime_ns / 1_000_000
        )?;
        match &self.obstacle {
            Some(obstacle) => write!(f, ": {obstacle}"),
            None => f.write_str("; start the guard again"),
        }
    }
}

#[cfg(test)]
mod tests {
    use fair_server::FOLDER as FAIR_SERVER;

    use super::*;

    fn tree() -> (tempfile::TempDir, Root) {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::at(folder.path());
        fs::create_dir_all(root.path("/proc/sys/kernel")).unwrap();
        fs::write(root.path(RUNTIME), "950000\n").unwrap();
        (folder, root)
    }

    #[test]
    fn both_brakes_come_off_and_back_on() {
        let (_folder, root) = tree();
        for cpu in ["cpu0", "cpu1"] {
            fs::create_dir_all(root.path(&format!("{FAIR_SERVER}/{cpu}"))).unwrap();
            fs::write(
                root.path(&format!("{FAIR_SERVER}/{cpu}/runtime")),
                "50000000\n",
            )
            .unwrap();
        }
        let saved = release(&root).unwrap();
        assert_eq!(saved.iter().count(), 3);
        assert_eq!(root.read(RUNTIME).unwrap(), "-1");
        assert_eq!(
            root.read(&format!("{FAIR_SERVER}/cpu1/runtime")).unwrap(),
            "0"
        );
        restore(&root, &saved).unwrap();
        assert_eq!(root.read(RUNTIME).unwrap(), "950000");
        assert_eq!(
            root.read(&format!("{FAIR_SERVER}/cpu1/runtime")).unwrap(),
            "50000000"
        );
    }

    /// A kernel with fair servers on two CPUs; none of their files yet.
    fn with_servers() -> (tempfile::TempDir, Root) {
        let (folder, root) = tree();
        fs::write(root.path("/proc/sys/kernel/osrelease"), "6.12.38-arm64\n").unwrap();
        fs::create_dir_all(root.path("/sys/devices/system/cpu")).unwrap();
        fs::write(root.path("/sys/devices/system/cpu/online"), "0-1\n").unwrap();
        (folder, root)
    }

    #[test]
    fn a_fair_server_that_cannot_be_reached_is_told() {
        let (_folder, root) = with_servers();
        let saved = release(&root).unwrap();
        assert_eq!(saved.iter().count(), 1);
        let on = FairServersOn::find(&root).unwrap();
        assert_eq!(
            (on.cpus.to_string(), on.runtime_ns),
            ("0-1".into(), 50_000_000)
        );
        let text = on.to_string();
        assert!(
            text.contains("for up to 50 ms of each second") && text.contains("mount -t debugfs"),
            "{text}"
        );
        restore(&root, &saved).unwrap();
    }

    #[test]
    fn a_fair_server_that_cannot_be_read_is_told_and_the_others_are_off() {
        let (_folder, root) = with_servers();
        let runtime = |cpu| root.path(&format!("{FAIR_SERVER}/cpu{cpu}/runtime"));
        fs::create_dir_all(runtime(0).parent().unwrap()).unwrap();
        fs::write(runtime(0), "20000000\n").unwrap();
        fs::create_dir_all(runtime(1)).unwrap();
        let saved = release(&root).unwrap();
        assert_eq!(saved.iter().count(), 2);
        assert_eq!(fs::read_to_string(runtime(0)).unwrap(), "0");
        let on = FairServersOn::find(&root).unwrap();
        assert_eq!(
            (on.cpus.to_string(), on.runtime_ns),
            ("1".into(), 50_000_000)
        );
        assert!(
            on.to_string().contains("cpu1/runtime cannot be set"),
            "{on}"
        );
        restore(&root, &saved).unwrap();
        assert_eq!(fs::read_to_string(runtime(0)).unwrap(), "20000000");
    }

    #[test]
    fn all_fair_servers_off_is_no_warning() {
        let (_folder, root) = with_servers();
        for cpu in 0..2 {
            fs::create_dir_all(root.path(&format!("{FAIR_SERVER}/cpu{cpu}"))).unwrap();
            fs::write(
                root.path(&format!("{FAIR_SERVER}/cpu{cpu}/runtime")),
                "50000000\n",
            )
            .unwrap();
        }
        release(&root).unwrap();
        assert_eq!(FairServersOn::find(&root), None);
    }

    #[test]
    fn a_limit_that_is_off_already_is_not_written() {
        let (_folder, root) = tree();
        fs::write(root.path(RUNTIME), "-1\n").unwrap();
        assert_eq!(release(&root).unwrap().iter().count(), 0);
        assert_eq!(fs::read_to_string(root.path(RUNTIME)).unwrap(), "-1\n");
    }

    #[test]
    fn an_older_kernel_has_the_first_alone() {
        let (_folder, root) = tree();
        assert_eq!(save(&root).iter().count(), 1);
    }
}
