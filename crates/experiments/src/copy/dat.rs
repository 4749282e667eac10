// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes a run folder in the classic layouts: the tab-separated files of earlier copy micro-benchmarks.
//!
//! | experiment | files |
//! | --- | --- |
//! | latency | `micro-benchmark_OPERATION_X.dat`, a line a copy; `micro-benchmark_OPERATION_X_synth.dat`, a line a size |
//! | bandwidth | `ENGINE/measures_OPERATION.dat`, a line a thread, and a line with the total after each size |
//! | pollution | `measure_X.dat`, a line a run; `synthesis_X.dat`, a line an application |
//!
//! X is the engine and the load (`cpu_idle`, `dma-shared_heavy`); for pollution, the system and the copy (`ideal`,
//! `cpu_from_224`, `dma_from_to_16`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use memwarden_run::studies::{copy_bandwidth, copy_latency, copy_pollution};
use memwarden_run::{Metric, Recorded, Sample, Summary, Whole};

use super::bandwidth;
use crate::Error;

/// File names with their contents.
pub type Files = BTreeMap<PathBuf, String>;

/// Writes the files of the run folder `run` to `directory`, which is created if missing; returns their number.
///
/// # Errors
/// When the run has no such layout, can't be read, or a file can't be written.
pub fn write(run: &Path, directory: &Path) -> Result<usize, Error> {
    let files = files(&Recorded::read(run)?)?;
    for (name, text) in &files {
        let path = directory.join(name);
        let folder = path.parent().unwrap_or(directory);
        std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(&path, text))
            .map_err(|error| {
                Error::BadInput(format!("--dat: writing {}: {error}", path.display()))
            })?;
    }
    Ok(files.len())
}

/// The files of a run.
///
/// # Errors
/// When the run has no such layout.
pub fn files(run: &Recorded) -> Result<Files, Error> {
    match run.summary.experiment.as_str() {
        copy_latency::NAME => Ok(of_latency(run, &typed(run)?)),
        copy_bandwidth::NAME => Ok(of_bandwidth(run, &typed(run)?)),
        copy_pollution::NAME => Ok(of_pollution(run, &typed(run)?)),
        other => Err(Error::BadInput(format!(
            "--dat: there is no classic layout of {other}"
        ))),
    }
}

fn typed<W: Whole>(run: &Recorded) -> Result<Summary<W>, Error> {
    let summary = run.summary.typed();
    summary.map_err(|error| Error::BadInput(format!("--dat: {error}")))
}

/// The operation as it appears in a file name.
fn file_word(operation: &str) -> String {
    operation.replace('+', "_")
}

/// The value in whole nanoseconds, as measured.
fn whole(value: f64) -> u64 {
    value.round() as u64
}

/// The samples of one metric by case.
fn by_case<'a>(run: &'a Recorded, metric: &str) -> BTreeMap<&'a str, Vec<&'a Sample>> {
    let mut samples: BTreeMap<&str, Vec<&Sample>> = BTreeMap::new();
    for sample in run.samples.iter().filter(|s| s.metric == metric) {
        samples.entry(&sample.case).or_default().push(sample);
    }
    samples
}

/// The columns `before`, `after` and `elapsed` of a time sample.
fn clock(sample: &Sample, base_ns: u64) -> Option<[u64; 3]> {
    let elapsed = whole(sample.value?);
    let before = base_ns + sample.t_ns?;
    Some([before, before + elapsed, elapsed])
}

