//! CustomResourceDefinitions: accepted, established, changed, refused.

use serde_json::{Value, json};

use crate::fixtures::definition;
use crate::scenario::{Scenario, apply, delete, get, merge, post, put, scenario, steps};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn things(spec: Value) -> Value {
    definition("{ns}.midflight.dev", "things", "Thing", spec)
}

fn named() -> String {
    format!("{DEFINITIONS}/things.{{ns}}.midflight.dev")
}

fn objects(rest: &str) -> String {
    crate::fixtures::under("/apis/{ns}.midflight.dev/v1/namespaces/{ns}/things", rest)
}

fn thing(spec: Value) -> Value {
    json!({"apiVersion": "{ns}.midflight.dev/v1", "kind": "Thing", "metadata": {"name": "t1"}, "spec": spec})
}

/// A definition with one thing changed, at a pointer.
fn changed(pointer: &str, value: Value) -> Value {
    let mut crd = things(json!({"type": "object"}));
    let (parent, key) = pointer.rsplit_once('/').expect("a pointer has a slash");
    crd.pointer_mut(parent).expect("the parent is there")[key] = value;
    crd
}

fn with_schema(schema: Value) -> Value {
    changed("/spec/versions/0/schema/openAPIV3Schema", schema)
}

pub(crate) fn scenarios() -> Vec<Scenario> {
    let mut all = life();
    all.extend(refusals());
    all
}

