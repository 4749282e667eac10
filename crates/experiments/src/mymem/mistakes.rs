// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mistakes that a program can make with a memory device: each is provoked once, and the device's reaction is recorded.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use memwarden_copies::mymem::{self as memory_device, Lock};
use memwarden_copies::{provide, provide_exclusive};
use memwarden_platform::{descriptor, mymem};
use memwarden_run::studies::mymem_mistakes::{Case, NAME, Summary};
use memwarden_run::{RunFolder, Sample};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{OURS, Subject, counter, exclusive};
use crate::request::finished;
use crate::settings::{check_within, not_twice};
use crate::threads::{Ends, joined, started};
use crate::{Error, Interrupt, RunRequest, Settings};

/// Programs that open the device while this one has it open.
const PROGRAMS: usize = 4;

/// Calls of each worker before its descriptor is closed, and afterwards if they succeed.
const CALLS: u64 = 100;

/// A descriptor number that this process does not use otherwise: the kernel assigns the lowest free number.
const NUMBER: RawFd = 200;

/// Bytes of each write; each worker has its own place.
const WORD_BYTES: u64 = 8;

/// Most workers.
const MAX_WORKERS: u32 = 100;

/// Most increments of a worker.
const MAX_INCREMENTS: u64 = 100_000_000;

/// The experiment's settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The devices; empty means those that exist.
    #[schemars(with = "Vec<String>")]
    pub device: Vec<Subject>,
    /// Threads that share a descriptor and increment a counter.
    pub workers: u32,
    /// Increments of each thread.
    pub increments: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            device: Vec::new(),
            workers: 4,
            increments: 50_000,
        }
    }
}

impl Settings for Config {
    type Whole = memwarden_run::studies::mymem_mistakes::Whole;

    const COMMAND: &str = "mymem mistakes";

    /// Few increments: a system call takes long on the emulated machine.
    fn for_lab() -> Self {
        Self {
            increments: 1000,
            ..Self::default()
        }
    }

    fn check(&self) -> Result<(), Error> {
        check_within("--workers", self.workers, 1..=MAX_WORKERS)?;
        check_within("--increments", self.increments, 1..=MAX_INCREMENTS)?;
        if self.device.contains(&Subject::InKernel) {
            return Err(Error::BadInput(
                "--device in-kernel: the mistakes are a program's; give a path such as /dev/mymem"
                    .into(),
            ));
        }
        not_twice("--device", &self.device)
    }
}

/// Provokes each mistake on each device and writes the run folder. An unexpected reaction of a device is no error:
/// [`faults`] reports it.
///
/// # Errors
/// When a setting is invalid, no device exists, one is too small, or on Ctrl-C; what was found is then in
/// `DIR.partial`.
pub fn run(config: &Config, request: RunRequest) -> Result<(PathBuf, Summary), Error> {
    config.check()?;
    let interrupt = request.interrupt;
    let mut summary = Summary::new(NAME, "native");
    let devices = devices(config, &mut summary)?;
    let mut folder = request.begin(NAME, config)?;
    let mut steps = request.steps(devices.len());
    for path in &devices {
        steps.next(&Subject::Device(path.clone()).name());
        interrupt.check()?;
        on_device(path, config, interrupt, &mut folder, &mut summary)?;
    }
    steps.end();
    finished(folder, summary)
}

/// The devices that the settings name, or those of memwarden's devices that exist or can be loaded.
fn devices(config: &Config, summary: &mut Summary) -> Result<Vec<PathBuf>, Error> {
    let named = config.device.iter().filter_map(|subject| match subject {
        Subject::Device(path) => Some(path.clone()),
        Subject::InKernel => None,
    });
    let named: Vec<PathBuf> = named.collect();
    for path in &named {
        memory_device::refuse_disk(path)?;
    }
    if !named.is_empty() {
        return Ok(named);
    }
    let mut there = Vec::new();
    let mut reason = None;
    for path in OURS {
        match provide(Path::new(path)) {
            Ok(_loaded) => there.push(PathBuf::from(path)),
            Err(error) => {
                summary.note(format!("Left out: {error}."));
                reason = Some(error);
            }
        }
    }
    match reason {
        Some(error) if there.is_empty() => Err(error.into()),
        _ => Ok(there),
    }
}

