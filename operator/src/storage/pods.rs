//! The pods of the data plane: an instance manager, on every node a frontend and its keeper, and what brings an
//! engine image to every node.
//!
//! What they share on a node: `/run/midflight` with the sockets of frontend and keeper, and
//! `/instance-manager/ENGINE` with the copies and the engines' sockets, which outlives the pod.
//!
//! The invariant: frontend and keeper are replaced only on purpose (OnDelete), since clients hang on them.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kube::{Resource, ResourceExt};
use midflight_api::longhorn::{DataEngine, EngineImage, InstanceManager, NAMESPACE};
use midflight_api::{ImageRef, MANAGED_BY, MANAGER};
use midflight_plan::storage::{engine_image, pre_pull};
use serde_json::{Value, json};

use super::orders::SECRET;
use crate::workload::revision;

/// Label that says what a pod is for, and its value for instance managers.
pub(super) const COMPONENT: &str = "longhorn.io/component";
pub(super) const INSTANCE_MANAGER: &str = "instance-manager";
/// What serves volumes to the clients of a node, and what keeps their connections while it is replaced.
const FRONTEND: &str = "frontend";
const KEEPER: &str = "keeper";
/// Labels that say where an instance manager is.
const NODE: &str = "longhorn.io/node";
const DATA_ENGINE: &str = "longhorn.io/data-engine";
/// Label that says which EngineImage a DaemonSet or pod is for, by its name.
pub(super) const ENGINE_IMAGE: &str = "longhorn.io/engine-image";
/// The container that puts the engine's binary onto the node and says what it is; it ends before the next begins.
pub(super) const INSTALLER: &str = "install";
/// The container that only holds its image on the node.
pub(super) const HOLDER: &str = "hold";
/// What pulls images before they are needed: the name of its DaemonSet, and of its pods' component.
pub(super) const PRE_PULL: &str = "pre-pull-manager-images";
/// Label of the nodes that may pull.
pub(super) const ADMITTED: &str = "midflight.dev/pre-pull";
/// How a DaemonSet is updated whose pods somebody else replaces.
const ON_DELETE: &str = "OnDelete";
/// Annotation that says from which template a set was made: what the API shows of it has defaults besides.
const TEMPLATE: &str = "midflight.dev/template";
/// What a holder does, in any image that has a shell.
const HOLD: [&str; 3] = ["/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"];
/// The same where the binary has to stay on the node, too: it is looked for, and put there again when somebody has removed it.
/// `$1` is this program, `$2` where it has to be, and the rest what puts it there. A shell needs less memory than the program.
const KEEP: [&str; 3] = [
    "/bin/sh",
    "-c",
    "trap 'exit 0' TERM; program=$1 place=$2; shift 2; \
     while :; do [ -x \"$place\" ] || { echo \"$place is gone, and put there again\"; \"$program\" \"$@\"; }; \
     sleep 2 & wait $!; done",
];
/// Where the program of an image is in it.
const PROGRAM: &str = "/midflight";
/// Where instance managers find the binaries of engines, on the node and in their pods.
const BINARIES: &str = "/engine-binaries";
/// Sockets of a node, in its `/run`.
const SOCKETS: &str = "/run/midflight";
/// Folders of the instance managers of a node.
const MANAGERS: &str = "/instance-manager";
/// The folder that backups go to, the same for every node.
const BACKUPS: &str = "/backups";
/// Where a pod finds the kubeconfig of its node: a folder, since a file would stay the same when it is replaced.
const ACCESS: &str = "/midflight-node";

fn host_path(name: &str, path: &str) -> Value {
    json!({ "name": name, "hostPath": { "path": path, "type": "DirectoryOrCreate" } })
}

/// The pod of an instance manager, on its node. `pull` says when its image is pulled, here as below.
pub(super) fn instance_manager(manager: &InstanceManager, pull: &str) -> Pod {
    let (name, engine) = (manager.name_any(), manager.spec.data_engine);
    let folder = format!("{MANAGERS}/{engine}");
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": NAMESPACE,
            "labels": {
                MANAGED_BY: MANAGER,
                COMPONENT: INSTANCE_MANAGER,
                NODE: manager.spec.node_id,
                DATA_ENGINE: engine,
            },
            "ownerReferences": manager.controller_owner_ref(&()).into_iter().collect::<Vec<_>>(),
        },
        "spec": {
            "nodeName": manager.spec.node_id,
            "restartPolicy": "Always",
            "containers": [{
                "name": "instance-manager",
                "image": manager.spec.image,
                "imagePullPolicy": pull,
                "args": [
                    "instance-manager", format!("--folder={folder}"), "--listen=$(POD_IP):0",
                    format!("--records=api:{ACCESS}/kubeconfig"), format!("--name={name}"),
                    format!("--frontend=unix:{SOCKETS}/frontend"), "--endpoints=$(MIDFLIGHT_NODE_RUN)/midflight",
                    format!("--binaries={BINARIES}"),
                ],
                "env": [
                    { "name": "POD_IP", "valueFrom": { "fieldRef": { "fieldPath": "status.podIP" } } },
                    // Not an argument, which images of earlier builds would refuse.
                    { "name": "MIDFLIGHT_BACKUPS", "value": BACKUPS },
                    { "name": "MIDFLIGHT_INSTANCE_SECRET",
                      "valueFrom": { "secretKeyRef": { "name": SECRET.0, "key": SECRET.1 } } },
                ],
                "volumeMounts": [
                    { "name": "copies", "mountPath": folder },
                    { "name": "sockets", "mountPath": SOCKETS },
                    { "name": "binaries", "mountPath": BINARIES },
                    { "name": "backups", "mountPath": BACKUPS },
                    { "name": "access", "mountPath": ACCESS, "readOnly": true },
                ],
            }],
            "volumes": [
                host_path("copies", &folder),
                host_path("sockets", SOCKETS),
                host_path("binaries", BINARIES),
                host_path("backups", BACKUPS),
                { "name": "access", "hostPath": { "path": "/access", "type": "Directory" } },
            ],
        },
    });
    serde_json::from_value(pod).expect("the pod is well formed")
}

