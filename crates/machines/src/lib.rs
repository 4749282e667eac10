// SPDX-License-Identifier: MIT OR Apache-2.0
//! The machines that the models know by name, and the users' own: one TOML file each.
//!
//! A file describes the caches of a machine once. What only one of the two models needs is in tables of its own:
//!
//! | half | tables | who reads it |
//! | --- | --- | --- |
//! | [`Half::Counters`] | `[counters]` | `memwarden-cachesim`: replacement, TLBs by page size, further prefetchers |
//! | [`Half::Times`] | `[memory]`, `[controller]`, `[reaction]`, `[work]`, `[fit]`, and all `_ps` | `memwarden-sim`, and with it the lab |
//!
//! A file may have one half only. It is checked as a whole: every invalid field is reported with its line and its
//! allowed values, whichever half is requested.
//!
//! | module | what it is |
//! | --- | --- |
//! | `fields` | the fields of a file with their ranges, and the rules for several fields together |
//! | `faults` | errors in a file, each with its line |
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod faults;
mod fields;

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use memwarden_platform::settings_file;
use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::DeTable;

pub use faults::{Fault, Listed};
pub use fields::{MAX_IDLE_PS, refuses};

/// The machines that come with the program: name and file.
const BUILT_IN: [(&str, &str); 5] = [
    ("i5-2467m", include_str!("../machines/i5-2467m.toml")),
    (
        "raspberry-pi-3",
        include_str!("../machines/raspberry-pi-3.toml"),
    ),
    (
        "raspberry-pi-4",
        include_str!("../machines/raspberry-pi-4.toml"),
    ),
    ("xeon-6426y", include_str!("../machines/xeon-6426y.toml")),
    ("xeon-w3530", include_str!("../machines/xeon-w3530.toml")),
];

/// What a model needs beyond the caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Half {
    /// The events of a stream of accesses, without time.
    Counters,
    /// The memory, and the times of everything.
    Times,
}

/// Why a machine cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("reading {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file has invalid values.
    #[error("{}", Listed(.path, .faults))]
    Faults {
        /// The file.
        path: PathBuf,
        /// All of its errors.
        faults: Vec<Fault>,
    },
    /// No machine of that name comes with the program.
    #[error("there is no platform \"{name}\"; there are {}, or give a file", names(*.half).join(", "))]
    Unknown {
        /// The requested name.
        name: String,
        /// The requested half.
        half: Half,
    },
    /// The machine has the other half only.
    #[error("{}: the file has no {}: {}", .path.display(), .half.needs(), names(*.half).join(", "))]
    Without {
        /// The file, or the name.
        path: PathBuf,
        /// The requested half.
        half: Half,
    },
}

impl Half {
    /// How the tables that a file lacks are named.
    fn needs(self) -> &'static str {
        match self {
            Self::Counters => {
                "[counters], which the modelled counters need; these platforms have one"
            }
            Self::Times => {
                "[memory] and no times, which a simulation needs; these platforms have them"
            }
        }
    }
}

/// The names of the machines that come with the program and have this half.
#[must_use]
pub fn names(half: Half) -> Vec<&'static str> {
    let has =
        |text: &str| DeTable::parse(text).is_ok_and(|table| fields::has(table.get_ref(), half));
    let machines = BUILT_IN.iter().filter(|(_, text)| has(text));
    machines.map(|(name, _)| *name).collect()
}

/// The file of a machine, with its path: of one that comes with the program (the path is then its name), or a user's. A
/// name with a `/` in it or with the ending `.toml` is a file. `half` is for the error.
///
/// # Errors
/// When there is no machine of that name, or the file cannot be read.
pub fn find(name: &str, half: Half) -> Result<(PathBuf, Cow<'static, str>), Error> {
    let path = PathBuf::from(name);
    if is_file(name) {
        // An experiment reads it when it checks its settings, and again when it runs.
        return match settings_file::read_again(&path) {
            Ok(text) => Ok((path, text.into())),
            Err(source) => Err(Error::Read { path, source }),
        };
    }
    match BUILT_IN.iter().find(|machine| machine.0 == name) {
        Some((_, text)) => Ok((path, (*text).into())),
        None => Err(Error::Unknown {
            name: name.into(),
            half,
        }),
    }
}

