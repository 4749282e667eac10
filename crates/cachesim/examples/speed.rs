// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures how many accesses per second the model processes, by pattern and platform:
//!
//!     cargo run --release -p memwarden-cachesim --example speed
//!
//! The best of three runs each, in 10^6 accesses per second of CPU time.

#[path = "../tests/patterns/mod.rs"]
mod patterns;

use std::hint::black_box;

use memwarden_cachesim::{Access, Geometry, Model, Result, platforms};
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
    ("mmap, in order", |model| mmap(model, None)),
    ("mmap, at random", |model| mmap(model, Some(1))),
];

fn mmap(model: &mut Model, random: Option<u64>) -> u64 {
    let walk = MmapWalk {
        lines: LINES,
        outer: ACCESSES / 16 / 512,
        locality: 16,
        span: 512,
        random,
    };
    walk.feed(|line, access| model.access(64 * line, 8, access));
    walk.outer * 16 * 512
}

fn main() -> Result<()> {
    let mut machines: Vec<_> = platforms::PLATFORMS
        .iter()
        .map(|platform| (platform.name, (platform.geometry)()))
        .collect();
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
                    let mut model = Model::new(geometry)?;
                    let start_ns = clock::thread_cpu_ns();
                    let accesses = run(&mut model);
                    let elapsed_ns = clock::thread_cpu_ns() - start_ns;
                    #[allow(clippy::cast_precision_loss)]
                    let rate = accesses as f64 / elapsed_ns as f64 * 1e3;
                    best = best.max(rate);
                    black_box(model.counts());
                }
                print!("{best:16.1}");
            }
        }
        println!();
    }
    Ok(())
}
