//! What a schema refuses, fills in and prunes; CEL rules; strict, warning and silent field validation.

use serde_json::{Value, json};

use crate::fixtures::{GROUP, config_map, core, gadget, gadgets};
use crate::scenario::{Scenario, apply, merge, post, put, scenario, steps};

/// One scenario that posts a gadget of each spec, all of them wrong.
fn refused(name: &'static str, specs: Vec<Value>) -> Scenario {
    scenario(name, specs.into_iter().map(|spec| post(gadgets(""), gadget("g1", spec)).is(422).into()).collect())
}

/// A gadget in YAML that gives its size twice.
fn twice(name: &str) -> String {
    format!("apiVersion: {GROUP}/v1\nkind: Gadget\nmetadata:\n  name: {name}\nspec:\n  size: 2\n  size: 3\n")
}

pub(crate) fn scenarios() -> Vec<Scenario> {
    let mut all = types();
    all.extend(rules());
    all.extend(field_validation());
    all
}

fn types() -> Vec<Scenario> {
    vec![
        refused("integers", vec![json!({"size": "1"}), json!({"size": 1.5}), json!({"size": true}), json!({"size": [1]}), json!({"size": {}})]),
        refused("bounds", vec![json!({"size": -1}), json!({"size": 101}), json!({"ratio": 0.7})]),
        refused("formats of numbers", vec![json!({"count": 3_000_000_000_i64})]),
        refused("strings", vec![json!({"title": 5}), json!({"title": "a"}), json!({"title": "abcdefghijk"}), json!({"title": "ABC"}), json!({"color": "pink"})]),
        refused("formats of strings", vec![json!({"when": "yesterday"})]),
        refused("booleans", vec![json!({"enabled": "yes"}), json!({"enabled": 1})]),
        refused("lists", vec![json!({"tags": "ta"}), json!({"tags": ["t", "t"]}), json!({"tags": ["t1", "t2", "t3", "t4", "t5", "t6"]}), json!({"steps": []}), json!({"tags": [1]})]),
        refused("keys of map lists", vec![json!({"ports": [{"port": 1}, {"port": 1}]}), json!({"ports": [{"name": "x"}]}), json!({"ports": [1]})]),
        refused("maps", vec![json!({"settings": {"a": 1}}), json!({"settings": {"a": "1", "b": "2", "c": "3", "d": "4"}}), json!({"settings": []})]),
        refused("required fields", vec![json!({"limits": {}}), json!({"limits": {"high": 1}})]),
        refused("int-or-string", vec![json!({"amount": 1.5}), json!({"amount": true})]),
        refused("one of", vec![json!({"either": {}}), json!({"either": {"a": "1", "b": "2"}})]),
        refused("embedded resources", vec![json!({"template": {}})]),
        refused("several faults at once", vec![json!({"size": -1, "color": "pink", "title": "A", "limits": {}})]),
        scenario("what is right in every type", steps![
            post(gadgets(""), gadget("g1", json!({
                "size": 0, "ratio": 1.5, "big": 9_007_199_254_740_993_i64, "color": "green", "title": "abc", "enabled": false,
                "when": "2020-02-29T12:00:00Z", "amount": "50%", "replicas": 2, "fixed": "x",
                "limits": {"low": 1}, "tags": ["ta"], "ports": [{"port": 1}, {"port": 1, "protocol": "UDP"}],
                "steps": [{"run": "x"}, {}], "settings": {"k": ""}, "point": {"x": 1}, "free": {"known": 1, "any": {"b": [1]}},
                "template": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"x": 1}}, "either": {"b": "1"}}))),
        ]),
        scenario("an integer may be written with a point and zeroes", steps![
            post(gadgets(""), json!("{\"apiVersion\":\"conformance.midflight.dev/v1\",\"kind\":\"Gadget\",\"metadata\":{\"name\":\"g1\"},\"spec\":{\"size\":3.0,\"amount\":7}}")),
        ]),
        scenario("spec of another type", steps![
            post(gadgets(""), gadget("g1", json!("text"))).is(422).focus(&["/reason", "/code"]),
            post(gadgets(""), gadget("g1", json!([]))).is(422).focus(&["/reason", "/code"]),
            post(gadgets(""), gadget("g1", json!(null))),
        ]),
        scenario("defaults fill in what is missing, not what is null", steps![
            post(gadgets(""), gadget("g1", json!({"limits": {"low": 1}, "steps": [{}], "ports": [{"port": 1}]}))),
            post(gadgets(""), gadget("g2", json!({"size": null}))),
            post(gadgets(""), gadget("g3", json!({"note": null}))),
            post(gadgets(""), gadget("g4", json!({"title": null}))),
        ]),
        scenario("no spec, no defaults below it", steps![
            post(gadgets(""), json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Gadget", "metadata": {"name": "g1"}})),
        ]),
        scenario("unknown fields are pruned", steps![
            post(gadgets(""), json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Gadget", "metadata": {"name": "g1"}, "extra": 1,
                "spec": {"size": 1, "unknown": {"a": 1}, "limits": {"low": 1, "middle": 5}, "ports": [{"port": 1, "x": 1}], "free": {"kept": 1}, "point": {"z": 1}}})),
        ]),
        scenario("unknown metadata is dropped", steps![
            post(gadgets(""), json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Gadget", "metadata": {"name": "g1", "nickname": "x"}})),
        ]),
        scenario("an old mistake may stay, a new one may not come", steps![
            post(gadgets(""), gadget("g1", json!({"size": 5}))),
            merge(gadgets("g1"), json!({"spec": {"size": -5}})).is(422),
            merge(gadgets("g1"), json!({"spec": {"color": "blue", "title": "Z"}})).is(422),
        ]),
    ]
}

