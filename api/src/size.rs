//! Bytes, written as a string of digits.
//!
//! The invariant: what is read is what is written; no size passes through a
//! floating-point number or a negative one.

use std::borrow::Cow;
use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number of bytes. Longhorn writes sizes as strings, since a JSON number
/// may lose digits beyond 2^53; an empty string is read as 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(u64);

impl Size {
    pub const fn from_bytes(bytes: u64) -> Size {
        Size(bytes)
    }

    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Size {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Size, ParseIntError> {
        text.parse().map(Size)
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Size, D::Error> {
        let text = Cow::<str>::deserialize(from)?;
        if text.is_empty() {
            return Ok(Size::default());
        }
        text.parse().map_err(|_| serde::de::Error::custom(format!("{text:?} is not a number of bytes")))
    }
}

impl JsonSchema for Size {
    fn schema_name() -> Cow<'static, str> {
        "Size".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "maxLength": 18, "pattern": "^[0-9]*$" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_digits_and_nothing_else() {
        #[rustfmt::skip]
        let cases = [
            (r#""1073741824""#,           Some(1 << 30)),
            (r#""9007199254740993""#,     Some((1 << 53) + 1)),
            (r#""""#,                     Some(0)),
            (r#""-1""#,                   None),
            (r#""1Gi""#,                  None),
            (r#""18446744073709551616""#, None),
            (r#"1073741824"#,             None),
        ];
        for (json, expected) in cases {
            assert_eq!(serde_json::from_str(json).ok(), expected.map(Size::from_bytes), "{json}");
        }
    }

    #[test]
    fn writes_what_it_read() {
        let size: Size = "9007199254740993".parse().unwrap();
        assert_eq!(serde_json::to_string(&size).unwrap(), r#""9007199254740993""#);
    }
}
