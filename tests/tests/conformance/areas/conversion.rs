//! Versions that differ: a webhook turns one into the other. `v1` is stored and has `spec.address`, which in
//! `v2` is `spec.host` and `spec.port`.

use serde_json::{Value, json};

use crate::scenario::{Scenario, Step, apply, delete, events, get, json_patch, merge, post, put, scenario, steps, watch};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn version(name: &str, stored: bool, fields: &Value) -> Value {
    json!({"name": name, "served": true, "storage": stored, "subresources": {"status": {}}, "schema": {"openAPIV3Schema": {"type": "object", "properties": {
        "spec": {"type": "object", "properties": fields}, "status": {"type": "object", "properties": {"phase": {"type": "string"}}}}}}})
}

fn versions(first_is_stored: bool) -> Value {
    let text = json!({"type": "string"});
    json!([
        version("v1", first_is_stored, &json!({"address": text, "note": text})),
        version("v2", !first_is_stored, &json!({"host": text, "port": text, "note": text})),
    ])
}

fn definition(conversion: Value) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "hosts.{ns}.midflight.dev"},
        "spec": {"group": "{ns}.midflight.dev", "scope": "Namespaced", "names": {"plural": "hosts", "singular": "host", "kind": "Host", "listKind": "HostList"},
            "conversion": conversion, "versions": versions(true)}})
}

fn named() -> String {
    format!("{DEFINITIONS}/hosts.{{ns}}.midflight.dev")
}

fn webhook(client: Value) -> Value {
    json!({"strategy": "Webhook", "webhook": {"clientConfig": client, "conversionReviewVersions": ["v1"]}})
}

fn at(path: &str) -> Value {
    webhook(json!({"url": format!("{{webhook}}{path}"), "caBundle": "{ca}"}))
}

fn v1(rest: &str) -> String {
    crate::fixtures::under("/apis/{ns}.midflight.dev/v1/namespaces/{ns}/hosts", rest)
}

fn v2(rest: &str) -> String {
    crate::fixtures::under("/apis/{ns}.midflight.dev/v2/namespaces/{ns}/hosts", rest)
}

fn old(name: &str, address: &str) -> Value {
    json!({"apiVersion": "{ns}.midflight.dev/v1", "kind": "Host", "metadata": {"name": name}, "spec": {"address": address}})
}

fn new(name: &str, host: &str, port: &str) -> Value {
    json!({"apiVersion": "{ns}.midflight.dev/v2", "kind": "Host", "metadata": {"name": name}, "spec": {"host": host, "port": port}})
}

/// Installs the kind, tells the steps once it is served, and removes it.
fn converted(name: &'static str, conversion: Value, steps: Vec<Step>) -> Scenario {
    let mut all: Vec<Step> = vec![
        post(DEFINITIONS, definition(conversion)).status_only().into(),
        get(v1("")).eventually().status_only().into(),
        get(v2("")).eventually().status_only().into(),
        post(v1(""), old("first", "first:1")).status_only().into(),
    ];
    all.extend(steps);
    all.push(delete(named()).status_only().into());
    scenario(name, all)
}

pub(crate) fn scenarios() -> Vec<Scenario> {
    let mut all = reading_and_writing();
    all.extend(ownership());
    all.extend(failures());
    all.extend(refusals());
    all
}

