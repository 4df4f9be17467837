//! Garbage collection by owner: in the background, in the foreground, and not at all.

use serde_json::{Value, json};

use crate::fixtures::{core, definition, gadget, gadgets};
use crate::scenario::{Scenario, delete, delete_with, get, merge, post, scenario, steps};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const THINGS: &str = "/apis/{ns}.midflight.dev/v1/namespaces/{ns}/things";

fn thing(name: &str) -> Value {
    json!({"apiVersion": "{ns}.midflight.dev/v1", "kind": "Thing", "metadata": {"name": name}})
}

/// A config map that belongs to what was saved as `owner`.
fn owned(name: &str, blocking: bool) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "ownerReferences": [
        {"apiVersion": "{owner:/apiVersion}", "kind": "{owner:/kind}", "name": "{owner:/metadata/name}", "uid": "{owner:/metadata/uid}",
         "blockOwnerDeletion": blocking}]}})
}

pub(crate) fn scenarios() -> Vec<Scenario> {
    vec![
        scenario("what the objects of a deleted kind owned goes with them", steps![
            post(DEFINITIONS, definition("{ns}.midflight.dev", "things", "Thing", json!({"type": "object"}))).status_only(),
            get(THINGS).eventually().status_only(),
            // The real collector looks for new kinds every thirty seconds; once this one goes, it knows this kind.
            post(THINGS, thing("first")).status_only(),
            delete_with(format!("{THINGS}/first"), json!({"propagationPolicy": "Foreground"})).status_only(),
            get(format!("{THINGS}/first")).is(404).eventually().status_only(),
            post(THINGS, thing("owner")).save("owner").status_only(),
            post(core("configmaps", ""), owned("c1", false)).status_only(),
            post(core("configmaps", ""), owned("c2", true)).status_only(),
            delete(format!("{DEFINITIONS}/things.{{ns}}.midflight.dev")).status_only(),
            get(format!("{DEFINITIONS}/things.{{ns}}.midflight.dev")).is(404).eventually().status_only(),
            get(core("configmaps", "c1")).is(404).eventually(),
            get(core("configmaps", "c2")).is(404).eventually(),
        ]),
        scenario("in the background: the owner goes, then what it owns", steps![
            post(gadgets(""), gadget("owner", json!({}))).save("owner").status_only(),
            post(core("configmaps", ""), owned("c1", true)).status_only(),
            delete_with(gadgets("owner"), json!({"propagationPolicy": "Background"})),
            get(gadgets("owner")).is(404),
            get(core("configmaps", "c1")).is(404).eventually(),
        ]),
        scenario("background is what happens by default", steps![
            post(gadgets(""), gadget("owner", json!({}))).save("owner").status_only(),
            post(core("configmaps", ""), owned("c1", false)).status_only(),
            delete(gadgets("owner")).focus(&["/kind", "/status"]),
            get(core("configmaps", "c1")).is(404).eventually(),
        ]),
        scenario("in the foreground: the owner waits for what it owns", steps![
            post(gadgets(""), gadget("owner", json!({}))).save("owner").status_only(),
            post(core("configmaps", ""), owned("c1", true)).status_only(),
            merge(core("configmaps", "c1"), json!({"metadata": {"finalizers": ["midflight.dev/hold"]}})).status_only(),
            delete_with(gadgets("owner"), json!({"propagationPolicy": "Foreground"})).focus(&["/kind", "/metadata/finalizers"]),
            get(core("configmaps", "c1")).until("/metadata/deletionGracePeriodSeconds", 0).focus(&["/metadata/finalizers"]),
            get(gadgets("owner")).focus(&["/metadata/finalizers"]),
            merge(core("configmaps", "c1"), json!({"metadata": {"finalizers": null}})).status_only(),
            get(gadgets("owner")).is(404).eventually(),
            get(core("configmaps", "c1")).is(404),
        ]),
        scenario("orphans stay and forget their owner", steps![
            post(gadgets(""), gadget("owner", json!({}))).save("owner").status_only(),
            post(core("configmaps", ""), owned("c1", true)).status_only(),
            delete_with(gadgets("owner"), json!({"propagationPolicy": "Orphan"})).focus(&["/kind", "/metadata/finalizers"]),
            get(gadgets("owner")).is(404).eventually(),
            get(core("configmaps", "c1")).until("/metadata/ownerReferences", Value::Null).focus(&["/metadata/ownerReferences"]),
        ]),
        scenario("the whole chain goes", steps![
            post(gadgets(""), gadget("owner", json!({}))).save("owner").status_only(),
            post(core("configmaps", ""), owned("c1", false)).save("owner").status_only(),
            post(core("configmaps", ""), owned("c2", false)).status_only(),
            delete(gadgets("owner")).status_only(),
            get(core("configmaps", "c2")).is(404).eventually(),
        ]),
        scenario("an owner that never was", steps![
            post(core("configmaps", ""), json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c1", "ownerReferences": [
                {"apiVersion": "v1", "kind": "ConfigMap", "name": "ghost", "uid": "00000000-0000-0000-0000-000000000001"}]}})).status_only(),
            get(core("configmaps", "c1")).is(404).eventually(),
        ]),
        scenario("one owner of two is enough to stay", steps![
            post(gadgets(""), gadget("one", json!({}))).save("one").status_only(),
            post(gadgets(""), gadget("two", json!({}))).save("two").status_only(),
            post(core("configmaps", ""), json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c1", "ownerReferences": [
                {"apiVersion": "{one:/apiVersion}", "kind": "Gadget", "name": "one", "uid": "{one:/metadata/uid}"},
                {"apiVersion": "{two:/apiVersion}", "kind": "Gadget", "name": "two", "uid": "{two:/metadata/uid}"}]}})).status_only(),
            delete(gadgets("one")).status_only(),
            get(core("configmaps", "c1")).until("/metadata/ownerReferences/1", Value::Null).focus(&["/metadata/ownerReferences/0/name"]),
            delete(gadgets("two")).status_only(),
            get(core("configmaps", "c1")).is(404).eventually(),
        ]),
        scenario("an owner of the same name with another uid is another", steps![
            post(gadgets(""), gadget("owner", json!({}))).save("owner").status_only(),
            post(core("configmaps", ""), owned("c1", false)).status_only(),
            delete_with(gadgets("owner"), json!({"propagationPolicy": "Background"})).status_only(),
            post(gadgets(""), gadget("owner", json!({}))).status_only(),
            get(core("configmaps", "c1")).is(404).eventually(),
            get(gadgets("owner")).status_only(),
        ]),
    ]
}
