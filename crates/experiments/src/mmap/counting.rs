// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts a walk's effect on caches and TLBs: by the machine's counters, or by a model that replays the accesses.
//!
//! The model runs after the walk, so that neither its time nor its memory affects what is measured. It uses the
//! addresses of the real mapping.

use memwarden_cachesim::geometry::PerfEvents;
use memwarden_cachesim::{Access, Counts, Geometry, Model, PageSize, platforms};
use memwarden_platform::counters::groups::{Groups, Reading, Times};
use memwarden_platform::units::size_text;
use memwarden_platform::{Root, cache, clock, counters, mapping, pmu};
use memwarden_run::studies::mmap::{CountedBy, Summary};
use memwarden_workloads::LINE_BYTES;
use memwarden_workloads::mapped::{self, Walk};

use super::config::{Config, Counters, Switch, THIS_MACHINE};
use crate::{Error, Interrupt};

/// Bytes of each load and store of the walk.
const WORD_BYTES: u64 = 8;

/// The source of the counters.
pub(super) enum Counter {
    Hardware(Groups),
    Model(Geometry),
}

impl Counter {
    /// Opens the requested source, or the available one; names it in the summary.
    pub(super) fn open(config: &Config, cpu: usize, summary: &mut Summary) -> Result<Self, Error> {
        let hardware = (config.counters != Counters::Model).then(|| Groups::open(cpu));
        match hardware {
            Some(Ok(groups)) => {
                tell_hardware(&groups, cpu, summary);
                Ok(Self::Hardware(groups))
            }
            Some(Err(error)) if config.counters == Counters::Hardware => Err(Error::BadInput(
                format!("--counters hw: {error}; --counters sim models them"),
            )),
            other => {
                if let Some(Err(error)) = other {
                    summary.note(format!("Counters are modelled, because {error}."));
                }
                let geometry = geometry(config, cpu, summary)?;
                Ok(Self::Model(geometry))
            }
        }
    }

    pub(super) fn start(&mut self) -> Result<Option<Times>, Error> {
        let Self::Hardware(groups) = self else {
            return Ok(None);
        };
        let times = groups.times()?;
        groups.start()?;
        Ok(Some(times))
    }

    pub(super) fn stop(&mut self, before: Option<&Times>) -> Result<Option<Reading>, Error> {
        match (self, before) {
            (Self::Hardware(groups), Some(before)) => Ok(Some(groups.stop(before)?)),
            _ => Ok(None),
        }
    }
}

fn tell_hardware(groups: &Groups, cpu: usize, summary: &mut Summary) {
    let found = counters::probe_on(&[[cpu].into_iter().collect()]).hardware_counters;
    summary.whole.counted_by = Some(CountedBy::Hardware);
    summary.whole.l1d_lines = pmu::l1d_misses_are_lines(&Root::system(), cpu);
    if summary.whole.l1d_lines {
        summary.note(
            "L1D load misses are all lines brought into the L1D, also for stores and prefetches: perf's event on this \
             processor counts those.",
        );
    }
    summary.whole.hardware_counters = found.map(|count| count as u64);
    if groups.user_only() {
        summary.note("The counters are those of user space only.");
    }
    for refused in groups.refused() {
        summary.note(format!(
            "{} is not supported here: {}.",
            refused.name, refused.reason
        ));
    }
}

