// SPDX-License-Identifier: MIT OR Apache-2.0
//! The commands that a controller sends to its memory, and their observers.

/// What a command does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Opens a row of a bank (ACT).
    Activate,
    /// Closes a bank (PRE).
    Precharge,
    /// Closes all banks of a rank (PREA).
    PrechargeAll,
    /// Reads a burst from the open row (RD).
    Read,
    /// Writes a burst to the open row (WR).
    Write,
    /// Refreshes all banks of a rank (REF).
    Refresh,
}

/// A command on a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Command {
    /// The time at which it is on the command bus, ps.
    pub at_ps: u64,
    /// Its kind.
    pub kind: Kind,
    /// Its rank.
    pub rank: u32,
    /// Its bank group in the rank; 0 if the kind applies to all.
    pub group: u32,
    /// Its bank in the group; 0 if the kind applies to all.
    pub bank: u32,
    /// The row that is opened, or the burst's row; 0 for other kinds.
    pub row: u32,
}

/// Observes every command, in order of time on each channel.
pub trait Observer {
    /// Whether it sees the commands. If not, a channel may skip those of a pause.
    const SEES: bool = true;

    /// A command is issued on a channel.
    fn command(&mut self, channel: usize, command: &Command);
}

/// Ignores all commands, at no cost.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Observer for Silent {
    const SEES: bool = false;

    #[inline]
    fn command(&mut self, _channel: usize, _command: &Command) {}
}
