//! Patches as tables, each row checked against a real server, and as properties.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{PatchError, json_patch, merge_patch, strategic_merge_patch};
use crate::error::{ApiError, Reason};
use crate::schema::{MAX_DEPTH, Schema};

#[test]
fn json_patch_follows_the_real_server() {
    let doc = json!({"spec": {"size": 1, "list": ["a", "b"], "a/b~c": 1}});
    let ok = |spec: Value| Ok(json!({"spec": spec}));
    let refused = Err(Reason::Invalid);
    #[rustfmt::skip]
    let cases = [
        ("add field",        json!([{"op": "add", "path": "/spec/name", "value": "n"}]),     ok(json!({"size": 1, "list": ["a", "b"], "a/b~c": 1, "name": "n"}))),
        ("add at",           json!([{"op": "add", "path": "/spec/list/0", "value": "z"}]),   ok(json!({"size": 1, "list": ["z", "a", "b"], "a/b~c": 1}))),
        ("append",           json!([{"op": "add", "path": "/spec/list/-", "value": "z"}]),   ok(json!({"size": 1, "list": ["a", "b", "z"], "a/b~c": 1}))),
        ("add from the end", json!([{"op": "add", "path": "/spec/list/-1", "value": "z"}]),  ok(json!({"size": 1, "list": ["a", "b", "z"], "a/b~c": 1}))),
        ("add beyond",       json!([{"op": "add", "path": "/spec/list/9", "value": "z"}]),   refused.clone()),
        ("add to nothing",   json!([{"op": "add", "path": "/a/b", "value": 1}]),             refused.clone()),
        ("remove",           json!([{"op": "remove", "path": "/spec/a~1b~0c"}]),             ok(json!({"size": 1, "list": ["a", "b"]}))),
        ("remove last",      json!([{"op": "remove", "path": "/spec/list/-1"}]),             ok(json!({"size": 1, "list": ["a"], "a/b~c": 1}))),
        ("remove nothing",   json!([{"op": "remove", "path": "/spec/nope"}]),                refused.clone()),
        ("replace",          json!([{"op": "replace", "path": "/spec/size", "value": 2}]),   ok(json!({"size": 2, "list": ["a", "b"], "a/b~c": 1}))),
        ("replace new",      json!([{"op": "replace", "path": "/spec/name", "value": "n"}]), ok(json!({"size": 1, "list": ["a", "b"], "a/b~c": 1, "name": "n"}))),
        ("replace beyond",   json!([{"op": "replace", "path": "/spec/list/5", "value": 2}]), refused.clone()),
        ("move",             json!([{"op": "move", "from": "/spec/list/0", "path": "/spec/name"}]), ok(json!({"size": 1, "list": ["b"], "a/b~c": 1, "name": "a"}))),
        ("move into itself", json!([{"op": "move", "from": "/spec", "path": "/spec/x"}]),    refused.clone()),
        ("copy",             json!([{"op": "copy", "from": "/spec/size", "path": "/spec/name"}]), ok(json!({"size": 1, "list": ["a", "b"], "a/b~c": 1, "name": 1}))),
        ("test",             json!([{"op": "test", "path": "/spec/size", "value": 1}]),      ok(doc["spec"].clone())),
        ("test fails",       json!([{"op": "test", "path": "/spec/size", "value": 5}]),      refused.clone()),
        ("test null",        json!([{"op": "test", "path": "/spec/nope", "value": null}]),   ok(doc["spec"].clone())),
        ("test null far",    json!([{"op": "test", "path": "/a/b", "value": null}]),         refused.clone()),
        ("all or nothing",   json!([{"op": "remove", "path": "/spec/size"}, {"op": "remove", "path": "/spec/size"}]), refused.clone()),
        ("unknown op",       json!([{"op": "foo", "path": "/spec"}]),                        refused),
        ("no list",          json!({"op": "add"}),                                           Err(Reason::BadRequest)),
        ("no operation",     json!([1]),                                                     Err(Reason::BadRequest)),
    ];
    for (name, patch, expected) in cases {
        let result = json_patch(&doc, &patch).map_err(|error| ApiError::from(error).reason);
        assert_eq!(result, expected, "{name}");
    }
    let many = Value::Array(vec![json!({"op": "test", "path": "/x", "value": null}); 10_001]);
    assert_eq!(json_patch(&doc, &many), Err(PatchError::TooLarge { got: 10_001 }));
}

