// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden sim calibrate`: fits a platform to published figures without a
//! guard, and compares it with all published figures.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::slice;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use memwarden_experiments::{Interrupt, Progress};
use memwarden_sim::Platform;
use memwarden_sim::calibrate::{
    Calibrated, Compared, Limits, Parameter, calibrate, compare, is_fitted_to,
};
use memwarden_sim::cases::{Facts, Measure};
use memwarden_sim::platform::PlatformError;
use schemars::JsonSchema;
use serde::Serialize;

use super::measured::{self, Measured};
use super::output::{Output, folder};
use crate::verbs::foreign::Interrupted;
use crate::verbs::numbers::count_in;
use crate::verbs::output::{errln, print};
use crate::verbs::terminal::{Bar, lines, number, table};

/// Relative difference from which a fitted figure is reported.
const TOLERANCE: f64 = 0.1;
/// Interval between checks for a signal.
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// Fit a platform to published figures without a guard, and predict the rest
#[derive(clap::Args)]
#[command(
    after_help = "The parameters in the platform's [fit] table change within their ranges, to fit the published figures of cases without\n\
    a guard (\"fitted\"). All other figures are \"predicted\"; of a case with a guard, only the figures that the facts name in its\n\
    fit are fitted. Differences are in %, of shares in percentage points. The exit code is 0 whatever the differences.\n\
    Ctrl-C prints the best platform so far, or the cases that are done; with --output FILE, that platform is in\n\
    FILE.partial.\n\
    Examples:\n  memwarden sim calibrate raspberry-pi-3 --compare-only\n  \
    memwarden sim calibrate raspberry-pi-3 --compare-only --measure out/pi\n  \
    memwarden sim calibrate raspberry-pi-3 --compare-only --lab out/pi\n  \
    memwarden sim calibrate my-board.toml --against my-facts.toml -o fitted.toml"
)]
pub(super) struct Args {
    /// A name (`memwarden sim platforms` lists them) or a TOML file
    #[arg(value_name = "PLATFORM")]
    platform: String,
    /// Published figures: a platform's name or a TOML file [default: the built-in facts of PLATFORM]
    #[arg(long, value_name = "FACTS")]
    against: Option<String>,
    /// Only compare; change nothing
    #[arg(long, conflicts_with_all = ["within", "tries", "output"])]
    compare_only: bool,
    /// Also show measured figures: run folders of interfere and realtime, from the lab's machine with this platform's
    /// memory, or from the board
    #[arg(
        long,
        value_name = "RUN",
        value_delimiter = ',',
        requires = "compare_only"
    )]
    lab: Vec<PathBuf>,
    /// Also measure now: interfere or realtime, whichever the published cases are of, on the lab's machine with this
    /// platform's memory, into this run folder (3 to 10 minutes)
    #[arg(
        long,
        value_name = "RUN",
        requires = "compare_only",
        conflicts_with_all = ["against", "lab"]
    )]
    measure: Option<PathBuf>,
    /// End the search when no fitted figure differs by more than this
    #[arg(long, value_name = "SHARE", default_value_t = 0.02, value_parser = within)]
    within: f64,
    /// Maximum number of platforms to try
    #[arg(long, value_name = "N", default_value_t = 400, value_parser = count_in::<usize>(1..=1_000_000))]
    tries: usize,
    /// Seed for the placement of the workloads' pages
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Write the fitted platform, as TOML
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace the file if it exists
    #[arg(long, requires = "output")]
    replace: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

fn within(text: &str) -> Result<f64, String> {
    let share = text.parse().ok();
    share
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| "a share is from 0 to 1, such as 0.02 for 2 %".to_owned())
}

#[derive(Serialize, JsonSchema)]
pub struct Report<'a> {
    platform: &'a str,
    source: &'a str,
    seed: u64,
    /// A signal ended the search or the comparison: figures are missing.
    interrupted: bool,
    /// None for a comparison without a fit.
    fit: Option<Fit<'a>>,
    cases: &'a [Row],
    /// Fitted figures that differ by more than a tenth.
    beyond_tolerance: Vec<&'a Compared>,
    output: Option<&'a Path>,
}

