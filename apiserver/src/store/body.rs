//! Objects as the store keeps them: JSON that can be sent as it is.
//!
//! The one invariant: the `metadata.resourceVersion` inside the bytes is the
//! version the object is stored under.

use bytes::Bytes;
use serde_json::{Map, Value};

use super::key::Version;

/// An object at one version, as JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    pub version: Version,
    /// Holds `metadata.resourceVersion` already.
    pub bytes: Bytes,
}

impl Stored {
    /// The object as it stands in the store.
    pub fn parse(&self) -> Value {
        serde_json::from_slice(&self.bytes).expect("the store holds JSON")
    }
}

/// An object as JSON with a hole where its resourceVersion goes. The version is
/// known only when the write has its turn; by then nothing is left to serialize.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Body {
    json: Vec<u8>,
    hole: usize,
}

const FIELD: &str = "resourceVersion";

impl Body {
    /// Whatever `metadata.resourceVersion` was is replaced by the hole. A value
    /// that is no JSON object is taken as an empty one.
    pub fn new(object: &Value) -> Body {
        let none = Map::new();
        let fields = object.as_object().unwrap_or(&none);
        let metadata = fields.get("metadata").and_then(Value::as_object).unwrap_or(&none);
        let mut body = Body { json: Vec::with_capacity(1024), hole: 0 };
        body.json.push(b'{');
        for (name, value) in fields {
            if name == "metadata" { body.metadata(metadata) } else { body.field(name, value) }
        }
        if !fields.contains_key("metadata") {
            body.metadata(metadata);
        }
        body.json.push(b'}');
        body
    }

    /// The bytes with the hole filled.
    pub(super) fn at(&self, version: Version) -> Bytes {
        let digits = version.to_string();
        let mut bytes = Vec::with_capacity(self.json.len() + digits.len());
        bytes.extend_from_slice(&self.json[..self.hole]);
        bytes.extend_from_slice(digits.as_bytes());
        bytes.extend_from_slice(&self.json[self.hole..]);
        bytes.into()
    }

    fn metadata(&mut self, metadata: &Map<String, Value>) {
        self.name("metadata");
        self.json.push(b'{');
        for (name, value) in metadata {
            if name != FIELD {
                self.field(name, value);
            }
        }
        self.name(FIELD);
        self.json.push(b'"');
        self.hole = self.json.len();
        self.json.extend_from_slice(b"\"}");
    }

    fn field(&mut self, name: &str, value: &Value) {
        self.name(name);
        serde_json::to_writer(&mut self.json, value).expect("a Value always serializes into memory");
    }

    fn name(&mut self, name: &str) {
        if self.json.last() != Some(&b'{') {
            self.json.push(b',');
        }
        serde_json::to_writer(&mut self.json, name).expect("a string always serializes into memory");
        self.json.push(b':');
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_version_lands_in_the_metadata_and_nothing_else_changes() {
        let cases = [
            ("fresh", json!({"kind": "A", "metadata": {"name": "x"}})),
            (
                "stale version",
                json!({"metadata": {"resourceVersion": "3", "name": "x"}, "spec": {"a": [1, {}]}}),
            ),
            ("wrong type", json!({"metadata": {"resourceVersion": {"deep": 1}}})),
            ("no metadata", json!({"spec": 1})),
            ("metadata of a wrong type", json!({"metadata": 7})),
            ("empty", json!({})),
            ("version elsewhere", json!({"spec": {"resourceVersion": "9"}, "metadata": {}})),
        ];
        for (name, object) in cases {
            let bytes = Body::new(&object).at(Version::new(1234));
            let mut expected = object.clone();
            if !expected["metadata"].is_object() {
                expected["metadata"] = json!({});
            }
            expected["metadata"]["resourceVersion"] = json!("1234");
            let actual: Value = serde_json::from_slice(&bytes).unwrap();
            assert_eq!(actual, expected, "{name}");
        }
    }

    #[test]
    fn what_is_no_object_becomes_an_empty_one() {
        let bytes = Body::new(&json!([1, 2])).at(Version::new(7));
        assert_eq!(bytes, r#"{"metadata":{"resourceVersion":"7"}}"#);
    }

    proptest! {
        #[test]
        fn any_text_survives(name in ".*", label in ".*", version in 1..u64::MAX) {
            let object = json!({"metadata": {"name": name, "labels": {label.clone(): label}}});
            let bytes = Body::new(&object).at(Version::new(version));
            let mut actual: Value = serde_json::from_slice(&bytes).unwrap();
            let written = actual["metadata"].as_object_mut().unwrap().remove("resourceVersion");
            prop_assert_eq!(written, Some(json!(version.to_string())));
            prop_assert_eq!(actual, object);
        }
    }
}
