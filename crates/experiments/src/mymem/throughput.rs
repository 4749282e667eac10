// SPDX-License-Identifier: MIT OR Apache-2.0
//! Transfers of several sizes: bytes written to the start of a device and read back, each call timed.

use std::path::PathBuf;

use memwarden_copies::mymem::{Transfer, Trial};
use memwarden_platform::clock;
use memwarden_run::studies::mymem_throughput::{Case, NAME, Summary, Whole};
use memwarden_run::{Metric, Sample, title};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Client, Subject, ended, open};
use crate::pinned::Pinned;
use crate::request::finished;
use crate::settings::{check_seed, check_sizes, check_within, not_twice};
use crate::{Error, Interrupt, RunRequest, Settings};

/// The course's transfer sizes, bytes.
const SIZES: [u64; 5] = [1, 64, 1024, 65_536, 524_288];

/// The largest size that the modules' parameter accepts, bytes.
const MAX_BYTES: u64 = 1 << 30;

/// A median below this multiple of the clock's shortest time is mostly clock error.
const COARSE: f64 = 5.0;

/// The experiment's settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Devices to measure; empty means all available.
    #[schemars(with = "Vec<String>")]
    pub device: Vec<Subject>,
    /// Bytes of a transfer.
    pub sizes: Vec<u64>,
    /// Transfers of each size.
    #[serde(alias = "trials")]
    pub repeat: u32,
    /// Seed of the random bytes.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            device: Vec::new(),
            sizes: SIZES.into(),
            repeat: 1000,
            seed: 1,
        }
    }
}

impl Settings for Config {
    type Whole = Whole;

    const COMMAND: &str = "mymem throughput";

    const RENAMED: &[(&str, &str)] = &[("trials", "repeat")];

    fn check(&self) -> Result<(), Error> {
        check_sizes(&self.sizes, MAX_BYTES)?;
        not_twice("--device", &self.device)?;
        check_within("--repeat", self.repeat, 1..=1_000_000)?;
        // The largest integer of TOML.
        check_seed(self.seed)?;
        Ok(())
    }
}

impl Config {
    /// The powers of two from 1 byte to the devices' 512 KiB.
    #[must_use]
    pub fn sweep() -> Vec<u64> {
        (0..=19).map(|power| 1 << power).collect()
    }
}

/// Runs the experiment and leaves its run folder.
///
/// # Errors
/// When a setting makes no sense here, a device is not there, refuses or gives other bytes back, or the run is
/// interrupted; what was measured is then in `DIR.partial`.
pub fn run(config: &Config, request: RunRequest) -> Result<(PathBuf, Summary), Error> {
    config.check()?;
    let interrupt = request.interrupt;
    let mut summary = Summary::new(NAME, "native");
    let clients = open(&config.device, &mut summary)?;
    fits(config, &clients)?;
    let mut folder = request.begin(NAME, config)?;

    let pinned = Pinned::to_last()?;
    let shortest_ns = clock::shortest_ns();
    let mut steps = request.steps(config.sizes.len() * clients.len());
    // All subjects at one size before the next size, so that background activity affects every subject.
    for &size in &config.sizes {
        for (subject, client) in clients.iter() {
            steps.next(&format!("{}, {}", subject.name(), title::size(size)));
            let mut trials = Vec::new();
            let cpu = match client {
                Client::Device(_) => u32::try_from(pinned.cpu).ok(),
                Client::InKernel { .. } => None,
            };
            let outcome = measure(config, client, size, interrupt, &mut trials);
            for (direction, ns) in [
                ("write", (|trial| trial.write_ns) as fn(&Trial) -> u64),
                ("read", |trial| trial.read_ns),
            ] {
                let times: Vec<f64> = trials.iter().map(|trial| ns(trial) as f64).collect();
                let case = case(subject, direction, size, &times);
                folder.append_all(&samples(&case.name, &times, cpu))?;
                summary.cases.push(case);
            }
            folder.flush()?;
            // The trials before an interrupt are written, too. A write after each trial would take part in the next.
            outcome?;
        }
    }
    steps.end();
    drop(pinned);
    summary.whole.clock_shortest_ns = Some(shortest_ns);
    remarks(shortest_ns, &mut summary);
    finished(folder, summary)
}

/// Measures the trials of one size; those before an error are in `trials`.
fn measure(
    config: &Config,
    client: &Client,
    size: u64,
    interrupt: &Interrupt,
    trials: &mut Vec<Trial>,
) -> Result<(), Error> {
    match client {
        Client::Device(device) => {
            let mut transfer = Transfer::new(length(size), config.seed);
            for _ in 0..config.repeat {
                interrupt.check()?;
                trials.push(transfer.trial(device)?);
            }
        }
        Client::InKernel { kernel, .. } => {
            interrupt.check()?;
            *trials = kernel
                .throughput(size, config.repeat, || interrupt.came())
                .map_err(|error| ended(error, interrupt))?;
        }
    }
    Ok(())
}

fn length(size: u64) -> usize {
    // At most a GiB, as checked.
    usize::try_from(size).unwrap_or(usize::MAX)
}

/// Refuses a transfer that is longer than a device.
fn fits(config: &Config, clients: &[(Subject, Client)]) -> Result<(), Error> {
    let largest = config.sizes.iter().copied().max().unwrap_or(0);
    for (subject, client) in clients {
        let bytes = match client {
            Client::Device(device) => device.bytes(),
            Client::InKernel { bytes, .. } => *bytes,
        };
        if bytes < largest {
            return Err(Error::BadInput(format!(
                "--sizes {largest}: {subject} has {bytes} bytes"
            )));
        }
    }
    Ok(())
}

