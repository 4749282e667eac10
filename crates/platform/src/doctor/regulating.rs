// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks of what regulation needs: the module, real-time priority, and limits on real-time threads.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{Finding, Level, Patient, Verdict, counting};
use crate::fair_server::{self, FOLDER as FAIR_SERVER, Obstacle, Server};
use crate::lockdown::Lockdown;
use crate::throttle_thread::{self, Class};

/// The limit of all real-time threads together, in microseconds; -1 means no limit.
pub(super) const RT_RUNTIME: &str = "/proc/sys/kernel/sched_rt_runtime_us";

/// The module's state.
enum Module {
    Loaded,
    Loadable,
    /// Loadable if the kernel knows the key of its signature.
    Signed,
    /// The kernel loads only signed modules, and this one is compressed.
    MaybeSigned,
    Refused(&'static str),
    NotBuilt,
}

fn state(patient: &Patient) -> Module {
    let root = patient.root;
    let loaded = root.text("/proc/modules").unwrap_or_default();
    if loaded
        .lines()
        .any(|line| line.split(' ').next() == Some("memguard"))
    {
        return Module::Loaded;
    }
    let release = root.text("/proc/sys/kernel/osrelease").unwrap_or_default();
    let Some(file) = find_module(&root.path(&format!("/lib/modules/{release}"))) else {
        return Module::NotBuilt;
    };
    let locked = locked_down(patient).is_some();
    let compressed = file.extension().is_some_and(|ending| ending != "ko");
    if root.number("/proc/sys/kernel/modules_disabled") == Some(1) {
        Module::Refused(
            "this kernel loads no more modules until the next boot (kernel.modules_disabled=1)",
        )
    } else if locked && !compressed && !is_signed(&file) {
        Module::Refused("this kernel is locked down and loads only signed modules")
    } else if !patient.live.root {
        Module::Refused("only root can load it")
    } else if !locked {
        Module::Loadable
    } else if compressed {
        Module::MaybeSigned
    } else {
        Module::Signed
    }
}

/// The kernel's lockdown mode, if it is locked down.
fn locked_down(patient: &Patient) -> Option<String> {
    Lockdown::of(patient.root).mode().map(ToOwned::to_owned)
}

/// `memguard.ko` below `directory`, compressed or not.
fn find_module(directory: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(directory).ok()?;
    entries.flatten().find_map(|entry| {
        let name = entry.file_name();
        match entry.file_type() {
            // Symbolic links are not followed: `build` and `source` point to whole kernel trees.
            Ok(kind) if kind.is_dir() => find_module(&entry.path()),
            Ok(_) => name
                .to_string_lossy()
                .starts_with("memguard.ko")
                .then(|| entry.path()),
            Err(_) => None,
        }
    })
}

/// True if the file ends as the kernel's scripts/sign-file leaves a module (`MODULE_SIG_STRING`).
fn is_signed(file: &Path) -> bool {
    const END: &[u8] = b"~Module signature appended~\n";
    let read = || {
        let file = File::open(file)?;
        let mut end = [0; END.len()];
        let begin = file.metadata()?.len().saturating_sub(END.len() as u64);
        file.read_exact_at(&mut end, begin).map(|()| end)
    };
    read().is_ok_and(|end| end == END)
}

pub(super) fn verdict(patient: &Patient) -> Verdict {
    let event = counting::traffic_event(patient);
    let can = |backend: &str, reason: &str| Verdict {
        can_run: true,
        backend: Some(backend.into()),
        event: event.clone(),
        reason: reason.into(),
    };
    let cannot = |reason: &str| Verdict {
        can_run: false,
        backend: None,
        event: None,
        reason: reason.into(),
    };
    match state(patient) {
        _ if !patient.live.root => cannot("regulation needs root: run this as root"),
        Module::Loaded => can("module", "the memguard module is loaded"),
        Module::Loadable => can(
            "module",
            "the memguard module is installed and can be loaded",
        ),
        Module::Signed => can(
            "module",
            "the memguard module is installed and signed, and loads if the kernel knows its key",
        ),
        _ if event.is_none() => cannot("no event to regulate by counts here"),
        _ if patient.live.fifo_refused.is_some() => {
            cannot("there is no module, and without SCHED_FIFO user space cannot throttle a core")
        }
        state => {
            if let Some(refused) = rt_limit_stays(patient) {
                return cannot(&format!(
                    "there is no module, and user space cannot lift the limit of real-time threads ({RT_RUNTIME}: {refused}); \
                     a container needs a writable /proc/sys, or the host kernel.sched_rt_runtime_us=-1"
                ));
            }
            let mut reason = match state {
                Module::MaybeSigned => "the module loads only if it is signed; perf events and SCHED_FIFO work in user space",
                _ => "no module can be loaded, but perf events and SCHED_FIFO work in user space",
            }
            .to_owned();
            if fair_server_obstacle(patient).is_some() {
                reason += &format!("; limited: {FAIR_SERVER_STAYS}");
            }
            can("user", &reason)
        }
    }
}

/// What a fair server does that the user-space regulator cannot turn off.
const FAIR_SERVER_STAYS: &str = "the fair server stays on, and by default lets a throttled core run for up to 50 ms of each \
                                 second";

/// Why the limit of real-time threads stays on while the user-space regulator runs; `None` if it can be lifted or is off.
fn rt_limit_stays<'a>(patient: &Patient<'a>) -> Option<&'a str> {
    let on = patient.root.number(RT_RUNTIME)? != -1;
    let refused = patient.live.rt_limit_refused.as_deref();
    refused.filter(|_| on)
}

