// SPDX-License-Identifier: MIT OR Apache-2.0
//! The simulated cores' workloads: those of the real experiments, as steps.

use std::fmt;

/// A core's next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Work, then touch a byte of its buffer.
    Touch {
        /// Time of the work before it, ps.
        work_ps: u64,
        /// The byte's offset in the buffer.
        offset: u64,
        /// Whether it is written, not read.
        store: bool,
        /// Whether the workload needs the value to continue: the next address depends on it.
        depends: bool,
    },
    /// Wait until all requested lines have arrived, then ask again.
    Settle,
    /// Do nothing until this time, ps; the core counts as idle.
    Sleep {
        /// The time to continue.
        until_ps: u64,
    },
    /// The workload has ended.
    End,
}

/// A workload on one core.
pub trait Workload: fmt::Debug + Send {
    /// The next step; `now_ps` is the simulated time.
    fn next(&mut self, now_ps: u64) -> Step;

    /// Bytes of memory of its own.
    fn buffer_bytes(&self) -> u64;

    /// Times of release and end of each job of a periodic task, ps.
    fn jobs(&self) -> &[Job] {
        &[]
    }

    /// The bank of the memory that has its whole buffer, if it is in one bank.
    fn bank(&self) -> Option<usize> {
        None
    }
}

/// A workload whose buffer is in one bank of the memory, as a program arranges it that knows
/// the mapping of addresses. Consecutive lines of the buffer are in different rows.
#[derive(Debug)]
pub struct InBank {
    workload: Box<dyn Workload>,
    bank: usize,
}

impl InBank {
    /// The same workload in a bank.
    #[must_use]
    pub fn new(workload: Box<dyn Workload>, bank: usize) -> Self {
        Self { workload, bank }
    }
}

impl Workload for InBank {
    fn next(&mut self, now_ps: u64) -> Step {
        self.workload.next(now_ps)
    }

    fn buffer_bytes(&self) -> u64 {
        self.workload.buffer_bytes()
    }

    fn jobs(&self) -> &[Job] {
        self.workload.jobs()
    }

    fn bank(&self) -> Option<usize> {
        Some(self.bank)
    }
}

/// What follows the name of a workload in one bank: `latency:bank=0`.
pub const BANK: &str = ":bank=";

/// Splits the name of a workload in one bank: `latency:bank=0`. Only `latency` and `bandwidth:KIND` can
/// be in one.
#[must_use]
pub fn split_bank(name: &str) -> Option<(&str, usize)> {
    let (kind, bank) = name.rsplit_once(BANK)?;
    let movable = kind == "latency" || kind.starts_with("bandwidth:");
    let digits = bank.bytes().all(|byte| byte.is_ascii_digit());
    bank.parse()
        .ok()
        .filter(|_| movable && digits)
        .map(|bank| (kind, bank))
}

/// A job of a periodic task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// The number of its release, from 0.
    pub number: u64,
    /// Its release, ps.
    pub released_ps: u64,
    /// The arrival of its last line, ps.
    pub done_ps: u64,
}

/// `latency`: one cycle through all lines in random order; each load's address depends on the
/// previous load.
#[derive(Debug)]
pub struct Chase {
    next: Box<[u32]>,
    at: u32,
    line_bytes: u64,
    work_ps: u64,
}

impl Chase {
    /// Over `bytes`, by Sattolo's algorithm, so that it is one cycle. `work_ps` for each load.
    ///
    /// # Panics
    /// With fewer than two lines, or more than 2^32.
    #[must_use]
    pub fn new(bytes: u64, line_bytes: u64, work_ps: u64, seed: u64) -> Self {
        let lines = u32::try_from(bytes / line_bytes).expect("at most 2^32 lines");
        assert!(lines > 1, "a cycle has two lines or more");
        let mut random = fastrand::Rng::with_seed(seed);
        let mut next: Box<[u32]> = (0..lines).collect();
        for last in (1..next.len()).rev() {
            next.swap(last, random.usize(..last));
        }
        Self {
            next,
            at: 0,
            line_bytes,
            work_ps,
        }
    }
}

impl Workload for Chase {
    fn next(&mut self, _now_ps: u64) -> Step {
        let offset = u64::from(self.at) * self.line_bytes;
        self.at = self.next[self.at as usize];
        Step::Touch {
            work_ps: self.work_ps,
            offset,
            store: false,
            depends: true,
        }
    }

    fn buffer_bytes(&self) -> u64 {
        self.next.len() as u64 * self.line_bytes
    }
}

/// A stream's access to a line of one of its arrays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Use {
    /// The array: the buffer is divided among them.
    pub array: u64,
    /// Whether it is written, not read.
    pub store: bool,
}

