// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cases in the words of tables, notes and progress lines. A case's name is the key of its samples and has the form of
//! the command line: `bandwidth:write x3, guard 1000,100+spare`. Its title is for readers: `3 × bandwidth:write, guard
//! 1000,100, spare sharing`.

use crate::studies::{
    copy_bandwidth, copy_breakeven, copy_latency, copy_pollution, interfere, mymem_throughput,
    realtime,
};
use crate::{Aggressor, Case, GuardSettings};

/// Text of a run folder for a terminal or a page: control characters, which can clear a screen or rewrite what is shown,
/// and marks that reorder letters become U+FFFD. Line ends and tabs stay.
#[must_use]
pub fn printable(text: &str) -> String {
    text.replace(controls, "\u{fffd}")
}

/// [`printable`] on one line.
#[must_use]
pub fn printable_line(text: &str) -> String {
    printable(&text.replace('\n', " "))
}

/// [`printable`] for JSON text, in which escapes keep the characters' values.
#[must_use]
pub fn printable_json(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if controls(c) {
            // All of them have four digits.
            out += &format!("\\u{:04x}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    out
}

/// True for a control character, and for a mark that changes the direction of text (Unicode's Bidi_Control).
fn controls(c: char) -> bool {
    let directs = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    directs || (c.is_control() && !"\n\t".contains(c))
}

/// The aggressors beside a victim: `alone`, `3 × bandwidth:write`.
pub fn company<'a>(kinds: impl IntoIterator<Item = &'a str>) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for kind in kinds {
        match counts.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, count)) => *count += 1,
            None => counts.push((kind, 1)),
        }
    }
    if counts.is_empty() {
        return "alone".into();
    }
    let words: Vec<String> = counts
        .iter()
        .map(|(kind, count)| format!("{count} \u{d7} {kind}"))
        .collect();
    words.join(" + ")
}

/// The load beside a task, on all its CPUs: `alone`, `screen`, `bandwidth:write on 3 CPUs`.
pub fn load(kind: Option<&str>, cpus: usize) -> String {
    match (kind, cpus) {
        (None, _) => "alone".into(),
        (Some(kind), 0 | 1) => kind.into(),
        (Some(kind), cpus) => format!("{kind} on {cpus} CPUs"),
    }
}

/// Cores of a machine whose budgets and cases are listed one by one.
pub const FEW_CORES: usize = 16;

/// The budgets of the cores: `1000,100,max`. Of more than [`FEW_CORES`], repeated ones with their number:
/// `1000, 255 × 100`.
pub fn budgets(words: &[String]) -> String {
    if words.len() <= FEW_CORES {
        return words.join(",");
    }
    let runs = words.chunk_by(|a, b| a == b).map(|run| match run.len() {
        1 => run[0].clone(),
        count => format!("{count} \u{d7} {}", run[0]),
    });
    runs.collect::<Vec<_>>().join(", ")
}

/// A guard's settings: `1000,100,max, spare sharing, reclaim`. `best_effort` is `none`, `spare` or `proportional`.
pub fn guard(budgets: &str, best_effort: &str, reclaim: bool, per_bank: bool) -> String {
    let mut text = budgets.to_owned();
    if best_effort != "none" && !best_effort.is_empty() {
        text += &format!(", {best_effort} sharing");
    }
    if reclaim {
        text += ", reclaim";
    }
    if per_bank {
        text += ", per bank";
    }
    text
}

/// A case by its load and its guard's settings; `long_s` is the duration of a long case.
pub fn of(load: &str, guard: Option<&str>, long_s: Option<f64>) -> String {
    let mut title = load.to_owned();
    if let Some(guard) = guard {
        title += &format!(", guard {guard}");
    }
    if let Some(seconds) = long_s {
        title += &format!(", {} s", plain(seconds));
    }
    title
}

/// An operation of a copy in words.
pub fn operation(name: &str) -> &str {
    match name {
        "from" => "from user memory",
        "to" => "to user memory",
        "from_nc" => "from user memory, not cached",
        "to_nc" => "to user memory, not cached",
        "from+to" => "from and to user memory alternately",
        other => other,
    }
}

/// A criterion by which an engine is compared with the CPU, in words.
pub fn criterion(name: &str) -> &str {
    match name {
        "latency" => "a copy's time",
        "cpu-time" => "the CPU time of the copying thread",
        "slowdown" => "the slowdown of another CPU's application",
        other => other,
    }
}

/// Copies by an engine: `from user memory, dma-shared, 64 KiB`.
pub fn copies(of: &str, engine: &str, size_bytes: u64) -> String {
    format!("{}, {engine}, {}", operation(of), size(size_bytes))
}

