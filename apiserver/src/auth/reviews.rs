//! Answers the questions `kubectl auth` asks: who am I, may I, what may I.
//!
//! The review kinds are not stored; the answer is the question with a status.

use serde_json::{Value, json};

use super::attributes::Attributes;
use super::identity::Identity;
use super::rules::{Authorizer, Decision};
use crate::error::ApiError;
use crate::kind::Kind;
use crate::schema::{FieldError, invalid};

/// The review behind a group and plural, answered; `None` if it is no review.
pub(crate) fn review<'a>(
    authorizer: &Authorizer,
    identity: &Identity,
    (group, plural): (&str, &str),
    mut question: Value,
    kinds: impl Iterator<Item = &'a Kind>,
) -> Option<Result<Value, ApiError>> {
    let (kind, status) = match (group, plural) {
        ("authentication.k8s.io", "selfsubjectreviews") => ("SelfSubjectReview", Ok(who_am_i(identity))),
        ("authorization.k8s.io", "selfsubjectaccessreviews") => {
            ("SelfSubjectAccessReview", may_i(authorizer, identity, &question["spec"]))
        }
        ("authorization.k8s.io", "selfsubjectrulesreviews") => {
            ("SelfSubjectRulesReview", Ok(what_may_i(authorizer, identity, kinds)))
        }
        _ => return None,
    };
    Some(status.map(|status| {
        if !question.is_object() {
            question = json!({});
        }
        question["kind"] = json!(kind);
        question["apiVersion"] = json!(format!("{group}/v1"));
        if !question["metadata"].is_object() {
            question["metadata"] = json!({});
        }
        question["status"] = status;
        question
    }))
}

fn who_am_i(identity: &Identity) -> Value {
    json!({"userInfo": {"username": identity.user, "groups": identity.groups}})
}

fn may_i(authorizer: &Authorizer, identity: &Identity, spec: &Value) -> Result<Value, ApiError> {
    let text = |value: &Value, field: &str| value[field].as_str().unwrap_or_default().to_owned();
    let allowed = if let Some(resource) = spec.get("resourceAttributes").filter(|value| value.is_object()) {
        let [verb, group, plural, sub, namespace, name] =
            ["verb", "group", "resource", "subresource", "namespace", "name"]
                .map(|field| text(resource, field));
        let wanted = Attributes {
            verb: &verb,
            group: &group,
            resource: &plural,
            subresource: not_empty(&sub),
            namespace: not_empty(&namespace),
            name: not_empty(&name),
            only_node: None,
        };
        authorizer.decide(identity, &wanted) != Decision::Deny
    } else if let Some(path) = spec.get("nonResourceAttributes").filter(|value| value.is_object()) {
        authorizer.may_visit(identity, &text(path, "verb"), &text(path, "path"))
    } else {
        let detail = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
        let error = FieldError::invalid("spec.resourceAttributes", &Value::Null, detail);
        return Err(invalid("", "authorization.k8s.io", "", &[error]));
    };
    Ok(json!({"allowed": allowed}))
}

fn not_empty(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

fn what_may_i<'a>(
    authorizer: &Authorizer,
    identity: &Identity,
    kinds: impl Iterator<Item = &'a Kind>,
) -> Value {
    let rules: Vec<Value> = authorizer
        .rules_of(identity, kinds)
        .iter()
        .map(|rule| json!({"verbs": rule.verbs, "apiGroups": [rule.group], "resources": rule.resources}))
        .collect();
    let paths: Vec<&str> =
        ["*", "/api", "/apis", "/healthz", "/livez", "/metrics", "/openapi", "/readyz", "/version"]
            .into_iter()
            .filter(|path| authorizer.may_visit(identity, "get", path))
            .collect();
    json!({
        "incomplete": false,
        "resourceRules": rules,
        "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": paths}],
    })
}
