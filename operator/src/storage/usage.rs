//! What volumes take on disks and what is free there, as each node's instance managers find it; copies that were left behind.
//!
//! The invariant: of each volume one copy speaks, the first in service by name, so that nobody contradicts anybody.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use midflight_api::longhorn::{
    Condition, ConditionStatus, DiskStatus, Engine, InstanceManager, InstanceManagerState, NAMESPACE, Node,
    Replica, SnapshotInfo, Volume,
};
use midflight_api::{MemberMode, Size, VolumeRecord};
use midflight_plan::storage::usage::{self as plan, REPLICAS_KNOWN, Taken};
use midflight_plan::storage::volume::engine_name;
use tokio::time::timeout;

use super::orders::{Orders, failed, proto};
use super::pods;
use crate::controller::{Controller, Key, Next, Objects, Operator, Stale, TurnError, Wake};

/// How often a node is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// How soon after copies were found that nobody knows.
const LOOK_SOON: Duration = Duration::from_secs(5);
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// How many of those are named.
const MOST_NAMES: usize = 20;

pub(crate) struct Usage {
    managers: Objects<InstanceManager>,
    nodes: Objects<Node>,
    volumes: Objects<Volume>,
    records: Objects<VolumeRecord>,
    engines: Objects<Engine>,
    replicas: Objects<Replica>,
    orders: Arc<Orders>,
    /// What the look before has found with each instance manager. Nothing hangs on it but when news are told.
    before: Mutex<HashMap<Key, Found>>,
}

#[derive(Default)]
struct Found {
    totals: BTreeMap<String, u64>,
    unknown: BTreeSet<String>,
}

pub(crate) struct Look {
    key: Key,
    manager: Arc<InstanceManager>,
    node: Option<Arc<Node>>,
    disk_free: u64,
    /// By the name of their volume.
    taken: BTreeMap<String, Taken>,
    unknown: BTreeSet<String>,
    /// Of these, the ones that were found before as well.
    left: Vec<String>,
}

impl Usage {
    pub(crate) fn new(operator: &mut Operator, orders: Arc<Orders>) -> Usage {
        Usage {
            managers: operator.objects(),
            nodes: operator.objects(),
            volumes: operator.objects(),
            records: operator.objects(),
            engines: operator.objects(),
            replicas: operator.objects(),
            orders,
            before: Mutex::default(),
        }
    }

    /// The volume that a copy speaks for.
    fn speaks_for(&self, replica: &Replica) -> Result<Option<String>, Stale> {
        let volume = replica.spec.instance.volume_name.to_string();
        let record = self.records.get(&Key::new(NAMESPACE, &volume))?;
        let members = record.iter().flat_map(|record| &record.spec.members);
        let in_service = members.filter(|member| member.mode == MemberMode::ReadWrite);
        let first = in_service.map(|member| member.replica.to_string()).min();
        Ok((first.as_deref() == Some(replica.name_any().as_str())).then_some(volume))
    }

    async fn tell_volume(&self, name: &str, taken: &Taken, before: Option<u64>) -> Result<(), TurnError> {
        if let Some(mut volume) = self.volumes.get(&Key::new(NAMESPACE, name))? {
            let said = volume.status.as_ref().map_or(0, |status| status.actual_size);
            if plan::is_news(said.try_into().unwrap_or_default(), before, taken.total()) {
                let size = number(taken.total());
                let edit = |volume: &mut Volume| volume.status.get_or_insert_default().actual_size = size;
                self.volumes.report_over(&mut volume, edit).await?;
            }
        }
        let Some(mut engine) = self.engines.get(&Key::new(NAMESPACE, engine_name(name).as_str()))? else {
            return Ok(());
        };
        // A frozen layer changes only when a snapshot below it goes.
        let mut known = engine.status.iter().flat_map(|status| &status.snapshots);
        let is_other = |(name, info): (&String, &SnapshotInfo)| {
            taken.snapshots.get(name).is_some_and(|bytes| info.size.bytes() != *bytes)
        };
        if known.any(is_other) {
            let edit = |engine: &mut Engine| {
                let known = engine.status.iter_mut().flat_map(|status| &mut status.snapshots);
                for (name, info) in known {
                    info.size = taken.snapshots.get(name).map_or(info.size, |bytes| Size::from_bytes(*bytes));
                }
            };
            self.engines.report_over(&mut engine, edit).await?;
        }
        Ok(())
    }

    async fn tell_disk(&self, seen: &mut Look) -> Result<(), TurnError> {
        let (free, Some(node)) = (seen.disk_free, &mut seen.node) else { return Ok(()) };
        let edit = |node: &mut Node| {
            for disk in node.status.iter_mut().flat_map(|status| status.disk_status.values_mut()) {
                let bytes = |number: i64| u64::try_from(number).unwrap_or_default();
                let DiskStatus { storage_available, storage_maximum, .. } = disk;
                if plan::is_news_of_disk(bytes(*storage_available), bytes(*storage_maximum), free) {
                    *storage_available = number(free);
                }
            }
        };
        self.nodes.report_over(node, edit).await
    }

