// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares the reports of saved runs with the expected text.

mod saved;

use memwarden_report::compare::{compare, compare_table, differences_table, side_by_side_table};
use memwarden_report::{Table, finding, notes, tables};
use memwarden_run::{Case, Figure, Metric, Recorded, Sample, Summary, Whole, statistics, studies};
use saved::{RUNS, data};
use serde_json::{Value, json};

fn saved(name: &str) -> Recorded {
    let mut recorded = Recorded::read(&data(name)).unwrap();
    recorded.directory = name.into();
    recorded
}

/// Compares with `tests/data/NAME.txt`.
fn expect(name: &str, found: &str) {
    let path = data(&format!("{name}.txt"));
    snapbox::assert_data_eq!(found, snapbox::Data::read_from(&path, None).raw());
}

#[test]
fn tables_findings_and_notes() {
    for name in RUNS {
        let run = saved(name);
        let mut text = format!("{}\n\n", finding(&run.summary));
        for table in tables(&run.summary) {
            text += &format!("{}\n", table.to_text(None));
        }
        text += &notes::of(&run.run, &run.summary).join("\n");
        expect(name, &format!("{text}\n"));
    }
}

/// True if `all` contains everything in `part`. An empty list matches anything.
fn says(all: &Value, part: &Value) -> bool {
    match (all, part) {
        (Value::Object(all), Value::Object(part)) => part.iter().all(|(key, value)| {
            *value == json!([]) || all.get(key).is_some_and(|other| says(other, value))
        }),
        (Value::Array(all), Value::Array(part)) => {
            all.len() == part.len() && all.iter().zip(part).all(|(all, part)| says(all, part))
        }
        (Value::Number(all), Value::Number(part)) => all.as_f64() == part.as_f64(),
        _ => all == part,
    }
}

/// Checks that every figure of a saved run fits the study's types and survives the round trip.
fn keeps_everything<W: Whole>(name: &str) {
    let summary = saved(name).summary;
    let typed = summary
        .typed::<W>()
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    let (found, expected) = (
        serde_json::to_value(&typed).unwrap(),
        serde_json::to_value(&summary).unwrap(),
    );
    assert!(says(&found, &expected), "{name}: {found:#}");
}

#[test]
fn saved_runs_are_of_their_studies_types() {
    keeps_everything::<studies::interfere::Whole>("interfere");
    keeps_everything::<studies::realtime::Whole>("realtime");
    keeps_everything::<studies::guard_bench::Whole>("bench-guard");
    keeps_everything::<studies::mmap::Whole>("mmap");
    keeps_everything::<studies::mmap_reclaim::Whole>("mmap-reclaim");
    keeps_everything::<studies::mymem_throughput::Whole>("mymem-throughput");
    keeps_everything::<studies::mymem_counter::Whole>("mymem-counter");
    keeps_everything::<studies::mymem_mistakes::Whole>("mymem-mistakes");
    keeps_everything::<studies::copy_latency::Whole>("copy-latency");
    keeps_everything::<studies::copy_bandwidth::Whole>("copy-bandwidth");
    keeps_everything::<studies::copy_pollution::Whole>("copy-pollution");
    keeps_everything::<studies::copy_breakeven::Whole>("copy-breakeven");
    keeps_everything::<studies::copy_trace::Whole>("copy-trace");
    keeps_everything::<studies::plan::Whole>("plan");
}

#[test]
fn a_summary_of_another_shape_is_shown_as_it_is_and_says_why() {
    let mut run = saved("realtime");
    run.summary.cases[0].set("misses", "many");
    let said = notes::of(&run.run, &run.summary).join("\n");
    assert!(
        said.contains("do not match this version's study realtime") && said.contains("\"many\""),
        "{said}"
    );
    assert_eq!(tables(&run.summary)[0].title, "The figures");
}

/// A saved run in which every measured time is 1.1 times as long.
fn slower(name: &str) -> Recorded {
    let mut run = with_times(name, |ns| ns * 1.1);
    run.directory = format!("{name}-slower").into();
    run
}

/// The saved run has three samples of each figure, too few to compare.
fn with_twice_as_many(mut run: Recorded) -> Recorded {
    let again = run.samples.clone();
    run.samples.extend(again);
    for metric in metrics(&mut run.summary) {
        metric.samples *= 2;
    }
    run
}

