// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory controller: accepts lines, orders commands, and reports when lines are done.

use memwarden_machines::MAX_IDLE_PS;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::channel::Channel;
use super::command::{Observer, Silent};
use super::mapping::{AddressMap, MappingError};
use super::memory::{Field, Memory, Organisation, Timings};
use super::statistics::Statistics;
use crate::main_memory::{Arrival, Done, MainMemory, NEVER_PS, to_next_event};

/// The treatment of an open row without requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PagePolicy {
    /// The row stays open.
    Open,
    /// The row is closed as soon as possible.
    Closed,
    /// The row is closed when it hasn't been used for a time.
    Timeout {
        /// That time, ps.
        idle_ps: u64,
    },
}

/// How a controller orders its requests, for each channel separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ControllerSettings {
    /// Number of reads in a queue, 1 to 1024.
    pub read_depth: usize,
    /// Number of writes in a queue, 1 to 1024.
    pub write_depth: usize,
    /// Row hits that are served in a bank while an older request waits for another row.
    pub row_hit_cap: u32,
    /// Writing begins when this many writes wait.
    pub write_high: usize,
    /// Reading resumes when this few writes wait, if there is a read.
    pub write_low: usize,
    /// Reading also resumes after this many writes, however many wait.
    pub writes_per_drain: u32,
    /// Writing begins only after this many reads, unless no read waits.
    pub reads_per_turn: u32,
    /// If no read waits, writing begins only after this time without a read, ps. With 0 it
    /// begins in each short pause of the reads. If `write_high` writes wait, it begins without
    /// this time.
    pub write_idle_ps: u64,
    /// What becomes of open rows.
    pub page_policy: PagePolicy,
}

impl Default for ControllerSettings {
    /// Common depths. They are not those of a real controller, since these aren't published.
    fn default() -> Self {
        Self {
            read_depth: 32,
            write_depth: 32,
            row_hit_cap: 16,
            write_high: 24,
            write_low: 8,
            writes_per_drain: 24,
            reads_per_turn: 8,
            write_idle_ps: 0,
            page_policy: PagePolicy::Open,
        }
    }
}

/// Why a controller is not possible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ControllerError {
    /// A setting is out of its range.
    #[error("{name} is {found}: has to be from {min} to {max}")]
    Range {
        /// The setting.
        name: &'static str,
        /// Its value.
        found: u64,
        /// The smallest allowed value.
        min: u64,
        /// The largest allowed value.
        max: u64,
    },
    /// A figure of the organisation is no power of two.
    #[error("{name} is {found}: has to be a power of two from {min} to {max}")]
    PowerOfTwo {
        /// The figure.
        name: &'static str,
        /// Its value.
        found: u64,
        /// The smallest allowed value.
        min: u64,
        /// The largest allowed value.
        max: u64,
    },
    /// The address mapping does not match the organisation.
    #[error("the address mapping")]
    Mapping(#[from] MappingError),
}

/// A memory with its controller.
pub struct Controller<O = Silent> {
    map: AddressMap,
    channels: Vec<Channel>,
    observer: O,
}

impl ControllerSettings {
    /// Checks all settings, also those that limit each other.
    ///
    /// # Errors
    /// The first setting that is out of its range.
    pub fn check(&self) -> Result<(), ControllerError> {
        in_range("read_depth", self.read_depth as u64, 1, 1024)?;
        let depth = self.write_depth as u64;
        in_range("write_depth", depth, 1, 1024)?;
        let high = self.write_high as u64;
        in_range("write_high", high, 1, depth)?;
        in_range("write_low", self.write_low as u64, 0, high - 1)?;
        let most = u64::from(u32::MAX);
        in_range("writes_per_drain", self.writes_per_drain.into(), 1, most)?;
        in_range("reads_per_turn", self.reads_per_turn.into(), 1, most)?;
        in_range("write_idle_ps", self.write_idle_ps, 0, MAX_IDLE_PS)
    }
}

fn fields_in_range<T>(fields: &[Field<T>], all: &T) -> Result<(), ControllerError> {
    for field in fields {
        let Field { name, min, max, .. } = *field;
        let found = (field.get)(all);
        in_range(name, found, min, max)?;
        if field.power_of_two && !found.is_power_of_two() {
            return Err(ControllerError::PowerOfTwo {
                name,
                found,
                min,
                max,
            });
        }
    }
    Ok(())
}

fn in_range(name: &'static str, found: u64, min: u64, max: u64) -> Result<(), ControllerError> {
    if (min..=max).contains(&found) {
        return Ok(());
    }
    Err(ControllerError::Range {
        name,
        found,
        min,
        max,
    })
}