    async fn tell_left(&self, manager: &mut Arc<InstanceManager>, left: &[String]) -> Result<(), TurnError> {
        let known = manager.status.as_ref().and_then(|status| status.conditions.get(REPLICAS_KNOWN));
        if left.is_empty() && known.is_none() {
            return Ok(());
        }
        let folder = pods::replicas_folder(manager.spec.data_engine);
        let condition = condition(left, &folder);
        self.managers
            .report_over(manager, |manager| {
                manager.status.get_or_insert_default().conditions.set(condition.clone());
            })
            .await
    }
}

fn condition(left: &[String], folder: &str) -> Condition {
    let (status, reason, message) = match left {
        [] => (ConditionStatus::True, "", String::new()),
        left => {
            let named = left.iter().take(MOST_NAMES).cloned().collect::<Vec<_>>().join(", ");
            let more = left.len().saturating_sub(MOST_NAMES);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            (
                ConditionStatus::False,
                "LeftBehind",
                format!(
                    "there are copies that no Replica stands for: {named}{more}; if nobody misses their volumes, remove these folders from {folder} of the node"
                ),
            )
        }
    };
    Condition {
        kind: REPLICAS_KNOWN.into(),
        status,
        reason: reason.into(),
        message: message.into(),
        last_transition_time: Timestamp::now().to_string().into(),
        ..Condition::default()
    }
}

fn number(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn runs(manager: Option<&InstanceManager>) -> bool {
    let status = manager.and_then(|manager| manager.status.as_ref());
    status.is_some_and(|status| status.current_state == InstanceManagerState::Running)
}

fn taken(copy: &proto::Copy) -> Taken {
    let mut taken = Taken::default();
    for layer in &copy.layers {
        match layer.snapshot.as_str() {
            "" => taken.head = layer.bytes,
            name => drop(taken.snapshots.insert(name.to_owned(), layer.bytes)),
        }
    }
    taken
}

impl Controller for Usage {
    const NAME: &'static str = "usage";
    type Key = Key;
    type Seen = Look;
    type Decision = ();

    fn watch(&self, wake: &Wake<Key>) {
        wake.on_change(&self.managers, |old, new| match (runs(old), runs(new)) {
            (false, true) => new.map(Key::of).into_iter().collect(),
            (true | false, _) => Vec::new(),
        });
    }

    async fn observe(&self, key: &Key) -> Result<Option<Look>, TurnError> {
        let Some(manager) = self.managers.get(key)?.filter(|manager| runs(Some(manager))) else {
            self.before.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
            return Ok(None);
        };
        let address = manager.status.as_ref().map(|status| status.ip.to_string()).unwrap_or_default();
        let mut orders = self.orders.to(&address)?;
        let asked = || format!("ask instance manager {key} what its copies take");
        let answer = match timeout(ANSWERS_WITHIN, orders.usage(proto::UsageRequest {})).await {
            Ok(Ok(answer)) => answer.into_inner(),
            // One of an older build cannot tell.
            Ok(Err(status)) if status.code() == tonic::Code::Unimplemented => return Ok(None),
            Ok(Err(status)) => return Err(failed(asked)(status)),
            Err(late) => return Err(failed(asked)(late)),
        };
        let mut found = BTreeMap::new();
        let mut unknown = BTreeSet::new();
        for copy in &answer.copies {
            let Some(replica) = self.replicas.get(&Key::new(NAMESPACE, &copy.replica))? else {
                unknown.insert(copy.replica.clone());
                continue;
            };
            let volume = self.speaks_for(&replica)?.filter(|_| !copy.layers.is_empty());
            found.extend(volume.map(|volume| (volume, taken(copy))));
        }
        let node = self.nodes.get(&Key::new(NAMESPACE, manager.spec.node_id.as_str()))?;
        let (key, disk_free) = (key.clone(), answer.disk_free);
        Ok(Some(Look { key, manager, node, disk_free, taken: found, unknown, left: Vec::new() }))
    }

    fn decide(_: &Look) {}

    async fn report(&self, seen: &mut Look, (): &()) -> Result<(), TurnError> {
        let totals = seen.taken.iter().map(|(volume, taken)| (volume.clone(), taken.total())).collect();
        let now = Found { totals, unknown: seen.unknown.clone() };
        let before = {
            let mut all = self.before.lock().unwrap_or_else(PoisonError::into_inner);
            all.insert(seen.key.clone(), now).unwrap_or_default()
        };
        for (volume, taken) in &seen.taken {
            self.tell_volume(volume, taken, before.totals.get(volume).copied()).await?;
        }
        self.tell_disk(seen).await?;
        seen.left = plan::left_behind(&before.unknown, &seen.unknown);
        self.tell_left(&mut seen.manager, &seen.left).await
    }

    async fn act(&self, seen: Look, (): ()) -> Result<Next, TurnError> {
        let is_in_doubt = seen.left.len() < seen.unknown.len();
        Ok(Next::After(if is_in_doubt { LOOK_SOON } else { LOOK_EVERY }))
    }
}
