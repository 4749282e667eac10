// SPDX-License-Identifier: MIT OR Apache-2.0
//! `latency`: a pointer chase, in which every load depends on the previous one.

#![allow(unsafe_code)]

use std::time::Duration;

use memwarden_platform::mapping::{Mapping, page_bytes};
use memwarden_platform::{affinity, clock};
use schemars::JsonSchema;
use serde::Serialize;

use crate::buffer::{LINES_A_LOOK, Lines, PREPARED, remote_share};
use crate::splitmix::SplitMix;
use crate::{
    BufferConfig, Descriptor, Error, LINE_BYTES, Limit, MeasuringCost, Observer, Placement, Result,
    Stop, mib_s, ratio,
};

/// Settings of a run.
#[derive(Debug, Clone)]
pub struct Config {
    /// The memory.
    pub buffer: BufferConfig,
    /// CPU and priority of the thread.
    pub placement: Placement,
    /// Visit lines in address order instead of random order.
    pub sequential: bool,
    /// Visits of every line; `None` runs until stopped, and then counts the incomplete lap, too.
    pub iterations: Option<u64>,
    /// Time limit: the lap during which it passes is the last one.
    pub within: Option<Duration>,
    /// Parallel chases.
    pub mlp: usize,
    /// Seed of the permutation.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            buffer: BufferConfig::default(),
            placement: Placement::default(),
            sequential: false,
            // 100 visits of 262144 lines: a few seconds of DRAM, and the traditional
            // default of these tools.
            iterations: Some(100),
            within: None,
            mlp: 1,
            seed: 1,
        }
    }
}

/// The result of a run.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Outcome {
    /// The CPU on which the thread ended.
    pub cpu: usize,
    /// Parallel chases.
    pub mlp: usize,
    /// Lines visited in each iteration.
    pub lines: u64,
    /// Complete iterations.
    pub iterations: u64,
    /// Total loads, those of a counted incomplete iteration included.
    pub loads: u64,
    /// Total time.
    pub elapsed_ns: u64,
    /// Time of a load; with parallel chases, of a load of one chase while the others run.
    pub latency_ns: f64,
    /// Lines moved, in 10^6 bytes a second.
    pub mb_s: f64,
    /// Lines moved, in 2^20 bytes a second.
    pub mib_s: f64,
    /// Sum of the numbers of the visited lines, which is verified.
    pub readsum: u64,
    /// Share of the buffer on other NUMA nodes than the CPU's; `null` on a machine with one node.
    pub remote_share: Option<f64>,
    /// Bytes of the buffer in transparent huge pages, for the remarks.
    #[serde(skip)]
    pub huge_bytes: u64,
    /// Pages that contain the lines, as if no page were huge, for the remarks.
    #[serde(skip)]
    pub touched_pages: u64,
    /// Cost of the measurement itself.
    pub measuring_cost: MeasuringCost,
}

/// Minimum loads between checks of the clock and of `stop`: tens of microseconds from the first-level cache, so that
/// the checks cost nothing even with a buffer of one line.
const LOADS_A_LOOK: u64 = 1 << 16;

/// The same within a lap of a large buffer: about a tenth of a second of memory, a delay that is acceptable for Ctrl-C.
const LOADS_A_PIECE: u64 = 1 << 20;

/// Loads before the clock starts, which fill TLB and caches. A buffer of 256 MiB has this number of lines. No cache
/// keeps lines of a larger one from lap to lap, so a whole lap would not warm up more.
const WARM_LOADS: u64 = 1 << 22;

