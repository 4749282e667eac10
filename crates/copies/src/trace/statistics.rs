// SPDX-License-Identifier: MIT OR Apache-2.0
//! Statistics of one function's records: sums for each size and each caller, and a uniform sample of the times.
//!
//! A trace may last for days and see any size, so its memory is bounded. Sizes and callers beyond a limit are added to
//! `other`, which loses only their identity.

use std::collections::HashMap;

use memwarden_platform::copytrace::Record;

/// Sizes with their own counts. A busy machine uses some hundred; with network traffic, all up to the packet size of
/// 1500.
const SIZES: usize = 2048;

/// Callers with their own counts: a kernel has some thousand copying places, most of which never run.
const CALLERS: usize = 4096;

/// Times kept for each size: with fewer, the 99th percentile would be the maximum. The times of all sizes of a ring
/// take 6 MiB.
const RESERVOIR: usize = 128;

/// An arbitrary constant, so that the same records give the same sample.
const SEED: u64 = 1;

/// A sampled time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sampled {
    /// The clock before the copy.
    pub before_ns: u64,
    /// Its duration.
    pub elapsed_ns: u64,
    /// The CPU that began it.
    pub cpu: u32,
}

/// Copies of one size, or of several.
#[derive(Debug, Clone, PartialEq)]
pub struct SizeStatistics {
    /// Number of calls.
    pub calls: u64,
    /// Bytes requested.
    pub bytes: u64,
    /// Bytes of them that were not copied.
    pub left_bytes: u64,
    /// Calls in which an engine copied.
    pub engine_calls: u64,
    /// Bytes that an engine copied.
    pub engine_bytes: u64,
    /// The shortest time.
    pub min_ns: u64,
    /// The longest.
    pub max_ns: u64,
    mean_ns: f64,
    // Sum of squared distances to the mean.
    squares: f64,
    sampled: Vec<Sampled>,
}

impl Default for SizeStatistics {
    fn default() -> Self {
        Self {
            calls: 0,
            bytes: 0,
            left_bytes: 0,
            engine_calls: 0,
            engine_bytes: 0,
            min_ns: u64::MAX,
            max_ns: 0,
            mean_ns: 0.0,
            squares: 0.0,
            sampled: Vec::new(),
        }
    }
}

impl SizeStatistics {
    fn add(&mut self, record: &Record, random: &mut fastrand::Rng) {
        let ns = record.elapsed_ns();
        self.calls += 1;
        self.bytes += record.bytes;
        self.left_bytes += record.left;
        self.engine_calls += u64::from(record.by_engine > 0);
        self.engine_bytes += record.by_engine;
        self.min_ns = self.min_ns.min(ns);
        self.max_ns = self.max_ns.max(ns);
        // Welford 1962.
        let distance = ns as f64 - self.mean_ns;
        self.mean_ns += distance / self.calls as f64;
        self.squares += distance * (ns as f64 - self.mean_ns);
        let sampled = Sampled {
            before_ns: record.before_ns,
            elapsed_ns: ns,
            cpu: record.cpu,
        };
        // Vitter 1985, algorithm R: each time is kept with the same probability.
        if self.sampled.len() < RESERVOIR {
            self.sampled.push(sampled);
        } else if let Ok(place) = usize::try_from(random.u64(0..self.calls)) {
            if let Some(kept) = self.sampled.get_mut(place) {
                *kept = sampled;
            }
        }
    }

