// SPDX-License-Identifier: MIT OR Apache-2.0
//! The regulator's files, below `/run/memwarden`.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use memwarden_platform::{Root, runtime_folder};

use crate::rt_throttling::{self, FairServersOn};
use crate::{Error, file_lock};

/// Overrides [`runtime_folder::FOLDER`]: for tests, and for two regulators on different CPUs of one machine.
const VARIABLE: &str = "MEMWARDEN_RUNTIME_DIR";

/// Paths of the regulator's files.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    folder: PathBuf,
}

impl Places {
    /// The paths on this machine.
    pub fn of_system() -> Self {
        Self::below(
            std::env::var_os(VARIABLE).map_or_else(|| runtime_folder::FOLDER.into(), PathBuf::from),
        )
    }

    pub fn below(folder: PathBuf) -> Self {
        Self { folder }
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("guard.sock")
    }

    pub fn log(&self) -> PathBuf {
        self.folder.join("guard.log")
    }

    /// The original settings of [`rt_throttling`]; the file exists while they are changed.
    fn saved(&self) -> PathBuf {
        self.folder.join("rt-throttling.json")
    }

    /// Why the last regulator ended, unless it was ordered to.
    fn last_words(&self) -> PathBuf {
        self.folder.join("guard.end")
    }

    pub fn create(&self) -> Result<(), Error> {
        runtime_folder::create(&self.folder).map_err(|error| match error.kind() {
            ErrorKind::PermissionDenied => Error::NotRoot("the regulator in user space"),
            _ => Error::file("creating", &self.folder)(error),
        })
    }

    /// Allows one regulator at a time. The lock ends with its holder.
    pub fn lock(&self) -> Result<Option<File>, Error> {
        let path = self.folder.join("guard.lock");
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(Error::file("opening", &path))?;
        let taken = file_lock::try_lock(&file).map_err(Error::file("locking", &path))?;
        Ok(taken.then_some(file))
    }

    /// True if a process holds the lock.
    pub fn is_locked(&self) -> bool {
        self.folder.exists() && matches!(self.lock(), Ok(None))
    }

