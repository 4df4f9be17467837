//! Backups as objects on real engines: made, found again, restored, followed by a standby that is activated.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use midflight_api::longhorn::{
    Backup, BackupState, BackupTarget, DataEngine, Engine, NAMESPACE, Node, Volume,
};
use midflight_operator::Writer;
use midflight_tests::pattern;
use midflight_tests::running::until_holds;
use midflight_tests::storage::Storage;
use serde_json::{Value, json};

const SIZE: u64 = 8 << 20;

fn spec(more: &Value) -> Value {
    let mut spec = json!({ "numberOfReplicas": 2, "dataEngine": "v2", "frontend": "nbd" });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    spec
}

async fn write(endpoint: &str, byte: &str, place: &str) {
    pattern::write(endpoint, byte, place).await.unwrap();
}

async fn read(endpoint: &str, byte: &str, place: &str) {
    pattern::read(endpoint, byte, place).await.unwrap();
}

async fn status_of(storage: &Storage, volume: &str) -> anyhow::Result<midflight_api::longhorn::VolumeStatus> {
    Ok(storage.volumes().get(volume).await?.status.unwrap_or_default())
}

async fn source(storage: &Storage) -> String {
    let source = json!({ "size": SIZE.to_string(), "nodeID": "node-1" });
    storage.create_volume("vol-1", spec(&source)).await.unwrap();
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    storage.endpoint("vol-1").await.unwrap()
}

/// As an upgrade marks node-1, or takes the mark away.
async fn mark(storage: &Storage, upgraded: bool) {
    let nodes: Api<Node> = Api::namespaced(storage.client.clone(), NAMESPACE);
    let change = Patch::Merge(json!({ "spec": { "dataEngineUpgradeRequested": upgraded } }));
    nodes.patch("node-1", &PatchParams::default(), &change).await.unwrap();
    let seen = async || {
        let status = nodes.get("node-1").await?.status.unwrap_or_default();
        Ok((status.conditions.holds("Schedulable") != upgraded).then_some(()))
    };
    storage.until("the controllers have seen it", seen).await.unwrap();
}

async fn target(storage: &Storage) -> anyhow::Result<BackupTarget> {
    let targets: Api<BackupTarget> = Api::namespaced(storage.client.clone(), NAMESPACE);
    Ok(targets.get("default").await?)
}

