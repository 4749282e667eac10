// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keeps a guard in line with its budget file: starts it or takes it over, and corrects settings that have changed.
//!
//! The caller decides when to check ([`Keeper::look`]) and when to read the file again ([`Keeper::reload`]). Both
//! return what was done, as lines for a log.

use std::path::{Path, PathBuf};

use memwarden_platform::cpus::CpuSet;

use crate::budget_file::BudgetFile;
use crate::wanted::{self, Change, Wanted};
use crate::{Error, Hold, Regulator, Session, Settings};

/// Checks to skip after a failed restart: a module that fails to load reports it in the kernel log each time.
const LOOKS_BETWEEN_STARTS: u32 = 10;

/// What a keeper needs from the machine.
pub trait Host {
    /// Opens the regulator that a file requests.
    ///
    /// # Errors
    /// When the regulator is unknown, or the machine cannot be read.
    fn open(&self, file: &BudgetFile) -> Result<Box<dyn Regulator>, Error>;

    /// Called when a guard was started or taken over, before it is tested and set.
    ///
    /// # Errors
    /// When the guard is not to be used. A guard that was started is stopped then.
    fn begun(&self, guard: &dyn Regulator) -> Result<(), Error>;

    /// Proves that a newly started guard regulates, including writes if `writes` is set.
    ///
    /// # Errors
    /// When it doesn't.
    fn prove(&self, guard: &mut dyn Regulator, writes: bool) -> Result<(), Error>;

    /// The CPUs that can be online on this machine.
    fn possible(&self) -> CpuSet;

    /// Whether the process has to end: a wait for another process's claim then ends with [`Error::Interrupted`].
    fn interrupted(&self) -> bool;
}

/// A guard that is kept in line with the file.
struct Kept {
    session: Session,
    /// The settings as they were found, or as the guard started.
    base: Settings,
    online: CpuSet,
}

/// A guard and its budget file.
pub struct Keeper {
    host: Box<dyn Host>,
    path: PathBuf,
    file: BudgetFile,
    wanted: Wanted,
    kept: Option<Kept>,
    applied: bool,
    looks_to_wait: u32,
}

impl Keeper {
    /// Reads the file, starts the guard or takes over the running one, and applies the file. Also returns
    /// a line that says what was done.
    ///
    /// # Errors
    /// When the file is invalid, or the guard cannot be started or refuses a setting. Everything is restored then.
    pub fn begin(host: Box<dyn Host>, path: &Path) -> Result<(Self, String), Error> {
        let file = BudgetFile::read_again(path)?;
        let (kept, wanted, said) = start(host.as_ref(), &file)?;
        let keeper = Self {
            host,
            path: path.to_owned(),
            file,
            wanted,
            kept: Some(kept),
            applied: true,
            looks_to_wait: 0,
        };
        Ok((keeper, said))
    }

    /// The guard, if there is one.
    pub fn regulator(&self) -> Option<&dyn Regulator> {
        self.kept.as_ref().map(|kept| kept.session.regulator())
    }

    /// Whether the settings matched the file at the start or after the last [`look`](Self::look). With `keep = false`
    /// they may differ. False without a guard, and after a look that failed.
    pub fn applied(&self) -> bool {
        self.applied
    }