fn metrics(summary: &mut Summary) -> impl Iterator<Item = &mut Metric> {
    let cases = summary.cases.iter_mut();
    let figures = cases.flat_map(|case| case.figures.values_mut());
    figures.filter_map(|figure| match figure {
        Figure::Metric(metric) => Some(metric),
        Figure::Other(_) => None,
    })
}

/// A saved run with other times; the other medians are missing.
fn with_times(name: &str, of: fn(f64) -> f64) -> Recorded {
    let mut run = saved(name);
    for sample in run.samples.iter_mut().filter(|sample| sample.unit == "ns") {
        sample.value = sample.value.map(of);
    }
    for figure in run
        .summary
        .cases
        .iter_mut()
        .flat_map(|case| case.figures.values_mut())
    {
        if let Figure::Metric(metric) = figure {
            metric.median = metric
                .median
                .filter(|_| metric.metric.ends_with("_ns"))
                .map(of);
        }
    }
    run
}

#[test]
fn comparisons() {
    let [first, second] = [saved("interfere"), slower("interfere")].map(with_twice_as_many);
    let text = compare_table(&first, &second).to_text(None);
    expect(
        "compare",
        &format!(
            "{text}\n{}",
            side_by_side_table(&[first, second]).to_text(None)
        ),
    );
}

#[test]
fn what_differs_between_runs_is_listed_and_nothing_else() {
    let (mut first, second) = (saved("interfere"), saved("interfere"));
    assert!(
        differences_table(&[first.clone(), second.clone()])
            .rows
            .is_empty()
    );
    first.run.target = "sim:raspberry-pi-3".into();
    first.run.configuration.insert("repeat".into(), 7.into());
    let table = differences_table(&[first, second]);
    let names: Vec<&str> = table.rows.iter().map(|row| row[0].as_str()).collect();
    assert_eq!(names, ["target", "repeat"]);
    assert_eq!(table.rows[1][1], "7");
    assert!(table.caption.contains("The targets differ"));
}

#[test]
fn a_run_compared_with_itself_shows_no_difference() {
    let run = saved("interfere");
    let compared = compare(&run, &run);
    assert!(compared.len() >= run.summary.cases.len());
    assert!(
        compared
            .iter()
            .all(|c| c.ratio.ratio == Some(1.0) && !c.ratio.differs())
    );
}

#[test]
fn ten_percent_slower_is_seen_as_such() {
    let [first, second] = [saved("interfere"), slower("interfere")].map(with_twice_as_many);
    for c in compare(&first, &second) {
        let [low, high] = c.ratio.ci95.unwrap();
        assert!(low > 1.07 && high < 1.13 && c.ratio.differs(), "{c:?}");
    }
}

fn verdicts(first: &Recorded, second: &Recorded) -> Vec<String> {
    let rows = compare_table(first, second).rows;
    rows.into_iter().map(|mut row| row.pop().unwrap()).collect()
}

#[test]
fn few_samples_show_nothing() {
    let [mut first, mut second] = [saved("interfere"), slower("interfere")];
    for verdict in verdicts(&first, &second) {
        assert_eq!(verdict, "fewer than 5 samples");
    }
    [first, second] = [first, second].map(with_twice_as_many);
    for verdict in verdicts(&first, &second) {
        assert_eq!(verdict, "higher");
    }
    second.samples.clear();
    for verdict in verdicts(&first, &second) {
        assert_eq!(verdict, "no raw samples");
    }
}

#[test]
fn there_is_no_ratio_to_nothing_or_less() {
    let others: [fn(f64) -> f64; 2] = [|_| 0.0, |ns| -ns];
    for other in others {
        let first = with_times("interfere", other);
        let compared = compare(&first, &saved("interfere"));
        assert!(compared.iter().all(|c| c.ratio == Default::default()));
        let verdicts = verdicts(&first, &saved("interfere"));
        assert!(
            verdicts
                .iter()
                .all(|verdict| verdict == "no ratio to 0 or less")
        );
    }
}

