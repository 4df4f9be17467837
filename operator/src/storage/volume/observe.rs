//! Gathers all that belongs to a volume.
//!
//! The invariant: the cost depends on the volume's own replicas, not on how many volumes there are; all nodes
//! are looked at only when a replica needs one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use midflight_api::longhorn::{
    DataEngine, EngineImage, InstanceManager, InstanceManagerState, InstanceProcess, InstanceState, Node,
    OfflineRebuilding, Replica, Volume, VolumeSpec,
};
use midflight_api::{FrontendSeat, ImageRef, NodeName, Word};
use midflight_plan::storage::engine_image;
use midflight_plan::storage::schedule::{Closed, Disk, Place, room};
use midflight_plan::storage::volume::{
    Deployed, Instance, Manager, Observed, Serving, engine_name, is_engine_of,
};

use super::{Look, Volumes, key};
use crate::controller::{Key, Stale, TurnError};
use crate::storage::engines::Seat;
use crate::storage::orders::proto;
use crate::storage::settings;

/// Where the setting says nothing of a data engine.
const LEAST_PATIENCE: u32 = 8;

/// Where an instance manager is looked for.
pub(super) fn place(node: &NodeName, engine: DataEngine) -> String {
    format!("{engine}/{node}")
}

fn processes(manager: &InstanceManager) -> impl Iterator<Item = (&String, &InstanceProcess)> {
    let status = manager.status.iter();
    status.flat_map(|status| status.instance_engines.iter().chain(&status.instance_replicas))
}

/// The volumes of which it holds something.
pub(in crate::storage) fn volumes_in(manager: &InstanceManager) -> Vec<String> {
    let volumes: BTreeSet<String> = processes(manager).filter_map(|(name, _)| volume_of(name)).collect();
    volumes.into_iter().collect()
}

/// The volumes of those instances that are not as they were.
pub(super) fn changed_instances(
    old: Option<&InstanceManager>,
    new: Option<&InstanceManager>,
) -> BTreeSet<String> {
    let of = |manager: Option<&InstanceManager>| -> BTreeMap<String, InstanceProcess> {
        let all = manager.into_iter().flat_map(processes);
        all.map(|(name, process)| (name.clone(), process.clone())).collect()
    };
    let (old, new) = (of(old), of(new));
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let changed = names.into_iter().filter(|name| old.get(*name) != new.get(*name));
    changed.filter_map(|name| volume_of(name)).collect()
}

/// The volume of an engine or replica, by the name that it was given.
fn volume_of(instance: &str) -> Option<String> {
    let end = instance.rfind("-r-").max(instance.rfind("-e-"))?;
    Some(instance[..end].to_owned())
}

/// The names of the EngineImages of a volume that has processes: of what it should run, what it runs and what it was to run.
pub(super) fn engine_images(volume: &Volume) -> Vec<String> {
    images_of(volume).iter().map(engine_image::name).collect()
}

fn images_of(volume: &Volume) -> BTreeSet<ImageRef> {
    if volume.spec.data_engine != DataEngine::V1 {
        return BTreeSet::new();
    }
    let status = volume.status.iter().flat_map(|status| [&status.current_image, &status.engine_change.image]);
    [&volume.spec.image].into_iter().chain(status).filter(|image| !image.is_empty()).cloned().collect()
}

fn nodes_with(image: &EngineImage) -> BTreeSet<NodeName> {
    let nodes = image.status.iter().flat_map(|status| &status.node_deployment_map);
    nodes.filter(|(_, there)| **there).map(|(node, _)| node.clone()).collect()
}

/// Whether a node has the image that had it not before.
pub(super) fn came_to_a_node(old: Option<&EngineImage>, new: Option<&EngineImage>) -> bool {
    let had = old.map(nodes_with).unwrap_or_default();
    new.is_some_and(|new| !nodes_with(new).is_subset(&had))
}

