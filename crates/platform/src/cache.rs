// SPDX-License-Identifier: MIT OR Apache-2.0
//! The caches between a CPU and memory, from sysfs.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::cpus::{self, CpuSet};
use crate::units::{parse_size, size_text};
use crate::{Result, Root};

/// Contents of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Only data.
    Data,
    /// Only instructions.
    Instruction,
    /// Both.
    Unified,
}

/// One cache. Geometry that the firmware does not report is `None`, not 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cache {
    /// 1 is closest to the core.
    pub level: u32,
    /// Its contents.
    pub kind: Kind,
    /// Size in bytes.
    pub size_bytes: Option<u64>,
    /// Bytes of a line.
    pub line_bytes: Option<u64>,
    /// Ways of associativity.
    pub ways: Option<u64>,
    /// The CPUs that share it.
    pub cpus: CpuSet,
}

impl fmt::Display for Cache {
    /// `L1d 32 KiB`, `L3 32 MiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suffix = match self.kind {
            Kind::Data => "d",
            Kind::Instruction => "i",
            Kind::Unified => "",
        };
        write!(f, "L{}{suffix} ", self.level)?;
        match self.size_bytes {
            Some(bytes) => f.write_str(&size_text(bytes)),
            None => f.write_str("of unknown size"),
        }
    }
}

/// The caches of the machine, each once, by level, kind and first CPU.
pub fn topology(root: &Root) -> Result<Vec<Cache>> {
    let mut caches: Vec<Cache> = Vec::new();
    for cpu in cpus::online_in(root)?.iter() {
        for cache in of_cpu(root, cpu) {
            if !caches.contains(&cache) {
                caches.push(cache);
            }
        }
    }
    caches.sort_by_key(|cache| (cache.level, cache.kind, cache.cpus.iter().next()));
    Ok(caches)
}

/// The caches that `cpu` uses; empty if sysfs does not list them.
#[must_use]
pub fn of_cpu(root: &Root, cpu: usize) -> Vec<Cache> {
    let directory = format!("/sys/devices/system/cpu/cpu{cpu}/cache");
    root.names(&directory)
        .iter()
        .filter(|name| name.starts_with("index"))
        .filter_map(|name| {
            let file = |file: &str| root.text(&format!("{directory}/{name}/{file}"));
            let number = |name: &str| {
                file(name)?
                    .parse::<u64>()
                    .ok()
                    .filter(|number| *number != 0)
            };
            Some(Cache {
                level: file("level")?.parse().ok()?,
                kind: match file("type")?.as_str() {
                    "Data" => Kind::Data,
                    "Instruction" => Kind::Instruction,
                    "Unified" => Kind::Unified,
                    _ => return None,
                },
                size_bytes: file("size")
                    .and_then(|text| parse_size(&text).ok())
                    .map(|bytes| bytes as u64),
                line_bytes: number("coherency_line_size"),
                ways: number("ways_of_associativity"),
                cpus: file("shared_cpu_list")?.parse().ok()?,
            })
        })
        .collect()
}

/// The last cache before memory that `cpu` uses for data, if its size is known.
#[must_use]
pub fn last_level(root: &Root, cpu: usize) -> Option<Cache> {
    of_cpu(root, cpu)
        .into_iter()
        .filter(|cache| cache.kind != Kind::Instruction && cache.size_bytes.is_some())
        .max_by_key(|cache| cache.level)
}