/// Totals and the rates of the single threads are samples of one metric.
#[test]
fn the_samples_of_a_ratio_are_those_of_its_medians() {
    // Two of each total.
    let first = with_twice_as_many(with_twice_as_many(saved("copy-bandwidth")));
    let mut second = first.clone();
    for sample in second.samples.iter_mut().filter(|s| s.role == "all") {
        sample.value = sample.value.map(|rate| 2.0 * rate);
    }
    for case in &mut second.summary.cases {
        if let Some(Figure::Metric(total)) = case.figures.get_mut("total") {
            total.median = total.median.map(|rate| 2.0 * rate);
        }
    }
    let compared = compare(&first, &second);
    let of = |key: &str| compared.iter().filter(|c| c.key == key).collect::<Vec<_>>();
    assert_eq!((of("total").len(), of("channel").len()), (24, 24));
    for c in of("total") {
        assert_eq!(c.ratio.ratio, Some(2.0), "{c:?}");
        let [low, high] = c.ratio.ci95.unwrap();
        assert!(low <= 2.0 && high >= 2.0 && c.ratio.differs(), "{c:?}");
    }
    for c in of("channel") {
        assert_eq!(c.ratio.ratio, Some(1.0), "{c:?}");
    }
}

/// If the samples don't give the summary's median, there are no samples: their interval would be of other figures.
#[test]
fn raw_samples_give_the_number_and_the_median_of_the_summary() {
    let mut without = Vec::new();
    for name in RUNS {
        let run = saved(name);
        let (mut with, mut all) = (0, 0);
        for case in &run.summary.cases {
            for (key, metric) in case.metrics() {
                all += 1;
                let mut raw = run.samples_of(&case.name, key, metric);
                if raw.is_empty() {
                    continue;
                }
                with += 1;
                assert_eq!(
                    raw.len() as u64,
                    metric.samples,
                    "{name}: {}, {key}",
                    case.name
                );
                raw.sort_unstable_by(f64::total_cmp);
                let (raw, median) = (statistics::median(&raw), metric.median.unwrap());
                assert!(
                    (raw - median).abs() <= 1e-9 * median.abs(),
                    "{name}: {}, {key}",
                    case.name
                );
            }
        }
        if with < all {
            without.push(name);
        }
    }
    // Samples were left out when the run was saved; figures of the whole case; samples under another name; figures that
    // could not be measured.
    let expected = [
        "bench-guard",
        "mmap-reclaim",
        "mymem-counter",
        "copy-pollution",
        "copy-trace",
        "other",
    ];
    assert_eq!(without, expected);
}

/// A run with these samples of one metric.
fn run_of(samples: impl IntoIterator<Item = f64>) -> Recorded {
    let mut run = saved("other");
    let samples: Vec<f64> = samples.into_iter().collect();
    let case = Case::new("one").with_metric("rain_mm", Metric::from_samples("rain_mm", &samples));
    run.summary.cases = vec![case];
    let samples = (0..).zip(samples);
    let samples = samples.map(|(repeat, v)| Sample::new("one", repeat, "sky", "rain_mm", "mm", v));
    run.samples = samples.collect();
    run
}

#[test]
fn the_reason_for_a_missing_interval_is_the_right_one() {
    let first = run_of((0..31).map(|n| f64::from(u8::from(n >= 14))));
    let second = run_of([3.0; 30]);
    let row = |first: &Recorded, second: &Recorded| compare_table(first, second).rows[0].clone();
    let said = row(&first, &second);
    assert_eq!(
        said[4..],
        ["3.00", "n/a", "the first run's median may be 0"]
    );
    let few = row(&run_of([1.0; 4]), &second);
    assert_eq!(few[4..], ["3.00", "n/a", "fewer than 5 samples"]);
}

#[test]
fn no_ratio_is_shown_as_0_or_without_its_digits() {
    let large = run_of([1_000_001.0; 6]);
    let small = run_of([10.53; 6]);
    for (first, second, expected) in [
        (&large, &small, ["1.053e-5", "[1.053e-5, 1.053e-5]"]),
        (
            &small,
            &large,
            ["94\u{202f}967", "[94\u{202f}967, 94\u{202f}967]"],
        ),
        (&small, &run_of([0.5; 6]), ["0.04748", "[0.04748, 0.04748]"]),
        (&small, &small, ["1.00", "[1.000, 1.000]"]),
    ] {
        assert_eq!(compare_table(first, second).rows[0][4..6], expected);
    }
}