/// [`copies`] beside a load.
pub fn copies_beside(of: &str, engine: &str, size_bytes: u64, load: &str) -> String {
    let copies = copies(of, engine, size_bytes);
    match load {
        "idle" => copies,
        load => format!("{copies}, {load} load"),
    }
}

/// Copies that are judged by a criterion: `a copy's time, from user memory, 64 KiB`.
pub fn judged(answer: &str, of: &str, size_bytes: u64) -> String {
    let by = criterion(answer);
    format!("{by}, {}, {}", operation(of), size(size_bytes))
}

/// A copy with its size, `from:224`, in words: `from user memory, 224 B`.
pub fn sized(copy: &str) -> String {
    match copy.split_once(':').map(|(of, bytes)| (of, bytes.parse())) {
        Some((of, Ok(bytes))) => format!("{}, {}", operation(of), size(bytes)),
        _ => copy.to_owned(),
    }
}

/// An application beside copies by a system: `susan, cpu, from user memory, 224 B`.
pub fn beside_copies(application: &str, system: &str, copy: Option<&str>) -> String {
    match copy {
        Some(copy) => format!("{application}, {system}, {}", sized(copy)),
        None => format!("{application}, {system}"),
    }
}

/// Transfers of a memory device: `C device, write, 4 KiB`.
pub fn transfers(subject: &str, direction: &str, size_bytes: u64) -> String {
    format!("{subject}, {direction}, {}", size(size_bytes))
}

/// Units of sizes, from 1024 bytes on.
const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];

/// A size with all its digits, in the largest unit that leaves it whole: `512 KiB`, `1124 B`.
pub fn size(count: u64) -> String {
    let (mut value, mut unit) = (count, "B");
    for next in UNITS {
        if value == 0 || value % 1024 != 0 {
            break;
        }
        (value, unit) = (value / 1024, next);
    }
    format!("{value}\u{a0}{unit}")
}

/// Bytes in the largest binary unit of which there is at least one: `512 KiB`, `1.1 KiB`, `16 GiB`.
pub fn bytes(count: u64) -> String {
    let (mut value, mut unit) = (count as f64, "B");
    for next in UNITS {
        if value < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, next);
    }
    let rounded = (value * 10.0).round() / 10.0;
    format!("{rounded}\u{a0}{unit}")
}

/// The number in the form of the command line, without separators.
fn plain(value: f64) -> String {
    let rounded = (value * 1000.0).round() / 1000.0;
    format!("{rounded}")
}

impl GuardSettings {
    /// The [`budgets`] of the cores, MiB/s: `1000,100,max`.
    pub fn budgets_text(&self) -> String {
        let budgets = self.budget_mib_s.iter();
        let words: Vec<_> = budgets
            .map(|budget| budget.map_or_else(|| "max".into(), plain))
            .collect();
        self::budgets(&words)
    }

    /// The settings in a few words: `1000,100,max, spare sharing`.
    pub fn title(&self) -> String {
        guard(
            &self.budgets_text(),
            &self.best_effort,
            self.reclaim,
            self.per_bank,
        )
    }
}

fn guard_of(guard: Option<&GuardSettings>) -> Option<String> {
    guard.map(GuardSettings::title)
}

impl interfere::Case {
    /// The case in the words of tables and notes: `3 × bandwidth:write, guard 1000,100,100,100`.
    pub fn title(&self) -> String {
        let guard = guard_of(self.guard.as_ref());
        of(&kinds(&self.aggressors), guard.as_deref(), self.long_s)
    }
}

impl realtime::Case {
    /// The case in the words of tables and notes: `screen, guard 600,300, proportional sharing`.
    pub fn title(&self) -> String {
        let guard = guard_of(self.guard.as_ref());
        of(&on_cpus(&self.aggressors), guard.as_deref(), None)
    }
}

impl copy_latency::Case {
    /// The case in the words of tables and notes: `from user memory, cpu, 64 KiB, heavy load`.
    pub fn title(&self) -> String {
        copies_beside(&self.operation, &self.engine, self.size_bytes, &self.load)
    }
}

impl copy_bandwidth::Case {
    /// The case in the words of tables and notes: `from user memory, cpu, 64 KiB`.
    pub fn title(&self) -> String {
        copies(&self.operation, &self.engine, self.size_bytes)
    }
}

impl copy_breakeven::Case {
    /// The case in the words of tables and notes: `a copy's time, from user memory, 64 KiB`.
    pub fn title(&self) -> String {
        judged(&self.answer, &self.operation, self.size_bytes)
    }
}

