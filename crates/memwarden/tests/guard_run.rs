// SPDX-License-Identifier: MIT OR Apache-2.0
//! `guard run` as one or several users run it: its output, its refusals, and what it leaves behind; and the other commands
//! that start a guard. The regulator is the one in user space, on this machine.

#[allow(dead_code)]
mod processes;

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use processes::{child_of, eventually};

const RT_RUNTIME: &str = "/proc/sys/kernel/sched_rt_runtime_us";

/// What each command says first about the event of these tests, on a kernel with pages of 4 KiB.
const MEANING: &str = "memwarden: event page-faults counts fresh pages (4096 bytes each), not memory traffic: a program \
                       that reuses its memory is not held";

/// The first words of each run.
const RUN: &str = "guard run --backend user --event page-faults --no-self-test";

/// The cores and the settings belong to the machine: one test at a time.
static MACHINE: Mutex<()> = Mutex::new(());

struct Rig {
    folder: tempfile::TempDir,
    rt_runtime: String,
    _machine: MutexGuard<'static, ()>,
}

/// A run that lasts until its command is told to end.
struct Running {
    run: Child,
    said: PathBuf,
}

impl Rig {
    /// `None`, with the reason printed, if the machine can't run the test.
    fn new() -> Option<Self> {
        let machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        let Ok(rt_runtime) = fs::read_to_string(RT_RUNTIME) else {
            eprintln!("skipped: kernel.sched_rt_runtime_us cannot be read here");
            return None;
        };
        let rig = Self {
            folder: tempfile::tempdir().unwrap(),
            rt_runtime,
            _machine: machine,
        };
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        if cpus < 2 || !rustix::process::geteuid().is_root() {
            eprintln!("skipped: this needs root and two CPUs");
            return None;
        }
        let tried = rig.memwarden(&format!("{RUN} --events 5000 -- true"));
        if tried.status.success() {
            return Some(rig);
        }
        eprintln!("skipped: {}", String::from_utf8_lossy(&tried.stderr));
        None
    }

    fn command(&self, line: &str) -> Command {
        processes::memwarden(self.folder.path(), line)
    }

    fn memwarden(&self, line: &str) -> Output {
        self.command(line).output().unwrap()
    }

    /// Starts `guard run` with these options, and waits until its core has this budget.
    fn run(&self, options: &str, cpu: usize, events: u64) -> Running {
        let said = self.folder.path().join(format!("said-{cpu}-{events}"));
        let run = self
            .command(&format!("{RUN} {options} -- sleep 600"))
            .stdout(Stdio::null())
            .stderr(fs::File::create(&said).unwrap())
            .spawn()
            .unwrap();
        let running = Running { run, said };
        eventually("the command runs under its budget", || {
            self.budget(cpu) == Some(events) && child_of(running.run.id()).is_some()
        });
        running
    }

    fn show(&self) -> Option<Value> {
        let shown = self.memwarden("guard show --json");
        serde_json::from_slice(&shown.stdout).ok()
    }

    /// The budget of a core of the running guard, if it has one.
    fn budget(&self, cpu: usize) -> Option<u64> {
        self.show()?["settings"]["read_budget_events"][cpu.to_string()].as_u64()
    }

    fn expect_nothing_left(&self) {
        eventually("no guard runs", || self.show().is_none());
        assert_eq!(fs::read_to_string(RT_RUNTIME).unwrap(), self.rt_runtime);
        let left: Vec<_> = fs::read_dir(self.folder.path())
            .unwrap()
            .flatten()
            .map(|entry| entry.file_name().into_string().unwrap())
            .filter(|name| name.starts_with("claim-"))
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = self.memwarden("guard stop");
    }
}

impl Running {
    /// Ends the command; returns the run's exit code and output.
    fn end(mut self) -> (i32, String) {
        if let Some(command) = child_of(self.run.id()) {
            let _ = kill_process(command, Signal::TERM);
        }
        let status = self.run.wait().unwrap();
        let said = fs::read_to_string(&self.said).unwrap();
        (status.code().unwrap(), said)
    }