/// Has the folder of the target looked through.
async fn look(storage: &Storage) {
    let targets: Api<BackupTarget> = Api::namespaced(storage.client.clone(), NAMESPACE);
    let now = jiff::Timestamp::now().to_string();
    let ask = Patch::Merge(json!({ "spec": { "syncRequestedAt": now } }));
    targets.patch("default", &PatchParams::default(), &ask).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_is_backed_up_restored_and_followed_by_a_standby() {
    let storage = Storage::start(2, DataEngine::V2).await.unwrap();
    storage.make_backup_target("default").await.unwrap();
    let endpoint = source(&storage).await;
    write(&endpoint, "0x11", "1M").await;
    storage.take_snapshot("vol-1", "monday").await.unwrap();
    let first = storage.back_up("monday", "b-1").await.unwrap().status.unwrap();
    assert_eq!((first.progress, first.volume_size.bytes()), (100, SIZE));
    assert!(first.newly_upload_data_size.bytes() > 0, "{first:?}");

    // Restored to a volume of its own, whose size nobody has said.
    write(&endpoint, "0x22", "1M").await;
    let from = json!({ "fromBackup": first.url, "nodeID": "node-2" });
    storage.create_volume("vol-2", spec(&from)).await.unwrap();
    storage.until_volume("vol-2", "attached", "healthy").await.unwrap();
    let restored = status_of(&storage, "vol-2").await.unwrap();
    assert!(restored.restore_initiated && !restored.restore_required && !restored.is_standby);
    assert_eq!(storage.volumes().get("vol-2").await.unwrap().spec.size.bytes(), SIZE);
    read(&storage.endpoint("vol-2").await.unwrap(), "0x11", "1M").await;

    // A standby follows what comes, and grows with its volume.
    let standby = json!({ "fromBackup": first.url, "Standby": true });
    storage.create_volume("vol-3", spec(&standby)).await.unwrap();
    until_holds(&storage, "vol-3", "b-1").await.unwrap();
    let follows = status_of(&storage, "vol-3").await.unwrap();
    assert!(follows.is_standby && follows.frontend_disabled, "{follows:?}");
    assert_eq!(storage.endpoint("vol-3").await.unwrap(), "", "nobody reaches a standby");
    storage.change_volume("vol-1", json!({ "size": (2 * SIZE).to_string() })).await.unwrap();
    let grown = async || {
        let engines: Api<Engine> = Api::namespaced(storage.client.clone(), NAMESPACE);
        let size = engines.get("vol-1-e-0").await?.status.unwrap_or_default().current_size;
        Ok((size.bytes() == 2 * SIZE).then_some(()))
    };
    storage.until("vol-1 has grown", grown).await.unwrap();
    write(&endpoint, "0x33", "12M").await;
    storage.take_snapshot("vol-1", "tuesday").await.unwrap();
    let second = storage.back_up("tuesday", "b-2").await.unwrap().status.unwrap();
    assert!(second.newly_upload_data_size < first.volume_size, "only what changed is sent: {second:?}");
    until_holds(&storage, "vol-3", "b-2").await.unwrap();
    let last = status_of(&storage, "vol-1").await.unwrap();
    assert_eq!(last.last_backup.as_str(), "b-2");

    // It serves when it is activated, with what the newest backup holds.
    storage.change_volume("vol-3", json!({ "Standby": false, "nodeID": "node-1" })).await.unwrap();
    let active = async || {
        let status = status_of(&storage, "vol-3").await?;
        let is_active = !status.is_standby && !status.restore_required && !status.frontend_disabled;
        Ok((is_active && status.state.as_str() == "attached").then_some(()))
    };
    storage.until("the standby serves", active).await.unwrap();
    let endpoint = storage.endpoint("vol-3").await.unwrap();
    read(&endpoint, "0x22", "1M").await;
    read(&endpoint, "0x33", "12M").await;
    write(&endpoint, "0x44", "2M").await;

    // Seed 004: a node that is upgraded does no backup work; it is done afterwards, or where the engine has gone.
    mark(&storage, true).await;
    storage.create_backup("tuesday", "b-late", None).await.unwrap();
    let waits = async || {
        let status = storage.backups().get("b-late").await?.status.unwrap_or_default();
        let why = serde_json::to_string(&status)?;
        let is_told = status.state == BackupState::Pending && why.contains("is being upgraded");
        Ok(is_told.then_some(()))
    };
    storage.until("the backup waits for the upgrade", waits).await.unwrap();
    mark(&storage, false).await;
    let made = async || {
        let status = storage.backups().get("b-late").await?.status.unwrap_or_default();
        Ok((status.state == BackupState::Completed).then_some(()))
    };
    storage.until("it is made when the node is done", made).await.unwrap();

    let early = storage.back_up("monday", "b-early").await.unwrap().status.unwrap();
    let sizes = [&early, &second].map(|made| made.volume_size.bytes());
    assert_eq!(sizes, [SIZE, 2 * SIZE], "each is as large as the volume was");
    storage.stop().await;
}

/// Part of the next one was written over it before that could not be had.
#[tokio::test(flavor = "multi_thread")]
async fn an_activated_standby_serves_the_last_backup_that_it_holds_and_nothing_of_the_next() {
    let storage = Storage::start(2, DataEngine::V2).await.unwrap();
    storage.make_backup_target("default").await.unwrap();
    let endpoint = source(&storage).await;
    write(&endpoint, "0x33", "4M").await;
    storage.take_snapshot("vol-1", "sunday").await.unwrap();
    storage.back_up("sunday", "b-0").await.unwrap();
    let blocks = std::fs::read_dir(storage.room("backups").join("blocks")).unwrap();
    let blocks = blocks.flat_map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap());
    let blocks: Vec<_> = blocks.map(|block| block.unwrap().path()).collect();
    assert_eq!(blocks.len(), 1, "{blocks:?}");

    write(&endpoint, "0x11", "1M").await;
    write(&endpoint, "0x44", "4M").await;
    storage.take_snapshot("vol-1", "monday").await.unwrap();
    let held = storage.back_up("monday", "b-1").await.unwrap().status.unwrap();
    storage.create_volume("vol-3", spec(&json!({ "fromBackup": held.url, "Standby": true }))).await.unwrap();
    until_holds(&storage, "vol-3", "b-1").await.unwrap();

    // The next backup needs the block again that is damaged by now, after one that is not.
    std::fs::write(&blocks[0], b"damaged").unwrap();
    write(&endpoint, "0x22", "1M").await;
    write(&endpoint, "0x33", "4M").await;
    storage.take_snapshot("vol-1", "tuesday").await.unwrap();
    storage.back_up("tuesday", "b-2").await.unwrap();
    let fails = async || {
        let conditions = status_of(&storage, "vol-3").await?.conditions;
        let message = conditions.get("Restore").map(|condition| condition.message.to_string());
        Ok(message.filter(|message| message.starts_with("backup b-2 cannot be restored")))
    };
    storage.until("the newest cannot be restored", fails).await.unwrap();
    storage.change_volume("vol-3", json!({ "Standby": false, "nodeID": "node-1" })).await.unwrap();
    let active = async || {
        let status = status_of(&storage, "vol-3").await?;
        Ok((!status.is_standby && status.state.as_str() == "attached").then_some(()))
    };
    storage.until("the standby serves", active).await.unwrap();
    let endpoint = storage.endpoint("vol-3").await.unwrap();
    read(&endpoint, "0x11", "1M").await;
    read(&endpoint, "0x44", "4M").await;
    storage.stop().await;
}

