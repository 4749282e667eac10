// SPDX-License-Identifier: MIT OR Apache-2.0
//! Debian packages as sources of files: looked up, fetched and unpacked, never installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::architecture::Architecture;
use crate::cache::{self, Cache};
use crate::error::{Error, OnFile, Result};
use crate::program;

/// Folder of the machine's package lists.
const MACHINE_LISTS: &str = "/var/lib/apt/lists";

/// The name of this machine's system.
const SYSTEM: &str = "/etc/os-release";

/// Stands for this machine's architecture in [`Suites::sources`].
const HOST: &str = "HOST";

/// Suites that the machine's apt may not have.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Suites {
    /// The folder's name in the cache.
    name: &'static str,
    /// Their name in messages.
    what: &'static str,
    /// apt's sources.list.
    sources: &'static str,
    /// Packages of this suite, or of those that match `/PATTERN/`, are preferred to others of the same name.
    release: &'static str,
    /// Size of the lists to fetch, in MB.
    lists_mb: u32,
}

/// Debian 12, for machines with another system.
static DEBIAN_12: Suites = Suites {
    name: "bookworm",
    what: "the package lists of Debian 12",
    sources: "\
    deb [arch=amd64,arm64 target=Packages signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] \
    http://deb.debian.org/debian bookworm main\n\
    deb [arch=amd64,arm64 target=Packages signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] \
    http://deb.debian.org/debian bookworm-updates main\n\
    deb [arch=amd64,arm64 target=Packages signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] \
    http://deb.debian.org/debian-security bookworm-security main\n",
    release: "/^bookworm(|-updates|-security)$/",
    lists_mb: 20,
};

/// A newer Debian. The C library comes from the release, the newest kernel from its backports.
static NEWER: Suites = Suites {
    name: "trixie-backports",
    what: "the package lists of trixie-backports",
    sources: "\
    deb [arch=amd64,arm64 target=Packages signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] \
    http://deb.debian.org/debian trixie-backports main\n\
    deb [arch=HOST target=Packages signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] \
    http://deb.debian.org/debian trixie main\n",
    release: "trixie-backports",
    lists_mb: 11,
};

/// The next Debian in its current state.
static TESTING: Suites = Suites {
    name: "testing",
    what: "the package lists of testing",
    sources: "\
    deb [arch=amd64,arm64 target=Packages signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] \
    http://deb.debian.org/debian testing main\n",
    release: "testing",
    lists_mb: 20,
};

/// Debian 12's source packages.
static SOURCES: Suites = Suites {
    name: "bookworm-sources",
    what: "Debian 12's lists of source packages",
    sources: "\
    deb-src [target=Sources signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] \
    http://deb.debian.org/debian bookworm main\n\
    deb-src [target=Sources signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] \
    http://deb.debian.org/debian bookworm-updates main\n\
    deb-src [target=Sources signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] \
    http://deb.debian.org/debian-security bookworm-security main\n",
    release: "bookworm",
    lists_mb: 10,
};

/// Package lists are fetched again after this time; they change every one or two weeks.
const LISTS_LAST: Duration = Duration::from_secs(7 * 24 * 3600);

/// An apt with its package lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Apt {
    /// The machine's apt.
    Machine,
    /// An apt for other suites. It keeps all its files in this folder of the cache, apart from the machine's apt.
    Own(&'static Suites, PathBuf),
}

impl Apt {
    /// The apt for Debian 12, from which the guest has its usual kernels and its programs: the machine's on Debian 12,
    /// otherwise one of the lab's own, so that a guest is the same on every machine.
    pub fn debian_12(cache: &Cache, say: &dyn Fn(&str)) -> Result<Self> {
        if is_debian_12(&fs::read_to_string(SYSTEM).unwrap_or_default()) {
            return Ok(Self::Machine);
        }
        Self::own(&DEBIAN_12, cache, say)
    }

    /// The apt for the newer Debian.
    pub fn newer(cache: &Cache, say: &dyn Fn(&str)) -> Result<Self> {
        Self::own(&NEWER, cache, say)
    }

    /// The apt for the next Debian.
    pub fn testing(cache: &Cache, say: &dyn Fn(&str)) -> Result<Self> {
        Self::own(&TESTING, cache, say)
    }

    /// The apt for Debian 12's source packages.
    pub fn sources(cache: &Cache, say: &dyn Fn(&str)) -> Result<Self> {
        Self::own(&SOURCES, cache, say)
    }

