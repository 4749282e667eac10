// SPDX-License-Identifier: MIT OR Apache-2.0
//! The regulator in user space on this machine, and the fate of the cores when it is killed, stopped, stuck or panics:
//! no core stays blocked, and the scheduler's settings are restored.
//!
//! Cores are throttled for nearly a second at a time here, so that every fault falls into a throttle. The time that the
//! core stayed blocked is printed and not judged, as it depends on the host's load. (The tests fail if a core stays
//! blocked for good.)

mod processes;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use processes::{child_of, eventually, stat};

const RT_RUNTIME: &str = "/proc/sys/kernel/sched_rt_runtime_us";

/// The cores and the settings belong to the machine: one test at a time.
static MACHINE: Mutex<()> = Mutex::new(());

struct Rig {
    folder: tempfile::TempDir,
    rt_runtime: String,
    cpu: String,
    traffic: Option<Child>,
    _machine: MutexGuard<'static, ()>,
}

impl Rig {
    /// `None`, with the reason printed, if the machine can't run the test.
    fn new() -> Option<Self> {
        let machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let skip = |why: &str| {
            eprintln!("skipped: {why}");
            None
        };
        if !rustix::process::geteuid().is_root() {
            return skip("the regulator in user space needs root");
        }
        if cpus < 2 {
            return skip("one CPU: this test would be throttled, too");
        }
        let Ok(rt_runtime) = fs::read_to_string(RT_RUNTIME) else {
            return skip("kernel.sched_rt_runtime_us cannot be read here");
        };
        if fs::write(RT_RUNTIME, &rt_runtime).is_err() {
            return skip("kernel.sched_rt_runtime_us cannot be written here");
        }
        let rig = Self {
            folder: tempfile::tempdir().unwrap(),
            rt_runtime,
            cpu: (cpus - 1).to_string(),
            traffic: None,
            _machine: machine,
        };
        let tried = rig.memwarden("guard start --backend user --event page-faults --no-self-test");
        if !tried.status.success() {
            return skip(&String::from_utf8_lossy(&tried.stderr));
        }
        assert!(rig.memwarden("guard stop").status.success());
        Some(rig)
    }

    fn command(&self, line: &str) -> Command {
        processes::memwarden(self.folder.path(), line)
    }

    fn memwarden(&self, line: &str) -> Output {
        self.command(line).output().unwrap()
    }

    fn show(&self) -> Option<Value> {
        let shown = self.memwarden("guard show --json");
        serde_json::from_slice(&shown.stdout).ok()
    }

    fn start_traffic(&mut self) {
        let line = format!("bandwidth --fresh-pages -m 1M -t 0 -c {}", self.cpu);
        let child = self
            .command(&line)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.traffic = Some(child);
    }

    /// Sends a request to the regulator, which no command does as quickly.
    fn ask(&self, request: &Value) -> Value {
        let socket = self.folder.path().join("guard.sock");
        let mut stream = UnixStream::connect(socket).unwrap();
        writeln!(stream, "{request}").unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        let reply: Value = serde_json::from_str(&line).unwrap();
        assert!(reply.get("refused").is_none(), "{request}: {reply}");
        reply
    }

    /// Starts a guard with a long period and a tiny budget, and traffic that is currently throttled.
    fn throttle(&mut self, fault: &str) {
        let started = self
            .command(
                "guard start --backend user --event page-faults --period 1000ms --no-self-test",
            )
            .env("MEMWARDEN_TEST_FAULT", fault)
            .output()
            .unwrap();
        assert!(started.status.success(), "{started:?}");
        assert_eq!(fs::read_to_string(RT_RUNTIME).unwrap().trim(), "-1");
        let set = self.memwarden(&format!("guard set --cpu {} --events 50", self.cpu));
        assert!(set.status.success(), "{set:?}");
        self.start_traffic();
        if fault.is_empty() {
            let cpu = self.cpu.clone();
            eventually("the core is throttled", || {
                self.show()
                    .is_some_and(|shown| shown["settings"]["control"]["throttled"] == cpu.as_str())
            });
        }
    }

    /// CPU time of the traffic, in clock ticks.
    fn traffic_ticks(&self) -> u64 {
        let pid = self.traffic.as_ref().unwrap().id();
        stat(pid, 14) + stat(pid, 15)
    }

    fn supervisor_and_regulator(&self) -> (Pid, Pid) {
        processes::supervisor_and_regulator(self.folder.path())
    }

