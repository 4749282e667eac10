// SPDX-License-Identifier: MIT OR Apache-2.0
//! Time of one copy, by size.

use memwarden_run::statistics::FEWEST_FOR_RATIO;
use memwarden_run::studies::copy_latency::{Case, Summary};
use memwarden_run::studies::is_the_engines;
use memwarden_run::title;
use memwarden_run::title::operation as operation_text;

use super::copy::engine_text;
use crate::Table;
use crate::by_size::{self, distinct, texts, with_times};
use crate::number::{TOO_FEW_RUNS, optional, time_text};

pub(crate) const QUESTION: &str = "Bytes are copied between user memory and a region of kernel memory, by the CPU (as \
    copy_from_user() and copy_to_user() do it) and by a DMA engine. How long does one copy take, by size, and from \
    which size is the engine faster?";

/// Engine, operation and load of a line.
#[derive(Clone, Copy, PartialEq)]
struct Series<'a> {
    engine: &'a str,
    load: &'a str,
}

fn series(summary: &Summary) -> Vec<Series<'_>> {
    distinct(summary.cases.iter().map(|case| Series {
        engine: &case.engine,
        load: &case.load,
    }))
}

fn operations(summary: &Summary) -> Vec<&str> {
    texts(summary, |case| &case.operation)
}

fn loads(summary: &Summary) -> Vec<&str> {
    texts(summary, |case| &case.load)
}

fn engines(summary: &Summary) -> Vec<&str> {
    texts(summary, |case| &case.engine)
}

fn sizes(summary: &Summary) -> Vec<u64> {
    by_size::sizes(summary.cases.iter().map(|case| case.size_bytes))
}

fn find<'a>(
    summary: &'a Summary,
    operation: &str,
    series: Series<'_>,
    bytes: u64,
) -> Option<&'a Case> {
    summary.cases.iter().find(|case| {
        case.operation == operation
            && case.engine == series.engine
            && case.load == series.load
            && case.size_bytes == bytes
    })
}

/// For the first operation and load: the time at the largest size by each engine, and the size from which the best
/// engine wins. An engine wins where it made the copies and the intervals of the medians don't overlap, with as many
/// copies on each side as a ratio needs.
pub(crate) fn finding(summary: &Summary) -> Option<String> {
    let operation = *operations(summary).first()?;
    let load = *loads(summary).first()?;
    let sizes = sizes(summary);
    let case = |engine: &str, size: u64| find(summary, operation, Series { engine, load }, size);
    let time = |engine: &str, size: u64| case(engine, size)?.time.as_ref();
    let by_itself = |engine: &str, size: u64| {
        engine == "cpu" || is_the_engines(case(engine, size).and_then(|case| case.engine_share))
    };
    let median = |engine: &str, size: u64| time(engine, size)?.median;
    let last = *sizes.last()?;
    let engines = engines(summary);
    let parts: Vec<String> = engines
        .iter()
        .filter_map(|engine| {
            let ns = median(engine, last)?;
            let remark = match by_itself(engine, last) {
                true => "",
                false => " (the CPU copied a part)",
            };
            Some(format!(
                "{} by {}{remark}",
                time_text(ns),
                engine_text(engine)
            ))
        })
        .collect();
    if parts.is_empty() {
        return None;
    }
    let mut text = format!(
        "To copy {} {} took {}",
        title::size(last),
        operation_text(operation),
        parts.join(", ")
    );
    let best = engines
        .iter()
        .filter(|engine| **engine != "cpu")
        .filter_map(|engine| Some((*engine, median(engine, last)?)))
        .min_by(|a, b| {
            let shared = |engine: &str| !by_itself(engine, last);
            shared(a.0).cmp(&shared(b.0)).then(a.1.total_cmp(&b.1))
        });
    if let (Some((engine, _)), true) = (best, engines.contains(&"cpu")) {
        // From the largest size down, while the engine is faster.
        let few = |engine: &str, size: u64| {
            time(engine, size).is_none_or(|time| time.samples < FEWEST_FOR_RATIO as u64)
        };
        let wins = |size: &&u64| {
            let bounds = |engine: &str| {
                let time = time(engine, **size).filter(|_| !few(engine, **size))?;
                time.median_ci95
            };
            by_itself(engine, **size)
                && matches!((bounds(engine), bounds("cpu")), (Some([_, dma]), Some([cpu, _])) if dma < cpu)
        };
        text += &match sizes.iter().rev().take_while(wins).last() {
            Some(first) => format!("; {engine} is faster from {} on", title::size(*first)),
            None => {
                let few = few(engine, last) || few("cpu", last);
                let remark = if few { TOO_FEW_RUNS } else { "" };
                format!("; {engine} is not shown to be faster there{remark}")
            }
        };
    }
    Some(text + " (medians).")
}

pub(crate) fn tables(summary: &Summary) -> Vec<Table> {
    let tables = operations(summary);
    let tables = tables.iter().map(|operation| table(summary, operation));
    tables.filter(|table| !table.rows.is_empty()).collect()
}

