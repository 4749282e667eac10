// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs side by side, and the ratio of two runs.

use memwarden_run::statistics::{FEWEST_FOR_RATIO, ratio_of_medians};
use memwarden_run::{Case, LabFacts, Ratio, Recorded};
use schemars::JsonSchema;
use serde::Serialize;

use crate::Table;
use crate::generic::metric_words;
use crate::number::{NOT_MEASURED, bytes, figure, optional_named};

/// One metric of one case in two runs.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Comparison {
    /// The case.
    pub case: String,
    /// Key of the metric object: `victim`.
    pub key: String,
    /// The metric: `latency_ns`.
    pub metric: String,
    /// Median in the first run.
    pub first: Option<f64>,
    /// Median in the second.
    pub second: Option<f64>,
    /// Number of raw samples of the first run's median, and of the second's; 0 if the folder lacks them.
    pub samples: [usize; 2],
    /// Second over first.
    #[serde(flatten)]
    pub ratio: Ratio,
}

impl Comparison {
    /// What the interval shows, or why there is none.
    fn verdict(&self) -> &'static str {
        match self.ratio.ci95 {
            Some([low, _]) if low > 1.0 => "higher",
            Some([_, high]) if high < 1.0 => "lower",
            Some(_) => "no difference shown",
            None if self.first.is_none() || self.second.is_none() => "not measured in both",
            None if self.first <= Some(0.0) => "no ratio to 0 or less",
            None if self.samples.contains(&0) => "no raw samples",
            None if self.samples.iter().min() < Some(&FEWEST_FOR_RATIO) => "fewer than 5 samples",
            None => "the first run's median may be 0",
        }
    }
}

/// Compares every metric that both runs have in a case of the same name: second over first, with confidence intervals
/// from the raw samples.
pub fn compare(first: &Recorded, second: &Recorded) -> Vec<Comparison> {
    let mut found = Vec::new();
    for case in &first.summary.cases {
        let Some(other) = second.summary.cases.iter().find(|c| c.name == case.name) else {
            continue;
        };
        for (key, metric) in case.metrics() {
            let Some(second_metric) = other.metric(key).filter(|m| m.metric == metric.metric)
            else {
                continue;
            };
            let a = first.samples_of(&case.name, key, metric);
            let b = second.samples_of(&case.name, key, second_metric);
            let medians = second_metric.median.zip(metric.median);
            let ratio = if metric.median <= Some(0.0) {
                Ratio::default()
            } else if a.len().min(b.len()) < FEWEST_FOR_RATIO {
                Ratio {
                    ratio: medians.map(|(b, a)| b / a).filter(|r| r.is_finite()),
                    ci95: None,
                }
            } else {
                ratio_of_medians(&b, &a)
            };
            found.push(Comparison {
                case: case.name.clone(),
                key: key.into(),
                metric: metric.metric.clone(),
                first: metric.median,
                second: second_metric.median,
                samples: [a.len(), b.len()],
                ratio,
            });
        }
    }
    found
}

/// A ratio with these decimals; as [`figure`] where they show too few digits or too many.
fn ratio_text(ratio: f64, decimals: usize) -> String {
    if (0.1..100.0).contains(&ratio) {
        format!("{ratio:.decimals$}")
    } else {
        figure(ratio)
    }
}

/// The comparison as a table.
pub fn compare_table(first: &Recorded, second: &Recorded) -> Table {
    let name = |run: &Recorded| run.directory.display().to_string();
    let mut table = Table::new(format!("{} over {}", name(second), name(first)))
        .words("Case")
        .words("Metric")
        .figures("first", "median")
        .figures("second", "median")
        .figures("ratio", "")
        .figures("95 % interval", "")
        .words("");
    for c in compare(first, second) {
        let cases: Vec<_> = first
            .summary
            .cases
            .iter()
            .filter(|case| case.name == c.case)
            .collect();
        let verdict = c.verdict();
        let interval = c.ratio.ci95.map_or_else(
            || NOT_MEASURED.into(),
            |ends| {
                let [low, high] = ends.map(|end| ratio_text(end, 3));
                format!("[{low}, {high}]")
            },
        );
        let ratio = c.ratio.ratio;
        let ratio = ratio.map_or_else(|| NOT_MEASURED.into(), |ratio| ratio_text(ratio, 2));
        let case = cases
            .first()
            .map(|case| case.title(&first.summary.experiment));
        table.row(vec![
            case.unwrap_or(c.case),
            metric_words(&cases, &c.key),
            optional_named(&c.metric, c.first),
            optional_named(&c.metric, c.second),
            ratio,
            interval,
            verdict.into(),
        ]);
    }
    table.caption(
        "Second over first; the intervals are bootstrapped from the raw samples of both runs, at least 5 of each. They contain \
         the spread within each run, not what differs between two runs of one command, such as the pages' places and other load.",
    )
}