    /// Expects that the core runs again, the settings are restored, and no guard is running.
    fn expect_freedom(&mut self, what: &str, since: Instant) {
        let before = self.traffic_ticks();
        eventually("the throttled core runs again", || {
            self.traffic_ticks() > before
        });
        let blocked = since.elapsed();
        eventually("the scheduler's settings are back", || {
            fs::read_to_string(RT_RUNTIME).unwrap() == self.rt_runtime
        });
        eventually("no guard is running", || self.show().is_none());
        // A clock tick of /proc/PID/stat is 10 ms: the figure includes up to that much of sampling.
        println!(
            "{what}: the core had 10 ms of its own {} ms later",
            blocked.as_millis()
        );
        // A new guard starts without further help.
        let again = self.memwarden("guard start --backend user --event page-faults --no-self-test");
        assert!(again.status.success(), "{again:?}");
        assert!(self.memwarden("guard stop").status.success());
        assert_eq!(fs::read_to_string(RT_RUNTIME).unwrap(), self.rt_runtime);
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(mut traffic) = self.traffic.take() {
            let _ = traffic.kill();
            let _ = traffic.wait();
        }
        let _ = self.memwarden("guard stop");
        let _ = fs::write(RT_RUNTIME, &self.rt_runtime);
    }
}

fn end_of_regulator(what: &str, hurt: impl FnOnce(Pid, Pid)) {
    let Some(mut rig) = Rig::new() else { return };
    rig.throttle("");
    let (supervisor, regulator) = rig.supervisor_and_regulator();
    let since = Instant::now();
    hurt(supervisor, regulator);
    rig.expect_freedom(what, since);
}

#[test]
fn a_killed_regulator_frees_its_cores() {
    end_of_regulator("regulator killed", |_, regulator| {
        kill_process(regulator, Signal::KILL).unwrap();
    });
}

#[test]
fn a_killed_supervisor_takes_the_regulator_with_it() {
    end_of_regulator("supervisor killed", |supervisor, _| {
        kill_process(supervisor, Signal::KILL).unwrap();
    });
}

#[test]
fn a_stopped_regulator_is_ended() {
    end_of_regulator("regulator stopped", |_, regulator| {
        kill_process(regulator, Signal::STOP).unwrap();
    });
}

#[test]
fn a_stopped_supervisor_ends_the_regulator() {
    end_of_regulator("supervisor stopped", |supervisor, _| {
        kill_process(supervisor, Signal::STOP).unwrap();
        // Its lock lives as long as the process.
        std::thread::sleep(Duration::from_secs(3));
        kill_process(supervisor, Signal::CONT).unwrap();
    });
}

#[test]
fn a_stuck_thread_is_killed() {
    let Some(mut rig) = Rig::new() else { return };
    let since = Instant::now();
    rig.throttle(&format!("stuck:{}", rig.cpu));
    eventually("the supervisor has ended it", || {
        let shown = rig.memwarden("guard show");
        String::from_utf8_lossy(&shown.stderr).contains("past its time")
    });
    rig.expect_freedom("thread stuck, from the start of it all", since);
}

#[test]
fn a_regulator_that_never_begins_is_killed() {
    let Some(mut rig) = Rig::new() else { return };
    rig.start_traffic();
    let since = Instant::now();
    let started = rig
        .command("guard start --backend user --event page-faults --no-self-test")
        .env("MEMWARDEN_TEST_FAULT", format!("mute:{}", rig.cpu))
        .output()
        .unwrap();
    assert!(!started.status.success(), "{started:?}");
    let message = String::from_utf8(started.stderr).unwrap();
    assert!(message.contains("past its time"), "{message}");
    // The start has said why. No guard has ended since.
    let shown = String::from_utf8(rig.memwarden("guard show").stderr).unwrap();
    assert_eq!(
        shown,
        "memwarden: no guard is running: `memwarden guard start` starts one\n"
    );
    rig.expect_freedom("mute, from the start of it all", since);
}

#[test]
fn a_panic_ends_the_regulator() {
    let Some(mut rig) = Rig::new() else { return };
    let since = Instant::now();
    rig.throttle(&format!("panic:{}", rig.cpu));
    eventually("it is told why", || {
        let shown = rig.memwarden("guard show");
        let said = String::from_utf8_lossy(&shown.stderr);
        said.contains("killed by signal") && said.contains("guard.log)")
    });
    let log = fs::read_to_string(rig.folder.path().join("guard.log")).unwrap();
    assert!(log.contains("panicked"), "{log}");
    rig.expect_freedom("panic, from the start of it all", since);
}

