// SPDX-License-Identifier: MIT OR Apache-2.0
//! Identity of a process, facts that the kernel recorded at its start, and the stacks of its threads.

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;

use crate::{Error, Result, Root};

/// The flag of a kernel thread in /proc/PID/stat (PF_KTHREAD of include/linux/sched.h).
const KERNEL_THREAD: u64 = 0x0020_0000;

/// Key of the dynamic loader's address in the auxiliary vector (getauxval(3)).
const AT_BASE: u64 = 7;

/// The fields of /proc/PID/stat that identify a process and its program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    /// The program's short name.
    pub name: String,
    /// Start time, in ticks since boot; unique together with the PID.
    pub start_time: u64,
    /// Start of the program's code, which usually changes with an execve; 0 if hidden.
    pub start_code: u64,
    /// Start of the heap; `None` if the kernel hides it.
    pub heap: Option<u64>,
    flags: u64,
    ended: bool,
}

impl Identity {
    /// Parses a line `42 (a name) S 1 42 ...`; the name may contain any byte.
    fn parse(line: &str) -> Option<Self> {
        let (before, after) = line.rsplit_once(')')?;
        let fields: Vec<&str> = after.split_ascii_whitespace().collect();
        // proc(5) counts from 1, where our first field, the state, is number 3.
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        Some(Self {
            name: before.split_once('(')?.1.to_owned(),
            ended: matches!(*fields.first()?, "Z" | "X" | "x"),
            flags: number(9)?,
            start_time: number(22)?,
            start_code: number(26)?,
            heap: number(47).filter(|address| *address != 0),
        })
    }

    /// Reads the identity of process `pid`, which must have mappings.
    ///
    /// # Errors
    /// There is no such process, it is a kernel thread, or it is a zombie.
    pub(super) fn of(root: &Root, pid: u32) -> Result<Self> {
        if !root.has(&format!("/proc/{pid}")) {
            return Err(Error::Invalid(format!(
                "there is no process {pid} (`ps -e` lists them; /proc may be mounted with hidepid: try as root)"
            )));
        }
        let path = format!("/proc/{pid}/stat");
        let text = fs::read(root.path(&path)).map_err(|source| failed(pid, &path, source))?;
        let line = String::from_utf8_lossy(&text);
        let identity = Self::parse(&line).ok_or_else(|| {
            Error::Invalid(format!(
                "{path} is not as proc(5) has it: `{}`",
                line.trim().escape_debug()
            ))
        })?;
        if identity.flags & KERNEL_THREAD != 0 {
            return Err(Error::Invalid(format!(
                "process {pid} ({}) is a kernel thread: it has no mappings of its own",
                identity.name
            )));
        }
        if identity.ended {
            return Err(Error::Invalid(format!(
                "process {pid} ({}) has ended and its mappings with it: its parent has yet to take note (a zombie)",
                identity.name
            )));
        }
        Ok(identity)
    }

    /// Checks that it is still the same process with the same program.
    ///
    /// # Errors
    /// It has ended, or has become another program, so that data read in between is a mix of both.
    pub(super) fn still(&self, root: &Root, pid: u32) -> Result<()> {
        let now = Self::of(root, pid)
            .ok()
            .filter(|now| now.start_time == self.start_time);
        match now {
            None => Err(ended(pid)),
            Some(now) if now.start_code != self.start_code => Err(Error::Invalid(format!(
                "process {pid} became another program (execve) while its mappings were read: try again"
            ))),
            Some(_) => Ok(()),
        }
    }
}

/// The error for a process that ended during reading.
pub(super) fn ended(pid: u32) -> Error {
    Error::Invalid(format!(
        "process {pid} ended while its mappings were read: nothing to explain"
    ))
}

/// The error for a failed read of a file of process `pid`.
pub(super) fn failed(pid: u32, path: &str, source: std::io::Error) -> Error {
    const NO_SUCH_PROCESS: i32 = 3;
    if source.kind() == ErrorKind::NotFound || source.raw_os_error() == Some(NO_SUCH_PROCESS) {
        return ended(pid);
    }
    let remedy = match source.kind() {
        ErrorKind::PermissionDenied => {
            " (another user's process, or a protected one: run as root, or as that user)"
        }
        _ => "",
    };
    Error::system(format!("read {path}{remedy}"), source)
}