/// The modelled geometry; the summary names it and what of it is assumed.
fn geometry(config: &Config, cpu: usize, summary: &mut Summary) -> Result<Geometry, Error> {
    let (mut geometry, assumed) = if config.platform == THIS_MACHINE {
        let of = Geometry::of_machine(&cache::of_cpu(&Root::system(), cpu)).map_err(|error| {
            Error::BadInput(format!(
                "--platform {THIS_MACHINE}: {error} ({})",
                platforms::names().join(", ")
            ))
        })?;
        (of.geometry, of.assumed)
    } else {
        (platforms::named(&config.platform)?, Vec::new())
    };
    if config.prefetcher == Switch::Off {
        geometry = geometry.without_prefetchers();
    }
    let text = text(&geometry, &config.platform);
    summary.note(format!(
        "L1D, L2, LLC and TLB counters are modelled, not measured: {text}. The model replays the walk's accesses, at \
         the mapping's addresses, after the walk; time and getrusage are those of the real walk."
    ));
    if let Some(note) = other_pages(mapping::page_bytes()) {
        summary.note(note);
    }
    if geometry.perf_events == PerfEvents::SandyBridge {
        summary.note(
            "L1D and DTLB misses are those of perf's events on that processor. L1D load misses are all lines brought \
             into the L1D, also for stores and prefetches; L1D store misses are modified lines that left it; DTLB misses \
             are page walks.",
        );
    }
    if !assumed.is_empty() {
        summary.note(format!(
            "The machine does not report all of its geometry; assumed: {}.",
            assumed.join("; ")
        ));
    }
    if config.model_outer < config.outer {
        let percent = config.model_outer as f64 / config.outer as f64 * 100.0;
        summary.note(format!(
            "The model simulated the first {} of {} outer steps of each walk ({percent:.2} %): its counts are of \
             those; compare its shares.",
            config.model_outer, config.outer
        ));
    }
    let whole = &mut summary.whole;
    whole.counted_by = Some(CountedBy::Model);
    whole.l1d_lines = geometry.perf_events == PerfEvents::SandyBridge;
    whole.platform = Some(config.platform.clone());
    whole.geometry_text = Some(text);
    whole.geometry = serde_json::to_value(&geometry).ok();
    whole.assumed = Some(assumed);
    Ok(geometry)
}

/// A note on the modelled TLB, whose small pages are 4 KiB, if this kernel's pages of `page_bytes` are larger.
fn other_pages(page_bytes: usize) -> Option<String> {
    (page_bytes > 1 << PageSize::Small.bits()).then(|| {
        format!(
            "The model's pages are 4 KiB, and those of this kernel {}: a TLB entry covers less in the model, which counts \
             more TLB misses than the machine has.",
            size_text(page_bytes as u64)
        )
    })
}

/// `this-machine (L1D 32 KiB 8 ways, ...; prefetcher off)`.
fn text(geometry: &Geometry, name: &str) -> String {
    let cache = |what: &str, one: &memwarden_cachesim::geometry::CacheGeometry| {
        format!("{what} {} {} ways", size_text(one.size_bytes), one.ways)
    };
    let mut parts = vec![cache("L1D", &geometry.l1d)];
    parts.extend(geometry.l2.as_ref().map(|l2| cache("L2", l2)));
    parts.push(cache("LLC", &geometry.llc));
    parts.push(format!("DTLB {} entries", geometry.dtlb.small.entries));
    let stlb = geometry.stlb.as_ref();
    parts.extend(stlb.map(|stlb| format!("STLB {}", stlb.small.entries)));
    let prefetcher = if geometry.prefetches() { "on" } else { "off" };
    format!("{name} ({}; prefetcher {prefetcher})", parts.join(", "))
}

/// The model's counts.
pub(super) struct Modelled {
    pub(super) counts: Counts,
    /// The events that perf's names stand for.
    pub(super) events: PerfEvents,
    /// Outer steps that were simulated.
    pub(super) steps: u64,
    pub(super) accesses: u64,
    /// CPU time of the simulation.
    pub(super) cpu_ns: u64,
}

