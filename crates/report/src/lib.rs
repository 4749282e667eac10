// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports: run folders as text and pages.
//!
//! [`finding`] gives the one-sentence result, [`tables`] the figures; with the feature `html`, [`render`] adds
//! `report.html` and `plots/*.svg` to the folder. The page of a study is in `studies/`, under the study's name;
//! `generic.rs` makes the page of any other run.

mod by_size;
pub mod compare;
mod error;
mod generic;
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
mod studies;
mod table;

pub use error::Error;
#[cfg(feature = "html")]
pub use page::{render, side_by_side};
#[cfg(feature = "html")]
pub use raster::png_of_plots;
#[cfg(feature = "html")]
pub use studies::figures;
pub use studies::{finding, question, tables, title};
pub use table::{Column, Table};

/// A chart with its place in the report.
#[cfg(feature = "html")]
#[derive(Clone, Debug)]
pub struct Figure {
    /// Name of its file in `plots/`, without the extension.
    pub name: String,
    /// A sentence that explains how to read it.
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
