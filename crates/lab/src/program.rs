// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs other programs. Their output is kept, and shown only when they fail.

use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::machine::interrupt_flag;
use crate::source::Source;

/// Lines of a failed program's output in a message, so that the message fits a screen.
const TAIL_LINES: usize = 30;

/// How often a long command looks whether it is to stop.
const POLL: Duration = Duration::from_millis(100);

/// A command that finds Debian's own tools first: another tool chain earlier in the PATH would build with other headers
/// and libraries than the lab expects.
pub(crate) fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("PATH", path()).stdin(Stdio::null());
    command
}

fn path() -> OsString {
    let mut path = OsString::from("/usr/sbin:/usr/bin:/sbin:/bin");
    if let Some(inherited) = std::env::var_os("PATH") {
        path.push(":");
        path.push(inherited);
    }
    path
}

/// Whether [`command`] would find a program.
pub(crate) fn is_installed(program: &str) -> bool {
    std::env::split_paths(&path()).any(|folder| folder.join(program).is_file())
}

/// Checks that all programs of a long build are installed, so that none is missed only when its turn comes.
pub(crate) fn require(programs: &[&str]) -> Result<()> {
    let missing: Vec<&str> = programs
        .iter()
        .filter(|program| !is_installed(program))
        .copied()
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::MissingPrograms {
        programs: missing.join(", "),
    })
}

/// What the scheduler counted for a program (`Documentation/scheduler/sched-stats.rst`, `/proc/PID/schedstat`); 0 where
/// the kernel does not count it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Scheduled {
    /// Time on a core, of all threads together.
    on_cores: Duration,
    /// The longest time that one thread was ready to run and waited for a core.
    waited: Duration,
}

impl Scheduled {
    /// The counts of a program's present threads.
    pub(crate) fn of(child: &Child) -> Self {
        let mut all = Self::default();
        let Ok(threads) = fs::read_dir(format!("/proc/{}/task", child.id())) else {
            return all;
        };
        for thread in threads.flatten() {
            let counts = fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
            let mut counts = counts.split(' ').map_while(|count| count.parse().ok());
            let mut next = || counts.next().map_or(Duration::ZERO, Duration::from_nanos);
            all.on_cores += next();
            all.waited = all.waited.max(next());
        }
        all
    }

    /// The larger of both counts: those of threads that have ended are no longer visible.
    pub(crate) fn max(self, earlier: Self) -> Self {
        Self {
            on_cores: self.on_cores.max(earlier.on_cores),
            waited: self.waited.max(earlier.waited),
        }
    }

    /// `elapsed` without the time in which other programs had the cores. With more busy threads than `cores`, the
    /// program's threads wait for each other; they then use all cores, which shows in their time on them.
    pub(crate) fn ran(self, elapsed: Duration, cores: u32) -> Duration {
        let alone = self.on_cores / cores.max(1);
        elapsed.saturating_sub(self.waited).max(alone).min(elapsed)
    }
}

/// Sends SIGTERM.
pub(crate) fn terminate(child: &Child) {
    let _ = command("kill").arg(child.id().to_string()).status();
}

/// make, without the flags of a make that started this process. Its compilers' messages are read: they are in English.
pub(crate) fn make() -> Command {
    let mut make = command("make");
    // The kernel's Makefile removes LC_ALL.
    make.env("LANG", "C.UTF-8")
        .env("LC_MESSAGES", "C.UTF-8")
        .env_remove("LC_ALL")
        .env_remove("LANGUAGE")
        .env_remove("MAKEFLAGS")
        .env_remove("MFLAGS")
        .env_remove("MAKELEVEL");
    make
}

/// Runs cargo in the checkout. Returns its target folder. [`Error::Interrupted`] on a signal.
pub(crate) fn cargo(attempted: &str, source: &Source, arguments: &[&str]) -> Result<PathBuf> {
    let (mut cargo, target) = cargo_and_target(source, arguments);
    run_unless(&interrupt_flag(), attempted, &mut cargo)?;
    Ok(target)
}

/// The command, and its target folder, which overrides that of cargo's configuration.
fn cargo_and_target(source: &Source, arguments: &[&str]) -> (Command, PathBuf) {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(
        || source.root().join("target"),
        |set| source.root().join(set),
    );
    let mut cargo = command("cargo");
    cargo
        .args(arguments)
        .current_dir(source.root())
        .env("CARGO_TARGET_DIR", &target)
        // `cargo run` and `cargo test` set these for the program that they run.
        .env_remove("CARGO")
        .env_remove("RUSTFLAGS")
        .env_remove("RUSTUP_TOOLCHAIN");
    (cargo, target)
}

