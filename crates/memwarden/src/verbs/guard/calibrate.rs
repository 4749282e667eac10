// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden guard calibrate`: measures the memory's worst-case bandwidth.

use std::process::ExitCode;

use crate::verbs::output::outln;
use anyhow::bail;
use memwarden_platform::units::{parse_size, size_text};
use memwarden_platform::{Root, cache, hugepage};
use memwarden_workloads::latency::{self, Config};
use memwarden_workloads::{BufferConfig, Placement, Stop};
use schemars::JsonSchema;
use serde::Serialize;

/// Loads in flight at once. More loads than a core has MSHRs would only queue in the core.
const PARALLEL: usize = 10;

/// Size of the buffer in multiples of the last-level cache: at most 1 in 8 accesses can hit, whatever the replacement.
const TIMES_CACHE: u64 = 8;

/// Buffer size if sysfs does not report the caches.
const UNKNOWN_CACHE_BUFFER: u64 = 256 << 20;

#[derive(clap::Args)]
pub(super) struct Args {
    /// The buffer [default: 8 times the last-level cache]
    #[arg(short = 'm', long = "memory", value_name = "SIZE", value_parser = parse_size)]
    memory: Option<usize>,
    /// Address bits in which all lines agree: those that choose the DRAM bank, so that every access opens a row
    #[arg(long, value_name = "MASK", value_parser = mask)]
    bank_mask: Option<u64>,
    /// The CPU that measures
    #[arg(short = 'c', long, value_name = "CPU", default_value_t = 0)]
    cpu: usize,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize, JsonSchema)]
pub struct Printed {
    /// The guaranteed bandwidth in MiB/s.
    maxbw_mib_s: u64,
    /// The order of the accesses.
    pattern: &'static str,
    /// Loads in flight at once.
    parallel: usize,
    buffer_bytes: usize,
    /// Null if the caches are unknown.
    last_level_cache_bytes: Option<u64>,
    /// Whether the buffer fits into it: then the figure is of a cache.
    fits_in_cache: bool,
    /// Whether a running guard got the figure.
    guard_told: bool,
    /// The measurement.
    latency: latency::Outcome,
}

fn mask(text: &str) -> Result<u64, String> {
    text.strip_prefix("0x")
        .and_then(|digits| u64::from_str_radix(digits, 16).ok())
        .ok_or_else(|| format!("mask `{text}`: give hexadecimal digits, such as 0x6000"))
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let root = Root::system();
    let llc = cache::last_level(&root, args.cpu).and_then(|cache| cache.size_bytes);
    let bytes = match args.memory {
        Some(bytes) => bytes,
        None => usize::try_from(llc.map_or(UNKNOWN_CACHE_BUFFER, |size| size * TIMES_CACHE))?,
    };
    if let Some(available) = memwarden_platform::free_memory::free(&root) {
        if bytes as u64 > available.bytes / 2 {
            bail!(
                "a buffer of {} does not fit well in the {available}: give a smaller one with -m (the last-level cache \
             is {})",
                size_text(bytes as u64),
                llc.map_or("unknown".into(), size_text)
            );
        }
    }
    let huge_pages = hugepage::pools(&root)
        .iter()
        .any(|pool| pool.free * pool.page_bytes >= bytes as u64);
    let config = Config {
        buffer: BufferConfig {
            bytes,
            huge_pages,
            bank_mask: args.bank_mask,
            ..BufferConfig::default()
        },
        placement: Placement {
            cpu: Some(args.cpu),
            ..Placement::default()
        },
        mlp: PARALLEL,
        iterations: Some(5),
        ..Config::default()
    };
    let outcome = latency::run(&config, &Stop::new(), &mut ())?;

    let maxbw_mib_s = outcome.mib_s.floor().max(1.0) as u64;
    let told = match memwarden_guard::running() {
        Ok(mut guard) => guard.set_maxbw(maxbw_mib_s).map(|()| true)?,
        Err(_) => false,
    };
    let what = match args.bank_mask {
        Some(_) => "every access opens a row in the same bank",
        None => "random lines of all banks: an upper bound; --bank-mask gives the worst case",
    };
    let cached = llc.is_some_and(|llc| bytes as u64 <= llc);
    if args.json {
        let result = Printed {
            maxbw_mib_s,
            pattern: what,
            parallel: PARALLEL,
            buffer_bytes: bytes,
            last_level_cache_bytes: llc,
            fits_in_cache: cached,
            guard_told: told,
            latency: outcome,
        };
        outln!("{}", serde_json::to_string_pretty(&result)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    outln!(
        "guaranteed bandwidth: {maxbw_mib_s} MB/s (2^20 bytes), one core, {PARALLEL} loads at once, {} buffer",
        size_text(bytes as u64)
    )?;
    outln!("measured with {what}")?;
    if cached {
        outln!(
            "the buffer fits in the last-level cache ({}): this is cache, not memory; give a larger -m",
            llc.map_or_else(String::new, size_text)
        )?;
    }
    outln!(
        "{}",
        if told {
            "the running guard's maxbw is set to it"
        } else {
            "no guard is running: start it with --maxbw, or calibrate again then"
        }
    )?;
    Ok(ExitCode::SUCCESS)
}
