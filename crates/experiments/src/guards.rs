// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guard of an experiment's cases: started for the first case that needs it, and restored at the end.

use std::io::Write;
use std::path::PathBuf;

use memwarden_guard::self_test::{self, Finding};
use memwarden_guard::units::period_us;
use memwarden_guard::{
    Error as GuardError, ModuleSource, Regulator, Session, StartOptions, meaning, meaning_of,
};
use memwarden_platform::cpus::CpuSet;
use memwarden_platform::units::Time;
use memwarden_run::{Summary, Whole};
use serde_json::Value;

use crate::{Backend, Error, GuardSpec, Interrupt, KnownTraffic};

/// What the guard's settings of an experiment come to.
pub(crate) struct Guarding {
    pub backend: Backend,
    /// The kernel module's file; none uses the installed one.
    pub module: Option<PathBuf>,
    pub options: StartOptions,
    /// The option that sets the guard's period.
    pub period_option: &'static str,
    /// Fail if the guard's event is not memory traffic.
    pub require_memory_event: bool,
    /// The cores of the self-test; none leaves it out.
    pub proven: CpuSet,
}

/// The options that start a guard; an empty or zero setting uses the guard's default.
pub(crate) fn start_options(
    event: &str,
    write_event: &str,
    combined: bool,
    bytes_per_event: u64,
    period: Time,
) -> Result<StartOptions, Error> {
    let named = |event: &str| Some(event.to_owned()).filter(|event| !event.is_empty());
    Ok(StartOptions {
        event: named(event),
        write_event: named(write_event),
        combined,
        bytes_per_event: Some(bytes_per_event).filter(|bytes| *bytes > 0),
        period_us: period_us(period)?,
        ..StartOptions::default()
    })
}

/// The cores of the self-test: the victim's and the others, unless it is left out or the guard regulates nothing.
pub(crate) fn proven(backend: Backend, self_test: bool, victim: usize, others: &CpuSet) -> CpuSet {
    if !self_test || backend == Backend::Null {
        return CpuSet::default();
    }
    std::iter::once(victim).chain(others.iter()).collect()
}

impl Guarding {
    /// Refuses an event that isn't memory traffic before the cases without a guard are measured. A guard that cannot run
    /// here counts nothing yet: it is refused, or its cases are left out, later.
    pub fn check_event(&self) -> Result<(), Error> {
        if !self.require_memory_event || self.backend == Backend::Null {
            return Ok(());
        }
        match meaning_of(&self.options) {
            Ok(meaning) => Ok(meaning.require_memory_traffic()?),
            Err(_) => Ok(()),
        }
    }

    /// Reports what the guard counts and what it cannot hold: on stderr at once, and as a note.
    fn say<W: Whole>(&self, guard: &dyn Regulator, summary: &mut Summary<W>) -> Result<(), Error> {
        let meaning = meaning(&guard.settings()?.control);
        if self.require_memory_event {
            meaning.require_memory_traffic()?;
        }
        // A closed stderr is no reason to end.
        let _ = writeln!(std::io::stderr(), "memwarden: {}", meaning.text);
        summary.note(format!("The guard's {}.", meaning.text));
        Ok(())
    }

    /// Refuses options that differ from a running guard's.
    fn suit(&self, guard: &dyn Regulator) -> Result<(), Error> {
        let control = guard.settings()?.control;
        self.options.suit(&control)?;
        let (asked, running) = (self.options.period_us, control.period_us);
        if asked == running {
            return Ok(());
        }
        // The setting has a value also if the option was not given.
        let [asked, running] = [asked, running].map(Time::us);
        let option = self.period_option;
        Err(Error::BadInput(format!(
            "{option}: the running guard has a period of {running}, and this run {asked}: give {option} {running}, or \
             end that guard first (`memwarden guard stop`)"
        )))
    }

    /// Takes the guard over if it runs, and lifts its budgets and exemptions; starts it otherwise. If no case has a guard
    /// (`guarded`), any running one will do.
    fn begin<W: Whole>(
        &self,
        guard: Box<dyn Regulator>,
        guarded: bool,
        summary: &mut Summary<W>,
    ) -> Result<Session, Error> {
        let mut session = Session::begin(guard, &self.options)?;
        if session.took_over() && guarded {
            self.suit(session.regulator())?;
        }
        self.say(session.regulator(), summary)?;
        if session.took_over() {
            GuardSpec::lift(session.guard())?;
        }
        Ok(session)
    }

