// SPDX-License-Identifier: MIT OR Apache-2.0
//! What goes wrong with a memory device: mistakes that a program can make, each provoked once, with what the device does
//! about it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use memwarden_copies::mymem::{C_DEVICE, Lock, RUST_DEVICE};
use memwarden_copies::{provide, provide_exclusive};
use memwarden_platform::{descriptor, mymem};
use memwarden_run::studies::mymem_mistakes::{Case, NAME, Summary};
use memwarden_run::{Existing, Sample};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Subject, counter};
use crate::settings::not_twice;
use crate::{Error, Interrupt, Progress, Settings, folder};

/// Programs that open the device beside this one.
const PROGRAMS: usize = 4;

/// Calls of each worker before its descriptor is closed, and after the number has another file.
const CALLS: u64 = 100;

/// A descriptor's number that nothing else in this process gets: a free number is the lowest one.
const NUMBER: RawFd = 200;

/// Within this every worker has made its next call.
const AFTER_CLOSING: Duration = Duration::from_millis(100);

/// Workers, at most.
const MAX_WORKERS: u32 = 100;

/// Increments of a worker, at most.
const MAX_INCREMENTS: u64 = 100_000_000;

/// The experiment's settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The devices; empty is those that are there.
    #[schemars(with = "Vec<String>")]
    pub device: Vec<Subject>,
    /// Threads that share a descriptor, and that increment a counter.
    pub workers: u32,
    /// Increments of each.
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

    /// Few increments: a system call takes long there.
    fn for_lab() -> Self {
        Self {
            increments: 1000,
            ..Self::default()
        }
    }

    fn check(&self) -> Result<(), Error> {
        let within = |option: &str, value: u64, most: u64| {
            if (1..=most).contains(&value) {
                return Ok(());
            }
            Err(Error::BadInput(format!(
                "{option} {value}: give 1 to {most}"
            )))
        };
        within("--workers", self.workers.into(), MAX_WORKERS.into())?;
        within("--increments", self.increments, MAX_INCREMENTS)?;
        if self.device.contains(&Subject::InKernel) {
            return Err(Error::BadInput(
                "--device in-kernel: the mistakes are a program's; give a path such as /dev/mymem"
                    .into(),
            ));
        }
        not_twice("--device", &self.device)
    }
}

/// Provokes each mistake on each device and leaves the run folder. What a device does other than it should is no error
/// here: see [`faults`].
///
/// # Errors
/// When a setting makes no sense, no device is there, or Ctrl-C; what was found is then in `DIR.partial`.
pub fn run(
    config: &Config,
    out: Option<&Path>,
    existing: Existing,
    interrupt: &Interrupt,
    progress: &mut dyn Progress,
) -> Result<(PathBuf, Summary), Error> {
    config.check()?;
    let mut summary = Summary::new(NAME, "native");
    let devices = devices(config, &mut summary)?;
    let mut folder = folder::begin(NAME, config, out, existing)?;
    for (number, path) in devices.iter().enumerate() {
        progress.step(number, devices.len(), &Subject::Device(path.clone()).name());
        interrupt.check()?;
        let found = on_device(path, config, interrupt, &mut summary)?;
        for case in found {
            if let Some(lost) = case.lost_share {
                folder.append(&Sample::new(
                    &case.name,
                    0,
                    "workers",
                    "lost_share",
                    "1",
                    lost,
                ))?;
            }
            summary.cases.push(case);
        }
    }
    progress.step(devices.len(), devices.len(), "done");
    let path = folder.finish(&summary)?;
    Ok((path, summary))
}

