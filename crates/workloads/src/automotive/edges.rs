// SPDX-License-Identifier: MIT OR Apache-2.0
//! SUSAN edges (Smith and Brady 1997): a pixel is on an edge if its USAN is small.
//!
//! A pixel's response is the distance of its USAN below the geometric threshold, 3/4 of the maximum. The USAN's moments
//! give the direction of the edge, and only the largest response across it stays. Thinning then makes lines of one
//! pixel, closes gaps of up to three pixels, and removes single points. The three pixels at the border have no
//! response, because their mask is incomplete.

use super::image::{Image, LARGE, MEDIUM, SMALL, Scene, Size};
use super::similarity::FULL;
use super::thinning;
use super::usan::{AREA_MOST, Moments, RADIUS, area};
use super::{Application, Checksum, Program};
use crate::Descriptor;

/// The geometric threshold g: the paper's choice for edges, which rejects noise without losing an edge.
const GEOMETRIC_THRESHOLD: u16 = AREA_MOST / 4 * 3;

/// Area of the mask's diameter: a smaller USAN is a line, not a side of an edge.
const DIAMETER_AREA: u16 = (2 * RADIUS as u16 + 1) * FULL as u16;

/// An image, and space for its edges.
pub(super) struct Edges {
    image: Image,
    /// Distance of each pixel's USAN below the threshold, in hundredths of a pixel.
    responses: Vec<u16>,
    /// The points that remain, for thinning.
    points: thinning::Points,
}

impl Edges {
    /// # Panics
    /// If no mask fits into the image.
    pub(super) fn new(image: Image) -> Self {
        let (width, height) = (image.width, image.height);
        assert!(width > 2 * RADIUS && height > 2 * RADIUS, "no mask fits");
        Self {
            responses: vec![0; width * height],
            points: thinning::Points::new(width, height),
            image,
        }
    }

    fn respond(&mut self) {
        let Self {
            image, responses, ..
        } = self;
        for y in RADIUS..image.height - RADIUS {
            for x in RADIUS..image.width - RADIUS {
                let response = GEOMETRIC_THRESHOLD.saturating_sub(area(image, x, y));
                responses[image.place(x, y)] = response;
            }
        }
    }

    /// Keeps the pixels whose response is the largest across their edge.
    fn suppress(&mut self) {
        let Self {
            image,
            responses,
            points,
        } = self;
        points.clear();
        for y in RADIUS..image.height - RADIUS {
            for x in RADIUS..image.width - RADIUS {
                let place = image.place(x, y);
                let response = responses[place];
                if response == 0 {
                    continue;
                }
                let step = across(
                    &Moments::new(image, x, y),
                    GEOMETRIC_THRESHOLD - response,
                    image.width,
                );
                // Of two equal responses, as on both sides of a clean step, the first stays.
                if response > responses[place - step] && response >= responses[place + step] {
                    points.mark(place);
                }
            }
        }
    }
}

/// The step from a pixel's place to its neighbour's across the edge, one of four: to the right or downwards.
fn across(moments: &Moments, area: u16, width: usize) -> usize {
    let (right, down, falling, rising) = (1, width, width + 1, width - 1);
    // A USAN on one side of the edge: its centre of gravity lies across the edge. 5/12 is tan 22.5 degrees.
    if area >= DIAMETER_AREA && moments.off_centre(area) {
        let (x, y) = (moments.x.abs(), moments.y.abs());
        return if 12 * y < 5 * x {
            right
        } else if 12 * x < 5 * y {
            down
        } else if (moments.x < 0) == (moments.y < 0) {
            falling
        } else {
            rising
        };
    }
    // A USAN along the edge, as of a line: the edge runs in the direction of the large second moments. For a line at
    // 22.5 degrees the moment in y would be 1/6 of that in x; a line of some thickness has more, so 1/4.
    if 4 * moments.yy < moments.xx {
        down
    } else if 4 * moments.xx < moments.yy {
        right
    } else if moments.xy > 0 {
        rising
    } else {
        falling
    }
}

impl Program for Edges {
    fn run(&mut self) -> u64 {
        self.respond();
        self.suppress();
        self.points.thin(&self.responses);
        let mut checksum = Checksum::default();
        for place in self.points.places() {
            checksum.add(place as u64);
        }
        checksum.value()
    }

    fn footprint_bytes(&self) -> usize {
        self.image.pixels.len() + size_of_val(&self.responses[..]) + self.points.footprint_bytes()
    }
}

fn scene(size: Size, seed: u64) -> Box<dyn Program> {
    Box::new(Edges::new(Scene::new(size, seed).image))
}

