// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parses the guest's console: the run's progress, and faults of the kernel.

/// Texts that a healthy kernel never prints. Each is matched within a line of the kernel's own log (one with a time
/// stamp in brackets).
const FAULTS: [&str; 22] = [
    "Kernel panic",
    "Internal error: ",
    "Oops",
    "WARNING: ",
    "BUG: ",
    "kernel BUG at",
    "Unable to handle kernel",
    "INFO: possible ",
    "possible recursive locking",
    "suspicious RCU usage",
    "inconsistent lock state",
    "KASAN: ",
    "KCSAN: ",
    "UBSAN: ",
    "scheduling while atomic",
    "sleeping function called from invalid context",
    "detected stall",
    "detected expedited stalls",
    "soft lockup",
    "blocked for more than",
    "refcount_t: ",
    "list_add corruption",
];

/// Harmless warnings that the modules don't cause: the function that warns, and its caller.
///
/// Writing a CPU's fair-server runtime stops that server if ordinary threads are queued, whether it runs or not. The
/// kernel warns if the server was stopped already (Linux 6.12, kernel/sched/debug.c, `sched_fair_server_write`).
///
/// If the kernel has no memory for a module's static keys, it refuses the module with two warnings
/// (kernel/jump_label.c). Tests that make allocations fail, one after another, cause this. If the kernel traces copies,
/// every module that copies has such a key.
const KNOWN_WARNINGS: [(&str, &str); 3] = [
    ("task_non_contending", "sched_fair_server_write"),
    ("jump_label_module_notify", "prepare_coming_module"),
    ("jump_label_del_module", "jump_label_module_notify"),
];

/// Prefix of the init's messages.
const MARK: &str = "memwarden-lab: ";

/// What the init has reported so far.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The command is about to start.
    pub ready: bool,
    /// The command's exit code.
    pub exit_code: Option<u8>,
    /// The results are back.
    pub carried: bool,
    /// Why the init gave up.
    pub failed: Option<String>,
}

impl Progress {
    /// Parses the whole console so far.
    pub fn read(console: &str) -> Self {
        let mut progress = Self::default();
        for line in console.lines() {
            // A kernel message may have been printed just before, on the same line.
            let Some((_, said)) = line.split_once(MARK) else {
                continue;
            };
            match said.trim().split_once(' ').unwrap_or((said.trim(), "")) {
                ("ready", _) => progress.ready = true,
                ("exit", code) => progress.exit_code = code.parse().ok(),
                ("carried", _) => progress.carried = true,
                ("failed", reason) => progress.failed = Some(reason.to_owned()),
                _ => {}
            }
        }
        progress
    }
}

/// A step that memwarden in the guest begins. lab/init tells it where to report steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Steps that are done.
    pub done: usize,
    /// Number of all steps.
    pub total: usize,
    /// Name of the step that begins.
    pub what: String,
}

impl Step {
    /// From a line of the console: `memwarden-step: 3/8 what`.
    pub(crate) fn read(line: &str) -> Option<Self> {
        let (_, said) = line.split_once("memwarden-step: ")?;
        let (count, what) = said.trim_end().split_once(' ')?;
        let (done, total) = count.split_once('/')?;
        Some(Self {
            done: done.parse().ok()?,
            total: total.parse().ok()?,
            what: what.to_owned(),
        })
    }
}

/// Lines of the kernel's log that report a fault, in order, without repetition.
pub(crate) fn faults(log: &str) -> Vec<String> {
    let messages: Vec<&str> = log.lines().filter_map(kernel_message).collect();
    let mut found: Vec<String> = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        if FAULTS.iter().any(|fault| message.contains(fault))
            && !is_known(message, &messages[index + 1..])
            && !found.iter().any(|f| f == message)
        {
            found.push((*message).to_owned());
        }
    }
    found
}

/// Whether a warning, followed by these lines, is one of [`KNOWN_WARNINGS`].
fn is_known(warning: &str, after: &[&str]) -> bool {
    let trace = after.iter().take_while(|line| !line.contains("end trace"));
    warning.contains("WARNING: ")
        && KNOWN_WARNINGS.iter().any(|(warns, caller)| {
            warning.contains(warns) && trace.clone().any(|line| line.starts_with(caller))
        })
}