/// Runs the chase until its iterations are over or `stop` is requested.
pub fn run(config: &Config, stop: &Stop, observer: &mut dyn Observer) -> Result<Outcome> {
    if !DESCRIPTOR.limit("--mlp").contains(&(config.mlp as u64)) {
        return Err(Error::Invalid(format!(
            "{} parallel chases: 1 to {MLP_MOST} are possible",
            config.mlp
        )));
    }
    if config.iterations == Some(0) {
        return Err(Error::Invalid("0 iterations would measure nothing".into()));
    }
    config.placement.apply()?;
    let lines_most = config.buffer.bytes / config.buffer.stride.max(1);
    let order_bytes = (lines_most * size_of::<u32>()) as u64;
    observer.preparing(config.buffer.bytes as u64)?;
    let mapping = config.buffer.map_with_order(order_bytes, stop)?;
    let chosen = config.buffer.lines(&mapping)?;
    if chosen.len() < config.mlp {
        return Err(Error::Invalid(format!(
            "{} lines are too few for {} chases",
            chosen.len(),
            config.mlp
        )));
    }
    // Equal shares, so that all chases end at the same time.
    let lines = u32::try_from(chosen.len() / config.mlp * config.mlp).map_err(|_| {
        Error::Invalid(format!(
            "{} lines are too many for a chase, which can visit {}: choose a smaller -m or a larger --stride",
            chosen.len(),
            u32::MAX
        ))
    })?;
    let loop_ns_per_touch = floor()?;
    let next = if config.sequential {
        ring(lines)
    } else {
        sattolo(lines, config.seed, stop)?
    };
    let (starts, sum_of_cycle) = link(
        &mapping,
        config.buffer.stride,
        &chosen,
        &next,
        config.mlp,
        stop,
    )?;
    let touched_pages = chosen.pages(config.buffer.stride, page_bytes()) as u64;
    let lines = u64::from(lines);
    // Without a number of laps the last one may be incomplete, and the order tells which lines it visited.
    let order = config.iterations.is_none().then_some((chosen, next));

    let steps_a_lap = lines / config.mlp as u64;
    let mut at = starts;
    // SAFETY: the lines are linked into one cycle within the mapping.
    let mut chase = |steps| unsafe { CHASES[config.mlp - 1](&mut at, steps) };

    let warm_steps = steps_a_lap.min(WARM_LOADS / config.mlp as u64);
    let begin = clock::now_ns();
    let warm = warm_up(&mut chase, warm_steps, stop)?;
    let warm_ns = clock::now_ns() - begin;
    let total = config.iterations.unwrap_or(u64::MAX);
    let within_ns = config.within.map_or(u64::MAX, nanoseconds);
    if let Some(laps) = config.iterations {
        let expected_ns = u128::from(warm_ns) * u128::from(steps_a_lap) * u128::from(laps)
            / u128::from(warm_steps);
        let expected_ns = u64::try_from(expected_ns).unwrap_or(u64::MAX);
        observer.expected(Duration::from_nanos(expected_ns.min(within_ns)))?;
    }
    observer.started()?;
    let laps_a_look = (LOADS_A_LOOK / lines).max(1);
    let (mut iterations, mut sum) = (0, 0_u64);
    let (mut elapsed_ns, mut clock_reads) = (0, 1);
    let mut part = Part::default();
    let begin = clock::now_ns();
    'laps: while iterations < total && elapsed_ns < within_ns && !stop.requested() {
        let laps = laps_a_look.min(total - iterations);
        let mut of_laps = 0_u64;
        let mut steps = laps * steps_a_lap;
        while steps > 0 {
            let piece = steps.min(LOADS_A_PIECE);
            of_laps = of_laps.wrapping_add(chase(piece));
            steps -= piece;
            if steps > 0 && stop.requested() {
                // With a number of laps, an incomplete one does not count.
                if let Some((chosen, next)) = &order {
                    elapsed_ns = clock::now_ns() - begin;
                    clock_reads += 1;
                    let done = laps * steps_a_lap - steps;
                    iterations += done / steps_a_lap;
                    sum = sum.wrapping_add(of_laps);
                    let line = |place: u32| {
                        mapping.start().addr() + chosen.at(place as usize) * config.buffer.stride
                    };
                    part = Part::of(next, line, warm_steps, done % steps_a_lap, steps_a_lap);
                }
                break 'laps;
            }
        }
        sum = sum.wrapping_add(of_laps);
        iterations += laps;
        elapsed_ns = clock::now_ns() - begin;
        clock_reads += 1;
        observer.done(ratio(iterations, total).max(ratio(elapsed_ns, within_ns)))?;
    }

    let loads = iterations * lines + part.loads;
    if loads == 0 {
        return Err(Error::Invalid(
            "stopped before the first iteration was complete: nothing was measured".into(),
        ));
    }
    let warm_is_wrong = warm_steps == steps_a_lap && warm != sum_of_cycle;
    let expected = sum_of_cycle
        .wrapping_mul(iterations)
        .wrapping_add(part.addresses);
    if warm_is_wrong || sum != expected {
        return Err(Error::Invalid(
            "the chase did not visit every line the same number of times: figures withheld".into(),
        ));
    }
    let latency_ns = ratio(elapsed_ns, loads) * config.mlp_as_f64();
    let bytes = loads * LINE_BYTES as u64;
    let mib_s = mib_s(bytes, elapsed_ns);
    Ok(Outcome {
        cpu: affinity::current()?,
        mlp: config.mlp,
        lines,
        iterations,
        loads,
        elapsed_ns,
        latency_ns,
        mb_s: mib_s * f64::from(1 << 20) / 1e6,
        mib_s,
        readsum: (lines * (lines - 1) / 2)
            .wrapping_mul(iterations)
            .wrapping_add(part.numbers),
        // After the chase: the kernel may have moved and merged pages during it.
        remote_share: remote_share(&mapping),
        huge_bytes: mapping.huge_bytes(),
        touched_pages,
        measuring_cost: MeasuringCost::new(clock_reads, loop_ns_per_touch, elapsed_ns),
    })
}