fn reading_and_writing() -> Vec<Scenario> {
    vec![
        converted("an object is read and written in every version", at("/convert"), steps![
            post(v1(""), old("a", "here:80")),
            get(v2("a")),
            post(v2(""), new("b", "there", "90")),
            get(v1("b")),
            get(v2("")),
            get(v2("?labelSelector=none%3Dsuch")).focus(&["/kind", "/apiVersion", "/items"]),
        ]),
        converted("an object is changed in the other version", at("/convert"), steps![
            post(v2(""), new("a", "here", "80")).save("a").status_only(),
            merge(v2("a"), json!({"spec": {"port": "81"}})),
            json_patch(v2("a"), json!([{"op": "replace", "path": "/spec/host", "value": "there"}])).focus(&["/spec", "/apiVersion", "/metadata/generation"]),
            merge(v2("a/status"), json!({"status": {"phase": "Up"}})).focus(&["/spec", "/status", "/apiVersion", "/metadata/generation"]),
            get(v2("a/status")).focus(&["/spec", "/status"]),
            put(v2("a"), json!({"apiVersion": "{ns}.midflight.dev/v2", "kind": "Host", "metadata": {"name": "a", "resourceVersion": "{a:/metadata/resourceVersion}"}, "spec": {}})).is(409),
            put(v2("first"), new("first", "second", "2")).is(422),
            get(v1("a")).focus(&["/spec", "/status", "/apiVersion"]),
            merge(v2("a?dryRun=All"), json!({"spec": {"port": "99"}})).focus(&["/spec"]),
            get(v1("a")).focus(&["/spec"]),
        ]),
        converted("a change that changes nothing is none in the other version too", at("/convert"), steps![
            post(v1(""), old("a", "here:80")).save("a").status_only(),
            merge(v2("a"), json!({"spec": {"port": "80"}})).save("b").focus(&["/spec", "/metadata/generation"]),
            get(v1("a?resourceVersion={a:/metadata/resourceVersion}")).focus(&["/spec", "/metadata/generation"]),
        ]),
        converted("an object is deleted in the other version", at("/convert"), steps![
            delete(v2("first")),
            post(v1(""), json!({"apiVersion": "{ns}.midflight.dev/v1", "kind": "Host", "metadata": {"name": "held", "finalizers": ["midflight.dev/hold"]}, "spec": {"address": "a:1"}})).status_only(),
            delete(v2("held")).without(&["/metadata/managedFields"]),
            merge(v2("held"), json!({"metadata": {"finalizers": null}})).focus(&["/kind", "/apiVersion", "/spec"]),
            get(v1("held")).is(404).status_only(),
            post(v1(""), old("b", "here:80")).status_only(),
            delete(v2("")).focus(&["/kind", "/apiVersion", "/items/0/spec", "/items/0/apiVersion"]),
            get(v1("")).focus(&["/items"]),
        ]),
        converted("a watch shows its own version", at("/convert"), steps![
            get(v2("")).save("list").status_only(),
            watch("w", v2("?watch=1&resourceVersion={list:/metadata/resourceVersion}")),
            post(v1(""), old("a", "here:80")).status_only(),
            merge(v1("a"), json!({"spec": {"address": "here:81"}})).status_only(),
            delete(v1("a")).status_only(),
            events("w", 3),
        ]),
        converted("labels are the webhook's to change", at("/convert-labels"), steps![
            get(v2("first")).focus(&["/metadata/labels", "/metadata/annotations", "/metadata/finalizers", "/spec"]),
            get(v2("?labelSelector=converted%3Dto-v2")).focus(&["/items/0/metadata/name"]),
            get(v1("?labelSelector=converted%3Dto-v2")).focus(&["/items"]),
        ]),
        converted("fields that a version does not have are dropped", at("/convert-extra"), steps![
            get(v2("first")).focus(&["/spec"]),
            post(v2(""), new("a", "here", "80")).focus(&["/spec"]),
            get(v1("a")).focus(&["/spec"]),
        ]),
        converted("reviews in the older version are understood", json!({"strategy": "Webhook", "webhook": {
            "clientConfig": {"url": "{webhook}/convert", "caBundle": "{ca}"}, "conversionReviewVersions": ["v9", "v1beta1", "v1"]}}), steps![
            get(v2("first")).focus(&["/spec", "/apiVersion"]),
        ]),
        converted("what was stored in an older version stays readable", at("/convert"), steps![
            merge(named(), json!({"spec": {"versions": versions(false)}})).focus(&["/status/storedVersions"]),
            get(v2("first")).focus(&["/spec", "/apiVersion"]),
            get(v1("first")).focus(&["/spec", "/apiVersion"]),
            merge(v1("first"), json!({"spec": {"address": "second:2"}})).focus(&["/spec", "/apiVersion"]),
            get(v2("first")).focus(&["/spec", "/apiVersion"]),
        ]),
        scenario("without a webhook, each version has its own defaults and fields", steps![
            post(DEFINITIONS, json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "hosts.{ns}.midflight.dev"},
                "spec": {"group": "{ns}.midflight.dev", "scope": "Namespaced", "names": {"plural": "hosts", "singular": "host", "kind": "Host", "listKind": "HostList"},
                    "versions": [
                        version("v1", true, &json!({"a": {"type": "string", "default": "of v1"}, "c": {"type": "string"}})),
                        version("v2", false, &json!({"b": {"type": "string", "default": "of v2"}, "c": {"type": "string"}}))]}})).status_only(),
            get(v1("")).eventually().status_only(),
            get(v2("")).eventually().status_only(),
            post(v1(""), json!({"apiVersion": "{ns}.midflight.dev/v1", "kind": "Host", "metadata": {"name": "one"}, "spec": {"c": "x"}})).focus(&["/spec"]),
            get(v2("one")).focus(&["/spec"]),
            post(v2(""), json!({"apiVersion": "{ns}.midflight.dev/v2", "kind": "Host", "metadata": {"name": "two"}, "spec": {"c": "x"}})).focus(&["/spec"]),
            get(v1("two")).focus(&["/spec"]),
            get(v2("two")).focus(&["/spec"]),
            get(v2("")).focus(&["/items/0/spec", "/items/1/spec"]),
            delete(named()).status_only(),
        ]),
    ]
}

