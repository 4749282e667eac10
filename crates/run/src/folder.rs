// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes and reads run folders.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{
    COLUMNS, Error, Metric, Run, Sample, Summary, Whole, now_rfc3339, read_samples, schema,
    statistics, studies,
};

/// What to do if the folder already exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Fail.
    Refuse,
    /// Replace a run folder (or its `.partial`) once the new one is complete; fail for any other folder.
    Replace,
}

impl Existing {
    /// The value of a `--replace` option.
    pub fn replace_if(replace: bool) -> Self {
        if replace { Self::Replace } else { Self::Refuse }
    }
}

/// A run folder being written, as `DIR.partial` until [`RunFolder::finish`] renames it. When dropped unfinished it
/// stays as `DIR.partial` with the samples so far and reports that on stderr; without a sample it is removed.
pub struct RunFolder {
    directory: PathBuf,
    partial: PathBuf,
    existing: Existing,
    run: Run,
    samples: csv::Writer<File>,
    appended: u64,
    finished: bool,
}

/// `out/<experiment>-<UTC time>`, the folder of a run without `--out`.
pub fn default_directory(experiment: &str) -> PathBuf {
    let time = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    // No colons in the name: other systems forbid them in file names, and scp takes the text before one for a host.
    Path::new("out").join(format!("{experiment}-{}", time.replace([':', '-'], "")))
}

impl RunFolder {
    /// Begins the run folder `directory` with the record of the run. None is [`default_directory`], or the same with
    /// `-2`, `-3`, ... if another run has that name.
    ///
    /// # Errors
    /// The folder already exists and may not be replaced, or cannot be written.
    pub fn create(directory: Option<&Path>, run: Run, existing: Existing) -> Result<Self, Error> {
        let (directory, partial) = begin_at(directory, &run.experiment, existing)?;
        let samples = first_files(&partial, &run).inspect_err(|_| {
            // As on a full disk: an empty run folder would be in the way of the next run.
            let _ = fs::remove_dir_all(&partial);
        })?;
        Ok(Self {
            directory,
            partial,
            existing,
            run,
            samples,
            appended: 0,
            finished: false,
        })
    }

    /// The folder until it is finished: for logs and other files of the run.
    pub fn partial(&self) -> &Path {
        &self.partial
    }

    /// The final folder.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The record of the run; it can be changed until the folder is finished.
    pub fn run_mut(&mut self) -> &mut Run {
        &mut self.run
    }

    /// Appends one sample.
    ///
    /// # Errors
    /// The file cannot be written, or the value is not finite.
    pub fn append(&mut self, sample: &Sample) -> Result<(), Error> {
        let path = || self.partial.join("samples.csv");
        if sample.value.is_some_and(|v| !v.is_finite()) {
            let reason = format!(
                "{} of case {} is not a finite number",
                sample.metric, sample.case
            );
            return Err(Error::NotWritable {
                path: path(),
                reason,
            });
        }
        self.samples
            .serialize(sample)
            .map_err(|e| csv_error(&path(), e))?;
        self.appended += 1;
        Ok(())
    }

