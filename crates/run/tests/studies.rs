// SPDX-License-Identifier: MIT OR Apache-2.0
//! Figures that older runs lack have their defaults; figures of the wrong type are refused.

use memwarden_run::{Summary, Whole, studies};
use serde_json::json;

/// The smallest summary that matches its schema.
fn least(experiment: &str) -> Summary {
    let summary = json!({
        "schema": memwarden_run::schema::SUMMARY, "experiment": experiment, "target": "native",
        "cases": [{"name": "a case", "guard": null}], "notes": [],
    });
    serde_json::from_value(summary).unwrap()
}

fn takes_the_least<W: Whole>(experiment: &str) {
    let typed = least(experiment).typed::<W>();
    let typed = typed.unwrap_or_else(|error| panic!("{experiment}: {error}"));
    assert_eq!(typed.cases.len(), 1);
    let again = typed.untyped();
    assert_eq!(again.cases[0].name, "a case");
    assert_eq!(again.typed::<W>().unwrap(), typed, "{experiment}");
}

#[test]
fn a_run_that_lacks_every_figure_is_read() {
    takes_the_least::<studies::interfere::Whole>(studies::interfere::NAME);
    takes_the_least::<studies::realtime::Whole>(studies::realtime::NAME);
    takes_the_least::<studies::guard_bench::Whole>(studies::guard_bench::NAME);
    takes_the_least::<studies::mmap::Whole>(studies::mmap::NAME);
    takes_the_least::<studies::mmap_reclaim::Whole>(studies::mmap_reclaim::NAME);
    takes_the_least::<studies::mymem_throughput::Whole>(studies::mymem_throughput::NAME);
    takes_the_least::<studies::mymem_counter::Whole>(studies::mymem_counter::NAME);
    takes_the_least::<studies::copy_bandwidth::Whole>(studies::copy_bandwidth::NAME);
    takes_the_least::<studies::copy_breakeven::Whole>(studies::copy_breakeven::NAME);
    takes_the_least::<studies::copy_latency::Whole>(studies::copy_latency::NAME);
    takes_the_least::<studies::copy_pollution::Whole>(studies::copy_pollution::NAME);
    takes_the_least::<studies::copy_trace::Whole>(studies::copy_trace::NAME);
}

#[test]
fn a_figure_of_another_type_is_told_and_null_is_not_the_same_as_nothing() {
    let mut summary = least(studies::realtime::NAME);
    let case = &mut summary.cases[0];
    case.set("throttled_share", serde_json::Value::Null);
    let read = summary.typed::<studies::realtime::Whole>().unwrap();
    assert_eq!(read.cases[0].throttled_share, Some(None));
    summary.cases[0].set("misses", "many");
    let error = summary.typed::<studies::realtime::Whole>().unwrap_err();
    assert!(error.to_string().contains("\"many\""), "{error}");
}

#[test]
fn a_case_of_the_benchmark_is_known_by_its_figure() {
    use studies::guard_bench::{Figure, Reached, Whole};
    let mut summary = least(studies::guard_bench::NAME);
    summary.cases[0].set("figure", "boundaries");
    summary.cases[0].set("period_us", 500);
    summary.cases[0].set("reached", "no (compared)");
    let read = summary.typed::<Whole>().unwrap();
    let Some(Figure::Boundaries(boundaries)) = &read.cases[0].figure else {
        panic!("{read:?}");
    };
    assert_eq!((boundaries.period_us, boundaries.missed_share), (500, None));
    assert_eq!(read.cases[0].reached, Some(Reached::Compared));
    // An unknown or mismatched figure is an error, not a case without a figure.
    summary.cases[0].set("period_us", "half a millisecond");
    let error = summary.typed::<Whole>().unwrap_err().to_string();
    assert!(error.contains("half a millisecond"), "{error}");
    summary.cases[0].set("figure", "colour");
    let error = summary.typed::<Whole>().unwrap_err().to_string();
    assert!(error.contains("colour"), "{error}");
}

#[test]
fn what_a_memory_moved_has_to_fit_as_well() {
    let mut summary = least(studies::interfere::NAME);
    summary.cases[0].set("memory_gb_s", 1.5);
    summary.cases[0].set("memory_peak_share", 0.5);
    let read = summary.typed::<studies::interfere::Whole>().unwrap();
    assert_eq!(read.cases[0].traffic.as_ref().unwrap().memory_gb_s, 1.5);
    summary.cases[0].set("memory_peak_share", "half");
    assert!(summary.typed::<studies::interfere::Whole>().is_err());
}
