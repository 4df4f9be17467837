//! Writes down what was seen of a volume, its engine and its replicas.
//!
//! The invariant: each object is written only when it would say something else.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use midflight_api::longhorn::{
    Condition, ConditionStatus, Conditions, DataEngine, Engine, EngineChange, EngineChangeState,
    InstanceState, InstanceStatus, Replica, ReplicaMode, Robustness, SnapshotInfo, TargetMove,
    TargetMoveState, Volume, VolumeState, VolumeStatus,
};
use midflight_api::{ImageRef, Member, MemberMode, NodeName, OperationPhase};
use midflight_plan::storage::snapshot::HEAD;
use midflight_plan::storage::volume::{
    Action, Decision, INTACT, Instance, Integrity, Manager, NODE_LOST, Observed, SETTLED, Standing,
    Unsettled, integrity_of, is_leaving, is_salvage_over, note_rebuild, rebuild_wanted, refused,
};
use tonic::Code;

use super::{Look, Volumes};
use crate::controller::{Controller, News, Tone, TurnError};

/// Whether every replica has a node.
const SCHEDULABLE: &str = "Schedulable";

impl Volumes {
    pub(super) async fn write_down(&self, seen: &mut Look, decision: &Decision) -> Result<(), TurnError> {
        let known_size = seen.observed.known_size();
        let is_to_grow = known_size.map(|size| size < seen.volume.spec.size);
        // Said before the replicas are asked to be larger, so that at no moment it looks as if nothing was to grow.
        if is_to_grow == Some(true) {
            let says = |volume: &mut Volume| volume.status.get_or_insert_default().expansion_required = true;
            self.volumes.report(&mut seen.volume, says).await?;
        }
        if let Some(engine) = &mut seen.engine {
            let observed = &seen.observed;
            let edit = |engine: &mut Engine| {
                let instance = &mut engine.spec.instance;
                instance.image = decision.standing.image.clone();
                instance.volume_size = observed.volume.spec.size;
                instance.node_id = observed.volume.spec.node_id.clone();
                instance.target_node_id = observed.volume.spec.target_node_id.clone();
            };
            self.engines.change(engine, edit).await?;
            let target = &decision.standing.target;
            self.engines.report(engine, |engine| of_engine(engine, observed, target)).await?;
        }
        for replica in &mut seen.replicas {
            let observed = &seen.observed;
            let edit = |replica: &mut Replica| {
                health(replica, observed);
                let name = replica.name_any();
                let seen = observed.replicas.iter().find(|seen| seen.name_any() == name);
                replica.spec.eviction_requested = seen.is_some_and(|seen| seen.spec.eviction_requested);
                replica.spec.instance.image = decision.standing.image.clone();
                replica.spec.instance.volume_size = observed.volume.spec.size;
            };
            self.replicas.change(replica, edit).await?;
            self.replicas.report(replica, |replica| of_replica(replica, observed)).await?;
        }
        let before = seen.volume.status.clone().unwrap_or_default();
        let (now, standing) = (seen.observed.now.to_string(), &decision.standing);
        self.volumes
            .report(&mut seen.volume, |volume| {
                of_volume(volume, standing, &now);
                let status = volume.status.get_or_insert_default();
                status.expansion_required = is_to_grow.unwrap_or(status.expansion_required);
            })
            .await?;
        self.tell_changes(&seen.volume, &before, standing).await;
        Ok(())
    }

    /// Notes that an instance manager has refused a step; people are told when it refuses the same again.
    pub(super) async fn note_refusal(
        &self,
        seen: &Look,
        action: &Action,
        error: &TurnError,
    ) -> Result<(), TurnError> {
        let why = refusal(error).and_then(|why| refused(&seen.observed, action, &why));
        let Some(unsettled) = why else { return Ok(()) };
        let before = seen.volume.status.as_ref().and_then(|status| status.conditions.get(SETTLED));
        let is_known = before.is_some_and(|before| before.reason == unsettled.reason());
        // A write wakes the volume at once: the same news again must not be one.
        let is_said = before
            .is_some_and(|before| unsettled.is_said_by(before.reason.as_str(), before.message.as_str()));
        if !is_said {
            let now = Timestamp::now().to_string();
            self.volumes
                .report_over(&mut Arc::clone(&seen.volume), |volume| {
                    let conditions = &mut volume.status.get_or_insert_default().conditions;
                    conditions.set(settled(Some(&unsettled), &now));
                })
                .await?;
        }
        if is_known {
            let (reason, note) = (unsettled.reason(), unsettled.to_string());
            let by = <Volumes as Controller>::NAME;
            self.volumes.tell(&seen.volume, &News { by, tone: Tone::Warning, reason, note: &note }).await;
        }
        Ok(())
    }

