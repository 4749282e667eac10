// SPDX-License-Identifier: MIT OR Apache-2.0
//! samples.csv: RFC 4180, one row for each raw sample, with a header row and `.` as decimal point.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::Error;

/// The first columns of samples.csv, in order. A later version may append columns; it never changes these.
pub const COLUMNS: [&str; 8] = [
    "case", "repeat", "role", "cpu", "metric", "unit", "value", "t_ns",
];

/// One raw sample: one row of samples.csv.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The case's name, as in the summary.
    pub case: String,
    /// The repeat of the case, from 0.
    pub repeat: u32,
    /// The measured role: `victim`, `aggressor`, `guard`, ...
    pub role: String,
    /// The CPU of the measurement; empty if it belongs to none.
    pub cpu: Option<u32>,
    /// The quantity, with its unit in the name: `latency_ns`, `mib_s`, `overshoot_events`, ...
    pub metric: String,
    /// The unit of `value`: `ns`, `MiB/s`, `events`, ...
    pub unit: String,
    /// The figure; empty if it could not be measured.
    pub value: Option<f64>,
    /// Time of the sample, nanoseconds since the run began (monotonic clock); of a periodic job, the number of its release
    /// in its case and repeat, times the period; empty if unknown.
    pub t_ns: Option<u64>,
}

impl Sample {
    /// A sample without CPU and time; see [`Sample::on_cpu`] and [`Sample::at_ns`].
    pub fn new(
        case: impl Into<String>,
        repeat: u32,
        role: impl Into<String>,
        metric: impl Into<String>,
        unit: impl Into<String>,
        value: impl Into<Option<f64>>,
    ) -> Self {
        Self {
            case: case.into(),
            repeat,
            role: role.into(),
            cpu: None,
            metric: metric.into(),
            unit: unit.into(),
            value: value.into(),
            t_ns: None,
        }
    }

    /// The same sample, measured on `cpu`.
    #[must_use]
    pub fn on_cpu(mut self, cpu: u32) -> Self {
        self.cpu = Some(cpu);
        self
    }

    /// The same sample with its time, [`t_ns`](Self::t_ns).
    #[must_use]
    pub fn at_ns(mut self, t_ns: u64) -> Self {
        self.t_ns = Some(t_ns);
        self
    }
}

/// Reads a samples.csv. The first columns must be [`COLUMNS`]; further columns are ignored.
///
/// # Errors
/// The file cannot be read, has other columns, an invalid row (reported with its line), or no row at all.
pub fn read_samples(path: &Path) -> Result<Vec<Sample>, Error> {
    let file = File::open(path).map_err(|e| Error::io("open", path, e))?;
    parse_samples(path, BufReader::new(file))
}

/// [`read_samples`] for any reader; `path` is for the messages.
pub(crate) fn parse_samples(path: &Path, reader: impl Read) -> Result<Vec<Sample>, Error> {
    let mut csv = csv::Reader::from_reader(reader);
    let header = csv.headers().map_err(|e| row_error(path, &e))?.clone();
    if header.len() < COLUMNS.len()
        || header
            .iter()
            .zip(COLUMNS)
            .any(|(found, expected)| found != expected)
    {
        let found = header.iter().collect::<Vec<_>>().join(",");
        let found = if found.is_empty() {
            "none".into()
        } else {
            found
        };
        return Err(Error::Columns {
            path: path.into(),
            expected: COLUMNS.join(","),
            found,
        });
    }
    let mut samples: Vec<Sample> = Vec::new();
    for row in csv.deserialize() {
        let sample: Sample = row.map_err(|e| row_error(path, &e))?;
        if sample.value.is_some_and(|v| !v.is_finite()) {
            // The header is line 1. As a quoted name may span lines, this may be less than the line.
            let line = samples.len() as u64 + 2;
            return Err(Error::Row {
                path: path.into(),
                line,
                reason: "value is not a finite number".into(),
            });
        }
        samples.push(sample);
    }
    if samples.is_empty() {
        return Err(Error::NoSamples(path.into()));
    }
    Ok(samples)
}

fn row_error(path: &Path, error: &csv::Error) -> Error {
    let line = error.position().map_or(1, csv::Position::line);
    let reason = match error.kind() {
        csv::ErrorKind::Deserialize { err, .. } => {
            let column = err
                .field()
                .and_then(|f| COLUMNS.get(usize::try_from(f).ok()?))
                .copied();
            column.map_or_else(
                || err.kind().to_string(),
                |c| format!("column {c}: {}", err.kind()),
            )
        }
        csv::ErrorKind::UnequalLengths {
            expected_len, len, ..
        } => {
            format!("{len} columns where the header has {expected_len}")
        }
        csv::ErrorKind::Utf8 { .. } => "not UTF-8".into(),
        _ => error.to_string(),
    };
    Error::Row {
        path: path.into(),
        line,
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<Sample>, String> {
        parse_samples(Path::new("samples.csv"), text.as_bytes()).map_err(|e| e.to_string())
    }

    const HEADER: &str = "case,repeat,role,cpu,metric,unit,value,t_ns\n";

    #[test]
    fn empty_fields_are_not_measured() {
        let samples = parse(&format!("{HEADER}solo,0,victim,,latency_ns,ns,,\n")).unwrap();
        assert_eq!(
            samples,
            [Sample::new("solo", 0, "victim", "latency_ns", "ns", None)]
        );
    }

    #[test]
    fn later_columns_are_left_alone() {
        let text = "case,repeat,role,cpu,metric,unit,value,t_ns,colour\nsolo,0,victim,2,latency_ns,ns,1.5,7,blue\n";
        let expected = Sample::new("solo", 0, "victim", "latency_ns", "ns", 1.5)
            .on_cpu(2)
            .at_ns(7);
        assert_eq!(parse(text).unwrap(), [expected]);
    }

    #[test]
    fn bad_files_are_named_with_their_line() {
        let row = |row: &str| {
            parse(&format!(
                "{HEADER}solo,0,victim,0,latency_ns,ns,1,1\n{row}\n"
            ))
            .unwrap_err()
        };
        assert_eq!(
            row("solo,x,victim,0,latency_ns,ns,1,1"),
            "samples.csv: line 3: column repeat: invalid digit found in string"
        );
        assert_eq!(
            row("solo,1"),
            "samples.csv: line 3: 2 columns where the header has 8"
        );
        assert_eq!(
            row("solo,1,victim,0,latency_ns,ns,NaN,1"),
            "samples.csv: line 3: value is not a finite number"
        );
        assert_eq!(
            parse(HEADER).unwrap_err(),
            "samples.csv: no samples in it: the run measured nothing"
        );
        assert!(parse("").unwrap_err().ends_with("found none"));
        assert!(parse("a,b\n1,2\n").unwrap_err().ends_with("found a,b"));
    }
}
