//! Events have two views on one stored object: core/v1, in which they are
//! stored, and events.k8s.io/v1.
//!
//! Invariant: a view turned into the other and back is the object it was.

use serde_json::{Map, Value};

/// Pairs of field names: core/v1, events.k8s.io/v1.
const RENAMED: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// Fields that core/v1 always shows, with the value of an absent one.
const CORE_ALWAYS: [(&str, &str); 2] = [("reportingComponent", ""), ("reportingInstance", "")];

/// The events.k8s.io/v1 view of a stored (core/v1) event.
pub fn from_core(event: &Value) -> Value {
    let mut view = renamed(event, |core, events| (core, events), "events.k8s.io/v1");
    for (field, absent) in [("reportingController", ""), ("reportingInstance", "")] {
        if view.get(field).and_then(Value::as_str) == Some(absent) {
            view.remove(field);
        }
    }
    // This view always names the time, even where there is none.
    view.entry("eventTime").or_insert(Value::Null);
    Value::Object(view)
}

/// The core/v1 form, ready to be stored, of an events.k8s.io/v1 event.
pub fn to_core(event: &Value) -> Value {
    let mut core = renamed(event, |core, events| (events, core), "v1");
    core.retain(|field, value| field != "eventTime" || !value.is_null());
    for (field, absent) in CORE_ALWAYS {
        core.entry(field).or_insert_with(|| absent.into());
    }
    Value::Object(core)
}

fn renamed<'a>(
    event: &Value,
    direction: impl Fn(&'a str, &'a str) -> (&'a str, &'a str),
    api_version: &str,
) -> Map<String, Value> {
    let mut fields = event.as_object().cloned().unwrap_or_default();
    let taken: Vec<(&str, Option<Value>)> = RENAMED
        .iter()
        .map(|(core, events)| direction(core, events))
        .map(|(from, to)| (to, fields.remove(from)))
        .collect();
    for (to, value) in taken {
        if let Some(value) = value.filter(|value| !value.is_null()) {
            fields.insert(to.to_owned(), value);
        }
    }
    fields.insert("apiVersion".into(), api_version.into());
    fields
}

#[cfg(test)]
mod tests;