    /// Adds the copies of `other`.
    fn merge(&mut self, other: &Self, random: &mut fastrand::Rng) {
        if other.calls == 0 {
            return;
        }
        let (here, there) = (self.calls as f64, other.calls as f64);
        let distance = other.mean_ns - self.mean_ns;
        self.mean_ns += distance * there / (here + there);
        self.squares += other.squares + distance * distance * here * there / (here + there);
        self.sampled = picked(
            (&self.sampled, self.calls),
            (&other.sampled, other.calls),
            random,
        );
        self.calls += other.calls;
        self.bytes += other.bytes;
        self.left_bytes += other.left_bytes;
        self.engine_calls += other.engine_calls;
        self.engine_bytes += other.engine_bytes;
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Mean of all times; none without calls.
    #[must_use]
    pub fn mean_ns(&self) -> Option<f64> {
        (self.calls > 0).then_some(self.mean_ns)
    }

    /// Standard deviation of all times; none with fewer than two.
    #[must_use]
    pub fn stdev_ns(&self) -> Option<f64> {
        (self.calls > 1).then(|| (self.squares / (self.calls - 1) as f64).sqrt())
    }

    /// A sample of the times, or all if there are few, in the order of the copies: the intervals of medians need it,
    /// and a full reservoir keeps no order.
    #[must_use]
    pub fn sampled(&self) -> Vec<Sampled> {
        let mut sampled = self.sampled.clone();
        sampled.sort_by_key(|one| one.before_ns);
        sampled
    }
}

/// Merges two reservoirs, each with the number of calls that it represents.
fn picked(
    (mine, my_calls): (&[Sampled], u64),
    (other, other_calls): (&[Sampled], u64),
    random: &mut fastrand::Rng,
) -> Vec<Sampled> {
    let mut sides = [(mine.to_vec(), my_calls), (other.to_vec(), other_calls)];
    let mut kept = Vec::new();
    while kept.len() < RESERVOIR {
        let [(mine, my_left), (other, other_left)] = &sides;
        // Pick one of the remaining calls; a reservoir holds it or represents it.
        let side = match (mine.is_empty(), other.is_empty()) {
            (true, true) => break,
            (true, false) => 1,
            (false, true) => 0,
            (false, false) => usize::from(random.u64(0..my_left + other_left) >= *my_left),
        };
        let (samples, left) = &mut sides[side];
        kept.push(samples.swap_remove(random.usize(0..samples.len())));
        *left = left.saturating_sub(1).max(1);
    }
    kept
}

/// The copies of one caller in the kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Caller {
    /// Number of copies.
    pub calls: u64,
    /// Bytes requested.
    pub bytes: u64,
}

/// The copies of one function.
#[derive(Debug, Clone)]
pub struct FunctionStatistics {
    sizes: HashMap<u64, SizeStatistics>,
    other_sizes: SizeStatistics,
    callers: HashMap<u64, Caller>,
    other_callers: Caller,
    first_ns: Option<u64>,
    most_sizes: usize,
    most_callers: usize,
    random: fastrand::Rng,
}

impl Default for FunctionStatistics {
    fn default() -> Self {
        Self::bounded(SIZES, CALLERS)
    }
}

impl FunctionStatistics {
    fn bounded(most_sizes: usize, most_callers: usize) -> Self {
        Self {
            sizes: HashMap::new(),
            other_sizes: SizeStatistics::default(),
            callers: HashMap::new(),
            other_callers: Caller::default(),
            first_ns: None,
            most_sizes,
            most_callers,
            random: fastrand::Rng::with_seed(SEED),
        }
    }

    /// Adds one copy.
    pub fn add(&mut self, record: &Record) {
        place(
            &mut self.sizes,
            record.bytes,
            &mut self.other_sizes,
            self.most_sizes,
        )
        .add(record, &mut self.random);
        let caller = place(
            &mut self.callers,
            record.caller,
            &mut self.other_callers,
            self.most_callers,
        );
        caller.calls += 1;
        caller.bytes += record.bytes;
        let first = self.first_ns.get_or_insert(record.before_ns);
        *first = (*first).min(record.before_ns);
    }

    /// Adds the copies of `other`, which is from another CPU's ring.
    pub fn merge(&mut self, other: &Self) {
        for (bytes, size) in sorted(&other.sizes, |size| size.calls) {
            place(
                &mut self.sizes,
                bytes,
                &mut self.other_sizes,
                self.most_sizes,
            )
            .merge(size, &mut self.random);
        }
        self.other_sizes.merge(&other.other_sizes, &mut self.random);
        for (address, caller) in sorted(&other.callers, |caller| caller.calls) {
            let mine = place(
                &mut self.callers,
                address,
                &mut self.other_callers,
                self.most_callers,
            );
            mine.calls += caller.calls;
            mine.bytes += caller.bytes;
        }
        self.other_callers.calls += other.other_callers.calls;
        self.other_callers.bytes += other.other_callers.bytes;
        self.first_ns = self.first_ns.into_iter().chain(other.first_ns).min();
    }

