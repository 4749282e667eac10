// SPDX-License-Identifier: MIT OR Apache-2.0
//! Enums whose variants have names in options and files.

use std::fmt::Display;

use strum::VariantArray;

/// For strum's `parse_err_fn`: the error for an unknown name, with a list of all names. The caller adds the name that
/// was given.
#[must_use]
pub fn unknown<T: Display + VariantArray + 'static>(_name: &str) -> String {
    let names: Vec<String> = T::VARIANTS.iter().map(ToString::to_string).collect();
    format!("give one of {}", names.join(", "))
}
