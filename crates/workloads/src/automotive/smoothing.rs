// SPDX-License-Identifier: MIT OR Apache-2.0
//! SUSAN smoothing: removes noise and preserves edges (Smith and Brady 1997).
//!
//! Each pixel becomes the mean of its neighbours, weighted by distance (a Gaussian in space) and by similarity (a
//! Gaussian in brightness); the pixel itself is excluded. So a mean never crosses an edge, and a single wrong pixel
//! does not affect its replacement. If no neighbour is similar, the pixel becomes the median of the eight around it.

use super::image::{Image, LARGE, MEDIUM, SMALL, Scene, Size};
use super::similarity::{GAUSSIAN, hundredths_of_exp};
use super::{Application, Program};
use crate::Descriptor;

/// The Gaussian's standard deviation in pixels: the usual default.
const SIGMA: u128 = 4;

/// Reach of the mask: its farthest neighbour on an axis weighs 22 of 100, its corners 5.
const RADIUS: usize = 7;

/// Pixels on a side of the mask, 225 in all.
const SIDE: usize = 2 * RADIUS + 1;

/// `exp(-r^2 / 2 sigma^2)` in hundredths, and 0 for the centre.
static NEARNESS: [[u8; SIDE]; SIDE] = {
    let mut weights = [[0; SIDE]; SIDE];
    let mut place = 0;
    while place < SIDE * SIDE {
        let (y, x) = (place / SIDE, place % SIDE);
        let distance = x.abs_diff(RADIUS).pow(2) + y.abs_diff(RADIUS).pow(2);
        if distance != 0 {
            weights[y][x] = hundredths_of_exp(distance as u128, 2 * SIGMA * SIGMA);
        }
        place += 1;
    }
    weights
};

/// An image, and a buffer for the result.
pub(super) struct Smoothing {
    image: Image,
    /// The image with a border of [`RADIUS`] mirrored pixels, so that the mask is complete everywhere.
    framed: Image,
    smooth: Image,
}

impl Smoothing {
    /// # Panics
    /// If the image is smaller than the border that mirrors it.
    pub(super) fn new(image: Image) -> Self {
        let Image { width, height, .. } = image;
        assert!(width >= RADIUS && height >= RADIUS, "too small to mirror");
        Self {
            image,
            framed: Image::black(width + 2 * RADIUS, height + 2 * RADIUS),
            smooth: Image::black(width, height),
        }
    }

    fn frame(&mut self) {
        let Self { image, framed, .. } = self;
        let width = framed.width;
        for (y, row) in framed.pixels.chunks_exact_mut(width).enumerate() {
            let from = image.row(0, mirrored(y, image.height), image.width);
            row[RADIUS..][..image.width].copy_from_slice(from);
            for x in 0..RADIUS {
                row[x] = from[mirrored(x, image.width)];
                let right = RADIUS + image.width + x;
                row[right] = from[mirrored(right, image.width)];
            }
        }
    }

    fn smooth(&mut self) {
        self.frame();
        let Self { framed, smooth, .. } = self;
        let width = smooth.width;
        for (y, row) in smooth.pixels.chunks_exact_mut(width).enumerate() {
            for (x, pixel) in row.iter_mut().enumerate() {
                *pixel = smoothed(framed, x, y).unwrap_or_else(|| median_around(framed, x, y));
            }
        }
    }
}

/// Maps a coordinate of the framed image to one of the image of `length`, mirrored at the ends.
fn mirrored(framed: usize, length: usize) -> usize {
    if framed < RADIUS {
        RADIUS - 1 - framed
    } else if framed < RADIUS + length {
        framed - RADIUS
    } else {
        2 * length + RADIUS - 1 - framed
    }
}

/// The mean for the mask with the top left pixel (`x`, `y`), to the nearest grey level; `None` if no neighbour is
/// similar.
#[inline]
fn smoothed(framed: &Image, x: usize, y: usize) -> Option<u8> {
    let centre = framed.at(x + RADIUS, y + RADIUS);
    // At most 224 * 100 * 100 * 255 = 571 * 10^6: fits into 32 bits.
    let (mut weights, mut weighted) = (0_u32, 0_u32);
    for (row, nearness) in NEARNESS.iter().enumerate() {
        for (pixel, near) in framed.row(x, y + row, SIDE).iter().zip(nearness) {
            let alike = GAUSSIAN[usize::from(pixel.abs_diff(centre))];
            let weight = u32::from(*near) * u32::from(alike);
            weights += weight;
            weighted += weight * u32::from(*pixel);
        }
    }
    // A mean of bytes is a byte.
    (weights != 0).then(|| ((weighted + weights / 2) / weights) as u8)
}

