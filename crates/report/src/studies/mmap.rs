// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a mapping costs: walks at random and in order, sweeps of the locality, and company.

#[cfg(feature = "html")]
mod charts;

use memwarden_run::{Case, Figure, Summary};
use serde_json::Value;

use crate::Table;
#[cfg(feature = "html")]
use crate::by_size::texts;
use crate::number::{NOT_MEASURED, figure, optional, percent, times};

pub(crate) const QUESTION: &str = "Memory is mapped in several ways and walked over, at random places and in order: each \
    place's 32 KiB several times, every eighth line written and the others read. What does that do to caches, TLB and pages, \
    and what does a competitor change?";

fn median(case: &Case, key: &str) -> Option<f64> {
    case.metric(key)?.median
}

fn competes(case: &Case) -> bool {
    case.text("compete").is_some_and(|who| who != "none")
}

fn alone(summary: &Summary) -> impl Iterator<Item = &Case> {
    summary.cases.iter().filter(|case| !competes(case))
}

/// Whose counters these are, in the words that stand under every table of them.
fn counted_by(summary: &Summary) -> String {
    let text = |key: &str| match summary.whole.get(key) {
        Some(Figure::Other(Value::String(text))) => Some(text.as_str()),
        _ => None,
    };
    let assumed = match summary.whole.get("assumed") {
        Some(Figure::Other(Value::Array(all))) if !all.is_empty() => {
            " (partly assumed: see the notes)"
        }
        _ => "",
    };
    match text("counted_by") {
        Some("model") => format!(
            "MODELLED, not measured: {}{assumed}.",
            text("geometry_text").unwrap_or("a model")
        ),
        Some("hardware") => "Counted by the machine.".into(),
        _ => String::new(),
    }
}

fn modelled(summary: &Summary) -> bool {
    counted_by(summary).starts_with("MODELLED")
}

/// The mapping in which random and sequential walks are compared: the last of the summary.
fn compared(summary: &Summary) -> Option<[&Case; 2]> {
    let of = |access: &str| {
        alone(summary)
            .filter(|case| case.text("access") == Some(access))
            .last()
    };
    let random = of("random")?;
    let sequential = alone(summary).filter(|case| {
        case.text("access") == Some("sequential")
            && case.text("mapping") == random.text("mapping")
            && case.value("locality") == random.value("locality")
    });
    Some([random, sequential.last()?])
}

pub(crate) fn finding(summary: &Summary) -> Option<String> {
    let mut parts = Vec::new();
    if let Some(cases) = compared(summary) {
        let mut figures = Vec::new();
        for (key, what) in [
            ("l1d_load_miss_share", "of the L1D's loads"),
            ("dtlb_load_miss_share", "of the DTLB's"),
        ] {
            if let [Some(random), Some(sequential)] = cases.map(|case| case.number(key)) {
                figures.push(format!(
                    "{} {what} ({} in order)",
                    percent(random),
                    percent(sequential)
                ));
            }
        }
        let time = cases.map(|case| median(case, "time"));
        if let [Some(random), Some(sequential)] = time {
            let ratio = random / sequential;
            if figures.is_empty() {
                parts.push(format!(
                    "at random the walk took {} times as long as in order",
                    times(ratio)
                ));
            } else {
                let model = if modelled(summary) {
                    "by the model "
                } else {
                    ""
                };
                parts.push(format!(
                    "at random {model}{} missed, and the walk took {} times as long as in order",
                    figures.join(" and "),
                    times(ratio)
                ));
            }
        }
    }
    let worst = summary.cases.iter().filter(|case| competes(case));
    let worst = worst
        .filter_map(|case| Some((case.slowdown?, case)))
        .max_by(|a, b| a.0.total_cmp(&b.0));
    if let Some((slowdown, case)) = worst {
        parts.push(format!(
            "beside a competitor ({}) it took up to {} times as long as alone",
            case.text("compete")?,
            times(slowdown)
        ));
    }
    let mapping = compared(summary).and_then(|cases| cases[0].text("mapping").map(str::to_owned));
    match (mapping, parts.is_empty()) {
        (_, true) => None,
        (Some(mapping), _) => Some(format!("On {mapping}, {}.", parts.join("; "))),
        (None, _) => {
            let text = parts.join("; ");
            let (first, rest) = text.split_at(1);
            Some(format!("{}{rest}.", first.to_uppercase()))
        }
    }
}

