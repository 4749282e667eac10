// SPDX-License-Identifier: MIT OR Apache-2.0
//! Saved trees, one fault at a time.

use super::*;
use crate::counters::{EVENTS, Found, Trial};

/// A saved tree: the files of a plain machine, with some replaced.
struct Machine {
    directory: tempfile::TempDir,
    live: Live,
}

impl Machine {
    /// A server with a PMU on which every check passes.
    fn sound() -> Self {
        let count = |event: &counters::Event| Found {
            event: event.name.into(),
            source: event.source,
            trial: Trial::Counts {
                count: 1000,
                user_only: false,
            },
        };
        let live = Live {
            root: true,
            counters: Counters {
                pmus: vec!["cpu".into()],
                events: EVENTS.iter().map(count).collect(),
                hardware_counters: Some(6),
            },
            fifo_refused: None,
            rt_limit_refused: None,
        };
        let machine = Self {
            directory: tempfile::tempdir().unwrap(),
            live,
        };
        for (path, text) in [
            ("proc/sys/kernel/osrelease", "6.12.38-amd64"),
            ("proc/sys/kernel/perf_event_paranoid", "2"),
            ("proc/sys/kernel/perf_event_max_sample_rate", "1000000"),
            ("proc/sys/kernel/perf_cpu_time_max_percent", "100"),
            ("proc/sys/kernel/nmi_watchdog", "0"),
            ("proc/sys/kernel/modules_disabled", "0"),
            (
                "sys/kernel/security/lockdown",
                "[none] integrity confidentiality",
            ),
            ("proc/sys/kernel/sched_rt_runtime_us", "-1"),
            ("proc/sys/kernel/sched_rt_period_us", "1000000"),
            ("proc/modules", "memguard 49152 0 - Live 0x0000000000000000"),
            (
                "proc/mounts",
                "none /sys/kernel/debug debugfs rw 0 0\nnone /sys/kernel/tracing tracefs rw 0 0",
            ),
            (
                "proc/cpuinfo",
                "processor : 0\nmodel name : Sound\nvendor_id : GenuineIntel\ncpu family : 6\nmodel : 85\nflags : fpu tsc",
            ),
            ("proc/meminfo", "MemTotal: 1024 kB\nHugepagesize: 2048 kB"),
            ("dev/memguard/control", ""),
            ("proc/77/stat", &throttle_thread(6)),
            ("sys/kernel/debug/sched/fair_server/cpu0/runtime", "0"),
            (
                "sys/kernel/mm/transparent_hugepage/enabled",
                "always [madvise] never",
            ),
            (
                "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
                "64",
            ),
            (
                "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages",
                "64",
            ),
            ("sys/class/dma/dma0chan0/in_use", "0"),
            ("sys/class/dmi/id/product_name", "Server"),
            (
                "sys/devices/system/clocksource/clocksource0/current_clocksource",
                "tsc",
            ),
            ("sys/devices/system/cpu/online", "0"),
            ("sys/devices/system/cpu/isolated", "3"),
            ("sys/devices/system/cpu/smt/active", "0"),
            ("sys/devices/system/cpu/cpufreq/boost", "0"),
            (
                "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
                "performance",
            ),
            ("sys/devices/system/cpu/cpu0/cache/index0/level", "1"),
            ("sys/devices/system/cpu/cpu0/cache/index0/type", "Unified"),
            ("sys/devices/system/cpu/cpu0/cache/index0/size", "32K"),
            (
                "sys/devices/system/cpu/cpu0/cache/index0/shared_cpu_list",
                "0",
            ),
        ] {
            machine.write(path, text.as_bytes());
        }
        // Register 0x1a4 with all four prefetchers off.
        let mut registers = vec![0; 0x1a4];
        registers.extend(0xf_u64.to_le_bytes());
        machine.write("dev/cpu/0/msr", &registers);
        machine
    }

    /// Without the module, on a kernel with these symbols.
    fn without_module(self, symbols: &str) -> Self {
        self.with("proc/modules", "")
            .without("dev/memguard")
            .without("proc/77")
            .with("proc/kallsyms", symbols)
    }

