//! The upgrade of one node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::ObjectMeta;
use midflight_api::longhorn::{
    Engine, FINALIZER, InstanceManager, InstanceManagerSpec, InstanceState, NAMESPACE, NodeDataEngineUpgrade,
    NodeDataEngineUpgradeStatus, NodeUpgradeState, Snapshot, SnapshotSpec, Volume,
};
use midflight_api::{ImageRef, NodeName, VolumeName};
use midflight_plan::node_upgrade::{Action, Decision, Observed, Taken, decide};
use midflight_plan::storage::instance_manager::{self, STANDS_IN_FOR};
use sha2::{Digest, Sha512};

use super::cluster::{Cluster, Seen, node_of, nodes_of};
use super::told::{self, Standing};
use crate::controller::{Controller, Index, Key, News, Next, Objects, Operator, TurnError, Wake};
use crate::figures::Figures;

/// Label of what an upgrade makes: its name.
const UPGRADE_LABEL: &str = "midflight.dev/node-upgrade";
/// Writes of one turn that are on their way to the API at once.
const AT_ONCE: usize = 8;

pub(crate) struct NodeUpgrades {
    upgrades: Objects<NodeDataEngineUpgrade>,
    /// By the node, and by each volume that is named.
    upgrades_about: Index<NodeDataEngineUpgrade>,
    snapshots: Objects<Snapshot>,
    cluster: Cluster,
    figures: Figures,
}

pub(crate) struct Look {
    object: Arc<NodeDataEngineUpgrade>,
    volumes: BTreeMap<VolumeName, Seen>,
    snapshots: BTreeMap<VolumeName, Arc<Snapshot>>,
    observed: Observed,
}

/// What an upgrade is looked up by.
fn about(upgrade: &NodeDataEngineUpgrade) -> Vec<String> {
    let named = upgrade.status.iter().flat_map(|status| status.volumes.keys());
    let named = named.map(|volume| of_volume(volume.as_str()));
    named.chain([of_node(upgrade.spec.node_id.as_str())]).collect()
}

fn of_node(node: &str) -> String {
    format!("node/{node}")
}

fn of_volume(volume: &str) -> String {
    format!("volume/{volume}")
}

/// The snapshot that an attempt takes of a volume. Another attempt takes another.
fn snapshot_name(upgrade: &NodeDataEngineUpgrade, volume: &VolumeName) -> String {
    let identity = format!("{}/{volume}", upgrade.uid().unwrap_or_default());
    let digest = Sha512::digest(identity.as_bytes());
    let hex: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("node-upgrade-{hex}")
}

impl NodeUpgrades {
    pub(crate) fn new(operator: &mut Operator) -> NodeUpgrades {
        let upgrades: Objects<NodeDataEngineUpgrade> = operator.objects();
        NodeUpgrades {
            upgrades_about: upgrades.index(about),
            upgrades,
            snapshots: operator.objects(),
            cluster: Cluster::new(operator),
            figures: operator.figures(),
        }
    }

    async fn ask_node(&self, node: &NodeName, requested: bool) -> Result<(), TurnError> {
        let Some(mut node) = self.cluster.nodes.get(&Key::new(NAMESPACE, node.as_str()))? else {
            return Ok(());
        };
        let edit = |node: &mut midflight_api::longhorn::Node| {
            node.spec.data_engine_upgrade_requested = requested;
        };
        Ok(self.cluster.nodes.change(&mut node, edit).await?)
    }

    async fn take_snapshot(&self, seen: &Look, volume: &VolumeName) -> Result<(), TurnError> {
        let snapshot = Snapshot {
            metadata: ObjectMeta {
                name: Some(snapshot_name(&seen.object, volume)),
                namespace: Some(NAMESPACE.into()),
                labels: Some([(UPGRADE_LABEL.into(), seen.object.name_any())].into()),
                ..ObjectMeta::default()
            },
            spec: SnapshotSpec { volume: volume.clone(), create_snapshot: true, ..SnapshotSpec::default() },
            status: None,
        };
        Ok(self.snapshots.create(&snapshot).await?)
    }

    async fn ask_replica(
        &self,
        seen: &Look,
        (volume, replica): (&VolumeName, &str),
        state: InstanceState,
    ) -> Result<(), TurnError> {
        let replicas = seen.volumes.get(volume).map(|seen| seen.replicas.as_slice()).unwrap_or_default();
        let Some(replica) = replicas.iter().find(|one| one.name_any() == replica) else { return Ok(()) };
        let edit =
            |replica: &mut midflight_api::longhorn::Replica| replica.spec.instance.desire_state = state;
        Ok(self.cluster.replicas.change(&mut Arc::clone(replica), edit).await?)
    }

    async fn ask_volume(
        &self,
        seen: &Look,
        volume: &VolumeName,
        to: Option<&NodeName>,
        image: &ImageRef,
    ) -> Result<(), TurnError> {
        let Some(volume) = seen.volumes.get(volume) else { return Ok(()) };
        let edit = |volume: &mut Volume| {
            volume.spec.image = image.clone();
            volume.spec.target_node_id = to.unwrap_or(&volume.spec.target_node_id).clone();
        };
        Ok(self.cluster.volumes.change(&mut Arc::clone(&volume.object), edit).await?)
    }

