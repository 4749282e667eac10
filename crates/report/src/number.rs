// SPDX-License-Identifier: MIT OR Apache-2.0
//! Formats figures for readers.

pub use memwarden_run::title::{bytes, printable};

/// Text of a figure that could not be measured.
pub const NOT_MEASURED: &str = "n/a";

/// What a finding adds to a ratio without an interval.
pub(crate) const TOO_FEW_RUNS: &str = " (too few runs for an interval)";

/// A thousands separator that does not break lines and cannot be mistaken for a decimal sign.
const THIN: char = '\u{202f}';

/// Four significant digits, whole numbers in full, with separated thousands: `0.05`, `3.942`, `184.9`, `16 384`.
pub fn figure(value: f64) -> String {
    let magnitude = value.abs();
    if !value.is_finite() {
        NOT_MEASURED.into()
    } else if magnitude == 0.0 {
        "0".into()
    } else if !(1e-4..1e15).contains(&magnitude) {
        format!("{value:.3e}")
    } else if magnitude >= 1000.0 || magnitude.fract() == 0.0 {
        grouped(&format!("{value:.0}"))
    } else {
        let decimals = (3.0 - magnitude.log10().floor()).max(0.0) as usize;
        trimmed(format!("{value:.decimals$}"))
    }
}

/// [`figure`] for a value that may be missing.
pub fn optional(value: Option<f64>) -> String {
    value.map_or_else(|| NOT_MEASURED.into(), figure)
}

/// [`percent`] for a share that may be missing.
pub fn optional_percent(share: Option<f64>) -> String {
    share.map_or_else(|| NOT_MEASURED.into(), percent)
}

/// [`times`] for a ratio that may be missing.
pub fn optional_times(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| NOT_MEASURED.into(), times)
}

/// [`figure`] for a count that may be missing.
pub fn count(value: Option<u64>) -> String {
    optional(value.map(|count| count as f64))
}

/// A ratio: two decimals below 100, `3.94`, `1.05`, `112`; more where these are too few digits, `0.0043`.
pub fn times(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude > 0.0 && magnitude < 0.1 {
        figure(value)
    } else if magnitude < 99.995 {
        format!("{value:.2}")
    } else {
        figure(value.round())
    }
}

/// A share as a percentage with three significant digits at most: `61.2 %`, `0.04 %`, `0 %`.
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    let text = match percent.abs() {
        p if !p.is_finite() => return NOT_MEASURED.into(),
        0.0 => "0".into(),
        p if p < 0.001 => format!("{percent:.0e}"),
        p if p < 0.1 => trimmed(format!("{percent:.3}")),
        p if p < 10.0 => trimmed(format!("{percent:.2}")),
        _ => trimmed(format!("{percent:.1}")),
    };
    format!("{text}\u{a0}%")
}

/// An interval: `[184.2, 185.1]`.
pub fn interval(ends: Option<[f64; 2]>) -> String {
    ends.map_or_else(
        || NOT_MEASURED.into(),
        |[low, high]| format!("[{}, {}]", figure(low), figure(high)),
    )
}

/// The unit of time in which a figure of that many ns is short, and its ns: below 10 us it is ns, as for a memory's latency.
pub fn time_unit(ns: f64) -> (f64, &'static str) {
    match ns.abs() {
        below if below < 1e4 => (1.0, "ns"),
        below if below < 1e6 => (1e3, "us"),
        below if below < 1e9 => (1e6, "ms"),
        _ => (1e9, "s"),
    }
}

/// A time in a sentence: `676.1 ns`, `18.7 us`, `20 ms`.
pub fn time_text(ns: f64) -> String {
    let (divisor, unit) = time_unit(ns);
    format!("{} {unit}", figure(ns / divisor))
}