#[test]
fn merge_patch_removes_by_null_and_replaces_lists() {
    #[rustfmt::skip]
    let cases = [
        (json!({"a": 1}),               json!({"b": 2}),                    json!({"a": 1, "b": 2})),
        (json!({"a": {"b": 1, "c": 2}}), json!({"a": {"b": null}}),          json!({"a": {"c": 2}})),
        (json!({"a": [1, 2]}),          json!({"a": [3]}),                  json!({"a": [3]})),
        (json!({"a": 1}),               json!({"a": {"b": null, "c": 1}}),  json!({"a": {"c": 1}})),
        (json!({}),                     json!({"a": [{"b": null, "c": 1}, null]}), json!({"a": [{"c": 1}, null]})),
        (json!({"a": {"b": 1}}),        json!({"a": "x"}),                  json!({"a": "x"})),
    ];
    for (doc, patch, expected) in cases {
        assert_eq!(merge_patch(&doc, &patch), expected, "{doc} with {patch}");
    }
}

fn pod_like() -> Schema {
    let text = json!({"type": "string"});
    let container = json!({"type": "object", "properties": {
        "name": text, "image": text, "args": {"type": "array", "items": text},
        "ports": {"type": "array", "x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "port",
            "items": {"type": "object", "properties": {"port": {"type": "integer"}, "name": text}}},
    }});
    Schema::trusted(&json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "containers": {"type": "array", "items": container,
            "x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "name"},
        "strategy": {"type": "object", "x-kubernetes-patch-strategy": "retainKeys",
            "properties": {"type": text, "rolling": {"type": "object"}}},
        "plain": {"type": "array", "items": text},
    }}}}))
}

#[test]
fn strategic_merge_patch_knows_lists_and_directives() {
    let doc = json!({
        "metadata": {"finalizers": ["a", "b"], "ownerReferences": [{"uid": "1", "name": "x"}]},
        "spec": {
            "containers": [{"name": "a", "image": "i1", "args": ["x"]}, {"name": "b", "image": "i2"}],
            "strategy": {"type": "Rolling", "rolling": {"max": 1}},
            "plain": ["x", "y"],
        },
    });
    #[rustfmt::skip]
    let cases = [
        ("merge by key", json!({"spec": {"containers": [{"name": "b", "image": "new"}]}}),
            "/spec/containers", json!([{"name": "a", "image": "i1", "args": ["x"]}, {"name": "b", "image": "new"}])),
        ("new item goes first", json!({"spec": {"containers": [{"name": "c"}]}}),
            "/spec/containers", json!([{"name": "c"}, {"name": "a", "image": "i1", "args": ["x"]}, {"name": "b", "image": "i2"}])),
        ("atomic inside", json!({"spec": {"containers": [{"name": "a", "args": ["y"]}]}}),
            "/spec/containers/0", json!({"name": "a", "image": "i1", "args": ["y"]})),
        ("delete item", json!({"spec": {"containers": [{"name": "a", "$patch": "delete"}]}}),
            "/spec/containers", json!([{"name": "b", "image": "i2"}])),
        ("replace list", json!({"spec": {"containers": [{"name": "z"}, {"$patch": "replace"}]}}),
            "/spec/containers", json!([{"name": "z"}])),
        ("replace map", json!({"spec": {"strategy": {"$patch": "replace", "type": "None"}}}),
            "/spec/strategy", json!({"type": "None"})),
        ("delete map", json!({"spec": {"strategy": {"$patch": "delete"}}}), "/spec/strategy", json!({})),
        ("retain keys", json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "None"}}}),
            "/spec/strategy", json!({"type": "None"})),
        ("plain list", json!({"spec": {"plain": ["z"]}}), "/spec/plain", json!(["z"])),
        ("set of scalars", json!({"metadata": {"finalizers": ["c", "a"]}}),
            "/metadata/finalizers", json!(["c", "a", "b"])),
        ("delete scalars", json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}),
            "/metadata/finalizers", json!(["b"])),
        ("order", json!({"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}}),
            "/spec/containers", json!([{"name": "b", "image": "i2"}, {"name": "a", "image": "i1", "args": ["x"]}])),
        ("order and merge", json!({"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "c"}],
                "containers": [{"name": "c", "image": "n"}]}}),
            "/spec/containers", json!([{"name": "a", "image": "i1", "args": ["x"]}, {"name": "b", "image": "i2"}, {"name": "c", "image": "n"}])),
        ("owners by uid", json!({"metadata": {"ownerReferences": [{"uid": "1", "name": "y"}]}}),
            "/metadata/ownerReferences", json!([{"uid": "1", "name": "y"}])),
        ("null removes", json!({"spec": {"strategy": null}}), "/spec", json!({
            "containers": doc["spec"]["containers"], "plain": ["x", "y"]})),
    ];
    for (name, patch, pointer, expected) in cases {
        let result = strategic_merge_patch(&doc, &patch, &pod_like()).unwrap();
        assert_eq!(result.pointer(pointer), Some(&expected), "{name}");
    }
}