    /// Counts that a node begins or ends.
    fn count(&self, before: &NodeDataEngineUpgradeStatus, now: &NodeDataEngineUpgradeStatus) {
        use NodeUpgradeState::*;
        if before.state == Undefined {
            self.figures.node_upgrade("begun");
        }
        let outcome = match now.state {
            Completed => "done",
            Error => "failed",
            Undefined
            | Initializing
            | FailingReplicas
            | SwitchingOver
            | UpgradingInstanceManager
            | SwitchingBack
            | RebuildingReplica
            | Finalizing => return,
        };
        let rebuilt =
            now.volumes.values().map(|volume| u64::try_from(volume.rebuilt_bytes).unwrap_or(0)).sum();
        self.figures.node_upgrade_ended(outcome, rebuilt);
    }

    async fn carry_out(&self, seen: &Look, action: Action) -> Result<(), TurnError> {
        match &action {
            Action::Request(on) => self.ask_node(&seen.object.spec.node_id, *on).await,
            Action::TakeSnapshot { volume } => self.take_snapshot(seen, volume).await,
            Action::RemoveSnapshot { volume } => match seen.snapshots.get(volume) {
                Some(snapshot) => Ok(self.snapshots.delete(snapshot).await?),
                None => Ok(()),
            },
            Action::Stop { volume, replica } => {
                self.ask_replica(seen, (volume, replica.as_str()), InstanceState::Stopped).await
            }
            Action::Start { volume, replica } => {
                self.ask_replica(seen, (volume, replica.as_str()), InstanceState::Running).await
            }
            Action::Move { volume, to, image } => self.ask_volume(seen, volume, Some(to), image).await,
            Action::SetImage { volume, image } => self.ask_volume(seen, volume, None, image).await,
            Action::DeleteManager { name } => match self.cluster.managers.get(&Key::new(NAMESPACE, name))? {
                Some(manager) => Ok(self.cluster.managers.delete(&manager).await?),
                None => Ok(()),
            },
            Action::ReinstateManager { image } => {
                let manager = stand_in(&seen.object, image);
                Ok(self.cluster.managers.create(&manager).await?)
            }
            Action::Release => {
                let edit = |upgrade: &mut NodeDataEngineUpgrade| {
                    upgrade.finalizers_mut().retain(|finalizer| finalizer != FINALIZER);
                };
                Ok(self.upgrades.change(&mut Arc::clone(&seen.object), edit).await?)
            }
        }
    }
}

impl Controller for NodeUpgrades {
    const NAME: &'static str = "node-upgrade";
    const GATHERS: Duration = super::GATHERS;
    type Key = Key;
    type Seen = Look;
    type Decision = Decision;

    fn watch(&self, wake: &Wake<Key>) {
        wake.on(&self.upgrades, |upgrade| vec![Key::of(upgrade)]);
        let (upgrades, about) = (self.upgrades.clone(), self.upgrades_about);
        // One of our own writes that is not shown yet wakes its upgrade itself.
        let those = move |words: Vec<String>| -> Vec<Key> {
            let all = words.iter().flat_map(|word| upgrades.by(about, word).unwrap_or_default());
            all.map(|upgrade| Key::of(&*upgrade)).collect::<BTreeSet<_>>().into_iter().collect()
        };
        let of = those.clone();
        wake.on(&self.cluster.volumes, move |volume| {
            let nodes = nodes_of(volume).into_iter().map(|node| of_node(&node));
            of(nodes.chain([of_volume(&volume.name_any())]).collect())
        });
        let of = those.clone();
        wake.on(&self.cluster.replicas, move |replica| {
            let nodes = node_of(replica).into_iter().map(|node| of_node(&node));
            of(nodes.chain([of_volume(replica.spec.instance.volume_name.as_str())]).collect())
        });
        let of = those.clone();
        wake.on(&self.cluster.records, move |record| of(vec![of_volume(&record.name_any())]));
        let of = those.clone();
        wake.on_change(&self.cluster.engines, move |old, new| match copied(old) == copied(new) {
            true => Vec::new(),
            false => of(new
                .map(|engine| of_volume(engine.spec.instance.volume_name.as_str()))
                .into_iter()
                .collect()),
        });
        wake.on(&self.snapshots, move |snapshot| those(vec![of_volume(snapshot.spec.volume.as_str())]));
        let upgrades = self.upgrades.clone();
        let all = move || -> Vec<Key> {
            upgrades.all().unwrap_or_default().iter().map(|upgrade| Key::of(&**upgrade)).collect()
        };
        // Any node may serve a volume meanwhile.
        let every = all.clone();
        wake.on(&self.cluster.nodes, move |_| every());
        let every = all.clone();
        wake.on(&self.cluster.managers, move |_| every());
        wake.on(&self.cluster.settings, move |_| all());
    }

