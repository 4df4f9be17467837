//! The objects a node writes: its Node, the status of that, its Lease.
//!
//! They are written by server-side apply, so each holds exactly the fields
//! the agent owns; labels, taints and conditions of others stay untouched.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use midflight_plan::storage::engine_image::ON_NODE;
use serde_json::{Value, json};

use crate::{
    Config,
    image::Held,
    machine::{Health, Machine},
    schedule::LEASE,
};

pub(crate) const FIELD_MANAGER: &str = "midflight-agent";
/// What the API takes of an event's note, in bytes.
pub(crate) const LONGEST_NOTE: usize = 1000;
pub(crate) const LEASE_NAMESPACE: &str = "kube-node-lease";
/// What one node may run; kubelet's default.
const MOST_PODS: &str = "110";

/// What the programs of the node's images speak, by each name of an image that says it.
pub(crate) fn engines(held: &[Held]) -> String {
    let known = held.iter().filter_map(|image| Some((image, image.engine?)));
    let named = known.flat_map(|(image, engine)| image.names.iter().map(move |name| (name, engine)));
    serde_json::to_string(&named.collect::<BTreeMap<_, _>>()).expect("versions are JSON")
}

/// The node, with what [`engines`] says of its images.
pub(crate) fn node(config: &Config, engines: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": config.name,
            "labels": {
                "kubernetes.io/hostname": config.name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": architecture(),
            },
            "annotations": { ON_NODE: engines },
        },
    })
}

/// Since when each condition has had the status it has.
pub(crate) type Since = BTreeMap<String, (String, Timestamp)>;

/// What the API knows of the conditions, from a Node it answered.
pub(crate) fn since(node: &Node) -> Since {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions
        .filter_map(|c| Some((c.type_.clone(), (c.status.clone(), c.last_transition_time.as_ref()?.0))))
        .collect()
}

pub(crate) fn status(
    config: &Config,
    machine: &Machine,
    (health, images): (Health, &[Held]),
    since: &Since,
    now: Timestamp,
) -> Value {
    let resources = json!({
        "cpu": machine.cpus.to_string(),
        "memory": format!("{}Ki", machine.memory_bytes / 1024),
        "ephemeral-storage": format!("{}Ki", machine.disk_bytes / 1024),
        "pods": MOST_PODS,
    });
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": { "name": config.name },
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "addresses": [
                { "type": "InternalIP", "address": config.address },
                { "type": "Hostname", "address": config.name },
            ],
            "conditions": conditions(health, since, now),
            "images": self::images(images),
            "nodeInfo": {
                "architecture": architecture(),
                "bootID": machine.boot_id,
                "containerRuntimeVersion": format!("midflight://{}", config.version),
                "kernelVersion": machine.kernel,
                "kubeProxyVersion": "",
                "kubeletVersion": format!("midflight-{}", config.version),
                "machineID": machine.machine_id,
                "operatingSystem": "linux",
                "osImage": machine.os_image,
                "systemUUID": machine.machine_id,
            },
        },
    })
}

pub(crate) fn lease(config: &Config, node_uid: &str, now: Timestamp) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": config.name,
            "namespace": LEASE_NAMESPACE,
            "ownerReferences": [
                { "apiVersion": "v1", "kind": "Node", "name": config.name, "uid": node_uid },
            ],
        },
        "spec": {
            "holderIdentity": config.name,
            "leaseDurationSeconds": LEASE.as_secs(),
            "renewTime": format!("{now:.6}"),
        },
    })
}

/// As many as kubelet lists, the largest first.
fn images(held: &[Held]) -> Vec<Value> {
    const MOST: usize = 50;
    let mut held: Vec<&Held> = held.iter().collect();
    held.sort_by_key(|image| std::cmp::Reverse(image.size_bytes));
    let entry = |image: &&Held| json!({ "names": image.all_names(), "sizeBytes": image.size_bytes });
    held.iter().take(MOST).map(entry).collect()
}

fn conditions(health: Health, since: &Since, now: Timestamp) -> Vec<Value> {
    #[rustfmt::skip]
    let conditions = [
        ("MemoryPressure", health.memory_short, "MemoryIsShort", "EnoughMemory", "memory available to the node"),
        ("DiskPressure",   health.disk_short,   "DiskIsShort",   "EnoughDisk",   "space left in the node's folder"),
        ("PIDPressure",    false,               "PidsAreShort",  "EnoughPids",   "process ids left"),
        ("Ready",          true,                "AgentReady",    "AgentNotReady", "the agent runs and reaches the API"),
    ];
    let condition = |(kind, holds, reason_true, reason_false, message): (&str, bool, &str, &str, &str)| {
        let status = if holds { "True" } else { "False" };
        let changed = match since.get(kind) {
            Some((known, at)) if known == status => *at,
            _ => now,
        };
        json!({
            "type": kind,
            "status": status,
            "reason": if holds { reason_true } else { reason_false },
            "message": message,
            "lastHeartbeatTime": format!("{now:.0}"),
            "lastTransitionTime": format!("{changed:.0}"),
        })
    };
    conditions.into_iter().map(condition).collect()
}

/// Kubernetes names architectures as Go does.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests;
