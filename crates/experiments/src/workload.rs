// SPDX-License-Identifier: MIT OR Apache-2.0
//! Workloads by name, as victims and as aggressors.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use memwarden_guard::Settings;
use memwarden_platform::units::{Size, Time};
use memwarden_platform::{Root, as_text, free_memory};
use memwarden_sim::workload::{BANK, split_bank};
use memwarden_workloads::bandwidth::Access;
use memwarden_workloads::remarks;
use serde_json::Value;

use crate::child::Budget;
use crate::program::Delimiter;
use crate::{Child, Error, Interrupt};

/// Maps, touches and unmaps: each page costs a fault.
const FRESH_PAGES: &str = "fresh-pages";

/// A workload's buffer without a size.
pub(crate) const USUAL_BYTES: u64 = 16 << 20;

/// Default size of each of `buffers` buffers: so large that the caches of `cpu` hold at most a quarter of one, within the
/// free memory.
pub(crate) fn size_in_memory(root: &Root, cpu: usize, buffers: u64) -> Size {
    let enough = remarks::memory_bytes(root, cpu).unwrap_or(0);
    // Leave half of the free memory to other programs.
    let most = free_memory::free(root).map_or(u64::MAX, |free| free.bytes / 2 / buffers);
    Size::of_bytes(enough.max(USUAL_BYTES).min(most))
}

/// Prefix of a command for the shell.
pub(crate) const COMMAND: &str = "cmd:";

/// `latency`, `bandwidth:KIND`, either in one bank (`latency:bank=0`), `trace:FILE` or `cmd: COMMAND`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Workload {
    /// A pointer chase.
    Latency,
    /// Touches one word a line, in order; the kinds are those of `bandwidth -a`, and `fresh-pages`.
    Bandwidth(String),
    /// One of these two with its buffer in one bank of a simulated memory, each line in another row.
    InBank(Box<Workload>, usize),
    /// A recorded trace, on a simulated machine.
    Trace(String),
    /// The user's own program, as a line for the shell: a victim, whose jobs are timed.
    Program(String),
}

/// The parameters of a workload.
#[derive(Debug, Clone, Copy)]
pub struct Task {
    /// The CPU it is pinned to.
    pub cpu: usize,
    /// Its buffer; none uses the workload's default.
    pub memory: Option<Size>,
    /// When it ends.
    pub until: Until,
}

/// When a workload ends.
#[derive(Debug, Clone, Copy)]
pub enum Until {
    /// When it is told to.
    Told,
    /// After this number of passes over its buffer.
    Iterations(u64),
    /// After this time; `latency` completes its lap.
    Time(Time),
}

impl Workload {
    /// The metric that it measures (with the unit in its name), and the unit.
    pub fn metric(&self) -> (&'static str, &'static str) {
        match self {
            Self::Latency => ("latency_ns", "ns"),
            Self::Bandwidth(_) | Self::Trace(_) => ("mib_s", "MiB/s"),
            Self::InBank(workload, _) => workload.metric(),
            Self::Program(_) => ("job_time_ns", "ns"),
        }
    }

    /// Checks that the workload can be an aggressor, which is used for its traffic and not timed.
    ///
    /// # Errors
    /// When it is a program.
    pub fn check_aggressor(&self) -> Result<(), Error> {
        match self {
            Self::Program(_) => Err(Error::BadInput(format!(
                "--aggressors: `{self}` can only be the victim; memwarden realtime takes commands as its load"
            ))),
            _ => Ok(()),
        }
    }

    /// Checks that a simulated machine supports the workload.
    ///
    /// # Errors
    /// When it is a program.
    pub fn check_modelled(&self) -> Result<(), Error> {
        match self {
            Self::Program(_) => Err(Error::BadInput(format!(
                "`{self}`: a program needs a real machine (--on native or --on lab); a model runs its trace \
                 (trace:FILE)"
            ))),
            _ => Ok(()),
        }
    }

    /// Checks that a real machine supports the workload.
    ///
    /// # Errors
    /// When it exists only on a simulated machine.
    pub fn check_real(&self) -> Result<(), Error> {
        match self {
            Self::Trace(_) => Err(Error::BadInput(format!(
                "workload `{self}`: a trace is walked on a simulated machine (--on sim:PLATFORM)"
            ))),
            Self::InBank(workload, _) => Err(Error::BadInput(format!(
                "workload `{self}`: a program does not know the banks of its memory; give `{workload}`, or use a \
                 simulated machine (--on sim:PLATFORM)"
            ))),
            _ => Ok(()),
        }
    }

    /// True if a larger value of the metric is worse.
    pub fn more_is_worse(&self) -> bool {
        match self {
            Self::InBank(workload, _) => workload.more_is_worse(),
            _ => matches!(self, Self::Latency | Self::Program(_)),
        }
    }

