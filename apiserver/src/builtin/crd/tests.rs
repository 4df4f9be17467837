use serde_json::json;

use super::*;
use crate::{
    builtin::{builtin_kinds, prepare, validate as validate_object},
    kind::ReviewVersion,
    lifecycle::type_of,
    present::JsonPath,
    schema::Schema,
    testing::Api,
};

#[path = "../../../../api/tests/api/upstream.rs"]
mod upstream;

/// Every CRD of the systems Midflight speaks with, as their authors ship them, by file.
fn fixtures() -> Vec<(String, Vec<Value>)> {
    if !upstream::fixtures_are_there() {
        return Vec::new();
    }
    let found: Vec<_> =
        upstream::fixtures().into_iter().map(|file| (file.clone(), upstream::definitions(&file))).collect();
    let number: usize = found.iter().map(|(_, crds)| crds.len()).sum();
    assert!(number > 40, "only {number} CRDs found");
    found
}

fn definition_kind() -> Kind {
    builtin_kinds().into_iter().find(|kind| kind.kind == "CustomResourceDefinition").unwrap()
}

fn gadget() -> Value {
    let mut crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "gadgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "gadgets", "kind": "Gadget", "shortNames": ["gd"]},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {"size": {"type": "integer"}, "color": {"type": "string"}}},
                }}},
            }],
        },
    });
    prepare(&definition_kind(), &mut crd);
    crd
}

#[test]
fn every_fixture_is_a_kind() {
    let all = fixtures().into_iter();
    let all = all.flat_map(|(file, crds)| crds.into_iter().map(move |crd| (file.clone(), crd)));
    for (file, mut crd) in all {
        let name = format!("{file}: {}", text(&crd, "/metadata/name"));
        prepare(&definition_kind(), &mut crd);
        assert_eq!(validate_object(&definition_kind(), &crd, None), [], "{name}");
        let kind = kind_from_crd(&crd).unwrap_or_else(|faults| panic!("{name}: {faults:?}"));
        assert_eq!(format!("{}.{}", kind.resource.plural, kind.resource.group), text(&crd, "/metadata/name"));
        assert!(kind.storage_version().is_some(), "{name}");
        for version in &kind.versions {
            Schema::compile(&version.openapi().unwrap()).unwrap_or_else(|error| panic!("{name}: {error:?}"));
            assert_eq!(version.columns[0].name, "Name");
            for column in &version.columns {
                JsonPath::parse(&column.json_path)
                    .unwrap_or_else(|error| panic!("{name}: {}: {error}", column.name));
            }
        }
    }
}

/// The least that the schema of a fixture's version takes.
fn least_object(crd: &Value, version: &Value) -> Value {
    let api_version = format!("{}/{}", text(crd, "/spec/group"), text(version, "/name"));
    let mut object = json!({"apiVersion": api_version, "kind": text(crd, "/spec/names/kind"),
                            "metadata": {"name": "one"}});
    for field in items(version.pointer("/schema/openAPIV3Schema/required")).filter_map(Value::as_str) {
        object[field] = json!("1");
    }
    object
}

#[tokio::test]
async fn every_fixture_installs_and_takes_an_object() {
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    for (file, crds) in fixtures() {
        let api = Api::open().await;
        for crd in crds {
            let name = format!("{file}: {}", text(&crd, "/metadata/name"));
            let installed = api.post(definitions, crd.clone()).await;
            assert_eq!(installed.code, 201, "{name}: {}", installed.body);

            let folder = |version: &Value| {
                let namespace = match text(&crd, "/spec/scope") {
                    "Namespaced" => "namespaces/default/",
                    _ => "",
                };
                let (group, plural) = (text(&crd, "/spec/group"), text(&crd, "/spec/names/plural"));
                format!("/apis/{group}/{}/{namespace}{plural}", text(version, "/name"))
            };
            let stored = items(crd.pointer("/spec/versions")).find(|one| one["storage"] == true).unwrap();
            let made = api.post(&folder(stored), least_object(&crd, stored)).await;
            assert_eq!(made.code, 201, "{name}: {}", made.body);
            let found = api.get(&format!("{}/one", folder(stored))).await.ok();
            assert_eq!(found, made.body, "{name}");
            let others = items(crd.pointer("/spec/versions"))
                .filter(|one| one["served"] == true && one["storage"] != true);
            for version in others {
                let found = api.get(&format!("{}/one", folder(version))).await;
                if text(&crd, "/spec/conversion/strategy") == "Webhook" {
                    // Its Service is not there, as before Longhorn runs.
                    assert_eq!(found.code, 500, "{name}: {}", found.body);
                    let expected =
                        format!("conversion webhook for {} failed: Post \"https://", type_of(&made.body));
                    assert!(found.message().starts_with(&expected), "{name}: {}", found.message());
                    continue;
                }
                let found = found.ok();
                assert_eq!(found["metadata"]["uid"], made.body["metadata"]["uid"], "{name}");
                assert_eq!(found["apiVersion"], least_object(&crd, version)["apiVersion"], "{name}");
            }
        }
    }
}