    pub fn listen(&self) -> Result<UnixListener, Error> {
        let path = self.socket();
        // A killed regulator leaves its socket behind; the lock shows that none is running.
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path).map_err(Error::file("listening on", &path))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))
            .map_err(Error::file("protecting", &path))?;
        Ok(listener)
    }

    /// Identifies the regulator that listens: each one creates a new socket.
    pub fn instance(&self) -> String {
        fs::metadata(self.socket()).map_or_else(
            |_| String::new(),
            |socket| {
                format!(
                    "user {} {}.{}",
                    socket.ino(),
                    socket.ctime(),
                    socket.ctime_nsec()
                )
            },
        )
    }

    pub fn connect(&self) -> io::Result<UnixStream> {
        UnixStream::connect(self.socket())
    }

    /// Lets real-time threads use a CPU without limit. Saves the original settings first. Returns the limits that cannot
    /// be removed.
    pub fn release_rt_throttling(&self) -> Result<Option<FairServersOn>, Error> {
        let root = Root::system();
        self.release_in(&root)?;
        Ok(FairServersOn::find(&root))
    }

    fn release_in(&self, root: &Root) -> Result<(), Error> {
        let limits = rt_throttling::save(root);
        let saved =
            serde_json::to_vec(&limits).map_err(|error| Error::System(error.to_string()))?;
        let path = self.saved();
        // Complete or not there at all, whenever this process is killed or the file system is full.
        let new = path.with_extension("new");
        fs::write(&new, saved)
            .map_err(Error::file("writing", &new))
            .and_then(|()| fs::rename(&new, &path).map_err(Error::file("writing", &path)))
            .inspect_err(|_| drop(fs::remove_file(&new)))?;
        rt_throttling::release(root).map(drop).inspect_err(|_| {
            // The next start or stop would write old values over newer ones.
            if rt_throttling::save(root) == limits {
                let _ = fs::remove_file(&path);
            }
        })
    }

    /// If these settings are changed, restores them and returns true. Any process may call it at any time.
    pub fn restore_rt_throttling(&self) -> Result<bool, Error> {
        self.restore_in(&Root::system())
    }

    fn restore_in(&self, root: &Root) -> Result<bool, Error> {
        let path = self.saved();
        let saved = match fs::read(&path) {
            Ok(saved) => saved,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(Error::file("reading", &path)(error)),
        };
        let saved = match serde_json::from_slice(&saved) {
            Ok(saved) => saved,
            Err(error) if rt_throttling::is_released(root) => {
                return Err(Error::System(format!(
                    "{path} does not have the scheduler's original limit on real-time threads ({error}), and there is no \
                     limit now: set it (Linux begins with `sysctl kernel.sched_rt_runtime_us=950000`), or remove the file",
                    path = path.display()
                )));
            }
            Err(error) => {
                eprintln!(
                    "memwarden: {} is removed: it is damaged ({error}), and the limit on real-time threads is as it was",
                    path.display()
                );
                let _ = fs::remove_file(&path);
                return Ok(false);
            }
        };
        rt_throttling::restore(root, &saved)?;
        let _ = fs::remove_file(&path);
        Ok(true)
    }

    /// Prepares for a new regulator: clears what the previous one left.
    pub fn begin(&self) -> Result<(), Error> {
        self.forget_end();
        self.restore_rt_throttling().map(drop)
    }

    /// Cleans up after a regulator. Records why it ended, unless it was ordered to.
    pub fn end(&self, why: Option<&str>) {
        let _ = fs::remove_file(self.socket());
        if let Some(why) = why {
            let _ = fs::write(self.last_words(), why);
        }
    }

    /// Forgets why the last regulator ended.
    pub fn forget_end(&self) {
        let _ = fs::remove_file(self.last_words());
    }

    /// Why the last regulator ended, unless it was ordered to.
    pub fn why_ended(&self) -> Option<String> {
        fs::read_to_string(self.last_words()).ok()
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNTIME: &str = "/proc/sys/kernel/sched_rt_runtime_us";

    fn rig() -> (tempfile::TempDir, Places, Root) {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::at(folder.path());
        fs::create_dir_all(root.path("/proc/sys/kernel")).unwrap();
        fs::write(root.path(RUNTIME), "950000\n").unwrap();
        let places = Places::below(folder.path().join("run"));
        places.create().unwrap();
        (folder, places, root)
    }

    #[test]
    fn the_saved_settings_are_complete_or_not_there() {
        let (_folder, places, root) = rig();
        // A killed process left the beginning of the file.
        fs::write(places.saved().with_extension("new"), "{").unwrap();
        assert!(!places.restore_in(&root).unwrap());
        places.release_in(&root).unwrap();
        assert_eq!(root.read(RUNTIME).unwrap(), "-1");
        let names = |places: &Places| fs::read_dir(places.folder()).unwrap().count();
        assert_eq!(names(&places), 1);
        assert!(places.restore_in(&root).unwrap());
        assert_eq!(root.read(RUNTIME).unwrap(), "950000");
        assert_eq!(names(&places), 0);
        // The file cannot be written: nothing is changed.
        fs::create_dir(places.saved().with_extension("new")).unwrap();
        assert!(places.release_in(&root).is_err());
        assert_eq!(root.read(RUNTIME).unwrap(), "950000\n".trim());
        assert!(!places.restore_in(&root).unwrap());
    }

    #[test]
    fn a_limit_that_cannot_be_lifted_leaves_no_saved_settings() {
        let (_folder, places, root) = rig();
        fs::remove_file(root.path(RUNTIME)).unwrap();
        // Root cannot write this file either.
        std::os::unix::fs::symlink("/proc/sys/kernel/ngroups_max", root.path(RUNTIME)).unwrap();
        let message = places.release_in(&root).unwrap_err().to_string();
        assert!(message.contains("sched_rt_runtime_us"), "{message}");
        assert_eq!(fs::read_dir(places.folder()).unwrap().count(), 0);
        assert!(!places.restore_in(&root).unwrap());
    }

    #[test]
    fn a_damaged_file_blocks_no_start_while_the_limit_is_on() {
        let (_folder, places, root) = rig();
        for text in ["", "{\"files\":[[\"/proc"] {
            fs::write(places.saved(), text).unwrap();
            assert!(!places.restore_in(&root).unwrap());
            assert!(!places.saved().exists());
        }
        // Its value is lost.
        fs::write(root.path(RUNTIME), "-1\n").unwrap();
        fs::write(places.saved(), "").unwrap();
        let message = places.restore_in(&root).unwrap_err().to_string();
        assert!(
            message.contains("rt-throttling.json") && message.contains("sysctl"),
            "{message}"
        );
        assert!(places.saved().exists());
    }
}
