// SPDX-License-Identifier: MIT OR Apache-2.0
//! Selects a regulator by name, or the one that suits the machine.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Error, Module, ModuleSource, Null, Regulator, User};

/// A regulator by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// The kernel module if its file is given or it is loaded. Otherwise the regulator in user space if it already runs
    /// or no module is installed; else the module.
    #[default]
    Auto,
    /// The kernel module.
    Module,
    /// User space.
    User,
    /// Regulates nothing; shows the cost of the measurement itself.
    Null,
}

impl Backend {
    /// Returns the regulator. With `tied`, a user-space regulator that this process starts ends with this process.
    ///
    /// # Errors
    /// When the list of online CPUs can't be read.
    pub fn regulator(
        self,
        module: Option<ModuleSource>,
        tied: bool,
    ) -> Result<Box<dyn Regulator>, Error> {
        let given = module.is_some();
        let module = Module::new(module.unwrap_or_default());
        let user = || Box::new(if tied { User::tied() } else { User::new() });
        Ok(match self {
            Self::Auto if given || module.is_loaded() => Box::new(module),
            Self::Auto if user().is_running() || module.find().is_err() => user(),
            Self::Auto | Self::Module => Box::new(module),
            Self::User => user(),
            Self::Null => {
                let cpus = memwarden_platform::cpus::online().map_err(Error::platform)?;
                Box::new(Null::new(cpus))
            }
        })
    }
}

/// Returns the running guard.
///
/// # Errors
/// When no guard runs, or its settings can't be read: the device is missing, or the caller isn't root.
pub fn running() -> Result<Box<dyn Regulator>, Error> {
    let guard = Backend::Auto.regulator(None, false)?;
    // If no guard runs, `guard` may be the module. The user-space regulator's error also tells why the last one ended.
    match guard.settings() {
        Ok(_) => Ok(guard),
        Err(Error::NotRunning) => {
            let user = User::new();
            user.settings()?;
            Ok(Box::new(user))
        }
        Err(error) => Err(error),
    }
}

impl FromStr for Backend {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "auto" => Ok(Self::Auto),
            "module" => Ok(Self::Module),
            "user" => Ok(Self::User),
            "null" => Ok(Self::Null),
            _ => Err(Error::BadInput(format!(
                "backend `{text}`: give auto, module, user or null"
            ))),
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Module => "module",
            Self::User => "user",
            Self::Null => "null",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_print() {
        for backend in [Backend::Auto, Backend::Module, Backend::User, Backend::Null] {
            assert_eq!(backend.to_string().parse::<Backend>().unwrap(), backend);
        }
        assert!("kernel".parse::<Backend>().is_err());
        let null = Backend::Null.regulator(None, false).unwrap();
        assert_eq!(null.name(), "null");
        assert_eq!(Backend::User.regulator(None, true).unwrap().name(), "user");
    }
}
