// SPDX-License-Identifier: MIT OR Apache-2.0
//! Time of a write and a read of each size on each device.

use memwarden_run::studies::mymem_throughput::{Case, Summary};
use memwarden_run::title;

use super::mymem::{listed, place};
use crate::Table;
use crate::by_size::{self, texts, with_times};
use crate::number::{counted, optional, time_text};

pub(crate) const QUESTION: &str = "Bytes are written to a memory device and read back. How long does a call take, by \
    size: on the device in C, on the one in Rust, and inside the kernel, without system calls?";

/// Both directions of a transfer.
const DIRECTIONS: [&str; 2] = ["write", "read"];

fn subjects(summary: &Summary) -> Vec<&str> {
    texts(summary, |case| &case.subject)
}

fn sizes(summary: &Summary) -> Vec<u64> {
    by_size::sizes(summary.cases.iter().map(|case| case.size_bytes))
}

fn find<'a>(summary: &'a Summary, subject: &str, direction: &str, bytes: u64) -> Option<&'a Case> {
    summary.cases.iter().find(|case| {
        case.subject == subject && case.direction == direction && case.size_bytes == bytes
    })
}

pub(crate) fn finding(summary: &Summary) -> Option<String> {
    let sizes = sizes(summary);
    let of_size = |size: u64| {
        let median = |subject: &str, direction: &str| {
            let case = find(summary, subject, direction, size)?;
            Some(time_text(case.time.as_ref()?.median?))
        };
        let one = |subject: &&str| {
            let (write, read) = (median(subject, "write")?, median(subject, "read")?);
            Some(format!("{write} and {read} {}", place(subject)))
        };
        let all: Vec<String> = subjects(summary).iter().filter_map(one).collect();
        (!all.is_empty()).then(|| listed(&all))
    };
    let (first, last) = (*sizes.first()?, *sizes.last()?);
    let mut text = format!(
        "To write and to read {} took {}",
        title::size(first),
        of_size(first)?
    );
    if last > first {
        text += &format!("; {} took {}", title::size(last), of_size(last)?);
    }
    Some(text + " (medians).")
}

pub(crate) fn tables(summary: &Summary) -> Vec<Table> {
    let tables = DIRECTIONS.map(|direction| table(summary, direction));
    tables.into_iter().filter(|t| !t.rows.is_empty()).collect()
}

fn table(summary: &Summary, direction: &str) -> Table {
    let cases = sizes(summary).into_iter().flat_map(|size| {
        let subjects = subjects(summary).into_iter();
        subjects.filter_map(move |subject| find(summary, subject, direction, size))
    });
    let shown = cases.map(|case| {
        let Case {
            name: _,
            guard: (),
            subject,
            direction: _,
            size_bytes,
            time,
            mb_s,
        } = case;
        (*size_bytes, subject, time, *mb_s)
    });
    let shown: Vec<_> = shown.collect();
    let trials = shown.iter().filter_map(|(_, _, time, _)| time.as_ref());
    let trials = trials.map(|time| time.samples).max().unwrap_or(0);
    let title = match direction {
        "write" => "Writing",
        _ => "Reading",
    };
    let rows = Table::of(title, shown)
        .words("Size", |(size, ..)| title::size(*size))
        .words("Device", |(_, subject, ..)| (*subject).clone());
    let table = with_times(rows, |(_, _, time, _)| time.as_ref())
        .figures("throughput", "MB/s", |(.., mb_s)| optional(*mb_s))
        .table();
    let trials = usize::try_from(trials).unwrap_or(usize::MAX);
    table.caption(format!(
        "One call each, {} of a size. Throughput is the size over the median; MB are 10^6 bytes.",
        counted(trials, "trial")
    ))
}

#[cfg(feature = "html")]
pub(crate) use charts::figures;

#[cfg(feature = "html")]
mod charts {
    use memwarden_run::Recorded;
    use memwarden_run::studies::mymem_throughput::Summary;

    use super::{DIRECTIONS, find, sizes, subjects};
    use crate::plot::{Axis, Chart, Point};
    use crate::{Figure, by_size};

    /// The quantity of a chart.
    #[derive(Clone, Copy)]
    enum Shown {
        Time,
        Throughput,
    }

    pub(crate) fn figures(summary: &Summary, recorded: &Recorded) -> Vec<Figure> {
        let how = "Medians. Both axes are logarithmic; devices are shifted slightly at each size.";
        let mut figures = Vec::new();
        for (shown, name) in [(Shown::Time, "time"), (Shown::Throughput, "throughput")] {
            for direction in DIRECTIONS {
                if let Some(chart) = chart(summary, recorded, direction, shown) {
                    figures.push(Figure::new(&format!("{direction}-{name}"), how, chart));
                }
            }
        }
        figures
    }

    fn chart(
        summary: &Summary,
        recorded: &Recorded,
        direction: &str,
        shown: Shown,
    ) -> Option<Chart> {
        let lines = subjects(summary).into_iter().map(|subject| {
            let points = points(summary, recorded, subject, direction, shown);
            (subject.to_owned(), points)
        });
        let (what, y) = match shown {
            Shown::Time => ("Time of a", Axis::new("time of a call", "us")),
            Shown::Throughput => ("Throughput of a", Axis::new("throughput", "MB/s")),
        };
        let title = format!("{what} {direction} by size");
        by_size::chart(title, y, by_size::SPREAD, lines).map(Chart::Xy)
    }

    fn points(
        summary: &Summary,
        recorded: &Recorded,
        subject: &str,
        direction: &str,
        shown: Shown,
    ) -> Vec<Point> {
        let sizes = sizes(summary);
        let of_size = |size: &u64| point(summary, recorded, subject, direction, *size, shown);
        sizes.iter().filter_map(of_size).collect()
    }

    fn point(
        summary: &Summary,
        recorded: &Recorded,
        subject: &str,
        direction: &str,
        size: u64,
        shown: Shown,
    ) -> Option<Point> {
        let case = find(summary, subject, direction, size)?;
        let median = case.time.as_ref()?.median?;
        let ends = by_size::spread(recorded, &case.name, "device");
        let bytes = size as f64;
        let place = |ns: f64| match shown {
            Shown::Time => ns / 1000.0,
            // One byte per nanosecond is one GB a second.
            Shown::Throughput => bytes / ns * 1000.0,
        };
        Some(Point {
            x: bytes,
            y: place(median),
            interval: ends.map(|ends| {
                let [a, b] = ends.map(place);
                [a.min(b), a.max(b)]
            }),
        })
    }
}
