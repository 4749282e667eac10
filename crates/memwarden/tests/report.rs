// SPDX-License-Identifier: MIT OR Apache-2.0
//! Run folders and their reports: results that are printed although the page cannot be written, and samples that are
//! kept or not needed.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use memwarden_platform::affinity;
use memwarden_run::read_samples;
use rustix::process::{Pid, Signal, kill_process};

const MEMWARDEN: &str = env!("CARGO_BIN_EXE_memwarden");

/// The user without rights, and its group.
const NOBODY: u32 = 65534;

/// A copy of a saved run.
fn saved(name: &str, into: &Path) -> PathBuf {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../report/tests/data");
    let to = into.join(name);
    fs::create_dir(&to).unwrap();
    for file in ["run.json", "summary.json", "samples.csv"] {
        fs::copy(data.join(name).join(file), to.join(file)).unwrap();
    }
    to
}

fn report(words: &[&str], directories: &[&Path]) -> Output {
    let mut command = Command::new(MEMWARDEN);
    command.arg("report").args(words).args(directories);
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// memwarden with a limit on the size of each file that it writes, as on a full disk.
fn limited(blocks_of_512: u64, words: &[&str]) -> Command {
    let script = format!("trap '' XFSZ; ulimit -f {blocks_of_512}; exec \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh", MEMWARDEN]).args(words);
    command
}

/// Whether this process can give a file to user 65534, and that user can enter the folder and run memwarden. If not, says
/// that the test is skipped, and why. Another user than root does all of it itself.
fn has_nobody(temp: &Path) -> bool {
    let tried = || -> std::io::Result<()> {
        let file = temp.join("given");
        fs::write(&file, "")?;
        chown(&file, Some(NOBODY), Some(NOBODY))?;
        fs::remove_file(&file)?;
        fs::set_permissions(temp, Permissions::from_mode(0o755))?;
        for words in [["ls", temp.to_str().unwrap()], [MEMWARDEN, "--version"]] {
            let mut command = Command::new(words[0]);
            let output = command.arg(words[1]).uid(NOBODY).gid(NOBODY).output()?;
            if !output.status.success() {
                return Err(std::io::Error::other(text(&output.stderr)));
            }
        }
        Ok(())
    };
    if rustix::process::geteuid().is_root() {
        if let Err(error) = tried() {
            println!("skipped: user {NOBODY} cannot be used: {error}");
            return false;
        }
    }
    true
}

/// Sets the mode of the folders in which a run's page lies.
fn set_folders(temp: &Path, directory: &Path, mode: u32) {
    for folder in [temp, directory, &directory.join("plots")] {
        fs::set_permissions(folder, Permissions::from_mode(mode)).unwrap();
    }
}

/// All files below a folder.
fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(files(&path));
        } else {
            all.insert(path.clone(), fs::read(path).unwrap());
        }
    }
    all
}

#[test]
fn a_page_that_cannot_be_written_keeps_no_result_back() {
    let temp = tempfile::tempdir().unwrap();
    let [first, second] = ["interfere", "realtime"].map(|name| saved(name, temp.path()));
    // Root can write to any folder, but to no file in a folder's place.
    fs::create_dir(first.join("report.html")).unwrap();
    let finding = text(&report(&["--finding"], &[&first]).stdout);
    let one = report(&[], &[&first]);
    let (out, errors) = (text(&one.stdout), text(&one.stderr));
    assert_eq!(one.status.code(), Some(1), "{errors}");
    assert!(out.starts_with("The victim: "), "{out}");
    assert!(out.ends_with(&finding), "{out}");
    assert!(errors.contains("report.html"), "{errors}");

    let both = report(&[], &[&first, &second]);
    let (out, errors) = (text(&both.stdout), text(&both.stderr));
    assert_eq!(both.status.code(), Some(1), "{errors}");
    assert!(out.contains(&finding), "{out}");
    assert!(second.join("report.html").is_file());
    assert!(out.contains("realtime/report.html"), "{out}");

    let page = temp.path().join("page.html");
    fs::create_dir(&page).unwrap();
    let both = report(&["--page", page.to_str().unwrap()], &[&first, &second]);
    let errors = text(&both.stderr);
    assert_eq!(both.status.code(), Some(1), "{errors}");
    for cannot in ["interfere/report.html", "page.html"] {
        assert!(errors.contains(cannot), "{errors}");
    }
}