#[test]
fn both_killed_at_once_the_next_stop_puts_the_settings_back() {
    let Some(mut rig) = Rig::new() else { return };
    rig.throttle("");
    let (supervisor, regulator) = rig.supervisor_and_regulator();
    // Stopped first, neither sees the other die.
    for signal in [Signal::STOP, Signal::KILL] {
        for process in [supervisor, regulator] {
            kill_process(process, signal).unwrap();
        }
    }
    let since = Instant::now();
    let before = rig.traffic_ticks();
    eventually("the core runs again", || rig.traffic_ticks() > before);
    let stopped = rig.memwarden("guard stop");
    assert!(stopped.status.success(), "{stopped:?}");
    rig.expect_freedom("both killed", since);
}

#[test]
fn a_closed_terminal_ends_nothing_that_was_started() {
    let Some(mut rig) = Rig::new() else { return };
    rig.throttle("");
    let (supervisor, regulator) = rig.supervisor_and_regulator();
    for pid in [supervisor, regulator] {
        assert_ne!(
            session_of(pid.as_raw_nonzero().get() as u32),
            session_of(std::process::id())
        );
    }
    let since = Instant::now();
    assert!(rig.memwarden("guard stop").status.success());
    rig.expect_freedom("stopped in order", since);
}

/// `guard run` holds a lease: however it ends, everything that it started ends, too.
#[test]
fn guard_run_leaves_nothing_behind_however_it_ends() {
    for signal in [Signal::TERM, Signal::HUP, Signal::INT, Signal::KILL] {
        let Some(mut rig) = Rig::new() else { return };
        rig.start_traffic();
        let mut line =
            "guard run --backend user --event page-faults --no-self-test --period 1000ms --events "
                .to_owned();
        line += &vec!["50"; rig.cpu.parse::<usize>().unwrap() + 1].join(",");
        // Killed, it can't end its command: the remaining sleep of a minute holds no test's output open.
        line += " -- sleep 60";
        let said = rig.folder.path().join("said");
        let mut run = rig
            .command(&line)
            .stdout(Stdio::null())
            .stderr(fs::File::create(&said).unwrap())
            .spawn()
            .unwrap();
        let cpu = rig.cpu.clone();
        eventually("the core is throttled", || {
            let said = || fs::read_to_string(&said).unwrap_or_default();
            let ended = run.try_wait().unwrap();
            assert!(ended.is_none(), "before {signal:?}: {ended:?}: {}", said());
            rig.show().is_some_and(|shown| {
                shown["settings"]["control"]["throttled"]
                    .as_str()
                    .is_some_and(|throttled| throttled.contains(&cpu))
            })
        });
        let since = Instant::now();
        let sleeper = child_of(run.id());
        kill_process(Pid::from_raw(run.id() as i32).unwrap(), signal).unwrap();
        run.wait().unwrap();
        if let Some(sleeper) = sleeper {
            let _ = kill_process(sleeper, Signal::KILL);
        }
        rig.expect_freedom(&format!("guard run ended by {signal:?}"), since);
    }
}

/// 0 if the leader is outside our PID namespace, as in a container.
fn session_of(pid: u32) -> u64 {
    stat(pid, 6)
}

#[test]
fn budgets_hold_in_every_period_and_settings_can_be_changed_under_way() {
    let Some(mut rig) = Rig::new() else { return };
    // Without the self-test: it needs a core without other load, and other tests run beside this one.
    let started = rig.memwarden("guard start --backend user --event page-faults --no-self-test");
    assert!(started.status.success(), "{started:?}");
    rig.start_traffic();
    for (line, fails) in [
        (format!("guard set --cpu {} --events 20", rig.cpu), ""),
        ("guard set --events 1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1".into(), "budgets for"),
        ("guard set --write-mb 5".into(), "write-backs"),
        ("guard set --cpu 999 --mb 5".into(), "999"),
        ("guard start --backend user".into(), "running already"),
        ("guard mode --best-effort spare --reclaim on".into(), ""),
        ("guard mode --best-effort none --reclaim off".into(), ""),
    ] {
        let outcome = rig.memwarden(&line);
        let said = String::from_utf8_lossy(&outcome.stderr);
        assert_eq!(outcome.status.success(), fails.is_empty(), "{line}: {said}");
        assert!(said.contains(fails), "{line}: {said}");
    }
    let index: usize = rig.cpu.parse().unwrap();
    let figures = |rig: &Rig| {
        let shown = rig.show().unwrap();
        let core = &shown["cores"][index];
        let of = |value: &Value| value.as_u64().unwrap();
        (
            of(&core["periods"]),
            of(&core["read"]["used"]),
            of(&core["read"]["assigned"]),
        )
    };
    let before = figures(&rig);
    eventually("two hundred periods have passed", || {
        figures(&rig).0 > before.0 + 200
    });
    let after = figures(&rig);
    let (used, assigned) = (after.1 - before.1, after.2 - before.2);
    println!(
        "{used} events used of {assigned} assigned in {} periods",
        after.0 - before.0
    );
    assert!(
        used > 0 && used <= assigned + assigned / 20,
        "{used} of {assigned}"
    );
}

