// SPDX-License-Identifier: MIT OR Apache-2.0
//! Traces every copy between user and kernel memory on the whole machine. The kernel records each copy, and one thread
//! per CPU reads and counts the records.

mod dat;
mod figures;
mod readers;

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use memwarden_copies::provide_trace;
pub use memwarden_copies::trace::Function;
use memwarden_copies::trace::{self, Control, FunctionStatistics, Info, Reader, Tracer, Waits};
use memwarden_platform::units::Time;
use memwarden_platform::{cpus, file_limit};
use memwarden_run::Sample;
use memwarden_run::studies::copy_trace::{NAME, Summary, Whole};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::VariantArray;

use crate::settings::{not_empty, not_twice};
use crate::{Error, Interrupt, RunRequest, Settings};

pub use readers::{CLASSES, Live};
use readers::{End, Ring, Trace};

/// Interval between checks for the end of the trace: cheap, and short enough that Ctrl-C feels immediate.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Interval between updates of a live view. Each update queries the kernel, which is itself a copy.
const WATCH_EVERY: Duration = Duration::from_millis(500);

/// The experiment's settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The devices' folder, or `null`.
    pub device: PathBuf,
    /// The functions to trace.
    pub ops: Vec<Function>,
    /// Duration, such as `100s`; none traces until the command ends or until an interrupt.
    #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub time: Option<Time>,
    /// Longest interval between two reads of the rings.
    #[schemars(with = "String")]
    pub every: Time,
    /// Write each record to the classic files as well.
    pub dat: bool,
    /// A command with its arguments; the trace ends when the command ends. Empty means none. In a file, a word that is
    /// not UTF-8 is an array of its bytes.
    #[serde(with = "memwarden_platform::text_or_bytes::list")]
    #[schemars(with = "Vec<String>")]
    pub command: Vec<OsString>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            device: trace::DEVICES.into(),
            ops: Function::VARIANTS.into(),
            time: None,
            every: Time::ms(100),
            dat: false,
            command: Vec::new(),
        }
    }
}

/// Default duration in the lab, where the trace has neither a command nor a terminal for Ctrl-C.
pub const LAB_TIME: Time = Time::ms(1000);

impl Settings for Config {
    type Whole = Whole;

    const COMMAND: &str = "trace copies";

    fn check(&self) -> Result<(), Error> {
        let bad = |text: String| Err(Error::BadInput(text));
        not_empty(&self.ops, "no operation: give --ops from,to, for example")?;
        not_twice("--ops", &self.ops)?;
        let within = |option: &str, time: Time, longest: Time, limits: &str| {
            if (Time::ms(1)..=longest).contains(&time) {
                Ok(())
            } else {
                bad(format!("{option} {time}: give {limits}"))
            }
        };
        if let Some(time) = self.time {
            within("--for", time, Time::ms(366 * 86_400_000), "1ms to a year")?;
        }
        within("--every", self.every, Time::ms(10_000), "1ms to 10s")?;
        if let (Some(time), Some(command)) = (&self.time, self.command.first()) {
            return bad(format!(
                "--for {time}: the trace ends with the command {}; give one of the two",
                command.to_string_lossy()
            ));
        }
        Ok(())
    }
}

/// An observer of a running trace.
pub trait Watch {
    /// True if the observer wants updates; without one the kernel is not queried.
    fn is_looked_at(&self) -> bool;

    /// Receives the counts so far.
    fn look(&mut self, elapsed: Duration, live: &[Live]);
}

/// An observer that ignores all updates.
impl Watch for () {
    fn is_looked_at(&self) -> bool {
        false
    }

    fn look(&mut self, _: Duration, _: &[Live]) {}
}

/// The command that runs during the trace, as the caller starts it.
pub trait Beside {
    /// Starts it.
    ///
    /// # Errors
    /// When it can't be started.
    fn start(&mut self) -> Result<(), Error>;

    /// Its exit code if it has ended.
    ///
    /// # Errors
    /// When it can't be watched.
    fn ended(&mut self) -> Result<Option<i32>, Error>;

    /// Ends the command, because the trace ended first; returns its exit code.
    ///
    /// # Errors
    /// When it can't be waited for.
    fn end(&mut self) -> Result<i32, Error>;
}

/// Traces and writes the run folder. The trace ends after its duration, with the command, or on an interrupt, which is
/// the normal end of a trace without a duration and no error.
///
/// # Errors
/// When a setting is invalid here, a device is missing or refuses, or records that the kernel counted were lost.
pub fn run(
    config: &Config,
    request: RunRequest,
    watch: &mut dyn Watch,
    beside: Option<&mut dyn Beside>,
) -> Result<(PathBuf, Summary), Error> {
    config.check()?;
    let (time, every) = (config.time.map(Time::duration), config.every.duration());
    let loaded = provide_trace(&config.device)?;
    let tracer = trace::open(&config.device)?;
    let cpus: Vec<usize> = cpus::online()?.iter().collect();
    file_limit::raise();
    // Before the folder is created, as another trace may own the rings.
    let rings = Claimed::of(tracer.as_ref(), &config.ops, &cpus)?;
    let mut folder = request.begin(NAME, config)?;
    let files = config
        .dat
        .then(|| dat::Files::create(folder.partial(), &config.ops))
        .transpose()?;
    let until = Until {
        time,
        interrupt: request.interrupt,
        beside,
        exit_code: None,
    };
    let traced = rings.trace(tracer.info(), every, files.as_ref(), until, watch)?;
    if let Some(files) = files {
        files.finish()?;
    }

    let mut summary = Summary::new(NAME, "native");
    let samples = figures::fill(&mut summary, &traced);
    folder.append_all(&samples)?;
    figures::remarks(&mut summary, config, &traced);
    let path = folder.finish(&summary)?;
    // Function names inside the module were resolved above, so the module may go.
    drop(tracer);
    drop(loaded);
    Ok((path, summary))
}

