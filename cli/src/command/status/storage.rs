//! What storage does: its images, its volumes, what is going on, and what is blocked and why.
//!
//! The invariant: every volume is counted once, and what waits says for what in its own words.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt};
use midflight_api::longhorn::{
    Backup, BackupState, BackupTarget, ConditionStatus, DataEngineUpgradeManager, EngineImage,
    EngineImageState, InstanceManager, NAMESPACE, Replica, Robustness, Setting, Snapshot, Volume,
    VolumeState,
};
use midflight_plan::storage::backup::VOLUME as BACKUP_VOLUME;
use midflight_plan::storage::usage::REPLICAS_KNOWN;
use midflight_plan::storage::volume::INTACT;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{pods, upgrades};
use crate::command::plan::engine_upgrade::seen;
use crate::list;

/// Label of the pods that bring an engine image to nodes, with the name of its object.
const ENGINE_IMAGE: &str = "longhorn.io/engine-image";

#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Storage {
    pub(super) images: Vec<Image>,
    pub(super) volumes: Vec<Group>,
    /// What moves by itself.
    pub(super) going_on: Vec<Item>,
    /// What waits for something or somebody.
    pub(super) blocked: Vec<Item>,
}

/// An engine image.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Image {
    pub(super) name: String,
    pub(super) is_default: bool,
    pub(super) state: String,
    /// Nodes that have it, and nodes that should.
    pub(super) nodes: (usize, usize),
    pub(super) references: i64,
}

/// Volumes that are alike.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Group {
    pub(super) state: String,
    pub(super) robustness: String,
    pub(super) engine: String,
    pub(super) image: String,
    pub(super) count: usize,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Item {
    pub(super) what: String,
    pub(super) why: String,
}

/// The objects that are looked at.
#[derive(Debug, Default)]
struct Objects {
    settings: Vec<Setting>,
    images: Vec<EngineImage>,
    managers: Vec<InstanceManager>,
    volumes: Vec<Volume>,
    replicas: Vec<Replica>,
    node_upgrades: Vec<DataEngineUpgradeManager>,
    backups: Vec<Backup>,
    targets: Vec<BackupTarget>,
    snapshots: Vec<Snapshot>,
    pods: Vec<Pod>,
}

/// Nothing where the kinds of volumes are not served.
pub(super) async fn observe(client: &Client) -> anyhow::Result<Option<Storage>> {
    let Some(volumes) = all::<Volume>(client).await? else { return Ok(None) };
    Ok(Some(Storage::of(&Objects {
        settings: all(client).await?.unwrap_or_default(),
        images: all(client).await?.unwrap_or_default(),
        managers: all(client).await?.unwrap_or_default(),
        volumes,
        replicas: all(client).await?.unwrap_or_default(),
        node_upgrades: all(client).await?.unwrap_or_default(),
        backups: all(client).await?.unwrap_or_default(),
        targets: all(client).await?.unwrap_or_default(),
        snapshots: all(client).await?.unwrap_or_default(),
        pods: pods::all(client).await?,
    })))
}

async fn all<K>(client: &Client) -> anyhow::Result<Option<Vec<K>>>
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned,
{
    list::all(Api::namespaced(client.clone(), NAMESPACE)).await
}