    /// Refreshes the package lists if they are old. If that fails, as it does offline, the old lists are used.
    fn own(suites: &'static Suites, cache: &Cache, say: &dyn Fn(&str)) -> Result<Self> {
        let home = cache.root().join(cache::LISTS);
        let folder = home.join(suites.name);
        let apt = Self::Own(suites, folder.clone());
        let _lock = cache.lock(cache::LISTS)?;
        fs::create_dir_all(&home).on("create", &home)?;
        cache::remove_partial(&home)?;
        for part in ["lists/partial", "cache/archives/partial"] {
            let path = folder.join(part);
            fs::create_dir_all(&path).on("create", &path)?;
        }
        let sources = folder.join("sources.list");
        let wanted = suites.sources.replace(HOST, Architecture::HOST.debian());
        if fs::read_to_string(&sources).ok().as_ref() != Some(&wanted) {
            fs::write(&sources, wanted).on("write", &sources)?;
        } else if apt.lists_age().is_some_and(|age| age < LISTS_LAST) {
            return Ok(apt);
        }
        say(&format!(
            "fetching {} (about {} MB)",
            suites.what, suites.lists_mb
        ));
        let mut update = apt.command("apt-get");
        // By default apt-get succeeds if it can't connect, and leaves the lists as they are, empty the first time.
        update.args(["update", "-q", "-o", "APT::Update::Error-Mode=any"]);
        if apt.lists_age().is_some() {
            // Three retries take seven seconds of every run of a machine that is offline.
            update.args(["-o", "Acquire::Retries=0"]);
        }
        let updated = program::run(&format!("fetch {}", suites.what), &mut update);
        match updated {
            Ok(_) => {
                let stamp = folder.join("updated");
                fs::write(&stamp, "").on("write", &stamp)?;
            }
            Err(error) if apt.lists_age().is_none() => return Err(error),
            Err(error) => say(&format!("using the old package lists: {error}")),
        }
        Ok(apt)
    }

    /// The files of a source package's newest version, as apt lists them.
    pub fn find_source(&self, name: &str) -> Result<SourcePackage> {
        let said = program::run(
            &format!("look up the source package {name}"),
            self.command("apt-get")
                .args(["source", "--only-source", "--print-uris", "-q", name]),
        )?;
        SourcePackage::parse(self, name, &String::from_utf8_lossy(&said.stdout))
            .ok_or_else(|| Error::UnknownPackage(name.to_owned()))
    }

    /// When its lists were last changed, in seconds since 1970; 0 if never.
    pub fn lists_changed_s(&self) -> u64 {
        self.lists_changed()
            .and_then(|time| time.duration_since(UNIX_EPOCH).ok())
            .map_or(0, |since| since.as_secs())
    }

    fn lists_changed(&self) -> Option<SystemTime> {
        let path = match self {
            Self::Machine => PathBuf::from(MACHINE_LISTS),
            Self::Own(_, folder) => folder.join("updated"),
        };
        fs::metadata(path).ok()?.modified().ok()
    }

    fn lists_age(&self) -> Option<Duration> {
        // A time in the future counts as now.
        self.lists_changed()
            .map(|time| time.elapsed().unwrap_or_default())
    }

    /// The folder with this Debian's C library for programs that run here, and its loader.
    pub fn libc(&self, cache: &Cache, say: &dyn Fn(&str)) -> Result<PathBuf> {
        let package = self.find(&format!("libc6:{}", Architecture::HOST))?;
        let entry = cache.entry("tools", &package.cache_name(), |folder, _| {
            say("fetching the C library of the newer Debian's build tools");
            package.unpack_to(folder)
        })?;
        Ok(entry.join("usr/lib").join(Architecture::HOST.gnu()))
    }

    /// One of apt's programs, for packages of both architectures.
    fn command(&self, program: &str) -> Command {
        let mut command = self.with_lists(program);
        if *self != Self::Machine {
            for architecture in Architecture::ALL {
                command.args(["-o", &format!("APT::Architectures::={architecture}")]);
            }
        }
        command
    }