/// The cases of one device, recorded one by one.
struct Record<'a> {
    subject: String,
    is_device: bool,
    folder: &'a mut RunFolder,
    summary: &'a mut Summary,
}

impl Record<'_> {
    fn add(
        &mut self,
        mistake: &str,
        done: String,
        expected: &str,
        found: Found,
    ) -> Result<(), Error> {
        let case = Case {
            name: format!("{}, {done}", self.subject),
            guard: (),
            subject: self.subject.clone(),
            mistake: mistake.into(),
            done,
            expected: expected.into(),
            found: found.words,
            as_expected: found.as_expected.filter(|_| self.is_device),
            lost_share: found.lost_share,
        };
        let judged = case.as_expected.map(|same| f64::from(u8::from(same)));
        let sample = |role, metric, value| Sample::new(&case.name, 0, role, metric, "1", value);
        self.folder
            .append(&sample("device", "as_expected", judged))?;
        if case.lost_share.is_some() {
            self.folder
                .append(&sample("workers", "lost_share", case.lost_share))?;
        }
        self.folder.flush()?;
        self.summary.cases.push(case);
        Ok(())
    }
}

/// Provokes all mistakes on one device. Its module is loaded for them, and loaded again with exclusive=1 for the last.
fn on_device(
    path: &Path,
    config: &Config,
    interrupt: &Interrupt,
    folder: &mut RunFolder,
    summary: &mut Summary,
) -> Result<(), Error> {
    let loaded = provide(path)?;
    let file = open(path)?;
    let workers = config.workers;
    let size = file_bytes(&file)?;
    let needed = WORD_BYTES * u64::from(workers);
    if size < needed {
        return Err(Error::BadInput(format!(
            "{} has {size} bytes: {workers} workers need {needed}, a word of {WORD_BYTES} each",
            path.display()
        )));
    }
    memory_device::reserve(&file, path)?;
    let is_device = file
        .metadata()
        .is_ok_and(|data| data.file_type().is_char_device());
    let mut record = Record {
        subject: Subject::Device(path.into()).name(),
        is_device,
        folder,
        summary,
    };

    record.add(
        "closed descriptor",
        format!("closed while {workers} workers write through it"),
        "EBADF in each worker's next call",
        closed(&file, workers, interrupt)?,
    )?;
    record.add(
        "closed descriptor",
        format!("its number given to another file while {workers} workers write through it"),
        "the workers overwrite the other file",
        reused(&file, workers, interrupt)?,
    )?;
    for (done, expected, found) in beyond(&file, size) {
        record.add("offset", done.into(), expected, found)?;
    }
    if !is_device {
        // A file grows where a device would refuse.
        file.set_len(size)
            .map_err(|reason| failed("shorten", path, reason))?;
    }
    for (lock, expected) in [
        (Lock::None, "updates of one worker can undo another's"),
        (Lock::FetchAdd, "no update is lost"),
    ] {
        let how = match lock {
            Lock::FetchAdd => "by the device (MYMEM_FETCH_ADD)",
            _ => "by two calls, a read and a write",
        };
        let done = format!("{workers} workers add {} each {how}", config.increments);
        let found = increments(path, config, lock, interrupt)?;
        record.add("increment", done, expected, found)?;
    }

    let is_exclusive = exclusive(path);
    let (expected, found) = programs(path, is_exclusive)?;
    record.add("several programs", opened(is_exclusive), expected, found)?;
    drop(file);
    let was_missing = loaded.is_some();
    drop(loaded);
    if was_missing && !is_exclusive {
        if let Some((expected, found)) = exclusively(path)? {
            return record.add("several programs", opened(true), expected, found);
        }
    }
    let reason = match (was_missing, is_exclusive) {
        (true, true) => "modprobe's configuration loads the module",
        (true, false) => "another process kept the module loaded",
        (false, _) => "the module was loaded before",
    };
    summary.note(remark(path, is_device, reason, is_exclusive));
    Ok(())
}

