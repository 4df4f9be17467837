//! What a volume does when its nodes, its disks or its places fail it.

use std::path::Path;

use kube::ResourceExt;
use kube::api::{Api, ListParams, Patch, PatchParams};
use midflight_api::longhorn::{DataEngine, NAMESPACE, Node, Replica};
use midflight_api::{MemberMode, VolumeRecord};
use midflight_plan::storage::engine_image;
use midflight_tests::load::Load;
use midflight_tests::running::{runs, status, told};
use midflight_tests::storage::{Program, Storage, THIS, run};
use serde_json::{Value, json};

const SIZE: u64 = 8 << 20;

fn spec(replicas: u8) -> Value {
    json!({
        "size": SIZE.to_string(), "numberOfReplicas": replicas, "dataEngine": "v2", "frontend": "nbd", "nodeID": "node-1",
    })
}

async fn nodes_of(storage: &Storage, volume: &str) -> anyhow::Result<Vec<String>> {
    let replicas: Api<Replica> = Api::namespaced(storage.client.clone(), NAMESPACE);
    let all = replicas.list(&ListParams::default().labels(&format!("longhornvolume={volume}"))).await?;
    let mut nodes: Vec<String> =
        all.iter().map(|replica| replica.spec.instance.node_id.to_string()).collect();
    nodes.sort();
    Ok(nodes)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_all_of_whose_replicas_failed_serves_again_with_all_of_its_data() {
    let mut storage = Storage::start(2, DataEngine::V2).await.unwrap();
    storage.create_volume("vol-1", spec(2)).await.unwrap();
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    let endpoint = storage.endpoint("vol-1").await.unwrap();
    run("qemu-io", &["-f", "raw", "-c", "write -P 0x5a 1M 64k", "-c", "flush", &endpoint]).await.unwrap();
    for node in ["node-1", "node-2"] {
        storage.kill_manager(node).await.unwrap();
    }
    storage.until_volume("vol-1", "attached", "faulted").await.unwrap();
    let waits = storage.volumes().get("vol-1").await.unwrap().status.unwrap_or_default();
    assert!(waits.conditions.get("Settled").is_some_and(|settled| !settled.message.is_empty()), "{waits:?}");
    for number in [1, 2] {
        storage.restart_manager(number).await.unwrap();
    }
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    run("qemu-io", &["-f", "raw", "-c", "read -P 0x5a 1M 64k", &endpoint]).await.unwrap();
    storage.stop().await;
}

/// Until the condition `Settled` of a volume says something.
async fn until_told(storage: &Storage, volume: &str, what: &str) {
    let says = async || {
        let settled = status(storage, volume).await?.conditions.get("Settled").cloned();
        Ok(settled.filter(|settled| settled.message.as_str().contains(what)).map(drop))
    };
    storage.until(what, says).await.expect("it is told");
}

/// How many replicas are being rebuilt, all of them looked at in the same moment.
async fn rebuilt(storage: &Storage) -> anyhow::Result<usize> {
    let records: Api<VolumeRecord> = Api::namespaced(storage.client.clone(), NAMESPACE);
    let all = records.list(&ListParams::default()).await?;
    let members = all.iter().flat_map(|record| &record.spec.members);
    Ok(members.filter(|member| member.mode == MemberMode::WriteOnly).count())
}

/// What they miss takes half a minute to copy, so that one would be seen that does not wait for the other.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_are_rebuilt_as_the_limit_lets_them() {
    let mut storage = Storage::start(2, DataEngine::V2).await.unwrap();
    for volume in ["vol-1", "vol-2"] {
        let mut spec = spec(2);
        spec["size"] = (32 << 20).to_string().into();
        spec["replicaRebuildingBandwidthLimit"] = 1.into();
        storage.create_volume(volume, spec).await.unwrap();
        storage.until_volume(volume, "attached", "healthy").await.unwrap();
    }
    storage.set("concurrent-replica-rebuild-per-node-limit", "0").await.unwrap();
    storage.kill_manager("node-2").await.unwrap();
    for volume in ["vol-1", "vol-2"] {
        storage.until_volume(volume, "attached", "degraded").await.unwrap();
        let endpoint = storage.endpoint(volume).await.unwrap();
        run("qemu-io", &["-f", "raw", "-c", "write -P 0x5a 0 32M", "-c", "flush", &endpoint]).await.unwrap();
    }
    storage.restart_manager(2).await.unwrap();
    let replicas: Api<Replica> = Api::namespaced(storage.client.clone(), NAMESPACE);
    let held = async |many: usize, why: &str| {
        let all = replicas.list(&ListParams::default()).await?;
        let waits = all.iter().filter(|replica| {
            let status = replica.status.as_ref();
            let condition = status.and_then(|status| status.instance.conditions.get("RebuildPermitted"));
            condition.is_some_and(|condition| condition.message.as_str().contains(why))
        });
        anyhow::Ok((waits.count() == many).then_some(()))
    };
    let both = async || held(2, "limit is 0").await;
    storage.until("both are back, and told to wait", both).await.unwrap();
    for volume in ["vol-1", "vol-2"] {
        until_told(&storage, volume, "concurrent-replica-rebuild-per-node-limit is 0").await;
    }
    assert_eq!(rebuilt(&storage).await.unwrap(), 0);
    storage.set("concurrent-replica-rebuild-per-node-limit", "1").await.unwrap();
    let one = async || held(1, "lets it: 1").await;
    storage.until("one of them is told to wait for the other", one).await.unwrap();
    let begun = async || Ok((rebuilt(&storage).await? == 1).then_some(()));
    storage.until("the other is rebuilt", begun).await.unwrap();
    // So fast that it ends soon, and so slow that two at once would be seen.
    storage.change_volume("vol-1", json!({ "replicaRebuildingBandwidthLimit": 8 })).await.unwrap();
    storage.change_volume("vol-2", json!({ "replicaRebuildingBandwidthLimit": 8 })).await.unwrap();
    let whole = async || {
        let rebuilt = rebuilt(&storage).await?;
        anyhow::ensure!(rebuilt <= 1, "{rebuilt} at once");
        let mut all = Vec::new();
        for volume in ["vol-1", "vol-2"] {
            all.push(status(&storage, volume).await?.robustness.as_str().to_owned());
        }
        anyhow::Ok((all == ["healthy", "healthy"]).then_some(()))
    };
    storage.until("both are whole, one after the other", whole).await.unwrap();
    storage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_all_of_whose_replicas_failed_stays_faulted_where_nobody_salvages_it() {
    let mut storage = Storage::start(2, DataEngine::V2).await.unwrap();
    storage.set("auto-salvage", "false").await.unwrap();
    storage.create_volume("vol-1", spec(2)).await.unwrap();
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    for node in ["node-1", "node-2"] {
        storage.kill_manager(node).await.unwrap();
    }
    storage.until_volume("vol-1", "attached", "faulted").await.unwrap();
    for number in [1, 2] {
        storage.restart_manager(number).await.unwrap();
    }
    until_told(&storage, "vol-1", "the setting auto-salvage is false").await;
    assert_eq!(status(&storage, "vol-1").await.unwrap().robustness.as_str(), "faulted");
    let replicas: Api<Replica> = Api::namespaced(storage.client.clone(), NAMESPACE);
    let any = replicas.list(&ListParams::default()).await.unwrap().iter().next().unwrap().name_any();
    let ask = Patch::Merge(json!({ "spec": { "salvageRequested": true } }));
    replicas.patch(&any, &PatchParams::default(), &ask).await.unwrap();
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    let forgotten = async || {
        let replica = replicas.get(&any).await?;
        Ok((!replica.spec.instance.salvage_requested).then_some(()))
    };
    storage.until("the wish is forgotten", forgotten).await.unwrap();
    storage.stop().await;
}

/// The copy that has all data is lost for good; the other left before the last write.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_copy_serves_when_somebody_asks_for_it() {
    let mut storage = Storage::start(2, DataEngine::V2).await.unwrap();
    storage.create_volume("vol-1", spec(2)).await.unwrap();
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    let write = async |storage: &Storage, byte: &str| {
        let (endpoint, write) = (storage.endpoint("vol-1").await.unwrap(), format!("write -P {byte} 1M 64k"));
        run("qemu-io", &["-f", "raw", "-c", &write, "-c", "flush", &endpoint]).await.unwrap();
    };
    write(&storage, "0x11").await;
    storage.take_snapshot("vol-1", "monday").await.unwrap();
    storage.kill_manager("node-2").await.unwrap();
    storage.until_volume("vol-1", "attached", "degraded").await.unwrap();
    write(&storage, "0x22").await;
    storage.change_volume("vol-1", json!({ "nodeID": "" })).await.unwrap();
    storage.until_volume("vol-1", "detached", "unknown").await.unwrap();
    storage.kill_manager("node-1").await.unwrap();
    storage.restart_manager(2).await.unwrap();
    storage.change_volume("vol-1", json!({ "nodeID": "node-2" })).await.unwrap();
    until_told(&storage, "vol-1", "spec.salvageRequested").await;

    let replicas: Api<Replica> = Api::namespaced(storage.client.clone(), NAMESPACE);
    let all = replicas.list(&ListParams::default()).await.unwrap();
    let older = all.iter().find(|replica| replica.spec.instance.node_id == "node-2").unwrap().name_any();
    let ask = Patch::Merge(json!({ "spec": { "salvageRequested": true } }));
    replicas.patch(&older, &PatchParams::default(), &ask).await.unwrap();
    storage.until_volume("vol-1", "attached", "degraded").await.unwrap();
    let holds = async |storage: &Storage| {
        let endpoint = storage.endpoint("vol-1").await.unwrap();
        run("qemu-io", &["-f", "raw", "-c", "read -P 0x11 1M 64k", &endpoint]).await.unwrap();
    };
    holds(&storage).await;
    let records: Api<VolumeRecord> = Api::namespaced(storage.client.clone(), NAMESPACE);
    let done = async || {
        let is_asked = replicas.get(&older).await?.spec.instance.salvage_requested;
        let is_noted = !records.get("vol-1").await?.spec.salvaged.is_empty();
        Ok((!is_asked && !is_noted).then_some(()))
    };
    storage.until("the request is done and forgotten", done).await.unwrap();
    assert!(!told(&storage, "vol-1", "Salvaged").await.unwrap().is_empty());

    // What comes back of the other is not used: it is made anew from what serves.
    storage.restart_manager(1).await.unwrap();
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    storage.kill_manager("node-2").await.unwrap();
    storage.change_volume("vol-1", json!({ "nodeID": "" })).await.unwrap();
    storage.set_ready("node-2", false).await.unwrap();
    storage.until_volume("vol-1", "detached", "unknown").await.unwrap();
    storage.change_volume("vol-1", json!({ "nodeID": "node-1" })).await.unwrap();
    storage.until_volume("vol-1", "attached", "degraded").await.unwrap();
    holds(&storage).await;
    storage.stop().await;
}

