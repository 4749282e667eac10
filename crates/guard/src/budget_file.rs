// SPDX-License-Identifier: MIT OR Apache-2.0
//! The budget file: the guard's start options and settings, as TOML.
//!
//! A file is accepted or refused as a whole. The refusal is one line with the file, the line, the key and the allowed
//! values. Settings that the file doesn't name stay unchanged.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use memwarden_platform::cpus::{self, CpuSet};
use memwarden_platform::settings_file;
use memwarden_platform::units::parse_whole_rate;
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use toml::Spanned;

use crate::budget::{Amount, COMBINED_ALONE};
use crate::event_list::same_events;
use crate::regulator::given_event;
use crate::units::{
    PERIOD_US_MAX, PERIOD_US_MIN, events_per_period, mib_s, parse_period_us as parse_period,
};
use crate::wanted::{Budget, Wanted};
use crate::{BestEffort, Control, Error, Resource, StartOptions};

/// The largest budget in MiB/s. No machine's memory reaches 1 TiB/s: a larger number is a typing error.
pub const MB_MAX: u64 = 1 << 20;

/// The most bytes that one event may stand for, as on the command line.
const BYTES_PER_EVENT_MAX: u64 = 1 << 20;

/// A setting and its place in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Placed<T> {
    value: T,
    line: usize,
    key: String,
}

/// A budget file that is valid by itself. [`BudgetFile::wanted`] checks it against the running guard and the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetFile {
    path: PathBuf,
    /// The kernel module's file; `None` means the installed one.
    pub module: Option<PathBuf>,
    /// Test first that the guard counts and throttles every core.
    pub self_test: bool,
    /// Restore settings that another process changed. If false, restore only those that a core lost by going offline.
    pub keep: bool,
    backend: Option<Placed<String>>,
    event: Option<Placed<String>>,
    write_event: Option<Placed<String>>,
    combined: Option<Placed<bool>>,
    bytes_per_event: Option<Placed<u64>>,
    user_only: Option<Placed<bool>>,
    cpus: Option<Placed<CpuSet>>,
    period_us: Option<u64>,
    maxbw_mib_s: Option<u64>,
    best_effort: Option<BestEffort>,
    reclaim: Option<bool>,
    read_mb: BTreeMap<usize, Placed<Amount>>,
    write_mb: BTreeMap<usize, Placed<Amount>>,
    rt: BTreeMap<usize, Placed<bool>>,
}

/// The file's keys, as TOML has them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    backend: Option<Spanned<Word>>,
    module: Option<PathBuf>,
    event: Option<Spanned<Word>>,
    write_event: Option<Spanned<Word>>,
    combined: Option<Spanned<bool>>,
    bytes_per_event: Option<Spanned<Whole<BYTES_PER_EVENT_MAX>>>,
    user_only: Option<Spanned<bool>>,
    cpus: Option<Spanned<CpuSet>>,
    period: Option<Period>,
    maxbw: Option<Whole<MB_MAX>>,
    best_effort: Option<BestEffort>,
    reclaim: Option<bool>,
    self_test: Option<bool>,
    keep: Option<bool>,
    #[serde(default)]
    mb: Vec<Spanned<Mb>>,
    #[serde(default)]
    write_mb: Vec<Spanned<Mb>>,
    #[serde(default)]
    cpu: BTreeMap<Cpu, Spanned<WrittenCore>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenCore {
    mb: Option<Spanned<Mb>>,
    write_mb: Option<Spanned<Mb>>,
    rt: Option<Spanned<bool>>,
}

/// A whole number from 1 to `MAX`.
struct Whole<const MAX: u64>(u64);

/// MiB/s from 1 to [`MB_MAX`], or `max`.
struct Mb(Amount);

/// A period such as `1ms`, within the regulator's limits.
struct Period(u64);

/// A string that isn't empty.
struct Word(String);

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Cpu(usize);

/// A value's allowed forms, and its parsers for TOML's integers and strings.
trait Value: Sized {
    const EXPECTED: &str;
    fn number(_: i64) -> Option<Self> {
        None
    }
    fn text(_: &str) -> Option<Self> {
        None
    }
    fn expected(f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(Self::EXPECTED)
    }
}