    /// Kills the run, then its command.
    fn kill(mut self) {
        let command = child_of(self.run.id());
        let run = Pid::from_raw(self.run.id() as i32).unwrap();
        kill_process(run, Signal::KILL).unwrap();
        self.run.wait().unwrap();
        if let Some(command) = command {
            let _ = kill_process(command, Signal::KILL);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.run.try_wait() {
            if let Some(command) = child_of(self.run.id()) {
                let _ = kill_process(command, Signal::KILL);
            }
            let _ = self.run.kill();
            let _ = self.run.wait();
        }
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_first_of_two_runs_that_ends_leaves_the_other_guarded() {
    let Some(rig) = Rig::new() else { return };
    let first = rig.run("--cpus 0 --events 5000", 0, 5000);
    let second = rig.run("--cpus 1 --events 6000", 1, 6000);
    // A shell's exit code for a command that SIGTERM ended.
    let (code, said) = first.end();
    assert_eq!(code, 143, "{said}");
    assert_eq!((rig.budget(0), rig.budget(1)), (None, Some(6000)));
    let (_, said) = second.end();
    assert!(!said.contains("NOT held"), "{said}");
    rig.expect_nothing_left();
}

#[test]
fn a_killed_run_leaves_the_other_guarded_and_its_own_budget_to_the_next() {
    let Some(rig) = Rig::new() else { return };
    // The regulator belongs to the run that is killed.
    let killed = rig.run("--cpus 0 --events 5000", 0, 5000);
    let other = rig.run("--cpus 1 --events 6000", 1, 6000);
    killed.kill();
    assert_eq!(rig.budget(1), Some(6000));
    // Refused while the killed run lived.
    let next = rig.run("--cpus 0 --events 7000", 0, 7000);
    other.end();
    assert_eq!((rig.budget(0), rig.budget(1)), (Some(7000), None));
    next.kill();
    rig.expect_nothing_left_but_a_claim();
}

impl Rig {
    /// The last run was killed: its regulator ends; the next run finds its claim free and removes it.
    fn expect_nothing_left_but_a_claim(&self) {
        eventually("no guard runs", || self.show().is_none());
        let next = self.memwarden(&format!("{RUN} --events 5000 -- true"));
        assert!(next.status.success(), "{next:?}");
        self.expect_nothing_left();
    }
}

#[test]
fn a_core_cannot_have_two_budgets() {
    let Some(rig) = Rig::new() else { return };
    let first = rig.run("--cpus 0 --events 5000", 0, 5000);
    for (line, expected) in [
        ("guard run --events 6000 -- true", "CPU0 has a budget of"),
        ("guard run --period 2ms --events 5000 -- true", "--period"),
        ("guard run --event cycles --events 5000 -- true", "--event"),
        ("guard run --weights 1 -- true", "--weights"),
        ("interfere --guard 10 --out run", "uses the guard"),
    ] {
        let mut command = rig.command(line);
        let refused = command.current_dir(rig.folder.path()).output().unwrap();
        assert_eq!(refused.status.code(), Some(1), "{line}");
        assert!(stderr(&refused).contains(expected), "{}", stderr(&refused));
    }
    assert!(!rig.folder.path().join("run.partial").exists());
    let equal = rig.memwarden("guard run --events 5000 -- true");
    assert!(equal.status.success(), "{}", stderr(&equal));
    assert_eq!(rig.budget(0), Some(5000));
    first.end();
    rig.expect_nothing_left();
}

#[test]
fn a_guard_that_ends_under_the_command_is_told_at_once() {
    let Some(rig) = Rig::new() else { return };
    let run = rig.run("--cpus 0 --events 5000", 0, 5000);
    assert!(rig.memwarden("guard stop").status.success());
    eventually("it is told", || {
        fs::read_to_string(&run.said)
            .unwrap()
            .contains("the command continues without a budget")
    });
    let (code, said) = run.end();
    assert_eq!(code, 1, "{said}");
    assert!(
        said.trim_end()
            .lines()
            .last()
            .unwrap()
            .contains("NOT held to the end"),
        "{said}"
    );
    rig.expect_nothing_left();
}

#[test]
fn the_first_line_says_what_is_counted_and_the_last_what_came_of_it() {
    let Some(rig) = Rig::new() else { return };
    let run = rig.memwarden(&format!("{RUN} --cpus 0-1 --events 5000,5000 -- true"));
    let said = stderr(&run);
    // Without the warning of this kernel's fair servers, if they stay on.
    let lines: Vec<&str> = said
        .lines()
        .filter(|line| !line.contains("the fair server is on"))
        .collect();
    assert_eq!((run.status.code(), lines.len()), (Some(0), 2), "{said}");
    assert_eq!(lines[0], MEANING);
    for expected in [
        "event page-faults",
        "CPU0 ",
        "CPU1 ",
        " MB/s",
        "throttled",
        "worst period",
        "missed",
    ] {
        assert!(lines[1].contains(expected), "{said}");
    }
    let run = rig.memwarden(&format!("{RUN} --json --cpus 1 --events 5000 -- true"));
    let said = stderr(&run);
    let summary: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    assert_eq!(summary["memory_traffic"], false);
    assert_eq!(summary["cores"][0]["cpu"], 1);
    assert_eq!(summary["cores"][0]["budget_events"], 5000);
    let start = rig.memwarden("guard start --backend user --event page-faults --no-self-test");
    assert_eq!(stderr(&start).lines().next(), Some(MEANING));
    let top = rig.memwarden("top --once --interval 20ms");
    assert_eq!(stderr(&top).lines().next(), Some(MEANING));
    assert!(rig.memwarden("guard stop").status.success());
    rig.expect_nothing_left();
}

#[test]
fn a_signal_while_a_run_waits_for_another_ends_it_without_its_command() {
    let Some(rig) = Rig::new() else { return };
    let lock = fs::File::create(rig.folder.path().join("claims.lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let file = rig.folder.path().join("started");
    // The signal comes as soon as it is caught; from then on, none is lost.
    for _ in 0..25 {
        let mut waits = rig
            .command(&format!("{RUN} --events 5000 -- touch"))
            .arg(&file)
            .spawn()
            .unwrap();
        while !catches(waits.id(), Signal::TERM) {
            std::hint::spin_loop();
        }
        let pid = Pid::from_raw(waits.id() as i32).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        assert_eq!(waits.wait().unwrap().code(), Some(143));
    }
    drop(lock);
    assert!(!file.exists());
    rig.expect_nothing_left();
}

impl Rig {
    /// A budget file with this text, and the event of these tests.
    fn file(&self, text: &str) -> PathBuf {
        let file = self.folder.path().join("guard.toml");
        let head = "backend = \"user\"\nevent = \"page-faults\"\n";
        fs::write(&file, format!("{head}{text}")).unwrap();
        file
    }

    /// `guard serve` with this budget file, beside the claims of this rig.
    fn serve(&self, text: &str) -> Child {
        let file = self.file(text);
        self.command("guard serve --listen 127.0.0.1:0 --config")
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(fs::File::create(self.folder.path().join("said")).unwrap())
            .spawn()
            .unwrap()
    }
}

#[test]
fn a_signal_while_serve_waits_for_another_ends_it_without_a_guard() {
    let Some(rig) = Rig::new() else { return };
    let lock = fs::File::create(rig.folder.path().join("claims.lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    for signal in [Signal::TERM, Signal::INT, Signal::QUIT] {
        let mut waits = rig.serve("self_test = false\n");
        while !catches(waits.id(), signal) {
            std::hint::spin_loop();
        }
        kill_process(Pid::from_child(&waits), signal).unwrap();
        eventually("it ends", || waits.try_wait().unwrap().is_some());
        let code = waits.wait().unwrap().code();
        assert_eq!(code, Some(128 + signal.as_raw()));
        let said = fs::read_to_string(rig.folder.path().join("said")).unwrap();
        assert_eq!(
            said,
            "memwarden: interrupted: the budget file is not applied\n"
        );
    }
    drop(lock);
    rig.expect_nothing_left();
}

#[test]
fn a_service_without_a_guard_does_not_deny_one_that_is_started_by_hand() {
    let Some(rig) = Rig::new() else { return };
    let file = rig.file("self_test = false\nkeep = false\nmb = [100]\n");
    let mut serve = rig
        .command("guard serve --listen 127.0.0.1:0 --config")
        .arg(&file)
        .stdout(Stdio::piped())
        .stderr(fs::File::create(rig.folder.path().join("said")).unwrap())
        .spawn()
        .unwrap();
    let said = || fs::read_to_string(rig.folder.path().join("said")).unwrap();
    let mut address = String::new();
    BufReader::new(serve.stdout.as_mut().unwrap())
        .read_line(&mut address)
        .unwrap();
    let address = address.trim().trim_start_matches("http://");
    let get = |path: &str| {
        let mut stream = TcpStream::connect(address.trim_end_matches('/')).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(rig.memwarden("guard stop").status.success());
    eventually("the service sees that its guard has ended", || {
        get("/metrics").contains("\nmemwarden_config_applied 0\n")
    });
    assert!(get("/healthz").contains("no guard is running"));
    let start = rig.memwarden("guard start --backend user --event page-faults --no-self-test");
    assert!(start.status.success(), "{start:?}");
    assert!(get("/healthz").ends_with("ok\n"));
    rig.file("mb = [0]\n");
    kill_process(Pid::from_child(&serve), Signal::HUP).unwrap();
    eventually("the file is refused", || said().contains("line 3, mb: "));
    assert!(
        said().ends_with("; the service keeps no guard\n"),
        "{}",
        said()
    );
    kill_process(Pid::from_child(&serve), Signal::TERM).unwrap();
    assert_eq!(serve.wait().unwrap().code(), Some(0));
    assert!(rig.show().is_some());
    assert!(rig.memwarden("guard stop").status.success());
    rig.expect_nothing_left();
}

#[test]
fn a_signal_while_serve_proves_its_guard_ends_both() {
    let Some(rig) = Rig::new() else { return };
    // With this period the proof takes far longer than the signal.
    let mut proves = rig.serve("period = \"1000ms\"\n");
    eventually("the guard runs", || rig.show().is_some());
    kill_process(Pid::from_child(&proves), Signal::TERM).unwrap();
    eventually("it ends", || proves.try_wait().unwrap().is_some());
    assert_eq!(proves.wait().unwrap().code(), Some(143));
    let said = fs::read_to_string(rig.folder.path().join("said")).unwrap();
    assert!(
        said.ends_with("memwarden: interrupted: the budget file is not applied\n"),
        "{said}"
    );
    rig.expect_nothing_left();
}

#[test]
fn serve_says_first_what_is_counted() {
    let Some(rig) = Rig::new() else { return };
    let said = || fs::read_to_string(rig.folder.path().join("said")).unwrap_or_default();
    // The line comes before those of the self-test, which with this period takes far longer than the signal.
    for (text, code) in [
        ("self_test = false\nmb = [100]\n", 0),
        ("period = \"1000ms\"\n", 143),
    ] {
        let mut serve = rig.serve(text);
        eventually("it says something", || said().contains('\n'));
        if code == 0 {
            eventually("it serves", || {
                said().contains("guard user started: event page-faults")
            });
        }
        assert_eq!(said().lines().next(), Some(MEANING), "{}", said());
        kill_process(Pid::from_child(&serve), Signal::TERM).unwrap();
        assert_eq!(serve.wait().unwrap().code(), Some(code), "{}", said());
        rig.expect_nothing_left();
    }
    let start = rig.memwarden("guard start --backend user --event page-faults --no-self-test");
    assert!(start.status.success(), "{start:?}");
    let mut serve = rig.serve("self_test = false\nmb = [100]\n");
    eventually("it serves", || said().contains("guard user taken over"));
    assert_eq!(said().lines().next(), Some(MEANING), "{}", said());
    kill_process(Pid::from_child(&serve), Signal::TERM).unwrap();
    assert_eq!(serve.wait().unwrap().code(), Some(0));
    assert!(rig.memwarden("guard stop").status.success());
    rig.expect_nothing_left();
}

#[test]
fn realtime_says_first_what_is_counted() {
    let Some(rig) = Rig::new() else { return };
    let options = "--no-rt --jobs 5 --frame 64K --period 1ms --deadline 1ms --settle 1ms --guard 100 --no-self-test";
    let run = rig
        .command(&format!(
            "realtime {options} --backend user --event page-faults --json --out run"
        ))
        .current_dir(rig.folder.path())
        .output()
        .unwrap();
    let said = stderr(&run);
    assert!(run.status.success(), "{said}");
    assert_eq!(said.lines().next(), Some(MEANING));
    let summary: Value = serde_json::from_slice(&run.stdout).unwrap();
    let note = MEANING.replace("memwarden: ", "The guard's ") + ".";
    let notes = summary["notes"].as_array().unwrap();
    assert!(notes.iter().any(|found| *found == note), "{notes:?}");
    rig.expect_nothing_left();
}

/// Whether a process catches this signal.
fn catches(pid: u32, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = u64::from_str_radix(caught.unwrap().trim(), 16).unwrap();
    caught & (1 << (signal.as_raw() - 1)) != 0
}

/// Of an experiment whose cases without a guard come first.
const EXPERIMENT: &str =
    "--backend user --event page-faults --require-memory-event --guard 10 --out run";

/// What they all say then.
const REFUSAL: &str = "memwarden: --require-memory-event: event page-faults counts fresh pages";

#[test]
fn an_event_that_is_not_memory_traffic_can_be_refused() {
    let Some(rig) = Rig::new() else { return };
    let config = rig.file("self_test = false\n");
    let serve = format!(
        "guard serve --require-memory-event --listen 127.0.0.1:0 --config {}",
        config.display()
    );
    // A regulator that starts creates its log.
    let log = rig.folder.path().join("guard.log");
    fs::remove_file(&log).unwrap();
    for line in [
        serve,
        format!("{RUN} --require-memory-event --events 5000 -- true"),
        "guard start --backend user --event page-faults --no-self-test --require-memory-event".into(),
        "guard run --cgroup memwarden-test --event page-faults --require-memory-event --events 5000 -- true".into(),
        format!("interfere {EXPERIMENT}"),
        format!("realtime {EXPERIMENT} --guard none --no-rt"),
    ] {
        let refused = rig.memwarden(&line);
        let said = stderr(&refused);
        assert_eq!((refused.status.code(), said.lines().count()), (Some(1), 1), "{said}");
        assert!(said.starts_with(REFUSAL), "{said}");
        assert!(refused.stdout.is_empty(), "{line}: {refused:?}");
        assert!(!log.exists(), "{line} started a regulator");
    }
    assert!(!rig.folder.path().join("run.partial").exists());
    rig.expect_nothing_left();
}

#[test]
fn a_guard_whose_event_is_refused_stays_as_it_is() {
    let Some(rig) = Rig::new() else { return };
    let start = rig.memwarden("guard start --backend user --event page-faults --no-self-test");
    assert!(start.status.success(), "{start:?}");
    assert!(rig.memwarden("guard set --events 7000").status.success());
    let config = rig.folder.path().join("guard.toml");
    fs::write(&config, "event = \"auto\"\nmb = [100]\n").unwrap();
    let serve = "guard serve --require-memory-event --listen 127.0.0.1:0";
    for line in [
        serve.to_owned(),
        format!("{serve} --config {}", config.display()),
        "guard run --require-memory-event --events 5000 -- true".into(),
        format!("realtime {EXPERIMENT} --no-rt"),
    ] {
        let refused = rig.memwarden(&line);
        let said = stderr(&refused);
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(said.starts_with(REFUSAL), "{line}: {said}");
        assert_eq!(rig.budget(0), Some(7000), "{line}");
    }
    assert!(rig.memwarden("guard stop").status.success());
    rig.expect_nothing_left();
}

#[test]
fn an_experiment_with_other_options_than_a_running_guards_is_refused() {
    let Some(rig) = Rig::new() else { return };
    let start = "guard start --backend user --event page-faults --period 10ms --no-self-test";
    let start = rig.memwarden(start);
    assert!(start.status.success(), "{start:?}");
    assert!(rig.memwarden("guard set --events 7000").status.success());
    for (line, expected) in [
        ("interfere --event cycles --period 10ms", "--event: cycles"),
        ("interfere --user-only --period 10ms", "--user-only"),
        ("interfere", "give --period 10ms"),
        (
            "realtime --no-rt --guard-period 20ms",
            "give --guard-period 10ms",
        ),
    ] {
        let mut command = rig.command(&format!("{line} --guard 100 --out run"));
        let refused = command.current_dir(rig.folder.path()).output().unwrap();
        let said = stderr(&refused);
        assert_eq!(refused.status.code(), Some(1), "{line}: {said}");
        assert!(said.contains(expected), "{line}: {said}");
        assert_eq!(rig.budget(0), Some(7000), "{line}");
    }
    assert!(!rig.folder.path().join("run.partial").exists());
    assert!(rig.memwarden("guard stop").status.success());
    rig.expect_nothing_left();
}

#[test]
fn more_budgets_than_cores_are_refused_before_a_guard_is_started() {
    let Some(rig) = Rig::new() else { return };
    // A regulator that starts creates its log.
    let log = rig.folder.path().join("guard.log");
    fs::remove_file(&log).unwrap();
    let many = vec!["9"; 8193].join(",");
    for (line, reason) in [
        (
            format!("{RUN} --cpus 0-1 --events 9,9,9 -- true"),
            "3 budgets for 2 cores (--cpus 0-1)",
        ),
        (
            format!("{RUN} --events {many} -- true"),
            "8193 budgets for ",
        ),
    ] {
        let refused = rig.memwarden(&line);
        let said = stderr(&refused);
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(
            said.starts_with(&format!("memwarden: {reason}")) && said.lines().count() == 1,
            "{said}"
        );
        assert!(!log.exists(), "{line} started a regulator");
    }
    rig.expect_nothing_left();
}

#[test]
fn a_command_that_cannot_be_started_gives_a_shells_exit_code() {
    let Some(rig) = Rig::new() else { return };
    for place in ["", " --cpus 0"] {
        for (command, code) in [("nosuchcommand", 127), ("/etc/passwd", 126), ("/", 126)] {
            let run = rig.memwarden(&format!("{RUN}{place} --events 5000 -- {command}"));
            assert_eq!(run.status.code(), Some(code), "{command}: {}", stderr(&run));
            assert!(
                stderr(&run).contains(&format!("starting {command}")),
                "{}",
                stderr(&run)
            );
        }
    }
    rig.expect_nothing_left();
}

#[test]
fn arguments_that_are_not_utf8_reach_the_command() {
    let Some(rig) = Rig::new() else { return };
    let odd = OsStr::from_bytes(b"a\xffb");
    for place in ["", " --cpus 0"] {
        let run = rig
            .command(&format!("{RUN}{place} --events 5000 -- printf %s"))
            .arg(odd)
            .output()
            .unwrap();
        assert_eq!(run.stdout, odd.as_bytes(), "{}", stderr(&run));
    }
    rig.expect_nothing_left();
}
