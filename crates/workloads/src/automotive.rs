// SPDX-License-Identifier: MIT OR Apache-2.0
//! Applications of a car's computer, used as victims of memory traffic: SUSAN's three image algorithms and the C
//! library's qsort. SUSAN is S.M. Smith and J.M. Brady, "SUSAN - A New Approach to Low Level Image Processing",
//! International Journal of Computer Vision 23(1), 1997.
//!
//! In the pollution benchmark one application runs on a core while another core copies. They are implemented from the
//! publications. Inputs are generated from a seed; all arithmetic is on integers, so that an application gives the same
//! checksum on every machine.
//!
//! | name | input | its bytes | footprint, bytes |
//! | --- | --- | --- | --- |
//! | `susan_smoothing_small` | 96x72 grey pixels | 6,912 | 23,284 |
//! | `susan_smoothing_medium` | 384x288 | 110,592 | 341,380 |
//! | `susan_smoothing_large` | 1152x864 | 995,328 | 3,014,404 |
//! | `susan_edges_small` | 96x72 | 6,912 | 34,560 |
//! | `susan_edges_medium` | 384x288 | 110,592 | 552,960 |
//! | `susan_edges_large` | 1152x864 | 995,328 | 4,976,640 |
//! | `susan_corners_small` | 96x72 | 6,912 | 29,952 |
//! | `susan_corners_medium` | 384x288 | 110,592 | 479,232 |
//! | `susan_corners_large` | 1152x864 | 995,328 | 4,313,088 |
//! | `qsort_small` | 10,000 words in records of 128 bytes | 1,280,000 | 2,560,000 |
//! | `qsort_large` | 50,000 points of 12 bytes, sorted as records of 24 | 600,000 | 1,800,000 |
//!
//! The three image algorithms use the same images. Tables (about 700 bytes) are not counted.

use crate::{Descriptor, Error, Result};

mod corners;
mod edges;
mod image;
mod qsort;
mod similarity;
mod smoothing;
mod thinning;
mod usan;

/// An application with an input of one size.
#[derive(Debug)]
pub struct Application {
    /// Name and help.
    pub descriptor: Descriptor,
    /// Generates its input from a seed, and allocates its output.
    program: fn(seed: u64) -> Box<dyn Program>,
}

impl Application {
    /// The name, as in results: `susan_smoothing_small`, ..., `qsort_large`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.descriptor.name
    }

    /// The application with that name.
    ///
    /// # Errors
    /// If there is none; the message lists all names.
    pub fn named(name: &str) -> Result<&'static Self> {
        Self::all()
            .find(|application| application.name() == name)
            .ok_or_else(|| {
                let names: Vec<_> = Self::all().map(Self::name).collect();
                Error::Invalid(format!(
                    "no application is called {name:?}: choose from {}",
                    names.join(", ")
                ))
            })
    }

    /// All applications.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        smoothing::APPLICATIONS
            .iter()
            .chain(&edges::APPLICATIONS)
            .chain(&corners::APPLICATIONS)
            .chain(&qsort::APPLICATIONS)
    }

    /// Prepares the application from a seed, and runs it until the memory is in the state of every later run.
    ///
    /// This takes two runs. The first one touches all pages. glibc maps qsort's array anew the first time that it is
    /// this large, and keeps it afterwards.
    #[must_use]
    pub fn prepare(&self, seed: u64) -> Prepared {
        let mut program = (self.program)(seed);
        program.run();
        let checksum = program.run();
        Prepared { program, checksum }
    }
}

/// An application with its input and room for its output.
pub struct Prepared {
    program: Box<dyn Program>,
    checksum: u64,
}

impl Prepared {
    /// Runs once over the input, which never changes. Allocates nothing, except in the C library's qsort.
    ///
    /// Returns the checksum of the output. If it differs from [`Prepared::checksum`], the machine is faulty.
    pub fn run(&mut self) -> u64 {
        self.program.run()
    }

    /// The checksum that every run must return.
    #[must_use]
    pub fn checksum(&self) -> u64 {
        self.checksum
    }

    /// Bytes of input, output and intermediate data. Each run accesses all of them.
    #[must_use]
    pub fn footprint_bytes(&self) -> usize {
        self.program.footprint_bytes()
    }
}

/// The algorithm of an application.
trait Program: Send {
    /// Runs once over the input; returns the checksum of the output.
    fn run(&mut self) -> u64;
    /// Bytes of input, output and intermediate data.
    fn footprint_bytes(&self) -> usize;
}

/// A checksum that changes if a word or the order of the words changes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Checksum(u64);

impl Checksum {
    /// Multiplies by an odd factor and rotates: both are invertible, so no information of a word is lost.
    fn add(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_add(1);
        self.0 = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }

    fn value(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The checksum of each application for seed 1, and its footprint in bytes.
    const GOLDEN: [(&str, u64, usize); 11] = [
        ("susan_smoothing_small", 0x2665_6258_f00c_c33d, 23_284),
        ("susan_smoothing_medium", 0x3367_9192_f848_1500, 341_380),
        ("susan_smoothing_large", 0x519f_cd82_d091_0749, 3_014_404),
        ("susan_edges_small", 0x8de5_7d25_b167_fb13, 34_560),
        ("susan_edges_medium", 0xbcbf_623e_7869_3258, 552_960),
        ("susan_edges_large", 0x4b7a_3c60_80d1_6485, 4_976_640),
        ("susan_corners_small", 0xb115_5cf8_93af_a57b, 29_952),
        ("susan_corners_medium", 0x77ad_65e3_b9e7_9f62, 479_232),
        ("susan_corners_large", 0x9468_ad39_c946_bc45, 4_313_088),
        ("qsort_small", 0x17fd_9619_cdec_22a7, 2_560_000),
        ("qsort_large", 0x4bce_ea74_6b8e_a991, 1_800_000),
    ];

    #[test]
    fn the_same_seed_gives_the_same_checksum_in_every_run_and_on_every_machine() {
        let found = Application::all().map(|application| {
            let mut prepared = application.prepare(1);
            assert_eq!(prepared.run(), prepared.checksum());
            (
                application.name(),
                prepared.checksum(),
                prepared.footprint_bytes(),
            )
        });
        assert_eq!(found.collect::<Vec<_>>(), GOLDEN);
    }

    #[test]
    fn another_seed_gives_another_checksum() {
        for application in Application::all().filter(|a| !a.name().ends_with("large")) {
            let checksum = |seed| application.prepare(seed).checksum();
            assert_ne!(checksum(1), checksum(2), "{}", application.name());
        }
    }

    #[test]
    fn every_application_is_found_by_its_name_and_no_other() {
        for application in Application::all() {
            let found = Application::named(application.name()).unwrap();
            assert!(std::ptr::eq(found, application));
        }
        let message = Application::named("qsort").unwrap_err().to_string();
        assert!(message.contains("qsort_small, qsort_large"), "{message}");
        assert!(!message.contains('\n'));
    }

    #[test]
    fn the_checksum_sees_every_word_and_the_order() {
        let checksum = |words: &[u64]| {
            let mut checksum = Checksum::default();
            words.iter().for_each(|word| checksum.add(*word));
            checksum.value()
        };
        let sums = [
            checksum(&[]),
            checksum(&[0]),
            checksum(&[0, 0]),
            checksum(&[1, 2]),
            checksum(&[2, 1]),
        ];
        for (number, sum) in sums.iter().enumerate() {
            assert!(!sums[..number].contains(sum), "{sums:?}");
        }
    }
}