/// The accesses of the kinds of `bandwidth` to a line, as in the real workloads.
pub const USES: [(&str, &[Use]); 6] = [
    ("read", &[load(0)]),
    ("write", &[store(0)]),
    ("readwrite", &[load(0), store(0)]),
    ("copy", &[load(0), store(1)]),
    ("triad", &[load(0), load(1), store(2)]),
    // Scrolling moves lines within one frame buffer: as a copy, it reads one and writes one.
    ("screen", &[load(0), store(1)]),
];

const fn load(array: u64) -> Use {
    Use {
        array,
        store: false,
    }
}

const fn store(array: u64) -> Use {
    Use { array, store: true }
}

/// `bandwidth`: a word of each line, in order, again and again.
#[derive(Debug, Clone)]
pub struct Stream {
    uses: &'static [Use],
    array_bytes: u64,
    line_bytes: u64,
    at: u64,
    next_use: usize,
    work_ps: u64,
}

impl Stream {
    /// Over `bytes`, with `work_ps` per line, written or read.
    #[must_use]
    pub fn new(bytes: u64, line_bytes: u64, store: bool, work_ps: u64) -> Self {
        let uses = USES[usize::from(store)].1;
        Self::of(uses, bytes, line_bytes, work_ps)
    }

    /// Over `bytes`, divided among the arrays that `uses` names; `work_ps` for each line of the
    /// first.
    #[must_use]
    pub fn of(uses: &'static [Use], bytes: u64, line_bytes: u64, work_ps: u64) -> Self {
        let arrays = uses.iter().map(|one| one.array + 1).max().unwrap_or(1);
        Self {
            uses,
            array_bytes: (bytes / arrays / line_bytes).max(1) * line_bytes,
            line_bytes,
            at: 0,
            next_use: 0,
            work_ps,
        }
    }
}

impl Workload for Stream {
    fn next(&mut self, _now_ps: u64) -> Step {
        let Use { array, store } = self.uses[self.next_use];
        let offset = array * self.array_bytes + self.at;
        let work_ps = if self.next_use == 0 { self.work_ps } else { 0 };
        self.next_use += 1;
        if self.next_use == self.uses.len() {
            self.next_use = 0;
            self.at += self.line_bytes;
            if self.at >= self.array_bytes {
                self.at = 0;
            }
        }
        Step::Touch {
            work_ps,
            offset,
            store,
            depends: false,
        }
    }

    fn buffer_bytes(&self) -> u64 {
        let arrays = self.uses.iter().map(|one| one.array + 1).max().unwrap_or(1);
        arrays * self.array_bytes
    }
}

/// Settings of an X server that scrolls a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScrollSettings {
    /// Bytes moved by one scroll.
    pub bytes: u64,
    /// Bytes moved in one burst; the drawing is divided among these bursts.
    pub burst_bytes: u64,
    /// Work for each moved line, ps.
    pub line_ps: u64,
    /// Drawing of one scroll, on average, ps.
    pub draw_ps: u64,
    /// Pause after a scroll, on average, ps.
    pub pause_ps: u64,
}

/// An X server that scrolls a terminal: it moves some lines, draws, moves the next ones, and
/// pauses before the next scroll.
#[derive(Debug)]
pub struct Scroll {
    stream: Stream,
    pause_ps: u64,
    draw_ps: u64,
    /// Lines of one scroll, and those still to move.
    lines: u64,
    lines_left: u64,
    /// Remaining steps of the current burst.
    left: u64,
    /// Bursts of one scroll, and those still to come.
    bursts: u64,
    bursts_left: u64,
    /// Drawing after each burst of this scroll, and its remaining time.
    drawing_ps: u64,
    to_draw_ps: u64,
    random: fastrand::Rng,
}

impl Scroll {
    /// Drawing is divided into pieces of at most this length, since a throttled core doesn't
    /// draw.
    const PIECE_PS: u64 = 10_000_000;

    /// Moves lines within a buffer of `buffer_bytes`. It draws and pauses for half to one and a
    /// half times the settings. The bursts of a scroll differ by a line at most.
    #[must_use]
    pub fn new(settings: ScrollSettings, buffer_bytes: u64, line_bytes: u64, seed: u64) -> Self {
        let lines = settings.bytes.div_ceil(line_bytes).max(1);
        let burst_lines = (settings.burst_bytes / line_bytes).clamp(1, lines);
        let mut scroll = Self {
            stream: Stream::of(USES[5].1, buffer_bytes, line_bytes, settings.line_ps),
            pause_ps: settings.pause_ps,
            draw_ps: settings.draw_ps,
            lines,
            lines_left: 0,
            left: 0,
            bursts: lines.div_ceil(burst_lines),
            bursts_left: 0,
            drawing_ps: 0,
            to_draw_ps: 0,
            random: fastrand::Rng::with_seed(seed),
        };
        scroll.begin();
        scroll
    }

