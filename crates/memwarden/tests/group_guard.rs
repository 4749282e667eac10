// SPDX-License-Identifier: MIT OR Apache-2.0
//! A budget for a control group on this machine, and the fate of the group when its regulator is killed, stopped, stuck
//! or panics: the group runs again, and is removed if it was created for the command.
//!
//! Groups are stopped for nearly a second at a time here, so that every fault falls into a stop. The time that the
//! group stayed stopped is printed and not judged: it depends on the host's load.

mod processes;

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use processes::{child_of, eventually, stat, supervisor_and_regulator};

/// Tests run in parallel, each with its own group.
static GROUPS: AtomicU32 = AtomicU32::new(0);

struct Rig {
    folder: tempfile::TempDir,
    /// Path below the mount point of cgroup2.
    name: String,
    group: PathBuf,
    run: Option<Child>,
    command: Option<Pid>,
}

fn skip<T>(why: &str) -> Option<T> {
    eprintln!("skipped: {why}");
    None
}

impl Rig {
    /// `None`, with the reason printed, if the machine can't run the test.
    fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return skip("a budget for a group needs root");
        }
        let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
        let mount = mounts
            .lines()
            .map(|line| line.split(' ').collect::<Vec<_>>())
            .find(|words| words.get(2) == Some(&"cgroup2"));
        let Some(mount) = mount else {
            return skip("no cgroup2 is mounted");
        };
        let number = GROUPS.fetch_add(1, Ordering::Relaxed);
        let name = format!("memwarden-test-{}-{number}", std::process::id());
        let rig = Self {
            folder: tempfile::tempdir().unwrap(),
            group: PathBuf::from(mount[1]).join(&name),
            name,
            run: None,
            command: None,
        };
        if let Err(error) = fs::create_dir(&rig.group) {
            return skip(&format!("no group can be made here: {error}"));
        }
        let freezes = rig.group.join("cgroup.freeze").exists();
        fs::remove_dir(&rig.group).unwrap();
        if !freezes {
            return skip("groups can't be frozen here");
        }
        let tried = rig.memwarden("--events 1000 -- true");
        let said = String::from_utf8_lossy(&tried.stderr);
        if said.contains("cannot be counted") || said.contains("SCHED_FIFO") {
            return skip(&said);
        }
        assert!(tried.status.success(), "{said}");
        Some(rig)
    }

    /// `guard run` in our group; `line` continues with budget and command.
    fn command(&self, line: &str) -> Command {
        self.guard(&format!(
            "run --cgroup {} --event page-faults {line}",
            self.name
        ))
    }

    fn guard(&self, line: &str) -> Command {
        processes::memwarden(self.folder.path(), &format!("guard {line}"))
    }

    fn memwarden(&self, line: &str) -> Output {
        self.command(line).output().unwrap()
    }

    fn is_frozen(&self) -> bool {
        fs::read_to_string(self.group.join("cgroup.events"))
            .is_ok_and(|text| text.contains("frozen 1"))
    }

    /// Starts traffic that is currently stopped, for nearly a second.
    fn stop_traffic(&mut self, fault: &str) {
        let mut command = self.command("--events 50 --period 1000ms --");
        command
            .args([env!("CARGO_BIN_EXE_memwarden"), "bandwidth"])
            .args("--fresh-pages -m 1M -t 0".split(' '))
            .env("MEMWARDEN_TEST_FAULT", fault)
            .stdout(Stdio::null())
            .stderr(fs::File::create(self.folder.path().join("said")).unwrap());
        let run = command.spawn().unwrap();
        let mut found = None;
        eventually("the command has started", || {
            found = child_of(run.id());
            found.is_some()
        });
        self.command = found;
        self.run = Some(run);
        if fault.is_empty() {
            eventually("the group is stopped", || self.is_frozen());
        }
    }

    /// CPU time of the command, in clock ticks.
    fn ticks(&self) -> u64 {
        let pid = self.command.unwrap().as_raw_nonzero().get() as u32;
        stat(pid, 14) + stat(pid, 15)
    }

    fn records(&self) -> usize {
        let names = fs::read_dir(self.folder.path()).unwrap().flatten();
        names
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("group-"))
            .count()
    }

    /// Expects that the command runs freely.
    fn expect_freedom(&self, what: &str, since: Instant) {
        eventually("the group is let go", || !self.is_frozen());
        let let_go = since.elapsed();
        let before = self.ticks();
        // More CPU time than a budget of 50 pages a second allows.
        eventually("the group runs again", || self.ticks() > before + 10);
        println!(
            "{what}: let go {} ms later, and 100 ms of CPU time had after {} ms",
            let_go.as_millis(),
            since.elapsed().as_millis()
        );
        assert!(!self.is_frozen());
    }

    /// Expects that `guard run` says while the command runs that it has no budget.
    fn expect_told_at_once(&self) {
        eventually("it is told", || {
            let said = fs::read_to_string(self.folder.path().join("said")).unwrap();
            said.contains("the command continues without a budget")
        });
    }

    /// Ends the command; returns the exit code and output of `guard run`.
    fn end(&mut self) -> (Option<i32>, String) {
        let _ = kill_process(self.command.take().unwrap(), Signal::KILL);
        let status = self.run.take().unwrap().wait().unwrap();
        let said = fs::read_to_string(self.folder.path().join("said")).unwrap();
        (status.code(), said)
    }

    fn expect_nothing_left(&self) {
        eventually("the group is gone", || !self.group.exists());
        eventually("the record is gone", || self.records() == 0);
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(command) = self.command.take() {
            let _ = kill_process(command, Signal::KILL);
        }
        if let Some(mut run) = self.run.take() {
            let _ = run.kill();
            let _ = run.wait();
        }
        let _ = self.guard("stop").output();
        let _ = fs::write(self.group.join("cgroup.freeze"), "0");
        let _ = fs::write(self.group.join("cgroup.kill"), "1");
        let _ = fs::remove_dir(&self.group);
    }
}

