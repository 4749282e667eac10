// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guest's initial file system: busybox, memwarden, the modules, the job.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use crate::architecture::Architecture;
use crate::cache::Cache;
use crate::debian::Apt;
use crate::digest;
use crate::error::{OnFile, Result};
use crate::initramfs::Archive;
use crate::kernel::{self, Kernel};
use crate::modules;
use crate::packages;
use crate::program;
use crate::source::Source;

/// Carrying the results back needs the first three; all else, and mostly the third, is built into Debian's kernels. The
/// last one drives a DMA channel, to see that it works.
const KERNEL_MODULES: [&str; 4] = ["9p", "9pnet_virtio", "virtio_pci", "dmatest"];

/// The guest's `memwarden`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum GuestProgram {
    /// Compiled from the checkout.
    #[default]
    Build,
    /// This static program of the machine's architecture.
    File(PathBuf),
    /// No program: for work on the lab or the kernel modules.
    None,
}

/// How results come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carry {
    /// A folder shared with the host.
    Ninep,
    /// A frame on the console.
    Serial,
}

/// The job of a boot.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    /// The machine's.
    pub architecture: Architecture,
    /// The command's words; none for an interactive shell.
    pub command: &'a [OsString],
    /// How results come back.
    pub carry: Carry,
    /// The serial ports for its output and errors.
    pub ports: [&'static str; 2],
    /// The date at its start, as busybox's `date -u -s` takes it, for a machine that has no clock to tell it.
    pub date: Option<String>,
    /// Files and folders of the host, for /host.
    pub with: &'a [PathBuf],
    /// Debian's packages, unpacked to their usual places.
    pub packages: &'a BTreeSet<String>,
}

/// Writes the initial file system to `initramfs` in the boot's `folder`.
pub(crate) fn assemble(
    folder: &Path,
    source: &Source,
    cache: &Cache,
    kernel: &Kernel,
    guest: &GuestProgram,
    job: &Job<'_>,
    say: &dyn Fn(&str),
) -> Result<()> {
    // One boot at a time reads and remakes what the checkout keeps staged.
    let _lock = crate::cache::lock(&source.built("staged")?.join(".lock"))?;
    let mut archive = Archive::default();
    for folder in [
        "proc", "sys", "dev", "tmp", "run", "results", "root", "usr/sbin", "usr/lib",
    ] {
        archive.folder(folder);
    }
    archive.link("bin", "usr/bin");
    archive.link("sbin", "usr/sbin");
    archive.link("lib", "usr/lib");
    if job.architecture == Architecture::Amd64 {
        archive.link("lib64", "usr/lib64");
    }
    // First, since the next files are unpacked over it.
    if !job.packages.is_empty() {
        let folder = packages::unpacked(cache, job.packages, job.architecture, say)?;
        archive.overlay(&folder, &packages::place)?;
    }
    archive.copy("usr/bin/busybox", &busybox(cache, job.architecture, say)?)?;
    archive.link("usr/bin/sh", "busybox");
    let init = source.root().join("lab/init");
    archive.file("init", 0o755, &fs::read(&init).on("read", &init)?);

    let build = || build_program(source, job.architecture, say);
    if let Some(program) = guest_program(guest, job.architecture, folder, build)? {
        archive.copy("usr/bin/memwarden", &program)?;
        archive.link("usr/bin/latency", "memwarden");
        archive.link("usr/bin/bandwidth", "memwarden");
    }

    let staged = stage_modules(source, cache, kernel, say)?;
    archive.copy("usr/lib/modules", &staged)?;

    for path in job.with {
        let from = path.canonicalize().on("read", path)?;
        let name = from.file_name().unwrap_or_default();
        archive.copy(Path::new("host").join(name), &from)?;
    }
    let mode = if job.command.is_empty() {
        "shell"
    } else {
        "run"
    };
    let carry = match job.carry {
        Carry::Ninep => "9p",
        Carry::Serial => "serial",
    };
    let [out, err] = job.ports;
    let mut settings = format!("mode={mode}\ncarry={carry}\nout=/dev/{out}\nerr=/dev/{err}\n");
    if let Some(date) = &job.date {
        settings += &format!("date='{date}'\n");
    }
    archive.file("job/settings", 0o644, settings.as_bytes());
    archive.file("job/command", 0o644, &script(job.command));
    let file = folder.join("initramfs");
    fs::write(&file, archive.finish()).on("write", &file)
}