/// The note on a device of which only one setting was tried, for this reason, or on a file.
fn remark(path: &Path, is_device: bool, reason: &str, exclusive: bool) -> String {
    let subject = path.display();
    if !is_device {
        return format!(
            "{subject}: a file stands in for the device. A file grows where a device refuses, and has no atomic \
             addition."
        );
    }
    if !OURS.iter().any(|ours| path == Path::new(ours)) {
        return format!(
            "{subject}: exclusive=1 was not tried: it is a parameter of memwarden's modules, and this is another device."
        );
    }
    format!(
        "{subject}: {reason}, with exclusive={}; the other setting was not tried. To try both, unload the module, remove \
         its options from modprobe's configuration, and run again.",
        u8::from(exclusive)
    )
}

/// Loads the module with exclusive=1 and lets programs open the device. None if the module is loaded without it.
fn exclusively(path: &Path) -> Result<Option<(&'static str, Found)>, Error> {
    let _loaded = provide_exclusive(path)?;
    if !exclusive(path) {
        return Ok(None);
    }
    let _held = open(path)?;
    programs(path, true).map(Some)
}

fn opened(exclusive: bool) -> String {
    format!(
        "{PROGRAMS} programs open it while this one has it open, exclusive={}",
        u8::from(exclusive)
    )
}

/// A device's reaction.
struct Found {
    words: String,
    /// None if not tried.
    as_expected: Option<bool>,
    lost_share: Option<f64>,
}

impl Found {
    fn new(words: impl Into<String>, as_expected: bool) -> Self {
        Self {
            words: words.into(),
            as_expected: Some(as_expected),
            lost_share: None,
        }
    }
}

fn failed(action: &str, path: &Path, source: io::Error) -> Error {
    Error::BadInput(format!("{action} {}: {source}", path.display()))
}

fn open(path: &Path) -> Result<File, Error> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .open(path)
        .map_err(|reason| failed("open", path, reason))
}

fn file_bytes(mut file: &File) -> Result<u64, Error> {
    io::Seek::seek(&mut file, io::SeekFrom::End(0))
        .map_err(|reason| Error::BadInput(format!("find the end of the device: {reason}")))
}

/// The error's name in errno(3).
fn errno(error: &io::Error) -> String {
    match Errno::from_io_error(error) {
        Some(Errno::BADF) => "EBADF".into(),
        Some(Errno::BUSY) => "EBUSY".into(),
        Some(Errno::INVAL) => "EINVAL".into(),
        Some(Errno::NOSPC) => "ENOSPC".into(),
        Some(Errno::NOTTY) => "ENOTTY".into(),
        _ => error.to_string(),
    }
}

/// Threads that write through one descriptor, each to its own word, until an error or the end.
struct Sharers {
    ended: AtomicBool,
    workers: Vec<Worker>,
}

#[derive(Default)]
struct Worker {
    calls: AtomicU64,
    /// A call failed; this worker makes no more calls.
    failed: AtomicBool,
}

impl Sharers {
    fn new(workers: u32) -> Self {
        Self {
            ended: AtomicBool::new(false),
            workers: (0..workers).map(|_| Worker::default()).collect(),
        }
    }

    fn work(&self, number: RawFd, worker: usize) -> Option<io::Error> {
        let offset = WORD_BYTES * worker as u64;
        while !self.ended.load(Ordering::Relaxed) {
            if let Err(error) = descriptor::write_at(number, offset, &[b'w'; WORD_BYTES as usize]) {
                self.workers[worker].failed.store(true, Ordering::Relaxed);
                return Some(error);
            }
            self.workers[worker].calls.fetch_add(1, Ordering::Relaxed);
        }
        None
    }

