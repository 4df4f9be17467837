//! Validating admission webhooks over HTTPS.

use serde_json::{Value, json};

use crate::fixtures::{GROUP, core, config_map, gadget, gadget_with, gadgets};
use crate::scenario::{Scenario, Step, delete, delete_with, get, merge, post, scenario, steps};

const HOOKS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";

/// A hook for this scenario's gadgets, which answers as its path says; more fields replace the usual ones.
fn hook(path: &str, more: Value) -> Value {
    let mut webhook = json!({
        "name": "hook.midflight.dev", "admissionReviewVersions": ["v1"], "sideEffects": "None", "timeoutSeconds": 2,
        "clientConfig": {"url": format!("{{webhook}}{path}"), "caBundle": "{ca}"},
        "rules": [{"apiGroups": [GROUP], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE", "DELETE"], "resources": ["gadgets"]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "{ns}"}},
    });
    for (key, value) in more.as_object().expect("fields are an object") {
        webhook[key] = value.clone();
    }
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration", "metadata": {"name": "{ns}"}, "webhooks": [webhook]})
}

/// Installs the hook, waits until it is asked (or, where it lets through, tells the steps after a while), tells the steps, removes it.
fn under_hook(name: &'static str, path: &str, more: Value, steps: Vec<Step>) -> Scenario {
    let probe = |status: u16| post(gadgets("?dryRun=All"), gadget("probe", json!({}))).is(status).eventually().status_only();
    let effective: Step = match path {
        "/deny-code" => probe(409),
        "/status-500" | "/garbage" | "/slow" | "/wrong-uid" | "/nowhere" if more["failurePolicy"] != "Ignore" => probe(500),
        _ if more["failurePolicy"] == "Ignore" => probe(201),
        _ => probe(400),
    }.into();
    let mut all: Vec<Step> = vec![post(HOOKS, hook(path, more)).status_only().into(), effective];
    all.extend(steps);
    all.push(delete(format!("{HOOKS}/{{ns}}")).status_only().into());
    scenario(name, all)
}

pub(crate) fn scenarios() -> Vec<Scenario> {
    vec![
        under_hook("a refusal has the hook's words", "/deny", json!({}), steps![
            post(gadgets(""), gadget("g1", json!({}))).is(400),
            post(core("configmaps", ""), config_map("c1", json!({}))).status_only(),
            get(gadgets("g1")).is(404),
        ]),
        under_hook("a refusal without words", "/deny-bare", json!({}), steps![
            post(gadgets(""), gadget("g1", json!({}))).is(400),
        ]),
        under_hook("a refusal with a code of its own", "/deny-code", json!({}), steps![
            post(gadgets(""), gadget("g1", json!({}))).is(409),
        ]),
        under_hook("the review tells what is asked", "/echo", json!({}), steps![
            post(gadgets(""), gadget("g1", json!({}))).is(400),
        ]),
        scenario("update and delete are reviewed", steps![
            post(gadgets(""), gadget_with(json!({"name": "g1", "labels": {"a": "b"}}), json!({}))).status_only(),
            post(HOOKS, hook("/echo", json!({}))).status_only(),
            merge(gadgets("g1"), json!({"spec": {"size": 5}})).is(400).eventually(),
            delete(gadgets("g1")).is(400),
            delete(gadgets("")).is(400),
            delete(format!("{HOOKS}/{{ns}}")).status_only(),
        ]),
        scenario("a subresource is asked for by its name", steps![
            post(gadgets(""), gadget("g1", json!({}))).status_only(),
            post(HOOKS, hook("/echo", json!({"rules": [{"apiGroups": [GROUP], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["gadgets/status"]}]}))).status_only(),
            merge(gadgets("g1/status"), json!({"status": {"phase": "Up"}})).is(400).eventually(),
            merge(gadgets("g1"), json!({"spec": {"size": 5}})).status_only(),
            delete(format!("{HOOKS}/{{ns}}")).status_only(),
        ]),
        scenario("a scale is asked for as what it is", steps![
            post(gadgets(""), gadget("g1", json!({"replicas": 1}))).status_only(),
            post(HOOKS, hook("/echo", json!({"rules": [{"apiGroups": [GROUP], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["gadgets/scale"]}]}))).status_only(),
            merge(gadgets("g1/scale?fieldManager=m"), json!({"spec": {"replicas": 5}})).is(400).eventually(),
            delete(format!("{HOOKS}/{{ns}}")).status_only(),
        ]),
        scenario("the review tells how something is deleted", steps![
            post(gadgets(""), gadget("g1", json!({}))).save("g").status_only(),
            post(HOOKS, hook("/echo", json!({}))).status_only(),
            merge(gadgets("g1?fieldManager=m&fieldValidation=Strict"), json!({"spec": {"size": 5}})).is(400).eventually(),
            delete_with(gadgets("g1"), json!({"propagationPolicy": "Foreground", "gracePeriodSeconds": 5})).is(400),
            delete(gadgets("g1?propagationPolicy=Orphan&dryRun=All")).is(400),
            delete(format!("{HOOKS}/{{ns}}")).status_only(),
        ]),
        under_hook("warnings reach the client", "/warn", json!({}), steps![
            post(gadgets(""), gadget("g1", json!({}))).focus(&["/kind"]),
        ]),
        under_hook("an answer to another question", "/wrong-uid", json!({}), steps![
            post(gadgets(""), gadget("g1", json!({}))).is(500),
        ]),
        under_hook("a hook that fails, under policy Fail", "/status-500", json!({"failurePolicy": "Fail"}), steps![
            post(gadgets(""), gadget("g1", json!({}))).is(500),
        ]),
        under_hook("a hook that fails, under policy Ignore", "/status-500", json!({"failurePolicy": "Ignore"}), steps![
            post(gadgets(""), gadget("g1", json!({}))).status_only(),
        ]),
        under_hook("a hook that answers nonsense", "/garbage", json!({}), steps![
            post(gadgets(""), gadget("g1", json!({}))).is(500).focus(&["/reason", "/code"]),
        ]),
        under_hook("a hook that takes too long", "/slow", json!({"timeoutSeconds": 1}), steps![
            post(gadgets(""), gadget("g1", json!({}))).is(500).focus(&["/reason", "/code"]),
        ]),
        under_hook("a hook that nobody serves", "/nowhere", json!({"clientConfig": {"url": "https://127.0.0.1:1/x", "caBundle": "{ca}"}}), steps![
            post(gadgets(""), gadget("g1", json!({}))).is(500).focus(&["/reason", "/code"]),
        ]),
        under_hook("an object selector chooses", "/deny", json!({"objectSelector": {"matchExpressions": [{"key": "skip", "operator": "DoesNotExist"}]}}), steps![
            post(gadgets(""), gadget_with(json!({"name": "g1", "labels": {"skip": "me"}}), json!({}))).status_only(),
            post(gadgets(""), gadget("g2", json!({}))).is(400).status_only(),
        ]),
        under_hook("a match condition chooses", "/deny", json!({"matchConditions": [{"name": "unnamed-only", "expression": "object.metadata.name != 'free'"}]}), steps![
            post(gadgets(""), gadget("free", json!({}))).status_only(),
            post(gadgets(""), gadget("g2", json!({}))).is(400).status_only(),
        ]),
        scenario("a configuration is validated", steps![
            post(HOOKS, hook("/allow", json!({"sideEffects": "Many"}))).is(422),
            post(HOOKS, hook("/allow", json!({"admissionReviewVersions": []}))).is(422),
            post(HOOKS, hook("/allow", json!({"timeoutSeconds": 31}))).is(422),
            post(HOOKS, hook("/allow", json!({"name": "unqualified"}))).is(422),
            post(HOOKS, hook("/allow", json!({"failurePolicy": "Maybe"}))).is(422),
            post(HOOKS, hook("/allow", json!({"clientConfig": {}}))).is(422),
            post(HOOKS, hook("/allow", json!({"clientConfig": {"url": "http://127.0.0.1:1/"}}))).is(422),
            post(HOOKS, hook("/allow", json!({"rules": [{"apiGroups": [], "apiVersions": [], "operations": [], "resources": []}]}))).is(422),
        ]),
        scenario("a configuration gets its defaults", steps![
            post(HOOKS, json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration", "metadata": {"name": "{ns}"}, "webhooks": [{
                "name": "hook.midflight.dev", "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "clientConfig": {"url": "{webhook}/allow", "caBundle": "{ca}"},
                "rules": [{"apiGroups": ["none.midflight.dev"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["none"]}]}]})),
            delete(format!("{HOOKS}/{{ns}}")),
        ]),
    ]
}