/// The periods that a core recorded, by number: assigned events, and the nanoseconds between the boundaries around the
/// period. A kick may have ended the period or the one before it: then the length is unknown, or no period's length.
type Periods = BTreeMap<u64, (u64, Option<u64>)>;

fn recorded(recording: &Value) -> Vec<Periods> {
    let mut cores: BTreeMap<u64, Periods> = BTreeMap::new();
    let mut before = BTreeMap::new();
    for event in recording["events"].as_array().unwrap() {
        if event["event"] != "period" {
            continue;
        }
        let of = |key: &str| event[key].as_u64().unwrap();
        let (cpu, epoch) = (of("cpu"), of("epoch"));
        let boundary = (of("late_ns") > 0).then(|| of("t_ns") - of("late_ns"));
        let begun = match before.insert(cpu, (epoch, boundary)) {
            Some((last, begun)) if last + 1 == epoch => begun,
            _ => None,
        };
        let length_ns = boundary
            .zip(begun)
            .map(|(ended, begun)| ended.saturating_sub(begun));
        let periods = cores.entry(cpu).or_default();
        periods.insert(epoch, (of("assigned_read"), length_ns));
    }
    cores.into_values().collect()
}

#[test]
fn the_period_and_all_budgets_change_in_the_same_period_of_all_cores() {
    const CHANGES: usize = 400;
    const PERIODS_US: [u64; 2] = [100, 1000];
    const MB: [u64; 2] = [800, 400];
    let Some(mut rig) = Rig::new() else { return };
    let started = rig.memwarden("guard start --backend user --event page-faults --no-self-test");
    assert!(started.status.success(), "{started:?}");
    rig.start_traffic();
    let count = rig.cpu.parse::<usize>().unwrap() + 1;
    let change = |request: Value| {
        rig.ask(&request);
        std::thread::sleep(Duration::from_millis(2));
    };
    let budgets = |mb: u64| {
        let amounts = vec![json!({"limited": mb}); count];
        let request = json!({"unit": "mb", "cpu": null, "amounts": amounts});
        json!({"budgets": {"resource": "read", "request": request}})
    };
    let page = memwarden_platform::mapping::page_bytes() as u64;
    let budgets_of = |period_us: u64| MB.map(|mb| (mb << 20) * period_us / 1_000_000 / page);
    change(budgets(MB[1]));
    change(json!({"record": {"periods": 100_000}}));
    for number in 0..CHANGES {
        let (period_us, mb) = (PERIODS_US[number % 2], MB[number / 2 % 2]);
        change(json!({"period": period_us}));
        change(budgets(mb));
    }
    let reply = rig.ask(&json!("recording"));
    let recording = &reply["recording"];
    assert_eq!(recording["lost"], 0);
    let cores = recorded(recording);

    let (mut changes, mut compared, mut differ) = (0, 0, 0);
    let (mut timed, mut more, mut less) = (0, 0, 0);
    for core in &cores {
        let mut last = None;
        for (epoch, &(assigned, length_ns)) in core {
            let before = last.replace(assigned);
            changes += usize::from(before.is_some_and(|before| before != assigned));
            let others = cores.iter().filter(|other| !std::ptr::eq(*other, core));
            for other in others.filter_map(|other| other.get(epoch)) {
                compared += 1;
                differ += usize::from(other.0 != assigned);
            }
            for period_us in PERIODS_US {
                if length_ns == Some(period_us * 1000) {
                    let budgets = budgets_of(period_us);
                    timed += 1;
                    more += usize::from(assigned > budgets[0]);
                    less += usize::from(assigned <= budgets[0] && !budgets.contains(&assigned));
                }
            }
        }
    }
    println!(
        "{changes} changes on {} cores; budgets differ in {differ} of {compared} comparisons; of {timed} periods {more} \
         have more than the budgets of their length, and {less} less",
        cores.len()
    );
    assert!(changes > CHANGES && timed > CHANGES);
    assert_eq!((differ, more), (0, 0));
    // A core that waits for its CPU while the settings change twice gets the smaller budget of both.
    assert!(less * 1000 < timed, "{less} of {timed}");
}

