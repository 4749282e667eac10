// SPDX-License-Identifier: MIT OR Apache-2.0
//! summary.json: the figures of each case.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::statistics::Metric;
use crate::{Ratio, schema};

/// Figures by name, in the experiment's own order: the order of a table's columns.
pub type Figures = IndexMap<String, Figure>;

/// One figure of a case: a metric object or any other value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Figure {
    /// Summary of a distribution.
    Metric(Metric),
    /// A number, text, list or object; null if it could not be measured.
    Other(Value),
}

/// Figures of a whole run, which determine the type of its cases: that of a study ([`crate::studies`]), or [`Figures`],
/// which accepts any run.
pub trait Whole:
    Clone + std::fmt::Debug + Default + PartialEq + Serialize + DeserializeOwned
{
    /// The figures of one case.
    type Case: Clone + std::fmt::Debug + PartialEq + Serialize + DeserializeOwned;
}

impl Whole for Figures {
    type Case = Case;
}

/// summary.json (schema `memwarden.summary/1`), of a study or of any run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(bound = "")]
#[schemars(bound = "W: JsonSchema, W::Case: JsonSchema")]
pub struct Summary<W: Whole = Figures> {
    /// Always [`schema::SUMMARY`].
    pub schema: String,
    /// The experiment.
    pub experiment: String,
    /// The target.
    pub target: String,
    /// One for each measured setting.
    pub cases: Vec<W::Case>,
    /// Notes that a reader needs to interpret the figures, one sentence each.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Figures of the whole run.
    #[serde(flatten)]
    pub whole: W,
}

impl<W: Whole> Summary<W> {
    /// A summary without cases.
    pub fn new(experiment: impl Into<String>, target: impl Into<String>) -> Self {
        Self {
            schema: schema::SUMMARY.into(),
            experiment: experiment.into(),
            target: target.into(),
            cases: Vec::new(),
            notes: Vec::new(),
            whole: W::default(),
        }
    }

    /// Adds a note unless it already exists.
    pub fn note(&mut self, note: impl Into<String>) {
        let note = note.into();
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// The summary without a study's types.
    ///
    /// # Panics
    /// Never: a study's types serialise as JSON.
    pub fn untyped(&self) -> Summary {
        let value = serde_json::to_value(self).expect("a summary is JSON");
        serde_json::from_value(value).expect("a study's summary is a summary")
    }
}

impl Summary {
    /// The summary with a study's types; figures that an older run lacks have their defaults.
    ///
    /// # Errors
    /// When a figure does not have the study's type.
    pub fn typed<W: Whole>(&self) -> Result<Summary<W>, serde_json::Error> {
        serde_json::from_value(serde_json::to_value(self)?)
    }
}

/// One measured setting with its result.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Case {
    /// Its name, unique in the summary: the `case` of its samples.
    pub name: String,
    /// The regulator's settings; none without a guard.
    #[serde(default)]
    pub guard: Option<GuardSettings>,
    /// The victim's median over its median alone.
    #[serde(default)]
    pub slowdown: Option<f64>,
    /// 95 % confidence interval of the slowdown.
    #[serde(default)]
    pub slowdown_ci95: Option<[f64; 2]>,
    /// The aggressors beside the victim.
    #[serde(default)]
    pub aggressors: Vec<Aggressor>,
    /// Metric objects (`victim`, ...) and free-form figures, in the order in which they were set.
    #[serde(flatten)]
    pub figures: Figures,
}

