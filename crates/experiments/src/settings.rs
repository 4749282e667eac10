// SPDX-License-Identifier: MIT OR Apache-2.0
//! What all experiments' settings can do.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use memwarden_run::{Existing, Summary, Whole};
use memwarden_sim::Platform;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Error, Interrupt, Progress, Simulated};

/// An experiment's settings: data, as TOML or as options of its command.
pub trait Settings: Default + Serialize + DeserializeOwned {
    /// What the experiment's summary holds.
    type Whole: Whole;

    /// The platform whose caches and memory the emulated machine has where none is named. Without one an access takes no
    /// time there.
    const PLATFORM: Option<&'static str> = None;

    /// The settings that suit the emulated machine.
    #[must_use]
    fn for_lab() -> Self {
        Self::default()
    }

    /// The settings that suit the emulated machine with a platform's caches and memory, such as [`Self::PLATFORM`]'s.
    #[must_use]
    fn for_modelled(_platform: &Platform) -> Self {
        Self::for_lab()
    }

    /// The settings that suit a simulated machine.
    #[must_use]
    fn for_sim() -> Self {
        Self::default()
    }

    /// Runs the experiment on a simulated machine.
    ///
    /// # Errors
    /// As on any other; or the experiment isn't modelled.
    fn simulate(
        &self,
        simulated: &Simulated,
        _out: Option<&Path>,
        _existing: Existing,
        _interrupt: &Interrupt,
        _progress: &mut dyn Progress,
    ) -> Result<(PathBuf, Summary<Self::Whole>), Error> {
        Err(Error::BadInput(format!(
            "--on sim:{}: this experiment is not modelled; give native or lab (interfere and realtime are)",
            simulated.asked
        )))
    }

    /// The same settings as options of the experiment's command.
    fn to_arguments(&self) -> Vec<String>;

    /// What stands behind `--` after these options: a command with its arguments, byte for byte. Empty is none.
    fn command(&self) -> &[OsString] {
        &[]
    }

    /// What can be said without measuring anything.
    ///
    /// # Errors
    /// The first setting that makes no sense.
    fn check(&self) -> Result<(), Error>;

    /// Whether a real machine can do it, native or emulated.
    ///
    /// # Errors
    /// The first setting that only a simulated one can.
    fn check_real(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Whether a platform has the cores that are asked for.
    ///
    /// # Errors
    /// The first core that it has not.
    fn check_cores(&self, _platform: &Simulated) -> Result<(), Error> {
        Ok(())
    }

    /// Reads a TOML file; what it doesn't say is as in `defaults`.
    ///
    /// # Errors
    /// When it can't be read, or holds something else than these settings.
    fn read(path: &Path, defaults: &Self) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Error::BadInput(format!("reading {}: {error}", path.display())))?;
        parse(&text, defaults)
            .map_err(|error| Error::BadInput(format!("{}: {error}", path.display())))
    }

    /// The settings as TOML.
    fn to_toml(&self) -> String {
        toml::to_string(self).unwrap_or_default()
    }
}

/// [`Settings::read`] of a text; errors are one line that says where.
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

/// A repeatable option's values.
pub(crate) fn not_twice<T: PartialEq + fmt::Display>(option: &str, all: &[T]) -> Result<(), Error> {
    let mut before = all.iter().enumerate();
    match before.find(|(index, one)| all[..*index].contains(one)) {
        Some((_, one)) => Err(Error::BadInput(format!("{option} {one} is given twice"))),
        None => Ok(()),
    }
}

/// Sizes of what a device moves at once: up to the `most` bytes that it takes, none twice.
pub(crate) fn check_sizes(sizes: &[u64], most: u64) -> Result<(), Error> {
    if sizes.is_empty() {
        return Err(Error::BadInput(
            "no size: give --sizes 64,4096, for example".into(),
        ));
    }
    if let Some(size) = sizes.iter().find(|size| !(1..=most).contains(*size)) {
        return Err(Error::BadInput(format!(
            "--sizes {size}: give 1 to {most} bytes"
        )));
    }
    not_twice("--sizes", sizes)
}