    /// All copies together.
    #[must_use]
    pub fn total(&self) -> SizeStatistics {
        let mut random = fastrand::Rng::with_seed(SEED);
        let mut total = self.other_sizes.clone();
        for (_, size) in self.sizes() {
            total.merge(size, &mut random);
        }
        total
    }

    /// Each size with its copies, most calls first.
    #[must_use]
    pub fn sizes(&self) -> Vec<(u64, &SizeStatistics)> {
        sorted(&self.sizes, |size| size.calls)
    }

    /// The copies of sizes without their own counts, and of sizes after the first `shown`.
    #[must_use]
    pub fn sizes_behind(&self, shown: usize) -> SizeStatistics {
        let mut random = fastrand::Rng::with_seed(SEED);
        let mut behind = self.other_sizes.clone();
        for (_, size) in self.sizes().into_iter().skip(shown) {
            behind.merge(size, &mut random);
        }
        behind
    }

    /// The copies of sizes without their own counts.
    #[must_use]
    pub fn other_sizes(&self) -> &SizeStatistics {
        &self.other_sizes
    }

    /// Each caller with its copies, most calls first.
    #[must_use]
    pub fn callers(&self) -> Vec<(u64, Caller)> {
        let sorted = sorted(&self.callers, |caller| caller.calls);
        sorted
            .into_iter()
            .map(|(address, caller)| (address, *caller))
            .collect()
    }

    /// The copies of callers without their own counts.
    #[must_use]
    pub fn other_callers(&self) -> Caller {
        self.other_callers
    }

    /// The clock before the first copy.
    #[must_use]
    pub fn first_ns(&self) -> Option<u64> {
        self.first_ns
    }
}

/// A key's entry: its own, or `other` if there are too many.
fn place<'a, T: Default>(
    known: &'a mut HashMap<u64, T>,
    key: u64,
    other: &'a mut T,
    most: usize,
) -> &'a mut T {
    if known.len() >= most && !known.contains_key(&key) {
        return other;
    }
    known.entry(key).or_default()
}