fn whole(number: i64, max: u64) -> Option<u64> {
    u64::try_from(number)
        .ok()
        .filter(|number| (1..=max).contains(number))
}

impl<const MAX: u64> Value for Whole<MAX> {
    const EXPECTED: &str = "";
    fn number(number: i64) -> Option<Self> {
        whole(number, MAX).map(Self)
    }
    fn expected(f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "a whole number from 1 to {MAX}")
    }
}

impl Value for Mb {
    const EXPECTED: &str = "";
    fn number(number: i64) -> Option<Self> {
        whole(number, MB_MAX).map(|mb| Self(Amount::Limited(mb)))
    }
    fn text(text: &str) -> Option<Self> {
        if text == "max" {
            return Some(Self(Amount::Max));
        }
        let mb = parse_whole_rate(text).ok();
        mb.filter(|mb| *mb <= MB_MAX)
            .map(|mb| Self(Amount::Limited(mb)))
    }
    fn expected(f: &mut fmt::Formatter) -> fmt::Result {
        write!(
            f,
            "whole MB/s from 1 to {MB_MAX}, such as 1000 or \"1G\", or \"max\" for no budget"
        )
    }
}

impl Value for Period {
    const EXPECTED: &str = "";
    fn text(text: &str) -> Option<Self> {
        parse_period(text).ok().map(Self)
    }
    fn expected(f: &mut fmt::Formatter) -> fmt::Result {
        let max_ms = PERIOD_US_MAX / 1000;
        write!(
            f,
            "a period from \"{PERIOD_US_MIN}us\" to \"{max_ms}ms\" in whole microseconds"
        )
    }
}

impl Value for Word {
    const EXPECTED: &str = "a name (or for an event its code, such as \"0x17\")";
    fn text(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| Self(text.to_owned()))
    }
}

impl Value for Cpu {
    const EXPECTED: &str = "";
    fn text(text: &str) -> Option<Self> {
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        let cpu = text.parse().ok().filter(|cpu| digits && *cpu < cpus::LIMIT);
        cpu.map(Self)
    }
    fn expected(f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "a CPU's number from 0 to {}", cpus::LIMIT - 1)
    }
}

struct ValueVisitor<T>(PhantomData<T>);

impl<T: Value> Visitor<'_> for ValueVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        T::expected(f)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        T::number(number).ok_or_else(|| E::invalid_value(de::Unexpected::Signed(number), &self))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        T::text(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
    }
}

macro_rules! deserialize_as_value {
    ($([$($generic:tt)*] $type:ty),*) => {
        $(impl<'de, $($generic)*> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(ValueVisitor(PhantomData))
            }
        })*
    };
}

deserialize_as_value!([const MAX: u64] Whole<MAX>, [] Mb, [] Period, [] Word, [] Cpu);

/// The number of the line that has a byte of `text`, from 1.
fn line_of(text: &str, at: usize) -> usize {
    let before = text
        .as_bytes()
        .get(..at.min(text.len()))
        .unwrap_or_default();
    before.iter().filter(|byte| **byte == b'\n').count() + 1
}

/// The key, with its table, of the value at a byte of `text`; `None` if there is none.
fn key_of(text: &str, at: usize) -> Option<String> {
    let line = line_of(text, at);
    let mut key = None;
    for above in text
        .lines()
        .take(line)
        .collect::<Vec<_>>()
        .into_iter()
        .rev()
    {
        let above = above.trim();
        if let Some(table) = above.strip_prefix('[').filter(|_| !above.contains('=')) {
            // A line of a multi-line array may begin with a bracket too, but only a table's is followed by a name.
            let name = table.split(']').next().unwrap_or_default().trim();
            if name.starts_with(|first: char| first.is_ascii_alphabetic()) {
                return Some(key.map_or(name.to_owned(), |key: String| format!("{name}.{key}")));
            }
        }
        if key.is_none() {
            if let Some((name, _)) = above.split_once('=') {
                key = Some(name.trim().to_owned()).filter(|name| !name.is_empty());
            }
        }
    }
    key
}

