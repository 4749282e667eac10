// SPDX-License-Identifier: MIT OR Apache-2.0
//! SUSAN corners (Smith and Brady 1997): a pixel is a corner if its USAN is less than half of the mask.
//!
//! Two tests reject false corners: the USAN's centre of gravity must lie more than a pixel from the nucleus (that of a
//! thin line does not), and all pixels from the nucleus in that direction must belong to the USAN (noise would scatter
//! them). Of the remaining responses, the largest in each square of 5x5 pixels is a corner.

use super::image::{Image, LARGE, MEDIUM, SMALL, Scene, Size};
use super::similarity::BRIGHTNESS_THRESHOLD;
use super::usan::{AREA_MOST, Moments, RADIUS, area};
use super::{Application, Checksum, Program};
use crate::Descriptor;

/// The geometric threshold g, exactly half: a straight edge's USAN is never smaller, as the paper says.
const GEOMETRIC_THRESHOLD: u16 = AREA_MOST / 2;

/// Distance of non-maximum suppression in all directions: 5x5 pixels.
const REACH: usize = 2;

/// A corner's pixel, and how far its USAN is below the threshold, in hundredths of a pixel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Corner {
    x: u32,
    y: u32,
    response: u16,
}

/// An image, and space for its corners.
pub(super) struct Corners {
    image: Image,
    responses: Vec<u16>,
    found: Vec<Corner>,
}

impl Corners {
    /// # Panics
    /// If no mask fits into the image.
    pub(super) fn new(image: Image) -> Self {
        let (width, height) = (image.width, image.height);
        assert!(width > 2 * RADIUS && height > 2 * RADIUS, "no mask fits");
        // Two corners are more than REACH apart, so a square of REACH + 1 pixels has at most one.
        let most = width.div_ceil(REACH + 1) * height.div_ceil(REACH + 1);
        Self {
            responses: vec![0; width * height],
            found: Vec::with_capacity(most),
            image,
        }
    }

    fn respond(&mut self) {
        let Self {
            image, responses, ..
        } = self;
        for y in RADIUS..image.height - RADIUS {
            for x in RADIUS..image.width - RADIUS {
                let area = area(image, x, y);
                let corner = area < GEOMETRIC_THRESHOLD && {
                    let moments = Moments::new(image, x, y);
                    moments.off_centre(area) && contiguous(image, x, y, &moments)
                };
                responses[image.place(x, y)] = if corner {
                    GEOMETRIC_THRESHOLD - area
                } else {
                    0
                };
            }
        }
    }

    fn suppress(&mut self) {
        let Self {
            image,
            responses,
            found,
        } = self;
        found.clear();
        for y in RADIUS..image.height - RADIUS {
            for x in RADIUS..image.width - RADIUS {
                let response = responses[image.place(x, y)];
                if response > 0 && largest(responses, image.width, x, y) {
                    // an image of 2^32 pixels a row is none
                    found.push(Corner {
                        x: x as u32,
                        y: y as u32,
                        response,
                    });
                }
            }
        }
    }
}

/// True if all pixels of the mask from the nucleus towards the USAN's centre of gravity belong to the USAN.
fn contiguous(image: &Image, x: usize, y: usize, moments: &Moments) -> bool {
    // Step one pixel along the longer axis; round the other coordinate to the nearest pixel.
    let length = moments.x.abs().max(moments.y.abs());
    let nearest = |along: i32| (2 * along + length).div_euclid(2 * length) as isize;
    let nucleus = image.at(x, y);
    (1..=RADIUS as i32)
        .map(|steps| (nearest(steps * moments.x), nearest(steps * moments.y)))
        // The mask is round, with a radius of 3.4 pixels.
        .take_while(|(dx, dy)| dx * dx + dy * dy <= 11)
        .all(|(dx, dy)| {
            let pixel = image.at(x.wrapping_add_signed(dx), y.wrapping_add_signed(dy));
            u128::from(pixel.abs_diff(nucleus)) <= BRIGHTNESS_THRESHOLD
        })
}

/// True if a response is the largest in its neighbourhood; of equal ones the first wins.
fn largest(responses: &[u16], width: usize, x: usize, y: usize) -> bool {
    let place = y * width + x;
    let response = responses[place];
    (y - REACH..=y + REACH)
        .flat_map(|y| y * width + x - REACH..=y * width + x + REACH)
        .all(|near| {
            if near < place {
                responses[near] < response
            } else {
                responses[near] <= response
            }
        })
}

