// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which address bits choose the channel, rank, bank, row and column of a line, and the
//! inverse.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::memory::Organisation;

/// A field of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The channel.
    Channel,
    /// The rank on its channel.
    Rank,
    /// The bank group in its rank.
    BankGroup,
    /// The bank in its group.
    Bank,
    /// The row in its bank.
    Row,
    /// The burst in its row.
    Column,
}

impl Part {
    const ALL: [(&'static str, Self); 6] = [
        ("channel", Self::Channel),
        ("rank", Self::Rank),
        ("bank_group", Self::BankGroup),
        ("bank", Self::Bank),
        ("row", Self::Row),
        ("column", Self::Column),
    ];

    fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }

    /// Number of its bits in a memory of that organisation.
    fn bits(self, organisation: &Organisation) -> u32 {
        match self {
            Self::Channel => organisation.channels,
            Self::Rank => organisation.ranks,
            Self::BankGroup => organisation.bank_groups,
            Self::Bank => organisation.banks,
            Self::Row => organisation.rows,
            Self::Column => organisation.bursts_per_row(),
        }
        .ilog2()
    }
}

/// The order of an address's fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mapping {
    /// From the most significant bit to the least, above the bytes of a burst: a field's name,
    /// or `column:3` for three bits of it. A field without a number has all bits that its other
    /// pieces leave. A field without bits may be omitted.
    pub order: Vec<String>,
    /// The bank and the bank group are XORed with the lowest bits of the row, so
    /// that rows of one bank aren't a power of two apart.
    pub bank_hash: bool,
}

/// The location of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Location {
    /// The channel.
    pub channel: u32,
    /// The rank on its channel.
    pub rank: u32,
    /// The bank group in its rank.
    pub group: u32,
    /// The bank in its group.
    pub bank: u32,
    /// The row in its bank.
    pub row: u32,
    /// The burst in its row.
    pub column: u32,
}

/// Why a mapping does not fit an organisation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MappingError {
    /// A piece with an unknown name.
    #[error(
        "\"{0}\" is none of channel, rank, bank_group, bank, row, column, with :BITS or without"
    )]
    Unknown(String),
    /// Two pieces of a field have no number of bits.
    #[error("{0} is named twice without a number of bits")]
    Twice(&'static str),
    /// The number of bits of a field's pieces is wrong.
    #[error("{part} has {found} bits in the order, and {expected} in the organisation")]
    Bits {
        /// The field.
        part: &'static str,
        /// Its bits in the organisation.
        expected: u32,
        /// The sum of its pieces' bits.
        found: u32,
    },
}

/// Some bits of an address, and the bits of a field that they hold.
#[derive(Debug, Clone, Copy)]
struct Piece {
    part: Part,
    address_shift: u32,
    part_shift: u32,
    mask: u64,
}

/// A mapping, prepared for an organisation.
#[derive(Debug, Clone)]
pub struct AddressMap {
    /// From the least significant to the most.
    pieces: Vec<Piece>,
    /// (address shift, mask) of each field, if each field is in one piece: the usual case, and
    /// fast.
    whole: Option<[(u32, u64); 6]>,
    hash: Option<(u32, u32, u32)>,
    /// Ranks, bank groups and banks: the sizes of the fields of a bank's number.
    sizes: [usize; 3],
    channels: usize,
}