impl Controller {
    /// A controller without an observer.
    ///
    /// # Errors
    /// When a setting is out of its range.
    pub fn new(memory: &Memory, settings: &ControllerSettings) -> Result<Self, ControllerError> {
        Self::observed(memory, settings, Silent)
    }
}

impl<O: Observer> Controller<O> {
    /// A controller whose commands `observer` sees.
    ///
    /// # Errors
    /// When a setting is out of its range.
    pub fn observed(
        memory: &Memory,
        settings: &ControllerSettings,
        observer: O,
    ) -> Result<Self, ControllerError> {
        fields_in_range(Organisation::FIELDS, &memory.organisation)?;
        fields_in_range(Timings::FIELDS, &memory.timings)?;
        in_range(
            "burst_length",
            memory.organisation.burst_length,
            memory.standard.transfers_per_clock(),
            32,
        )?;
        let banks = memory.organisation.banks_per_channel();
        in_range("banks of a channel", banks, 1, 64)?;
        settings.check()?;
        Ok(Self {
            map: AddressMap::new(&memory.organisation, &memory.mapping)?,
            channels: (0..memory.organisation.channels as usize)
                .map(|index| Channel::new(index, memory, settings))
                .collect(),
            observer,
        })
    }

    /// The sum over all channels.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let mut sum = Statistics::new();
        for channel in &self.channels {
            sum.add(&channel.statistics);
        }
        sum
    }

    /// Advances the channel of an address to `from_ps`, and from there until it has room for a
    /// line of that kind. The other channels stay behind, since they are not affected. Lines
    /// are added as soon as it is known when they will be done, in no order. Returns when there
    /// is room.
    ///
    /// For callers that only wait for room and do not use earlier lines; call
    /// [`finish`](Controller::finish) at the end.
    #[inline]
    pub fn wait_for_room(
        &mut self,
        address: u64,
        write: bool,
        from_ps: u64,
        done: &mut Vec<Done>,
    ) -> u64 {
        let channel = &mut self.channels[self.map.channel(address)];
        let observer = &mut self.observer;
        let (room_ps, full) = channel.wait_for_room(write, from_ps, done, observer);
        if full && room_ps == from_ps {
            // Room that came of no time is an event of that time, which is then over for all.
            for channel in &mut self.channels {
                channel.advance_to(room_ps, &mut self.observer);
            }
        }
        room_ps
    }

    /// Advances until all lines are done, and adds those that weren't added yet; `end_ps` is
    /// the time at which the last of the earlier lines was done.
    pub fn finish(&mut self, end_ps: u64, done: &mut Vec<Done>) {
        let before = done.len();
        for channel in &mut self.channels {
            channel.finish_all(done, &mut self.observer);
        }
        let ends = done[before..].iter().map(|done| done.at_ps);
        let end_ps = ends.fold(end_ps, u64::max);
        for channel in &mut self.channels {
            channel.advance_to(end_ps, &mut self.observer);
        }
    }

    /// The observer.
    pub fn observer(&self) -> &O {
        &self.observer
    }

    /// Ends the controller, and returns the observer.
    pub fn into_observer(self) -> O {
        self.observer
    }
}

impl<O: Observer> MainMemory for Controller<O> {
    #[inline]
    fn has_room(&self, address: u64, write: bool) -> bool {
        self.channels[self.map.channel(address)].has_room(write)
    }

    #[inline]
    fn push(&mut self, arrival: Arrival) {
        let location = self.map.locate(arrival.address);
        self.channels[location.channel as usize].push(arrival, location);
    }

    #[inline]
    fn next_event_ps(&self) -> u64 {
        let events = self.channels.iter().map(Channel::next_event_ps);
        events.min().unwrap_or(NEVER_PS)
    }

    #[inline]
    fn earliest_done_ps(&self) -> u64 {
        let times = self.channels.iter().map(Channel::earliest_done_ps);
        times.min().unwrap_or(NEVER_PS)
    }

    fn advance(&mut self, until_ps: u64, done: &mut Vec<Done>) {
        let before = done.len();
        for channel in &mut self.channels {
            channel.advance(until_ps, done, &mut self.observer);
        }
        if self.channels.len() > 1 {
            done[before..].sort_unstable_by_key(|done| (done.at_ps, done.id));
        }
    }

    fn banks(&self) -> usize {
        self.map.banks()
    }

    #[inline]
    fn bank_of(&self, address: u64) -> usize {
        self.map.bank_of(address)
    }

    fn go_on(&mut self, until_ps: u64, done: &mut Vec<Done>) -> Option<u64> {
        if let [channel] = &mut self.channels[..] {
            return channel.go_on(until_ps, done, &mut self.observer);
        }
        to_next_event(self, until_ps, done)
    }
}
