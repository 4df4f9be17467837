//! What both controllers look at: nodes with their instance managers, and v2 volumes with their copies.
//!
//! The invariant: a volume is always seen together with its record and its replicas.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::ResourceExt;
use midflight_api::longhorn::{
    DataEngine, Engine, InstanceManager, NAMESPACE, Node, Replica, Setting, Volume,
};
use midflight_api::settings::check;
use midflight_api::{ImageRef, NodeName, VolumeName, VolumeRecord, settings};
use midflight_plan::node_upgrade::{self as plan, Nodes, Policy};

use crate::controller::{Index, Key, Objects, Operator, Stale};
use crate::storage::Held;

const IMAGE: &str = "default-instance-manager-image";

pub(super) struct Cluster {
    pub(super) nodes: Objects<Node>,
    pub(super) managers: Objects<InstanceManager>,
    pub(super) settings: Objects<Setting>,
    held: Held,
    pub(super) volumes: Objects<Volume>,
    volumes_on: Index<Volume>,
    engines_on: Index<Volume>,
    pub(super) replicas: Objects<Replica>,
    replicas_of: Index<Replica>,
    replicas_on: Index<Replica>,
    pub(super) records: Objects<VolumeRecord>,
    pub(super) engines: Objects<Engine>,
    engines_of: Index<Engine>,
}

/// A volume, as the API has it and as the rules see it.
pub(super) struct Seen {
    pub(super) object: Arc<Volume>,
    pub(super) replicas: Vec<Arc<Replica>>,
    pub(super) volume: plan::Volume,
}

/// The nodes that an object of a volume names.
pub(super) fn nodes_of(volume: &Volume) -> Vec<String> {
    let none = Default::default();
    let status = volume.status.as_ref().unwrap_or(&none);
    let spec = &volume.spec;
    let nodes = [&spec.node_id, &spec.target_node_id, &status.current_target_node_id, &status.owner_id];
    let named: BTreeSet<String> =
        nodes.into_iter().filter(|node| !node.is_empty()).map(ToString::to_string).collect();
    if spec.data_engine == DataEngine::V2 { named.into_iter().collect() } else { Vec::new() }
}

/// The node that the engine of a volume should be on.
fn target(volume: &Volume) -> Vec<String> {
    let spec = &volume.spec;
    let target = if spec.target_node_id.is_empty() { &spec.node_id } else { &spec.target_node_id };
    let is_one = spec.data_engine == DataEngine::V2 && !target.is_empty();
    is_one.then(|| target.to_string()).into_iter().collect()
}

/// The node of a replica of the v2 data engine.
pub(super) fn node_of(replica: &Replica) -> Vec<String> {
    let is_one = replica.spec.instance.data_engine == DataEngine::V2;
    is_one.then(|| replica.spec.instance.node_id.to_string()).into_iter().collect()
}

impl Cluster {
    pub(super) fn new(operator: &mut Operator) -> Cluster {
        let (volumes, replicas): (Objects<Volume>, Objects<Replica>) =
            (operator.objects(), operator.objects());
        let engines: Objects<Engine> = operator.objects();
        Cluster {
            nodes: operator.objects(),
            managers: operator.objects(),
            settings: operator.objects(),
            held: Held::new(operator),
            volumes_on: volumes.index(nodes_of),
            engines_on: volumes.index(target),
            volumes,
            replicas_of: replicas.index(|replica| vec![replica.spec.instance.volume_name.to_string()]),
            replicas_on: replicas.index(node_of),
            replicas,
            records: operator.objects(),
            engines_of: engines.index(|engine| vec![engine.spec.instance.volume_name.to_string()]),
            engines,
        }
    }

    fn setting(&self, name: &'static str) -> Result<Option<String>, Stale> {
        Ok(self.settings.get(&Key::new(NAMESPACE, name))?.map(|setting| setting.value.clone()))
    }

    /// Image that instance managers are upgraded to.
    pub(super) fn default_image(&self) -> Result<ImageRef, Stale> {
        let given = self.setting(IMAGE)?.filter(|value| check(IMAGE, value).is_ok());
        let default = || settings::find(IMAGE).map(|setting| setting.default.to_owned());
        Ok(given.or_else(default).unwrap_or_default().into())
    }