impl Program for Corners {
    fn run(&mut self) -> u64 {
        self.respond();
        self.suppress();
        let mut checksum = Checksum::default();
        for corner in &self.found {
            checksum.add(u64::from(corner.x) << 32 | u64::from(corner.y));
            checksum.add(u64::from(corner.response));
        }
        checksum.value()
    }

    fn footprint_bytes(&self) -> usize {
        let found = self.found.capacity() * size_of::<Corner>();
        self.image.pixels.len() + size_of_val(&self.responses[..]) + found
    }
}

fn scene(size: Size, seed: u64) -> Box<dyn Program> {
    Box::new(Corners::new(Scene::new(size, seed).image))
}

pub(super) static APPLICATIONS: [Application; 3] = [
    Application {
        descriptor: Descriptor {
            name: "susan_corners_small",
            help: "SUSAN corners of 96x72 pixels",
            limits: &[],
        },
        program: |seed| scene(SMALL, seed),
    },
    Application {
        descriptor: Descriptor {
            name: "susan_corners_medium",
            help: "SUSAN corners of 384x288 pixels",
            limits: &[],
        },
        program: |seed| scene(MEDIUM, seed),
    },
    Application {
        descriptor: Descriptor {
            name: "susan_corners_large",
            help: "SUSAN corners of 1152x864 pixels",
            limits: &[],
        },
        program: |seed| scene(LARGE, seed),
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::automotive::image::Shape;

    fn corners(image: Image) -> Vec<(usize, usize)> {
        let mut corners = Corners::new(image);
        corners.run();
        let place = |corner: &Corner| (corner.x as usize, corner.y as usize);
        corners.found.iter().map(place).collect()
    }

    fn image(width: usize, height: usize, at: impl Fn(usize, usize) -> u8) -> Image {
        let mut image = Image::black(width, height);
        for place in 0..width * height {
            image.pixels[place] = at(place % width, place / width);
        }
        image
    }

    #[test]
    fn a_rectangle_has_its_four_corners_and_no_others() {
        let inside = |x, y| (10..30).contains(&x) && (8..20).contains(&y);
        for (outer, inner) in [(60, 160), (160, 60)] {
            let found = corners(image(
                40,
                30,
                |x, y| if inside(x, y) { inner } else { outer },
            ));
            assert_eq!(found, [(10, 8), (29, 8), (10, 19), (29, 19)]);
        }
    }

    #[test]
    fn neither_flat_images_nor_straight_edges_nor_thin_lines_have_corners() {
        let grey = |white: bool| if white { 160 } else { 60 };
        for flat in [0, 77, 255] {
            assert_eq!(corners(image(40, 30, |_, _| flat)), []);
        }
        for (rise, run) in [(0, 1), (1, 0), (1, 1), (1, 2), (2, 1), (1, 5), (3, 7)] {
            let step = image(40, 30, |x, y| grey(rise * x + run * y < 15 * (rise + run)));
            assert_eq!(corners(step), [], "a step of {rise}/{run}");
        }
        assert_eq!(corners(image(40, 30, |x, _| grey(x == 20))), []);
    }

    #[test]
    fn a_lone_pixel_is_no_corner() {
        assert_eq!(
            corners(image(20, 20, |x, y| if (x, y) == (9, 9) {
                255
            } else {
                60
            })),
            []
        );
    }

    fn near(a: (usize, usize), b: (usize, usize)) -> bool {
        a.0.abs_diff(b.0).max(a.1.abs_diff(b.1)) <= 2
    }

    #[test]
    fn in_a_scene_every_rectangles_corners_are_found_within_two_pixels() {
        for seed in 0..5 {
            let scene = Scene::new(MEDIUM, seed);
            let found = corners(scene.image);
            let mut rest = found.clone();
            for shape in &scene.shapes {
                match *shape {
                    Shape::Rectangle {
                        left,
                        top,
                        right,
                        bottom,
                    } => {
                        for corner in [
                            (left, top),
                            (right - 1, top),
                            (left, bottom - 1),
                            (right - 1, bottom - 1),
                        ] {
                            assert!(
                                found.iter().any(|place| near(*place, corner)),
                                "seed {seed}: no corner at {corner:?}"
                            );
                            rest.retain(|place| !near(*place, corner));
                        }
                    }
                    // The outline of a disc has corners in pixels: any pixel on it may be one.
                    Shape::Disc { x, y, radius } => rest.retain(|place| {
                        let distance = x.abs_diff(place.0).pow(2) + y.abs_diff(place.1).pow(2);
                        !((radius - 2).pow(2)..=(radius + 2).pow(2)).contains(&distance)
                    }),
                }
            }
            assert_eq!(
                rest,
                [],
                "seed {seed}: corners on straight edges or nothing"
            );
        }
    }
}
