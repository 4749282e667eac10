// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pages and plots are well formed, complete and self-contained.
#![cfg(feature = "html")]

mod saved;

use std::fs;
use std::path::{Path, PathBuf};

use memwarden_report::plot::{Bar, Chart, Layout};
use memwarden_report::{figures, png_of_plots, render, side_by_side};
use memwarden_run::Recorded;
use saved::{RUNS, data};
use tempfile::TempDir;

/// A copy of a saved run.
fn copy(name: &str, into: &TempDir) -> PathBuf {
    let from = data(name);
    let to = into.path().join(name);
    fs::create_dir(&to).unwrap();
    for file in ["run.json", "summary.json", "samples.csv"] {
        fs::copy(from.join(file), to.join(file)).unwrap();
    }
    to
}

fn parse(text: &str) -> roxmltree::Document<'_> {
    let text = text.strip_prefix("<!DOCTYPE html>\n").unwrap_or(text);
    roxmltree::Document::parse(text).unwrap()
}

/// Checks that nothing is fetched: no external addresses except the XML namespaces, and no script.
fn read(directory: &Path) -> Recorded {
    Recorded::read(directory).unwrap()
}

fn check_alone(text: &str) {
    let without_names = text.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
    for forbidden in [
        "http:", "https:", "src=", "@import", "url(", "<script", "<link", "<iframe", "file:",
    ] {
        assert!(!without_names.contains(forbidden), "{forbidden} in a page");
    }
}

#[test]
fn pages_are_well_formed_and_self_contained() {
    let temp = tempfile::tempdir().unwrap();
    for name in RUNS {
        let directory = copy(name, &temp);
        let page = render(&read(&directory)).unwrap();
        let text = fs::read_to_string(page).unwrap();
        check_alone(&text);
        let page = parse(&text);
        let all = |tag: &str| {
            page.descendants()
                .filter(|n| n.has_tag_name(tag))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            all("title")
                .iter()
                .filter(|n| n.parent().unwrap().has_tag_name("head"))
                .count(),
            1
        );
        let finding = all("p")
            .into_iter()
            .find(|n| n.attribute("class") == Some("finding"))
            .unwrap();
        assert!(finding.text().unwrap().ends_with('.'));
        assert!(
            !all("svg").is_empty() && all("svg").len() % 2 == 0,
            "each plot is drawn wide and narrow"
        );
        assert!(!all("table").is_empty());
        // Every link of a page has its target.
        for link in all("a").iter().filter_map(|n| n.attribute("href")) {
            assert!(directory.join(link).is_file(), "{link}");
        }
    }
}

/// Print breaks no number, gives a wide table a landscape sheet, and keeps a table's heading with it.
#[test]
fn a_wide_table_has_a_wide_sheet_in_print() {
    let temp = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(render(&read(&copy("mmap", &temp))).unwrap()).unwrap();
    assert!(
        text.contains("@page wide{size:A4 landscape") && text.contains(".tables.wide{page:wide}")
    );
    assert!(!text.contains("td,th{overflow-wrap:anywhere}"));
    let page = parse(&text);
    let classed = |class: &str| {
        page.descendants()
            .filter(|n| n.attribute("class") == Some(class))
            .count()
    };
    assert!(classed("table wide") > 0 && classed("table") > 0);
    assert_eq!((classed("tables wide"), classed("tables")), (1, 0));
    for section in page
        .descendants()
        .filter(|n| n.attribute("class") == Some("table wide"))
    {
        let columns = section
            .descendants()
            .filter(|n| n.attribute("scope") == Some("col"))
            .count();
        assert!(columns > 11 && section.descendants().any(|n| n.has_tag_name("h3")));
    }
}

#[test]
fn plots_are_complete_pictures() {
    let temp = tempfile::tempdir().unwrap();
    for name in RUNS {
        let directory = copy(name, &temp);
        render(&read(&directory)).unwrap();
        for entry in fs::read_dir(directory.join("plots")).unwrap() {
            let text = fs::read_to_string(entry.unwrap().path()).unwrap();
            check_alone(&text);
            assert!(text.contains("prefers-color-scheme:dark"));
            let svg = parse(&text);
            let number = |v: &str| v.parse::<f64>().unwrap_or_else(|_| panic!("{v} in {name}"));
            let size: Vec<f64> = svg
                .root_element()
                .attribute("viewBox")
                .unwrap()
                .split(' ')
                .map(number)
                .collect();
            for node in svg.descendants() {
                for place in [
                    "x", "y", "x1", "y1", "x2", "y2", "cx", "cy", "width", "height",
                ] {
                    let value = node.attribute(place).map(number);
                    assert!(
                        value.is_none_or(|v| v.is_finite() && v <= size[2].max(size[3])),
                        "{node:?}"
                    );
                }
            }
        }
    }
}