/// Target of /proc/PID/exe, as the kernel prints it.
pub(super) fn program(root: &Root, pid: u32) -> Option<OsString> {
    let link = fs::read_link(root.path(&format!("/proc/{pid}/exe"))).ok()?;
    Some(link.into_os_string())
}

/// Address of the dynamic loader in a process with words of `bits` bits; `None` without a loader, or if the auxiliary
/// vector is hidden.
pub(super) fn loader(root: &Root, pid: u32, bits: u8) -> Option<u64> {
    let bytes = fs::read(root.path(&format!("/proc/{pid}/auxv"))).ok()?;
    let word_bytes = usize::from(bits / 8);
    let word = |bytes: &[u8]| match *bytes {
        [a, b, c, d] => u64::from(u32::from_ne_bytes([a, b, c, d])),
        _ => bytes.try_into().map_or(0, u64::from_ne_bytes),
    };
    bytes
        .chunks_exact(2 * word_bytes)
        .map(|pair| (word(&pair[..word_bytes]), word(&pair[word_bytes..])))
        .find_map(|(key, value)| (key == AT_BASE && value != 0).then_some(value))
}

/// The personality (personality(2)); reading it needs permission to trace.
pub(super) fn personality(root: &Root, pid: u32) -> Option<u64> {
    u64::from_str_radix(&root.text(&format!("/proc/{pid}/personality"))?, 16).ok()
}

/// Soft limit of the stack; the inner `None` means unlimited.
pub(super) fn stack_limit(root: &Root, pid: u32) -> Option<Option<u64>> {
    let text = root.text(&format!("/proc/{pid}/limits"))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Max stack size"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(None),
        bytes => bytes.parse().ok().map(Some),
    }
}

/// Stack pointers of threads that wait in the kernel, which does not report those of running threads.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Threads {
    /// Thread ID and stack pointer.
    pub waiting: Vec<(u32, u64)>,
    /// Number of threads that were running or are hidden.
    pub unknown: usize,
}

/// Reads the threads of process `pid` without the first one, whose stack the kernel names.
pub(super) fn threads(root: &Root, pid: u32) -> Threads {
    let mut threads = Threads::default();
    for name in root.names(&format!("/proc/{pid}/task")) {
        let Some(thread) = name.parse::<u32>().ok().filter(|thread| *thread != pid) else {
            continue;
        };
        let pointer = root
            .text(&format!("/proc/{pid}/task/{thread}/syscall"))
            .and_then(|line| stack_pointer(&line));
        match pointer {
            Some(pointer) => threads.waiting.push((thread, pointer)),
            None => threads.unknown += 1,
        }
    }
    threads
}

