// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes data of one size to a device and reads it back, repeatedly.

use memwarden_platform::clock::now_ns;

use super::{Device, Trial};
use crate::{Error, Result};

/// The two buffers of a transfer, and the source of random bytes.
#[derive(Debug)]
pub struct Transfer {
    random: fastrand::Rng,
    written: Vec<u8>,
    read: Vec<u8>,
}

impl Transfer {
    /// Transfers of `bytes` bytes; the same `seed` gives the same bytes.
    #[must_use]
    pub fn new(bytes: usize, seed: u64) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
            written: vec![0; bytes],
            read: vec![0; bytes],
        }
    }

    /// Writes fresh random bytes to the start of the device and reads them back: only the two calls are timed, each with
    /// one reading of the clock.
    ///
    /// # Errors
    /// When the device refuses, or other bytes come back.
    pub fn trial(&mut self, device: &Device) -> Result<Trial> {
        self.random.fill(&mut self.written);
        // Make every byte of the read buffer wrong first, so that a byte which the device does not write is detected.
        for (read, written) in self.read.iter_mut().zip(&self.written) {
            *read = !written;
        }
        let start = now_ns();
        device.write_at(0, &self.written)?;
        let written = now_ns();
        let write_ns = written - start;
        let start = now_ns();
        device.read_at(0, &mut self.read)?;
        let read_ns = now_ns() - start;
        self.check(device)?;
        Ok(Trial { write_ns, read_ns })
    }

    fn check(&self, device: &Device) -> Result<()> {
        let pairs = || self.written.iter().zip(&self.read);
        // Without a branch for each byte: some static C libraries compare byte by byte, which is slow on an emulator.
        if pairs().fold(0, |differ, (wrote, got)| differ | (wrote ^ got)) == 0 {
            return Ok(());
        }
        let first = pairs().position(|(wrote, got)| wrote != got).unwrap_or(0);
        Err(Error::OtherBytes {
            path: device.path().into(),
            bytes: self.written.len(),
            first,
            wrote: self.written[first],
            got: self.read[first],
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_file_gives_back_what_it_was_given() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let device = Device::open(file.path()).unwrap();
        let mut transfer = Transfer::new(4097, 7);
        let mut seen = Vec::new();
        for _ in 0..3 {
            transfer.trial(&device).unwrap();
            seen.push(std::fs::read(file.path()).unwrap());
        }
        assert!(seen[0] != seen[1] && seen[1] != seen[2]);
        let mut same = Transfer::new(4097, 7);
        same.trial(&device).unwrap();
        assert_eq!(std::fs::read(file.path()).unwrap(), seen[0]);
    }

    #[test]
    fn other_bytes_are_found() {
        // /dev/zero accepts everything and returns zeros.
        let device = Device::open(Path::new("/dev/zero")).unwrap();
        let message = Transfer::new(64, 7).trial(&device).unwrap_err().to_string();
        assert!(
            message.starts_with("/dev/zero: of 64 bytes written, byte 0 came back as 0x00"),
            "{message}"
        );
    }
}
