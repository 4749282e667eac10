// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a controller says to its memory, and who may listen.

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
    /// When it is on the command bus, ps.
    pub at_ps: u64,
    /// What it does.
    pub kind: Kind,
    /// For which rank.
    pub rank: u32,
    /// For which bank group of it; 0 where the kind is for all.
    pub group: u32,
    /// For which bank of the group; 0 where the kind is for all.
    pub bank: u32,
    /// The row that is opened, or that the burst is of; 0 for the others.
    pub row: u32,
}

/// Hears every command, in the order of their times on each channel.
pub trait Observer {
    /// A command goes out on a channel.
    fn command(&mut self, channel: usize, command: &Command);
}

/// Listens to nothing, and costs nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Observer for Silent {
    #[inline]
    fn command(&mut self, _channel: usize, _command: &Command) {}
}
