// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares the published mmap study with its walk on the modelled processor:
//!
//!     cargo run --release -p memwarden-cachesim --example mmap_study [STEPS]
//!
//! The model processes STEPS of the study's 2^20 steps, by default 4096, and the counts are
//! scaled to all steps.

#[path = "../tests/study/mod.rs"]
mod study;

use memwarden_cachesim::counts::Counts;
use memwarden_cachesim::geometry::{PerfEvents, Stride};
use memwarden_cachesim::{Geometry, Model, Result, platforms};
use study::{Order, STEPS, Study};

/// An event's published counts, random and in order.
type Published = (&'static str, [f64; 2]);

const PUBLISHED: [Published; 5] = [
    ("L1-dcache-loads", [7.63e10, 7.63e10]),
    ("L1-dcache-stores", [2.58e10, 2.58e10]),
    ("L1-dcache-load-misses", [9.70e8, 4.17e8]),
    ("L1-dcache-prefetch-misses", [6.2e8, 2.4e7]),
    ("dTLB-load-misses", [1.39e7, 2.18e4]),
];

const ORDERS: [Order; 2] = [Order::Random, Order::InOrder];

fn count(geometry: &Geometry, study: Study, steps: u64) -> Result<Vec<(String, f64)>> {
    let mut model = Model::new(geometry)?;
    study.feed(&mut model, steps);
    let counts: Counts = model.counts();
    let scale = STEPS as f64 / steps as f64;
    let named = counts.named(PerfEvents::SandyBridge).into_iter();
    Ok(named
        .map(|(name, count)| (name, count as f64 * scale))
        .collect())
}

fn compare(what: &str, geometry: &Geometry, unit: u64, two_lines: bool, steps: u64) -> Result<()> {
    println!("{what}");
    let mut columns = Vec::new();
    for order in ORDERS {
        let study = Study {
            order,
            unit,
            two_lines,
        };
        columns.push(count(geometry, study, steps)?);
    }
    for (event, published) in PUBLISHED {
        print!("  {event:26}");
        for (column, published) in columns.iter().zip(published) {
            let modelled = column.iter().find(|(name, _)| name == event);
            let modelled = modelled.map_or(f64::NAN, |(_, count)| *count);
            let percent = 100.0 * (modelled / published - 1.0);
            print!("{published:12.2e}{modelled:12.2e}{percent:+10.1} %");
        }
        println!();
    }
    Ok(())
}

fn main() -> Result<()> {
    let steps = std::env::args().nth(1);
    let steps = steps.map_or(4096, |steps| steps.parse().expect("a number of steps"));
    let platform = platforms::named("i5-2467m")?;
    println!(
        "{:28}{:>12}{:>12}{:>12}{:>12}{:>12}",
        "", "random", "model", "", "in order", "model"
    );
    compare("i5-2467m", &platform, 1, true, steps)?;
    let one_line = "i5-2467m, the loop's variables in one line of the stack";
    compare(one_line, &platform, 1, false, steps)?;
    let without = platform.clone().without_prefetchers();
    compare("without prefetchers", &without, 1, true, steps)?;
    let stride = Geometry {
        stride: Some(Stride::ip_based()),
        ..platform.clone()
    };
    compare("with the stride prefetcher too", &stride, 1, true, steps)?;
    let lines = "i5-2467m, if the bases were in lines of 64 bytes";
    compare(lines, &platform, 64, true, steps)?;
    println!("soft faults, if no page was touched before; pages, once a step");
    for (order, published) in ORDERS.into_iter().zip([7314, 4189]) {
        let study = Study {
            order,
            unit: 1,
            two_lines: true,
        };
        let (faults, pages) = (study.soft_faults(), study.pages());
        println!("  {order:?}: published {published}, model {faults}; {pages} pages");
    }
    Ok(())
}
