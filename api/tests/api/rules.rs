//! What each rule refuses, and the words it refuses it with.
//!
//! The invariant: every rule of every schema is broken by at least one row
//! here, and by none that should pass.

use std::collections::BTreeSet;

use crate::support::{self, refusals, schema_of};
use serde_json::{Value, json};

const SEAT_A: &str = r#"{"name":"v-e-0","nodeID":"node-1"}"#;
const SEAT_B: &str = r#"{"name":"v-e-1","nodeID":"node-2"}"#;

const BACKUP: &str = "file:///b?backup=x&volume=v";

/// A change of a spec, or a new one when there is no old, and the start of the
/// refusal; empty if it is accepted.
#[rustfmt::skip]
fn cases() -> Vec<(&'static str, &'static str, Option<Value>, Value, &'static str)> {
    let seat = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let member = |replica: &str, mode: &str| json!({"replica": replica, "nodeID": "node-1", "mode": mode});
    let record = |term: u64, engine: &str, version: u64, members: Vec<Value>| {
        json!({"term": term, "engine": seat(engine), "memberVersion": version, "members": members})
    };
    let salvaged = |mut record: Value, replica: &str| {
        record["salvaged"] = replica.into();
        record
    };
    let (a, b) = (SEAT_A, SEAT_B);
    vec![
        ("a size",             "Volume", None, json!({"size": "1073741824"}), ""),
        ("no size",            "Volume", None, json!({}), "a volume needs a size"),
        ("size zero",          "Volume", None, json!({"size": "0"}), "a volume needs a size"),
        ("from a backup",      "Volume", None, json!({"fromBackup": "file:///b?backup=x&volume=v"}), ""),
        ("odd size",           "Volume", None, json!({"size": "1073741825"}), "size must be a multiple of 4096"),
        ("grows beyond files", "Volume", Some(json!({"size": "4096"})), json!({"size": "999999999999995904"}), "a copy of a volume is one file"),
        ("stays beyond files", "Volume", Some(json!({"size": "999999999999995904"})), json!({"size": "999999999999995904", "numberOfReplicas": 2}), ""),
        ("grows",              "Volume", Some(json!({"size": "4096"})), json!({"size": "8192"}), ""),
        ("shrinks",            "Volume", Some(json!({"size": "8192"})), json!({"size": "4096"}), "a volume can grow but not shrink"),
        ("size taken away",    "Volume", Some(json!({"size": "8192"})), json!({"fromBackup": "x"}), "a volume can grow but not shrink"),
        ("other data engine",  "Volume", Some(json!({"size": "4096", "dataEngine": "v1"})), json!({"size": "4096", "dataEngine": "v2"}), "dataEngine cannot change"),
        ("a target elsewhere", "Volume", None, json!({"size": "4096", "dataEngine": "v2", "targetNodeID": "node-2"}), ""),
        ("a target of v1",     "Volume", None, json!({"size": "4096", "targetNodeID": "node-2"}), "only the target of a v2 volume"),
        ("standby of nothing", "Volume", None, json!({"size": "4096", "Standby": true}), "a standby volume follows a backup"),
        ("becomes standby",    "Volume", Some(json!({"size": "4096", "fromBackup": "x"})), json!({"size": "4096", "fromBackup": "x", "Standby": true}), "a volume cannot become a standby"),
        ("is activated",       "Volume", Some(json!({"size": "4096", "fromBackup": BACKUP, "Standby": true})), json!({"size": "4096", "fromBackup": BACKUP, "Standby": false}), ""),
        ("from no backup",     "Volume", None, json!({"fromBackup": "file:///b?backup=x"}), "fromBackup is status.url of a Backup"),
        ("from elsewhere",     "Volume", None, json!({"fromBackup": "s3://b?backup=x&volume=v"}), "fromBackup is status.url of a Backup"),
        ("other backup",       "Volume", Some(json!({"size": "4096", "fromBackup": "x"})), json!({"size": "4096", "fromBackup": "y"}), "fromBackup cannot change"),
        ("unserved frontend",  "Volume", None, json!({"size": "4096", "frontend": "iscsi"}), "this frontend is not served"),
        ("nbd",                "Volume", None, json!({"size": "4096", "frontend": "nbd"}), ""),
        ("shared",             "Volume", None, json!({"size": "4096", "accessMode": "rwx"}), "shared volumes are not served"),
        ("of one node",        "Volume", None, json!({"size": "4096", "dataLocality": "strict-local"}), "replicas are not kept on the node"),
        ("if it can be",       "Volume", None, json!({"size": "4096", "dataLocality": "best-effort"}), ""),
        ("moves live",         "Volume", None, json!({"size": "4096", "migrationNodeID": "node-2"}), "clients of a volume are not moved"),
        ("as Longhorn has it", "Volume", None, json!({
            "size": "10737418240", "frontend": "blockdev", "numberOfReplicas": 3, "dataLocality": "disabled", "accessMode": "rwo",
            "migrationNodeID": "", "engineNodeID": "", "backupCompressionMethod": "lz4", "staleReplicaTimeout": 2880, "Standby": false,
        }), ""),

        ("its own disk",       "Node", None, json!({"disks": {"default-disk": {"path": "/instance-manager", "allowScheduling": true}}}), ""),
        ("without a path",     "Node", None, json!({"disks": {"a": {"allowScheduling": false, "evictionRequested": true}}}), ""),
        ("two disks",          "Node", None, json!({"disks": {"a": {"path": "/instance-manager"}, "b": {"path": "/instance-manager"}}}), "replicas of a node are in one folder"),
        ("another path",       "Node", None, json!({"disks": {"a": {"path": "/mnt/ssd"}}}), "replicas of a node are in /instance-manager"),

        ("healthy",            "Replica", None, json!({"healthyAt": "2026-01-01T00:00:00Z"}), ""),
        ("healthy and failed", "Replica", None, json!({"healthyAt": "2026-01-01T00:00:00Z", "failedAt": "2026-01-01T00:00:00Z"}), "a replica is healthy or failed"),
        ("other image",        "InstanceManager", Some(json!({"image": "a"})), json!({"image": "b"}), "an instance manager is one of a node"),
        ("other image",        "EngineImage", Some(json!({"image": "a"})), json!({"image": "b"}), "the image of an EngineImage cannot change"),
        ("other volume",       "Snapshot", Some(json!({"volume": "a"})), json!({"volume": "b"}), "a snapshot stays with its volume"),
        ("other snapshot",     "Backup", Some(json!({"snapshotName": "a"})), json!({"snapshotName": "b"}), "a backup stays with its snapshot"),
        ("sent again",         "Backup", None, json!({"snapshotName": "a", "backupMode": "full"}), "a target keeps every block once"),
        ("a folder",           "BackupTarget", None, json!({"backupTargetURL": "file:///backups"}), ""),
        ("a secret",           "BackupTarget", None, json!({"backupTargetURL": "file:///backups", "credentialSecret": "s"}), "backups go to folders only, which"),
        ("no secret",          "BackupTarget", None, json!({"backupTargetURL": "file:///backups", "credentialSecret": ""}), ""),
        ("not a folder",       "BackupTarget", None, json!({"backupTargetURL": "s3://bucket@region/"}), "backups go to folders only"),
        ("a duration",         "BackupTarget", None, json!({"pollInterval": "5m30s"}), ""),
        ("not a duration",     "BackupTarget", None, json!({"pollInterval": "often"}), "pollInterval is a duration"),

        ("the seed's name",    "Image", None, json!({"instanceManagerImage": "a"}), ""),
        ("the other name",     "Image", None, json!({"imageURL": "a"}), ""),
        ("no name at all",     "Image", None, json!({"imageURL": "!!! ???"}), "an image is named by letters, digits"),
        ("both names",         "Image", None, json!({"instanceManagerImage": "a", "imageURL": "a"}), "name the image in exactly one"),
        ("neither name",       "Image", None, json!({}), "name the image in exactly one"),
        ("other image",        "Image", Some(json!({"imageURL": "a"})), json!({"imageURL": "b"}), "an Image cannot change"),

        ("v1 node by node",    "DataEngineUpgradeManager", None, json!({"dataEngine": "v1"}), "only the v2 data engine"),
        ("is paused",          "DataEngineUpgradeManager", Some(json!({"dataEngine": "v2"})), json!({"dataEngine": "v2", "paused": true}), ""),
        ("other engine",       "DataEngineUpgradeManager", Some(json!({"dataEngine": "v2"})), json!({"dataEngine": "v1"}), "dataEngine cannot change"),
        ("other nodes",        "DataEngineUpgradeManager", Some(json!({"dataEngine": "v2"})), json!({"dataEngine": "v2", "nodes": ["a"]}), "nodes cannot change"),
        ("v1 on a node",       "NodeDataEngineUpgrade", None, json!({"dataEngine": "v1"}), "only the v2 data engine"),
        ("other node",         "NodeDataEngineUpgrade", Some(json!({"dataEngine": "v2", "nodeID": "a"})), json!({"dataEngine": "v2", "nodeID": "b"}), "the upgrade of a node cannot change"),

        ("a folder",           "Dataset", None, json!({"mounts": [{"mountPoint": "local:///data"}]}), ""),
        ("not a URL",          "Dataset", None, json!({"mounts": [{"mountPoint": "/data"}]}), "mountPoint is a URL"),
        ("a folder below",     "Dataset", None, json!({"mounts": [{"mountPoint": "local:///srv/..data/"}]}), ""),
        ("somewhere else",     "Dataset", None, json!({"mounts": [{"mountPoint": "s3://bucket/../path"}]}), ""),
        ("leads out",          "Dataset", None, json!({"mounts": [{"mountPoint": "local:///../../etc"}]}), "mountPoint of a folder is"),
        ("leads out later",    "Dataset", None, json!({"mounts": [{"mountPoint": "local:///data/.."}]}), "mountPoint of a folder is"),
        ("goes round",         "Dataset", None, json!({"mounts": [{"mountPoint": "local:///data/./set"}]}), "mountPoint of a folder is"),
        ("not absolute",       "Dataset", None, json!({"mounts": [{"mountPoint": "local://data"}]}), "mountPoint of a folder is"),
        ("the top",            "Dataset", None, json!({"mounts": [{"mountPoint": "local:///"}]}), "mountPoint of a folder is"),
        ("nothing between",    "Dataset", None, json!({"mounts": [{"mountPoint": "local:///data//set"}]}), "mountPoint of a folder is"),

        ("a first record",     "VolumeRecord", None, json!({"term": 0, "memberVersion": 0}), ""),
        ("takes the volume",   "VolumeRecord", Some(record(1, a, 1, vec![])), record(2, b, 1, vec![]), ""),
        ("comes too late",     "VolumeRecord", Some(record(2, a, 1, vec![])), record(1, b, 1, vec![]), "the term of a volume never goes down"),
        ("takes no term",      "VolumeRecord", Some(record(1, a, 1, vec![])), record(1, b, 1, vec![]), "another engine needs a higher term"),
        ("old members",        "VolumeRecord", Some(record(1, a, 2, vec![])), record(1, a, 1, vec![]), "memberVersion never goes down"),
        ("no new version",     "VolumeRecord", Some(record(1, a, 1, vec![])), record(1, a, 1, vec![member("r", "wo")]), "a change of members needs a higher"),
        ("first members",      "VolumeRecord", Some(record(1, a, 1, vec![])), record(1, a, 2, vec![member("r", "rw"), member("s", "rw")]), ""),
        ("drops one",          "VolumeRecord", Some(record(1, a, 2, vec![member("r", "rw"), member("s", "rw")])), record(1, a, 3, vec![member("r", "rw"), member("s", "err")]), ""),
        ("salvages another",   "VolumeRecord", Some(record(1, a, 2, vec![member("r", "rw"), member("s", "err")])), salvaged(record(2, a, 3, vec![member("s", "rw")]), "s"), ""),
        ("salvages unasked",   "VolumeRecord", Some(record(1, a, 2, vec![member("r", "rw"), member("s", "err")])), salvaged(record(2, a, 3, vec![member("s", "rw")]), "r"), "a replica that was out of service"),
        ("salvages again",     "VolumeRecord", Some(salvaged(record(1, a, 2, vec![member("r", "rw"), member("s", "err")]), "s")), salvaged(record(2, a, 3, vec![member("s", "rw")]), "s"), "a replica that was out of service"),
        ("in the same term",   "VolumeRecord", Some(record(1, a, 2, vec![member("r", "rw"), member("s", "err")])), salvaged(record(1, a, 3, vec![member("s", "rw")]), "s"), "a replica that was out of service"),
        ("drops the last",     "VolumeRecord", Some(record(1, a, 2, vec![member("r", "rw")])), record(1, a, 3, vec![member("r", "err")]), "the last member in service"),
        ("loses the last",     "VolumeRecord", Some(record(1, a, 2, vec![member("r", "rw")])), record(1, a, 3, vec![]), "the last member in service"),
        ("comes back stale",   "VolumeRecord", Some(record(1, a, 2, vec![member("r", "rw"), member("s", "err")])), record(1, a, 3, vec![member("r", "rw"), member("s", "rw")]), "a replica that was out of service"),
        ("joins unbuilt",      "VolumeRecord", Some(record(1, a, 2, vec![member("r", "rw")])), record(1, a, 3, vec![member("r", "rw"), member("s", "rw")]), "a replica that was out of service"),
        ("is being rebuilt",   "VolumeRecord", Some(record(1, a, 2, vec![member("r", "rw"), member("s", "err")])), record(1, a, 3, vec![member("r", "rw"), member("s", "wo")]), ""),
        ("was rebuilt",        "VolumeRecord", Some(record(1, a, 2, vec![member("r", "rw"), member("s", "wo")])), record(1, a, 3, vec![member("r", "rw"), member("s", "rw")]), ""),
    ]
}