    fn about(&mut self, time_ps: u64) -> u64 {
        time_ps / 2 + self.random.u64(..=time_ps)
    }

    fn begin(&mut self) {
        self.lines_left = self.lines;
        self.bursts_left = self.bursts;
        self.drawing_ps = self.about(self.draw_ps) / self.bursts;
        self.begin_burst();
    }

    fn begin_burst(&mut self) {
        let lines = self.lines_left.div_ceil(self.bursts_left);
        self.lines_left -= lines;
        // A line is read and written.
        self.left = 2 * lines;
        self.to_draw_ps = self.drawing_ps;
    }
}

impl Workload for Scroll {
    fn next(&mut self, now_ps: u64) -> Step {
        if self.left > 0 {
            self.left -= 1;
            return self.stream.next(now_ps);
        }
        if self.to_draw_ps > 0 {
            let work_ps = self.to_draw_ps.min(Self::PIECE_PS);
            self.to_draw_ps -= work_ps;
            return Step::Touch {
                work_ps,
                offset: 0,
                store: false,
                depends: false,
            };
        }
        self.bursts_left -= 1;
        if self.bursts_left > 0 {
            self.begin_burst();
            return self.next(now_ps);
        }
        self.begin();
        Step::Sleep {
            until_ps: now_ps + self.about(self.pause_ps),
        }
    }

    fn buffer_bytes(&self) -> u64 {
        self.stream.buffer_bytes()
    }
}

/// Frames that the periodic task uses in turn: one is filled while the other is read. Even a
/// frame that fits in a cache comes from memory, since the device or program that fills it
/// writes it to memory.
const FRAMES: u64 = 2;

/// The periodic task: each period it reads a frame, in order. Releases that occur while a job
/// still runs are skipped, as in the real task.
#[derive(Debug)]
pub struct Periodic {
    frame_bytes: u64,
    line_bytes: u64,
    work_ps: u64,
    depends: bool,
    period_ps: u64,
    releases: u64,
    at: u64,
    settled: bool,
    number: u64,
    jobs: Vec<Job>,
}

impl Periodic {
    /// `releases` of them, one per `period_ps`; each job reads `frame_bytes` with `work_ps` per
    /// line. If it `depends` on a line, it waits for that line before the next.
    #[must_use]
    pub fn new(
        frame_bytes: u64,
        line_bytes: u64,
        work_ps: u64,
        depends: bool,
        period_ps: u64,
        releases: u64,
    ) -> Self {
        Self {
            frame_bytes: (frame_bytes / line_bytes).max(1) * line_bytes,
            line_bytes,
            work_ps,
            depends,
            period_ps,
            releases,
            at: 0,
            settled: false,
            number: 0,
            jobs: Vec::new(),
        }
    }

    fn released_ps(&self) -> u64 {
        self.number * self.period_ps
    }
}

impl Workload for Periodic {
    fn next(&mut self, now_ps: u64) -> Step {
        if self.at == self.frame_bytes {
            if !self.settled {
                self.settled = true;
                return Step::Settle;
            }
            self.jobs.push(Job {
                number: self.number,
                released_ps: self.released_ps(),
                done_ps: now_ps,
            });
            self.number = now_ps.div_ceil(self.period_ps).max(self.number + 1);
            self.at = 0;
            self.settled = false;
        }
        if self.number >= self.releases {
            return Step::End;
        }
        if self.at == 0 && now_ps < self.released_ps() {
            return Step::Sleep {
                until_ps: self.released_ps(),
            };
        }
        let offset = self.jobs.len() as u64 % FRAMES * self.frame_bytes + self.at;
        self.at += self.line_bytes;
        Step::Touch {
            work_ps: self.work_ps,
            offset,
            store: false,
            depends: self.depends,
        }
    }

    fn buffer_bytes(&self) -> u64 {
        FRAMES * self.frame_bytes
    }

    fn jobs(&self) -> &[Job] {
        &self.jobs
    }
}

/// A core without work.
#[derive(Debug, Clone, Copy)]
pub struct Idle;

impl Workload for Idle {
    fn next(&mut self, _now_ps: u64) -> Step {
        Step::End
    }

