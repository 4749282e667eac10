// SPDX-License-Identifier: MIT OR Apache-2.0
//! Enums that options and files know by their variants' names.

use std::fmt::Display;

use strum::VariantArray;

/// For strum's `parse_err_fn`: the error of a name that is no variant's, with those that are. Whatever reads the option
/// or the file says which name it was.
#[must_use]
pub fn unknown<T: Display + VariantArray + 'static>(_name: &str) -> String {
    let names: Vec<String> = T::VARIANTS.iter().map(ToString::to_string).collect();
    format!("give one of {}", names.join(", "))
}