/// `[   12.345678] text` (or with `[    T1]` after it) -> `text`
fn kernel_message(line: &str) -> Option<&str> {
    let (time, message) = line.trim_end().strip_prefix('[')?.split_once("] ")?;
    let stamp = time.trim_start();
    let numeric = stamp.bytes().all(|c| c.is_ascii_digit() || c == b'.');
    (numeric && stamp.contains('.')).then_some(message.trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_warning_is_known_by_its_caller() {
        let log = |caller: &str| {
            format!(
                "[    5.167998] WARNING: CPU: 2 PID: 156 at kernel/sched/deadline.c:265 task_non_contending+0x3e4/0x448\n\
                 [    5.168351] Call trace:\n\
                 [    5.168357]  task_non_contending+0x3e4/0x448\n\
                 [    5.168372]  dl_server_stop+0x34/0x68\n\
                 [    5.168387]  {caller}.isra.0+0x18c/0x230\n\
                 [    5.168545] ---[ end trace 0000000000000000 ]---\n"
            )
        };
        assert!(faults(&log("sched_fair_server_write")).is_empty());
        assert_eq!(faults(&log("dequeue_task_fair")).len(), 1);
        // The second warning's trace must not excuse the first one.
        let two = log("dequeue_task_fair") + &log("sched_fair_server_write");
        assert_eq!(faults(&two).len(), 1);
    }

    #[test]
    fn progress_is_read_in_any_state() {
        assert_eq!(Progress::read(""), Progress::default());
        let all = "[    1.0] x\r\nmemwarden-lab: ready\r\n[ 2.0] y memwarden-lab: exit 7\r\nmemwarden-lab: carried\r\n";
        assert_eq!(
            Progress::read(all),
            Progress {
                ready: true,
                exit_code: Some(7),
                carried: true,
                failed: None
            }
        );
        let failed = Progress::read("memwarden-lab: failed the 9p modules do not load\n");
        assert_eq!(failed.failed.as_deref(), Some("the 9p modules do not load"));
    }

    #[test]
    fn a_step_is_read_wherever_it_stands_in_a_line() {
        let step = Step::read("[ 2.0] y memwarden-step: 3/208 from, cpu, 64 bytes\r\n");
        let expected = Step {
            done: 3,
            total: 208,
            what: "from, cpu, 64 bytes".into(),
        };
        assert_eq!(step, Some(expected));
        for line in [
            "memwarden-lab: ready",
            "memwarden-step: ",
            "memwarden-step: 3 of",
            "memwarden-step: x/8 y",
        ] {
            assert_eq!(Step::read(line), None, "{line}");
        }
    }

    #[test]
    fn faults_are_found_in_kernel_lines_only() {
        let log = "WARNING: not the kernel's\n\
            [    1.000000] Linux version 6.12\n\
            [   12.345678] WARNING: CPU: 0 PID: 1 at kernel/x.c:3 f+0x1/0x2\n\
            [   12.345679] ------------[ cut here ]------------\n\
            [   13.000000] BUG: scheduling while atomic: sh/1/0x2\n\
            [   13.000001] BUG: scheduling while atomic: sh/1/0x2\n\
            [   14.000000] rcu: INFO: rcu_sched self-detected stall on CPU\n\
            [   15.0] Kernel panic - not syncing: x\n";
        assert_eq!(
            faults(log),
            [
                "WARNING: CPU: 0 PID: 1 at kernel/x.c:3 f+0x1/0x2",
                "BUG: scheduling while atomic: sh/1/0x2",
                "rcu: INFO: rcu_sched self-detected stall on CPU",
                "Kernel panic - not syncing: x",
            ]
        );
    }

    #[test]
    fn an_ordinary_log_has_no_faults() {
        let log = "[    0.000000] Booting Linux on physical CPU 0x0000000000 [0x000f0510]\n\
            [    0.000000] rcu: RCU restricting CPUs\n\
            [    0.5] debug: unmapping init [mem]\n\
            [    1.0] memguard: loading out-of-tree module taints kernel.\n\
            [    1.0] memguard: module verification failed: signature and/or required key missing - tainting kernel\n";
        assert!(faults(log).is_empty(), "{:?}", faults(log));
    }
}
