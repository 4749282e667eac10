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
use memwarden_platform::counters::Found;
use memwarden_platform::cpus::CpuSet;
use memwarden_platform::doctor::Diagnosis;
use memwarden_platform::machine::Host;
use memwarden_platform::processor;
use memwarden_policy::events::{Kind, vendor};
use memwarden_run::Recorded;
use memwarden_run::studies::interfere::{self, Case};
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
    curve: Option<Curve>,
}

/// CPUs of one kind.
#[derive(Debug, Serialize)]
struct Processors {
    #[serde(flatten)]
    kind: processor::Processors,
    /// Their event in the table.
    own_event: Option<&'static str>,
}

/// An event with the results of its self-test.
#[derive(Debug, Serialize)]
struct Tried {
    event: String,
    /// Reason why the regulator did not start with it; `None` if it did.
    refused: Option<String>,
    /// On a CPU of each kind.
    cores: Vec<TriedOn>,
}

#[derive(Debug, Serialize)]
struct TriedOn {
    cpu: usize,
    /// Reason why the self-test failed; `None` if it passed.
    refused: Option<String>,
    finding: Option<Finding>,
}

/// A victim beside growing numbers of aggressors.
#[derive(Debug, Serialize)]
struct Curve {
    victim: String,
    cases: Vec<Case>,
}

/// Other events that may count memory traffic on such processors.
fn candidates(maker: u32) -> &'static [&'static str] {
    match maker {
        // The last but one may count the L2's prefetches on small cores: L2_REQUEST.MISS.
        vendor::INTEL => &["0x412e", "0x08b0", "0x124", "cache-misses"],
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
pub(super) fn write(path: &Path, curve: Option<&Path>, diagnosis: Diagnosis) -> anyhow::Result<()> {
    // These first, so that a failure comes before the tests.
    let host = Host::gather()?;
    let curve = curve.map(|run| read_curve(run, &host)).transpose()?;
    let mut file = File::create_new(path)
        .with_context(|| format!("--report: making {} (a new file)", path.display()))?;
    let written = gather(host, curve, diagnosis).and_then(|report| {
        let text = serde_json::to_string_pretty(&report)?;
        writeln!(file, "{text}").with_context(|| format!("writing {}", path.display()))
    });
    if written.is_err() {
        let _ = std::fs::remove_file(path);
    }
    written
}

/// The cases of a run of `interfere` on this machine.
fn read_curve(run: &Path, host: &Host) -> anyhow::Result<Curve> {
    let recorded = Recorded::read(run).context("--curve")?;
    let (experiment, theirs) = (&recorded.run.experiment, &recorded.run.host);
    if experiment != interfere::NAME {
        bail!(
            "--curve {}: it is a run of {experiment}: give one of `memwarden interfere`",
            run.display()
        );
    }
    let same = theirs.cpu_model == host.cpu_model
        && theirs.cores.map(|cores| cores as usize) == Some(host.cores);
    if recorded.run.target != "native" || !same {
        bail!(
            "--curve {}: it was not made on this machine, but on {} ({}): run `memwarden interfere --out DIR` here",
            run.display(),
            theirs.cpu_model.as_deref().unwrap_or("another one"),
            recorded.run.target
        );
    }
    let summary: interfere::Summary = recorded.summary.typed().context("--curve")?;
    let victim = recorded.run.configuration.get("victim");
    let victim = victim
        .and_then(|victim| victim.as_str())
        .unwrap_or_default();
    Ok(Curve {
        // A command may name its owner.
        victim: if victim.starts_with("cmd:") {
            "a program"
        } else {
            victim
        }
        .to_owned(),
        cases: summary.cases,
    })
}

fn gather(host: Host, curve: Option<Curve>, diagnosis: Diagnosis) -> anyhow::Result<Report> {
    let root = Root::system();
    let own = |cpus: &CpuSet| {
        let first = cpus.iter().next()?;
        processor::own_event(&root, first).ok()
    };
    let processors: Vec<Processors> = processor::kinds(&root)?
        .into_iter()
        .map(|kind| Processors {
            own_event: own(&kind.cpus).map(|event| event.name),
            kind,
        })
        .collect();
    let any = |is: fn(&Found) -> bool| {
        let mut events = ["cache-misses", "cycles"].iter();
        events.any(|name| diagnosis.counters.event(name).is_some_and(is))
    };
    let untried = if !any(Found::counts) {
        Some(if any(Found::denied) {
            "opening hardware events is not permitted: see the diagnosis"
        } else {
            "there is no PMU"
        })
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
        let makers = processors.first().map_or(0, |of| of.kind.identity.maker);
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
                .filter_map(|of| of.kind.cpus.iter().next())
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
        host,
        processors,
        diagnosis,
        untried,
        events,
        curve,
    })
}

/// The self-test of one event on each of these CPUs, by a regulator in user space that ends with the test.
fn attempt(event: &str, cpus: &[usize], interrupt: &Interrupt) -> anyhow::Result<Tried> {
    let mut guard = Backend::User.regulator(None, true)?;
    let options = StartOptions {
        event: Some(event.to_owned()),
        cpus: Some(cpus.iter().copied().collect()),
        ..StartOptions::default()
    };
    if let Err(error) = guard.start(&options) {
        return Ok(Tried {
            event: event.to_owned(),
            refused: Some(error.to_string()),
            cores: Vec::new(),
        });
    }
    let mut traffic = KnownTraffic::for_event(event, interrupt);
    let mut cores = Vec::new();
    for &cpu in cpus {
        let proved = self_test::run(guard.as_mut(), &[cpu], &mut traffic);
        let (finding, refused) = match proved {
            Ok(findings) => (findings.into_iter().next(), None),
            Err(error) => (None, Some(error.to_string())),
        };
        cores.push(TriedOn {
            cpu,
            refused,
            finding,
        });
    }
    guard.stop()?;
    interrupt.check()?;
    Ok(Tried {
        event: event.to_owned(),
        refused: None,
        cores,
    })
}
