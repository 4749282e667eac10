// SPDX-License-Identifier: MIT OR Apache-2.0
//! Similarity of two brightnesses, as integer tables that are the same on every machine.
//!
//! SUSAN weighs a pixel by `exp(-(difference / t)^e)` (Smith and Brady 1997), here in whole hundredths. The tables are
//! computed at compile time in integers ([`hundredths_of_exp`]), so no libm affects the rounding.

/// The brightness threshold t, in grey levels. This is the usual default: well above the noise of a camera and of our
/// images, and below the contrast of a visible edge.
pub(super) const BRIGHTNESS_THRESHOLD: u128 = 20;

/// Weight of a pixel with the same brightness, in every table.
pub(super) const FULL: u8 = 100;

/// Weights by the difference of brightness, 0 to 255.
pub(super) type Similarity = [u8; 256];

/// For edges and corners: the paper's sixth power, a step with slightly rounded sides.
pub(super) static STEEP: Similarity = similarity(6);

/// For smoothing: a Gaussian in brightness.
pub(super) static GAUSSIAN: Similarity = similarity(2);

const fn similarity(power: u32) -> Similarity {
    let mut table = [0; 256];
    let mut difference = 0;
    while difference < table.len() {
        let numerator = (difference as u128).pow(power);
        table[difference] = hundredths_of_exp(numerator, BRIGHTNESS_THRESHOLD.pow(power));
        difference += 1;
    }
    table
}

/// Fractional bits of the fixed-point numbers below.
const BITS: u32 = 60;

/// `100 * exp(-numerator / denominator)`, rounded to the nearest integer.
///
/// In fixed point with 60 fractional bits: the argument is halved eight times, to below 1/16; nine terms of the power
/// series are then exact to 2^-54; and the result is squared eight times. The total error is below 10^-13, and no entry
/// of a table is that close to a rounding boundary.
pub(super) const fn hundredths_of_exp(numerator: u128, denominator: u128) -> u8 {
    // 100 * exp(-16) rounds to 0.
    if numerator >= 16 * denominator {
        return 0;
    }
    let one = 1_i128 << BITS;
    let argument = ((numerator << BITS) / denominator) as i128 >> 8;
    // Horner: 1 - x/1 (1 - x/2 (1 - x/3 (...))).
    let mut power = one;
    let mut term = 9;
    while term > 0 {
        power = one - ((argument * power) >> BITS) / term;
        term -= 1;
    }
    let mut squarings = 0;
    while squarings < 8 {
        power = (power * power) >> BITS;
        squarings += 1;
    }
    ((FULL as i128 * power + one / 2) >> BITS) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss
    )]
    fn every_entry_is_the_rounded_exponential_and_far_from_where_rounding_turns() {
        let mut nearest = f64::MAX;
        for (table, power) in [(&STEEP, 6), (&GAUSSIAN, 2)] {
            for (difference, &weight) in table.iter().enumerate() {
                // An independent source: this machine's libm.
                let exact = 100.0 * (-(difference as f64 / 20.0).powi(power)).exp();
                assert_eq!(
                    weight,
                    exact.round() as u8,
                    "power {power}, difference {difference}"
                );
                nearest = nearest.min((exact.fract() - 0.5).abs());
            }
        }
        assert!(nearest > 1e-3, "an entry is {nearest} from the next one");
    }

    #[test]
    fn the_weights_fall_from_full_to_nothing() {
        for table in [&STEEP, &GAUSSIAN] {
            assert_eq!((table[0], table[255]), (FULL, 0));
            assert!(table.is_sorted_by(|a, b| a >= b));
            // exp(-1) at the threshold itself.
            assert_eq!(table[20], 37);
        }
    }

    #[test]
    fn the_exponential_is_good_over_its_whole_range() {
        for tenths in 0..200_u32 {
            let exact = 100.0 * (-f64::from(tenths) / 10.0).exp();
            let found = f64::from(hundredths_of_exp(u128::from(tenths), 10));
            assert!((found - exact).abs() <= 0.5 + 1e-9, "{tenths} tenths");
        }
    }
}
