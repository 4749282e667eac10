// SPDX-License-Identifier: MIT OR Apache-2.0
//! The run folder: the only interface between measurements and everything that reads them.
//!
//! An experiment fills a [`Run`] (what ran, where, how), appends [`Sample`]s during the measurement, and finishes with
//! a [`Summary`]:
//!
//! ```no_run
//! use memwarden_run::{Case, Existing, Metric, Run, RunFolder, Sample, Summary};
//! # fn main() -> Result<(), memwarden_run::Error> {
//! let mut folder = RunFolder::create(None, Run::new("interfere", "native"), Existing::Refuse)?;
//! folder.append(&Sample::new("solo", 0, "victim", "latency_ns", "ns", 184.95).on_cpu(0).at_ns(1_000_000))?;
//! let mut summary: Summary = Summary::new("interfere", "native");
//! summary.cases.push(Case::new("solo").with_metric("victim", Metric::from_samples("latency_ns", &[184.95])));
//! let path = folder.finish(&summary)?;
//! # Ok(()) }
//! ```
//!
//! A reader opens the folder with [`Recorded::read`]. This crate does not depend on the target of a run. The figures of
//! a study have a type in [`studies`], which its experiment fills and its report reads.

mod error;
mod folder;
mod record;
mod sample;
pub mod schema;
pub mod statistics;
pub mod studies;
mod summary;
pub mod title;

pub use error::Error;
pub use folder::{Existing, Partial, Recorded, RunFolder, check_place, default_directory};
pub use record::{Cache, Host, LabFacts, Run, command_line, now_rfc3339, set_git_revision};
pub use sample::{COLUMNS, Sample, Series, read_samples};
pub use statistics::{Metric, Ratio};
pub use summary::{Aggressor, Case, Figure, Figures, GuardSettings, Summary, Whole};