    /// Waits until each worker has made more calls or has failed.
    fn have_called(&self, interrupt: &Interrupt) -> Result<(), Error> {
        let count = |worker: &Worker| worker.calls.load(Ordering::Relaxed);
        let goals: Vec<u64> = self.workers.iter().map(|one| count(one) + CALLS).collect();
        let is_behind = |(worker, goal): (&Worker, &u64)| {
            count(worker) < *goal && !worker.failed.load(Ordering::Relaxed)
        };
        while self.workers.iter().zip(&goals).any(is_behind) {
            interrupt.check()?;
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Runs `meanwhile` beside the workers; returns its result and each worker's error.
    fn run<T>(
        &self,
        number: RawFd,
        meanwhile: impl FnOnce() -> Result<T, Error>,
    ) -> Result<(T, Vec<Option<io::Error>>), Error> {
        std::thread::scope(|scope| {
            let ends = Ends(&self.ended);
            let threads = (0..self.workers.len())
                .map(|worker| started(scope, move || self.work(number, worker)))
                .collect::<Result<Vec<_>, Error>>()?;
            let said = meanwhile();
            drop(ends);
            let errors = threads.into_iter().map(joined).collect();
            Ok((said?, errors))
        })
    }
}

/// Duplicates the descriptor under a number of its own.
fn duplicate(file: &File) -> Result<OwnedFd, Error> {
    rustix::io::fcntl_dupfd_cloexec(file, NUMBER)
        .map_err(|error| Error::BadInput(format!("duplicate a descriptor: {error}")))
}

fn closed(file: &File, workers: u32, interrupt: &Interrupt) -> Result<Found, Error> {
    let shared = duplicate(file)?;
    let sharers = Sharers::new(workers);
    let ((), errors) = sharers.run(shared.as_raw_fd(), || {
        sharers.have_called(interrupt)?;
        drop(shared);
        sharers.have_called(interrupt)
    })?;
    let expected = |error: &io::Error| Errno::from_io_error(error) == Some(Errno::BADF);
    let all = errors
        .iter()
        .flatten()
        .filter(|error| expected(error))
        .count();
    Ok(Found::new(named(&errors), all == workers as usize))
}

/// The names of the workers' errors, each once.
fn named(errors: &[Option<io::Error>]) -> String {
    let names: BTreeSet<String> = errors.iter().flatten().map(errno).collect();
    let names: Vec<String> = names.into_iter().collect();
    format!(
        "{} in {} of {} workers",
        if names.is_empty() {
            "no error".into()
        } else {
            names.join(", ")
        },
        errors.iter().flatten().count(),
        errors.len()
    )
}

fn reused(file: &File, workers: u32, interrupt: &Interrupt) -> Result<Found, Error> {
    let other = memfd_create("other", MemfdFlags::CLOEXEC)
        .map_err(|error| Error::BadInput(format!("make a file: {error}")))?;
    let other = File::from(other);
    let mut shared = duplicate(file)?;
    let number = shared.as_raw_fd();
    let sharers = Sharers::new(workers);
    let (bytes, errors) = sharers.run(number, || {
        sharers.have_called(interrupt)?;
        rustix::io::dup2(&other, &mut shared)
            .map_err(|error| Error::BadInput(format!("give a number to another file: {error}")))?;
        sharers.have_called(interrupt)?;
        let mut bytes = vec![0; 8 * workers as usize];
        let read = other.read_at(&mut bytes, 0).unwrap_or(0);
        bytes.truncate(read);
        Ok(bytes.iter().filter(|byte| **byte == b'w').count())
    })?;
    let mut words = format!("the workers wrote {bytes} bytes of the other file");
    if errors.iter().any(Option::is_some) {
        words = format!("{}; {words}", named(&errors));
    }
    Ok(Found::new(words, bytes == 8 * workers as usize))
}

/// Accesses at and beyond the end of a device of `size` bytes: the access, the expected result, and the reaction.
fn beyond(file: &File, size: u64) -> Vec<(&'static str, &'static str, Found)> {
    const PART: &str = "8 bytes, or EINVAL with strict=1";
    let moved = |result: io::Result<usize>| match result {
        Ok(bytes) => format!("{bytes} bytes"),
        Err(error) => errno(&error),
    };
    let read = |bytes: usize, offset: u64| moved(file.read_at(&mut vec![0; bytes], offset));
    let write = |bytes: usize, offset: u64| moved(file.write_at(&vec![0; bytes], offset));
    let added = |offset: u64| match mymem::fetch_add(file, offset, 1) {
        Ok(before) => format!("added to {before}"),
        Err(error) => errno(&error),
    };
    let all = [
        ("read 8 bytes at the end", "0 bytes", read(8, size)),
        ("read 16 bytes, 8 before the end", PART, read(16, size - 8)),
        ("read 8 bytes beyond the end", "EINVAL", read(8, size + 8)),
        ("write 8 bytes at the end", "ENOSPC", write(8, size)),
        (
            "write 16 bytes, 8 before the end",
            PART,
            write(16, size - 8),
        ),
        ("write 8 bytes beyond the end", "EINVAL", write(8, size + 8)),
        ("fetch-add at the end", "EINVAL", added(size)),
        ("fetch-add at an odd offset", "EINVAL", added(5)),
    ];
    all.map(|(done, expected, found)| {
        let same = match expected {
            PART => found == "8 bytes" || found == "EINVAL",
            _ => found == expected,
        };
        (done, expected, Found::new(found, same))
    })
    .into()
}

fn increments(
    path: &Path,
    config: &Config,
    lock: Lock,
    interrupt: &Interrupt,
) -> Result<Found, Error> {
    if exclusive(path) {
        return Ok(Found {
            words: "not tried: exclusive=1 lets one worker open the device".into(),
            as_expected: None,
            lost_share: None,
        });
    }
    let count = match counter::count(path, config.workers, config.increments, lock, interrupt) {
        Ok(count) => count,
        Err(Error::Copies(error)) => return Ok(Found::new(error.to_string(), false)),
        Err(error) => return Err(error),
    };
    let lost = count.expected.abs_diff(count.actual);
    Ok(Found {
        words: format!("{lost} of {} updates lost", count.expected),
        as_expected: Some(lost == 0 || lock == Lock::None),
        lost_share: Some(lost as f64 / count.expected as f64),
    })
}

/// Lets programs open the device while this process has it open.
fn programs(path: &Path, exclusive: bool) -> Result<(&'static str, Found), Error> {
    let mut opened = 0;
    let mut busy = 0;
    for _ in 0..PROGRAMS {
        // A shell opens it as any program would, and reports the reason for a failure.
        let output = Command::new("sh")
            .args(["-c", "exec 3<>\"$1\"", "sh"])
            .arg(path)
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .output()
            .map_err(|source| Error::process("start", "sh", source))?;
        opened += usize::from(output.status.success());
        busy += usize::from(String::from_utf8_lossy(&output.stderr).contains("busy"));
    }
    let found = match busy {
        0 => format!("{opened} of {PROGRAMS} opened it"),
        _ => format!("{opened} of {PROGRAMS} opened it, EBUSY in {busy}"),
    };
    Ok(if exclusive {
        let same = opened == 0 && busy == PROGRAMS;
        ("EBUSY in all of them", Found::new(found, same))
    } else {
        ("all open it", Found::new(found, opened == PROGRAMS))
    })
}

/// The mistakes with an unexpected reaction, in one line. None if there is none.
#[must_use]
pub fn faults(summary: &Summary) -> Option<String> {
    let other = |case: &&Case| case.as_expected == Some(false);
    let faults: Vec<String> = summary
        .cases
        .iter()
        .filter(other)
        .map(|case| format!("{}: {} instead of {}", case.name, case.found, case.expected))
        .collect();
    (!faults.is_empty()).then(|| faults.join("; "))
}

#[cfg(test)]
mod tests {
    use memwarden_copies::mymem::C_DEVICE;

    use super::*;

    fn file() -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        file
    }

    /// In one test, as two tests at once would use the same descriptor number.
    #[test]
    fn a_closed_number_is_no_file_s_until_a_file_has_it_and_then_that_file_s() {
        let (file, interrupt) = (file(), Interrupt::default());
        let found = closed(&file, 3, &interrupt).unwrap();
        assert_eq!(found.words, "EBADF in 3 of 3 workers");
        assert_eq!(found.as_expected, Some(true));
        assert_eq!(file_bytes(&file).unwrap(), 4096);
        let found = reused(&file, 3, &interrupt).unwrap();
        assert_eq!(found.words, "the workers wrote 24 bytes of the other file");
        assert_eq!(found.as_expected, Some(true));

        // The test does not wait for workers whose writes fail.
        let full = open(Path::new("/dev/full")).unwrap();
        let found = closed(&full, 3, &interrupt).unwrap();
        assert_eq!(found.words, "ENOSPC in 3 of 3 workers");
        assert_eq!(found.as_expected, Some(false));
        let found = reused(&full, 3, &interrupt).unwrap();
        assert_eq!(
            found.words,
            "ENOSPC in 3 of 3 workers; the workers wrote 0 bytes of the other file"
        );
        assert_eq!(found.as_expected, Some(false));
    }

    #[test]
    fn exclusive_is_tried_on_a_module_that_has_it_only() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(exclusively(file.path()).unwrap().is_none());
    }