impl Case {
    /// A case without figures.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ..Self::default()
        }
    }

    /// The same case with a metric object under `key` (`victim`, `overshoot_events`, ...).
    #[must_use]
    pub fn with_metric(mut self, key: impl Into<String>, metric: Metric) -> Self {
        self.set_metric(key, metric);
        self
    }

    /// The same case with a free-form figure.
    #[must_use]
    pub fn with(mut self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.set(key, value);
        self
    }

    /// Sets a metric object.
    pub fn set_metric(&mut self, key: impl Into<String>, metric: Metric) {
        self.figures.insert(key.into(), Figure::Metric(metric));
    }

    /// Sets a free-form figure. A number that is not finite becomes null, as in serde_json.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<Value>) {
        self.figures.insert(key.into(), Figure::Other(value.into()));
    }

    /// Sets the slowdown and its confidence interval.
    pub fn set_slowdown(&mut self, ratio: Ratio) {
        self.slowdown = ratio.ratio;
        self.slowdown_ci95 = ratio.ci95;
    }

    /// The metric object under `key`.
    pub fn metric(&self, key: &str) -> Option<&Metric> {
        match self.figures.get(key)? {
            Figure::Metric(metric) => Some(metric),
            Figure::Other(_) => None,
        }
    }

    /// All metric objects, in order.
    pub fn metrics(&self) -> impl Iterator<Item = (&str, &Metric)> {
        self.figures
            .iter()
            .filter_map(|(key, figure)| match figure {
                Figure::Metric(metric) => Some((key.as_str(), metric)),
                Figure::Other(_) => None,
            })
    }

    /// The free-form figure under `key`.
    pub fn value(&self, key: &str) -> Option<&Value> {
        match self.figures.get(key)? {
            Figure::Other(value) => Some(value),
            Figure::Metric(_) => None,
        }
    }

    /// The free-form figure under `key`, if it is a number.
    pub fn number(&self, key: &str) -> Option<f64> {
        self.value(key)?.as_f64()
    }

    /// The free-form figure under `key`, if it is text.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.value(key)?.as_str()
    }
}

/// Writes the figures that the case has. `slowdown` is written whenever there is a victim, so that a slowdown that
/// could not be measured appears as null.
impl Serialize for Case {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("name", &self.name)?;
        map.serialize_entry("guard", &self.guard)?;
        for (key, figure) in &self.figures {
            map.serialize_entry(key, figure)?;
        }
        if self.slowdown.is_some() || self.figures.contains_key("victim") {
            map.serialize_entry("slowdown", &self.slowdown.filter(|v| v.is_finite()))?;
        }
        if let Some(ci95) = self
            .slowdown_ci95
            .filter(|ci| ci.iter().all(|v| v.is_finite()))
        {
            map.serialize_entry("slowdown_ci95", &ci95)?;
        }
        if !self.aggressors.is_empty() || self.figures.contains_key("victim") {
            map.serialize_entry("aggressors", &self.aggressors)?;
        }
        map.end()
    }
}

/// Settings of the regulator in one case.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GuardSettings {
    /// `module` or `user`.
    pub backend: String,
    /// Budget of each CPU in CPU order, MiB/s; null means no limit.
    pub budget_mib_s: Vec<Option<f64>>,
    /// `none`, `spare` or `proportional`.
    pub best_effort: String,
    /// True if predictive donation and reclaim is on.
    pub reclaim: bool,
    /// The regulator's period.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period_us: Option<u64>,
    /// The event that it counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
    /// Bytes that one event stands for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_event: Option<u64>,
    /// The budgets in events a period; null means no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_events: Option<Vec<Option<u64>>>,
    /// True if each CPU has its budget in each bank of a simulated memory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub per_bank: bool,
    /// Additions of other versions.
    #[serde(flatten)]
    #[schemars(skip)]
    pub more: Map<String, Value>,
}

/// One aggressor and what it achieved.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Aggressor {
    /// The CPU it was pinned to.
    pub cpu: u32,
    /// Workload and access: `bandwidth:write`.
    pub kind: String,
    /// Achieved bandwidth in MiB/s, median over the repeats.
    pub mib_s: Option<f64>,
    /// Throttled share of its CPU, 0 to 1; null without a guard, and with budgets per bank, which stop no CPU.
    pub throttled_share: Option<f64>,
    /// Share of the time for which requests of its CPU were held back, 0 to 1; with budgets per bank only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_back_share: Option<f64>,
    /// Its share of its CPU's time, 0 to 1; null if unknown. Only some studies record it.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub cpu_share: Option<Option<f64>>,
    /// Additions of other versions.
    #[serde(flatten)]
    #[schemars(skip)]
    pub more: Map<String, Value>,
}

/// For a figure that is left out if it does not apply, and null if it could not be measured: a null is read as present.
pub(crate) fn present<'de, D, T>(deserializer: D) -> Result<Option<Option<T>>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::deserialize(deserializer).map(Some)
}
