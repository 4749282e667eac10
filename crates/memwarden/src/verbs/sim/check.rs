// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden sim check`: compares the model with figures that can be calculated by hand,
//! and checks mixed traffic with an independent checker.

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use anyhow::{Context, Result};
use memwarden_experiments::Progress;
use memwarden_sim::dram::checks::{self, Check};
use memwarden_sim::dram::{CheckReport, ControllerError, Memory, memory_file};
use schemars::JsonSchema;
use serde::Serialize;

use super::memory;
use crate::verbs::numbers::count_in;
use crate::verbs::output::errln;
use crate::verbs::output::print;
use crate::verbs::terminal::{Bar, lines, number, table};

/// Lines of traffic for each figure: the start-up is then about a thousandth of it.
const LINES: u64 = 200_000;
/// Violations to show for each memory.
const SHOWN: usize = 5;

/// Check the model against hand-calculated figures, and its traffic against the timing rules
#[derive(clap::Args)]
#[command(
    after_help = "The figures: idle latency, streaming reads, row conflicts in one bank, Little's law. The traffic: random and\n\
    sequential, reads and writes, dense and with pauses, with each page policy; the checker judges every command\n\
    by the standards' rules, independently of the controller. Each memory has two jobs, which are spread over all CPUs.\n\
    GB/s are 10^9 bytes a second, of all channels together. The exit code is 1 when anything fails.\n\
    Examples:\n  memwarden sim check\n  \
    memwarden sim check ddr4-2400 my-memory.toml --commands 100M"
)]
pub(super) struct Args {
    /// Names (`memwarden sim memories` lists them) or TOML files [default: all built-in memories]
    #[arg(value_name = "MEMORY")]
    memories: Vec<String>,
    /// Commands of mixed traffic to check, for each memory
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = count_in::<u64>(1..=u64::MAX))]
    commands: u64,
    /// Seed of the random traffic
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// The results of a memory.
#[derive(Serialize, JsonSchema)]
pub struct Judged {
    memory: String,
    checks: Vec<Figure>,
    traffic: CheckReport,
    /// The first violations, in words.
    violations: Vec<String>,
}

#[derive(Serialize, JsonSchema)]
pub struct Figure {
    #[serde(flatten)]
    check: Check,
    difference: f64,
    holds: bool,
}

#[derive(Serialize, JsonSchema)]
pub struct Report<'a> {
    commands: u64,
    seed: u64,
    memories: &'a [Judged],
    fault: Option<String>,
}

/// The result of one job.
enum Part {
    Figures(Vec<Check>),
    Traffic(CheckReport),
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let memories: Vec<Memory> = if args.memories.is_empty() {
        memory_file::names()
            .map(Memory::named)
            .collect::<Result<_, _>>()?
    } else {
        let asked = args.memories.iter();
        asked.map(|asked| memory(asked)).collect::<Result<_>>()?
    };
    let judged = judge(&memories, args)?;
    let fault = fault(&judged);
    if args.json {
        let report = Report {
            commands: args.commands,
            seed: args.seed,
            memories: &judged,
            fault: fault.clone(),
        };
        print(&serde_json::to_string_pretty(&report)?)?;
    } else {
        print(&text(&judged))?;
    }
    let Some(fault) = fault else {
        return Ok(ExitCode::SUCCESS);
    };
    errln!("memwarden: {fault}");
    Ok(ExitCode::FAILURE)
}

/// Checks all memories, on all CPUs.
fn judge(memories: &[Memory], args: &Args) -> Result<Vec<Judged>> {
    let mut judged: Vec<Judged> = memories
        .iter()
        .map(|memory| Judged {
            memory: memory.name.clone(),
            checks: Vec::new(),
            traffic: CheckReport::default(),
            violations: Vec::new(),
        })
        .collect();
    let jobs = 2 * memories.len();
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let (send, receive) = mpsc::channel();
    let mut bar = Bar::new();
    thread::scope(|scope| {
        for _ in 0..threads.min(jobs) {
            let (next, send) = (&next, send.clone());
            scope.spawn(move || {
                loop {
                    let job = next.fetch_add(1, Ordering::Relaxed);
                    // The receiver is gone if another job has failed.
                    if job >= jobs || send.send((job, part(memories, job, args))).is_err() {
                        break;
                    }
                }
            });
        }
        drop(send);
        bar.step(0, jobs, "checks");
        for (done, (job, part)) in receive.into_iter().enumerate() {
            let one = &mut judged[job % memories.len()];
            match part.with_context(|| format!("the memory {}", one.memory))? {
                Part::Figures(checks) => one.checks = checks.into_iter().map(figure).collect(),
                Part::Traffic(report) => {
                    let violations = report.violations.iter();
                    one.violations = violations.map(ToString::to_string).collect();
                    one.traffic = report;
                }
            }
            bar.step(done + 1, jobs, "checks");
        }
        anyhow::Ok(())
    })?;
    Ok(judged)
}