    /// Tells people, and counts, what the status says now and did not say before.
    async fn tell_changes(&self, volume: &Volume, before: &VolumeStatus, standing: &Standing) {
        let mut told = Vec::new();
        if before.robustness != standing.robustness {
            told.extend(news_of_robustness(standing));
        }
        let was = before.conditions.get(INTACT).map(|condition| condition.reason.as_str());
        if let Some(integrity) = standing.integrity.as_ref().filter(|now| was != Some(now.reason())) {
            let tone = if integrity.holds() { Tone::Normal } else { Tone::Warning };
            told.push((tone, integrity.reason(), integrity.message()));
        }
        let (from, to) = (&before.target_move, &standing.moved);
        if (from.state, &from.to) != (to.state, &to.to) {
            self.count_move(to);
            told.extend(news_of_move(to));
        }
        if before.engine_change.state != standing.change.state {
            self.count(&standing.change);
            told.extend(news_of(&standing.change, has_clients(standing)));
        }
        for (tone, reason, note) in &told {
            let news = News { by: <Volumes as Controller>::NAME, tone: *tone, reason, note };
            self.volumes.tell(volume, &news).await;
        }
    }
}

/// Why an instance manager has refused an order, if it has. One that is away or busy is asked again, and seen to be so.
fn refusal(error: &TurnError) -> Option<String> {
    let TurnError::Failed { source, .. } = error else { return None };
    let status =
        source.downcast_ref::<tonic::Status>().filter(|status| status.code() != Code::Unavailable)?;
    let said = Some(status.message().to_owned()).filter(|said| !said.is_empty());
    Some(said.unwrap_or_else(|| status.code().description().to_owned()))
}

