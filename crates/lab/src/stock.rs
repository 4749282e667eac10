// SPDX-License-Identifier: MIT OR Apache-2.0
//! The list of Debian's kernels that the lab boots and that the modules are built for.

use crate::architecture::Architecture;
use crate::cache::Cache;
use crate::debian::Apt;
use crate::error::Result;

/// A series of Debian's kernels; the lab uses its newest version.
#[derive(Debug, PartialEq, Eq)]
pub struct Stock {
    /// Its name after `stock:` on the command line.
    pub name: &'static str,
    /// The part of its packages' names between `linux-image-` and the architecture.
    series: &'static str,
    debian: Debian,
}

/// The suite that the kernel comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Debian {
    /// Debian 12.
    Twelve,
    /// The next release in its current state.
    Testing,
    Newer,
}

impl Stock {
    const fn of(debian: Debian, name: &'static str, series: &'static str) -> Self {
        Self {
            name,
            series,
            debian,
        }
    }
}

/// The series, oldest first. Debian 12 has 6.1 and 6.12, testing has the kernel planned for the next Debian (7.2), and
/// trixie-backports has the newest one.
pub static STOCK: [Stock; 8] = [
    Stock::of(Debian::Twelve, "6.1", ""),
    Stock::of(Debian::Twelve, "6.1-rt", "rt-"),
    Stock::of(Debian::Twelve, "6.12", "6.12-"),
    Stock::of(Debian::Twelve, "6.12-rt", "6.12-rt-"),
    Stock::of(Debian::Testing, "testing", ""),
    Stock::of(Debian::Testing, "testing-rt", "rt-"),
    Stock::of(Debian::Newer, "newest", ""),
    Stock::of(Debian::Newer, "newest-rt", "rt-"),
];

/// The index in [`STOCK`] of the kernel that plain `stock` means.
const DEFAULT: usize = 2;

impl Stock {
    /// The kernel that is booted unless another is named.
    #[must_use]
    pub fn usual() -> &'static Self {
        &STOCK[DEFAULT]
    }

    /// The series of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        STOCK.iter().find(|stock| stock.name == name)
    }

    /// All names, for messages.
    #[must_use]
    pub fn names() -> String {
        STOCK
            .iter()
            .map(|stock| stock.name)
            .collect::<Vec<_>>()
            .join(", ")
    }

    pub(crate) fn apt(&self, cache: &Cache, say: &dyn Fn(&str)) -> Result<Apt> {
        match self.debian {
            Debian::Twelve => Apt::debian_12(cache, say),
            Debian::Testing => Apt::testing(cache, say),
            Debian::Newer => Apt::newer(cache, say),
        }
    }

    /// The package that depends on the newest image.
    pub(crate) fn image(&self, architecture: Architecture) -> String {
        format!("linux-image-{}{architecture}:{architecture}", self.series)
    }

    /// The package that depends on the newest headers.
    pub(crate) fn headers(&self, architecture: Architecture) -> String {
        format!("linux-headers-{}{architecture}", self.series)
    }
}