/// Hurts the regulator; the command must go on, and `guard run` must report that it had no budget.
fn end_of_regulator(what: &str, said: &str, hurt: impl FnOnce(Pid, Pid)) {
    let Some(mut rig) = Rig::new() else { return };
    rig.stop_traffic("");
    let (supervisor, regulator) = supervisor_and_regulator(rig.folder.path());
    let since = Instant::now();
    hurt(supervisor, regulator);
    rig.expect_freedom(what, since);
    rig.expect_told_at_once();
    let (code, text) = rig.end();
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains(said), "{text}");
    rig.expect_nothing_left();
}

#[test]
fn a_group_s_name_may_have_any_bytes() {
    let Some(rig) = Rig::new() else { return };
    let name = OsString::from_vec([rig.name.as_bytes(), b"-caf\xe9"].concat());
    let mut command = rig.guard("run --events 1000 --event page-faults --json --cgroup");
    command.arg(&name).args(["--", "cat", "/proc/self/cgroup"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let is_name = |part: &[u8]| part == name.as_bytes();
    assert!(output.stdout.windows(name.len()).any(is_name), "{output:?}");
    let summary = String::from_utf8(output.stderr).unwrap();
    let summary: Value = serde_json::from_str(summary.lines().last().unwrap()).unwrap();
    let bytes = summary["cgroup"].as_array().unwrap();
    assert_eq!(bytes.last().unwrap(), 0xe9);
    assert!(!rig.group.with_file_name(name).exists());
}

#[test]
fn a_killed_regulator_leaves_no_group_stopped() {
    end_of_regulator("regulator killed", "killed by signal 9", |_, regulator| {
        kill_process(regulator, Signal::KILL).unwrap();
    });
}

#[test]
fn a_stopped_regulator_leaves_no_group_stopped() {
    end_of_regulator("regulator stopped", "was stopped", |_, regulator| {
        kill_process(regulator, Signal::STOP).unwrap();
    });
}

#[test]
fn both_killed_at_once_guard_run_lets_the_group_go() {
    end_of_regulator("both killed", "was killed", |supervisor, regulator| {
        kill_process(supervisor, Signal::KILL).unwrap();
        kill_process(regulator, Signal::KILL).unwrap();
    });
}

#[test]
fn a_killed_supervisor_leaves_no_group_stopped() {
    end_of_regulator("supervisor killed", "was killed", |supervisor, _| {
        kill_process(supervisor, Signal::KILL).unwrap();
    });
}

#[test]
fn a_stopped_supervisor_is_ended_by_guard_run() {
    end_of_regulator("supervisor stopped", "was killed", |supervisor, _| {
        kill_process(supervisor, Signal::STOP).unwrap();
    });
}

#[test]
fn both_stopped_guard_run_lets_the_group_go() {
    let Some(mut rig) = Rig::new() else { return };
    rig.stop_traffic("");
    let (supervisor, regulator) = supervisor_and_regulator(rig.folder.path());
    let since = Instant::now();
    // Stop the supervisor first: it ends within 10 ms when it sees a stopped regulator.
    kill_process(supervisor, Signal::STOP).unwrap();
    kill_process(regulator, Signal::STOP).unwrap();
    rig.expect_freedom("both stopped", since);
    // A process that was only stopped ends as soon as it continues.
    let _ = kill_process(regulator, Signal::CONT);
    let (code, text) = rig.end();
    assert_eq!(code, Some(1), "{text}");
    rig.expect_nothing_left();
}

#[test]
fn guard_stop_puts_back_what_stopped_processes_hold() {
    let Some(mut rig) = Rig::new() else { return };
    rig.stop_traffic("");
    let (supervisor, regulator) = supervisor_and_regulator(rig.folder.path());
    // Stop the client first: it would handle the others.
    let mut run = rig.run.take().unwrap();
    for pid in [Pid::from_child(&run), regulator, supervisor] {
        kill_process(pid, Signal::STOP).unwrap();
    }
    let since = Instant::now();
    let stopped = rig.guard("stop").output().unwrap();
    assert!(stopped.status.success(), "{stopped:?}");
    rig.expect_freedom("all stopped, then guard stop", since);
    rig.expect_nothing_left();
    let _ = kill_process(regulator, Signal::KILL);
    run.kill().unwrap();
    run.wait().unwrap();
}

#[test]
fn a_regulator_that_is_stuck_or_panics_leaves_no_group_stopped() {
    for (fault, said) in [
        ("stuck:0", "past its time"),
        ("panic:0", "killed by signal 6"),
    ] {
        let Some(mut rig) = Rig::new() else { return };
        let since = Instant::now();
        rig.stop_traffic(fault);
        eventually("the regulator has ended", || rig.records() == 0);
        rig.expect_freedom(fault, since);
        let (code, text) = rig.end();
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains(said), "{text}");
        rig.expect_nothing_left();
    }
}

#[test]
fn guard_run_killed_leaves_the_command_free_and_no_group() {
    let Some(mut rig) = Rig::new() else { return };
    rig.stop_traffic("");
    let since = Instant::now();
    let mut run = rig.run.take().unwrap();
    run.kill().unwrap();
    run.wait().unwrap();
    rig.expect_freedom("guard run killed", since);
    rig.expect_nothing_left();
}

#[test]
fn signals_reach_a_stopped_command_and_the_end_is_in_order() {
    // `bandwidth` ends in order on SIGTERM and SIGINT, once it has started.
    for (signal, codes) in [
        (Signal::TERM, [0, 128 + 15]),
        (Signal::INT, [0, 128 + 2]),
        (Signal::HUP, [128 + 1; 2]),
    ] {
        let Some(mut rig) = Rig::new() else { return };
        rig.stop_traffic("");
        let mut run = rig.run.take().unwrap();
        kill_process(Pid::from_child(&run), signal).unwrap();
        let code = run.wait().unwrap().code().unwrap();
        assert!(codes.contains(&code), "{signal:?}: {code}");
        rig.expect_nothing_left();
    }
}

#[test]
fn all_killed_at_once_guard_stop_puts_everything_back() {
    let Some(mut rig) = Rig::new() else { return };
    rig.stop_traffic("");
    let (supervisor, regulator) = supervisor_and_regulator(rig.folder.path());
    let mut run = rig.run.take().unwrap();
    run.kill().unwrap();
    for pid in [supervisor, regulator] {
        let _ = kill_process(pid, Signal::KILL);
    }
    run.wait().unwrap();
    let since = Instant::now();
    let stopped = rig.guard("stop").output().unwrap();
    rig.expect_freedom("guard stop", since);
    rig.expect_nothing_left();
    println!("{}", String::from_utf8_lossy(&stopped.stderr));
}

#[test]
fn guard_stop_ends_a_group_that_is_regulated() {
    let Some(mut rig) = Rig::new() else { return };
    rig.stop_traffic("");
    let since = Instant::now();
    let stopped = rig.guard("stop").output().unwrap();
    assert!(stopped.status.success(), "{stopped:?}");
    rig.expect_freedom("guard stop", since);
    rig.expect_nothing_left();
    rig.expect_told_at_once();
    let (code, text) = rig.end();
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("it was stopped"), "{text}");
}

