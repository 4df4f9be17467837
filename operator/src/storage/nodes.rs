//! Nodes as storage sees them: each node of Kubernetes has one of Longhorn's, with a disk, that says whether
//! replicas may come to it.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use kube::ResourceExt;
use kube::api::ObjectMeta;
use midflight_api::longhorn::{Condition, ConditionStatus, DiskSpec, DiskStatus, NAMESPACE, Node, NodeSpec};

use crate::controller::{Controller, Key, News, Next, Objects, Operator, Tone, TurnError, Wake};

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
    Say { ready: Result<(), Unready>, schedulable: bool, bytes: i64 },
    Nothing,
}

/// Why nothing can be had of a node. Shown to the user verbatim, and by Longhorn's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unready {
    #[error(
        "there is no Node of this name any more; what the node holds stays, and is used again when its agent registers it"
    )]
    Gone,
    #[error("the Node is not Ready; what the node holds stays, and is used again when it is")]
    NotReady,
}

impl Unready {
    fn reason(self) -> &'static str {
        match self {
            Unready::Gone => "KubernetesNodeGone",
            Unready::NotReady => "KubernetesNodeNotReady",
        }
    }
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
                let ready = match machine.as_deref() {
                    None => Err(Unready::Gone),
                    Some(machine) if is_ready(machine) => Ok(()),
                    Some(_) => Err(Unready::NotReady),
                };
                let schedulable =
                    ready.is_ok() && node.spec.allow_scheduling && !node.spec.data_engine_upgrade_requested;
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
        let known = node.status.as_ref().and_then(|status| status.conditions.get(READY));
        let was_ready = known.is_some_and(|condition| condition.status == ConditionStatus::True);
        let write = self.nodes.report(node, |node| {
            let status = node.status.get_or_insert_default();
            for (kind, holds, why) in [(READY, ready.is_ok(), ready.err()), (SCHEDULABLE, *schedulable, None)]
            {
                let holds = if holds { ConditionStatus::True } else { ConditionStatus::False };
                let condition = Condition {
                    kind: kind.into(),
                    status: holds,
                    reason: why.map(Unready::reason).unwrap_or_default().into(),
                    message: why.map(|why| why.to_string()).unwrap_or_default().into(),
                    last_transition_time: Timestamp::now().to_string().into(),
                    ..Condition::default()
                };
                let is_said = |known: &Condition| (known.status, &known.reason) == (holds, &condition.reason);
                if !status.conditions.get(kind).is_some_and(is_said) {
                    status.conditions.set(condition);
                }
            }
            for (name, disk) in disks {
                let known = status.disk_status.entry(name.clone()).or_default();
                // Until somebody has looked at the disk (`usage`), all of it counts as free.
                let is_new = known.storage_maximum == 0;
                *known = DiskStatus {
                    disk_name: name.into(),
                    disk_path: disk.path,
                    storage_maximum: *bytes,
                    storage_available: if is_new { *bytes } else { known.storage_available },
                    ..known.clone()
                };
            }
        });
        write.await?;
        if let Some(why) = ready.err().filter(|_| was_ready) {
            let note = why.to_string();
            let news = News { by: Self::NAME, tone: Tone::Warning, reason: why.reason(), note: &note };
            self.nodes.tell(node, &news).await;
        }
        Ok(())
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
