// SPDX-License-Identifier: GPL-2.0-only
//! Kernel threads that are joined before their module can be unloaded. Linux 6.12 has no abstraction of threads, and a
//! work item is no substitute: its last instructions may run after a waiter has unloaded the module.

use core::marker::PhantomData;
use kernel::error::from_err_ptr;
use kernel::ffi::{c_int, c_uint, c_void};
use kernel::prelude::*;
use kernel::sync::Arc;

extern "C" {
    fn mymem_test_shim_thread(
        run: unsafe extern "C" fn(*mut c_void) -> c_int,
        state: *mut c_void,
        number: c_uint,
    ) -> *mut c_void;
    fn mymem_test_shim_join(task: *mut c_void) -> c_int;
}

/// The work of a thread.
pub(crate) trait Work: Send + Sync + 'static {
    fn work(&self);
}

/// A thread. Dropping this waits for its end; a thread that has not begun by then never runs.
pub(crate) struct Thread<T: Work> {
    task: *mut c_void,
    state: *const T,
    _work: PhantomData<Arc<T>>,
}

impl<T: Work> Thread<T> {
    /// Starts a thread, named mymem_test/NUMBER.
    pub(crate) fn start(work: Arc<T>, number: u32) -> Result<Self> {
        let state = Arc::into_raw(work);
        // SAFETY: `run` takes the pointer that `into_raw` made, and the state exists until the thread has ended.
        let task = unsafe { mymem_test_shim_thread(run::<T>, state.cast_mut().cast(), number) };
        match from_err_ptr(task) {
            Ok(task) => Ok(Self {
                task,
                state,
                _work: PhantomData,
            }),
            Err(error) => {
                // SAFETY: no thread was made, so only this function has the state; `into_raw` made it.
                drop(unsafe { Arc::from_raw(state) });
                Err(error)
            }
        }
    }
}

impl<T: Work> Drop for Thread<T> {
    fn drop(&mut self) {
        // SAFETY: started by `start`, and joined once.
        unsafe { mymem_test_shim_join(self.task) };
        // SAFETY: the thread has ended, or never ran; `into_raw` made the pointer.
        drop(unsafe { Arc::from_raw(self.state) });
    }
}

/// # Safety
///
/// Call with the state that [`Thread::start`] made, while that thread isn't joined.
unsafe extern "C" fn run<T: Work>(state: *mut c_void) -> c_int {
    // SAFETY: `start` made it from an `Arc<T>`, which `Thread` keeps until this thread has ended.
    unsafe { &*state.cast::<T>() }.work();
    0
}
