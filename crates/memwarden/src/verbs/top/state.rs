// SPDX-License-Identifier: MIT OR Apache-2.0
//! State of top's screen and its reaction to keys: no terminal, no regulator, no clock.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use memwarden_guard::budget::{Amount, COMBINED_ALONE, Events, Request, Unit};
use memwarden_guard::rates::{CoreRates, Rates};
use memwarden_guard::units::mib_s;
use memwarden_guard::{BestEffort, Resource, Settings};
use memwarden_platform::cpus::CpuSet;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::verbs::guard::budgets::at_least_one_event;

/// Intervals kept in the history: more than a wide screen's columns.
const HISTORY: usize = 240;

/// Longest typed budget, in characters: more digits than any budget has.
const TYPED_MAX: usize = 12;

/// A core's history: MB/s of reads and of writes in each interval; `None` if unknown.
#[derive(Debug, Clone, Default)]
pub struct History(VecDeque<[Option<f64>; 2]>);

impl History {
    fn push(&mut self, core: &CoreRates) {
        if self.0.len() == HISTORY {
            self.0.pop_front();
        }
        let write = core.write.as_ref().and_then(|write| write.achieved_mib_s);
        self.0.push_back([core.read.achieved_mib_s, write]);
    }

    /// The last `count` values, oldest first.
    pub fn last(&self, resource: Resource, count: usize) -> impl Iterator<Item = Option<f64>> + '_ {
        let skip = self.0.len().saturating_sub(count);
        self.0.iter().skip(skip).map(move |both| match resource {
            Resource::Read => both[0],
            Resource::Write => both[1],
        })
    }
}

/// The message at the bottom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// A command succeeded.
    Done(String),
    /// A command was refused or failed.
    Refused(String),
}

/// The command of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// End the program.
    Quit,
    /// Set a budget.
    Budget(Resource, Request),
    /// Exempt a core from throttling, or end the exemption.
    Rt(usize, bool),
    /// Set best-effort sharing.
    BestEffort(BestEffort),
    /// Switch donation and reclaim.
    Reclaim(bool),
    /// Reset the statistics.
    Reset,
}

/// The screen's content.
#[derive(Debug, Clone)]
pub struct State {
    /// The regulator's name.
    pub backend: String,
    /// The reading interval.
    pub interval: Duration,
    /// The guard's settings.
    pub settings: Settings,
    /// The online cores.
    pub cores: Vec<CoreRates>,
    /// The cores that were not held, also those that are not among these.
    pub not_held: CpuSet,
    /// The failures to regulate them.
    pub failings: Vec<String>,
    /// History by core.
    pub history: BTreeMap<usize, History>,
    /// The core that keys apply to.
    pub selected: usize,
    /// The kind of budgets that are shown and changed.
    pub resource: Resource,
    /// The budget being typed.
    pub typed: Option<String>,
    /// The outcome of the last key.
    pub message: Option<Message>,
    /// Why the guard could not be read the last time.
    pub lost: Option<String>,
    /// True if the list of keys is shown.
    pub help: bool,
}

impl State {
    /// The state before the first reading.
    pub fn new(backend: &str, interval: Duration, settings: Settings) -> Self {
        Self {
            backend: backend.to_owned(),
            interval,
            settings,
            cores: Vec::new(),
            not_held: CpuSet::default(),
            failings: Vec::new(),
            history: BTreeMap::new(),
            selected: 0,
            resource: Resource::Read,
            typed: None,
            message: None,
            lost: None,
            help: false,
        }
    }

    /// Takes a new reading.
    pub fn measured(&mut self, settings: Settings, rates: Rates) {
        self.lost = None;
        let not_held = rates.cores.iter().filter(|core| !core.failings.is_empty());
        self.not_held = not_held.map(|core| core.cpu).collect();
        self.failings = rates.failings().map(str::to_owned).collect();
        self.cores = rates.cores.into_iter().filter(|core| core.online).collect();
        for core in &self.cores {
            // The first reading has no rates for the history.
            if rates.interval_s.is_some() {
                self.history.entry(core.cpu).or_default().push(core);
            }
        }
        let cores = &self.cores;
        self.history
            .retain(|cpu, _| cores.iter().any(|core| core.cpu == *cpu));
        self.set(settings);
        if !self.cores.iter().any(|core| core.cpu == self.selected) {
            let after = self.cores.iter().find(|core| core.cpu > self.selected);
            self.selected = after.or(self.cores.last()).map_or(0, |core| core.cpu);
        }
    }