/// Where the copies of a data engine are on a node.
pub(super) fn replicas_folder(engine: DataEngine) -> String {
    format!("{MANAGERS}/{engine}/replicas")
}

/// Node and data engine of an instance manager's pod.
pub(super) fn place_of_manager(pod: &Pod) -> Option<String> {
    let labels = pod.labels();
    let is_ours = labels.get(COMPONENT).is_some_and(|role| role == INSTANCE_MANAGER);
    let (node, engine) = (labels.get(NODE)?, labels.get(DATA_ENGINE)?);
    is_ours.then(|| format!("{node}/{engine}"))
}

/// The node on which a frontend has begun: one that runs, and did not before or was another process.
pub(super) fn begun_frontend(old: Option<&Pod>, new: Option<&Pod>) -> Option<String> {
    let process = |pod: &Pod| {
        let is_one = pod.labels().get(COMPONENT).is_some_and(|role| role == FRONTEND);
        let node = pod.spec.as_ref()?.node_name.clone().filter(|_| is_one)?;
        let containers = pod.status.as_ref()?.container_statuses.iter().flatten();
        let restarts = containers.into_iter().find(|container| container.ready)?.restart_count;
        Some((node, pod.uid(), restarts))
    };
    let (before, now) = (old.and_then(process), new.and_then(process)?);
    (before.as_ref() != Some(&now)).then_some(now.0)
}

/// The DaemonSets of frontend and keeper.
pub(super) fn daemon_sets(image: &ImageRef, pull: &str) -> [DaemonSet; 2] {
    let keeper = format!("--listen={SOCKETS}/keeper");
    let frontend = [format!("--control=unix:{SOCKETS}/frontend"), format!("--keeper={SOCKETS}/keeper")];
    [daemon_set(KEEPER, (image, pull), &[keeper]), daemon_set(FRONTEND, (image, pull), &frontend)]
}

fn daemon_set(role: &str, (image, pull): (&ImageRef, &str), arguments: &[String]) -> DaemonSet {
    let labels = json!({ MANAGED_BY: MANAGER, COMPONENT: role });
    let arguments: Vec<&str> = [role].into_iter().chain(arguments.iter().map(String::as_str)).collect();
    let set = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": { "name": format!("midflight-{role}"), "namespace": NAMESPACE, "labels": labels },
        "spec": {
            "selector": { "matchLabels": { COMPONENT: role } },
            "updateStrategy": { "type": ON_DELETE },
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    // Where a volume is attached, however the node is tainted.
                    "tolerations": [{ "operator": "Exists" }],
                    "containers": [{
                        "name": role,
                        "image": image,
                        "imagePullPolicy": pull,
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

/// The name of the DaemonSet of an EngineImage, as upstream names it.
pub(super) fn engine_image_set(name: &str) -> String {
    format!("engine-image-{name}")
}

/// The DaemonSet that brings an engine image to every node, and its binary to where instance managers find it.
pub(super) fn engine_image(object: &EngineImage, pull: &str) -> DaemonSet {
    let (name, image) = (object.name_any(), &object.spec.image);
    let labels = json!({ MANAGED_BY: MANAGER, COMPONENT: "engine-image", ENGINE_IMAGE: name });
    let path = engine_image::binary(image);
    let install =
        ["engine-image".to_owned(), "--node=/node".to_owned(), format!("--binary=.{BINARIES}/{path}")];
    let keep = KEEP.into_iter().chain(["hold", PROGRAM]).map(str::to_owned);
    let keep: Vec<String> = keep.chain([format!("/node{BINARIES}/{path}")]).chain(install.clone()).collect();
    let set = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {
            "name": engine_image_set(&name), "namespace": NAMESPACE, "labels": labels,
            "ownerReferences": object.controller_owner_ref(&()).into_iter().collect::<Vec<_>>(),
        },
        "spec": {
            "selector": { "matchLabels": { ENGINE_IMAGE: name } },
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "tolerations": [{ "operator": "Exists" }],
                    "initContainers": [{
                        "name": INSTALLER,
                        "image": image,
                        "imagePullPolicy": pull,
                        "args": install,
                        // The whole node, since links do not lead from one mount to another.
                        "volumeMounts": [{ "name": "node", "mountPath": "/node" }],
                    }],
                    "containers": [{
                        "name": HOLDER, "image": image, "imagePullPolicy": pull, "command": keep,
                        // It stays, so it sees no more of the node than it needs; what it brings back is a copy.
                        "volumeMounts": [{ "name": "binaries", "mountPath": format!("/node{BINARIES}") }],
                    }],
                    "volumes": [
                        { "name": "node", "hostPath": { "path": "/", "type": "Directory" } },
                        host_path("binaries", BINARIES),
                    ],
                },
            },
        },
    });
    let mut set: DaemonSet = serde_json::from_value(set).expect("the DaemonSet is well formed");
    let template = revision(&set);
    set.annotations_mut().insert(TEMPLATE.into(), template);
    set
}