    /// Reads the file again. If it requests another backend, or other start options for a guard that was
    /// started here, a new guard is started.
    ///
    /// # Errors
    /// When the file is invalid, the guard refuses it, or a guard that has to be restarted cannot be stopped.
    /// Everything stays as it was, and the previous file remains in force; [`Error::NotUndone`] and
    /// [`Error::NotStartedAgain`] say what did not stay.
    pub fn reload(&mut self) -> Result<String, Error> {
        let file = BudgetFile::read_again(&self.path)?;
        let Some(kept) = self.kept.as_mut().filter(|kept| kept.session.lives()) else {
            self.forget();
            let (kept, wanted, said) = start(self.host.as_ref(), &file)?;
            (self.file, self.wanted, self.kept) = (file, wanted, Some(kept));
            return Ok(said);
        };
        // The backend is opened as well: an unknown one must be refused before anything is stopped.
        drop(self.host.open(&file)?);
        let other = !kept.session.took_over() && !self.file.starts_like(&file);
        if other || !self.file.same_backend(&file) {
            return self.start_anew(file);
        }
        let settings = kept.session.regulator().settings()?;
        let wanted = file.wanted(&settings.control, &self.host.possible())?;
        let base = kept.session.without_claims(kept.base.clone());
        let changes = wanted.undoing(&self.wanted, &base).changes(&settings);
        let changes = take(
            self.host.as_ref(),
            &mut kept.session,
            &file,
            &wanted,
            &changes,
        )?;
        kept.online = settings.control.online;
        (self.file, self.wanted) = (file, wanted);
        Ok(if changes.is_empty() {
            format!("{}: no changes", self.path.display())
        } else {
            format!("{}: {}", self.path.display(), wanted::list(&changes))
        })
    }

    /// Releases the guard, which stops one that was started here, and starts one for `file`. If that fails,
    /// starts one for the previous file. A guard that cannot be stopped, as one whose module is in use, continues.
    fn start_anew(&mut self, file: BudgetFile) -> Result<String, Error> {
        // What is known to be refused now does not end the guard that runs.
        self.host.open(&file)?;
        self.end_session()?;
        match start(self.host.as_ref(), &file) {
            Ok((kept, wanted, said)) => {
                (self.file, self.wanted, self.kept) = (file, wanted, Some(kept));
                Ok(said)
            }
            Err(refused) => match start(self.host.as_ref(), &self.file) {
                Ok((kept, wanted, _)) => {
                    (self.wanted, self.kept) = (wanted, Some(kept));
                    Err(refused)
                }
                Err(Error::Interrupted) => Err(Error::Interrupted),
                Err(old) => Err(Error::NotStartedAgain {
                    refused: Box::new(refused),
                    old: Box::new(old),
                }),
            },
        }
    }

    /// Checks whether the settings match the file, and corrects what differs: everything with `keep = true`, otherwise
    /// only cores that came online. Returns `None` if there was nothing to do.
    ///
    /// # Errors
    /// When the guard cannot be read or refuses a setting, or has ended and cannot be started again.
    pub fn look(&mut self) -> Result<Option<String>, Error> {
        self.applied = false;
        let Some(kept) = self.kept.as_mut().filter(|kept| kept.session.lives()) else {
            return self.start_again();
        };
        let settings = kept.session.regulator().settings()?;
        let came: CpuSet = settings
            .control
            .online
            .iter()
            .filter(|cpu| !kept.online.contains(*cpu))
            .collect();
        if !came.is_empty() {
            let host = &self.host;
            kept.session
                .note_online(&settings, &|| host.interrupted())?;
        }
        kept.online = settings.control.online.clone();
        // The events of a budget depend on the period, which another process may have changed.
        self.wanted = self.file.wanted(&settings.control, &self.host.possible())?;
        let mut changes = self.wanted.changes(&settings);
        let differences = changes.len();
        if !self.file.keep {
            changes.retain(|change| change.cpu().is_some_and(|cpu| came.contains(cpu)));
        }
        if !changes.is_empty() {
            wanted::apply(kept.session.guard(), &changes)?;
        }
        self.applied = changes.len() == differences;
        if changes.is_empty() {
            return Ok(None);
        }
        let why = if came.is_empty() {
            "changed by another process".to_owned()
        } else {
            format!("CPU {came} came online")
        };
        Ok(Some(format!(
            "{why}; set again: {}",
            wanted::list(&changes)
        )))
    }

    /// Handles a guard that has ended although this keeper did not stop it: with `keep = true`, starts it again.
    fn start_again(&mut self) -> Result<Option<String>, Error> {
        self.forget();
        if !self.file.keep || self.looks_to_wait > 0 {
            self.looks_to_wait = self.looks_to_wait.saturating_sub(1);
            return Ok(None);
        }
        self.looks_to_wait = LOOKS_BETWEEN_STARTS;
        let (kept, wanted, said) = start(self.host.as_ref(), &self.file)?;
        (self.wanted, self.kept, self.looks_to_wait) = (wanted, Some(kept), 0);
        self.applied = true;
        Ok(Some(format!("the guard had ended; {said}")))
    }

