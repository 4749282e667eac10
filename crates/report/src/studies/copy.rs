// SPDX-License-Identifier: MIT OR Apache-2.0
//! Words that the pages of copies share.

/// An engine's name in a sentence.
pub(super) fn engine_text(name: &str) -> String {
    if name == "cpu" {
        "the CPU".into()
    } else {
        name.into()
    }
}