#[test]
fn a_core_whose_counter_is_lost_is_told_and_the_others_are_regulated() {
    let Some(rig) = Rig::new() else { return };
    let started = rig
        .command("guard start --backend user --event page-faults --no-self-test")
        .env("MEMWARDEN_TEST_FAULT", format!("blind:{}", rig.cpu))
        .output()
        .unwrap();
    assert!(started.status.success(), "{started:?}");
    let set = rig.memwarden(&format!("guard set --cpu {} --events 20", rig.cpu));
    assert!(set.status.success(), "{set:?}");
    let index: usize = rig.cpu.parse().unwrap();
    let unregulated = |core: usize| {
        let shown = rig.show().unwrap();
        shown["cores"][core]["unregulated_periods"]
            .as_u64()
            .unwrap()
    };
    eventually("a hundred periods are unregulated", || {
        unregulated(index) > 100
    });
    assert_eq!(unregulated(0), 0);
    let log = || fs::read_to_string(rig.folder.path().join("guard.log")).unwrap();
    let told = format!("CPU{}: a counter does not count", rig.cpu);
    eventually("the log tells", || log().contains(&told));
    assert_eq!(log().matches(&told).count(), 1, "{}", log());
    let shown = rig.memwarden("guard show");
    let shown = String::from_utf8_lossy(&shown.stdout);
    // After the fair servers that this kernel leaves on, if there are any.
    let first = shown
        .lines()
        .find(|line| !line.contains("the fair server is on"))
        .unwrap();
    assert!(
        first.starts_with(&format!("CPU{} was not regulated in ", rig.cpu)),
        "{shown}"
    );
}

/// A cpuset (cgroup v1) with CPU 0 only.
struct Cpuset(PathBuf);

impl Cpuset {
    /// `None`, with the reason printed, if none can be made here.
    fn new() -> Option<Self> {
        let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
        let mount = mounts
            .lines()
            .map(|line| line.split(' ').collect::<Vec<_>>())
            .find(|words| words.len() > 3 && words[2] == "cgroup" && words[3].contains("cpuset"));
        let Some(mount) = mount else {
            eprintln!("skipped: no cpuset of cgroup v1 is mounted");
            return None;
        };
        let folder = Path::new(mount[1]).join(format!("memwarden-test-{}", std::process::id()));
        let set = Self(folder);
        let made = fs::create_dir(&set.0)
            .and_then(|()| fs::write(set.0.join("cpuset.cpus"), "0"))
            .and_then(|()| fs::write(set.0.join("cpuset.mems"), "0"));
        if let Err(error) = made {
            eprintln!("skipped: no cpuset can be made here: {error}");
            return None;
        }
        Some(set)
    }

    /// Runs the command in the set.
    fn run(&self, command: &Command) -> Output {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", "echo $$ >\"$0\" && exec \"$@\""])
            .arg(self.0.join("tasks"))
            .arg(command.get_program())
            .args(command.get_args());
        for (name, value) in command.get_envs() {
            shell.env(name, value.unwrap_or_default());
        }
        shell.stdin(Stdio::null()).output().unwrap()
    }
}

impl Drop for Cpuset {
    fn drop(&mut self) {
        let mut left = true;
        eventually("the cpuset is empty", || {
            left = left && fs::remove_dir(&self.0).is_err();
            !left
        });
    }
}

#[test]
fn a_start_in_a_cpuset_names_the_cpu_that_it_cannot_regulate() {
    let Some(rig) = Rig::new() else { return };
    let Some(set) = Cpuset::new() else { return };
    let start = "guard start --backend user --event page-faults --no-self-test";
    let cpus = format!("{start} --cpus {}", rig.cpu);
    for line in [start, &cpus] {
        let refused = set.run(&rig.command(line));
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{line}: {refused:?}");
        assert!(
            said.contains("cgroup's cpuset") && said.contains("--cpus"),
            "{line}: {said}"
        );
        assert!(
            line == start || said.contains(&format!("CPU {}:", rig.cpu)),
            "{said}"
        );
        assert_eq!(rig.show(), None);
    }
    let started = set.run(&rig.command(&format!("{start} --cpus 0")));
    assert!(started.status.success(), "{started:?}");
    assert!(
        String::from_utf8_lossy(&started.stdout).contains("cores 0;"),
        "{started:?}"
    );
    assert!(rig.memwarden("guard stop").status.success());
    // The guard of a command leaves out the CPUs that the command cannot use.
    let run = "guard run --backend user --event page-faults --no-self-test --cpus 0 --events 1000 -- true";
    let ran = set.run(&rig.command(run));
    assert!(ran.status.success(), "{ran:?}");
}
