// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a simulated core does: the workloads of the real experiments, as steps.

use std::fmt;

/// What a core does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Work, then touch a byte of its buffer.
    Touch {
        /// What comes before, ps.
        work_ps: u64,
        /// The byte, from the buffer's begin.
        offset: u64,
        /// Written, not read.
        store: bool,
        /// Nothing goes on before the value is there: the next address comes of it.
        depends: bool,
    },
    /// Wait until everything is there that was asked for, and ask again.
    Settle,
    /// Do nothing until then, ps; the core counts as idle.
    Sleep {
        /// When to go on.
        until_ps: u64,
    },
    /// Nothing more.
    End,
}

/// A workload on one core.
pub trait Workload: fmt::Debug + Send {
    /// What comes next; `now_ps` is the simulated time.
    fn next(&mut self, now_ps: u64) -> Step;

    /// How many bytes of memory it has for its own.
    fn buffer_bytes(&self) -> u64;

    /// Of a periodic task: when each job was released and done, ps.
    fn jobs(&self) -> &[Job] {
        &[]
    }
}

/// A job of a periodic task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// Which release it is of, from 0.
    pub number: u64,
    /// When it might begin, ps.
    pub released_ps: u64,
    /// When its last line was there, ps.
    pub done_ps: u64,
}

/// `latency`: one cycle through all lines in random order, each load's address from
/// the load before.
#[derive(Debug)]
pub struct Chase {
    next: Box<[u32]>,
    at: u32,
    line_bytes: u64,
    work_ps: u64,
}

impl Chase {
    /// Over `bytes`, by Sattolo's algorithm, so that it is one cycle. `work_ps` a load.
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

/// What a stream does with a line of one of its arrays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Use {
    /// Which of its arrays: the buffer is divided among them.
    pub array: u64,
    /// Written, not read.
    pub store: bool,
}

/// What the kinds of `bandwidth` do with a line, as the real ones do.
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
    /// Over `bytes`, with `work_ps` a line, written or read.
    #[must_use]
    pub fn new(bytes: u64, line_bytes: u64, store: bool, work_ps: u64) -> Self {
        let uses = USES[usize::from(store)].1;
        Self::of(uses, bytes, line_bytes, work_ps)
    }

    /// Over `bytes`, that are divided among as many arrays as `uses` name; `work_ps`
    /// for each line of the first.
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

/// What an X server does that has a terminal to scroll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScrollSettings {
    /// What one scroll moves, bytes.
    pub bytes: u64,
    /// What it moves in one go, bytes; drawing is divided among these bursts.
    pub burst_bytes: u64,
    /// Work for each line that it moves, ps.
    pub line_ps: u64,
    /// Drawing of one scroll, on average, ps.
    pub draw_ps: u64,
    /// Waiting after a scroll, on average, ps.
    pub pause_ps: u64,
}

/// An X server with a terminal that scrolls: it moves some lines, draws, moves the next
/// ones, and waits for more.
#[derive(Debug)]
pub struct Scroll {
    stream: Stream,
    pause_ps: u64,
    draw_ps: u64,
    /// Lines of one scroll, and those that are left of it.
    lines: u64,
    lines_left: u64,
    /// Steps that are left of one burst.
    left: u64,
    /// Bursts of one scroll, and those that are left of it.
    bursts: u64,
    bursts_left: u64,
    /// Drawing after each burst of this scroll, and what is left of it.
    drawing_ps: u64,
    to_draw_ps: u64,
    random: fastrand::Rng,
}

impl Scroll {
    /// Drawing is done in pieces no longer than this: a core that is stopped doesn't draw.
    const PIECE_PS: u64 = 10_000_000;

    /// Moves lines within a buffer of `buffer_bytes`. It draws and waits for half to one
    /// and a half times what the settings say. The bursts of a scroll differ by a line at most.
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

/// Frames that the periodic task goes through in turn: one is filled while the other is
/// read. A frame that a cache could hold comes from memory all the same, as whatever
/// fills it has it written there.
const FRAMES: u64 = 2;

/// The periodic task: each period it reads a frame, in order. Releases that come up
/// while a job still runs are skipped, as the real one does.
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
    /// `releases` of them, one each `period_ps`; each job reads `frame_bytes` with
    /// `work_ps` a line. If it `depends` on a line, it waits for that before the next.
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

/// A core that has nothing to do.
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
