// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page of an unknown experiment: every figure of every case in a table, and a bar chart for each metric.

use memwarden_run::{Case, Figure, GuardSettings, Summary};
use serde_json::Value;

use crate::Table;
use crate::number::{
    NOT_MEASURED, counted, figure, interval_named, name_and_unit, named, optional_named, time_text,
};

pub(crate) fn finding(summary: &Summary) -> Option<String> {
    let cases = counted(summary.cases.len(), "case");
    let (key, _) = summary
        .cases
        .iter()
        .flat_map(Case::metrics)
        .find(|(_, m)| m.median.is_some())?;
    let measured = || {
        summary
            .cases
            .iter()
            .filter_map(|c| Some((c, c.metric(key)?.median?)))
    };
    let lowest = measured().min_by(|a, b| a.1.total_cmp(&b.1))?;
    let highest = measured().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let metric = &lowest.0.metric(key)?.metric;
    let (name, unit) = name_and_unit(metric);
    let show = |v: f64| match unit {
        "" => figure(v),
        "ns" => time_text(v),
        "%" => named(metric, v),
        unit => format!("{} {unit}", figure(v)),
    };
    Some(if summary.cases.len() == 1 {
        format!(
            "The median {name} was {} ({}).",
            show(lowest.1),
            lowest.0.name
        )
    } else {
        format!(
            "Over {cases} the median {name} went from {} ({}) to {} ({}).",
            show(lowest.1),
            lowest.0.name,
            show(highest.1),
            highest.0.name
        )
    })
}

pub(crate) fn tables(summary: &Summary) -> Vec<Table> {
    let cases: Vec<_> = summary.cases.iter().collect();
    if cases.is_empty() {
        Vec::new()
    } else {
        table_of("The figures", &cases, &[])
    }
}

/// All figures of `cases` except those in `without`: settings and single figures, distributions, and one table for each
/// list of objects.
pub(crate) fn table_of(title: &str, cases: &[&Case], without: &[&str]) -> Vec<Table> {
    let mut keys: Vec<&str> = Vec::new();
    for case in cases {
        for key in case.figures.keys().map(String::as_str) {
            if !keys.contains(&key) && !without.contains(&key) {
                keys.push(key);
            }
        }
    }
    let is_list = |key: &&str| {
        let objects = |v: &Value| matches!(v, Value::Array(a) if a.iter().any(Value::is_object));
        cases.iter().any(|c| c.value(key).is_some_and(objects))
    };
    let (lists, keys): (Vec<&str>, Vec<&str>) = keys.into_iter().partition(is_list);
    let is_metric = |key: &&str| cases.iter().any(|c| c.metric(key).is_some());
    let (metrics, single): (Vec<&str>, Vec<&str>) = keys.into_iter().partition(is_metric);

    let mut tables = Vec::new();
    let first = single_figures(title, cases, &single);
    if first.columns.len() > 1 {
        tables.push(first);
    }
    if !metrics.is_empty() {
        let title = if tables.is_empty() {
            title.to_owned()
        } else {
            format!("{title} (distributions)")
        };
        tables.push(distributions(title, cases, &metrics));
    }
    for key in lists {
        let title = if tables.is_empty() {
            title.to_owned()
        } else {
            format!("{title}: {}", key.replace('_', " "))
        };
        tables.push(list_table(title, cases, key));
    }
    if tables.is_empty() {
        let mut names = Table::new(title).words("Case");
        cases.iter().for_each(|c| names.row(vec![c.name.clone()]));
        tables.push(names);
    }
    tables
}