/// What people are told: how, by which word, and in which.
type Told = (Tone, &'static str, String);

fn news_of_robustness(standing: &Standing) -> Option<Told> {
    let waiting = standing.waiting.as_ref().map(ToString::to_string);
    let waiting = waiting.unwrap_or_else(|| "a replica is not in service".to_owned());
    match standing.robustness {
        Robustness::Degraded => Some((Tone::Warning, "Degraded", waiting)),
        Robustness::Faulted => Some((Tone::Warning, "Faulted", waiting)),
        Robustness::Healthy => Some((Tone::Normal, "Healthy", "every replica is in service".into())),
        Robustness::Unknown if matches!(standing.waiting, Some(Unsettled::NodeLost(_))) => {
            Some((Tone::Warning, NODE_LOST, waiting))
        }
        Robustness::Undefined | Robustness::Unknown | Robustness::Unrecognised => None,
    }
}

/// Whether a frontend has the volume, so that somebody may have waited for a change of its engine.
fn has_clients(standing: &Standing) -> bool {
    standing.state == VolumeState::Attached && !standing.frontend_disabled
}

impl Volumes {
    fn count_move(&self, moved: &TargetMove) {
        match moved.state {
            TargetMoveState::Done => {
                self.figures.target_moved(time(moved.pause_us), time(moved.longest_wait_us));
            }
            TargetMoveState::Failed => self.figures.target_move_ended("failed"),
            TargetMoveState::TakenBack => self.figures.target_move_ended("taken-back"),
            TargetMoveState::None | TargetMoveState::Moving | TargetMoveState::Unrecognised => {}
        }
    }

    fn count(&self, change: &EngineChange) {
        match change.state {
            EngineChangeState::Done if change.pause_us > 0 => {
                self.figures.engine_changed(time(change.pause_us), time(change.longest_wait_us));
            }
            EngineChangeState::Done => self.figures.engine_change_ended("done"),
            EngineChangeState::Failed => self.figures.engine_change_ended("failed"),
            EngineChangeState::TakenBack => self.figures.engine_change_ended("taken-back"),
            EngineChangeState::None | EngineChangeState::Moving | EngineChangeState::Unrecognised => {}
        }
    }
}

fn time(us: i64) -> Duration {
    Duration::from_micros(us.try_into().unwrap_or_default())
}

/// What clients met while a frontend went over to another engine.
fn met(pause_us: i64, longest_wait_us: i64) -> String {
    let milliseconds = |us: i64| us as f64 / 1000.0;
    let pause = format!("the frontend paused for {:.3} ms", milliseconds(pause_us));
    match longest_wait_us {
        0 => format!("{pause}, and no request met it"),
        wait => format!("{pause}, the longest request took {:.3} ms", milliseconds(wait)),
    }
}

/// What people are told of a change of the engine image under clients.
fn news_of(change: &EngineChange, has_clients: bool) -> Option<Told> {
    let image = &change.image;
    match change.state {
        EngineChangeState::Moving => {
            Some((Tone::Normal, "EngineChanges", format!("an engine of {image} is started")))
        }
        // The controllers ended, or were cut off, between the switch-over and the note of it.
        EngineChangeState::Done if change.pause_us == 0 && has_clients => Some((
            Tone::Normal,
            "EngineChanged",
            format!("runs {image}; for how long its clients were held back is not known"),
        )),
        EngineChangeState::Done if change.pause_us == 0 => {
            Some((Tone::Normal, "EngineChanged", format!("runs {image}; no client had to wait")))
        }
        EngineChangeState::Done => Some((
            Tone::Normal,
            "EngineChanged",
            format!("runs {image}: {}", met(change.pause_us, change.longest_wait_us)),
        )),
        EngineChangeState::Failed => Some((
            Tone::Warning,
            "EngineChangeFailed",
            format!("{image} does not serve ({}); the volume keeps the image that it had", change.message),
        )),
        EngineChangeState::TakenBack => {
            Some((Tone::Normal, "EngineChangeTakenBack", format!("{image} is not asked for any more")))
        }
        EngineChangeState::None | EngineChangeState::Unrecognised => None,
    }
}

/// What people are told of a move of the target under clients.
fn news_of_move(moved: &TargetMove) -> Option<Told> {
    let TargetMove { from, to, .. } = moved;
    match moved.state {
        TargetMoveState::Moving => {
            Some((Tone::Normal, "TargetMoves", format!("an engine on node {to} takes over from node {from}")))
        }
        TargetMoveState::Done => Some((
            Tone::Normal,
            "TargetMoved",
            format!("served from node {to}: {}", met(moved.pause_us, moved.longest_wait_us)),
        )),
        TargetMoveState::Failed => Some((
            Tone::Warning,
            "TargetMoveFailed",
            format!(
                "not served from node {to} ({}: {}); it goes where it can serve",
                moved.reason, moved.message
            ),
        )),
        TargetMoveState::TakenBack => {
            Some((Tone::Normal, "TargetMoveTakenBack", format!("node {to} is not asked for any more")))
        }
        TargetMoveState::None | TargetMoveState::Unrecognised => None,
    }
}

fn of_volume(volume: &mut Volume, standing: &Standing, now: &str) {
    let status = volume.status.get_or_insert_default();
    status.state = standing.state;
    status.robustness = standing.robustness;
    status.owner_id = standing.owner.clone();
    status.current_node_id = standing.node.clone();
    status.current_engine_node_id = match volume.spec.data_engine {
        DataEngine::V1 => standing.node.clone(),
        DataEngine::V2 => standing.target.clone(),
    };
    status.current_target_node_id = standing.target.clone();
    status.switchover_state = standing.switchover;
    status.target_move = standing.moved.clone();
    status.current_image = standing.image.clone();
    status.engine_change = standing.change.clone();
    status.frontend_disabled = standing.frontend_disabled;
    match standing.robustness {
        Robustness::Degraded | Robustness::Faulted if status.last_degraded_at.is_empty() => {
            status.last_degraded_at = now.into();
        }
        Robustness::Healthy => status.last_degraded_at = "".into(),
        Robustness::Degraded
        | Robustness::Faulted
        | Robustness::Undefined
        | Robustness::Unknown
        | Robustness::Unrecognised => {}
    }
    set_integrity(&mut status.conditions, standing.integrity.as_ref(), now);
    let unscheduled = standing.scheduled.as_ref().err();
    let unscheduled = unscheduled.map(|why| ("ReplicaSchedulingFailure", why.clone()));
    status.conditions.set(condition(SCHEDULABLE, unscheduled, now));
    status.conditions.set(settled(standing.waiting.as_ref(), now));
}

fn settled(waiting: Option<&Unsettled>, now: &str) -> Condition {
    condition(SETTLED, waiting.map(|why| (why.reason(), why.to_string())), now)
}

/// A condition that holds unless there is a reason why not.
fn condition(kind: &str, why: Option<(&str, String)>, now: &str) -> Condition {
    let status = if why.is_some() { ConditionStatus::False } else { ConditionStatus::True };
    let (reason, message) = why.unwrap_or_default();
    Condition {
        kind: kind.into(),
        status,
        reason: reason.into(),
        message: message.into(),
        last_transition_time: now.into(),
        ..Condition::default()
    }
}

/// What was never found damaged has no condition of it.
fn set_integrity(conditions: &mut Conditions, integrity: Option<&Integrity>, now: &str) {
    let Some(integrity) = integrity else { return };
    conditions.set(Condition {
        kind: INTACT.into(),
        status: if integrity.holds() { ConditionStatus::True } else { ConditionStatus::False },
        reason: integrity.reason().into(),
        message: integrity.message().into(),
        last_transition_time: now.into(),
        ..Condition::default()
    });
}

fn find<'a>(seen: &'a Observed, name: &str) -> Option<(&'a Manager, &'a Instance)> {
    let there =
        seen.managers.iter().flat_map(|manager| manager.instances.iter().map(move |one| (manager, one)));
    there.into_iter().find(|(_, instance)| instance.name == name)
}

