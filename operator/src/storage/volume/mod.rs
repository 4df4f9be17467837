//! Volumes, with their engines, replicas and records: one turn looks at all of a volume and takes one step.
//!
//! `observe` gathers, `report` writes down what was seen, `act` carries one step out.

mod act;
mod observe;
mod report;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use midflight_api::VolumeRecord;
use midflight_api::longhorn::{
    Engine, EngineImage, InstanceManager, InstanceManagerState, NAMESPACE, Node, Replica, Robustness,
    Setting, Snapshot, Volume,
};
use midflight_plan::storage::volume::{
    Action, Decision, Observed, SETTLED, Unsettled, Wait, decide, ends_a_turn,
};

pub(super) use observe::volumes_in;

use super::orders::Orders;
use super::{pods, settings};
use crate::controller::{Controller, Index, Key, Next, Objects, Operator, TurnError, Wake};
use crate::figures::Figures;

/// How soon a volume that waits for something no watch tells of is looked at again.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// The same for one that is told when its wait is over, for what else may have come to its time meanwhile.
const LOOK_SELDOM: Duration = Duration::from_secs(60);

pub(crate) struct Volumes {
    volumes: Objects<Volume>,
    volumes_on: Index<Volume>,
    volumes_of: Index<Volume>,
    images: Objects<EngineImage>,
    records: Objects<VolumeRecord>,
    engines: Objects<Engine>,
    replicas: Objects<Replica>,
    replicas_of: Index<Replica>,
    replicas_on: Index<Replica>,
    managers: Objects<InstanceManager>,
    managers_on: Index<InstanceManager>,
    managers_with: Index<InstanceManager>,
    snapshots: Objects<Snapshot>,
    nodes: Objects<Node>,
    settings: Objects<Setting>,
    pods: Objects<Pod>,
    orders: Arc<Orders>,
    figures: Figures,
}

/// The objects of a volume, and what is to be decided on.
pub(crate) struct Look {
    volume: Arc<Volume>,
    record: Option<Arc<VolumeRecord>>,
    engine: Option<Arc<Engine>>,
    replicas: Vec<Arc<Replica>>,
    observed: Observed,
}

impl Volumes {
    pub(crate) fn new(operator: &mut Operator, orders: Arc<Orders>) -> Volumes {
        let volumes: Objects<Volume> = operator.objects();
        let replicas: Objects<Replica> = operator.objects();
        let managers: Objects<InstanceManager> = operator.objects();
        Volumes {
            volumes_on: volumes.index(|volume| {
                let (home, target) = (&volume.spec.node_id, &volume.spec.target_node_id);
                [home, target].into_iter().filter(|node| !node.is_empty()).map(ToString::to_string).collect()
            }),
            volumes_of: volumes.index(observe::engine_images),
            volumes,
            images: operator.objects(),
            records: operator.objects(),
            engines: operator.objects(),
            replicas_of: replicas.index(|replica| vec![replica.spec.instance.volume_name.to_string()]),
            replicas_on: replicas.index(|replica| vec![replica.spec.instance.node_id.to_string()]),
            replicas,
            managers_on: managers
                .index(|manager| vec![observe::place(&manager.spec.node_id, manager.spec.data_engine)]),
            managers_with: managers.index(volumes_in),
            managers,
            snapshots: operator.objects(),
            nodes: operator.objects(),
            settings: operator.objects(),
            pods: operator.objects(),
            orders,
            figures: operator.figures(),
        }
    }
}

fn key(volume: &str) -> Key {
    Key::new(NAMESPACE, volume)
}

impl Controller for Volumes {
    const NAME: &'static str = "volume";
    const WORKERS: usize = 16;
    type Key = Key;
    type Seen = Look;
    type Decision = Decision;