/// Whatever is not labelled in its place is in a legend: lines, bars and error bars have names.
#[test]
fn every_mark_has_a_name() {
    let temp = tempfile::tempdir().unwrap();
    for run in RUNS {
        for figure in figures(&Recorded::read(&copy(run, &temp)).unwrap()) {
            let (names, intervals, whiskers): (Vec<&str>, bool, &str) = match &figure.chart {
                Chart::Bars(chart) => {
                    let bars = || chart.groups.iter().flat_map(|group| &group.bars);
                    let name = |bar: &Bar| chart.series[bar.series].0.as_str();
                    let some = bars().any(|bar| bar.interval.is_some());
                    (bars().map(name).collect(), some, chart.whiskers)
                }
                Chart::Xy(chart) => {
                    let mut points = chart.lines.iter().flat_map(|line| &line.points);
                    let some = points.any(|point| point.interval.is_some());
                    let names = chart.lines.iter().map(|line| line.name.as_str());
                    (names.collect(), some, chart.whiskers)
                }
                Chart::Histogram(chart) => {
                    let named = |colour| chart.series.iter().find(|(_, other)| *other == colour);
                    let names = chart
                        .panels
                        .iter()
                        .map(|panel| named(panel.colour).unwrap());
                    (names.map(|(name, _)| name.as_str()).collect(), false, "")
                }
            };
            let (name, chart) = (&figure.name, figure.chart.draw(Layout::Wide).standalone());
            assert!(!names.is_empty(), "{run}, {name}");
            for word in names.into_iter().chain(intervals.then_some(whiskers)) {
                assert!(!word.is_empty(), "{run}, {name}");
                let svg = parse(&chart);
                let mut words = svg.descendants().filter(|n| n.has_tag_name("text"));
                assert!(
                    words.any(|n| n.text() == Some(word)),
                    "{run}, {name}: {word}"
                );
            }
        }
    }
}

#[test]
fn hostile_names_stay_words() {
    let temp = tempfile::tempdir().unwrap();
    let directory = copy("other", &temp);
    let page = fs::read_to_string(render(&read(&directory)).unwrap()).unwrap();
    assert!(!page.contains("<script"));
    assert!(page.contains("&lt;script&gt;"));
    assert!(
        page.contains("memwarden weather --city &#x27;&lt;Reykjavik&gt;&#x27;"),
        "the command can be pasted"
    );
}

#[test]
fn rendering_again_gives_the_same_page() {
    let temp = tempfile::tempdir().unwrap();
    let directory = copy("bench-guard", &temp);
    let first = fs::read(render(&read(&directory)).unwrap()).unwrap();
    assert_eq!(fs::read(render(&read(&directory)).unwrap()).unwrap(), first);
}

/// A machine of 128 cores: 34 cases, half of them with a budget for each core.
#[test]
fn a_run_of_many_cores_has_a_small_page() {
    use memwarden_run::studies::interfere::{Case, Core, Summary};
    use memwarden_run::{Aggressor, GuardSettings, Metric};

    let temp = tempfile::tempdir().unwrap();
    let mut run = read(&copy("interfere", &temp));
    let mut summary = Summary::new("interfere", "native");
    let mut budgets = vec![Some(1000.0)];
    budgets.resize(128, Some(100.0));
    let guard = GuardSettings {
        budget_mib_s: budgets,
        best_effort: "none".into(),
        ..GuardSettings::default()
    };
    let core = |cpu: u32| Core {
        cpu,
        budget_events: Some(if cpu == 0 { 16_384 } else { 1638 }),
        periods: Some(2500),
        largest_period_events: Some(1600 + u64::from(cpu)),
        mean_period_events: Some(1500.25),
        periods_over_budget: Some(3),
        throttled_share: Some(0.75),
        held: Some(true),
        ..Core::default()
    };
    let counts = [1, 2, 4, 8, 16, 32, 64, 127];
    let kinds = ["bandwidth:read", "bandwidth:write"];
    let loads = kinds
        .iter()
        .flat_map(|kind| counts.map(|count| (*kind, count)));
    for guard in [None, Some(&guard)] {
        for (kind, count) in std::iter::once(("", 0)).chain(loads.clone()) {
            summary.cases.push(Case {
                name: format!("{kind} x{count}"),
                guard: guard.cloned(),
                victim: Some(Metric::from_samples("latency_ns", &[100.0, 101.0, 102.0])),
                cores: guard.map(|_| (0..128).map(core).collect()),
                slowdown: Some(1.5),
                aggressors: (0..count)
                    .map(|cpu| Aggressor {
                        cpu,
                        kind: kind.into(),
                        mib_s: Some(99.5),
                        ..Aggressor::default()
                    })
                    .collect(),
                ..Case::default()
            });
        }
    }
    run.summary = summary.untyped();
    let printed: usize = memwarden_report::tables(&run.summary)
        .iter()
        .map(|table| table.to_text(None).len())
        .sum();
    let page = fs::metadata(render(&run).unwrap()).unwrap().len();
    assert!(page < 1_000_000, "{page} bytes");
    assert!(printed < 100_000, "{printed} bytes");
}