/// What is seen of an instance. Where it was stays known while its node is away.
fn of_instance(status: &mut InstanceStatus, seen: &Observed, name: &str) {
    let Some((manager, instance)) = find(seen, name) else {
        status.current_state = InstanceState::Stopped;
        status.current_image = ImageRef::default();
        return;
    };
    status.instance_manager_name = manager.name.as_str().into();
    status.current_state = if manager.running { instance.state } else { InstanceState::Unknown };
    match seen.volume.spec.data_engine {
        DataEngine::V1 => status.current_image = seen.image_of(instance).unwrap_or_default(),
        DataEngine::V2 => status.current_image = manager.image.clone(),
    }
    let reached = instance.address.as_str().rsplit_once(':').filter(|(ip, _)| !ip.starts_with("unix"));
    // One that only its own node reaches has no port.
    let (ip, port) = match reached {
        Some((ip, port)) => (ip, port.parse().unwrap_or_default()),
        None => (manager.address.as_str().rsplit_once(':').map_or("", |(ip, _)| ip), 0),
    };
    if instance.state != InstanceState::Stopped {
        (status.ip, status.storage_ip, status.port) = (ip.into(), ip.into(), port);
    }
}

/// Where the target is: the engine that serves, or takes over. It has a port only where another node's frontend reaches it.
fn of_target(status: &mut InstanceStatus, seen: &Observed, serves_on: &NodeName) {
    let engine = seen.running_engine().map(|(_, engine)| engine.state);
    let is_up = matches!(engine, Some(InstanceState::Running | InstanceState::Suspended));
    let is_switching = seen.record.as_ref().and_then(|record| record.operation.as_ref());
    let is_switching = is_switching.is_some_and(|operation| operation.phase == OperationPhase::Switching);
    status.current_target_node_id = serves_on.clone();
    status.target_instance_replacement_created = is_up && is_switching;
    let is_there = is_up && seen.volume.spec.data_engine == DataEngine::V2;
    let address = is_there.then(|| (status.ip.clone(), status.storage_ip.clone(), status.port));
    (status.target_ip, status.storage_target_ip, status.target_port) = address.unwrap_or_default();
}

fn of_engine(engine: &mut Engine, seen: &Observed, serves_on: &NodeName) {
    let status = engine.status.get_or_insert_default();
    of_instance(&mut status.instance, seen, seen.engine_in_charge().as_str());
    of_target(&mut status.instance, seen, serves_on);
    let salvaged = seen.record.as_ref().map(|record| &record.salvaged);
    status.instance.salvage_executed = salvaged.is_some_and(|replica| !replica.is_empty());
    let members = seen.record.iter().flat_map(|record| &record.members);
    status.replica_mode_map =
        members.map(|member| (member.replica.clone(), mode(member))).collect::<BTreeMap<_, _>>();
    if let Some(serving) = seen.serving.as_ref().filter(|serving| serving.size.bytes() > 0) {
        status.snapshots = snapshots(&serving.snapshots, &status.snapshots);
        status.current_size = serving.size;
        status.is_expanding = serving.size < seen.volume.spec.size;
        status.rebuilt_bytes = i64::try_from(serving.rebuilt_bytes).unwrap_or(i64::MAX);
    }
}