fn of_latency(run: &Recorded, summary: &copy_latency::Summary) -> Files {
    let base = summary.whole.clock_base_ns;
    let mut files = Files::new();
    let mut all = by_case(run, "time_ns");
    for case in &summary.cases {
        let Some(samples) = all.remove(case.name.as_str()) else {
            continue;
        };
        let stem = format!(
            "micro-benchmark_{}_{}_{}",
            file_word(&case.operation),
            case.engine,
            case.load
        );
        let each = files.entry(format!("{stem}.dat").into()).or_default();
        for sample in samples {
            let Some([before, after, elapsed]) = clock(sample, base) else {
                continue;
            };
            let cpu = sample.cpu.unwrap_or(0);
            *each += &format!("{cpu}\t{}\t{before}\t{after}\t{elapsed}\n", case.size_bytes);
        }
        let Some(time) = &case.time else {
            continue;
        };
        let (Some(min), Some(max), Some(mean), Some(median)) =
            (time.min, time.max, time.mean, time.median)
        else {
            continue;
        };
        // One sample has no variance.
        let variance = number_or_null(time.stdev.map(|stdev| stdev * stdev), 4);
        let synth = files.entry(format!("{stem}_synth.dat").into());
        *synth.or_default() += &format!(
            "{}\t{}\t{}\t{mean:.4}\t{variance}\t{median:.4}\n",
            case.size_bytes,
            whole(min),
            whole(max)
        );
    }
    files
}

fn of_bandwidth(run: &Recorded, summary: &copy_bandwidth::Summary) -> Files {
    let base = summary.whole.clock_base_ns;
    let mut files = Files::new();
    let mut all = by_case(run, "elapsed_ns");
    for case in &summary.cases {
        let Some(samples) = all.remove(case.name.as_str()) else {
            continue;
        };
        let name =
            Path::new(&case.engine).join(format!("measures_{}.dat", file_word(&case.operation)));
        let file = files.entry(name).or_default();
        let operations = case.operations;
        let rows = samples.iter();
        let repeats = rows.map(|s| s.repeat).max().map_or(0, |last| last + 1);
        for repeat in 0..repeats {
            let mut total = 0.0;
            for sample in samples.iter().filter(|s| s.repeat == repeat) {
                let Some([before, after, elapsed]) = clock(sample, base) else {
                    continue;
                };
                let rate = bandwidth::mib_s(case.size_bytes, operations, elapsed);
                total += rate;
                let channel = channel(run, sample);
                *file += &format!(
                    "{channel}\t{}\t{operations}\t{before}\t{after}\t{elapsed}\t{}\n",
                    case.size_bytes,
                    number_or_null(Some(rate), 6)
                );
            }
            *file += &format!("total_band= {}\n", number_or_null(Some(total), 6));
        }
    }
    files
}

/// The thread's channel; the CPU if no single channel made its copies, as in the classic files.
fn channel(run: &Recorded, sample: &Sample) -> u64 {
    let same = |other: &&Sample| {
        other.metric == "channel"
            && other.case == sample.case
            && other.repeat == sample.repeat
            && other.cpu == sample.cpu
    };
    let found = run.samples.iter().find(same).and_then(|other| other.value);
    found.map_or(u64::from(sample.cpu.unwrap_or(0)), whole)
}

fn of_pollution(run: &Recorded, summary: &copy_pollution::Summary) -> Files {
    let base = summary.whole.clock_base_ns;
    let mut files = Files::new();
    let mut all = by_case(run, "time_ns");
    for case in &summary.cases {
        let Some(samples) = all.remove(case.name.as_str()) else {
            continue;
        };
        let test = &case.application;
        let system = &case.system;
        let x = match &case.pair {
            Some(pair) => format!("{system}_{}", file_word(pair).replace(':', "_")),
            None => system.clone(),
        };
        let counted = |metric: &str| {
            let values = run
                .samples
                .iter()
                .filter(|s| s.case == case.name && s.metric == metric);
            values.map(|s| s.value).collect::<Vec<_>>()
        };
        let (references, misses) = (counted("cache_references"), counted("cache_misses"));
        let each = files.entry(format!("measure_{x}.dat").into()).or_default();
        for (number, sample) in samples.iter().enumerate() {
            let Some([before, after, elapsed]) = clock(sample, base) else {
                continue;
            };
            let of = |all: &[Option<f64>]| all.get(number).copied().flatten();
            let (references, misses) = (of(&references), of(&misses));
            let percent = references
                .zip(misses)
                .map(|(all, missed)| missed / all * 100.0);
            *each += &format!(
                "{test}\t{before}\t{after}\t{elapsed}\t{}\t{}\t{}\n",
                number_or_null(references, 0),
                number_or_null(misses, 0),
                number_or_null(percent, 6)
            );
        }
        let mean = |metric: &Option<Metric>| metric.as_ref().and_then(|metric| metric.mean);
        let Some(time) = &case.victim else {
            continue;
        };
        let synthesis = files.entry(format!("synthesis_{x}.dat").into());
        *synthesis.or_default() += &format!(
            "{test}\t{}\t{}\t{}\t{}\t{}\n",
            time.samples,
            number_or_null(time.mean.map(|ns| ns / 1000.0), 4),
            number_or_null(time.max.map(|ns| (ns / 1000.0).round()), 0),
            number_or_null(mean(&case.references), 4),
            number_or_null(mean(&case.miss_share).map(|share| share * 100.0), 6)
        );
    }
    files
}