/// A figure from all its sources.
#[derive(Serialize, JsonSchema)]
pub struct Row {
    #[serde(flatten)]
    compared: Compared,
    /// The figure that the runs of `--lab` measured.
    lab: Option<f64>,
    /// Its difference from the published one.
    lab_difference: Option<f64>,
    /// The model's difference from it.
    model_to_lab: Option<f64>,
}

impl Row {
    fn of(compared: Compared, facts: &Facts, measured: &Measured) -> Self {
        let measure = compared.measure;
        let case = facts.cases.iter().find(|case| case.name == compared.case);
        let lab = case.and_then(|case| measured.figure(case, measure));
        let published = compared.published.zip(lab);
        Self {
            lab,
            lab_difference: published.map(|(published, lab)| measure.difference(lab, published)),
            model_to_lab: lab.map(|lab| measure.difference(compared.found, lab)),
            compared,
        }
    }
}

#[derive(Serialize, JsonSchema)]
pub struct Fit<'a> {
    worst_before: f64,
    worst_now: f64,
    tried: usize,
    parameters: &'a [Parameter],
}

/// Messages of the calculating thread.
enum Said<S, T> {
    SoFar(S),
    Done(T),
}

/// The end of a calculation.
enum End<S, T> {
    Done(T),
    /// A signal came; with the last message.
    Cut(Option<S>),
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let platform = Platform::find(&args.platform)?;
    let facts = facts(args)?;
    let lab = match &args.measure {
        Some(run) => {
            measured::measure(&args.platform, &facts.cases, run)?;
            slice::from_ref(run)
        }
        None => &args.lab,
    };
    let measured = Measured::read(lab)?;
    if let Some(run) = measured.unused(&facts.cases).next() {
        bail!(
            "--lab {}: none of its cases is published: give a run with the published workloads, memory and guard",
            run.display()
        );
    }
    for case in &facts.cases {
        let names = case.workloads.iter();
        for name in names.filter(|name| !matches!(name.as_str(), "idle" | "task")) {
            platform
                .workload(name, case.memory_bytes, args.seed)
                .with_context(|| format!("case \"{}\"", case.name))?;
        }
    }
    if !args.compare_only {
        if platform.fit.is_empty() {
            bail!(
                "{} has no [fit] table with parameters to fit: only --compare-only works",
                args.platform
            );
        }
        if !facts.cases.iter().any(is_fitted_to) {
            bail!(
                "no fact can be fitted (published, and without a guard or named in a fit): only --compare-only works"
            );
        }
    }
    let interrupt = Interrupt::catch()?;
    let output = args.output.as_deref();
    let output = output.map(|path| Output::begin(path, args.replace));
    let output = output.transpose()?;
    let nothing = || Interrupted("nothing was written");
    let (fitted, compared, interrupted) = match args.compare_only {
        true => {
            let (compared, cut) = compared(args, &platform, &facts, &interrupt)?;
            (None, compared, cut)
        }
        false => match fit(args, &platform, &facts, &interrupt)? {
            End::Done(fitted) => {
                let (compared, cut) = compared(args, &fitted.platform, &facts, &interrupt)?;
                (Some(fitted), compared, cut)
            }
            End::Cut(best) => {
                let best = best.filter(Calibrated::is_changed).ok_or_else(nothing)?;
                return cut_short(args, &facts, &best, output);
            }
        },
    };
    if interrupted && fitted.is_none() && compared.is_empty() {
        return Err(nothing().into());
    }
    if let (Some(output), Some(fitted)) = (output, &fitted) {
        write(&output, args, &fitted.platform, &facts)?;
        output.keep()?;
        // An earlier search may have been interrupted.
        if let Some(path) = &args.output {
            let _ = std::fs::remove_file(partial_of(path));
        }
    }
    let rows: Vec<Row> = compared
        .iter()
        .map(|one| Row::of(one.clone(), &facts, &measured))
        .collect();
    let written = args.output.as_deref();
    let found = Found {
        facts: &facts,
        fitted: fitted.as_ref(),
        rows: &rows,
        written,
        interrupted,
    };
    found.tell(args, &platform.name)?;
    if interrupted {
        return Err(Interrupted("cases are missing").into());
    }
    Ok(ExitCode::SUCCESS)
}

