// SPDX-License-Identifier: MIT OR Apache-2.0
//! A guard's settings and statistics in Prometheus' text format 0.0.4.
//!
//! The figures are those of [`Settings`] and [`CoreStatistics`], in base units (bytes, seconds) as the format requires.
//! No library renders them: rendering is a loop over one table, and the libraries keep counters of their own while
//! these counters are the regulator's.

use std::fmt::{self, Display, Write};

use crate::statistics::ResourceStatistics;
use crate::units::MIB;
use crate::{BestEffort, CoreStatistics, Settings};

/// The media type of the format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Grows until the statistics are reset.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// A page of metrics.
#[derive(Debug, Clone, Default)]
pub struct Page(String);

impl Page {
    /// Adds one metric: name, type, help text, and values by labels. Without values, nothing is added.
    pub fn metric<V: Display>(
        &mut self,
        name: &str,
        kind: Kind,
        help: &str,
        values: impl IntoIterator<Item = (Labels, V)>,
    ) {
        let mut values = values.into_iter().peekable();
        if values.peek().is_none() {
            return;
        }
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        // Writing to a String can't fail.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        for (labels, value) in values {
            let _ = writeln!(self.0, "{name}{labels} {value}");
        }
    }

    /// The text.
    pub fn into_text(self) -> String {
        self.0
    }
}

/// The labels of one value.
#[derive(Debug, Clone, Default)]
pub struct Labels(Vec<(&'static str, String)>);

impl Labels {
    /// Adds a label.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Display) -> Self {
        self.0.push((name, value.to_string()));
        self
    }

    /// The label `cpu`.
    fn cpu(cpu: usize) -> Self {
        Self::default().with("cpu", cpu)
    }
}

impl Display for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = '{';
        for (name, value) in &self.0 {
            let value = value
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n");
            write!(f, "{separator}{name}=\"{value}\"")?;
            separator = ',';
        }
        if self.0.is_empty() {
            Ok(())
        } else {
            f.write_char('}')
        }
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// The events that a bucket of the overshoot histogram counts: `0`, `1`, `2-3`, `4-7`, ...
fn bucket(index: usize) -> String {
    match index {
        0 | 1 => index.to_string(),
        _ => {
            let first = 1u128 << (index - 1).min(126);
            format!("{first}-{}", 2 * first - 1)
        }
    }
}

/// Adds the metrics of a running guard.
pub fn guard(page: &mut Page, backend: &str, settings: &Settings, cores: &[CoreStatistics]) {
    whole(page, backend, settings);
    states(page, settings, cores);
    budgets(page, settings);
    periods(page, cores);
    throttling(page, settings, cores);
    traffic(page, settings, cores);
}

fn whole(page: &mut Page, backend: &str, settings: &Settings) {
    let control = &settings.control;
    let one = Labels::default;
    let info = one()
        .with("backend", backend)
        .with("event", &control.event)
        .with("write_event", control.write_event.as_deref().unwrap_or(""))
        .with("combined", control.combined)
        .with("user_only", control.user_only)
        .with("idle", &control.idle);
    let mut gauge = |name: &str, help: &str, value: f64| {
        page.metric(name, Kind::Gauge, help, [(one(), value)]);
    };
    gauge(
        "memwarden_period_seconds",
        "Length of a period.",
        control.period_us as f64 / 1e6,
    );
    gauge(
        "memwarden_event_bytes",
        "Bytes that one event stands for.",
        control.bytes_per_event as f64,
    );
    gauge(
        "memwarden_guaranteed_bytes_per_second",
        "Sum of all read budgets.",
        (control.guaranteed_mib_s * MIB) as f64,
    );
    gauge(
        "memwarden_maxbw_bytes_per_second",
        "Guaranteed bandwidth of the memory; 0 if not set.",
        (control.maxbw_mib_s * MIB) as f64,
    );
    gauge(
        "memwarden_reclaim_min_events",
        "Smallest number of events that a core reclaims at a time.",
        control.qmin as f64,
    );
    gauge(
        "memwarden_reclaim",
        "1 while cores donate and reclaim.",
        f64::from(u8::from(control.reclaim)),
    );
    page.metric(
        "memwarden_guard_info",
        Kind::Gauge,
        "What regulates, and what it counts.",
        [(info, 1)],
    );
    page.metric(
        "memwarden_best_effort",
        Kind::Gauge,
        "1 for what happens when all active cores have used their budgets.",
        [
            BestEffort::None,
            BestEffort::Spare,
            BestEffort::Proportional,
        ]
        .map(|mode| {
            let labels = one().with("mode", mode.word());
            (labels, u8::from(mode == control.best_effort))
        }),
    );
}

fn states(page: &mut Page, settings: &Settings, cores: &[CoreStatistics]) {
    let control = &settings.control;
    let mut state = |name: &str, help: &str, is: &dyn Fn(&CoreStatistics) -> bool| {
        let values = cores
            .iter()
            .map(|core| (Labels::cpu(core.cpu), u8::from(is(core))));
        page.metric(name, Kind::Gauge, help, values);
    };
    state(
        "memwarden_core_online",
        "1 while the core is online and regulated.",
        &|core| core.online,
    );
    state(
        "memwarden_core_rt",
        "1 while the core is never throttled.",
        &|core| core.rt,
    );
    state(
        "memwarden_core_active",
        "1 when the core ran anything in this period.",
        &|core| control.active.contains(core.cpu),
    );
    state(
        "memwarden_core_throttled",
        "1 while the core waits at this moment.",
        &|core| control.throttled.contains(core.cpu),
    );
}

/// The traffic that the figures of reads cover.
fn read_or_both(settings: &Settings) -> &'static str {
    if settings.control.combined {
        "combined"
    } else {
        "read"
    }
}

