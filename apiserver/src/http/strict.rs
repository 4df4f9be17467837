//! Reads JSON and YAML and notes what a strict reader would refuse: fields that are given twice.
//!
//! The invariant: the value is the one that a lenient reader makes, in which the
//! last of several equal fields counts.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::{DuplicateKeyPolicy, Error as YamlError};

use crate::schema::{Path, quote};

/// A body that was read.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Read {
    pub(crate) value: Value,
    /// What is wrong with it for a strict reader, in the words of the real server.
    pub(crate) faults: Vec<String>,
}

pub(crate) fn json(bytes: &[u8]) -> Result<Read, serde_json::Error> {
    let mut faults = Vec::new();
    let mut source = serde_json::Deserializer::from_slice(bytes);
    let value = Reader { at: &Path::Root, faults: &mut faults }.deserialize(&mut source)?;
    source.end()?;
    Ok(Read { value, faults })
}

pub(crate) fn yaml(text: &str) -> Result<Read, YamlError> {
    let error = match serde_saphyr::from_str(text) {
        Ok(value) => return Ok(Read { value, faults: Vec::new() }),
        Err(error) => error,
    };
    let Some(fault) = duplicate(&error) else { return Err(error) };
    let lenient = serde_saphyr::options! { duplicate_keys: DuplicateKeyPolicy::LastWins };
    Ok(Read { value: serde_saphyr::from_str_with_options(text, lenient)?, faults: vec![fault] })
}

/// The fault that a field given twice is, if that is what the error says.
fn duplicate(error: &YamlError) -> Option<String> {
    match error {
        YamlError::WithSnippet { error, .. } => duplicate(error),
        YamlError::DuplicateMappingKey { key, location } => Some(format!(
            "line {}: key {} already set in map",
            location.line(),
            quote(key.as_deref().unwrap_or_default()),
        )),
        _ => None,
    }
}

/// Reads one value that stands at a place in the body.
struct Reader<'a, 'f> {
    at: &'a Path<'a>,
    faults: &'f mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for Reader<'_, '_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Value, D::Error> {
        source.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_, '_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(Value::Bool(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Value, E> {
        Number::from_f64(number).map(Value::Number).ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::String(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(Value::String(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        loop {
            let at = self.at.index(items.len());
            let Some(item) = list.next_element_seed(Reader { at: &at, faults: self.faults })? else { break };
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            let at = self.at.field(&name);
            let value = map.next_value_seed(Reader { at: &at, faults: self.faults })?;
            if fields.contains_key(&name) {
                let fault = format!("duplicate field {}", quote(&at.dotted()));
                if !self.faults.contains(&fault) {
                    self.faults.push(fault);
                }
            }
            fields.insert(name, value);
        }
        Ok(Value::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_last_of_equal_fields_counts_and_is_told_of() {
        #[rustfmt::skip]
        let cases = [
            (r#"{"a":1,"b":[true,null,-2,1.5,"x"]}"#,   json!({"a": 1, "b": [true, null, -2, 1.5, "x"]}), vec![]),
            (r#"{"a":1,"a":2,"a":3}"#,                  json!({"a": 3}),                 vec![r#"duplicate field "a""#]),
            (r#"{"a":[{"b":{"c":1,"c":2}}]}"#,          json!({"a": [{"b": {"c": 2}}]}), vec![r#"duplicate field "a[0].b.c""#]),
            (r#"{"a":{"x":1},"b":{"x":1}}"#,            json!({"a": {"x": 1}, "b": {"x": 1}}), vec![]),
        ];
        for (text, value, faults) in cases {
            let read = json(text.as_bytes()).unwrap();
            assert_eq!(
                (read.value, read.faults.iter().map(String::as_str).collect()),
                (value, faults),
                "{text}"
            );
        }
        for text in ["", "{", "{} x", "[1,]", r#"{"a":1e999}"#] {
            assert!(json(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn yaml_is_read_the_same_way() {
        let read = yaml("a: 1\nb:\n  c: 2\n  c: 3\n").unwrap();
        assert_eq!(read.value, json!({"a": 1, "b": {"c": 3}}));
        assert_eq!(read.faults.len(), 1);
        assert!(read.faults[0].ends_with("line 4: key \"c\" already set in map"), "{:?}", read.faults);
        assert_eq!(yaml("a: 1\n").unwrap(), Read { value: json!({"a": 1}), faults: vec![] });
        assert!(yaml("a: [").is_err());
    }
}