/// A victim's figure can be a latency in one run and a rate in another.
#[test]
fn figures_of_different_metrics_are_in_different_rows() {
    let first = saved("interfere");
    let mut second = first.clone();
    for metric in metrics(&mut second.summary) {
        metric.metric = "mib_s".into();
    }
    let cases = first.summary.cases.len();
    let table = side_by_side_table(&[first, second]);
    assert_eq!(table.rows.len(), 2 * cases);
    let alone: Vec<_> = table.rows.iter().filter(|row| row[0] == "alone").collect();
    assert_eq!(alone[0][1..], ["victim latency, ns", "186.8", "-"]);
    assert_eq!(alone[1][1..], ["victim bandwidth, MiB/s", "-", "186.8"]);
}

#[test]
fn machines_that_differ_are_listed_and_flagged() {
    let first = saved("interfere");
    let mut second = first.clone();
    let host = &mut second.run.host;
    host.cores = Some(64);
    host.governor = Some("powersave".into());
    host.memory_bytes = Some(1 << 36);
    second.run.git_revision = Some("0123456789ab".into());
    let lab = second.run.lab.as_mut().unwrap();
    lab.machine = "xlnx-zcu102".into();
    lab.kernel = "6.13".into();
    lab.qemu_version = "QEMU emulator version 9.0.0".into();
    let names = |table: &Table| {
        table
            .rows
            .iter()
            .map(|row| row[0].clone())
            .collect::<Vec<_>>()
    };
    let runs = [first.clone(), second.clone()];
    let table = differences_table(&runs);
    let expected = [
        "lab: machine",
        "lab: QEMU",
        "lab: Linux",
        "CPUs",
        "memory",
        "governor",
        "revision",
    ];
    assert_eq!(names(&table), expected);
    assert_eq!(table.rows[3][1..], ["4", "64"]);
    assert_eq!(table.rows[5][1..], ["-", "powersave"]);
    assert_eq!(table.caption, "");
    let mut native = first.clone();
    native.run.target = "native".into();
    native.run.lab = None;
    let caption = differences_table(&[first.clone(), native]).caption;
    assert!(caption.starts_with("The targets differ. "), "{caption}");
    // Another platform or clock of the lab is another target.
    for (platform, clock, row, caption) in [
        (
            "xeon-w3530",
            "counted",
            "lab: platform",
            "The lab's platforms differ. ",
        ),
        (
            "raspberry-pi-3",
            "free",
            "lab: clock",
            "The lab's clocks differ. ",
        ),
        ("raspberry-pi-3", "parallel", "", ""),
    ] {
        let mut other = first.clone();
        let lab = other.run.lab.as_mut().unwrap();
        lab.more.insert("platform".into(), platform.into());
        lab.clock = clock.into();
        let table = differences_table(&[first.clone(), other]);
        assert_eq!(names(&table).join(""), row);
        assert_eq!(
            table.caption.is_empty(),
            caption.is_empty(),
            "{}",
            table.caption
        );
        assert!(table.caption.starts_with(caption), "{}", table.caption);
    }
}

#[test]
fn other_numbers_of_a_simulated_platform_are_listed() {
    let with = |mshrs: u32| {
        let mut run = saved("plan");
        run.run.platform = Some(json!({"machine": {"core": {"mshrs": mshrs}}}));
        run
    };
    let table = differences_table(&[with(2), with(3), with(2)]);
    assert_eq!(
        table.rows,
        [["platform file", "variant 1", "variant 2", "variant 1"]]
    );
    assert!(differences_table(&[with(2), with(2)]).rows.is_empty());
}

#[test]
fn an_engine_is_faster_only_if_enough_copies_show_it() {
    for copies in [1, 4, 5] {
        let mut summary = saved("copy-latency").summary;
        for case in &mut summary.cases {
            let ns = if case.text("engine") == Some("cpu") {
                100.0
            } else {
                10.0
            };
            case.set_metric("time", Metric::from_samples("time_ns", &vec![ns; copies]));
        }
        let said = finding(&summary);
        let expected = match copies {
            5 => "is faster from 1\u{a0}B on (medians).",
            _ => "is not shown to be faster there (too few runs for an interval) (medians).",
        };
        assert!(said.ends_with(expected), "{copies}: {said}");
    }
}

#[test]
fn a_ratio_of_three_runs_says_that_they_are_few() {
    for (runs, remark) in [
        (3, " (too few runs for an interval)"),
        (5, " (95 % interval 3.00 to 3.00)"),
    ] {
        let mut summary = saved("mmap-reclaim").summary;
        for (case, faults) in summary.cases.iter_mut().zip([2.0, 6.0]) {
            let faults = Metric::from_samples("hot_major_faults", &vec![faults; runs]);
            case.set_metric("hot_major_faults", faults);
        }
        let said = finding(&summary);
        assert!(
            said.ends_with(&format!("with 1, 3.00 times as often{remark} (medians).")),
            "{said}"
        );
    }
}

