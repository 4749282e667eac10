// SPDX-License-Identifier: MIT OR Apache-2.0
//! An experiment's settings as a TOML file.

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Error;

/// Reads a TOML file; what it doesn't say is as in `defaults`.
///
/// # Errors
/// When it can't be read, or holds something else than these settings.
pub(crate) fn read<T: Serialize + DeserializeOwned>(path: &Path, defaults: &T) -> Result<T, Error> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Error::BadInput(format!("reading {}: {error}", path.display())))?;
    parse(&text, defaults).map_err(|error| Error::BadInput(format!("{}: {error}", path.display())))
}

/// [`read`] of a text; errors are one line that says where.
pub(crate) fn parse<T: Serialize + DeserializeOwned>(
    text: &str,
    defaults: &T,
) -> Result<T, String> {
    let one_line = |error: toml::de::Error| {
        let line = error
            .span()
            .map(|span| text[..span.start].matches('\n').count() + 1);
        let message = error.message().lines().collect::<Vec<_>>().join(" ");
        line.map_or_else(|| message.clone(), |line| format!("line {line}: {message}"))
    };
    let given: toml::Table = toml::from_str(text).map_err(one_line)?;
    // The file as it is, for messages with their line; the defaults put in afterwards.
    let _: T = toml::from_str(text).map_err(one_line)?;
    let mut all = toml::Table::try_from(defaults).map_err(|error| error.to_string())?;
    all.extend(given);
    all.try_into()
        .map_err(|error: toml::de::Error| error.message().to_owned())
}

/// The first that is given twice.
pub(crate) fn twice<T: PartialEq>(all: &[T]) -> Option<&T> {
    all.iter()
        .enumerate()
        .find(|(index, one)| all[..*index].contains(one))
        .map(|(_, one)| one)
}