/// The frontend of a node outlives its instance manager, and has a volume until somebody tells it otherwise.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_was_detached_without_its_instance_manager_serves_there_again() {
    let mut storage = Storage::start(1, DataEngine::V2).await.unwrap();
    storage.create_volume("vol-1", spec(1)).await.unwrap();
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    let endpoint = storage.endpoint("vol-1").await.unwrap();
    run("qemu-io", &["-f", "raw", "-c", "write -P 0x5a 1M 64k", "-c", "flush", &endpoint]).await.unwrap();

    for is_node_lost in [false, true] {
        storage.kill_manager("node-1").await.unwrap();
        storage.set_ready("node-1", !is_node_lost).await.unwrap();
        storage.change_volume("vol-1", json!({ "nodeID": "" })).await.unwrap();
        if is_node_lost {
            storage.until_volume("vol-1", "detached", "unknown").await.unwrap();
            storage.set_ready("node-1", true).await.unwrap();
        } else {
            let says = async || {
                let waits = status(&storage, "vol-1").await?;
                let settled = waits.conditions.get("Settled").map(|settled| settled.message.to_string());
                Ok(settled.filter(|why| why.starts_with("node node-1 has no running instance manager")))
            };
            storage.until("it says that its frontend cannot be told", says).await.unwrap();
        }
        storage.restart_manager(1).await.unwrap();
        storage.until_volume("vol-1", "detached", "unknown").await.unwrap();
        storage.change_volume("vol-1", json!({ "nodeID": "node-1" })).await.unwrap();
        storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
        let endpoint = storage.endpoint("vol-1").await.unwrap();
        let read = ["10", "qemu-io", "-f", "raw", "-c", "read -P 0x5a 1M 64k", &endpoint];
        let read = run("timeout", &read).await;
        read.unwrap_or_else(|error| panic!("node lost: {is_node_lost}: {error:#}\n{}", storage.logs()));
    }
    storage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_detached_volume_is_rebuilt_where_that_is_wanted() {
    let mut storage = Storage::start(2, DataEngine::V2).await.unwrap();
    storage.create_volume("vol-1", spec(2)).await.unwrap();
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    storage.kill_manager("node-2").await.unwrap();
    storage.until_volume("vol-1", "attached", "degraded").await.unwrap();
    let endpoint = storage.endpoint("vol-1").await.unwrap();
    run("qemu-io", &["-f", "raw", "-c", "write -P 0x5a 1M 64k", "-c", "flush", &endpoint]).await.unwrap();
    storage.change_volume("vol-1", json!({ "nodeID": "" })).await.unwrap();
    storage.until_volume("vol-1", "detached", "unknown").await.unwrap();
    storage.restart_manager(2).await.unwrap();

    storage.change_volume("vol-1", json!({ "offlineRebuilding": "enabled" })).await.unwrap();
    let records: Api<VolumeRecord> = Api::namespaced(storage.client.clone(), NAMESPACE);
    let rebuilt = async || {
        let record = records.get("vol-1").await?.spec;
        let whole = record.members.iter().filter(|member| member.mode == MemberMode::ReadWrite).count();
        Ok((whole == 2 && record.frontend.is_none()).then_some(()))
    };
    storage.until("the second replica is rebuilt and the volume is let go", rebuilt).await.unwrap();
    storage.until_volume("vol-1", "detached", "unknown").await.unwrap();

    storage.kill_manager("node-1").await.unwrap();
    storage.change_volume("vol-1", json!({ "nodeID": "node-2" })).await.unwrap();
    storage.until_volume("vol-1", "attached", "degraded").await.unwrap();
    let endpoint = storage.endpoint("vol-1").await.unwrap();
    run("qemu-io", &["-f", "raw", "-c", "read -P 0x5a 1M 64k", &endpoint]).await.unwrap();
    storage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_leave_a_node_that_is_emptied_while_the_volume_serves() {
    let storage = Storage::start(3, DataEngine::V2).await.unwrap();
    storage.create_volume("vol-1", spec(2)).await.unwrap();
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    let before = nodes_of(&storage, "vol-1").await.unwrap();
    let leaves = before.iter().find(|node| *node != "node-1").unwrap();
    let load = Load::on(&storage.endpoint("vol-1").await.unwrap(), "vol-1", 1).unwrap();
    let nodes: Api<Node> = Api::namespaced(storage.client.clone(), NAMESPACE);
    let empty = Patch::Merge(json!({ "spec": { "evictionRequested": true, "allowScheduling": false } }));
    nodes.patch(leaves, &PatchParams::default(), &empty).await.unwrap();
    let left = async || {
        let now = nodes_of(&storage, "vol-1").await?;
        Ok((now.len() == 2 && !now.contains(leaves)).then_some(()))
    };
    storage.until("the replica has gone to another node", left).await.unwrap();
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    load.judge().await.unwrap();
    storage.stop().await;
}

/// A small disk in place of a folder; taken away when dropped.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    async fn at(folder: &'a Path, size: &str) -> anyhow::Result<SmallDisk<'a>> {
        std::fs::create_dir_all(folder)?;
        let place = folder.display().to_string();
        run("mount", &["-t", "tmpfs", "-o", &format!("size={size}"), "none", &place]).await?;
        Ok(SmallDisk(folder))
    }

    async fn grow(&self, size: &str) -> anyhow::Result<()> {
        run("mount", &["-o", &format!("remount,size={size}"), &self.0.display().to_string()]).await.map(drop)
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        // A folder that is left behind says enough.
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_serves_on_when_a_disk_is_full_and_heals_when_there_is_room() {
    let storage = Storage::start(2, DataEngine::V2).await.unwrap();
    let folder = storage.room("node-2").join("replicas");
    let disk = SmallDisk::at(&folder, "5m").await.unwrap();
    storage.create_volume("vol-1", spec(2)).await.unwrap();
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    let endpoint = storage.endpoint("vol-1").await.unwrap();
    run("qemu-io", &["-f", "raw", "-c", "write -P 0x5a 0 8M", "-c", "flush", &endpoint]).await.unwrap();
    storage.until_volume("vol-1", "attached", "degraded").await.unwrap();
    run("qemu-io", &["-f", "raw", "-c", "read -P 0x5a 0 8M", &endpoint]).await.unwrap();
    disk.grow("64m").await.unwrap();
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    run("qemu-io", &["-f", "raw", "-c", "read -P 0x5a 0 8M", &endpoint]).await.unwrap();
    storage.stop().await;
}

/// Waits until the condition Settled of a volume says this, and people were told so.
async fn until_unsettled(storage: &Storage, volume: &str, reason: &str, message: &str) {
    let says = async || {
        let conditions = status(storage, volume).await?.conditions;
        let says = conditions.get("Settled").filter(|settled| settled.reason == reason);
        let is_so = says.is_some_and(|settled| settled.message.as_str().contains(message));
        let notes = told(storage, volume, reason).await?;
        Ok((is_so && notes.iter().any(|note| note.contains(message))).then_some(()))
    };
    storage.until(&format!("{volume} says {reason}: {message}"), says).await.expect("it is said");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_whose_image_is_on_no_node_says_so_and_takes_another() {
    const TYPO: &str = "midflight.local/engine:tihs";
    let storage = Storage::of_two_builds().await.unwrap();
    let mut spec = spec(2);
    (spec["dataEngine"], spec["image"]) = ("v1".into(), TYPO.into());
    storage.create_volume("vol-1", spec).await.unwrap();
    until_unsettled(&storage, "vol-1", "NoEngineImage", TYPO).await;
    storage.change_volume("vol-1", json!({ "image": THIS })).await.unwrap();
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    runs(&storage, "vol-1", THIS).await.unwrap();
    let settled = async || Ok(status(&storage, "vol-1").await?.conditions.holds("Settled").then_some(()));
    storage.until("nothing is refused any more", settled).await.unwrap();
    storage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_instance_manager_refuses_is_told_until_it_is_done() {
    const GONE: &str = "midflight.local/engine:gone";
    let storage = Storage::of_two_builds().await.unwrap();
    let program = Program::this().unwrap();
    storage.add_image(GONE, &program, 3).await.unwrap();
    let binary = storage.room("engine-binaries").join(engine_image::binary(&GONE.into()));
    std::fs::remove_file(&binary).unwrap();
    let mut spec = spec(2);
    (spec["dataEngine"], spec["image"]) = ("v1".into(), GONE.into());
    storage.create_volume("vol-1", spec).await.unwrap();
    until_unsettled(&storage, "vol-1", "Refused", "start replica vol-1-r-").await;
    program.put(&binary).unwrap();
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    let settled = async || Ok(status(&storage, "vol-1").await?.conditions.holds("Settled").then_some(()));
    storage.until("it is settled", settled).await.unwrap();
    storage.stop().await;
}