    /// True if its traffic is new pages, each with a page fault.
    pub fn makes_faults(&self) -> bool {
        matches!(self, Self::Bandwidth(kind) if kind == FRESH_PAGES)
    }

    /// The command-line arguments that run it; empty for a program or if no real machine supports it.
    pub fn arguments(&self, task: Task) -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        match self {
            Self::Latency => words.push("latency".into()),
            Self::Bandwidth(kind) if kind == FRESH_PAGES => {
                words.extend(["bandwidth".into(), "--fresh-pages".into()]);
            }
            Self::Bandwidth(kind) => words.extend(["bandwidth".into(), "-a".into(), kind.clone()]),
            Self::InBank(..) | Self::Trace(_) | Self::Program(_) => return words,
        }
        words.extend(["-c".into(), task.cpu.to_string()]);
        if let Some(memory) = task.memory {
            words.extend(["-m".into(), memory.to_string()]);
        }
        let mut option = |name: &str, value: String| words.extend([name.to_owned(), value]);
        match (self, task.until) {
            (_, Until::Time(time)) => option("-t", time.to_string()),
            // A time limit would end the workload early on a throttled core.
            (Self::Bandwidth(_), Until::Told) => option("-t", "0".into()),
            (Self::Bandwidth(_), Until::Iterations(iterations)) => {
                option("-t", "0".into());
                option("-i", iterations.to_string());
            }
            // Without a number of laps, an incomplete lap counts.
            (_, Until::Told) => option("-i", "0".into()),
            (_, Until::Iterations(iterations)) => option("-i", iterations.to_string()),
        }
        words.push("--json".into());
        words
    }
}

/// The command-line arguments that run a program's jobs.
pub(crate) fn program(
    line: &str,
    cpu: usize,
    by: Delimiter,
    jobs: u64,
    more: &[(&str, String)],
) -> Vec<String> {
    let (cpu, by, jobs) = (cpu.to_string(), by.to_string(), jobs.to_string());
    let mut words = vec!["jobs", "--json", "-c", &cpu, "--by", &by, "--jobs", &jobs];
    for (option, value) in more {
        words.extend([*option, value].into_iter().filter(|word| !word.is_empty()));
    }
    words.extend(["--", "sh", "-c", line]);
    words.into_iter().map(str::to_owned).collect()
}

/// Time in which a workload must be running; otherwise it has failed.
const READY_WITHIN: Duration = Duration::from_secs(60);

impl Workload {
    /// Starts all tasks; returns once they run. Under a guard with these settings they have more time.
    pub(crate) fn start_all(
        &self,
        tasks: impl Iterator<Item = Task>,
        guard: Option<&Settings>,
        interrupt: &Interrupt,
    ) -> Result<Vec<Child>, Error> {
        let started = tasks.map(|task| {
            let buffer = task.memory.unwrap_or(Size::of_bytes(USUAL_BYTES));
            let budget = guard.and_then(|guard| Budget::of(guard, task.cpu, buffer));
            Ok::<_, Error>(Child::start(&self.arguments(task), true)?.under(budget))
        });
        let mut children = started.collect::<Result<Vec<_>, _>>()?;
        for child in &mut children {
            child.wait_ready(READY_WITHIN, interrupt)?;
        }
        Ok(children)
    }
}

/// Checks that a workload ended on the CPU to which it was pinned.
pub(crate) fn on_its_cpu(workload: &Workload, cpu: usize, result: &Value) -> Result<(), Error> {
    match result.get("cpu").and_then(Value::as_u64) {
        Some(ended_on) if usize::try_from(ended_on) == Ok(cpu) => Ok(()),
        ended_on => Err(Error::workload(
            workload,
            format!(
                "was pinned to CPU {cpu} and ended on {ended_on:?}: its CPU affinity was changed meanwhile"
            ),
        )),
    }
}

impl FromStr for Workload {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if let Some(line) = text.strip_prefix(COMMAND).map(str::trim) {
            if !line.is_empty() {
                return Ok(Self::Program(line.to_owned()));
            }
        }
        if let Some((kind, bank)) = split_bank(text) {
            return match kind.parse()? {
                workload @ (Self::Latency | Self::Bandwidth(_)) => {
                    Ok(Self::InBank(Box::new(workload), bank))
                }
                other => Err(Error::BadInput(format!(
                    "workload `{text}`: `{other}` is not for one bank"
                ))),
            };
        }
        match text.split_once(':') {
            None if text == "latency" => Ok(Self::Latency),
            Some(("trace", file)) if !file.is_empty() => Ok(Self::Trace(file.into())),
            Some(("bandwidth", kind)) if Access::named(kind).is_some() => {
                Ok(Self::Bandwidth(kind.into()))
            }
            _ => Err(Error::BadInput(format!(
                "workload `{text}`: give latency, bandwidth:KIND, KIND one of {}, as a victim '{COMMAND} COMMAND', or on a \
                 simulated machine trace:FILE or one of the first two with {BANK}N",
                Access::all()
                    .map(|access| access.name())
                    .collect::<Vec<_>>()
                    .join(", ")
            ))),
        }
    }
}

