//! Whether a webhook wants to be asked about a write.

use serde_json::Value;

use super::{Operation, Review};
use crate::error::{ApiError, Reason};
use crate::http::{Call, namespaces};
use crate::lifecycle::text;
use crate::schema::expression_holds;
use crate::select::LabelSelector;
use crate::store::Key;

/// Whether rules and selectors of the webhook speak of this write.
pub(super) fn concerns(call: &Call, webhook: &Value, review: &Review<'_>) -> Result<bool, ApiError> {
    let rules = webhook["rules"].as_array().into_iter().flatten();
    if !rules.into_iter().any(|rule| rule_matches(call, rule, review.operation)) {
        return Ok(false);
    }
    let of_namespace = LabelSelector::from_object(webhook.get("namespaceSelector"))?;
    if !of_namespace.is_empty() && !namespace_matches(call, &of_namespace, review) {
        return Ok(false);
    }
    let of_object = LabelSelector::from_object(webhook.get("objectSelector"))?;
    let selected = |object: &Value| of_object.matches(object["metadata"].get("labels"));
    let chosen =
        of_object.is_empty() || review.object.is_some_and(selected) || review.old.is_some_and(selected);
    if !chosen {
        return Ok(false);
    }
    conditions_hold(call, webhook, review)
}

/// `matchConditions`: all must be true. One that cannot be told counts by the failurePolicy.
fn conditions_hold(call: &Call, webhook: &Value, review: &Review<'_>) -> Result<bool, ApiError> {
    let conditions = webhook["matchConditions"].as_array().into_iter().flatten();
    let request = super::question::question(call, review)["request"].take();
    let variables =
        [("object", &request["object"]), ("oldObject", &request["oldObject"]), ("request", &request)];
    let mut failure = None;
    for condition in conditions {
        match expression_holds(text(condition, "/expression"), &variables) {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(reason) => failure = Some(reason),
        }
    }
    match failure {
        None => Ok(true),
        Some(_) if text(webhook, "/failurePolicy") == "Ignore" => Ok(false),
        Some(reason) => {
            let name = text(webhook, "/name");
            let message = format!("admission webhook {name:?}: a match condition failed: {reason}");
            Err(ApiError::new(Reason::Forbidden, message))
        }
    }
}

fn rule_matches(call: &Call, rule: &Value, operation: Operation) -> bool {
    let kind = call.served.kind();
    let lists = |field: &str, wanted: &dyn Fn(&str) -> bool| {
        rule[field]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .any(|one| one == "*" || wanted(one))
    };
    let scope = match text(rule, "/scope") {
        "Namespaced" => call.namespace.is_some(),
        "Cluster" => call.namespace.is_none(),
        _ => true,
    };
    let resource = match call.subresource.as_deref() {
        None => kind.resource.plural.to_string(),
        Some(sub) => format!("{}/{sub}", kind.resource.plural),
    };
    scope
        && lists("operations", &|one| one == operation.as_str())
        && lists("apiGroups", &|one| one == &*kind.resource.group)
        && lists("apiVersions", &|one| kind.version(one).is_some())
        && rule["resources"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .any(|one| names(one, &resource))
}

/// `*` means every resource, `*/*` every subresource too, `pods/*` those of pods.
fn names(pattern: &str, resource: &str) -> bool {
    match (pattern.split_once('/'), resource.split_once('/')) {
        (None, None) => pattern == "*" || pattern == resource,
        (None, Some(_)) => false,
        (Some((plural, "*")), None) => plural == "*" || plural == resource,
        (Some(_), None) => false,
        (Some((plural, sub)), Some((of, wanted))) => {
            (plural == "*" || plural == of) && (sub == "*" || sub == wanted)
        }
    }
}

/// Objects outside namespaces are never excluded by labels of a namespace; a
/// namespace is judged by its own.
fn namespace_matches(call: &Call, selector: &LabelSelector, review: &Review<'_>) -> bool {
    if call.served.is("", "namespaces") {
        let object = review.object.or(review.old);
        return object.is_none_or(|object| selector.matches(object["metadata"].get("labels")));
    }
    let Some(namespace) = call.namespace.as_deref() else { return true };
    let Some(stored) = call.server.store.get(&Key::new(namespaces(), None, namespace)) else { return true };
    let object: Value = serde_json::from_slice(&stored.bytes).expect("the store holds JSON");
    selector.matches(object["metadata"].get("labels"))
}

#[cfg(test)]
mod tests {
    use super::names;

    #[test]
    fn patterns_name_resources_and_subresources() {
        #[rustfmt::skip]
        let cases = [
            ("pods",        "pods",        true),
            ("pods",        "pods/status", false),
            ("*",           "pods",        true),
            ("*",           "pods/status", false),
            ("*/*",         "pods",        true),
            ("*/*",         "pods/status", true),
            ("pods/*",      "pods/status", true),
            ("pods/*",      "nodes/status", false),
            ("*/status",    "pods/status", true),
            ("*/status",    "pods/scale",  false),
            ("pods/status", "pods/status", true),
            ("pods/status", "pods",        false),
        ];
        for (pattern, resource, expected) in cases {
            assert_eq!(names(pattern, resource), expected, "{pattern} {resource}");
        }
    }
}
