//! What instances and volumes are called, and which commands may speak for them.
//!
//! Invariant: a `Name` is a file name: it never leaves the folder it is joined to.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// 1 to 63 of `a-z 0-9 - .`, with a letter or digit at both ends.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Name(String);

const LONGEST_NAME: usize = 63;

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Name, String> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let raw = text.as_bytes();
        let whole = raw.iter().all(|byte| plain(*byte) || matches!(byte, b'-' | b'.'));
        let ends = [raw.first(), raw.last()].into_iter().all(|byte| byte.is_some_and(|byte| plain(*byte)));
        match whole && ends && raw.len() <= LONGEST_NAME {
            true => Ok(Name(text.to_owned())),
            false => Err(format!("{text:?} is no name: 1 to {LONGEST_NAME} of a-z, 0-9, - and .")),
        }
    }
}

impl TryFrom<String> for Name {
    type Error = String;

    fn try_from(text: String) -> Result<Name, String> {
        text.parse()
    }
}

impl From<Name> for String {
    fn from(name: Name) -> String {
        name.0
    }
}

impl Name {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What an instance is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    Replica,
    Engine,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Replica => "replica",
            Kind::Engine => "engine",
        })
    }
}

/// An instance among all of an instance manager.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key {
    pub(super) kind: Kind,
    pub(super) name: Name,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.kind, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_plain_file_name() {
        for good in ["a", "vol-1", "pvc-8a.e-0", &"x".repeat(63)] {
            assert!(good.parse::<Name>().is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "-a", "a-", "A", "a b", "a\0", "ä", "../a", &"x".repeat(64)] {
            assert!(bad.parse::<Name>().is_err(), "{bad}");
        }
    }
}
