// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recordings of every period of every core, and their parser for the module's tracepoints.
//!
//! Recording uses a separate tracefs instance, so that other users' tracing is undisturbed; it is removed at the end.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;

use memwarden_platform::Root;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::regulator::Recorder;

/// Name of the tracefs instance.
const INSTANCE: &str = "memwarden";

/// One event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceEvent {
    /// CPU that it happened on.
    pub cpu: usize,
    /// Time in nanoseconds of CLOCK_MONOTONIC, with the microsecond resolution of the text form.
    pub t_ns: u64,
    /// What happened.
    #[serde(flatten)]
    pub what: What,
}

/// Events on a core: the module's tracepoints. The user-space regulator records only periods, throttles, unthrottles.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum What {
    /// A period ended and the next began; the figures are those of the ended one.
    Period {
        /// Number of the period that ended.
        epoch: u64,
        /// Number of ended periods: more than one if the core had no timer for a while. The used events are the sum
        /// over all of them, the assigned events those of each.
        #[serde(default = "one")]
        periods: u64,
        /// Delay after its boundary.
        late_ns: u64,
        /// Refills counted.
        used_read: u64,
        /// Refills that the core was entitled to.
        assigned_read: u64,
        /// Write-backs counted.
        used_write: u64,
        /// Write-backs that the core was entitled to.
        assigned_write: u64,
        /// Time throttled.
        throttled_ns: u64,
    },
    /// The counter exceeded the assigned events.
    Overflow {
        /// The period.
        epoch: u64,
        /// 0 read, 1 write.
        resource: u64,
        /// Events counted in this period.
        used: u64,
        /// Events that the core was entitled to in this period.
        assigned: u64,
        /// `run`, `throttle`, `release_all` or `new_period`.
        decision: String,
    },
    /// The throttle thread holds the core.
    Throttle {
        /// The period.
        epoch: u64,
        /// Events counted so far.
        used: u64,
        /// Events that the core was entitled to in this period.
        assigned: u64,
        /// Events counted beyond those.
        overshoot: u64,
        /// Time since the overflow interrupt.
        latency_ns: u64,
    },
    /// The throttle thread released the core.
    Unthrottle {
        /// The period.
        epoch: u64,
        /// Time that it held the core.
        throttled_ns: u64,
        /// Time from the release until the thread saw it.
        latency_ns: u64,
    },
    /// A core took events from the pool.
    Reclaim {
        /// The period.
        epoch: u64,
        /// 0 read, 1 write.
        resource: u64,
        /// Events taken.
        amount: u64,
        /// Events left in the pool.
        pool_left: u64,
    },
    /// The surplus is shared.
    BestEffort {
        /// The period.
        epoch: u64,
        /// 2 spare, 5 proportional.
        mode: u64,
    },
}

/// The number of periods in an older recording, which has no such field.
fn one() -> u64 {
    1
}

/// Parses one line of the text form; `None` if it is not one of the module's events.
pub fn parse_line(line: &str) -> Option<TraceEvent> {
    // `  comm-123   [001] d.h1.  12.345678: period: epoch=1 ...`; comm may hold anything, brackets too.
    let (cpu, rest) = line.match_indices(" [").find_map(|(at, open)| {
        let (cpu, rest) = line[at + open.len()..].split_once("] ")?;
        let cpu = cpu.parse::<usize>().ok()?;
        Some((cpu, rest))
    })?;
    let (head, rest) = rest.split_once(": ")?;
    let t_ns = seconds_to_ns(head.split_whitespace().next_back()?)?;
    let (name, fields) = rest.split_once(':')?;
    let fields: BTreeMap<&str, &str> = fields
        .split_whitespace()
        .filter_map(|word| word.split_once('='))
        .collect();
    let number = |key: &str| fields.get(key)?.parse::<u64>().ok();
    let what = match name.trim().trim_start_matches("memguard_") {
        "period" => What::Period {
            epoch: number("epoch")?,
            periods: number("periods")?,
            late_ns: number("late_ns")?,
            used_read: number("used_read")?,
            assigned_read: number("assigned_read")?,
            used_write: number("used_write")?,
            assigned_write: number("assigned_write")?,
            throttled_ns: number("throttled_ns")?,
        },
        "overflow" => What::Overflow {
            epoch: number("epoch")?,
            resource: number("resource")?,
            used: number("used")?,
            assigned: number("assigned")?,
            decision: (*fields.get("decision")?).to_owned(),
        },
        "throttle" => What::Throttle {
            epoch: number("epoch")?,
            used: number("used")?,
            assigned: number("assigned")?,
            overshoot: number("overshoot")?,
            latency_ns: number("latency_ns")?,
        },
        "unthrottle" => What::Unthrottle {
            epoch: number("epoch")?,
            throttled_ns: number("throttled_ns")?,
            latency_ns: number("latency_ns")?,
        },
        "reclaim" => What::Reclaim {
            epoch: number("epoch")?,
            resource: number("resource")?,
            amount: number("amount")?,
            pool_left: number("pool_left")?,
        },
        "best_effort" => What::BestEffort {
            epoch: number("epoch")?,
            mode: number("mode")?,
        },
        _ => return None,
    };
    Some(TraceEvent { cpu, t_ns, what })
}

