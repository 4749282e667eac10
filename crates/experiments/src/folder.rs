// SPDX-License-Identifier: MIT OR Apache-2.0
//! Begins a run folder; every experiment uses it.

use std::path::Path;

use memwarden_platform::machine;
use memwarden_run::{Existing, Run, RunFolder};
use serde::Serialize;
use serde_json::Value;

use crate::{Error, host};

/// Begins a run folder with these settings and a description of this machine.
pub(crate) fn begin(
    experiment: &str,
    settings: &impl Serialize,
    out: Option<&Path>,
    existing: Existing,
) -> Result<RunFolder, Error> {
    let mut record = Run::new(experiment, "native");
    if let Ok(Value::Object(settings)) = serde_json::to_value(settings) {
        record.configuration = settings;
    }
    record.host = host::record(&machine::Host::gather()?);
    Ok(RunFolder::create(out, record, existing)?)
}
