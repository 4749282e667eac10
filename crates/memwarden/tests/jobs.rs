// SPDX-License-Identifier: MIT OR Apache-2.0
//! A user's program as the measured task, with jobs delimited by exits, lines and marks. No time is judged here.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use memwarden_platform::{cpus, sched};
use memwarden_run::Recorded;
use rustix::process::{Pid, Signal};
use serde_json::Value;
use tempfile::TempDir;

const MEMWARDEN: &str = env!("CARGO_BIN_EXE_memwarden");

/// A program that reads a line, does its job, and answers.
const ANSWERS: &str = "while read number; do echo $number; done";

fn memwarden(arguments: &[&str]) -> Output {
    let mut command = Command::new(MEMWARDEN);
    command.args(arguments).stdin(Stdio::null());
    command.output().unwrap()
}

fn success(arguments: &[&str]) -> Output {
    let output = memwarden(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    output
}

fn result(arguments: &[&str]) -> Value {
    let output = success(arguments);
    let text = String::from_utf8(output.stdout).unwrap();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

fn refusal(arguments: &[&str]) -> String {
    let output = memwarden(arguments);
    assert!(!output.status.success(), "{arguments:?} was taken");
    String::from_utf8(output.stderr).unwrap()
}

/// The words of `memwarden jobs OPTIONS -- sh -c SCRIPT`.
fn with_script<'a>(options: &[&'a str], script: &'a str) -> Vec<&'a str> {
    let mut words = vec!["jobs", "--json"];
    words.extend(options);
    words.extend(["--", "sh", "-c", script]);
    words
}

fn jobs(result: &Value) -> &Vec<Value> {
    result["jobs"].as_array().unwrap()
}

#[test]
fn every_run_every_answer_and_every_line_is_a_job() {
    for (options, script) in [
        (["--by", "exit", "--jobs", "5"], "true"),
        (["--by", "line", "--jobs", "5"], ANSWERS),
        // A program that reads nothing and ends its jobs by itself.
        (
            ["--by", "line", "--jobs", "5"],
            "while :; do sleep 0.002; echo; done",
        ),
    ] {
        let result = result(&with_script(&options, script));
        assert_eq!(jobs(&result).len(), 5, "{script}");
        assert_eq!(
            (&result["releases"], &result["misses"]),
            (&5.into(), &0.into())
        );
    }
}

#[test]
fn marked_times_are_taken_as_they_are_and_the_first_job_is_left_out() {
    let marks = "printf '5 100\\n1000 1030\\n2000 2010 2050\\n' >$MEMWARDEN_JOBS; sleep 100";
    let result = result(&with_script(&["--by", "mark", "--jobs", "2"], marks));
    let times = |name: &str| {
        jobs(&result)
            .iter()
            .map(|job| job[name].as_u64().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(times("execution_ns"), [30, 40]);
    assert_eq!(times("response_ns"), [30, 50]);
    assert_eq!(times("release_jitter_ns"), [0, 10]);
}

#[test]
fn a_period_that_has_no_mark_is_a_job_that_was_skipped() {
    // Releases at 0, 10, 20 and 40 ms; the last job takes 6 ms.
    let marks = "printf '0 1\\n10000000 11000000\\n20000000 21000000\\n40000000 46000000\\n' >$MEMWARDEN_JOBS; sleep 100";
    let options = [
        "--by",
        "mark",
        "--jobs",
        "4",
        "--period",
        "10ms",
        "--deadline",
        "5ms",
    ];
    let result = result(&with_script(&options, marks));
    let numbers: Vec<_> = jobs(&result)
        .iter()
        .map(|job| job["number"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, [0, 1, 3]);
    assert_eq!(
        (&result["releases"], &result["skipped"]),
        (&4.into(), &1.into())
    );
    assert_eq!(result["misses"], 2, "the one skipped, and the late one");
}

#[test]
fn with_a_period_every_release_is_a_job_or_skipped_and_a_deadline_of_nothing_is_missed() {
    for (by, script) in [("exit", "true"), ("line", ANSWERS)] {
        let options = [
            "--by",
            by,
            "--jobs",
            "10",
            "--period",
            "20ms",
            "--deadline",
            "1ns",
            "--tell-miss",
        ];
        let result = result(&with_script(&options, script));
        assert_eq!(result["releases"], 10);
        assert_eq!(result["misses"], 10);
        let ran = jobs(&result).len() as u64;
        assert_eq!(ran + result["skipped"].as_u64().unwrap(), 10);
    }
}

#[test]
fn what_goes_wrong_is_told_once_with_the_programs_own_words() {
    for (options, script, words) in [
        (&["--by", "exit"][..], "./nothing", "could not start it"),
        (
            &["--by", "exit"],
            "echo why >&2; exit 3",
            "exit status: 3: why",
        ),
        (
            &["--by", "exit"],
            "seq 100000 >&2; printf 'no\\377 way\\n' >&2; exit 3",
            "exit status: 3: no\u{fffd} way",
        ),
        (&["--by", "exit"], "kill -SEGV $$", "signal: 11"),
        (&["--by", "exit"], "exit 139", "signal 11 in a shell"),
        (&["--by", "line"], "kill -KILL $$", "signal: 9"),
        (&["--by", "mark"], "kill -KILL $$", "signal: 9"),
        (&["--by", "mark"], "true", "memwarden_job.h"),
        (&["--by", "mark"], "true", "a program that changes its user"),
        (&["--by", "line"], "true", "write a line to standard output"),
        (
            &["--by", "line"],
            "seq 100; sleep 100",
            "its output is buffered",
        ),
        (
            &["--by", "mark"],
            "echo hello >$MEMWARDEN_JOBS; sleep 100",
            "`hello`",
        ),
        (
            &["--by", "mark"],
            "echo 2 1 >$MEMWARDEN_JOBS; sleep 100",
            "`2 1`",
        ),
        (
            &["--by", "line"],
            "{ printf '%03000d\\n' 1 2; } | dd bs=64k iflag=fullblock 2>/dev/null; sleep 100",
            "wrote 2 lines at once",
        ),
        (
            &["--by", "line"],
            "exec >&-; sleep 100",
            "closed its standard output and runs on",
        ),
        (
            &["--by", "line", "--period", "50ms"],
            "while :; do echo; sleep 0.01; done",
            "before its job was released",
        ),
    ] {
        let said = refusal(&with_script(options, script));
        assert!(said.contains(words), "{script}: {said}");
        assert_eq!(said.matches("memwarden: ").count(), 1, "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    // 127 is a shell's code for a missing program; another program may use it for anything.
    let said = refusal(&["jobs", "--", "env", "sh", "-c", "exit 127"]);
    assert!(
        said.contains("status: 127") && !said.contains("shell could"),
        "{said}"
    );
    let said = refusal(&["jobs", "--", "/nonexistent/program"]);
    assert!(
        said.contains("/nonexistent/program: No such file"),
        "{said}"
    );
}

#[test]
fn the_words_of_a_run_that_went_well_are_not_those_of_one_that_failed() {
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().join("ran");
    let script = format!(
        "[ -e {0} ] && exit 3; echo fine >&2; : >{0}",
        mark.display()
    );
    // The option's name in interfere and realtime.
    let said = refusal(&with_script(&["--jobs-by", "exit"], &script));
    assert!(said.trim_end().ends_with("exit status: 3"), "{said}");
}

#[test]
fn one_that_ends_by_itself_has_the_jobs_that_it_did() {
    let marks = "printf '1 2\\n3 4\\n5 6\\n' >$MEMWARDEN_JOBS";
    let result = result(&with_script(&["--by", "mark", "--jobs", "9"], marks));
    assert_eq!((jobs(&result).len(), &result["releases"]), (2, &2.into()));
    assert!(result["notes"][0].as_str().unwrap().contains("2 of 9 jobs"));
}

fn share() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../share")
}

/// Runs a compiler; false if this machine has none.
fn compiled(command: &mut Command) -> bool {
    match command.output() {
        Err(_) => false,
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && said.is_empty(), "{said}");
            true
        }
    }
}

/// A program in each language.
struct Sources {
    c: &'static str,
    rust: &'static str,
    python: &'static str,
}

/// Programs that mark 40 jobs.
const MARK_40: Sources = Sources {
    c: "#include \"memwarden_job.h\"
int main(void)
{
	int i;
	for (i = 0; i < 40; i++)
		memwarden_job_end(memwarden_job_begin());
	return 0;
}
",
    rust: "mod memwarden_job;
fn main() {
    for _ in 0..40 {
        memwarden_job::end(memwarden_job::begin());
    }
}
",
    python: "import memwarden_job
for _ in range(40):
    with memwarden_job.job():
        pass
",
};

/// Programs that SIGPIPE ends. They mark a job, read to the end of standard input, and mark three more. With a path,
/// they close all descriptors after the first job, and write a line to the path after each of the others.
const MARK_ON: Sources = Sources {
    c: "#include <unistd.h>
#include \"memwarden_job.h\"
int main(int argc, char **argv)
{
	int i, data = -1;
	memwarden_job_end(memwarden_job_begin());
	while (getchar() != EOF)
		;
	if (argc > 1) {
		for (i = 3; i < 20; i++)
			close(i);
		data = open(argv[1], O_WRONLY | O_CREAT, 0600);
	}
	for (i = 0; i < 3; i++) {
		memwarden_job_end(memwarden_job_begin());
		if (data >= 0 && write(data, \"data\\n\", 5) != 5)
			return 1;
	}
	return 0;
}
",
    rust: "mod memwarden_job;
use std::io::{Write, copy, sink, stdin};
unsafe extern \"C\" {
    fn close(fd: i32) -> i32;
    fn signal(number: i32, handler: usize) -> usize;
}
fn main() {
    unsafe { signal(13, 0) };
    memwarden_job::end(memwarden_job::begin());
    copy(&mut stdin(), &mut sink()).unwrap();
    let mut data = std::env::args().nth(1).map(|path| {
        for fd in 3..20 {
            unsafe { close(fd) };
        }
        std::fs::File::create(path).unwrap()
    });
    for _ in 0..3 {
        memwarden_job::end(memwarden_job::begin());
        if let Some(data) = &mut data {
            data.write_all(b\"data\\n\").unwrap();
        }
    }
}
",
    python: "import memwarden_job, os, signal, sys
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
def mark():
    with memwarden_job.job():
        pass
mark()
sys.stdin.read()
data = None
if len(sys.argv) > 1:
    os.closerange(3, 20)
    data = open(sys.argv[1], 'w')
for _ in range(3):
    mark()
    if data:
        data.write('data\\n')
        data.flush()
",
};

/// The programs in the languages available on this machine, each by its command.
fn marking_programs(folder: &TempDir, sources: &Sources) -> Vec<Vec<String>> {
    let mut programs = Vec::new();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let write = |name: &str, text: &str| std::fs::write(path(name), text).unwrap();
    write("c.c", sources.c);
    let posix = "-D_POSIX_C_SOURCE=200809L";
    for (compiler, standard, language) in [
        ("cc", &["-std=gnu99"][..], "c"),
        ("cc", &["-std=c99", "-pedantic", posix], "c"),
        ("cc", &["-std=c11", "-pedantic", "-Wconversion", posix], "c"),
        ("c++", &["-std=c++98", "-pedantic"], "c++"),
        ("c++", &["-std=c++20", "-pedantic"], "c++"),
    ] {
        let program = path(&programs.len().to_string());
        let mut command = Command::new(compiler);
        command.args(["-Wall", "-Wextra", "-Werror", "-I"]);
        command.arg(share()).args(standard).args(["-x", language]);
        if compiled(command.args([&path("c.c"), "-o", &program])) {
            programs.push(vec![program]);
        }
    }
    std::fs::copy(share().join("memwarden_job.rs"), path("memwarden_job.rs")).unwrap();
    write("r.rs", sources.rust);
    for edition in ["2015", "2024"] {
        let program = path(edition);
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let mut command = Command::new(rustc);
        if compiled(command.args(["--edition", edition, &path("r.rs"), "-o", &program])) {
            programs.push(vec![program]);
        }
    }
    std::fs::copy(share().join("memwarden_job.py"), path("memwarden_job.py")).unwrap();
    write("p.py", sources.python);
    if has_python() {
        programs.push(vec!["python3".into(), path("p.py")]);
    }
    if programs.is_empty() {
        println!("skipped: no compiler and no Python here");
    }
    programs
}

fn has_python() -> bool {
    Command::new("python3").arg("--version").output().is_ok()
}

#[test]
fn a_compiler_without_posix_is_told_what_to_give_it() {
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-x", "c", "-fsyntax-only"]);
    match cc.arg(share().join("memwarden_job.h")).output() {
        Err(_) => println!("skipped: no C compiler here"),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success());
            assert!(said.contains("-D_POSIX_C_SOURCE=200809L"), "{said}");
        }
    }
}

#[test]
fn the_headers_mark_jobs_and_do_nothing_where_memwarden_does_not_run_the_program() {
    let folder = tempfile::tempdir().unwrap();
    for program in marking_programs(&folder, &MARK_40) {
        let words: Vec<&str> = program.iter().map(String::as_str).collect();
        let mut line = vec!["jobs", "--json", "--by", "mark", "--jobs", "30", "--"];
        line.extend(&words);
        let result = result(&line);
        assert_eq!(jobs(&result).len(), 30, "{program:?}");
        let mut by_itself = Command::new(words[0]);
        by_itself.args(&words[1..]);
        for _ in 0..2 {
            let output = by_itself.output().unwrap();
            assert!(output.status.success() && output.stdout.is_empty());
            assert!(output.stderr.is_empty(), "{program:?}");
            // Once more, with a pipe that no longer exists.
            by_itself.env("MEMWARDEN_JOBS", folder.path().join("gone/jobs"));
        }
    }
}

/// A pipe as memwarden makes it, and its reader.
fn pipe_of_marks(folder: &TempDir) -> (PathBuf, File) {
    let path = folder.path().join("marks");
    let _ = std::fs::remove_file(&path);
    let made = Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    let reader = File::options().read(true).write(true).open(&path).unwrap();
    (path, reader)
}

fn next_mark(marks: &mut BufReader<File>) -> String {
    let mut mark = String::new();
    marks.read_line(&mut mark).unwrap();
    mark
}

/// Waits for the end; a program that hangs is a failure.
fn ended(run: &mut Child) -> ExitStatus {
    for _ in 0..6000 {
        if let Some(status) = run.try_wait().unwrap() {
            return status;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    run.kill().unwrap();
    panic!("it hangs");
}

#[test]
fn marks_do_no_harm_without_a_memwarden_that_reads_them() {
    let folder = tempfile::tempdir().unwrap();
    for program in marking_programs(&folder, &MARK_ON) {
        let (path, reader) = pipe_of_marks(&folder);
        let mut command = Command::new(&program[0]);
        command.args(&program[1..]).env("MEMWARDEN_JOBS", &path);
        // memwarden ends after the first mark.
        let mut run = command.stdin(Stdio::piped()).spawn().unwrap();
        let mut marks = BufReader::new(reader);
        next_mark(&mut marks);
        drop(marks);
        run.stdin.take();
        let status = ended(&mut run);
        assert!(status.success(), "{program:?}, later: {status}");
        // A killed memwarden leaves its pipe.
        let mut run = command.stdin(Stdio::null()).spawn().unwrap();
        let status = ended(&mut run);
        assert!(status.success(), "{program:?}, before: {status}");
    }
}

#[test]
fn a_program_that_closes_the_pipe_keeps_its_files_and_its_marks() {
    let folder = tempfile::tempdir().unwrap();
    for program in marking_programs(&folder, &MARK_ON) {
        let (path, reader) = pipe_of_marks(&folder);
        let data = folder.path().join("data");
        let mut command = Command::new(&program[0]);
        command.args(&program[1..]).arg(&data);
        command.env("MEMWARDEN_JOBS", &path).stdin(Stdio::null());
        let status = ended(&mut command.spawn().unwrap());
        assert!(status.success(), "{program:?}: {status}");
        let text = std::fs::read_to_string(&data).unwrap();
        assert_eq!(text, "data\n".repeat(3), "{program:?}");
        let mut marks = BufReader::new(reader);
        for _ in 0..4 {
            let times = next_mark(&mut marks);
            assert_eq!(times.split_whitespace().count(), 3, "{program:?}");
        }
        std::fs::remove_file(&data).unwrap();
    }
}

#[test]
fn a_job_in_python_that_raises_is_a_job() {
    if !has_python() {
        println!("skipped: no Python here");
        return;
    }
    let program = "
import memwarden_job
for number in range(8):
    try:
        with memwarden_job.job():
            if number % 2:
                raise TimeoutError
    except TimeoutError:
        pass
";
    let path = format!("PYTHONPATH={}", share().display());
    let result = result(&[
        "jobs", "--json", "--by", "mark", "--", "env", &path, "python3", "-B", "-c", program,
    ]);
    // The first is left out.
    assert_eq!(jobs(&result).len(), 7);
}

#[test]
fn a_program_that_is_faster_than_the_period_is_told() {
    for (marks, note) in [
        (
            "printf '%s000000 %s100000 %s200000\\n' 10 10 10 15 15 15 20 20 20 25 25 25",
            "the program's releases are 5 ms apart, --period says 20 ms",
        ),
        (
            "printf '%s000000 %s100000\\n' 10 10 15 15 20 20 25 25",
            "the program's begins are 5 ms apart, --period says 20 ms",
        ),
    ] {
        let script = format!("{marks} >$MEMWARDEN_JOBS; sleep 100");
        let options = ["--by", "mark", "--jobs", "3", "--period", "20ms"];
        let words = with_script(&options, &script);
        assert_eq!(result(&words)["notes"][0], note);
        let mut words = words;
        words.retain(|word| *word != "--json");
        let output = success(&words);
        let told = [output.stdout, output.stderr].concat();
        let told = String::from_utf8(told).unwrap();
        assert!(told.contains(note), "{told}");
    }
}

#[test]
fn a_program_that_gives_up_its_rights_marks_its_jobs() {
    let drop_rights = "setpriv --reuid 65534 --regid 65534 --clear-groups";
    let can = Command::new("sh")
        .args(["-c", &format!("{drop_rights} true")])
        .output();
    if !can.is_ok_and(|output| output.status.success()) {
        println!("skipped: not root, or no setpriv");
        return;
    }
    let marks = "for end in 1 2 3 4 5 6; do echo 0 $end; done >$MEMWARDEN_JOBS";
    let script = format!(
        "umask 077; TMPDIR=/tmp {MEMWARDEN} jobs --json --by mark --jobs 5 -- {drop_rights} sh -c '{marks}'"
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(jobs(&result).len(), 5);
}

#[test]
fn a_program_is_a_victim_beside_aggressors_and_beside_a_load() {
    if cpus::online().unwrap().len() < 2 {
        println!("skipped: one CPU");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("interfere");
    let victim = format!("cmd: {ANSWERS}");
    success(&[
        "interfere",
        "--victim",
        &victim,
        "--jobs-by",
        "line",
        "--victim-iterations",
        "10",
        "--victim-cpu",
        "0",
        "--cpus",
        "1",
        "--aggressors",
        "bandwidth:read",
        "--aggressor-memory",
        "64K",
        "--repeat",
        "2",
        "--settle",
        "1ms",
        "--json",
        "--out",
        out.to_str().unwrap(),
    ]);
    let recorded = Recorded::read(&out).unwrap();
    let summary = &recorded.summary;
    assert_eq!(summary.cases.len(), 2);
    for case in &summary.cases {
        let of_case = recorded
            .samples
            .iter()
            .filter(|s| s.case == case.name && s.metric == "job_time_ns");
        assert_eq!(
            of_case.count(),
            20,
            "{}: ten jobs in each of two runs",
            case.name
        );
    }

    let out = folder.path().join("realtime");
    let output = success(&[
        "realtime",
        "--victim",
        &victim,
        "--jobs-by",
        "line",
        "--jobs",
        "10",
        "--period",
        "5ms",
        "--deadline",
        "5ms",
        "--no-rt",
        "--load",
        "bandwidth:read",
        "--load-memory",
        "64K",
        "--settle",
        "1ms",
        "--json",
        "--out",
        out.to_str().unwrap(),
    ]);
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["cases"][1]["releases"], 10);

    let said = refusal(&[
        "interfere",
        "--victim",
        "cmd: ./nothing",
        "--victim-cpu",
        "0",
        "--cpus",
        "1",
    ]);
    assert!(
        said.contains("cannot be started") || said.contains("could not start it"),
        "{said}"
    );
    let said = refusal(&[
        "interfere",
        "--on",
        "sim:raspberry-pi-3",
        "--victim",
        "cmd: true",
    ]);
    assert!(said.contains("--on native or --on lab"), "{said}");
    let said = refusal(&["interfere", "--with", "x"]);
    assert!(said.contains("add --on lab"), "{said}");
}

#[test]
fn interfere_tells_in_which_cases_its_victim_ended_early() {
    if cpus::online().unwrap().len() < 2 {
        println!("skipped: one CPU");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // The first run, which is alone, ends by itself.
    let marks = format!(
        "for end in 1 2 3 4 5; do echo 0 $end; done >$MEMWARDEN_JOBS; \
                         if mkdir {0}/first; then exit; fi; \
                         while :; do echo 0 1; done >$MEMWARDEN_JOBS",
        folder.path().display()
    );
    let victim = format!("cmd: {marks}");
    let out = folder.path().join("run");
    let mut words = vec!["interfere", "--victim", &victim, "--jobs-by", "mark"];
    words.extend([
        "--victim-iterations",
        "100",
        "--victim-cpu",
        "0",
        "--cpus",
        "1",
    ]);
    words.extend([
        "--aggressors",
        "bandwidth:read",
        "--aggressor-memory",
        "64K",
    ]);
    words.extend(["--repeat", "1", "--settle", "1ms", "--json", "--out"]);
    words.push(out.to_str().unwrap());
    let summary: Value = serde_json::from_slice(&success(&words).stdout).unwrap();
    let notes = summary["notes"].as_array().unwrap();
    let ended = |note: &&Value| {
        note.as_str()
            .unwrap()
            .contains("ended by itself after 4 of 100 jobs")
    };
    let told: Vec<_> = notes.iter().filter(ended).collect();
    assert_eq!(told.len(), 1, "{notes:?}");
    assert!(
        told[0].as_str().unwrap().starts_with("alone: "),
        "{notes:?}"
    );
}

fn has_fifo() -> bool {
    let can = sched::set_fifo(1).is_ok() && Command::new("chrt").arg("--version").output().is_ok();
    if !can {
        println!("skipped: no SCHED_FIFO for this user, or no chrt");
    }
    can
}

fn first_cpu() -> String {
    cpus::online().unwrap().iter().next().unwrap().to_string()
}

#[test]
fn a_job_is_asked_for_in_one_write() {
    if !has_fifo() {
        return;
    }
    // A program that preempts memwarden at its first write. Each `dd` makes one read.
    let script = "chrt -f -p 99 $$; while ends=$(dd bs=64 count=1 2>/dev/null | wc -l); do [ $ends -eq 1 ] || exit 3; echo; done";
    let cpu = first_cpu();
    let options = ["--by", "line", "--jobs", "50", "-c", &cpu];
    let result = result(&with_script(&options, script));
    assert_eq!(jobs(&result).len(), 50);
}

#[test]
fn releases_that_memwardens_clean_up_takes_are_told() {
    // The processes left by each run ignore SIGTERM and last for two periods.
    let script = "trap '' TERM; sleep 0.1 >/dev/null & exit 0";
    let options = ["--period", "50ms", "--jobs", "8"];
    let result = result(&with_script(&options, script));
    assert_eq!(result["releases"], 8);
    let skipped = result["skipped"].as_u64().unwrap();
    assert!(skipped > 0 && jobs(&result).len() as u64 + skipped == 8);
    let note = result["notes"][0].as_str().unwrap();
    assert!(note.contains("while memwarden ended what"), "{note}");
}

#[test]
fn with_a_real_time_priority_memwarden_is_above_the_program_from_the_start() {
    if !has_fifo() {
        return;
    }
    // Field 40 of proc_pid_stat(5) is the real-time priority. Nothing here sleeps, so memwarden gets no CPU time in
    // between.
    let script = "priority() { read -r all </proc/$1/stat; set -- $all; got=\"$got ${40}\"; }\n\
                  priority $PPID; priority $$; echo \"$got\" >&2; exit 3";
    let cpu = first_cpu();
    for by in ["exit", "line", "mark"] {
        let options = ["--by", by, "-c", &cpu, "-r", "50"];
        let said = refusal(&with_script(&options, script));
        assert!(said.ends_with(": 51 50\n"), "{by}: {said}");
    }
}

fn started(arguments: &[&str], temporary: &Path) -> Child {
    Command::new(MEMWARDEN)
        .args(arguments)
        .env("TMPDIR", temporary)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// The process group that a program writes to `file`, once it is there.
fn group_in(file: &Path, run: &mut Child) -> Pid {
    loop {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        if let Ok(group) = text.trim().parse() {
            return Pid::from_raw(group).unwrap();
        }
        let ended = run.try_wait().unwrap();
        assert!(ended.is_none(), "memwarden ended early: {ended:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends `signal` and waits; a run that never ends is a failure.
fn ends_on(signal: Signal, run: &mut Child) -> bool {
    rustix::process::kill_process(Pid::from_child(run), signal).unwrap();
    for _ in 0..6000 {
        if run.try_wait().unwrap().is_some() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    run.kill().unwrap();
    false
}

fn is_gone(group: Pid) -> bool {
    rustix::process::test_kill_process_group(group).is_err()
}

#[test]
fn a_signal_leaves_nothing_of_the_program_and_no_pipe() {
    for (signal, by, work) in [
        (Signal::TERM, "exit", "sleep 1000 & sleep 1001"),
        (Signal::HUP, "mark", "sleep 1000 & sleep 1001"),
        (Signal::QUIT, "mark", "sleep 1000 & sleep 1001"),
        // Always more output, but never a complete line.
        (Signal::TERM, "line", "tr '\\0' x </dev/zero"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let temporary = tempfile::tempdir().unwrap();
        let mark = folder.path().join("runs");
        let script = format!("echo $$ >{}; {work}", mark.display());
        let words = with_script(&["--by", by], &script);
        let mut run = started(&words, temporary.path());
        let group = group_in(&mark, &mut run);
        assert!(ends_on(signal, &mut run), "{signal:?}, {by}: it runs on");
        assert!(is_gone(group), "{signal:?}, {by}: a process is left");
        let left = std::fs::read_dir(temporary.path()).unwrap().count();
        assert_eq!(left, 0, "{signal:?}, {by}: files are left");
    }
}

#[test]
fn an_interrupted_experiment_leaves_nothing_of_the_program() {
    if cpus::online().unwrap().len() < 2 {
        println!("skipped: one CPU");
        return;
    }
    for signal in [Signal::TERM, Signal::HUP, Signal::QUIT] {
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("runs");
        let script = format!("cmd: echo $$ >{}; sleep 1000 & sleep 1001", mark.display());
        let out = folder.path().join("out");
        let mut words = vec!["interfere", "--victim", &script, "--jobs-by", "mark"];
        words.extend(["--victim-cpu", "0", "--cpus", "1", "--out"]);
        words.push(out.to_str().unwrap());
        let mut run = started(&words, folder.path());
        let group = group_in(&mark, &mut run);
        assert!(ends_on(signal, &mut run), "{signal:?}: it runs on");
        assert!(is_gone(group), "{signal:?}: a process is left");
    }
}

/// A victim that ends the aggressor beside it, and waits until it has ended. The pattern does not match this script.
const ENDS_AGGRESSOR: &str = "cmd: set -- $(cat /proc/$PPID/stat); \
    for p in $(cat /proc/$4/task/*/children); do \
      if tr '\\0' ' ' </proc/$p/cmdline | grep -q ' bandwidth -a[ ]read '; then \
        kill $p; until grep -q '^State:.Z' /proc/$p/status; do :; done; \
      fi; \
    done";

#[test]
fn an_aggressor_or_a_load_that_ends_early_ends_the_experiment() {
    if cpus::online().unwrap().len() < 2 {
        println!("skipped: one CPU");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (verb, options) in [
        (
            "interfere",
            "--victim-iterations 1 --aggressors bandwidth:read --aggressor-memory 64K",
        ),
        (
            "realtime",
            "--jobs 1 --period 20ms --deadline 20ms --no-rt --load bandwidth:read --load-memory 64K",
        ),
    ] {
        let out = folder.path().join(verb);
        let mut words = vec![verb, "--victim", ENDS_AGGRESSOR, "--jobs-by", "exit"];
        words.extend(["--victim-cpu", "0", "--cpus", "1", "--repeat", "1"]);
        words.extend(["--settle", "1ms", "--out", out.to_str().unwrap()]);
        words.extend(options.split(' '));
        let said = refusal(&words);
        assert!(said.contains("ended by itself"), "{verb}: {said}");
        assert!(!out.exists(), "{verb}");
    }
}

/// The words of an experiment of two runs with one aggressor.
fn beside_one<'a>(victim: &'a str, out: &'a str) -> Vec<&'a str> {
    let mut words = vec!["interfere", "--victim", victim, "--jobs-by", "exit"];
    words.extend(["--victim-cpu", "0", "--cpus", "1", "--repeat", "2"]);
    words.extend(["--victim-iterations", "1", "--settle", "1ms", "--out", out]);
    words.extend([
        "--aggressors",
        "bandwidth:read",
        "--aggressor-memory",
        "64K",
    ]);
    words
}

#[test]
fn an_experiment_goes_on_when_its_program_file_is_replaced() {
    if cpus::online().unwrap().len() < 2 {
        println!("skipped: one CPU");
        return;
    }
    let folder = tempfile::tempdir_in(Path::new(MEMWARDEN).parent().unwrap()).unwrap();
    let program = folder.path().join("memwarden");
    std::fs::hard_link(MEMWARDEN, &program).unwrap();
    // What an update of a package does.
    let victim = format!("cmd: rm -f {}", program.display());
    let out = folder.path().join("out");
    let mut command = Command::new(&program);
    command.args(beside_one(&victim, out.to_str().unwrap()));
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(!program.exists());
}

#[test]
fn an_experiment_needs_no_more_open_files_than_the_hard_limit_and_its_programs_keep_theirs() {
    if cpus::online().unwrap().len() < 2 {
        println!("skipped: one CPU");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let mark = folder.path().join("limit");
    let victim = format!("cmd: ulimit -Sn >{}", mark.display());
    let mut command = Command::new("sh");
    // Too few for the pipes of an aggressor and the victim.
    command.args(["-c", "ulimit -Sn 12; exec \"$0\" \"$@\"", MEMWARDEN]);
    command.args(beside_one(&victim, out.to_str().unwrap()));
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(std::fs::read_to_string(&mark).unwrap(), "12\n");
}