    /// Drops the session of a guard that has ended: there is nothing to restore.
    fn forget(&mut self) {
        if let Some(kept) = self.kept.take() {
            let _ = kept.session.end();
        }
    }

    /// Ends the session. If the guard refuses, it keeps its settings and the session continues.
    fn end_session(&mut self) -> Result<(), Error> {
        let Some(kept) = &mut self.kept else {
            return Ok(());
        };
        let before = kept.session.regulator().settings()?;
        let Err(refused) = kept.session.try_end() else {
            self.kept = None;
            return Ok(());
        };
        if !kept.session.lives() {
            self.kept = None;
            return Err(refused);
        }
        Err(match kept.session.guard().restore(&before) {
            Ok(()) => refused,
            Err(undo) => Error::NotUndone {
                refused: Box::new(refused),
                undo: Box::new(undo),
            },
        })
    }

    /// Stops the guard if it was started here, otherwise restores its settings.
    ///
    /// # Errors
    /// When the guard refuses.
    pub fn end(mut self) -> Result<(), Error> {
        let Some(kept) = self.kept.take() else {
            return Ok(());
        };
        let runs = kept.session.regulator().is_running();
        let ended = kept.session.end();
        // There is nothing to restore in a guard that has ended.
        if runs { ended } else { Ok(()) }
    }
}

/// Starts the guard or takes it over, tests it, and applies the file. On a failure, the session restores everything.
fn start(host: &dyn Host, file: &BudgetFile) -> Result<(Kept, Wanted, String), Error> {
    let interrupted = || host.interrupted();
    let mut session =
        Session::share_unless(|| host.open(file), &file.start_options(), &interrupted)?;
    session.keep_settings();
    host.begun(session.regulator())?;
    if !session.took_over() && file.self_test {
        host.prove(session.guard(), file.asks_for_writes())?;
    }
    let base = session.regulator().settings()?;
    let wanted = file.wanted(&base.control, &host.possible())?;
    let changes = wanted.changes(&base);
    let changes = take(host, &mut session, file, &wanted, &changes)?;
    let settings = session.regulator().settings()?;
    let free = settings.without_budget(|cpu| wanted.has_budget(cpu));
    let said = format!(
        "guard {} {}: event {}, period {} us, cores {}; {}: {}{}",
        session.regulator().name(),
        if session.took_over() {
            "taken over"
        } else {
            "started"
        },
        base.control.event,
        settings.control.period_us,
        base.control.online,
        file.path().display(),
        if changes.is_empty() {
            "nothing to set".to_owned()
        } else {
            wanted::list(&changes)
        },
        free.map_or(String::new(), |free| format!("; {free}")),
    );
    let kept = Kept {
        session,
        online: base.control.online.clone(),
        base,
    };
    Ok((kept, wanted, said))
}