#[test]
fn each_rule_refuses_what_it_should_and_nothing_else() {
    for (name, kind, old, new, expected) in cases() {
        let refusals = refusals(&schema_of(kind)["properties"]["spec"], &new, old.as_ref());
        match expected {
            "" => assert!(refusals.is_empty(), "{kind}, {name}: {refusals:?}"),
            start => assert!(
                refusals.iter().any(|refusal| refusal.starts_with(start)),
                "{kind}, {name}: {refusals:?}"
            ),
        }
    }
}

/// A change of `spec.image` of a volume that runs the image `a`: what it says, the new image, and the start of
/// the refusal; empty if it is accepted.
#[rustfmt::skip]
fn image_changes() -> Vec<(&'static str, Value, &'static str, &'static str)> {
    let status = |state: &str, robustness: &str| json!({"currentImage": "a", "state": state, "robustness": robustness});
    let volume = |image: &str, status: Value| json!({"spec": {"image": image}, "status": status});
    let of = |field: &str, value: &str| json!({"spec": {"image": "a", field: value}, "status": status("attached", "healthy")});
    let moving = json!({"spec": {"image": "a"}, "status": {"currentImage": "a", "currentMigrationNodeID": "n"}});
    vec![
        ("detached",                volume("a", status("detached", "unknown")),  "b", ""),
        ("attached and healthy",    volume("a", status("attached", "healthy")),  "b", ""),
        ("not looked at yet",       json!({"spec": {"image": "a"}}),             "b", ""),
        ("has no image yet",        volume("a", json!({"state": "creating"})),   "b", ""),
        ("asks for nothing yet",    json!({"spec": {}, "status": status("detached", "unknown")}), "b", ""),
        ("on its way",              volume("b", status("detached", "unknown")),  "c", "the volume is on its way"),
        ("on its way, goes back",   volume("b", status("attached", "degraded")), "a", ""),
        ("degraded",                volume("a", status("attached", "degraded")), "b", "the volume is attached and not healthy"),
        ("degraded v2",             json!({"spec": {"image": "a", "dataEngine": "v2"}, "status": status("attached", "degraded")}), "b", ""),
        ("degraded, no change",     volume("b", status("attached", "degraded")), "b", ""),
        ("will move",               of("migrationNodeID", "n"),                  "b", "the volume is moving"),
        ("moves",                   moving,                                      "b", "the volume is moving"),
        ("strict-local",            of("dataLocality", "strict-local"),          "b", "a strict-local volume"),
        ("emptied",                 volume("a", status("detached", "unknown")),  "",  "spec.image cannot be emptied"),
        ("emptied while degraded",  volume("a", status("attached", "degraded")), "",  "spec.image cannot be emptied"),
        ("emptied before a look",   json!({"spec": {"image": "a"}}),             "",  "spec.image cannot be emptied"),
        ("still asks for nothing",  json!({"spec": {}, "status": status("detached", "unknown")}), "", ""),
    ]
}