fn budgets(page: &mut Page, settings: &Settings) {
    let control = &settings.control;
    let all = || {
        [
            (read_or_both(settings), &settings.read_budget_events),
            ("write", &settings.write_budget_events),
        ]
        .into_iter()
        .flat_map(|(traffic, budgets)| {
            budgets
                .iter()
                .map(move |(&cpu, &events)| (Labels::cpu(cpu).with("traffic", traffic), events))
        })
    };
    // The format's word for no limit; Display of an infinite f64 is `inf`.
    let number = |events: Option<u64>, factor: f64| {
        events.map_or("+Inf".to_owned(), |events| {
            (events as f64 * factor).to_string()
        })
    };
    page.metric(
        "memwarden_core_budget_events",
        Kind::Gauge,
        "Events a period that the core may count.",
        all().map(|(labels, events)| (labels, number(events, 1.0))),
    );
    let per_second = control.bytes_per_event as f64 * 1e6 / control.period_us.max(1) as f64;
    page.metric(
        "memwarden_core_budget_bytes_per_second",
        Kind::Gauge,
        "The same in bytes a second.",
        all().map(|(labels, events)| (labels, number(events, per_second))),
    );
}

fn periods(page: &mut Page, cores: &[CoreStatistics]) {
    let mut count = |name: &str, help: &str, of: fn(&CoreStatistics) -> u64| {
        let values = cores.iter().map(|core| (Labels::cpu(core.cpu), of(core)));
        page.metric(name, Kind::Counter, help, values);
    };
    count("memwarden_core_periods_total", "Periods begun.", |core| {
        core.periods
    });
    count(
        "memwarden_core_missed_periods_total",
        "Period boundaries that passed without a period beginning.",
        |core| core.missed_periods,
    );
    count(
        "memwarden_core_overflows_total",
        "Times that the counter exceeded the assigned events.",
        |core| core.overflows,
    );
    count(
        "memwarden_core_throttled_periods_total",
        "Periods in which the core was throttled.",
        |core| core.throttled_periods,
    );
    count(
        "memwarden_core_best_effort_periods_total",
        "Periods that the core ended in best-effort sharing.",
        |core| core.best_effort_periods,
    );
    count(
        "memwarden_core_unregulated_periods_total",
        "Periods in which a counter did not count: the core ran unregulated.",
        |core| core.unregulated_periods,
    );
}

fn throttling(page: &mut Page, settings: &Settings, cores: &[CoreStatistics]) {
    let mut time = |name: &str, kind, help: &str, of: fn(&CoreStatistics) -> u64| {
        let values = cores
            .iter()
            .map(|core| (Labels::cpu(core.cpu), seconds(of(core))));
        page.metric(name, kind, help, values);
    };
    time(
        "memwarden_core_throttled_seconds_total",
        Kind::Counter,
        "Time that the core was throttled.",
        |core| core.throttled_ns,
    );
    time(
        "memwarden_core_best_effort_seconds_total",
        Kind::Counter,
        "Time that the core ran in best-effort sharing.",
        |core| core.best_effort_ns,
    );
    time(
        "memwarden_core_late_seconds_total",
        Kind::Counter,
        "Sum of the delays between a period's boundary and its beginning.",
        |core| core.late_ns_sum,
    );
    time(
        "memwarden_core_late_seconds_max",
        Kind::Gauge,
        "Longest delay between a period's boundary and its beginning.",
        |core| core.late_ns_max,
    );
    time(
        "memwarden_core_throttle_latency_seconds_max",
        Kind::Gauge,
        "Longest time from an overflow until the core was throttled.",
        |core| core.throttle_latency_ns_max,
    );
    time(
        "memwarden_core_release_latency_seconds_max",
        Kind::Gauge,
        "Longest time from a release until the core ran again.",
        |core| core.release_latency_ns_max,
    );
    time(
        "memwarden_core_last_second_seconds",
        Kind::Gauge,
        "Length of the last whole second, or of the last period where that is longer; 0 before the first.",
        |core| core.last_second.ns,
    );
    time(
        "memwarden_core_last_second_throttled_seconds",
        Kind::Gauge,
        "Time in the last whole second that the core was throttled.",
        |core| core.last_second.throttled_ns,
    );
    let period_us = settings.control.period_us;
    page.metric(
        "memwarden_core_throttled_ratio",
        Kind::Gauge,
        "Share of the time since the last reset that the core was throttled.",
        cores
            .iter()
            .filter_map(|core| Some((Labels::cpu(core.cpu), core.throttled_share(period_us)?))),
    );
}