impl Storage {
    fn of(objects: &Objects) -> Storage {
        let default = objects.settings.iter().find(|setting| setting.name_any() == "default-engine-image");
        let default = default.map(|setting| setting.value.as_str()).unwrap_or_default();
        let mut storage = Storage {
            images: objects.images.iter().map(|image| image_of(image, default)).collect(),
            volumes: groups(&objects.volumes),
            ..Storage::default()
        };
        for upgrade in &objects.node_upgrades {
            storage.place(&format!("node upgrade {}", upgrade.name_any()), upgrades::nodes(upgrade));
        }
        let Objects { volumes, replicas, images, settings, .. } = objects;
        let (world, planned) = seen(volumes, replicas, images, settings);
        storage.place("engine upgrades", upgrades::engines(&world, &planned, Timestamp::now()));
        for volume in &objects.volumes {
            storage.place(&format!("volume {}", volume.name_any()), volume_does(volume));
        }
        let is_needed = |image: &&EngineImage| {
            let references = image.status.as_ref().map_or(0, |status| status.ref_count);
            image.spec.image.as_str() == default || references > 0
        };
        for image in &objects.images {
            let does = image_does(image);
            // One that nobody has asked for is in nobody's way, and goes by itself.
            let does = does.filter(|does| matches!(does, Does::Moves(_)) || is_needed(&image));
            storage.place(&format!("engine image {}", image.spec.image), does);
        }
        let is_left = |pod: &Pod| {
            let name = pod.labels().get(ENGINE_IMAGE);
            name.is_some_and(|name| {
                !objects.images.iter().any(|image| image.name_any() == *name && is_needed(&image))
            })
        };
        for manager in &objects.managers {
            let node = &manager.spec.node_id;
            storage.place(&format!("{} replicas on {node}", manager.spec.data_engine), manager_does(manager));
        }
        let is_detached = |volume: &&Volume| {
            volume.status.as_ref().is_some_and(|status| status.state == VolumeState::Detached)
        };
        let detached: BTreeSet<String> =
            objects.volumes.iter().filter(is_detached).map(ResourceExt::name_any).collect();
        for snapshot in &objects.snapshots {
            let is_detached = detached.contains(snapshot.spec.volume.as_str());
            storage.place(&format!("snapshot {}", snapshot.name_any()), snapshot_does(snapshot, is_detached));
        }
        for pod in objects.pods.iter().filter(|pod| !is_left(pod)) {
            let namespace = pod.namespace().unwrap_or_default();
            storage.place(&format!("pod {namespace}/{}", pod.name_any()), pods::does(pod));
        }
        for backup in &objects.backups {
            let volume = backup.labels().get(BACKUP_VOLUME).map(String::as_str).unwrap_or_default();
            let has_volume = volume.is_empty() || objects.volumes.iter().any(|one| one.name_any() == volume);
            storage.place(&format!("backup {}", backup.name_any()), backup_does(backup, has_volume));
        }
        for target in &objects.targets {
            let status = target.status.clone().unwrap_or_default();
            let unavailable = status.conditions.get("Unavailable");
            let why = unavailable.filter(|condition| condition.status == ConditionStatus::True);
            let does = why.map(|condition| Does::Waits(condition.message.to_string()));
            storage.place(&format!("backup target {}", target.name_any()), does);
        }
        storage
    }

    fn place(&mut self, what: &str, does: Option<Does>) {
        match does {
            Some(Does::Moves(why)) => self.going_on.push(Item { what: what.to_owned(), why }),
            Some(Does::Waits(why)) => self.blocked.push(Item { what: what.to_owned(), why }),
            None => {}
        }
    }
}

/// What something does that is not at rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Does {
    Moves(String),
    Waits(String),
}

fn image_of(image: &EngineImage, default: &str) -> Image {
    let status = image.status.clone().unwrap_or_default();
    let has = status.node_deployment_map.values().filter(|there| **there).count();
    Image {
        name: image.spec.image.to_string(),
        is_default: image.spec.image.as_str() == default,
        state: if status.incompatible { "incompatible".into() } else { status.state.to_string() },
        nodes: (has, status.node_deployment_map.len()),
        references: status.ref_count.into(),
    }
}

fn image_does(image: &EngineImage) -> Option<Does> {
    let status = image.status.clone().unwrap_or_default();
    let (all, lacking) =
        (status.node_deployment_map.len(), status.node_deployment_map.values().filter(|has| !**has).count());
    match status.state {
        EngineImageState::Deployed if status.incompatible => Some(Does::Waits(
            "no volume can use it: its versions and those of this cluster have none in common".into(),
        )),
        EngineImageState::Deployed => None,
        EngineImageState::Error => {
            status.conditions.get("ready").map(|condition| Does::Waits(condition.message.to_string()))
        }
        _ => Some(Does::Moves(format!("is brought to {lacking} of {all} nodes"))),
    }
}

/// Copies that nobody knows take room, and only somebody who knows what they were may remove them.
fn manager_does(manager: &InstanceManager) -> Option<Does> {
    let known = manager.status.as_ref()?.conditions.get(REPLICAS_KNOWN)?;
    (known.status == ConditionStatus::False).then(|| Does::Waits(known.message.to_string()))
}