    /// Runs the guard's self-test; returns the result as JSON.
    fn prove<W: Whole>(
        &self,
        session: &mut Session,
        interrupt: &Interrupt,
        summary: &mut Summary<W>,
    ) -> Result<Option<Value>, Error> {
        if self.proven.is_empty() {
            return Ok(None);
        }
        let control = session.guard().settings()?.control;
        let cpus = self.proven.iter();
        let cpus: Vec<usize> = cpus.filter(|cpu| control.online.contains(*cpu)).collect();
        let mut traffic = KnownTraffic::for_event(&control.event, interrupt);
        let findings = self_test::run(session.guard(), &cpus, &mut traffic)?;
        summary.note(said(&control.event, &findings));
        for note in findings.iter().filter_map(Finding::note_of_written) {
            summary.note(format!("In that test, {note}."));
        }
        Ok(serde_json::to_value(findings).ok())
    }
}

fn said(event: &str, findings: &[Finding]) -> String {
    let worst = findings
        .iter()
        .map(|finding| {
            (finding.counted_bytes as f64 / finding.moved_bytes.max(1) as f64 - 1.0) * 100.0
        })
        .max_by(|a, b| a.abs().total_cmp(&b.abs()))
        .unwrap_or(0.0);
    format!(
        "The guard proved itself on {} cores before the first case: {event} counted within {worst:+.1} % of the bytes \
         moved, and a core over its budget stopped.",
        findings.len()
    )
}

/// True if the machine lacks what the guard needs, as opposed to a fault of an available guard.
fn cannot_run_here(error: &GuardError) -> bool {
    matches!(
        error,
        GuardError::NotRoot(_)
            | GuardError::NoModule { .. }
            | GuardError::NoModuleSupport
            | GuardError::NoDevice(_)
    )
}

/// The guard of the whole run.
pub(crate) struct Guards {
    guarding: Guarding,
    /// The session, or the regulator if it has not been started; none if it cannot run here.
    session: Option<Result<Session, Box<dyn Regulator>>>,
    /// Why it cannot run here.
    refused: Option<GuardError>,
    /// The self-test was passed or left out.
    is_proven: bool,
    /// The self-test's findings.
    self_test: Option<Value>,
}

impl Guards {
    /// Takes a running guard over; `guarded` if a case has a guard.
    pub fn new<W: Whole>(
        guarding: Guarding,
        guarded: bool,
        summary: &mut Summary<W>,
    ) -> Result<Self, Error> {
        let module = guarding.module.clone().map(ModuleSource::Path);
        let guard = guarding.backend.regulator(module, true)?;
        Self::over(guard, guarding, guarded, summary)
    }

    fn over<W: Whole>(
        guard: Box<dyn Regulator>,
        guarding: Guarding,
        guarded: bool,
        summary: &mut Summary<W>,
    ) -> Result<Self, Error> {
        // A guard that was running stays loaded: cases without a guard run with its budgets and exemptions lifted.
        let session = if guard.is_running() {
            let session = guarding.begin(guard, guarded, summary)?;
            summary.note(
                "A guard was running already: the cases without a guard ran with all budgets and exemptions lifted, \
                 and its settings were put back at the end.",
            );
            Ok(session)
        } else {
            Err(guard)
        };
        Ok(Self {
            guarding,
            session: Some(session),
            refused: None,
            is_proven: false,
            self_test: None,
        })
    }