    async fn observe(&self, key: &Key) -> Result<Option<Look>, TurnError> {
        let Some(object) = self.upgrades.get(key)? else { return Ok(None) };
        let (spec, status) = (&object.spec, object.status.clone().unwrap_or_default());
        let volumes = self.cluster.volumes_of(&spec.node_id, status.volumes.keys())?;
        let mut snapshots = BTreeMap::new();
        for volume in status.volumes.keys() {
            let taken = self.snapshots.get(&Key::new(NAMESPACE, &snapshot_name(&object, volume)))?;
            snapshots.extend(taken.map(|snapshot| (volume.clone(), snapshot)));
        }
        let mut copied = BTreeMap::new();
        for volume in status.volumes.keys() {
            copied.extend(self.cluster.copied(volume)?.map(|bytes| (volume.clone(), bytes)));
        }
        let nodes = self.cluster.nodes(&spec.instance_manager_image)?;
        let began = object.metadata.creation_timestamp.as_ref().map(|created| created.0);
        let observed = Observed {
            now: Timestamp::now(),
            began: began.unwrap_or(Timestamp::MIN),
            node: spec.node_id.clone(),
            image: spec.instance_manager_image.clone(),
            default_image: self.cluster.default_image()?,
            policy: self.cluster.policy()?,
            deleting: object.metadata.deletion_timestamp.is_some(),
            load: self.cluster.load(&nodes)?,
            nodes,
            volumes: volumes.iter().map(|(name, seen)| (name.clone(), seen.volume.clone())).collect(),
            snapshots: snapshots.iter().map(|(volume, snapshot)| (volume.clone(), taken(snapshot))).collect(),
            copied,
            status,
        };
        Ok(Some(Look { object, volumes, snapshots, observed }))
    }

    fn decide(seen: &Look) -> Decision {
        decide(&seen.observed)
    }

    async fn report(&self, seen: &mut Look, decision: &Decision) -> Result<(), TurnError> {
        let generation = seen.object.metadata.generation.unwrap_or_default();
        let state = decision.status.state;
        let standing = Standing::of_node(state);
        let mut status = decision.status.clone();
        status.observed_generation = generation;
        let message = status.message.to_string();
        told::set(&mut status.conditions, &standing, state.as_str(), &message, generation);
        self.upgrades.report(&mut seen.object, |upgrade| upgrade.status = Some(status)).await?;
        if state != seen.observed.status.state {
            self.count(&seen.observed.status, &decision.status);
            let note = match decision.status.failure.as_str() {
                "" => format!("{} of {}", state, seen.observed.node),
                failure => format!("{} of {}, on the way back: {failure}", state, seen.observed.node),
            };
            let (tone, reason) = (told::tone(&standing), told::camel(state.as_str()));
            let news = News { by: Self::NAME, tone, reason: &reason, note: &note };
            self.upgrades.tell(&seen.object, &news).await;
        }
        Ok(())
    }

    async fn act(&self, seen: Look, decision: Decision) -> Result<Next, TurnError> {
        let sent = futures::stream::iter(decision.actions).map(|action| self.carry_out(&seen, action));
        let sent: Vec<Result<(), TurnError>> = sent.buffer_unordered(AT_ONCE).collect().await;
        sent.into_iter().collect::<Result<(), TurnError>>()?;
        Ok(match decision.until {
            Some(until) => Next::After(from_now(until)),
            None => Next::OnChange,
        })
    }
}

/// The instance manager of another image on the node, which serves as long as that of the upgrade would not start.
fn stand_in(upgrade: &NodeDataEngineUpgrade, image: &ImageRef) -> InstanceManager {
    let spec = &upgrade.spec;
    let instead = [(STANDS_IN_FOR.to_owned(), spec.instance_manager_image.to_string())];
    InstanceManager {
        metadata: ObjectMeta {
            name: Some(instance_manager::name(&spec.node_id, image, spec.data_engine)),
            namespace: Some(NAMESPACE.into()),
            annotations: Some(instead.into()),
            ..ObjectMeta::default()
        },
        spec: InstanceManagerSpec {
            image: image.clone(),
            node_id: spec.node_id.clone(),
            data_engine: spec.data_engine,
            ..InstanceManagerSpec::default()
        },
        status: None,
    }
}

fn copied(engine: Option<&Engine>) -> Option<i64> {
    Some(engine?.status.as_ref()?.rebuilt_bytes)
}

fn taken(snapshot: &Arc<Snapshot>) -> Taken {
    let status = snapshot.status.clone().unwrap_or_default();
    Taken {
        ready: status.ready_to_use,
        deleting: snapshot.metadata.deletion_timestamp.is_some(),
        error: status.error.to_string(),
    }
}

/// The time until then; at least a moment, so that what is overdue is not looked at without end.
pub(super) fn from_now(moment: Timestamp) -> Duration {
    let left = moment.duration_since(Timestamp::now());
    Duration::try_from(left).unwrap_or_default().max(Duration::from_millis(50))
}
