//! The one form in which migrations write JSON: compact, with sorted keys.
//!
//! The one invariant: equal values have equal bytes, whichever kind of
//! migration wrote them and however the libraries were built.

use serde_json::{Map, Value};

/// The largest row a migration may read or write: what etcd takes in one request.
pub const MAX_ROW: usize = 1536 * 1024;

/// Appends the canonical form of an object.
pub(crate) fn write_object(out: &mut Vec<u8>, object: &Map<String, Value>) {
    let mut separator = b'{';
    let mut entry = |(name, value): (&String, &Value)| {
        out.push(std::mem::replace(&mut separator, b','));
        write_text(out, name);
        out.push(b':');
        write_value(out, value);
    };
    if object.keys().is_sorted() {
        object.iter().for_each(entry);
    } else {
        let mut entries: Vec<_> = object.iter().collect();
        entries.sort_unstable_by_key(|(name, _)| *name);
        entries.into_iter().for_each(&mut entry);
    }
    if object.is_empty() {
        out.push(b'{');
    }
    out.push(b'}');
}

/// Appends the canonical form of any value.
pub(crate) fn write_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Object(object) => write_object(out, object),
        Value::Array(items) => {
            let mut separator = b'[';
            for item in items {
                out.push(std::mem::replace(&mut separator, b','));
                write_value(out, item);
            }
            if items.is_empty() {
                out.push(b'[');
            }
            out.push(b']');
        }
        Value::String(text) => write_text(out, text),
        Value::Null | Value::Bool(_) | Value::Number(_) => {
            serde_json::to_writer(out, value).expect("writing to memory cannot fail");
        }
    }
}

/// Appends a string in quotes. Nearly all of them are copied as they are.
pub(crate) fn write_text(out: &mut Vec<u8>, text: &str) {
    if text.as_bytes().chunks(64).any(has_special) {
        serde_json::to_writer(out, text).expect("writing to memory cannot fail");
    } else {
        out.push(b'"');
        out.extend_from_slice(text.as_bytes());
        out.push(b'"');
    }
}

/// Whether a byte cannot stand in a string as it is. Looks at all of them, many at a time.
fn has_special(bytes: &[u8]) -> bool {
    bytes.iter().fold(false, |found, &byte| found | (byte < 0x20) | (byte == b'"') | (byte == b'\\'))
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
    #[test]
    fn writes_what_the_library_writes() {
        let texts = ["", "plain", "ü\u{7f}\u{80}", "a\"b", "a\\b", "line\nbreak", "\u{1}", "x\u{0}"];
        for text in texts {
            for padding in [0, 1, 63, 64, 65, 200] {
                let value = Value::from(format!("{}{text}", "y".repeat(padding)));
                let mut out = vec![];
                write_value(&mut out, &value);
                assert_eq!(out, serde_json::to_vec(&value).unwrap());
            }
        }
        for text in ["{}", "[]", "[[],{}]", r#"{"a":[1,-2,3.5,null,true],"b":{}}"#, "1e300", "17"] {
            let value: Value = serde_json::from_str(text).unwrap();
            let mut out = vec![];
            write_value(&mut out, &value);
            assert_eq!(out, serde_json::to_vec(&value).unwrap());
        }
    }
}