    /// Appends many samples.
    ///
    /// # Errors
    /// Like [`RunFolder::append`].
    pub fn append_all<'a>(
        &mut self,
        samples: impl IntoIterator<Item = &'a Sample>,
    ) -> Result<(), Error> {
        samples.into_iter().try_for_each(|s| self.append(s))
    }

    /// Writes the buffered samples to the file, so that they survive this process; call it after each case.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.samples
            .flush()
            .map_err(|e| Error::io("write", self.partial.join("samples.csv"), e))
    }

    /// Writes the record (with its end) and the summary, renames the folder, and returns its path.
    ///
    /// # Errors
    /// A file cannot be written, and the folder stays as `DIR.partial`; the run has no sample, and `DIR` stays as it was;
    /// or `DIR.partial` is no longer this run's.
    pub fn finish<W: Whole>(mut self, summary: &Summary<W>) -> Result<PathBuf, Error> {
        self.flush()?;
        if !self.is_ours() {
            self.finished = true;
            return Err(Error::Taken(self.partial.clone()));
        }
        if self.appended == 0 {
            return Err(Error::NoSamples(self.directory.clone()));
        }
        self.run.ended = Some(now_rfc3339());
        write_json(&self.partial.join("run.json"), &self.run)?;
        write_json(&self.partial.join("summary.json"), summary)?;
        complete(&self.partial, &self.directory, self.existing)?;
        self.finished = true;
        Ok(self.directory.clone())
    }

    /// True if `DIR.partial` still has the samples.csv that this run writes.
    fn is_ours(&self) -> bool {
        let named = fs::metadata(self.partial.join("samples.csv"));
        let open = self.samples.get_ref().metadata();
        named.is_ok_and(|named| {
            open.is_ok_and(|open| (named.dev(), named.ino()) == (open.dev(), open.ino()))
        })
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        let flushed = self.samples.flush().is_ok();
        if !self.is_ours() {
            // The folder may belong to another run now.
            let lost = Error::Taken(self.partial.clone());
            let _ = writeln!(std::io::stderr(), "memwarden: {lost}");
            return;
        }
        if self.appended == 0 && has_record_alone(&self.partial) {
            let _ = fs::remove_dir_all(&self.partial);
            return;
        }
        let kept = if flushed {
            self.appended
        } else {
            whole_rows(&self.partial.join("samples.csv"))
        };
        tell_incomplete(kept, &self.partial);
    }
}

/// Number of samples in a file whose last row may be cut off.
fn whole_rows(path: &Path) -> u64 {
    let bytes = fs::read(path).unwrap_or_default();
    let lines = bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
    lines.saturating_sub(1)
}

/// Writes the record, and the samples' column names, which may still be buffered.
fn first_files(partial: &Path, run: &Run) -> Result<csv::Writer<File>, Error> {
    write_json(&partial.join("run.json"), run)?;
    let path = partial.join("samples.csv");
    let file = File::create(&path).map_err(|e| Error::io("create", &path, e))?;
    // If the file system has no locks, a second run of the same name may take the empty folder.
    let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
    let mut samples = csv::WriterBuilder::new()
        .has_headers(false)
        .from_writer(file);
    samples
        .write_record(COLUMNS)
        .map_err(|e| csv_error(&path, e))?;
    Ok(samples)
}

fn tell_incomplete(samples: u64, partial: &Path) {
    let _ = writeln!(
        std::io::stderr(),
        "memwarden: the run was not completed: {samples} samples are in {}",
        partial.display()
    );
}

/// Checks that a run folder `directory` (none: [`default_directory`]) could be begun, and changes nothing. For a run that
/// is made elsewhere and adopted when it is over.
///
/// # Errors
/// As for [`RunFolder::create`].
pub fn check_place(directory: Option<&Path>, existing: Existing) -> Result<(), Error> {
    let Some(directory) = directory else {
        return Ok(());
    };
    let partial = partial_path(directory)?;
    check_free(directory, existing)?;
    match existing {
        _ if fs::symlink_metadata(&partial).is_err() => Ok(()),
        _ if is_in_use(&partial) => Err(Error::InUse(partial)),
        Existing::Refuse if is_empty_run(&partial) => Ok(()),
        Existing::Refuse => Err(Error::LeftOver(partial)),
        Existing::Replace if is_run_folder(&partial) => Ok(()),
        Existing::Replace => Err(Error::NotReplaceable(partial)),
    }
}

/// An incomplete run, read from its `DIR.partial`.
#[derive(Clone, Debug, PartialEq)]
pub struct Partial {
    /// Its path.
    pub directory: PathBuf,
    /// run.json.
    pub run: Run,
    /// samples.csv.
    pub samples: Vec<Sample>,
}

impl Partial {
    /// Reads what a run left at `directory`; none without a sample.
    ///
    /// # Errors
    /// A file of it is missing, malformed, or of a schema that this version does not read.
    pub fn read(directory: &Path) -> Result<Option<Self>, Error> {
        let samples = directory.join("samples.csv");
        if !samples.is_file() {
            return Ok(None);
        }
        let samples = match read_samples(&samples) {
            Err(Error::NoSamples(_)) => return Ok(None),
            samples => samples?,
        };
        let run = read_json(directory, "run.json", schema::RUN, "it is not a run folder")?;
        Ok(Some(Self {
            directory: directory.into(),
            run,
            samples,
        }))
    }