fn traffic(page: &mut Page, settings: &Settings, cores: &[CoreStatistics]) {
    let all = || {
        cores.iter().flat_map(|core| {
            let write = core.write.as_ref().map(|write| ("write", write));
            [Some((read_or_both(settings), &core.read)), write]
                .into_iter()
                .flatten()
                .map(|(traffic, of)| (Labels::cpu(core.cpu).with("traffic", traffic), of))
        })
    };
    let bytes = settings.control.bytes_per_event;
    page.metric(
        "memwarden_core_used_bytes_total",
        Kind::Counter,
        "Bytes that the core moved.",
        all().map(|(labels, of)| (labels, u128::from(of.used) * u128::from(bytes))),
    );
    let mut count = |name: &str, kind, help: &str, figure: fn(&ResourceStatistics) -> u64| {
        page.metric(
            name,
            kind,
            help,
            all().map(|(labels, of)| (labels, figure(of))),
        );
    };
    count(
        "memwarden_core_used_events_total",
        Kind::Counter,
        "Events counted.",
        |of| of.used,
    );
    count(
        "memwarden_core_assigned_events_total",
        Kind::Counter,
        "Events that the core was entitled to, less donated and plus reclaimed ones.",
        |of| of.assigned,
    );
    count(
        "memwarden_core_donated_events_total",
        Kind::Counter,
        "Events given to the pool.",
        |of| of.donated,
    );
    count(
        "memwarden_core_reclaimed_events_total",
        Kind::Counter,
        "Events taken from the pool.",
        |of| of.reclaimed,
    );
    count(
        "memwarden_core_reclaim_errors_total",
        Kind::Counter,
        "Periods throttled before the core's own reservation was used.",
        |of| of.reclaim_errors,
    );
    count(
        "memwarden_core_over_periods_total",
        Kind::Counter,
        "Limited periods with more events than assigned, except best-effort periods.",
        |of| of.over_periods,
    );
    count(
        "memwarden_core_period_events_max",
        Kind::Gauge,
        "Most events of one period.",
        |of| of.used_max,
    );
    count(
        "memwarden_core_last_second_used_events",
        Kind::Gauge,
        "Events counted in the last whole second.",
        |of| of.last_second.used,
    );
    count(
        "memwarden_core_last_second_assigned_events",
        Kind::Gauge,
        "Events that the core was entitled to in the last whole second.",
        |of| of.last_second.assigned,
    );
    count(
        "memwarden_core_last_second_period_events_max",
        Kind::Gauge,
        "Most events of one period in the last whole second.",
        |of| of.last_second.used_max,
    );
    count(
        "memwarden_core_stop_events",
        Kind::Gauge,
        "Expected events of a stop, charged with the overflow.",
        |of| of.stop_events,
    );
    count(
        "memwarden_core_owed_events",
        Kind::Gauge,
        "Events beyond the budget before a throttle stopped the core, which later periods repay.",
        |of| of.owed,
    );
    count(
        "memwarden_core_overshoot_events_max",
        Kind::Gauge,
        "Most events of a throttled period beyond the assigned ones, including those during the throttle.",
        |of| of.overshoot_max,
    );
    page.metric(
        "memwarden_core_overshoots_total",
        Kind::Counter,
        "Throttled periods, by the number of events beyond the assigned ones.",
        all().flat_map(|(labels, of)| {
            of.overshoot_hist
                .iter()
                .enumerate()
                .map(move |(index, &times)| (labels.clone().with("events", bucket(index)), times))
        }),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::ResourceLastSecond;
    use crate::{Null, Regulator, StartOptions, statistics};
    use std::collections::BTreeSet;

    /// Two cores, the second unlimited and rt, with the sample's figures.
    fn page() -> String {
        let mut null = Null::new((0..2).collect());
        null.start(&StartOptions {
            bytes_per_event: Some(4096),
            maxbw_mib_s: Some(1200),
            ..StartOptions::default()
        })
        .unwrap();
        let mut settings = null.settings().unwrap();
        settings.read_budget_events.insert(0, Some(25));
        let mut cores = statistics::parse(statistics::tests::SAMPLE).unwrap();
        let first = &mut cores[0];
        (first.unregulated_periods, first.read.over_periods) = (3, 24);
        (first.read.used_max, first.read.owed) = (250, 75);
        (first.last_second.ns, first.last_second.throttled_ns) = (1_000_000_000, 500_000_000);
        first.read.last_second = ResourceLastSecond {
            used: 30_000,
            assigned: 25_000,
            used_max: 250,
        };
        let mut page = Page::default();
        guard(&mut page, "module", &settings, &cores);
        page.into_text()
    }

    #[test]
    fn figures_are_in_base_units() {
        let page = page();
        for line in [
            "memwarden_period_seconds 0.001",
            "memwarden_event_bytes 4096",
            "memwarden_maxbw_bytes_per_second 1258291200",
            "memwarden_core_budget_events{cpu=\"0\",traffic=\"read\"} 25",
            "memwarden_core_budget_bytes_per_second{cpu=\"0\",traffic=\"read\"} 102400000",
            "memwarden_core_budget_events{cpu=\"1\",traffic=\"read\"} +Inf",
            "memwarden_core_used_bytes_total{cpu=\"0\",traffic=\"read\"} 102400000",
            "memwarden_core_throttled_seconds_total{cpu=\"0\"} 0.25",
            "memwarden_core_throttled_ratio{cpu=\"0\"} 0.25",
            "memwarden_core_late_seconds_total{cpu=\"0\"} 0.00009",
            "memwarden_core_overshoots_total{cpu=\"0\",traffic=\"read\",events=\"0\"} 1000",
            "memwarden_core_over_periods_total{cpu=\"0\",traffic=\"read\"} 24",
            "memwarden_core_unregulated_periods_total{cpu=\"0\"} 3",
            "memwarden_core_period_events_max{cpu=\"0\",traffic=\"read\"} 250",
            "memwarden_core_owed_events{cpu=\"0\",traffic=\"read\"} 75",
            "memwarden_core_last_second_used_events{cpu=\"0\",traffic=\"read\"} 30000",
            "memwarden_core_last_second_assigned_events{cpu=\"0\",traffic=\"read\"} 25000",
            "memwarden_core_last_second_period_events_max{cpu=\"0\",traffic=\"read\"} 250",
            "memwarden_core_last_second_seconds{cpu=\"0\"} 1",
            "memwarden_core_last_second_throttled_seconds{cpu=\"0\"} 0.5",
            "memwarden_core_rt{cpu=\"1\"} 1",
            "memwarden_best_effort{mode=\"none\"} 1",
            "memwarden_best_effort{mode=\"spare\"} 0",
        ] {
            assert!(
                page.lines().any(|found| found == line),
                "{line} in:\n{page}"
            );
        }
        // The sample has no counts of writes, though the null guard has budgets for them.
        assert!(!page.contains("used_events_total{cpu=\"0\",traffic=\"write\"}"));
    }

    #[test]
    fn every_metric_has_its_help_and_type_once_and_counters_end_in_total() {
        let mut seen = BTreeSet::new();
        let page = page();
        let mut lines = page.lines().peekable();
        while let Some(help) = lines.next() {
            let name = help
                .strip_prefix("# HELP ")
                .unwrap()
                .split(' ')
                .next()
                .unwrap();
            assert!(seen.insert(name.to_owned()), "{name} twice");
            let kind = lines.next().unwrap();
            let kind = kind.strip_prefix(&format!("# TYPE {name} ")).unwrap();
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name} {kind}");
            assert!(name.starts_with("memwarden_"));
            let mut values = 0;
            while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
                let (series, value) = line.rsplit_once(' ').unwrap();
                assert_eq!(series.split('{').next(), Some(name));
                assert!(
                    value == "+Inf" || value.parse::<f64>().unwrap() >= 0.0,
                    "{line}"
                );
                values += 1;
            }
            assert!(values > 0, "{name} has no value");
        }
    }

    #[test]
    fn labels_are_escaped() {
        let labels = Labels::default().with("event", "a\"b\\c\nd");
        assert_eq!(labels.to_string(), r#"{event="a\"b\\c\nd"}"#);
        assert_eq!(Labels::default().to_string(), "");
    }

    #[test]
    fn buckets_name_their_events() {
        let names: Vec<_> = (0..5).map(bucket).collect();
        assert_eq!(names, ["0", "1", "2-3", "4-7", "8-15"]);
        let _ = bucket(usize::MAX);
    }
}