#[test]
fn the_image_of_a_volume_changes_only_when_that_is_safe() {
    for (name, old, image, expected) in image_changes() {
        let mut new = old.clone();
        new["spec"]["image"] = json!(image);
        judge_image_change(name, &old, &new, expected);
        if image.is_empty() {
            new["spec"].as_object_mut().unwrap().remove("image");
            judge_image_change(name, &old, &new, expected);
        }
    }
}

fn judge_image_change(name: &str, old: &Value, new: &Value, expected: &str) {
    // What the spec lacks here is not asked about.
    let refusals = refusals(schema_of("Volume"), new, Some(old));
    let guards = ["the volume is", "a strict-local", "spec.image"];
    let refusals: Vec<&String> =
        refusals.iter().filter(|refusal| guards.iter().any(|start| refusal.starts_with(start))).collect();
    match expected {
        "" => assert!(refusals.is_empty(), "{name}: {refusals:?}"),
        start => {
            assert!(refusals.iter().any(|refusal| refusal.starts_with(start)), "{name}: {refusals:?}");
        }
    }
}

/// A change of how clients reach a volume: its status, what it said, what it is to say, and the start of the refusal.
#[rustfmt::skip]
fn frontend_changes() -> Vec<(&'static str, Value, Value, Value, &'static str)> {
    let state = |state: &str| json!({"state": state});
    let (nbd, hidden) = (json!({"frontend": "nbd"}), json!({"frontend": "nbd", "disableFrontend": true}));
    let is_hidden = json!({"state": "attached", "frontendDisabled": true});
    let (kept, taken) = ("spec.frontend cannot change", "spec.disableFrontend cannot change");
    vec![
        ("emptied",            state("attached"),  nbd.clone(),    json!({"frontend": ""}),         kept),
        ("taken away",         state("attached"),  nbd.clone(),    json!({}),                       kept),
        ("another",            state("attached"),  nbd.clone(),    json!({"frontend": "blockdev"}), kept),
        ("disabled",           state("attached"),  nbd.clone(),    hidden.clone(),                  taken),
        ("as it was",          state("attached"),  nbd.clone(),    nbd.clone(),                     ""),
        ("said in words",      state("attached"),  nbd.clone(),    json!({"frontend": "nbd", "disableFrontend": false}), ""),
        ("detached",           state("detached"),  nbd.clone(),    json!({"frontend": ""}),         ""),
        ("not looked at yet",  json!({}),          nbd.clone(),    json!({"frontend": ""}),         ""),
        ("nobody is served",   is_hidden.clone(),  json!({}),      nbd.clone(),                     ""),
        ("enabled",            is_hidden,          hidden,         nbd,                             ""),
    ]
}