/// Those that are asked for, or those of memwarden's that can be had.
fn devices(config: &Config, summary: &mut Summary) -> Result<Vec<PathBuf>, Error> {
    let asked = config.device.iter().filter_map(|subject| match subject {
        Subject::Device(path) => Some(path.clone()),
        Subject::InKernel => None,
    });
    let asked: Vec<PathBuf> = asked.collect();
    if !asked.is_empty() {
        return Ok(asked);
    }
    let mut there = Vec::new();
    let mut reason = None;
    for path in [C_DEVICE, RUST_DEVICE] {
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

/// All mistakes on one device. Its module is loaded for them, and loaded again with exclusive=1 for the last.
fn on_device(
    path: &Path,
    config: &Config,
    interrupt: &Interrupt,
    summary: &mut Summary,
) -> Result<Vec<Case>, Error> {
    let loaded = provide(path)?;
    let file = open(path)?;
    let is_device = file
        .metadata()
        .is_ok_and(|data| data.file_type().is_char_device());
    let subject = Subject::Device(path.into()).name();
    let mut cases = Vec::new();
    let mut add = |mistake: &str, done: String, expected: &str, found: Found| {
        cases.push(Case {
            name: format!("{subject}, {done}"),
            guard: (),
            subject: subject.clone(),
            mistake: mistake.into(),
            done,
            expected: expected.into(),
            found: found.words,
            as_expected: is_device.then_some(found.as_expected),
            lost_share: found.lost_share,
        });
    };

    let workers = config.workers;
    add(
        "closed descriptor",
        format!("closed while {workers} workers write through it"),
        "EBADF in each worker's next call",
        closed(&file, workers, interrupt)?,
    );
    add(
        "closed descriptor",
        format!("its number given to another file while {workers} workers write through it"),
        "the workers overwrite the other file",
        reused(&file, workers, interrupt)?,
    );
    let size = file_bytes(&file)?;
    for (done, expected, found) in beyond(&file, size) {
        add("offset", done.into(), expected, found);
    }
    if !is_device {
        // A file grows where a device refuses.
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
        add(
            "increment",
            done,
            expected,
            increments(path, config, lock, interrupt)?,
        );
    }

    let is_exclusive = exclusive(path);
    let (expected, found) = programs(path, is_exclusive)?;
    add("several programs", opened(is_exclusive), expected, found);
    drop(file);
    if loaded.is_some() && !is_exclusive {
        drop(loaded);
        let _loaded = provide_exclusive(path)?;
        let _held = open(path)?;
        let (expected, found) = programs(path, true)?;
        add("several programs", opened(true), expected, found);
    } else if is_device {
        summary.note(format!(
            "{}: the module was loaded before, with exclusive={}; the other setting was not tried. Unload it and run \
             again to have both.",
            path.display(),
            u8::from(is_exclusive)
        ));
    } else {
        summary.note(format!(
            "{}: a file stands in for the device. It grows where a device refuses, and adds nothing by itself.",
            path.display()
        ));
    }
    Ok(cases)
}

fn opened(exclusive: bool) -> String {
    format!(
        "{PROGRAMS} programs open it while this one has it open, exclusive={}",
        u8::from(exclusive)
    )
}

/// What a device did.
struct Found {
    words: String,
    as_expected: bool,
    lost_share: Option<f64>,
}

impl Found {
    fn new(words: impl Into<String>, as_expected: bool) -> Self {
        Self {
            words: words.into(),
            as_expected,
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

/// The module's parameter, where there is one.
fn exclusive(path: &Path) -> bool {
    let module = path.file_name().unwrap_or_default().to_string_lossy();
    let parameter = format!("/sys/module/{module}/parameters/exclusive");
    std::fs::read_to_string(parameter).is_ok_and(|value| value.trim() == "Y")
}

/// An error by its name in errno(3).
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

/// Threads that write through one descriptor, each to a word of its own, until an error or the end.
struct Sharers {
    ended: AtomicBool,
    calls: Vec<AtomicU64>,
}

impl Sharers {
    fn new(workers: u32) -> Self {
        Self {
            ended: AtomicBool::new(false),
            calls: (0..workers).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn work(&self, number: RawFd, worker: usize) -> Option<io::Error> {
        let offset = 8 * worker as u64;
        while !self.ended.load(Ordering::Relaxed) {
            if let Err(error) = descriptor::write_at(number, offset, &[b'w'; 8]) {
                return Some(error);
            }
            self.calls[worker].fetch_add(1, Ordering::Relaxed);
        }
        None
    }

    /// Waits until each worker has made some more calls.
    fn have_called(&self, interrupt: &Interrupt) -> Result<(), Error> {
        let count = |calls: &AtomicU64| calls.load(Ordering::Relaxed);
        let goals: Vec<u64> = self
            .calls
            .iter()
            .map(|calls| count(calls) + CALLS)
            .collect();
        while self
            .calls
            .iter()
            .zip(&goals)
            .any(|(calls, goal)| count(calls) < *goal)
        {
            interrupt.check()?;
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Runs `meanwhile` beside the workers. Return: what it says, and each worker's error.
    fn run<T>(
        &self,
        number: RawFd,
        meanwhile: impl FnOnce() -> Result<T, Error>,
    ) -> Result<(T, Vec<Option<io::Error>>), Error> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.calls.len())
                .map(|worker| scope.spawn(move || self.work(number, worker)))
                .collect();
            let said = meanwhile();
            self.ended.store(true, Ordering::Relaxed);
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            let errors = threads.into_iter().map(join).collect();
            Ok((said?, errors))
        })
    }
}

/// A second descriptor of the file, under a number of its own.
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
        std::thread::sleep(AFTER_CLOSING);
        Ok(())
    })?;
    let mut names: Vec<String> = errors.iter().flatten().map(errno).collect();
    let all = names.iter().filter(|name| *name == "EBADF").count();
    names.dedup();
    Ok(Found::new(
        format!(
            "{} in {} of {workers} workers",
            names.join(", "),
            errors.iter().flatten().count()
        ),
        all == workers as usize,
    ))
}

fn reused(file: &File, workers: u32, interrupt: &Interrupt) -> Result<Found, Error> {
    let other = memfd_create("other", MemfdFlags::CLOEXEC)
        .map_err(|error| Error::BadInput(format!("make a file: {error}")))?;
    let other = File::from(other);
    let mut shared = duplicate(file)?;
    let number = shared.as_raw_fd();
    let sharers = Sharers::new(workers);
    let (bytes, _) = sharers.run(number, || {
        sharers.have_called(interrupt)?;
        rustix::io::dup2(&other, &mut shared)
            .map_err(|error| Error::BadInput(format!("give a number to another file: {error}")))?;
        sharers.have_called(interrupt)?;
        let mut bytes = vec![0; 8 * workers as usize];
        let read = other.read_at(&mut bytes, 0).unwrap_or(0);
        bytes.truncate(read);
        Ok(bytes.iter().filter(|byte| **byte == b'w').count())
    })?;
    Ok(Found::new(
        format!("{bytes} bytes of the other file are the workers'"),
        bytes == 8 * workers as usize,
    ))
}

/// Accesses at the end of a device of `size` bytes and beyond: what was done, what should come of it, and what did.
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

#[allow(clippy::cast_precision_loss)]
fn increments(
    path: &Path,
    config: &Config,
    lock: Lock,
    interrupt: &Interrupt,
) -> Result<Found, Error> {
    if exclusive(path) {
        return Ok(Found::new(
            "not tried: exclusive=1 lets one worker open the device",
            true,
        ));
    }
    let count = match counter::count(path, config.workers, config.increments, lock, interrupt) {
        Ok(count) => count,
        Err(Error::Copies(error)) => return Ok(Found::new(error.to_string(), false)),
        Err(error) => return Err(error),
    };
    let lost = count.expected.abs_diff(count.actual);
    Ok(Found {
        words: format!("{lost} of {} updates lost", count.expected),
        as_expected: lost == 0 || lock == Lock::None,
        lost_share: Some(lost as f64 / count.expected as f64),
    })
}

/// Has programs open the device while this process has it open.
fn programs(path: &Path, exclusive: bool) -> Result<(&'static str, Found), Error> {
    let mut opened = 0;
    let mut busy = 0;
    for _ in 0..PROGRAMS {
        // As a program of any language opens it: a shell does, and says why not.
        let output = Command::new("sh")
            .args(["-c", "exec 3<>\"$1\"", "sh"])
            .arg(path)
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .output()
            .map_err(|source| Error::Process {
                action: "start",
                what: "sh".into(),
                source,
            })?;
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

/// The mistakes about which a device did something else than it should, in a line. None is none.
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
    use super::*;

    fn file() -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        file
    }

    /// In one test: two at once would share the number.
    #[test]
    fn a_closed_number_is_no_file_s_until_a_file_has_it_and_then_that_file_s() {
        let (file, interrupt) = (file(), Interrupt::default());
        let found = closed(&file, 3, &interrupt).unwrap();
        assert_eq!(found.words, "EBADF in 3 of 3 workers");
        assert!(found.as_expected);
        assert_eq!(file_bytes(&file).unwrap(), 4096);
        let found = reused(&file, 3, &interrupt).unwrap();
        assert_eq!(found.words, "24 bytes of the other file are the workers'");
        assert!(found.as_expected);
    }

    #[test]
    fn a_file_does_at_its_end_what_a_device_does_not() {
        let found = beyond(&file(), 4096);
        let by_name = |done: &str| {
            let found = found.iter().find(|one| one.0 == done).unwrap();
            (found.2.words.as_str(), found.2.as_expected)
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
