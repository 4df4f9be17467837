//! Items of lists of built-in kinds: they say neither kind nor version, as the list says both.

use bytes::BytesMut;
use serde_json::Value;

/// Appends an object, which is compact JSON, without its `apiVersion` and `kind`.
pub(crate) fn push(object: &[u8], to: &mut BytesMut) {
    to.extend_from_slice(b"{");
    let mut first = true;
    let mut rest = object.get(1..).unwrap_or_default();
    while rest.first() == Some(&b'"') {
        let end = member_end(rest);
        let member = &rest[..end];
        if !member.starts_with(b"\"apiVersion\":") && !member.starts_with(b"\"kind\":") {
            if !first {
                to.extend_from_slice(b",");
            }
            first = false;
            to.extend_from_slice(member);
        }
        rest = rest.get(end + 1..).unwrap_or_default();
    }
    to.extend_from_slice(b"}");
}

/// The same for an object that is parsed.
pub(crate) fn strip(mut object: Value) -> Value {
    if let Some(fields) = object.as_object_mut() {
        fields.remove("apiVersion");
        fields.remove("kind");
    }
    object
}

/// Where a member of an object ends: at the comma or bracket that stands on its own level.
fn member_end(text: &[u8]) -> usize {
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for (at, &byte) in text.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b',' | b'}' if depth == 0 => return at,
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn pushed(object: &Value) -> Value {
        let mut to = BytesMut::new();
        push(object.to_string().as_bytes(), &mut to);
        serde_json::from_slice(&to).unwrap()
    }

    #[test]
    fn only_the_type_of_the_object_itself_is_left_out() {
        #[rustfmt::skip]
        let cases = [
            (json!({}),                                             json!({})),
            (json!({"apiVersion": "v1", "kind": "Pod"}),            json!({})),
            (json!({"apiVersion": "v1", "a": {"kind": "x", "b": [1, {"apiVersion": 2}]}, "kind": "Pod", "z": "}],\"kind\":\"x\""}),
             json!({"a": {"kind": "x", "b": [1, {"apiVersion": 2}]}, "z": "}],\"kind\":\"x\""})),
        ];
        for (object, expected) in cases {
            assert_eq!(pushed(&object), expected);
        }
    }

    proptest! {
        #[test]
        fn everything_else_stays(fields in proptest::collection::btree_map("[a-z\"\\\\,{}]{0,4}", "[\\PC\"\\\\{}\\[\\],:]{0,8}", 0..6)) {
            let mut object = serde_json::to_value(fields).unwrap();
            let expected = strip(object.clone());
            object["kind"] = json!("Pod");
            prop_assert_eq!(pushed(&object), expected);
        }
    }
}