as_text!(Workload);

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Latency => f.write_str("latency"),
            Self::Bandwidth(kind) => write!(f, "bandwidth:{kind}"),
            Self::InBank(workload, bank) => write!(f, "{workload}{BANK}{bank}"),
            Self::Trace(file) => write!(f, "trace:{file}"),
            Self::Program(line) => write!(f, "{COMMAND} {line}"),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A machine with four CPUs, which share a last-level cache of this size, and this much free memory.
    pub(crate) fn machine(l3_kib: u64, free_kib: u64) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let size = format!("{l3_kib}K");
        for cpu in 0..4 {
            let cache = format!("sys/devices/system/cpu/cpu{cpu}/cache/index3");
            let cache = folder.path().join(cache);
            std::fs::create_dir_all(&cache).unwrap();
            for (file, text) in [
                ("level", "3"),
                ("type", "Unified"),
                ("size", &size),
                ("shared_cpu_list", "0-3"),
            ] {
                std::fs::write(cache.join(file), format!("{text}\n")).unwrap();
            }
        }
        std::fs::create_dir_all(folder.path().join("proc")).unwrap();
        let text = format!("MemTotal: 99999999 kB\nMemAvailable: {free_kib} kB\n");
        std::fs::write(folder.path().join("proc/meminfo"), text).unwrap();
        folder
    }

    #[test]
    fn names_become_command_lines() {
        let line = |name: &str, memory, until| {
            let workload: Workload = name.parse().unwrap();
            assert_eq!(workload.to_string(), name);
            workload
                .arguments(Task {
                    cpu: 2,
                    memory,
                    until,
                })
                .join(" ")
        };

        assert_eq!(
            line("latency", Some(Size::kib(64)), Until::Iterations(10)),
            "latency -c 2 -m 64K -i 10 --json"
        );
        assert_eq!(
            line("bandwidth:write", None, Until::Told),
            "bandwidth -a write -c 2 -t 0 --json"
        );
        assert_eq!(
            line("bandwidth:fresh-pages", None, Until::Iterations(5)),
            "bandwidth --fresh-pages -c 2 -t 0 -i 5 --json"
        );
        assert_eq!(
            line(
                "latency",
                Some(Size::kib(1 << 20)),
                Until::Time(Time::ms(1000))
            ),
            "latency -c 2 -m 1G -t 1s --json"
        );
    }

    #[test]
    fn a_program_is_a_victim_on_a_machine() {
        let workload: Workload = "cmd: ./my task".parse().unwrap();
        assert_eq!(workload.to_string(), "cmd: ./my task");
        assert!(workload.check_real().is_ok());
        assert!(workload.check_modelled().is_err() && workload.check_aggressor().is_err());
        let words = program(
            "./my task",
            2,
            Delimiter::Line,
            7,
            &[("--tell-miss", String::new())],
        );
        assert_eq!(
            words.join(" "),
            "jobs --json -c 2 --by line --jobs 7 --tell-miss -- sh -c ./my task"
        );
    }

    #[test]
    fn a_trace_is_for_a_simulated_machine() {
        let trace: Workload = "trace:my.trace".parse().unwrap();
        assert_eq!(trace.to_string(), "trace:my.trace");
        let error = trace.check_real().unwrap_err().to_string();
        assert!(error.contains("--on sim:PLATFORM"), "{error}");
        assert!("latency".parse::<Workload>().unwrap().check_real().is_ok());
    }

    #[test]
    fn a_workload_in_one_bank_is_for_a_simulated_machine() {
        for (name, metric) in [
            ("latency:bank=7", "latency_ns"),
            ("bandwidth:write:bank=0", "mib_s"),
        ] {
            let workload: Workload = name.parse().unwrap();
            assert_eq!(workload.to_string(), name);
            assert_eq!(workload.metric().0, metric);
            assert_eq!(workload.more_is_worse(), metric == "latency_ns");
            workload.check_modelled().unwrap();
            workload.check_aggressor().unwrap();
            let error = workload.check_real().unwrap_err().to_string();
            assert!(error.contains("--on sim:PLATFORM"), "{error}");
        }
    }

    #[test]
    fn unknown_workloads_are_refused_with_what_is_known() {
        for name in [
            "",
            "bandwidth",
            "bandwidth:",
            "bandwidth:reed",
            "latency:read",
            "latency:bank=",
            "latency:bank=-1",
            "latency:bank=+1",
            "bandwidth:reed:bank=1",
            "latency:bank=1:bank=2",
            "trace:",
            "cmd:",
            "cmd: ",
            "Latency",
            "stress",
        ] {
            let message = name.parse::<Workload>().unwrap_err().to_string();
            assert!(message.contains("fresh-pages"), "{name}: {message}");
        }
    }
}
