// SPDX-License-Identifier: MIT OR Apache-2.0
//! The USAN, the "univalue segment assimilating nucleus": the part of a round mask with about the same brightness as
//! the pixel at its centre (Smith and Brady 1997).
//!
//! The mask has 37 pixels, including the nucleus: all within 3.4 pixels. Areas and moments are in hundredths of a
//! pixel, the unit of the similarity tables.

use super::image::Image;
use super::similarity::{FULL, STEEP};

/// Reach of the mask from the nucleus.
pub(super) const RADIUS: usize = 3;

/// Reach of the mask to the left and right in each row, from the top.
const REACH: [usize; 2 * RADIUS + 1] = [1, 2, 3, 3, 3, 2, 1];

/// The area of a uniform mask: the maximum, n_max.
pub(super) const AREA_MOST: u16 = 37 * FULL as u16;

/// The area of the USAN around a pixel that is at least [`RADIUS`] from the border.
#[inline]
pub(super) fn area(image: &Image, x: usize, y: usize) -> u16 {
    let nucleus = image.at(x, y);
    let mut area = 0;
    for (row, reach) in REACH.into_iter().enumerate() {
        for pixel in image.row(x - reach, y + row - RADIUS, 2 * reach + 1) {
            area += u16::from(STEEP[usize::from(pixel.abs_diff(nucleus))]);
        }
    }
    area
}

/// The USAN's moments about the nucleus, in pixels and hundredths of a pixel's weight.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moments {
    /// First moments: the centre of gravity, times the area.
    pub(super) x: i32,
    pub(super) y: i32,
    /// Second moments.
    pub(super) xx: i32,
    pub(super) yy: i32,
    pub(super) xy: i32,
}

impl Moments {
    pub(super) fn new(image: &Image, x: usize, y: usize) -> Self {
        let nucleus = image.at(x, y);
        let mut moments = Self::default();
        for (dy, reach) in (-3..).zip(REACH) {
            let row = image.row(x - reach, y.wrapping_add_signed(dy), 2 * reach + 1);
            let dy = dy as i32;
            for (dx, pixel) in (-(reach as i32)..).zip(row) {
                let weight = i32::from(STEEP[usize::from(pixel.abs_diff(nucleus))]);
                moments.x += dx * weight;
                moments.y += dy * weight;
                moments.xx += dx * dx * weight;
                moments.yy += dy * dy * weight;
                moments.xy += dx * dy * weight;
            }
        }
        moments
    }

    /// True if the centre of gravity of a USAN with that area lies more than a pixel from the nucleus.
    pub(super) fn off_centre(&self, area: u16) -> bool {
        self.x.pow(2) + self.y.pow(2) > i32::from(area).pow(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// White where `white` holds, in an image of 9x9 pixels with the middle (4, 4).
    fn drawn(white: fn(usize, usize) -> bool) -> Image {
        let mut image = Image::black(9, 9);
        for y in 0..9 {
            for x in 0..9 {
                let place = image.place(x, y);
                image.pixels[place] = if white(x, y) { 255 } else { 0 };
            }
        }
        image
    }

    #[test]
    fn the_mask_has_37_pixels_at_most_3_4_from_the_nucleus() {
        assert_eq!(REACH.iter().map(|reach| 2 * reach + 1).sum::<usize>(), 37);
        let round = |dy: usize| {
            (0..=3)
                .rev()
                .find(|dx| 100 * (dx * dx + dy * dy) <= 34 * 34)
        };
        for (row, reach) in REACH.into_iter().enumerate() {
            assert_eq!(Some(reach), round(row.abs_diff(RADIUS)));
        }
    }

    #[test]
    fn the_area_is_all_half_and_a_quarter() {
        assert_eq!(area(&drawn(|_, _| true), 4, 4), AREA_MOST);
        // The nucleus' own row is on its side of the edge: 15 of the 37 pixels are beyond.
        assert_eq!(area(&drawn(|_, y| y >= 4), 4, 4), 2200);
        assert_eq!(area(&drawn(|x, y| x >= 4 && y >= 4), 4, 4), 1300);
        assert_eq!(area(&drawn(|x, y| x == 4 && y == 4), 4, 4), 100);
    }

    #[test]
    fn moments_of_known_figures() {
        let whole = Moments::new(&drawn(|_, _| true), 4, 4);
        assert_eq!((whole.x, whole.y, whole.xy), (0, 0, 0));
        assert_eq!(whole.xx, whole.yy);
        let quarter = Moments::new(&drawn(|x, y| x >= 4 && y >= 4), 4, 4);
        assert_eq!((quarter.x, quarter.y), (1600, 1600));
        assert!(quarter.off_centre(1300));
        let line = Moments::new(&drawn(|_, y| y == 4), 4, 4);
        assert_eq!((line.xx, line.yy, line.xy), (2800, 0, 0));
        assert!(!line.off_centre(700));
    }
}