/// After a signal during the search: writes the best platform to `FILE.partial` and prints it.
fn cut_short(
    args: &Args,
    facts: &Facts,
    best: &Calibrated,
    output: Option<Output>,
) -> Result<ExitCode> {
    // Its file must not appear.
    drop(output);
    let mut partial = None;
    if let Some(path) = &args.output {
        let path = partial_of(path);
        // The next search begins anew, so its partial result replaces this one.
        let output = Output::begin(&path, true)?;
        write(&output, args, &best.platform, facts)?;
        output.keep()?;
        partial = Some(path);
    }
    let found = Found {
        facts,
        fitted: Some(best),
        rows: &[],
        written: partial.as_deref(),
        interrupted: true,
    };
    found.tell(args, &best.platform.name)?;
    if let Some(path) = partial {
        errln!(
            "memwarden: the best platform so far is in {}",
            path.display()
        );
    }
    Err(Interrupted("the search was not completed").into())
}

fn partial_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    PathBuf::from(name)
}

/// What the calculation found.
struct Found<'a> {
    facts: &'a Facts,
    fitted: Option<&'a Calibrated>,
    rows: &'a [Row],
    /// The file with the fitted platform.
    written: Option<&'a Path>,
    interrupted: bool,
}

impl Found<'_> {
    /// Prints it.
    fn tell(&self, args: &Args, platform: &str) -> Result<()> {
        if !args.json {
            return print(&text(args, self));
        }
        let report = Report {
            platform,
            source: &self.facts.source,
            seed: args.seed,
            interrupted: self.interrupted,
            fit: self.fitted.map(|fitted| Fit {
                worst_before: fitted.worst_before,
                worst_now: fitted.worst_now,
                tried: fitted.tried,
                parameters: &fitted.parameters,
            }),
            cases: self.rows,
            beyond_tolerance: beyond(self.rows).collect(),
            output: self.written,
        };
        print(&serde_json::to_string_pretty(&report)?)
    }
}

/// The requested facts, or those of the platform's name (for a file, its stem).
fn facts(args: &Args) -> Result<Facts> {
    if let Some(asked) = &args.against {
        return Ok(Facts::find(asked)?);
    }
    let stem = Path::new(&args.platform).file_stem();
    let name = stem.and_then(|stem| stem.to_str()).unwrap_or_default();
    Facts::find(name).context("give --against")
}

fn fit(
    args: &Args,
    platform: &Platform,
    facts: &Facts,
    interrupt: &Interrupt,
) -> Result<End<Calibrated, Calibrated>> {
    let limits = Limits {
        within: args.within,
        tries: args.tries,
        seed: args.seed,
    };
    let (platform, facts) = (platform.clone(), facts.clone());
    let step = |so_far: &Calibrated| {
        let what = format!("platforms, worst {}", percent(so_far.worst_now));
        (so_far.tried, limits.tries, what)
    };
    aside(interrupt, step, move |so_far| {
        calibrate(&platform, &facts, limits, |best| {
            so_far(best.clone());
            true
        })
    })
}

/// The figures of all cases, or after a signal those of the cases that are done, and true.
fn compared(
    args: &Args,
    platform: &Platform,
    facts: &Facts,
    interrupt: &Interrupt,
) -> Result<(Vec<Compared>, bool)> {
    let all = facts.cases.len();
    let (platform, facts, seed) = (platform.clone(), facts.clone(), args.seed);
    let step = |done: &Vec<Vec<Compared>>| (done.len(), all, "cases".to_owned());
    let end = aside(interrupt, step, move |so_far| {
        compare(&platform, &facts, seed, |done| {
            so_far(done.to_vec());
            true
        })
    })?;
    Ok(match end {
        End::Done(compared) => (compared, false),
        End::Cut(done) => (done.unwrap_or_default().concat(), true),
    })
}

