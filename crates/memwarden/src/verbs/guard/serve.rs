// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden guard serve`: serves the guard's figures over HTTP, and keeps a budget file applied.

mod http;
mod notify;
mod pages;

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context;
use memwarden_experiments::Interrupt;
use memwarden_guard::keeper::Host;
use memwarden_guard::{
    Backend, BudgetFile, Error, Keeper, ModuleSource, Regulator, meaning, running,
};
use memwarden_platform::Root;
use memwarden_platform::cpus::CpuSet;
use signal_hook::consts::SIGTERM;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};

use crate::verbs::foreign::{self, Interrupted};
use crate::verbs::output::errln;
use crate::verbs::output::print;
use notify::notify;
use pages::FileState;

/// Interval between comparisons of the guard with its file: a core that comes online runs unthrottled for at most this
/// long. A comparison reads three small files.
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[derive(clap::Args)]
#[command(
    after_help = "Paths: /metrics (Prometheus), /show.json (as guard show --json), /healthz, / (this list).\n\
    With --config: SIGHUP reads the file again; a bad one is refused and the old settings stay. SIGTERM, SIGINT and\n\
    SIGQUIT end the service: it stops a guard that it started, and restores the settings of a guard that it took over.\n\
    Examples:\n  memwarden guard serve\n  \
    memwarden guard serve --config /etc/memwarden/guard.toml"
)]
pub struct Args {
    /// Address to listen on; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9750")]
    listen: SocketAddr,
    /// Start the guard, or take it over, and keep this budget file applied, such as /etc/memwarden/guard.toml
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Fail if the event isn't memory traffic (such as page-faults and cycles)
    #[arg(long)]
    require_memory_event: bool,
}

/// Source of the pages: the guard that is kept, or a running one.
pub(super) struct Source {
    keeper: RefCell<Option<Keeper>>,
    file: Cell<Option<FileState>>,
}

impl Source {
    /// Reads from the guard.
    fn read<T>(&self, read: impl FnOnce(&dyn Regulator) -> Result<T, Error>) -> Result<T, Error> {
        match self.keeper.borrow().as_ref().and_then(Keeper::regulator) {
            None => read(running()?.as_ref()),
            Some(guard) => read(guard),
        }
    }
}

/// This machine, for the keeper.
struct Machine {
    interrupt: Interrupt,
    require_memory_event: bool,
}

impl Host for Machine {
    fn open(&self, file: &BudgetFile) -> Result<Box<dyn Regulator>, Error> {
        let backend: Backend = file.backend()?;
        let guard = backend.regulator(file.module.clone().map(ModuleSource::Path), true)?;
        let options = file.start_options();
        // A running guard keeps its event, which `begun` checks.
        let choice = options.event.is_some() || !guard.is_running();
        if self.require_memory_event && choice {
            if let Some(meaning) = guard.foretell(&options) {
                meaning.require_memory_traffic()?;
            }
        }
        Ok(guard)
    }

    fn begun(&self, guard: &dyn Regulator) -> Result<(), Error> {
        say(self.require_memory_event, guard)
    }

    fn prove(&self, guard: &mut dyn Regulator, writes: bool) -> Result<(), Error> {
        if guard.name() == Backend::Null.to_string() {
            // It counts no traffic.
            return Ok(());
        }
        let proven = super::prove(guard, writes, &self.interrupt);
        if self.interrupted() {
            return Err(Error::Interrupted);
        }
        proven.map_err(|error| Error::SelfTest(format!("{error:#}")))
    }

    fn interrupted(&self) -> bool {
        self.interrupt.came()
    }

    fn possible(&self) -> CpuSet {
        let possible = Root::system().text("/sys/devices/system/cpu/possible");
        possible
            .and_then(|list| list.parse().ok())
            .unwrap_or_else(|| (0..memwarden_platform::cpus::LIMIT).collect())
    }
}

/// Prints what the guard counts, and what it cannot hold. Refuses an event that isn't memory traffic, if requested.
fn say(require_memory_event: bool, guard: &dyn Regulator) -> Result<(), Error> {
    let meaning = meaning(&guard.settings()?.control);
    if require_memory_event {
        meaning.require_memory_traffic()?;
    }
    log(&meaning.text);
    super::say_class(guard);
    Ok(())
}

fn log(line: &str) {
    errln!("memwarden: {line}");
}

/// Runs `memwarden guard serve`.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the server")?;
    tokio::task::LocalSet::new().block_on(&runtime, serve(args))
}