    #[test]
    fn only_a_module_of_ours_is_to_be_unloaded() {
        let said = |path| remark(Path::new(path), true, "the module was loaded before", true);
        assert!(said(C_DEVICE).contains("loaded before, with exclusive=1; the other setting"));
        assert!(said(C_DEVICE).contains("unload the module"));
        assert!(
            !said("/dev/null").contains("unload"),
            "{}",
            said("/dev/null")
        );
    }

    /// Includes the increments that the device's `exclusive` prevents.
    #[test]
    fn a_case_that_was_not_tried_has_a_sample_and_is_not_judged() {
        let place = tempfile::tempdir().unwrap();
        let out = place.path().join("run");
        let config = Config::default();
        let interrupt = Interrupt::default();
        let mut observer = ();
        let request = RunRequest::to(&out, &interrupt, &mut observer);
        let mut folder = request.begin(NAME, &config).unwrap();
        let mut summary = Summary::new(NAME, "native");
        let mut record = Record {
            subject: "C device".into(),
            is_device: true,
            folder: &mut folder,
            summary: &mut summary,
        };
        for as_expected in [Some(true), Some(false), None] {
            let found = Found {
                words: "found".into(),
                as_expected,
                lost_share: None,
            };
            record
                .add("offset", format!("{as_expected:?}"), "expected", found)
                .unwrap();
        }
        let judged: Vec<_> = summary.cases.iter().map(|case| case.as_expected).collect();
        assert_eq!(judged, [Some(true), Some(false), None]);
        let recorded = memwarden_run::Recorded::read(&folder.finish(&summary).unwrap()).unwrap();
        let values: Vec<_> = recorded.samples.iter().map(|one| one.value).collect();
        assert_eq!(values, [Some(1.0), Some(0.0), None]);
    }

    #[test]
    fn a_file_does_at_its_end_what_a_device_does_not() {
        let found = beyond(&file(), 4096);
        let by_name = |done: &str| {
            let found = found.iter().find(|one| one.0 == done).unwrap();
            (found.2.words.as_str(), found.2.as_expected.unwrap())
        };
        assert_eq!(by_name("read 8 bytes at the end"), ("0 bytes", true));
        assert_eq!(
            by_name("read 16 bytes, 8 before the end"),
            ("8 bytes", true)
        );
        assert_eq!(by_name("write 8 bytes at the end"), ("8 bytes", false));
        assert_eq!(by_name("fetch-add at the end"), ("ENOTTY", false));
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        let refused = |config: Config| config.check().unwrap_err().to_string();
        let config = Config::default();
        assert!(
            refused(Config {
                workers: 0,
                ..config.clone()
            })
            .contains("--workers 0")
        );
        assert!(
            refused(Config {
                increments: 0,
                ..config.clone()
            })
            .contains("--increments 0")
        );
        let device = vec![Subject::InKernel];
        assert!(refused(Config { device, ..config }).contains("in-kernel"));
    }
}
