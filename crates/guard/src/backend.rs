// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which regulator: asked for by name, or whatever the machine has.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Error, Module, ModuleSource, Null, Regulator, User};

/// A regulator by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// The module where it is loaded or can be, else user space.
    #[default]
    Auto,
    /// The kernel module.
    Module,
    /// User space.
    User,
    /// Regulates nothing: what measuring itself costs.
    Null,
}

impl Backend {
    /// The regulator. One that is `tied` ends with this process where it is this process that starts it.
    ///
    /// # Errors
    /// When the machine's CPUs can't be read.
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

/// The guard that is running.
///
/// # Errors
/// When none is, or it can't be asked: not running, no device, not root.
pub fn running() -> Result<Box<dyn Regulator>, Error> {
    let guard = Backend::Auto.regulator(None, false)?;
    // With nothing running, it is the one that would be started: ask the other about its last words.
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