/// Calculates in a separate thread: a single case can take long, and a signal must still
/// end the program.
fn aside<S: Send + 'static, T: Send + 'static>(
    interrupt: &Interrupt,
    step: impl Fn(&S) -> (usize, usize, String),
    work: impl FnOnce(&mut dyn FnMut(S)) -> Result<Option<T>, PlatformError> + Send + 'static,
) -> Result<End<S, T>> {
    let (send, receive) = mpsc::channel();
    let thread = thread::spawn(move || {
        let mut so_far = |message| {
            // After a signal the receiver is gone and the program ends.
            let _ = send.send(Said::SoFar(message));
        };
        let found = work(&mut so_far);
        let _ = send.send(Said::Done(found));
    });
    let mut bar = Bar::new();
    let mut last = None;
    let found = loop {
        if interrupt.came() {
            bar.step(1, 1, "");
            return Ok(End::Cut(last));
        }
        match receive.recv_timeout(BETWEEN_LOOKS) {
            Ok(Said::SoFar(message)) => {
                let (done, all, what) = step(&message);
                // A full bar would disappear.
                if done < all {
                    bar.step(done, all, &what);
                }
                last = Some(message);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Ok(Said::Done(found)) => break Some(found),
            Err(RecvTimeoutError::Disconnected) => break None,
        }
    };
    bar.step(1, 1, "");
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
    match found {
        Some(found) => Ok(End::Done(found?.context("the calculation was stopped")?)),
        None => bail!("nothing was calculated"),
    }
}

/// Writes the fitted platform to a file that can be read again.
fn write(output: &Output, args: &Args, platform: &Platform, facts: &Facts) -> Result<()> {
    let mut platform = platform.clone();
    let to = folder(args.output.as_deref().unwrap_or(Path::new("")));
    let from = platform.folder().join("");
    let from = if from == Path::new("") {
        Path::new(".")
    } else {
        &from
    };
    // A memory file is searched for in the platform's directory.
    if platform.memory.name.ends_with(".toml") && from.canonicalize()? != to.canonicalize()? {
        let file = from.join(&platform.memory.name).canonicalize()?;
        platform.memory.name = file.to_string_lossy().into_owned();
    }
    let source = facts.source.replace(['\n', '\r'], " ");
    let text = format!(
        "# Fitted by `memwarden sim calibrate {}`\n# to {source}.\n{}",
        args.platform,
        platform.to_toml()
    );
    output
        .file()
        .write_all(text.as_bytes())
        .with_context(|| output.writing())
}

/// Fitted figures that differ too much.
fn beyond(rows: &[Row]) -> impl Iterator<Item = &Compared> {
    let compared = rows.iter().map(|row| &row.compared);
    compared.filter(|one| {
        let apart = one.difference.map_or(0.0, f64::abs);
        one.fitted && apart > TOLERANCE
    })
}

fn percent(share: f64) -> String {
    format!("{} %", number(100.0 * share, 1))
}

/// A difference with its unit.
fn apart(measure: Measure, difference: f64) -> String {
    let unit = if measure.is_share() { "points" } else { "%" };
    format!("{:+.1} {unit}", 100.0 * difference)
}

/// A figure with its significant decimals.
fn figure(measure: Measure, value: f64) -> String {
    number(value, if measure.is_share() { 3 } else { 2 })
}

/// A table of all figures, including those of the lab if there are runs of it.
fn figures(rows: &[Row], with_lab: bool) -> String {
    let mut headings = vec!["case", "figure", "published", "model", "difference"];
    if with_lab {
        headings.extend(["lab", "difference", "model to lab"]);
    }
    headings.push("is");
    let last = headings.len() - 1;
    let mut cells = table(&headings);
    for row in rows {
        let one = &row.compared;
        let of = |value: Option<f64>| value.map(|value| figure(one.measure, value));
        let to = |value: Option<f64>| value.map(|value| apart(one.measure, value));
        let mut line = vec![
            Some(one.case.clone()),
            Some(one.measure.word().to_owned()),
            of(one.published),
            of(Some(one.found)),
            to(one.difference),
        ];
        if with_lab {
            line.extend([of(row.lab), to(row.lab_difference), to(row.model_to_lab)]);
        }
        line.push(Some(
            if one.fitted { "fitted" } else { "predicted" }.to_owned(),
        ));
        cells.add_row(line.into_iter().map(Option::unwrap_or_default));
    }
    lines(cells, 2..last)
}

fn text(args: &Args, found: &Found) -> String {
    let Found {
        facts,
        fitted,
        rows,
        written,
        interrupted,
    } = *found;
    let mut text = String::new();
    if let Some(fitted) = fitted {
        let mut numbered = table(&["parameter", "least", "most", "before", "now"]);
        for one in &fitted.parameters {
            let numbers = [one.least, one.most, one.before, one.now];
            let cells = std::iter::once(one.path.clone());
            numbered.add_row(cells.chain(numbers.map(|number| number.to_string())));
        }
        text += &format!("{}\n\n", lines(numbered, 1..5));
    }
    let with_lab = args.measure.is_some() || !args.lab.is_empty();
    if !rows.is_empty() {
        text += &format!("{}\n\n", figures(rows, with_lab));
    }
    text += &format!("published: {}\n", facts.source);
    let worst = |one: &&Compared| one.difference.map_or(0.0, f64::abs);
    let all = rows
        .iter()
        .map(|row| &row.compared)
        .filter(|one| one.fitted);
    let now = all.max_by(|a, b| worst(a).total_cmp(&worst(b)));
    text += &match (fitted, now) {
        (Some(fitted), _) => format!(
            "worst fitted difference: {} before, {} now; platforms tried: {}",
            percent(fitted.worst_before),
            percent(fitted.worst_now),
            fitted.tried
        ),
        (None, Some(one)) => format!(
            "worst fitted difference: {}; nothing was changed",
            percent(worst(&one))
        ),
        (None, None) if interrupted => {
            "no case that can be fitted was calculated; nothing was changed".to_owned()
        }
        (None, None) => "no published figure can be fitted; nothing was changed".to_owned(),
    };
    for one in beyond(rows) {
        text += &format!(
            "\nMORE THAN {:.0} % OFF: {}, {}: {}",
            100.0 * TOLERANCE,
            one.case,
            one.measure.word(),
            apart(one.measure, one.difference.unwrap_or(f64::NAN))
        );
    }
    if let Some(path) = written {
        text += &format!("\n{}: the fitted platform", path.display());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_differ_in_points_and_the_rest_in_percent() {
        assert_eq!(apart(Measure::LatencyNs, -0.0619), "-6.2 %");
        assert_eq!(apart(Measure::MissShare, 0.013), "+1.3 points");
        assert_eq!(figure(Measure::LoadCpuShare, 0.78), "0.780");
    }

    #[test]
    fn what_is_fitted_and_far_off_is_told() {
        let one = |difference, fitted| Row {
            compared: Compared {
                case: "a".into(),
                measure: Measure::LatencyNs,
                published: Some(1.0),
                found: 1.0,
                difference: Some(difference),
                fitted,
            },
            lab: None,
            lab_difference: None,
            model_to_lab: None,
        };
        let all = [one(0.1, true), one(-0.11, true), one(0.5, false)];
        let told: Vec<_> = beyond(&all).collect();
        assert_eq!(told, [&all[1].compared]);
    }

    #[test]
    fn options_are_checked() {
        assert_eq!(within("0.02"), Ok(0.02));
        assert!(within("2").is_err() && within("NaN").is_err() && within("-1").is_err());
    }
}
