// SPDX-License-Identifier: MIT OR Apache-2.0
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use memwarden_copies::trace::{Control, Counts, Null, Opened, Reader, Record};
use memwarden_run::Recorded;

use super::*;
use crate::settings;

fn small() -> Config {
    Config {
        device: trace::NULL.into(),
        time: Some(Time::ms(30)),
        every: Time::ms(5),
        dat: true,
        ..Config::default()
    }
}

fn recorded(config: &Config, interrupt: &Interrupt) -> (tempfile::TempDir, Recorded) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    run(
        config,
        RunRequest::to(&out, interrupt, &mut ()),
        &mut (),
        None,
    )
    .unwrap();
    let run = Recorded::read(&out).unwrap();
    (folder, run)
}

#[test]
fn every_record_is_in_the_figures_and_in_the_classic_files() {
    let (folder, run) = recorded(&small(), &Interrupt::default());
    let summary: Summary = run.summary.typed().unwrap();
    let cpus = cpus::online().unwrap().len() as u64;
    let files = [
        "mem_trace_from",
        "mem_trace_to",
        "__mem_trace_from",
        "__mem_trace_to",
    ];
    for (case, file) in summary.cases.iter().zip(files) {
        let calls = case.calls;
        assert!(calls >= cpus * 100, "{calls}");
        assert_eq!(case.recorded, Some(calls));
        let path = folder.path().join(format!("run/{file}.dat"));
        let text = std::fs::read_to_string(path).unwrap();
        assert_eq!(text.lines().count() as u64, calls);
        let by_size = case.calls_by_size.as_ref().unwrap();
        let sum: u64 = by_size.iter().map(|one| one[1]).sum();
        assert_eq!(sum, calls);
        assert!(case.time.as_ref().unwrap().median.is_some());
    }
    let eight = summary
        .cases
        .iter()
        .find(|case| case.name == "from, 8 bytes");
    let time = eight.unwrap().time.as_ref().unwrap();
    assert_eq!(
        (time.min, time.mean, time.max),
        (Some(20.0), Some(20.0), Some(20.0))
    );
    let notes = summary.notes.join("\n");
    assert!(notes.contains("No kernel was involved"), "{notes}");
    assert!(notes.contains("copies found their ring full"), "{notes}");
    assert!(notes.contains("records=16384"), "{notes}");
    assert!(!notes.contains("has a step of"), "{notes}");
    assert_eq!(summary.whole.clock_step_ns, Some(1.0));
    let counted = run
        .samples
        .iter()
        .filter(|one| one.metric == "recorded_records");
    assert_eq!(counted.count() as u64, 4 * cpus);
}

#[test]
fn an_interrupt_ends_a_trace_that_has_no_end() {
    let interrupt = Interrupt::default();
    let config = Config {
        time: None,
        dat: false,
        ops: vec![Function::To],
        ..small()
    };
    interrupt.set();
    let (folder, run) = recorded(&config, &interrupt);
    assert_eq!(run.summary.cases[0].name, "to");
    assert!(!folder.path().join("run/mem_trace_to.dat").exists());
}

#[test]
fn a_missed_copy_counts_once_for_its_function() {
    let ring = |cpu, function, missed| Ring {
        cpu,
        function,
        counts: Counts {
            missed,
            ..Counts::default()
        },
    };
    let rings = [
        ring(0, Function::From, 5),
        ring(1, Function::From, 4),
        ring(0, Function::To, 2),
        ring(1, Function::To, 2),
    ];
    assert_eq!(missed(&[Function::From, Function::To], &rings), 7);
}

