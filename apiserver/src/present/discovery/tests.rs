use super::*;
use crate::builtin::{builtin_kinds, kind_from_crd};

fn gadget() -> Kind {
    kind_from_crd(&json!({"spec": {
        "group": "example.com", "scope": "Namespaced",
        "names": {"plural": "gadgets", "kind": "Gadget", "shortNames": ["gd"], "categories": ["all"]},
        "versions": [
            {"name": "v1beta1", "served": true, "storage": false},
            {"name": "v1alpha1", "served": false, "storage": false},
            {"name": "v1", "served": true, "storage": true, "subresources": {"status": {},
                "scale": {"specReplicasPath": ".spec.n", "statusReplicasPath": ".status.n"}}},
        ],
    }}))
    .unwrap()
}

/// The lists of kube-apiserver 1.36, cut down to what is served here.
#[test]
fn lists_what_the_real_server_lists() {
    let kinds = builtin_kinds();
    let recorded: Vec<Value> = serde_json::from_str(include_str!("../recorded/resources.json")).unwrap();
    for case in recorded {
        let group = case["group"].as_str().unwrap();
        assert_eq!(api_resource_list(&kinds, group, "v1").unwrap(), case["list"], "{group}");
    }
    let groups = api_group_list(&kinds);
    let names: Vec<&str> =
        groups["groups"].as_array().unwrap().iter().filter_map(|group| group["name"].as_str()).collect();
    assert_eq!(
        names,
        [
            "apps",
            "events.k8s.io",
            "authentication.k8s.io",
            "authorization.k8s.io",
            "storage.k8s.io",
            "admissionregistration.k8s.io",
            "apiextensions.k8s.io",
            "coordination.k8s.io"
        ]
    );
}

#[test]
fn a_custom_kind_is_listed_in_each_version_it_is_served_in() {
    let mut kinds = builtin_kinds();
    kinds.push(gadget());
    let group = api_group(&kinds, "example.com").unwrap();
    assert_eq!(
        group,
        json!({
            "kind": "APIGroup", "apiVersion": "v1", "name": "example.com",
            "versions": [
                {"groupVersion": "example.com/v1", "version": "v1"},
                {"groupVersion": "example.com/v1beta1", "version": "v1beta1"},
            ],
            "preferredVersion": {"groupVersion": "example.com/v1", "version": "v1"},
        })
    );
    let list = api_resource_list(&kinds, "example.com", "v1").unwrap();
    let names: Vec<&str> =
        list["resources"].as_array().unwrap().iter().filter_map(|one| one["name"].as_str()).collect();
    assert_eq!(names, ["gadgets", "gadgets/scale", "gadgets/status"]);
    assert_eq!(list["resources"][1]["group"], "autoscaling");
    assert_eq!(list["resources"][0]["categories"], json!(["all"]));
    assert!(api_resource_list(&kinds, "example.com", "v1alpha1").is_none());
    assert!(api_group(&kinds, "nowhere").is_none());
}

/// The two forms, brought to (group, version, resource, kind, verbs).
#[test]
fn both_forms_tell_the_same() {
    let mut kinds = builtin_kinds();
    kinds.push(gadget());
    let mut aggregated = Vec::new();
    for core in [true, false] {
        for group in aggregated_discovery(&kinds, core)["items"].as_array().unwrap() {
            let name = group["metadata"]["name"].as_str().unwrap_or_default();
            for version in group["versions"].as_array().unwrap() {
                for resource in version["resources"].as_array().unwrap() {
                    let plural = resource["resource"].as_str().unwrap();
                    let mut entry = |resource_name: String, of: &Value| {
                        aggregated.push(json!([
                            name,
                            version["version"],
                            resource_name,
                            of["responseKind"]["kind"],
                            of["verbs"]
                        ]));
                    };
                    entry(plural.to_owned(), resource);
                    for part in resource["subresources"].as_array().into_iter().flatten() {
                        entry(format!("{plural}/{}", part["subresource"].as_str().unwrap()), part);
                    }
                }
            }
        }
    }
    let mut legacy = Vec::new();
    let groups = api_group_list(&kinds);
    let named = groups["groups"].as_array().unwrap().iter().flat_map(|group| {
        let versions = group["versions"].as_array().unwrap().iter();
        versions.map(|version| (group["name"].as_str().unwrap(), version["version"].as_str().unwrap()))
    });
    for (group, version) in std::iter::once(("", "v1")).chain(named) {
        for resource in api_resource_list(&kinds, group, version).unwrap()["resources"].as_array().unwrap() {
            legacy.push(json!([group, version, resource["name"], resource["kind"], resource["verbs"]]));
        }
    }
    assert_eq!(aggregated, legacy);
}