#[test]
fn a_simulated_load_has_no_kernel_that_accounts_for_it() {
    let caption = |summary: &Summary| {
        let mut tables = tables(summary).into_iter();
        tables
            .find(|table| table.title == "The load")
            .unwrap()
            .caption
    };
    let mut summary = saved("realtime").summary;
    assert!(caption(&summary).contains("as the kernel accounts for it"));
    summary.target = "sim:xeon-w3530".into();
    assert_eq!(
        caption(&summary),
        "While the task ran; CPU time as simulated."
    );
}

/// Text of a folder that clears a screen, reorders letters or adds lines.
#[test]
fn hostile_text_of_a_folder_does_not_reach_the_terminal() {
    const HOSTILE: &str = "\u{1b}[2J\u{9b}2J\u{202e}\u{2066}\r\u{7}";
    let mut run = saved("other");
    run.summary
        .notes
        .push(format!("{HOSTILE}note\nreport: fine"));
    run.summary.cases[0].name += HOSTILE;
    run.summary.cases[0].set(format!("days{HOSTILE}"), format!("west{HOSTILE}"));
    run.run.host.cpu_model = Some(HOSTILE.into());
    run.directory = HOSTILE.into();
    let other = saved("other");
    let mut all = tables(&run.summary);
    all.push(differences_table(&[run.clone(), other.clone()]));
    all.push(side_by_side_table(&[run.clone(), other.clone()]));
    all.push(compare_table(&run, &run));
    let mut texts: Vec<String> = all.iter().map(|table| table.to_text(None)).collect();
    let lines = [
        vec![finding(&run.summary)],
        notes::of(&run.run, &run.summary),
    ]
    .concat();
    assert!(lines.iter().all(|line| !line.contains('\n')), "{lines:?}");
    texts.extend(lines);
    for text in texts {
        let bad = |c: char| (c.is_control() && c != '\n') || "\u{202e}\u{2066}".contains(c);
        assert!(!text.contains(bad), "{text:?}");
    }
}

#[test]
fn a_share_is_a_percentage_in_comparisons_and_in_generic_tables() {
    let run = saved("mmap-reclaim");
    let shares = |table: Table| -> Vec<Vec<String>> {
        let rows = table.rows.into_iter();
        rows.filter(|row| row[1].ends_with(" fault")).collect()
    };
    for table in [
        compare_table(&run, &run),
        side_by_side_table(&[run.clone(), run.clone()]),
    ] {
        let rows = shares(table);
        assert!(!rows.is_empty());
        for row in rows {
            assert!(!row[1].contains('%') && row[2].ends_with('%'), "{row:?}");
        }
    }
}

/// One unguarded and one guarded case with one core, whose fullest period has `largest` events of 40 allowed.
fn guarded(largest: u64, overshoot: Option<u64>) -> Summary {
    let mut summary = saved("interfere").summary;
    summary
        .cases
        .retain(|c| c.aggressors.len() == 3 && c.aggressors[0].kind.ends_with("write"));
    // Without the long case.
    summary.cases.truncate(2);
    let core = |cpu: u64| {
        json!({
            "cpu": cpu,
            "budget_events": 40,
            "largest_period_events": if cpu < 3 { 39 } else { largest },
            "overshoot_max": overshoot,
        })
    };
    summary.cases[1].set("cores", [core(1), core(2), core(3)].to_vec());
    summary
}

#[test]
fn the_finding_says_whether_the_budgets_held() {
    let with = "With 3 aggressors (bandwidth:write) the victim slowed down 6.15 times without the guard and 1.26 times \
                with it; ";
    for (largest, overshoot, end) in [
        (
            40,
            None,
            "every regulated core kept to its budget (largest period: 40 of 40 events).",
        ),
        (
            41,
            None,
            "CPU 3 passed its budget (largest period: 41 of 40 events).",
        ),
        (
            42,
            Some(1),
            "CPU 3 passed its budget (largest period: 42 of 40 events).",
        ),
        (
            41,
            Some(1),
            "the fullest core passed its budget by no more than its measured overshoot (largest period: 41 of 40 events, CPU 3).",
        ),
    ] {
        assert_eq!(
            finding(&guarded(largest, overshoot)),
            format!("{with}{end}")
        );
    }
    let mut gaps = guarded(40, None);
    let core = json!({
        "cpu": 1, "budget_events": 40, "largest_period_events": 40, "periods": 30_000, "counted_periods": 100_000,
    });
    gaps.cases[1].set("cores", [core].to_vec());
    assert!(finding(&gaps).contains(
        "; in the recorded periods, which are not all, every regulated core kept to its budget ("
    ));
    let mut sharing = guarded(90, None);
    sharing.cases[1].guard.as_mut().unwrap().best_effort = "spare".into();
    assert!(
        finding(&sharing).ends_with("1.26 times with it."),
        "sharing passes budgets on purpose"
    );
}