#[test]
fn a_group_that_was_stopped_early_is_not_held_in_json() {
    let Some(rig) = Rig::new() else { return };
    // The command ends regulation of its own group. It may end before the regulator's processes have.
    for _ in 0..2 {
        let outcome = rig
            .command("--events 1000 --json --")
            .args([env!("CARGO_BIN_EXE_memwarden"), "guard", "stop"])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&outcome.stderr);
        assert_eq!(outcome.status.code(), Some(1), "{said}");
        let last = said.lines().last().unwrap();
        let summary: Value = serde_json::from_str(last).unwrap_or_else(|_| panic!("{said}"));
        assert_eq!(summary["held"], false);
        assert!(
            summary["lost"].as_str().unwrap().contains("it was stopped"),
            "{said}"
        );
    }
}

#[test]
fn the_budget_holds_and_the_summary_says_so() {
    let Some(rig) = Rig::new() else { return };
    let run = || {
        rig.command("--events 200 --period 10ms --json --")
            .args([env!("CARGO_BIN_EXE_memwarden"), "bandwidth"])
            .args("--fresh-pages -m 1M -t 3".split(' '))
            .output()
            .unwrap()
    };
    let mut outcome = run();
    for _ in 0..4 {
        // The host stood still, and the supervisor took the regulator for stuck.
        if !String::from_utf8_lossy(&outcome.stderr).contains("past its time") {
            break;
        }
        outcome = run();
    }
    let said = String::from_utf8_lossy(&outcome.stderr);
    assert!(outcome.status.success(), "{said}");
    let last = said.lines().last().unwrap();
    let summary: Value = serde_json::from_str(last).unwrap_or_else(|_| panic!("{said}"));
    println!("{last}");
    let number = |key: &str| summary[key].as_f64().unwrap_or_else(|| panic!("{key}"));
    assert_eq!(summary["budget_events"], 200);
    assert_eq!(summary["stop_with"], "freezer");
    assert!(number("stopped_periods") > 0.0);
    // The lab test (tests/lab/guard-cgroup.sh) judges the overshoot during a stop; here it depends on the host's other
    // work.
    // But the overshoot is taken off later periods, except for the 500 events that may be saved and what is owed at the
    // end:
    // at most a second's budget.
    let periods = number("periods") + number("missed_periods");
    assert!(
        number("used_events") <= 200.0 * periods + 500.0 + 20_000.0,
        "{last}"
    );
    // The verdict is that of the figures; whether the group was held depends on the host's other work.
    let held = number("worst_second_mib_s") <= 1.05 * number("budget_mib_s");
    assert_eq!(summary["held"], held, "{last}");
    assert_eq!(summary["not_held"].is_null(), held, "{last}");
    // Consistency: no period exceeds the worst one, and the smallest second does not exceed the worst.
    assert!(
        number("used_events") <= number("worst_period_events") * periods,
        "{last}"
    );
    if let Some(least) = summary["least_second_mib_s"].as_f64() {
        assert!(least <= number("worst_second_mib_s"), "{last}");
    }
    assert!(!rig.group.exists());
    assert_eq!(rig.records(), 0);
}

