//! Judges events: one that says when it happened must say who reports it and why.

use serde_json::Value;

use super::text;
use crate::builtin::event;
use crate::builtin::faults::{invalid, required};
use crate::builtin::names::label_key;
use crate::error::Cause;
use crate::kind::Kind;

const LONGEST_WORD: usize = 128;
const LONGEST_NOTE: usize = 1024;

/// Judges an event in either view. Fields go by their names in core/v1, but for the one that reports.
pub(super) fn validate(kind: &Kind, new: &Value, old: Option<&Value>, faults: &mut Vec<Cause>) {
    let is_new_view = kind.view_of.is_some();
    let core = if is_new_view { event::to_core(new) } else { new.clone() };
    let reporter = if is_new_view { "reportingController" } else { "reportingComponent" };
    if text(&core, "/eventTime").is_empty() {
        involved(&core, faults);
    } else {
        reported(&core, reporter, faults);
    }
    if is_new_view && old.is_none() {
        in_new_view(&core, faults);
    }
}

fn wrong_namespace(namespace: &str) -> Cause {
    invalid("involvedObject.namespace", namespace, "does not match event.namespace")
}

/// An event of the old kind stands beside what it speaks of.
fn involved(event: &Value, faults: &mut Vec<Cause>) {
    let (own, of) = (text(event, "/metadata/namespace"), text(event, "/involvedObject/namespace"));
    let matches = if of.is_empty() { own.is_empty() || own == "default" } else { own == of };
    if !matches {
        faults.push(wrong_namespace(of));
    }
}

fn reported(event: &Value, reporter: &str, faults: &mut Vec<Cause>) {
    let (own, of) = (text(event, "/metadata/namespace"), text(event, "/involvedObject/namespace"));
    if of.is_empty() && own != "default" && own != "kube-system" {
        faults.push(wrong_namespace(of));
    }
    let controller = text(event, "/reportingComponent");
    if controller.is_empty() {
        faults.push(required(reporter, ""));
    }
    faults.extend(label_key(controller).iter().map(|wrong| invalid(reporter, controller, wrong)));
    for field in ["reportingInstance", "action", "reason"] {
        let word = text(event, &format!("/{field}"));
        if word.is_empty() {
            faults.push(required(field, ""));
        }
        at_most(field, word, LONGEST_WORD, faults);
    }
    at_most("message", text(event, "/message"), LONGEST_NOTE, faults);
}

fn at_most(field: &str, given: &str, limit: usize, faults: &mut Vec<Cause>) {
    if given.len() > limit {
        faults.push(invalid(field, "", &format!("can have at most {limit} characters")));
    }
}

/// What a new event of events.k8s.io has, and what only older ones have.
fn in_new_view(event: &Value, faults: &mut Vec<Cause>) {
    if text(event, "/eventTime").is_empty() {
        faults.push(required("eventTime", ""));
    }
    let kind = text(event, "/type");
    if !["Normal", "Warning"].contains(&kind) {
        faults.push(invalid("type", "", &format!("has invalid value: {kind}")));
    }
    for field in ["firstTimestamp", "lastTimestamp", "count", "source"] {
        let says_something = match event.get(field) {
            None | Some(Value::Null) => false,
            Some(Value::Object(fields)) => !fields.is_empty(),
            Some(Value::Number(number)) => number.as_i64() != Some(0),
            Some(_) => true,
        };
        if says_something {
            faults.push(invalid(field, "", "needs to be unset"));
        }
    }
}
