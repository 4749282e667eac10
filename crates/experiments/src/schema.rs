// SPDX-License-Identifier: MIT OR Apache-2.0
//! The JSON schemas of each experiment: its settings, and its summary.json with the figures of a case and of the whole
//! run. They are generated from the types that are read and written.

use memwarden_run::studies::guard_bench;
use memwarden_run::{Summary, Whole, studies};
use schemars::{JsonSchema, Schema, schema_for};
use serde::Serialize;

use crate::{Settings, copy, interfere, mmap, mymem, plan, realtime};

/// The schemas of one experiment.
#[derive(Debug, Serialize)]
pub struct Schemas {
    /// The value of `experiment` in its run folders.
    #[serde(skip)]
    pub name: &'static str,
    /// The words of its command.
    #[serde(skip)]
    pub command: &'static str,
    /// A settings file, and also `configuration` in run.json.
    pub settings: Schema,
    /// summary.json.
    pub summary: Schema,
}

fn of<S: Settings + JsonSchema>(name: &'static str) -> Schemas
where
    S::Whole: JsonSchema,
    <S::Whole as Whole>::Case: JsonSchema,
{
    of_types::<S, S::Whole>(name, S::COMMAND)
}

fn of_types<S: JsonSchema, W: Whole + JsonSchema>(
    name: &'static str,
    command: &'static str,
) -> Schemas
where
    W::Case: JsonSchema,
{
    let titled = |mut schema: Schema, what: &str| {
        schema.insert("title".into(), format!("{command}: {what}").into());
        schema
    };
    Schemas {
        name,
        command,
        settings: titled(schema_for!(S), "settings"),
        summary: titled(schema_for!(Summary<W>), "summary.json"),
    }
}

/// The schemas of all experiments.
#[must_use]
pub fn all() -> Vec<Schemas> {
    vec![
        of::<interfere::Config>(studies::interfere::NAME),
        of::<realtime::Config>(studies::realtime::NAME),
        of::<plan::Config>(studies::plan::NAME),
        of_types::<guard_bench::Settings, guard_bench::Whole>(guard_bench::NAME, "guard bench"),
        of::<mmap::Config>(studies::mmap::NAME),
        of::<mmap::reclaim::Config>(studies::mmap_reclaim::NAME),
        of::<mymem::throughput::Config>(studies::mymem_throughput::NAME),
        of::<mymem::counter::Config>(studies::mymem_counter::NAME),
        of::<mymem::mistakes::Config>(studies::mymem_mistakes::NAME),
        of::<copy::bandwidth::Config>(studies::copy_bandwidth::NAME),
        of::<copy::breakeven::Config>(studies::copy_breakeven::NAME),
        of::<copy::latency::Config>(studies::copy_latency::NAME),
        of::<copy::pollution::Config>(studies::copy_pollution::NAME),
        of::<copy::trace::Config>(studies::copy_trace::NAME),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn every_setting_and_figure_has_its_place_and_its_words() {
        for schemas in all() {
            let settings = schemas.settings.as_value();
            let fields = settings["properties"].as_object().unwrap();
            assert!(!fields.is_empty(), "{}", schemas.name);
            let defaults: Vec<&Value> = fields.values().map(|field| &field["default"]).collect();
            assert!(defaults.iter().any(|one| !one.is_null()), "{settings:#}");
            let summary = schemas.summary.as_value();
            let case = &summary["$defs"]["Case"]["properties"];
            for (name, figure) in case.as_object().unwrap() {
                let said = figure["description"].as_str();
                assert!(said.is_some(), "{}: {name}: {figure:#}", schemas.name);
            }
        }
    }
}