#[test]
fn strategic_merge_patch_refuses_what_it_cannot_place() {
    let doc = json!({"spec": {"containers": [{"name": "a"}], "strategy": {}}});
    #[rustfmt::skip]
    let cases = [
        (json!([]), Reason::BadRequest),
        (json!({"spec": {"containers": [{"image": "x"}]}}), Reason::Unknown),
        (json!({"spec": {"strategy": {"$patch": "explode"}}}), Reason::Unknown),
        (json!({"spec": {"strategy": {"$retainKeys": ["type"], "rolling": {}}}}), Reason::BadRequest),
        (json!({"spec": {"$setElementOrder/containers": "a"}}), Reason::BadRequest),
        (json!({"spec": {"$setElementOrder/containers": [{"name": "a"}], "containers": [{"name": "b"}]}}), Reason::Unknown),
    ];
    for (patch, expected) in cases {
        let error = strategic_merge_patch(&doc, &patch, &pod_like()).unwrap_err();
        assert_eq!(ApiError::from(error).reason, expected, "{patch}");
    }
}

#[test]
fn a_patch_cannot_make_an_object_too_deep_to_store() {
    let deep = (0..MAX_DEPTH - 1).fold(json!(1), |inner, _| json!({"x": inner}));
    let patch = json!([{"op": "add", "path": "/y", "value": deep}]);
    assert!(json_patch(&json!({}), &patch).is_ok());
    let patch = json!([{"op": "add", "path": "/y", "value": {"z": deep}}]);
    assert!(matches!(json_patch(&json!({}), &patch), Err(PatchError::Inapplicable(_))));
}

fn object() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![any::<bool>().prop_map(Value::from), (0i64..5).prop_map(Value::from)];
    let tree = leaf.prop_recursive(3, 20, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::Array),
            prop::collection::btree_map("[a-d]", inner, 0..4).prop_map(|map| map.into_iter().collect()),
        ]
    });
    prop::collection::btree_map("[a-d]", tree, 0..4).prop_map(|map| map.into_iter().collect())
}

/// The merge patch that leads from one object to another.
fn difference(from: &Map<String, Value>, to: &Map<String, Value>) -> Value {
    let mut patch = Map::new();
    for name in from.keys().filter(|name| !to.contains_key(*name)) {
        patch.insert(name.clone(), Value::Null);
    }
    for (name, value) in to {
        match (from.get(name), value) {
            (Some(old), new) if old == new => {}
            (Some(Value::Object(old)), Value::Object(new)) => {
                patch.insert(name.clone(), difference(old, new));
            }
            (_, new) => {
                patch.insert(name.clone(), new.clone());
            }
        }
    }
    Value::Object(patch)
}

proptest! {
    #[test]
    fn merging_the_difference_gives_the_other(a in object(), b in object()) {
        let patch = difference(a.as_object().unwrap(), b.as_object().unwrap());
        prop_assert_eq!(merge_patch(&a, &patch), b);
    }

    #[test]
    fn merging_twice_is_merging_once(doc in object(), patch in object()) {
        let once = merge_patch(&doc, &patch);
        prop_assert_eq!(merge_patch(&once, &patch), once);
    }

    #[test]
    fn without_hints_strategic_is_merge(doc in object(), patch in object()) {
        let strategic = strategic_merge_patch(&doc, &patch, &Schema::anything()).unwrap();
        prop_assert_eq!(strategic, merge_patch(&doc, &patch));
    }
}