#[test]
fn an_effect_that_the_runs_do_not_show_is_not_claimed() {
    let mut even = guarded(40, None);
    even.cases[0].slowdown = Some(1.05);
    even.cases[0].slowdown_ci95 = Some([0.9, 1.2]);
    assert_eq!(
        finding(&even),
        "With 3 aggressors (bandwidth:write) the victim was not shown to slow down (1.05 times, 95 % interval 0.90 to \
         1.20) without the guard; with it 1.26 times; every regulated core kept to its budget (largest period: 40 of 40 \
         events)."
    );
    even.cases.truncate(1);
    even.cases[0].slowdown = Some(0.29);
    even.cases[0].slowdown_ci95 = Some([0.2, 0.5]);
    assert_eq!(
        finding(&even),
        "With 3 aggressors (bandwidth:write) the victim did not slow down (0.29 times); no guard ran."
    );
    // Too few runs show neither.
    even.cases[0].slowdown_ci95 = None;
    for (slowdown, said) in [(1.05, "slowed down 1.05"), (0.98, "had a slowdown of 0.98")] {
        even.cases[0].slowdown = Some(slowdown);
        assert_eq!(
            finding(&even),
            format!(
                "With 3 aggressors (bandwidth:write) the victim {said} times (too few runs for an interval); no guard ran."
            )
        );
    }

    let mut pollution = saved("copy-pollution").summary;
    for case in &mut pollution.cases {
        case.slowdown_ci95 = Some([0.31, 9.83]);
    }
    assert_eq!(
        finding(&pollution),
        "No application was shown to take longer beside the CPU's copies, and no application was shown to take longer \
         beside the engine's copies (medians, over those without copies; intervals are widened for 24 cases)."
    );

    let mut latency = saved("copy-latency").summary;
    for figure in latency
        .cases
        .iter_mut()
        .flat_map(|case| case.figures.values_mut())
    {
        if let Figure::Metric(metric) = figure {
            metric.median_ci95 = Some([1.0, 1e9]);
        }
    }
    assert!(
        finding(&latency).contains(" is not shown to be faster there"),
        "{}",
        finding(&latency)
    );
}

#[test]
fn the_finding_names_the_case_that_was_not_held() {
    let mut leaking = guarded(250, Some(0));
    let core = |cpu: u64, largest: u64, held: bool| {
        json!({
            "cpu": cpu,
            "budget_events": 40,
            "periods": 2600,
            "largest_period_events": largest,
            "periods_over_budget": if held { 0 } else { 24 },
            "overshoot_max": 0,
            "held": held,
        })
    };
    let cores = [core(1, 40, true), core(2, 240, false), core(3, 250, false)];
    leaking.cases[1].set("cores", cores.to_vec());
    assert_eq!(
        finding(&leaking),
        "With 3 aggressors (bandwidth:write) the victim slowed down 6.15 times without the guard and 1.26 times with it; \
         the guard did NOT hold in 1 case: worst was CPU 3 in `3 \u{d7} bandwidth:write, guard 1000,100,100,100`, 250 of \
         40 events in one period, 24 of 2600 periods above the budget."
    );
    let tables = tables(&leaking);
    let budgets = tables.last().unwrap();
    assert!(
        budgets.rows[1].contains(&"NO".to_owned()),
        "{:?}",
        budgets.rows
    );
}

