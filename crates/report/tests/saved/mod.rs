// SPDX-License-Identifier: MIT OR Apache-2.0
//! The saved runs.

use std::path::{Path, PathBuf};

/// One of each experiment, and one of an experiment that is not known here.
pub const RUNS: [&str; 15] = [
    "interfere",
    "realtime",
    "bench-guard",
    "mmap",
    "mmap-reclaim",
    "mymem-throughput",
    "mymem-counter",
    "mymem-mistakes",
    "copy-latency",
    "copy-bandwidth",
    "copy-pollution",
    "copy-breakeven",
    "copy-trace",
    "plan",
    "other",
];

/// A file or folder of the saved runs.
pub fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}