#[test]
fn a_group_that_was_there_is_left_as_it_was() {
    let Some(rig) = Rig::new() else { return };
    fs::create_dir(&rig.group).unwrap();
    let mut sleeper = Command::new("sleep").arg("1000").spawn().unwrap();
    fs::write(rig.group.join("cgroup.procs"), sleeper.id().to_string()).unwrap();
    let outcome = rig.memwarden("--mb max -- sh -c exit\t7");
    assert_eq!(outcome.status.code(), Some(7), "{outcome:?}");
    let said = String::from_utf8_lossy(&outcome.stderr);
    assert!(said.contains("no budget"), "{said}");
    let members = fs::read_to_string(rig.group.join("cgroup.procs")).unwrap();
    assert_eq!(members.trim(), sleeper.id().to_string());
    assert!(!rig.is_frozen());
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
}

#[test]
fn groups_below_are_removed_if_empty_and_told_if_not() {
    let Some(rig) = Rig::new() else { return };
    let below = rig.group.join("a/b");
    let outcome = rig
        .command("--events 1000 -- mkdir -p")
        .arg(&below)
        .output()
        .unwrap();
    assert!(outcome.status.success(), "{outcome:?}");
    rig.expect_nothing_left();
    let outcome = rig
        .command("--events 1000 -- sh -c")
        .arg(format!(
            "mkdir -p {0}; sleep 1000 >/dev/null 2>&1 & echo $! > {0}/cgroup.procs",
            below.display()
        ))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&outcome.stderr);
    assert!(outcome.status.success(), "{said}");
    let left = fs::read_to_string(below.join("cgroup.procs")).unwrap();
    let pid = Pid::from_raw(left.trim().parse().unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    eventually("the group below is empty", || {
        fs::read_to_string(below.join("cgroup.procs")).is_ok_and(|text| text.is_empty())
    });
    for group in [&below, below.parent().unwrap(), &rig.group] {
        eventually("the group is removed", || fs::remove_dir(group).is_ok());
    }
    assert!(
        said.contains(&format!("removing {}", rig.group.display())),
        "{said}"
    );
    assert!(
        said.contains("memwarden: ") && said.contains("periods"),
        "{said}"
    );
}