impl BudgetFile {
    /// Reads and parses a file, which may be a pipe.
    ///
    /// # Errors
    /// When the file can't be read or is invalid; the error names the first fault.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = settings_file::read(path).map_err(Error::file("reading", path))?;
        Self::parse(path, &text)
    }

    /// The same for a file that is read several times, so a pipe won't do.
    ///
    /// # Errors
    /// As [`BudgetFile::read`]; and when it is a pipe or a device.
    pub fn read_again(path: &Path) -> Result<Self, Error> {
        let text = settings_file::read_again(path).map_err(Error::file("reading", path))?;
        Self::parse(path, &text)
    }

    /// Parses `text`, the content of the file `path`.
    ///
    /// # Errors
    /// The first fault in the text.
    pub fn parse(path: &Path, text: &str) -> Result<Self, Error> {
        let written: Written = toml::from_str(text).map_err(|error| {
            let at = error.span().map(|span| span.start);
            let place = at.map_or(String::new(), |at| {
                let key = key_of(text, at).map_or(String::new(), |key| format!(", {key}"));
                format!(" line {}{key}", line_of(text, at))
            });
            let words: Vec<&str> = error.message().split_whitespace().collect();
            Error::BadInput(format!("{}{place}: {}", path.display(), words.join(" ")))
        })?;
        let place = |at: usize| (line_of(text, at), key_of(text, at).unwrap_or_default());
        let file = Self {
            path: path.to_owned(),
            backend: placed(written.backend, &place, |word| word.0),
            module: written.module,
            self_test: written.self_test.unwrap_or(true),
            keep: written.keep.unwrap_or(true),
            event: placed(written.event, &place, |word| word.0)
                .filter(|event| given_event(&event.value).is_some()),
            write_event: placed(written.write_event, &place, |word| word.0),
            combined: placed(written.combined, &place, |combined| combined),
            bytes_per_event: placed(written.bytes_per_event, &place, |bytes| bytes.0),
            user_only: placed(written.user_only, &place, |user_only| user_only),
            cpus: placed(written.cpus, &place, |cpus| cpus),
            period_us: written.period.map(|period| period.0),
            maxbw_mib_s: written.maxbw.map(|maxbw| maxbw.0),
            best_effort: written.best_effort,
            reclaim: written.reclaim,
            read_mb: list(written.mb, &place),
            write_mb: list(written.write_mb, &place),
            rt: BTreeMap::new(),
        };
        let file = file.with_cores(written.cpu, &place)?;
        let combined = file.combined.as_ref().is_some_and(|set| set.value);
        file.one_budget_if(combined)?;
        Ok(file)
    }

    /// Adds the per-core tables, which override the lists.
    fn with_cores(
        mut self,
        cores: BTreeMap<Cpu, Spanned<WrittenCore>>,
        place: &impl Fn(usize) -> (usize, String),
    ) -> Result<Self, Error> {
        for (Cpu(cpu), core) in cores {
            let (line, _) = place(core.span().start);
            let core = core.into_inner();
            if core.mb.is_none() && core.write_mb.is_none() && core.rt.is_none() {
                return Err(self.bad(line, &format!("cpu.{cpu}"), "give mb, write_mb or rt"));
            }
            let read = placed(core.mb, place, |mb| mb.0);
            self.read_mb.extend(read.map(|mb| (cpu, mb)));
            let write = placed(core.write_mb, place, |mb| mb.0);
            self.write_mb.extend(write.map(|mb| (cpu, mb)));
            let rt = placed(core.rt, place, |rt| rt);
            self.rt.extend(rt.map(|rt| (cpu, rt)));
        }
        Ok(self)
    }

    /// An error at a line and key of this file.
    fn bad(&self, line: usize, key: &str, why: &str) -> Error {
        Error::BadInput(format!("{} line {line}, {key}: {why}", self.path.display()))
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The backend that the file names, parsed by the caller's type; the type's default if it names none.
    ///
    /// # Errors
    /// When the caller's type has no backend of that name.
    pub fn backend<T>(&self) -> Result<T, Error>
    where
        T: FromStr<Err: fmt::Display> + Default,
    {
        self.backend.as_ref().map_or_else(
            || Ok(T::default()),
            |name| {
                name.value
                    .parse()
                    .map_err(|error: T::Err| self.bad(name.line, &name.key, &error.to_string()))
            },
        )
    }

    /// Whether the file regulates write-backs.
    pub fn asks_for_writes(&self) -> bool {
        self.write_event.is_some() || !self.write_mb.is_empty()
    }

    /// The options to start a guard for this file.
    pub fn start_options(&self) -> StartOptions {
        fn value<T: Clone>(placed: Option<&Placed<T>>) -> Option<T> {
            placed.map(|placed| placed.value.clone())
        }
        let defaults = StartOptions::default();
        StartOptions {
            event: value(self.event.as_ref()),
            write_event: value(self.write_event.as_ref()),
            combined: value(self.combined.as_ref()).unwrap_or(defaults.combined),
            bytes_per_event: value(self.bytes_per_event.as_ref()),
            period_us: self.period_us.unwrap_or(defaults.period_us),
            maxbw_mib_s: self.maxbw_mib_s,
            user_only: value(self.user_only.as_ref()).unwrap_or(defaults.user_only),
            cpus: value(self.cpus.as_ref()),
        }
    }

    /// Whether both files name the same regulator.
    pub fn same_backend(&self, other: &Self) -> bool {
        same(&self.backend, &other.backend) && self.module == other.module
    }

    /// Whether a guard started for `other` suits this file: the same regulator counts the same events on the same CPUs.
    pub fn starts_like(&self, other: &Self) -> bool {
        self.same_backend(other)
            && same(&self.event, &other.event)
            && same(&self.write_event, &other.write_event)
            && same(&self.combined, &other.combined)
            && same(&self.bytes_per_event, &other.bytes_per_event)
            && same(&self.user_only, &other.user_only)
            && same(&self.cpus, &other.cpus)
    }

    /// The settings that this file wants of a running guard.
    ///
    /// # Errors
    /// When the file contradicts the guard's start options, names a CPU that isn't in `possible` or isn't regulated, or
    /// sets a budget of less than one event a period.
    pub fn wanted(&self, control: &Control, possible: &CpuSet) -> Result<Wanted, Error> {
        self.suits(control)?;
        let is_regulated = |cpu| control.cpus.contains(cpu) || !possible.contains(cpu);
        let budgets = |resource| {
            let budgets = match resource {
                Resource::Read => &self.read_mb,
                Resource::Write => &self.write_mb,
            };
            budgets
                .iter()
                // `max` for an unregulated core is no error: that core has no budget anyway.
                .filter(|(cpu, mb)| mb.value != Amount::Max || is_regulated(**cpu))
                .map(|(&cpu, mb)| Ok((cpu, self.budget(cpu, mb, control, possible)?)))
                .collect::<Result<BTreeMap<_, _>, Error>>()
        };
        for (&cpu, rt) in &self.rt {
            self.is_regulated(cpu, rt, control, possible)?;
        }
        Ok(Wanted {
            period_us: self.period_us,
            maxbw_mib_s: self.maxbw_mib_s,
            best_effort: self.best_effort,
            reclaim: self.reclaim,
            read: budgets(Resource::Read)?,
            write: budgets(Resource::Write)?,
            rt: self.rt.iter().map(|(&cpu, rt)| (cpu, rt.value)).collect(),
        })
    }

    /// Checks the options that are fixed when a guard starts: the running guard must have those that the file names.
    fn suits(&self, control: &Control) -> Result<(), Error> {
        let refuse = |line, key: &str, running: &str| {
            let why = format!(
                "the guard that is running has {running}, and it can't be changed while it runs: \
                 `memwarden guard stop` first, or leave {key} out"
            );
            Err(self.bad(line, key, &why))
        };
        if let Some(event) = &self.event {
            if !same_events(&event.value, &control.event, &control.cpus) {
                return refuse(event.line, "event", &control.event);
            }
        }
        if let Some(event) = &self.write_event {
            if control.write_event.as_ref() != Some(&event.value) {
                let running = control.write_event.as_deref().unwrap_or("none");
                return refuse(event.line, "write_event", running);
            }
        }
        fn fixed<T: PartialEq + fmt::Display>(
            wanted: Option<&Placed<T>>,
            running: &T,
            refuse: impl Fn(usize, &str, &str) -> Result<(), Error>,
        ) -> Result<(), Error> {
            match wanted.filter(|wanted| wanted.value != *running) {
                Some(wanted) => refuse(wanted.line, &wanted.key, &running.to_string()),
                None => Ok(()),
            }
        }
        fixed(self.combined.as_ref(), &control.combined, refuse)?;
        let bytes = self.bytes_per_event.as_ref();
        fixed(bytes, &control.bytes_per_event, refuse)?;
        fixed(self.user_only.as_ref(), &control.user_only, refuse)?;
        fixed(self.cpus.as_ref(), &control.cpus, refuse)?;
        self.one_budget_if(control.combined)?;
        if let (None, Some(first)) = (&control.write_event, self.write_mb.values().next()) {
            let why = format!(
                "event {} counts no write-backs: give write_event as well",
                control.event
            );
            return Err(self.bad(first.line, &first.key, &why));
        }
        Ok(())
    }

    /// Refuses budgets for writes beside a combined one.
    fn one_budget_if(&self, combined: bool) -> Result<(), Error> {
        match self.write_mb.values().next().filter(|_| combined) {
            Some(first) => Err(self.bad(first.line, &first.key, COMBINED_ALONE)),
            None => Ok(()),
        }
    }

    fn is_regulated<T>(
        &self,
        cpu: usize,
        at: &Placed<T>,
        control: &Control,
        possible: &CpuSet,
    ) -> Result<(), Error> {
        let why = if !possible.contains(cpu) {
            format!("there is no CPU {cpu} on this machine (it has {possible})")
        } else if !control.cpus.contains(cpu) {
            format!(
                "the guard does not regulate CPU {cpu} (cpus = \"{}\")",
                control.cpus
            )
        } else {
            return Ok(());
        };
        Err(self.bad(at.line, &at.key, &why))
    }

    fn budget(
        &self,
        cpu: usize,
        mb: &Placed<Amount>,
        control: &Control,
        possible: &CpuSet,
    ) -> Result<Budget, Error> {
        self.is_regulated(cpu, mb, control, possible)?;
        let period_us = self.period_us.unwrap_or(control.period_us);
        let bytes = control.bytes_per_event;
        let Amount::Limited(mb_s) = mb.value else {
            return Ok(Budget::events(None));
        };
        let events = events_per_period(mb_s, period_us, bytes);
        if events == 0 {
            let least = mib_s(1.0, period_us, bytes).ceil();
            let why = format!(
                "{mb_s} MB/s for CPU {cpu} is less than one event of {bytes} bytes in a period of {period_us} us: \
                 give {least} or more, or a longer period"
            );
            return Err(self.bad(mb.line, &mb.key, &why));
        }
        Ok(Budget::mb(mb_s, events))
    }
}

