// SPDX-License-Identifier: MIT OR Apache-2.0
//! Settings of the counter experiment, from TOML or from options.

use memwarden_copies::mymem::Lock;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::VariantArray;

use super::Workers;
use crate::mymem::Subject;
use crate::settings::{check_within, not_empty, not_twice};
use crate::{Error, Settings};

/// Most increments of a worker: even 100 workers stay far below 2^64.
const MAX_INCREMENTS: u64 = 1_000_000_000;

/// The experiment's settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Devices to measure; empty means all available.
    #[schemars(with = "Vec<String>")]
    pub device: Vec<Subject>,
    /// Numbers of workers; each is measured separately.
    #[schemars(with = "String")]
    pub workers: Workers,
    /// Increments of each worker.
    pub increments: u64,
    /// Locks; each is measured separately.
    pub lock: Vec<Lock>,
    /// Runs of each case; the cases alternate.
    pub repeat: u32,
    /// Numbers of workers inside the kernel; empty means the same as `workers`.
    #[schemars(with = "String")]
    pub in_kernel_workers: Workers,
    /// Increments of each worker inside the kernel; 0 means the same as `increments`.
    pub in_kernel_increments: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            device: Vec::new(),
            workers: [1, 2, 4, 8, 16, 50, 100].into_iter().collect(),
            increments: 150_000,
            lock: Lock::VARIANTS.into(),
            repeat: 1,
            in_kernel_workers: Workers::default(),
            in_kernel_increments: 0,
        }
    }
}

impl Settings for Config {
    type Whole = memwarden_run::studies::mymem_counter::Whole;

    const COMMAND: &str = "mymem counter";

    /// The settings for the emulated machine, where system calls are slow: few increments from user space; inside the
    /// kernel, without system calls, the course's own 50 workers with 150,000 each.
    fn for_lab() -> Self {
        Self {
            workers: [1, 2, 4, 8, 50].into_iter().collect(),
            increments: 1000,
            in_kernel_workers: [50].into_iter().collect(),
            in_kernel_increments: 150_000,
            ..Self::default()
        }
    }

    fn check(&self) -> Result<(), Error> {
        let bad = |text: String| Err(Error::BadInput(text));
        if self.workers.is_empty() {
            return bad("no number of workers: give --workers 1-8, for example".into());
        }
        check_within("--increments", self.increments, 1..=MAX_INCREMENTS)?;
        if self.in_kernel_increments > MAX_INCREMENTS {
            let n = self.in_kernel_increments;
            return bad(format!(
                "--in-kernel-increments {n}: give 1 to {MAX_INCREMENTS}"
            ));
        }
        not_empty(&self.lock, "no lock: give --lock none, for example")?;
        not_twice("--lock", &self.lock)?;
        not_twice("--device", &self.device)?;
        check_within("--repeat", self.repeat, 1..=10_000)?;
        Ok(())
    }
}

impl Config {
    /// Numbers of workers, and increments of each worker.
    pub(super) fn of(&self, subject: &Subject) -> (&Workers, u64) {
        if *subject != Subject::InKernel {
            return (&self.workers, self.increments);
        }
        let workers = if self.in_kernel_workers.is_empty() {
            &self.workers
        } else {
            &self.in_kernel_workers
        };
        let increments = match self.in_kernel_increments {
            0 => self.increments,
            own => own,
        };
        (workers, increments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings;

    #[test]
    fn defaults_round_trip_through_toml() {
        for config in [Config::default(), Config::for_lab()] {
            config.check().unwrap();
            let back =
                settings::tests::read(&config.to_toml().unwrap(), &Config::default()).unwrap();
            assert_eq!(back, config);
        }
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        let with = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert!(with(|c| c.workers = Workers::default()).contains("--workers 1-8"));
        assert!(with(|c| c.increments = 0).contains("--increments 0"));
        assert!(with(|c| c.in_kernel_increments = 1 << 40).contains("--in-kernel-increments"));
        assert!(with(|c| c.lock.clear()).contains("--lock none"));
        assert!(with(|c| c.lock.push(Lock::None)).contains("--lock none is given twice"));
        assert!(with(|c| c.repeat = 0).contains("--repeat 0"));
    }

    #[test]
    fn inside_the_kernel_it_may_be_others() {
        let lab = Config::for_lab();
        let (workers, increments) = lab.of(&Subject::InKernel);
        assert_eq!((workers.to_string().as_str(), increments), ("50", 150_000));
        let native = Config::default();
        assert_eq!(native.of(&Subject::InKernel).1, native.increments);
    }
}