#[test]
fn a_crd_says_all_that_its_kind_says() {
    let mut crd = gadget();
    crd["spec"]["versions"] = json!([
        {"name": "v1beta1", "served": true, "storage": false, "deprecated": true, "schema": {"openAPIV3Schema": {"type": "object"}}},
        {"name": "v1", "served": true, "storage": true, "schema": crd["spec"]["versions"][0]["schema"],
            "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"}},
            "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size", "priority": 1}],
            "selectableFields": [{"jsonPath": ".spec.color"}]},
    ]);
    assert_eq!(validate(&crd, None), []);
    let kind = kind_from_crd(&crd).unwrap();
    assert_eq!((kind.singular.as_str(), kind.list_kind.as_str()), ("gadget", "GadgetList"));
    let [v1, v1beta1] = &kind.versions[..] else { panic!("two versions") };
    assert_eq!((v1.name.as_str(), v1beta1.name.as_str()), ("v1", "v1beta1"));
    assert_eq!(v1beta1.deprecation_warning.as_deref(), Some("example.com/v1beta1 Gadget is deprecated"));
    assert!(v1.status_subresource && !v1beta1.status_subresource);
    assert_eq!(v1.scale_subresource.as_ref().unwrap().spec_replicas, ".spec.size");
    assert_eq!(v1.selectable_fields, ["spec.color"]);
    assert_eq!(v1.columns.iter().map(|column| column.name.as_str()).collect::<Vec<_>>(), ["Name", "Size"]);
    assert_eq!(v1beta1.columns[1].column_type, "date");
}

#[test]
fn a_conversion_webhook_is_spoken_to_in_the_first_version_we_know() {
    let client = json!({"service": {"namespace": "n", "name": "s", "port": 9501, "path": "/v1/convert"}});
    #[rustfmt::skip]
    let cases = [
        (json!(["v1"]),                 Some(ReviewVersion::V1)),
        (json!(["v1beta2", "v1beta1"]), Some(ReviewVersion::V1beta1)),
        (json!(["v1beta1", "v1"]),      Some(ReviewVersion::V1beta1)),
        (json!(["v7"]),                 None),
    ];
    for (reviews, expected) in cases {
        let mut crd = gadget();
        crd["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {"clientConfig": client, "conversionReviewVersions": reviews}});
        let faults: Vec<_> = validate(&crd, None).into_iter().map(|fault| fault.field).collect();
        match expected {
            Some(_) => assert!(faults.is_empty(), "{reviews}: {faults:?}"),
            None => assert_eq!(faults, ["spec.conversion.conversionReviewVersions"], "{reviews}"),
        }
        let conversion = kind_from_crd(&crd).unwrap().conversion;
        assert_eq!(conversion.map(|webhook| webhook.review), expected, "{reviews}");
    }
}

#[test]
fn one_version_is_stored_and_names_are_unique() {
    let mut crd = gadget();
    crd["spec"]["versions"][0]["storage"] = json!(false);
    assert!(
        validate(&crd, None)[0].message.ends_with("must have exactly one version marked as storage version")
    );
    let mut crd = gadget();
    let twin = crd["spec"]["versions"][0].clone();
    crd["spec"]["versions"].as_array_mut().unwrap().push(twin);
    let faults = validate(&crd, None);
    assert!(faults[0].message.ends_with("must contain unique version names"), "{faults:?}");
}

#[test]
fn what_storage_depends_on_does_not_change() {
    let mut old = gadget();
    old["status"] = accept(&old, [], "2026-01-01T00:00:00Z");
    let fields =
        |crd: &Value| validate(crd, Some(&old)).into_iter().map(|fault| fault.field).collect::<Vec<_>>();
    let mut new = old.clone();
    new["spec"]["scope"] = json!("Cluster");
    new["spec"]["names"]["kind"] = json!("Widget");
    assert_eq!(fields(&new), ["spec.scope", "spec.names.kind"]);
    let mut new = old.clone();
    new["spec"]["versions"][0]["name"] = json!("v2");
    prepare(&definition_kind(), &mut new);
    assert_eq!(fields(&new), ["status.storedVersions[0]"]);
}

#[test]
fn names_are_accepted_unless_another_crd_holds_them() {
    let now = "2026-01-01T00:00:00Z";
    let mut first = gadget();
    first["status"] = accept(&first, [], now);
    assert_eq!(first["status"]["storedVersions"], json!(["v1"]));
    assert_eq!(first["status"]["acceptedNames"]["singular"], "gadget");
    let states = |crd: &Value| {
        items(crd.pointer("/status/conditions"))
            .map(|one| format!("{}={} {}", text(one, "/type"), text(one, "/status"), text(one, "/reason")))
            .collect::<Vec<_>>()
    };
    assert_eq!(states(&first), ["NamesAccepted=True NoConflicts", "Established=True InitialNamesAccepted"]);

    let mut second = gadget();
    second["metadata"]["name"] = json!("widgets.example.com");
    second["spec"]["names"]["plural"] = json!("widgets");
    second["status"] = accept(&second, [&first], now);
    assert_eq!(states(&second), ["NamesAccepted=False ListKindConflict", "Established=False NotAccepted"]);
    assert_eq!(second["status"]["acceptedNames"]["plural"], "widgets");
    assert_eq!(second["status"]["acceptedNames"]["kind"], "");

    let later = "2026-02-02T00:00:00Z";
    second["status"] = accept(&second, [], later);
    assert_eq!(states(&second), ["NamesAccepted=True NoConflicts", "Established=True InitialNamesAccepted"]);
    assert_eq!(second["status"]["conditions"][0]["lastTransitionTime"], later);
    let again = accept(&second, [], "2026-03-03T00:00:00Z");
    assert_eq!(again, second["status"], "nothing changes when nothing changed");
}

#[test]
fn versions_are_ordered_by_how_far_they_have_come() {
    let mut versions = [
        "foo10",
        "v1alpha1",
        "v1",
        "v11beta2",
        "v10beta3",
        "v2",
        "v12alpha1",
        "foo1",
        "v10",
        "v3beta1",
        "v11alpha2",
    ];
    versions.sort_by(|a, b| version_priority(a, b));
    assert_eq!(
        versions,
        [
            "v10",
            "v2",
            "v1",
            "v11beta2",
            "v10beta3",
            "v3beta1",
            "v12alpha1",
            "v11alpha2",
            "v1alpha1",
            "foo1",
            "foo10"
        ]
    );
}
