// SPDX-License-Identifier: MIT OR Apache-2.0
//! An independent checker of a command stream.
//!
//! It does not use the controller's code. Its rules are a table of the standards' own
//! definitions (which command, after which, in what scope, with what minimum gap), its times
//! are the datasheet's in ps, not rounded to clocks (except for the mean rate of refreshes), and it
//! stores commands, not earliest times. Its memory does not grow with the stream.

use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;

use super::command::{Command, Kind, Observer};
use super::memory::{Memory, Organisation, Standard, Timings};

/// REFs that may be postponed: a rank's next REF is at most nine tREFI after the previous one
/// (JESD79-4, section on refresh; the other standards say the same).
const REFRESH_INTERVALS: u64 = 9;
/// REFs that a rank may owe at any time, by the same sections.
const OWED: u64 = 8;
/// Violations that are stored in full; all are counted.
const KEPT: usize = 100;

/// The scope of a rule: which earlier commands it applies to, as seen from the later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    SameBank,
    SameGroup,
    OtherGroup,
    SameRank,
}

struct Rule {
    name: &'static str,
    first: Kind,
    then: Kind,
    scope: Scope,
    gap_ps: u64,
}

/// A rule that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The rule's name.
    pub rule: &'static str,
    /// The channel.
    pub channel: usize,
    /// The earlier command, if the rule is about two.
    pub first: Option<Command>,
    /// The command that broke the rule; its time is the violation's.
    pub then: Command,
    /// The required minimum gap, ps; for late refreshes the allowed maximum, and for too few of
    /// them the time until which they were enough. 0 for rules about states.
    pub required_ps: u64,
    /// The observed gap, ps.
    pub found_ps: u64,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self {
            rule,
            channel,
            first,
            then,
            required_ps,
            found_ps,
        } = self;
        write!(f, "{} ps, channel {channel}: {rule}: {then:?}", then.at_ps)?;
        if let Some(first) = first {
            write!(f, " after {first:?}")?;
        }
        write!(f, ": {required_ps} ps required, {found_ps} ps found")
    }
}

/// The result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CheckReport {
    /// Number of judged commands.
    pub commands: u64,
    /// Number of violations, over all commands.
    pub violation_count: u64,
    /// The first of them.
    #[serde(skip)]
    pub violations: Vec<Violation>,
}

/// The last command of each kind.
type Last = [Option<Command>; 6];

struct RankPast {
    banks: Vec<Last>,
    groups: Vec<Last>,
    whole: Last,
    activates: Vec<u64>,
    /// REFs so far.
    refreshes: u64,
    rows: Vec<Option<u32>>,
}

struct ChannelPast {
    ranks: Vec<RankPast>,
    last: Option<Command>,
    /// The last burst on the data bus, and the time of its end.
    data: Option<(Command, u64)>,
}

/// Judges the commands that it observes.
pub struct Checker {
    organisation: Organisation,
    timings: Timings,
    burst_ps: u64,
    rules: Vec<Rule>,
    channels: Vec<ChannelPast>,
    report: CheckReport,
}

/// How long a burst occupies the data bus: a data clock has two transfers, and the command
/// bus's clock is the data clock, except in LPDDR5 (JESD209-5, WCK:CK of 4:1) and HBM3
/// (JESD238, WDQS at twice CK).
fn burst_ps(memory: &Memory) -> u64 {
    let data_clocks = match memory.standard {
        Standard::Lpddr5 => 4,
        Standard::Hbm3 => 2,
        _ => 1,
    };
    memory.organisation.burst_length * memory.timings.tck / (2 * data_clocks)
}

