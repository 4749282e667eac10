// SPDX-License-Identifier: MIT OR Apache-2.0
//! The client of the `memguard` kernel module: loads it, and reads and writes its files in /dev/memguard.

mod compressed;

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::iter;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use memwarden_platform::Root;
use memwarden_platform::lockdown::Lockdown;
use rustix::io::Errno;

use crate::budget::{Request, parse_limit};
use crate::event::{Meaning, leaves_a_counter, meaning_of, raw_codes, raw_text, write_codes};
use crate::event_list::EventList;
use crate::kernel_log::Since;
use crate::regulator::{Recorder, Regulator, Settings, StartOptions};
use crate::trace::Tracer;
use crate::units::page_bytes;
use crate::{BestEffort, Control, CoreStatistics, Error, Resource, kernel_log, statistics};

/// The module's name, in /sys/module and in /dev.
const NAME: &str = "memguard";

/// Folders into which distributions, DKMS and `make modules_install` put out-of-tree modules.
const FOLDERS: [&str; 3] = ["updates/dkms", "updates", "extra"];

/// Suffixes of a module file: as built, and as compressed by distributions and DKMS.
const ENDINGS: [&str; 4] = ["ko", "ko.xz", "ko.zst", "ko.gz"];

/// `MODULE_INIT_COMPRESSED_FILE` of linux/module.h: the kernel unpacks the file itself (since 5.17).
const COMPRESSED_FILE: i32 = 4;

/// Tracepoints that a recording enables.
const RECORDED: [&str; 3] = ["period", "throttle", "unthrottle"];

/// Space for a period's events in a CPU's trace buffer: 88 + 56 + 40 bytes, 8 bytes of header each, and unused space at
/// the ends of pages.
const RECORD_BYTES_PER_PERIOD: u64 = 256;

/// The module file to load.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ModuleSource {
    /// The one installed below /lib/modules/$(uname -r).
    #[default]
    Installed,
    /// The file at this path.
    Path(PathBuf),
}

/// The client of the module.
#[derive(Debug, Clone)]
pub struct Module {
    root: Root,
    source: ModuleSource,
}

impl Module {
    /// The client of this machine's kernel.
    pub fn new(source: ModuleSource) -> Self {
        Self::under(Root::system(), source)
    }

    /// The same with `sys`, `lib` and `dev` under another root, for tests.
    pub fn under(root: Root, source: ModuleSource) -> Self {
        Self { root, source }
    }

    /// The file that would be loaded.
    ///
    /// # Errors
    /// When there is no such file.
    pub fn find(&self) -> Result<PathBuf, Error> {
        if let ModuleSource::Path(path) = &self.source {
            return match fs::metadata(path) {
                Ok(_) => Ok(path.clone()),
                Err(source) => Err(Error::file("opening", path)(source)),
            };
        }
        let release = rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned();
        let base = self.root.path(&format!("/lib/modules/{release}"));
        let looked_in = FOLDERS.map(|folder| base.join(folder));
        looked_in
            .iter()
            .flat_map(|folder| ENDINGS.map(|ending| folder.join(format!("{NAME}.{ending}"))))
            .find(|path| path.exists())
            .ok_or_else(|| Error::NoModule {
                release,
                looked_in: looked_in
                    .each_ref()
                    .map(|folder| folder.display().to_string())
                    .join(", "),
            })
    }

    /// Whether the module is loaded.
    pub fn is_loaded(&self) -> bool {
        self.root.has(&format!("/sys/module/{NAME}"))
    }

    fn folder(&self) -> Result<PathBuf, Error> {
        let folder = self.root.path(&format!("/dev/{NAME}"));
        if folder.join("control").exists() {
            Ok(folder)
        } else if self.is_loaded() {
            Err(Error::NoDevice(folder))
        } else {
            Err(Error::NotRunning)
        }
    }

    fn read(&self, file: &'static str) -> Result<String, Error> {
        let path = self.folder()?.join(file);
        fs::read_to_string(&path).map_err(|error| refused("reading", path, error))
    }

    /// Writes one line with one write(2): the module accepts or refuses it as a whole.
    fn write(&self, file: &'static str, line: &str) -> Result<(), Error> {
        let path = self.folder()?.join(file);
        let mut open = OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(&path)
            .map_err(|error| refused("opening", path, error))?;
        let log = Since::now(&self.root.path("/dev/kmsg"));
        open.write_all(format!("{line}\n").as_bytes())
            .map_err(|error| Error::RefusedSetting {
                file,
                line: line.to_owned(),
                reason: reason(file, log, &error),
            })
    }