/// Why a fair server that may be on cannot be turned off.
fn fair_server_obstacle(patient: &Patient) -> Option<Obstacle> {
    let mut servers = fair_server::servers(patient.root);
    servers.retain(|server| server.takes_ns() > 0);
    servers.into_iter().find_map(|server| server.obstacle)
}

pub(super) fn privileges(patient: &Patient) -> Finding {
    if patient.live.root {
        Finding::new(
            Level::Ok,
            "privileges",
            "root",
            "the settings below can be changed",
        )
    } else {
        Finding::new(
            Level::Limited,
            "privileges",
            "not root",
            "workloads run; counting other processes and regulating do not",
        )
        .change("sudo memwarden doctor")
    }
}

pub(super) fn module(patient: &Patient) -> Finding {
    let name = "memguard module";
    match state(patient) {
        Module::Loaded if patient.root.has("/dev/memguard") => {
            Finding::new(Level::Ok, name, "loaded", "the kernel regulates")
        }
        Module::Loaded => Finding::new(Level::Limited, name, "loaded, but its files are not visible", "it runs, but \
            its settings cannot be changed")
            .change("in a container, bind /dev/memguard into it; its files are devices, which udev or devtmpfs makes"),
        Module::Loadable => Finding::new(Level::Ok, name, "can be loaded", "memwarden guard start loads it"),
        Module::Signed => Finding::new(
            Level::Ok,
            name,
            "signed, and can be loaded if the kernel knows the key (for DKMS: mokutil --import, then a reboot)",
            "memwarden guard start loads it",
        ),
        Module::MaybeSigned => Finding::new(
            Level::Unknown,
            name,
            "built and compressed, so its signature was not looked for",
            "this kernel is locked down and loads only modules that are signed with a key that it knows",
        )
        .change("modinfo -F signer memguard prints its signer; memwarden guard start loads it if the kernel knows the key"),
        Module::Refused(why) => Finding::new(Level::Limited, name, format!("built, but {why}"), "user space can regulate, with later throttling")
            .change("memwarden guard start --backend user"),
        Module::NotBuilt => Finding::new(Level::Missing, name, "not built for this kernel", "user space can regulate, with later throttling")
            .change("make -C /lib/modules/$(uname -r)/build M=$PWD/kernel/memguard modules modules_install (needs this kernel's headers)"),
    }
}

