// SPDX-License-Identifier: MIT OR Apache-2.0
//! The description of a memory, as plain data: its organisation and its timings.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::energy::Currents;
use super::mapping::Mapping;

/// The standard of a memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)] // The names are the standards' own.
pub enum Standard {
    Ddr2,
    Ddr3,
    Ddr4,
    Ddr5,
    Lpddr2,
    Lpddr3,
    Lpddr4,
    Lpddr5,
    Hbm3,
}

impl Standard {
    /// Each standard and its name in a file.
    pub const NAMES: [(&'static str, Self); 9] = [
        ("ddr2", Self::Ddr2),
        ("ddr3", Self::Ddr3),
        ("ddr4", Self::Ddr4),
        ("ddr5", Self::Ddr5),
        ("lpddr2", Self::Lpddr2),
        ("lpddr3", Self::Lpddr3),
        ("lpddr4", Self::Lpddr4),
        ("lpddr5", Self::Lpddr5),
        ("hbm3", Self::Hbm3),
    ];

    /// Transfers of a data pin per clock of the command bus. LPDDR5 and HBM3 have separate data
    /// clocks (WCK, WDQS), four times and twice as fast.
    #[must_use]
    pub fn transfers_per_clock(self) -> u64 {
        match self {
            Self::Lpddr5 => 8,
            Self::Hbm3 => 4,
            _ => 2,
        }
    }
}

/// A numeric field of a memory file: its name and its range.
#[derive(Debug, Clone, Copy)]
pub struct Field<T> {
    /// Its key in the file.
    pub name: &'static str,
    /// The smallest allowed value.
    pub min: u64,
    /// The largest allowed value.
    pub max: u64,
    /// Whether it must be a power of two.
    pub power_of_two: bool,
    /// Reads it.
    pub get: fn(&T) -> u64,
    /// Sets it.
    pub set: fn(&mut T, u64),
}

macro_rules! fields {
    ($(#[$doc:meta])* $type:ident, $power_of_two:expr;
     $($(#[$field_doc:meta])* $name:ident: $min:literal..=$max:literal),* $(,)?) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub struct $type {
            $($(#[$field_doc])* pub $name: u64,)*
        }

        impl $type {
            /// All fields with their ranges.
            pub const FIELDS: &'static [Field<Self>] = &[
                $(Field {
                    name: stringify!($name),
                    min: $min,
                    max: $max,
                    power_of_two: $power_of_two,
                    get: |all| all.$name,
                    set: |all, value| all.$name = value,
                },)*
            ];
        }
    };
}

fields! {
    /// The division of a memory. All figures are powers of two.
    Organisation, true;
    /// Channels, each with its own buses and queues.
    channels: 1..=64,
    /// Ranks on each channel.
    ranks: 1..=8,
    /// Bank groups of each rank; 1 where the standard has none.
    bank_groups: 1..=8,
    /// Banks of each group.
    banks: 1..=16,
    /// Rows of each bank.
    rows: 2..=4194304,
    /// Columns of each row, each as wide as the bus.
    columns: 32..=65536,
    /// Width of one channel's data bus, bits.
    bus_bits: 8..=256,
    /// Transfers in a burst.
    burst_length: 4..=32,
}

fields! {
    /// The minimum times between commands, ps. "Same group" and "other group" refer to one
    /// rank; without bank groups both are equal.
    Timings, false;
    /// The period of the command clock.
    tck: 100..=20000,
    /// ACT to RD or WR, same bank.
    trcd: 100..=100000,
    /// RD to its first data.
    tcl: 100..=100000,
    /// WR to its first data.
    tcwl: 100..=100000,
    /// PRE to ACT, same bank; to REF, same rank.
    trp: 100..=100000,
    /// ACT to PRE, same bank.
    tras: 100..=200000,
    /// ACT to ACT, same bank; to REF, same rank.
    trc: 100..=300000,
    /// RD to RD or WR to WR, other group.
    tccd_s: 100..=100000,
    /// RD to RD, same group.
    tccd_l: 100..=100000,
    /// WR to WR, same group.
    tccd_l_wr: 100..=100000,
    /// ACT to ACT, other group.
    trrd_s: 100..=100000,
    /// ACT to ACT, same group.
    trrd_l: 100..=100000,
    /// ACT to the fourth ACT after it, same rank.
    tfaw: 100..=400000,
    /// Last data of a WR to PRE, same bank.
    twr: 100..=200000,
    /// Last data of a WR to RD, other group.
    twtr_s: 100..=100000,
    /// Last data of a WR to RD, same group.
    twtr_l: 100..=100000,
    /// RD to PRE, same bank.
    trtp: 100..=100000,
    /// RD to WR, same rank.
    trtw: 100..=100000,
    /// Last data of one rank to the first of another.
    trtrs: 0..=100000,
    /// Mean time between two REFs of a rank.
    trefi: 100000..=100000000,
    /// REF to ACT or REF, same rank.
    trfc: 1000..=2000000,
}

fields! {
    /// Currents of a chip from one of its supplies, by the data sheets' names, uA.
    Supply, false;
    /// The supply's voltage, mV.
    mv: 100..=5000,
    /// ACT and PRE of one bank, one after the other.
    idd0: 1..=10000000,
    /// Standby, all banks closed.
    idd2n: 1..=10000000,
    /// Standby, banks open.
    idd3n: 1..=10000000,
    /// RD after RD.
    idd4r: 1..=10000000,
    /// WR after WR.
    idd4w: 1..=10000000,
    /// REF after REF.
    idd5: 1..=10000000,
}

impl Organisation {
    /// Bytes per burst: the size of the line that the memory reads and writes.
    #[must_use]
    pub fn burst_bytes(&self) -> u64 {
        self.bus_bits / 8 * self.burst_length
    }

    /// Bursts per row.
    #[must_use]
    pub fn bursts_per_row(&self) -> u64 {
        self.columns / self.burst_length
    }

    /// Banks per channel, over all ranks and groups.
    #[must_use]
    pub fn banks_per_channel(&self) -> u64 {
        self.ranks * self.bank_groups * self.banks
    }

    /// Bytes of all channels.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        self.channels * self.banks_per_channel() * self.rows * self.columns * self.bus_bits / 8
    }
}

impl Timings {
    /// The shortest tREFI, in whole clocks, with which a rank has time for a request between two
    /// REFs: one that began before the REF was due ends, its bank is closed, and after the REF
    /// a row is opened and read or written. With a shorter one the rank does nothing but refresh.
    #[must_use]
    pub fn least_trefi_ps(&self, burst_ps: u64) -> u64 {
        let t = self.in_clocks();
        let read_ps = t.trcd + (t.tcl + burst_ps).max(t.trtp);
        let written_ps = t.trcd + t.tcwl + burst_ps + t.twr;
        t.trfc + t.trp + t.trc.max(read_ps).max(written_ps)
    }

    /// The same with every time rounded up to whole clocks, as a controller uses it.
    #[must_use]
    pub fn in_clocks(&self) -> Self {
        let mut rounded = *self;
        for field in Self::FIELDS {
            let clocks = (field.get)(self).div_ceil(self.tck);
            (field.set)(&mut rounded, clocks * self.tck);
        }
        rounded
    }
}

/// A memory: everything that the controller needs to know about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// Its name.
    pub name: String,
    /// Its standard.
    pub standard: Standard,
    /// Its organisation.
    pub organisation: Organisation,
    /// Its timings, ps.
    pub timings: Timings,
    /// The mapping of addresses.
    pub mapping: Mapping,
    /// The currents of its chips, if they are published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub currents: Option<Currents>,
}

impl Memory {
    /// Time of a burst on the data bus, ps.
    #[must_use]
    pub fn burst_ps(&self) -> u64 {
        self.organisation.burst_length / self.standard.transfers_per_clock() * self.timings.tck
    }

    /// The peak rate of all channels' data buses, bytes per second.
    #[must_use]
    pub fn peak_bytes_per_s(&self) -> f64 {
        let bytes = self.organisation.burst_bytes() * self.organisation.channels;
        bytes as f64 * 1e12 / self.burst_ps() as f64
    }
}