/// One row for each case, one column for each figure.
fn single_figures(title: &str, cases: &[&Case], keys: &[&str]) -> Table {
    let mut table = Table::new(title).words("Case").words("Guard");
    for key in keys {
        let number = |c: &&Case| c.value(key).is_none_or(|v| v.is_number() || v.is_null());
        table = if cases.iter().all(number) {
            let (name, unit) = name_and_unit(key);
            table.figures(name, heading_unit(unit))
        } else {
            table.words(key.replace('_', " "))
        };
    }
    table = table.figures("slowdown", "times");
    for case in cases {
        let guard = case
            .guard
            .as_ref()
            .map_or_else(|| "-".into(), GuardSettings::title);
        let mut row = vec![case.name.clone(), guard];
        row.extend(keys.iter().map(|key| {
            case.figures
                .get(*key)
                .map_or_else(|| "-".into(), |f| cell(key, f))
        }));
        row.push(
            case.slowdown
                .map_or_else(|| "-".into(), crate::number::times),
        );
        table.row(row);
    }
    table.drop_columns_of("-");
    table
}

/// One row for each metric of each case. High percentiles that must equal the maximum are left out.
fn distributions(title: String, cases: &[&Case], keys: &[&str]) -> Table {
    let most = cases
        .iter()
        .flat_map(|c| c.metrics())
        .map(|(_, m)| m.samples)
        .max()
        .unwrap_or(0);
    let mut table = Table::new(title).words("Case").words("Metric");
    for (name, shown) in [
        ("median", true),
        ("95 % interval", true),
        ("mean", true),
        ("st. dev.", true),
        ("min", true),
        ("99 %", most >= 100),
        ("99.9 %", most >= 1000),
        ("max", true),
        ("samples", true),
    ] {
        if shown {
            table = table.figures(name, "");
        }
    }
    for case in cases {
        for key in keys {
            let Some(m) = case.metric(key) else { continue };
            let mut row = vec![case.name.clone(), metric_words(cases, key)];
            let optional = |value| optional_named(&m.metric, value);
            row.extend([
                optional(m.median),
                interval_named(&m.metric, m.median_ci95),
                optional(m.mean),
                optional(m.stdev),
                optional(m.min),
            ]);
            row.extend((most >= 100).then(|| optional(m.p99)));
            row.extend((most >= 1000).then(|| optional(m.p999)));
            row.extend([optional(m.max), m.samples.to_string()]);
            table.row(row);
        }
    }
    table
}

/// The unit in a heading; shares have none there, as each cell has its `%`.
fn heading_unit(unit: &str) -> &str {
    if unit == "%" { "" } else { unit }
}

/// Name and unit of the metric under `key`: the key names its owner, the metric the quantity.
pub(crate) fn metric_name(cases: &[&Case], key: &str) -> (String, &'static str) {
    let metric = cases
        .iter()
        .find_map(|c| c.metric(key))
        .map_or(key, |m| m.metric.as_str());
    let (name, unit) = name_and_unit(metric);
    let metrics = cases.iter().flat_map(|case| case.metrics());
    let is_shared = metrics
        .filter(|(_, m)| m.metric == metric)
        .any(|(other, _)| other != key);
    if metric == key || key.starts_with(metric) {
        // With another key of this metric, the rest of the key tells which.
        let rest = key[metric.len()..].replace('_', " ");
        match rest.trim() {
            "" => (name, unit),
            rest if is_shared => (format!("{name} ({rest})"), unit),
            _ => (name, unit),
        }
    } else {
        (format!("{} {name}", key.replace('_', " ")), unit)
    }
}

/// [`metric_name`] as the first words of a row: `victim latency, ns`. A share has its unit in each cell.
pub(crate) fn metric_words(cases: &[&Case], key: &str) -> String {
    let (name, unit) = metric_name(cases, key);
    match heading_unit(unit) {
        "" => name,
        unit => format!("{name}, {unit}"),
    }
}

/// One row for each object in the lists under `key`.
fn list_table(title: String, cases: &[&Case], key: &str) -> Table {
    let items = |case: &Case| {
        case.value(key)
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default()
    };
    let mut fields: Vec<String> = Vec::new();
    for item in cases.iter().flat_map(|c| items(c)) {
        for field in item.as_object().into_iter().flat_map(|o| o.keys()) {
            if !fields.contains(field) {
                fields.push(field.clone());
            }
        }
    }
    let mut table = Table::new(title).words("Case");
    for field in &fields {
        let (name, unit) = name_and_unit(field);
        table = table.figures(name, heading_unit(unit));
    }
    for case in cases {
        for item in items(case) {
            let mut row = vec![case.name.clone()];
            row.extend(
                fields
                    .iter()
                    .map(|f| item.get(f).map_or_else(|| "-".into(), |v| value_text(f, v))),
            );
            table.row(row);
        }
    }
    table
}