    /// Copies the folder to the `DIR.partial` of `directory` (none: as for [`RunFolder::create`]), with the record from
    /// `self`, and reports that on stderr. This imports a run that was made elsewhere (in the lab's guest).
    ///
    /// # Errors
    /// As for [`RunFolder::create`], or a file cannot be copied.
    pub fn adopt(&self, directory: Option<&Path>, existing: Existing) -> Result<PathBuf, Error> {
        let (_, partial) = begin_at(directory, &self.run.experiment, existing)?;
        copy_folder(&self.directory, &partial)?;
        write_json(&partial.join("run.json"), &self.run)?;
        tell_incomplete(self.samples.len() as u64, &partial);
        Ok(partial)
    }
}

/// Creates the folder of a run that begins: its final path, and its `DIR.partial`.
fn begin_at(
    directory: Option<&Path>,
    experiment: &str,
    existing: Existing,
) -> Result<(PathBuf, PathBuf), Error> {
    let Some(directory) = directory else {
        return begin_next(&default_directory(experiment));
    };
    Ok((directory.into(), begin(directory, existing)?))
}

/// Creates an empty `DIR.partial` for the first name of `DIR`, `DIR-2`, `DIR-3`, ... that no other run has.
fn begin_next(first: &Path) -> Result<(PathBuf, PathBuf), Error> {
    if let Some(parent) = first.parent() {
        fs::create_dir_all(parent).map_err(|e| Error::io("create", parent, e))?;
    }
    let mut number = 1u32;
    loop {
        let mut directory = first.as_os_str().to_owned();
        if number > 1 {
            directory.push(format!("-{number}"));
        }
        let directory = PathBuf::from(directory);
        let partial = partial_path(&directory)?;
        match fs::create_dir(&partial) {
            // A run renames its `DIR.partial` to `DIR`, so `DIR` is free if it is missing after `DIR.partial` is ours.
            Ok(()) if fs::symlink_metadata(&directory).is_err() => return Ok((directory, partial)),
            Ok(()) => fs::remove_dir(&partial).map_err(|e| Error::io("remove", &partial, e))?,
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(Error::io("create", &partial, error)),
        }
        number += 1;
    }
}

/// Creates an empty `DIR.partial`, after a check that `DIR` may be written in the end.
fn begin(directory: &Path, existing: Existing) -> Result<PathBuf, Error> {
    let partial = partial_path(directory)?;
    check_free(directory, existing)?;
    if fs::symlink_metadata(&partial).is_ok() {
        match existing {
            _ if is_in_use(&partial) => return Err(Error::InUse(partial)),
            Existing::Refuse if is_empty_run(&partial) => remove_run_folder(&partial)?,
            Existing::Refuse => return Err(Error::LeftOver(partial)),
            Existing::Replace => remove_run_folder(&partial)?,
        }
    }
    fs::create_dir_all(&partial).map_err(|e| Error::io("create", &partial, e))?;
    Ok(partial)
}

/// True if the folder holds at most a run's record and column names.
fn has_record_alone(directory: &Path) -> bool {
    fs::read_dir(directory).is_ok_and(|mut entries| {
        entries.all(|entry| {
            entry.is_ok_and(|entry| {
                entry.file_name() == "run.json" || entry.file_name() == "samples.csv"
            })
        })
    })
}

/// True if a run in progress writes the folder: it holds a lock on its samples.
fn is_in_use(directory: &Path) -> bool {
    let samples = File::open(directory.join("samples.csv"));
    samples.is_ok_and(|file| {
        flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
    })
}

/// True if a run left the folder without samples.
fn is_empty_run(directory: &Path) -> bool {
    let samples = directory.join("samples.csv");
    let no_samples = match fs::read_to_string(&samples) {
        Ok(text) => text.lines().count() <= 1,
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    };
    is_run_folder(directory) && has_record_alone(directory) && no_samples
}

/// Renames a complete `DIR.partial` to `DIR`.
fn complete(partial: &Path, directory: &Path, existing: Existing) -> Result<(), Error> {
    check_free(directory, existing)?;
    if directory.exists() {
        remove_run_folder(directory)?;
    }
    fs::rename(partial, directory).map_err(|e| Error::io("rename to", directory, e))
}

