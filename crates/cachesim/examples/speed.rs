// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures how many accesses per second the model processes, by pattern and platform:
//!
//!     cargo run --release -p memwarden-cachesim --example speed
//!
//! The best of three runs each, in 10^6 accesses per second of CPU time.
//!
//! Then the same walks through valgrind's cachegrind, if it is installed, in alternation with the model. Cachegrind
//! simulates an L1D and a last level, for data and for instructions, and runs the program; the model simulates all levels, TLBs
//! and prefetchers, for data.

#[path = "../tests/patterns/mod.rs"]
mod patterns;
#[path = "../tests/valgrind/mod.rs"]
mod valgrind;

use std::hint::black_box;
use std::path::Path;

use memwarden_cachesim::{Access, Geometry, Model, Result, platforms};
use memwarden_platform::usage::Usage;
use memwarden_platform::{Root, cache, clock};
use patterns::MmapWalk;

/// Lines of the buffer: 256 MiB, more than any last level.
const LINES: u64 = 1 << 22;
/// Accesses per run; an eighth of this for random ones.
const ACCESSES: u64 = 1 << 23;

type Pattern = (&'static str, fn(&mut Model) -> u64);

const PATTERNS: [Pattern; 5] = [
    ("words, in order", |model| {
        for word in 0..ACCESSES {
            model.access(8 * word, 8, Access::Load);
        }
        ACCESSES
    }),
    ("lines, in order", |model| {
        for step in 0..ACCESSES {
            model.access(step % LINES * 64, 8, Access::Load);
        }
        ACCESSES
    }),
    ("lines, at random", |model| {
        let mut state = 1;
        for _ in 0..ACCESSES / 8 {
            state = patterns::next(state);
            model.access((state >> 33) % LINES * 64, 8, Access::Load);
        }
        ACCESSES / 8
    }),
    ("mmap, in order", |model| mmap(model, 16, None)),
    ("mmap, at random", |model| mmap(model, 16, Some(1))),
];

/// Walks over each place, in the comparison with cachegrind.
const LOCALITIES: [u64; 3] = [1, 2, 16];
/// Pairs of runs.
const PAIRS: usize = 5;

fn mmap(model: &mut Model, locality: u64, random: Option<u64>) -> u64 {
    let walk = MmapWalk {
        lines: LINES,
        outer: outer(locality),
        locality,
        span: 512,
        random,
    };
    walk.feed(|line, access| model.access(64 * line, 8, access));
    ACCESSES
}

/// Steps that make `ACCESSES` accesses.
fn outer(locality: u64) -> u64 {
    ACCESSES / locality / 512
}

/// 10^6 accesses per second of CPU time.
fn rate(accesses: u64, cpu_ns: u64) -> f64 {
    accesses as f64 / cpu_ns as f64 * 1e3
}

fn modelled(geometry: &Geometry, run: impl Fn(&mut Model) -> u64) -> Result<f64> {
    let mut model = Model::new(geometry)?;
    let start_ns = clock::thread_cpu_ns();
    let accesses = run(&mut model);
    let elapsed_ns = clock::thread_cpu_ns() - start_ns;
    black_box(model.counts());
    Ok(rate(accesses, elapsed_ns))
}

/// Cachegrind's rate: the CPU time of the walk, without that of a start.
fn cachegrind(binary: &Path, geometry: &Geometry, locality: u64) -> Result<f64> {
    let cpu_us = |steps: u64| -> Result<u64> {
        let before = Usage::of_children()?;
        valgrind::watch(
            binary,
            geometry,
            [
                "mmap-random",
                &LINES.to_string(),
                &steps.to_string(),
                &locality.to_string(),
            ],
        );
        let used = Usage::of_children()?.since(&before);
        Ok(used.user_us + used.system_us)
    };
    let start_us = cpu_us(0)?;
    Ok(rate(ACCESSES, 1000 * (cpu_us(outer(locality))? - start_us)))
}

fn beside_cachegrind(machines: &[(&str, Geometry)]) -> Result<()> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let binary = match valgrind::program(folder.path()) {
        Ok(binary) => binary,
        Err(why) => {
            eprintln!("without cachegrind: {why}");
            return Ok(());
        }
    };
    println!(
        "\nmmap, at random   locality      model  cachegrind   model / cachegrind: median (min to max of {PAIRS})"
    );
    for (name, geometry) in machines {
        for locality in LOCALITIES {
            let mut pairs = Vec::with_capacity(PAIRS);
            for _ in 0..PAIRS {
                let ours = modelled(geometry, |model| mmap(model, locality, Some(1)))?;
                pairs.push((ours, cachegrind(&binary, geometry, locality)?));
            }
            let median = |mut of: Vec<f64>| {
                of.sort_by(f64::total_cmp);
                (of[PAIRS / 2], of[0], of[PAIRS - 1])
            };
            let (ratio, least, most) =
                median(pairs.iter().map(|(ours, theirs)| ours / theirs).collect());
            println!(
                "{name:18}{locality:8}{:11.1}{:12.1}   {ratio:.2} ({least:.2} to {most:.2})",
                median(pairs.iter().map(|pair| pair.0).collect()).0,
                median(pairs.iter().map(|pair| pair.1).collect()).0,
            );
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    let mut machines = Vec::new();
    for name in platforms::names() {
        machines.push((name, platforms::named(name)?));
    }
    match Geometry::of_machine(&cache::of_cpu(&Root::system(), 0)) {
        Ok(of) => machines.push(("this machine", of.geometry)),
        Err(error) => eprintln!("without this machine: {error}"),
    }
    print!("{:18}", "10^6 accesses/s");
    for (name, _) in &machines {
        print!("{name:>16}{:>16}", "no prefetcher");
    }
    println!();
    for (name, run) in PATTERNS {
        print!("{name:18}");
        for (_, geometry) in &machines {
            let without = geometry.clone().without_prefetchers();
            for geometry in [geometry, &without] {
                let mut best = 0.0_f64;
                for _ in 0..3 {
                    best = best.max(modelled(geometry, run)?);
                }
                print!("{best:16.1}");
            }
        }
        println!();
    }
    beside_cachegrind(&machines)
}