/// Chases for `steps` steps; returns the sum of the visited addresses. Fails once `stop` is requested.
fn warm_up(mut chase: impl FnMut(u64) -> u64, steps: u64, stop: &Stop) -> Result<u64> {
    let (mut sum, mut left) = (0_u64, steps);
    while left > 0 {
        stop.check_before("the first iteration was complete")?;
        let piece = left.min(LOADS_A_PIECE);
        sum = sum.wrapping_add(chase(piece));
        left -= piece;
    }
    Ok(sum)
}

/// What an incomplete lap visits.
#[derive(Debug, Default, PartialEq, Eq)]
struct Part {
    loads: u64,
    /// Sum of the lines' addresses.
    addresses: u64,
    /// Sum of the lines' numbers.
    numbers: u64,
}

impl Part {
    /// The chases start `steps_a_lap` lines apart on the cycle `next`, and have gone on by `before` lines. Each goes over
    /// `steps` more.
    fn of(
        next: &[u32],
        address: impl Fn(u32) -> usize,
        before: u64,
        steps: u64,
        steps_a_lap: u64,
    ) -> Self {
        let mut part = Self::default();
        if steps == 0 {
            return part;
        }
        let mut number = 0;
        // How far the line is behind the place where the nearest chase before it begins: 0 is the first line that it
        // visits.
        let mut behind = (2 * steps_a_lap - 1 - before % steps_a_lap) % steps_a_lap;
        for _ in next {
            if behind < steps {
                part.loads += 1;
                part.addresses = part.addresses.wrapping_add(address(number) as u64);
                part.numbers = part.numbers.wrapping_add(u64::from(number));
            }
            behind = (behind + 1) % steps_a_lap;
            number = next[number as usize];
        }
        part
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Config {
    fn mlp_as_f64(&self) -> f64 {
        f64::from(u32::try_from(self.mlp).expect("at most MLP_MOST"))
    }
}

/// A line of the buffer: its first word leads to the next.
#[repr(C, align(64))]
struct Line {
    next: *const Line,
}

/// The hot loop: N parallel chases for `steps` steps each, starting at `lines`,
/// which it updates to where they ended; returns the sum of the visited addresses.
///
/// The sum depends on every load and no load depends on the sum. N = 1 is
/// x86-64 `mov (%r),%r; add; dec; jne`, arm64 `ldr; subs; add; b.ne`, both
/// possibly unrolled.
///
/// # Safety
/// `lines` must be lines of a cycle of valid lines.
#[inline(never)]
unsafe fn chase<const N: usize>(lines: &mut [*const Line], steps: u64) -> u64 {
    let mut at = [std::ptr::null(); N];
    at.copy_from_slice(&lines[..N]);
    let mut sum = 0_u64;
    for _ in 0..steps {
        for line in &mut at {
            // SAFETY: the caller's promise. Volatile, so that each load is made.
            *line = unsafe { (&raw const (**line).next).read_volatile() };
            sum = sum.wrapping_add(line.addr() as u64);
        }
    }
    lines[..N].copy_from_slice(&at);
    sum
}

type Chase = unsafe fn(&mut [*const Line], u64) -> u64;

/// More parallel misses than the fill buffers or MSHRs of any current core
/// (6 in a Cortex-A53, 10 to 16 in most Intel and Arm cores, 24 in Zen 3).
const MLP_MOST: usize = 32;

/// `CHASES[n - 1]` runs n chases.
static CHASES: [Chase; MLP_MOST] = {
    macro_rules! chases {
        ($($n:literal)*) => { [$(chase::<$n>),*] };
    }
    chases!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32)
};

/// Links the selected lines of the mapping into the cycle `next`. Returns the `mlp`
/// lines, equally spaced on the cycle, at which the chases start, and the sum of
/// the addresses of one cycle. Fails once `stop` is requested.
fn link(
    mapping: &Mapping,
    stride: usize,
    chosen: &Lines,
    next: &[u32],
    mlp: usize,
    stop: &Stop,
) -> Result<(Vec<*const Line>, u64)> {
    let line = |place: u32| {
        let offset = chosen.at(place as usize) * stride;
        assert!(offset + size_of::<Line>() <= mapping.bytes());
        // SAFETY: within the mapping, as asserted; its start is aligned to a page
        // and the stride is a multiple of a line.
        unsafe { mapping.start().add(offset).cast::<Line>() }
    };
    let mut sum = 0_u64;
    for (place, &next) in (0_u32..).zip(next) {
        if place as usize % LINES_A_LOOK == 0 {
            stop.check_before(PREPARED)?;
        }
        // SAFETY: a line of the mapping, which is ours and writable.
        unsafe { line(place).write(Line { next: line(next) }) };
        sum = sum.wrapping_add(line(place).addr() as u64);
    }
    let apart = next.len() / mlp;
    let (mut starts, mut place) = (vec![line(0).cast_const()], 0);
    for step in 1..=apart * (mlp - 1) {
        if step % LINES_A_LOOK == 0 {
            stop.check_before(PREPARED)?;
        }
        place = next[place as usize];
        if step % apart == 0 {
            starts.push(line(place));
        }
    }
    Ok((starts, sum))
}

/// The cycle in address order.
fn ring(lines: u32) -> Vec<u32> {
    (1..lines).chain([0]).collect()
}

/// A random cycle through all lines: Sattolo, "An algorithm to generate a random
/// cyclic permutation", Information Processing Letters 22 (1986). (A plain
/// shuffle would give several cycles, and the chase would stay in one of them.)
/// Fails once `stop` is requested.
fn sattolo(lines: u32, seed: u64, stop: &Stop) -> Result<Vec<u32>> {
    let mut next: Vec<u32> = (0..lines).collect();
    let mut random = SplitMix::new(seed);
    for last in (1..lines as usize).rev() {
        if last % LINES_A_LOOK == 0 {
            stop.check_before(PREPARED)?;
        }
        next.swap(last, random.below(last));
    }
    Ok(next)
}

/// The chase on one line that points to itself: the latency of the first-level
/// cache, a lower bound of every figure.
fn floor() -> Result<f64> {
    let mapping = BufferConfig {
        bytes: LINE_BYTES,
        ..BufferConfig::default()
    }
    .map(&Stop::new())?;
    let (mut starts, _) = link(&mapping, LINE_BYTES, &Lines::all(1), &[0], 1, &Stop::new())?;
    // About 50 us: long compared with the clock's cost, short compared with a tick.
    let steps = 1 << 15;
    let best = (0..8).map(|_| {
        let begin = clock::now_ns();
        // SAFETY: a cycle of one line.
        unsafe { chase::<1>(&mut starts, steps) };
        clock::now_ns() - begin
    });
    Ok(ratio(best.min().unwrap_or(0), steps))
}

/// Its description for the command line.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: "latency",
    help: "Measures memory latency: a pointer chase over a random cycle of cache lines",
    limits: &[
        Limit {
            option: "-i",
            least: 0,
            most: u32::MAX as u64,
        },
        Limit {
            option: "--mlp",
            least: 1,
            most: MLP_MOST as u64,
        },
    ],
};