    /// One of apt's programs, with these package lists.
    pub fn with_lists(&self, program: &str) -> Command {
        let mut command = program::command(program);
        if let Self::Own(suites, folder) = self {
            let folder = folder.display();
            for option in [
                format!("Dir::Etc::sourcelist={folder}/sources.list"),
                "Dir::Etc::sourceparts=-".to_owned(),
                format!("Dir::State::lists={folder}/lists"),
                "Dir::State::status=/dev/null".to_owned(),
                format!("Dir::Cache={folder}/cache"),
                format!("APT::Default-Release={}", suites.release),
                "Acquire::Languages=none".to_owned(),
                // The folder is the user's; apt's own user may not be allowed to write there.
                "APT::Sandbox::User=root".to_owned(),
            ] {
                command.arg("-o").arg(option);
            }
        }
        command
    }

    /// The candidate version of `name:architecture`.
    pub fn find(&self, id: &str) -> Result<Package> {
        let attempted = format!("look up package {id}");
        let shown = program::run(
            &attempted,
            self.command("apt-cache")
                .args(["show", "--no-all-versions", id]),
        );
        let record = match shown {
            Ok(output) => output.stdout,
            Err(Error::Program { .. }) => return Err(Error::UnknownPackage(id.to_owned())),
            Err(error) => return Err(error),
        };
        Package::parse(self, id, &String::from_utf8_lossy(&record))
            .ok_or_else(|| Error::UnknownPackage(id.to_owned()))
    }
}

/// Whether the file with a system's name is Debian 12's.
fn is_debian_12(os_release: &str) -> bool {
    let has = |line: &str| os_release.lines().any(|other| other == line);
    has("ID=debian") && has("VERSION_ID=\"12\"")
}

/// What apt knows about a package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Package {
    /// The apt that knows it.
    apt: Apt,
    /// Name with architecture, as apt takes it.
    pub id: String,
    pub version: String,
    /// Names of the dependencies; of alternatives, the first one.
    pub depends: Vec<String>,
}

impl Package {
    fn parse(apt: &Apt, id: &str, record: &str) -> Option<Self> {
        let field = |name: &str| {
            record
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
        };
        let depends = field("Depends")
            .unwrap_or_default()
            .split(", ")
            .filter_map(|one| one.split([' ', ':']).next())
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect();
        Some(Self {
            apt: apt.clone(),
            id: id.to_owned(),
            version: field("Version")?.to_owned(),
            depends,
        })
    }

    /// The dependency whose name begins with `prefix`.
    pub fn dependency(&self, prefix: &str) -> Result<&str> {
        self.depends
            .iter()
            .find(|name| name.starts_with(prefix))
            .map(String::as_str)
            .ok_or_else(|| {
                Error::BadInput(format!(
                    "package {} {} depends on nothing named {prefix}*: its layout is not known",
                    self.id, self.version
                ))
            })
    }

    /// A name for the cache: package and version.
    pub fn cache_name(&self) -> String {
        let name = self.id.replace(':', "_");
        format!("{name}_{}", self.version.replace(['/', ':'], "_"))
    }

    /// Fetches the package and unpacks it into `folder`.
    pub fn unpack_to(&self, folder: &Path) -> Result<()> {
        let fetched = tempfile::Builder::new()
            .prefix(".fetch-")
            .tempdir_in(folder)
            .on("create a folder in", folder)?;
        program::run(
            &format!("fetch package {}", self.id),
            self.apt
                .command("apt-get")
                .args(["download", "-q", &format!("{}={}", self.id, self.version)])
                .current_dir(fetched.path()),
        )?;
        for entry in fetched.path().read_dir().on("read", fetched.path())? {
            let archive = entry.on("read", fetched.path())?.path();
            program::run(
                &format!("unpack {}", archive.display()),
                program::command("dpkg-deb")
                    .arg("-x")
                    .arg(&archive)
                    .arg(folder),
            )?;
        }
        Ok(())
    }
}

/// A source package: upstream's archive, and Debian's additions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SourcePackage {
    apt: Apt,
    name: String,
    /// Without the epoch, as in the names of the files.
    pub version: String,
    original: String,
    additions: String,
}

impl SourcePackage {
    /// Parses lines such as `'URI' qemu_7.2+dfsg-7+deb12u18.dsc 6645 SHA256:...`.
    pub(crate) fn parse(apt: &Apt, name: &str, uris: &str) -> Option<Self> {
        let files: Vec<&str> = uris
            .lines()
            .filter(|line| line.starts_with('\''))
            .filter_map(|line| line.split_whitespace().nth(1))
            .collect();
        let one = |end: &str| files.iter().find(|file| file.contains(end)).copied();
        let version = one(".dsc")?.strip_suffix(".dsc")?.strip_prefix(name)?;
        Some(Self {
            apt: apt.clone(),
            name: name.to_owned(),
            version: version.strip_prefix('_')?.to_owned(),
            original: one(".orig.tar.")?.to_owned(),
            additions: one(".debian.tar.")?.to_owned(),
        })
    }

