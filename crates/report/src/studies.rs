// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pages of the studies; each is a file with the name of its types in [`memwarden_run::studies`].

mod copy;
mod copy_bandwidth;
mod copy_breakeven;
mod copy_latency;
mod copy_pollution;
mod copy_trace;
mod guard_bench;
pub(crate) mod interfere;
mod mmap;
mod mmap_reclaim;
mod mymem;
mod mymem_counter;
mod mymem_mistakes;
mod mymem_throughput;
mod plan;
mod realtime;

#[cfg(feature = "html")]
use memwarden_run::Recorded;
use memwarden_run::title::printable_line;
use memwarden_run::{Summary, Whole, studies as of};

#[cfg(feature = "html")]
use crate::Figure;
use crate::{Table, generic};

/// The page of a study.
struct Page<W: Whole> {
    /// The value of `experiment` in its run folders.
    name: &'static str,
    /// The page's heading.
    title: &'static str,
    /// What the experiment asks, in a sentence or two.
    question: &'static str,
    /// The result in one sentence; none if too little was measured.
    finding: fn(&Summary<W>) -> Option<String>,
    /// The tables, from the typed summary and the summary as recorded.
    tables: fn(&Summary<W>, &Summary) -> Vec<Table>,
    /// The charts.
    #[cfg(feature = "html")]
    figures: fn(&Summary<W>, &Recorded) -> Vec<Figure>,
}

/// A [`Page`] of any study. Each method returns nothing for a summary that does not have the study's types.
trait OfStudy: Sync {
    fn name(&self) -> &'static str;
    fn title(&self) -> &'static str;
    fn question(&self) -> &'static str;
    /// Reason why a summary does not have the study's types.
    fn fault(&self, summary: &Summary) -> Option<String>;
    fn finding(&self, summary: &Summary) -> Option<String>;
    fn tables(&self, summary: &Summary) -> Option<Vec<Table>>;
    #[cfg(feature = "html")]
    fn figures(&self, recorded: &Recorded) -> Option<Vec<Figure>>;
}

impl<W: Whole> OfStudy for Page<W> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn title(&self) -> &'static str {
        self.title
    }

    fn question(&self) -> &'static str {
        self.question
    }

    fn fault(&self, summary: &Summary) -> Option<String> {
        summary.typed::<W>().err().map(|error| error.to_string())
    }

    fn finding(&self, summary: &Summary) -> Option<String> {
        (self.finding)(&summary.typed().ok()?)
    }

    fn tables(&self, summary: &Summary) -> Option<Vec<Table>> {
        Some((self.tables)(&summary.typed().ok()?, summary))
    }

    #[cfg(feature = "html")]
    fn figures(&self, recorded: &Recorded) -> Option<Vec<Figure>> {
        Some((self.figures)(&recorded.summary.typed().ok()?, recorded))
    }
}

/// The page of a study, from the modules with its name.
macro_rules! page {
    ($study:ident, $title:literal) => {
        &Page {
            name: of::$study::NAME,
            title: $title,
            question: $study::QUESTION,
            finding: $study::finding,
            tables: |summary, _| $study::tables(summary),
            #[cfg(feature = "html")]
            figures: $study::figures,
        }
    };
}

/// All pages.
const PAGES: [&dyn OfStudy; 14] = [
    page!(interfere, "Interference between cores"),
    page!(realtime, "Deadlines beside a load"),
    page!(plan, "From a deadline to budgets"),
    &Page {
        name: of::guard_bench::NAME,
        title: "The guard, measured",
        question: guard_bench::QUESTION,
        finding: guard_bench::finding,
        tables: |_: &of::guard_bench::Summary, recorded| guard_bench::tables(recorded),
        #[cfg(feature = "html")]
        figures: guard_bench::figures,
    },
    page!(mmap, "The cost of a mapping"),
    page!(mmap_reclaim, "Reclaim of pages in use"),
    page!(mymem_throughput, "Transfers of the memory devices"),
    page!(mymem_counter, "Updates lost on a shared counter"),
    page!(mymem_mistakes, "Mistakes with a memory device"),
    page!(copy_bandwidth, "Bandwidth of copies by CPU and by DMA"),
    page!(copy_breakeven, "The size from which DMA copies pay"),
    page!(copy_latency, "Latency of copies by CPU and by DMA"),
    page!(copy_pollution, "What copies do to the caches of others"),
    page!(copy_trace, "Copies between user and kernel memory"),
];

fn page_of(experiment: &str) -> Option<&'static dyn OfStudy> {
    PAGES.into_iter().find(|page| page.name() == experiment)
}

/// The heading of an experiment's page.
pub fn title(experiment: &str) -> String {
    page_of(experiment).map_or_else(
        || format!("Experiment {experiment}"),
        |page| page.title().into(),
    )
}

/// What the experiment asks, in a sentence or two.
pub fn question(experiment: &str) -> &'static str {
    page_of(experiment).map_or("", |page| page.question())
}

/// Reason why a run is not shown on its study's page.
pub(crate) fn fault(summary: &Summary) -> Option<String> {
    page_of(&summary.experiment)?.fault(summary)
}

/// The result in one sentence, without characters that control a terminal.
pub fn finding(summary: &Summary) -> String {
    let found = page_of(&summary.experiment)
        .and_then(|page| page.finding(summary))
        .or_else(|| generic::finding(summary))
        .unwrap_or_else(|| "The run measured no case.".into());
    printable_line(&found)
}

/// The figures.
pub fn tables(summary: &Summary) -> Vec<Table> {
    page_of(&summary.experiment)
        .and_then(|page| page.tables(summary))
        .filter(|tables| !tables.is_empty())
        .unwrap_or_else(|| generic::tables(summary))
}

/// The charts of a run.
#[cfg(feature = "html")]
pub fn figures(recorded: &Recorded) -> Vec<Figure> {
    page_of(&recorded.summary.experiment)
        .and_then(|page| page.figures(recorded))
        .filter(|figures| !figures.is_empty())
        .unwrap_or_else(|| generic::figures(&recorded.summary))
}