    fn write(&self, path: &str, content: &[u8]) {
        let path = self.directory.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    fn remove(&self, path: &str) {
        let path = self.directory.path().join(path);
        if path.is_dir() {
            std::fs::remove_dir_all(path)
        } else {
            std::fs::remove_file(path)
        }
        .unwrap();
    }

    fn with(self, path: &str, text: &str) -> Self {
        self.write(path, text.as_bytes());
        self
    }

    fn without(self, path: &str) -> Self {
        self.remove(path);
        self
    }

    fn refusing(self, events: &[&str]) -> Self {
        self.answering(
            events,
            &Trial::NotSupported {
                reason: "No such file or directory".into(),
            },
        )
    }

    fn denying(self, events: &[&str]) -> Self {
        self.answering(
            events,
            &Trial::Denied {
                reason: "Permission denied".into(),
            },
        )
    }

    fn answering(mut self, events: &[&str], trial: &Trial) -> Self {
        let counters = &mut self.live.counters;
        for found in &mut counters.events {
            if events.contains(&found.event.as_str()) {
                found.trial = trial.clone();
            }
        }
        if events.contains(&"cycles") {
            counters.hardware_counters = None;
        }
        self
    }

    fn examine(&self) -> Diagnosis {
        examine(&Root::at(self.directory.path()), &self.live).unwrap()
    }

    fn finding(&self, name: &str) -> Finding {
        let diagnosis = self.examine();
        diagnosis
            .findings
            .into_iter()
            .find(|finding| finding.name == name)
            .unwrap_or_else(|| panic!("no {name}"))
    }
}

/// The line of the module's throttle thread with this scheduling policy, in /proc/PID/stat.
fn throttle_thread(policy: u32) -> String {
    // A kernel thread.
    format!(
        "77 (memguard/0) S 2 0 0 0 -1 2097152 {}0 {policy} 0\n",
        "0 ".repeat(30)
    )
}

/// The end of a signed module.
const SIGNATURE: &str = "~Module signature appended~\n";

const HARDWARE: [&str; 7] = [
    "cycles",
    "instructions",
    "cache-references",
    "cache-misses",
    "LLC-load-misses",
    "LLC-store-misses",
    "dTLB-load-misses",
];

#[test]
fn on_a_sound_machine_all_is_well() {
    let diagnosis = Machine::sound().examine();
    for finding in &diagnosis.findings {
        assert_eq!(
            (finding.level, &finding.change),
            (Level::Ok, &None),
            "{finding:?}"
        );
    }
    assert!(diagnosis.guard.can_run);
    assert_eq!(diagnosis.guard.backend.as_deref(), Some("module"));
}

#[test]
fn the_event_is_the_processor_s_own() {
    let found = |machine: Machine| machine.finding("memory traffic event").found;
    assert_eq!(found(Machine::sound()), "skylake-x (0x412e): only reads");
    let midr = "sys/devices/system/cpu/cpu0/regs/identification/midr_el1";
    let arm = Machine::sound().with(midr, "0x00000000410fd034\n");
    assert_eq!(found(arm), "cortex-a53 (0x17), writes 0x18");
    let hybrid = "processor : 0\nvendor_id : GenuineIntel\ncpu family : 6\nmodel : 151";
    let hybrid = Machine::sound().with("proc/cpuinfo", hybrid);
    let pmus = "sys/bus/event_source/devices";
    let hybrid = hybrid.with(&format!("{pmus}/cpu_core/cpus"), "0-3\n");
    assert_eq!(found(hybrid), "alderlake (0x412e): only reads");
    let westmere = "processor : 0\nvendor_id : GenuineIntel\ncpu family : 6\nmodel : 44";
    let westmere = Machine::sound().with("proc/cpuinfo", westmere);
    assert_eq!(
        found(westmere),
        "westmere (0x1b7:config1=0xf877): only reads"
    );
}

#[test]
fn every_fault_is_found_and_says_what_changes_it() {
    use Level::{Limited, Missing, Unknown};
    let sound = Machine::sound;
    let cpu = "sys/devices/system/cpu";
    let kernel = "proc/sys/kernel";
    let user = |mut machine: Machine| {
        machine.live.root = false;
        machine
    };
    let no_fifo = |mut machine: Machine| {
        machine.live.fifo_refused = Some("Operation not permitted".into());
        machine
    };
    let read_only = |mut machine: Machine| {
        machine.live.rt_limit_refused = Some("Read-only file system (os error 30)".into());
        machine
    };
    for (machine, name, level, found, change) in [
        (
            sound().refusing(&HARDWARE),
            "PMU",
            Missing,
            "no hardware event",
            "pmu=on",
        ),
        (
            sound().refusing(&["instructions"]),
            "PMU",
            Limited,
            "instructions",
            "",
        ),
        (
            sound().refusing(&HARDWARE),
            "memory traffic event",
            Limited,
            "page-faults",
            "--event",
        ),
        (
            sound().with(
                "proc/cpuinfo",
                "processor : 0\nvendor_id : GenuineIntel\ncpu family : 6\nmodel : 1",
            ),
            "memory traffic event",
            Limited,
            "CPU0 (maker 0x100, family 0x6, model 0x1) is not in the table of events",
            "guard events",
        ),
        (
            sound().denying(&HARDWARE),
            "PMU",
            Unknown,
            "not permitted (Permission denied)",
            "allow perf_event_open",
        ),
        (
            sound().denying(&HARDWARE),
            "counters at once",
            Unknown,
            "not permitted",
            "allow perf_event_open",
        ),
        (
            sound().refusing(&HARDWARE),
            "counters at once",
            Missing,
            "none",
            "",
        ),
        (
            sound().denying(&HARDWARE).denying(&["page-faults"]),
            "memory traffic event",
            Unknown,
            "not permitted",
            "allow perf_event_open",
        ),
        (
            sound().denying(&["page-faults"]),
            "page-faults event",
            Missing,
            "Permission denied",
            "allow perf_event_open",
        ),
        (
            sound().refusing(&["page-faults"]),
            "page-faults event",
            Missing,
            "No such file",
            "CONFIG_PERF_EVENTS",
        ),
        (
            user(sound()),
            "perf_event_paranoid",
            Limited,
            "2",
            "sysctl -w kernel.perf_event_paranoid",
        ),
        (
            user(sound()).with(&format!("{kernel}/perf_event_paranoid"), "4"),
            "perf_event_paranoid",
            Limited,
            "4",
            "sysctl -w kernel.perf_event_paranoid",
        ),
        (
            sound().with(&format!("{kernel}/perf_event_max_sample_rate"), "100000"),
            "perf's throttle",
            Limited,
            "100000",
            "max_sample_rate=1000000 && ",
        ),
        (
            sound().with(&format!("{kernel}/perf_cpu_time_max_percent"), "25"),
            "perf's throttle",
            Limited,
            "25 %",
            "max_percent=100",
        ),
        (
            sound().with(&format!("{kernel}/nmi_watchdog"), "1"),
            "NMI watchdog",
            Limited,
            "on",
            "nmi_watchdog=0",
        ),
        (user(sound()), "privileges", Limited, "not root", "sudo"),
        (
            sound().with("proc/modules", "").without("dev/memguard"),
            "memguard module",
            Missing,
            "not built",
            "make",
        ),
        (
            sound().without("dev/memguard"),
            "memguard module",
            Limited,
            "loaded",
            "devtmpfs",
        ),
        (
            sound().with(
                "sys/kernel/security/lockdown",
                "none [integrity] confidentiality",
            ),
            "lockdown",
            Limited,
            "integrity",
            "mokutil",
        ),
        (
            sound().without("sys/kernel/security"),
            "lockdown",
            Unknown,
            "securityfs is not mounted",
            "mount -t securityfs",
        ),
        (
            sound().with(
                "sys/kernel/security/lockdown",
                "none integrity [confidentiality]",
            ),
            "lockdown",
            Limited,
            "confidentiality",
            "lockdown=integrity",
        ),
        (
            sound().with(
                "sys/kernel/security/lockdown",
                "none integrity [confidentiality]",
            ),
            "tracefs",
            Missing,
            "blocked",
            "lockdown=integrity",
        ),
        (
            sound().with("sys/kernel/debug/sched/fair_server/cpu0/runtime", ""),
            "fair server",
            Limited,
            "is no number",
            "",
        ),
        (
            sound().with("proc/mounts", ""),
            "tracefs",
            Missing,
            "not mounted",
            "mount -t tracefs",
        ),
        (
            no_fifo(sound()),
            "SCHED_FIFO",
            Missing,
            "not permitted",
            "root",
        ),
        (
            sound().with(&format!("{kernel}/sched_rt_runtime_us"), "950000"),
            "RT throttling",
            Limited,
            "950 ms",
            "sched_rt_runtime_us=-1",
        ),
        (
            read_only(sound().with(&format!("{kernel}/sched_rt_runtime_us"), "950000")),
            "RT throttling",
            Missing,
            "950 ms in each 1000 ms, and cannot be changed here (Read-only file system",
            "outside of the container: sysctl -w kernel.sched_rt_runtime_us=-1",
        ),
        (
            sound().with(
                "sys/kernel/debug/sched/fair_server/cpu0/runtime",
                "50000000",
            ),
            "fair server",
            Limited,
            "CPU 0: 50 ms",
            "/runtime",
        ),
        (
            sound().with("proc/77/stat", &throttle_thread(1)),
            "throttle thread",
            Limited,
            "SCHED_FIFO only",
            "CONFIG_CPU_FREQ_GOV_SCHEDUTIL",
        ),
        (
            sound().without("proc/77"),
            "throttle thread",
            Unknown,
            "/proc does not show",
            "root",
        ),
        (
            sound().without_module("0000000000000000 T vfs_read\n"),
            "throttle thread",
            Limited,
            "no schedutil",
            "--backend user, which lifts both limits",
        ),
        (
            sound()
                .without_module("0000000000000000 T vfs_read\n")
                .without("sys/kernel/debug/sched"),
            "throttle thread",
            Limited,
            "no schedutil",
            "--backend user cannot lift both limits",
        ),
        (
            sound().without_module(""),
            "throttle thread",
            Unknown,
            "symbols",
            "CONFIG_KALLSYMS",
        ),
        (
            sound()
                .without("sys/kernel/debug/sched")
                .with("proc/mounts", ""),
            "fair server",
            Limited,
            "does not exist",
            "mount -t debugfs",
        ),
        (
            user(sound().without("sys/kernel/debug/sched")),
            "fair server",
            Unknown,
            "root",
            "root",
        ),
        (
            sound()
                .without("sys/kernel/debug/sched/fair_server/cpu0/runtime")
                .with("sys/kernel/debug/sched/fair_server/cpu0/runtime/folder", ""),
            "fair server",
            Limited,
            "cannot be set",
            "",
        ),
        (
            sound().with("proc/cpuinfo", "flags : fpu hypervisor"),
            "virtualised",
            Limited,
            "yes",
            "",
        ),
        (
            sound().with(&format!("{cpu}/isolated"), ""),
            "isolated CPUs",
            Limited,
            "none",
            "isolcpus=",
        ),
        (
            sound().with(&format!("{cpu}/smt/active"), "1"),
            "SMT",
            Limited,
            "on",
            "smt/control",
        ),
        (
            sound().without(&format!("{cpu}/smt")),
            "SMT",
            Unknown,
            "",
            "",
        ),
        (
            sound().with(&format!("{cpu}/cpu0/cpufreq/scaling_governor"), "powersave"),
            "frequency governor",
            Limited,
            "powersave",
            "performance",
        ),
        (
            sound().without(&format!("{cpu}/cpu0/cpufreq")),
            "frequency governor",
            Unknown,
            "no cpufreq",
            "",
        ),
        (
            sound().with(&format!("{cpu}/cpufreq/boost"), "1"),
            "frequency boost",
            Limited,
            "on",
            "echo 0",
        ),
        (
            sound().with(
                "sys/devices/system/clocksource/clocksource0/current_clocksource",
                "hpet",
            ),
            "clock",
            Limited,
            "hpet",
            "clocksource=",
        ),
        (
            sound().without(&format!("{cpu}/cpu0/cache/index0/size")),
            "caches",
            Unknown,
            "does not report",
            "",
        ),
        (
            sound().without(&format!("{cpu}/cpu0/cache")),
            "caches",
            Unknown,
            "",
            "",
        ),
        (
            sound().with("dev/cpu/0/msr", &"\0".repeat(0x1ac)),
            "prefetchers",
            Limited,
            "on",
            "wrmsr",
        ),
        (
            sound().without("dev"),
            "prefetchers",
            Unknown,
            "",
            "modprobe msr",
        ),
        (
            sound().with("proc/cpuinfo", "CPU part : 0xd03"),
            "prefetchers",
            Unknown,
            "",
            "firmware",
        ),
        (
            sound().with("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0"),
            "huge pages",
            Missing,
            "none reserved",
            "nr_hugepages",
        ),
        (
            sound().with(
                "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages",
                "0",
            ),
            "huge pages",
            Limited,
            "0 of 64",
            "nr_hugepages",
        ),
        (
            sound()
                .with(
                    "proc/meminfo",
                    "MemTotal: 8388608 kB\nMemAvailable: 6291456 kB\nHugepagesize: 524288 kB",
                )
                .with(
                    "sys/kernel/mm/hugepages/hugepages-524288kB/nr_hugepages",
                    "0",
                )
                .with(
                    "sys/kernel/mm/hugepages/hugepages-524288kB/free_hugepages",
                    "0",
                ),
            "huge pages",
            Missing,
            "none reserved (512 MiB each)",
            "echo 1 >",
        ),
        (
            sound().without("sys/kernel/mm/hugepages"),
            "huge pages",
            Missing,
            "no",
            "CONFIG_HUGETLBFS",
        ),
        (
            sound().with(
                "sys/kernel/mm/transparent_hugepage/enabled",
                "[always] madvise never",
            ),
            "transparent huge pages",
            Limited,
            "always",
            "echo madvise",
        ),
        (
            sound().without("sys/class/dma"),
            "DMA engines",
            Missing,
            "none",
            "modprobe",
        ),
    ] {
        let finding = machine.finding(name);
        assert_eq!(finding.level, level, "{finding:?}");
        assert!(finding.found.contains(found), "{found:?} in {finding:?}");
        assert!(
            finding.change.clone().unwrap_or_default().contains(change),
            "{change:?} in {finding:?}"
        );
        assert!(!finding.meaning.is_empty(), "{finding:?}");
    }
}

#[test]
fn a_locked_down_kernel_takes_a_signed_module() {
    let module = |content: &str, ending: &str| {
        let file = format!("lib/modules/6.12.38-amd64/updates/dkms/memguard.{ending}");
        let locked = "none [integrity] confidentiality";
        let machine = Machine::sound()
            .without_module("")
            .with(&file, content)
            .with("sys/kernel/security/lockdown", locked);
        let finding = machine.finding("memguard module");
        (finding.level, finding.found)
    };
    let signed = format!("ELF{SIGNATURE}");
    for (content, ending, level, found) in [
        (signed.as_str(), "ko", Level::Ok, "signed"),
        ("ELF", "ko", Level::Limited, "locked down"),
        ("", "ko", Level::Limited, "locked down"),
        ("compressed", "ko.zst", Level::Unknown, "compressed"),
    ] {
        let (is, says) = module(content, ending);
        assert_eq!(is, level, "{content:?} {ending}: {says}");
        assert!(says.contains(found), "{content:?} {ending}: {says}");
    }
}

#[test]
fn user_space_regulates_on_a_kernel_in_the_strictest_lockdown() {
    let machine = Machine::sound().without_module("").with(
        "sys/kernel/security/lockdown",
        "none integrity [confidentiality]",
    );
    let finding = machine.finding("lockdown");
    assert!(finding.meaning.contains("perf still counts"), "{finding:?}");
    assert!(!finding.meaning.contains("can't regulate"), "{finding:?}");
    let verdict = machine.examine().guard;
    assert_eq!(verdict.backend.as_deref(), Some("user"), "{verdict:?}");
}

#[test]
fn what_an_ordinary_user_may_count_depends_on_the_level() {
    for (level, says) in [
        ("1", "only this user's own processes can be counted"),
        ("2", "only this user's own processes can be counted"),
        (
            "3",
            "nothing can be counted on Debian's and Ubuntu's kernels",
        ),
        (
            "4",
            "nothing can be counted on Debian's and Ubuntu's kernels",
        ),
    ] {
        let mut machine = Machine::sound().with("proc/sys/kernel/perf_event_paranoid", level);
        machine.live.root = false;
        let finding = machine.finding("perf_event_paranoid");
        assert!(finding.meaning.contains(says), "{finding:?}");
    }
}

#[test]
fn a_counter_that_opens_and_stays_at_0_is_not_ok() {
    let mut machine = Machine::sound();
    machine.live.counters.events[1].trial = Trial::CountsNothing;
    let finding = machine.finding("PMU");
    assert_eq!(finding.level, Level::Limited);
    assert!(
        finding
            .found
            .contains("instructions opens but counts nothing"),
        "{finding:?}"
    );
}

#[test]
fn the_guard_runs_on_the_best_backend_there_is() {
    let unloaded = || {
        Machine::sound()
            .with("proc/modules", "")
            .without("dev/memguard")
    };
    let built = || unloaded().with("lib/modules/6.12.38-amd64/extra/memguard.ko", "");
    let locked = |content: &str, ending: &str| {
        let file = format!("lib/modules/6.12.38-amd64/updates/dkms/memguard.{ending}");
        unloaded().with(&file, content).with(
            "sys/kernel/security/lockdown",
            "none [integrity] confidentiality",
        )
    };
    let mut user = built();
    user.live.root = false;
    let mut helpless = unloaded().refusing(&HARDWARE).refusing(&["page-faults"]);
    helpless.live.root = false;
    let mut no_fifo = unloaded();
    no_fifo.live.fifo_refused = Some("Operation not permitted".into());
    let read_only = |mut machine: Machine, limit: &str| {
        machine.live.rt_limit_refused = Some("Read-only file system (os error 30)".into());
        machine.with("proc/sys/kernel/sched_rt_runtime_us", limit)
    };
    for (machine, can_run, backend, event, reason) in [
        (
            read_only(unloaded(), "950000"),
            false,
            None,
            None,
            "sched_rt_runtime_us: Read-only file system",
        ),
        // Nothing needs to be written.
        (
            read_only(unloaded(), "-1"),
            true,
            Some("user"),
            Some("skylake-x"),
            "perf events",
        ),
        (
            read_only(Machine::sound(), "950000"),
            true,
            Some("module"),
            Some("skylake-x"),
            "loaded",
        ),
        (
            unloaded().without("sys/kernel/debug/sched"),
            true,
            Some("user"),
            Some("skylake-x"),
            "user space; limited: the fair server stays on",
        ),
        (
            Machine::sound(),
            true,
            Some("module"),
            Some("skylake-x"),
            "loaded",
        ),
        (
            built(),
            true,
            Some("module"),
            Some("skylake-x"),
            "can be loaded",
        ),
        (
            built()
                .with("lib/modules/6.12.38-amd64/modules.dep", "")
                .refusing(&HARDWARE),
            true,
            Some("module"),
            Some("page-faults"),
            "can be loaded",
        ),
        (
            built().with("proc/sys/kernel/modules_disabled", "1"),
            true,
            Some("user"),
            Some("skylake-x"),
            "perf events",
        ),
        (
            built().with(
                "sys/kernel/security/lockdown",
                "none [integrity] confidentiality",
            ),
            true,
            Some("user"),
            Some("skylake-x"),
            "perf events",
        ),
        (
            locked(&format!("ELF{SIGNATURE}"), "ko"),
            true,
            Some("module"),
            Some("skylake-x"),
            "if the kernel knows its key",
        ),
        (
            locked(&format!("ELF{SIGNATURE} "), "ko"),
            true,
            Some("user"),
            Some("skylake-x"),
            "no module can be loaded",
        ),
        (
            locked("compressed", "ko.xz"),
            true,
            Some("user"),
            Some("skylake-x"),
            "only if it is signed",
        ),
        (
            unloaded(),
            true,
            Some("user"),
            Some("skylake-x"),
            "perf events",
        ),
        (
            unloaded().refusing(&HARDWARE),
            true,
            Some("user"),
            Some("page-faults"),
            "perf events",
        ),
        (user, false, None, None, "root"),
        (no_fifo, false, None, None, "SCHED_FIFO"),
        (helpless, false, None, None, "root"),
    ] {
        let verdict = machine.examine().guard;
        assert_eq!(verdict.can_run, can_run, "{verdict:?}");
        assert_eq!(verdict.backend.as_deref(), backend, "{verdict:?}");
        assert_eq!(verdict.event.as_deref(), event, "{verdict:?}");
        assert!(verdict.reason.contains(reason), "{reason:?} in {verdict:?}");
    }
}

#[test]
fn a_tree_that_is_no_machine_is_an_error() {
    let empty = tempfile::tempdir().unwrap();
    let message = examine(&Root::at(empty.path()), &Machine::sound().live)
        .unwrap_err()
        .to_string();
    assert_eq!(message, "cannot read /proc/sys/kernel/osrelease");
}

#[test]
fn this_machine_can_be_examined() {
    let diagnosis = examine(&Root::system(), &Live::probe()).unwrap();
    assert_eq!(diagnosis.findings.len(), CHECKS.len());
    let text = serde_json::to_string(&diagnosis).unwrap();
    assert_eq!(serde_json::from_str::<Diagnosis>(&text).unwrap(), diagnosis);
}
