//! Nodes as people and programs read them.

use k8s_openapi::api::core::v1 as core;
use kube::ResourceExt;
use midflight_api::longhorn::{InstanceManager, Node, Replica, Volume};
use midflight_plan::storage::usage::REPLICAS_KNOWN;
use serde::Serialize;

use super::World;
use crate::output::{Answer, Paint, size, table};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    name: String,
    ready: bool,
    /// What of it is closed.
    scheduling: String,
    address: String,
    replicas: usize,
    volumes_attached: usize,
    promised_bytes: u64,
    disk_bytes: u64,
}

fn is_ready(machine: &core::Node) -> bool {
    let conditions = machine.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn scheduling(machine: &core::Node, node: Option<&Node>) -> String {
    let cordoned = machine.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or_default();
    let closed = node.map(|node| &node.spec);
    let words = [
        closed.is_some_and(|spec| spec.eviction_requested).then_some("replicas leave"),
        closed.is_some_and(|spec| !spec.allow_scheduling).then_some("no new replicas"),
        closed.is_some_and(|spec| spec.data_engine_upgrade_requested).then_some("is upgraded"),
        cordoned.then_some("no new pods"),
    ];
    let words: Vec<&str> = words.into_iter().flatten().collect();
    if words.is_empty() { "open".to_owned() } else { words.join(", ") }
}

impl Row {
    fn of(machine: &core::Node, world: &World) -> Row {
        let name = machine.name_any();
        let node = world.nodes.iter().find(|node| node.name_any() == name);
        let disks = node.and_then(|node| node.status.as_ref()).map(|status| status.disk_status.values());
        let disk_bytes: i64 = disks.into_iter().flatten().map(|disk| disk.storage_maximum).sum();
        let addresses = machine.status.iter().flat_map(|status| status.addresses.iter().flatten());
        let there: Vec<&Replica> = replicas_on(world, &name).collect();
        Row {
            ready: is_ready(machine),
            scheduling: scheduling(machine, node),
            address: addresses.into_iter().map(|address| address.address.clone()).next().unwrap_or_default(),
            replicas: there.len(),
            volumes_attached: volumes_on(world, &name).count(),
            promised_bytes: there.iter().map(|replica| replica.spec.instance.volume_size.bytes()).sum(),
            disk_bytes: u64::try_from(disk_bytes).unwrap_or_default(),
            name,
        }
    }
}

fn replicas_on<'a>(world: &'a World, node: &'a str) -> impl Iterator<Item = &'a Replica> {
    world.replicas.iter().filter(move |replica| replica.spec.instance.node_id == node)
}

fn volumes_on<'a>(world: &'a World, node: &'a str) -> impl Iterator<Item = &'a Volume> {
    let is_there =
        move |volume: &&Volume| volume.status.as_ref().is_some_and(|status| status.current_node_id == node);
    world.volumes.iter().filter(is_there)
}

/// All nodes.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(super) struct Listed(Vec<Row>);

impl Listed {
    pub(super) fn of(world: &World) -> Listed {
        Listed(world.machines.iter().map(|machine| Row::of(machine, world)).collect())
    }
}

impl Answer for Listed {
    fn to_table(&self, _: Paint) -> String {
        let rows = self.0.iter().map(|row| {
            [
                row.name.clone(),
                if row.ready { "Ready" } else { "NotReady" }.to_owned(),
                row.scheduling.clone(),
                row.address.clone(),
                row.replicas.to_string(),
                row.volumes_attached.to_string(),
                format!("{} of {}", size(row.promised_bytes), size(row.disk_bytes)),
            ]
        });
        table(["NODE", "STATUS", "SCHEDULING", "ADDRESS", "REPLICAS", "ATTACHED", "PROMISED"], rows)
    }
}

/// One node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Shown {
    #[serde(flatten)]
    row: Row,
    instance_managers: Vec<Manager>,
    holds: Vec<Held>,
    attached: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Manager {
    name: String,
    engine: String,
    image: String,
    state: String,
    engines: usize,
    replicas: usize,
    /// Copies that were left behind, in words.
    #[serde(skip_serializing_if = "String::is_empty")]
    left_behind: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Held {
    replica: String,
    volume: String,
    state: String,
}

impl Shown {
    pub(super) fn of(world: &World, name: &str) -> Option<Shown> {
        let machine = world.machines.iter().find(|machine| machine.name_any() == name)?;
        let manager = |manager: &InstanceManager| {
            let status = manager.status.clone().unwrap_or_default();
            let known = status.conditions.get(REPLICAS_KNOWN);
            Manager {
                left_behind: known.map(|condition| condition.message.to_string()).unwrap_or_default(),
                name: manager.name_any(),
                engine: manager.spec.data_engine.to_string(),
                image: manager.spec.image.to_string(),
                state: status.current_state.to_string(),
                engines: status.instance_engines.len(),
                replicas: status.instance_replicas.len(),
            }
        };
        let held = |replica: &Replica| Held {
            replica: replica.name_any(),
            volume: replica.spec.instance.volume_name.to_string(),
            state: replica.status.clone().unwrap_or_default().instance.current_state.to_string(),
        };
        Some(Shown {
            row: Row::of(machine, world),
            instance_managers: world
                .managers
                .iter()
                .filter(|manager| manager.spec.node_id == name)
                .map(manager)
                .collect(),
            holds: replicas_on(world, name).map(held).collect(),
            attached: volumes_on(world, name).map(ResourceExt::name_any).collect(),
        })
    }
}

impl Answer for Shown {
    fn to_table(&self, paint: Paint) -> String {
        let row = &self.row;
        let mut text = format!(
            "{} at {} is {}; {}\n{} of {} are promised to replicas\n",
            paint.bold(&row.name),
            row.address,
            if row.ready { "Ready" } else { "NotReady" },
            row.scheduling,
            size(row.promised_bytes),
            size(row.disk_bytes)
        );
        if !self.attached.is_empty() {
            text += &format!("volumes attached here: {}\n", self.attached.join(", "));
        }
        let managers = self.instance_managers.iter().map(|manager| {
            [
                manager.name.clone(),
                manager.engine.clone(),
                manager.image.clone(),
                manager.state.clone(),
                manager.engines.to_string(),
                manager.replicas.to_string(),
            ]
        });
        for manager in self.instance_managers.iter().filter(|manager| !manager.left_behind.is_empty()) {
            text += &format!("{}: {}\n", manager.engine, manager.left_behind);
        }
        text += "\n";
        text += &table(["INSTANCE MANAGER", "ENGINE", "IMAGE", "STATE", "ENGINES", "REPLICAS"], managers);
        if !self.holds.is_empty() {
            let rows =
                self.holds.iter().map(|held| [held.replica.clone(), held.volume.clone(), held.state.clone()]);
            text += &format!("\n{}", table(["REPLICA", "VOLUME", "STATE"], rows));
        }
        text
    }
}
