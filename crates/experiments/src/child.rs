// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs a workload as a child process: start, watch, end; no child outlives the experiment.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use memwarden_guard::Settings;
use memwarden_guard::units::mib_s;
use memwarden_platform::cpus::CpuSet;
use memwarden_platform::file_limit;
use memwarden_platform::process::{begin_on, end_with_us, this_program};
use memwarden_platform::units::Size;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{Error, Interrupt};

/// Interval between checks for an interrupt: cheap, and short enough that Ctrl-C feels immediate.
const LOOK_EVERY: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// Time in which a workload must end after the signal; a throttled one runs only a few microseconds of each period.
const END_WITHIN: Duration = Duration::from_secs(20);

/// A workload's exit codes after a terminal's signals (SIGHUP, SIGINT, SIGQUIT), as in a shell.
const ON_INTERRUPT: [i32; 3] = [129, 130, 131];

/// A running workload; killed when dropped.
#[derive(Debug)]
pub struct Child {
    process: std::process::Child,
    ready: Option<File>,
    what: String,
    /// The workload runs a program of its own, which it has to end.
    drives: bool,
    /// The budget under which it fills and verifies its buffer.
    budget: Option<Budget>,
}

/// A guard's budget for a workload, which goes over its whole buffer when it starts and when it ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Budget {
    buffer: Size,
    mib_s: f64,
}

/// Passes over the buffer for which a start or an end has time: two, and as much again in reserve.
const PASSES: f64 = 4.0;

/// The most that a budget adds to a time limit.
const MOST: Duration = Duration::from_secs(3600);

impl Budget {
    /// The smallest budget of `cpu` under a guard; none if it has no limit.
    pub fn of(guard: &Settings, cpu: usize, buffer: Size) -> Option<Self> {
        let budgets = [&guard.read_budget_events, &guard.write_budget_events];
        let events = budgets
            .iter()
            .filter_map(|by_cpu| *by_cpu.get(&cpu)?)
            .min()?;
        let control = &guard.control;
        Some(Self {
            buffer,
            mib_s: mib_s(events as f64, control.period_us, control.bytes_per_event),
        })
    }

    /// The time that it adds to a limit.
    fn extra(self) -> Duration {
        let passes_mib = PASSES * self.buffer.bytes() as f64 / f64::from(1 << 20);
        Duration::try_from_secs_f64(passes_mib / self.mib_s).map_or(MOST, |extra| extra.min(MOST))
    }
}

impl Child {
    /// Gives the workload more time to begin and to end: as much as its budget takes for its buffer.
    #[must_use]
    pub(crate) fn under(mut self, budget: Option<Budget>) -> Self {
        self.budget = budget;
        self
    }

    /// A time limit, longer under a budget.
    fn limit(&self, usual: Duration) -> Duration {
        usual + self.budget.map_or(Duration::ZERO, Budget::extra)
    }

    /// The error after a time limit, with the budget as its probable cause.
    fn too_slow(&self, what: &str, limit: Duration) -> Error {
        let seconds = limit.as_secs();
        match self.budget {
            None => self.broken(format!("did not {what} within {seconds} s")),
            Some(Budget { buffer, mib_s }) => self.broken(format!(
                "did not {what} within {seconds} s, probably because of its budget, {mib_s:.1} MiB/s for a buffer of \
                 {buffer}: give a larger budget or a smaller buffer"
            )),
        }
    }

    /// Marks a workload that runs a program: when dropped, it gets time to end that program and its descendants.
    #[must_use]
    pub fn driving(mut self) -> Self {
        self.drives = true;
        self
    }

    /// Starts this program with `arguments`.
    ///
    /// # Errors
    /// When the process can't be started.
    pub fn start(arguments: &[String], tells_when_ready: bool) -> Result<Self, Error> {
        Self::start_on(&CpuSet::default(), arguments, tells_when_ready)
    }