impl copy_pollution::Case {
    /// The case in the words of tables and notes: `susan, cpu, from user memory, 224 B`.
    pub fn title(&self) -> String {
        beside_copies(&self.application, &self.system, self.pair.as_deref())
    }
}

impl mymem_throughput::Case {
    /// The case in the words of tables and notes: `C device, write, 4 KiB`.
    pub fn title(&self) -> String {
        transfers(&self.subject, &self.direction, self.size_bytes)
    }
}

/// [`company`] of recorded aggressors.
pub fn kinds(aggressors: &[Aggressor]) -> String {
    company(aggressors.iter().map(|one| one.kind.as_str()))
}

/// [`load`] of the recorded aggressors of a task.
pub fn on_cpus(aggressors: &[Aggressor]) -> String {
    let kind = aggressors.first().map(|one| one.kind.as_str());
    load(kind, aggressors.len())
}

impl Case {
    /// The case in the words of the tables of `experiment`; its name if they name it so.
    pub fn title(&self, experiment: &str) -> String {
        let guard = guard_of(self.guard.as_ref());
        match experiment {
            interfere::NAME => of(
                &kinds(&self.aggressors),
                guard.as_deref(),
                self.number("long_s"),
            ),
            realtime::NAME => of(&on_cpus(&self.aggressors), guard.as_deref(), None),
            _ => self
                .title_by_size(experiment)
                .unwrap_or_else(|| self.name.clone()),
        }
    }

    /// The title in a study whose cases have a size.
    fn title_by_size(&self, experiment: &str) -> Option<String> {
        let text = |key| self.text(key);
        let bytes = || self.value("size_bytes")?.as_u64();
        Some(match experiment {
            copy_latency::NAME => {
                copies_beside(text("operation")?, text("engine")?, bytes()?, text("load")?)
            }
            copy_bandwidth::NAME => copies(text("operation")?, text("engine")?, bytes()?),
            copy_breakeven::NAME => judged(text("answer")?, text("operation")?, bytes()?),
            copy_pollution::NAME => {
                beside_copies(text("application")?, text("system")?, text("pair"))
            }
            mymem_throughput::NAME => transfers(text("subject")?, text("direction")?, bytes()?),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aggressor(kind: &str) -> Aggressor {
        Aggressor {
            kind: kind.into(),
            ..Aggressor::default()
        }
    }

    #[test]
    fn budgets_of_many_cores_are_counted() {
        let of = |cores: usize| {
            let mut budgets = vec!["1000".to_owned()];
            budgets.resize(cores - 1, "100".into());
            budgets.push("max".into());
            super::budgets(&budgets)
        };
        assert_eq!(of(4), "1000,100,100,max");
        assert_eq!(of(16).matches(',').count(), 15);
        assert_eq!(of(256), "1000, 254 \u{d7} 100, max");
    }

    #[test]
    fn a_case_is_named_by_its_load_and_its_guard() {
        let settings = GuardSettings {
            budget_mib_s: vec![Some(1000.0), Some(97.65625), None],
            best_effort: "spare".into(),
            reclaim: true,
            ..GuardSettings::default()
        };
        let mut case = Case::new("bandwidth:write x2, guard 1000,97+spare+reclaim");
        case.aggressors = vec![aggressor("bandwidth:write"); 2];
        case.guard = Some(settings);
        let guard = "guard 1000,97.656,max, spare sharing, reclaim";
        assert_eq!(
            case.title("interfere"),
            format!("2 \u{d7} bandwidth:write, {guard}")
        );
        assert_eq!(
            case.title("realtime"),
            format!("bandwidth:write on 2 CPUs, {guard}")
        );
        case.set("long_s", 5.0);
        assert!(case.title("interfere").ends_with("reclaim, 5 s"));
        assert_eq!(case.title("mmap"), case.name);
        case.aggressors.clear();
        case.guard = None;
        assert_eq!(case.title("realtime"), "alone");
        let case = Case::new("from, cpu, 1024 bytes")
            .with("operation", "from")
            .with("engine", "cpu")
            .with("size_bytes", 1024);
        assert_eq!(
            case.title("copy-bandwidth"),
            "from user memory, cpu, 1\u{a0}KiB"
        );
        assert_eq!(
            sized("from+to:16"),
            "from and to user memory alternately, 16\u{a0}B"
        );
        assert_eq!(sized("from:1124"), "from user memory, 1124\u{a0}B");
        // An old run without the load.
        assert_eq!(case.title("copy-latency"), case.name);
        assert_eq!(company(["a", "b", "a"]), "2 \u{d7} a + 1 \u{d7} b");
    }
}