#[test]
fn clients_are_not_left_with_a_frontend_that_nobody_asks_for() {
    for (name, status, old, new, expected) in frontend_changes() {
        let volume = |spec: &Value| json!({ "spec": spec, "status": status });
        let refusals = refusals(schema_of("Volume"), &volume(&new), Some(&volume(&old)));
        let guards = ["spec.frontend", "spec.disableFrontend"];
        let refusals: Vec<&String> =
            refusals.iter().filter(|refusal| guards.iter().any(|start| refusal.starts_with(start))).collect();
        match expected {
            "" => assert!(refusals.is_empty(), "{name}: {refusals:?}"),
            start => assert!(refusals.len() == 1 && refusals[0].starts_with(start), "{name}: {refusals:?}"),
        }
    }
}

#[test]
fn the_name_of_a_dataset_fits_into_a_label() {
    let refused = |length: usize| {
        let dataset = json!({"metadata": {"name": "n".repeat(length)}, "spec": {}});
        let refusals = refusals(schema_of("Dataset"), &dataset, None);
        refusals.iter().any(|refusal| refusal.starts_with("the name of a dataset becomes a label"))
    };
    assert_eq!([1, 63, 64, 253].map(refused), [false, false, true, true]);
}

#[test]
fn every_rule_is_broken_by_a_row() {
    let rows = cases();
    let covered = |kind: &str, message: &str| {
        rows.iter().any(|(_, of, _, _, start)| *of == kind && !start.is_empty() && message.starts_with(start))
    };
    for rule in schema_of("Volume")["x-kubernetes-validations"].as_array().unwrap() {
        let message = rule["message"].as_str().unwrap();
        let breaks = |start: &str| !start.is_empty() && message.starts_with(start);
        let broken = image_changes().iter().any(|(.., start)| breaks(start))
            || frontend_changes().iter().any(|(.., start)| breaks(start));
        assert!(broken, "{message}");
    }
    let mut bare = BTreeSet::new();
    for definition in support::ours() {
        let kind = definition["spec"]["names"]["kind"].as_str().unwrap();
        messages(&schema_of(kind)["properties"]["spec"], &mut |message| {
            if !covered(kind, message) {
                bare.insert(format!("{kind}: {message}"));
            }
        });
    }
    assert!(bare.is_empty(), "{bare:#?}");
}

fn messages(schema: &Value, act: &mut impl FnMut(&str)) {
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        act(rule["message"].as_str().unwrap());
    }
    for inner in schema.as_object().into_iter().flat_map(|fields| fields.values()) {
        messages(inner, act);
    }
}