impl Volumes {
    pub(super) async fn look(&self, key: &Key) -> Result<Option<Look>, TurnError> {
        let Some(volume) = self.volumes.get(key)? else { return Ok(None) };
        let record = self.records.get(key)?;
        let engine = self.engines.get(&super::key(engine_name(&key.name).as_str()))?;
        let replicas = self.replicas.by(self.replicas_of, &key.name)?;
        let mut observed = Observed {
            now: Timestamp::now(),
            volume: (*volume).clone(),
            record: record.as_ref().map(|record| record.spec.clone()),
            engine: engine.as_deref().cloned(),
            replicas: replicas.iter().map(|replica| (**replica).clone()).collect(),
            managers: Vec::new(),
            places: Vec::new(),
            lost: self.lost(record.as_ref().and_then(|record| record.spec.frontend.as_ref()))?,
            serving: None,
            default_image: settings::value(&self.settings, default_image(volume.spec.data_engine))?.into(),
            images: self.deployed(&volume),
            replenish_after: self.replenish_after()?,
            rebuild_limit: self.rebuild_limit(&volume.spec)?,
            patience: self.patience(&volume.spec)?,
            rebuilds_detached: self.rebuilds_detached(&volume.spec)?,
            rebuilds_at_once: settings::rebuilds_at_once(&self.settings)?,
            auto_salvage: settings::value(&self.settings, settings::AUTO_SALVAGE)? == "true",
        };
        for replica in &mut observed.replicas {
            let node = self.nodes.get(&super::key(replica.spec.instance.node_id.as_str()))?;
            replica.spec.eviction_requested = node.is_some_and(|node| node.spec.eviction_requested);
        }
        observed.managers = self.managers_of(&observed)?;
        observed.places = self.places(&observed)?;
        observed.serving = self.serving(&observed).await?;
        Ok(Some(Look { volume, record, engine, replicas, observed }))
    }

    /// The node of an attachment, if it is not Ready or no node of the cluster any more.
    fn lost(&self, seat: Option<&FrontendSeat>) -> Result<BTreeSet<NodeName>, Stale> {
        let Some(seat) = seat else { return Ok(BTreeSet::new()) };
        let node = self.nodes.get(&key(seat.node_id.as_str()))?;
        let is_there = node.is_some_and(|node| is_ready(&node));
        Ok(if is_there { BTreeSet::new() } else { BTreeSet::from([seat.node_id.clone()]) })
    }

    /// Where the images of a volume are, as last shown: nothing is done because of it, and who refers to an image is written all the
    /// time.
    fn deployed(&self, volume: &Volume) -> Vec<Deployed> {
        let images = images_of(volume);
        let objects = if images.is_empty() { Vec::new() } else { self.images.shown() };
        let of = |image: ImageRef| {
            let name = engine_image::name(&image);
            let object = objects.iter().find(|object| object.name_any() == name)?;
            let ready = object.status.as_ref().and_then(|status| status.conditions.get("ready"));
            let complaint = ready.map(|ready| ready.message.to_string()).unwrap_or_default();
            Some(Deployed { image, nodes: nodes_with(object), complaint })
        };
        images.into_iter().filter_map(of).collect()
    }

    fn replenish_after(&self) -> Result<SignedDuration, Stale> {
        let seconds = settings::value(&self.settings, settings::REPLENISH_AFTER)?;
        Ok(SignedDuration::from_secs(seconds.parse().unwrap_or_default()))
    }

    /// In bytes per second: what the volume asks for, else what the setting says.
    fn rebuild_limit(&self, volume: &VolumeSpec) -> Result<u64, Stale> {
        let asked = u64::try_from(volume.replica_rebuilding_bandwidth_limit).unwrap_or_default();
        let megabytes = match asked {
            0 => settings::number_for(&self.settings, settings::REBUILD_LIMIT, volume.data_engine)?,
            asked => asked,
        };
        Ok(megabytes * 1_000_000)
    }

    /// Seconds that an engine waits for a replica. Longhorn's least is also what engines begin with.
    fn patience(&self, volume: &VolumeSpec) -> Result<u32, Stale> {
        let seconds = settings::number_for(&self.settings, settings::REPLICA_TIMEOUT, volume.data_engine)?;
        Ok(u32::try_from(seconds).unwrap_or_default().max(LEAST_PATIENCE))
    }