/// Whether a machine's name is that of a file.
#[must_use]
pub fn is_file(name: &str) -> bool {
    name.contains('/') || name.ends_with(".toml")
}

/// A machine's file whose fields are valid, each by itself. The errors in several fields together are reported by
/// [`finish`](Self::finish).
#[derive(Debug)]
pub struct File<'t> {
    path: &'t Path,
    text: &'t str,
    table: Spanned<DeTable<'t>>,
    /// The path and the position of each value.
    places: Vec<(String, usize)>,
    faults: Vec<Fault>,
}

impl<'t> File<'t> {
    /// Reads the text of the file `path` for the sake of one half.
    ///
    /// # Errors
    /// All errors in single fields, of both halves; or the requested half is missing.
    pub fn read(path: &'t Path, text: &'t str, half: Half) -> Result<Self, Error> {
        let refused = |faults| Error::Faults {
            path: path.to_owned(),
            faults,
        };
        let table =
            DeTable::parse(text).map_err(|error| refused(vec![Fault::syntax(text, &error)]))?;
        let leaves = fields::leaves(table.get_ref());
        let mut halves =
            [Half::Counters, Half::Times].map(|one| (one, fields::has(table.get_ref(), one)));
        if halves.iter().all(|(_, there)| !there) {
            // Then the fields of the requested one are missing.
            halves = halves.map(|(one, _)| (one, one == half));
        }
        if halves.contains(&(half, false)) {
            return Err(Error::Without {
                path: path.to_owned(),
                half,
            });
        }
        let wanted = halves.iter().filter(|(_, there)| *there);
        let wanted: Vec<Half> = wanted.map(|(one, _)| *one).collect();
        let mut faults = fields::judge(text, &leaves, &wanted);
        if !faults.is_empty() {
            faults.sort_by_key(|fault| fault.line);
            return Err(refused(faults));
        }
        let wrong = fields::together(&leaves);
        let places = leaves.into_iter().map(|leaf| (leaf.path, leaf.at));
        let places = places.collect();
        let mut file = Self {
            path,
            text,
            table,
            places,
            faults,
        };
        for (field, why) in wrong {
            file.fault(&field, &field, why);
        }
        Ok(file)
    }

    /// Its fields as plain data, without the top-level tables of these names.
    ///
    /// # Errors
    /// When the data have another form.
    pub fn data<T: DeserializeOwned>(&self, without: &[&str]) -> Result<T, Error> {
        let mut table = self.table.clone();
        for name in without {
            table.get_mut().remove(*name);
        }
        T::deserialize(toml::Deserializer::from(table)).map_err(|error| Error::Faults {
            path: self.path.to_owned(),
            faults: vec![Fault::syntax(self.text, &error)],
        })
    }

    /// Whether the file has a value at this path.
    #[must_use]
    pub fn has(&self, path: &str) -> bool {
        self.places.iter().any(|one| one.0 == path)
    }

    /// Adds an error, at the line of the field `place`.
    pub fn fault(&mut self, place: &str, field: &str, why: impl Into<String>) {
        let at = self.places.iter().find(|one| one.0 == place);
        let at = at.map_or(0, |one| one.1);
        self.faults.push(Fault::at(self.text, at, field, why));
    }

    /// The end of all checks.
    ///
    /// # Errors
    /// All errors in several fields together, in the order of their lines.
    pub fn finish(mut self) -> Result<(), Error> {
        if self.faults.is_empty() {
            return Ok(());
        }
        self.faults.sort_by_key(|fault| fault.line);
        Err(Error::Faults {
            path: self.path.to_owned(),
            faults: self.faults,
        })
    }
}

#[cfg(test)]
mod tests;
