//! What an object of a built-in kind has before anyone has written to it.
//!
//! The real server holds built-in kinds in types of which some fields are always
//! there, if only empty. Whoever creates an object does not come to own those.

use serde_json::{Value, json};

use crate::kind::Kind;

/// The fields that are there from the beginning; none for custom kinds.
pub(crate) fn blank(kind: &Kind) -> Value {
    if !kind.built_in {
        return json!({});
    }
    match (kind.kind.as_str(), kind.view_of.is_some()) {
        ("Event", false) => json!({
            "involvedObject": {}, "source": {}, "firstTimestamp": null, "lastTimestamp": null, "eventTime": null,
            "reportingComponent": "", "reportingInstance": "",
        }),
        ("Event", true) => json!({
            "eventTime": null, "regarding": {}, "deprecatedSource": {},
            "deprecatedFirstTimestamp": null, "deprecatedLastTimestamp": null,
        }),
        ("DaemonSet", _) => json!({
            "spec": {"selector": null, "template": {"metadata": {}, "spec": {"containers": null}}, "updateStrategy": {}},
            "status": {"currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0},
        }),
        ("Pod", _) => json!({"spec": {"containers": null}, "status": {}}),
        ("PersistentVolumeClaim", _) => json!({"spec": {"resources": {}}, "status": {}}),
        ("Namespace", _) => json!({"spec": {"finalizers": ["kubernetes"]}, "status": {}}),
        ("PersistentVolume", _) => json!({"spec": {}, "status": {}}),
        ("Node", _) => json!({"spec": {}, "status": {
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 0}},
            "nodeInfo": {
                "machineID": "", "systemUUID": "", "bootID": "", "kernelVersion": "", "osImage": "",
                "containerRuntimeVersion": "", "kubeletVersion": "", "kubeProxyVersion": "",
                "operatingSystem": "", "architecture": "",
            },
        }}),
        ("Lease" | "CSIDriver", _) => json!({"spec": {}}),
        ("CSINode", _) => json!({"spec": {"drivers": null}}),
        ("StorageClass", _) => json!({"provisioner": ""}),
        ("ControllerRevision", _) => json!({"revision": 0}),
        ("CustomResourceDefinition", _) => json!({
            "spec": {"group": "", "names": {"plural": "", "kind": ""}, "scope": "", "versions": null},
            "status": {"conditions": null, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": null},
        }),
        _ => json!({}),
    }
}