/// A name in words, and its unit: `throttle_latency_ns` is (`throttle latency`, `ns`).
pub fn name_and_unit(name: &str) -> (String, &'static str) {
    const UNITS: [(&str, &str); 13] = [
        ("_mib_s", "MiB/s"),
        ("_mb_s", "MB/s"),
        ("mib_s", "MiB/s"),
        ("_events_per_period", "events per period"),
        ("_instructions", "instructions"),
        ("_events", "events"),
        ("_bytes", "bytes"),
        ("_share", "%"),
        ("_ns", "ns"),
        ("_us", "us"),
        ("_ms", "ms"),
        ("_hz", "Hz"),
        ("_s", "s"),
    ];
    let (stem, unit) = UNITS
        .iter()
        .find_map(|(ending, unit)| Some((name.strip_suffix(ending)?, *unit)))
        .unwrap_or((name, ""));
    let stem = if stem.is_empty() { "bandwidth" } else { stem };
    (stem.replace('_', " "), unit)
}

/// The value of a name whose ending gives its unit: shares as percentages, everything else as [`figure`].
pub fn named(name: &str, value: f64) -> String {
    if name.ends_with("_share") {
        percent(value)
    } else {
        figure(value)
    }
}

/// [`named`] for a figure that may be missing.
pub fn optional_named(name: &str, value: Option<f64>) -> String {
    value.map_or_else(|| NOT_MEASURED.into(), |value| named(name, value))
}

/// [`interval`] in the unit of a name.
pub fn interval_named(name: &str, ends: Option<[f64; 2]>) -> String {
    ends.map_or_else(
        || NOT_MEASURED.into(),
        |[low, high]| format!("[{}, {}]", named(name, low), named(name, high)),
    )
}

/// `1 aggressor`, `2 aggressors`.
pub fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// The same text with a capital letter at its begin.
pub fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(letters).collect()
    })
}

/// The order of two figures; a missing one comes first.
pub(crate) fn order<T: PartialOrd>(a: T, b: T) -> std::cmp::Ordering {
    a.partial_cmp(&b).unwrap_or(std::cmp::Ordering::Equal)
}

fn trimmed(text: String) -> String {
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

fn grouped(digits: &str) -> String {
    let (sign, digits) = digits.strip_prefix('-').map_or(("", digits), |d| ("-", d));
    let mut out = String::from(sign);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 && digits.len() > 4 {
            out.push(THIN);
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_four_digits() {
        let cases = [
            (0.0, "0"),
            (0.05, "0.05"),
            (3.94159, "3.942"),
            (184.95, "184.9"),
            (1638.4, "1638"),
            (16384.0, "16\u{202f}384"),
            (-1_234_567.0, "-1\u{202f}234\u{202f}567"),
            (0.000_01, "1.000e-5"),
            (f64::NAN, "n/a"),
        ];
        for (value, text) in cases {
            assert_eq!(figure(value), text);
        }
        assert_eq!(
            [0.612, 0.0004, 0.0, 1.0].map(percent),
            ["61.2\u{a0}%", "0.04\u{a0}%", "0\u{a0}%", "100\u{a0}%"]
        );
        assert_eq!([1.05, 3.944, 112.4].map(times), ["1.05", "3.94", "112"]);
        let small = [0.0, 0.1, 0.0567, 0.004_321];
        assert_eq!(small.map(times), ["0.00", "0.10", "0.0567", "0.004321"]);
        assert_eq!(bytes(524_288), "512\u{a0}KiB");
    }

    #[test]
    fn a_time_has_the_unit_in_which_it_is_short() {
        for (ns, text) in [
            (0.0, "0 ns"),
            (676.1, "676.1 ns"),
            (9999.0, "9999 ns"),
            (20_000.0, "20 us"),
            (20e6, "20 ms"),
            (2.5e9, "2.5 s"),
        ] {
            assert_eq!(time_text(ns), text);
        }
    }

    #[test]
    fn a_name_tells_its_unit() {
        assert_eq!(
            name_and_unit("throttle_latency_ns"),
            ("throttle latency".into(), "ns")
        );
        assert_eq!(name_and_unit("mib_s"), ("bandwidth".into(), "MiB/s"));
        assert_eq!(name_and_unit("cpus"), ("cpus".into(), ""));
    }
}
