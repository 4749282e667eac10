// SPDX-License-Identifier: MIT OR Apache-2.0
//! samples.csv: RFC 4180, one row for each raw sample, with a header row and `.` as decimal point.

use std::collections::HashMap;
use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};

use crate::Error;

/// The first columns of samples.csv, in order. A later version may append columns; it never changes these.
pub const COLUMNS: [&str; 8] = [
    "case", "repeat", "role", "cpu", "metric", "unit", "value", "t_ns",
];

/// The texts of a sample. Samples of one series share them, as a run may have millions of samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    /// The case's name, as in the summary.
    pub case: String,
    /// The measured role: `victim`, `aggressor`, `guard`, ...
    pub role: String,
    /// The quantity, with its unit in the name: `latency_ns`, `mib_s`, `overshoot_events`, ...
    pub metric: String,
    /// The unit of the value: `ns`, `MiB/s`, `events`, ...
    pub unit: String,
}

/// One raw sample: one row of samples.csv. The fields of its [`Series`] can be read as its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    series: Arc<Series>,
    /// The repeat of the case, from 0.
    pub repeat: u32,
    /// The CPU of the measurement; empty if it belongs to none.
    pub cpu: Option<u32>,
    /// The figure; empty if it could not be measured.
    pub value: Option<f64>,
    /// Time of the sample, nanoseconds since the run began (monotonic clock); of a periodic job, the number of its release
    /// in its case and repeat, times the period; empty if unknown.
    pub t_ns: Option<u64>,
}

impl Deref for Sample {
    type Target = Series;

    fn deref(&self) -> &Series {
        &self.series
    }
}

/// The columns of a row.
#[derive(Serialize, Deserialize)]
struct Row<'a> {
    case: &'a str,
    repeat: u32,
    role: &'a str,
    cpu: Option<u32>,
    metric: &'a str,
    unit: &'a str,
    value: Option<f64>,
    t_ns: Option<u64>,
}

impl Serialize for Sample {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Series {
            case,
            role,
            metric,
            unit,
        } = &**self;
        let row = Row {
            case,
            repeat: self.repeat,
            role,
            cpu: self.cpu,
            metric,
            unit,
            value: self.value,
            t_ns: self.t_ns,
        };
        row.serialize(serializer)
    }
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
            series: Arc::new(Series {
                case: case.into(),
                role: role.into(),
                metric: metric.into(),
                unit: unit.into(),
            }),
            repeat,
            cpu: None,
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

    /// The same sample of another case.
    #[must_use]
    pub fn in_case(mut self, case: impl Into<String>) -> Self {
        Arc::make_mut(&mut self.series).case = case.into();
        self
    }

    /// The same sample with its time, [`t_ns`](Self::t_ns).
    #[must_use]
    pub fn at_ns(mut self, t_ns: u64) -> Self {
        self.t_ns = Some(t_ns);
        self
    }
}

/// The series of a file, each stored once.
#[derive(Default)]
struct Known {
    /// By the texts of the key, with their lengths.
    all: HashMap<String, Arc<Series>>,
    key: String,
}

impl Known {
    fn of(&mut self, row: &Row) -> Arc<Series> {
        let Row {
            case,
            role,
            metric,
            unit,
            ..
        } = row;
        self.key.clear();
        for text in [case, role, metric, unit] {
            // Writing to a string cannot fail.
            let _ = write!(self.key, "{}:{text}", text.len());
        }
        if let Some(known) = self.all.get(&self.key) {
            return Arc::clone(known);
        }
        let [case, role, metric, unit] = [case, role, metric, unit].map(|text| (*text).to_owned());
        let series = Arc::new(Series {
            case,
            role,
            metric,
            unit,
        });
        self.all.insert(self.key.clone(), Arc::clone(&series));
        series
    }
}

/// Reads a samples.csv. The first columns must be [`COLUMNS`]; further columns are ignored.
///
/// # Errors
/// The file cannot be read, has other columns, an invalid row (reported with its line), or no row at all.
pub fn read_samples(path: &Path) -> Result<Vec<Sample>, Error> {
    let file = File::open(path).map_err(|e| Error::io("open", path, e))?;
    parse_samples(path, file)
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
    let (mut known, mut record) = (Known::default(), csv::StringRecord::new());
    while csv
        .read_record(&mut record)
        .map_err(|e| row_error(path, &e))?
    {
        let row: Row = record
            .deserialize(Some(&header))
            .map_err(|e| row_error(path, &e))?;
        let sample = Sample {
            series: known.of(&row),
            repeat: row.repeat,
            cpu: row.cpu,
            value: row.value,
            t_ns: row.t_ns,
        };
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

    /// A day of a task's jobs is millions of samples.
    #[test]
    fn a_sample_is_small_and_shares_its_texts() {
        assert!(size_of::<Sample>() <= 56, "{}", size_of::<Sample>());
        let row = "solo,0,victim,0,latency_ns,ns,1,1\nsolo,0,victim,0,jitter_ns,ns,1,1\n";
        let samples = parse(&format!("{HEADER}{}", row.repeat(500))).unwrap();
        assert_eq!(samples.len(), 1000);
        for of_metric in [&samples[..], &samples[1..]] {
            let shared = of_metric
                .iter()
                .step_by(2)
                .all(|sample| Arc::ptr_eq(&sample.series, &of_metric[0].series));
            assert!(shared);
        }
        // Texts that are equal only when joined are told apart.
        let samples = parse(&format!("{HEADER}a,0,bc,,m,u,1,\nab,0,c,,m,u,1,\n")).unwrap();
        assert_eq!(
            (samples[0].role.as_str(), samples[1].role.as_str()),
            ("bc", "c")
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