/// Whether a set of [`engine_image`] was made from another template than the one that is wanted.
pub(super) fn is_outdated(there: &DaemonSet, wanted: &DaemonSet) -> bool {
    there.annotations().get(TEMPLATE) != wanted.annotations().get(TEMPLATE)
}

/// Makes a set of [`engine_image`] the one that is wanted. Its pods are replaced node by node; the binaries stay on their nodes.
pub(super) fn renew(there: &mut DaemonSet, wanted: DaemonSet) {
    there.annotations_mut().extend(wanted.metadata.annotations.unwrap_or_default());
    there.spec = wanted.spec;
}

/// The DaemonSet that pulls images on every node that is let in, and holds them there: a container of each. It replaces no pod
/// by itself, since a rolling update stops for all nodes where one does not come up.
pub(super) fn pre_pull(images: &BTreeSet<ImageRef>, pull: &str) -> DaemonSet {
    let labels = json!({ MANAGED_BY: MANAGER, COMPONENT: PRE_PULL });
    let holder = |image: &ImageRef| json!({ "name": pre_pull::name(image), "image": image, "imagePullPolicy": pull, "command": HOLD });
    let set = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": { "name": PRE_PULL, "namespace": NAMESPACE, "labels": labels },
        "spec": {
            "selector": { "matchLabels": { COMPONENT: PRE_PULL } },
            "updateStrategy": { "type": ON_DELETE },
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "nodeSelector": { ADMITTED: "true" },
                    "tolerations": [{ "operator": "Exists" }],
                    "containers": images.iter().map(holder).collect::<Vec<_>>(),
                },
            },
        },
    });
    serde_json::from_value(set).expect("the DaemonSet is well formed")
}

/// What a DaemonSet of [`pre_pull`] holds. One that replaces pods by itself is of an earlier version: it counts as one that holds
/// nothing, and so is written anew.
pub(super) fn pulled(set: &DaemonSet) -> BTreeSet<ImageRef> {
    let strategy = set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref()?.type_.as_deref());
    let template = set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    template.filter(|_| strategy == Some(ON_DELETE)).map(images_of).unwrap_or_default()
}

/// What a pod was made to hold.
pub(super) fn images(pod: &Pod) -> BTreeSet<ImageRef> {
    pod.spec.as_ref().map(images_of).unwrap_or_default()
}

fn images_of(spec: &PodSpec) -> BTreeSet<ImageRef> {
    spec.containers.iter().filter_map(|container| Some(container.image.as_deref()?.into())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frontend_that_is_another_process_has_begun() {
        let pod = |role: &str, uid: &str, ready: bool, restarts: i32| -> Pod {
            let status =
                json!({ "name": role, "image": "", "imageID": "", "ready": ready, "restartCount": restarts });
            let pod = json!({ "metadata": { "name": "p", "uid": uid, "labels": { COMPONENT: role } },
                "spec": { "nodeName": "node-1", "containers": [] }, "status": { "containerStatuses": [status] } });
            serde_json::from_value(pod).unwrap()
        };
        let (runs, comes) = (pod(FRONTEND, "a", true, 0), pod(FRONTEND, "a", false, 0));
        let (again, other) = (pod(FRONTEND, "a", true, 1), pod(FRONTEND, "b", true, 0));
        let manager = pod(INSTANCE_MANAGER, "c", true, 0);
        #[rustfmt::skip]
        let cases = [
            ("not yet",                    None,         Some(&comes),   false),
            ("it comes up",                Some(&comes), Some(&runs),    true),
            ("nothing of it has changed",  Some(&runs),  Some(&runs),    false),
            ("it was started again",       Some(&runs),  Some(&again),   true),
            ("another pod",                Some(&runs),  Some(&other),   true),
            ("it is there",                None,         Some(&runs),    true),
            ("it goes",                    Some(&runs),  None,           false),
            ("something else",             None,         Some(&manager), false),
        ];
        for (case, old, new, expected) in cases {
            assert_eq!(begun_frontend(old, new), expected.then(|| "node-1".to_owned()), "{case}");
        }
    }
}