/// Takes the cores that the file names, and applies the changes to them. Returns those that were applied.
fn take(
    host: &dyn Host,
    session: &mut Session,
    file: &BudgetFile,
    wanted: &Wanted,
    changes: &[Change],
) -> Result<Vec<Change>, Error> {
    let hold = if file.keep { Hold::Firm } else { Hold::Loose };
    let interrupted = || host.interrupted();
    let mut applied = Vec::new();
    session.take_unless(&wanted.wishes(), hold, &interrupted, |guard, others| {
        let exempt = changes.iter().find_map(|change| match change {
            Change::Rt(cpu, true) if others.contains(cpu) => Some(cpu),
            _ => None,
        });
        if let Some(cpu) = exempt {
            return Err(Error::BadInput(format!(
                "rt = true for CPU{cpu}: another process holds this core to its budget; wait until it ends"
            )));
        }
        // The budget of a core that the file no longer names is now another session's alone.
        let ours = |change: &&Change| match change {
            Change::Budget(_, cpu, _) => wanted.has_budget(*cpu) || !others.contains(cpu),
            _ => true,
        };
        applied = changes.iter().filter(ours).cloned().collect();
        wanted::apply(guard, &applied)
    })?;
    Ok(applied)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::{Request, Unit};
    use crate::session::tests::Shared;
    use crate::statistics::CoreStatistics;
    use crate::{BestEffort, Resource, StartOptions};
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::cell::Cell;
    use std::fs;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::symlink;

    /// A machine with two CPUs and one guard. It starts no guard for events of 16 bytes, and uses none whose events are 32
    /// bytes. With a period of 2 ms, a signal comes while the guard is proved.
    struct Machine(Shared, Cell<bool>, Cell<bool>);

    impl Host for Machine {
        fn open(&self, file: &BudgetFile) -> Result<Box<dyn Regulator>, Error> {
            let name: String = file.backend()?;
            if file.start_options().bytes_per_event == Some(16) {
                return Err(Error::BadInput("events of 16 bytes".into()));
            }
            if name.is_empty() {
                Ok(Box::new(self.0.clone()))
            } else {
                Err(Error::BadInput(format!("backend {name}")))
            }
        }
        fn begun(&self, guard: &dyn Regulator) -> Result<(), Error> {
            match guard.settings()?.control.bytes_per_event {
                32 => Err(Error::BadInput("events of 32 bytes".into())),
                _ => Ok(()),
            }
        }
        fn prove(&self, guard: &mut dyn Regulator, writes: bool) -> Result<(), Error> {
            // With a period of 0.5 ms it cannot regulate writes.
            let control = guard.settings()?.control;
            // From a test with a period of 4 ms on it doesn't regulate at all.
            self.2.set(self.2.get() || control.period_us == 4000);
            if control.period_us == 2000 {
                self.1.set(true);
                return Err(Error::Interrupted);
            }
            if self.2.get() || control.user_only || writes && control.period_us == 500 {
                return Err(Error::SelfTest("it doesn't regulate".into()));
            }
            Ok(())
        }
        fn possible(&self) -> CpuSet {
            (0..2).collect()
        }
        fn interrupted(&self) -> bool {
            self.1.get()
        }
    }

    struct Setup {
        guard: Shared,
        folder: tempfile::TempDir,
    }

    impl Setup {
        fn new(text: &str) -> Self {
            let setup = Self {
                guard: Shared::new(),
                folder: tempfile::tempdir().unwrap(),
            };
            setup.write(text);
            setup
        }
        fn path(&self) -> PathBuf {
            self.folder.path().join("guard.toml")
        }
        fn write(&self, text: &str) {
            fs::write(self.path(), text).unwrap();
        }
        fn begin(&self) -> Result<Keeper, Error> {
            self.begin_and_say().map(|(keeper, _)| keeper)
        }
        fn begin_and_say(&self) -> Result<(Keeper, String), Error> {
            let host = Box::new(Machine(
                self.guard.clone(),
                Cell::new(false),
                Cell::new(false),
            ));
            Keeper::begin(host, &self.path())
        }
        fn budgets(&self) -> Vec<Option<u64>> {
            let settings = self.guard.settings().unwrap();
            settings.read_budget_events.into_values().collect()
        }
        fn set(&mut self, list: &str) {
            let request = Request::parse(Unit::Events, list).unwrap();
            self.guard.set_budgets(Resource::Read, &request).unwrap();
        }
    }

    #[test]
    fn a_guard_that_it_started_is_set_and_stopped() {
        let setup = Setup::new("mb = [1000, 100]\nreclaim = true\n");
        let keeper = setup.begin().unwrap();
        assert_eq!(setup.budgets(), [Some(16384), Some(1638)]);
        assert!(setup.guard.settings().unwrap().control.reclaim);
        keeper.end().unwrap();
        assert!(!setup.guard.is_running());
    }

    #[test]
    fn the_log_names_cores_without_a_budget() {
        for (text, expected) in [
            ("", ": nothing to set; CPU0-1 have no budget"),
            ("mb = [1000]\n", ": CPU0 1000 MB/s; CPU1 has no budget"),
            ("mb = [1000, \"max\"]\n", ": CPU0 1000 MB/s"),
            (
                "mb = [1000]\n[cpu.1]\nrt = true\n",
                ": CPU0 1000 MB/s, CPU1 never throttled",
            ),
        ] {
            let setup = Setup::new(text);
            let (keeper, said) = setup.begin_and_say().unwrap();
            assert!(said.ends_with(&format!("guard.toml{expected}")), "{said}");
            keeper.end().unwrap();
        }
        // A guard that runs already may have other budgets.
        let mut setup = Setup::new("mb = [1000]\n");
        setup.guard.start(&StartOptions::default()).unwrap();
        setup.set("5,6");
        let (_, said) = setup.begin_and_say().unwrap();
        assert!(said.ends_with(": CPU0 1000 MB/s"), "{said}");
    }

    #[test]
    fn a_guard_that_ran_is_put_back() {
        let mut setup = Setup::new("mb = [1000]\nbest_effort = \"spare\"\n");
        setup.guard.start(&StartOptions::default()).unwrap();
        setup.set("5,6");
        let keeper = setup.begin().unwrap();
        assert_eq!(setup.budgets(), [Some(16384), Some(6)]);
        keeper.end().unwrap();
        assert_eq!(setup.budgets(), [Some(5), Some(6)]);
        assert_eq!(
            setup.guard.settings().unwrap().control.best_effort,
            BestEffort::None
        );
    }

    #[test]
    fn a_start_that_fails_leaves_no_guard() {
        for text in [
            "mb = [0]",
            "[cpu.7]\nmb = 1",
            "user_only = true",
            "period = \"500us\"\nwrite_mb = [1]",
            "period = \"500us\"\nwrite_event = \"null\"\nmb = [100]",
            "backend = \"x\"",
        ] {
            let setup = Setup::new(text);
            assert!(setup.begin().is_err(), "{text}");
            assert!(!setup.guard.is_running(), "{text}");
        }
    }

    #[test]
    fn a_signal_ends_the_start_and_the_restart_and_leaves_no_guard() {
        let setup = Setup::new("mb = [100]\nperiod = \"2ms\"\n");
        assert!(matches!(setup.begin().err(), Some(Error::Interrupted)));
        assert!(!setup.guard.is_running());

        setup.write("mb = [100]\n");
        let mut keeper = setup.begin().unwrap();
        setup.write("mb = [100]\nperiod = \"2ms\"\nbytes_per_event = 4096\n");
        assert!(matches!(keeper.reload().err(), Some(Error::Interrupted)));
        keeper.end().unwrap();
        assert!(!setup.guard.is_running());
    }

    #[test]
    fn writes_are_proved_where_they_are_asked_for() {
        let setup = Setup::new("period = \"500us\"\nmb = [100]\n");
        setup.begin().unwrap().end().unwrap();
    }

    #[test]
    fn a_bad_file_is_refused_and_the_old_one_kept() {
        let setup = Setup::new("mb = [1000, 100]\n");
        let mut keeper = setup.begin().unwrap();
        for text in [
            "mb = [0]",
            "mb = [7, 7]\n[cpu.9]\nmb = 7",
            "mb = [1]\nbackend = \"x\"",
            "nonsense",
        ] {
            setup.write(text);
            assert!(keeper.reload().is_err(), "{text}");
            assert_eq!(setup.budgets(), [Some(16384), Some(1638)], "{text}");
            assert_eq!(keeper.look().unwrap(), None, "{text}");
        }
        fs::remove_file(setup.path()).unwrap();
        assert!(keeper.reload().is_err());
        assert_eq!(setup.budgets(), [Some(16384), Some(1638)]);
    }

    #[test]
    fn a_pipe_is_refused_at_the_start_and_at_the_reload() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        rustix::io::write(&writer, b"mb = [1000]\n").unwrap();
        drop(writer);
        let pipe = format!("/proc/self/fd/{}", reader.as_raw_fd());
        let setup = Setup::new("mb = [1000]\n");
        let mut keeper = setup.begin().unwrap();
        let replace = |fifo: bool| {
            fs::remove_file(setup.path()).unwrap();
            if fifo {
                let mode = Mode::RUSR | Mode::WUSR;
                mknodat(CWD, setup.path(), FileType::Fifo, mode, 0).unwrap();
            } else {
                symlink(&pipe, setup.path()).unwrap();
            }
        };
        for fifo in [false, true] {
            replace(fifo);
            let said = keeper.reload().unwrap_err().to_string();
            assert!(said.contains("guard.toml: not a regular file"), "{said}");
            assert_eq!(setup.budgets(), [Some(16384), None]);
        }
        keeper.end().unwrap();
        for fifo in [false, true] {
            replace(fifo);
            let said = setup.begin().err().unwrap().to_string();
            assert!(said.contains("guard.toml: not a regular file"), "{said}");
            assert!(!setup.guard.is_running());
        }
    }

    #[test]
    fn a_reload_sets_what_is_new_and_undoes_what_is_gone() {
        let setup = Setup::new("mb = [1000, 100]\nreclaim = true\n");
        let mut keeper = setup.begin().unwrap();
        setup.write("mb = [1000]\n[cpu.0]\nrt = true\n");
        let said = keeper.reload().unwrap();
        assert!(
            said.ends_with("CPU1 no budget, CPU0 never throttled, reclaim off"),
            "{said}"
        );
        assert_eq!(setup.budgets(), [Some(16384), None]);
        assert!(keeper.reload().unwrap().ends_with("no changes"));
    }

    #[test]
    fn a_reload_takes_a_shorter_period_whose_events_the_old_budget_is_too_small_for() {
        let mut setup = Setup::new("period = \"10ms\"\nmb = [1]\n");
        let options = StartOptions {
            bytes_per_event: Some(4096),
            ..StartOptions::default()
        };
        setup.guard.start(&options).unwrap();
        let before = setup.guard.settings().unwrap();
        let mut keeper = setup.begin().unwrap();
        assert_eq!(setup.budgets(), [Some(2), None]);
        setup.write("period = \"1ms\"\nmb = [100]\n");
        let said = keeper.reload().unwrap();
        assert!(said.ends_with("CPU0 100 MB/s, period 1000 us"), "{said}");
        assert_eq!(setup.budgets(), [Some(25), None]);
        setup.write("period = \"10ms\"\nmb = [1]\n");
        keeper.reload().unwrap();
        assert_eq!(setup.budgets(), [Some(2), None]);
        keeper.end().unwrap();
        assert_eq!(setup.guard.settings().unwrap(), before);
    }

    #[test]
    fn another_event_starts_the_guard_anew_or_leaves_the_old_one() {
        let setup = Setup::new("mb = [1000]\n");
        let mut keeper = setup.begin().unwrap();
        setup.write("mb = [1000]\nbytes_per_event = 4096\n");
        keeper.reload().unwrap();
        assert_eq!(setup.budgets(), [Some(256), None]);
        // With this file the guard fails its test.
        setup.write("mb = [1000]\nuser_only = true\n");
        assert!(keeper.reload().is_err());
        assert_eq!(setup.budgets(), [Some(256), None]);
        keeper.end().unwrap();
        assert!(!setup.guard.is_running());
    }

    #[test]
    fn a_reload_that_leaves_no_guard_says_so() {
        let setup = Setup::new("mb = [1000]\n");
        let mut keeper = setup.begin().unwrap();
        setup.write("mb = [1000]\nbytes_per_event = 4096\nperiod = \"4ms\"\n");
        let error = keeper.reload().unwrap_err();
        assert!(!setup.guard.is_running());
        assert_eq!(
            error.to_string(),
            "it doesn't regulate; nor could a guard be started for the old settings (it doesn't regulate), so the service keeps no guard now"
        );
    }

    #[test]
    fn a_guard_that_cannot_be_stopped_stays_kept_with_the_old_file() {
        for keep in [true, false] {
            let setup = Setup::new(&format!("mb = [1000]\nkeep = {keep}\n"));
            let mut keeper = setup.begin().unwrap();
            setup.write(&format!(
                "mb = [1000, 100]\nbytes_per_event = 4096\nkeep = {keep}\n"
            ));
            setup.guard.refuse_to_stop(true);
            let error = keeper.reload().unwrap_err().to_string();
            assert_eq!(error, "the guard is in use");
            assert!(setup.guard.is_running());
            assert!(keeper.regulator().is_some(), "keep = {keep}");
            assert_eq!(keeper.look().unwrap(), None);
            assert!(keeper.applied());
            assert_eq!(setup.budgets(), [Some(16384), None]);
            // The next SIGHUP applies the file, and the end stops the guard.
            setup.guard.refuse_to_stop(false);
            keeper.reload().unwrap();
            assert_eq!(setup.budgets(), [Some(256), Some(25)]);
            keeper.end().unwrap();
            assert!(!setup.guard.is_running());
        }
    }

    #[test]
    fn a_guard_that_is_not_to_be_used_is_neither_proved_nor_set() {
        let refused = "mb = [100]\nbytes_per_event = 32\nperiod = \"2ms\"\n";
        let mut setup = Setup::new(refused);
        // No signal came: the guard was not proved.
        assert!(matches!(setup.begin().err(), Some(Error::BadInput(_))));
        assert!(!setup.guard.is_running());

        setup.write("mb = [1000]\n");
        let mut keeper = setup.begin().unwrap();
        setup.write(refused);
        assert!(matches!(keeper.reload().err(), Some(Error::BadInput(_))));
        assert_eq!(setup.budgets(), [Some(16384), None]);

        // What is refused before the start does not end the guard that runs.
        setup.guard.refuse_to_start(true);
        setup.write("mb = [100]\nbytes_per_event = 16\n");
        assert!(matches!(keeper.reload().err(), Some(Error::BadInput(_))));
        assert_eq!(setup.budgets(), [Some(16384), None]);
        setup.guard.refuse_to_start(false);
        keeper.end().unwrap();

        let options = StartOptions {
            bytes_per_event: Some(32),
            ..StartOptions::default()
        };
        setup.guard.start(&options).unwrap();
        assert!(matches!(setup.begin().err(), Some(Error::BadInput(_))));
        assert_eq!(setup.budgets(), [None, None]);
        assert!(setup.guard.is_running());
    }

    #[test]
    fn a_guard_that_was_taken_over_keeps_its_event() {
        let mut setup = Setup::new("mb = [1000]\n");
        setup.guard.start(&StartOptions::default()).unwrap();
        let mut keeper = setup.begin().unwrap();
        setup.write("mb = [1000]\nbytes_per_event = 4096\n");
        let error = keeper.reload().unwrap_err().to_string();
        assert!(error.contains("running has 64"), "{error}");
        assert_eq!(setup.budgets(), [Some(16384), None]);
    }

    #[test]
    fn what_another_process_changed_is_set_again() {
        let mut setup = Setup::new("mb = [1000]\n");
        let mut keeper = setup.begin().unwrap();
        assert_eq!(keeper.look().unwrap(), None);
        setup.set("5,6");
        let said = keeper.look().unwrap().unwrap();
        assert_eq!(
            said,
            "changed by another process; set again: CPU0 1000 MB/s"
        );
        // The file does not name the second core.
        assert_eq!(setup.budgets(), [Some(16384), Some(6)]);
        setup.guard.set_period(2000).unwrap();
        // A budget in MB/s is the same at any period.
        assert_eq!(keeper.look().unwrap(), None);
        assert_eq!(setup.budgets(), [Some(32768), Some(6)]);
    }

    #[test]
    fn a_core_that_comes_online_gets_its_budget_even_without_keep() {
        let mut setup = Setup::new("mb = [1000, 100]\nkeep = false\n");
        let mut keeper = setup.begin().unwrap();
        setup.guard.unplug(1);
        assert_eq!(keeper.look().unwrap(), None);
        setup.set("5");
        setup.guard.plug(1);
        let said = keeper.look().unwrap().unwrap();
        assert_eq!(said, "CPU 1 came online; set again: CPU1 100 MB/s");
        assert_eq!(setup.budgets(), [Some(5), Some(1638)]);
        assert_eq!(keeper.look().unwrap(), None);
    }

    #[test]
    fn without_keep_a_change_stays_and_the_file_is_not_applied() {
        let mut setup = Setup::new("mb = [1000]\nreclaim = false\nkeep = false\n");
        let mut keeper = setup.begin().unwrap();
        assert!(keeper.applied());
        setup.set("5");
        assert_eq!(keeper.look().unwrap(), None);
        assert!(!keeper.applied());
        // A core that comes online leaves the other difference.
        setup.guard.unplug(1);
        setup.write("mb = [1000, 100]\nreclaim = false\nkeep = false\n");
        keeper.reload().unwrap();
        setup.guard.set_mode(None, Some(true)).unwrap();
        setup.guard.plug(1);
        assert!(keeper.look().unwrap().is_some());
        assert!(!keeper.applied());
        setup.guard.set_mode(None, Some(false)).unwrap();
        assert_eq!(keeper.look().unwrap(), None);
        assert!(keeper.applied());
    }

    #[test]
    fn with_keep_the_file_is_applied_unless_there_is_no_guard() {
        let mut setup = Setup::new("mb = [1000]\n");
        let mut keeper = setup.begin().unwrap();
        setup.set("5");
        assert!(keeper.look().unwrap().is_some());
        assert!(keeper.applied());
        setup.guard.stop().unwrap();
        setup.guard.refuse_to_start(true);
        assert!(keeper.look().is_err());
        assert!(!keeper.applied());
        setup.guard.refuse_to_start(false);
        assert!((0..11).any(|_| keeper.look().unwrap().is_some()));
        assert!(keeper.applied());
    }

    #[test]
    fn a_guard_that_was_ended_is_started_again() {
        let mut setup = Setup::new("mb = [1000]\n");
        let mut keeper = setup.begin().unwrap();
        setup.guard.stop().unwrap();
        assert!(
            keeper
                .look()
                .unwrap()
                .unwrap()
                .contains("the guard had ended")
        );
        assert_eq!(setup.budgets(), [Some(16384), None]);
        keeper.end().unwrap();
        assert!(!setup.guard.is_running());
    }

    #[test]
    fn without_keep_it_stays_ended_until_the_reload() {
        let mut setup = Setup::new("mb = [1000]\nkeep = false\n");
        let mut keeper = setup.begin().unwrap();
        setup.guard.stop().unwrap();
        assert_eq!(keeper.look().unwrap(), None);
        assert!(keeper.regulator().is_none());
        keeper.reload().unwrap();
        assert_eq!(setup.budgets(), [Some(16384), None]);
    }

    #[test]
    fn a_start_that_fails_is_not_tried_at_every_look() {
        let mut setup = Setup::new("mb = [1000]\n");
        let mut keeper = setup.begin().unwrap();
        setup.guard.stop().unwrap();
        setup.guard.refuse_to_start(true);
        let failures = (0..22).filter(|_| keeper.look().is_err()).count();
        assert_eq!(failures, 2);
        setup.guard.refuse_to_start(false);
        assert!((0..11).any(|_| keeper.look().unwrap().is_some()));
    }

    #[test]
    fn statistics_come_through() {
        let setup = Setup::new("");
        let keeper = setup.begin().unwrap();
        let cores: Vec<CoreStatistics> = keeper.regulator().unwrap().statistics().unwrap();
        assert_eq!(cores.len(), 2);
    }
}