fn ownership() -> Vec<Scenario> {
    let by = |manager: &str| format!("a?fieldManager={manager}");
    vec![
        converted("managers own fields of the version they wrote", at("/convert"), steps![
            post(v1("?fieldManager=one"), old("a", "here:80")).focus(&["/metadata/managedFields"]),
            merge(v2(&by("two")), json!({"spec": {"note": "x"}})).focus(&["/metadata/managedFields"]),
            merge(v2(&by("three")), json!({"spec": {"port": "81"}})).focus(&["/metadata/managedFields"]),
            get(v1("a")).focus(&["/metadata/managedFields", "/spec"]),
            merge(v1(&by("four")), json!({"spec": {"address": "there:81"}})).focus(&["/metadata/managedFields"]),
        ]),
        converted("an apply conflicts with managers of the other version", at("/convert"), steps![
            apply(v1(&by("one")), old("a", "here:80")).is(201).focus(&["/metadata/managedFields", "/spec"]),
            apply(v2(&by("two")), new("a", "here", "81")).is(409),
            apply(v2(&by("two")), new("a", "here", "80")).focus(&["/metadata/managedFields", "/spec"]),
            apply(v2(&format!("{}&force=true", by("two"))), new("a", "here", "81")).focus(&["/metadata/managedFields", "/spec"]),
            get(v1("a")).focus(&["/metadata/managedFields", "/spec"]),
        ]),
        converted("what is applied no more goes, whatever version it was applied in", at("/convert"), steps![
            apply(v1(&by("one")), json!({"apiVersion": "{ns}.midflight.dev/v1", "kind": "Host", "metadata": {"name": "a"}, "spec": {"address": "here:80", "note": "x"}})).is(201).focus(&["/spec"]),
            apply(v2(&by("one")), new("a", "here", "80")).focus(&["/metadata/managedFields", "/spec"]),
            apply(v1(&by("one")), old("a", "here:80")).focus(&["/metadata/managedFields", "/spec"]),
        ]),
        converted("what another manager owns in its version stays", at("/convert"), steps![
            apply(v1(&by("one")), json!({"apiVersion": "{ns}.midflight.dev/v1", "kind": "Host", "metadata": {"name": "a"}, "spec": {"address": "here:80", "note": "x"}})).is(201).focus(&["/spec"]),
            apply(v2(&by("two")), json!({"apiVersion": "{ns}.midflight.dev/v2", "kind": "Host", "metadata": {"name": "a"}, "spec": {"note": "x"}})).focus(&["/metadata/managedFields", "/spec"]),
            apply(v1(&by("one")), old("a", "here:80")).focus(&["/metadata/managedFields", "/spec"]),
        ]),
    ]
}

/// What fails, and what goes on regardless.
fn failing(name: &'static str, path: &str) -> Scenario {
    converted(name, at(path), steps![
        get(v2("first")).is(500),
        post(v2(""), new("a", "here", "80")).is(500),
        merge(v2("first"), json!({"spec": {"port": "2"}})).is(500),
        delete(v2("first")).is(500),
        get(v1("a")).is(404).status_only(),
        merge(v1("first"), json!({"spec": {"address": "second:2"}})).focus(&["/spec"]),
    ])
}