/// A volume with one copy has been written to, and has the snapshot `monday`.
async fn with_a_snapshot() -> Storage {
    let storage = Storage::start(1, DataEngine::V2).await.unwrap();
    storage.make_backup_target("default").await.unwrap();
    let one = json!({ "size": SIZE.to_string(), "nodeID": "node-1", "numberOfReplicas": 1 });
    storage.create_volume("vol-1", spec(&one)).await.unwrap();
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    write(&storage.endpoint("vol-1").await.unwrap(), "0x11", "0").await;
    storage.take_snapshot("vol-1", "monday").await.unwrap();
    storage
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_is_looked_through_and_what_is_deleted_is_gone_from_it() {
    let storage = with_a_snapshot().await;
    for name in ["b-1", "b-2"] {
        storage.back_up("monday", name).await.unwrap();
    }
    let backups: Api<Backup> = storage.backups();
    let names = async || -> anyhow::Result<Vec<String>> {
        Ok(backups.list(&ListParams::default()).await?.iter().map(ResourceExt::name_any).collect())
    };

    // Objects that somebody has lost come back from the folder.
    let drop_finalizers = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    let lose = async || {
        let bare = backups.patch("b-1", &PatchParams::default(), &drop_finalizers).await?;
        // The operator protects it again, and then it would be deleted for good.
        let as_it_is = Preconditions { resource_version: bare.resource_version(), uid: bare.uid() };
        let delete = DeleteParams { preconditions: Some(as_it_is), ..DeleteParams::default() };
        match backups.delete("b-1", &delete).await {
            Ok(_) => Ok(bare.uid()),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
            Err(error) => Err(error.into()),
        }
    };
    let lost = storage.until("the object of b-1 is lost", lose).await.unwrap();
    look(&storage).await;
    let found = async || {
        let other = backups.get_opt("b-1").await?.filter(|backup| backup.uid().as_ref() != Some(&lost));
        let status = other.and_then(|backup| backup.status).unwrap_or_default();
        Ok((status.state == BackupState::Completed).then_some(status))
    };
    let found = storage.until("the backup is found again", found).await.unwrap();
    assert_eq!((found.snapshot_name.as_str(), found.volume_name.as_str()), ("monday", "vol-1"));
    assert!(found.url.as_str().ends_with("?backup=b-1&volume=vol-1"), "{}", found.url);

    // What is deleted is gone from the folder, and does not come back.
    backups.delete("b-2", &DeleteParams::default()).await.unwrap();
    let gone = async || Ok((names().await? == ["b-1"]).then_some(()));
    storage.until("the object of b-2 is gone", gone).await.unwrap();
    look(&storage).await;
    let synced = async || {
        let target = target(&storage).await?;
        let at = |text: &str| text.parse::<jiff::Timestamp>().ok();
        let last = target.status.as_ref().and_then(|status| at(status.last_synced_at.as_str()));
        Ok((last >= at(target.spec.sync_requested_at.as_str())).then_some(()))
    };
    storage.until("the target was looked through", synced).await.unwrap();
    assert_eq!(names().await.unwrap(), ["b-1"]);
    assert!(!storage.room("backups").join("volumes/vol-1/b-2").exists());

    // One that somebody removed from the folder loses its object.
    std::fs::remove_file(storage.room("backups").join("volumes/vol-1/b-1")).unwrap();
    look(&storage).await;
    let none = async || Ok(names().await?.is_empty().then_some(()));
    storage.until("the object of b-1 is gone", none).await.unwrap();
    storage.stop().await;
}

/// As when the disk that the folder lies on is not mounted.
#[tokio::test(flavor = "multi_thread")]
async fn backups_whose_folder_is_away_are_not_gone_and_what_is_let_go_loses_no_data() {
    let storage = with_a_snapshot().await;
    let made = storage.back_up("monday", "b-1").await.unwrap();
    let (folder, aside) = (storage.room("backups"), storage.room("aside"));

    std::fs::rename(&folder, &aside).unwrap();
    std::fs::create_dir(&folder).unwrap();
    look(&storage).await;
    let away = async || {
        let status = target(&storage).await?.status.unwrap_or_default();
        let why = status.conditions.get("Unavailable").map(|condition| condition.message.to_string());
        Ok(why.filter(|why| !status.available && why.contains("is not there, or nothing was ever kept")))
    };
    let why = storage.until("the target says that its folder is away", away).await.unwrap();
    assert!(why.contains("1 of its backups are known; bring it back"), "{why}");
    // Nothing is written where the others are not: they would seem to be gone then.
    storage.create_backup("monday", "b-2", None).await.unwrap();
    let waits = async || {
        let error = storage.backups().get("b-2").await?.status.unwrap_or_default().error.to_string();
        Ok(error.contains("is not there").then_some(()))
    };
    storage.until("another backup waits for the folder", waits).await.unwrap();
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);

    std::fs::remove_dir(&folder).unwrap();
    std::fs::rename(&aside, &folder).unwrap();
    look(&storage).await;
    let back = async || {
        let is_made = storage.backups().get("b-2").await?.status.unwrap_or_default().state;
        let is_back = target(&storage).await?.status.unwrap_or_default().available;
        Ok((is_back && is_made == BackupState::Completed).then_some(()))
    };
    storage.until("the folder is back, and takes backups", back).await.unwrap();
    assert_eq!(storage.backups().get("b-1").await.unwrap().uid(), made.uid(), "it never went");

    // Of one that is away alone the object goes, and its blocks stay for when it is back.
    storage.backups().delete("b-2", &DeleteParams::default()).await.unwrap();
    let gone = async |name: &str| Ok(storage.backups().get_opt(name).await?.is_none().then_some(()));
    storage.until("b-2 is gone", async || gone("b-2").await).await.unwrap();
    let (manifest, aside) = (folder.join("volumes/vol-1/b-1"), storage.room("b-1"));
    std::fs::rename(&manifest, &aside).unwrap();
    look(&storage).await;
    storage.until("the object of b-1 is gone", async || gone("b-1").await).await.unwrap();
    std::fs::rename(&aside, &manifest).unwrap();
    look(&storage).await;
    let found = async || {
        let found = storage.backups().get_opt("b-1").await?.and_then(|backup| backup.status);
        Ok(found.filter(|status| status.state == BackupState::Completed))
    };
    let found = storage.until("it is found again", found).await.unwrap();
    let from = json!({ "fromBackup": found.url, "nodeID": "node-1", "numberOfReplicas": 1 });
    storage.create_volume("vol-2", spec(&from)).await.unwrap();
    storage.until_volume("vol-2", "attached", "healthy").await.unwrap();
    read(&storage.endpoint("vol-2").await.unwrap(), "0x11", "0").await;
    storage.stop().await;
}

