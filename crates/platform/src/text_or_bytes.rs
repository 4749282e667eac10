// SPDX-License-Identifier: MIT OR Apache-2.0
//! Words and paths of the system in JSON and TOML: text if they are UTF-8, otherwise an array of their bytes.
//!
//! For serde's `with`: [`self`] for one word, [`list`] for several.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The form in files.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "expected a text, or an array of bytes (0 to 255)"
)]
pub enum Form {
    /// UTF-8.
    Text(String),
    /// Other bytes.
    Bytes(Vec<u8>),
}

impl Form {
    fn of(word: &OsStr) -> Self {
        match word.to_str() {
            Some(text) => Self::Text(text.to_owned()),
            None => Self::Bytes(word.as_encoded_bytes().to_vec()),
        }
    }

    fn word(self) -> OsString {
        match self {
            Self::Text(text) => text.into(),
            Self::Bytes(bytes) => OsString::from_vec(bytes),
        }
    }
}

/// One word or path.
///
/// # Errors
/// The format's errors.
pub fn serialize<T: AsRef<OsStr>, S: Serializer>(word: &T, to: S) -> Result<S::Ok, S::Error> {
    Form::of(word.as_ref()).serialize(to)
}

/// One word or path.
///
/// # Errors
/// When it is neither a text nor an array of bytes.
pub fn deserialize<'de, T: From<OsString>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    Form::deserialize(from).map(|form| form.word().into())
}

/// Several words.
pub mod list {
    use super::{Deserialize, Deserializer, Form, OsString, Serializer};

    /// A list of words.
    ///
    /// # Errors
    /// The format's errors.
    pub fn serialize<S: Serializer>(words: &[OsString], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(words.iter().map(|word| Form::of(word)))
    }

    /// A list of words.
    ///
    /// When a word is neither a text nor an array of bytes.
    /// When one of them is neither a text nor an array of bytes.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<OsString>, D::Error> {
        let forms = Vec::<Form>::deserialize(from)?;
        Ok(forms.into_iter().map(Form::word).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Both {
        #[serde(with = "super")]
        path: PathBuf,
        #[serde(with = "super::list")]
        words: Vec<OsString>,
    }

    #[test]
    fn text_stays_text_and_other_bytes_are_listed() {
        let both = Both {
            path: OsString::from_vec(b"/caf\xe9".to_vec()).into(),
            words: vec!["caf\u{e9}".into(), OsString::from_vec(vec![0xff])],
        };
        let text = serde_json::to_string(&both).unwrap();
        assert_eq!(
            text,
            "{\"path\":[47,99,97,102,233],\"words\":[\"caf\u{e9}\",[255]]}"
        );
        assert_eq!(serde_json::from_str::<Both>(&text).unwrap(), both);
    }

    #[test]
    fn what_is_no_byte_is_refused_with_what_is_taken() {
        for text in ["[256]", "[[1]]", "7", "null"] {
            let text = format!("{{\"path\":\"a\",\"words\":[{text}]}}");
            let message = serde_json::from_str::<Both>(&text).unwrap_err().to_string();
            assert!(
                message.contains("an array of bytes (0 to 255)"),
                "{text}: {message}"
            );
        }
    }

    proptest! {
        #[test]
        fn no_byte_is_lost(words in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..8), 1..4)) {
            let words: Vec<OsString> = words.into_iter().map(OsString::from_vec).collect();
            let both = Both { path: words[0].clone().into(), words };
            let text = serde_json::to_string(&both).unwrap();
            prop_assert_eq!(serde_json::from_str::<Both>(&text).unwrap(), both);
        }
    }
}