fn groups(volumes: &[Volume]) -> Vec<Group> {
    let mut counts: BTreeMap<[String; 4], usize> = BTreeMap::new();
    for volume in volumes {
        let status = volume.status.clone().unwrap_or_default();
        let image = if status.current_image.is_empty() { &volume.spec.image } else { &status.current_image };
        let state = if status.state == VolumeState::Undefined { VolumeState::Creating } else { status.state };
        let key = [
            state.to_string(),
            status.robustness.to_string(),
            volume.spec.data_engine.to_string(),
            image.to_string(),
        ];
        *counts.entry(key).or_default() += 1;
    }
    let group = |([state, robustness, engine, image], count): ([String; 4], usize)| Group {
        state,
        robustness,
        engine,
        image,
        count,
    };
    counts.into_iter().map(group).collect()
}

fn volume_does(volume: &Volume) -> Option<Does> {
    let Some(status) = &volume.status else {
        return Some(Does::Moves("no controller has looked at it yet".into()));
    };
    let message = |kind: &str, holds: ConditionStatus| {
        let condition = status.conditions.get(kind).filter(|condition| condition.status == holds);
        condition.map(|condition| condition.message.to_string()).filter(|text| !text.is_empty())
    };
    if let Some(how_far) = message("Restore", ConditionStatus::True) {
        return Some(Does::Moves(format!("is restored: {how_far}")));
    }
    if let Some(why) =
        message("Restore", ConditionStatus::False).or_else(|| message("Settled", ConditionStatus::False))
    {
        return Some(Does::Waits(why));
    }
    if let Some(damage) = status.conditions.get(INTACT).filter(|one| one.status == ConditionStatus::False) {
        let why = damage.message.to_string();
        return Some(if damage.reason == "ReplicaDamaged" { Does::Moves(why) } else { Does::Waits(why) });
    }
    if volume.is_upgrading() && !status.current_image.is_empty() {
        return Some(Does::Moves(format!("goes from {} to {}", status.current_image, volume.spec.image)));
    }
    if status.expansion_required {
        return Some(Does::Moves("grows".into()));
    }
    match (status.state, status.robustness) {
        (VolumeState::Attached, Robustness::Degraded) => Some(Does::Moves("is degraded, and heals".into())),
        (VolumeState::Attached, Robustness::Faulted) => Some(Does::Waits("no replica can be reached".into())),
        (VolumeState::Attached | VolumeState::Detached, _) => None,
        (state, _) => Some(Does::Moves(format!("is {state}"))),
    }
}

/// Only the engine of a volume tells of its snapshots: of one that is detached what was taken rests, as the volume does.
fn snapshot_does(snapshot: &Snapshot, is_detached: bool) -> Option<Does> {
    let status = snapshot.status.clone().unwrap_or_default();
    match (is_detached, snapshot.metadata.deletion_timestamp.is_some(), status.creation_time.is_empty()) {
        (true, true, _) => Some(Does::Moves("goes when its volume is next attached".into())),
        (true, false, false) => None,
        (true, false, true) => Some(Does::Waits("is taken when its volume is next attached".into())),
        (false, _, _) => (!status.error.is_empty()).then(|| Does::Waits(status.error.to_string())),
    }
}