/// A value that could not be measured is `null`, never 0.
fn number_or_null(value: Option<f64>, decimals: usize) -> String {
    match value.filter(|value| value.is_finite()) {
        Some(value) => format!("{value:.decimals$}"),
        None => "null".into(),
    }
}

#[cfg(test)]
mod tests {
    use memwarden_run::{Case, Figure, Run};
    use serde_json::json;

    use super::*;

    fn recorded(experiment: &str, base_ns: u64) -> Recorded {
        let mut summary: Summary = Summary::new(experiment, "native");
        let base = Figure::Other(json!(base_ns));
        summary.whole.insert("clock_base_ns".into(), base);
        Recorded {
            directory: PathBuf::new(),
            run: Run::new(experiment, "native"),
            summary,
            samples: Vec::new(),
        }
    }

    fn text(files: &Files, name: &str) -> String {
        let known: Vec<_> = files.keys().collect();
        let text = files.get(Path::new(name));
        text.unwrap_or_else(|| panic!("{name}: not in {known:?}"))
            .clone()
    }

    #[test]
    fn latency_has_a_line_a_copy_and_a_line_a_size() {
        let mut run = recorded("copy-latency", 2_740_081_346_000);
        let name = "from, cpu, 64 bytes";
        let times = [108.0, 96.0, 99.0];
        for (number, (ns, t_ns)) in (0..).zip(times.into_iter().zip([85, 300, 500])) {
            run.samples.push(
                Sample::new(name, number, "copy", "time_ns", "ns", ns)
                    .on_cpu(3)
                    .at_ns(t_ns),
            );
        }
        run.summary.cases.push(
            Case::new(name)
                .with("operation", "from")
                .with("engine", "cpu")
                .with("load", "idle")
                .with("size_bytes", 64)
                .with_metric("time", Metric::from_samples("time_ns", &times)),
        );
        let files = files(&run).unwrap();
        assert_eq!(files.len(), 2);
        assert_eq!(
            text(&files, "micro-benchmark_from_cpu_idle.dat"),
            "3\t64\t2740081346085\t2740081346193\t108\n\
             3\t64\t2740081346300\t2740081346396\t96\n\
             3\t64\t2740081346500\t2740081346599\t99\n"
        );
        assert_eq!(
            text(&files, "micro-benchmark_from_cpu_idle_synth.dat"),
            "64\t96\t108\t101.0000\t39.0000\t99.0000\n"
        );
    }