/// A static busybox from Debian.
fn busybox(cache: &Cache, architecture: Architecture, say: &dyn Fn(&str)) -> Result<PathBuf> {
    let id = format!("busybox-static:{architecture}");
    let entries = cache.names("busybox");
    let kept = entries
        .into_iter()
        .rfind(|name| name.starts_with(&format!("busybox-static_{architecture}_")));
    let name = match kept {
        Some(name) => name,
        None => {
            let package = Apt::debian_12(cache, say)?.find(&id)?;
            cache.entry("busybox", &package.cache_name(), |folder, _| {
                say("fetching busybox");
                package.unpack_to(folder)
            })?;
            package.cache_name()
        }
    };
    let entry = cache.root().join("busybox").join(name);
    // Debian moves /bin to /usr/bin one package at a time.
    let places = ["bin/busybox", "usr/bin/busybox"];
    Ok(places
        .iter()
        .map(|place| entry.join(place))
        .find(|path| path.is_file())
        .unwrap_or_else(|| entry.join(places[0])))
}

/// The guest's memwarden without debug symbols, in the boot's `folder`: a strip is faster than a look whether an earlier
/// boot's is the same.
fn guest_program(
    guest: &GuestProgram,
    architecture: Architecture,
    folder: &Path,
    build: impl FnOnce() -> Result<PathBuf>,
) -> Result<Option<PathBuf>> {
    let built = match guest {
        GuestProgram::None => return Ok(None),
        GuestProgram::File(path) => path.clone(),
        GuestProgram::Build => build()?,
    };
    let stripped = folder.join("memwarden");
    program::run(
        &format!("strip {}", built.display()),
        program::command(&architecture.strip())
            .arg("-o")
            .arg(&stripped)
            .arg(&built),
    )?;
    Ok(Some(stripped))
}

/// Builds it static, so that it needs nothing but a kernel.
fn build_program(
    source: &Source,
    architecture: Architecture,
    say: &dyn Fn(&str),
) -> Result<PathBuf> {
    say("building memwarden for the guest");
    let rust_target = architecture.rust_target();
    // As in the Makefile's `guest`, since other flags make another build. In .cargo/config.toml they would also hold for the
    // programs of a host with this architecture, whose procedural macros cannot be static.
    let is_static = format!("target.{rust_target}.rustflags=['-C', 'target-feature=+crt-static']");
    let linker = format!("target.{rust_target}.linker='{}-gcc'", architecture.gnu());
    let mut arguments = vec![
        "build",
        "--release",
        "--quiet",
        "--target",
        rust_target,
        "--package",
        "memwarden",
        "--no-default-features",
        // Nothing is simulated in the guest, and this crate takes half a minute at level 3.
        "--config",
        "profile.release.package.memwarden-sim.opt-level=0",
        "--config",
        &is_static,
    ];
    if architecture != Architecture::HOST {
        arguments.extend(["--config", &linker]);
    }
    let target = program::cargo("build memwarden for the guest", source, &arguments)?;
    Ok(target.join(rust_target).join("release/memwarden"))
}