pub(super) static APPLICATIONS: [Application; 3] = [
    Application {
        descriptor: Descriptor {
            name: "susan_edges_small",
            help: "SUSAN edges of 96x72 pixels",
            limits: &[],
        },
        program: |seed| scene(SMALL, seed),
    },
    Application {
        descriptor: Descriptor {
            name: "susan_edges_medium",
            help: "SUSAN edges of 384x288 pixels",
            limits: &[],
        },
        program: |seed| scene(MEDIUM, seed),
    },
    Application {
        descriptor: Descriptor {
            name: "susan_edges_large",
            help: "SUSAN edges of 1152x864 pixels",
            limits: &[],
        },
        program: |seed| scene(LARGE, seed),
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::automotive::image::Shape;

    /// Positions of edges, as (x, y).
    fn edges(image: &Image) -> Vec<(usize, usize)> {
        let mut edges = Edges::new(image.clone());
        edges.run();
        let places = edges.points.places();
        places
            .map(|place| (place % image.width, place / image.width))
            .collect()
    }

    fn image(width: usize, height: usize, at: impl Fn(usize, usize) -> u8) -> Image {
        let mut image = Image::black(width, height);
        for place in 0..width * height {
            image.pixels[place] = at(place % width, place / width);
        }
        image
    }

    #[test]
    fn a_step_has_one_edge_point_in_each_row_and_a_flat_image_none() {
        assert_eq!(edges(&image(40, 30, |_, _| 77)), []);
        let upright = edges(&image(40, 30, |x, _| if x < 20 { 60 } else { 160 }));
        let expected: Vec<_> = (3..27).map(|y| (19, y)).collect();
        assert_eq!(upright, expected);
        let level = edges(&image(40, 30, |_, y| if y < 15 { 60 } else { 160 }));
        let expected: Vec<_> = (3..37).map(|x| (x, 14)).collect();
        assert_eq!(level, expected);
    }

    #[test]
    fn a_slanted_step_has_one_unbroken_line() {
        for (rise, run) in [(1, 1), (1, 2), (1, 3), (2, 3)] {
            let found = edges(&image(40, 40, |x, y| {
                if run * (40 - y) < rise * x + 20 * (run - rise) + 20 * rise {
                    60
                } else {
                    160
                }
            }));
            assert!(!found.is_empty());
            for &(x, y) in &found {
                let neighbours = found
                    .iter()
                    .filter(|(a, b)| a.abs_diff(x).max(b.abs_diff(y)) == 1)
                    .count();
                assert!(
                    (1..=2).contains(&neighbours),
                    "{rise}/{run}: ({x}, {y}) has {neighbours} neighbours in {found:?}"
                );
            }
        }
    }

    #[test]
    fn a_line_of_one_pixel_is_found_on_itself() {
        let found = edges(&image(40, 30, |x, _| if x == 20 { 160 } else { 60 }));
        assert!(found.contains(&(20, 15)), "{found:?}");
        assert!(found.iter().all(|(x, _)| (19..=21).contains(x)));
    }

    /// True if the pixel or one at most `distance` away is on the other side of a shape's boundary.
    fn near_boundary(shapes: &[Shape], x: usize, y: usize, distance: usize) -> bool {
        let sides = (y - distance..=y + distance)
            .flat_map(|y| (x - distance..=x + distance).map(move |x| (x, y)));
        let mut inside = sides.map(|(x, y)| shapes.iter().any(|shape| shape.covers(x, y)));
        let first = inside.next();
        inside.any(|side| Some(side) != first)
    }

    #[test]
    fn in_a_scene_the_outlines_are_found_and_nothing_else() {
        for seed in 0..5 {
            let scene = Scene::new(MEDIUM, seed);
            let found = edges(&scene.image);
            for &(x, y) in &found {
                assert!(
                    near_boundary(&scene.shapes, x, y, 1),
                    "seed {seed}: edge at ({x}, {y}), where nothing is"
                );
            }
            let mut map = image(scene.image.width, scene.image.height, |_, _| 0);
            for &(x, y) in &found {
                let place = map.place(x, y);
                map.pixels[place] = 1;
            }
            let near =
                |x: usize, y: usize| (y - 1..=y + 1).any(|y| map.row(x - 1, y, 3).contains(&1));
            for y in 4..scene.image.height - 4 {
                for x in 4..scene.image.width - 4 {
                    let inside = |x, y| scene.shapes.iter().any(|shape| shape.covers(x, y));
                    let boundary = inside(x, y)
                        && !(inside(x - 1, y)
                            && inside(x + 1, y)
                            && inside(x, y - 1)
                            && inside(x, y + 1));
                    assert!(
                        !boundary || near(x, y),
                        "seed {seed}: no edge at ({x}, {y}), where one is"
                    );
                }
            }
            for y in 0..scene.image.height - 1 {
                for x in 0..scene.image.width - 1 {
                    let four: u8 = [0, 1]
                        .map(|dy| map.row(x, y + dy, 2).iter().sum::<u8>())
                        .iter()
                        .sum();
                    assert!(
                        four < 4,
                        "seed {seed}: an edge two pixels thick at ({x}, {y})"
                    );
                }
            }
        }
    }
}