    fn load(&self, path: &Path, parameters: &str) -> Result<(), Error> {
        let file = fs::File::open(path).map_err(Error::file("opening", path))?;
        let compressed = path.extension().is_some_and(|ending| ending != "ko");
        let flags = if compressed { COMPRESSED_FILE } else { 0 };
        let parameters = CString::new(parameters)
            .map_err(|_| Error::BadInput("a module parameter holds a NUL character".into()))?;
        let loaded = rustix::system::finit_module(&file, &parameters, flags);
        let loaded = match (loaded, compressed::unpacker(path)) {
            (Err(Errno::INVAL | Errno::OPNOTSUPP), Some(program)) => {
                let image =
                    compressed::unpacked(path, program).map_err(|reason| Error::Refused {
                        path: path.to_owned(),
                        reason,
                        log: None,
                    })?;
                rustix::system::init_module(&image, &parameters)
            }
            (loaded, _) => loaded,
        };
        loaded.map_err(|errno| self.refusal(path, errno))
    }

    /// Why the kernel refuses a module even from root; `None` if root may load it.
    fn takes_no_module(&self) -> Option<&'static str> {
        let locked = Lockdown::of(&self.root).mode().is_some();
        if !rustix::process::geteuid().is_root() {
            None
        } else if self.root.number("/proc/sys/kernel/modules_disabled") == Some(1) {
            Some(
                "this kernel loads no more modules until the next boot (kernel.modules_disabled=1): use --backend user",
            )
        } else if locked {
            Some(
                "this kernel is locked down (Secure Boot) and takes signed modules only: sign it (mokutil), or use --backend user",
            )
        } else {
            None
        }
    }

    fn refusal(&self, path: &Path, errno: Errno) -> Error {
        let reason = match errno {
            Errno::PERM => match self.takes_no_module() {
                Some(why) => why.to_owned(),
                None => return Error::NotRoot("loading the module"),
            },
            Errno::NOSYS => return Error::NoModuleSupport,
            Errno::EXIST => "it is loaded already".to_owned(),
            Errno::NOEXEC => {
                "it was not built for this kernel (the versions or the architecture differ)"
                    .to_owned()
            }
            Errno::OPNOTSUPP => {
                "this kernel does not unpack modules: unpack the file and give it with --module"
                    .to_owned()
            }
            Errno::KEYREJECTED => "this kernel takes signed modules only".to_owned(),
            errno => io::Error::from(errno).to_string(),
        };
        // The kernel's module loader reports these before memguard runs and could log a reason.
        let early = matches!(
            errno,
            Errno::PERM | Errno::EXIST | Errno::NOEXEC | Errno::OPNOTSUPP | Errno::KEYREJECTED
        );
        let log = if early {
            None
        } else {
            kernel_log::last_line(&self.root.path("/dev/kmsg"))
        };
        Error::Refused {
            path: path.to_owned(),
            reason,
            log,
        }
    }
}

/// The error of an access to one of the module's files.
fn refused(action: &'static str, path: PathBuf, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::PermissionDenied => Error::NotRoot("the guard's files in /dev/memguard"),
        _ => Error::file(action, path)(error),
    }
}

/// Why the module refused a write to `file`: its message in the log, or else the text of the errno.
fn reason(file: &str, log: Since, error: &io::Error) -> String {
    let logged = log.last_line();
    let about = format!("{NAME}: {file}: ");
    logged
        .as_deref()
        .and_then(|line| line.strip_prefix(&about))
        .map_or_else(|| error.to_string(), str::to_owned)
}