/// Raw samples of one case.
fn samples(case: &str, times_ns: &[f64], cpu: Option<u32>) -> Vec<Sample> {
    (0..)
        .zip(times_ns)
        .map(|(trial, ns)| {
            let mut sample = Sample::new(case, trial, "device", "time_ns", "ns", *ns);
            sample.cpu = cpu;
            sample
        })
        .collect()
}

/// The figures of one case.
fn case(subject: &Subject, direction: &str, size: u64, times_ns: &[f64]) -> Case {
    let plural = if size == 1 { "" } else { "s" };
    let name = format!("{}, {direction}, {size} byte{plural}", subject.name());
    let time = Metric::from_samples("time_ns", times_ns);
    // One byte per nanosecond is one GB a second.
    let mb_s = time
        .median
        .filter(|ns| *ns > 0.0)
        .map(|ns| size as f64 / ns * 1000.0);
    Case {
        name,
        guard: (),
        subject: subject.name(),
        direction: direction.into(),
        size_bytes: size,
        time: Some(time),
        mb_s,
    }
}

/// Adds the notes that a reader needs.
fn remarks(shortest_ns: u64, summary: &mut Summary) {
    let limit = COARSE * shortest_ns as f64;
    let coarse: Vec<String> = summary
        .cases
        .iter()
        .filter(|case| {
            let median = case.time.as_ref().and_then(|time| time.median);
            median.is_some_and(|ns| ns < limit)
        })
        .map(Case::title)
        .collect();
    if !coarse.is_empty() {
        summary.note(format!(
            "The shortest time that this clock measures is {shortest_ns} ns (its step, or the cost of reading it). The \
             medians of these cases are below five times that and no more exact: {}.",
            coarse.join("; ")
        ));
    }
    let from_user_space = |case: &Case| case.subject != "in-kernel";
    if summary.cases.iter().any(from_user_space) {
        summary.note(
            "Each time is of one pwrite or pread from user space, including one reading of the clock. The data read \
             was compared with the data written, outside the timing.",
        );
    }
    if !summary.cases.iter().all(from_user_space) {
        summary.note(
            "In-kernel is the Rust device called by another kernel module: no system call, and a copy within the kernel \
             instead of one from or to user space.",
        );
    }
}

#[cfg(test)]
mod tests {
    use memwarden_copies::mymem::InKernel;

    use super::*;
    use crate::settings;

    #[test]
    fn defaults_round_trip_through_toml() {
        let config = Config {
            device: Subject::all().into(),
            ..Config::default()
        };
        config.check().unwrap();
        let back = settings::tests::read(&config.to_toml().unwrap(), &Config::default()).unwrap();
        assert_eq!(back, config);
        assert_eq!(Config::sweep().len(), 20);
        assert_eq!(Config::sweep().last(), SIZES.last());
    }

    #[test]
    fn no_size_is_measured_if_the_largest_does_not_fit() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let client = Client::InKernel {
            kernel: InKernel::open(file.path()).unwrap(),
            bytes: 524_288,
        };
        let clients = [(Subject::InKernel, client)];
        let of = |sizes: &[u64]| Config {
            sizes: sizes.into(),
            ..Config::default()
        };
        fits(&of(&[64, 524_288]), &clients).unwrap();
        let message = fits(&of(&[1 << 20, 64]), &clients).unwrap_err().to_string();
        assert_eq!(message, "--sizes 1048576: in-kernel has 524288 bytes");
    }

    #[test]
    fn an_interrupt_keeps_the_trials_before_it() {
        let folder = tempfile::tempdir().unwrap();
        let (out, device) = (folder.path().join("run"), folder.path().join("device"));
        std::fs::write(&device, [0; 64]).unwrap();
        let config = Config {
            device: vec![Subject::Device(device)],
            sizes: vec![1, 64],
            ..Config::default()
        };
        let interrupt = Interrupt::after_checks(3);
        let ended = run(&config, RunRequest::to(&out, &interrupt, &mut ()));
        assert!(matches!(ended, Err(Error::Interrupted)), "{ended:?}");
        let samples = out.with_extension("partial").join("samples.csv");
        let rows = memwarden_run::read_samples(&samples).unwrap();
        let repeats: Vec<u32> = rows.iter().map(|row| row.repeat).collect();
        assert_eq!(repeats, [0, 1, 2, 0, 1, 2], "three writes and three reads");
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        let with = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert!(with(|c| c.sizes.clear()).contains("--sizes 64"));
        assert!(with(|c| c.sizes.push(0)).contains("--sizes 0"));
        assert!(with(|c| c.sizes.push(64)).contains("64 is given twice"));
        assert!(with(|c| c.sizes.push(1 << 31)).contains("--sizes 2147483648"));
        assert!(with(|c| c.repeat = 0).contains("--repeat 0"));
        assert!(with(|c| c.seed = u64::MAX).contains("--seed 18446744073709551615"));
        assert!(
            with(|c| c.device = vec![Subject::InKernel; 2]).contains("in-kernel is given twice")
        );
    }

    #[test]
    fn a_clock_too_coarse_for_a_call_is_said_and_no_rate_made_of_0_ns() {
        let mut summary = Summary::new(NAME, "native");
        for (size, ns) in [(1, 0.0), (64, 79.0), (524_288, 20_000.0)] {
            let case = case(&Subject::InKernel, "read", size, &[ns]);
            summary.cases.push(case);
        }
        remarks(16, &mut summary);
        let note = &summary.notes[0];
        assert!(
            note.ends_with(": in-kernel, read, 1\u{a0}B; in-kernel, read, 64\u{a0}B."),
            "{note}"
        );
        assert_eq!(summary.cases[0].mb_s, None);
        assert_eq!(summary.cases[2].mb_s, Some(26_214.4));
    }
}