#[test]
fn an_experiment_prints_its_result_without_a_page() {
    let temp = tempfile::tempdir().unwrap();
    let out = temp.path().join("run");
    let out = out.to_str().unwrap();
    let mut words = vec!["realtime", "--no-rt", "--jobs", "20", "--frame", "64K"];
    words.extend(["--period", "1ms", "--deadline", "1ms", "--settle", "1ms"]);
    words.extend(["--guard", "none", "--repeat", "1", "--out", out]);
    if affinity::get().unwrap().len() < 2 {
        println!("skipped: one CPU: the load needs its own");
        return;
    }
    // 16 KiB: enough for the figures, too little for the page.
    let ended = limited(32, &words).output().unwrap();
    let (printed, errors) = (text(&ended.stdout), text(&ended.stderr));
    assert_eq!(ended.status.code(), Some(1), "{errors}");
    assert!(
        errors.contains("cannot write") || errors.contains("write "),
        "{errors}"
    );
    assert!(Path::new(out).join("summary.json").is_file(), "{errors}");
    assert!(!Path::new(out).join("report.html").exists());
    let finding = text(&report(&["--finding"], &[Path::new(out)]).stdout);
    assert!(printed.ends_with(&finding), "{printed}");
}

#[test]
fn a_page_that_cannot_be_written_leaves_the_old_one() {
    let temp = tempfile::tempdir().unwrap();
    let directory = saved("interfere", temp.path());
    assert!(report(&[], &[&directory]).status.success());
    fs::write(directory.join("report.html"), "the old page").unwrap();
    let before = files(&directory);
    let plots = before
        .iter()
        .filter(|(path, _)| path.extension().is_some_and(|e| e == "svg"));
    let largest = plots.map(|(_, bytes)| bytes.len() as u64).max().unwrap();
    // Room for each plot, and none for the page; then none for a plot.
    for blocks in [largest / 512 + 2, 1] {
        let mut command = limited(blocks, &["report", directory.to_str().unwrap()]);
        let ended = command.output().unwrap();
        assert_eq!(ended.status.code(), Some(1), "{}", text(&ended.stderr));
        assert!(
            files(&directory) == before,
            "{blocks} blocks: a file changed"
        );
    }
}

#[test]
fn a_link_is_written_through_and_a_new_page_has_the_usual_permissions() {
    let temp = tempfile::tempdir().unwrap();
    let directory = saved("interfere", temp.path());
    let (page, link) = (directory.join("report.html"), temp.path().join("link.html"));
    assert!(report(&[], &[&directory]).status.success());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
    let usual = temp.path().join("usual");
    fs::write(&usual, "").unwrap();
    assert_eq!(mode(&page), mode(&usual));
    std::os::unix::fs::symlink(&usual, &link).unwrap();
    let words = ["--page", link.to_str().unwrap()];
    assert!(report(&words, &[&directory]).status.success());
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(fs::read_to_string(&usual).unwrap().contains("</html>"));
}

#[test]
fn a_page_that_is_written_again_keeps_its_permissions() {
    let temp = tempfile::tempdir().unwrap();
    let directory = saved("interfere", temp.path());
    let page = directory.join("report.html");
    for mode in [0o600, 0o664] {
        fs::write(&page, "old").unwrap();
        fs::set_permissions(&page, Permissions::from_mode(mode)).unwrap();
        assert!(report(&[], &[&directory]).status.success());
        let now = fs::metadata(&page).unwrap();
        assert_eq!(now.permissions().mode() & 0o777, mode);
        assert!(now.len() > 1000);
    }
}

