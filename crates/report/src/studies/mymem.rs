// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory devices: transfers of all sizes, and a counter that several workers increment.

/// The place of a subject in a sentence.
pub(super) fn place(subject: &str) -> String {
    match subject {
        "in-kernel" => "inside the kernel".into(),
        "C device" | "Rust device" => format!("on the {subject}"),
        path => format!("on {path}"),
    }
}

/// A list of places in a sentence: `a, b and c`.
pub(super) fn listed(parts: &[String]) -> String {
    match parts {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}
