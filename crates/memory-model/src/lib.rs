// SPDX-License-Identifier: MIT OR Apache-2.0
//! The caches and the memory of a modelled platform, as a library that the lab's emulator
//! loads: `-object memory-model,boot=off,library=FILE,config=PLATFORM`.
//!
//! The interface is the emulator's: `include/exec/memory-model-library.h` of the patches
//! `0002-tcg-memory-model.patch`, `0004-memory-model-devices.patch`,
//! `0008-memory-model-instruction-fetches.patch` and `0009-memory-model-pages.patch` in
//! `lab/qemu/7.2`. The implementation is [`memwarden_sim::emulated`].

#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::rc::Rc;

use memwarden_sim::Platform;
use memwarden_sim::dram::Controller;
use memwarden_sim::emulated::{Access, COUNTS, Count, EmulatedMemory, Made, Move, Page, Registers};

/// The version of the interface.
const VERSION: u32 = 5;
const ERROR_SIZE: usize = 1024;
const BLOCKED: i64 = i64::MIN;
/// Instead of an address where there is none.
const NOWHERE: u64 = u64::MAX;

/// `MemoryModelCPU`
#[repr(C)]
struct Cpu {
    filter: *const Cell<u64>,
    filter_mask: u64,
    counts: *const Cell<u64>,
    limits: *const Cell<u64>,
    reached: Cell<u32>,
    hears_all: Cell<u32>,
    fetch_filter: *const Cell<u64>,
    fetch_mask: u64,
}

/// `MemoryModelAccess`
#[repr(C)]
struct Told {
    kind: u32,
    cpu: u32,
    address: u64,
    table_entry: u64,
    page_bits: u32,
    now_ns: i64,
    retired: u64,
    uses: u64,
    targets: u64,
}

/// `MemoryModelTransfer`
#[repr(C)]
struct Wanted {
    number: u32,
    from: u64,
    to: u64,
    bytes: u64,
    now_ns: i64,
}

/// `MemoryModelEvent`
#[repr(C)]
struct Event {
    number: u16,
    count: u16,
}

/// `MemoryModelLibrary`
#[repr(C)]
struct Library {
    model: *mut c_void,
    cpus: u32,
    line_bits: u32,
    counts: u32,
    events: u32,
    event: *const Event,
    cpu: *const Cpu,
    access: unsafe extern "C" fn(*mut c_void, *const Told) -> i64,
    advance: unsafe extern "C" fn(*mut c_void, i64) -> u64,
    resume: unsafe extern "C" fn(*mut c_void, u32, u64) -> i64,
    transfer: unsafe extern "C" fn(*mut c_void, *const Wanted),
    transferred: unsafe extern "C" fn(*mut c_void, *mut i64) -> i32,
    close: unsafe extern "C" fn(*mut c_void),
}

/// The state that [`open`] creates, until [`close`].
struct Model {
    memory: EmulatedMemory<Controller>,
    cpus: Rc<[Cpu]>,
}

/// Events of Armv8 (Architecture Reference Manual, DDI 0487, D13.12) and their counts, with any
/// cache levels.
const EVENTS: [(u16, Count); 11] = [
    (0x01, Count::CodeRefill),
    (0x02, Count::CodeTlbRefill),
    (0x03, Count::L1Refill),
    (0x04, Count::Access),
    (0x05, Count::TlbRefill),
    (0x13, Count::Access),
    (0x15, Count::L1WriteBack),
    (0x19, Count::Bus),
    (0x24, Count::Stalled),
    (0x60, Count::SharedRefill),
    (0x61, Count::SharedWriteBack),
];
/// If the shared cache is the second level.
const EVENTS_OF_TWO_LEVELS: [(u16, Count); 3] = [
    (0x16, Count::Shared),
    (0x17, Count::SharedRefill),
    (0x18, Count::SharedWriteBack),
];
/// If each core has a second level, and the shared cache is the third.
const EVENTS_OF_THREE_LEVELS: [(u16, Count); 6] = [
    (0x16, Count::L2),
    (0x17, Count::L2Refill),
    (0x2a, Count::SharedRefill),
    (0x2b, Count::Shared),
    (0x36, Count::Shared),
    (0x37, Count::SharedRefill),
];

/// # Safety
/// A pointer to a `Model` of [`open`] that was not closed, and no other in use.
unsafe fn model<'a>(model: *mut c_void) -> &'a mut Model {
    // SAFETY: the caller's promise.
    unsafe { &mut *model.cast::<Model>() }
}

impl Model {
    fn tell_reached(&mut self) {
        let mut reached = self.memory.take_reached();
        while reached != 0 {
            self.cpus[reached.trailing_zeros() as usize].reached.set(1);
            reached &= reached - 1;
        }
    }
}

fn address_of(told: u64) -> Option<u64> {
    (told != NOWHERE).then_some(told)
}