fn cell(key: &str, figure: &Figure) -> String {
    match figure {
        Figure::Metric(metric) => optional_named(&metric.metric, metric.median),
        Figure::Other(value) => value_text(key, value),
    }
}

/// A JSON value as a cell's text.
fn value_text(key: &str, value: &Value) -> String {
    let key = key.strip_suffix("_ci95").unwrap_or(key);
    match value {
        Value::Null => NOT_MEASURED.into(),
        Value::Bool(true) => "yes".into(),
        Value::Bool(false) => "no".into(),
        Value::Number(n) => n.as_f64().map_or_else(|| n.to_string(), |v| named(key, v)),
        Value::String(text) => text.clone(),
        Value::Array(all) => all
            .iter()
            .map(|v| value_text(key, v))
            .collect::<Vec<_>>()
            .join(", "),
        Value::Object(_) => value.to_string(),
    }
}

/// A bar chart for each metric that at least one case has.
#[cfg(feature = "html")]
pub(crate) fn figures(summary: &Summary) -> Vec<crate::Figure> {
    use crate::plot::{Axis, Bar, BarChart, CI95, Chart, Colour, Group};

    let cases: Vec<_> = summary.cases.iter().collect();
    let mut keys: Vec<&str> = Vec::new();
    for (key, metric) in cases.iter().flat_map(|c| c.metrics()) {
        if metric.median.is_some() && !keys.contains(&key) {
            keys.push(key);
        }
    }
    let chart = |key: &&str| {
        let (name, unit) = metric_name(&cases, key);
        let groups = cases.iter().filter_map(|case| {
            let m = case.metric(key)?;
            let text = m.median.map_or_else(
                || "not measured".into(),
                |v| format!("{} {}", named(&m.metric, v), heading_unit(unit)),
            );
            // An axis of shares is in percent.
            let scale = if unit == "%" { 100.0 } else { 1.0 };
            let bar = Bar {
                series: 0,
                value: m.median.map(|median| median * scale),
                interval: m.median_ci95.map(|ends| ends.map(|end| end * scale)),
                text: text.trim_end().into(),
            };
            Some(Group {
                label: case.name.clone(),
                bars: vec![bar],
            })
        });
        let chart = BarChart {
            title: format!("Median {name} of each case"),
            axis: Axis::new(name, unit),
            series: vec![("median".into(), Colour::nth(0))],
            groups: groups.collect(),
            whiskers: CI95,
            ..BarChart::default()
        };
        crate::Figure::new(&file_name(key), "Medians.", Chart::Bars(chart))
    };
    keys.iter().map(chart).collect()
}

/// A key as a file name.
#[cfg(feature = "html")]
pub(crate) fn file_name(key: &str) -> String {
    key.chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_lowercase()
            } else {
                '-'
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use memwarden_run::Metric;

    use super::*;

    #[test]
    fn two_keys_of_one_metric_have_two_names() {
        let metric = || Metric::from_samples("latency_ns", &[1.0, 2.0]);
        let one = Case::new("one").with_metric("latency_ns", metric());
        let both = one.clone().with_metric("latency_ns_beside", metric());
        let name = |cases: &[&Case], key| metric_name(cases, key).0;
        assert_eq!(name(&[&one], "latency_ns"), "latency");
        let other = Case::new("other").with_metric("latency_ns_beside", metric());
        assert_eq!(name(&[&other], "latency_ns_beside"), "latency");
        for cases in [vec![&both], vec![&one, &other]] {
            assert_eq!(name(&cases, "latency_ns"), "latency");
            assert_eq!(name(&cases, "latency_ns_beside"), "latency (beside)");
        }
    }
}