fn seconds_to_ns(text: &str) -> Option<u64> {
    let (seconds, fraction) = text.split_once('.')?;
    if fraction.is_empty() || fraction.len() > 9 {
        return None;
    }
    let scale = 10u64.pow(9 - u32::try_from(fraction.len()).ok()?);
    let fraction = fraction.parse::<u64>().ok()?.checked_mul(scale)?;
    seconds
        .parse::<u64>()
        .ok()?
        .checked_mul(1_000_000_000)?
        .checked_add(fraction)
}

/// A finished recording.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recording {
    /// Every event, by CPU and time.
    pub events: Vec<TraceEvent>,
    /// Events lost because the buffers were full: a proof over every period requires 0.
    pub lost: u64,
}

/// A running recording. Dropping it removes its tracefs instance.
#[derive(Debug)]
pub struct Tracer {
    folder: PathBuf,
}

impl Tracer {
    /// Records the named events (`period`, `throttle`, ...) in buffers of `buffer_kib` per CPU.
    ///
    /// # Errors
    /// When tracefs isn't mounted, or the module's events aren't there.
    pub fn start(root: &Root, events: &[&str], buffer_kib: u64) -> Result<Self, Error> {
        let folder = root.path("/sys/kernel/tracing/instances").join(INSTANCE);
        match fs::create_dir(&folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(Error::file(
                    "making a trace instance (is tracefs mounted?)",
                    folder,
                )(error));
            }
            _ => {}
        }
        let tracer = Self { folder };
        tracer.write("tracing_on", "0")?;
        tracer.write("buffer_size_kb", &buffer_kib.to_string())?;
        // The victim's samples have CLOCK_MONOTONIC times too.
        tracer.write("trace_clock", "mono")?;
        for event in events {
            tracer.write(&format!("events/memguard/{event}/enable"), "1")?;
        }
        tracer.restart()?;
        Ok(tracer)
    }

    fn lost(&self) -> Result<u64, Error> {
        let folder = self.folder.join("per_cpu");
        let mut lost = 0;
        for cpu in fs::read_dir(&folder)
            .map_err(Error::file("reading", &folder))?
            .flatten()
        {
            let path = cpu.path().join("stats");
            let text = fs::read_to_string(&path).map_err(Error::file("reading", path))?;
            lost += lost_events(&text);
        }
        Ok(lost)
    }

    fn write(&self, file: &str, text: &str) -> Result<(), Error> {
        let path = self.folder.join(file);
        fs::write(&path, text).map_err(Error::file("writing", path))
    }
}

impl Recorder for Tracer {
    fn restart(&self) -> Result<(), Error> {
        // Truncating the file empties the buffers.
        self.write("trace", "")?;
        self.write("tracing_on", "1")
    }

    fn stop(&self) -> Result<Recording, Error> {
        self.write("tracing_on", "0")?;
        let path = self.folder.join("trace");
        let file = fs::File::open(&path).map_err(Error::file("reading", &path))?;
        let mut recording = Recording::default();
        for line in BufReader::new(file).split(b'\n') {
            let line = line.map_err(Error::file("reading", &path))?;
            recording
                .events
                .extend(parse_line(&String::from_utf8_lossy(&line)));
        }
        recording
            .events
            .sort_by_key(|event| (event.cpu, event.t_ns));
        recording.lost = self.lost()?;
        Ok(recording)
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.folder);
    }
}