#[test]
fn what_the_command_leaves_running_goes_home() {
    let Some(rig) = Rig::new() else { return };
    let outcome = rig
        .command("--events 1000 -- sh -c")
        .arg("sleep 1000 >/dev/null 2>&1 & echo $!")
        .output()
        .unwrap();
    assert!(outcome.status.success(), "{outcome:?}");
    let pid: i32 = String::from_utf8_lossy(&outcome.stdout)
        .trim()
        .parse()
        .unwrap();
    rig.expect_nothing_left();
    let group = |pid: &str| {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
        text.lines().last().unwrap().to_owned()
    };
    let (left, own) = (group(&pid.to_string()), group("self"));
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    assert_eq!(left, own);
}

#[test]
fn what_cannot_be_is_refused_in_one_line_and_leaves_nothing() {
    let Some(rig) = Rig::new() else { return };
    let name = &rig.name;
    for (line, expected) in [
        (
            format!("--cgroup {name} --mb 1,2 -- true"),
            "2 budgets for one group",
        ),
        (format!("--cgroup {name} --mb 3 -- true"), "give 4 or more"),
        (
            format!("--cgroup {name} --event z80 --mb 9 -- true"),
            "event `z80` is unknown",
        ),
        (
            format!("--cgroup {name} --backend module --mb 9 -- true"),
            "--backend module",
        ),
        (
            format!("--cgroup {name}/a/b --mb 9 -- true"),
            "making the group",
        ),
        (format!("--cgroup ../{name} --mb 9 -- true"), "without `..`"),
        ("--cgroup /tmp/a --mb 9 -- true".into(), "not below"),
        ("--cgroup . --mb 9 -- true".into(), "the root group"),
        (
            format!("--cgroup {name} --mb 9 -- /no/such/program"),
            "starting /no/such/program",
        ),
        (
            format!("--cgroup {name} --cpus 8000 --mb 9 -- true"),
            "8000",
        ),
    ] {
        let event = if line.contains("--event") {
            ""
        } else {
            "--event page-faults "
        };
        let line = format!("run {event}{line}");
        let outcome = rig.guard(&line).output().unwrap();
        let said = String::from_utf8_lossy(&outcome.stderr);
        // A shell's exit code for a missing command.
        let code = if line.ends_with("/no/such/program") {
            127
        } else {
            1
        };
        assert_eq!(outcome.status.code(), Some(code), "{line}: {said}");
        assert!(said.contains(expected), "{line}: {said}");
        assert!(!rig.group.exists(), "{line}");
        assert_eq!(rig.records(), 0, "{line}");
    }
}

#[test]
fn one_regulator_a_group_and_none_for_a_frozen_one() {
    let Some(mut rig) = Rig::new() else { return };
    rig.stop_traffic("");
    let second = rig.memwarden("--mb 9 -- true");
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(said.contains("regulated already"), "{said}");
    let _ = rig.guard("stop").output();
    rig.end();
    fs::create_dir(&rig.group).unwrap();
    fs::write(rig.group.join("cgroup.freeze"), "1").unwrap();
    let frozen = rig.memwarden("--mb 9 -- true");
    let said = String::from_utf8_lossy(&frozen.stderr);
    assert!(said.contains("frozen by another process"), "{said}");
    assert_eq!(
        fs::read_to_string(rig.group.join("cgroup.freeze"))
            .unwrap()
            .trim(),
        "1"
    );
}

#[test]
fn a_command_runs_on_the_chosen_cores() {
    let Some(rig) = Rig::new() else { return };
    let last = std::thread::available_parallelism().map_or(1, usize::from) - 1;
    let outcome = rig
        .guard(&format!(
            "run --cpus {last} --backend user --event page-faults --no-self-test --events 1000 -- sh -c"
        ))
        .arg("sh -c 'grep Cpus_allowed_list /proc/self/status'; exit 3")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&outcome.stderr);
    if outcome.status.code() == Some(1) && said.contains("sched_rt_runtime_us") {
        return skip(&said).unwrap_or(());
    }
    assert_eq!(outcome.status.code(), Some(3), "{said}");
    let allowed = String::from_utf8_lossy(&outcome.stdout);
    assert_eq!(
        allowed.split_whitespace().last(),
        Some(last.to_string().as_str())
    );
    let outcome = rig
        .guard(
            "run --cpus 8000 --backend user --event page-faults --no-self-test --events 9 -- true",
        )
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&outcome.stderr);
    assert_eq!(outcome.status.code(), Some(1));
    assert!(said.contains("CPU 8000 is not online"), "{said}");
}