unsafe extern "C" fn access(this: *mut c_void, told: *const Told) -> i64 {
    // SAFETY: the emulator passes the pointer that it got, one thread at a time, and an access
    // that is valid until this returns.
    let (model, told) = unsafe { (model(this), &*told) };
    let core = told.cpu as usize;
    let access = match told.kind {
        0 => Access::Load,
        1 => Access::Store,
        2 => Access::Zero,
        3 => Access::Clean,
        4 => Access::Invalidate,
        5 => Access::CleanInvalidate,
        _ => Access::Fetch,
    };
    let is_maintenance = (3..6).contains(&told.kind);
    let page = Page::new(told.address, told.page_bits);
    if !is_maintenance && model.memory.uses_again(core, access, told.address, page) {
        return 0;
    }
    let taken_ns = model.memory.access(&Made {
        core,
        access,
        address: told.address,
        page,
        table_entry: address_of(told.table_entry),
        now_ns: told.now_ns as u64,
        retired: told.retired,
        registers: Registers {
            uses: told.uses,
            targets: told.targets,
        },
    });
    model.tell_reached();
    if taken_ns.is_none() {
        // An access to a line in the filter may have to wait, too.
        model.cpus[core].hears_all.set(1);
    }
    taken_ns.map_or(BLOCKED, |ns| ns as i64)
}

unsafe extern "C" fn advance(this: *mut c_void, until_ns: i64) -> u64 {
    // SAFETY: the emulator passes the pointer that it got, one thread at a time.
    let model = unsafe { model(this) };
    let released = model.memory.advance(until_ns as u64);
    model.tell_reached();
    released
}

unsafe extern "C" fn resume(this: *mut c_void, cpu: u32, retired: u64) -> i64 {
    // SAFETY: the emulator passes the pointer that it got, one thread at a time.
    let model = unsafe { model(this) };
    model.cpus[cpu as usize].hears_all.set(0);
    model.memory.resume(cpu as usize, retired) as i64
}

unsafe extern "C" fn transfer(this: *mut c_void, wanted: *const Wanted) {
    // SAFETY: the emulator passes the pointer that it got, one thread at a time, and a transfer
    // that is valid until this returns.
    let (model, wanted) = unsafe { (model(this), &*wanted) };
    model.memory.transfer(&Move {
        number: wanted.number,
        from: address_of(wanted.from),
        to: address_of(wanted.to),
        bytes: wanted.bytes,
        now_ns: wanted.now_ns as u64,
    });
}

unsafe extern "C" fn transferred(this: *mut c_void, end_ns: *mut i64) -> i32 {
    // SAFETY: the emulator passes the pointer that it got, one thread at a time.
    let Some((number, ended_ns)) = unsafe { model(this) }.memory.take_ended() else {
        return -1;
    };
    // SAFETY: `end_ns` is the emulator's variable.
    unsafe { *end_ns = ended_ns as i64 };
    number as i32
}

unsafe extern "C" fn close(this: *mut c_void) {
    // SAFETY: the pointer is from `memory_model_open`, and is passed once.
    drop(unsafe { Box::from_raw(this.cast::<Model>()) });
}

fn open(version: u32, config: &str) -> Result<Library, String> {
    if version != VERSION {
        return Err(format!(
            "the emulator has version {version} of the interface and the library {VERSION}: build both of one source"
        ));
    }
    let platform = Platform::find(config).map_err(|error| error.with_causes())?;
    let memory = platform.controller().map_err(|error| error.with_causes())?;
    let memory = EmulatedMemory::new(&platform.machine, memory);
    let cpus: Rc<[Cpu]> = (0..platform.machine.cores)
        .map(|core| {
            let face = memory.face(core);
            Cpu {
                filter: face.filter.as_ptr(),
                filter_mask: face.filter.len() as u64 - 1,
                counts: face.counts.as_ptr(),
                limits: face.limits.as_ptr(),
                reached: Cell::new(0),
                hears_all: Cell::new(0),
                fetch_filter: match face.fetch_filter.len() {
                    0 => std::ptr::null(),
                    _ => face.fetch_filter.as_ptr(),
                },
                fetch_mask: face.fetch_filter.len().saturating_sub(1) as u64,
            }
        })
        .collect();
    let levels = if platform.machine.core.l2.is_some() {
        &EVENTS_OF_THREE_LEVELS[..]
    } else {
        &EVENTS_OF_TWO_LEVELS[..]
    };
    let events = EVENTS.iter().chain(levels).map(|(number, count)| Event {
        number: *number,
        count: *count as u16,
    });
    let events: &'static [Event] = Vec::leak(events.collect());
    Ok(Library {
        cpus: platform.machine.cores as u32,
        line_bits: platform.machine.line_bytes.trailing_zeros(),
        counts: COUNTS as u32,
        events: events.len() as u32,
        event: events.as_ptr(),
        cpu: cpus.as_ptr(),
        model: Box::into_raw(Box::new(Model { memory, cpus })).cast(),
        access,
        advance,
        resume,
        transfer,
        transferred,
        close,
    })
}

/// The function that the emulator calls first.
///
/// # Safety
/// `config` is a C string, and `error` has room for 1024 bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn memory_model_open(
    version: u32,
    config: *const c_char,
    error: *mut c_char,
) -> *const Library {
    // SAFETY: the caller's promise.
    let config = unsafe { CStr::from_ptr(config) };
    let opened = match config.to_str() {
        Ok(config) => open(version, config),
        Err(error) => Err(format!("config: {error}")),
    };
    match opened {
        Ok(library) => Box::leak(Box::new(library)),
        Err(why) => {
            // One line, cut at a character's boundary.
            let why = why.replace('\n', "; ");
            let end = (0..ERROR_SIZE.min(why.len() + 1))
                .rfind(|end| why.is_char_boundary(*end))
                .unwrap_or(0);
            // SAFETY: there is room for `end` bytes and the terminating zero.
            unsafe {
                std::ptr::copy_nonoverlapping(why.as_ptr().cast(), error, end);
                *error.add(end) = 0;
            }
            std::ptr::null()
        }
    }
}