/// An access ACL as the kernel has it: version 2, then tag, rights and id of each entry. User 1001 may read and write, the
/// owning group nothing; the mode's group bits are the mask.
const ACL: [[u16; 4]; 5] = [
    [0x01, 6, 0xffff, 0xffff],
    [0x02, 6, 1001, 0],
    [0x04, 0, 0xffff, 0xffff],
    [0x10, 6, 0xffff, 0xffff],
    [0x20, 0, 0xffff, 0xffff],
];

#[test]
fn a_page_that_is_written_again_keeps_its_acl() {
    let temp = tempfile::tempdir().unwrap();
    let directory = saved("interfere", temp.path());
    let page = directory.join("report.html");
    fs::write(&page, "old").unwrap();
    let entries = ACL.concat().into_iter().flat_map(u16::to_le_bytes);
    let acl: Vec<u8> = 2_u32.to_le_bytes().into_iter().chain(entries).collect();
    let name = c"system.posix_acl_access";
    let flags = rustix::fs::XattrFlags::empty();
    if let Err(error) = rustix::fs::setxattr(&page, name, &acl, flags) {
        println!("skipped: the file system has no ACLs: {error}");
        return;
    }
    assert!(report(&[], &[&directory]).status.success());
    assert!(fs::metadata(&page).unwrap().len() > 1000);
    let mut now = [0; 64];
    let bytes = rustix::fs::getxattr(&page, name, &mut now).unwrap();
    assert_eq!(now[..bytes], acl);
}

#[test]
fn a_page_that_another_user_writes_again_keeps_its_owner() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root may give a file to another user");
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    if !has_nobody(temp.path()) {
        return;
    }
    let directory = saved("interfere", temp.path());
    let page = directory.join("report.html");
    let facts = || {
        let now = fs::metadata(&page).unwrap();
        assert!(now.len() > 1000);
        (now.uid(), now.gid(), now.permissions().mode() & 0o7777)
    };
    for mode in [0o600, 0o2750] {
        fs::write(&page, "old").unwrap();
        chown(&page, Some(NOBODY), Some(NOBODY)).unwrap();
        fs::set_permissions(&page, Permissions::from_mode(mode)).unwrap();
        assert!(report(&[], &[&directory]).status.success());
        assert_eq!(facts(), (NOBODY, NOBODY, mode));
    }

    // In this folder the account 65534 may replace root's page, but cannot give a new file to root.
    fs::write(&page, "old").unwrap();
    chown(&page, Some(0), Some(0)).unwrap();
    for (path, mode) in [(temp.path(), 0o755), (&directory, 0o777), (&page, 0o666)] {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    for path in files(&directory.join("plots")).keys() {
        fs::set_permissions(path, Permissions::from_mode(0o666)).unwrap();
    }
    let mut command = Command::new(MEMWARDEN);
    command.arg("report").arg(&directory);
    let output = command.uid(NOBODY).gid(NOBODY).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(facts(), (0, 0, 0o666));
}

/// As `docker run -v FILE:FILE` mounts it.
#[test]
fn a_page_that_is_mounted_is_written_in_place() {
    let temp = tempfile::tempdir().unwrap();
    let directory = saved("interfere", temp.path());
    let (page, outside) = (directory.join("report.html"), temp.path().join("outside"));
    fs::write(&page, "").unwrap();
    fs::write(&outside, "old").unwrap();
    let script = "mount --bind \"$1\" \"$2\" || exit 99; exec \"$3\" report \"$4\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh"]);
    command.args([&outside, &page, Path::new(MEMWARDEN), &directory]);
    let output = command.output();
    let may = |output: &Output| {
        !matches!(output.status.code(), Some(99)) && {
            !text(&output.stderr).starts_with("unshare: ")
        }
    };
    match output {
        Ok(output) if may(&output) => {
            assert!(output.status.success(), "{}", text(&output.stderr));
            assert!(fs::read_to_string(&outside).unwrap().contains("</html>"));
        }
        other => println!("skipped: no file can be mounted here: {other:?}"),
    }
}

