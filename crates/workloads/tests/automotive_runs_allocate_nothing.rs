// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run of an application neither allocates nor faults, so that its time is only its own.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use memwarden_platform::faults;
use memwarden_workloads::automotive::Application;

/// The system's allocator, counting the calls of each thread.
struct Counting;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: all calls go to the system allocator; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.set(CALLS.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_run_allocates_nothing_and_finds_all_its_pages() {
    for application in Application::all() {
        let mut prepared = application.prepare(1);
        let (calls, faults_before) = (CALLS.get(), faults::minor().unwrap());
        prepared.run();
        assert_eq!(CALLS.get(), calls, "{}", application.name());
        // Allocations of the C library's qsort are not counted above, but their pages would appear here: some hundred.
        let faults = faults::minor().unwrap() - faults_before;
        assert!(faults < 16, "{}: {faults} page faults", application.name());
    }
}
