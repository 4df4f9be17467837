//! What may be deleted.
//!
//! The invariant: a namespace that is on its way out gets rid of everything in it, of the records of volumes after the volumes, and of
//! the Secret of the instance managers after those who take and cause orders.

use k8s_openapi::api::core::v1 as core;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use midflight_api::longhorn::{EngineImage, InstanceManager, NAMESPACE, Node, Replica, Setting, Volume};
use midflight_api::{NodeName, VolumeRecord};
use midflight_plan::storage::engine_image;
use midflight_plan::storage::guard::{self, Needed};
use midflight_plan::storage::node as storage;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Verdict;

pub(super) async fn of_engine_image(object: &Value, client: &Client) -> Verdict {
    let image: EngineImage = read(object)?;
    let settings: Api<Setting> = Api::namespaced(client.clone(), NAMESPACE);
    let default = settings.get_opt("default-engine-image").await?.map(|setting| setting.value);
    let references = image.status.map_or(0, |status| status.ref_count);
    let verdict = engine_image::may_go(&image.spec.image, &default.unwrap_or_default(), references);
    unless_all_goes(verdict.map_err(|needed| needed.to_string()), client).await
}

pub(super) async fn of_setting(object: &Value, client: &Client) -> Verdict {
    let setting: Setting = read(object)?;
    let verdict = guard::setting_may_go(&setting.name_any());
    unless_all_goes(verdict.map_err(|needed| needed.to_string()), client).await
}

/// The record stays as long as there is a volume, also one that is being deleted: its controller needs it for that.
pub(super) async fn of_record(object: &Value, client: &Client) -> Verdict {
    let record: VolumeRecord = read(object)?;
    let volume = record.name_any();
    let volumes: Api<Volume> = Api::namespaced(client.clone(), NAMESPACE);
    let is_there = volumes.get_opt(&volume).await?.is_some();
    Ok(if is_there { Err(Needed::Record { volume }.to_string()) } else { Ok(()) })
}

/// A node of storage stays while it holds or serves something, and as long as there is one of Kubernetes: it would come back
/// at once, without what was said of it.
pub(super) async fn of_node(object: &Value, client: &Client) -> Verdict {
    let node = NodeName::from(read::<Node>(object)?.name_any());
    let replicas: Api<Replica> = Api::namespaced(client.clone(), NAMESPACE);
    let volumes: Api<Volume> = Api::namespaced(client.clone(), NAMESPACE);
    let machines: Api<core::Node> = Api::all(client.clone());
    let all = ListParams::default();
    let (replicas, volumes, machine) =
        tokio::try_join!(replicas.list(&all), volumes.list(&all), machines.get_opt(node.as_str()))?;
    let replicas = replicas.iter().filter(|replica| replica.spec.instance.node_id == node);
    let volumes = volumes.iter().filter(|volume| is_served(volume, &node));
    let (replicas, volumes) =
        (replicas.map(ResourceExt::name_any).collect(), volumes.map(ResourceExt::name_any).collect());
    let verdict = match storage::may_go(&node, replicas, volumes) {
        Err(in_use) => Err(in_use.to_string()),
        Ok(()) if machine.is_some() => Err(Needed::Node { node: node.to_string() }.to_string()),
        Ok(()) => Ok(()),
    };
    unless_all_goes(verdict, client).await
}

fn is_served(volume: &Volume, node: &NodeName) -> bool {
    let status = volume.status.as_ref();
    let now = status.map(|status| [&status.current_node_id, &status.current_target_node_id]);
    let asked = [&volume.spec.node_id, &volume.spec.target_node_id];
    asked.into_iter().chain(now.into_iter().flatten()).any(|at| at == node)
}

/// Of the Secret that orders to instance managers carry.
pub(super) async fn of_secret(client: &Client) -> Verdict {
    let volumes: Api<Volume> = Api::namespaced(client.clone(), NAMESPACE);
    let managers: Api<InstanceManager> = Api::namespaced(client.clone(), NAMESPACE);
    let all = ListParams::default();
    let (volumes, managers) = tokio::try_join!(volumes.list(&all), managers.list(&all))?;
    let verdict = guard::secret_may_go(volumes.items.len(), managers.items.len());
    Ok(verdict.map_err(|needed| needed.to_string()))
}

pub(super) async fn of_namespace(client: &Client) -> Verdict {
    let volumes: Api<Volume> = Api::namespaced(client.clone(), NAMESPACE);
    let volumes = volumes.list(&ListParams::default()).await?.items;
    Ok(guard::namespace_may_go(&volumes).map_err(|needed| needed.to_string()))
}

async fn unless_all_goes(verdict: Result<(), String>, client: &Client) -> Verdict {
    if verdict.is_ok() {
        return Ok(verdict);
    }
    let namespaces: Api<core::Namespace> = Api::all(client.clone());
    let namespace = namespaces.get_opt(NAMESPACE).await?;
    let ends = namespace.is_none_or(|namespace| namespace.metadata.deletion_timestamp.is_some());
    Ok(if ends { Ok(()) } else { verdict })
}

fn read<K: DeserializeOwned>(object: &Value) -> Result<K, kube::Error> {
    serde_json::from_value(object.clone()).map_err(kube::Error::SerdeError)
}