/// Serves until a signal comes. SIGTERM is the orderly end of a service: the exit code is 0.
async fn serve(args: &Args) -> anyhow::Result<ExitCode> {
    // Caught from here on, so that the guard is restored after any signal. The interrupt also ends a wait before the
    // loop below. It comes first, or a signal between the two would only be seen in the loop.
    let interrupt = Interrupt::catch_but_hangup()?;
    let mut ended = signal(SignalKind::terminate()).context("catching SIGTERM")?;
    let mut interrupted = signal(SignalKind::interrupt()).context("catching SIGINT")?;
    let mut quit = signal(SignalKind::quit()).context("catching SIGQUIT")?;
    let mut hung_up = signal(SignalKind::hangup()).context("catching SIGHUP")?;
    // Bind before starting the guard: an address in use must not change anything.
    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("listening on {}: give another with --listen", args.listen))?;
    let address = listener.local_addr().context("asking for the address")?;
    let keeper = match &args.config {
        None => {
            // A guard may be started later.
            if let Ok(guard) = running() {
                say(args.require_memory_event, guard.as_ref())?;
            }
            None
        }
        Some(path) => {
            let host = Box::new(Machine {
                interrupt: interrupt.clone(),
                require_memory_event: args.require_memory_event,
            });
            let begun = Keeper::begin(host, path);
            if interrupt.came() {
                if let Ok((keeper, _)) = begun {
                    keeper.end()?;
                }
                return Err(Interrupted("the budget file is not applied").into());
            }
            let (keeper, said) = begun?;
            log(&said);
            Some(keeper)
        }
    };
    let source = Rc::new(Source {
        file: Cell::new(keeper.as_ref().map(|_| FileState::reloaded())),
        keeper: RefCell::new(keeper),
    });
    print(&format!("http://{address}/"))?;
    notify(&format!("READY=1\nSTATUS=http://{address}/"));

    let pages = Rc::clone(&source);
    let server =
        tokio::task::spawn_local(http::serve(listener, move |path| pages::page(&pages, path)));
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut trouble = None;
    // A signal before its stream was created is known to the interrupt only.
    while !interrupt.came() {
        tokio::select! {
            _ = ended.recv() => break,
            _ = interrupted.recv() => break,
            _ = quit.recv() => break,
            _ = hung_up.recv() => reload(&source),
            _ = looks.tick() => look(&source, &mut trouble),
        }
    }
    notify("STOPPING=1");
    server.abort();
    if let Some(keeper) = source.keeper.take() {
        keeper.end()?;
    }
    Ok(match interrupt.signal() {
        Some(SIGTERM) => ExitCode::SUCCESS,
        _ => foreign::after(&interrupt),
    })
}

fn reload(source: &Source) {
    let mut keeper = source.keeper.borrow_mut();
    let Some(keeper) = keeper.as_mut() else {
        log("SIGHUP: there is no --config file to read again");
        return;
    };
    notify("RELOADING=1");
    let state = source.file.get().unwrap_or_else(FileState::reloaded);
    match keeper.reload() {
        Ok(said) => {
            log(&said);
            source.file.set(Some(FileState::reloaded()));
        }
        // The guard is put back next.
        Err(Error::Interrupted) => {}
        Err(error) => {
            let runs = keeper.regulator().is_some_and(|guard| guard.is_running());
            log(&format!("{error}{}", consequence(&error, runs)));
            source.file.set(Some(FileState {
                reload_ok: false,
                ..state
            }));
        }
    }
    notify("READY=1");
}

/// Reads the guard once. A repeated error is logged only once.
fn look(source: &Source, trouble: &mut Option<String>) {
    let mut keeper = source.keeper.borrow_mut();
    let Some(keeper) = keeper.as_mut() else {
        return;
    };
    let found = keeper.look();
    if let Some(state) = source.file.get() {
        let applied = keeper.applied();
        source.file.set(Some(FileState { applied, ..state }));
    }
    match found {
        Ok(None) if keeper.regulator().is_none() => {}
        Ok(said) => {
            if let Some(said) = said {
                log(&said);
            }
            *trouble = None;
        }
        Err(Error::Interrupted) => {}
        Err(error) => {
            let error = error.to_string();
            if trouble.as_ref() != Some(&error) {
                log(&error);
            }
            *trouble = Some(error);
        }
    }
}

/// What a refused reload leaves, unless the error says it.
fn consequence(error: &Error, guard_runs: bool) -> &'static str {
    match error {
        Error::NotUndone { .. } | Error::NotStartedAgain { .. } => "",
        _ if guard_runs => "; the old settings stay",
        _ => "; the service keeps no guard",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_reload_promises_old_settings_only_where_a_guard_has_them() {
        let refused = || Box::new(Error::BadInput("no".into()));
        let not_undone = Error::NotUndone {
            refused: refused(),
            undo: refused(),
        };
        let not_started = Error::NotStartedAgain {
            refused: refused(),
            old: refused(),
        };
        assert_eq!(consequence(&refused(), true), "; the old settings stay");
        for error in [*refused(), Error::NoModuleSupport] {
            assert_eq!(consequence(&error, false), "; the service keeps no guard");
        }
        assert_eq!(consequence(&not_undone, true), "");
        assert_eq!(consequence(&not_started, false), "");
    }
}
