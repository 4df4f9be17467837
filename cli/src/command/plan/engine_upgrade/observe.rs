//! Reads Longhorn's objects of a cluster, ours or Longhorn's own.
//!
//! The invariant: an API without them is told from a cluster that has none.

use std::collections::BTreeMap;
use std::fmt::Debug;

use anyhow::Context;
use kube::api::{Api, ListParams};
use kube::core::NamespaceResourceScope;
use kube::{Client, Resource, ResourceExt};
use midflight_api::VolumeRecord;
use midflight_api::longhorn::{EngineImage, NAMESPACE, Replica, Setting, VOLUME_LABEL, Volume};
use midflight_plan::engine_upgrade::{self as plan, TakeOver, World};
use serde::de::DeserializeOwned;

use crate::failure::Failure;
use crate::list;
use crate::target::refusal;

/// What holds for all volumes, and the volumes.
pub(crate) async fn cluster(client: &Client) -> anyhow::Result<(World, Vec<plan::Volume>)> {
    let (volumes, replicas, images, settings) = tokio::try_join!(
        all::<Volume>(client),
        all::<Replica>(client),
        all::<EngineImage>(client),
        all::<Setting>(client),
    )?;
    let (world, volumes) = seen(&volumes, &replicas, &images, &settings);
    Ok((World { take_over: take_over(client).await?, ..world }, volumes))
}

/// The same, of objects that were read already.
pub(crate) fn seen(
    volumes: &[Volume],
    replicas: &[Replica],
    images: &[EngineImage],
    settings: &[Setting],
) -> (World, Vec<plan::Volume>) {
    let values: BTreeMap<String, &str> =
        settings.iter().map(|setting| (setting.name_any(), setting.value.as_str())).collect();
    let world = World::of(|name: &str| values.get(name).copied(), images);
    let mut replicas = by_volume(replicas);
    let volumes = volumes.iter().map(|volume| {
        let of = replicas.remove(&volume.name_any()).unwrap_or_default();
        plan::Volume::of(volume, of)
    });
    (world, volumes.collect())
}

/// Engines of ours have records of who has which volume, those of Longhorn have none.
async fn take_over(client: &Client) -> anyhow::Result<TakeOver> {
    let records: Api<VolumeRecord> = Api::namespaced(client.clone(), NAMESPACE);
    match records.list(&ListParams::default().limit(1)).await {
        Ok(first) if !first.items.is_empty() => Ok(TakeOver::OfAnyAge),
        Ok(_) => Ok(TakeOver::OfOlder),
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_forbidden() => {
            Ok(TakeOver::OfOlder)
        }
        Err(error) => Err(refusal(error)).context("look for the records of volumes"),
    }
}

/// What the replicas of each volume say, by its name.
fn by_volume(replicas: &[Replica]) -> BTreeMap<String, plan::Replicas> {
    let mut all: BTreeMap<String, plan::Replicas> = BTreeMap::new();
    for replica in replicas {
        let spec = &replica.spec.instance;
        let labelled = || replica.labels().get(VOLUME_LABEL).cloned().unwrap_or_default();
        let volume = if spec.volume_name.is_empty() { labelled() } else { spec.volume_name.to_string() };
        all.entry(volume).or_default().add(replica);
    }
    all
}

/// All objects of a kind.
pub(crate) async fn all<K>(client: &Client) -> anyhow::Result<Vec<K>>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
{
    list::all(Api::<K>::namespaced(client.clone(), NAMESPACE)).await?.ok_or_else(|| {
        Failure::error(
            format!("this API does not serve {}.{}", K::plural(&()), K::group(&())),
            "name a cluster with Longhorn's objects by --kubeconfig, or start one with `midflight up`",
        )
    })
}