fn failures() -> Vec<Scenario> {
    vec![
        failing("a webhook that says no", "/convert-refuse"),
        failing("a webhook that says no without a word", "/convert-fail"),
        failing("an answer to another conversion", "/convert-wrong-uid"),
        failing("an answer with too few objects", "/convert-few"),
        failing("an answer in the wrong version", "/convert-unchanged"),
        failing("an answer of another kind", "/convert-kind"),
        failing("an answer with another name", "/convert-renamed"),
        failing("an answer with labels that are none", "/convert-bad-labels"),
        failing("an answer without metadata", "/convert-bare"),
        converted("an answer that is no review", at("/convert-no-review"), steps![
            get(v2("first")).is(500).focus(&["/kind", "/reason", "/code"]),
            get(v1("first")).focus(&["/spec"]),
        ]),
        failing("a conversion webhook out of order", "/status-500"),
        converted("a conversion webhook that nobody serves", webhook(json!({"url": "https://127.0.0.1:1/x", "caBundle": "{ca}"})), steps![
            get(v2("first")).is(500).focus(&["/kind", "/reason", "/code"]),
            post(v2(""), new("a", "here", "80")).is(500).focus(&["/kind", "/reason", "/code"]),
            get(v1("first")).focus(&["/spec"]),
        ]),
        converted("a conversion webhook behind a Service that is not there", webhook(json!({"service": {"namespace": "{ns}", "name": "none", "path": "/convert"}})), steps![
            get(named()).focus(&["/spec/conversion"]),
            get(v2("first")).is(500).focus(&["/kind", "/reason", "/code"]),
            post(v2(""), new("a", "here", "80")).is(500).focus(&["/kind", "/reason", "/code"]),
            merge(v1("first"), json!({"spec": {"address": "second:2"}})).focus(&["/spec"]),
        ]),
    ]
}

fn refusals() -> Vec<Scenario> {
    let refuse = |name, conversion: Value| scenario(name, steps![post(DEFINITIONS, definition(conversion)).is(422)]);
    let client = json!({"url": "{webhook}/convert", "caBundle": "{ca}"});
    let reviews = |versions: Value| json!({"strategy": "Webhook", "webhook": {"clientConfig": client, "conversionReviewVersions": versions}});
    vec![
        refuse("conversion is by one of two strategies", json!({"strategy": "Magic"})),
        refuse("a strategy must be named", json!({})),
        refuse("a webhook must be reachable somehow", json!({"strategy": "Webhook"})),
        refuse("a webhook has an address", webhook(json!({}))),
        refuse("a webhook has one address", webhook(json!({"url": "{webhook}/x", "service": {"namespace": "a", "name": "b"}}))),
        refuse("a webhook is asked over https", webhook(json!({"url": "http://127.0.0.1:1/x"}))),
        refuse("a webhook's address is plain", webhook(json!({"url": "https://me@127.0.0.1:1/x?a=b#c"}))),
        refuse("a webhook's address names a host", webhook(json!({"url": "https:///x"}))),
        refuse("a webhook's Service has a name", webhook(json!({"service": {"namespace": "a", "name": "", "port": 70000, "path": "x//y"}}))),
        refuse("a webhook says which reviews it understands", reviews(json!([]))),
        refuse("a webhook understands a review that is known", reviews(json!(["v7", "v8"]))),
        refuse("a webhook names each review once", reviews(json!(["v1", "v1", "Bad Name"]))),
        refuse("a webhook is of no use without the strategy", json!({"strategy": "None", "webhook": {"clientConfig": client, "conversionReviewVersions": ["v1"]}})),
        scenario("certificates that are none hold a definition back", steps![
            post(DEFINITIONS, definition(webhook(json!({"url": "{webhook}/convert", "caBundle": "bm9uZQ=="})))).status_only(),
            get(named()).until("/status/conditions/1/reason", "InvalidCABundle").focus(&[
                "/status/conditions/0/type", "/status/conditions/0/status",
                "/status/conditions/1/type", "/status/conditions/1/status", "/status/conditions/1/reason", "/status/conditions/1/message"]),
            merge(named(), json!({"spec": {"conversion": {"webhook": {"clientConfig": {"caBundle": "{ca}"}}}}})).status_only(),
            get(named()).until("/status/conditions/1/status", "True").focus(&["/status/conditions/1/reason"]),
            merge(named(), json!({"spec": {"conversion": {"webhook": {"clientConfig": {"caBundle": "bm9uZQ=="}}}}})).is(422).focus(&["/reason", "/code", "/details/causes/0/field", "/details/causes/0/reason"]),
            delete(named()).status_only(),
        ]),
    ]
}