/// The median of the eight pixels around the mask's centre: the mean of the two middle ones.
#[cold]
fn median_around(framed: &Image, x: usize, y: usize) -> u8 {
    let (left, top) = (x + RADIUS - 1, y + RADIUS - 1);
    let mut around = [0; 8];
    around[..3].copy_from_slice(framed.row(left, top, 3));
    around[3] = framed.at(left, top + 1);
    around[4] = framed.at(left + 2, top + 1);
    around[5..].copy_from_slice(framed.row(left, top + 2, 3));
    around.sort_unstable();
    around[3].midpoint(around[4])
}

impl Program for Smoothing {
    fn run(&mut self) -> u64 {
        self.smooth();
        self.smooth.checksum().value()
    }

    fn footprint_bytes(&self) -> usize {
        let images = [&self.image, &self.framed, &self.smooth];
        images.iter().map(|image| image.pixels.len()).sum()
    }
}

fn scene(size: Size, seed: u64) -> Box<dyn Program> {
    Box::new(Smoothing::new(Scene::new(size, seed).image))
}

pub(super) static APPLICATIONS: [Application; 3] = [
    Application {
        descriptor: Descriptor {
            name: "susan_smoothing_small",
            help: "SUSAN smoothing of 96x72 pixels",
            limits: &[],
        },
        program: |seed| scene(SMALL, seed),
    },
    Application {
        descriptor: Descriptor {
            name: "susan_smoothing_medium",
            help: "SUSAN smoothing of 384x288 pixels",
            limits: &[],
        },
        program: |seed| scene(MEDIUM, seed),
    },
    Application {
        descriptor: Descriptor {
            name: "susan_smoothing_large",
            help: "SUSAN smoothing of 1152x864 pixels",
            limits: &[],
        },
        program: |seed| scene(LARGE, seed),
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::splitmix::SplitMix;

    fn smooth(image: Image) -> Image {
        let mut smoothing = Smoothing::new(image);
        smoothing.run();
        smoothing.smooth
    }

    fn image(width: usize, height: usize, mut at: impl FnMut(usize, usize) -> u8) -> Image {
        let mut image = Image::black(width, height);
        for y in 0..height {
            for x in 0..width {
                let place = image.place(x, y);
                image.pixels[place] = at(x, y);
            }
        }
        image
    }

    /// The unweighted mean over the same mask, which smoothing must improve on.
    fn box_filtered(image: &Image, x: usize, y: usize) -> f64 {
        let rows = y - RADIUS..=y + RADIUS;
        let sum: u32 = rows
            .flat_map(|y| image.row(x - RADIUS, y, SIDE))
            .map(|pixel| u32::from(*pixel))
            .sum();
        f64::from(sum) / f64::from(u32::try_from(SIDE * SIDE).unwrap())
    }

    proptest::proptest! {
        #[test]
        fn a_constant_image_stays(width in 7..40_usize, height in 7..40_usize, grey: u8) {
            let constant = image(width, height, |_, _| grey);
            proptest::prop_assert_eq!(smooth(constant.clone()), constant);
        }

        #[test]
        fn no_pixel_leaves_the_range_of_its_image(seed: u64, low in 0..200_u8, range in 1..55_usize) {
            let mut random = SplitMix::new(seed);
            let noise = image(16, 12, |_, _| low + u8::try_from(random.below(range)).unwrap());
            let (least, most) = (noise.pixels.iter().min(), noise.pixels.iter().max());
            let smooth = smooth(noise.clone());
            proptest::prop_assert!(smooth.pixels.iter().min() >= least);
            proptest::prop_assert!(smooth.pixels.iter().max() <= most);
        }
    }

    /// 64x48 pixels: 60 to the left of the middle and 180 to its right, with noise of at most 6.
    fn noisy_step() -> Image {
        let mut random = SplitMix::new(1);
        image(64, 48, |x, _| {
            let noise = u8::try_from(random.below(7) + random.below(7)).unwrap();
            (if x < 32 { 60 } else { 180 }) + noise - 6
        })
    }

    fn variance(values: impl Iterator<Item = u8> + Clone) -> f64 {
        let count = f64::from(u32::try_from(values.clone().count()).unwrap());
        let mean = values.clone().map(f64::from).sum::<f64>() / count;
        values.map(|v| (f64::from(v) - mean).powi(2)).sum::<f64>() / count
    }

    #[test]
    fn noise_goes_and_the_edge_stays_where_a_box_filter_smears_it() {
        let noisy = noisy_step();
        let smooth = smooth(noisy.clone());
        let flat = |image: &Image| {
            let pixels = image.pixels.chunks(64).flat_map(|row| row[..24].to_vec());
            variance(pixels.collect::<Vec<_>>().into_iter())
        };
        let (before, after) = (flat(&noisy), flat(&smooth));
        assert!(after < before / 10.0, "variance {before} became {after}");
        for y in 8..40 {
            for x in 26..38 {
                let truth = if x < 32 { 60.0 } else { 180.0 };
                let ours = (f64::from(smooth.at(x, y)) - truth).abs();
                assert!(ours <= 3.0, "({x}, {y}) is off by {ours}");
                // A box of 15 pixels includes the other side by up to 7/15 of the step.
                let theirs = (box_filtered(&noisy, x, y) - truth).abs();
                assert!(theirs > 2.0 * ours, "({x}, {y}): box {theirs}, ours {ours}");
            }
        }
    }

    #[test]
    fn a_lone_wrong_pixel_takes_the_median_of_those_around_it() {
        let lone = image(20, 20, |x, y| if (x, y) == (9, 9) { 255 } else { 100 });
        assert!(smooth(lone).pixels.iter().all(|pixel| *pixel == 100));
        // Four neighbours of 10 and four of 31, none similar.
        let split = image(20, 20, |x, y| match (x, y) {
            (9, 9) => 255,
            (x, y) if y < 9 || (y == 9 && x < 9) => 10,
            _ => 31,
        });
        assert_eq!(smooth(split).at(9, 9), 20);
    }

    #[test]
    fn the_nearness_is_round_and_leaves_the_centre_out() {
        assert_eq!(NEARNESS[RADIUS][RADIUS], 0);
        assert_eq!(NEARNESS[RADIUS][RADIUS + 1], 97);
        assert_eq!((NEARNESS[RADIUS][0], NEARNESS[0][0]), (22, 5));
        for (y, row) in NEARNESS.iter().enumerate() {
            for (x, weight) in row.iter().enumerate() {
                assert_eq!(*weight, NEARNESS[x][y]);
                assert_eq!(*weight, NEARNESS[SIDE - 1 - y][x]);
            }
        }
    }

    #[test]
    fn the_nearness_is_the_rounded_exponential() {
        for (y, row) in NEARNESS.iter().enumerate() {
            for (x, weight) in row.iter().enumerate() {
                let squared = x.abs_diff(RADIUS).pow(2) + y.abs_diff(RADIUS).pow(2);
                if squared == 0 {
                    continue;
                }
                // An independent source: this machine's libm.
                let exact = 100.0 * (-f64::from(u32::try_from(squared).unwrap()) / 32.0).exp();
                let off = (f64::from(*weight) - exact).abs();
                // More than 0.001 from a rounding boundary: any accurate exponential gives the same.
                assert!(off < 0.499, "{squared}: {weight} for {exact}");
            }
        }
    }

    #[test]
    fn the_border_mirrors_the_image() {
        let mut smoothing = Smoothing::new(image(10, 8, |x, y| u8::try_from(10 * y + x).unwrap()));
        smoothing.run();
        let framed = &smoothing.framed;
        assert_eq!(framed.row(4, 7, 6), [2, 1, 0, 0, 1, 2]);
        assert_eq!(framed.row(14, 7, 6), [7, 8, 9, 9, 8, 7]);
        assert_eq!([framed.at(7, 6), framed.at(7, 5)], [0, 10]);
        assert_eq!(
            [framed.at(7, 14), framed.at(7, 15), framed.at(7, 16)],
            [70, 70, 60]
        );
    }
}