    /// Like [`Child::start`], and already the program's own start runs on `cpus`; on any CPU if they are empty. Without
    /// this a workload starts on any CPU until it pins itself.
    ///
    /// # Errors
    /// As [`Child::start`].
    pub fn start_on(
        cpus: &CpuSet,
        arguments: &[String],
        tells_when_ready: bool,
    ) -> Result<Self, Error> {
        if !tells_when_ready {
            return Self::spawn(cpus, arguments, Stdio::null());
        }
        // Standard input is free, and besides stdout and stderr the only descriptor that a child inherits by default: the
        // workload writes its ready line there.
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)
            .map_err(|errno| Error::process("starting", name_of(arguments), errno))?;
        let ready = ["--ready-fd".to_owned(), "0".to_owned()];
        let mut child = Self::spawn(cpus, &[arguments, &ready].concat(), writer.into())?;
        child.ready = Some(reader.into());
        child.what = name_of(arguments);
        Ok(child)
    }

    /// Like [`Child::start_on`], for a program that answers what [`Child::ask`] writes.
    ///
    /// # Errors
    /// As [`Child::start`].
    pub fn start_answering_on(cpus: &CpuSet, arguments: &[String]) -> Result<Self, Error> {
        Self::spawn(cpus, arguments, Stdio::piped())
    }

    fn spawn(cpus: &CpuSet, arguments: &[String], stdin: Stdio) -> Result<Self, Error> {
        let what = name_of(arguments);
        let failed = |source| Error::process("starting", &what, source);
        // A child has up to three pipes, and a machine may have hundreds of CPUs with one each.
        file_limit::raise();
        let mut command = this_program();
        file_limit::as_before(&mut command);
        command
            .args(arguments)
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        end_with_us(&mut command, Signal::KILL.as_raw());
        if !cpus.is_empty() {
            begin_on(&mut command, cpus);
        }
        let process = command.spawn().map_err(failed)?;
        Ok(Self {
            process,
            ready: None,
            what,
            drives: false,
            budget: None,
        })
    }

    /// Writes `line` to the standard input of a program that answers with a line, and returns that.
    ///
    /// # Errors
    /// When the program has ended or ends without an answer, or the run is interrupted.
    pub fn ask(&mut self, line: &str, interrupt: &Interrupt) -> Result<String, Error> {
        let (Some(stdin), Some(stdout)) = (&mut self.process.stdin, &mut self.process.stdout)
        else {
            return Err(self.broken("takes no questions"));
        };
        // A program that has ended cannot be written to: its output ends, too, and its last words tell why.
        let _ = writeln!(stdin, "{line}");
        let mut answer = Vec::new();
        while answer.last() != Some(&b'\n') {
            if !readable(stdout, &self.what)? {
                interrupt.check()?;
                continue;
            }
            let mut chunk = [0; 4096];
            match stdout.read(&mut chunk) {
                Ok(0) => {
                    // A terminal's signal ends it, too.
                    interrupt.check()?;
                    let reason = self.last_words();
                    return Err(self.broken(reason));
                }
                Ok(length) => answer.extend_from_slice(&chunk[..length]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    return Err(Error::process("reading", &self.what, source));
                }
            }
        }
        Ok(String::from_utf8_lossy(&answer).trim_end().to_owned())
    }

    /// Waits until the workload says that it is running.
    ///
    /// # Errors
    /// When the workload ends first, `within` (longer under a budget) passes, or the run is interrupted.
    pub fn wait_ready(&mut self, within: Duration, interrupt: &Interrupt) -> Result<(), Error> {
        let Some(mut ready) = self.ready.take() else {
            return Ok(());
        };
        let within = self.limit(within);
        let deadline = Instant::now() + within;
        while !readable(&ready, &self.what)? {
            interrupt.check()?;
            if Instant::now() > deadline {
                return Err(self.too_slow("begin", within));
            }
        }
        let mut byte = [0];
        match ready.read(&mut byte) {
            Ok(1) => Ok(()),
            _ => {
                let reason = self.last_words();
                Err(self.broken(reason))
            }
        }
    }

    /// Waits for the workload to end and returns what it printed.
    ///
    /// # Errors
    /// When the workload fails, prints no JSON, or the run is interrupted.
    pub fn wait(self, interrupt: &Interrupt) -> Result<Value, Error> {
        self.wait_and_hear(interrupt, &mut |_| {})
    }

    /// Like [`Child::wait`], and passes each line of output to `hear` as it arrives.
    ///
    /// # Errors
    /// As [`Child::wait`].
    pub fn wait_and_hear(
        mut self,
        interrupt: &Interrupt,
        hear: &mut dyn FnMut(&str),
    ) -> Result<Value, Error> {
        let text = self.read_until_end(|_| interrupt.check(), hear)?;
        // A terminal sends Ctrl-C to the workload, too: its result is then of a shorter run.
        interrupt.check()?;
        self.result(&text, false)
    }

    /// Like [`Child::wait_and_hear`], but an interrupt ends the workload and keeps its result. Also returns true if there
    /// was an interrupt.
    ///
    /// # Errors
    /// When the workload fails, prints no JSON, or has no result yet when the run is interrupted.
    pub fn wait_or_cut_short(
        mut self,
        interrupt: &Interrupt,
        hear: &mut dyn FnMut(&str),
    ) -> Result<(Value, bool), Error> {
        let told = Cell::new(None::<Instant>);
        let go_on = |child: &Self| {
            match told.get() {
                Some(told) if told.elapsed() > END_WITHIN => return Err(Error::Interrupted),
                None if interrupt.came() => {
                    child.ask_to_end();
                    told.set(Some(Instant::now()));
                }
                _ => {}
            }
            Ok(())
        };
        let text = self.read_until_end(go_on, hear)?;
        let cut = interrupt.came();
        match self.result(&text, cut) {
            Ok(result) => Ok((result, cut)),
            Err(_) if cut => Err(Error::Interrupted),
            Err(error) => Err(error),
        }
    }

    /// Checks that the workload is still running.
    ///
    /// # Errors
    /// When the workload has ended.
    pub fn check(&mut self) -> Result<(), Error> {
        match self.process.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) if status.success() => Err(self.broken(format!(
                "ended by itself before the measurement did ({status})"
            ))),
            Ok(Some(_)) => {
                let reason = self.last_words();
                Err(self.broken(reason))
            }
            Err(source) => Err(Error::process("watching", &self.what, source)),
        }
    }

    /// Ends workloads that ran beside a measurement: tells all to end, so that they end at the same time;
    /// [`Child::collect`] waits.
    ///
    /// # Errors
    /// When one has already ended: the measurement had a smaller load than its result would say.
    pub(crate) fn end_all(children: &mut [Self]) -> Result<(), Error> {
        children.iter_mut().try_for_each(Self::check)?;
        children.iter_mut().for_each(Self::tell_to_end);
        Ok(())
    }

    /// Its process ID.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Tells the workload to end and returns what it printed.
    ///
    /// # Errors
    /// When it doesn't end, fails, or prints no JSON.
    pub fn finish(mut self) -> Result<Value, Error> {
        self.tell_to_end();
        self.collect()
    }

    /// Tells the workload to end without waiting, so that several end at the same time; [`Child::collect`] waits.
    pub fn tell_to_end(&mut self) {
        self.ask_to_end();
    }

    fn ask_to_end(&self) {
        if let Some(pid) = i32::try_from(self.process.id())
            .ok()
            .and_then(Pid::from_raw)
        {
            // The workload may have ended by itself: its result tells how.
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    /// Waits for a workload that was told to end.
    ///
    /// # Errors
    /// When it doesn't end, fails, or prints no JSON.
    pub fn collect(mut self) -> Result<Value, Error> {
        let within = self.limit(END_WITHIN);
        let deadline = Instant::now() + within;
        let in_time = |child: &Self| {
            if Instant::now() > deadline {
                return Err(child.too_slow("end", within));
            }
            Ok(())
        };
        let text = self.read_until_end(in_time, &mut |_| {})?;
        self.result(&text, false)
    }

    /// Reads the output to its end and returns it; calls `go_on` before each read, and while there is nothing to read.
    fn read_until_end(
        &mut self,
        go_on: impl Fn(&Self) -> Result<(), Error>,
        hear: &mut dyn FnMut(&str),
    ) -> Result<Vec<u8>, Error> {
        let Some(mut stdout) = self.process.stdout.take() else {
            return Err(self.broken("has no output"));
        };
        let mut output = Output::default();
        loop {
            let is_readable = readable(&stdout, &self.what)?;
            go_on(self)?;
            if !is_readable {
                continue;
            }
            let mut chunk = [0; 4096];
            match stdout.read(&mut chunk) {
                Ok(0) => return Ok(output.text),
                Ok(length) => output.add(&chunk[..length], hear),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(source) => {
                    return Err(Error::process("reading", &self.what, source));
                }
            }
        }
    }

    /// The result in the output. After a terminal's signal, a workload that has printed its result ends with 128 plus
    /// the signal's number.
    fn result(&mut self, text: &[u8], interrupted: bool) -> Result<Value, Error> {
        let status = self
            .process
            .wait()
            .map_err(|source| Error::process("waiting for", &self.what, source))?;
        let code = status.code();
        let by_interrupt = interrupted && code.is_some_and(|code| ON_INTERRUPT.contains(&code));
        if !status.success() && !by_interrupt {
            let reason = self.last_words();
            return Err(self.broken(reason));
        }
        let text = String::from_utf8_lossy(text);
        // Progress lines may precede the JSON line.
        let line = text
            .lines()
            .rev()
            .find(|line| line.starts_with('{'))
            .unwrap_or_default();
        serde_json::from_str(line).map_err(|_| self.broken("printed no result"))
    }

    /// The workload's last line on stderr, for the error; without one, how it ended.
    fn last_words(&mut self) -> String {
        let mut text = String::new();
        if let Some(mut stderr) = self.process.stderr.take() {
            let _ = stderr.read_to_string(&mut text);
        }
        let line = text.lines().rev().find(|line| !line.trim().is_empty());
        let Some(line) = line else {
            // Its standard error is at its end, and so is the workload.
            return self
                .process
                .wait()
                .map_or_else(|error| error.to_string(), how_ended);
        };
        let said = line.trim().trim_start_matches("memwarden: ");
        let named = format!("{}: ", self.what);
        said.strip_prefix(&named).unwrap_or(said).to_owned()
    }

    fn broken(&self, reason: impl std::fmt::Display) -> Error {
        Error::workload(&self.what, reason)
    }
}

/// A workload's output so far.
#[derive(Default)]
struct Output {
    text: Vec<u8>,
    /// Begin of the line that has no end yet.
    line: usize,
}

impl Output {
    /// Appends `chunk`, and passes each line that it completes to `hear`. Only the chunk is searched: a result is one
    /// line of up to many megabytes.
    fn add(&mut self, chunk: &[u8], hear: &mut dyn FnMut(&str)) {
        let begin = self.text.len();
        self.text.extend_from_slice(chunk);
        let ends = chunk.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
        for end in ends.map(|(index, _)| begin + index) {
            hear(&String::from_utf8_lossy(&self.text[self.line..end]));
            self.line = end + 1;
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.drives {
            self.tell_to_end();
            let deadline = Instant::now() + END_WITHIN;
            while matches!(self.process.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// How a process ended that said nothing.
fn how_ended(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(9), _) => "was killed by signal 9 (out of memory?)".into(),
        (Some(signal), _) => format!("was killed by signal {signal}"),
        (_, Some(code)) => format!("ended with exit status {code} and said nothing"),
        _ => "ended and said nothing".into(),
    }
}

/// The name of the workload in errors: for a program, the program's own name.
fn name_of(arguments: &[String]) -> String {
    match arguments.iter().position(|word| word == "--") {
        Some(end) => arguments
            .last()
            .filter(|_| end + 1 < arguments.len())
            .cloned()
            .unwrap_or_default(),
        None => arguments.join(" "),
    }
}

/// Waits a short time for input or end of file.
pub(crate) fn readable(from: &impl AsFd, what: &str) -> Result<bool, Error> {
    let mut polled = [PollFd::new(from, PollFlags::IN)];
    match poll(&mut polled, Some(&LOOK_EVERY)) {
        Ok(count) => Ok(count > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(errno) => Err(Error::process("watching", what, errno)),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use memwarden_guard::{Null, Regulator, StartOptions};

    use super::*;
    use crate::GuardSpec;

    /// A shell as a workload that has its ready line's pipe as standard input.
    fn shell(line: &str) -> Child {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", line]).stdin(writer);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Child {
            process: command.spawn().unwrap(),
            ready: Some(reader.into()),
            what: "bandwidth".into(),
            drives: false,
            budget: None,
        }
    }

    /// The settings of a guard with a budget of 10 events for each ms on CPU 1.
    fn a_guard() -> Settings {
        let mut guard = Null::new([0, 1, 2].into_iter().collect());
        guard.start(&StartOptions::default()).unwrap();
        let spec: GuardSpec = "events:max,10,max".parse().unwrap();
        spec.apply(&mut guard).unwrap();
        guard.settings().unwrap()
    }

    #[test]
    fn a_workload_that_ends_without_a_word_is_said_to() {
        for (line, how) in [
            (
                "kill -9 $$",
                "bandwidth: was killed by signal 9 (out of memory?)",
            ),
            ("kill -15 $$", "bandwidth: was killed by signal 15"),
            (
                "exit 7",
                "bandwidth: ended with exit status 7 and said nothing",
            ),
            ("echo memwarden: no >&2; exit 7", "bandwidth: no"),
        ] {
            let begun = shell(line).wait_ready(Duration::from_secs(60), &Interrupt::default());
            assert_eq!(begun.unwrap_err().to_string(), how);
            let ended = shell(line).collect();
            assert_eq!(ended.unwrap_err().to_string(), how);
        }
    }

    #[test]
    fn a_load_that_ended_before_the_measurement_is_an_error() {
        for (line, how) in [
            (
                "exit 0",
                "bandwidth: ended by itself before the measurement did (exit status: 0)",
            ),
            (
                "kill -9 $$",
                "bandwidth: was killed by signal 9 (out of memory?)",
            ),
            ("echo memwarden: no >&2; exit 7", "bandwidth: no"),
        ] {
            let mut children = [shell("exec sleep 1000"), shell(line)];
            children[1].process.wait().unwrap();
            let ended = Child::end_all(&mut children).unwrap_err();
            assert_eq!(ended.to_string(), how);
        }
        let mut running = [shell(
            "trap 'echo {}; exit 0' TERM; echo >&0; while :; do sleep 0.01; done",
        )];
        running[0]
            .wait_ready(Duration::from_secs(60), &Interrupt::default())
            .unwrap();
        Child::end_all(&mut running).unwrap();
        for child in running {
            child.collect().unwrap();
        }
    }

    #[test]
    fn lines_are_heard_across_chunks() {
        let text = b"one\n\ntwo {\n{\"jobs\": []}\nrest";
        for length in 1..=text.len() {
            let (mut output, mut heard) = (Output::default(), Vec::new());
            for chunk in text.chunks(length) {
                output.add(chunk, &mut |line| heard.push(line.to_owned()));
            }
            assert_eq!(heard, ["one", "", "two {", "{\"jobs\": []}"], "{length}");
            assert_eq!(output.text, text);
        }
    }

    #[test]
    fn a_long_line_is_searched_once() {
        // If each chunk were searched with all chunks before it, this would take minutes.
        let (mut output, mut heard) = (Output::default(), 0);
        for _ in 0..1 << 12 {
            output.add(&[b'x'; 4096], &mut |_| heard += 1);
        }
        output.add(b"\n", &mut |line| heard += line.len());
        assert_eq!(heard, 16 << 20);
    }

    #[test]
    fn an_interrupt_is_seen_while_output_arrives() {
        let mut child = shell("exec cat /dev/zero");
        let looked = Cell::new(0);
        let go_on = |_: &Child| {
            looked.set(looked.get() + 1);
            match looked.get() {
                1000 => Err(Error::Interrupted),
                _ => Ok(()),
            }
        };
        let mut heard = 0;
        let read = child.read_until_end(go_on, &mut |_| heard += 1);
        assert!(matches!(read, Err(Error::Interrupted)));
        assert_eq!(heard, 0);
    }

    #[test]
    fn a_small_budget_gives_more_time_and_is_named() {
        let buffer = Size::kib(60 << 10);
        let budget = Budget::of(&a_guard(), 1, buffer).unwrap();
        // 10 lines of 64 bytes for each ms.
        assert_eq!(budget.mib_s, 640_000.0 / f64::from(1 << 20));
        assert_eq!(Budget::of(&a_guard(), 2, buffer), None);
        assert_eq!(Budget::of(&a_guard(), 3, buffer), None);
        let slow = Budget {
            buffer,
            mib_s: 10.0,
        };
        assert_eq!(slow.extra(), Duration::from_secs(24));
        assert_eq!(Budget { mib_s: 0.0, ..slow }.extra(), MOST);

        let soon = Budget {
            buffer,
            mib_s: 240_000.0,
        };
        let mut child = shell("sleep 60").under(Some(soon));
        let begin = Instant::now();
        let begun = child.wait_ready(Duration::ZERO, &Interrupt::default());
        assert_eq!(
            begun.unwrap_err().to_string(),
            "bandwidth: did not begin within 0 s, probably because of its budget, 240000.0 MiB/s for a buffer of 60M: \
             give a larger budget or a smaller buffer"
        );
        assert!(begin.elapsed() < Duration::from_secs(30));
        assert_eq!(
            child.limit(END_WITHIN),
            END_WITHIN + Duration::from_millis(1)
        );
    }
}
