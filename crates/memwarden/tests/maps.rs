// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands of `memwarden maps`.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

const MEMWARDEN: &str = env!("CARGO_BIN_EXE_memwarden");

fn maps(arguments: &[&str]) -> Output {
    Command::new(MEMWARDEN)
        .arg("maps")
        .args(arguments)
        .output()
        .unwrap()
}

fn json(output: &Output) -> Value {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The single line of a refusal.
fn refusal(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let errors = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(
        errors.starts_with("memwarden: ") && errors.lines().count() == 1,
        "{errors}"
    );
    errors
}

fn is_root() -> bool {
    rustix::process::getuid().is_root()
}

fn base<'a>(found: &'a Value, part: &str) -> &'a Value {
    let bases = found["aslr"]["bases"].as_array().unwrap();
    bases.iter().find(|base| base["part"] == part).unwrap()
}

/// A running workload that has written its buffer.
struct Workload(Child);

impl Workload {
    fn start(arguments: &str) -> Self {
        let mut child = Command::new("sh")
            .args([
                "-c",
                "exec 3>&1 1>/dev/null; exec \"$0\" \"$@\" --ready-fd 3",
                MEMWARDEN,
            ])
            .args(arguments.split(' '))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "ready\n");
        Self(child)
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_workloads_buffer_is_resident_and_dirty() {
    let workload = Workload::start("bandwidth -m 8M -a write -t 0");
    let found = json(&maps(&[&workload.pid(), "--json"]));
    let regions = found["regions"].as_array().unwrap();
    let buffer = regions.iter().find(|region| {
        region["kind"] == "anonymous" && region["size_bytes"].as_u64().unwrap() >= 8 << 20
    });
    let buffer = buffer.unwrap();
    let bytes = |name: &str| buffer[name].as_u64().unwrap();
    for name in ["resident_bytes", "dirty_bytes", "private_bytes"] {
        // The kernel may merge adjacent memory into the same region.
        assert!(
            (8 << 20..10 << 20).contains(&bytes(name)),
            "{name} {}",
            bytes(name)
        );
    }
    assert_eq!(
        bytes("dirty_pages") * bytes("page_bytes"),
        bytes("dirty_bytes")
    );
    assert_eq!(bytes("swapped_bytes"), 0);
    assert!(
        found["totals"]["anonymous"]["dirty_bytes"]
            .as_u64()
            .unwrap()
            >= bytes("dirty_bytes")
    );
}

#[test]
fn the_program_is_where_its_sections_and_its_base_say() {
    let found = json(&maps(&["--json"]));
    assert_eq!(found["process"]["program"], MEMWARDEN);
    let objects = found["objects"].as_array().unwrap();
    let program = objects
        .iter()
        .find(|object| object["role"] == "program")
        .unwrap();
    assert_eq!(program["file"], MEMWARDEN);
    assert_eq!(base(&found, "program")["address"], program["load_address"]);
    let regions = found["regions"].as_array().unwrap();
    for (name, permissions) in [
        (".text", "r-xp"),
        (".rodata", "r--p"),
        (".data", "rw-p"),
        (".bss", "rw-p"),
    ] {
        let holds = regions.iter().any(|region| {
            region["file"] == MEMWARDEN
                && region["permissions"] == permissions
                && region["sections"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .any(|part| part["name"] == name)
        });
        assert!(holds, "{name}");
    }
    let uncounted = regions.iter().filter(|region| region["name"] == "[vvar]");
    for region in uncounted {
        assert!(region["resident_bytes"].is_null(), "{region}");
    }
}

#[test]
fn without_a_pid_it_says_whose_mappings_these_are() {
    let output = maps(&[]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.starts_with("No PID was given: this is memwarden itself."),
        "{text}"
    );
    for words in [
        "stack of the first thread",
        "\nall ",
        "ASLR: kernel.randomize_va_space is ",
    ] {
        assert!(text.contains(words), "{words}\n{text}");
    }
}

#[test]
fn without_randomisation_the_bases_are_the_defaults() {
    if !cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        println!("skipped: the defaults are known for x86-64 and arm64");
        return;
    }
    let output = Command::new("setarch")
        .args(["-R", MEMWARDEN, "maps", "--json"])
        .output();
    let output = match output {
        Ok(output) if output.status.success() => output,
        other => {
            println!("skipped: setarch -R is missing or not permitted: {other:?}");
            return;
        }
    };
    let found = json(&output);
    assert_eq!(found["aslr"]["addr_no_randomize"], true);
    assert_eq!(found["aslr"]["moved"], false);
    let mut compared = 0;
    for base in found["aslr"]["bases"].as_array().unwrap() {
        // Null if the stack's limit is unlimited, or the program is static.
        if !base["default_address"].is_null() && !base["address"].is_null() {
            assert_eq!(base["moved_bytes"], 0, "{base}");
            compared += 1;
        }
    }
    assert!(compared >= 2, "{}", found["aslr"]);
}

#[test]
fn what_is_no_process_is_refused() {
    for pid in ["0", "-1", "x", "2147483648"] {
        let output = maps(&[pid]);
        assert_eq!(output.status.code(), Some(2));
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(
            errors.contains("a process ID is a whole number from 1 on"),
            "{errors}"
        );
    }
    assert!(refusal(&maps(&["2147483647"])).contains("there is no process 2147483647"));
}

#[test]
fn a_process_that_has_ended_has_no_mappings() {
    let mut child = Command::new("true").spawn().unwrap();
    // This process does not wait for it, so it stays a zombie.
    while !std::fs::read_to_string(format!("/proc/{}/stat", child.id()))
        .unwrap()
        .contains(") Z ")
    {
        std::thread::yield_now();
    }
    let line = refusal(&maps(&[&child.id().to_string()]));
    assert!(
        line.contains("(true) has ended and its mappings with it"),
        "{line}"
    );
    child.wait().unwrap();
}

#[test]
fn a_kernel_thread_has_no_mappings() {
    let name = std::fs::read_to_string("/proc/2/comm").unwrap_or_default();
    if name.trim() != "kthreadd" {
        println!("skipped: kernel threads are not to be seen here");
        return;
    }
    let line = refusal(&maps(&["2"]));
    assert!(
        line.contains("process 2 (kthreadd) is a kernel thread"),
        "{line}"
    );
}

#[test]
fn another_users_process_takes_root() {
    let mut command = Command::new(MEMWARDEN);
    command.arg("maps").arg(std::process::id().to_string());
    if !is_root() {
        println!("skipped: this test needs root, which can start a process as another user");
        return;
    }
    match command.uid(65534).gid(65534).output() {
        Ok(output) => {
            let line = refusal(&output);
            assert!(line.contains("run as root, or as that user"), "{line}");
        }
        Err(error) => println!("skipped: user nobody cannot run the program: {error}"),
    }
}

#[test]
fn a_deleted_programs_sections_are_still_found() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("a copy");
    // Copied by another process: a fork in another test could hold our file open for writing, so that it could not be
    // run.
    let copied = Command::new("cp").arg("/bin/sleep").arg(&copy).status();
    assert!(copied.unwrap().success());
    let mut child = Command::new(&copy).arg("1000").spawn().unwrap();
    std::fs::remove_file(&copy).unwrap();
    let output = maps(&[&child.id().to_string(), "--json"]);
    child.kill().unwrap();
    child.wait().unwrap();
    let found = json(&output);
    let regions = found["regions"].as_array().unwrap();
    let code = regions
        .iter()
        .find(|region| region["file"] == copy.to_str().unwrap() && region["permissions"] == "r-xp");
    let code = code.unwrap_or_else(|| panic!("{found:#}"));
    assert_eq!(code["deleted"], true);
    let sections = code["sections"].as_array().unwrap();
    assert!(
        sections.iter().any(|part| part["name"] == ".text"),
        "{code}"
    );
}
