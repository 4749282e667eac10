// SPDX-License-Identifier: MIT OR Apache-2.0
//! A user's program as the measured task: starts it, delimits and times its jobs, and ends it.
//!
//! The driver runs on the program's CPU, so that no aggressor and no budget of another core delays the timing.

use std::ffi::OsString;
use std::fs::{File, Permissions, set_permissions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use memwarden_platform::names::unknown;
use memwarden_platform::units::Time;
use memwarden_platform::{affinity, clock, process, sched};
use memwarden_workloads::periodic::{Job, Schedule};
use memwarden_workloads::{Placement, Stop};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, VariantArray};
use tempfile::{NamedTempFile, TempDir};

use crate::Error;
use crate::group::Group;

/// Environment variable with the path of the pipe for marks; the headers in `share/` write to it.
pub const MARKS: &str = "MEMWARDEN_JOBS";

/// Interval between reads of the marks: few wake-ups on the program's CPU, and the pipe stays far from full.
const LOOK_EVERY: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// Time in which a job must finish; otherwise the program has failed.
const JOB_WITHIN: Duration = Duration::from_secs(60);

/// Bytes at the end of the program's standard error that are searched for its last line.
const LAST_WORDS: u64 = 4 << 10;

/// Time in which a program must exit after it has closed its standard output.
const EXIT_WITHIN: Duration = Duration::from_secs(5);

/// Why the marks of a program may not arrive.
const NO_PIPE: &str = "a program that changes its user or its root directory must keep $MEMWARDEN_JOBS and be able to \
                       open that path; TMPDIR chooses its folder";

/// What delimits a job.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    JsonSchema,
    Display,
    EnumString,
    VariantArray,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case", parse_err_ty = String, parse_err_fn = unknown::<Self>)]
pub enum Delimiter {
    /// A job is a run of the program.
    Exit,
    /// A job ends with a line on the program's standard output.
    Line,
    /// The program marks both ends itself, with a header from `share/`.
    Mark,
}

/// When jobs are released.
#[derive(Debug, Clone, Copy)]
pub struct Release {
    /// Time between two releases.
    pub period: Duration,
    /// Time from a release to its deadline.
    pub deadline: Duration,
}

/// What to run.
#[derive(Debug, Clone)]
pub struct Config {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// What delimits a job.
    pub by: Delimiter,
    /// Number of jobs; with a period, of releases.
    pub jobs: u64,
    /// The releases; without them a job begins when the previous one has ended.
    pub release: Option<Release>,
    /// CPU and priority.
    pub placement: Placement,
}

/// The result.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Outcome {
    /// The CPU that the driver ended on.
    pub cpu: usize,
    /// Releases that occurred; without a period, jobs.
    pub releases: u64,
    /// Releases whose job never began.
    pub skipped: u64,
    /// Releases whose job was late or skipped; 0 without a period.
    pub misses: u64,
    /// All jobs but the first, which is left out.
    pub jobs: Vec<Job>,
    /// Remarks for the reader.
    pub notes: Vec<String>,
}

/// Runs all jobs, or until `stop` is requested; the first job warms up the caches and is left out. Calls `late` at the
/// first job that misses its deadline, with its lateness in nanoseconds.
///
/// # Errors
/// When the program can't be started, fails, or delimits no jobs.
pub fn run(config: &Config, stop: &Stop, late: &mut Late) -> Result<Outcome, Error> {
    let (what, in_shell) = match config.command.as_slice() {
        [] => {
            let none = "no program to run: give one behind --";
            return Err(Error::BadInput(none.into()));
        }
        [shell, option, line] if shell == "sh" && option == "-c" => (line, true),
        [program, ..] => (program, false),
    };
    let what = what.to_string_lossy().into_owned();
    if config.jobs == 0 {
        return Err(Error::BadInput("0 jobs: give 1 or more".into()));
    }
    config.placement.apply()?;
    match config.placement.fifo_priority {
        // Above the program's priority from its first instruction on: at the same priority the driver would wait until
        // the program sleeps.
        Some(priority) => sched::set_fifo((priority + 1).min(99))?,
        // With timer slack the kernel merges wake-ups, and each release would be up to 50 us late.
        None if config.release.is_some() => sched::no_timer_slack()?,
        None => {}
    }
    let mut driver = Driver {
        config,
        stop,
        errors: tempfile::tempfile()
            .map_err(|source| Error::process("making a file for the errors of", &what, source))?,
        what,
        in_shell,
        jobs: Vec::new(),
        schedule: None,
        marked_release_ns: None,
        gaps_ns: Vec::new(),
        marks_releases: false,
        ended_early: false,
        lost: 0,
        notes: Vec::new(),
        late: Some(late),
    };
    match config.by {
        Delimiter::Exit => driver.by_exit()?,
        Delimiter::Line => driver.by_line()?,
        Delimiter::Mark => driver.by_mark()?,
    }
    driver.outcome()
}

