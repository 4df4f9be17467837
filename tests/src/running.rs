//! What volumes of the v1 data engine run, as their objects and their instance managers say.
//!
//! The one invariant: a volume runs an image only if every process and every object of it says so.

use std::collections::BTreeSet;

use anyhow::Context;
use k8s_openapi::api::core::v1::Event;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use midflight_api::Attempt;
use midflight_api::longhorn::{
    Engine, EngineChange, EngineImage, InstanceManager, NAMESPACE, Replica, VolumeStatus,
};
use midflight_plan::storage::engine_image;
use serde_json::json;

use crate::storage::Storage;

const SIZE: u64 = 4 << 20;

/// Makes a volume of three replicas and attaches it to the first node; says where clients find it.
pub async fn attached(storage: &Storage, name: &str) -> anyhow::Result<String> {
    let spec = json!({
        "size": SIZE.to_string(), "numberOfReplicas": 3, "dataEngine": "v1", "frontend": "nbd", "nodeID": "node-1",
    });
    storage.create_volume(name, spec).await?;
    storage.until_volume(name, "attached", "healthy").await?;
    storage.endpoint(name).await
}

/// The same, attached to no node.
pub async fn detached(storage: &Storage, name: &str) -> anyhow::Result<()> {
    let spec =
        json!({ "size": SIZE.to_string(), "numberOfReplicas": 3, "dataEngine": "v1", "frontend": "nbd" });
    storage.create_volume(name, spec).await?;
    storage.until_volume(name, "detached", "unknown").await
}

pub async fn status(storage: &Storage, name: &str) -> anyhow::Result<VolumeStatus> {
    Ok(storage.volumes().get(name).await?.status.unwrap_or_default())
}

/// Waits until the last change of the volume's engine stands so.
pub async fn until_change(storage: &Storage, name: &str, state: &str) -> anyhow::Result<EngineChange> {
    let what = format!("the change of {name} is {state}");
    let reached = async || {
        let change = status(storage, name).await?.engine_change;
        Ok((change.state.as_str() == state).then_some(change))
    };
    let reached = storage.until(&what, reached).await;
    let now = status(storage, name).await?;
    reached.with_context(|| format!("{now:#?}\n{}", storage.logs()))
}

/// The programs that engines and replicas of a volume are processes of, each once.
async fn programs(storage: &Storage, volume: &str) -> anyhow::Result<BTreeSet<String>> {
    let managers: Api<InstanceManager> = Api::namespaced(storage.client.clone(), NAMESPACE);
    let statuses =
        managers.list(&ListParams::default()).await?.into_iter().filter_map(|manager| manager.status);
    let processes =
        statuses.flat_map(|status| status.instance_engines.into_iter().chain(status.instance_replicas));
    let ours = processes.filter(|(name, _)| name.starts_with(&format!("{volume}-")));
    Ok(ours.map(|(_, process)| process.spec.binary.to_string()).collect())
}

/// The images that the objects of a volume say, each once.
async fn images(storage: &Storage, volume: &str) -> anyhow::Result<BTreeSet<String>> {
    let of_volume = ListParams::default().labels(&format!("longhornvolume={volume}"));
    let engines: Api<Engine> = Api::namespaced(storage.client.clone(), NAMESPACE);
    let replicas: Api<Replica> = Api::namespaced(storage.client.clone(), NAMESPACE);
    let mut images = BTreeSet::new();
    for engine in engines.list(&of_volume).await? {
        images.extend([engine.spec.instance.image, engine.status.unwrap_or_default().instance.current_image]);
    }
    for replica in replicas.list(&of_volume).await? {
        images
            .extend([replica.spec.instance.image, replica.status.unwrap_or_default().instance.current_image]);
    }
    Ok(images.into_iter().map(|image| image.to_string()).collect())
}

/// The modes of an attached volume's replicas, each once, and how many there are.
pub async fn modes(storage: &Storage, volume: &str) -> anyhow::Result<(BTreeSet<&'static str>, usize)> {
    let engines: Api<Engine> = Api::namespaced(storage.client.clone(), NAMESPACE);
    let status = engines.get(&format!("{volume}-e-0")).await?.status.unwrap_or_default();
    let modes = status.replica_mode_map.values().map(|mode| mode.as_str()).collect();
    Ok((modes, status.replica_mode_map.len()))
}

/// How many volumes, engines and replicas refer to an image, as its object says.
pub async fn references(storage: &Storage, image: &str) -> anyhow::Result<i32> {
    let images: Api<EngineImage> = Api::namespaced(storage.client.clone(), NAMESPACE);
    let object = images.get(&engine_image::name(&image.into())).await?;
    Ok(object.status.unwrap_or_default().ref_count)
}

