//! The one form in which migrations write JSON: compact, with sorted keys.
//!
//! The one invariant: equal values have equal bytes, whichever kind of
//! migration wrote them and however the libraries were built.

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use serde_json::{Map, Value};

/// The largest row a migration may read or write: what etcd takes in one request.
pub const MAX_ROW: usize = 1536 * 1024;

/// Appends the canonical form of an object.
pub(crate) fn write_object(out: &mut Vec<u8>, object: &Map<String, Value>) {
    serde_json::to_writer(out, &SortedObject(object)).expect("a map with string keys always encodes");
}

/// The canonical form of any value.
pub(crate) fn write_value(out: &mut Vec<u8>, value: &Value) {
    serde_json::to_writer(out, &Sorted(value)).expect("a value with string keys always encodes");
}

struct Sorted<'a>(&'a Value);

impl Serialize for Sorted<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Object(object) => SortedObject(object).serialize(serializer),
            Value::Array(items) => {
                let mut sequence = serializer.serialize_seq(Some(items.len()))?;
                for item in items {
                    sequence.serialize_element(&Sorted(item))?;
                }
                sequence.end()
            }
            plain => plain.serialize(serializer),
        }
    }
}

struct SortedObject<'a>(&'a Map<String, Value>);

impl Serialize for SortedObject<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        if self.0.keys().is_sorted() {
            for (key, value) in self.0 {
                map.serialize_entry(key, &Sorted(value))?;
            }
        } else {
            let mut entries: Vec<_> = self.0.iter().collect();
            entries.sort_unstable_by_key(|(key, _)| *key);
            for (key, value) in entries {
                map.serialize_entry(key, &Sorted(value))?;
            }
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorts_keys_at_every_depth() {
        let value: Value =
            serde_json::from_str(r#"{ "b": [ {"z":1, "a":2} ], "a": {"y":null,"x":1.5} }"#).unwrap();
        let mut out = vec![];
        write_value(&mut out, &value);
        assert_eq!(out, br#"{"a":{"x":1.5,"y":null},"b":[{"a":2,"z":1}]}"#);
    }
}