/// The last but one word of `NUMBER ARGUMENTS... SP PC`; none for `running`.
fn stack_pointer(line: &str) -> Option<u64> {
    let mut words = line.split_whitespace().rev();
    words.next()?;
    u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line of stat with this state, flags, start time, start of code and start of heap.
    fn line(state: &str, flags: u64, start: u64, code: u64, heap: u64) -> String {
        let mut fields = vec!["0".to_owned(); 50];
        fields[0] = state.to_owned();
        for (field, value) in [(9, flags), (22, start), (26, code), (47, heap)] {
            fields[field - 3] = value.to_string();
        }
        format!("7 (a) b (c) {}\n", fields.join(" "))
    }

    fn process(stat: &str) -> (tempfile::TempDir, Root) {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("proc/7");
        fs::create_dir_all(directory.join("task/7")).unwrap();
        fs::write(directory.join("stat"), stat).unwrap();
        let root = Root::at(folder.path());
        (folder, root)
    }

    #[test]
    fn a_process_is_identified_by_name_start_time_and_heap() {
        let (_folder, root) = process(&line("S", 0x40_0000, 99, 0x1000, 0x5000));
        let found = Identity::of(&root, 7).unwrap();
        assert_eq!((found.name.as_str(), found.start_time), ("a) b (c", 99));
        assert_eq!(found.heap, Some(0x5000));
        found.still(&root, 7).unwrap();
        let (_folder, hidden) = process(&line("S", 0x40_0000, 99, 1, 0));
        assert_eq!(Identity::of(&hidden, 7).unwrap().heap, None);
    }

    #[test]
    fn what_has_no_mappings_says_why() {
        for (stat, why) in [
            (line("S", 0x0020_8040, 1, 0, 0), "is a kernel thread"),
            (line("Z", 0x40_0000, 1, 0, 0), "a zombie"),
            ("7 (x) S\n".to_owned(), "not as proc(5) has it"),
        ] {
            let (_folder, root) = process(&stat);
            let message = Identity::of(&root, 7).unwrap_err().to_string();
            assert!(message.contains(why), "{message}");
        }
        let (_folder, root) = process("");
        let message = Identity::of(&root, 8).unwrap_err().to_string();
        assert!(message.starts_with("there is no process 8"), "{message}");
    }

    #[test]
    fn a_process_that_goes_or_changes_is_noticed() {
        let (_folder, root) = process(&line("S", 0, 99, 0x1000, 0));
        let before = Identity::of(&root, 7).unwrap();
        for (after, why) in [
            (line("Z", 0, 99, 0x1000, 0), "ended while"),
            (line("S", 0, 100, 0x1000, 0), "ended while"),
            (line("S", 0, 99, 0x2000, 0), "another program"),
        ] {
            fs::write(root.path("/proc/7/stat"), after).unwrap();
            let message = before.still(&root, 7).unwrap_err().to_string();
            assert!(message.contains(why), "{message}");
        }
        fs::remove_dir_all(root.path("/proc/7")).unwrap();
        let message = before.still(&root, 7).unwrap_err().to_string();
        assert!(message.contains("ended while"), "{message}");
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        let refused = failed(7, "/proc/7/smaps", ErrorKind::PermissionDenied.into());
        assert!(refused.to_string().contains("run as root, or as that user"));
        for gone in [
            ErrorKind::NotFound.into(),
            std::io::Error::from_raw_os_error(3),
        ] {
            assert!(
                failed(7, "/proc/7/smaps", gone)
                    .to_string()
                    .contains("ended while")
            );
        }
    }

    #[test]
    fn the_auxiliary_vector_has_words_of_either_size() {
        let (_folder, root) = process("");
        let words = [6, 4096, AT_BASE, 0x7000_0000, 0, 0_u64];
        let wide: Vec<u8> = words.into_iter().flat_map(u64::to_ne_bytes).collect();
        fs::write(root.path("/proc/7/auxv"), wide).unwrap();
        assert_eq!(loader(&root, 7, 64), Some(0x7000_0000));
        let narrow: Vec<u8> = words
            .into_iter()
            .flat_map(|word| u32::try_from(word).unwrap().to_ne_bytes())
            .collect();
        fs::write(root.path("/proc/7/auxv"), narrow).unwrap();
        assert_eq!(loader(&root, 7, 32), Some(0x7000_0000));
        assert_eq!(loader(&root, 8, 64), None);
    }

    #[test]
    fn limits_and_personality_are_read_or_unknown() {
        let (_folder, root) = process("");
        assert_eq!((stack_limit(&root, 7), personality(&root, 7)), (None, None));
        fs::write(root.path("/proc/7/personality"), "00040000\n").unwrap();
        assert_eq!(personality(&root, 7), Some(0x0004_0000));
        for (value, expected) in [("8388608", Some(8 << 20)), ("unlimited", None)] {
            let text = format!(
                "Limit                     Soft Limit           Hard Limit           Units\n\
                 Max stack size            {value}              unlimited            bytes\n"
            );
            fs::write(root.path("/proc/7/limits"), text).unwrap();
            assert_eq!(stack_limit(&root, 7), Some(expected));
        }
    }

    #[test]
    fn a_waiting_thread_has_a_stack_pointer() {
        let (_folder, root) = process("");
        for (thread, line) in [
            (7, "0 0x3 0x7f 0x2 0x0 0x0 0x0 0x7ffc0df10d78 0x7f9e"),
            (8, "202 0x1 0x80 0x0 0x0 0x0 0x0 0x7f0000001230 0x7f9e"),
            (9, "running"),
            (10, "-1 0x7f0000005678 0x7f9e"),
        ] {
            let directory = root.path(&format!("/proc/7/task/{thread}"));
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("syscall"), line).unwrap();
        }
        let mut found = threads(&root, 7);
        found.waiting.sort_unstable();
        assert_eq!(
            found.waiting,
            [(8, 0x7f00_0000_1230), (10, 0x7f00_0000_5678)]
        );
        assert_eq!(found.unknown, 1);
    }
}