/// Settings in which the runs differ, one column for each run; no rows if they don't differ.
pub fn differences_table(runs: &[Recorded]) -> Table {
    let mut table = Table::new("Where the runs differ").words("");
    for run in runs {
        table = table.words(run.directory.display().to_string());
    }
    let mut rows: Vec<(String, Vec<String>)> = Vec::new();
    let mut row = |name: &str, of: &dyn Fn(&Recorded) -> Option<String>| {
        let values = runs.iter().map(|run| of(run).unwrap_or_else(|| "-".into()));
        let values: Vec<String> = values.collect();
        let differ = values.iter().any(|value| *value != values[0]);
        if differ {
            rows.push((name.to_owned(), values));
        }
        differ
    };
    row("experiment", &|run| Some(run.run.experiment.clone()));
    let lab =
        |run: &Recorded, of: &dyn Fn(&LabFacts) -> Option<String>| of(run.run.lab.as_ref()?);
    let mut targets = Vec::new();
    for (name, plural, of) in [
        (
            "target",
            "targets",
            (|run| Some(run.run.target.clone())) as Of,
        ),
        ("lab: platform", "lab's platforms", |run| {
            run.run.lab.as_ref()?.more.get("platform").map(json_text)
        }),
        ("lab: clock", "lab's clocks", |run| {
            Some(run.run.lab.as_ref()?.clock_name().into())
        }),
    ] {
        if row(name, &of) {
            targets.push(plural);
        }
    }
    // A run outside the lab has no platform or clock of it.
    if targets.first() == Some(&"targets") {
        targets.truncate(1);
    }
    row("lab: machine", &|run| {
        lab(run, &|lab| Some(lab.machine.clone()))
    });
    row("lab: QEMU", &|run| {
        lab(run, &|lab| Some(lab.qemu_version.clone()))
    });
    row("lab: Linux", &|run| {
        lab(run, &|lab| Some(lab.kernel.clone()))
    });
    let platforms = variants(runs.iter().map(|run| run.run.platform.as_ref()));
    row("platform file", &|run| {
        let nth = platforms
            .iter()
            .position(|file| Some(*file) == run.run.platform.as_ref())?;
        Some(format!("variant {}", nth + 1))
    });
    row("CPU", &|run| run.run.host.cpu_model.clone());
    row("CPUs", &|run| Some(run.run.host.cores?.to_string()));
    row("memory", &|run| run.run.host.memory_bytes.map(bytes));
    row("governor", &|run| run.run.host.governor.clone());
    row("Linux", &|run| run.run.host.kernel.clone());
    row("memwarden", &|run| Some(run.run.version.clone()));
    row("revision", &|run| run.run.git_revision.clone());
    let keys = runs.iter().flat_map(|run| run.run.configuration.keys());
    let keys: std::collections::BTreeSet<&String> = keys.collect();
    for key in keys {
        row(key, &|run| run.run.configuration.get(key).map(json_text));
    }
    for (name, values) in rows {
        table.row(std::iter::once(name).chain(values).collect());
    }
    if targets.is_empty() {
        return table;
    }
    table.caption(format!(
        "The {} differ. Times on an emulated or a simulated machine do not predict times on another, nor on another clock.",
        targets.join(" and the ")
    ))
}

/// Fact of a run.
type Of = fn(&Recorded) -> Option<String>;

/// Each value once, in their order.
fn variants<T: PartialEq>(values: impl Iterator<Item = Option<T>>) -> Vec<T> {
    let mut all = Vec::new();
    for value in values.flatten() {
        if !all.contains(&value) {
            all.push(value);
        }
    }
    all
}

/// Medians of several runs, one column for each run.
pub fn side_by_side_table(runs: &[Recorded]) -> Table {
    let mut table = Table::new("Medians side by side")
        .words("Case")
        .words("Metric");
    for run in runs {
        table = table.figures(run.directory.display().to_string(), "");
    }
    // Two runs can have different metrics under one key: a victim's latency, another victim's rate.
    let mut rows: Vec<(String, String, String)> = Vec::new();
    for case in runs.iter().flat_map(|r| &r.summary.cases) {
        for (key, metric) in case.metrics() {
            let row = (case.name.clone(), key.to_owned(), metric.metric.clone());
            if !rows.contains(&row) {
                rows.push(row);
            }
        }
    }
    for (case, key, metric) in rows {
        let find = |run: &Recorded| {
            let mut cases = run.summary.cases.iter();
            let has = |c: &&Case| c.metric(&key).is_some_and(|m| m.metric == metric);
            cases.find(|c| c.name == case && has(c)).cloned()
        };
        let all: Vec<_> = runs.iter().map(find).collect();
        let metric = metric_words(&all.iter().flatten().collect::<Vec<_>>(), &key);
        let words = runs.iter().zip(&all).find_map(|(run, found)| {
            let found = found.as_ref()?;
            Some(found.title(&run.summary.experiment))
        });
        let mut row = vec![words.unwrap_or(case), metric];
        row.extend(all.iter().map(|c| {
            let metric = c.as_ref().and_then(|c| c.metric(&key));
            metric.map_or_else(|| "-".into(), |m| optional_named(&m.metric, m.median))
        }));
        table.row(row);
    }
    table
}

/// A setting as the tables show it.
pub(crate) fn json_text(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::String(text) => text.clone(),
        serde_json::Value::Null => "none".into(),
        serde_json::Value::Array(all) => all.iter().map(json_text).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}
