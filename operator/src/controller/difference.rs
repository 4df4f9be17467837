//! What has to be patched to make one value of another.
//!
//! The invariant: a field that both sides have alike, or that neither knows, is not named.

use serde_json::{Map, Value};

/// The merge patch that leads from `old` to `new`; nothing if they are alike.
pub(super) fn difference(old: &Value, new: &Value) -> Option<Value> {
    if old == new {
        return None;
    }
    let (Value::Object(old), Value::Object(new)) = (old, new) else {
        return Some(new.clone());
    };
    let removed = old.keys().filter(|name| !new.contains_key(*name)).map(|name| (name.clone(), Value::Null));
    let changed = new.iter().filter_map(|(name, value)| {
        let change = match old.get(name) {
            Some(was) => difference(was, value)?,
            None => value.clone(),
        };
        Some((name.clone(), change))
    });
    let patch: Map<String, Value> = removed.chain(changed).collect();
    Some(patch.into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_what_differs_and_nothing_else() {
        #[rustfmt::skip]
        let cases = [
            ("alike",        json!({"a": 1}),                 json!({"a": 1}),                 None),
            ("changed",      json!({"a": 1, "b": 2}),         json!({"a": 3, "b": 2}),         Some(json!({"a": 3}))),
            ("added",        json!({}),                       json!({"a": {"b": 1}}),          Some(json!({"a": {"b": 1}}))),
            ("removed",      json!({"a": 1, "b": 2}),         json!({"b": 2}),                 Some(json!({"a": null}))),
            ("deep",         json!({"a": {"b": 1, "c": 2}}),  json!({"a": {"b": 1}}),          Some(json!({"a": {"c": null}}))),
            ("list",         json!({"a": [1, 2]}),            json!({"a": [2]}),               Some(json!({"a": [2]}))),
            ("other shape",  json!({"a": {"b": 1}}),          json!({"a": 1}),                 Some(json!({"a": 1}))),
        ];
        for (case, old, new, expected) in cases {
            assert_eq!(difference(&old, &new), expected, "{case}");
        }
    }
}
