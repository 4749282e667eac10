// SPDX-License-Identifier: MIT OR Apache-2.0
//! The description of the machine in run.json.

use memwarden_guard::{Module, ModuleSource};
use memwarden_platform::{counters, machine};
use memwarden_run::Host;

/// Describes this machine. The run folder uses the platform's field names, so the conversion goes through JSON.
pub(crate) fn record(machine: &machine::Host) -> Host {
    let description = serde_json::to_value(machine).unwrap_or_default();
    let mut host: Host = serde_json::from_value(description).unwrap_or_default();
    let events = counters::probe().events;
    host.counters = events
        .iter()
        .filter(|found| found.counts())
        .map(|found| found.event.clone())
        .collect();
    let module = Module::new(ModuleSource::Installed);
    if module.is_loaded() || module.find().is_ok() {
        host.regulators.push("module".into());
    }
    if rustix::process::geteuid().is_root() && !host.counters.is_empty() {
        host.regulators.push("user".into());
    }
    host
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_on_the_way() {
        let machine = machine::Host::gather().unwrap();
        let host = record(&machine);
        assert_eq!(host.cpu_model, machine.cpu_model);
        assert_eq!(host.cores, u32::try_from(machine.cores).ok());
        assert_eq!(host.caches.len(), machine.caches.len());
        assert!(
            host.counters.iter().any(|name| name == "page-faults"),
            "{:?}",
            host.counters
        );
    }
}