/// Whoever ordered it is gone, and the instance manager is at it still.
#[tokio::test(flavor = "multi_thread")]
async fn a_backup_that_is_deleted_while_it_is_made_does_not_come_back() {
    let mut storage = Storage::start(1, DataEngine::V2).await.unwrap();
    storage.make_backup_target("default").await.unwrap();
    let one = json!({ "size": SIZE.to_string(), "nodeID": "node-1", "numberOfReplicas": 1 });
    storage.create_volume("vol-1", spec(&one)).await.unwrap();
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    write(&storage.endpoint("vol-1").await.unwrap(), "0x11", "0").await;
    storage.take_snapshot("vol-1", "monday").await.unwrap();
    // A backup waits for whoever sweeps.
    let folder = storage.room("backups");
    std::fs::create_dir_all(folder.join("sweeping")).unwrap();
    std::fs::write(folder.join("sweeping/somebody"), b"").unwrap();
    let at_work = || std::fs::read_dir(folder.join("running")).map_or(0, Iterator::count);
    storage.create_backup("monday", "b-1", None).await.unwrap();
    let backups = storage.backups();
    let begun = async || {
        let state = backups.get("b-1").await?.status.unwrap_or_default().state;
        Ok((state == BackupState::InProgress && at_work() > 0).then_some(()))
    };
    storage.until("the backup is being made", begun).await.unwrap();

    storage.stop_operator().await;
    backups.delete("b-1", &DeleteParams::default()).await.unwrap();
    storage.replace_operator(Writer::new(storage.client.clone())).await;
    for _ in 0..30 {
        assert!(backups.get_opt("b-1").await.unwrap().is_some(), "it stays while it is made");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    std::fs::remove_file(folder.join("sweeping/somebody")).unwrap();
    let gone = async || Ok((backups.get_opt("b-1").await?.is_none() && at_work() == 0).then_some(()));
    storage.until("the object is gone and nobody makes it any more", gone).await.unwrap();
    assert!(!folder.join("volumes/vol-1/b-1").exists(), "nothing of it is left");
    storage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_backed_up_or_restored_says_why() {
    let storage = Storage::start(1, DataEngine::V2).await.unwrap();
    storage.make_backup_target("default").await.unwrap();
    let refused = |spec: Value| async {
        let made = storage.create_volume("bad", spec).await;
        made.unwrap_err().to_string()
    };
    let odd = refused(spec(&json!({ "fromBackup": "monday" }))).await;
    assert!(odd.contains("fromBackup is status.url of a Backup"), "{odd}");
    let nothing = refused(spec(&json!({ "size": "4096", "Standby": true }))).await;
    assert!(nothing.contains("a standby volume follows a backup"), "{nothing}");

    let says = async |volume: &str, word: &str| {
        let found = async || {
            let volume: Volume = storage.volumes().get(volume).await?;
            let conditions = volume.status.unwrap_or_default().conditions;
            let message = conditions.get("Restore").map(|condition| condition.message.to_string());
            Ok(message.filter(|message| message.contains(word)))
        };
        storage.until(&format!("{volume} says {word}"), found).await.unwrap()
    };
    let unknown = json!({ "fromBackup": "file:///nowhere?backup=b&volume=v" });
    storage.create_volume("vol-x", spec(&unknown)).await.unwrap();
    says("vol-x", "no backup target has").await;

    storage.create_backup("monday", "b-1", Some("vol-0")).await.unwrap();
    let fails = async || {
        let status = storage.backups().get("b-1").await?.status.unwrap_or_default();
        let is_told = status.error.as_str() == "volume vol-0 does not exist";
        Ok((is_told && status.state == BackupState::Error).then_some(()))
    };
    storage.until("the backup is given up, and says why", fails).await.unwrap();
    storage.stop().await;
}