impl AddressMap {
    /// Prepares a mapping.
    ///
    /// # Errors
    /// When a bit of a field is missing or occurs twice.
    pub fn new(organisation: &Organisation, mapping: &Mapping) -> Result<Self, MappingError> {
        let mut named = Vec::new();
        for text in &mapping.order {
            let unknown = || MappingError::Unknown(text.clone());
            let (name, bits) = match text.split_once(':') {
                Some((name, bits)) => (name, Some(bits.parse::<u32>().map_err(|_| unknown())?)),
                None => (text.as_str(), None),
            };
            let part = Part::ALL.iter().find(|known| known.0 == name);
            named.push((part.ok_or_else(unknown)?.1, bits));
        }
        for (name, part) in Part::ALL {
            let expected = part.bits(organisation);
            let own = || named.iter().filter(|piece| piece.0 == part);
            let found = own()
                .filter_map(|piece| piece.1)
                .fold(0, u32::saturating_add);
            let rest = own().filter(|piece| piece.1.is_none()).count();
            if rest > 1 {
                return Err(MappingError::Twice(name));
            }
            if found > expected || (rest == 0 && found < expected) {
                return Err(MappingError::Bits {
                    part: part.name(),
                    expected,
                    found,
                });
            }
            for piece in named.iter_mut().filter(|piece| piece.0 == part) {
                piece.1 = piece.1.or(Some(expected - found));
            }
        }
        let offset_bits = organisation.burst_bytes().ilog2();
        let mut address_shift = offset_bits;
        let mut used = [0; 6];
        let mut pieces: Vec<Piece> = Vec::new();
        for (part, bits) in named.into_iter().rev() {
            let bits = bits.unwrap_or(0);
            pieces.push(Piece {
                part,
                address_shift,
                part_shift: used[part as usize],
                mask: (1 << bits) - 1,
            });
            address_shift += bits;
            used[part as usize] += bits;
        }
        pieces.retain(|piece| piece.mask != 0);
        let mut whole = Some([(0, 0); 6]);
        for part in 0..Part::ALL.len() {
            let mut own = pieces.iter().filter(|piece| piece.part as usize == part);
            match (own.next(), own.next(), &mut whole) {
                (Some(piece), None, Some(whole)) => {
                    whole[part] = (piece.address_shift, piece.mask);
                }
                (Some(_), Some(_), _) => whole = None,
                _ => {}
            }
        }
        let bank_bits = Part::Bank.bits(organisation);
        let masks = (
            (organisation.banks - 1) as u32,
            bank_bits,
            (organisation.bank_groups - 1) as u32,
        );
        Ok(Self {
            pieces,
            whole,
            hash: mapping.bank_hash.then_some(masks),
            sizes: [
                organisation.ranks,
                organisation.bank_groups,
                organisation.banks,
            ]
            .map(|size| size as usize),
            channels: organisation.channels as usize,
        })
    }

    #[inline]
    fn part(&self, address: u64, part: Part) -> u32 {
        if let Some(whole) = &self.whole {
            let (shift, mask) = whole[part as usize];
            return ((address >> shift) & mask) as u32;
        }
        let own = self.pieces.iter().filter(|piece| piece.part == part);
        own.fold(0, |value, piece| {
            value | (((address >> piece.address_shift) & piece.mask) << piece.part_shift) as u32
        })
    }

    /// The channel of an address.
    #[inline]
    #[must_use]
    pub fn channel(&self, address: u64) -> usize {
        self.part(address, Part::Channel) as usize
    }

    #[inline]
    fn hashed(&self, location: &mut Location) {
        if let Some((bank_mask, bank_bits, group_mask)) = self.hash {
            location.bank ^= location.row & bank_mask;
            location.group ^= (location.row >> bank_bits) & group_mask;
        }
    }

    /// The location of an address's line. Address bits above the memory's size are ignored.
    #[inline]
    #[must_use]
    pub fn locate(&self, address: u64) -> Location {
        let mut location = Location {
            channel: self.part(address, Part::Channel),
            rank: self.part(address, Part::Rank),
            group: self.part(address, Part::BankGroup),
            bank: self.part(address, Part::Bank),
            row: self.part(address, Part::Row),
            column: self.part(address, Part::Column),
        };
        self.hashed(&mut location);
        location
    }

    /// Number of banks, over all channels.
    #[must_use]
    pub fn banks(&self) -> usize {
        self.channels * self.sizes.iter().product::<usize>()
    }

    /// The number of an address's bank: the banks of channel 0 come first; in a channel, those
    /// of rank 0; in a rank, those of bank group 0.
    #[must_use]
    pub fn bank_of(&self, address: u64) -> usize {
        let at = self.locate(address);
        let [ranks, groups, banks] = self.sizes;
        let rank = at.channel as usize * ranks + at.rank as usize;
        (rank * groups + at.group as usize) * banks + at.bank as usize
    }

    /// The address of a line's first byte.
    #[must_use]
    pub fn address(&self, location: &Location) -> u64 {
        let mut plain = *location;
        // The row is unchanged, so the same XOR undoes itself.
        self.hashed(&mut plain);
        self.pieces.iter().fold(0, |address, piece| {
            let value = match piece.part {
                Part::Channel => plain.channel,
                Part::Rank => plain.rank,
                Part::BankGroup => plain.group,
                Part::Bank => plain.bank,
                Part::Row => plain.row,
                Part::Column => plain.column,
            };
            address | (((u64::from(value) >> piece.part_shift) & piece.mask) << piece.address_shift)
        })
    }
}
