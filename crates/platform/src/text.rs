// SPDX-License-Identifier: MIT OR Apache-2.0
//! Types that are text in files, in the form that their options have.

use std::fmt::Display;
use std::str::FromStr;

use serde::de::{Deserializer, Error};

/// Reads a value from a text; `describe` words the error.
///
/// # Errors
/// When it is no text, or the type does not accept it.
pub fn read<'de, T: FromStr, D: Deserializer<'de>, E: Display>(
    deserializer: D,
    describe: impl FnOnce(&str, T::Err) -> E,
) -> Result<T, D::Error> {
    let text: String = serde::Deserialize::deserialize(deserializer)?;
    text.parse()
        .map_err(|error| D::Error::custom(describe(&text, error)))
}

/// Lets serde write these types by `Display` and read them by `FromStr`. A name in front of an error helps where the
/// type's own errors do not say what was read.
#[macro_export]
macro_rules! as_text {
    ($type:ty) => {
        $crate::as_text!($type, |_, error| error);
    };
    ($type:ty, $describe:expr) => {
        impl serde::Serialize for $type {
            fn serialize<S>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error>
            where
                S: serde::Serializer,
            {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D>(deserializer: D) -> std::result::Result<Self, D::Error>
            where
                D: serde::Deserializer<'de>,
            {
                $crate::text::read(deserializer, $describe)
            }
        }
    };
}