/// The jobs: first the traffic of all memories, which takes longer, then the figures.
fn part(memories: &[Memory], job: usize, args: &Args) -> Result<Part, ControllerError> {
    let memory = &memories[job % memories.len()];
    if job < memories.len() {
        checks::check_traffic(memory, args.commands, args.seed).map(Part::Traffic)
    } else {
        checks::analytical(memory, LINES).map(Part::Figures)
    }
}

fn figure(check: Check) -> Figure {
    Figure {
        difference: check.difference(),
        holds: check.holds(),
        check,
    }
}

/// The failures in one line.
fn fault(judged: &[Judged]) -> Option<String> {
    let figures = judged.iter().flat_map(|one| &one.checks);
    let wrong = figures.filter(|figure| !figure.holds).count();
    let violations = judged.iter().map(|one| one.traffic.violation_count);
    let violations: u64 = violations.sum();
    (wrong > 0 || violations > 0)
        .then(|| format!("wrong figures: {wrong}, broken rules: {violations}"))
}

fn text(judged: &[Judged]) -> String {
    let mut figures = table(&["", "expected", "found", "difference %", "allowed %", "what"]);
    for figure in judged.iter().flat_map(|one| &one.checks) {
        let Figure {
            check,
            difference,
            holds,
        } = figure;
        figures.add_row([
            if *holds { "ok" } else { "WRONG" }.to_owned(),
            number(check.expected, 2),
            number(check.found, 2),
            number(100.0 * difference, 3),
            number(100.0 * check.within, 3),
            check.name.clone(),
        ]);
    }
    let mut traffic = table(&["", "commands", "violations", "memory"]);
    for one in judged {
        let holds = one.traffic.violation_count == 0;
        traffic.add_row([
            if holds { "ok" } else { "WRONG" }.to_owned(),
            one.traffic.commands.to_string(),
            one.traffic.violation_count.to_string(),
            one.memory.clone(),
        ]);
    }
    let mut parts = vec![lines(figures, 1..5), String::new(), lines(traffic, 1..3)];
    for one in judged {
        let shown = one.violations.iter().take(SHOWN);
        parts.extend(shown.map(|violation| format!("{}: {violation}", one.memory)));
    }
    parts.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(found: f64, violation_count: u64) -> [Judged; 1] {
        let check = Check {
            name: "DDR9: idle latency, ns".into(),
            expected: 100.0,
            found,
            within: 0.02,
        };
        [Judged {
            memory: "DDR9".into(),
            checks: vec![figure(check)],
            traffic: CheckReport {
                commands: 7,
                violation_count,
                violations: Vec::new(),
            },
            violations: vec!["5 ps, channel 0: tRCD".into(); violation_count as usize],
        }]
    }

    #[test]
    fn what_holds_is_no_fault() {
        let judged = judged(101.0, 0);
        assert_eq!(fault(&judged), None);
        assert!(!text(&judged).contains("WRONG"));
    }

    #[test]
    fn a_wrong_figure_and_a_violation_are_faults_and_shown() {
        assert_eq!(
            fault(&judged(103.0, 0)).unwrap(),
            "wrong figures: 1, broken rules: 0"
        );
        let judged = judged(100.0, 9);
        assert!(fault(&judged).unwrap().contains("broken rules: 9"));
        let text = text(&judged);
        assert_eq!(text.matches("DDR9: 5 ps, channel 0: tRCD").count(), SHOWN);
        assert_eq!(text.matches("WRONG").count(), 1, "{text}");
    }
}
