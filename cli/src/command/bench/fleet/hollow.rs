//! Volumes without engines, and the engines that only change their status.

use std::time::Duration;

use anyhow::Context;
use futures::{StreamExt, TryStreamExt, stream};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, Resource, ResourceExt};
use midflight_api::VolumeRecord;
use midflight_api::longhorn::{Engine, EngineImage, NAMESPACE, Replica, Setting, Volume};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;

const OLD: &str = "midflight.local/engine:old";
pub(super) const NEW: &str = "midflight.local/engine:new";
/// Writes under way at once while the fleet is made.
const AT_ONCE: usize = 64;
/// After how long an engine tells again what the server refused to hear.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// Makes the images and the volumes, half of them attached, all of the old image.
pub(super) async fn prepare(client: &Client, nodes: u32, volumes: u32) -> anyhow::Result<()> {
    let map: Map<String, Value> = (0..nodes).map(|node| (name_of(node), json!(true))).collect();
    for (name, image) in [("ei-old", OLD), ("ei-new", NEW)] {
        let status = json!({ "state": "deployed", "gitCommit": name, "controllerAPIVersion": 1,
            "controllerAPIMinVersion": 1, "nodeDeploymentMap": map });
        make::<EngineImage>(client, name, json!({ "image": image }), Some(status)).await?;
    }
    let settings: Api<Setting> = Api::namespaced(client.clone(), NAMESPACE);
    let default = Patch::Merge(json!({ "value": NEW }));
    settings
        .patch("default-engine-image", &PatchParams::default(), &default)
        .await
        .context("set the image")?;
    let made = stream::iter(0..volumes).map(|number| volume(client, number, name_of(number % nodes)));
    made.buffer_unordered(AT_ONCE).try_collect::<()>().await
}

pub(super) fn name_of(node: u32) -> String {
    format!("node-{node}")
}

async fn volume(client: &Client, number: u32, node: String) -> anyhow::Result<()> {
    let name = format!("vol-{number}");
    let status = match number % 2 {
        0 => json!({ "state": "detached", "robustness": "unknown", "ownerID": node, "currentImage": OLD }),
        _ => {
            json!({ "state": "attached", "robustness": "healthy", "ownerID": node, "currentNodeID": node, "currentImage": OLD })
        }
    };
    let replica = json!({ "volumeName": name, "nodeID": node });
    make::<Replica>(client, &format!("{name}-r"), replica, None).await?;
    let spec = json!({ "size": "1073741824", "numberOfReplicas": 1, "image": OLD });
    make::<Volume>(client, &name, spec, Some(status)).await
}

/// A detached volume with all that it consists of, which no controller has looked at.
pub(super) async fn at_rest(client: &Client, number: u32, node: String) -> anyhow::Result<()> {
    let (name, size) = (format!("vol-{number}"), "1073741824");
    let (engine, replica) = (format!("{name}-e-0"), format!("{name}-r-0"));
    let instance =
        |node: &str| json!({ "volumeName": name, "volumeSize": size, "nodeID": node, "image": OLD });
    make::<Replica>(client, &replica, instance(&node), None).await?;
    let current = json!({ "currentSize": size });
    make::<Engine>(client, &engine, instance(""), Some(current)).await?;
    let members = json!([{ "replica": replica, "nodeID": node, "mode": "rw" }]);
    make::<VolumeRecord>(client, &name, json!({ "term": 0, "memberVersion": 1, "members": members }), None)
        .await?;
    let spec = json!({ "size": size, "numberOfReplicas": 1, "image": OLD });
    make::<Volume>(client, &name, spec, None).await
}

async fn make<K>(client: &Client, name: &str, spec: Value, status: Option<Value>) -> anyhow::Result<()>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    K: Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(client.clone(), NAMESPACE);
    let making = || format!("make {} {name}", K::kind(&()));
    let (version, kind) = (K::api_version(&()), K::kind(&()));
    let object = json!({ "apiVersion": version, "kind": kind, "metadata": { "name": name }, "spec": spec });
    let object = serde_json::from_value(object).with_context(making)?;
    api.create(&PostParams::default(), &object).await.with_context(making)?;
    if let Some(status) = status {
        let status = Patch::Merge(json!({ "status": status }));
        api.patch_status(name, &PatchParams::default(), &status).await.with_context(making)?;
    }
    Ok(())
}

/// Brings each volume to the image it wants, so much later, until it is dropped.
pub(super) async fn engines(client: Client, takes: Duration) {
    let volumes: Api<Volume> = Api::namespaced(client, NAMESPACE);
    let mut changed =
        watcher(volumes.clone(), watcher::Config::default()).default_backoff().applied_objects().boxed();
    let mut engines = JoinSet::new();
    loop {
        tokio::select! {
            Some(Ok(volume)) = changed.next() => if volume.is_upgrading() {
                engines.spawn(upgrade(volumes.clone(), volume, takes));
            },
            Some(_) = engines.join_next() => {}
        }
    }
}

/// Ends when it is known: a server that is asked for too much at once refuses some, and the figures show how late that makes them.
async fn upgrade(volumes: Api<Volume>, volume: Volume, takes: Duration) {
    tokio::time::sleep(takes).await;
    let image = Patch::Merge(json!({ "status": { "currentImage": volume.spec.image } }));
    loop {
        match volumes.patch_status(&volume.name_any(), &PatchParams::default(), &image).await {
            Ok(_) => return,
            Err(kube::Error::Api(status)) if status.is_not_found() => return,
            Err(_) => tokio::time::sleep(ASK_AGAIN).await,
        }
    }
}