fn same<T: PartialEq>(one: &Option<Placed<T>>, other: &Option<Placed<T>>) -> bool {
    one.as_ref().map(|one| &one.value) == other.as_ref().map(|other| &other.value)
}

fn placed<T, U>(
    spanned: Option<Spanned<T>>,
    place: &impl Fn(usize) -> (usize, String),
    value: impl Fn(T) -> U,
) -> Option<Placed<U>> {
    spanned.map(|spanned| {
        let (line, key) = place(spanned.span().start);
        Placed {
            value: value(spanned.into_inner()),
            line,
            key,
        }
    })
}

/// A list's budgets by CPU number; the first one is CPU 0's.
fn list(
    budgets: Vec<Spanned<Mb>>,
    place: &impl Fn(usize) -> (usize, String),
) -> BTreeMap<usize, Placed<Amount>> {
    budgets
        .into_iter()
        .filter_map(|mb| placed(Some(mb), place, |mb| mb.0))
        .enumerate()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Null, Regulator};
    use proptest::prelude::*;

    const FULL: &str = r#"
backend = "module"
module = "/opt/memguard.ko"
event = "page-faults"
write_event = "0x18"
bytes_per_event = 4096
user_only = false
cpus = "0-3"
period = "1ms"
maxbw = 1200
best_effort = "spare"
reclaim = true
self_test = false
keep = false
mb = [1000, 100, "max"]
write_mb = [
    50,
    "max",
]

