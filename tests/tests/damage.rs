//! A copy on which a disk has changed something: whoever looks at the objects is told, and it heals while another copy has
//! what was lost.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::os::unix::fs::FileExt;
use std::path::Path;

use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, ListParams};
use midflight_api::longhorn::{Condition, ConditionStatus, Conditions, DataEngine, NAMESPACE, Replica};
use midflight_tests::storage::{Program, Storage, run};
use serde_json::json;

const SIZE: u64 = 4 << 20;
const IMAGE: &str = "midflight.local/engine:one";
const INTACT: &str = "DataIntact";

/// A volume of so many copies with a snapshot, whose blocks all have checksums now.
async fn with_snapshot(engine: DataEngine, replicas: u8) -> Storage {
    let storage = Storage::start(replicas, engine).await.unwrap();
    if engine == DataEngine::V1 {
        storage.add_image(IMAGE, &Program::this().unwrap(), 1).await.unwrap();
        storage.set("default-engine-image", IMAGE).await.unwrap();
    }
    let spec = json!({
        "size": SIZE.to_string(), "numberOfReplicas": replicas, "dataEngine": engine, "frontend": "nbd",
        "nodeID": "node-1",
    });
    storage.create_volume("vol-1", spec).await.unwrap();
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    let endpoint = storage.endpoint("vol-1").await.unwrap();
    run("qemu-io", &["-f", "raw", "-c", "write -P 0x11 0 1M", "-c", "flush", &endpoint]).await.unwrap();
    storage.take_snapshot("vol-1", "monday").await.unwrap();
    for replica in replicas_of(&storage).await {
        let chain = copy(&storage, &replica).join("layers");
        let sealed = async || {
            let text = String::from_utf8_lossy(&std::fs::read(&chain)?).into_owned();
            Ok(text.contains(r#""state":"sealed""#).then_some(()))
        };
        storage.until("what was kept has checksums", sealed).await.unwrap();
    }
    storage
}

fn replicas(storage: &Storage) -> Api<Replica> {
    Api::namespaced(storage.client.clone(), NAMESPACE)
}

async fn replicas_of(storage: &Storage) -> Vec<Replica> {
    replicas(storage).list(&ListParams::default()).await.unwrap().items
}

fn name(replica: &Replica) -> String {
    replica.metadata.name.clone().unwrap()
}

/// The folder of a copy.
fn copy(storage: &Storage, replica: &Replica) -> std::path::PathBuf {
    storage.room(replica.spec.instance.node_id.as_str()).join("replicas").join(name(replica))
}

/// Changes a byte of what a copy keeps of the first snapshot.
fn damage(folder: &Path) {
    let image = folder.join("layer-0000000000000000.img");
    let image = std::fs::OpenOptions::new().write(true).open(image).unwrap();
    image.write_all_at(&[8], 100).unwrap();
}

fn intact(conditions: &Conditions) -> Option<Condition> {
    conditions.get(INTACT).cloned()
}

async fn of_volume(storage: &Storage) -> Option<Condition> {
    intact(&storage.volumes().get("vol-1").await.unwrap().status.unwrap_or_default().conditions)
}

/// What was told about the volume, for one reason.
async fn told(storage: &Storage, reason: &str) -> Vec<String> {
    let events: Api<Event> = Api::namespaced(storage.client.clone(), NAMESPACE);
    let all = events.list(&ListParams::default()).await.unwrap();
    let about = all.iter().filter(|event| event.involved_object.name.as_deref() == Some("vol-1"));
    let so = about.filter(|event| event.reason.as_deref() == Some(reason));
    so.filter_map(|event| event.message.clone()).collect()
}

async fn a_damaged_copy_is_told_of_and_heals(engine: DataEngine) {
    let storage = with_snapshot(engine, 3).await;
    assert_eq!(of_volume(&storage).await, None, "of what was never damaged nothing is said");
    let all = replicas_of(&storage).await;
    damage(&copy(&storage, &all[1]));
    let repaired = async || {
        let replica = replicas(&storage).get(&name(&all[1])).await?;
        let conditions = replica.status.unwrap_or_default().instance.conditions;
        Ok(intact(&conditions).filter(|condition| condition.status == ConditionStatus::True))
    };
    let repaired = storage.until("the copy was repaired", repaired).await;
    let repaired = repaired.map_err(|error| error.context(storage.logs())).unwrap();
    assert_eq!(repaired.reason, "Repaired");
    let what = "what it keeps of snapshot monday is damaged";
    assert!(repaired.message.as_str().ends_with(what), "{}", repaired.message);
    let healed = async || Ok(of_volume(&storage).await.filter(|condition| condition.reason == "Repaired"));
    storage.until("the volume says so", healed).await.unwrap();
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    // Events come after what they tell of.
    for (reason, expected) in [
        (
            "ReplicaDamaged",
            format!("replica {}: {what}; it is copied anew from another replica", name(&all[1])),
        ),
        ("Repaired", format!("it is whole again, after this: replica {}: {what}", name(&all[1]))),
    ] {
        let is_told = async || Ok((told(&storage, reason).await == [expected.clone()]).then_some(()));
        storage.until(&format!("an event tells {expected:?}"), is_told).await.unwrap();
    }
    let untouched = replicas(&storage).get(&name(&all[0])).await.unwrap().status.unwrap_or_default();
    assert_eq!(intact(&untouched.instance.conditions), None);

    let endpoint = storage.endpoint("vol-1").await.unwrap();
    run("qemu-io", &["-f", "raw", "-c", "read -P 0x11 0 1M", &endpoint]).await.unwrap();
    storage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_copy_of_the_second_engine_is_told_of_and_heals() {
    Box::pin(a_damaged_copy_is_told_of_and_heals(DataEngine::V2)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_copy_of_the_first_engine_is_told_of_and_heals() {
    Box::pin(a_damaged_copy_is_told_of_and_heals(DataEngine::V1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_only_copy_has_lost_is_told_and_the_rest_is_served() {
    let storage = with_snapshot(DataEngine::V2, 1).await;
    let all = replicas_of(&storage).await;
    damage(&copy(&storage, &all[0]));
    let failed = async || {
        let condition = of_volume(&storage).await;
        Ok(condition.filter(|condition| condition.status == ConditionStatus::False))
    };
    let failed = storage.until("the volume says what is lost", failed).await;
    let failed = failed.map_err(|error| error.context(storage.logs())).unwrap();
    assert_eq!(failed.reason, "ReplicaFailed", "{}", failed.message);
    assert!(failed.message.as_str().contains("clients are told of errors"), "{}", failed.message);
    storage.until_volume("vol-1", "attached", "healthy").await.unwrap();
    let endpoint = storage.endpoint("vol-1").await.unwrap();
    let lost = run("qemu-io", &["-f", "raw", "-c", "read 0 4k", &endpoint]).await;
    assert!(lost.is_err() || lost.as_ref().is_ok_and(|said| said.contains("read failed")), "{lost:?}");
    run("qemu-io", &["-f", "raw", "-c", "read -P 0x11 64k 64k", &endpoint]).await.unwrap();
    let where_ = async || {
        let message = of_volume(&storage).await.map(|condition| condition.message.to_string());
        Ok(message.filter(|message| message.contains("the only copy in service, has failed at byte 0")))
    };
    storage.until("the volume says where a client was told of an error", where_).await.unwrap();
    storage.stop().await;
}
