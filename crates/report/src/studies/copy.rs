// SPDX-License-Identifier: MIT OR Apache-2.0
//! Words that the pages of copies share.

/// An operation in words.
pub(super) fn operation_text(name: &str) -> &str {
    match name {
        "from" => "from user memory",
        "to" => "to user memory",
        "from_nc" => "from user memory, not cached",
        "to_nc" => "to user memory, not cached",
        "from+to" => "from and to user memory alternately",
        other => other,
    }
}

/// An engine's name in a sentence.
pub(super) fn engine_text(name: &str) -> String {
    if name == "cpu" {
        "the CPU".into()
    } else {
        name.into()
    }
}
