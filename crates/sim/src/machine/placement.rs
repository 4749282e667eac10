// SPDX-License-Identifier: MIT OR Apache-2.0
//! Places buffers in one bank of the memory.

use super::MachineError;
use crate::main_memory::MainMemory;
use crate::private::{PAGE_BITS, PAGE_BYTES};
use crate::settings::MachineSettings;

/// Why a buffer cannot be placed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Refused {
    /// There are only this many banks.
    NoBank(usize),
    /// Too few lines of the bank are free.
    Full,
}

impl Refused {
    pub fn of_core(self, core: usize, bank: usize, wanted: u64) -> MachineError {
        match self {
            Self::NoBank(banks) => MachineError::NoBank { core, bank, banks },
            Self::Full => MachineError::FullBank { core, bank, wanted },
        }
    }
}

/// Takes pages of `free` with lines of a bank, from the last one on, until they have `bytes`
/// of that bank. Returns the lines in random order, so that consecutive lines of the buffer
/// are in different rows.
pub(super) fn in_bank<M: MainMemory>(
    free: &mut Vec<u32>,
    memory: &M,
    settings: &MachineSettings,
    bank: usize,
    bytes: u64,
    random: &mut fastrand::Rng,
) -> Result<Box<[u64]>, Refused> {
    if bank >= memory.banks() {
        return Err(Refused::NoBank(memory.banks()));
    }
    let line_bits = settings.line_bytes.trailing_zeros();
    let per_page = PAGE_BYTES >> line_bits;
    let wanted = bytes.div_ceil(settings.line_bytes) as usize;
    let (mut lines, mut others) = (Vec::with_capacity(wanted), Vec::new());
    while lines.len() < wanted {
        let frame = free.pop().ok_or(Refused::Full)?;
        let before = lines.len();
        let first = u64::from(frame) << (PAGE_BITS - line_bits);
        let of_bank = |line: &u64| memory.bank_of(line << line_bits) == bank;
        lines.extend((first..first + per_page).filter(of_bank));
        if lines.len() == before {
            others.push(frame);
        }
    }
    free.extend(others.into_iter().rev());
    lines.truncate(wanted);
    random.shuffle(&mut lines);
    Ok(lines.into_boxed_slice())
}