/// Waits until so many refer to an image.
pub async fn until_references(storage: &Storage, image: &str, count: i32) -> anyhow::Result<()> {
    let all = async || Ok((references(storage, image).await? == count).then_some(()));
    let reached = storage.until(&format!("{count} refer to {image}"), all).await;
    let now = references(storage, image).await?;
    reached.with_context(|| format!("{now} do"))
}

/// Waits until every one of these volumes says that it runs the image.
pub async fn until_all_run(storage: &Storage, volumes: &[&str], image: &str) -> anyhow::Result<()> {
    let all = async || {
        for volume in volumes {
            if status(storage, volume).await?.current_image != image {
                return Ok(None);
            }
        }
        Ok(Some(()))
    };
    let reached = storage.until(&format!("all of {volumes:?} run {image}"), all).await;
    reached.with_context(|| storage.logs())
}

/// Waits for a turn of the automatic upgrades that comes after all that was written so far: a detached volume that is made with
/// another image than the default moves to that.
pub async fn until_looked(storage: &Storage, witness: &str, from: &str, to: &str) -> anyhow::Result<()> {
    let spec = json!({
        "size": SIZE.to_string(), "numberOfReplicas": 3, "dataEngine": "v1", "frontend": "nbd", "image": from,
    });
    storage.create_volume(witness, spec).await?;
    let moved = async || {
        let volume = storage.volumes().get(witness).await?;
        let attempt = Attempt::of(volume.annotations());
        Ok(attempt.filter(|attempt| attempt.to == to && attempt.from == from))
    };
    storage.until(&format!("{witness} is asked to move to {to}"), moved).await?;
    until_all_run(storage, &[witness], to).await
}

/// Waits until a volume holds a backup, as its engine says.
pub async fn until_holds(storage: &Storage, volume: &str, backup: &str) -> anyhow::Result<()> {
    let engines: Api<Engine> = Api::namespaced(storage.client.clone(), NAMESPACE);
    let holds = async || {
        let engine = engines.get_opt(&format!("{volume}-e-0")).await?;
        let status = engine.and_then(|engine| engine.status).unwrap_or_default();
        Ok((status.last_restored_backup.as_str() == backup).then_some(()))
    };
    let reached = storage.until(&format!("{volume} holds {backup}"), holds).await;
    let now = serde_json::to_string_pretty(&storage.volumes().get(volume).await?)?;
    reached.with_context(|| format!("it is {now}\n{}", storage.logs()))
}

/// The notes of the events of a volume that have this reason.
pub async fn told(storage: &Storage, volume: &str, reason: &str) -> anyhow::Result<Vec<String>> {
    let events: Api<Event> = Api::namespaced(storage.client.clone(), NAMESPACE);
    let of = ListParams::default().fields(&format!("involvedObject.name={volume}"));
    let all = events.list(&of).await?.into_iter().filter(|event| event.reason.as_deref() == Some(reason));
    Ok(all.filter_map(|event| event.message).collect())
}

/// The nodes of a volume's replicas.
pub async fn nodes_of(storage: &Storage, volume: &str) -> anyhow::Result<Vec<String>> {
    let of_volume = ListParams::default().labels(&format!("longhornvolume={volume}"));
    let replicas: Api<Replica> = Api::namespaced(storage.client.clone(), NAMESPACE);
    let all = replicas.list(&of_volume).await?.into_iter();
    Ok(all
        .filter(|replica| replica.metadata.deletion_timestamp.is_none())
        .map(|replica| replica.spec.instance.node_id.to_string())
        .collect())
}

/// Waits until all of an attached volume runs this image, and says so: every process and object, and every replica is in service.
/// Tells the pause of the clients, if it has moved under them.
pub async fn runs(storage: &Storage, volume: &str, image: &str) -> anyhow::Result<()> {
    let program = BTreeSet::from([engine_image::binary(&image.into())]);
    let says = BTreeSet::from([image.to_owned()]);
    let all = async || {
        let agrees = programs(storage, volume).await? == program && images(storage, volume).await? == says;
        let agrees = agrees && modes(storage, volume).await?.0 == BTreeSet::from(["RW"]);
        Ok((agrees && status(storage, volume).await?.current_image == image).then_some(()))
    };
    let reached = storage.until(&format!("all of {volume} runs {image}"), all).await;
    let now =
        (programs(storage, volume).await?, images(storage, volume).await?, modes(storage, volume).await?);
    reached.with_context(|| format!("{volume} is {now:?}"))?;
    tell_pause(volume, image, &status(storage, volume).await?.engine_change);
    Ok(())
}

#[expect(clippy::print_stderr, reason = "the pause of each volume is what people want to know")]
fn tell_pause(volume: &str, image: &str, change: &EngineChange) {
    if change.image == image && change.pause_us > 0 {
        let EngineChange { pause_us, longest_wait_us, replayed, .. } = change;
        eprintln!(
            "{volume} to {image}: paused {pause_us} us, longest request {longest_wait_us} us, {replayed} sent again"
        );
    }
}
