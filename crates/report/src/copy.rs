// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies between user and kernel memory: by CPU and by DMA.

pub(crate) mod bandwidth;
pub(crate) mod breakeven;
pub(crate) mod latency;
pub(crate) mod pollution;

use memwarden_run::{Case, Summary};

/// The texts that cases have under `key`, in the summary's order.
fn texts<'a>(summary: &'a Summary, key: &str) -> Vec<&'a str> {
    let mut texts = Vec::new();
    for text in summary.cases.iter().filter_map(|case| case.text(key)) {
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    texts
}

/// Sizes, from the smallest.
fn sizes(summary: &Summary) -> Vec<u64> {
    let mut sizes: Vec<u64> = summary.cases.iter().filter_map(size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

fn size(case: &Case) -> Option<u64> {
    case.value("size_bytes")?.as_u64()
}

/// An operation in words.
fn operation_text(name: &str) -> &str {
    match name {
        "from" => "from user memory",
        "to" => "to user memory",
        "from_nc" => "from user memory, not cached",
        "to_nc" => "to user memory, not cached",
        "from+to" => "from and to user memory by turns",
        other => other,
    }
}

/// An engine's name in a sentence.
fn engine_text(name: &str) -> String {
    if name == "cpu" {
        "the CPU".into()
    } else {
        name.into()
    }
}
