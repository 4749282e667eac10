// SPDX-License-Identifier: MIT OR Apache-2.0
//! Debian's kernels that the lab boots and that the modules are built for: the one list of them.

use crate::cache::Cache;
use crate::debian::Apt;
use crate::error::Result;

/// A series of Debian's kernels. Its newest version counts.
#[derive(Debug, PartialEq, Eq)]
pub struct Stock {
    /// Behind `stock:` on the command line.
    pub name: &'static str,
    /// In the names of its packages, between `linux-image-` and the architecture.
    series: &'static str,
    newer: bool,
}

impl Stock {
    const fn of_machine(name: &'static str, series: &'static str) -> Self {
        Self {
            name,
            series,
            newer: false,
        }
    }

    const fn of_newer(name: &'static str, series: &'static str) -> Self {
        Self {
            name,
            series,
            newer: true,
        }
    }
}

/// The series. Debian 12 has 6.1 and 6.12; the newest is what trixie-backports has.
pub static STOCK: [Stock; 6] = [
    Stock::of_machine("6.1", ""),
    Stock::of_machine("6.1-rt", "rt-"),
    Stock::of_machine("6.12", "6.12-"),
    Stock::of_machine("6.12-rt", "6.12-rt-"),
    Stock::of_newer("newest", ""),
    Stock::of_newer("newest-rt", "rt-"),
];

/// What `stock` alone means, an index of [`STOCK`].
const DEFAULT: usize = 2;

impl Stock {
    /// The one that is booted unless another is named.
    #[must_use]
    pub fn usual() -> &'static Self {
        &STOCK[DEFAULT]
    }

    /// The series of a name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        STOCK.iter().find(|stock| stock.name == name)
    }

    /// All names, as they are told to a user.
    #[must_use]
    pub fn names() -> String {
        STOCK
            .iter()
            .map(|stock| stock.name)
            .collect::<Vec<_>>()
            .join(", ")
    }

    pub(crate) fn apt(&self, cache: &Cache, say: &dyn Fn(&str)) -> Result<Apt> {
        if self.newer {
            Apt::newer(cache, say)
        } else {
            Ok(Apt::Machine)
        }
    }

    /// The package that depends on the newest image.
    pub(crate) fn image(&self) -> String {
        format!("linux-image-{}arm64:arm64", self.series)
    }

    /// The package that depends on the newest headers.
    pub(crate) fn headers(&self, architecture: &str) -> String {
        format!("linux-headers-{}{architecture}", self.series)
    }
}