#[test]
fn runs_beside_each_other_share_a_page() {
    let temp = tempfile::tempdir().unwrap();
    let runs = ["interfere", "realtime"].map(|name| read(&copy(name, &temp)));
    let page = temp.path().join("both.html");
    side_by_side(&runs, &page).unwrap();
    let text = fs::read_to_string(page).unwrap();
    check_alone(&text);
    parse(&text);
    assert!(text.contains("2 runs side by side"));
}

/// A victim's figure can be a latency in one run and a rate in another.
#[test]
fn figures_of_different_metrics_are_in_different_charts() {
    let temp = tempfile::tempdir().unwrap();
    let first = read(&copy("interfere", &temp));
    let mut second = first.clone();
    for case in &mut second.summary.cases {
        for figure in case.figures.values_mut() {
            if let memwarden_run::Figure::Metric(metric) = figure {
                metric.metric = "mib_s".into();
            }
        }
    }
    let page = temp.path().join("both.html");
    side_by_side(&[first, second], &page).unwrap();
    let text = fs::read_to_string(page).unwrap();
    let page = parse(&text);
    let drawings = page.descendants().filter(|n| n.has_tag_name("figure"));
    assert_eq!(drawings.count(), 2);
    for title in ["Median latency in each run", "Median bandwidth in each run"] {
        assert!(text.contains(title), "{title}");
    }
}

#[test]
fn the_deadline_is_drawn_at_the_deadline() {
    let temp = tempfile::tempdir().unwrap();
    let mut plan = read(&copy("plan", &temp));
    for (margin_us, expected) in [
        (0, &[(13.0, "deadline")][..]),
        (
            2000,
            &[(11.0, "deadline less the margin"), (13.0, "deadline")],
        ),
        (
            100,
            &[(12.9, "deadline less the margin"), (13.0, "deadline")],
        ),
    ] {
        let margin = memwarden_run::Figure::Other(margin_us.into());
        plan.summary.whole.insert("margin_us".into(), margin);
        let all = figures(&plan);
        let settings = all.iter().find(|f| f.name == "settings").unwrap();
        let Chart::Xy(chart) = &settings.chart else {
            panic!("settings are points");
        };
        let lines = chart.references.iter();
        let lines: Vec<_> = lines.map(|r| (r.value, r.label.as_str())).collect();
        assert_eq!(lines, expected);
        for layout in [Layout::Wide, Layout::Narrow] {
            let svg = settings.chart.draw(layout).standalone();
            let svg = parse(&svg);
            let words = || svg.descendants().filter(|n| n.has_tag_name("text"));
            let at = |label: &str| -> f64 {
                let word = words().find(|n| n.text() == Some(label)).unwrap();
                word.attribute("y").unwrap().parse().unwrap()
            };
            let mut ys: Vec<f64> = expected.iter().map(|(_, label)| at(label)).collect();
            ys.dedup_by(|a, b| (*a - *b).abs() < 12.0);
            assert_eq!(ys.len(), expected.len(), "labels overlap: {ys:?}");
        }
    }
}

/// With `rsvg-convert` there are PNG files; without it, one line tells how to install it.
#[test]
fn png_files_or_a_remedy() {
    let temp = tempfile::tempdir().unwrap();
    match png_of_plots(&copy("interfere", &temp)) {
        Ok(files) => {
            assert_eq!(files.len(), 5);
            assert!(
                files
                    .iter()
                    .all(|f| fs::read(f).unwrap().starts_with(b"\x89PNG"))
            );
        }
        Err(error) => assert!(
            error.to_string().contains("apt-get install librsvg2-bin"),
            "{error}"
        ),
    }
}