#[test]
fn the_finding_of_a_poorer_run() {
    let mut unguarded = guarded(40, None);
    unguarded.cases.truncate(1);
    let expected =
        "With 3 aggressors (bandwidth:write) the victim slowed down 6.15 times; no guard ran.";
    assert_eq!(finding(&unguarded), expected);

    let mut broken: Summary = Summary::new("interfere", "native");
    assert_eq!(finding(&broken), "The run measured no case.");
    broken.cases.push(
        Case::new("solo").with_metric("victim", Metric::unmeasured("latency_ns", "no clock")),
    );
    assert_eq!(finding(&broken), "The run measured no case.");
    assert!(tables(&broken)[0].rows[0].contains(&"n/a".to_owned()));
    broken
        .cases
        .push(Case::new("x").with_metric("victim", Metric::from_samples("latency_ns", &[2.5])));
    assert!(finding(&broken).contains("2.5 ns"), "{}", finding(&broken));
}

#[test]
fn the_finding_of_a_benchmark_of_one_part() {
    let mut sharing: Summary = Summary::new("bench-guard", "lab");
    for (name, reached) in [("spare", "yes"), ("none", "yes"), ("reclaim", "NO")] {
        sharing.cases.push(
            Case::new(name)
                .with("figure", "sharing")
                .with("reached", reached),
        );
    }
    assert_eq!(finding(&sharing), "2 of 3 targets were reached.");
    for case in &mut sharing.cases {
        case.set("backend", "module");
    }
    sharing.cases.push(
        Case::new("reclaim, user")
            .with("figure", "sharing")
            .with("backend", "user")
            .with("reached", "no (compared)"),
    );
    assert_eq!(
        finding(&sharing),
        "The kernel module: 2 of 3 targets were reached."
    );
    sharing.cases.drain(..3);
    assert_eq!(finding(&sharing), "0 of 1 targets were reached.");

    let mut scaling: Summary = Summary::new("bench-guard", "lab");
    for (cpus, ns) in [(16, 5200.0), (2, 5100.0)] {
        scaling.cases.push(
            Case::new(format!("{cpus} CPUs"))
                .with("figure", "scaling")
                .with("cpus", cpus)
                .with("reached", "yes")
                .with_metric(
                    "throttle_latency_ns",
                    Metric::from_samples("throttle_latency_ns", &[ns]),
                ),
        );
    }
    assert_eq!(
        finding(&scaling),
        "The throttle held 5.1 us after the overflow with 2 CPUs and 5.2 us with 16; all 2 targets were reached."
    );
}

#[test]
fn the_finding_names_the_overhead_that_has_a_target() {
    let mut overhead: Summary = Summary::new("bench-guard", "lab");
    for (name, share, reached) in [("no traffic", 0.002, "yes"), ("faults", 0.06, "-")] {
        overhead.cases.push(
            Case::new(name)
                .with("figure", "overhead")
                .with("period_us", 1000)
                .with("overhead_share", share)
                .with("reached", reached),
        );
    }
    assert_eq!(
        finding(&overhead),
        "An armed guard cost 0.2\u{a0}% at a period of 1000 us; the target was reached."
    );
    let mut with_interval = |low: f64, high: f64| {
        let interval = serde_json::json!([low, high]);
        overhead.cases[0].set("overhead_share_ci95", interval);
        overhead.cases[0].set("reached", "unclear");
        finding(&overhead)
    };
    assert_eq!(
        with_interval(0.001, 0.006),
        "An armed guard cost 0.2\u{a0}% (95 % interval 0.1\u{a0}% to 0.6\u{a0}%) at a period of 1000 us; 0 of 1 targets \
         were reached."
    );
    assert_eq!(
        with_interval(-0.002, 0.006),
        "No cost of an armed guard was shown at a period of 1000 us (95 % interval -0.2\u{a0}% to 0.6\u{a0}%); 0 of 1 \
         targets were reached."
    );
}

#[test]
fn the_finding_of_the_deadline_case_names_load_guard_and_misses() {
    let mut summary = saved("realtime").summary;
    let set =
        |summary: &mut Summary, case: usize, misses: u64| summary.cases[case].set("misses", misses);
    set(&mut summary, 3, 1);
    assert!(
        finding(&summary).starts_with(
            "Beside screen the task missed 20 of 20 deadlines without the guard (alone none of 20), and 1 of 20 with \
             guard 600,300, proportional sharing; unguarded, its median job took "
        ),
        "{}",
        finding(&summary)
    );
    let mut alike = summary.clone();
    alike.cases[1].set("miss_share_ci95", json!([0.01, 0.9]));
    assert!(
        finding(&alike).contains("(alone none of 20, no difference shown)"),
        "{}",
        finding(&alike)
    );
    // No case without a guard.
    summary.cases.drain(..2);
    assert_eq!(
        finding(&summary),
        "Beside screen the task missed 1 of 20 deadlines with guard 600,300, proportional sharing (alone none of 20)."
    );
    summary.cases.truncate(1);
    assert_eq!(
        finding(&summary),
        "Alone the task missed none of 20 deadlines with guard 600,300, proportional sharing."
    );
}

