// SPDX-License-Identifier: MIT OR Apache-2.0
//! The scheduler's limits for real-time threads, which also apply to throttle threads.
//!
//! A SCHED_FIFO thread occupies a throttled core. Up to Linux 6.11, the scheduler stops real-time threads that have run
//! for `sched_rt_runtime_us` out of `sched_rt_period_us` (0.95 s of each second). Since 6.12, its fair server gives
//! ordinary threads `runtime` nanoseconds of each second if they would starve. Either limit lets a throttled core run
//! for a while once a second.

use std::fs;
use std::path::PathBuf;

use memwarden_platform::Root;
use serde::{Deserialize, Serialize};

use crate::Error;

/// Limit of all real-time threads together, in microseconds; -1 means no limit.
const RUNTIME: &str = "/proc/sys/kernel/sched_rt_runtime_us";

/// One folder per CPU, each with a `runtime` in nanoseconds; 0 turns the server off.
const FAIR_SERVER: &str = "/sys/kernel/debug/sched/fair_server";

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

/// Reads the limits that this kernel has.
pub fn save(root: &Root) -> Saved {
    let servers = root
        .names(FAIR_SERVER)
        .into_iter()
        .map(|cpu| format!("{FAIR_SERVER}/{cpu}/runtime"));
    let files = std::iter::once(RUNTIME.to_owned())
        .chain(servers)
        .filter_map(|path| root.text(&path).map(|value| (root.path(&path), value)))
        .collect();
    Saved { files }
}

/// True if real-time threads have no limit: [`release`] removes it first, and [`restore`] sets it last.
pub(crate) fn is_released(root: &Root) -> bool {
    root.text(RUNTIME).is_some_and(|value| value == "-1")
}

/// Removes all limits.
///
/// # Errors
/// When a file can't be written; those written before it are restored.
pub fn release(root: &Root) -> Result<Saved, Error> {
    let saved = save(root);
    let runtime = root.path(RUNTIME);
    for (index, (path, _)) in saved.files.iter().enumerate() {
        let off = if *path == runtime { "-1" } else { "0" };
        if let Err(source) = fs::write(path, off) {
            let _ = restore(&Saved {
                files: saved.files[..index].to_vec(),
            });
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
pub fn restore(saved: &Saved) -> Result<(), Error> {
    let mut first = Ok(());
    for (path, value) in saved.files.iter().rev() {
        if let Err(source) = fs::write(path, value) {
            if first.is_ok() {
                first = Err(Error::file("writing", path)(source));
            }
        }
    }
    first
}

#[cfg(test)]
mod tests {
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
        restore(&saved).unwrap();
        assert_eq!(root.read(RUNTIME).unwrap(), "950000");
        assert_eq!(
            root.read(&format!("{FAIR_SERVER}/cpu1/runtime")).unwrap(),
            "50000000"
        );
    }

    #[test]
    fn an_older_kernel_has_the_first_alone() {
        let (_folder, root) = tree();
        assert_eq!(save(&root).iter().count(), 1);
    }
}
