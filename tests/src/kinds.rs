//! The kinds that scenarios speak of.
//!
//! `Gadget` has one of everything a schema can say; `Beacon` is cluster-wide,
//! has no subresource and accepts anything.

use std::time::Duration;

use anyhow::ensure;
use http::Request;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::endpoint::{Answer, Endpoint};

pub const GROUP: &str = "conformance.midflight.dev";

/// A CRD with one version `v1`, the smallest that is accepted.
pub fn definition(group: &str, plural: &str, kind: &str, spec_schema: &Value) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind, "listKind": format!("{kind}List")},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {"spec": spec_schema},
            }}}],
        },
    })
}

fn gadget_definition() -> Value {
    let mut crd = definition(GROUP, "gadgets", "Gadget", &gadget_spec());
    crd["spec"]["names"]["shortNames"] = json!(["gd"]);
    crd["spec"]["names"]["categories"] = json!(["all"]);
    let version = &mut crd["spec"]["versions"][0];
    version["schema"]["openAPIV3Schema"]["description"] = json!("A thing to test with.");
    version["schema"]["openAPIV3Schema"]["properties"]["status"] = gadget_status();
    version["subresources"] = json!({
        "status": {},
        "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
                  "labelSelectorPath": ".status.selector"},
    });
    version["selectableFields"] = json!([{"jsonPath": ".spec.color"}, {"jsonPath": ".spec.size"}]);
    version["additionalPrinterColumns"] = json!([
        {"name": "Size", "type": "integer", "jsonPath": ".spec.size", "description": "How big it is."},
        {"name": "Color", "type": "string", "jsonPath": ".spec.color"},
        {"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"},
        {"name": "Ports", "type": "string", "jsonPath": ".spec.ports[*].port", "priority": 1},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]);
    let mut older = version.clone();
    older["name"] = json!("v1beta1");
    older["storage"] = json!(false);
    older["deprecated"] = json!(true);
    older["deprecationWarning"] = json!("conformance.midflight.dev/v1beta1 Gadget is deprecated; use v1");
    crd["spec"]["versions"].as_array_mut().expect("versions are a list").push(older);
    crd
}

fn gadget_spec() -> Value {
    json!({
        "type": "object", "description": "What is wanted.",
        "properties": {
            "size": {"type": "integer", "minimum": 0, "maximum": 100, "default": 1, "description": "How big it is."},
            "ratio": {"type": "number", "minimum": 0, "exclusiveMinimum": true, "multipleOf": 0.5},
            "big": {"type": "integer", "format": "int64"},
            "count": {"type": "integer", "format": "int32"},
            "color": {"type": "string", "enum": ["red", "green", "blue"]},
            "title": {"type": "string", "minLength": 2, "maxLength": 10, "pattern": "^[a-z]+$"},
            "enabled": {"type": "boolean"},
            "when": {"type": "string", "format": "date-time"},
            "amount": {"x-kubernetes-int-or-string": true},
            "note": {"type": "string", "nullable": true},
            "replicas": {"type": "integer", "format": "int32"},
            "fixed": {"type": "string", "x-kubernetes-validations": [
                {"rule": "self == oldSelf", "message": "fixed cannot change"}]},
            "limits": {"type": "object", "required": ["low"],
                "properties": {"low": {"type": "integer"}, "high": {"type": "integer", "default": 10}},
                "x-kubernetes-validations": [
                    {"rule": "self.low <= self.high", "messageExpression": "'low is above ' + (self.high > 5 ? 'a high high' : 'a low high')",
                     "reason": "FieldValueForbidden", "fieldPath": ".low"}]},
            "tags": {"type": "array", "maxItems": 5, "x-kubernetes-list-type": "set", "items": {"type": "string", "maxLength": 20}},
            "ports": {"type": "array", "maxItems": 8, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port", "protocol"],
                "items": {"type": "object", "required": ["port"], "properties": {
                    "port": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"}, "name": {"type": "string"}}}},
            "steps": {"type": "array", "minItems": 1, "items": {"type": "object", "properties": {
                "run": {"type": "string"}, "times": {"type": "integer", "default": 1}}}},
            "settings": {"type": "object", "maxProperties": 3, "additionalProperties": {"type": "string"}},
            "point": {"type": "object", "x-kubernetes-map-type": "atomic",
                "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                "properties": {"known": {"type": "integer"}}},
            "template": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true},
            "either": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
                "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        },
        "x-kubernetes-validations": [
            {"rule": "!(self.size > 50 && has(self.color) && self.color == 'red')", "message": "red gadgets are small"},
            {"rule": "!has(self.tags) || self.tags.all(tag, tag.startsWith('t'))", "message": "tags start with t"},
        ],
    })
}

fn gadget_status() -> Value {
    json!({"type": "object", "properties": {
        "phase": {"type": "string"}, "replicas": {"type": "integer"}, "selector": {"type": "string"},
        "observedGeneration": {"type": "integer"},
        "conditions": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
            "items": {"type": "object", "required": ["type", "status"], "properties": {
                "type": {"type": "string"}, "status": {"type": "string"}, "reason": {"type": "string"}}}},
    }})
}

fn beacon_definition() -> Value {
    let mut crd = definition(GROUP, "beacons", "Beacon", &json!({"type": "object"}));
    crd["spec"]["scope"] = json!("Cluster");
    let schema = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    *schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    crd
}

/// Creates the kinds and waits until they are served to a first object: the
/// real server makes that one wait two seconds.
pub async fn install(server: &Endpoint) -> anyhow::Result<()> {
    for (crd, instance) in [(gadget_definition(), probe("Gadget")), (beacon_definition(), probe("Beacon"))] {
        let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let mut answer = send(server, "POST", definitions, &crd).await?;
        if answer.status == 409 {
            // An earlier run left it: it becomes what it is today.
            let name = crd["metadata"]["name"].as_str().expect("it has a name");
            answer =
                send(server, "PATCH", &format!("{definitions}/{name}?fieldManager=tests&force=true"), &crd)
                    .await?;
        }
        ensure!(answer.status.is_success(), "create a CRD: {}", answer.text);
        let plural = crd["spec"]["names"]["plural"].as_str().expect("it has a plural");
        let scope = if plural == "beacons" { "" } else { "namespaces/default/" };
        let path = format!("/apis/{GROUP}/v1/{scope}{plural}");
        let deadline = Instant::now() + Duration::from_secs(150);
        loop {
            let answer = send(server, "POST", &path, &instance).await?;
            if [201, 409].contains(&answer.status.as_u16()) {
                break;
            }
            ensure!(Instant::now() < deadline, "{plural} are not served: {}", answer.text);
            sleep(Duration::from_millis(100)).await;
        }
    }
    Ok(())
}

fn probe(kind: &str) -> Value {
    json!({"apiVersion": format!("{GROUP}/v1"), "kind": kind, "metadata": {"name": "probe"}, "spec": {}})
}

async fn send(server: &Endpoint, method: &str, path: &str, body: &Value) -> anyhow::Result<Answer> {
    let media_type = if method == "PATCH" { "application/apply-patch+yaml" } else { "application/json" };
    let request = Request::builder().method(method).uri(path).header("Content-Type", media_type);
    server.call(request.body(body.to_string().into_bytes())?).await
}