#[test]
fn the_finding_of_a_counter_names_the_device_that_lost_and_the_lock() {
    let mut summary = saved("mymem-counter").summary;
    let of_lock = |summary: &mut Summary, lock: &str| {
        summary.cases.retain(|case| case.text("lock") == Some(lock));
    };
    let mut bare = summary.clone();
    of_lock(&mut bare, "none");
    assert_eq!(
        finding(&bare),
        "Without a lock 50 workers on the C device lost up to 98.8\u{a0}% of the increments."
    );
    for case in &mut bare.cases {
        case.set("wrong_runs", 0);
    }
    assert_eq!(
        finding(&bare),
        "Without a lock no increment was lost, with up to 50 workers."
    );
    of_lock(&mut summary, "fetch-add");
    assert_eq!(
        finding(&summary),
        "With fetch-add none was lost, in 14 runs.",
    );
    summary.cases[1].set("wrong_runs", 1);
    assert_eq!(
        finding(&summary),
        "With fetch-add updates were lost, which is a fault (8 workers on the C device; 1 case in all)."
    );
}

#[test]
fn tables_of_modelled_counters_say_so_and_those_that_took_turns_are_marked() {
    let mut summary = saved("mmap").summary;
    let of_counters = |summary: &Summary| {
        let tables = tables(summary).into_iter();
        let tables: Vec<_> = tables
            .filter(|table| ["Miss ratios", "Counters"].contains(&table.title.as_str()))
            .collect();
        assert_eq!(tables.len(), 2);
        tables
    };
    for table in of_counters(&summary) {
        assert!(
            table
                .caption
                .starts_with("MODELLED, not measured: i5-2467m")
        );
    }
    assert!(finding(&summary).contains("by the model"));
    let hardware = Figure::Other(json!("hardware"));
    summary.whole.insert("counted_by".into(), hardware);
    summary.cases[0].set("multiplexed", true);
    for table in of_counters(&summary) {
        assert!(table.caption.starts_with("Counted by the machine."));
        assert!(table.caption.ends_with("took turns."));
        assert!(table.rows[0].last().unwrap().ends_with('*') || table.rows[0][5].ends_with('*'));
    }
    assert!(!finding(&summary).contains("by the model"));
}

#[test]
fn the_lab_s_limits_are_said_in_the_lab_alone() {
    let modelled = saved("interfere");
    let said = notes::of_lab(&modelled.run);
    assert_eq!(said, [notes::LAB_MODELLED, notes::LAB_COUNTED]);
    let mut lab = saved("bench-guard");
    let with_clock = |run: &mut memwarden_run::Run, clock: &str| {
        run.lab.as_mut().unwrap().clock = clock.into();
        notes::of_lab(run)
    };
    let exact = [notes::LAB_LIMITS, notes::LAB_EXACT];
    for (clock, note) in [
        ("counted", notes::LAB_COUNTED),
        ("parallel", notes::LAB_COUNTED),
        ("free", notes::LAB_FREE),
    ] {
        let said = with_clock(&mut lab.run, clock);
        assert_eq!(said, [&exact[..], &[note]].concat(), "{clock}");
    }
    // A note that a run recorded about an old clock is kept.
    let more = &mut lab.run.lab.as_mut().unwrap().more;
    more.insert("tick_us".into(), json!(50));
    assert_eq!(with_clock(&mut lab.run, "counted"), [notes::LAB_EXACT]);
    assert_eq!(with_clock(&mut lab.run, "parallel").len(), 3);
    let copies = saved("mymem-counter");
    let said = notes::of(&copies.run, &copies.summary);
    assert!(
        said.iter().any(|n| n == notes::LAB_COPIES) && !said.iter().any(|n| n == notes::LAB_LIMITS)
    );
    let native = saved("other");
    assert!(
        !notes::of(&native.run, &native.summary)
            .iter()
            .any(|n| n == notes::LAB_LIMITS)
    );
}
