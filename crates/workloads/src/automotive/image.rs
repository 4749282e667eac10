// SPDX-License-Identifier: MIT OR Apache-2.0
//! Grey images, and the synthetic inputs of SUSAN.
//!
//! A scene is known by construction, so that a test knows where its edges and corners are: cells of 96x72 pixels, each
//! with a rectangle and a disc, on a background that gets brighter from left to right, with noise over everything.

use super::Checksum;
use crate::splitmix::SplitMix;

/// A grey image: a byte a pixel, 0 is black, row after row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Image {
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) pixels: Vec<u8>,
}

impl Image {
    /// All black.
    pub(super) fn black(width: usize, height: usize) -> Self {
        Self {
            width,
            height,
            pixels: vec![0; width * height],
        }
    }

    /// Index of a pixel.
    #[inline]
    pub(super) fn place(&self, x: usize, y: usize) -> usize {
        y * self.width + x
    }

    #[inline]
    pub(super) fn at(&self, x: usize, y: usize) -> u8 {
        self.pixels[self.place(x, y)]
    }

    /// `length` pixels of a row, from `x` on.
    #[inline]
    pub(super) fn row(&self, x: usize, y: usize, length: usize) -> &[u8] {
        let start = self.place(x, y);
        &self.pixels[start..start + length]
    }

    /// The sum over its pixels.
    pub(super) fn checksum(&self) -> Checksum {
        let mut checksum = Checksum::default();
        let words = self.pixels.chunks_exact(8);
        let rest = words.remainder();
        for word in words {
            checksum.add(u64::from_le_bytes(word.try_into().expect("eight pixels")));
        }
        for pixel in rest {
            checksum.add(u64::from(*pixel));
        }
        checksum
    }
}

/// Width and height of an image, in pixels of one byte.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size(pub(super) usize, pub(super) usize);

/// 6,912 bytes: with its copies, it fits into the first-level cache of any core.
pub(super) const SMALL: Size = Size(CELL_WIDTH, CELL_HEIGHT);

/// 110,592 bytes: larger than a first-level cache, smaller than a second-level one.
pub(super) const MEDIUM: Size = Size(4 * CELL_WIDTH, 4 * CELL_HEIGHT);

/// 995,328 bytes: larger than the second-level cache of many boards.
pub(super) const LARGE: Size = Size(12 * CELL_WIDTH, 12 * CELL_HEIGHT);

const CELL_WIDTH: usize = 96;
const CELL_HEIGHT: usize = 72;

/// Brightness of the background at the left, and its increase towards the right.
const BACKGROUND: (usize, usize) = (96, 64);

/// Noise is the sum of two numbers between -3 and 3: at most 6 grey levels, with a standard deviation of 2.8. Within a
/// mask this is a small part of the brightness threshold.
const NOISE: usize = 3;

/// A shape with edges. Its contrast to the background is at least 48 grey levels, more than twice the brightness
/// threshold.
#[derive(Debug, Clone, Copy)]
pub(super) enum Shape {
    /// From its left and top pixel to its right and bottom one, exclusive.
    Rectangle {
        left: usize,
        top: usize,
        right: usize,
        bottom: usize,
    },
    /// All pixels at most `radius` from the centre.
    Disc { x: usize, y: usize, radius: usize },
}

impl Shape {
    /// True if a pixel belongs to the shape.
    pub(super) fn covers(&self, px: usize, py: usize) -> bool {
        match *self {
            Self::Rectangle {
                left,
                top,
                right,
                bottom,
            } => (left..right).contains(&px) && (top..bottom).contains(&py),
            Self::Disc { x, y, radius } => {
                x.abs_diff(px).pow(2) + y.abs_diff(py).pow(2) <= radius.pow(2)
            }
        }
    }

    /// A rectangle in the half cell that begins at (`x`, `y`), at least 8 pixels from its border.
    fn rectangle(x: usize, y: usize, random: &mut SplitMix) -> Self {
        let (width, height) = (16 + random.below(17), 16 + random.below(41));
        let left = x + 8 + random.below(CELL_WIDTH / 2 - 16 - width + 1);
        let top = y + 8 + random.below(CELL_HEIGHT - 16 - height + 1);
        Self::Rectangle {
            left,
            top,
            right: left + width,
            bottom: top + height,
        }
    }

