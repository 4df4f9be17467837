//! What volumes of the v1 data engine run, as their objects and their instance managers say.
//!
//! The one invariant: a volume runs an image only if every process and every object of it says so.

use std::collections::BTreeSet;

use anyhow::Context;
use kube::api::{Api, ListParams};
use midflight_api::longhorn::{Engine, EngineChange, InstanceManager, NAMESPACE, Replica, VolumeStatus};
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

/// Waits until all of an attached volume runs this image, and says so.
pub async fn runs(storage: &Storage, volume: &str, image: &str) -> anyhow::Result<()> {
    let program = BTreeSet::from([engine_image::binary(&image.into())]);
    let says = BTreeSet::from([image.to_owned()]);
    let all = async || {
        let agrees = programs(storage, volume).await? == program && images(storage, volume).await? == says;
        Ok((agrees && status(storage, volume).await?.current_image == image).then_some(()))
    };
    let reached = storage.until(&format!("all of {volume} runs {image}"), all).await;
    let now = (programs(storage, volume).await?, images(storage, volume).await?);
    reached.with_context(|| format!("{volume} is {now:?}"))
}
