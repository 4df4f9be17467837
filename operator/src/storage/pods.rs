//! The pods of the data plane: an instance manager, and on every node a frontend and its keeper.
//!
//! What they share on a node: `/run/midflight` with the sockets of frontend and keeper, and
//! `/instance-manager/ENGINE` with the copies and the engines' sockets, which outlives the pod.
//!
//! The invariant: frontend and keeper are replaced only on purpose (OnDelete), since clients hang on them.

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Pod;
use kube::{Resource, ResourceExt};
use midflight_api::longhorn::{InstanceManager, NAMESPACE};
use midflight_api::{ImageRef, MANAGED_BY, MANAGER};
use serde_json::{Value, json};

use super::orders::SECRET;

/// Label that says what a pod is for, and its value for instance managers.
pub(super) const COMPONENT: &str = "longhorn.io/component";
pub(super) const INSTANCE_MANAGER: &str = "instance-manager";
/// Sockets of a node, in its `/run`.
const SOCKETS: &str = "/run/midflight";
/// Folders of the instance managers of a node.
const MANAGERS: &str = "/instance-manager";
/// Where a pod finds the kubeconfig of its node: a folder, since a file would stay the same when it is replaced.
const ACCESS: &str = "/midflight-node";

fn host_path(name: &str, path: &str) -> Value {
    json!({ "name": name, "hostPath": { "path": path, "type": "DirectoryOrCreate" } })
}

/// The pod of an instance manager, on its node.
pub(super) fn instance_manager(manager: &InstanceManager) -> Pod {
    let (name, engine) = (manager.name_any(), manager.spec.data_engine);
    let folder = format!("{MANAGERS}/{engine}");
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": NAMESPACE,
            "labels": {
                MANAGED_BY: MANAGER,
                COMPONENT: INSTANCE_MANAGER,
                "longhorn.io/node": manager.spec.node_id,
                "longhorn.io/data-engine": engine,
            },
            "ownerReferences": manager.controller_owner_ref(&()).into_iter().collect::<Vec<_>>(),
        },
        "spec": {
            "nodeName": manager.spec.node_id,
            "restartPolicy": "Always",
            "containers": [{
                "name": "instance-manager",
                "image": manager.spec.image,
                "args": [
                    "instance-manager", format!("--folder={folder}"), "--listen=$(POD_IP):0",
                    format!("--records=api:{ACCESS}/kubeconfig"), format!("--name={name}"),
                    format!("--frontend=unix:{SOCKETS}/frontend"), "--endpoints=$(MIDFLIGHT_NODE_RUN)/midflight",
                    "--binaries=/engine-binaries",
                ],
                "env": [
                    { "name": "POD_IP", "valueFrom": { "fieldRef": { "fieldPath": "status.podIP" } } },
                    { "name": "MIDFLIGHT_INSTANCE_SECRET",
                      "valueFrom": { "secretKeyRef": { "name": SECRET.0, "key": SECRET.1 } } },
                ],
                "volumeMounts": [
                    { "name": "copies", "mountPath": folder },
                    { "name": "sockets", "mountPath": SOCKETS },
                    { "name": "binaries", "mountPath": "/engine-binaries" },
                    { "name": "access", "mountPath": ACCESS, "readOnly": true },
                ],
            }],
            "volumes": [
                host_path("copies", &folder),
                host_path("sockets", SOCKETS),
                host_path("binaries", "/engine-binaries"),
                { "name": "access", "hostPath": { "path": "/access", "type": "Directory" } },
            ],
        },
    });
    serde_json::from_value(pod).expect("the pod is well formed")
}

/// The DaemonSets of frontend and keeper.
pub(super) fn daemon_sets(image: &ImageRef) -> [DaemonSet; 2] {
    let keeper = format!("--listen={SOCKETS}/keeper");
    let frontend = [format!("--control=unix:{SOCKETS}/frontend"), format!("--keeper={SOCKETS}/keeper")];
    [daemon_set("keeper", image, &[keeper]), daemon_set("frontend", image, &frontend)]
}

fn daemon_set(role: &str, image: &ImageRef, arguments: &[String]) -> DaemonSet {
    let labels = json!({ MANAGED_BY: MANAGER, COMPONENT: role });
    let arguments: Vec<&str> = [role].into_iter().chain(arguments.iter().map(String::as_str)).collect();
    let set = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": { "name": format!("midflight-{role}"), "namespace": NAMESPACE, "labels": labels },
        "spec": {
            "selector": { "matchLabels": { COMPONENT: role } },
            "updateStrategy": { "type": "OnDelete" },
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    "containers": [{
                        "name": role,
                        "image": image,
                        "args": arguments,
                        "securityContext": { "privileged": true },
                        "volumeMounts": [
                            { "name": "sockets", "mountPath": SOCKETS },
                            { "name": "engines", "mountPath": MANAGERS },
                            { "name": "dev", "mountPath": "/dev" },
                        ],
                    }],
                    "volumes": [
                        host_path("sockets", SOCKETS),
                        host_path("engines", MANAGERS),
                        { "name": "dev", "hostPath": { "path": "/dev" } },
                    ],
                },
            },
        },
    });
    serde_json::from_value(set).expect("the DaemonSet is well formed")
}