pub(crate) fn tables(summary: &Summary) -> Vec<Table> {
    if summary.cases.is_empty() {
        return Vec::new();
    }
    let all = [
        shares(summary),
        counts(summary),
        usage(summary),
        competition(summary),
    ];
    all.into_iter()
        .filter(|table| !table.rows.is_empty())
        .collect()
}

fn titled(title: &str) -> Table {
    Table::new(title)
        .words("Mapping")
        .words("Access")
        .figures("locality", "")
        .words("beside")
}

fn heads(case: &Case) -> Vec<String> {
    let text = |key: &str| case.text(key).unwrap_or(NOT_MEASURED).to_owned();
    let beside = match case.text("compete") {
        Some("none") | None => "-".into(),
        Some(who) => who.to_owned(),
    };
    vec![
        text("mapping"),
        text("access"),
        optional(case.number("locality")),
        beside,
    ]
}

/// A mark at counts of counters that took turns.
fn mark(case: &Case) -> &'static str {
    if case.value("multiplexed") == Some(&Value::Bool(true)) {
        "*"
    } else {
        ""
    }
}

const MARKED: &str = " * estimated: the counters took turns.";

fn caption(summary: &Summary, text: &str) -> String {
    let marked = summary.cases.iter().any(|case| !mark(case).is_empty());
    let by = counted_by(summary);
    let space = if by.is_empty() { "" } else { " " };
    format!("{by}{space}{text}{}", if marked { MARKED } else { "" })
}

const SHARES: [(&str, &str); 7] = [
    ("L1D loads missed", "l1d_load_miss_share"),
    ("L1D stores missed", "l1d_store_miss_share"),
    ("L1D prefetches missed", "l1d_prefetch_miss_share"),
    ("L2 loads missed", "l2_load_miss_share"),
    ("L2 accesses refilled", "l2_refill_share"),
    ("LLC loads missed", "llc_load_miss_share"),
    ("DTLB loads missed", "dtlb_load_miss_share"),
];

fn shares(summary: &Summary) -> Table {
    let mut table = titled("Shares of misses");
    for (name, _) in SHARES {
        table = table.figures(name, "");
    }
    for case in &summary.cases {
        let known = SHARES.iter().any(|(_, key)| case.number(key).is_some());
        if !known {
            continue;
        }
        let mut row = heads(case);
        row.extend(SHARES.iter().map(|(_, key)| {
            let share = case.number(key).map(percent);
            share.map_or_else(|| NOT_MEASURED.into(), |text| text + mark(case))
        }));
        table.row(row);
    }
    table.drop_columns_of(NOT_MEASURED);
    table.caption(caption(summary, "Of what each was asked for."))
}

const COUNTS: [(&str, &str); 14] = [
    ("L1D loads", "L1-dcache-loads"),
    ("misses", "L1-dcache-load-misses"),
    ("L1D stores", "L1-dcache-stores"),
    ("misses", "L1-dcache-store-misses"),
    ("L1D prefetches", "L1-dcache-prefetches"),
    ("misses", "L1-dcache-prefetch-misses"),
    ("L2 prefetches", "L2-prefetches"),
    ("misses", "L2-prefetch-misses"),
    ("L2 accesses", "l2d_cache"),
    ("refills", "l2d_cache_refill"),
    ("LLC loads", "LLC-loads"),
    ("misses", "LLC-load-misses"),
    ("DTLB loads", "dTLB-loads"),
    ("misses", "dTLB-load-misses"),
];

