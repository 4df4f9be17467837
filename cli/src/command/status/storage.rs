//! What storage does: its images, its volumes, what is going on, and what is blocked and why.
//!
//! The invariant: every volume is counted once, and what waits says for what in its own words.

#[cfg(test)]
mod tests;

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
use midflight_plan::storage::volume::{INTACT, MOVING, REPLICAS_AWAY, SETTLED};
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
        let is_upgraded = !storage.going_on.is_empty();
        let Objects { volumes, replicas, images, settings, .. } = objects;
        let (world, planned) = seen(volumes, replicas, images, settings);
        storage.place("engine upgrades", upgrades::engines(&world, &planned, Timestamp::now()));
        let mut moving = BTreeSet::new();
        for volume in &objects.volumes {
            let does = volume_does(volume, is_upgraded);
            if matches!(does, Some(Does::Moves(_))) {
                moving.insert(volume.name_any());
            }
            storage.place(&format!("volume {}", volume.name_any()), does);
        }
        // What waits for a volume that moves waits for nobody else.
        let with_volume = |does: Option<Does>, volume: &str| match does {
            Some(Does::Waits(why)) if moving.contains(volume) => Some(Does::Moves(why)),
            does => does,
        };
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
            let does = with_volume(snapshot_does(snapshot, is_detached), snapshot.spec.volume.as_str());
            storage.place(&format!("snapshot {}", snapshot.name_any()), does);
        }
        for pod in objects.pods.iter().filter(|pod| !is_left(pod)) {
            let namespace = pod.namespace().unwrap_or_default();
            storage.place(&format!("pod {namespace}/{}", pod.name_any()), pods::does(pod));
        }
        for backup in &objects.backups {
            let volume = backup.labels().get(BACKUP_VOLUME).map(String::as_str).unwrap_or_default();
            let has_volume = volume.is_empty() || objects.volumes.iter().any(|one| one.name_any() == volume);
            let does = backup_does(backup, has_volume);
            let is_over = backup.status.as_ref().is_some_and(|status| status.state == BackupState::Error);
            let does = if is_over { does } else { with_volume(does, volume) };
            storage.place(&format!("backup {}", backup.name_any()), does);
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

/// `is_upgraded` says whether an upgrade of nodes is under way.
fn volume_does(volume: &Volume, is_upgraded: bool) -> Option<Does> {
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
    if let Some(why) = message("Restore", ConditionStatus::False) {
        return Some(Does::Waits(why));
    }
    if let Some(why) = message(SETTLED, ConditionStatus::False) {
        let reason = status.conditions.get(SETTLED).map(|settled| settled.reason.as_str());
        let goes_on = reason == Some(MOVING) || reason == Some(REPLICAS_AWAY) && is_upgraded;
        return Some(if goes_on { Does::Moves(why) } else { Does::Waits(why) });
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