    /// Applies the guard settings; false if the guard cannot run here and the case is left out.
    pub fn apply<W: Whole>(
        &mut self,
        spec: &GuardSpec,
        interrupt: &Interrupt,
        summary: &mut Summary<W>,
    ) -> Result<bool, Error> {
        let begun = match self.session.take() {
            None => return Ok(false),
            Some(Ok(session)) => Ok(session),
            Some(Err(guard)) => self.guarding.begin(guard, true, summary),
        };
        let proven = begun.and_then(|mut session| {
            if !self.is_proven {
                self.self_test = self.guarding.prove(&mut session, interrupt, summary)?;
                self.is_proven = true;
            }
            Ok(session)
        });
        let mut session = match proven {
            Ok(session) => session,
            Err(Error::Guard(error))
                if self.guarding.backend == Backend::Auto && cannot_run_here(&error) =>
            {
                summary.note(format!("The cases with a guard were left out: {error}."));
                self.refused = Some(error);
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        spec.apply(session.guard())?;
        self.session = Some(Ok(session));
        Ok(true)
    }

    /// Fails if the guard could not run here: for a run of which all cases need it.
    pub fn required(&mut self) -> Result<(), Error> {
        self.refused
            .take()
            .map_or(Ok(()), |reason| Err(reason.into()))
    }

    /// The guard of a case with these settings; a guard whose budgets are lifted is not part of it.
    pub fn of(&self, spec: Option<&GuardSpec>) -> Option<&dyn Regulator> {
        let session = self.session.as_ref()?.as_ref().ok()?;
        spec.map(|_| session.regulator())
    }

    /// Restores the guard; returns the self-test's findings as JSON.
    pub fn end(self) -> Result<Option<Value>, Error> {
        if let Some(Ok(session)) = self.session {
            session.end()?;
        }
        Ok(self.self_test)
    }
}

#[cfg(test)]
mod tests {
    use memwarden_guard::Null;
    use memwarden_run::studies::interfere;

    use super::*;

    fn guarding(options: StartOptions) -> Guarding {
        Guarding {
            backend: Backend::Auto,
            module: None,
            options,
            period_option: "--guard-period",
            require_memory_event: false,
            proven: CpuSet::default(),
        }
    }

    /// A running guard with a period of 10 ms.
    fn running() -> Box<dyn Regulator> {
        let mut guard = Null::new([0, 1].into_iter().collect());
        let options = StartOptions {
            period_us: 10_000,
            ..StartOptions::default()
        };
        guard.start(&options).unwrap();
        Box::new(guard)
    }

    #[test]
    fn options_that_a_running_guard_does_not_have_are_refused() {
        let refused = |options, guarded| {
            let mut summary = interfere::Summary::new("interfere", "native");
            let guards = Guards::over(running(), guarding(options), guarded, &mut summary);
            guards.err().map(|error| error.to_string())
        };
        let refusal = |options| refused(options, true);
        assert_eq!(refused(StartOptions::default(), false), None);
        let like = StartOptions {
            period_us: 10_000,
            ..StartOptions::default()
        };
        assert_eq!(refusal(like.clone()), None);
        assert_eq!(
            refusal(StartOptions::default()).as_deref(),
            Some(
                "--guard-period: the running guard has a period of 10ms, and this run 1ms: give --guard-period 10ms, or \
                 end that guard first (`memwarden guard stop`)"
            )
        );
        let refused = refusal(StartOptions {
            user_only: true,
            ..like
        });
        assert!(refused.unwrap().starts_with("--user-only: "));
    }

    #[test]
    fn a_running_guard_proves_itself_once_before_the_first_guarded_case() {
        let options = StartOptions {
            period_us: 10_000,
            ..StartOptions::default()
        };
        for (proven, findings) in [("", None), ("7", Some(Value::Array(Vec::new())))] {
            let guarding = Guarding {
                // Not one of its cores, so that no traffic is made.
                proven: proven.parse().unwrap_or_default(),
                ..guarding(options.clone())
            };
            let mut summary = interfere::Summary::new("interfere", "native");
            let mut guards = Guards::over(running(), guarding, true, &mut summary).unwrap();
            for spec in ["1000,100", "100"] {
                let spec = spec.parse().unwrap();
                let applied = guards.apply(&spec, &Interrupt::default(), &mut summary);
                assert!(applied.unwrap());
            }
            let said = summary.notes.iter().filter(|note| note.contains("proved"));
            assert_eq!(said.count(), usize::from(findings.is_some()));
            assert_eq!(guards.end().unwrap(), findings);
        }
    }
}
