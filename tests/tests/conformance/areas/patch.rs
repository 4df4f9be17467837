//! JSON, merge and strategic merge patches, with the traps of each.

use serde_json::json;

use crate::fixtures::{config_map, core, gadget, gadget_with, gadgets, namespaced};
use crate::scenario::{Scenario, get, json_patch, merge, post, scenario, steps, strategic};

pub(crate) fn scenarios() -> Vec<Scenario> {
    let mut all = by_merge();
    all.extend(by_json());
    all.extend(by_strategy());
    all
}

fn by_merge() -> Vec<Scenario> {
    vec![
        scenario("merge sets, keeps and removes", steps![
            post(gadgets(""), gadget("g1", json!({"size": 1, "title": "abc", "settings": {"a": "1", "b": "2"}}))),
            merge(gadgets("g1"), json!({"spec": {"title": null, "size": 4, "settings": {"b": null, "c": "3"}}})),
            get(gadgets("g1")),
        ]),
        scenario("merge replaces lists as a whole", steps![
            post(gadgets(""), gadget("g1", json!({"ports": [{"port": 1}, {"port": 2}]}))),
            merge(gadgets("g1"), json!({"spec": {"ports": [{"port": 3, "name": "c"}]}})),
        ]),
        scenario("a removed field gets its default again", steps![
            post(gadgets(""), gadget("g1", json!({"size": 7}))),
            merge(gadgets("g1"), json!({"spec": {"size": null}})),
        ]),
        scenario("an empty merge changes nothing", steps![
            post(gadgets(""), gadget("g1", json!({"size": 7}))),
            merge(gadgets("g1"), json!({})),
            merge(gadgets("g1"), json!({"spec": {"size": 7}})),
        ]),
        scenario("merge checks the resourceVersion it carries", steps![
            post(gadgets(""), gadget("g1", json!({}))).save("g"),
            merge(gadgets("g1"), json!({"metadata": {"resourceVersion": "{g:/metadata/resourceVersion}"}, "spec": {"size": 3}})),
            merge(gadgets("g1"), json!({"metadata": {"resourceVersion": "{g:/metadata/resourceVersion}"}, "spec": {"size": 4}})).is(409),
        ]),
        scenario("merge cannot rename or move", steps![
            post(gadgets(""), gadget("g1", json!({}))),
            merge(gadgets("g1"), json!({"metadata": {"name": "g2"}})).is(400),
            merge(gadgets("g1"), json!({"metadata": {"namespace": "default"}})).is(400),
            merge(gadgets("g1"), json!({"kind": "Widget"})).is(422),
            merge(gadgets("g1"), json!({"apiVersion": "v9"})).is(422),
        ]),
        scenario("a patch of something missing", steps![
            merge(gadgets("g9"), json!({})).is(404),
            json_patch(gadgets("g9"), json!([])).is(404),
            strategic(core("configmaps", "c9"), json!({})).is(404),
        ]),
        scenario("a patch that is no patch", steps![
            post(gadgets(""), gadget("g1", json!({}))),
            merge(gadgets("g1"), json!("{")).is(400),
            merge(gadgets("g1"), json!([1])).is(400),
            merge(gadgets("g1"), json!("")).is(400),
            json_patch(gadgets("g1"), json!({"op": "add"})).is(400),
            json_patch(gadgets("g1"), json!("[")).is(400),
        ]),
        scenario("a patch of an unknown type", steps![
            post(gadgets(""), gadget("g1", json!({}))),
            merge(gadgets("g1"), json!({})).content_type("application/json").is(415),
            strategic(gadgets("g1"), json!({})).is(415),
            merge(core("configmaps", "x"), json!({})).content_type("text/plain").is(415).focus(&["/reason"]),
        ]),
    ]
}

fn by_json() -> Vec<Scenario> {
    vec![
        scenario("json patch: every operation", steps![
            post(gadgets(""), gadget("g1", json!({"size": 1, "tags": ["ta", "tb"], "settings": {"a": "1"}}))),
            json_patch(gadgets("g1"), json!([
                {"op": "test", "path": "/spec/size", "value": 1},
                {"op": "replace", "path": "/spec/size", "value": 2},
                {"op": "add", "path": "/spec/tags/-", "value": "tc"},
                {"op": "add", "path": "/spec/tags/0", "value": "t0"},
                {"op": "remove", "path": "/spec/tags/1"},
                {"op": "copy", "from": "/spec/settings/a", "path": "/spec/settings/b"},
                {"op": "move", "from": "/spec/settings/a", "path": "/spec/settings/c"}])),
        ]),
        scenario("json patch: a failing test", steps![
            post(gadgets(""), gadget("g1", json!({"size": 1}))),
            json_patch(gadgets("g1"), json!([{"op": "test", "path": "/spec/size", "value": 2}])).is(422),
            json_patch(gadgets("g1"), json!([{"op": "test", "path": "/spec/title", "value": "x"}])).is(422),
        ]),
        scenario("json patch: null is the value of what is missing", steps![
            post(gadgets(""), gadget("g1", json!({}))),
            json_patch(gadgets("g1"), json!([
                {"op": "test", "path": "/metadata/finalizers", "value": null},
                {"op": "add", "path": "/metadata/finalizers", "value": ["midflight.dev/hold"]}])),
            json_patch(gadgets("g1"), json!([
                {"op": "test", "path": "/metadata/finalizers/0", "value": "midflight.dev/hold"},
                {"op": "remove", "path": "/metadata/finalizers/0"}])),
        ]),
        scenario("json patch: paths that lead nowhere", steps![
            post(gadgets(""), gadget("g1", json!({}))),
            json_patch(gadgets("g1"), json!([{"op": "remove", "path": "/spec/title"}])).is(422),
            json_patch(gadgets("g1"), json!([{"op": "replace", "path": "/spec/title", "value": "x"}])).is(422).focus(&["/reason"]),
            json_patch(gadgets("g1"), json!([{"op": "add", "path": "/spec/settings/a", "value": "x"}])).is(422),
            json_patch(gadgets("g1"), json!([{"op": "add", "path": "/spec/tags/5", "value": "x"}])).is(422),
        ]),
        scenario("json patch: operations that do not exist", steps![
            post(gadgets(""), gadget("g1", json!({}))),
            json_patch(gadgets("g1"), json!([{"op": "shout", "path": "/spec/title"}])).is(422),
            json_patch(gadgets("g1"), json!([{"path": "/spec/title"}])).is(422),
        ]),
        scenario("json patch: escaped names", steps![
            post(gadgets(""), gadget_with(json!({"name": "g1", "annotations": {"a.b/c": "1", "t~x": "2"}}), json!({}))).is(422),
            post(gadgets(""), gadget_with(json!({"name": "g1", "annotations": {"a.b/c": "1"}}), json!({}))),
            json_patch(gadgets("g1"), json!([{"op": "replace", "path": "/metadata/annotations/a.b~1c", "value": "9"}])),
        ]),
        scenario("json patch: an empty patch", steps![
            post(gadgets(""), gadget("g1", json!({}))),
            json_patch(gadgets("g1"), json!([])),
        ]),
        scenario("json patch: the result is validated", steps![
            post(gadgets(""), gadget("g1", json!({}))),
            json_patch(gadgets("g1"), json!([{"op": "add", "path": "/spec/size", "value": 1000}])).is(422),
            json_patch(gadgets("g1"), json!([{"op": "replace", "path": "/metadata/name", "value": "other"}])).is(400),
        ]),
    ]
}