fn life() -> Vec<Scenario> {
    vec![
        scenario("a definition becomes established and serves", steps![
            post(DEFINITIONS, things(json!({"type": "object", "properties": {"a": {"type": "integer"}}}))).without(&["/metadata/managedFields"]),
            get(named()).until("/status/conditions/1/status", "True").focus(&["/status/acceptedNames", "/status/storedVersions",
                "/status/conditions/0/type", "/status/conditions/0/reason", "/status/conditions/0/status", "/status/conditions/0/message",
                "/status/conditions/1/type", "/status/conditions/1/reason", "/status/conditions/1/status", "/status/conditions/1/message"]),
            get(objects("")).eventually(),
            post(objects(""), thing(json!({"a": 1, "b": 2}))),
            delete(named()).focus(&["/kind"]),
            get(objects("t1")).is(404).eventually().focus(&["/none"]),
            get(named()).is(404).eventually(),
        ]),
        scenario("deleting a definition deletes its objects", steps![
            post(DEFINITIONS, things(json!({"type": "object"}))).status_only(),
            get(objects("")).eventually().status_only(),
            post(objects(""), thing(json!({}))).status_only(),
            delete(named()).status_only(),
            get(named()).is(404).eventually().status_only(),
            post(DEFINITIONS, things(json!({"type": "object"}))).status_only(),
            get(objects("")).eventually().focus(&["/items"]),
            delete(named()).status_only(),
        ]),
        scenario("a kind whose definition is being deleted takes nothing new", steps![
            post(DEFINITIONS, things(json!({"type": "object"}))).status_only(),
            get(objects("")).eventually().status_only(),
            post(objects(""), json!({"apiVersion": "{ns}.midflight.dev/v1", "kind": "Thing",
                "metadata": {"name": "t1", "finalizers": ["midflight.dev/hold"]}})).status_only(),
            get("/apis/{ns}.midflight.dev/v1").until("/resources/0/verbs/4", "patch").focus(&["/resources/0/verbs"]),
            delete(named()).status_only(),
            get("/apis/{ns}.midflight.dev/v1").until("/resources/0/verbs/4", "watch").focus(&["/resources"]),
            post(objects(""), json!({"apiVersion": "{ns}.midflight.dev/v1", "kind": "Thing", "metadata": {"name": "t2"}})).is(403),
            post(objects(""), json!({"apiVersion": "{ns}.midflight.dev/v1", "kind": "Thing", "metadata": {"generateName": "t-"}})).is(403),
            apply(objects("t3?fieldManager=somebody"), json!({"apiVersion": "{ns}.midflight.dev/v1", "kind": "Thing", "metadata": {"name": "t3"}})).is(403),
            get(objects("t1")).focus(&["/metadata/finalizers"]),
            merge(objects("t1"), json!({"metadata": {"finalizers": null}})).status_only(),
            get(named()).is(404).eventually().status_only(),
        ]),
        scenario("a changed schema holds from then on", steps![
            post(DEFINITIONS, things(json!({"type": "object", "properties": {"a": {"type": "integer"}}}))).save("crd").status_only(),
            get(objects("")).eventually().status_only(),
            post(objects(""), thing(json!({"a": 1}))).status_only(),
            merge(named(), json!({"spec": {"versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {"spec": {"type": "object", "properties": {"a": {"type": "string"}}}}}}}]}})).status_only(),
            post(objects(""), json!({"apiVersion": "{ns}.midflight.dev/v1", "kind": "Thing", "metadata": {"name": "t2"}, "spec": {"a": "x"}})).eventually(),
            get(objects("t1")).focus(&["/spec"]),
            delete(named()).status_only(),
        ]),
        scenario("a version added is served", steps![
            post(DEFINITIONS, things(json!({"type": "object"}))).status_only(),
            get(objects("")).eventually().status_only(),
            merge(named(), json!({"spec": {"versions": [
                {"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}},
                {"name": "v2", "served": true, "storage": false, "schema": {"openAPIV3Schema": {"type": "object"}}}]}})).status_only(),
            get("/apis/{ns}.midflight.dev/v2/namespaces/{ns}/things").eventually(),
            get("/apis/{ns}.midflight.dev"),
            delete(named()).status_only(),
        ]),
        scenario("a version not served is not found", steps![
            post(DEFINITIONS, changed("/spec/versions", json!([
                {"name": "v1", "served": false, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}},
                {"name": "v2", "served": true, "storage": false, "schema": {"openAPIV3Schema": {"type": "object"}}}]))).status_only(),
            get("/apis/{ns}.midflight.dev/v2/namespaces/{ns}/things").eventually(),
            get(objects("")).is(404),
            delete(named()).status_only(),
        ]),
        scenario("names that are taken are not accepted", steps![
            post(DEFINITIONS, things(json!({"type": "object"}))).status_only(),
            get(objects("")).eventually().status_only(),
            post(DEFINITIONS, definition("{ns}.midflight.dev", "others", "Thing", json!({"type": "object"}))).status_only(),
            get(format!("{DEFINITIONS}/others.{{ns}}.midflight.dev")).until("/status/conditions/0/status", "False").focus(&[
                "/status/conditions/0/type", "/status/conditions/0/reason", "/status/conditions/0/message", "/status/conditions/0/status"]),
            delete(named()).status_only(),
            get(format!("{DEFINITIONS}/others.{{ns}}.midflight.dev")).until("/status/conditions/1/status", "True").focus(&["/status/acceptedNames/kind"]),
            delete(format!("{DEFINITIONS}/others.{{ns}}.midflight.dev")).status_only(),
        ]),
        scenario("group, scope and names do not change", steps![
            post(DEFINITIONS, things(json!({"type": "object"}))).status_only(),
            get(named()).until("/status/conditions/1/status", "True").save("crd").status_only(),
            merge(named(), json!({"spec": {"group": "other.midflight.dev"}})).is(422),
            merge(named(), json!({"spec": {"scope": "Cluster"}})).is(422),
            merge(named(), json!({"spec": {"names": {"kind": "Other", "listKind": "OtherList"}}})).is(422),
            put(named(), things(json!({"type": "object"}))).is(422),
            delete(named()).status_only(),
        ]),
    ]
}

fn refusals() -> Vec<Scenario> {
    let refuse = |name, crd: Value| scenario(name, steps![post(DEFINITIONS, crd).is(422)]);
    vec![
        refuse("the name must be plural and group", changed("/metadata/name", json!("wrong.{ns}.midflight.dev"))),
        refuse("a group needs a dot", {
            let mut crd = changed("/spec/group", json!("nodot{ns}"));
            crd["metadata"]["name"] = json!("things.nodot{ns}");
            crd
        }),
        refuse("scope is one of two", changed("/spec/scope", json!("Galactic"))),
        refuse("exactly one version is stored: none", changed("/spec/versions/0/storage", json!(false))),
        refuse("exactly one version is stored: two", changed("/spec/versions", json!([
            {"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}},
            {"name": "v2", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]))),
        refuse("versions have different names", changed("/spec/versions", json!([
            {"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}},
            {"name": "v1", "served": true, "storage": false, "schema": {"openAPIV3Schema": {"type": "object"}}}]))),
        refuse("there must be a version", changed("/spec/versions", json!([]))),
        refuse("a version has a schema", changed("/spec/versions/0/schema", json!(null))),
        refuse("the root is an object", with_schema(json!({"type": "string"}))),
        refuse("every field has a type", with_schema(json!({"type": "object", "properties": {"spec": {"properties": {"a": {}}}}}))),
        refuse("items have a schema", with_schema(json!({"type": "object", "properties": {"spec": {"type": "array"}}}))),
        refuse("properties and additionalProperties exclude each other", with_schema(json!({"type": "object", "properties": {"spec": {
            "type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "string"}}}}))),
        refuse("a default fits its type", with_schema(json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"a": {"type": "integer", "default": "x"}}}}}))),
        refuse("map lists have keys", with_schema(json!({"type": "object", "properties": {"spec": {"type": "array", "x-kubernetes-list-type": "map",
            "items": {"type": "object", "properties": {"k": {"type": "string"}}}}}}))),
        refuse("a rule compiles", with_schema(json!({"type": "object", "properties": {"spec": {"type": "object", "x-kubernetes-validations": [{"rule": "self.nope > 1"}]}}}))),
        refuse("a rule is not empty", with_schema(json!({"type": "object", "properties": {"spec": {"type": "object", "x-kubernetes-validations": [{"rule": " "}]}}}))),
        refuse("kind and list kind are names", changed("/spec/names/kind", json!("bad kind"))),
        refuse("patterns are regular expressions", with_schema(json!({"type": "object", "properties": {"spec": {"type": "string", "pattern": "("}}}))),
        refuse("metadata is not restricted", with_schema(json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}}))),
        refuse("preserveUnknownFields is of the past", changed("/spec/preserveUnknownFields", json!(true))),
    ]
}
