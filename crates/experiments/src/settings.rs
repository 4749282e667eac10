// SPDX-License-Identifier: MIT OR Apache-2.0
//! What all experiments' settings can do.

use std::fmt;
use std::path::{Path, PathBuf};

use memwarden_run::{Existing, Summary, Whole};
use memwarden_sim::Platform;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

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

    /// These settings with a TOML file over them, and options over both. The options serialise under the settings' names;
    /// one that was not given is null.
    ///
    /// # Errors
    /// When the file can't be read, or holds something else than these settings.
    fn under(&self, file: Option<&Path>, options: &impl Serialize) -> Result<Self, Error> {
        let mut all = json(self)?;
        if let Some(path) = file {
            let text = std::fs::read_to_string(path)
                .map_err(|error| Error::BadInput(format!("reading {}: {error}", path.display())))?;
            let given = parse::<Self>(&text)
                .map_err(|error| Error::BadInput(format!("{}: {error}", path.display())))?;
            lay(&mut all, json(&given)?);
        }
        lay(&mut all, json(options)?);
        serde_json::from_value(all).map_err(|error| Error::BadInput(error.to_string()))
    }

    /// The settings as TOML.
    ///
    /// # Errors
    /// A number that TOML can't hold.
    fn to_toml(&self) -> Result<String, Error> {
        toml::to_string(self).map_err(|error| Error::BadInput(format!("the settings: {error}")))
    }
}

fn json(value: &impl Serialize) -> Result<Value, Error> {
    serde_json::to_value(value).map_err(|error| Error::BadInput(error.to_string()))
}

/// Puts `over` over `all`, field by field.
fn lay(all: &mut Value, over: Value) {
    match (all, over) {
        (_, Value::Null) => {}
        (Value::Object(all), Value::Object(over)) => {
            for (key, value) in over {
                lay(all.entry(key).or_insert(Value::Null), value);
            }
        }
        (all, over) => *all = over,
    }
}

/// A file's settings, of which it need not have all; errors are one line that says where.
fn parse<T: DeserializeOwned>(text: &str) -> Result<toml::Table, String> {
    let one_line = |error: toml::de::Error| {
        let line = error
            .span()
            .map(|span| text[..span.start].matches('\n').count() + 1);
        let message = error.message().lines().collect::<Vec<_>>().join(" ");
        line.map_or_else(|| message.clone(), |line| format!("line {line}: {message}"))
    };
    // As these settings, for messages with their line.
    let _: T = toml::from_str(text).map_err(one_line)?;
    toml::from_str(text).map_err(one_line)
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// What a file of this text makes of these settings.
    pub(crate) fn read<S: Settings>(text: &str, defaults: &S) -> Result<S, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        defaults
            .under(Some(file.path()), &())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn options_lie_over_the_file_and_the_file_over_the_defaults() {
        #[derive(Serialize)]
        struct Policy {
            quantum_high_ns: Option<u64>,
            fold: Option<bool>,
        }
        #[derive(Serialize)]
        struct Options {
            sizes: Option<Vec<u64>>,
            repeat: Option<u32>,
            policy: Policy,
        }
        use crate::copy::bandwidth::Config;
        let file = tempfile::NamedTempFile::new().unwrap();
        let text =
            "repeat = 7\noperations = 9\n[policy]\nquantum_low_ns = 5\nquantum_high_ns = 6\n";
        std::fs::write(file.path(), text).unwrap();
        let options = Options {
            sizes: Some(Vec::new()),
            repeat: Some(3),
            policy: Policy {
                quantum_high_ns: Some(8),
                fold: None,
            },
        };
        let config = Config::default()
            .under(Some(file.path()), &options)
            .unwrap();
        assert_eq!((config.repeat, config.operations), (3, 9));
        assert_eq!(config.engine, Config::default().engine);
        assert!(config.sizes.is_empty(), "an empty list is given");
        let policy = config.policy;
        assert_eq!(
            (policy.quantum_low_ns, policy.quantum_high_ns, policy.fold),
            (5, 8, false)
        );
    }
}