#[test]
fn a_page_in_a_folder_that_takes_no_new_file_is_written_in_place() {
    let temp = tempfile::tempdir().unwrap();
    if !has_nobody(temp.path()) {
        return;
    }
    let directory = saved("interfere", temp.path());
    assert!(report(&[], &[&directory]).status.success());
    let page = directory.join("report.html");
    let good = fs::read(&page).unwrap();
    fs::write(&page, "old").unwrap();
    for path in files(&directory).keys() {
        fs::set_permissions(path, Permissions::from_mode(0o666)).unwrap();
    }
    let set = |mode| set_folders(temp.path(), &directory, mode);
    set(0o555);
    let mut command = Command::new(MEMWARDEN);
    command.arg("report").arg(&directory);
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    let output = command.output().unwrap();
    set(0o755);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(fs::read(&page).unwrap() == good);
}

#[test]
fn a_page_that_cannot_be_written_in_place_is_the_old_one() {
    let temp = tempfile::tempdir().unwrap();
    if !has_nobody(temp.path()) {
        return;
    }
    let directory = saved("interfere", temp.path());
    assert!(report(&[], &[&directory]).status.success());
    let page = directory.join("report.html");
    let blocks = fs::metadata(&page).unwrap().len() / 512;
    fs::write(&page, "the old page").unwrap();
    let before = files(&directory);
    for path in before.keys() {
        fs::set_permissions(path, Permissions::from_mode(0o666)).unwrap();
    }
    let set = |mode| set_folders(temp.path(), &directory, mode);
    set(0o555);
    let mut command = limited(blocks, &["report", directory.to_str().unwrap()]);
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    let output = command.output().unwrap();
    set(0o755);
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("report.html"), "{errors}");
    assert!(files(&directory) == before, "a file changed");

    // A link is written through, so its file is written in place, too.
    let link = temp.path().join("link.html");
    std::os::unix::fs::symlink(&page, &link).unwrap();
    let words = ["report", "--page", link.to_str().unwrap()];
    let words = [&words[..], &[directory.to_str().unwrap()]].concat();
    let ended = limited(32, &words).output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{}", text(&ended.stderr));
    assert!(text(&ended.stderr).contains("link.html"));
    assert_eq!(fs::read(&page).unwrap(), b"the old page");
}

#[test]
fn a_finding_needs_no_samples() {
    let temp = tempfile::tempdir().unwrap();
    let directory = saved("interfere", temp.path());
    let all = [["--finding"], ["--json"]].map(|words| text(&report(&words, &[&directory]).stdout));
    fs::write(directory.join("samples.csv"), "no samples").unwrap();
    let again =
        [["--finding"], ["--json"]].map(|words| text(&report(&words, &[&directory]).stdout));
    assert_eq!(again, all);
    assert!(all[0].contains("slowed down"), "{}", all[0]);
    assert!(!report(&[], &[&directory]).status.success());
}

#[test]
fn an_interrupt_keeps_the_repeats_before_it() {
    let cpus: Vec<usize> = affinity::get().unwrap().iter().collect();
    let [victim, aggressor, ..] = cpus[..] else {
        println!("skipped: one CPU has no room for an aggressor");
        return;
    };
    let temp = tempfile::tempdir().unwrap();
    let partial = temp.path().join("run.partial");
    let mut child = Command::new(MEMWARDEN)
        .args(["interfere", "--repeat", "1000000", "--window", "10ms"])
        .args(["--victim-memory", "64K", "--settle", "1ms"])
        .args(["--victim-cpu", &victim.to_string()])
        .args(["--cpus", &aggressor.to_string()])
        .args(["--out", temp.path().join("run").to_str().unwrap()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Rows of the first case, which does not end.
    let begun = Instant::now();
    let rows = || fs::read_to_string(partial.join("samples.csv")).unwrap_or_default();
    while rows().lines().count() < 4 && begun.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(20));
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let samples = read_samples(&partial.join("samples.csv")).unwrap();
    assert!(samples.iter().all(|sample| sample.case == "solo"));
    let repeats: Vec<u32> = samples.iter().map(|sample| sample.repeat).collect();
    assert!(
        repeats.len() >= 3 && repeats[..3] == [0, 1, 2],
        "{repeats:?}"
    );
}
