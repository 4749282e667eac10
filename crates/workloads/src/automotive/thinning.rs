// SPDX-License-Identifier: MIT OR Apache-2.0
//! Thins the edge points that remain after non-maximum suppression to lines of one pixel.
//!
//! The rules are those of S.M. Smith, "Edge Thinning Used in the SUSAN Edge Detector", the report that accompanies the
//! paper. A rule depends on how many of a point's eight neighbours are points. One pass goes over the image; after each
//! change it steps back by two pixels and two rows, to apply the rules that the change enables.
//!
//! A pixel can only change from empty to a point, and from a point to a removed one. So no two rules can undo each
//! other forever: there are at most two changes for each pixel.

/// State of a pixel: empty, a removed point, or a point. A point that was added to the end of a line knows how many
/// were added before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Nothing,
    TakenAway,
    Point { added: u8 },
}

impl State {
    fn is_point(self) -> bool {
        matches!(self, Self::Point { .. })
    }
}

/// Most points that are added to a line.
const ADDED_MOST: u8 = 3;

/// The eight neighbours as (x, y), clockwise from above.
const RING: [(isize, isize); 8] = [
    (0, -1),
    (1, -1),
    (1, 0),
    (1, 1),
    (0, 1),
    (-1, 1),
    (-1, 0),
    (-1, -1),
];

/// An image of points; its border is empty.
pub(super) struct Points {
    states: Vec<State>,
    width: usize,
}

/// The neighbours of a pixel that are points: one bit each, in the order of [`RING`].
#[derive(Debug, Clone, Copy)]
struct Neighbours(u8);

impl Neighbours {
    fn has(self, direction: usize) -> bool {
        self.0 >> (direction % 8) & 1 == 1
    }

    fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Directions of the neighbouring points.
    fn directions(self) -> impl Iterator<Item = usize> {
        (0..8).filter(move |direction| self.has(*direction))
    }

    /// True if the neighbouring points stay connected without the one in the middle: Yokoi's connectivity number is 1.
    /// (It is 0 within an area, and above 1 where lines meet.)
    fn hold_together(self) -> bool {
        let free = |direction: usize| !self.has(direction);
        let connections = [0, 2, 4, 6]
            .into_iter()
            .filter(|&d| free(d) && !(free(d + 1) && free(d + 2)))
            .count();
        connections == 1
    }
}

impl Points {
    pub(super) fn new(width: usize, height: usize) -> Self {
        Self {
            states: vec![State::Nothing; width * height],
            width,
        }
    }

    /// Removes all points and all traces of removed ones.
    pub(super) fn clear(&mut self) {
        self.states.fill(State::Nothing);
    }

    /// Makes the pixel at `place` a point; it must not be at the border.
    pub(super) fn mark(&mut self, place: usize) {
        self.states[place] = State::Point { added: 0 };
    }

    /// Positions of all points, in order.
    pub(super) fn places(&self) -> impl Iterator<Item = usize> {
        let points = self.states.iter().enumerate();
        points
            .filter(|(_, state)| state.is_point())
            .map(|(place, _)| place)
    }

    pub(super) fn footprint_bytes(&self) -> usize {
        size_of_val(&self.states[..])
    }

    /// Thins the points, by the responses of all pixels, which are 0 at the border.
    pub(super) fn thin(&mut self, responses: &[u16]) {
        let height = self.states.len() / self.width;
        let (mut x, mut y) = (1, 1);
        while y + 1 < height {
            let place = y * self.width + x;
            let again = match self.states[place] {
                State::Point { added } => self.apply_rules(place, added, responses),
                _ => false,
            };
            if again {
                x = x.saturating_sub(2).max(1);
                y = y.saturating_sub(2).max(1);
                continue;
            }
            x += 1;
            if x + 1 >= self.width {
                (x, y) = (1, y + 1);
            }
        }
    }

    /// Applies the rule for the point's number of neighbours; returns true if something nearby changed.
    fn apply_rules(&mut self, place: usize, added: u8, responses: &[u16]) -> bool {
        let neighbours = self.neighbours(place);
        match neighbours.count() {
            0 => {
                self.states[place] = State::TakenAway;
                false
            }
            1 => added < ADDED_MOST && self.extend(place, added, neighbours, responses),
            2 => self.straighten(place, added, neighbours, responses),
            _ => self.thin_out(place, neighbours, responses),
        }
    }

    /// One neighbour: the end of a line. Extends the line to the pixel ahead with the largest response; of the three,
    /// the one straight ahead counts a quarter more.
    fn extend(
        &mut self,
        place: usize,
        added: u8,
        neighbours: Neighbours,
        responses: &[u16],
    ) -> bool {
        let behind = neighbours.directions().next().expect("one neighbour");
        let ahead = [(4, 5), (3, 4), (5, 4)].map(|(turn, weight)| {
            let next = self.neighbour(place, behind + turn);
            (weight * u32::from(responses[next]), next)
        });
        let new = ahead
            .into_iter()
            .filter(|(response, next)| *response > 0 && self.states[*next] == State::Nothing)
            // Of equal ones the first: straight ahead.
            .reduce(|best, other| if other.0 > best.0 { other } else { best });
        if let Some((_, next)) = new {
            self.states[next] = State::Point { added: added + 1 };
        }
        new.is_some()
    }