/// Runs a command to its end and returns its output. The error of a failed command has the end of its error output, or
/// of its output if the error output is empty.
pub(crate) fn run(attempted: &str, command: &mut Command) -> Result<Output> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .map_err(|source| not_started(attempted, &program, &source))?;
    judged(attempted, program, output)
}

/// Like [`run`], but ends the command and all that it started when `stop` is set: [`Error::Interrupted`].
fn run_unless(stop: &AtomicBool, attempted: &str, command: &mut Command) -> Result<Output> {
    let program = command.get_program().to_string_lossy().into_owned();
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // A group of its own: cargo that gets a signal leaves its compilers running.
        .process_group(0)
        .spawn()
        .map_err(|source| not_started(attempted, &program, &source))?;
    let group = format!("-{}", child.id());
    let (ended, end) = mpsc::channel();
    std::thread::spawn(move || ended.send(child.wait_with_output()));
    let output = loop {
        match end.recv_timeout(POLL) {
            Ok(output) => break output,
            Err(RecvTimeoutError::Timeout) if stop.load(Ordering::Relaxed) => {
                let _ = self::command("kill").args(["--", &group]).status();
                let _ = end.recv();
                return Err(Error::Interrupted);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(Error::Interrupted),
        }
    };
    let output = output.map_err(|source| not_started(attempted, &program, &source))?;
    judged(attempted, program, output)
}

/// The output of a program that has succeeded, or the error of one that has failed.
fn judged(attempted: &str, program: String, output: Output) -> Result<Output> {
    if output.status.success() {
        return Ok(output);
    }
    let said = if output.stderr.trim_ascii().is_empty() {
        &output.stdout
    } else {
        &output.stderr
    };
    // make repeats a failure for each make that it started. The messages that matter are the compiler's, before that.
    let said = String::from_utf8_lossy(said);
    let words: Vec<&str> = said
        .lines()
        .filter(|line| !line.starts_with("make[") && !line.starts_with("make: "))
        .collect();
    Err(Error::Program {
        attempted: attempted.to_owned(),
        program,
        status: output.status.to_string(),
        detail: last_lines(&words.join("\n"), TAIL_LINES),
    })
}

/// The error for a program that could not even be started.
pub(crate) fn not_started(attempted: &str, program: &str, source: &std::io::Error) -> Error {
    if source.kind() == std::io::ErrorKind::NotFound {
        return Error::MissingProgram {
            program: program.to_owned(),
        };
    }
    Error::Program {
        attempted: attempted.to_owned(),
        program: program.to_owned(),
        status: "no exit status".to_owned(),
        detail: source.to_string(),
    }
}

/// The last `count` lines of a text, without trailing blanks.
pub(crate) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_with_its_remedy() {
        let error = run("try", &mut command("no-such-program-here")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no-such-program-here is not installed: run scripts/install-packages"
        );
    }

    #[test]
    fn all_missing_programs_of_a_build_are_named_at_once() {
        require(&["sh", "kill"]).unwrap();
        let error = require(&["no-such-bison", "sh", "no-such-flex"]).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with(
                "not installed: no-such-bison, no-such-flex: run scripts/install-packages"
            ),
            "{text}"
        );
    }

    struct Ended(Child);

    impl Drop for Ended {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Starts a program on the first CPU that this process may use.
    fn on_one_core(program: &[&str], variables: &[(&str, &str)]) -> Ended {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let allowed = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:\t"))
            .unwrap();
        let first = allowed.split(['-', ',']).next().unwrap();
        let mut taskset = command("taskset");
        taskset.args(["-c", first]).args(program);
        taskset.envs(variables.iter().copied());
        Ended(taskset.stdout(Stdio::null()).spawn().unwrap())
    }

    /// Waits for a condition, longer than any machine needs.
    fn until(mut holds: impl FnMut() -> bool) -> bool {
        (0..10_000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            holds()
        })
    }

    #[test]
    fn two_programs_on_one_core_wait_for_it() {
        let busy = ["sh", "-c", "while :; do :; done"];
        let both = [on_one_core(&busy, &[]), on_one_core(&busy, &[])];
        let idle = on_one_core(&["sleep", "1000"], &[]);
        // Each waits while the other one runs, however long a turn is. The idle one waited for its start only.
        let waited = |of: &Ended| Scheduled::of(&of.0).waited;
        let least = || both.iter().map(waited).min().unwrap_or_default();
        let enough = until(|| least() > waited(&idle).max(Duration::from_millis(50)));
        assert!(enough, "{:?} {:?}", least(), waited(&idle));
    }

    /// Set for the process of [`four_busy_threads`].
    const BUSY: &str = "MEMWARDEN_TEST_BUSY";

    /// Not a test: the program of the next one, as the same test program runs it.
    #[test]
    fn four_busy_threads() {
        if std::env::var_os(BUSY).is_some() {
            for _ in 0..3 {
                std::thread::spawn(|| {
                    loop {
                        std::hint::spin_loop();
                    }
                });
            }
            loop {
                std::hint::spin_loop();
            }
        }
    }

    #[test]
    fn threads_of_one_program_that_wait_for_each_other_do_not_stretch_its_time() {
        let program = std::env::current_exe().unwrap();
        let words = ["--exact", "program::tests::four_busy_threads"];
        let started = std::time::Instant::now();
        let busy = on_one_core(
            &[&[program.to_str().unwrap()], &words[..]].concat(),
            &[(BUSY, "1")],
        );
        let seen = || Scheduled::of(&busy.0);
        let enough = until(|| seen().on_cores > Duration::from_millis(200));
        assert!(enough, "{:?}", seen());
        let before = seen();
        let elapsed = started.elapsed();
        // Had the program the core to itself, it ran all the time, although each thread waited for three quarters of it.
        let ran = before.ran(elapsed, 1);
        assert!(ran >= before.on_cores, "{ran:?} {before:?}");
        assert!(ran <= elapsed, "{ran:?} {elapsed:?}");
        // More cores than threads: no thread waits for another one.
        let one = Scheduled {
            on_cores: Duration::from_secs(1),
            waited: Duration::from_secs(3),
        };
        assert_eq!(one.ran(Duration::from_secs(4), 8), Duration::from_secs(1));
        assert_eq!(one.ran(Duration::from_secs(4), 1), Duration::from_secs(1));
    }

    #[test]
    fn a_failure_carries_what_the_program_said() {
        let mut sh = command("sh");
        sh.args(["-c", "echo out; echo reason >&2; exit 3"]);
        assert_eq!(
            run("try it", &mut sh).unwrap_err().to_string(),
            "try it: sh failed with exit status: 3: reason"
        );
    }

    #[test]
    fn a_command_and_what_it_started_end_when_they_are_to_stop() {
        let stop = AtomicBool::new(false);
        let mut sh = command("sh");
        sh.args(["-c", "echo out; exit 3"]);
        let failed = run_unless(&stop, "try it", &mut sh).unwrap_err();
        assert_eq!(
            failed.to_string(),
            "try it: sh failed with exit status: 3: out"
        );
        let folder = tempfile::tempdir().unwrap();
        let pid = folder.path().join("pid");
        let mut sh = command("sh");
        sh.args(["-c", "sleep 1000 & echo $! >pid; wait"])
            .current_dir(folder.path());
        let stopped = std::thread::scope(|scope| {
            scope.spawn(|| {
                while std::fs::read_to_string(&pid).map_or(true, |pid| !pid.ends_with('\n')) {
                    std::thread::sleep(Duration::from_millis(10));
                }
                stop.store(true, Ordering::Relaxed);
            });
            run_unless(&stop, "try it", &mut sh)
        });
        assert!(matches!(stopped, Err(Error::Interrupted)));
        // The sleep had the output open, so it was ending before its shell's output did.
        let sleep = std::fs::read_to_string(&pid).unwrap();
        let proc = std::path::Path::new("/proc").join(sleep.trim());
        let read = |name| std::fs::read_to_string(proc.join(name)).unwrap_or_default();
        let ended = || read("comm").trim() != "sleep" || read("stat").contains(") Z ");
        assert!(until(ended), "{}", read("stat"));
    }

    #[test]
    fn cargo_is_told_the_folder_in_which_its_program_is_expected() {
        let (cargo, target) = cargo_and_target(&Source::find().unwrap(), &["build"]);
        let told = cargo
            .get_envs()
            .find(|(name, _)| *name == "CARGO_TARGET_DIR");
        assert_eq!(told.unwrap().1, Some(target.as_os_str()));
    }

    #[test]
    fn last_lines_keeps_the_end() {
        assert_eq!(last_lines("a\nb\nc\n\n", 2), "b\nc");
        assert_eq!(last_lines("", 2), "");
    }
}