[cpu.1]
rt = true

[cpu.3]
mb = 200
write_mb = "max"
rt = false
"#;

    fn parse(text: &str) -> Result<BudgetFile, String> {
        BudgetFile::parse(Path::new("guard.toml"), text).map_err(|error| error.to_string())
    }

    fn control(event: &str) -> Control {
        let mut guard = Null::new((0..4).collect());
        guard
            .start(&StartOptions {
                bytes_per_event: Some(4096),
                ..StartOptions::default()
            })
            .unwrap();
        Control {
            event: event.into(),
            write_event: Some("0x18".into()),
            ..guard.settings().unwrap().control
        }
    }

    fn wanted(text: &str) -> Result<Wanted, String> {
        parse(text)?
            .wanted(&control("page-faults"), &(0..4).collect())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn everything_that_can_be_set_is_read() {
        let file = parse(FULL).unwrap();
        assert_eq!(file.backend::<String>().unwrap(), "module");
        assert_eq!(file.module, Some("/opt/memguard.ko".into()));
        assert!(!file.self_test && !file.keep);
        assert_eq!(
            file.start_options(),
            StartOptions {
                event: Some("page-faults".into()),
                write_event: Some("0x18".into()),
                combined: false,
                bytes_per_event: Some(4096),
                period_us: 1000,
                maxbw_mib_s: Some(1200),
                user_only: false,
                cpus: Some((0..4).collect()),
            }
        );
        let wanted = wanted(FULL).unwrap();
        assert_eq!(wanted.best_effort, Some(BestEffort::Spare));
        assert_eq!(wanted.reclaim, Some(true));
        assert_eq!(
            wanted.read,
            BTreeMap::from([
                (0, Budget::mb(1000, 256)),
                (1, Budget::mb(100, 25)),
                (2, Budget::events(None)),
                (3, Budget::mb(200, 51)),
            ])
        );
        assert_eq!(wanted.write[&0], Budget::mb(50, 12));
        assert_eq!(wanted.write[&3], Budget::events(None));
        assert_eq!(wanted.rt, BTreeMap::from([(1, true), (3, false)]));
    }

    #[test]
    fn a_budget_can_have_a_unit() {
        let with = |text| wanted(text).unwrap();
        assert_eq!(with("mb = [\"1G\", \"512M\"]"), with("mb = [1024, 512]"));
        assert_ne!(with("mb = [\"1G\"]"), with("mb = [1000]"));
    }

    #[test]
    fn an_empty_file_wants_nothing() {
        let file = parse("").unwrap();
        assert_eq!(file.start_options(), StartOptions::default());
        assert!(file.self_test && file.keep);
        assert_eq!(wanted("").unwrap(), Wanted::default());
    }

    #[test]
    fn a_bad_file_is_refused_in_one_line_that_says_where_and_what_is_allowed() {
        for (text, place, expected) in [
            (
                "mb = [1000, 0]",
                "line 1, mb:",
                "from 1 to 1048576, such as 1000",
            ),
            (
                "\nmb = [\n 1000,\n -5,\n]",
                "line 4, mb:",
                "`-5`, expected whole MB/s",
            ),
            ("mb = [1.5]", "line 1, mb:", "expected whole MB/s"),
            ("mb = [\"Max\"]", "line 1, mb:", "or \"max\" for no budget"),
            ("mb = [1048577]", "line 1, mb:", "from 1 to 1048576"),
            ("mb = 100", "line 1, mb:", "expected a sequence"),
            ("mb = [99999999999999999999]", "line 1, mb:", ""),
            ("mb = [100]\nmb = [200]", "line 2, mb:", "duplicate key"),
            (
                "write_mb = [true]",
                "line 1, write_mb:",
                "expected whole MB/s",
            ),
            (
                "budgets = [1]",
                "line 1, budgets:",
                "unknown field `budgets`, expected one of `backend`",
            ),
            (
                "period = \"10us\"",
                "line 1, period:",
                "from \"50us\" to \"1000ms\"",
            ),
            (
                "period = 1",
                "line 1, period:",
                "from \"50us\" to \"1000ms\"",
            ),
            ("period = \"1\"", "line 1, period:", "in whole microseconds"),
            ("maxbw = 0", "line 1, maxbw:", "from 1 to 1048576"),
            (
                "bytes_per_event = 0",
                "line 1, bytes_per_event:",
                "from 1 to 1048576",
            ),
            (
                "best_effort = \"fair\"",
                "line 1, best_effort:",
                "expected one of `none`, `spare`, `proportional`",
            ),
            ("reclaim = \"on\"", "line 1, reclaim:", "expected a boolean"),
            ("event = \"\"", "line 1, event:", "a name"),
            ("event = 17", "line 1, event:", "its code"),
            ("backend = 3", "line 1, backend:", "a name"),
            ("[cpu.3]\nmb = 0", "line 2, cpu.3.mb:", "from 1 to 1048576"),
            (
                "[cpu.3]\nmbs = 1",
                "line 2, cpu.3.mbs:",
                "unknown field `mbs`, expected one of `mb`, `write_mb`, `rt`",
            ),
            ("[cpu.3]\nrt = 1", "line 2, cpu.3.rt:", "expected a boolean"),
            (
                "[cpu.x]\nrt = true",
                "line 1, cpu.x",
                "a CPU's number from 0 to 8191",
            ),
            (
                "[cpu.8192]\nrt = true",
                "line 1, cpu.8192",
                "a CPU's number from 0 to 8191",
            ),
            (
                "keep = true\n[cpu.-1]\nrt = true",
                "line 2, cpu.-1",
                "a CPU's number",
            ),
            ("[cpu.2]", "line 1, cpu.2:", "give mb, write_mb or rt"),
            ("[core.2]", "line 1, core.2:", "unknown field `core`"),
            (
                "combined = true\nmb = [100]\nwrite_mb = [\"max\"]",
                "line 3, write_mb:",
                COMBINED_ALONE,
            ),
            (
                "combined = true\n[cpu.2]\nwrite_mb = 100",
                "line 3, cpu.2.write_mb:",
                COMBINED_ALONE,
            ),
            ("= 3", "line 1", ""),
            ("mb = [1", "line 1, mb:", ""),
            ("\u{0}", "line 1", ""),
        ] {
            let message = parse(text)
                .err()
                .unwrap_or_else(|| panic!("`{text}` was taken"));
            assert!(
                message.starts_with(&format!("guard.toml {place}")),
                "`{text}`: {message}"
            );
            assert!(message.contains(expected), "`{text}`: {message}");
            assert!(!message.contains('\n'), "`{text}`: {message}");
        }
    }

    #[test]
    fn a_file_that_does_not_suit_the_machine_is_refused_with_the_remedy() {
        for (text, place, expected) in [
            (
                "mb = [1000, 3]",
                "line 1, mb:",
                "3 MB/s for CPU 1 is less than one event of 4096 bytes in a period of 1000 us: give 4 or more",
            ),
            (
                "mb = [100]\nperiod = \"100us\"\n[cpu.1]\nmb = 20",
                "line 4, cpu.1.mb:",
                "give 40 or more",
            ),
            (
                "mb = [9, 9, 9, 9, 9]",
                "line 1, mb:",
                "there is no CPU 4 on this machine (it has 0-3)",
            ),
            (
                "[cpu.9]\nrt = true",
                "line 2, cpu.9.rt:",
                "there is no CPU 9",
            ),
            (
                "\nevent = \"armv8\"",
                "line 2, event:",
                "running has page-faults",
            ),
            (
                "bytes_per_event = 64",
                "line 1, bytes_per_event:",
                "running has 4096",
            ),
            (
                "write_event = \"0x19\"",
                "line 1, write_event:",
                "running has 0x18",
            ),
            (
                "user_only = true",
                "line 1, user_only:",
                "running has false",
            ),
            ("cpus = \"1-3\"", "line 1, cpus:", "running has 0-3"),
            ("combined = true", "line 1, combined:", "running has false"),
        ] {
            let message = wanted(text).unwrap_err();
            assert!(
                message.starts_with(&format!("guard.toml {place}")),
                "`{text}`: {message}"
            );
            assert!(message.contains(expected), "`{text}`: {message}");
        }
        let no_writes = Control {
            write_event: None,
            ..control("page-faults")
        };
        let both = Control {
            combined: true,
            ..control("page-faults")
        };
        let auto = parse("event = \"auto\"\nmb = [100]").unwrap();
        assert_eq!(auto.start_options().event, None);
        assert!(auto.wanted(&control("armv8"), &(0..4).collect()).is_ok());
        let one = parse("combined = true\nmb = [100]").unwrap();
        assert!(one.start_options().combined);
        assert_eq!(one.wanted(&both, &(0..4).collect()).unwrap().read.len(), 1);
        let two = parse("mb = [100]\nwrite_mb = [100]").unwrap();
        let error = two.wanted(&both, &(0..4).collect()).unwrap_err();
        assert!(error.to_string().contains("line 2, write_mb"), "{error}");
        let file = parse("write_mb = [100]").unwrap();
        let error = file.wanted(&no_writes, &(0..4).collect()).unwrap_err();
        assert!(
            error.to_string().contains("counts no write-backs"),
            "{error}"
        );
    }

    #[test]
    fn a_core_that_is_left_alone_has_no_budget() {
        let some = Control {
            cpus: "1-3".parse().unwrap(),
            ..control("page-faults")
        };
        let wanted = |text| {
            parse(text)
                .unwrap()
                .wanted(&some, &(0..4).collect())
                .map_err(|error| error.to_string())
        };
        let budgets = wanted("cpus = \"1-3\"\nmb = [\"max\", 100, 200]")
            .unwrap()
            .read;
        assert_eq!(budgets.keys().copied().collect::<Vec<_>>(), [1, 2]);
        for (text, place) in [
            ("mb = [100]", "line 1, mb"),
            ("[cpu.0]\nrt = true", "line 2, cpu.0.rt"),
        ] {
            let said = wanted(text).unwrap_err();
            assert!(said.contains(place), "{said}");
            assert!(
                said.contains("does not regulate CPU 0 (cpus = \"1-3\")"),
                "{said}"
            );
        }
    }

    #[test]
    fn the_caller_judges_the_backend() {
        let file = parse("\nbackend = \"moon\"").unwrap();
        let error = file.backend::<u8>().unwrap_err().to_string();
        assert!(error.starts_with("guard.toml line 2, backend: "), "{error}");
        assert_eq!(parse("").unwrap().backend::<u8>().unwrap(), 0);
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = BudgetFile::read(Path::new("/nonexistent.toml")).unwrap_err();
        assert!(
            error.to_string().contains("reading /nonexistent.toml"),
            "{error}"
        );
        let error = BudgetFile::read(Path::new("/dev/zero")).unwrap_err();
        assert!(error.to_string().contains("reading /dev/zero"), "{error}");
    }

    proptest! {
        #[test]
        fn garbage_never_panics(text in "\\PC*", at in 0usize..FULL.len(), with in "\\PC{0,5}") {
            let _ = parse(&text);
            let mut damaged = FULL.to_owned();
            damaged.replace_range(at..=at, &with);
            if let Err(message) = parse(&damaged) {
                prop_assert!(!message.contains('\n'), "{}", message);
            }
        }
    }
}