fn mounted(patient: &Patient, kind: &str) -> bool {
    let mounts = patient.root.text("/proc/mounts").unwrap_or_default();
    mounts
        .lines()
        .any(|line| line.split(' ').nth(2) == Some(kind))
}

/// Secure Boot locks the kernel down on most distributions.
pub(super) fn lockdown(patient: &Patient) -> Finding {
    let name = "lockdown";
    match Lockdown::of(patient.root) {
        Lockdown::Off => Finding::new(
            Level::Ok,
            name,
            "no",
            "the kernel takes modules and shows debugfs",
        ),
        Lockdown::Unknown { reason, remedy } => Finding::new(
            Level::Unknown,
            name,
            reason,
            "it is unknown whether the kernel takes unsigned modules and shows debugfs",
        )
        .change(remedy),
        Lockdown::On(mode) if mode == "integrity" => Finding::new(
            Level::Limited,
            name,
            "integrity",
            "modules must be signed; debugfs cannot be used, so the fair server's settings are not visible (the guard module's files are in /dev/memguard)",
        )
        .change("sign the module with a key that the firmware knows (mokutil), or turn Secure Boot off"),
        Lockdown::On(mode) => Finding::new(
            Level::Limited,
            name,
            mode,
            // Of perf it blocks only PERF_SAMPLE_REGS_INTR (kernel/events/core.c), which memwarden does not use.
            "modules must be signed, and tracefs and debugfs cannot be used; perf still counts",
        )
        .change("boot with lockdown=integrity, or turn Secure Boot off"),
    }
}

pub(super) fn tracefs(patient: &Patient) -> Finding {
    if locked_down(patient).is_some_and(|mode| mode != "integrity") {
        return Finding::new(
            Level::Missing,
            "tracefs",
            "blocked by lockdown",
            "the trace of the periods cannot be read",
        )
        .change("boot with lockdown=integrity, or turn Secure Boot off");
    }
    if mounted(patient, "tracefs") {
        Finding::new(
            Level::Ok,
            "tracefs",
            "mounted",
            "the module's tracepoints can be read",
        )
    } else {
        Finding::new(
            Level::Missing,
            "tracefs",
            "not mounted",
            "the trace of the periods cannot be read",
        )
        .change("mount -t tracefs none /sys/kernel/tracing")
    }
}

pub(super) fn fifo(patient: &Patient) -> Finding {
    match &patient.live.fifo_refused {
        None => Finding::new(Level::Ok, "SCHED_FIFO", "granted", "a thread can throttle a core"),
        Some(reason) => {
            Finding::new(Level::Missing, "SCHED_FIFO", reason, "user space cannot throttle a core; victims run without \
                real-time priority")
                .change("run as root (or with CAP_SYS_NICE), in a cgroup that has real-time time (cpu.rt_runtime_us)")
        }
    }
}

pub(super) fn rt_throttling(patient: &Patient) -> Finding {
    let name = "RT throttling";
    let period = patient
        .root
        .number("/proc/sys/kernel/sched_rt_period_us")
        .unwrap_or(1_000_000);
    match patient.root.number(RT_RUNTIME) {
        Some(runtime) if runtime < 0 || runtime >= period => {
            Finding::new(Level::Ok, name, "off", "a real-time thread can throttle a core for any time")
        }
        Some(runtime) if patient.live.root && rt_limit_stays(patient).is_some() => Finding::new(
            Level::Missing,
            name,
            format!(
                "{} ms in each {} ms, and cannot be changed here ({})",
                runtime / 1000,
                period / 1000,
                rt_limit_stays(patient).unwrap_or_default()
            ),
            "the user-space regulator cannot start, and a SCHED_FIFO victim is stopped after that time (the module is \
             exempt if its throttle thread is ok)",
        )
        .change("outside of the container: sysctl -w kernel.sched_rt_runtime_us=-1"),
        Some(runtime) => Finding::new(
            Level::Limited,
            name,
            format!("{} ms in each {} ms", runtime / 1000, period / 1000),
            "a SCHED_FIFO victim is stopped after that time (the user-space regulator turns the limit off while it runs; \
             the module is exempt if its throttle thread is ok)",
        )
        .change("sysctl -w kernel.sched_rt_runtime_us=-1"),
        None => Finding::new(Level::Unknown, name, "the setting does not exist", "it is unknown how long a real-time \
            thread may run"),
    }
}