/// Sorted by `figure`, largest first, then by key.
fn sorted<T>(all: &HashMap<u64, T>, figure: impl Fn(&T) -> u64) -> Vec<(u64, &T)> {
    let mut all: Vec<(u64, &T)> = all.iter().map(|(key, one)| (*key, one)).collect();
    all.sort_unstable_by_key(|(key, one)| (std::cmp::Reverse(figure(one)), *key));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(number: u64, bytes: u64, ns: u64) -> Record {
        Record {
            number,
            before_ns: 1000 + number,
            after_ns: 1000 + number + ns,
            caller: 0x10 + bytes,
            bytes,
            left: u64::from(number == 0),
            by_engine: if number == 1 { bytes } else { 0 },
            cpu: 2,
        }
    }

    #[test]
    fn sums_are_of_all_copies() {
        let mut all = FunctionStatistics::default();
        for (number, ns) in (0..).zip([40, 10, 30, 20]) {
            all.add(&record(number, 64, ns));
        }
        all.add(&record(4, 8, 5));
        let sizes = all.sizes();
        assert_eq!(sizes.len(), 2);
        let (bytes, size) = sizes[0];
        assert_eq!((bytes, size.calls, size.bytes), (64, 4, 256));
        assert_eq!(
            (size.left_bytes, size.engine_calls, size.engine_bytes),
            (1, 1, 64)
        );
        assert_eq!((size.min_ns, size.max_ns), (10, 40));
        assert_eq!(size.mean_ns(), Some(25.0));
        let stdev = size.stdev_ns().unwrap();
        assert!((stdev - (500.0_f64 / 3.0).sqrt()).abs() < 1e-9, "{stdev}");
        assert_eq!(size.sampled().len(), 4);
        assert_eq!(sizes[1].1.stdev_ns(), None);
        assert_eq!(all.total().calls, 5);
        assert_eq!(
            all.callers()[0],
            (
                0x50,
                Caller {
                    calls: 4,
                    bytes: 256
                }
            )
        );
        assert_eq!(all.first_ns(), Some(1000));
    }

    #[test]
    fn what_is_kept_is_bounded_and_nothing_is_lost() {
        let mut all = FunctionStatistics::bounded(3, 2);
        for number in 0..100 {
            all.add(&record(number, number % 10, 7));
        }
        assert_eq!((all.sizes().len(), all.callers().len()), (3, 2));
        assert_eq!(all.other_sizes().calls, 70);
        assert_eq!(all.other_callers().calls, 80);
        assert_eq!(all.total().calls, 100);
        assert_eq!(all.total().bytes, 450);
        assert_eq!(all.sizes_behind(1).calls, 90);
        let mut many = FunctionStatistics::default();
        for number in 0..10_000 {
            many.add(&record(number, 64, number));
        }
        assert_eq!(many.sizes()[0].1.sampled().len(), RESERVOIR);
    }

    #[test]
    fn picks_are_even() {
        let mut all = FunctionStatistics::default();
        for number in 0..100_000 {
            all.add(&record(number, 64, number));
        }
        let sampled = all.sizes()[0].1.sampled();
        let late = sampled
            .iter()
            .filter(|one| one.elapsed_ns >= 50_000)
            .count();
        assert!((RESERVOIR / 4..RESERVOIR * 3 / 4).contains(&late), "{late}");
    }

    #[test]
    fn a_sample_is_in_the_order_of_the_copies() {
        let mut parts = [FunctionStatistics::default(), FunctionStatistics::default()];
        for number in 0..4000 {
            parts[usize::from(number % 2 == 0)].add(&record(number, 64 * (number % 3), 7));
        }
        let [mut all, second] = parts;
        let in_order = |size: &SizeStatistics| {
            let sampled = size.sampled();
            assert_eq!(sampled.len(), RESERVOIR);
            sampled.is_sorted_by_key(|one| one.before_ns)
        };
        assert!(in_order(all.sizes()[0].1), "one CPU's");
        all.merge(&second);
        assert!(in_order(all.sizes()[0].1), "two CPUs'");
        assert!(in_order(&all.total()), "all sizes");
    }

    #[test]
    fn merged_figures_are_those_of_all() {
        let mut together = FunctionStatistics::default();
        let mut parts = [FunctionStatistics::default(), FunctionStatistics::default()];
        for number in 0..4000 {
            // Three of four records are in the first part.
            let one = record(number, 64, number * 7 % 501);
            together.add(&one);
            parts[usize::from(number % 4 == 0)].add(&one);
        }
        let [mut merged, second] = parts;
        merged.merge(&second);
        let (all, sum) = (together.sizes()[0].1.clone(), merged.sizes()[0].1.clone());
        assert_eq!((sum.calls, sum.bytes), (all.calls, all.bytes));
        assert_eq!((sum.min_ns, sum.max_ns), (all.min_ns, all.max_ns));
        for (one, other) in [
            (sum.mean_ns(), all.mean_ns()),
            (sum.stdev_ns(), all.stdev_ns()),
        ] {
            assert!((one.unwrap() - other.unwrap()).abs() < 1e-6);
        }
        assert_eq!(sum.sampled().len(), RESERVOIR);
        let sampled = sum.sampled();
        let of_first = sampled.iter().filter(|one| (one.before_ns - 1000) % 4 != 0);
        let share = of_first.count() as f64 / RESERVOIR as f64;
        assert!(
            (0.6..0.9).contains(&share),
            "{share} of them, and 0.75 of the calls"
        );
        assert_eq!(merged.first_ns(), Some(1000));
    }

    #[test]
    fn a_merge_with_nothing_changes_nothing() {
        let mut all = FunctionStatistics::default();
        all.add(&record(0, 64, 5));
        let before = all.total();
        all.merge(&FunctionStatistics::default());
        assert_eq!(all.total(), before);
        let mut none = FunctionStatistics::default();
        assert_eq!((none.total().mean_ns(), none.first_ns()), (None, None));
        none.merge(&all);
        assert_eq!(none.total(), before);
    }
}