/// Called at the first job that misses its deadline, with its lateness in nanoseconds.
pub type Late<'a> = dyn FnMut(&Job, u64) + 'a;

struct Driver<'a> {
    config: &'a Config,
    stop: &'a Stop,
    what: String,
    /// The program is a line for the shell.
    in_shell: bool,
    /// The program's standard error.
    errors: File,
    jobs: Vec<Job>,
    schedule: Option<Schedule>,
    /// The release of the last job that the program marked.
    marked_release_ns: Option<u64>,
    /// Times between the releases that the program marked; without releases, between the begins.
    gaps_ns: Vec<u64>,
    /// The program marks releases, not only begins.
    marks_releases: bool,
    /// The program ended before its last job.
    ended_early: bool,
    /// Releases that passed while memwarden ended processes that a run had left running.
    lost: u64,
    notes: Vec<String>,
    late: Option<&'a mut Late<'a>>,
}

impl Driver<'_> {
    /// Starts a run of the program.
    fn start(&self, shape: impl FnOnce(&mut Command)) -> Result<Group, Error> {
        let mut command = Command::new(&self.config.command[0]);
        command
            .args(&self.config.command[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(
                self.errors
                    .try_clone()
                    .map_err(|source| self.system("starting", source))?,
            );
        shape(&mut command);
        if let Some(priority) = self.config.placement.fifo_priority {
            process::run_fifo(&mut command, priority);
        }
        Group::start(command, &self.what)
    }

    /// Delimits jobs by runs of the program.
    fn by_exit(&mut self) -> Result<(), Error> {
        let mut number = None;
        loop {
            let Some(begin) = self.release(number)? else {
                return Ok(());
            };
            let mut group = self.start(|_| {})?;
            let Some(status) = self.wait(&mut group)? else {
                return Ok(());
            };
            let end = clock::monotonic_ns();
            if !status.success() {
                return Err(self.failed(status));
            }
            self.forget_errors()?;
            // Clean up before the next release is chosen, as this may take longer than a period.
            drop(group);
            let next = self.finish(number, begin, end);
            number = self.after_clean_up(number, next);
            if self.is_done(number) {
                return Ok(());
            }
        }
    }

    /// The next release that is still ahead after the clean-up of run `number`; `next` is the release before the
    /// clean-up.
    fn after_clean_up(&mut self, number: Option<u64>, next: Option<u64>) -> Option<u64> {
        let (Some(schedule), Some(number), Some(next)) = (self.schedule, number, next) else {
            return next;
        };
        let ahead = schedule.after(number, clock::monotonic_ns()).max(next);
        let jobs = self.config.jobs;
        self.lost += ahead.min(jobs) - next.min(jobs);
        Some(ahead)
    }

    /// Delimits jobs by lines: a line to the program requests a job, and a line from it ends the job.
    fn by_line(&mut self) -> Result<(), Error> {
        let mut group = self.start(|command| {
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
        })?;
        let (Some(mut ask), Some(mut lines)) =
            (group.leader.stdin.take(), group.leader.stdout.take())
        else {
            return Err(self.broken("has no standard input or output"));
        };
        // Non-blocking, so that a program that reads nothing cannot stop the driver.
        rustix::io::ioctl_fionbio(&ask, true)
            .map_err(|errno| self.system("starting", errno.into()))?;
        let mut number = None;
        loop {
            let Some(begin) = self.release(number)? else {
                return Ok(());
            };
            if self.config.release.is_some() && self.readable(&lines, Some(&Timespec::default()))? {
                // The end of the output is handled below.
                if self.lines(&mut lines)?.is_some_and(|count| count > 0) {
                    return Err(self.broken(
                        "wrote a line before its job was released: with a period, a program reads a line for each job \
                         and answers with one; a program with a timer of its own marks its jobs (--jobs-by mark)",
                    ));
                }
            }
            // The program need not read the requests. One write for each: a program may take the result of one read for
            // a line.
            let line = format!("{}\n", number.map_or(0, |number: u64| number + 1));
            let _ = ask.write_all(line.as_bytes());
            match self.next_line(&mut lines)? {
                Some(end) => number = self.finish(number, begin, end),
                None if self.stop.requested() => return Ok(()),
                None => return self.ended_early(&mut group),
            }
            if self.is_done(number) {
                return Ok(());
            }
        }
    }

    /// Delimits jobs by the program's marks.
    fn by_mark(&mut self) -> Result<(), Error> {
        let (_folder, mut marks) = self.pipe()?;
        let mut group = self.start(|command| {
            command.env(MARKS, marks.path());
        })?;
        let mut text = Vec::new();
        let mut number = None;
        let mut since = clock::monotonic_ns();
        loop {
            // Check before the pipe is read: the marks from before the end are then read below.
            let ended = group.ended()?;
            if self.read_marks(marks.as_file_mut(), &mut text)? {
                since = clock::monotonic_ns();
            }
            while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = text.drain(..=end).collect();
                number = self.marked(number, &line)?;
                if self.is_done(number) {
                    return Ok(());
                }
            }
            if self.stop.requested() {
                return Ok(());
            }
            if ended.is_some() {
                return self.ended_early(&mut group);
            }
            if clock::monotonic_ns() - since > nanoseconds(JOB_WITHIN) {
                return Err(self.broken(format!(
                    "marked no job for {} s: {NO_PIPE}",
                    JOB_WITHIN.as_secs()
                )));
            }
            let pause = Duration::from_nanos(LOOK_EVERY.tv_nsec.unsigned_abs());
            std::thread::sleep(pause);
        }
    }

    /// The pipe for the marks, and its folder. Users who know its random name can write to it, since a program may give
    /// up its rights before its first mark; the folder cannot be listed.
    fn pipe(&self) -> Result<(TempDir, NamedTempFile), Error> {
        let making = |source| self.system("making a pipe for", source);
        let folder = tempfile::tempdir().map_err(making)?;
        // Modes given at creation would be subject to the umask.
        set_permissions(&folder, Permissions::from_mode(0o711)).map_err(making)?;
        let open = |path: &Path| {
            rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
            set_permissions(path, Permissions::from_mode(0o622))?;
            // Also open for writing: a program can then open it without waiting, and end of file never occurs when one
            // closes it.
            let marks = File::options().read(true).write(true).open(path)?;
            rustix::io::ioctl_fionbio(&marks, true)?;
            Ok(marks)
        };
        let mut name = tempfile::Builder::new();
        let marks = name.prefix("jobs.").rand_bytes(32).make_in(&folder, open);
        Ok((folder, marks.map_err(making)?))
    }

    /// Reads everything that is in the pipe; returns true if there was anything.
    fn read_marks(&self, marks: &mut File, text: &mut Vec<u8>) -> Result<bool, Error> {
        let before = text.len();
        match marks.read_to_end(text) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(source) => return Err(self.system("reading the marks of", source)),
        }
        Ok(text.len() > before)
    }

    /// A job as the program marked it: `BEGIN END`, or `RELEASE BEGIN END`, in nanoseconds of `CLOCK_MONOTONIC`.
    fn marked(&mut self, number: Option<u64>, line: &[u8]) -> Result<Option<u64>, Error> {
        let line = String::from_utf8_lossy(line);
        let bad = || {
            self.broken(format!(
                "wrote `{}` to ${MARKS}: a job is a line `BEGIN END` or `RELEASE BEGIN END`, in nanoseconds of \
                 CLOCK_MONOTONIC",
                line.trim_end()
            ))
        };
        let times: Result<Vec<u64>, _> = line.split_ascii_whitespace().map(str::parse).collect();
        let (release, begin, end) = match times.as_deref() {
            Ok([begin, end]) => (*begin, *begin, *end),
            Ok([release, begin, end]) => (*release, *begin, *end),
            _ => return Err(bad()),
        };
        if begin < release || end < begin {
            return Err(bad());
        }
        let deadline_ns = self
            .config
            .release
            .map_or(u64::MAX, |of| nanoseconds(of.deadline));
        self.marks_releases |= release < begin;
        let periods = match (self.marked_release_ns, self.config.release) {
            (Some(before), Some(of)) => {
                self.gaps_ns.push(release.saturating_sub(before));
                periods_between(before, release, begin, nanoseconds(of.period))
            }
            _ => 1,
        };
        let next = number.map_or(0, |number| number + periods);
        self.marked_release_ns = Some(release);
        if number.is_some() && next <= self.config.jobs {
            self.push(Job {
                number: next - 1,
                release_jitter_ns: begin - release,
                response_ns: end - release,
                execution_ns: end - begin,
                missed: end - release > deadline_ns,
            });
        }
        Ok(Some(next))
    }

    /// Waits for the next release after job `number`; returns the time at which the job begins, or none on a stop.
    fn release(&mut self, number: Option<u64>) -> Result<Option<u64>, Error> {
        // The first job only warms up; the releases begin after it.
        if let (Some(of), Some(_)) = (self.config.release, number) {
            let period_ns = nanoseconds(of.period);
            let schedule = *self.schedule.get_or_insert(Schedule {
                first_ns: clock::monotonic_ns() + period_ns,
                period_ns,
                deadline_ns: nanoseconds(of.deadline),
            });
            let release_ns = schedule.release_ns(number.unwrap_or(0));
            while clock::monotonic_ns() < release_ns && !self.stop.requested() {
                clock::sleep_until(release_ns)?;
            }
        }
        Ok((!self.stop.requested()).then(clock::monotonic_ns))
    }

    /// Records job `number` (none for the first, which is left out) and returns the number of the next job.
    fn finish(&mut self, number: Option<u64>, begin: u64, end: u64) -> Option<u64> {
        let Some(number) = number else {
            return Some(0);
        };
        let Some(schedule) = self.schedule else {
            self.push(Job {
                number,
                release_jitter_ns: 0,
                response_ns: end - begin,
                execution_ns: end - begin,
                missed: false,
            });
            return Some(number + 1);
        };
        self.push(schedule.job(number, begin, end));
        Some(schedule.after(number, end))
    }

    fn push(&mut self, job: Job) {
        let first = job.missed.then(|| self.late.take()).flatten();
        if let (Some(late), Some(of)) = (first, self.config.release) {
            late(
                &job,
                job.response_ns.saturating_sub(nanoseconds(of.deadline)),
            );
        }
        self.jobs.push(job);
    }

    /// True if release `number` is beyond the last.
    fn is_done(&self, number: Option<u64>) -> bool {
        number.is_some_and(|number| number >= self.config.jobs)
    }

    /// Waits for the end of a run; none on a stop.
    fn wait(&self, group: &mut Group) -> Result<Option<ExitStatus>, Error> {
        let watching = |errno: rustix::io::Errno| self.system("watching", errno.into());
        let pid = i32::try_from(group.leader.id())
            .ok()
            .and_then(Pid::from_raw);
        let Some(pid) = pid else {
            return Err(self.broken("has no process"));
        };
        let watched = pidfd_open(pid, PidfdFlags::empty()).map_err(watching)?;
        while !self.readable(&watched, Some(&LOOK_EVERY))? {
            if self.stop.requested() {
                return Ok(None);
            }
        }
        group.ended()
    }

    /// Time of the next line; none at the end of the output or on a stop.
    fn next_line(&self, lines: &mut ChildStdout) -> Result<Option<u64>, Error> {
        let since = clock::monotonic_ns();
        let mut first = None;
        let mut count = 0;
        loop {
            // Checked in each pass: a program can write without a pause and never end a line.
            if self.stop.requested() {
                return Ok(None);
            }
            if clock::monotonic_ns() - since > nanoseconds(JOB_WITHIN) {
                return Err(self.broken(format!(
                    "wrote no line for {} s: each job ends with a line on standard output, which the program \
                     flushes (stdbuf -oL does it for some)",
                    JOB_WITHIN.as_secs()
                )));
            }
            // Read on after the line: long lines fill more than one chunk.
            let within = first.map_or(LOOK_EVERY, |_| Timespec::default());
            if !self.readable(lines, Some(&within))? {
                if first.is_some() {
                    return Ok(first);
                }
                continue;
            }
            let now = clock::monotonic_ns();
            match self.lines(lines)? {
                None => return Ok(first),
                Some(0) => {}
                Some(more) => {
                    first.get_or_insert(now);
                    count += more;
                }
            }
            if count > 1 {
                return Err(self.broken(format!(
                    "wrote {count} lines at once: its output is buffered, or its jobs are too short for this method; \
                     flush after each line (stdbuf -oL does it for some), or mark the jobs (--jobs-by mark)"
                )));
            }
        }
    }

    /// Number of line ends in the available output; none at its end.
    fn lines(&self, lines: &mut ChildStdout) -> Result<Option<usize>, Error> {
        let mut chunk = [0; 1 << 12];
        match lines.read(&mut chunk) {
            Ok(0) => Ok(None),
            Ok(length) => {
                let read = chunk[..length].iter();
                Ok(Some(read.filter(|byte| **byte == b'\n').count()))
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(Some(0)),
            Err(source) => Err(self.system("reading the lines of", source)),
        }
    }

    fn readable(
        &self,
        from: &impl std::os::fd::AsFd,
        within: Option<&Timespec>,
    ) -> Result<bool, Error> {
        let mut polled = [PollFd::new(from, PollFlags::IN)];
        match poll(&mut polled, within) {
            Ok(count) => Ok(count > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(errno) => Err(self.system("watching", errno.into())),
        }
    }

    /// Handles a program whose output or marks end before all jobs are done.
    fn ended_early(&mut self, group: &mut Group) -> Result<(), Error> {
        let since = clock::monotonic_ns();
        let status = loop {
            if let Some(status) = group.ended()? {
                break status;
            }
            if self.stop.requested() {
                return Ok(());
            }
            if clock::monotonic_ns() - since > nanoseconds(EXIT_WITHIN) {
                return Err(self.broken(format!(
                    "closed its standard output and runs on {} s later: each job ends with a line there",
                    EXIT_WITHIN.as_secs()
                )));
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        if !status.success() {
            return Err(self.failed(status));
        }
        if self.jobs.is_empty() {
            let remedy = match self.config.by {
                Delimiter::Mark => {
                    format!(
                        "mark each job with memwarden_job.h, .rs or .py from share/memwarden, or let each job be a run \
                         (--jobs-by exit; in `memwarden jobs`, --by exit); {NO_PIPE}"
                    )
                }
                _ => {
                    "write a line to standard output at the end of each, or let each job be a run (--jobs-by exit; in `memwarden jobs`, --by exit)".to_owned()
                }
            };
            return Err(self.broken(format!(
                "ended after fewer than two jobs, of which the first is left out: {remedy}"
            )));
        }
        self.ended_early = true;
        self.notes.push(format!(
            "{} ended by itself after {} of {} jobs",
            self.what,
            self.jobs.len(),
            self.config.jobs
        ));
        Ok(())
    }

    fn outcome(mut self) -> Result<Outcome, Error> {
        if self.lost > 0 {
            self.notes.push(format!(
                "{} skipped releases passed while memwarden ended what {} had left running: a program that waits for \
                 its children leaves none",
                self.lost, self.what
            ));
        }
        if let Some(of) = self.config.release {
            let marked = if self.marks_releases {
                "releases"
            } else {
                "begins"
            };
            let note = shorter_period(&mut self.gaps_ns, marked, nanoseconds(of.period));
            self.notes.extend(note);
        }
        if self.jobs.is_empty() {
            return Err(self.broken("stopped before its second job: nothing was measured"));
        }
        let last = self.jobs.last().map_or(0, |job| job.number + 1);
        let releases = match self.config.release {
            // Releases that the last job overran count as skipped, too.
            Some(_) if !self.stop.requested() && !self.ended_early => self.config.jobs,
            _ => last,
        };
        let skipped = releases - self.jobs.len() as u64;
        Ok(Outcome {
            cpu: affinity::current()?,
            releases,
            skipped,
            misses: skipped + self.jobs.iter().filter(|job| job.missed).count() as u64,
            jobs: self.jobs,
            notes: self.notes,
        })
    }

    /// The error for a failed run, with the program's last line of errors.
    fn failed(&self, status: ExitStatus) -> Error {
        let shell = match status.code() {
            // 126 and 127: the shell could not start the program.
            Some(126 | 127) if self.in_shell => " (the shell could not start it)".to_owned(),
            Some(code @ 129..=159) if self.in_shell => {
                format!(" (signal {} in a shell)", code - 128)
            }
            _ => String::new(),
        };
        self.broken(match self.last_words() {
            Some(said) => format!("failed: {status}{shell}: {said}"),
            None => format!("failed: {status}{shell}"),
        })
    }

    /// The last line of the program's standard error.
    fn last_words(&self) -> Option<String> {
        let mut errors = &self.errors;
        let length = errors.seek(SeekFrom::End(0)).ok()?;
        let last = SeekFrom::Start(length.saturating_sub(LAST_WORDS));
        errors.seek(last).ok()?;
        let mut said = Vec::new();
        errors.read_to_end(&mut said).ok()?;
        let said = String::from_utf8_lossy(&said);
        let line = said.lines().rev().find(|line| !line.trim().is_empty());
        line.map(|line| line.trim().to_owned())
    }

    /// Empties the file of errors after a successful run: its text is not the next run's, and it takes up memory.
    fn forget_errors(&mut self) -> Result<(), Error> {
        let forgotten = self.errors.set_len(0).and_then(|()| self.errors.rewind());
        forgotten.map_err(|source| self.system("emptying the file for the errors of", source))
    }

    fn broken(&self, reason: impl std::fmt::Display) -> Error {
        Error::workload(&self.what, reason)
    }

    fn system(&self, action: &'static str, source: std::io::Error) -> Error {
        Error::process(action, &self.what, source)
    }
}

/// Periods between the release `before` and the next one that the program marks, at least 1.
///
/// The program has its own schedule. Periods are counted from one release to the next, so that a drifting timer skips
/// none. If the program marks no release, the begin of the job stands for it. A late begin after a punctual one makes
/// the gap longer than the distance of the releases, so a period counts as skipped only if three quarters of it are in
/// the gap.
fn periods_between(before: u64, release: u64, begin: u64, period_ns: u64) -> u64 {
    let is_marked = release < begin;
    let early = if is_marked {
        period_ns / 2
    } else {
        period_ns / 4
    };
    ((release.saturating_sub(before) + early) / period_ns).max(1)
}

/// A note if the program marks with a shorter period than the given one: then each of its jobs counts as a release.
///
/// Late begins and rounding stay below a quarter of a period, as in `periods_between`.
fn shorter_period(gaps_ns: &mut [u64], marked: &str, period_ns: u64) -> Option<String> {
    gaps_ns.sort_unstable();
    let median = *gaps_ns.get(gaps_ns.len() / 2)?;
    if median >= period_ns - period_ns / 4 {
        return None;
    }
    // Three digits.
    let digit = 10_u64.pow(median.max(100).ilog10() - 2);
    Some(format!(
        "the program's {marked} are {} apart, --period says {}",
        Time::ns(median / digit * digit).text(),
        Time::ns(period_ns).text()
    ))
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_begin_skips_no_period() {
        let count = |begins: [u64; 4]| -> u64 {
            let of = |pair: &[u64]| periods_between(pair[0], pair[1], pair[1], 20);
            begins.windows(2).map(of).sum()
        };
        assert_eq!(count([0, 31, 40, 60]), 3);
        assert_eq!(count([0, 20, 40, 60]), 3);
        assert_eq!(count([0, 20, 60, 80]), 4, "none began in the third period");
        assert_eq!(count([0, 20, 56, 80]), 4, "nor here");
    }

    #[test]
    fn marked_releases_are_rounded_to_whole_periods() {
        let apart = |gap| periods_between(0, gap, gap + 3, 20);
        assert_eq!([1, 19, 29, 30, 41, 58].map(apart), [1, 1, 1, 2, 2, 3]);
    }

    #[test]
    fn a_median_gap_below_three_quarters_of_the_period_is_told() {
        let told = |gaps: &[u64]| shorter_period(&mut gaps.to_vec(), "begins", 20_000_000);
        assert_eq!(told(&[]), None);
        // Late begins, each followed by a punctual one.
        assert_eq!(told(&[31_000_000, 9_000_000, 20_000_000]), None);
        assert_eq!(told(&[15_000_000; 3]), None);
        assert_eq!(
            told(&[40_000_000, 5_009_999, 4_000_000]).as_deref(),
            Some("the program's begins are 5 ms apart, --period says 20 ms")
        );
    }
}