    /// Takes new settings between two readings and shows them at once.
    pub fn set(&mut self, settings: Settings) {
        let control = &settings.control;
        for core in &mut self.cores {
            core.rt = control.rt.contains(core.cpu);
            for (budgets, rates) in [
                (&settings.read_budget_events, Some(&mut core.read)),
                (&settings.write_budget_events, core.write.as_mut()),
            ] {
                let Some(rates) = rates else { continue };
                let events = budgets.get(&core.cpu).copied().flatten();
                let budget = events
                    .map(|events| mib_s(events as f64, control.period_us, control.bytes_per_event));
                if rates.budget_mib_s != budget {
                    rates.budget_mib_s = budget;
                    // The current use was measured under the previous budget.
                    rates.budget_ratio = None;
                    rates.worst_ratio = None;
                    rates.whole.budget_ratio = None;
                    rates.whole.worst_ratio = None;
                }
            }
        }
        self.settings = settings;
        if !self.settings.control.has_write_budgets() {
            self.resource = Resource::Read;
        }
    }

    /// Takes the reason why the guard can't be read: no figure is known any more.
    pub fn lost(&mut self, why: String) {
        self.cores.clear();
        self.not_held = CpuSet::default();
        self.failings.clear();
        self.message = None;
        self.lost = Some(why);
    }

    /// Takes the outcome of a command.
    pub fn done(&mut self, outcome: Result<String, String>) {
        self.message = Some(outcome.map_or_else(Message::Refused, Message::Done));
    }

    fn budget(&self) -> Events {
        let budgets = match self.resource {
            Resource::Read => &self.settings.read_budget_events,
            Resource::Write => &self.settings.write_budget_events,
        };
        budgets.get(&self.selected).copied().flatten()
    }