    /// A disc in the half cell.
    fn disc(x: usize, y: usize, random: &mut SplitMix) -> Self {
        let radius = 10 + random.below(6);
        let free = |length: usize| length - 16 - 2 * radius;
        Self::Disc {
            x: x + 8 + radius + random.below(free(CELL_WIDTH / 2)),
            y: y + 8 + radius + random.below(free(CELL_HEIGHT)),
            radius,
        }
    }

    /// The bounding box: left and top inclusive, right and bottom exclusive.
    fn bounds(&self) -> [usize; 4] {
        match *self {
            Self::Rectangle {
                left,
                top,
                right,
                bottom,
            } => [left, top, right, bottom],
            Self::Disc { x, y, radius } => [x - radius, y - radius, x + radius + 1, y + radius + 1],
        }
    }

    fn draw(&self, image: &mut Image, brightness: u8) {
        let [left, top, right, bottom] = self.bounds();
        for y in top..bottom {
            for x in left..right {
                if self.covers(x, y) {
                    let place = image.place(x, y);
                    image.pixels[place] = brightness;
                }
            }
        }
    }
}

/// An image and its shapes.
pub(super) struct Scene {
    pub(super) image: Image,
    #[allow(dead_code)] // for tests, which derive the expected edges from it
    pub(super) shapes: Vec<Shape>,
}

impl Scene {
    /// The scene of that size and seed.
    pub(super) fn new(Size(width, height): Size, seed: u64) -> Self {
        let mut random = SplitMix::new(seed);
        let mut image = Image::black(width, height);
        for row in image.pixels.chunks_exact_mut(width) {
            for (x, pixel) in row.iter_mut().enumerate() {
                *pixel = byte(BACKGROUND.0 + BACKGROUND.1 * x / width);
            }
        }
        let mut shapes = Vec::new();
        for y in (0..height).step_by(CELL_HEIGHT) {
            for x in (0..width).step_by(CELL_WIDTH) {
                let halves = [x, x + CELL_WIDTH / 2];
                let first = random.below(2);
                for shape in [
                    Shape::rectangle(halves[first], y, &mut random),
                    Shape::disc(halves[1 - first], y, &mut random),
                ] {
                    let brightness = [16, 208][random.below(2)] + random.below(32);
                    shape.draw(&mut image, byte(brightness));
                    shapes.push(shape);
                }
            }
        }
        for pixel in &mut image.pixels {
            let up = random.below(2 * NOISE + 1) + random.below(2 * NOISE + 1);
            *pixel = byte(usize::from(*pixel) + up - 2 * NOISE);
        }
        Self { image, shapes }
    }
}

/// Converts a brightness that fits by construction.
fn byte(brightness: usize) -> u8 {
    u8::try_from(brightness).expect("a brightness of 0 to 255")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sizes_are_about_7_110_and_1000_kilobytes() {
        for (Size(width, height), bytes) in [(SMALL, 6_912), (MEDIUM, 110_592), (LARGE, 995_328)] {
            assert_eq!(width * height, bytes);
        }
    }

    #[test]
    fn a_scene_is_its_seeds() {
        let pixels = |seed| Scene::new(MEDIUM, seed).image.pixels;
        assert_eq!(pixels(1), pixels(1));
        assert_ne!(pixels(1), pixels(2));
    }

    #[test]
    fn no_two_shapes_touch_and_all_are_off_the_background() {
        for seed in 0..20 {
            let scene = Scene::new(MEDIUM, seed);
            for y in 0..scene.image.height {
                for x in 0..scene.image.width {
                    let within = scene.shapes.iter().filter(|s| s.covers(x, y)).count();
                    assert!(within <= 1, "({x}, {y}) is of {within} shapes");
                    let background = BACKGROUND.0 + BACKGROUND.1 * x / scene.image.width;
                    let off = usize::from(scene.image.at(x, y)).abs_diff(background);
                    if within == 1 {
                        assert!(off >= 48 - 2 * NOISE, "({x}, {y}) is only {off} off");
                    } else {
                        assert!(off <= 2 * NOISE);
                    }
                }
            }
        }
    }
}