/// Each with those before and after it. What it takes is told by others.
fn snapshots(names: &[String], known: &BTreeMap<String, SnapshotInfo>) -> BTreeMap<String, SnapshotInfo> {
    let shown = |(place, name): (usize, &String)| {
        let parent = place.checked_sub(1).and_then(|before| names.get(before)).cloned().unwrap_or_default();
        let child = names.get(place + 1).map_or(HEAD, String::as_str);
        let info = SnapshotInfo {
            name: name.as_str().into(),
            parent: parent.into(),
            children: BTreeMap::from([(child.to_owned(), true)]),
            size: known.get(name).map(|known| known.size).unwrap_or_default(),
            ..SnapshotInfo::default()
        };
        (name.clone(), info)
    };
    names.iter().enumerate().map(shown).collect()
}

fn mode(member: &Member) -> ReplicaMode {
    match member.mode {
        MemberMode::ReadWrite => ReplicaMode::ReadWrite,
        MemberMode::WriteOnly => ReplicaMode::WriteOnly,
        MemberMode::Error => ReplicaMode::Error,
    }
}

fn of_replica(replica: &mut Replica, seen: &Observed) {
    let (name, integrity) = (replica.name_any(), integrity_of(seen, replica));
    let rebuild = rebuild_wanted(seen, replica);
    let status = &mut replica.status.get_or_insert_default().instance;
    of_instance(status, seen, &name);
    let now = seen.now.to_string();
    set_integrity(&mut status.conditions, integrity.as_ref(), &now);
    note_rebuild(rebuild, &mut status.conditions, &now);
}

/// Since when a replica has all data, or has not. One that was told to leave has not failed.
fn health(replica: &mut Replica, seen: &Observed) {
    let members = seen.record.iter().flat_map(|record| &record.members);
    let name = replica.name_any();
    let mode = members.into_iter().find(|member| member.replica == name.as_str()).map(|member| member.mode);
    let (now, left) = (seen.now.to_string(), is_leaving(replica));
    let is_over = is_salvage_over(seen, replica);
    let spec = &mut replica.spec;
    let is_there =
        seen.managers.iter().any(|manager| manager.running && manager.node == spec.instance.node_id);
    spec.instance.salvage_requested &= !is_over;
    match mode {
        Some(MemberMode::ReadWrite) if spec.healthy_at.is_empty() => {
            (spec.healthy_at, spec.last_healthy_at, spec.failed_at) =
                (now.as_str().into(), now.into(), "".into());
        }
        // One that is rebuilt is back: the time that it may take to come back begins anew if it is lost again.
        Some(MemberMode::WriteOnly) if is_there => (spec.healthy_at, spec.failed_at) = ("".into(), "".into()),
        Some(MemberMode::Error) if left => (spec.healthy_at, spec.failed_at) = ("".into(), "".into()),
        Some(MemberMode::Error | MemberMode::WriteOnly) if spec.failed_at.is_empty() => {
            (spec.failed_at, spec.last_failed_at, spec.healthy_at) =
                (now.as_str().into(), now.into(), "".into());
        }
        Some(_) | None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_an_instance_manager_says_is_a_refusal() {
        let failed =
            |status: tonic::Status| TurnError::Failed { doing: "start".into(), source: Box::new(status) };
        #[rustfmt::skip]
        let cases = [
            (failed(tonic::Status::internal("no such file")),      Some("no such file")),
            (failed(tonic::Status::deadline_exceeded("")),         Some("Deadline expired before operation could complete")),
            (failed(tonic::Status::unavailable("it is starting")), None),
            (TurnError::Failed { doing: "look".into(), source: "the API is away".into() }, None),
        ];
        for (error, expected) in cases {
            assert_eq!(refusal(&error).as_deref(), expected, "{error}");
        }
    }

    #[test]
    fn a_pause_that_no_request_met_is_told_as_such() {
        assert_eq!(met(1500, 0), "the frontend paused for 1.500 ms, and no request met it");
    }

    #[test]
    fn a_pause_that_was_not_noted_is_not_called_none() {
        let change = |pause_us| EngineChange {
            state: EngineChangeState::Done,
            image: "engine:2".into(),
            pause_us,
            longest_wait_us: 2 * pause_us,
            ..EngineChange::default()
        };
        #[rustfmt::skip]
        let cases = [
            ("noted",      1500, true,  "runs engine:2: the frontend paused for 1.500 ms, the longest request took 3.000 ms"),
            ("lost",       0,    true,  "runs engine:2; for how long its clients were held back is not known"),
            ("no clients", 0,    false, "runs engine:2; no client had to wait"),
        ];
        for (case, pause_us, has_clients, expected) in cases {
            let (_, _, note) = news_of(&change(pause_us), has_clients).unwrap();
            assert_eq!(note, expected, "{case}");
        }
    }
}
