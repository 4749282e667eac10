// SPDX-License-Identifier: MIT OR Apache-2.0
//! Modelled counters: the events that the caches and TLBs of a machine would count for a stream
//! of accesses. For machines without such counters, and to compare with another machine.
//!
//! ```
//! use memwarden_cachesim::{Access, Model, platforms};
//!
//! let mut model = Model::new(&platforms::named("i5-2467m")?)?;
//! for line in 0..512 {
//!     model.access(64 * line, 8, Access::Load);
//! }
//! assert_eq!(model.counts().l1d.loads, 512);
//! # Ok::<(), memwarden_cachesim::Error>(())
//! ```
//!
//! | module | what it is |
//! | --- | --- |
//! | [`geometry`] | a machine's caches and TLBs, as plain data; this machine's from sysfs |
//! | [`platforms`] | the named machines and those of files (`crates/machines`) |
//! | [`model`] | the path of an access through TLBs and caches, and the counts |
//! | [`counts`] | the counters, under perf's names |
//! | [`sets`] | the array behind all caches and TLBs |
//! | [`streams`] | the stream prefetcher |
//! | [`ahead`] | the L1D's next-line and stride prefetchers |
//!
//! # What is modelled
//! One core. An access is translated (DTLB, then STLB, then a page walk), looked
//! up in the L1D, and on a miss fetched through the L2 and the last level from
//! memory; each cache on the way keeps a copy. Stores allocate, and a line is
//! written back when it is replaced, unless the L1D is said to write through.
//! Then the prefetchers, each optional, may fetch the lines that they expect next: a stream
//! prefetcher, the L1D's next-line and stride prefetchers, and the adjacent line of a pair.
//!
//! # What is not modelled
//! - *Physical addresses.* The L2 and the last level of a machine are indexed by physical
//!   addresses; in the model all caches are indexed by the addresses of the stream. With 4 KiB
//!   pages the kernel scatters a buffer over the sets of such a cache, which causes conflict
//!   misses near its capacity and breaks up strides. The L1D of the named platforms takes its
//!   index from the offset in the page (a way is not larger than a page), or nearly so (8 KiB
//!   on the Cortex-A53).
//! - *Hashes.* A server's last level spreads lines over slices by an undocumented hash. In the
//!   model a line's set is its number modulo the number of sets.
//! - *Other traffic.* Other cores, instructions, the kernel's own accesses, page tables in
//!   caches, and page-walk caches: the model only processes the given stream.
//! - *Time.* A line is present as soon as it is requested, so a prefetch is never late, and
//!   there are no store buffers, no merged misses, no speculation.
pub mod ahead;
pub mod counts;
pub mod geometry;
pub mod model;
pub mod platforms;
pub mod sets;
pub mod streams;
mod ways;

pub use counts::Counts;
pub use geometry::{Geometry, PageSize};
pub use memwarden_platform::{Error, Result};
pub use model::{Access, Model};
