// SPDX-License-Identifier: MIT OR Apache-2.0
//! The load `xserver`: a real X server that draws into memory (Xvfb), with a terminal that scrolls a full screen.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use memwarden_platform::process;

use super::load::{Place, log, still_runs};
use crate::child::readable;
use crate::group::Group;
use crate::{Error, Interrupt};

/// The programs with their Debian packages.
const PROGRAMS: [(&str, &str); 2] = [(SERVER, "xvfb"), (TERMINAL, "xterm")];
const SERVER: &str = "Xvfb";
const TERMINAL: &str = "xterm";

/// 1920 x 1080 pixels of 4 bytes, the frame of the case study.
const SCREEN: &str = "1920x1080x24";

/// Columns and rows that fill the screen: a cell of the server's font `fixed` is 6 x 13 pixels, and the terminal's
/// border takes the space of 4 columns and a row.
const CELLS: &str = "316x82+0+0";

/// A line that fills the window's width, so that all of its pixels change.
const LINE: &str = "The quick brown fox jumps over the lazy dog. ";

/// Time in which the server and the terminal must be up; otherwise they have failed.
const UP_WITHIN: Duration = Duration::from_secs(30);

/// CPU time of the server since the terminal's start from which it counts as drawing.
const DRAWING: Duration = Duration::from_millis(100);

/// Server and terminal; when dropped, the terminal is ended before the server.
#[derive(Debug)]
pub(super) struct Xserver {
    terminal: Group,
    server: Group,
}

impl Xserver {
    /// Checks that both programs are installed.
    pub fn check() -> Result<(), Error> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let here =
            |name: &str| std::env::split_paths(&path).any(|folder| folder.join(name).is_file());
        let missing: Vec<_> = PROGRAMS.iter().filter(|(name, _)| !here(name)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let list = |part: fn(&(&str, &str)) -> String, between: &str| {
            missing
                .iter()
                .map(|program| part(program))
                .collect::<Vec<_>>()
                .join(between)
        };
        Err(Error::BadInput(format!(
            "--load xserver: {} not found; apt-get install {}",
            list(|(name, _)| (*name).to_owned(), " and "),
            list(|(_, package)| (*package).to_owned(), " ")
        )))
    }

    /// Starts both; returns once the terminal scrolls.
    pub fn start(place: Place, interrupt: &Interrupt) -> Result<Self, Error> {
        Self::check()?;
        let mut command = Command::new(SERVER);
        // The server picks a free display and writes its number to standard output when it is up.
        command
            .args([
                "-displayfd",
                "1",
                "-screen",
                "0",
                SCREEN,
                "-nolisten",
                "tcp",
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log(place.log)?);
        process::run_on(&mut command, place.cpus);
        let mut server = Group::start(command, SERVER)?;
        let display = display(&mut server, interrupt)?;

        let mut command = Command::new(TERMINAL);
        // +j: no jump scrolling, so that each line moves the whole window, as a plain console does.
        command
            .args([
                "-display",
                &format!(":{display}"),
                "-geometry",
                CELLS,
                "-fn",
                "fixed",
                "+j",
                "-e",
                "yes",
            ])
            .arg(LINE.repeat(7))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log(place.log)?);
        process::run_on(&mut command, place.others);
        let terminal = Group::start(command, TERMINAL)?;
        let mut both = Self { terminal, server };
        both.wait_until_drawing(interrupt)?;
        Ok(both)
    }

    fn wait_until_drawing(&mut self, interrupt: &Interrupt) -> Result<(), Error> {
        let begin = Instant::now();
        let before = self.cpu_time().unwrap_or_default();
        loop {
            interrupt.check()?;
            self.check_runs()?;
            if self.cpu_time().unwrap_or_default().saturating_sub(before) >= DRAWING {
                return Ok(());
            }
            if begin.elapsed() > UP_WITHIN {
                return Err(Error::workload(
                    TERMINAL,
                    format!("scrolled nothing within {} s", UP_WITHIN.as_secs()),
                ));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// CPU time of the server.
    pub fn cpu_time(&self) -> Option<Duration> {
        self.server.leader_cpu_time()
    }

    /// # Errors
    /// When either has ended.
    pub fn check_runs(&mut self) -> Result<(), Error> {
        still_runs(&mut self.server, SERVER)?;
        still_runs(&mut self.terminal, TERMINAL)
    }
}

/// The display's number, which the server writes when it is up.
fn display(server: &mut Group, interrupt: &Interrupt) -> Result<String, Error> {
    let broken = |reason: &str| Error::workload(SERVER, reason);
    let mut output = server
        .leader
        .stdout
        .take()
        .ok_or_else(|| broken("has no output"))?;
    let begin = Instant::now();
    let mut text = String::new();
    while !text.ends_with('\n') {
        interrupt.check()?;
        if begin.elapsed() > UP_WITHIN {
            return Err(broken("reported no display: it isn't up"));
        }
        if readable(&output, SERVER)? {
            let mut byte = [0];
            match output.read(&mut byte) {
                Ok(1) => text.push(char::from(byte[0])),
                _ => return Err(broken("ended before it was up; its errors are in load.log")),
            }
        }
    }
    Ok(text.trim().to_owned())
}