    /// As the volume says, else as the setting does.
    fn rebuilds_detached(&self, volume: &VolumeSpec) -> Result<bool, Stale> {
        Ok(match volume.offline_rebuilding {
            OfflineRebuilding::Enabled => true,
            OfflineRebuilding::Disabled => false,
            OfflineRebuilding::Ignored | OfflineRebuilding::Unrecognised => {
                settings::value(&self.settings, settings::REBUILDS_DETACHED)? == "true"
            }
        })
    }

    /// Instance managers that hold something of the volume, or are where something of it should be.
    fn managers_of(&self, seen: &Observed) -> Result<Vec<Manager>, Stale> {
        let volume = seen.volume.name_any();
        let replicas: BTreeSet<String> = seen.replicas.iter().map(|replica| replica.name_any()).collect();
        let is_ours = |name: &str| replicas.contains(name) || is_engine_of(&volume, name);
        let nodes: BTreeSet<&NodeName> = seen
            .replicas
            .iter()
            .map(|replica| &replica.spec.instance.node_id)
            .chain([&seen.volume.spec.node_id, &seen.volume.spec.target_node_id])
            .chain(seen.record.iter().filter_map(|record| Some(&record.engine.as_ref()?.node_id)))
            .chain(seen.record.iter().flat_map(|record| record.members.iter().map(|member| &member.node_id)))
            .chain(seen.record.iter().filter_map(|record| Some(&record.frontend.as_ref()?.node_id)))
            .collect();
        let mut found: BTreeMap<Key, Arc<InstanceManager>> = BTreeMap::new();
        for node in nodes {
            let there = self.managers.by(self.managers_on, &place(node, seen.volume.spec.data_engine))?;
            found.extend(there.into_iter().map(|manager| (Key::of(&*manager), manager)));
        }
        let with = self.managers.by(self.managers_with, &volume)?;
        found.extend(with.into_iter().map(|manager| (Key::of(&*manager), manager)));
        let newest = settings::value(&self.settings, settings::INSTANCE_MANAGER_IMAGE)?;
        let mut all: Vec<Arc<InstanceManager>> = found.into_values().collect();
        all.sort_by_key(|manager| (manager.spec.image != newest.as_str(), manager.name_any()));
        Ok(all.iter().map(|manager| shown(manager, is_ours)).collect())
    }

    /// Nodes that may get replicas, if the volume needs one or may lose one.
    fn places(&self, seen: &Observed) -> Result<Vec<Place>, Stale> {
        let is_whole = is_whole(&seen.volume.spec, &seen.replicas);
        if seen.record.is_some() && is_whole && seen.volume.metadata.deletion_timestamp.is_none() {
            return Ok(Vec::new());
        }
        let mut places = Vec::new();
        for node in self.nodes.all()? {
            let name = NodeName::from(node.name_any());
            let managers = self.managers.by(self.managers_on, &place(&name, seen.volume.spec.data_engine))?;
            // An upgrade goes first: what it keeps away comes when it ends, whatever else the node is.
            let closed = if node.spec.data_engine_upgrade_requested {
                Some(Closed::Upgrading)
            } else if !is_ready(&node) {
                Some(Closed::NotReady)
            } else if !node.spec.allow_scheduling || node.spec.eviction_requested {
                Some(Closed::Off)
            } else if !is_selected(&node, &seen.volume.spec) {
                Some(Closed::NotSelected)
            } else if !managers.iter().any(|manager| is_running(manager)) {
                Some(Closed::NoManager)
            } else {
                None
            };
            let there = self.replicas.by(self.replicas_on, name.as_str())?;
            let promised: u64 = there.iter().map(|replica| replica.spec.instance.volume_size.bytes()).sum();
            let free = room(disks(&node), promised);
            places.push(Place { node: name, closed, free });
        }
        Ok(places)
    }

    /// Asks the engine how it is, where it runs.
    async fn serving(&self, seen: &Observed) -> Result<Option<Serving>, TurnError> {
        let Some(record) = &seen.record else { return Ok(None) };
        let Some((manager, engine)) = seen.running_engine() else { return Ok(None) };
        if engine.state != InstanceState::Running {
            return Ok(None);
        }
        let request = proto::EngineRequest {
            name: engine.name.clone(),
            volume: seen.volume.name_any(),
            epoch: record.term.epoch().number(),
        };
        Ok(Seat { manager: self.manager(&manager.name)?, engine: request }.serving().await)
    }

