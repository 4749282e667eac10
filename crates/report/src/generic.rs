// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can be told about any experiment: every figure of every case in a table, a bar for each metric.

use memwarden_run::{Case, Figure, Summary};
use serde_json::Value;

use crate::Table;
use crate::interfere::guard_text;
use crate::number::{NOT_MEASURED, counted, figure, interval, name_and_unit, named, optional};

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
    let show = |v: f64| {
        if unit.is_empty() {
            figure(v)
        } else {
            format!("{} {unit}", figure(v))
        }
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

/// All figures of `cases` but those in `without`: one table, and one more for each list of objects.
pub(crate) fn table_of(title: &str, cases: &[&Case], without: &[&str]) -> Vec<Table> {
    let mut keys: Vec<&str> = Vec::new();
    for case in cases {
        for key in case.figures.keys().map(String::as_str) {
            if !keys.contains(&key) && !without.contains(&key) {
                keys.push(key);
            }
        }
    }
    let lists = |key: &str| {
        cases.iter().any(
            |c| matches!(c.value(key), Some(Value::Array(a)) if a.iter().any(Value::is_object)),
        )
    };
    let (listed, keys): (Vec<&str>, Vec<&str>) = keys.into_iter().partition(|k| lists(k));
    let is_metric = |key: &str| cases.iter().any(|c| c.metric(key).is_some());

    let mut table = Table::new(title).words("Case").words("Guard");
    for key in &keys {
        if is_metric(key) {
            let (name, unit) = metric_name(cases, key);
            for (what, unit) in [
                ("median", unit),
                ("95 % interval", unit),
                ("99 %", unit),
                ("99.9 %", unit),
                ("max", unit),
            ] {
                table = table.figures(format!("{name}, {what}"), unit);
            }
        } else if cases
            .iter()
            .all(|c| c.value(key).is_none_or(|v| v.is_number() || v.is_null()))
        {
            let (name, unit) = name_and_unit(key);
            table = table.figures(name, unit);
        } else {
            table = table.words(key.replace('_', " "));
        }
    }
    table = table.figures("slowdown", "times");
    for case in cases {
        let mut row = vec![
            case.name.clone(),
            case.guard
                .as_ref()
                .map_or_else(|| "-".into(), |g| guard_text(Some(g))),
        ];
        for key in &keys {
            if is_metric(key) {
                match case.metric(key) {
                    Some(m) => row.extend([
                        optional(m.median),
                        interval(m.median_ci95),
                        optional(m.p99),
                        optional(m.p999),
                        optional(m.max),
                    ]),
                    None => row.extend(std::iter::repeat_n("-".to_owned(), 5)),
                }
            } else {
                row.push(
                    case.figures
                        .get(*key)
                        .map_or_else(|| "-".into(), |f| cell(key, f)),
                );
            }
        }
        row.push(
            case.slowdown
                .map_or_else(|| "-".into(), crate::number::times),
        );
        table.row(row);
    }
    table.drop_columns_of("-");
    let mut tables = vec![table];
    tables.extend(listed.into_iter().map(|key| list_table(title, cases, key)));
    tables
}

/// Name and unit of the metric under `key`: the key says whose it is, the metric what it is.
pub(crate) fn metric_name(cases: &[&Case], key: &str) -> (String, &'static str) {
    let metric = cases
        .iter()
        .find_map(|c| c.metric(key))
        .map_or(key, |m| m.metric.as_str());
    let (name, unit) = name_and_unit(metric);
    if metric == key || key.starts_with(metric) {
        (name, unit)
    } else {
        (format!("{} {name}", key.replace('_', " ")), unit)
    }
}

/// One row for each object in the lists under `key`.
fn list_table(title: &str, cases: &[&Case], key: &str) -> Table {
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
    let mut table = Table::new(format!("{title}: {}", key.replace('_', " "))).words("Case");
    for field in &fields {
        let (name, unit) = name_and_unit(field);
        table = table.figures(name, unit);
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
        Figure::Metric(metric) => optional(metric.median),
        Figure::Other(value) => value_text(key, value),
    }
}

/// Any JSON value in a cell.
fn value_text(key: &str, value: &Value) -> String {
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
    use crate::plot::{Axis, Bar, BarChart, Chart, Colour, Group};

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
                |v| format!("{} {unit}", figure(v)),
            );
            let bar = Bar {
                series: 0,
                value: m.median,
                interval: m.median_ci95,
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
            reference: None,
        };
        crate::Figure::new(
            &file_name(key),
            "Medians with their 95 % intervals.",
            Chart::Bars(chart),
        )
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