    /// Fetches it and unpacks it into `folder`, Debian's part as `debian/`. Debian's patches are not applied.
    pub fn unpack_to(&self, folder: &Path) -> Result<()> {
        let fetched = tempfile::Builder::new()
            .prefix(".fetch-")
            .tempdir_in(folder)
            .on("create a folder in", folder)?;
        program::run(
            &format!("fetch the source package {}", self.name),
            self.apt
                .command("apt-get")
                .args([
                    "source",
                    "--only-source",
                    "--download-only",
                    "-q",
                    &self.name,
                ])
                .current_dir(fetched.path()),
        )?;
        for (archive, strip) in [(&self.original, "1"), (&self.additions, "0")] {
            let archive = fetched.path().join(archive);
            program::run(
                &format!("unpack {}", archive.display()),
                program::command("tar")
                    .arg("-xf")
                    .arg(&archive)
                    .arg("-C")
                    .arg(folder)
                    .arg(format!("--strip-components={strip}")),
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_own_lists_are_debian_12s_on_debian_12_only() {
        let debian = |version| format!("PRETTY_NAME=\"x\"\nVERSION_ID=\"{version}\"\nID=debian\n");
        assert!(is_debian_12(&debian("12")));
        for other in [&debian("13"), "ID=ubuntu\nVERSION_ID=\"12\"\n", ""] {
            assert!(!is_debian_12(other), "{other}");
        }
    }

    #[test]
    fn the_files_of_a_source_package_are_found() {
        let uris = "Reading package lists...\n\
            'http://x/qemu_7.2+dfsg-7+deb12u18.dsc' qemu_7.2+dfsg-7+deb12u18.dsc 6645 SHA256:a\n\
            'http://x/qemu_7.2+dfsg.orig.tar.xz' qemu_7.2+dfsg.orig.tar.xz 23 SHA256:b\n\
            'http://x/qemu_7.2+dfsg-7+deb12u18.debian.tar.xz' qemu_7.2+dfsg-7+deb12u18.debian.tar.xz 3 SHA256:c\n";
        let package = SourcePackage::parse(&Apt::Machine, "qemu", uris).unwrap();
        assert_eq!(package.version, "7.2+dfsg-7+deb12u18");
        assert_eq!(package.original, "qemu_7.2+dfsg.orig.tar.xz");
        assert_eq!(package.additions, "qemu_7.2+dfsg-7+deb12u18.debian.tar.xz");
        assert_eq!(SourcePackage::parse(&Apt::Machine, "qemu", "nothing"), None);
    }

    const RECORD: &str = "Package: linux-headers-6.12.9+deb12-arm64\nArchitecture: arm64\n\
        Version: 6.12.9-1~deb12u1\nDepends: linux-base (>= 4.12~), \
        linux-headers-6.12.9+deb12-common (= 6.12.9-1~deb12u1), linux-image-a | linux-image-b, \
        linux-kbuild-6.12.9+deb12, gcc-12\nDescription: x\n";

    #[test]
    fn a_record_is_read() {
        let package = Package::parse(
            &Apt::Machine,
            "linux-headers-6.12.9+deb12-arm64:arm64",
            RECORD,
        )
        .unwrap();
        assert_eq!(package.version, "6.12.9-1~deb12u1");
        assert_eq!(
            package.dependency("linux-kbuild-").unwrap(),
            "linux-kbuild-6.12.9+deb12"
        );
        assert_eq!(package.dependency("linux-image-").unwrap(), "linux-image-a");
        assert!(package.dependency("python").is_err());
    }

    #[test]
    fn a_cache_name_is_one_path_component() {
        let package = Package {
            apt: Apt::Machine,
            id: "busybox-static:arm64".to_owned(),
            version: "1:1.35.0-4+b1".to_owned(),
            depends: Vec::new(),
        };
        assert_eq!(package.cache_name(), "busybox-static_arm64_1_1.35.0-4+b1");
    }

    #[test]
    fn an_empty_record_is_no_package() {
        assert_eq!(Package::parse(&Apt::Machine, "x", ""), None);
    }
}