    /// Speaks to an instance manager by its name.
    pub(super) fn manager(&self, name: &str) -> Result<crate::storage::orders::Manager, TurnError> {
        let object = self.managers.get(&key(name))?;
        let address = object.and_then(|object| object.status.as_ref().map(|status| status.ip.to_string()));
        self.orders.to(&address.unwrap_or_default())
    }
}

/// Whether a volume has as many replicas as it should, and all of them stay.
fn is_whole(volume: &VolumeSpec, replicas: &[Replica]) -> bool {
    let wanted = usize::try_from(volume.number_of_replicas).unwrap_or(1).max(1);
    let is_going = |replica: &Replica| {
        replica.metadata.deletion_timestamp.is_some()
            || !replica.spec.failed_at.is_empty()
            || replica.spec.eviction_requested
    };
    replicas.len() == wanted && !replicas.iter().any(is_going)
}

/// The setting with the image of volumes that ask for none.
fn default_image(engine: DataEngine) -> &'static str {
    match engine {
        DataEngine::V1 => settings::ENGINE_IMAGE,
        DataEngine::V2 => settings::INSTANCE_MANAGER_IMAGE,
    }
}

/// Whether the node, and a disk of it, have all the tags that the volume asks for.
fn is_selected(node: &Node, volume: &VolumeSpec) -> bool {
    let has = |tags: &[Word], wanted: &[Word]| wanted.iter().all(|tag| tags.contains(tag));
    has(&node.spec.tags, &volume.node_selector)
        && node.spec.disks.values().any(|disk| has(&disk.tags, &volume.disk_selector))
}

/// The disks of a node that take replicas.
fn disks(node: &Node) -> impl Iterator<Item = Disk> {
    let bytes = |number: i64| u64::try_from(number).unwrap_or_default();
    let all = node.status.iter().flat_map(|status| &status.disk_status);
    all.filter_map(move |(name, seen)| {
        let disk = node.spec.disks.get(name).filter(|disk| disk.allow_scheduling)?;
        let (size, free) = (bytes(seen.storage_maximum), bytes(seen.storage_available));
        Some(Disk { size, free, reserved: bytes(disk.storage_reserved) })
    })
}

pub(super) fn is_ready(node: &Node) -> bool {
    node.status.as_ref().is_some_and(|status| status.conditions.holds("Ready"))
}

fn is_running(manager: &InstanceManager) -> bool {
    manager.status.as_ref().is_some_and(|status| status.current_state == InstanceManagerState::Running)
}