fn counts(summary: &Summary) -> Table {
    let mut table = titled("Counters");
    for (name, _) in COUNTS {
        table = table.figures(name, "");
    }
    table = table.figures("outer steps", "counted");
    for case in &summary.cases {
        let known = COUNTS.iter().any(|(_, key)| median(case, key).is_some());
        if !known {
            continue;
        }
        let mut row = heads(case);
        row.extend(COUNTS.iter().map(|(_, key)| {
            let count = median(case, key).map(figure);
            count.map_or_else(|| NOT_MEASURED.into(), |text| text + mark(case))
        }));
        row.push(optional(case.number("counted_outer")));
        table.row(row);
    }
    table.drop_columns_of(NOT_MEASURED);
    table.caption(caption(summary, "Medians."))
}

fn usage(summary: &Summary) -> Table {
    let mut table = titled("Time and getrusage")
        .figures("time", "ms")
        .figures("user", "ms")
        .figures("system", "ms")
        .figures("soft faults", "")
        .figures("hard faults", "")
        .figures("switches", "voluntary")
        .figures("switches", "involuntary")
        .figures("blocks in", "")
        .figures("blocks out", "")
        .figures("peak memory", "MiB")
        .figures("msync", "ms");
    for case in &summary.cases {
        let over = |key: &str, by: f64| optional(median(case, key).map(|value| value / by));
        let mut row = heads(case);
        row.extend([
            over("time", 1e6),
            over("user_us", 1e3),
            over("system_us", 1e3),
            over("minor_faults", 1.0),
            over("major_faults", 1.0),
            over("voluntary_switches", 1.0),
            over("involuntary_switches", 1.0),
            over("blocks_in", 1.0),
            over("blocks_out", 1.0),
            over("max_rss_kib", 1024.0),
            over("msync", 1e6),
        ]);
        table.row(row);
    }
    if summary
        .cases
        .iter()
        .all(|case| case.metric("msync").is_none())
    {
        table.drop_last();
    }
    table.caption(
        "Measured on the real walk alone, medians. Peak memory is the process's since its start. Blocks are of 512 bytes.",
    )
}

fn competition(summary: &Summary) -> Table {
    let mut table = titled("Competition")
        .figures("time", "over alone")
        .figures("user", "over alone")
        .figures("involuntary switches", "over alone")
        .figures("walks that came to their end", "")
        .figures("killed by the OOM killer", "competitors")
        .figures("it took", "MiB")
        .words("the last competitor");
    for case in summary.cases.iter().filter(|case| competes(case)) {
        let same = |other: &&Case| {
            ["mapping", "access", "locality"]
                .iter()
                .all(|key| other.value(key) == case.value(key))
        };
        let base = alone(summary).find(same);
        let over = |key: &str| {
            let (mine, before) = (median(case, key)?, median(base?, key)?);
            (before > 0.0).then(|| times(mine / before))
        };
        let rivals = case.value("competitors").and_then(Value::as_array);
        let rivals: &[Value] = rivals.map_or(&[], Vec::as_slice);
        let touched = rivals
            .iter()
            .filter_map(|rival| rival["touched_bytes"].as_f64());
        let mut touched: Vec<f64> = touched.collect();
        touched.sort_unstable_by(f64::total_cmp);
        let middle = touched
            .get(touched.len() / 2)
            .map(|bytes| bytes / f64::from(1 << 20));
        let end = rivals.last().and_then(|rival| rival["end"].as_str());
        let absent = || "-".to_owned();
        let mut row = heads(case);
        row.extend([
            over("time").unwrap_or_else(absent),
            over("user_us").unwrap_or_else(absent),
            over("involuntary_switches").unwrap_or_else(absent),
            case.metric("time")
                .map_or(0, |time| time.samples)
                .to_string(),
            optional(case.number("oom_kills")),
            optional(middle),
            end.unwrap_or("-").into(),
        ]);
        table.row(row);
    }
    table.caption(
        "Ratios of medians to the same walk alone; - where that was not measured, or was 0. What the competitor took is the \
         median. It is the first that the kernel kills when memory runs out, and that is a result.",
    )
}

/// The mappings with walks of their own, in the summary's order.
#[cfg(feature = "html")]
fn mappings(summary: &Summary) -> Vec<&str> {
    texts(summary, |case| case.text("mapping").unwrap_or_default())
}

#[cfg(feature = "html")]
pub(crate) use charts::figures;