fn rules() -> Vec<Scenario> {
    vec![
        scenario("a rule over two fields", steps![
            post(gadgets(""), gadget("g1", json!({"size": 60, "color": "red"}))).is(422),
            post(gadgets(""), gadget("g1", json!({"size": 60, "color": "blue"}))),
            merge(gadgets("g1"), json!({"spec": {"color": "red"}})).is(422),
        ]),
        scenario("a rule over a list", steps![
            post(gadgets(""), gadget("g1", json!({"tags": ["ta", "b"]}))).is(422),
        ]),
        scenario("a transition rule", steps![
            post(gadgets(""), gadget("g1", json!({"fixed": "a"}))).save("g"),
            merge(gadgets("g1"), json!({"spec": {"fixed": "b"}})).is(422),
            merge(gadgets("g1"), json!({"spec": {"size": 5}})),
            merge(gadgets("g1"), json!({"spec": {"fixed": null}})),
            merge(gadgets("g1"), json!({"spec": {"fixed": "c"}})),
        ]),
        scenario("a message made by an expression, at the field and for the reason it names", steps![
            post(gadgets(""), gadget("g1", json!({"limits": {"low": 11}}))).is(422),
            post(gadgets(""), gadget("g1", json!({"limits": {"low": 11, "high": 2}}))).is(422),
        ]),
        scenario("rules are not asked where the type is wrong", steps![
            post(gadgets(""), gadget("g1", json!({"size": "60", "color": "red"}))).is(422),
        ]),
        scenario("several rules fail at once", steps![
            post(gadgets(""), gadget("g1", json!({"size": 60, "color": "red", "tags": ["x"], "limits": {"low": 20}}))).is(422),
        ]),
    ]
}