    #[test]
    fn bandwidth_has_a_line_a_channel_and_the_total() {
        let mut run = recorded("copy-bandwidth", 1_384_270_020_290_328_000);
        let name = "from+to, dma-exclusive, 1024 bytes";
        for (cpu, channel, elapsed) in [
            (0, Some(0.0), 108_743.0),
            (1, Some(5.0), 217_486.0),
            (2, None, 217_486.0),
        ] {
            let sample = |metric, unit, value: Option<f64>| {
                Sample::new(name, 0, "channel", metric, unit, value)
                    .on_cpu(cpu)
                    .at_ns(601)
            };
            run.samples.push(sample("elapsed_ns", "ns", Some(elapsed)));
            run.samples.push(sample("channel", "number", channel));
        }
        run.summary.cases.push(
            Case::new(name)
                .with("operation", "from+to")
                .with("engine", "dma-exclusive")
                .with("size_bytes", 1024)
                .with("operations", 300),
        );
        assert_eq!(
            text(&files(&run).unwrap(), "dma-exclusive/measures_from_to.dat"),
            "0\t1024\t300\t1384270020290328601\t1384270020290437344\t108743\t2694.138933\n\
             5\t1024\t300\t1384270020290328601\t1384270020290546087\t217486\t1347.069467\n\
             2\t1024\t300\t1384270020290328601\t1384270020290546087\t217486\t1347.069467\n\
             total_band= 5388.277866\n"
        );
    }

    #[test]
    fn a_rate_without_a_time_is_null() {
        let mut run = recorded("copy-bandwidth", 7);
        let name = "to, cpu, 1 byte";
        let sample = Sample::new(name, 0, "channel", "elapsed_ns", "ns", 0.0);
        run.samples.push(sample.on_cpu(0).at_ns(1));
        run.summary.cases.push(
            Case::new(name)
                .with("operation", "to")
                .with("engine", "cpu")
                .with("size_bytes", 1)
                .with("operations", 1),
        );
        assert_eq!(
            text(&files(&run).unwrap(), "cpu/measures_to.dat"),
            "0\t1\t1\t8\t8\t0\tnull\ntotal_band= null\n"
        );
    }

    #[test]
    fn pollution_has_a_line_a_run_and_null_for_what_was_not_counted() {
        let mut run = recorded("copy-pollution", 55_698_518_000);
        for (name, system, pair, counted) in [
            ("qsort_small, ideal", "ideal", None, true),
            (
                "qsort_small, dma, from+to:16",
                "dma",
                Some("from+to:16"),
                false,
            ),
        ] {
            let sample = |metric, unit, value: Option<f64>| {
                Sample::new(name, 0, "victim", metric, unit, value)
                    .on_cpu(1)
                    .at_ns(635)
            };
            let cache = |value: f64| counted.then_some(value);
            run.samples.extend([
                sample("time_ns", "ns", Some(4_238_957.0)),
                sample("cache_references", "events", cache(157_283.0)),
                sample("cache_misses", "events", cache(982.0)),
            ]);
            let metric = |name: &str, value: f64| {
                if counted || name == "time_ns" {
                    Metric::from_samples(name, &[value])
                } else {
                    Metric::unmeasured(name, "no PMU")
                }
            };
            run.summary.cases.push(
                Case::new(name)
                    .with("application", "qsort_small")
                    .with("system", system)
                    .with("pair", pair)
                    .with_metric("victim", metric("time_ns", 4_238_957.0))
                    .with_metric("references", metric("cache_references_events", 157_283.0))
                    .with_metric("miss_share", metric("miss_share", 982.0 / 157_283.0)),
            );
        }
        let files = files(&run).unwrap();
        assert_eq!(files.len(), 4);
        assert_eq!(
            text(&files, "measure_ideal.dat"),
            "qsort_small\t55698518635\t55702757592\t4238957\t157283\t982\t0.624352\n"
        );
        assert_eq!(
            text(&files, "synthesis_ideal.dat"),
            "qsort_small\t1\t4238.9570\t4239\t157283.0000\t0.624352\n"
        );
        assert_eq!(
            text(&files, "measure_dma_from_to_16.dat"),
            "qsort_small\t55698518635\t55702757592\t4238957\tnull\tnull\tnull\n"
        );
        assert_eq!(
            text(&files, "synthesis_dma_from_to_16.dat"),
            "qsort_small\t1\t4238.9570\t4239\tnull\tnull\n"
        );
    }

    #[test]
    fn another_experiment_has_no_such_layout() {
        let message = files(&recorded("interfere", 0)).unwrap_err().to_string();
        assert_eq!(message, "--dat: there is no classic layout of interfere");
    }
}
