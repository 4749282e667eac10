// SPDX-License-Identifier: MIT OR Apache-2.0
//! This process's own mappings, created so that the expected result is known.

#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use memwarden_platform::Root;
use memwarden_platform::mapping::page_bytes;
use memwarden_platform::maps::{Explained, Explanation, Kind, explain};

fn own() -> Explanation {
    explain(&Root::system(), std::process::id()).unwrap()
}

fn region_of(explanation: &Explanation, address: usize) -> &Explained {
    let address = address as u64;
    let mut regions = explanation.regions.iter();
    regions
        .find(|region| (region.start_address.0..region.end_address.0).contains(&address))
        .unwrap_or_else(|| panic!("{address:#x} is in no region"))
}

fn section_of(explanation: &Explanation, address: usize) -> &str {
    let region = region_of(explanation, address);
    let part = region.sections.iter().find(|part| {
        let start = part.start_address.0;
        (start..start + part.size_bytes).contains(&(address as u64))
    });
    &part
        .unwrap_or_else(|| panic!("{address:#x} is in no section of {region:?}"))
        .name
}

/// Pages of a mapping, of which the first `written` are written. It is not merged with its neighbours, which allow no
/// access.
struct Pages {
    start: *mut libc::c_void,
    count: usize,
}

impl Pages {
    fn map(count: usize, written: usize, flags: i32, file: Option<&File>) -> Self {
        let (page, fd) = (page_bytes(), file.map_or(-1, AsRawFd::as_raw_fd));
        // SAFETY: new addresses of the kernel's choice, with an inaccessible page on either side.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                (count + 2) * page,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED);
        // SAFETY: within the mapping just made.
        let start = unsafe {
            libc::mmap(
                start.byte_add(page),
                count * page,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_FIXED | flags,
                fd,
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED);
        for index in 0..written {
            // SAFETY: one of the mapping's pages; no other code has its address.
            unsafe { start.byte_add(index * page).cast::<u64>().write_volatile(1) };
        }
        Self { start, count }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping made above, with the page on either side; no other code uses it.
        unsafe {
            let first = self.start.byte_sub(page_bytes());
            libc::munmap(first, (self.count + 2) * page_bytes());
        }
    }
}

#[test]
fn as_many_pages_are_resident_and_dirty_as_were_written() {
    let pages = Pages::map(16, 5, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, None);
    let found = own();
    let region = region_of(&found, pages.start as usize);
    assert_eq!(region.kind, Kind::Anonymous);
    assert_eq!(region.permissions, "rw-p");
    assert_eq!(region.size_bytes, 16 * page_bytes() as u64);
    assert_eq!(region.usage.resident_pages, Some(5));
    assert_eq!(region.usage.dirty_pages, Some(5));
    assert_eq!(region.usage.private_bytes, Some(5 * page_bytes() as u64));
    let guard = region_of(&found, pages.start as usize - 1);
    assert_eq!(guard.kind, Kind::NoAccess);
}

#[test]
fn a_shared_file_has_as_many_dirty_pages_as_were_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("two words (deleted)");
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    file.set_len(8 * page_bytes() as u64).unwrap();
    let pages = Pages::map(8, 3, libc::MAP_SHARED, Some(&file));
    let found = own();
    let region = region_of(&found, pages.start as usize);
    assert_eq!(
        (region.kind, region.permissions.as_str()),
        (Kind::File, "rw-s")
    );
    assert_eq!(region.usage.dirty_pages, Some(3));
    assert!(region.usage.resident_pages.unwrap() >= 3);
    assert_eq!(region.usage.anonymous_bytes, Some(0));
    assert_eq!(region.file.as_deref(), path.to_str());
    assert_eq!(region.deleted, Some(false));

    std::fs::remove_file(&path).unwrap();
    let found = own();
    let region = region_of(&found, pages.start as usize);
    assert_eq!(region.file.as_deref(), path.to_str());
    assert_eq!(region.deleted, Some(true));
}

#[test]
fn a_private_file_has_copies_of_what_was_written() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(8 * page_bytes() as u64).unwrap();
    let pages = Pages::map(8, 2, libc::MAP_PRIVATE, Some(&file));
    let found = own();
    let region = region_of(&found, pages.start as usize);
    assert_eq!(region.usage.anonymous_bytes, Some(2 * page_bytes() as u64));
    assert_eq!(region.usage.dirty_pages, Some(2));
}

