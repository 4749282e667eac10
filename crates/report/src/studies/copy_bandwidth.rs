// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copy bandwidth of all CPUs at once, by size.

use memwarden_run::studies::copy_bandwidth::{Case, Share, Summary, Thread};
use memwarden_run::title::operation as operation_text;
use memwarden_run::{Metric, title};

use super::copy::engine_text;
use crate::Table;
use crate::by_size::{self, texts};
use crate::number::{NOT_MEASURED, count, figure, interval, optional, optional_percent, percent};

pub(crate) const QUESTION: &str = "Every CPU copies at once between user and kernel memory, with its own instructions or \
    with the DMA channels. What is the total bandwidth by size, and which share does each channel get under each \
    policy?";

fn operations(summary: &Summary) -> Vec<&str> {
    texts(summary, |case| &case.operation)
}

fn engines(summary: &Summary) -> Vec<&str> {
    texts(summary, |case| &case.engine)
}

fn sizes(summary: &Summary) -> Vec<u64> {
    by_size::sizes(summary.cases.iter().map(|case| case.size_bytes))
}

fn find<'a>(summary: &'a Summary, operation: &str, engine: &str, bytes: u64) -> Option<&'a Case> {
    summary.cases.iter().find(|case| {
        case.operation == operation && case.engine == engine && case.size_bytes == bytes
    })
}

fn total(case: &Case) -> Option<f64> {
    case.total.as_ref()?.median
}

pub(crate) fn finding(summary: &Summary) -> Option<String> {
    let last = *sizes(summary).last()?;
    let operation = *operations(summary).last()?;
    let parts: Vec<String> = engines(summary)
        .iter()
        .filter_map(|engine| {
            let rate = total(find(summary, operation, engine, last)?)?;
            Some(format!("{} MB/s by {}", figure(rate), engine_text(engine)))
        })
        .collect();
    if parts.is_empty() {
        return None;
    }
    let mut text = format!(
        "All CPUs together copied, in pieces of {} {}, {}",
        title::size(last),
        operation_text(operation),
        parts.join(", ")
    );
    let share = find(summary, operation, "dma-priority", last).and_then(|c| c.high_share?);
    if let Some(share) = share {
        text += &format!(
            "; under dma-priority the high channels copied {} of it",
            percent(share)
        );
    }
    Some(text + ".")
}

pub(crate) fn tables(summary: &Summary) -> Vec<Table> {
    let operations = operations(summary);
    let totals = operations.iter().map(|one| totals(summary, one));
    let threads = operations.iter().map(|one| threads(summary, one));
    let shares = operations.iter().map(|one| shares(summary, one));
    totals
        .chain(threads)
        .chain(shares)
        .filter(|table| !table.rows.is_empty())
        .collect()
}

fn totals(summary: &Summary, operation: &str) -> Table {
    let mut table = Table::new(format!("All CPUs, {}", operation_text(operation)))
        .words("Size")
        .words("By")
        .figures("total", "MB/s")
        .figures("95 % interval", "MB/s")
        .figures("slowest", "MB/s")
        .figures("fastest", "MB/s")
        .figures("high channels", "of the bytes");
    let missing = Metric::default();
    for size in sizes(summary) {
        for engine in engines(summary) {
            let Some(case) = find(summary, operation, engine, size) else {
                continue;
            };
            let Case {
                name: _,
                guard: (),
                operation: _,
                engine,
                size_bytes,
                // In the notes.
                operations: _,
                engine_share: _,
                total,
                channel,
                // In tables of their own.
                channels: _,
                channel_shares: _,
                high_share,
            } = case;
            let total = total.as_ref().unwrap_or(&missing);
            let each = channel.as_ref().unwrap_or(&missing);
            let share = high_share.flatten().map(percent);
            table.row(vec![
                title::size(*size_bytes),
                engine.clone(),
                optional(total.median),
                interval(total.median_ci95),
                optional(each.min),
                optional(each.max),
                share.unwrap_or_else(|| NOT_MEASURED.into()),
            ]);
        }
    }
    // A single run has no interval, and only dma-priority has high channels.
    table.drop_columns_of(NOT_MEASURED);
    table.caption(
        "The total is the sum of the threads' rates; slowest and fastest are single threads'. Medians over the runs.",
    )
}

