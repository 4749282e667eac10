// SPDX-License-Identifier: MIT OR Apache-2.0
//! SHA-256 in hexadecimal digits, for names and checksums.

use sha2::{Digest, Sha256};

/// The digest of all parts, concatenated.
pub(crate) fn hex<T: AsRef<[u8]>>(parts: impl IntoIterator<Item = T>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    let digits = hash.finalize();
    digits.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A shortened digest, long enough to tell a few trees apart.
pub(crate) fn short<T: AsRef<[u8]>>(parts: impl IntoIterator<Item = T>) -> String {
    hex(parts)[..12].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_what_sha256sum_prints() {
        let all = "ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73";
        assert_eq!(hex(["content"]), all);
        assert_eq!(hex(["con", "tent"]), all);
        assert_eq!(short(["content"]), "ed7002b439e9");
    }
}
