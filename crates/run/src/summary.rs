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

/// One figure of a case: a metric object, or anything else that the experiment has to say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Figure {
    /// A distribution, summed up.
    Metric(Metric),
    /// A number, text, list or object; null is a figure that could not be measured.
    Other(Value),
}

/// The figures of a whole run, and with them the type of its cases: a study's ([`crate::studies`]), or [`Figures`],
/// which takes any run.
pub trait Whole:
    Clone + std::fmt::Debug + Default + PartialEq + Serialize + DeserializeOwned
{
    /// The figures of one case.
    type Case: Clone + std::fmt::Debug + PartialEq + Serialize + DeserializeOwned;
}

impl Whole for Figures {
    type Case = Case;
}

/// summary.json (schema `memwarden.summary/1`): of a study, or of any run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(bound = "")]
#[schemars(bound = "W: JsonSchema, W::Case: JsonSchema")]
pub struct Summary<W: Whole = Figures> {
    /// Always [`schema::SUMMARY`].
    pub schema: String,
    /// Which experiment.
    pub experiment: String,
    /// Where it ran.
    pub target: String,
    /// One for each setting that was measured.
    pub cases: Vec<W::Case>,
    /// What a reader must know to read the figures rightly, a sentence each.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Figures of the whole run.
    #[serde(flatten)]
    pub whole: W,
}

impl<W: Whole> Summary<W> {
    /// A summary with no case yet.
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

    /// Adds a note unless it is there already.
    pub fn note(&mut self, note: impl Into<String>) {
        let note = note.into();
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// The same summary as that of any run.
    ///
    /// # Panics
    /// Never: what a study's types write is JSON.
    pub fn untyped(&self) -> Summary {
        let value = serde_json::to_value(self).expect("a summary is JSON");
        serde_json::from_value(value).expect("a study's summary is a summary")
    }
}

impl Summary {
    /// The same summary as a study's; figures that an older run lacks are at their defaults.
    ///
    /// # Errors
    /// When a figure is of another type than the study's.
    pub fn typed<W: Whole>(&self) -> Result<Summary<W>, serde_json::Error> {
        serde_json::from_value(serde_json::to_value(self)?)
    }
}

/// One setting that was measured, and what came out.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Case {
    /// Its name, unique in the summary: the `case` of its samples.
    pub name: String,
    /// The regulator's settings; none when the case ran without a guard.
    #[serde(default)]
    pub guard: Option<GuardSettings>,
    /// The victim's median over its median alone.
    #[serde(default)]
    pub slowdown: Option<f64>,
    /// 95 % confidence interval of the slowdown.
    #[serde(default)]
    pub slowdown_ci95: Option<[f64; 2]>,
    /// Who ran beside the victim.
    #[serde(default)]
    pub aggressors: Vec<Aggressor>,
    /// Metric objects (`victim`, ...) and free-form figures, in the order in which they were set.
    #[serde(flatten)]
    pub figures: Figures,
}

impl Case {
    /// A case with nothing measured yet.
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

    /// Sets a free-form figure. A number that is not finite becomes null, as serde_json has it.
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

    /// The free-form figure under `key`, when it is a number.
    pub fn number(&self, key: &str) -> Option<f64> {
        self.value(key)?.as_f64()
    }

    /// The free-form figure under `key`, when it is text.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.value(key)?.as_str()
    }
}

/// A case writes what it has. `slowdown` is written whenever there is a victim, so that one which could not be
/// measured is a null that a reader sees, and not a gap.
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
    /// Read budget of each CPU in CPU order, MiB/s; null is no limit.
    pub budget_mib_s: Vec<Option<f64>>,
    /// `none`, `spare` or `proportional`.
    pub best_effort: String,
    /// Whether predictive donation and reclaim was on.
    pub reclaim: bool,
    /// The regulator's period.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period_us: Option<u64>,
    /// What it counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
    /// Bytes that one event stands for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_event: Option<u64>,
    /// The budgets in events a period; null is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_events: Option<Vec<Option<u64>>>,
    /// What other versions say of it.
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
    /// Share of the time that its CPU was throttled, 0 to 1; null without a guard.
    pub throttled_share: Option<f64>,
    /// Share of its CPU's time that it had, 0 to 1; null where that is not known. Not every study asks.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub cpu_share: Option<Option<f64>>,
    /// What other versions say of it.
    #[serde(flatten)]
    #[schemars(skip)]
    pub more: Map<String, Value>,
}

/// Of a figure that is left out where there is none to give, and null where it could not be measured: a null is there.
pub(crate) fn present<'de, D, T>(deserializer: D) -> Result<Option<Option<T>>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::deserialize(deserializer).map(Some)
}
