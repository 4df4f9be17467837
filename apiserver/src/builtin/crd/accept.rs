//! Which names of a CRD the server accepts, given those that others hold.
//!
//! Invariant: in one group, no two CRDs hold the same accepted name.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::conversion::is_usable;
use super::{items, text, texts};
use crate::builtin::names::quoted;

/// The status a CRD gets: what it has, with the names and conditions that hold now.
/// `others` are the other CRDs of the server; `now` dates conditions that change.
pub fn accept<'a>(crd: &Value, others: impl IntoIterator<Item = &'a Value>, now: &str) -> Value {
    let group = text(crd, "/spec/group");
    let own = text(crd, "/metadata/name");
    let mut resources = BTreeSet::new();
    let mut kinds = BTreeSet::new();
    for other in others {
        if text(other, "/spec/group") == group && text(other, "/metadata/name") != own {
            let accepted = other.pointer("/status/acceptedNames").unwrap_or(&Value::Null);
            resources.extend([text(accepted, "/plural").to_owned(), text(accepted, "/singular").to_owned()]);
            resources.extend(texts(accepted.get("shortNames")));
            kinds.extend([text(accepted, "/kind").to_owned(), text(accepted, "/listKind").to_owned()]);
        }
    }
    let (names, conflict) = judge(crd, &resources, &kinds);
    let mut status = crd.get("status").and_then(Value::as_object).cloned().unwrap_or_default();
    let (accepted, established) = match &conflict {
        Some((reason, message)) => (
            condition("NamesAccepted", false, reason, message),
            condition("Established", false, "NotAccepted", "not all names are accepted"),
        ),
        None if !is_usable(crd) => (
            condition("NamesAccepted", true, "NoConflicts", "no conflicts found"),
            condition("Established", false, "InvalidCABundle", "The conversion webhook CABundle is invalid"),
        ),
        None => (
            condition("NamesAccepted", true, "NoConflicts", "no conflicts found"),
            condition("Established", true, "InitialNamesAccepted", "the initial names have been accepted"),
        ),
    };
    status.insert("acceptedNames".into(), names);
    set_condition(&mut status, accepted, now);
    // What was established once stays so, whatever becomes of later names.
    if !is_true(&status, "Established") {
        set_condition(&mut status, established, now);
    }
    Value::Object(status)
}

/// The names as far as they are free, and the last conflict found.
fn judge(
    crd: &Value,
    resources: &BTreeSet<String>,
    kinds: &BTreeSet<String>,
) -> (Value, Option<(String, String)>) {
    let wanted = crd.pointer("/spec/names").cloned().unwrap_or(json!({}));
    let held = crd.pointer("/status/acceptedNames").cloned().unwrap_or(json!({}));
    let mut names = held.as_object().cloned().unwrap_or_default();
    let mut conflict = None;
    let mut single = |field: &str, used: &BTreeSet<String>, reason: &str| {
        let name = text(&wanted, &format!("/{field}"));
        if name != text(&held, &format!("/{field}")) && used.contains(name) {
            conflict = Some((reason.to_owned(), format!("{} is already in use", quoted(name))));
        } else {
            names.insert(field.to_owned(), json!(name));
        }
    };
    single("plural", resources, "PluralConflict");
    single("singular", resources, "SingularConflict");
    single("kind", kinds, "KindConflict");
    single("listKind", kinds, "ListKindConflict");
    let ours = texts(held.get("shortNames"));
    let taken: Vec<String> = texts(wanted.get("shortNames"))
        .into_iter()
        .filter(|name| !ours.contains(name) && resources.contains(name))
        .map(|name| format!("{} is already in use", quoted(&name)))
        .collect();
    match taken.len() {
        0 => copy(&wanted, &mut names, "shortNames"),
        1 => conflict = conflict.or(Some(("ShortNamesConflict".into(), taken[0].clone()))),
        _ => conflict = conflict.or(Some(("ShortNamesConflict".into(), format!("[{}]", taken.join(", "))))),
    }
    copy(&wanted, &mut names, "categories");
    (Value::Object(names), conflict)
}

fn copy(from: &Value, to: &mut Map<String, Value>, field: &str) {
    match from.get(field) {
        Some(value) => to.insert(field.to_owned(), value.clone()),
        None => to.remove(field),
    };
}

fn condition(kind: &str, holds: bool, reason: &str, message: &str) -> Value {
    json!({"type": kind, "status": if holds { "True" } else { "False" }, "reason": reason, "message": message})
}

fn is_true(status: &Map<String, Value>, kind: &str) -> bool {
    items(status.get("conditions")).any(|one| text(one, "/type") == kind && text(one, "/status") == "True")
}

/// Puts a condition in its place; its date stays unless its status changes.
fn set_condition(status: &mut Map<String, Value>, mut condition: Value, now: &str) {
    let conditions = status.entry("conditions").or_insert(Value::Null);
    if conditions.is_null() {
        *conditions = json!([]);
    }
    let Value::Array(conditions) = conditions else { return };
    let place = conditions.iter_mut().find(|one| one["type"] == condition["type"]);
    let since = place.as_ref().filter(|old| old["status"] == condition["status"]);
    condition["lastTransitionTime"] = since.map_or(json!(now), |old| old["lastTransitionTime"].clone());
    match place {
        Some(old) => *old = condition,
        None => conditions.push(condition),
    }
}