    fn watch(&self, wake: &Wake<Key>) {
        wake.on(&self.volumes, |volume| vec![Key::of(volume)]);
        wake.on(&self.records, |record| vec![Key::of(record)]);
        wake.on(&self.engines, |engine| vec![key(engine.spec.instance.volume_name.as_str())]);
        wake.on(&self.replicas, |replica| vec![key(replica.spec.instance.volume_name.as_str())]);
        // What its engine says of snapshots is asked when one has come or gone.
        wake.on_change(&self.snapshots, |old, new| match standing(old) == standing(new) {
            true => Vec::new(),
            false => old.or(new).map(|snapshot| key(snapshot.spec.volume.as_str())).into_iter().collect(),
        });
        let volumes = self.volumes.clone();
        wake.on(&self.settings, move |setting| {
            let Some(is_meant) = meant_by(&setting.name_any()) else { return Vec::new() };
            let all = volumes.shown();
            all.iter().filter(|volume| is_meant(volume)).map(|volume| Key::of(&**volume)).collect()
        });
        let (volumes, of) = (self.volumes.clone(), self.volumes_of);
        wake.on_change(&self.images, move |old, new| {
            if !observe::came_to_a_node(old, new) {
                return Vec::new();
            }
            let name = new.map(ResourceExt::name_any).unwrap_or_default();
            let all = volumes.shown_by(of, &name);
            all.iter().filter(|volume| waits_for_image(volume)).map(|volume| Key::of(&**volume)).collect()
        });
        let (replicas, on) = (self.replicas.clone(), self.replicas_on);
        wake.on_change(&self.nodes, move |old, new| {
            let leaves = |node: Option<&Node>| node.is_some_and(|node| node.spec.eviction_requested);
            if leaves(old) == leaves(new) {
                return Vec::new();
            }
            let node = old.or(new).map(ResourceExt::name_any).unwrap_or_default();
            let there = replicas.shown_by(on, &node);
            there.iter().map(|replica| key(replica.spec.instance.volume_name.as_str())).collect()
        });
        // Whoever is attached to a node that is lost, or back, says so, and what an upgrade of the node has put off is done after it.
        let (volumes, on) = (self.volumes.clone(), self.volumes_on);
        wake.on_change(&self.nodes, move |old, new| {
            let is = |node: Option<&Node>| {
                node.map(|node| (observe::is_ready(node), node.spec.data_engine_upgrade_requested))
            };
            let Some(node) = old.or(new).filter(|_| is(old) != is(new)) else { return Vec::new() };
            volumes.shown_by(on, &node.name_any()).iter().map(|volume| Key::of(&**volume)).collect()
        });
        // A frontend that begins may know of no volume, and nothing else tells so.
        let (volumes, on) = (self.volumes.clone(), self.volumes_on);
        wake.on_change(&self.pods, move |old, new| match pods::begun_frontend(old, new) {
            Some(node) => volumes.shown_by(on, &node).iter().map(|volume| Key::of(&**volume)).collect(),
            None => Vec::new(),
        });
        let (replicas, on) = (self.replicas.clone(), self.replicas_on);
        let (volumes, volumes_on) = (self.volumes.clone(), self.volumes_on);
        wake.on_change(&self.managers, move |old, new| {
            let changed = observe::changed_instances(old, new).into_iter().map(|volume| key(&volume));
            if state(old) == state(new) {
                return changed.collect();
            }
            // It came or went, and with it what it holds.
            let node = old.or(new).map(|manager| manager.spec.node_id.to_string()).unwrap_or_default();
            let there = replicas.shown_by(on, &node);
            let used = volumes.shown_by(volumes_on, &node);
            let held = old.into_iter().chain(new).flat_map(volumes_in);
            changed
                .chain(held.map(|volume| key(&volume)))
                .chain(used.iter().map(|volume| Key::of(&**volume)))
                .chain(there.iter().map(|replica| key(replica.spec.instance.volume_name.as_str())))
                .collect()
        });
    }

    async fn observe(&self, key: &Key) -> Result<Option<Look>, TurnError> {
        self.look(key).await
    }

    fn decide(seen: &Look) -> Decision {
        decide(&seen.observed)
    }

    async fn report(&self, seen: &mut Look, decision: &Decision) -> Result<(), TurnError> {
        self.write_down(seen, decision).await
    }