fn rules(memory: &Memory) -> Vec<Rule> {
    use Kind::{Activate, Precharge, PrechargeAll, Read, Refresh, Write};
    use Scope::{OtherGroup, SameBank, SameGroup, SameRank};
    let t = &memory.timings;
    let written_ps = t.tcwl + burst_ps(memory);
    let rule = |name, first, then, scope, gap_ps| Rule {
        name,
        first,
        then,
        scope,
        gap_ps,
    };
    vec![
        rule("tRCD", Activate, Read, SameBank, t.trcd),
        rule("tRCD", Activate, Write, SameBank, t.trcd),
        rule("tRAS", Activate, Precharge, SameBank, t.tras),
        rule("tRAS", Activate, PrechargeAll, SameRank, t.tras),
        rule("tRC", Activate, Activate, SameBank, t.trc),
        rule("tRC", Activate, Refresh, SameRank, t.trc),
        rule("tRP", Precharge, Activate, SameBank, t.trp),
        rule("tRP", PrechargeAll, Activate, SameRank, t.trp),
        rule("tRP", Precharge, Refresh, SameRank, t.trp),
        rule("tRP", PrechargeAll, Refresh, SameRank, t.trp),
        rule("tRRD_S", Activate, Activate, OtherGroup, t.trrd_s),
        rule("tRRD_L", Activate, Activate, SameGroup, t.trrd_l),
        rule("tCCD_S", Read, Read, OtherGroup, t.tccd_s),
        rule("tCCD_L", Read, Read, SameGroup, t.tccd_l),
        rule("tCCD_S", Write, Write, OtherGroup, t.tccd_s),
        rule("tCCD_L_WR", Write, Write, SameGroup, t.tccd_l_wr),
        rule("tWTR_S", Write, Read, OtherGroup, written_ps + t.twtr_s),
        rule("tWTR_L", Write, Read, SameGroup, written_ps + t.twtr_l),
        rule("tRTW", Read, Write, SameRank, t.trtw),
        rule("tRTP", Read, Precharge, SameBank, t.trtp),
        rule("tRTP", Read, PrechargeAll, SameRank, t.trtp),
        rule("tWR", Write, Precharge, SameBank, written_ps + t.twr),
        rule("tWR", Write, PrechargeAll, SameRank, written_ps + t.twr),
        rule("tRFC", Refresh, Activate, SameRank, t.trfc),
        rule("tRFC", Refresh, Refresh, SameRank, t.trfc),
    ]
}

impl Checker {
    /// A checker of a memory that has been idle for long; its first refreshes are due within
    /// nine tREFI.
    #[must_use]
    pub fn new(memory: &Memory) -> Self {
        let organisation = memory.organisation;
        let rank = || RankPast {
            banks: vec![[None; 6]; (organisation.bank_groups * organisation.banks) as usize],
            groups: vec![[None; 6]; organisation.bank_groups as usize],
            whole: [None; 6],
            activates: Vec::with_capacity(5),
            refreshes: 0,
            rows: vec![None; (organisation.bank_groups * organisation.banks) as usize],
        };
        let channel = || ChannelPast {
            ranks: (0..organisation.ranks).map(|_| rank()).collect(),
            last: None,
            data: None,
        };
        Self {
            organisation,
            timings: memory.timings,
            burst_ps: burst_ps(memory),
            rules: rules(memory),
            channels: (0..organisation.channels).map(|_| channel()).collect(),
            report: CheckReport::default(),
        }
    }

    /// The findings so far.
    #[must_use]
    pub fn report(&self) -> &CheckReport {
        &self.report
    }

    /// Ends the check, and returns the findings.
    #[must_use]
    pub fn into_report(self) -> CheckReport {
        self.report
    }

    fn broken(
        &mut self,
        rule: &'static str,
        channel: usize,
        first: Option<Command>,
        then: &Command,
        gaps_ps: (u64, u64),
    ) {
        self.report.violation_count += 1;
        if self.report.violations.len() < KEPT {
            self.report.violations.push(Violation {
                rule,
                channel,
                first,
                then: *then,
                required_ps: gaps_ps.0,
                found_ps: gaps_ps.1,
            });
        }
    }

    fn check_gaps(&mut self, channel: usize, then: &Command) {
        let rank = then.rank as usize;
        let bank = (u64::from(then.group) * self.organisation.banks) as usize + then.bank as usize;
        for index in 0..self.rules.len() {
            let rule = &self.rules[index];
            if rule.then != then.kind {
                continue;
            }
            let (name, gap_ps) = (rule.name, rule.gap_ps);
            let kind = rule.first as usize;
            let past = &self.channels[channel].ranks[rank];
            let first = match rule.scope {
                Scope::SameBank => past.banks[bank][kind],
                Scope::SameGroup => past.groups[then.group as usize][kind],
                Scope::SameRank => past.whole[kind],
                Scope::OtherGroup => {
                    let groups = past.groups.iter().enumerate();
                    let others = groups.filter(|(group, _)| *group != then.group as usize);
                    let lasts = others.filter_map(|(_, last)| last[kind]);
                    lasts.max_by_key(|last| last.at_ps)
                }
            };
            if let Some(first) = first {
                if then.at_ps < first.at_ps + gap_ps {
                    let found_ps = then.at_ps.saturating_sub(first.at_ps);
                    self.broken(name, channel, Some(first), then, (gap_ps, found_ps));
                }
            }
        }
    }

    /// At most four ACTs of a rank in any tFAW.
    fn check_window(&mut self, channel: usize, then: &Command) {
        let tfaw = self.timings.tfaw;
        let activates = &mut self.channels[channel].ranks[then.rank as usize].activates;
        if activates.len() == 4 {
            let found_ps = then.at_ps.saturating_sub(activates.remove(0));
            activates.push(then.at_ps);
            if found_ps < tfaw {
                self.broken("tFAW", channel, None, then, (tfaw, found_ps));
            }
        } else {
            activates.push(then.at_ps);
        }
    }