    /// Two neighbours: removes a point beside a line. A point that sticks out moves into the line if the response there
    /// is above 0.7 of its own.
    fn straighten(
        &mut self,
        place: usize,
        added: u8,
        neighbours: Neighbours,
        responses: &[u16],
    ) -> bool {
        // Beside a diagonal, the two neighbours touch each other. (At the end of a line they may touch, too; removing
        // such an end would consume the line, end by end.)
        if [0, 2, 4, 6]
            .into_iter()
            .any(|d| neighbours.has(d) && neighbours.has(d + 2))
        {
            self.states[place] = State::TakenAway;
            return true;
        }
        // Two corners of the ring with one place in between: a point there would make the line straight.
        let Some(between) = [0, 2, 4, 6]
            .into_iter()
            .find(|direction| neighbours.has(direction + 7) && neighbours.has(direction + 1))
        else {
            return false;
        };
        let within = self.neighbour(place, between);
        let straight = self.states[within] == State::Nothing
            && 10 * u32::from(responses[within]) > 7 * u32::from(responses[place]);
        if straight {
            self.states[place] = State::TakenAway;
            self.states[within] = State::Point { added };
        }
        straight
    }

    /// More neighbours: removes the point with the smallest response among this one and its neighbours that are no
    /// links either.
    fn thin_out(&mut self, place: usize, neighbours: Neighbours, responses: &[u16]) -> bool {
        if !neighbours.hold_together() {
            return false;
        }
        let spare = |near: &usize| {
            let neighbours = self.neighbours(*near);
            neighbours.count() > 2 && neighbours.hold_together()
        };
        let weakest = neighbours
            .directions()
            .map(|direction| self.neighbour(place, direction))
            .filter(spare)
            .chain([place])
            .min_by_key(|near| responses[*near])
            .expect("the point itself");
        self.states[weakest] = State::TakenAway;
        true
    }

    fn neighbour(&self, place: usize, direction: usize) -> usize {
        let (dx, dy) = RING[direction % 8];
        place.wrapping_add_signed(dy * self.width as isize + dx)
    }

    fn neighbours(&self, place: usize) -> Neighbours {
        let point = |direction: usize| {
            let near = self.neighbour(place, direction);
            u8::from(self.states[near].is_point()) << direction
        };
        Neighbours((0..8).map(point).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Thins a picture of points (`#`), pixels with a response (`+`) and others (`.`), after adding a border.
    fn thinned(picture: &[&str]) -> Vec<String> {
        let width = picture[0].len() + 2;
        let mut points = Points::new(width, picture.len() + 2);
        let mut responses = vec![0; points.states.len()];
        for (y, row) in picture.iter().enumerate() {
            for (x, pixel) in row.bytes().enumerate() {
                let place = (y + 1) * width + x + 1;
                if pixel != b'.' {
                    responses[place] = 100;
                }
                if pixel == b'#' {
                    points.mark(place);
                }
            }
        }
        points.thin(&responses);
        let rows = points.states.chunks(width).skip(1).take(picture.len());
        let mark = |state: &State| if state.is_point() { '#' } else { '.' };
        rows.map(|row| row[1..width - 1].iter().map(mark).collect())
            .collect()
    }

    #[test]
    fn a_point_without_neighbours_goes() {
        assert_eq!(thinned(&["...", ".#.", "..."]), ["...", "...", "..."]);
    }

    #[test]
    fn a_line_goes_on_for_three_pixels_where_there_is_a_response() {
        assert_eq!(thinned(&["......", "##....", "......"])[1], "##....");
        assert_eq!(thinned(&[".......", "##+++++", "......."])[1], "#####..");
        // A gap of up to three is closed.
        assert_eq!(
            thinned(&["........", "##+++##.", "........"])[1],
            "#######."
        );
    }

    #[test]
    fn a_line_prefers_to_go_straight_on() {
        assert_eq!(thinned(&["++++", "##++", "++++"]), ["....", "####", "...."]);
    }

    #[test]
    fn a_point_that_sticks_out_moves_into_the_line() {
        assert_eq!(
            thinned(&["..#..", "##+##", "....."]),
            [".....", "#####", "....."]
        );
        // A gap without a response stays open.
        assert_eq!(
            thinned(&["..#..", "##.##", "....."]),
            ["..#..", "##.##", "....."]
        );
    }

    #[test]
    fn a_point_beside_a_diagonal_goes() {
        assert_eq!(
            thinned(&["#...", ".#..", ".##.", "...#"]),
            ["#...", ".#..", "..#.", "...#"]
        );
    }

    #[test]
    fn a_thick_line_becomes_thin_and_a_crossing_stays() {
        let thick = thinned(&["......", "######", "######", "......"]);
        // At each end one point may be removed.
        for column in 1..5 {
            let points = thick.iter().filter(|row| row.as_bytes()[column] == b'#');
            assert_eq!(points.count(), 1, "{thick:?}");
        }
        let crossing = ["..#..", "..#..", "#####", "..#..", "..#.."];
        assert_eq!(thinned(&crossing), crossing);
    }

    proptest::proptest! {
        #[test]
        fn thinning_ends_and_adds_no_point_without_a_response(
            pixels in proptest::collection::vec(0..3_u8, 400)
        ) {
            let width = 22;
            let mut points = Points::new(width, 22);
            let mut responses = vec![0; 22 * 22];
            for (number, pixel) in pixels.iter().enumerate() {
                let place = (number / 20 + 1) * width + number % 20 + 1;
                responses[place] = u16::from(*pixel) * 50;
                if *pixel == 2 {
                    points.mark(place);
                }
            }
            points.thin(&responses);
            proptest::prop_assert!(points.places().all(|place| responses[place] > 0));
        }
    }
}
