//! Upstream's case of a volume that follows backups: it is brought to one, every node gets the data engine of the next build, it is
//! brought to another, and serves exactly that when it is activated.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use anyhow::{Context, ensure};
use kube::api::PostParams;
use midflight_api::longhorn::{Backup, BackupState, Engine, Snapshot, UpgradeState, Volume, VolumeStatus};
use midflight_tests::fleet::{Fleet, NEXT, NODES};
use midflight_tests::load::Load;
use midflight_tests::noise::noise;
use midflight_tests::storage::run;
use serde_json::json;

const SIZE: u64 = 8 << 20;

/// Fills the volume that is backed up, and backs it up; says where the backup is.
async fn back_up(fleet: &Fleet, name: &str, seed: u64) -> String {
    let (file, endpoint) = (fleet.cluster.room(name), fleet.endpoint("vol-1").await.unwrap());
    std::fs::write(&file, noise(seed, SIZE as usize)).unwrap();
    run("nbdcopy", &["--flush", file.to_str().unwrap(), &endpoint]).await.unwrap();
    let snapshot = json!({
        "apiVersion": "longhorn.io/v1beta2", "kind": "Snapshot", "metadata": { "name": name },
        "spec": { "volume": "vol-1", "createSnapshot": true },
    });
    let snapshots = fleet.all::<Snapshot>();
    snapshots.create(&PostParams::default(), &serde_json::from_value(snapshot).unwrap()).await.unwrap();
    let taken = async || Ok(snapshots.get(name).await?.status.is_some_and(|status| status.ready_to_use));
    fleet.until(&format!("snapshot {name} is ready"), taken).await.unwrap();
    let backup = json!({
        "apiVersion": "longhorn.io/v1beta2", "kind": "Backup", "metadata": { "name": name },
        "spec": { "snapshotName": name },
    });
    let backups = fleet.all::<Backup>();
    backups.create(&PostParams::default(), &serde_json::from_value(backup).unwrap()).await.unwrap();
    let complete = async || {
        let status = backups.get(name).await?.status.unwrap_or_default();
        ensure!(status.state != BackupState::Error, "backup {name}: {}", status.error);
        Ok(status.state == BackupState::Completed)
    };
    fleet.until(&format!("backup {name} is complete"), complete).await.unwrap();
    backups.get(name).await.unwrap().status.unwrap().url.to_string()
}

async fn status(fleet: &Fleet, volume: &str) -> anyhow::Result<VolumeStatus> {
    Ok(fleet.all::<Volume>().get(volume).await?.status.unwrap_or_default())
}

/// Waits until the standby holds a backup and is whole.
async fn until_holds(fleet: &Fleet, backup: &str) {
    let holds = async || {
        let engine = fleet.all::<Engine>().get_opt("dr-e-0").await?;
        let held = engine.and_then(|engine| engine.status).unwrap_or_default().last_restored_backup;
        let status = status(fleet, "dr").await?;
        let is_whole = (status.state.as_str(), status.robustness.as_str()) == ("attached", "healthy");
        Ok(held.as_str() == backup && is_whole && status.is_standby && !status.restore_required)
    };
    let reached = fleet.until(&format!("dr holds {backup}"), holds).await;
    let now = status(fleet, "dr").await.unwrap();
    reached.with_context(|| format!("{now:#?}")).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_follows_through_the_upgrade_of_every_node() {
    let fleet = Fleet::up().await.unwrap();
    fleet.make("vol-1", ("v2", SIZE), "node-1", &NODES).await.unwrap();
    let first = back_up(&fleet, "monday", 1).await;
    let standby = json!({
        "apiVersion": "longhorn.io/v1beta2", "kind": "Volume", "metadata": { "name": "dr" },
        "spec": {
            "numberOfReplicas": 3, "dataEngine": "v2", "frontend": "nbd", "fromBackup": first, "Standby": true,
        },
    });
    let volumes = fleet.all::<Volume>();
    volumes.create(&PostParams::default(), &serde_json::from_value(standby).unwrap()).await.unwrap();
    until_holds(&fleet, "monday").await;

    fleet.make("vol-2", ("v2", SIZE), "node-1", &NODES).await.unwrap();
    fleet.make_default(NEXT).await.unwrap();
    let load = Load::on(&fleet.endpoint("vol-2").await.unwrap(), "vol-2", 1).unwrap();
    fleet.begin(json!({ "dataEngine": "v2" })).await.unwrap();
    fleet.until_run(UpgradeState::Completed).await.unwrap();
    fleet.is_whole().await.unwrap();
    for node in NODES {
        fleet.runs_only(node, NEXT).await.unwrap();
    }
    load.judge().await.unwrap();
    until_holds(&fleet, "monday").await;
    assert_eq!(volumes.get("dr").await.unwrap().spec.image, NEXT);
    assert_eq!(fleet.endpoint("dr").await.unwrap(), "", "nobody reaches a standby");
    fleet.end().await.unwrap();

    back_up(&fleet, "tuesday", 2).await;
    until_holds(&fleet, "tuesday").await;
    fleet.change("dr", json!({ "Standby": false, "nodeID": "node-2" })).await.unwrap();
    let serves =
        async || Ok(!fleet.endpoint("dr").await?.is_empty() && !status(&fleet, "dr").await?.is_standby);
    fleet.until("the standby serves", serves).await.unwrap();
    let (file, endpoint) = (fleet.cluster.room("read"), fleet.endpoint("dr").await.unwrap());
    run("nbdcopy", &[&endpoint, file.to_str().unwrap()]).await.unwrap();
    assert!(std::fs::read(&file).unwrap() == noise(2, SIZE as usize), "it is not the second backup");
}