    fn buffer_bytes(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offset(step: Step) -> u64 {
        match step {
            Step::Touch { offset, .. } => offset,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_chase_comes_by_every_line_once() {
        let mut chase = Chase::new(64 * 1000, 64, 0, 5);
        let mut seen: Vec<_> = (0..1000).map(|_| offset(chase.next(0)) / 64).collect();
        assert_eq!(offset(chase.next(0)) / 64, seen[0]);
        seen.sort_unstable();
        assert_eq!(seen, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn a_stream_begins_anew_at_its_end() {
        let mut stream = Stream::new(200, 64, true, 0);
        let seen: Vec<_> = (0..5).map(|_| offset(stream.next(0))).collect();
        assert_eq!(seen, [0, 64, 128, 0, 64]);
    }

    #[test]
    fn a_copy_reads_one_array_and_writes_the_other() {
        let mut copy = Stream::of(USES[3].1, 256, 64, 5);
        let steps: Vec<_> = (0..5)
            .map(|_| match copy.next(0) {
                Step::Touch {
                    offset,
                    store,
                    work_ps,
                    ..
                } => (offset, store, work_ps),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(
            steps,
            [
                (0, false, 5),
                (128, true, 0),
                (64, false, 5),
                (192, true, 0),
                (0, false, 5)
            ]
        );
        assert_eq!(copy.buffer_bytes(), 256);
    }

    #[test]
    fn an_x_server_draws_after_each_burst_and_waits_after_each_scroll() {
        let settings = ScrollSettings {
            bytes: 256,
            burst_bytes: 128,
            line_ps: 0,
            draw_ps: 30_000_000,
            pause_ps: 1000,
        };
        let mut scroll = Scroll::new(settings, 1024, 64, 1);
        for _ in 0..3 {
            let mut drawn_ps = [0; 2];
            for burst in &mut drawn_ps {
                (0..4).for_each(|_| {
                    assert!(matches!(scroll.next(7), Step::Touch { work_ps: 0, .. }));
                });
                while scroll.to_draw_ps > 0 {
                    match scroll.next(7) {
                        Step::Touch { work_ps, .. } => {
                            assert!(work_ps <= Scroll::PIECE_PS);
                            *burst += work_ps;
                        }
                        other => panic!("{other:?}"),
                    }
                }
            }
            assert_eq!(drawn_ps[0], drawn_ps[1]);
            assert!(
                (7_500_000..=22_500_000).contains(&drawn_ps[0]),
                "{drawn_ps:?}"
            );
            match scroll.next(7) {
                Step::Sleep { until_ps } => assert!((507..=1507).contains(&until_ps)),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_scroll_that_its_bursts_do_not_divide_is_moved_whole() {
        for (bytes, burst_bytes, bursts) in [
            (10 * 64, 4 * 64, vec![4, 3, 3]),
            (10 * 64, 6 * 64, vec![5, 5]),
            (7 * 64, 5 * 64 + 1, vec![4, 3]),
            (100, 1 << 20, vec![2]),
            (0, 0, vec![1]),
        ] {
            let settings = ScrollSettings {
                bytes,
                burst_bytes,
                line_ps: 0,
                draw_ps: 100_000,
                pause_ps: 0,
            };
            let mut scroll = Scroll::new(settings, 1024, 64, 1);
            for _ in 0..3 {
                let mut moved = vec![0];
                loop {
                    match scroll.next(0) {
                        Step::Touch {
                            work_ps: 0, store, ..
                        } => *moved.last_mut().unwrap() += u64::from(store),
                        Step::Touch { .. } => moved.push(0),
                        other => {
                            assert_eq!(other, Step::Sleep { until_ps: 0 });
                            break;
                        }
                    }
                }
                // The last burst's drawing ends the scroll.
                assert_eq!(moved.pop(), Some(0));
                assert_eq!(moved, bursts, "{bytes} in bursts of {burst_bytes}");
            }
        }
    }

    #[test]
    fn a_job_is_done_when_all_is_there_and_the_next_waits_for_its_release() {
        let mut task = Periodic::new(128, 64, 0, false, 1000, 4);
        assert_eq!(offset(task.next(0)), 0);
        assert_eq!(offset(task.next(10)), 64);
        assert_eq!(task.next(20), Step::Settle);
        assert_eq!(task.next(300), Step::Sleep { until_ps: 1000 });
        assert_eq!(offset(task.next(1000)), 128);
        assert_eq!(offset(task.next(1010)), 192);
        assert_eq!(task.next(1020), Step::Settle);
        // The third was released while the second still ran.
        assert_eq!(task.next(2500), Step::Sleep { until_ps: 3000 });
        assert_eq!(offset(task.next(3000)), 0);
        assert_eq!(offset(task.next(3010)), 64);
        assert_eq!(task.next(3020), Step::Settle);
        assert_eq!(task.next(3100), Step::End);
        let jobs: Vec<_> = task
            .jobs()
            .iter()
            .map(|job| (job.number, job.done_ps))
            .collect();
        assert_eq!(jobs, [(0, 300), (1, 2500), (3, 3100)]);
    }
}
