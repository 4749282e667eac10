// SPDX-License-Identifier: MIT OR Apache-2.0
//! Warns where the module can hold a core only as real-time tasks can, so that the scheduler lets tasks through.

use memwarden_platform::throttle_thread::{Class, class};
use memwarden_platform::{Root, fair_server};

/// A sentence on the loaded module's throttle threads if they have SCHED_FIFO only.
#[must_use]
pub fn warning(root: &Root) -> Option<String> {
    (class(root)? == Class::Fifo).then(|| {
        let servers = fair_server::servers(root);
        let obstacle = servers.into_iter().find_map(|server| server.obstacle);
        let user = match obstacle {
            None => ", or --backend user, which lifts both limits".to_owned(),
            Some(obstacle) => format!(" (--backend user cannot turn the fair server off here: {obstacle})"),
        };
        format!(
            "the module's throttle threads have SCHED_FIFO only, as this kernel has no schedutil or refuses the flag of its \
             threads: real-time throttling or the fair server lets a throttled core run for about 50 ms of each second, and \
             tasks above SCHED_FIFO 50 always run; use a kernel with CONFIG_CPU_FREQ_GOV_SCHEDUTIL{user}"
        )
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn throttle_threads_under_sched_fifo_are_told_with_what_it_means() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::at(folder.path());
        let write = |pid: u32, name: &str, flags: u64, policy: u64| {
            let mut fields = vec!["0".to_owned(); 50];
            (fields[6], fields[38]) = (flags.to_string(), policy.to_string());
            let folder = root.path(&format!("/proc/{pid}"));
            fs::create_dir_all(&folder).unwrap();
            let line = format!("{pid} ({name}) {}\n", fields.join(" "));
            fs::write(folder.join("stat"), line).unwrap();
        };
        assert_eq!(warning(&root), None);
        // A program that has taken the name, and another kernel thread.
        write(7, "memguard/0", 0, 1);
        write(8, "migration/0", 0x0020_0000, 1);
        write(9, "memguard/0", 0x0020_0000, 6);
        assert_eq!(warning(&root), None);
        write(10, "memguard/1", 0x0020_0000, 1);
        let told = warning(&root).unwrap();
        assert!(
            told.contains("SCHED_FIFO only") && told.contains("50 ms of each second"),
            "{told}"
        );
        assert!(
            told.ends_with("--backend user, which lifts both limits"),
            "{told}"
        );
        // A fair server out of reach.
        for (path, text) in [
            ("/proc/sys/kernel/osrelease", "6.12.38-arm64\n"),
            ("/sys/devices/system/cpu/online", "0\n"),
        ] {
            fs::create_dir_all(root.path(path).parent().unwrap()).unwrap();
            fs::write(root.path(path), text).unwrap();
        }
        let told = warning(&root).unwrap();
        assert!(
            told.contains("user cannot turn the fair server off"),
            "{told}"
        );
    }
}