fn shown(manager: &InstanceManager, is_ours: impl Fn(&str) -> bool) -> Manager {
    let ours = processes(manager).filter(|(name, _)| is_ours(name));
    Manager {
        name: manager.name_any(),
        node: manager.spec.node_id.clone(),
        image: manager.spec.image.clone(),
        address: manager.status.as_ref().map(|status| status.ip.clone()).unwrap_or_default(),
        running: is_running(manager),
        instances: ours
            .map(|(name, process)| Instance {
                name: name.clone(),
                state: process.status.state,
                address: process.status.listen.clone(),
                binary: process.spec.binary.to_string(),
                restarts: process.status.restarts,
                why: process.status.error_msg.to_string(),
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use midflight_api::longhorn::{DiskSpec, DiskStatus};

    use super::*;

    /// Nothing is taken from a volume before it is known whether the node of its engine is upgraded.
    #[test]
    fn a_volume_that_has_too_many_or_too_few_replicas_looks_at_all_nodes() {
        let replicas = |count: usize| vec![Replica::new("r", Default::default()); count];
        let mut failed = replicas(2);
        failed[1].spec.failed_at = "2026-01-01T00:00:00Z".into();
        let volume = VolumeSpec { number_of_replicas: 2, ..VolumeSpec::default() };
        let cases = [
            ("all", replicas(2), true),
            ("too few", replicas(1), false),
            ("too many", replicas(3), false),
            ("one is lost", failed, false),
        ];
        for (case, replicas, expected) in cases {
            assert_eq!(is_whole(&volume, &replicas), expected, "{case}");
        }
    }

    #[test]
    fn an_image_is_news_where_it_was_not() {
        let image = |on: &[(&str, bool)]| {
            let mut image = EngineImage::new("ei-1", Default::default());
            let map = on.iter().map(|(node, there)| (NodeName::from(*node), *there)).collect();
            image.status.get_or_insert_default().node_deployment_map = map;
            image
        };
        let (none, one, two) =
            (image(&[("a", false)]), image(&[("a", true)]), image(&[("a", true), ("b", true)]));
        #[rustfmt::skip]
        let cases = [
            (None, Some(&none), false), (None, Some(&one), true), (Some(&none), Some(&one), true),
            (Some(&one), Some(&two), true), (Some(&two), Some(&one), false), (Some(&one), None, false),
        ];
        for (old, new, expected) in cases {
            assert_eq!(came_to_a_node(old, new), expected, "{old:?} {new:?}");
        }
    }

    #[test]
    fn the_volume_of_an_instance_is_what_is_before_the_last_part() {
        let cases = [
            ("vol-1-e-0", Some("vol-1")),
            ("vol-1-r-0a1b2c3d", Some("vol-1")),
            ("data-r-1-e-0", Some("data-r-1")),
            ("data-e-1-r-0a1b2c3d", Some("data-e-1")),
            ("else", None),
        ];
        for (instance, volume) in cases {
            assert_eq!(volume_of(instance).as_deref(), volume, "{instance}");
        }
    }

    #[test]
    fn only_processes_have_engine_images() {
        let mut volume = Volume::new("v", Default::default());
        volume.spec.image = "a".into();
        volume.spec.data_engine = DataEngine::V1;
        volume.status.get_or_insert_default().current_image = "b".into();
        assert_eq!(engine_images(&volume).len(), 2);
        volume.spec.data_engine = DataEngine::V2;
        assert!(engine_images(&volume).is_empty());
    }

    #[test]
    fn disks_count_with_what_is_free_and_only_if_they_take_replicas() {
        let mut node = Node::new("node-1", Default::default());
        let spec = |allow_scheduling, storage_reserved| DiskSpec {
            allow_scheduling,
            storage_reserved,
            ..DiskSpec::default()
        };
        node.spec.disks = [("a".to_owned(), spec(true, 10)), ("b".to_owned(), spec(false, 0))].into();
        let status = node.status.get_or_insert_default();
        for name in ["a", "b", "pulled-out"] {
            let disk = DiskStatus { storage_maximum: 100, storage_available: 70, ..DiskStatus::default() };
            status.disk_status.insert(name.to_owned(), disk);
        }
        let all: Vec<Disk> = disks(&node).collect();
        assert_eq!(all, [Disk { size: 100, free: 70, reserved: 10 }]);
    }

    #[test]
    fn tags_choose_nodes_and_disks() {
        let disk = |tags: &[&str]| DiskSpec {
            tags: tags.iter().map(|tag| Word::from(*tag)).collect(),
            ..DiskSpec::default()
        };
        let mut node = Node::new("node-1", Default::default());
        node.spec.tags = vec!["fast".into(), "west".into()];
        node.spec.disks =
            [("a".to_owned(), disk(&["ssd"])), ("b".to_owned(), disk(&["hdd", "large"]))].into();
        #[rustfmt::skip]
        let cases: [(&[&str], &[&str], bool); 6] = [
            (&[],               &[],               true),
            (&["west", "fast"], &["ssd"],          true),
            (&["east"],         &[],               false),
            (&["fast", "east"], &[],               false),
            (&[],               &["hdd", "large"], true),
            (&[],               &["ssd", "large"], false),
        ];
        for (nodes, disks, expected) in cases {
            let words = |tags: &[&str]| tags.iter().map(|tag| Word::from(*tag)).collect();
            let (node_selector, disk_selector) = (words(nodes), words(disks));
            let volume = VolumeSpec { node_selector, disk_selector, ..VolumeSpec::default() };
            assert_eq!(is_selected(&node, &volume), expected, "{nodes:?} {disks:?}");
        }
    }
}