    /// Handles a key.
    pub fn key(&mut self, key: KeyEvent) -> Option<Command> {
        if key.kind == KeyEventKind::Release {
            return None;
        }
        self.message = None;
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return (key.code == KeyCode::Char('c')).then_some(Command::Quit);
        }
        if self.typed.is_some() {
            return self.key_while_typing(key.code);
        }
        if self.help {
            self.help = false;
            return (key.code == KeyCode::Char('q')).then_some(Command::Quit);
        }
        match key.code {
            KeyCode::Char('q') => Some(Command::Quit),
            KeyCode::Char('?' | 'h') => {
                self.help = true;
                None
            }
            KeyCode::Down | KeyCode::Char('j') => self.select(1),
            KeyCode::Up | KeyCode::Char('k') => self.select(-1),
            KeyCode::PageDown => self.select(10),
            KeyCode::PageUp => self.select(-10),
            KeyCode::Home => self.select(isize::MIN),
            KeyCode::End => self.select(isize::MAX),
            KeyCode::Char('w') => self.other_resource(),
            KeyCode::Char('z') => Some(Command::Reset),
            KeyCode::Char('m') => Some(Command::BestEffort(
                match self.settings.control.best_effort {
                    BestEffort::None => BestEffort::Spare,
                    BestEffort::Spare => BestEffort::Proportional,
                    BestEffort::Proportional => BestEffort::None,
                },
            )),
            KeyCode::Char('R') => Some(Command::Reclaim(!self.settings.control.reclaim)),
            _ if self.cores.is_empty() => None,
            KeyCode::Char('+' | '=') => self.change(true),
            KeyCode::Char('-' | '_') => self.change(false),
            KeyCode::Char('e') | KeyCode::Enter => {
                self.typed = Some(String::new());
                None
            }
            KeyCode::Char('u') => Some(self.events(None)),
            KeyCode::Char('r') => Some(Command::Rt(
                self.selected,
                !self.settings.control.rt.contains(self.selected),
            )),
            _ => None,
        }
    }

    fn events(&self, events: Events) -> Command {
        Command::Budget(
            self.resource,
            Request::events_for_cpu(self.selected, events),
        )
    }

    fn select(&mut self, by: isize) -> Option<Command> {
        let at = self
            .cores
            .iter()
            .position(|core| core.cpu == self.selected)?;
        let last = self.cores.len() - 1;
        self.selected = self.cores[at.saturating_add_signed(by).min(last)].cpu;
        None
    }

    fn other_resource(&mut self) -> Option<Command> {
        if !self.settings.control.has_write_budgets() {
            let why = if self.settings.control.combined {
                COMBINED_ALONE
            } else {
                "write-backs are not counted: start the guard with --write-event"
            };
            self.message = Some(Message::Refused(why.into()));
            return None;
        }
        self.resource = match self.resource {
            Resource::Read => Resource::Write,
            Resource::Write => Resource::Read,
        };
        None
    }

    /// Changes the budget by a tenth, at least one event; it never drops below one.
    fn change(&mut self, more: bool) -> Option<Command> {
        let Some(events) = self.budget() else {
            self.message = Some(Message::Refused(format!(
                "CPU{} has no budget: type one with e",
                self.selected
            )));
            return None;
        };
        let step = (events / 10).max(1);
        let events = if more {
            events.saturating_add(step)
        } else {
            events.saturating_sub(step).max(1)
        };
        Some(self.events(Some(events)))
    }

    fn key_while_typing(&mut self, code: KeyCode) -> Option<Command> {
        let typed = self.typed.get_or_insert_default();
        match code {
            KeyCode::Char(char) if !char.is_control() && typed.len() < TYPED_MAX => {
                typed.push(char)
            }
            KeyCode::Backspace => {
                typed.pop();
            }
            KeyCode::Esc => self.typed = None,
            KeyCode::Enter => {
                let typed = self.typed.take().unwrap_or_default();
                if typed.trim().is_empty() {
                    return None;
                }
                let request = Request::parse(Unit::Mb, typed.trim())
                    .and_then(|request| request.for_cpu(self.selected))
                    .map_err(anyhow::Error::from)
                    .and_then(|request| {
                        at_least_one_event(request.amounts[0], &self.settings.control)?;
                        Ok(request)
                    });
                match request {
                    Ok(request) if request.amounts == [Amount::Max] => {
                        return Some(self.events(None));
                    }
                    Ok(request) => return Some(Command::Budget(self.resource, request)),
                    Err(error) => self.message = Some(Message::Refused(error.to_string())),
                }
            }
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memwarden_guard::rates::ResourceRates;
    use memwarden_guard::{Null, Regulator, StartOptions};
    use proptest::prelude::*;

    fn settings() -> Settings {
        let mut guard = Null::new((0..3).collect());
        let options = StartOptions {
            bytes_per_event: Some(4096),
            ..StartOptions::default()
        };
        guard.start(&options).unwrap();
        let budgets = Request::parse(Unit::Events, "100,5").unwrap();
        guard.set_budgets(Resource::Read, &budgets).unwrap();
        guard.settings().unwrap()
    }

    fn rates(cpus: &[usize]) -> Rates {
        let core = |&cpu: &usize| CoreRates {
            cpu,
            online: true,
            read: ResourceRates {
                achieved_mib_s: Some(50.0),
                budget_ratio: Some(0.128),
                ..ResourceRates::default()
            },
            write: Some(ResourceRates::default()),
            ..CoreRates::default()
        };
        Rates {
            interval_s: Some(1.0),
            cores: cpus.iter().map(core).collect(),
        }
    }

    fn state() -> State {
        let mut state = State::new("null", Duration::from_secs(1), settings());
        state.measured(settings(), rates(&[0, 1, 2]));
        state
    }

    fn press(state: &mut State, code: KeyCode) -> Option<Command> {
        state.key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn types(state: &mut State, text: &str) -> Option<Command> {
        text.chars().for_each(|char| {
            assert_eq!(press(state, KeyCode::Char(char)), None);
        });
        press(state, KeyCode::Enter)
    }

    fn events(cpu: usize, events: Events) -> Option<Command> {
        Some(Command::Budget(
            Resource::Read,
            Request::events_for_cpu(cpu, events),
        ))
    }

    #[test]
    fn arrows_move_among_the_cores_and_stop_at_the_ends() {
        let mut state = state();
        for (code, expected) in [
            (KeyCode::Up, 0),
            (KeyCode::Down, 1),
            (KeyCode::Char('j'), 2),
            (KeyCode::Down, 2),
            (KeyCode::Char('k'), 1),
            (KeyCode::End, 2),
            (KeyCode::PageUp, 0),
            (KeyCode::PageDown, 2),
            (KeyCode::Home, 0),
        ] {
            assert_eq!(press(&mut state, code), None);
            assert_eq!(state.selected, expected, "{code:?}");
        }
    }

    #[test]
    fn plus_and_minus_are_a_tenth_and_never_nothing() {
        let mut state = state();
        assert_eq!(press(&mut state, KeyCode::Char('+')), events(0, Some(110)));
        assert_eq!(press(&mut state, KeyCode::Char('-')), events(0, Some(90)));
        press(&mut state, KeyCode::Down);
        assert_eq!(press(&mut state, KeyCode::Char('=')), events(1, Some(6)));
        state.settings.read_budget_events.insert(1, Some(1));
        assert_eq!(press(&mut state, KeyCode::Char('-')), events(1, Some(1)));
        state.settings.read_budget_events.insert(1, Some(u64::MAX));
        assert_eq!(
            press(&mut state, KeyCode::Char('+')),
            events(1, Some(u64::MAX))
        );
    }

    #[test]
    fn a_tenth_of_no_budget_is_explained() {
        let mut state = state();
        press(&mut state, KeyCode::End);
        assert_eq!(press(&mut state, KeyCode::Char('+')), None);
        assert_eq!(
            state.message,
            Some(Message::Refused(
                "CPU2 has no budget: type one with e".into()
            ))
        );
        // The next key removes the message.
        press(&mut state, KeyCode::Up);
        assert_eq!(state.message, None);
    }

    #[test]
    fn a_budget_is_typed() {
        let mut state = state();
        press(&mut state, KeyCode::Char('e'));
        let expected = Request::parse(Unit::Mb, "600").unwrap().for_cpu(0).unwrap();
        assert_eq!(
            types(&mut state, "600"),
            Some(Command::Budget(Resource::Read, expected))
        );
        assert_eq!(state.typed, None);
        press(&mut state, KeyCode::Enter);
        assert_eq!(types(&mut state, "max"), events(0, None));
        // While typing, q and + are text; Esc and an empty line change nothing.
        press(&mut state, KeyCode::Char('e'));
        assert_eq!(press(&mut state, KeyCode::Char('q')), None);
        assert_eq!(state.typed.as_deref(), Some("q"));
        press(&mut state, KeyCode::Backspace);
        press(&mut state, KeyCode::Backspace);
        assert_eq!(press(&mut state, KeyCode::Enter), None);
        press(&mut state, KeyCode::Char('e'));
        press(&mut state, KeyCode::Esc);
        assert_eq!((state.typed, state.message), (None, None));
    }

    #[test]
    fn a_typed_budget_that_makes_no_sense_is_refused_in_words() {
        for (typed, expected) in [
            ("0", "budget `0`"),
            ("-5", "budget `-5`"),
            ("1,2", "2 budgets for CPU 0: give one"),
            ("fast", "budget `fast`"),
            ("3", "give 4 or more"),
            ("99999999999999999", "budget"),
        ] {
            let mut state = state();
            press(&mut state, KeyCode::Char('e'));
            let command = types(&mut state, typed);
            if typed.len() > TYPED_MAX {
                // Further characters are ignored.
                assert!(command.is_some(), "{typed}");
                continue;
            }
            assert_eq!(command, None, "{typed}");
            match state.message {
                Some(Message::Refused(text)) => assert!(text.contains(expected), "{text}"),
                other => panic!("{typed}: {other:?}"),
            }
        }
    }

    #[test]
    fn switches_ask_for_what_is_not_set() {
        let mut state = state();
        assert_eq!(press(&mut state, KeyCode::Char('u')), events(0, None));
        assert_eq!(
            press(&mut state, KeyCode::Char('r')),
            Some(Command::Rt(0, true))
        );
        assert_eq!(
            press(&mut state, KeyCode::Char('R')),
            Some(Command::Reclaim(true))
        );
        let mut cycle = vec![];
        for _ in 0..3 {
            if let Some(Command::BestEffort(mode)) = press(&mut state, KeyCode::Char('m')) {
                cycle.push(mode);
                state.settings.control.best_effort = mode;
            }
        }
        assert_eq!(
            cycle,
            [
                BestEffort::Spare,
                BestEffort::Proportional,
                BestEffort::None
            ]
        );
        assert_eq!(press(&mut state, KeyCode::Char('z')), Some(Command::Reset));
        assert_eq!(press(&mut state, KeyCode::Char('q')), Some(Command::Quit));
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        press(&mut state, KeyCode::Char('e'));
        assert_eq!(state.key(control_c), Some(Command::Quit));
    }

    #[test]
    fn writes_have_budgets_of_their_own_where_they_are_counted() {
        let mut state = state();
        press(&mut state, KeyCode::Char('w'));
        assert_eq!(state.resource, Resource::Write);
        state.settings.write_budget_events.insert(0, Some(10));
        assert_eq!(
            press(&mut state, KeyCode::Char('+')),
            Some(Command::Budget(
                Resource::Write,
                Request::events_for_cpu(0, Some(11))
            ))
        );
        let mut reads_alone = settings();
        reads_alone.control.write_event = None;
        state.set(reads_alone);
        assert_eq!(state.resource, Resource::Read);
        press(&mut state, KeyCode::Char('w'));
        assert!(matches!(state.message, Some(Message::Refused(_))));
    }

    #[test]
    fn help_goes_with_any_key() {
        let mut state = state();
        press(&mut state, KeyCode::Char('?'));
        assert!(state.help);
        assert_eq!(press(&mut state, KeyCode::Char('+')), None);
        assert!(!state.help);
    }

    #[test]
    fn a_core_that_goes_hands_the_selection_on() {
        let mut state = state();
        press(&mut state, KeyCode::Down);
        state.measured(settings(), rates(&[0, 2]));
        assert_eq!(state.selected, 2);
        assert!(!state.history.contains_key(&1));
        state.measured(settings(), rates(&[0]));
        assert_eq!(state.selected, 0);
        state.measured(settings(), rates(&[]));
        for code in [
            KeyCode::Down,
            KeyCode::Char('+'),
            KeyCode::Char('e'),
            KeyCode::Char('r'),
        ] {
            assert_eq!(press(&mut state, code), None);
        }
        state.measured(settings(), rates(&[0, 1]));
        assert_eq!(state.selected, 0);
    }

    #[test]
    fn a_new_budget_shows_before_the_next_reading() {
        let mut state = state();
        for core in &mut state.cores {
            core.read.budget_ratio = Some(0.5);
            core.read.whole.budget_ratio = Some(0.5);
            core.read.whole.worst_ratio = Some(1.5);
        }
        let mut new = settings();
        new.read_budget_events.insert(0, Some(200));
        new.control.rt = [0].into_iter().collect();
        state.set(new);
        assert_eq!(state.cores[0].read.budget_mib_s, Some(781.25));
        let read = &state.cores[0].read;
        assert_eq!((read.budget_ratio, read.whole.budget_ratio), (None, None));
        assert_eq!(read.whole.worst_ratio, None);
        assert!(state.cores[0].rt);
        // The budget of the other cores is as it was.
        assert_eq!(state.cores[1].read.whole.worst_ratio, Some(1.5));
    }

    #[test]
    fn a_guard_that_has_ended_leaves_no_core_that_is_not_held() {
        let mut state = state();
        let mut failing = rates(&[0, 1, 2]);
        failing.cores[1].failings = vec!["CPU1 was not held".into()];
        // A core that the guard does not regulate is not online to it.
        failing.cores[2].online = false;
        failing.cores[2].failings = vec!["CPU2 is not held".into()];
        state.measured(settings(), failing);
        assert_eq!((state.cores.len(), state.failings.len()), (2, 2));
        assert_eq!(state.not_held.to_string(), "1-2");
        state.lost("it has ended".into());
        assert!(state.not_held.is_empty() && state.failings.is_empty() && state.cores.is_empty());
        assert_eq!(state.lost.as_deref(), Some("it has ended"));
    }

    #[test]
    fn history_is_bounded_and_the_newest_is_last() {
        let mut state = state();
        for _ in 0..2 * HISTORY {
            state.measured(settings(), rates(&[0]));
        }
        let mut last = rates(&[0]);
        last.cores[0].read.achieved_mib_s = None;
        state.measured(settings(), last);
        let kept: Vec<_> = state.history[&0].last(Resource::Read, usize::MAX).collect();
        assert_eq!(kept.len(), HISTORY);
        assert_eq!(kept[HISTORY - 1], None);
        assert_eq!(state.history[&0].last(Resource::Read, 3).count(), 3);
    }

    proptest! {
        #[test]
        fn no_keys_panic(keys in prop::collection::vec(prop::sample::select(
            "jk+-eu0123456789rmRzw?,max\n\x1b\x08äq".chars().collect::<Vec<_>>()), 0..60),
            cores in 0usize..4)
        {
            let mut state = state();
            let cpus: Vec<usize> = (0..cores).collect();
            state.measured(settings(), rates(&cpus));
            for key in keys {
                press(&mut state, match key {
                    '\n' => KeyCode::Enter,
                    '\x1b' => KeyCode::Esc,
                    '\x08' => KeyCode::Backspace,
                    key => KeyCode::Char(key),
                });
            }
        }
    }
}