    async fn act(&self, seen: Look, decision: Decision) -> Result<Next, TurnError> {
        match decision.next {
            Ok(action) => {
                tracing::info!(volume = %Key::of(&*seen.volume), ?action, "step");
                if let Err(error) = Box::pin(self.carry_out(&seen, action.clone())).await {
                    if let Err(unsaid) = self.note_refusal(&seen, &action, &error).await {
                        tracing::warn!(volume = %Key::of(&*seen.volume), error = %unsaid, "why a step failed is not told");
                    }
                    return Err(error);
                }
                // What an instance manager was told it tells again, as a change of its object; what an engine was told it does not.
                let is_heard_of = !matches!(action, Action::Permit { .. });
                Ok(Next::After(if is_heard_of { LOOK_AGAIN } else { Duration::ZERO }))
            }
            Err(Wait::Content) if ends_a_turn(&seen.observed) => Ok(Next::After(LOOK_AGAIN)),
            Err(Wait::Content) => Ok(Next::OnChange),
            // These wait for a setting, or for what is said of a replica.
            Err(Wait::Turn { .. } | Wait::RebuildsOff | Wait::NotSalvaged(_)) => Ok(Next::After(LOOK_SELDOM)),
            Err(Wait::Missing { until, .. } | Wait::Proving { until, .. } | Wait::NotHome { until, .. }) => {
                let wait = seen.observed.now.duration_until(until);
                Ok(Next::After(wait.try_into().unwrap_or_default()))
            }
            Err(_) => Ok(Next::After(LOOK_AGAIN)),
        }
    }
}

/// Which volumes go by a setting.
fn meant_by(setting: &str) -> Option<fn(&Volume) -> bool> {
    let is_meant: fn(&Volume) -> bool = match setting {
        settings::REBUILD_LIMIT | settings::REPLICA_TIMEOUT => |volume| !volume.spec.node_id.is_empty(),
        settings::REBUILDS_DETACHED => |volume| volume.spec.node_id.is_empty(),
        settings::REBUILDS_AT_ONCE | settings::REPLENISH_AFTER => {
            |volume| robustness(volume) != Robustness::Healthy || waits(volume)
        }
        settings::AUTO_SALVAGE => |volume| robustness(volume) == Robustness::Faulted,
        _ => return None,
    };
    Some(is_meant)
}

fn robustness(volume: &Volume) -> Robustness {
    volume.status.as_ref().map(|status| status.robustness).unwrap_or_default()
}

/// Whether a volume was last said to wait for something.
fn waits(volume: &Volume) -> bool {
    let conditions = volume.status.as_ref().map(|status| &status.conditions);
    conditions.is_some_and(|all| all.get(SETTLED).is_some() && !all.holds(SETTLED))
}

/// Whether a volume was last said to lack its image.
fn waits_for_image(volume: &Volume) -> bool {
    let settled = volume.status.as_ref().and_then(|status| status.conditions.get(SETTLED));
    settled.is_some_and(|settled| Unsettled::waits_for_image(settled.reason.as_str()))
}

/// Whether the engine has a snapshot, as far as is known.
fn standing(snapshot: Option<&Snapshot>) -> Option<bool> {
    snapshot?.status.as_ref().map(|status| status.ready_to_use)
}

fn state(manager: Option<&InstanceManager>) -> Option<InstanceManagerState> {
    manager?.status.as_ref().map(|status| status.current_state)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_setting_wakes_the_volumes_that_go_by_it() {
        let volume = |node: &str, robustness| {
            let mut volume = Volume::new("v", Default::default());
            volume.spec.node_id = node.into();
            volume.status.get_or_insert_default().robustness = robustness;
            volume
        };
        let waiting = |mut volume: Volume| {
            let condition = json!({
                "type": SETTLED, "status": "False", "reason": "Waiting", "message": "",
                "lastProbeTime": "", "lastTransitionTime": "",
            });
            let status = volume.status.get_or_insert_default();
            status.conditions.set(serde_json::from_value(condition).unwrap());
            volume
        };
        let all = [
            volume("node-1", Robustness::Healthy),
            volume("node-1", Robustness::Degraded),
            volume("node-1", Robustness::Faulted),
            volume("", Robustness::Unknown),
            // A node that is to be emptied keeps it from rest.
            waiting(volume("node-1", Robustness::Healthy)),
        ];
        #[rustfmt::skip]
        let cases = [
            ("replica-rebuilding-bandwidth-limit",        [true, true, true, false, true]),
            ("engine-replica-timeout",                    [true, true, true, false, true]),
            ("offline-replica-rebuilding",                [false, false, false, true, false]),
            ("concurrent-replica-rebuild-per-node-limit", [false, true, true, true, true]),
            ("replica-replenishment-wait-interval",       [false, true, true, true, true]),
            ("auto-salvage",                              [false, false, true, false, false]),
            ("default-engine-image",                      [false; 5]),
        ];
        for (setting, expected) in cases {
            let meant = all.each_ref().map(|volume| meant_by(setting).is_some_and(|meant| meant(volume)));
            assert_eq!(meant, expected, "{setting}");
        }
    }
}
