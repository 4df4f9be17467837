use super::*;
use crate::builtin::tests::kind_of;

/// What kube-apiserver 1.36 stored of what it was given, without what its
/// admission plugins add and without empty (`null`) fields.
#[test]
fn fills_in_what_the_real_server_fills_in() {
    let recorded: Vec<Value> = serde_json::from_str(include_str!("../recorded/prepared.json")).unwrap();
    for case in recorded {
        let kind = kind_of(&case["given"]);
        let mut object = case["given"].clone();
        prepare(&kind, &mut object);
        assert_eq!(object, case["stored"], "{}", case["name"]);
        prepare(&kind, &mut object);
        assert_eq!(object, case["stored"], "{} prepared again", case["name"]);
    }
}

#[test]
fn a_namespace_that_goes_keeps_no_finalizer_it_lost() {
    let mut namespace = json!({"kind": "Namespace", "apiVersion": "v1",
        "metadata": {"name": "n", "deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {}});
    prepare(&kind_of(&namespace.clone()), &mut namespace);
    assert_eq!(namespace["spec"], json!({}));
}

#[test]
fn a_gated_pod_says_why_it_waits() {
    let mut pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p"},
        "spec": {"schedulingGates": [{"name": "example.com/a"}], "containers": []}});
    prepare(&kind_of(&pod.clone()), &mut pod);
    assert_eq!(pod["status"]["conditions"][0]["reason"], "SchedulingGated");
}