/// lib/modules as the guest gets it: the kernel's modules that it needs, ours
/// under extra/, and depmod's index of both.
fn stage_modules(
    source: &Source,
    cache: &Cache,
    kernel: &Kernel,
    say: &dyn Fn(&str),
) -> Result<PathBuf> {
    say("building the kernel modules");
    let ours = modules::build(source, &kernel.headers, cache)?;
    let staged = source.built(&format!("staged/{}", kernel.release))?;
    let home = staged.join("lib/modules").join(&kernel.release);
    let stamp = staged.join(".made-from");
    let made_from = ours.made_from.map(|modules| {
        let all = [modules, kernel.modules.display().to_string()];
        digest::hex(all.iter().map(String::as_str).chain(KERNEL_MODULES))
    });
    if made_from.is_some() && fs::read_to_string(&stamp).ok() == made_from {
        return Ok(staged.join("lib/modules"));
    }
    fs::remove_dir_all(&staged).on("remove", &staged)?;
    for folder in ["kernel", "extra"] {
        let folder = home.join(folder);
        fs::create_dir_all(&folder).on("create", &folder)?;
    }
    for file in kernel::module_files(&kernel.modules, &KERNEL_MODULES)? {
        unpack_module(&file, &home.join("kernel"))?;
    }
    for file in ours.files {
        let to = home
            .join("extra")
            .join(file.file_name().unwrap_or_default());
        fs::copy(&file, &to).on("write", &to)?;
    }
    for index in [
        "modules.builtin",
        "modules.builtin.modinfo",
        "modules.order",
    ] {
        let from = kernel.modules.join(index);
        if from.is_file() {
            let to = home.join(index);
            fs::copy(&from, &to).on("write", &to)?;
        }
    }
    program::run(
        "index the guest's modules",
        program::command("depmod")
            .arg("-b")
            .arg(&staged)
            .arg(&kernel.release),
    )?;
    fs::write(&stamp, made_from.unwrap_or_default()).on("write", &stamp)?;
    Ok(staged.join("lib/modules"))
}

/// Copies a module uncompressed, since unpacking in the emulator is slow.
fn unpack_module(file: &Path, folder: &Path) -> Result<()> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let to = folder.join(name.trim_end_matches(".xz"));
    let content = if name.ends_with(".xz") {
        program::run(
            &format!("unpack {}", file.display()),
            program::command("xz").arg("-dc").arg(file),
        )?
        .stdout
    } else {
        fs::read(file).on("read", file)?
    };
    fs::write(&to, content).on("write", &to)
}

/// A shell script that becomes the command. Its words keep their bytes, UTF-8 or not.
fn script(command: &[OsString]) -> Vec<u8> {
    let mut script = b"exec".to_vec();
    for word in command {
        script.extend_from_slice(b" '");
        for byte in word.as_encoded_bytes() {
            match byte {
                b'\'' => script.extend_from_slice(br"'\''"),
                &byte => script.push(byte),
            }
        }
        script.push(b'\'');
    }
    script.push(b'\n');
    script
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    /// A program that ends with this code.
    fn compile(folder: &Path, code: u8) -> PathBuf {
        let (text, made) = (
            folder.join(format!("{code}.c")),
            folder.join(code.to_string()),
        );
        fs::write(&text, format!("int main(void) {{ return {code}; }}\n")).unwrap();
        let mut gcc = program::command("gcc");
        program::run("compile", gcc.arg("-g").arg("-o").arg(&made).arg(&text)).unwrap();
        made
    }

    #[test]
    fn a_given_program_is_in_its_own_boot_only() {
        let folder = tempfile::tempdir().unwrap();
        let (built, given) = (compile(folder.path(), 1), compile(folder.path(), 2));
        let packed = |guest: &GuestProgram| {
            let boot = tempfile::tempdir().unwrap();
            let build = || Ok(built.clone());
            let program = guest_program(guest, Architecture::HOST, boot.path(), build).unwrap();
            fs::read(program.unwrap()).unwrap()
        };
        let before = packed(&GuestProgram::Build);
        assert!(before.len() < fs::read(&built).unwrap().len());
        assert_ne!(packed(&GuestProgram::File(given)), before);
        assert_eq!(packed(&GuestProgram::Build), before);
    }

    #[test]
    fn words_come_through_a_shell_unchanged() {
        let mut words = ["printf", r"%s\0"].map(OsString::from).to_vec();
        words.extend(
            [
                "plain",
                "",
                "two words",
                "it's",
                "$HOME `x` \"y\" \\",
                "a\nb\n",
            ]
            .map(OsString::from),
        );
        words.extend(
            [&b"caf\xe9"[..], b"\xff'\xfe", b"\x80\n"]
                .map(|word| OsStr::from_bytes(word).to_owned()),
        );
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("command");
        fs::write(&file, script(&words)).unwrap();
        let output = program::run("run the script", program::command("sh").arg(&file)).unwrap();
        let came: Vec<&[u8]> = output.stdout.split_inclusive(|byte| *byte == 0).collect();
        let sent: Vec<Vec<u8>> = words[2..]
            .iter()
            .map(|word| [word.as_bytes(), b"\0"].concat())
            .collect();
        assert_eq!(came, sent);
    }
}