fn table(summary: &Summary, operation: &str) -> Table {
    let cases = sizes(summary).into_iter().flat_map(|size| {
        let series = series(summary).into_iter();
        series.filter_map(move |series| find(summary, operation, series, size))
    });
    let shown = cases.map(|case| {
        let Case {
            name: _,
            guard: (),
            size_bytes,
            time,
            mib_s,
            // In the notes if below 1.
            engine_share: _,
            operation: _,
            engine,
            load,
        } = case;
        (*size_bytes, engine, load, time, *mib_s)
    });
    let shown: Vec<_> = shown.collect();
    let copies = shown.iter().filter_map(|(_, _, _, time, _)| time.as_ref());
    let copies = copies.map(|time| time.samples).max().unwrap_or(0);
    let rows = Table::of(format!("Copies {}", operation_text(operation)), shown)
        .words("Size", |(size, ..)| title::size(*size))
        .words("By", |(_, engine, ..)| (*engine).clone())
        .words("Load", |(_, _, load, ..)| (*load).clone());
    let mut table = with_times(rows, |(_, _, _, time, _)| time.as_ref())
        .figures("rate", "MB/s", |(.., mib_s)| optional(*mib_s))
        .table();
    table.drop_columns_of("idle");
    table.caption(format!(
        "Copies of each size: {copies}. The rate is the size over the median; MB are 2^20 bytes."
    ))
}

#[cfg(feature = "html")]
pub(crate) use charts::figures;

#[cfg(feature = "html")]
mod charts {
    use memwarden_run::Recorded;
    use memwarden_run::studies::copy_latency::Summary;

    use super::{Series, engines, find, loads, operation_text, operations, sizes};
    use crate::generic::file_name;
    use crate::plot::{Axis, Chart, Point};
    use crate::{Figure, by_size};

    /// Median or mean.
    #[derive(Clone, Copy)]
    enum Middle {
        Median,
        Mean,
    }

    /// One chart for each of median and mean, operation and load.
    pub(crate) fn figures(summary: &Summary, recorded: &Recorded) -> Vec<Figure> {
        let mut figures = Vec::new();
        for (middle, name) in [(Middle::Median, "median"), (Middle::Mean, "mean")] {
            for operation in operations(summary) {
                for load in loads(summary) {
                    let how = format!(
                        "The {name} of each size. Both axes are logarithmic; lines are shifted slightly at each size."
                    );
                    if let Some(chart) = chart(summary, recorded, operation, load, middle, name) {
                        let file = format!("{name}-{}-{load}", file_name(operation));
                        figures.push(Figure::new(&file, how, chart));
                    }
                }
            }
        }
        figures
    }

    fn chart(
        summary: &Summary,
        recorded: &Recorded,
        operation: &str,
        load: &str,
        middle: Middle,
        name: &str,
    ) -> Option<Chart> {
        let lines = engines(summary).into_iter().map(|engine| {
            let sizes = sizes(summary).into_iter();
            let series = Series { engine, load };
            let points =
                sizes.filter_map(|size| point(summary, recorded, operation, series, size, middle));
            (engine.to_owned(), points.collect())
        });
        let operation = operation_text(operation);
        let beside = match load {
            "idle" => String::new(),
            load => format!(", {load} load"),
        };
        let title = format!("Time of a copy {operation}, {name} by size{beside}");
        let y = Axis::new("time of a copy", "us");
        let whiskers = match middle {
            Middle::Median => by_size::SPREAD,
            Middle::Mean => "95 % interval (1.96 standard errors)",
        };
        by_size::chart(title, y, whiskers, lines).map(Chart::Xy)
    }

    /// The error bar always includes the point.
    fn point(
        summary: &Summary,
        recorded: &Recorded,
        operation: &str,
        series: Series<'_>,
        size: u64,
        middle: Middle,
    ) -> Option<Point> {
        let case = find(summary, operation, series, size)?;
        let time = case.time.as_ref()?;
        let at = match middle {
            Middle::Median => time.median,
            Middle::Mean => time.mean,
        };
        // The mean of times with a long tail can be above their 90th percentile.
        let ends = match middle {
            Middle::Median => by_size::spread(recorded, &case.name, "copy"),
            Middle::Mean => time.mean.zip(time.stdev).map(|(mean, deviation)| {
                let error = 1.96 * deviation / (time.samples as f64).sqrt();
                [mean - error, mean + error]
            }),
        };
        Some(Point {
            x: size as f64,
            y: at? / 1000.0,
            interval: ends.map(|ends| ends.map(|ns| ns / 1000.0)),
        })
    }
}

#[cfg(test)]
mod tests {
    use memwarden_run::Metric;

    use super::*;

    fn summary(shares: [f64; 2]) -> Summary {
        let mut summary = Summary::new("copy-latency", "native");
        for (size, share) in [4096, 4097].into_iter().zip(shares) {
            for (engine, share, ns) in [
                ("cpu", 0.0, 2000.0),
                ("dma-shared", share, 1000.0),
                ("dma-exclusive", 1.0, 3000.0),
            ] {
                summary.cases.push(Case {
                    size_bytes: size,
                    time: Some(Metric::from_samples("time_ns", &[ns; 5])),
                    engine_share: Some(share),
                    operation: "to".into(),
                    engine: engine.into(),
                    load: "idle".into(),
                    ..Case::default()
                });
            }
        }
        summary
    }

    #[test]
    fn what_the_cpu_copied_is_no_win_of_the_engine() {
        let said = |shares| finding(&summary(shares)).unwrap().replace('\u{a0}', " ");
        let times = |remark: &str| {
            format!(
                "To copy 4097 B to user memory took 2000 ns by the CPU, 1000 ns by dma-shared{remark}, 3000 ns by \
                 dma-exclusive; "
            )
        };
        let all = said([1.0, 1.0]);
        assert_eq!(
            all,
            times("") + "dma-shared is faster from 4 KiB on (medians)."
        );
        let one = said([0.5, 1.0]);
        assert_eq!(
            one,
            times("") + "dma-shared is faster from 4097 B on (medians)."
        );
        let none = said([1.0, 0.5]);
        assert_eq!(
            none,
            times(" (the CPU copied a part)")
                + "dma-exclusive is not shown to be faster there (medians)."
        );
    }
}