fn by_strategy() -> Vec<Scenario> {
    let set = || json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "d1"}, "spec": {
        "selector": {"matchLabels": {"app": "d"}},
        "template": {"metadata": {"labels": {"app": "d"}}, "spec": {"containers": [
            {"name": "a", "image": "a:1", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]},
            {"name": "b", "image": "b:1"}]}}}});
    let sets = |rest: &str| namespaced("apps/v1", "daemonsets", rest);
    let containers = &["/spec/template/spec/containers/0/name", "/spec/template/spec/containers/0/image", "/spec/template/spec/containers/0/env",
        "/spec/template/spec/containers/1/name", "/spec/template/spec/containers/1/image", "/spec/template/spec/containers/2"];
    vec![
        scenario("strategic merge of a config map", steps![
            post(core("configmaps", ""), config_map("c1", json!({"a": "1", "b": "2"}))),
            strategic(core("configmaps", "c1"), json!({"data": {"b": null, "c": "3"}})),
            strategic(core("configmaps", "c1"), json!({"data": {"$patch": "replace", "z": "26"}})),
            strategic(core("configmaps", "c1"), json!({"metadata": {"finalizers": ["midflight.dev/a"]}})),
            strategic(core("configmaps", "c1"), json!({"metadata": {"finalizers": ["midflight.dev/b"]}})),
            strategic(core("configmaps", "c1"), json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["midflight.dev/a"]}})),
        ]),
        scenario("strategic merge joins containers by name", steps![
            post(sets(""), set()).focus(containers),
            strategic(sets("d1"), json!({"spec": {"template": {"spec": {"containers": [{"name": "a", "image": "a:2"}]}}}})).focus(containers),
            strategic(sets("d1"), json!({"spec": {"template": {"spec": {"containers": [
                {"name": "a", "env": [{"name": "Y", "$patch": "delete"}, {"name": "Z", "value": "3"}]}]}}}})).focus(containers),
            strategic(sets("d1"), json!({"spec": {"template": {"spec": {"containers": [{"name": "b", "$patch": "delete"}]}}}})).focus(containers),
        ]),
        scenario("strategic merge keeps the order it is told", steps![
            post(sets(""), set()).focus(containers),
            strategic(sets("d1"), json!({"spec": {"template": {"spec": {
                "$setElementOrder/containers": [{"name": "b"}, {"name": "a"}],
                "containers": [{"name": "b", "image": "b:2"}]}}}})).focus(containers),
        ]),
        scenario("strategic merge needs the merge key", steps![
            post(sets(""), set()).focus(containers),
            strategic(sets("d1"), json!({"spec": {"template": {"spec": {"containers": [{"image": "c:1"}]}}}})).is(500),
        ]),
        scenario("strategic merge of owner references joins by uid", steps![
            post(core("configmaps", ""), config_map("owner", json!({}))).save("owner"),
            post(core("configmaps", ""), config_map("c1", json!({}))),
            strategic(core("configmaps", "c1"), json!({"metadata": {"ownerReferences": [
                {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": "{owner:/metadata/uid}"}]}})),
            strategic(core("configmaps", "c1"), json!({"metadata": {"ownerReferences": [
                {"uid": "{owner:/metadata/uid}", "$patch": "delete"}]}})),
        ]),
        scenario("merge and json patch of a built-in kind", steps![
            post(core("configmaps", ""), config_map("c1", json!({"a": "1"}))),
            merge(core("configmaps", "c1"), json!({"data": {"b": "2"}})),
            json_patch(core("configmaps", "c1"), json!([{"op": "add", "path": "/data/c", "value": "3"}])),
            merge(core("configmaps", "c1"), json!({"data": {"b": 5}})).is(422).focus(&["/reason"]),
        ]),
    ]
}