#[cfg(test)]
mod tests {
    use super::*;

    fn cycle_length(next: &[u32]) -> usize {
        1 + std::iter::successors(Some(next[0]), |&at| Some(next[at as usize]))
            .take_while(|&at| at != 0)
            .count()
    }

    proptest::proptest! {
        #[test]
        fn the_order_is_one_cycle_over_all_lines(lines in 1..2000_u32, seed: u64) {
            proptest::prop_assert_eq!(cycle_length(&sattolo(lines, seed, &Stop::new()).unwrap()), lines as usize);
            proptest::prop_assert_eq!(cycle_length(&ring(lines)), lines as usize);
        }

        #[test]
        fn chases_visit_every_line_as_often_as_asked(kib in 1..64_usize, mlp in 1..=16_usize, iterations in 1..4_u64, seed: u64) {
            let config = Config {
                buffer: BufferConfig { bytes: kib << 10, ..Default::default() },
                iterations: Some(iterations), mlp, seed, ..Default::default()
            };
            let outcome = run(&config, &Stop::new(), &mut ()).unwrap();
            let lines = (kib * 16 / mlp * mlp) as u64;
            proptest::prop_assert_eq!(outcome.lines, lines);
            proptest::prop_assert_eq!(outcome.loads, lines * iterations);
            proptest::prop_assert_eq!(outcome.readsum, lines * (lines - 1) / 2 * iterations);
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_order_and_another_another() {
        let order = |seed| sattolo(100, seed, &Stop::new()).unwrap();
        assert_eq!(order(7), order(7));
        assert_ne!(order(7), order(8));
    }

    #[test]
    fn impossible_configurations_are_refused() {
        let small = BufferConfig {
            bytes: 1024,
            ..Default::default()
        };
        for (config, why) in [
            (
                Config {
                    mlp: 0,
                    ..Default::default()
                },
                "1 to 32",
            ),
            (
                Config {
                    mlp: 33,
                    ..Default::default()
                },
                "1 to 32",
            ),
            (
                Config {
                    iterations: Some(0),
                    ..Default::default()
                },
                "measure nothing",
            ),
            (
                Config {
                    mlp: 17,
                    buffer: small,
                    ..Default::default()
                },
                "too few",
            ),
        ] {
            let message = run(&config, &Stop::new(), &mut ()).unwrap_err().to_string();
            assert!(message.contains(why), "{message}");
        }
    }

    #[test]
    fn a_time_ends_the_run_with_the_lap_that_reaches_it() {
        let config = Config {
            buffer: BufferConfig {
                bytes: 1 << 20,
                ..Default::default()
            },
            within: Some(Duration::from_nanos(1)),
            ..Default::default()
        };
        let outcome = run(&config, &Stop::new(), &mut ()).unwrap();
        assert_eq!(outcome.iterations, LOADS_A_LOOK / outcome.lines);
    }

    /// Records the calls of an observer.
    #[derive(Default)]
    struct Told {
        preparing: Vec<u64>,
        expected: Option<Duration>,
        done: Vec<f64>,
    }

    impl Observer for Told {
        fn preparing(&mut self, bytes: u64) -> Result<()> {
            self.preparing.push(bytes);
            Ok(())
        }

        fn expected(&mut self, time: Duration) -> Result<()> {
            self.expected = Some(time);
            Ok(())
        }

        fn done(&mut self, share: f64) -> Result<()> {
            self.done.push(share);
            Ok(())
        }
    }

    #[test]
    fn how_long_it_takes_and_how_far_it_is_are_told() {
        let config = Config {
            buffer: BufferConfig {
                bytes: 4 << 20,
                ..Default::default()
            },
            iterations: Some(4),
            ..Default::default()
        };
        let mut told = Told::default();
        run(&config, &Stop::new(), &mut told).unwrap();
        assert_eq!(told.preparing, [4 << 20]);
        assert!(told.expected.is_some_and(|time| !time.is_zero()));
        assert_eq!(told.done, [0.25, 0.5, 0.75, 1.0]);
    }

    #[test]
    fn an_incomplete_lap_visits_what_the_chases_visit() {
        for (lines, mlp, before) in [(12, 1, 12), (12, 3, 4), (96, 4, 5), (90, 3, 31)] {
            let bytes = lines as usize * LINE_BYTES;
            let mapping = Mapping::anonymous(bytes).unwrap();
            let next = sattolo(lines, 7, &Stop::new()).unwrap();
            let all = Lines::all(lines as usize);
            let (mut at, _) = link(&mapping, LINE_BYTES, &all, &next, mlp, &Stop::new()).unwrap();
            let steps_a_lap = u64::from(lines) / mlp as u64;
            // SAFETY: the lines are linked into one cycle within the mapping.
            let mut chase = |steps| unsafe { CHASES[mlp - 1](&mut at, steps) };
            chase(before);
            let mut gone = before;
            for steps in 0..steps_a_lap {
                let address = |place| mapping.start().addr() + place as usize * LINE_BYTES;
                let part = Part::of(&next, address, gone, steps, steps_a_lap);
                assert_eq!(part.loads, steps * mlp as u64);
                assert_eq!(part.addresses, chase(steps), "{lines} {mlp} {gone} {steps}");
                let first = mapping.start().addr() as u64;
                let numbers = (part.addresses - part.loads * first) / LINE_BYTES as u64;
                assert_eq!(part.numbers, numbers);
                gone += steps;
            }
        }
    }

    #[test]
    fn without_a_number_of_laps_an_incomplete_one_counts() {
        struct EndsSoon(Stop);
        impl Observer for EndsSoon {
            fn started(&mut self) -> Result<()> {
                let stop = self.0.clone();
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(1));
                    stop.request();
                });
                Ok(())
            }
        }
        // A lap of three pieces.
        let config = Config {
            buffer: BufferConfig {
                bytes: 192 << 20,
                ..Default::default()
            },
            sequential: true,
            iterations: None,
            ..Default::default()
        };
        // On a busy machine the thread may be faster than the first look at the stop.
        let outcome = (0..20).find_map(|_| {
            let stop = Stop::new();
            run(&config, &stop, &mut EndsSoon(stop.clone())).ok()
        });
        let outcome = outcome.expect("nothing was measured");
        assert!(outcome.loads > 0 && outcome.loads % LOADS_A_PIECE == 0);
        assert_eq!(outcome.iterations, outcome.loads / outcome.lines);
    }

    #[test]
    fn a_stop_ends_the_preparation() {
        let stop = Stop::new();
        stop.request();
        let lines = LINES_A_LOOK as u32 + 2;
        assert!(sattolo(lines, 7, &stop).is_err());

        let mapping = Mapping::anonymous(2 * LINE_BYTES).unwrap();
        let two = Lines::all(2);
        assert!(link(&mapping, LINE_BYTES, &two, &[1, 0], 1, &stop).is_err());
        let (starts, _) = link(&mapping, LINE_BYTES, &two, &[1, 0], 2, &Stop::new()).unwrap();
        assert_eq!(starts[1].addr() - starts[0].addr(), LINE_BYTES);
    }

    #[test]
    fn a_stop_ends_the_lap_that_warms_up() {
        let (stop, mut pieces) = (Stop::new(), Vec::new());
        let mut chase = |steps| {
            pieces.push(steps);
            steps
        };
        let steps = 2 * LOADS_A_PIECE + 5;
        assert_eq!(warm_up(&mut chase, steps, &stop).unwrap(), steps);
        assert_eq!(pieces, [LOADS_A_PIECE, LOADS_A_PIECE, 5]);
        let mut chased = 0;
        let mut chase = |steps| {
            stop.request();
            chased += steps;
            steps
        };
        assert!(warm_up(&mut chase, steps, &stop).is_err());
        assert_eq!(chased, LOADS_A_PIECE);
    }

    #[test]
    fn a_run_stopped_at_once_gives_no_figure() {
        let stop = Stop::new();
        stop.request();
        let message = run(&Config::default(), &stop, &mut ())
            .unwrap_err()
            .to_string();
        assert!(message.contains("nothing was measured"), "{message}");
    }
}
