//! Nodes as storage sees them: each node of Kubernetes has one of Longhorn's, with a disk, that says whether
//! replicas may come to it.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use kube::ResourceExt;
use kube::api::ObjectMeta;
use midflight_api::longhorn::{Condition, ConditionStatus, DiskSpec, DiskStatus, NAMESPACE, Node, NodeSpec};

use crate::controller::{Controller, Key, Next, Objects, Operator, TurnError, Wake};

const READY: &str = "Ready";
const SCHEDULABLE: &str = "Schedulable";
/// The disk that a node has from the beginning, and where it is on the node.
const DISK: (&str, &str) = ("default-disk", "/instance-manager");

pub(crate) struct Nodes {
    machines: Objects<core::Node>,
    nodes: Objects<Node>,
}

pub(crate) struct Look {
    machine: Option<Arc<core::Node>>,
    node: Option<Arc<Node>>,
    key: Key,
}

/// What is to be said of a node. Each is safe to repeat.
pub(crate) enum Decision {
    Make,
    Say { ready: bool, schedulable: bool, bytes: i64 },
    Nothing,
}

impl Nodes {
    pub(crate) fn new(operator: &mut Operator) -> Nodes {
        Nodes { machines: operator.objects(), nodes: operator.objects() }
    }
}

fn is_ready(machine: &core::Node) -> bool {
    let conditions = machine.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == READY && condition.status == "True")
}

/// Bytes of the node's disk, as the agent reports them in Ki.
fn bytes(machine: &core::Node) -> i64 {
    let capacity = machine.status.as_ref().and_then(|status| status.capacity.as_ref());
    let quantity = capacity.and_then(|all| all.get("ephemeral-storage")).map(|quantity| quantity.0.as_str());
    let number = |text: &str, unit: i64| text.parse::<i64>().ok().and_then(|number| number.checked_mul(unit));
    let parsed = quantity.and_then(|text| match text.strip_suffix("Ki") {
        Some(kibi) => number(kibi, 1024),
        None => number(text, 1),
    });
    parsed.unwrap_or_default()
}

impl Controller for Nodes {
    const NAME: &'static str = "node";
    type Key = Key;
    type Seen = Look;
    type Decision = Decision;

    fn watch(&self, wake: &Wake<Key>) {
        wake.on(&self.machines, |machine| vec![Key::new(NAMESPACE, &machine.name_any())]);
        wake.on(&self.nodes, |node| vec![Key::of(node)]);
    }

    async fn observe(&self, key: &Key) -> Result<Option<Look>, TurnError> {
        let machine = self.machines.get(&Key::new("", &key.name))?;
        Ok(Some(Look { machine, node: self.nodes.get(key)?, key: key.clone() }))
    }

    fn decide(seen: &Look) -> Decision {
        match (&seen.machine, &seen.node) {
            (Some(_), None) => Decision::Make,
            (machine, Some(node)) => {
                let ready = machine.as_deref().is_some_and(is_ready);
                let schedulable =
                    ready && node.spec.allow_scheduling && !node.spec.data_engine_upgrade_requested;
                Decision::Say { ready, schedulable, bytes: machine.as_deref().map_or(0, bytes) }
            }
            (None, None) => Decision::Nothing,
        }
    }

    async fn report(&self, seen: &mut Look, decision: &Decision) -> Result<(), TurnError> {
        let (Some(node), Decision::Say { ready, schedulable, bytes }) = (&mut seen.node, decision) else {
            return Ok(());
        };
        let disks = node.spec.disks.clone();
        let write = self.nodes.report(node, |node| {
            let status = node.status.get_or_insert_default();
            for (kind, holds) in [(READY, *ready), (SCHEDULABLE, *schedulable)] {
                let holds = if holds { ConditionStatus::True } else { ConditionStatus::False };
                if status.conditions.get(kind).is_none_or(|condition| condition.status != holds) {
                    let since = Timestamp::now().to_string().into();
                    let condition = Condition {
                        kind: kind.into(),
                        status: holds,
                        last_transition_time: since,
                        ..Condition::default()
                    };
                    status.conditions.set(condition);
                }
            }
            for (name, disk) in disks {
                let known = status.disk_status.entry(name.clone()).or_default();
                *known = DiskStatus {
                    disk_name: name.into(),
                    disk_path: disk.path,
                    storage_maximum: *bytes,
                    storage_available: bytes.saturating_sub(disk.storage_reserved).max(0),
                    ..known.clone()
                };
            }
        });
        Ok(write.await?)
    }

    async fn act(&self, seen: Look, decision: Decision) -> Result<Next, TurnError> {
        if let Decision::Make = decision {
            let disk = DiskSpec { path: DISK.1.into(), allow_scheduling: true, ..DiskSpec::default() };
            let spec = NodeSpec {
                name: seen.key.name.as_str().into(),
                disks: [(DISK.0.to_owned(), disk)].into(),
                allow_scheduling: true,
                ..NodeSpec::default()
            };
            let metadata = ObjectMeta {
                name: Some(seen.key.name),
                namespace: Some(seen.key.namespace),
                ..ObjectMeta::default()
            };
            self.nodes.create(&Node { metadata, spec, status: None }).await?;
        }
        Ok(Next::OnChange)
    }
}