/// The module's parameters for `options`, on a kernel with pages of `page_bytes`.
fn parameters(options: &StartOptions, page_bytes: u64) -> Result<String, Error> {
    let mut words = vec![format!("period_us={}", options.period_us)];
    if let Some(event) = options.given_event() {
        words.push(if event.contains(['@', ',']) {
            let list: EventList = event.parse()?;
            for (event, _) in list.iter() {
                raw_codes(event)?;
            }
            format!("g_hw_type={list}")
        } else {
            match raw_codes(event)? {
                Some((read, read_too)) => {
                    let codes: Vec<String> =
                        iter::once(read).chain(read_too).map(raw_text).collect();
                    format!("g_read_counter_id={}", codes.join("+"))
                }
                None => format!("g_hw_type={event}"),
            }
        });
    }
    if let Some(event) = &options.write_event {
        if let Some(read) = options.given_event() {
            leaves_a_counter(&read.parse()?)?;
        }
        write_codes(event, None)?;
        words.push(format!("g_write_counter_id={event}"));
    }
    if options.combined {
        words.push("combined=1".into());
    }
    let bytes = match options.bytes_per_event {
        None if options.given_event() == Some("page-faults") => Some(page_bytes),
        given => given,
    };
    match bytes {
        Some(0) => return Err(Error::BadInput("0 bytes per event: give 1 or more".into())),
        Some(bytes) => words.push(format!("bytes_per_event={bytes}")),
        None => {}
    }
    if let Some(maxbw) = options.maxbw_mib_s {
        words.push(format!("maxbw={maxbw}"));
    }
    if options.user_only {
        words.push("user_only=1".into());
    }
    if let Some(cpus) = &options.cpus {
        words.push(format!("cpus={cpus}"));
    }
    Ok(words.join(" "))
}