/// Sum of the lost events that a per-CPU `stats` file lists.
fn lost_events(text: &str) -> u64 {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .filter(|(key, _)| matches!(key.trim(), "overrun" | "commit overrun" | "dropped events"))
        .filter_map(|(_, value)| value.trim().parse::<u64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PERIOD: &str = "          <idle>-0       [002] d.h1.    12.345678: period: epoch=7 periods=1 late_ns=90 \
                          used_read=25 assigned_read=25 used_write=0 assigned_write=0 throttled_ns=910000";

    #[test]
    fn a_period_is_read() {
        let event = parse_line(PERIOD).unwrap();
        assert_eq!((event.cpu, event.t_ns), (2, 12_345_678_000));
        assert!(matches!(
            event.what,
            What::Period {
                epoch: 7,
                periods: 1,
                used_read: 25,
                throttled_ns: 910_000,
                ..
            }
        ));
    }

    #[test]
    fn a_name_with_brackets_and_colons_does_not_mislead() {
        let line = PERIOD.replace("<idle>-0", "a [b] c: d-12");
        assert_eq!(parse_line(&line), parse_line(PERIOD));
    }

    #[test]
    fn every_event_is_read() {
        let line = |text: &str| {
            parse_line(&format!(" x-1 [000] d..1. 1.000001: {text}")).map(|event| event.what)
        };
        assert!(matches!(
            line("overflow: epoch=1 resource=0 used=26 assigned=25 decision=throttle"),
            Some(What::Overflow { decision, .. }) if decision == "throttle"
        ));
        assert!(
            line("throttle: epoch=1 used=26 assigned=25 overshoot=1 latency_ns=2300").is_some()
        );
        assert!(line("unthrottle: epoch=1 throttled_ns=900000 latency_ns=1800").is_some());
        assert!(line("reclaim: epoch=1 resource=0 amount=10 pool_left=5").is_some());
        assert!(line("best_effort: epoch=1 mode=5").is_some());
        assert!(line("sched_switch: prev_comm=x").is_none());
        assert!(line("period: epoch=1").is_none());
        assert!(parse_line("# tracer: nop").is_none());
        assert!(parse_line("CPU:1 [LOST 12 EVENTS]").is_none());
    }

    #[test]
    fn losses_are_summed() {
        let text = "entries: 5\noverrun: 3\ncommit overrun: 1\nbytes: 100\ndropped events: 2\nread events: 4\n";
        assert_eq!(lost_events(text), 6);
    }

    #[test]
    fn an_instance_records_and_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::at(folder.path());
        let instance = root.path("/sys/kernel/tracing/instances/memwarden");
        fs::create_dir_all(instance.join("events/memguard/period")).unwrap();
        fs::create_dir_all(instance.join("per_cpu/cpu0")).unwrap();
        fs::write(instance.join("per_cpu/cpu0/stats"), "overrun: 2\n").unwrap();
        let tracer = Tracer::start(&root, &["period"], 1024).unwrap();
        assert_eq!(
            fs::read_to_string(instance.join("events/memguard/period/enable")).unwrap(),
            "1"
        );
        fs::write(instance.join("trace"), format!("# tracer: nop\n{PERIOD}\n")).unwrap();
        let recording = tracer.stop().unwrap();
        assert_eq!((recording.events.len(), recording.lost), (1, 2));
        assert!(
            Tracer::start(&root, &["reclaim"], 1024)
                .unwrap_err()
                .to_string()
                .contains("events/memguard/reclaim")
        );
        assert!(
            Tracer::start(&Root::at("/nonexistent"), &[], 1)
                .unwrap_err()
                .to_string()
                .contains("tracefs")
        );
    }

    proptest! {
        #[test]
        fn garbage_never_panics(line in "\\PC*", at in 0usize..100, with in "\\PC{0,5}") {
            let _ = parse_line(&line);
            let mut damaged = PERIOD.to_owned();
            damaged.replace_range(at..=at, &with);
            let _ = parse_line(&damaged);
        }

        #[test]
        fn numbers_round_trip(epoch: u64, periods: u64, late_ns: u64, used_read: u64, throttled_ns: u64, cpu in 0usize..999) {
            let what = What::Period {
                epoch, periods, late_ns, used_read, assigned_read: 1, used_write: 2, assigned_write: 3, throttled_ns,
            };
            let line = format!(
                "x-1 [{cpu:03}] d.h1. 0.000001: period: epoch={epoch} periods={periods} \
                 late_ns={late_ns} used_read={used_read} assigned_read=1 used_write=2 assigned_write=3 throttled_ns={throttled_ns}"
            );
            prop_assert_eq!(parse_line(&line).unwrap(), TraceEvent { cpu, t_ns: 1000, what });
        }
    }
}