    fn check_data_bus(&mut self, channel: usize, then: &Command) {
        let latency_ps = match then.kind {
            Kind::Read => self.timings.tcl,
            Kind::Write => self.timings.tcwl,
            _ => return,
        };
        let begin_ps = then.at_ps + latency_ps;
        let end_ps = begin_ps + self.burst_ps;
        let before = self.channels[channel].data.replace((*then, end_ps));
        let Some((first, free_ps)) = before else {
            return;
        };
        let found_ps = begin_ps.saturating_sub(free_ps);
        if begin_ps < free_ps {
            self.broken("data bus", channel, Some(first), then, (0, 0));
        } else if first.rank != then.rank && found_ps < self.timings.trtrs {
            let gaps_ps = (self.timings.trtrs, found_ps);
            self.broken("tRTRS", channel, Some(first), then, gaps_ps);
        }
    }

    fn check_command_bus(&mut self, channel: usize, then: &Command) {
        let tck = self.timings.tck;
        if then.at_ps % tck != 0 {
            self.broken("clock edge", channel, None, then, (tck, then.at_ps % tck));
        }
        if let Some(first) = self.channels[channel].last.replace(*then) {
            if then.at_ps < first.at_ps + tck {
                let found_ps = then.at_ps.saturating_sub(first.at_ps);
                self.broken("command bus", channel, Some(first), then, (tck, found_ps));
            }
        }
    }

    /// Which rows are open, and which commands that allows.
    fn check_rows(&mut self, channel: usize, then: &Command) {
        let bank = (u64::from(then.group) * self.organisation.banks) as usize + then.bank as usize;
        let rows = &mut self.channels[channel].ranks[then.rank as usize].rows;
        let rule = match then.kind {
            Kind::Activate => rows[bank].replace(then.row).map(|_| "ACT on an open bank"),
            Kind::Precharge => {
                rows[bank] = None;
                None
            }
            Kind::PrechargeAll => {
                rows.fill(None);
                None
            }
            Kind::Read | Kind::Write => match rows[bank] {
                None => Some("data of a closed bank"),
                Some(row) if row != then.row => Some("data of the wrong row"),
                Some(_) => None,
            },
            Kind::Refresh => rows
                .iter()
                .any(Option::is_some)
                .then_some("REF with an open bank"),
        };
        if let Some(rule) = rule {
            self.broken(rule, channel, None, then, (0, 0));
        }
    }

    fn check_refresh(&mut self, channel: usize, then: &Command) {
        let most_ps = REFRESH_INTERVALS * self.timings.trefi;
        let past = &self.channels[channel].ranks[then.rank as usize];
        let first = past.whole[Kind::Refresh as usize];
        let found_ps = then
            .at_ps
            .saturating_sub(first.map_or(0, |first| first.at_ps));
        if found_ps > most_ps {
            self.broken("tREFI", channel, first, then, (most_ps, found_ps));
        }
    }

    /// REFs come every tREFI on average. This tREFI is rounded up to clocks, since the controller
    /// counts clocks from one REF to the next: it refreshes too seldom by up to a clock each tREFI.
    fn check_refresh_rate(&mut self, channel: usize, then: &Command) {
        let trefi_ps = self.timings.trefi.next_multiple_of(self.timings.tck);
        let past = &mut self.channels[channel].ranks[then.rank as usize];
        past.refreshes += u64::from(then.kind == Kind::Refresh);
        let owes_more_ps = (past.refreshes + OWED + 1) * trefi_ps;
        if then.at_ps >= owes_more_ps {
            let gaps_ps = (owes_more_ps, then.at_ps);
            self.broken("mean tREFI", channel, None, then, gaps_ps);
        }
    }

    /// Judges a command. Times of one channel must not go back.
    pub fn check(&mut self, channel: usize, then: &Command) {
        self.report.commands += 1;
        self.check_command_bus(channel, then);
        self.check_refresh(channel, then);
        self.check_refresh_rate(channel, then);
        self.check_rows(channel, then);
        self.check_gaps(channel, then);
        if then.kind == Kind::Activate {
            self.check_window(channel, then);
        }
        self.check_data_bus(channel, then);
        let bank = (u64::from(then.group) * self.organisation.banks) as usize + then.bank as usize;
        let past = &mut self.channels[channel].ranks[then.rank as usize];
        let kind = then.kind as usize;
        past.whole[kind] = Some(*then);
        if !matches!(then.kind, Kind::PrechargeAll | Kind::Refresh) {
            past.groups[then.group as usize][kind] = Some(*then);
            past.banks[bank][kind] = Some(*then);
        }
    }
}

impl Observer for Checker {
    fn command(&mut self, channel: usize, command: &Command) {
        self.check(channel, command);
    }
}