impl Regulator for Module {
    fn name(&self) -> &'static str {
        "module"
    }

    /// Known unless the module chooses the event.
    fn foretell(&self, options: &StartOptions) -> Option<Meaning> {
        options.given_event()?;
        meaning_of(options).ok()
    }

    fn start(&mut self, options: &StartOptions) -> Result<(), Error> {
        if self.is_loaded() {
            let (event, period_us) = match self.settings() {
                Ok(settings) => (settings.control.event, settings.control.period_us),
                Err(error @ (Error::NoDevice(_) | Error::NotRoot(_))) => return Err(error),
                Err(_) => ("unknown".to_owned(), 0),
            };
            return Err(Error::AlreadyRunning { event, period_us });
        }
        let parameters = parameters(options, page_bytes())?;
        let path = self.find()?;
        self.load(&path, &parameters)?;
        // A loaded module whose settings can't be read is useless: unload it.
        let settings = match self.settings() {
            Ok(settings) => settings,
            Err(error) => {
                let _ = self.stop();
                return Err(error);
            }
        };
        // The kernel ignores a parameter that a module doesn't know.
        if options.combined && !settings.control.combined {
            let _ = self.stop();
            return Err(Error::BadInput(format!(
                "{}: this memguard is older than --combined: install the module of this memwarden, or give --backend user",
                path.display()
            )));
        }
        Ok(())
    }

    fn is_running(&self) -> bool {
        self.is_loaded()
    }

    fn instance(&self) -> Option<String> {
        // sysfs gives a folder a new inode number each time that it is created.
        let folder = fs::metadata(self.root.path(&format!("/sys/module/{NAME}")));
        Some(folder.map_or_else(
            |_| String::new(),
            |folder| format!("module {}", folder.ino()),
        ))
    }

    fn settings(&self) -> Result<Settings, Error> {
        let control = Control::parse(&self.read("control")?)?;
        let read_budget_events = parse_limit(&self.read("limit")?)?;
        let write_budget_events = if control.has_write_budgets() {
            parse_limit(&self.read("write_limit")?)?
        } else {
            BTreeMap::new()
        };
        Ok(Settings {
            control,
            read_budget_events,
            write_budget_events,
        })
    }

    fn set_budgets(&mut self, resource: Resource, request: &Request) -> Result<(), Error> {
        let file = match resource {
            Resource::Read => "limit",
            Resource::Write => "write_limit",
        };
        self.write(file, &request.to_line())
    }

    fn set_mode(
        &mut self,
        best_effort: Option<BestEffort>,
        reclaim: Option<bool>,
    ) -> Result<(), Error> {
        if let Some(reclaim) = reclaim {
            self.write("control", &format!("reclaim {}", u8::from(reclaim)))?;
        }
        if let Some(best_effort) = best_effort {
            self.write("control", &format!("exclusive {}", best_effort.exclusive()))?;
        }
        Ok(())
    }

    fn set_maxbw(&mut self, maxbw_mib_s: u64) -> Result<(), Error> {
        self.write("control", &format!("maxbw {maxbw_mib_s}"))
    }

    fn set_period(&mut self, period_us: u64) -> Result<(), Error> {
        self.write("control", &format!("period_us {period_us}"))
    }

    fn set_rt(&mut self, cpu: usize, rt: bool) -> Result<(), Error> {
        self.write("control", &format!("rt {cpu} {}", u8::from(rt)))
    }

    fn statistics(&self) -> Result<Vec<CoreStatistics>, Error> {
        statistics::parse(&self.read("stats")?)
    }

    fn reset_statistics(&mut self) -> Result<(), Error> {
        self.write("control", "reset")
    }

    fn record(&self, periods: u64) -> Result<Box<dyn Recorder>, Error> {
        let kib = (periods * RECORD_BYTES_PER_PERIOD).div_ceil(1024);
        let tracer = Tracer::start(&self.root, &RECORDED, kib)?;
        Ok(Box::new(tracer))
    }

    fn stop(&mut self) -> Result<(), Error> {
        if !self.is_loaded() {
            return Err(Error::NotRunning);
        }
        let name = CString::new(NAME).unwrap_or_default();
        let nonblock = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        rustix::system::delete_module(&name, nonblock).map_err(|errno| match errno {
            Errno::PERM => Error::NotRoot("unloading the module"),
            errno => Error::File {
                action: "unloading",
                path: NAME.into(),
                reason: errno.into(),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_event_that_was_given_is_known_before_the_start() {
        let module = Module::new(ModuleSource::Installed);
        let foretold = |event: Option<&str>| {
            let meaning = module.foretell(&StartOptions {
                event: event.map(str::to_owned),
                ..StartOptions::default()
            })?;
            Some(meaning.memory_traffic)
        };
        assert_eq!(foretold(Some("page-faults")), Some(false));
        assert_eq!(foretold(Some("0x17")), Some(true));
        for event in [None, Some("auto"), Some("unknown")] {
            assert_eq!(foretold(event), None, "{event:?}");
        }
    }

    #[test]
    fn a_fault_stands_for_a_page_of_this_kernel() {
        let faults = StartOptions {
            event: Some("page-faults".into()),
            ..StartOptions::default()
        };
        assert_eq!(
            parameters(&faults, 64 << 10).unwrap(),
            "period_us=1000 g_hw_type=page-faults bytes_per_event=65536"
        );
    }

    #[test]
    fn options_become_parameters() {
        let line =
            |options: StartOptions| parameters(&options, 4096).map_err(|error| error.to_string());
        let default = StartOptions::default();
        assert_eq!(line(default.clone()).unwrap(), "period_us=1000");
        let auto = StartOptions {
            event: Some("auto".into()),
            ..default.clone()
        };
        assert_eq!(line(auto).unwrap(), "period_us=1000");
        assert_eq!(
            line(StartOptions {
                event: Some("page-faults".into()),
                maxbw_mib_s: Some(1200),
                ..default.clone()
            })
            .unwrap(),
            "period_us=1000 g_hw_type=page-faults bytes_per_event=4096 maxbw=1200"
        );
        assert_eq!(
            line(StartOptions {
                event: Some("0x17".into()),
                write_event: Some("0x18".into()),
                bytes_per_event: Some(32),
                user_only: true,
                ..default.clone()
            })
            .unwrap(),
            "period_us=1000 g_read_counter_id=0x17 g_write_counter_id=0x18 bytes_per_event=32 user_only=1"
        );
        assert_eq!(
            line(StartOptions {
                event: Some("0x17@0-1,armv7@2,0x17@3".into()),
                cpus: Some("0-3".parse().unwrap()),
                ..default.clone()
            })
            .unwrap(),
            "period_us=1000 g_hw_type=0x17@0-1,0x17@3,armv7@2 cpus=0-3"
        );
        assert_eq!(
            line(StartOptions {
                event: Some("0x4843:config1=0x1+0xff72".into()),
                ..default.clone()
            })
            .unwrap(),
            "period_us=1000 g_read_counter_id=0x4843:config1=0x1+0xff72"
        );
        for event in [
            "",
            "0x17+",
            "0x17+zen4",
            "0x",
            "a,b",
            "a b@0",
            "0xz@1",
            "0xzz",
            "17",
            "a b",
            "x=1",
            "0x11111111111111111",
        ] {
            let refused = line(StartOptions {
                event: Some(event.into()),
                ..default.clone()
            })
            .unwrap_err();
            assert!(refused.contains("event `"), "{event}: {refused}");
        }
        assert!(
            line(StartOptions {
                bytes_per_event: Some(0),
                ..default.clone()
            })
            .is_err()
        );
        assert!(
            line(StartOptions {
                write_event: Some("z80".into()),
                ..default
            })
            .is_err()
        );
    }
}