    pub(super) fn policy(&self) -> Result<Policy, Stale> {
        let settings = self.settings.all()?;
        let values: BTreeMap<String, &str> =
            settings.iter().map(|setting| (setting.name_any(), setting.value.as_str())).collect();
        Ok(Policy::of(|name| values.get(name).copied()))
    }

    /// All nodes, and whether each has the image.
    pub(super) fn nodes(&self, image: &ImageRef) -> Result<Nodes, Stale> {
        let (mut nodes, holders) = (Nodes::new(), self.held.nodes_with(image)?);
        for node in self.nodes.all()? {
            let name = NodeName::from(node.name_any());
            let conditions = node.status.as_ref().map(|status| &status.conditions);
            let is_there = holders.contains(&name);
            let seen = plan::Node {
                ready: conditions.is_some_and(|conditions| conditions.holds("Ready")),
                requested: node.spec.data_engine_upgrade_requested,
                image: if is_there { plan::Image::There } else { plan::Image::Missing },
                labels: self.held.speaks(&name, image)?.unwrap_or_default(),
                managers: Vec::new(),
            };
            nodes.insert(name, seen);
        }
        let mut managers = self.managers.all()?;
        managers.sort_by_key(|manager| manager.name_any());
        for manager in managers.iter().filter(|one| one.spec.data_engine == DataEngine::V2) {
            if let Some(node) = nodes.get_mut(&manager.spec.node_id) {
                node.managers.push(plan::Manager::of(manager));
            }
        }
        Ok(nodes)
    }

    pub(super) fn volume(&self, name: &VolumeName) -> Result<Option<Seen>, Stale> {
        let key = Key::new(NAMESPACE, name.as_str());
        let Some(object) = self.volumes.get(&key)? else { return Ok(None) };
        if object.spec.data_engine != DataEngine::V2 {
            return Ok(None);
        }
        let record = self.records.get(&key)?;
        let replicas = self.replicas.by(self.replicas_of, name.as_str())?;
        let record = record.as_ref().map(|record| &record.spec);
        let volume = plan::Volume::of(&object, record, replicas.iter().map(|replica| &**replica));
        Ok(Some(Seen { object, replicas, volume }))
    }

    /// The v2 volumes that have something on a node, or are named.
    pub(super) fn volumes_of<'a>(
        &self,
        node: &NodeName,
        named: impl IntoIterator<Item = &'a VolumeName>,
    ) -> Result<BTreeMap<VolumeName, Seen>, Stale> {
        let mut names: BTreeSet<VolumeName> = named.into_iter().cloned().collect();
        names.extend(
            self.volumes.by(self.volumes_on, node.as_str())?.iter().map(|volume| volume.name_any().into()),
        );
        let replicas = self.replicas.by(self.replicas_on, node.as_str())?;
        names.extend(replicas.iter().map(|replica| replica.spec.instance.volume_name.clone()));
        let mut volumes = BTreeMap::new();
        for name in names {
            if let Some(seen) = self.volume(&name)? {
                volumes.insert(name, seen);
            }
        }
        Ok(volumes)
    }

    /// All v2 volumes.
    pub(super) fn all_volumes(&self) -> Result<Vec<plan::Volume>, Stale> {
        let mut names: Vec<VolumeName> =
            self.volumes.all()?.iter().map(|volume| volume.name_any().into()).collect();
        names.sort();
        let mut volumes = Vec::new();
        for name in names {
            volumes.extend(self.volume(&name)?.map(|seen| seen.volume));
        }
        Ok(volumes)
    }

    /// What the engine of a volume says it has copied to replicas that came back.
    pub(super) fn copied(&self, volume: &VolumeName) -> Result<Option<i64>, Stale> {
        let engines = self.engines.by(self.engines_of, volume.as_str())?;
        Ok(engines.iter().filter_map(|engine| Some(engine.status.as_ref()?.rebuilt_bytes)).max())
    }

    /// How many engines each node serves.
    pub(super) fn load(&self, nodes: &Nodes) -> Result<BTreeMap<NodeName, usize>, Stale> {
        let count = |node: &NodeName| self.volumes.by(self.engines_on, node.as_str()).map(|all| all.len());
        nodes.keys().map(|node| Ok((node.clone(), count(node)?))).collect()
    }
}
