// SPDX-License-Identifier: MIT OR Apache-2.0
//! A channel's waiting requests: a list for each bank and kind, in order of arrival.

use super::ready::BANKS;

/// No slot.
pub(super) const NONE: u16 = u16::MAX;
/// No row is open.
pub(super) const CLOSED: u32 = u32::MAX;
/// Many times the number of waiting writes.
const MARKS: usize = 1024;

/// Lines of a row have consecutive marks; marks of different rows are far apart.
fn mark(row: u32, column: u32) -> usize {
    row.wrapping_mul(0x9e37_79b1).wrapping_add(column) as usize % MARKS
}

/// A waiting request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    pub id: u32,
    pub core: u32,
    pub at_ps: u64,
    /// Order of arrival.
    pub age: u64,
    pub row: u32,
    pub column: u32,
    /// Whether a row was opened for it.
    pub opened: bool,
    /// Whether a row was closed for it.
    pub closed: bool,
    pub next: u16,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct List {
    pub head: u16,
    tail: u16,
    /// The oldest request for the open row.
    pub hit: u16,
}

/// Requests by bank: for each bank a list of reads and a list of writes.
#[derive(Debug, Clone)]
pub(super) struct Queue {
    pub slots: Vec<Slot>,
    free: Vec<u16>,
    pub lists: Box<[[List; 2]; BANKS]>,
    /// Banks that have a read, and banks that have a write, as bits.
    pub banks: [u64; 2],
    /// Number of reads, and of writes.
    pub lengths: [usize; 2],
    /// Number of writes by their lines' [`mark`]s. In most cases no write has the mark of an
    /// arriving line, so the writes need not be searched.
    marks: Box<[u16; MARKS]>,
}

impl Queue {
    pub fn new(depth: usize) -> Self {
        let empty = List {
            head: NONE,
            tail: NONE,
            hit: NONE,
        };
        Self {
            slots: Vec::with_capacity(depth),
            free: Vec::with_capacity(depth),
            lists: Box::new([[empty; 2]; BANKS]),
            banks: [0; 2],
            lengths: [0; 2],
            marks: Box::new([0; MARKS]),
        }
    }

    /// Returns whether it is the first of its list, and whether it is the first for the open
    /// row.
    #[inline]
    pub fn add(&mut self, write: bool, bank: usize, open_row: u32, slot: Slot) -> bool {
        let index = if let Some(free) = self.free.pop() {
            self.slots[usize::from(free)] = slot;
            free
        } else {
            self.slots.push(slot);
            (self.slots.len() - 1) as u16
        };
        let list = &mut self.lists[bank % BANKS][usize::from(write)];
        let is_head = list.head == NONE;
        if is_head {
            list.head = index;
        } else {
            self.slots[usize::from(list.tail)].next = index;
        }
        list.tail = index;
        let is_hit = list.hit == NONE && slot.row == open_row;
        if is_hit {
            list.hit = index;
        }
        self.banks[usize::from(write)] |= 1 << bank;
        self.lengths[usize::from(write)] += 1;
        if write {
            self.marks[mark(slot.row, slot.column)] += 1;
        }
        is_head || is_hit
    }

    /// The first in a list for a row.
    fn first(&self, mut at: u16, row: u32) -> u16 {
        while at != NONE && self.slots[usize::from(at)].row != row {
            at = self.slots[usize::from(at)].next;
        }
        at
    }

    /// A bank's row was opened or closed.
    pub fn row_changed(&mut self, bank: usize, row: u32) {
        for kind in 0..2 {
            let head = self.lists[bank % BANKS][kind].head;
            self.lists[bank % BANKS][kind].hit = if row == CLOSED {
                NONE
            } else {
                self.first(head, row)
            };
        }
    }

    /// Whether a write of that line waits.
    pub fn has_write(&self, bank: usize, row: u32, column: u32) -> bool {
        if self.marks[mark(row, column)] == 0 {
            return false;
        }
        let mut at = self.lists[bank % BANKS][1].head;
        while at != NONE {
            let slot = &self.slots[usize::from(at)];
            if slot.row == row && slot.column == column {
                return true;
            }
            at = slot.next;
        }
        false
    }

    /// Removes the oldest request for the open row.
    pub fn take_hit(&mut self, write: bool, bank: usize) -> Slot {
        let kind = usize::from(write);
        let List { head, tail, hit } = self.lists[bank % BANKS][kind];
        let slot = self.slots[usize::from(hit)];
        let mut before = NONE;
        let mut at = head;
        while at != hit {
            before = at;
            at = self.slots[usize::from(at)].next;
        }
        let next_hit = self.first(slot.next, slot.row);
        let list = &mut self.lists[bank % BANKS][kind];
        list.hit = next_hit;
        if tail == hit {
            list.tail = before;
        }
        if before == NONE {
            list.head = slot.next;
        } else {
            self.slots[usize::from(before)].next = slot.next;
        }
        if slot.next == NONE && before == NONE {
            self.banks[kind] &= !(1 << bank);
        }
        self.lengths[kind] -= 1;
        if write {
            self.marks[mark(slot.row, slot.column)] -= 1;
        }
        self.free.push(hit);
        slot
    }
}