/// One that failed, or has not begun, waits for nobody when its volume is gone: `volume backup ls` tells of it.
fn backup_does(backup: &Backup, has_volume: bool) -> Option<Does> {
    let status = backup.status.clone().unwrap_or_default();
    match status.state {
        BackupState::Completed => None,
        BackupState::Error | BackupState::Pending if !has_volume => None,
        BackupState::Error => Some(Does::Waits(format!(
            "has failed: {}; `midflight volume backup rm {}` removes it",
            status.error,
            backup.name_any()
        ))),
        BackupState::InProgress if status.error.is_empty() => {
            Some(Does::Moves(format!("{} percent are copied", status.progress)))
        }
        BackupState::Pending | BackupState::InProgress | BackupState::Unknown => {
            Some(Does::Waits(status.error.to_string()))
        }
        BackupState::New | BackupState::Deleting | BackupState::Unrecognised => Some(Does::Moves(
            if status.state == BackupState::Deleting { "is removed" } else { "is new" }.into(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use midflight_api::longhorn::Condition;
    use serde_json::json;

    use super::*;

    fn volume(name: &str, state: VolumeState, robustness: Robustness) -> Volume {
        let mut volume = Volume::new(name, Default::default());
        volume.spec.image = "engine:1".into();
        let status = volume.status.get_or_insert_default();
        (status.state, status.robustness, status.current_image) = (state, robustness, "engine:1".into());
        volume
    }

    fn says(mut volume: Volume, kind: &str, holds: ConditionStatus, message: &str) -> Volume {
        let condition =
            Condition { kind: kind.into(), status: holds, message: message.into(), ..Condition::default() };
        volume.status.get_or_insert_default().conditions.set(condition);
        volume
    }

    #[test]
    fn damage_that_heals_goes_on_and_what_is_lost_is_blocked() {
        let damaged = |name: &str, reason: &str| {
            let mut volume = volume(name, VolumeState::Attached, Robustness::Healthy);
            let condition = Condition {
                kind: INTACT.into(),
                status: if reason == "Repaired" { ConditionStatus::True } else { ConditionStatus::False },
                reason: reason.into(),
                message: format!("{name} is damaged").into(),
                ..Condition::default()
            };
            volume.status.get_or_insert_default().conditions.set(condition);
            volume
        };
        let volumes =
            vec![damaged("a", "ReplicaDamaged"), damaged("b", "ReplicaFailed"), damaged("c", "Repaired")];
        let mut image = EngineImage::new("ei-1", Default::default());
        image.spec.image = "engine:2".into();
        let status = image.status.get_or_insert_default();
        status.state = EngineImageState::Deploying;
        status.node_deployment_map = [("n-1".into(), true), ("n-2".into(), false)].into();
        let seen = Objects { volumes, images: vec![image], ..Objects::default() };
        let storage = Storage::of(&seen);
        let told = |items: &[Item]| -> Vec<String> {
            items.iter().map(|item| format!("{}: {}", item.what, item.why)).collect()
        };
        assert_eq!(told(&storage.blocked), ["volume b: b is damaged"]);
        assert_eq!(
            told(&storage.going_on),
            ["volume a: a is damaged", "engine image engine:2: is brought to 1 of 2 nodes"]
        );
    }

    #[test]
    fn snapshots_of_a_detached_volume_rest_with_it() {
        let snapshot = |name: &str, volume: &str, taken: &str| {
            let mut snapshot = Snapshot::new(name, Default::default());
            snapshot.spec.volume = volume.into();
            let status = snapshot.status.get_or_insert_default();
            (status.creation_time, status.error) = (taken.into(), "its volume is not attached".into());
            snapshot
        };
        let mut goes = snapshot("goes", "idle", "2026-11-17T10:00:00Z");
        goes.metadata.deletion_timestamp = Some(serde_json::from_str("\"2026-11-17T10:00:00Z\"").unwrap());
        let seen = Objects {
            volumes: vec![
                volume("idle", VolumeState::Detached, Robustness::Unknown),
                volume("busy", VolumeState::Attached, Robustness::Healthy),
            ],
            snapshots: vec![
                snapshot("taken", "idle", "2026-11-17T10:00:00Z"),
                snapshot("asked-for", "idle", ""),
                snapshot("silent", "busy", "2026-11-17T10:00:00Z"),
                goes,
            ],
            ..Objects::default()
        };
        let storage = Storage::of(&seen);
        let told = |items: &[Item]| -> Vec<String> {
            items.iter().map(|item| format!("{}: {}", item.what, item.why)).collect()
        };
        assert_eq!(
            told(&storage.blocked),
            [
                "snapshot asked-for: is taken when its volume is next attached",
                "snapshot silent: its volume is not attached"
            ]
        );
        assert_eq!(told(&storage.going_on), ["snapshot goes: goes when its volume is next attached"]);
    }

    #[test]
    fn backups_of_a_volume_that_is_gone_wait_for_nobody() {
        let backup = |name: &str, volume: &str, state: BackupState| {
            let mut backup = Backup::new(name, Default::default());
            backup.labels_mut().insert(BACKUP_VOLUME.into(), volume.into());
            let status = backup.status.get_or_insert_default();
            (status.state, status.error) = (state, "no snapshot monday".into());
            backup
        };
        let seen = Objects {
            volumes: vec![volume("v", VolumeState::Detached, Robustness::Unknown)],
            backups: vec![
                backup("a", "v", BackupState::Error),
                backup("b", "v", BackupState::Pending),
                backup("c", "gone", BackupState::Error),
                backup("d", "gone", BackupState::Pending),
            ],
            ..Objects::default()
        };
        let blocked = Storage::of(&seen).blocked;
        let told: Vec<String> = blocked.iter().map(|item| format!("{}: {}", item.what, item.why)).collect();
        let failed = "backup a: has failed: no snapshot monday; `midflight volume backup rm a` removes it";
        assert_eq!(told, [failed, "backup b: no snapshot monday"]);
    }

    #[test]
    fn counts_volumes_and_tells_what_moves_from_what_waits() {
        use {Robustness::*, VolumeState::*};
        let waiting = |image: &str| -> Pod {
            serde_json::from_value(json!({
                "metadata": { "name": format!("brings-{image}"), "namespace": "ns", "labels": { ENGINE_IMAGE: image } },
                "status": { "conditions": [
                    { "type": "PodScheduled", "status": "False", "reason": "no", "message": "no node" },
                ] },
            }))
            .unwrap()
        };
        let mut upgrading = volume("up", Attached, Healthy);
        upgrading.spec.image = "engine:2".into();
        let mut made = Backup::new("b-1", Default::default());
        made.status.get_or_insert_default().state = BackupState::InProgress;
        made.status.get_or_insert_default().progress = 40;
        let mut image = EngineImage::new("ei-2", Default::default());
        image.spec.image = "engine:2".into();
        let status = image.status.get_or_insert_default();
        status.state = EngineImageState::Error;
        status.ref_count = 1;
        let message = "engine:2 on node-2: ErrImagePull: no".into();
        status.conditions.set(Condition { kind: "ready".into(), message, ..Condition::default() });
        // It was mistyped, or its last volume has left it.
        let mut left = image.clone();
        (left.metadata.name, left.spec.image) = (Some("ei-0".into()), "engine:0".into());
        left.status.get_or_insert_default().ref_count = 0;
        let mut manager = InstanceManager::new("im-1", Default::default());
        manager.spec.node_id = "node-1".into();
        let condition = Condition {
            kind: REPLICAS_KNOWN.into(),
            status: ConditionStatus::False,
            message: "nobody knows x-r-1".into(),
            ..Condition::default()
        };
        manager.status.get_or_insert_default().conditions.set(condition);
        let seen = Objects {
            images: vec![image, left],
            managers: vec![manager],
            pods: vec![waiting("ei-0"), waiting("ei-2")],
            volumes: vec![
                volume("a", Attached, Healthy),
                volume("b", Attached, Healthy),
                volume("c", Detached, Unknown),
                upgrading,
                says(
                    volume("d", Attached, Degraded),
                    "Settled",
                    ConditionStatus::False,
                    "no node for another replica",
                ),
                says(volume("e", Attached, Healthy), "Restore", ConditionStatus::True, "7 percent"),
            ],
            backups: vec![made],
            ..Objects::default()
        };
        let storage = Storage::of(&seen);
        assert_eq!(storage.volumes.iter().map(|group| group.count).sum::<usize>(), 6);
        let told = |items: &[Item]| -> Vec<String> {
            items.iter().map(|item| format!("{}: {}", item.what, item.why)).collect()
        };
        assert_eq!(
            told(&storage.blocked),
            [
                "volume d: no node for another replica",
                "engine image engine:2: engine:2 on node-2: ErrImagePull: no",
                "v1 replicas on node-1: nobody knows x-r-1",
                "pod ns/brings-ei-2: no node"
            ]
        );
        assert_eq!(
            told(&storage.going_on),
            [
                "volume up: goes from engine:1 to engine:2",
                "volume e: is restored: 7 percent",
                "backup b-1: 40 percent are copied"
            ]
        );
    }
}