#[test]
fn a_memfd_and_shared_anonymous_memory_have_their_kinds() {
    // SAFETY: the name is a C string; the descriptor is closed with the process.
    let fd = unsafe { libc::memfd_create(c"a name".as_ptr(), 0) };
    // SAFETY: as above, and no other value owns the descriptor.
    let file = unsafe { <File as std::os::fd::FromRawFd>::from_raw_fd(fd) };
    file.set_len(4 * page_bytes() as u64).unwrap();
    let memfd = Pages::map(4, 4, libc::MAP_SHARED, Some(&file));
    let shared = Pages::map(4, 1, libc::MAP_SHARED | libc::MAP_ANONYMOUS, None);
    let found = own();
    let region = region_of(&found, memfd.start as usize);
    assert_eq!(
        (region.kind, region.what.as_str()),
        (Kind::Memfd, "memfd a name")
    );
    assert_eq!(region.usage.resident_pages, Some(4));
    let region = region_of(&found, shared.start as usize);
    assert_eq!(
        (region.kind, region.usage.resident_pages),
        (Kind::SharedAnonymous, Some(1))
    );
}

static CONSTANT: [u64; 4] = [1, 2, 3, 4];
static INITIALISED: AtomicU64 = AtomicU64::new(7);
static ZERO: [AtomicU64; 4096] = [const { AtomicU64::new(0) }; 4096];

#[test]
fn functions_and_variables_are_in_the_sections_that_hold_them() {
    // Read and written, so that they exist.
    let number = usize::try_from(INITIALISED.fetch_add(1, Ordering::Relaxed)).unwrap();
    ZERO[number].store(CONSTANT[number % 4], Ordering::Relaxed);
    let found = own();
    assert_eq!(
        section_of(&found, own as fn() -> Explanation as usize),
        ".text"
    );
    assert_eq!(section_of(&found, (&raw const CONSTANT).addr()), ".rodata");
    assert_eq!(section_of(&found, (&raw const INITIALISED).addr()), ".data");
    for word in [&ZERO[0], &ZERO[4095]] {
        assert_eq!(section_of(&found, std::ptr::from_ref(word).addr()), ".bss");
    }
    let on_the_heap = Box::new(7_u64);
    let region = region_of(&found, std::ptr::from_ref(&*on_the_heap).addr());
    assert!(
        matches!(region.kind, Kind::Heap | Kind::Anonymous),
        "{region:?}"
    );
}

#[test]
fn sections_are_where_readelf_and_the_load_base_say() {
    let program = std::env::current_exe().unwrap();
    let Ok(output) = Command::new("readelf").arg("-SW").arg(program).output() else {
        println!("skipped: no readelf");
        return;
    };
    let found = own();
    let bias = found
        .objects
        .iter()
        .find(|one| one.file == *found.process.program.as_ref().unwrap());
    let bias = bias.unwrap().moved_bytes as u64;
    let text = String::from_utf8(output.stdout).unwrap();
    let mut compared = 0;
    for line in text.lines() {
        // `[15] .text PROGBITS ADDRESS OFFSET SIZE ES FLAGS ...`, with a space in `[ 1]`.
        let Some((_, rest)) = line.split_once(']') else {
            continue;
        };
        let words: Vec<&str> = rest.split_whitespace().collect();
        let [name, _, address, _, size, _, flags, ..] = words[..] else {
            continue;
        };
        if !flags.contains('A') || name == ".tbss" {
            continue;
        }
        let number = |word| u64::from_str_radix(word, 16).unwrap();
        let start = number(address).wrapping_add(bias);
        let parts = found.regions.iter().flat_map(|region| &region.sections);
        let mine: Vec<_> = parts
            .filter(|part| {
                part.name == name && (start..start + number(size)).contains(&part.start_address.0)
            })
            .collect();
        assert_eq!(mine[0].start_address.0, start, "{line}");
        let bytes: u64 = mine.iter().map(|part| part.size_bytes).sum();
        assert_eq!(bytes, number(size), "{line}");
        compared += 1;
    }
    assert!(compared > 10, "{text}");
}

#[test]
fn a_thread_that_waits_has_a_stack() {
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let (ready, wait) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let here = 0_u64;
        // SAFETY: takes nothing.
        let id = unsafe { libc::gettid() };
        ready.send((id, std::ptr::from_ref(&here).addr())).unwrap();
        let _ = receiver.recv();
    });
    let (id, address) = wait.recv().unwrap();
    // The kernel reports the stack pointer only once the thread waits.
    for _ in 0..10_000 {
        let line = std::fs::read_to_string(format!("/proc/self/task/{id}/syscall"));
        match line {
            Ok(line) if line.trim() == "running" => std::thread::yield_now(),
            Ok(_) => break,
            Err(error) => {
                println!("skipped: /proc/PID/task/TID/syscall: {error}");
                return;
            }
        }
    }
    let found = own();
    let region = region_of(&found, address);
    assert_eq!(
        (region.kind, region.thread),
        (Kind::ThreadStack, u32::try_from(id).ok())
    );
    drop(sender);
    thread.join().unwrap();
}