/// The class of the module's throttle thread, or the one that it would get.
pub(super) fn throttle_thread(patient: &Patient) -> Finding {
    let name = "throttle thread";
    let held = "the module holds a core whatever else wants to run there";
    let lets_through = "the module has to hold cores with SCHED_FIFO: RT throttling or the fair server lets a throttled \
                        core run for about 50 ms of each second, and tasks above SCHED_FIFO 50 always run";
    let stays = fair_server_obstacle(patient).is_some() || rt_limit_stays(patient).is_some();
    let remedy = if patient.live.root && stays {
        "a kernel with CONFIG_CPU_FREQ_GOV_SCHEDUTIL (--backend user cannot lift both limits here)"
    } else {
        "a kernel with CONFIG_CPU_FREQ_GOV_SCHEDUTIL; or memwarden guard start --backend user, which lifts both limits"
    };
    let unknown = "without schedutil, the module cannot hold a core all the time";
    if matches!(state(patient), Module::Loaded) {
        return match throttle_thread::class(patient.root) {
            Some(Class::Deadline) => Finding::new(Level::Ok, name, "SCHED_DEADLINE", held),
            Some(Class::Fifo) => {
                Finding::new(Level::Limited, name, "SCHED_FIFO only", lets_through).change(remedy)
            }
            None => Finding::new(
                Level::Unknown,
                name,
                "/proc does not show the module's threads",
                unknown,
            )
            .change("run outside of containers, as root"),
        };
    }
    match throttle_thread::kernel_has_schedutil(patient.root) {
        Some(true) => Finding::new(Level::Ok, name, "the kernel has schedutil", held),
        Some(false) => Finding::new(
            Level::Limited,
            name,
            "the kernel has no schedutil",
            lets_through,
        )
        .change(remedy),
        None => Finding::new(
            Level::Unknown,
            name,
            "the kernel's symbols cannot be read",
            unknown,
        )
        .change("a kernel with CONFIG_KALLSYMS and a mounted /proc shows them"),
    }
}

/// From 6.12 on, a deadline server gives normal tasks time ahead of real-time ones.
pub(super) fn fair_server(patient: &Patient) -> Finding {
    let name = "fair server";
    let root = patient.root;
    let version = fair_server::version(root);
    if version < (6, 12) {
        return Finding::new(
            Level::Ok,
            name,
            format!("not in Linux {}.{}", version.0, version.1),
            "only RT throttling limits real-time threads",
        );
    }
    let servers = fair_server::servers(root);
    if let Some(obstacle) = fair_server_obstacle(patient) {
        return if patient.live.root {
            let Obstacle { reason, remedy } = obstacle;
            Finding::new(Level::Limited, name, reason, FAIR_SERVER_STAYS).change(remedy)
        } else {
            Finding::new(
                Level::Unknown,
                name,
                "its settings are for root",
                "it is unknown how long a real-time thread may run",
            )
            .change("run as root")
        };
    }
    match servers.iter().max_by_key(|server| server.takes_ns()) {
        Some(Server {
            cpu,
            runtime_ns: Some(runtime_ns @ 1..),
            ..
        }) => Finding::new(
            Level::Limited,
            name,
            format!("CPU {cpu}: {} ms", runtime_ns / 1_000_000),
            "normal tasks get that much of each second ahead of a real-time thread: a SCHED_FIFO victim is stopped for \
             that time (the user-space regulator turns the server off while it runs; the module is exempt if its throttle \
             thread is ok)",
        )
        .change(format!(
            "for f in {FAIR_SERVER}/cpu*/runtime; do echo 0 > $f; done (with debugfs mounted)"
        )),
        _ => Finding::new(
            Level::Ok,
            name,
            "off",
            "a real-time thread can throttle a core for any time",
        ),
    }
}