/// The result of a trace.
struct Traced {
    info: Info,
    functions: Vec<Function>,
    cpus: Vec<usize>,
    elapsed: Duration,
    /// One for each function.
    statistics: Vec<FunctionStatistics>,
    /// One for each CPU and function.
    rings: Vec<Ring>,
    missed: u64,
    exit_code: Option<i32>,
}

/// Conditions that end a trace.
struct Until<'a, 'b> {
    time: Option<Duration>,
    interrupt: &'a Interrupt,
    beside: Option<&'b mut dyn Beside>,
    exit_code: Option<i32>,
}

impl Until<'_, '_> {
    fn is_there(&mut self, elapsed: Duration) -> Result<bool, Error> {
        if let Some(beside) = &mut self.beside {
            self.exit_code = beside.ended()?;
        }
        Ok(self.exit_code.is_some()
            || self.interrupt.came()
            || self.time.is_some_and(|time| elapsed >= time))
    }

    /// Waits until the next check, by a wait that is no copy itself.
    fn wait(&self, elapsed: Duration, waits: &Waits) -> Result<(), Error> {
        let left = self.time.map(|time| time.saturating_sub(elapsed));
        let waited = waits.wait(left.unwrap_or(LOOK_EVERY).min(LOOK_EVERY));
        waited.map_err(|reason| Error::process("waiting for", "the trace's end", reason))?;
        Ok(())
    }
}

/// The rings of all CPUs, claimed for this trace.
struct Claimed<'a> {
    functions: &'a [Function],
    cpus: &'a [usize],
    readers: Vec<(usize, Box<dyn Reader>)>,
    controls: Vec<Box<dyn Control>>,
    /// The pipe on which the readers wait for the end.
    end: End,
}

impl<'a> Claimed<'a> {
    fn of(
        tracer: &dyn Tracer,
        functions: &'a [Function],
        cpus: &'a [usize],
    ) -> Result<Self, Error> {
        let end = End::new()?;
        let (readers, controls): (Vec<_>, Vec<_>) = cpus
            .iter()
            .map(|cpu| {
                let opened = tracer.open(*cpu, functions, end.told.as_fd())?;
                Ok(((*cpu, opened.reader), opened.control))
            })
            .collect::<Result<Vec<_>, Error>>()?
            .into_iter()
            .unzip();
        Ok(Self {
            functions,
            cpus,
            readers,
            controls,
            end,
        })
    }

    fn trace(
        self,
        info: Info,
        every: Duration,
        files: Option<&dat::Files>,
        mut until: Until<'_, '_>,
        watch: &mut dyn Watch,
    ) -> Result<Traced, Error> {
        let trace = Trace::new(self.functions, self.controls, every, files);
        let waits = Waits::new();
        let waits =
            waits.map_err(|reason| Error::process("waiting for", "the trace's end", reason))?;
        let mut elapsed = Duration::ZERO;
        let (statistics, rings) = trace.read_while(self.readers, self.end, |trace| {
            trace.start()?;
            if let Some(beside) = &mut until.beside {
                beside.start()?;
            }
            let began = Instant::now();
            let mut watched = Duration::ZERO;
            while !trace.failed() && !until.is_there(elapsed)? {
                until.wait(elapsed, &waits)?;
                elapsed = began.elapsed();
                if watch.is_looked_at() && elapsed >= watched + WATCH_EVERY {
                    watched = elapsed;
                    watch.look(elapsed, &trace.live()?);
                }
            }
            elapsed = began.elapsed();
            Ok(())
        })?;
        if let (Some(beside), None) = (&mut until.beside, until.exit_code) {
            until.exit_code = Some(beside.end()?);
        }
        let missed = missed(self.functions, &rings);
        Ok(Traced {
            info,
            functions: self.functions.into(),
            cpus: self.cpus.into(),
            elapsed,
            statistics,
            rings,
            missed,
            exit_code: until.exit_code,
        })
    }
}

/// Copies that the probes missed: each ring of a function counts those on all CPUs.
fn missed(functions: &[Function], rings: &[Ring]) -> u64 {
    let of = |function: &Function| {
        let rings = rings.iter().filter(|ring| ring.function == *function);
        rings.map(|ring| ring.counts.missed).max().unwrap_or(0)
    };
    functions.iter().map(of).sum()
}

/// The counts of each CPU as samples, so that a run has samples even if nothing was copied.
fn counted(traced: &Traced) -> Vec<Sample> {
    let sample = |ring: &Ring, metric, count: u64| {
        let cpu = u32::try_from(ring.cpu).unwrap_or(u32::MAX);
        Sample::new(
            ring.function.to_string(),
            0,
            "ring",
            metric,
            "records",
            count as f64,
        )
        .on_cpu(cpu)
    };
    let of_ring = |ring: &Ring| {
        [
            sample(ring, "recorded_records", ring.counts.recorded),
            sample(ring, "dropped_records", ring.counts.dropped),
        ]
    };
    traced.rings.iter().flat_map(of_ring).collect()
}

#[cfg(test)]
mod tests;
