//! What is told of storage, from objects.

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

/// Nothing is in both lists, and what comes by itself is not in that of what is blocked.
#[test]
fn what_ends_by_itself_goes_on_with_all_that_waits_for_it() {
    let unsettled = |name: &str, reason: &str| {
        let mut volume = volume(name, VolumeState::Attached, Robustness::Degraded);
        let condition = Condition {
            kind: SETTLED.into(),
            status: ConditionStatus::False,
            reason: reason.into(),
            message: format!("{name} waits").into(),
            ..Condition::default()
        };
        volume.status.get_or_insert_default().conditions.set(condition);
        volume
    };
    let asked = |volume: &str| {
        let mut snapshot = Snapshot::new(&format!("of-{volume}"), Default::default());
        snapshot.spec.volume = volume.into();
        snapshot.status.get_or_insert_default().error = "its volume is not attached".into();
        let mut backup = Backup::new(&format!("of-{volume}"), Default::default());
        backup.labels_mut().insert(BACKUP_VOLUME.into(), volume.into());
        let status = backup.status.get_or_insert_default();
        (status.state, status.error) = (BackupState::Pending, "it is not attached".into());
        (snapshot, backup)
    };
    let names = |items: &[Item]| -> Vec<String> { items.iter().map(|item| item.what.clone()).collect() };
    let mut upgrade = DataEngineUpgradeManager::new("u", Default::default());
    let status = upgrade.status.get_or_insert_default();
    status.upgrading_node = "node-1".into();
    let (snapshots, backups) = ["comes", "stuck"].map(asked).into_iter().unzip();
    let volumes = vec![
        volume("comes", VolumeState::Attaching, Robustness::Unknown),
        unsettled("moves", MOVING),
        unsettled("away", REPLICAS_AWAY),
        unsettled("stuck", "Waiting"),
    ];
    let mut seen = Objects { volumes, snapshots, backups, ..Objects::default() };
    let storage = Storage::of(&seen);
    assert_eq!(
        names(&storage.blocked),
        ["volume away", "volume stuck", "snapshot of-stuck", "backup of-stuck"]
    );
    assert_eq!(
        names(&storage.going_on),
        ["volume comes", "volume moves", "snapshot of-comes", "backup of-comes"]
    );
    seen.node_upgrades = vec![upgrade];
    let storage = Storage::of(&seen);
    assert!(names(&storage.going_on).contains(&"volume away".to_owned()), "{storage:?}");
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
