use super::*;
use crate::builtin::{prepare, tests::kind_of};

/// Where the real server shows a value as one of its structs or in the order
/// of its fields, only what is wrong with which field is compared.
const SHOWN_OTHERWISE: [&str; 4] =
    ["two controllers", "update strategy", "crd without storage", "volume without size"];

/// What kube-apiserver 1.36 answered to what is wrong.
#[test]
fn refuses_what_the_real_server_refuses_in_its_words() {
    let recorded: Vec<Value> = serde_json::from_str(include_str!("../recorded/refused.json")).unwrap();
    for case in recorded {
        let name = text(&case, "/name");
        let kind = kind_of(&case["given"]);
        let mut object = case["given"].clone();
        prepare(&kind, &mut object);
        let faults = validate(&kind, &object, None);
        let shown = |field: &str, reason: &str, message: &str| {
            let message = if SHOWN_OTHERWISE.contains(&name) { "" } else { message };
            format!("{field} {reason} {message}")
        };
        let ours: Vec<String> =
            faults.iter().map(|fault| shown(&fault.field, fault.reason, &fault.message)).collect();
        let theirs: Vec<String> = items(&case, "/causes")
            .map(|cause| shown(text(cause, "/field"), text(cause, "/reason"), text(cause, "/message")))
            .collect();
        assert_eq!(ours, theirs, "{name}");
    }
}

#[test]
fn accepts_what_the_real_server_accepts_again_and_again() {
    let recorded: Vec<Value> = serde_json::from_str(include_str!("../recorded/prepared.json")).unwrap();
    for case in recorded {
        let (kind, stored) = (kind_of(&case["given"]), &case["stored"]);
        assert_eq!(validate(&kind, stored, None), [], "{}", case["name"]);
        assert_eq!(validate(&kind, stored, Some(stored)), [], "{} unchanged", case["name"]);
    }
}

fn object(kind: &str, api_version: &str, fields: Value) -> Value {
    let mut object =
        json!({"kind": kind, "apiVersion": api_version, "metadata": {"name": "a", "namespace": "n"}});
    let Value::Object(fields) = fields else { panic!("fields of an object") };
    for (name, value) in fields {
        object[&name] = value;
    }
    prepare(&kind_of(&object.clone()), &mut object);
    object
}

#[test]
fn what_must_not_change_does_not() {
    let template = |label: &str| json!({"metadata": {"labels": {"a": label}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}});
    let set = |label: &str| {
        object(
            "DaemonSet",
            "apps/v1",
            json!({"spec": {"selector": {"matchLabels": {"a": label}}, "template": template(label)}}),
        )
    };
    let map =
        |data: &str, fixed: bool| object("ConfigMap", "v1", json!({"data": {"k": data}, "immutable": fixed}));
    let pod = |image: &str, command: &str| {
        object(
            "Pod",
            "v1",
            json!({"spec": {"containers": [{"name": "c", "image": image, "command": [command]}]}}),
        )
    };
    let secret = |kind: &str| object("Secret", "v1", json!({"type": kind}));
    #[rustfmt::skip]
    let cases: Vec<(&str, Value, Value, &[&str])> = vec![
        ("selector",           set("b"),          set("c"),           &["spec.selector: Invalid value: {\"matchLabels\":{\"a\":\"c\"}}: field is immutable"]),
        ("data",               map("b", false),   map("c", false),    &[]),
        ("immutable data",     map("b", true),    map("c", true),     &["data: Forbidden: field is immutable when `immutable` is set"]),
        ("immutable mark",     map("b", true),    map("b", false),    &["immutable: Forbidden: field is immutable when `immutable` is set"]),
        ("image",              pod("i:1", "a"),   pod("i:2", "a"),    &[]),
        ("secret type",        secret("a"),       secret("b"),        &["type: Invalid value: \"b\": field is immutable"]),
    ];
    for (name, old, new, expected) in cases {
        let faults = validate(&kind_of(&new), &new, Some(&old));
        let faults: Vec<String> =
            faults.iter().map(|fault| format!("{}: {}", fault.field, fault.message)).collect();
        assert_eq!(faults, expected, "{name}");
    }
    let faults = validate(&kind_of(&pod("i:1", "b")), &pod("i:1", "b"), Some(&pod("i:1", "a")));
    assert!(
        faults[0].message.starts_with("Forbidden: pod updates may not change fields other than"),
        "{faults:?}"
    );
}

#[test]
fn a_pod_keeps_what_it_tolerates() {
    let pod = |tolerations: Value| {
        object(
            "Pod",
            "v1",
            json!({"spec": {"containers": [{"name": "c", "image": "i:1"}], "tolerations": tolerations}}),
        )
    };
    let faults = |new: Value| {
        let old = pod(json!([{"key": "a", "operator": "Exists", "tolerationSeconds": 1}]));
        validate(&kind_of(&old), &pod(new), Some(&old))
            .into_iter()
            .map(|fault| fault.field)
            .collect::<Vec<_>>()
    };
    let longer = json!({"key": "a", "operator": "Exists", "tolerationSeconds": 9});
    assert_eq!(faults(json!([longer, {"key": "b", "operator": "Exists"}])), Vec::<String>::new());
    assert_eq!(faults(json!([{"key": "b", "operator": "Exists"}])), ["spec.tolerations"]);
}

#[test]
fn an_object_on_its_way_out_takes_no_new_finalizer() {
    let map = |finalizers: &[&str]| {
        let mut map = object("ConfigMap", "v1", json!({}));
        map["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        map["metadata"]["finalizers"] = json!(finalizers);
        map
    };
    let faults = validate(&kind_of(&map(&[])), &map(&["a/b", "a/c"]), Some(&map(&["a/b"])));
    assert_eq!(faults.len(), 2, "changes are judged twice");
    assert_eq!(
        faults[0].message,
        "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{\"a/c\"}"
    );
    assert_eq!(validate(&kind_of(&map(&[])), &map(&[]), Some(&map(&["a/b"]))), []);
}

#[test]
fn a_custom_kind_cannot_scale_below_nothing() {
    let kind = crate::builtin::kind_from_crd(&json!({"spec": {
        "group": "example.com", "scope": "Namespaced", "names": {"plural": "gadgets", "kind": "Gadget"},
        "versions": [{"name": "v1", "served": true, "storage": true,
            "subresources": {"scale": {"specReplicasPath": ".spec.n", "statusReplicasPath": ".status.n"}}}],
    }}))
    .unwrap();
    let gadget = |n: i64| json!({"apiVersion": "example.com/v1", "metadata": {"name": "g", "namespace": "n"}, "spec": {"n": n}});
    assert_eq!(validate(&kind, &gadget(0), None), []);
    let faults = validate(&kind, &gadget(-1), None);
    assert_eq!(
        (faults[0].field.as_str(), faults[0].message.as_str()),
        (".spec.n", "Invalid value: -1: should be a non-negative integer")
    );
}
