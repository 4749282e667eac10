// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports: what a run folder says, for people.
//!
//! [`finding`] is the one sentence, [`tables`] the figures; with the feature `html`, [`render`] adds `report.html` and
//! `plots/*.svg` to the folder. Each experiment that has more to show than a table of its figures has a file here
//! (`interfere.rs`, `realtime.rs`, `bench_guard.rs`, `mmap/`, `mymem/`, `copy/`); any other gets what `generic.rs` can tell about it.

mod bench_guard;
mod by_size;
pub mod compare;
mod copy;
mod error;
mod generic;
mod interfere;
mod mmap;
mod mymem;
pub mod notes;
pub mod number;
#[cfg(feature = "html")]
mod page;
#[cfg(feature = "parquet")]
pub mod parquet;
#[cfg(feature = "html")]
pub mod plot;
#[cfg(feature = "html")]
mod raster;
mod realtime;
mod table;

use memwarden_run::Summary;

pub use error::Error;
#[cfg(feature = "html")]
pub use page::{render, side_by_side};
#[cfg(feature = "html")]
pub use raster::png_of_plots;
pub use table::{Column, Table};

/// What came out, in one sentence.
pub fn finding(summary: &Summary) -> String {
    let sentence = match summary.experiment.as_str() {
        "interfere" => interfere::finding(summary),
        "realtime" => realtime::finding(summary),
        "bench-guard" => bench_guard::finding(summary),
        "mmap" => mmap::finding(summary),
        "mmap-reclaim" => mmap::reclaim::finding(summary),
        "mymem-throughput" => mymem::throughput::finding(summary),
        "mymem-counter" => mymem::counter::finding(summary),
        "copy-bandwidth" => copy::bandwidth::finding(summary),
        "copy-breakeven" => copy::breakeven::finding(summary),
        "copy-latency" => copy::latency::finding(summary),
        "copy-pollution" => copy::pollution::finding(summary),
        "copy-trace" => copy::trace::finding(summary),
        _ => None,
    };
    sentence
        .or_else(|| generic::finding(summary))
        .unwrap_or_else(|| "The run measured no case.".into())
}

/// The figures.
pub fn tables(summary: &Summary) -> Vec<Table> {
    let tables = match summary.experiment.as_str() {
        "interfere" => interfere::tables(summary),
        "realtime" => realtime::tables(summary),
        "bench-guard" => bench_guard::tables(summary),
        "mmap" => mmap::tables(summary),
        "mmap-reclaim" => mmap::reclaim::tables(summary),
        "mymem-throughput" => mymem::throughput::tables(summary),
        "mymem-counter" => mymem::counter::tables(summary),
        "copy-bandwidth" => copy::bandwidth::tables(summary),
        "copy-breakeven" => copy::breakeven::tables(summary),
        "copy-latency" => copy::latency::tables(summary),
        "copy-pollution" => copy::pollution::tables(summary),
        "copy-trace" => copy::trace::tables(summary),
        _ => Vec::new(),
    };
    if tables.is_empty() {
        generic::tables(summary)
    } else {
        tables
    }
}

/// What was run, in a sentence or two.
pub fn question(experiment: &str) -> &'static str {
    match experiment {
        "interfere" => interfere::QUESTION,
        "realtime" => realtime::QUESTION,
        "bench-guard" => bench_guard::QUESTION,
        "mmap" => mmap::QUESTION,
        "mmap-reclaim" => mmap::reclaim::QUESTION,
        "mymem-throughput" => mymem::throughput::QUESTION,
        "mymem-counter" => mymem::counter::QUESTION,
        "copy-bandwidth" => copy::bandwidth::QUESTION,
        "copy-breakeven" => copy::breakeven::QUESTION,
        "copy-latency" => copy::latency::QUESTION,
        "copy-pollution" => copy::pollution::QUESTION,
        "copy-trace" => copy::trace::QUESTION,
        _ => "",
    }
}

/// A chart with its place in the report.
#[cfg(feature = "html")]
#[derive(Clone, Debug)]
pub struct Figure {
    /// Name of its file in `plots/`, without the ending.
    pub name: String,
    /// A sentence on how to read it.
    pub caption: String,
    /// The chart.
    pub chart: plot::Chart,
}

#[cfg(feature = "html")]
impl Figure {
    fn new(name: &str, caption: impl Into<String>, chart: plot::Chart) -> Self {
        Self {
            name: name.into(),
            caption: caption.into(),
            chart,
        }
    }
}

/// The charts of a run.
#[cfg(feature = "html")]
pub fn figures(recorded: &memwarden_run::Recorded) -> Vec<Figure> {
    let figures = match recorded.summary.experiment.as_str() {
        "interfere" => interfere::figures(&recorded.summary),
        "realtime" => realtime::figures(recorded),
        "bench-guard" => bench_guard::figures(recorded),
        "mmap" => mmap::figures(&recorded.summary),
        "mmap-reclaim" => mmap::reclaim::figures(&recorded.summary),
        "mymem-throughput" => mymem::throughput::figures(recorded),
        "mymem-counter" => mymem::counter::figures(&recorded.summary),
        "copy-bandwidth" => copy::bandwidth::figures(&recorded.summary),
        "copy-breakeven" => copy::breakeven::figures(&recorded.summary),
        "copy-latency" => copy::latency::figures(recorded),
        "copy-pollution" => copy::pollution::figures(&recorded.summary),
        "copy-trace" => copy::trace::figures(&recorded.summary),
        _ => Vec::new(),
    };
    if figures.is_empty() {
        generic::figures(&recorded.summary)
    } else {
        figures
    }
}
