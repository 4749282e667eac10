// SPDX-License-Identifier: MIT OR Apache-2.0
//! A stream prefetcher: lines requested in ascending or descending order.
//!
//! A table holds the most recently requested pages (of 4 KiB, whatever the TLB's page size: a
//! prefetcher behind the translation does not know it), and for each its last line, its
//! direction, and the number of steps in that direction. From `trigger_steps` steps on, each
//! further line makes it fetch up to `degree` lines: none twice, none more than `distance`
//! lines ahead, and none outside the page. A step may skip lines. A step in the other direction
//! begins a new stream.

use crate::geometry::Prefetcher;
use crate::sets::NONE;

/// Prefetchers stay in a page of this size, the smallest.
pub(crate) const PAGE_BITS: u32 = 12;

/// The table.
#[derive(Debug, Clone)]
pub struct Streams {
    settings: Prefetcher,
    streams: Box<[Stream]>,
    /// The stream that was used last: mostly the next one, too.
    last: usize,
    time: u64,
    /// Lines per page, as a power of two.
    page_line_bits: u32,
}

#[derive(Debug, Clone, Copy)]
struct Stream {
    page: u64,
    last_line: u64,
    ascending: bool,
    steps: u64,
    /// The furthest line that was requested.
    ahead: u64,
    used: u64,
}

const UNUSED: Stream = Stream {
    page: NONE,
    last_line: 0,
    ascending: true,
    steps: 0,
    ahead: 0,
    used: 0,
};

/// Lines to fetch: `count` of them after `from`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    from: u64,
    count: u64,
    ascending: bool,
}

impl Ask {
    /// The lines, nearest first.
    pub fn lines(self) -> impl Iterator<Item = u64> {
        (1..=self.count).map(move |n| {
            if self.ascending {
                self.from + n
            } else {
                self.from - n
            }
        })
    }
}

impl Streams {
    /// An empty table, for lines of `2^line_bits` bytes.
    #[must_use]
    pub fn new(settings: &Prefetcher, line_bits: u32) -> Self {
        Self {
            settings: settings.clone(),
            streams: vec![UNUSED; settings.streams].into_boxed_slice(),
            last: 0,
            time: 0,
            page_line_bits: PAGE_BITS - line_bits,
        }
    }

    /// Forgets all streams.
    pub fn clear(&mut self) {
        self.streams.fill(UNUSED);
    }

    /// The core requested `line`. Returns the lines to fetch.
    #[inline]
    pub fn train(&mut self, line: u64) -> Option<Ask> {
        self.time += 1;
        let page = line >> self.page_line_bits;
        if self.streams[self.last].page != page {
            let known = self.streams.iter().position(|stream| stream.page == page);
            let Some(known) = known else {
                let streams = self.streams.iter().enumerate();
                let (oldest, _) = streams.min_by_key(|(_, stream)| stream.used)?;
                self.streams[oldest] = Stream {
                    page,
                    last_line: line,
                    used: self.time,
                    ..UNUSED
                };
                self.last = oldest;
                return None;
            };
            self.last = known;
        }
        let stream = &mut self.streams[self.last];
        stream.used = self.time;
        if line == stream.last_line {
            return None;
        }
        let ascending = line > stream.last_line;
        stream.last_line = line;
        if stream.steps == 0 || ascending != stream.ascending {
            stream.ascending = ascending;
            stream.steps = 0;
            stream.ahead = line;
        }
        stream.steps += 1;
        if stream.steps < self.settings.trigger_steps {
            return None;
        }
        let first_of_page = page << self.page_line_bits;
        let last_of_page = first_of_page | ((1 << self.page_line_bits) - 1);
        let (from, possible);
        if ascending {
            from = stream.ahead.max(line);
            let limit = last_of_page.min(line.saturating_add(self.settings.distance));
            possible = limit.saturating_sub(from);
        } else {
            from = stream.ahead.min(line);
            let limit = first_of_page.max(line.saturating_sub(self.settings.distance));
            possible = from.saturating_sub(limit);
        }
        let count = possible.min(self.settings.degree);
        stream.ahead = if ascending {
            from + count
        } else {
            from - count
        };
        (count > 0).then_some(Ask {
            from,
            count,
            ascending,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::PrefetchInto;

    fn streams() -> Streams {
        let settings = Prefetcher {
            into: PrefetchInto::L2,
            streams: 2,
            trigger_steps: 2,
            degree: 2,
            distance: 5,
        };
        Streams::new(&settings, 6)
    }

    fn asked(streams: &mut Streams, line: u64) -> Vec<u64> {
        let ask = streams.train(line);
        ask.into_iter().flat_map(Ask::lines).collect()
    }

    #[test]
    fn an_ascending_stream_runs_ahead_up_to_its_distance() {
        let mut streams = streams();
        assert!(asked(&mut streams, 10).is_empty());
        assert!(asked(&mut streams, 11).is_empty());
        assert_eq!(asked(&mut streams, 12), [13, 14]);
        assert_eq!(asked(&mut streams, 13), [15, 16]);
        assert_eq!(asked(&mut streams, 14), [17, 18]);
        assert_eq!(asked(&mut streams, 15), [19, 20]);
        assert_eq!(asked(&mut streams, 16), [21]);
        assert!(asked(&mut streams, 16).is_empty(), "the same line again");
        assert_eq!(asked(&mut streams, 17), [22]);
        assert_eq!(asked(&mut streams, 30), [31, 32], "lines left out");
    }

    #[test]
    fn a_descending_stream_ends_with_its_page() {
        let mut streams = streams();
        for line in [68, 67] {
            assert!(asked(&mut streams, line).is_empty());
        }
        assert_eq!(asked(&mut streams, 66), [65, 64]);
        assert!(asked(&mut streams, 65).is_empty(), "63 is in another page");
        assert!(asked(&mut streams, 63).is_empty(), "its page has one line");
    }

    #[test]
    fn a_turn_begins_anew() {
        let mut streams = streams();
        for line in [10, 11, 12] {
            streams.train(line);
        }
        assert!(asked(&mut streams, 11).is_empty());
        assert_eq!(asked(&mut streams, 10), [9, 8]);
    }

    #[test]
    fn more_streams_than_the_table_holds_push_out_the_oldest() {
        let mut streams = streams();
        let walk = |streams: &mut Streams, pages: &[u64]| {
            streams.clear();
            let steps = (0..8).flat_map(|line| pages.iter().map(move |page| 64 * page + line));
            steps.map(|line| asked(streams, line).len()).sum::<usize>()
        };
        assert!(walk(&mut streams, &[0, 7]) > 0);
        assert_eq!(walk(&mut streams, &[0, 3, 7]), 0);
    }

    #[test]
    fn the_last_line_of_all_is_no_exception() {
        let mut streams = streams();
        let end = u64::MAX >> 6;
        for line in end - 3..=end {
            for line in asked(&mut streams, line) {
                assert!(line <= end);
            }
        }
    }
}