/// Simulates the first accesses of the walk.
pub(super) fn model(
    geometry: &Geometry,
    walk: &Walk,
    most_steps: u64,
    base: u64,
    huge: bool,
    interrupt: &Interrupt,
) -> Result<Modelled, Error> {
    let mut model = Model::new(geometry)?;
    if huge {
        model.set_page_size(PageSize::Huge);
    }
    let walk = Walk {
        outer: walk.outer.min(most_steps),
        ..*walk
    };
    let told = |(line, what): (u64, mapped::Access)| match what {
        mapped::Access::Load => (line * LINE_BYTES as u64, Access::Load),
        mapped::Access::Store => (line * LINE_BYTES as u64, Access::Store),
    };
    let span: Vec<(u64, Access)> = (0..).zip(mapped::span()).map(told).collect();
    let begin_ns = clock::thread_cpu_ns();
    for place in walk.steps() {
        interrupt.check()?;
        let start = base + (place * LINE_BYTES) as u64;
        for _ in 0..walk.locality {
            if geometry.stride.is_none() {
                model.stream(start, WORD_BYTES, &span);
                continue;
            }
            for (line, (distance, access)) in span.iter().enumerate() {
                let instruction = mapped::instruction(line);
                model.access_by(instruction, start + distance, WORD_BYTES, *access);
            }
        }
    }
    let cpu_ns = clock::thread_cpu_ns() - begin_ns;
    Ok(Modelled {
        counts: model.counts(),
        events: geometry.perf_events,
        steps: walk.outer,
        accesses: walk.loads() + walk.stores(),
        cpu_ns,
    })
}

#[cfg(test)]
mod tests {
    use memwarden_cachesim::geometry::Stride;

    use super::*;
    use crate::mmap::config::Access as Order;

    fn counts(access: Order, locality: u64) -> Counts {
        let config = Config {
            size_bytes: 64 << 20,
            outer: 1 << 20,
            ..Config::default()
        };
        let geometry = platforms::named("i5-2467m").unwrap().without_prefetchers();
        let walk = config.walk(access, locality);
        let modelled = model(&geometry, &walk, 256, 1 << 30, false, &Interrupt::default()).unwrap();
        assert_eq!(modelled.steps, 256);
        assert_eq!(modelled.accesses, 256 * 512 * locality);
        modelled.counts
    }

    /// A span is as large as the L1D: each line misses once and then hits during the walks over the span.
    #[test]
    fn what_the_model_counts_of_a_walk_has_a_closed_form() {
        for locality in [2, 16] {
            let counts = counts(Order::Sequential, locality);
            assert_eq!(counts.l1d.loads, 256 * 448 * locality);
            assert_eq!(counts.l1d.stores, 256 * 64 * locality);
            assert_eq!(counts.l1d.load_misses, 256 * 448);
            assert_eq!(counts.l1d.store_misses, 256 * 64);
            // Eight pages a span.
            assert_eq!(counts.dtlb.load_misses, 256 * 8);
        }
    }

    /// Each load instruction of the loop is at a stride of eight lines, within a page.
    #[test]
    fn a_stride_prefetcher_observes_the_loops_instructions() {
        let plain = platforms::named("raspberry-pi-3")
            .unwrap()
            .without_prefetchers();
        let with_stride = Geometry {
            stride: Some(Stride::ip_based()),
            ..plain.clone()
        };
        let config = Config {
            size_bytes: 1 << 20,
            outer: 16,
            ..Config::default()
        };
        let walk = config.walk(Order::Sequential, 1);
        let [without, with] = [plain, with_stride].map(|geometry| {
            let told = model(&geometry, &walk, 16, 1 << 30, false, &Interrupt::default());
            told.unwrap().counts.l1d
        });
        assert_eq!(without.prefetches, 0);
        // 16 spans of 8 pages, each with 8 groups of 7 loads: the last group's stride leaves the page.
        assert!(with.prefetches > 16 * 8 * 6 * 7, "{with:?}");
        assert!(with.load_misses < without.load_misses / 4, "{with:?}");
    }

    #[test]
    fn pages_that_the_model_does_not_have_are_told() {
        assert_eq!(other_pages(4 << 10), None);
        let note = other_pages(16 << 10).unwrap();
        assert!(note.contains("those of this kernel 16 KiB"), "{note}");
    }

    #[test]
    fn random_places_cost_more_of_the_tlb() {
        let [random, in_order] = [Order::Random, Order::Sequential].map(|one| counts(one, 16));
        assert_eq!(random.l1d.loads, in_order.l1d.loads);
        assert!(random.dtlb.misses() > in_order.dtlb.misses());
    }
}