/// Copies plain files and folders; a run folder holds nothing else.
fn copy_folder(from: &Path, to: &Path) -> Result<(), Error> {
    for entry in fs::read_dir(from).map_err(|e| Error::io("read", from, e))? {
        let entry = entry.map_err(|e| Error::io("read", from, e))?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry
            .file_type()
            .map_err(|e| Error::io("read", &source, e))?;
        if kind.is_dir() {
            fs::create_dir_all(&target).map_err(|e| Error::io("create", &target, e))?;
            copy_folder(&source, &target)?;
        } else if kind.is_file() {
            fs::copy(&source, &target).map_err(|e| Error::io("copy", &source, e))?;
        }
    }
    Ok(())
}

/// `DIR.partial`, beside `DIR`, so that the final rename stays within one file system.
fn partial_path(directory: &Path) -> Result<PathBuf, Error> {
    let name = directory
        .file_name()
        .ok_or_else(|| Error::BadName(directory.into()))?;
    let mut partial = OsString::from(name);
    partial.push(".partial");
    Ok(directory.with_file_name(partial))
}

fn check_free(directory: &Path, existing: Existing) -> Result<(), Error> {
    if fs::symlink_metadata(directory).is_err() {
        return Ok(());
    }
    match existing {
        Existing::Refuse => Err(Error::Exists(directory.into())),
        Existing::Replace if is_run_folder(directory) => Ok(()),
        Existing::Replace => Err(Error::NotReplaceable(directory.into())),
    }
}

/// True for a folder with a run.json and for an empty one; false for a symbolic link.
fn is_run_folder(directory: &Path) -> bool {
    fs::symlink_metadata(directory).is_ok_and(|m| m.is_dir())
        && (directory.join("run.json").is_file()
            || fs::read_dir(directory).is_ok_and(|mut d| d.next().is_none()))
}

fn remove_run_folder(directory: &Path) -> Result<(), Error> {
    if !is_run_folder(directory) {
        return Err(Error::NotReplaceable(directory.into()));
    }
    fs::remove_dir_all(directory).map_err(|e| Error::io("remove", directory, e))
}

fn csv_error(path: &Path, error: csv::Error) -> Error {
    match error.into_kind() {
        csv::ErrorKind::Io(source) => Error::io("write", path, source),
        other => Error::NotWritable {
            path: path.into(),
            reason: format!("{other:?}"),
        },
    }
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<(), Error> {
    let file = File::create(path).map_err(|e| Error::io("create", path, e))?;
    let mut out = BufWriter::new(file);
    serde_json::to_writer_pretty(&mut out, value)
        .map_err(|e| Error::io("write", path, e.into()))?;
    out.write_all(b"\n")
        .and_then(|()| out.flush())
        .map_err(|e| Error::io("write", path, e))
}

/// A complete run folder, read from disk.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// Its path.
    pub directory: PathBuf,
    /// run.json.
    pub run: Run,
    /// summary.json.
    pub summary: Summary,
    /// samples.csv.
    pub samples: Vec<Sample>,
}

impl Recorded {
    /// Reads a run folder.
    ///
    /// # Errors
    /// The folder or a file of it is missing, malformed, or of a schema that this version does not read; each error
    /// is one line that names the file and the place in it.
    pub fn read(directory: &Path) -> Result<Self, Error> {
        let (run, summary) = Self::read_summary(directory)?;
        let path = present(directory, "samples.csv", "the raw samples are gone")?;
        Ok(Self {
            directory: directory.into(),
            run,
            summary,
            samples: read_samples(&path)?,
        })
    }

    /// Reads run.json and summary.json of a run folder, and no samples: there may be millions.
    ///
    /// # Errors
    /// As for [`Recorded::read`].
    pub fn read_summary(directory: &Path) -> Result<(Run, Summary), Error> {
        if !directory.is_dir() {
            return Err(Error::NotAFolder(directory.into()));
        }
        let run = read_json(directory, "run.json", schema::RUN, "it is not a run folder")?;
        let interrupted = "the run was interrupted before its end";
        let summary = read_json(directory, "summary.json", schema::SUMMARY, interrupted)?;
        Ok((run, summary))
    }