fn field_validation() -> Vec<Scenario> {
    let doubled = "{\"apiVersion\":\"conformance.midflight.dev/v1\",\"kind\":\"Gadget\",\"metadata\":{\"name\":\"g1\"},\"spec\":{\"size\":1,\"size\":2}}";
    vec![
        scenario("strict refuses unknown fields", steps![
            post(gadgets("?fieldValidation=Strict"), gadget("g1", json!({"siz": 1}))).is(400),
            post(gadgets("?fieldValidation=Strict"), json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Gadget", "metadata": {"name": "g1"},
                "spec": {"siz": 1, "limits": {"low": 1, "mid": 2}, "ports": [{"port": 1, "x": 1}]}, "extra": 1})).is(400),
            post(gadgets("?fieldValidation=Strict"), json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Gadget", "metadata": {"name": "g1", "nickname": "x"}})).is(400),
            post(gadgets("?fieldValidation=Strict"), json!(doubled)).is(400),
        ]),
        scenario("strict on patch and put", steps![
            post(gadgets(""), gadget("g1", json!({}))).save("g"),
            merge(gadgets("g1?fieldValidation=Strict"), json!({"spec": {"siz": 1}})).is(422),
            put(gadgets("g1?fieldValidation=Strict"), json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Gadget", "metadata": {"name": "g1", "resourceVersion": "{g:/metadata/resourceVersion}"}, "spec": {"siz": 1}})).is(400),
        ]),
        scenario("warn warns", steps![
            post(gadgets("?fieldValidation=Warn"), gadget("g1", json!({"siz": 1, "also": 2}))),
            merge(gadgets("g1?fieldValidation=Warn"), json!({"spec": {"siz": 1}})),
            post(gadgets("?fieldValidation=Warn"), json!(doubled.replace("g1", "g2"))),
        ]),
        scenario("ignore ignores, and the default is to warn", steps![
            post(gadgets("?fieldValidation=Ignore"), gadget("g1", json!({"siz": 1}))),
            post(gadgets(""), gadget("g2", json!({"siz": 1}))),
            post(gadgets("?fieldValidation=Loud"), gadget("g3", json!({}))).is(422),
        ]),
        scenario("strict for a built-in kind", steps![
            post(core("configmaps", "?fieldValidation=Strict"), json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c1"}, "dat": {}})).is(400),
            post(core("configmaps", "?fieldValidation=Warn"), json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c1"}, "dat": {}})),
            post(core("configmaps", "?fieldValidation=Strict"), config_map("c2", json!({"a": "b"}))),
        ]),
        scenario("a deprecated version warns", steps![
            post("/apis/conformance.midflight.dev/v1beta1/namespaces/{ns}/gadgets",
                json!({"apiVersion": format!("{GROUP}/v1beta1"), "kind": "Gadget", "metadata": {"name": "g1"}})),
        ]),
        scenario("a field given twice in a patch", steps![
            post(gadgets(""), gadget("g1", json!({"size": 1}))).status_only(),
            merge(gadgets("g1?fieldValidation=Strict"), json!("{\"spec\": {\"size\": 2, \"size\": 3}}")).is(422),
            merge(gadgets("g1?fieldValidation=Strict"), json!("{\"spec\": {\"size\": 2, \"size\": 3, \"siz\": 1}}")).is(422),
            merge(gadgets("g1?fieldValidation=Warn"), json!("{\"spec\": {\"size\": 2, \"size\": 3}}")).focus(&["/spec/size"]),
            merge(gadgets("g1?fieldValidation=Ignore"), json!("{\"spec\": {\"size\": 4, \"size\": 5}}")).focus(&["/spec/size"]),
        ]),
        scenario("a field given twice in YAML", steps![
            post(gadgets("?fieldValidation=Strict"), json!(twice("g1"))).content_type("application/yaml").is(400),
            post(gadgets("?fieldValidation=Warn"), json!(twice("g1"))).content_type("application/yaml").focus(&["/spec/size"]),
            apply(gadgets("g2?fieldManager=a&fieldValidation=Strict"), json!(twice("g2"))).is(400),
            apply(gadgets("g2?fieldManager=a&fieldValidation=Warn"), json!(twice("g2"))).is(201).focus(&["/spec/size"]),
        ]),
    ]
}
