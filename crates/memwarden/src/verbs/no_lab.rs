// SPDX-License-Identifier: MIT OR Apache-2.0
//! Replaces `on_lab` in a memwarden that was built without the lab.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::bail;
use memwarden_run::Existing;

use super::experiment::{Found, Target};

/// The error for `--on lab`.
pub const MISSING: &str = "--on lab: this memwarden was built without the lab (feature `host`)";

/// Accepts no limit, as there is no machine.
pub fn parse_limit(_: &str) -> Result<Duration, String> {
    Err(MISSING.into())
}

/// Replaces the machine; refuses everything that would run on it.
pub struct Lab;

impl Lab {
    pub fn usual() -> Self {
        Self
    }

    pub fn with_our_patches(self) -> Self {
        self
    }

    pub fn with_our_patches_only(self) -> Self {
        self
    }

    pub fn without_prefetcher(self) -> Self {
        self
    }

    pub fn on_platform(self, _: Option<&str>) -> anyhow::Result<Self> {
        Ok(self)
    }

    pub fn with(self, _: &[PathBuf]) -> Self {
        self
    }

    pub fn within(self, _: Option<Duration>) -> Self {
        self
    }

    pub fn carry_out(
        self,
        _: &str,
        _: &str,
        _: Option<&Path>,
        _: Existing,
    ) -> anyhow::Result<Found> {
        bail!(MISSING)
    }
}

/// Refuses an option of the machine.
pub fn not_native(_: &Target, option: &str, given: bool) -> anyhow::Result<()> {
    if given {
        bail!("{option}: this chooses the lab's machine, and {MISSING}");
    }
    Ok(())
}

/// Replaces the options of the machine, which does not exist.
#[derive(clap::Args)]
pub struct MachineArgs {}

impl MachineArgs {
    pub fn lab(&self) -> anyhow::Result<Lab> {
        Ok(Lab)
    }

    pub fn check(&self, _: &Target) -> anyhow::Result<()> {
        Ok(())
    }
}
