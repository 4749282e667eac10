// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds that take minutes, from Debian's sources with our patches: quilt series, and a build with progress.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::error::{Error, OnFile, Result};
use crate::machine::interrupt_flag;
use crate::program;

/// Interval between two checks of a running build.
const POLL: Duration = Duration::from_millis(100);

/// The files that a quilt series names, in order. Options for patch may follow a name; our series and Debian's use only
/// the default ones.
pub(crate) fn series(folder: &Path) -> Result<Vec<PathBuf>> {
    let series = folder.join("series");
    let text = fs::read_to_string(&series).on("read", &series)?;
    Ok(text
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| !name.starts_with('#'))
        .map(|name| folder.join(name))
        .collect())
}

/// Applies a patch to the tree of `what`.
pub(crate) fn apply(patch: &Path, tree: &Path, what: &str) -> Result<()> {
    let mut command = program::command("patch");
    command.args([
        "--strip=1",
        "--force",
        "--no-backup-if-mismatch",
        "--directory",
    ]);
    command.arg(tree).arg("--input").arg(patch);
    program::run(
        &format!("apply {} to {what}", patch.display()),
        &mut command,
    )?;
    Ok(())
}

/// A build, and how its progress is reported.
pub(crate) struct Watched<'a> {
    /// What is built: "the kernel".
    pub what: &'a str,
    /// Its folder, for an error.
    pub tree: &'a Path,
    /// File for the build's error output.
    pub log: &'a Path,
    /// Whether a line of its output reports a compiled object.
    pub is_object: fn(&str) -> bool,
    /// Is called each minute with the number of objects so far.
    pub say: &'a dyn Fn(&str),
}

impl Watched<'_> {
    /// Runs the build to its end. Returns the number of compiled objects.
    ///
    /// # Errors
    /// When the build fails, with the end of its error output. [`Error::Interrupted`] on a signal, once it has ended.
    pub fn run(&self, command: &mut Command) -> Result<u64> {
        let Self { what, log, .. } = self;
        let program = command.get_program().to_string_lossy().into_owned();
        let attempted = format!("build {what} in {}", self.tree.display());
        let errors = File::create(log).on("create", log)?;
        let mut build = command
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .map_err(|source| program::not_started(&attempted, &program, &source))?;
        let objects = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&objects);
        let (output, is_object) = (build.stdout.take(), self.is_object);
        // The other lines of its output: ninja writes there why an object could not be compiled.
        let counter = std::thread::spawn(move || {
            let mut said = Vec::new();
            for line in output
                .into_iter()
                .flat_map(|output| BufReader::new(output).lines())
            {
                match line {
                    Ok(line) if is_object(&line) => {
                        counted.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(line) => said.push(line),
                    Err(_) => break,
                }
            }
            said.join("\n")
        });
        let started = Instant::now();
        let mut told = 0;
        let stop = interrupt_flag();
        let status = loop {
            if let Some(status) = build.try_wait().on("wait for", Path::new(&program))? {
                break status;
            }
            if stop.load(Ordering::Relaxed) {
                // The build then ends its children and removes incomplete files.
                program::terminate(&build);
                let _ = build.wait();
                return Err(Error::Interrupted);
            }
            let minutes = started.elapsed().as_secs() / 60;
            if minutes > told {
                told = minutes;
                let objects = objects.load(Ordering::Relaxed);
                (self.say)(&format!(
                    "building {what}: {objects} objects after {minutes} min"
                ));
            }
            std::thread::sleep(POLL);
        };
        let said = counter.join().unwrap_or_default();
        if status.success() {
            return Ok(objects.load(Ordering::Relaxed));
        }
        let complaints = fs::read(log).unwrap_or_default();
        let complaints = String::from_utf8_lossy(&complaints);
        let detail = if complaints.trim().is_empty() {
            &said
        } else {
            complaints.as_ref()
        };
        Err(Error::Program {
            attempted,
            program,
            status: status.to_string(),
            detail: program::last_lines(detail, 30),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_read_in_order() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(
            folder.path().join("series"),
            "# first\nb.patch\n\na.patch -p1\n",
        )
        .unwrap();
        let names: Vec<_> = series(folder.path())
            .unwrap()
            .iter()
            .map(|path| path.file_name().unwrap().to_owned())
            .collect();
        assert_eq!(names, ["b.patch", "a.patch"]);
    }

    #[test]
    fn a_build_counts_its_objects_and_says_why_it_failed() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let watched = Watched {
            what: "a toy",
            tree: folder.path(),
            log: &log,
            is_object: |line| line.ends_with(".o"),
            say: &|_| {},
        };
        let sh = |script: &str| {
            let mut sh = program::command("sh");
            sh.args(["-c", script]);
            sh
        };
        assert_eq!(
            watched.run(&mut sh("echo a.o; echo b; echo c.o")).unwrap(),
            2
        );
        let spoken = watched
            .run(&mut sh("echo a.o; echo why; exit 1"))
            .unwrap_err();
        assert!(
            spoken.to_string().ends_with("exit status: 1: why"),
            "{spoken}"
        );
        let logged = watched
            .run(&mut sh("echo b; echo why >&2; exit 1"))
            .unwrap_err();
        assert!(
            logged.to_string().ends_with("exit status: 1: why"),
            "{logged}"
        );
        let missing = watched
            .run(&mut program::command("no-such-build"))
            .unwrap_err();
        assert!(
            missing.to_string().contains("scripts/install-packages"),
            "{missing}"
        );
    }
}
