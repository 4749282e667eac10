// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden doctor --report`: tries a machine's events, and writes the result to a file that can be sent to others.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, bail};
use memwarden_experiments::{Interrupt, KnownTraffic, Progress};
use memwarden_guard::self_test::{self, Finding};
use memwarden_guard::{Backend, EventList, StartOptions, running};
use memwarden_platform::Root;
use memwarden_platform::cpus::CpuSet;
use memwarden_platform::doctor::Diagnosis;
use memwarden_platform::machine::Host;
use memwarden_platform::processor::{self, Identity};
use memwarden_policy::events::{Kind, vendor};
use serde::Serialize;

use crate::verbs::terminal::Bar;

/// The report. Nothing in it identifies a single machine.
#[derive(Debug, Serialize)]
struct Report {
    memwarden: &'static str,
    host: Host,
    processors: Vec<Processors>,
    diagnosis: Diagnosis,
    /// Reason why no event was tried.
    untried: Option<&'static str>,
    events: Vec<Tried>,
}

/// CPUs of one kind.
#[derive(Debug, Serialize)]
struct Processors {
    #[serde(flatten)]
    identity: Identity,
    cpus: CpuSet,
    /// Their event in the table.
    own_event: Option<&'static str>,
}

/// An event with the results of its self-test on a CPU of each kind.
#[derive(Debug, Serialize)]
struct Tried {
    event: String,
    /// Reason why the self-test failed; `None` if it passed.
    refused: Option<String>,
    findings: Vec<Finding>,
}

/// Other events that may count memory traffic on such processors.
fn candidates(maker: u32) -> &'static [&'static str] {
    match maker {
        vendor::INTEL => &["0x412e", "0x08b0", "cache-misses"],
        vendor::AMD | vendor::HYGON => &[
            "0x4843+0xff72",
            "0x4844+0x1f72",
            "0x4843",
            "0x4844",
            "cache-misses",
        ],
        // Arm's implementer numbers.
        1..=0xff => &["0x17", "0x2a", "0x37", "cache-misses"],
        _ => &["cache-misses"],
    }
}

/// Tries the events one by one, and writes the results.
pub(super) fn write(path: &Path, diagnosis: Diagnosis) -> anyhow::Result<()> {
    // Created first, so that a failure comes before the tests.
    let mut file = File::create_new(path)
        .with_context(|| format!("--report: making {} (a new file)", path.display()))?;
    let written = gather(diagnosis).and_then(|report| {
        let text = serde_json::to_string_pretty(&report)?;
        writeln!(file, "{text}").with_context(|| format!("writing {}", path.display()))
    });
    if written.is_err() {
        let _ = std::fs::remove_file(path);
    }
    written
}

fn gather(diagnosis: Diagnosis) -> anyhow::Result<Report> {
    let root = Root::system();
    let own = |cpus: &CpuSet| {
        let first = cpus.iter().next()?;
        processor::own_event(&root, first).ok()
    };
    let processors: Vec<Processors> = processor::identities(&root)?
        .into_iter()
        .map(|(identity, cpus)| Processors {
            identity,
            own_event: own(&cpus).map(|event| event.name),
            cpus,
        })
        .collect();
    let counts = |name: &str| {
        let event = diagnosis.counters.event(name);
        event.is_some_and(memwarden_platform::counters::Found::counts)
    };
    let untried = if !counts("cache-misses") && !counts("cycles") {
        Some("there is no PMU")
    } else if !diagnosis.guard.can_run {
        Some("the guard can't run here: see the diagnosis")
    } else {
        None
    };
    let mut events = Vec::new();
    if untried.is_none() {
        if running().is_ok() {
            bail!(
                "--report tries events, and a guard is running: end it first (memwarden guard stop)"
            );
        }
        let known = processor::own_events(&root, None)?.unwrap_or_default();
        let makers = processors.first().map_or(0, |kind| kind.identity.maker);
        let mut names = match known.as_slice() {
            [] => Vec::new(),
            known => vec![EventList::by_cpu(known).to_string()],
        };
        let is_own = |name: &str| matches!(known.as_slice(), [(event, _)] if event.kind == Kind::Raw && event.read_codes() == name);
        let others = candidates(makers).iter().filter(|name| !is_own(name));
        names.extend(others.map(|&name| name.to_owned()));
        let cpus: Vec<usize> = match processors.as_slice() {
            [] => memwarden_platform::cpus::online()?.iter().take(1).collect(),
            kinds => kinds
                .iter()
                .filter_map(|kind| kind.cpus.iter().next())
                .collect(),
        };
        let interrupt = Interrupt::catch()?;
        let mut bar = Bar::new();
        for (done, name) in names.iter().enumerate() {
            interrupt.check()?;
            bar.step(done, names.len(), &format!("trying event {name}"));
            events.push(attempt(name, &cpus, &interrupt)?);
        }
        bar.step(names.len(), names.len(), "done");
    }
    Ok(Report {
        memwarden: env!("CARGO_PKG_VERSION"),
        host: Host::gather()?,
        processors,
        diagnosis,
        untried,
        events,
    })
}

/// The self-test of one event, by a regulator in user space that ends with the test.
fn attempt(event: &str, cpus: &[usize], interrupt: &Interrupt) -> anyhow::Result<Tried> {
    let mut guard = Backend::User.regulator(None, true)?;
    let options = StartOptions {
        event: Some(event.to_owned()),
        ..StartOptions::default()
    };
    let tried = |refused, findings| Tried {
        event: event.to_owned(),
        refused,
        findings,
    };
    if let Err(error) = guard.start(&options) {
        return Ok(tried(Some(error.to_string()), Vec::new()));
    }
    let mut traffic = KnownTraffic::for_event(event, interrupt);
    let proved = self_test::run(guard.as_mut(), cpus, &mut traffic);
    guard.stop()?;
    interrupt.check()?;
    Ok(match proved {
        Ok(findings) => tried(None, findings),
        Err(error) => tried(Some(error.to_string()), Vec::new()),
    })
}