/// Each thread at the largest size.
fn threads(summary: &Summary, operation: &str) -> Table {
    let last = sizes(summary).last().copied().unwrap_or(0);
    let title = format!(
        "Each thread, {}, {}",
        operation_text(operation),
        title::size(last)
    );
    let mut table = Table::new(title)
        .words("By")
        .figures("CPU", "")
        .figures("channel", "")
        .words("Priority")
        .figures("rate", "MB/s");
    for engine in engines(summary) {
        let case = find(summary, operation, engine, last);
        for one in case.into_iter().flat_map(|case| &case.channels) {
            let Thread {
                cpu,
                channel,
                high,
                mib_s,
            } = one;
            table.row(vec![
                engine.into(),
                count(Some((*cpu).into())),
                channel.map_or_else(|| "-".into(), |channel| count(Some(channel.into()))),
                if *high { "high" } else { "-" }.into(),
                optional(*mib_s),
            ]);
        }
    }
    table.drop_columns_of("-");
    table
}

/// Each channel's share at the largest size.
fn shares(summary: &Summary, operation: &str) -> Table {
    let last = sizes(summary).last().copied().unwrap_or(0);
    let title = format!(
        "Each channel, {}, {}",
        operation_text(operation),
        title::size(last)
    );
    let mut table = Table::new(title)
        .words("By")
        .figures("channel", "")
        .words("Priority")
        .figures("share", "of the engine's bytes");
    for engine in engines(summary) {
        let case = find(summary, operation, engine, last);
        let all = case.and_then(|case| case.channel_shares.as_ref());
        for one in all.into_iter().flatten() {
            let Share {
                channel,
                high,
                share,
            } = one;
            table.row(vec![
                engine.into(),
                count(Some((*channel).into())),
                if *high { "high" } else { "-" }.into(),
                optional_percent(*share),
            ]);
        }
    }
    table.drop_columns_of("-");
    table.caption("From the channels' counters.")
}

#[cfg(feature = "html")]
pub(crate) use charts::figures;

#[cfg(feature = "html")]
mod charts {
    use memwarden_run::Recorded;
    use memwarden_run::studies::copy_bandwidth::Summary;

    use super::{engines, find, operation_text, operations, sizes};
    use crate::generic::file_name;
    use crate::plot::{Axis, CI95, Chart, Point};
    use crate::{Figure, by_size};

    /// The quantity of a chart.
    #[derive(Clone, Copy)]
    enum Shown {
        Total,
        Thread,
    }

    pub(crate) fn figures(summary: &Summary, _: &Recorded) -> Vec<Figure> {
        let mut figures = Vec::new();
        for (shown, name, how) in [
            (Shown::Total, "total", "The sum of all threads' rates."),
            (
                Shown::Thread,
                "thread",
                "The median of the single threads' rates.",
            ),
        ] {
            for operation in operations(summary) {
                if let Some(chart) = chart(summary, operation, shown) {
                    let file = format!("{name}-{}", file_name(operation));
                    figures.push(Figure::new(&file, how, chart));
                }
            }
        }
        figures
    }

    fn chart(summary: &Summary, operation: &str, shown: Shown) -> Option<Chart> {
        let point = |engine: &str, size: u64| {
            let case = find(summary, operation, engine, size)?;
            let (metric, interval) = match shown {
                Shown::Total => {
                    let total = case.total.as_ref()?;
                    (total, total.median_ci95)
                }
                Shown::Thread => {
                    let each = case.channel.as_ref()?;
                    (each, each.min.zip(each.max).map(|(low, high)| [low, high]))
                }
            };
            Some(Point {
                x: size as f64,
                y: metric.median?,
                interval,
            })
        };
        let lines = engines(summary).into_iter().map(|engine| {
            let sizes = sizes(summary).into_iter();
            let points = sizes.filter_map(|size| point(engine, size)).collect();
            (engine.to_owned(), points)
        });
        let (what, whiskers) = match shown {
            Shown::Total => ("All CPUs together", CI95),
            Shown::Thread => ("Each CPU's thread", "slowest to fastest thread"),
        };
        let title = format!("{what}, {}, by size", operation_text(operation));
        let y = Axis::new("bandwidth", "MB/s");
        by_size::chart(title, y, whiskers, lines).map(Chart::Xy)
    }
}