#[test]
fn a_command_ends_the_trace() {
    struct Command(u32);
    impl Beside for Command {
        fn start(&mut self) -> Result<(), Error> {
            Ok(())
        }
        fn ended(&mut self) -> Result<Option<i32>, Error> {
            self.0 += 1;
            Ok((self.0 > 2).then_some(7))
        }
        fn end(&mut self) -> Result<i32, Error> {
            panic!("it has ended by itself")
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let config = Config {
        time: None,
        ..small()
    };
    let (_, summary) = run(
        &config,
        RunRequest::to(&folder.path().join("run"), &Interrupt::default(), &mut ()),
        &mut (),
        Some(&mut Command(0)),
    )
    .unwrap();
    assert_eq!(summary.whole.command_exit_code, Some(7));
}

#[test]
fn a_command_that_goes_on_is_ended_with_the_trace() {
    struct Command;
    impl Beside for Command {
        fn start(&mut self) -> Result<(), Error> {
            Ok(())
        }
        fn ended(&mut self) -> Result<Option<i32>, Error> {
            Ok(None)
        }
        fn end(&mut self) -> Result<i32, Error> {
            Ok(130)
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let config = Config {
        time: None,
        ..small()
    };
    let interrupt = Interrupt::default();
    interrupt.set();
    let out = folder.path().join("run");
    let (_, summary) = run(
        &config,
        RunRequest::to(&out, &interrupt, &mut ()),
        &mut (),
        Some(&mut Command),
    )
    .unwrap();
    assert_eq!(summary.whole.command_exit_code, Some(130));
}

/// Rings of a fixed pattern, with another reader or control.
struct Changed<F>(F);

impl<F: Fn(Opened) -> Opened> Tracer for Changed<F> {
    fn info(&self) -> Info {
        Null.info()
    }

    fn open(
        &self,
        cpu: usize,
        functions: &[Function],
        end: BorrowedFd<'_>,
    ) -> memwarden_copies::Result<Opened> {
        Null.open(cpu, functions, end).map(&self.0)
    }
}

/// Counts one record that is never delivered.
struct OneMore(Box<dyn Control>);

impl Control for OneMore {
    fn start(&self) -> memwarden_copies::Result<()> {
        self.0.start()
    }

    fn close(&self) -> memwarden_copies::Result<()> {
        self.0.close()
    }

    fn stop(&self) -> memwarden_copies::Result<()> {
        self.0.stop()
    }

    fn counts(&self, nth: usize) -> memwarden_copies::Result<Counts> {
        let counts = self.0.counts(nth)?;
        Ok(Counts {
            recorded: counts.recorded + 1,
            ..counts
        })
    }
}

/// A reader whose wait fails.
struct Broken;

impl Reader for Broken {
    fn wait(&mut self, _: Duration) -> memwarden_copies::Result<()> {
        Err(memwarden_copies::Error::NotCopytrace("/dev/x".into()))
    }

    fn read(&mut self, _: usize, _: &mut dyn FnMut(&Record)) -> usize {
        0
    }
}

struct CountedWaits(Box<dyn Reader>, Arc<AtomicUsize>);

impl Reader for CountedWaits {
    fn wait(&mut self, timeout: Duration) -> memwarden_copies::Result<()> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.wait(timeout)
    }

    fn read(&mut self, nth: usize, each: &mut dyn FnMut(&Record)) -> usize {
        self.0.read(nth, each)
    }
}

#[test]
fn a_reader_waits_for_the_whole_interval_unless_the_trace_ends() {
    let waits = Arc::new(AtomicUsize::new(0));
    let tracer = Changed(|opened: Opened| Opened {
        reader: Box::new(CountedWaits(opened.reader, Arc::clone(&waits))),
        ..opened
    });
    let interrupt = Interrupt::default();
    let until = Until {
        time: Some(Duration::from_millis(300)),
        interrupt: &interrupt,
        beside: None,
        exit_code: None,
    };
    let every = Duration::from_secs(60);
    let began = Instant::now();
    Claimed::of(&tracer, &[Function::From], &[0])
        .and_then(|rings| rings.trace(tracer.info(), every, None, until, &mut ()))
        .unwrap();
    assert!(began.elapsed() < every);
    assert_eq!(waits.load(Ordering::Relaxed), 1);
}

#[test]
fn a_clock_with_long_steps_is_said() {
    let interrupt = Interrupt::default();
    let until = Until {
        time: Some(Duration::from_millis(1)),
        interrupt: &interrupt,
        beside: None,
        exit_code: None,
    };
    // As in the emulated machine.
    let info = Info {
        ticks_hz: 62_500_000,
        ..Null.info()
    };
    let every = Duration::from_millis(1);
    let traced = Claimed::of(&Null, &[Function::From], &[0])
        .and_then(|rings| rings.trace(info, every, None, until, &mut ()))
        .unwrap();
    let mut summary = Summary::new(NAME, "native");
    figures::fill(&mut summary, &traced);
    figures::remarks(&mut summary, &Config::default(), &traced);
    assert_eq!(summary.whole.clock_step_ns, Some(16.0));
    let said = "The clock of the records has a step of 16 ns, and a copy that takes less may show 0 ns. The medians of ";
    assert!(summary.notes.iter().any(|note| note.starts_with(said)));
}

fn error(tracer: &dyn Tracer, cpus: &[usize], time: Option<Duration>) -> String {
    let interrupt = Interrupt::default();
    let until = Until {
        time,
        interrupt: &interrupt,
        beside: None,
        exit_code: None,
    };
    let every = Duration::from_millis(1);
    let traced = Claimed::of(tracer, &[Function::From], cpus)
        .and_then(|rings| rings.trace(tracer.info(), every, None, until, &mut ()));
    match traced {
        Ok(_) => panic!("nothing was wrong"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_record_that_is_lost_is_an_error() {
    let lossy = Changed(|opened: Opened| Opened {
        control: Box::new(OneMore(opened.control)),
        ..opened
    });
    let message = error(&lossy, &[0], Some(Duration::from_millis(1)));
    assert!(
        message.starts_with("trace of from on CPU 0: the kernel recorded "),
        "{message}"
    );
}

#[test]
fn a_reader_that_fails_ends_the_trace() {
    let broken = Changed(|opened: Opened| Opened {
        reader: Box::new(Broken),
        ..opened
    });
    assert!(error(&broken, &[0], None).starts_with("/dev/x: "));
    // The thread on the missing CPU fails, and the other thread does not wait for it.
    assert!(error(&Null, &[0, 8191], None).contains("CPU 8191"));
}

#[test]
fn settings_round_trip_through_toml() {
    let config = Config {
        command: vec!["make".into(), "-j8".into()],
        dat: true,
        ops: vec![Function::UnderscoreTo, Function::From],
        ..Config::default()
    };
    config.check().unwrap();
    for defaults in [Config::default(), Config::for_lab()] {
        let back = settings::tests::read(&config.to_toml().unwrap(), &defaults).unwrap();
        assert_eq!(back, config);
    }
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let with = |change: fn(&mut Config)| {
        let mut config = Config::default();
        change(&mut config);
        config.check().unwrap_err().to_string()
    };
    assert!(with(|c| c.ops.clear()).contains("--ops from,to"));
    assert!(with(|c| c.ops = vec![Function::To; 2]).contains("--ops to is given twice"));
    assert!(with(|c| c.time = Some(Time::ZERO)).contains("--for 0s: give 1ms to a year"));
    assert!(with(|c| c.every = Time::ms(60_000)).contains("--every 60s: give 1ms to 10s"));
    let both = with(|c| {
        c.time = Some(Time::ms(1000));
        c.command = vec!["make".into()];
    });
    assert!(both.contains("give one of the two"), "{both}");
}