    /// Moves the folder to `directory` (none: as for [`RunFolder::create`]), with the record and the summary from `self`.
    /// This imports a run that was made elsewhere (in the lab's guest, on a board). The samples and all other files are
    /// copied unchanged.
    ///
    /// # Errors
    /// As for [`RunFolder::create`], or a file cannot be copied; the source folder is then unchanged.
    pub fn adopt(&self, directory: Option<&Path>, existing: Existing) -> Result<PathBuf, Error> {
        let (directory, partial) = begin_at(directory, &self.run.experiment, existing)?;
        copy_folder(&self.directory, &partial)?;
        write_json(&partial.join("run.json"), &self.run)?;
        write_json(&partial.join("summary.json"), &self.summary)?;
        complete(&partial, &directory, existing)?;
        // The copy is complete under its final name, so a failure here leaves only an unused folder.
        let _ = fs::remove_dir_all(&self.directory);
        Ok(directory)
    }

    /// Raw samples of the metric object `key` of a case, in the order of measurement. Their role is the key or the one
    /// that the study names ([`studies`]); if the case has no such role, it is the metric's only one. Empty if the folder
    /// lacks samples of this number and median: others would give an interval of other figures.
    pub fn samples_of(&self, case: &str, key: &str, metric: &Metric) -> Vec<f64> {
        let of_metric = |s: &&Sample| s.case == case && s.metric == metric.metric;
        let roles: BTreeSet<&str> = self
            .samples
            .iter()
            .filter(of_metric)
            .map(|s| s.role.as_str())
            .collect();
        let named = studies::role(&self.run.experiment, key);
        let only = roles.first().filter(|_| roles.len() == 1);
        let Some(role) = roles.get(named).or(only) else {
            return Vec::new();
        };
        let mut values = self.values(case, role, &metric.metric);
        if !is_of(&values, metric) {
            values.clear();
        }
        values
    }

    /// Values of one metric of one role in one case, in the order of measurement, without missing ones.
    pub fn values(&self, case: &str, role: &str, metric: &str) -> Vec<f64> {
        let wanted = |s: &&Sample| s.case == case && s.role == role && s.metric == metric;
        self.samples
            .iter()
            .filter(wanted)
            .filter_map(|s| s.value)
            .collect()
    }
}

/// True if the metric object can have been computed from these samples: same number, same median. The tolerance is for
/// the numbers' way through text.
fn is_of(samples: &[f64], metric: &Metric) -> bool {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let median = metric.median.filter(|_| !sorted.is_empty());
    samples.len() as u64 == metric.samples
        && median.is_some_and(|m| (statistics::median(&sorted) - m).abs() <= 1e-9 * m.abs())
}

fn present(directory: &Path, file: &'static str, hint: &'static str) -> Result<PathBuf, Error> {
    let path = directory.join(file);
    if path.is_file() {
        Ok(path)
    } else {
        Err(Error::Missing {
            folder: directory.into(),
            file,
            hint,
        })
    }
}

/// Reads one JSON file; checks the schema first, so that a newer file is reported as newer and not as malformed.
fn read_json<T: DeserializeOwned>(
    directory: &Path,
    file: &'static str,
    expected: &'static str,
    hint: &'static str,
) -> Result<T, Error> {
    let path = present(directory, file, hint)?;
    let text = fs::read_to_string(&path).map_err(|e| Error::io("read", &path, e))?;
    let json_error = |e: serde_json::Error| {
        let place = format!(" at line {} column {}", e.line(), e.column());
        let reason = e.to_string().replace(&place, "");
        Error::Json {
            path: path.clone(),
            line: e.line(),
            column: e.column(),
            reason,
        }
    };
    let value: serde_json::Value = serde_json::from_str(&text).map_err(json_error)?;
    match value.get("schema").and_then(|s| s.as_str()) {
        Some(found) if found == expected => serde_json::from_str(&text).map_err(json_error),
        found => {
            let found = found.map_or("missing".into(), |f| format!("{f:?}"));
            Err(Error::Schema {
                path,
                found,
                expected,
            })
        }
    }
}
