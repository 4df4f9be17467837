//! Who uses an image: whatever names it, and whatever runs it.

use std::fmt::Debug;

use anyhow::Context;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kube::{Api, Client, Resource, ResourceExt};
use midflight_agent::image::ImageName;
use midflight_api::{
    ImageRef,
    longhorn::{EngineImage, InstanceManager, Setting, Volume},
    settings::{Format, find},
};
use serde::de::DeserializeOwned;

use crate::{
    failure::{Exit, Failure},
    list,
    session::Session,
    target,
};

/// How many users of an image are named.
const NAMED: usize = 5;

/// Refuses if somebody uses one of the images, or if nobody can tell; `help` says what then.
pub(super) fn check(session: &Session, images: &[ImageName], help: &str) -> anyhow::Result<()> {
    let cluster = session.block_on(Cluster::observe(session)).context("look who uses the images");
    let cluster = cluster.map_err(|error| {
        let why = format!("{error:#}");
        Failure::error(why, "`midflight up`, or do it whoever uses them with --force")
    })?;
    images.iter().try_for_each(|image| cluster.spares(image, help))
}

/// What may name an image.
#[derive(Debug, Default)]
struct Cluster {
    settings: Vec<Setting>,
    images: Vec<EngineImage>,
    managers: Vec<InstanceManager>,
    volumes: Vec<Volume>,
    sets: Vec<DaemonSet>,
    pods: Vec<Pod>,
}

/// All objects of a kind; none where the API does not serve it.
async fn all<K>(client: &Client) -> anyhow::Result<Vec<K>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    Ok(list::all(Api::all(client.clone())).await?.unwrap_or_default())
}

impl Cluster {
    async fn observe(session: &Session) -> anyhow::Result<Cluster> {
        let client = target::client(session).await?;
        Ok(Cluster {
            settings: all(&client).await?,
            images: all(&client).await?,
            managers: all(&client).await?,
            volumes: all(&client).await?,
            sets: all(&client).await?,
            pods: all(&client).await?,
        })
    }

    /// Whether nobody uses the image, or who does.
    fn spares(&self, image: &ImageName, help: &str) -> anyhow::Result<()> {
        let users = self.users(image);
        if users.is_empty() {
            return Ok(());
        }
        let more = users.len().saturating_sub(NAMED);
        let more = (more > 0).then(|| format!("{more} more"));
        let named: Vec<String> = users.into_iter().take(NAMED).chain(more).collect();
        Err(Failure::with(Exit::Blocked, format!("{image} is used by {}", named.join(", ")), help))
    }

    fn users(&self, image: &ImageName) -> Vec<String> {
        let is_it = |name: &str| name.parse::<ImageName>().is_ok_and(|name| name == *image);
        let names_it = |setting: &&Setting| {
            let is_image = find(&setting.name_any()).is_some_and(|known| known.format == Format::Image);
            is_image && is_it(&setting.value)
        };
        let runs_it = |volume: &&Volume| {
            let current = volume.status.as_ref().map(|status| &status.current_image);
            [Some(&volume.spec.image), current]
                .into_iter()
                .flatten()
                .any(|image: &ImageRef| is_it(image.as_str()))
        };
        let settings = self.settings.iter().filter(names_it);
        let images = self.images.iter().filter(|one| is_it(one.spec.image.as_str()));
        let managers = self.managers.iter().filter(|one| is_it(one.spec.image.as_str()));
        let volumes = self.volumes.iter().filter(runs_it);
        let has_it = |spec: Option<&PodSpec>| images_of(spec).any(is_it);
        let template =
            |set: &DaemonSet| has_it(set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref()));
        let sets = self.sets.iter().filter(|set| template(set));
        let pods = self.pods.iter().filter(|pod| has_it(pod.spec.as_ref()));
        settings
            .map(|one| format!("the setting {}", one.name_any()))
            .chain(images.map(|one| format!("EngineImage {}", one.name_any())))
            .chain(managers.map(|one| format!("InstanceManager {} of {}", one.name_any(), one.spec.node_id)))
            .chain(volumes.map(|one| format!("volume {}", one.name_any())))
            .chain(sets.map(|one| format!("DaemonSet {}", place_of(one))))
            .chain(pods.map(|one| format!("pod {}", place_of(one))))
            .collect()
    }
}

fn images_of(spec: Option<&PodSpec>) -> impl Iterator<Item = &str> {
    let first = spec.into_iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let all = first.chain(spec.into_iter().flat_map(|spec| &spec.containers));
    all.filter_map(|container| container.image.as_deref())
}

fn place_of(object: &impl ResourceExt) -> String {
    format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn whoever_names_an_image_keeps_it() {
        let setting = |name: &str, value: &str| {
            let mut setting = Setting::new(name, Default::default());
            setting.value = value.into();
            setting
        };
        let volume = |name: &str, spec: &str, current: &str| {
            let mut volume = Volume::new(name, Default::default());
            volume.spec.image = spec.into();
            volume.status.get_or_insert_default().current_image = current.into();
            volume
        };
        let mut image = EngineImage::new("ei-1", Default::default());
        image.spec.image = "midflight.local/engine:v1".into();
        let mut manager = InstanceManager::new("im-1", Default::default());
        (manager.spec.image, manager.spec.node_id) = ("manager:v1".into(), "node-1".into());
        let cluster = Cluster {
            settings: vec![
                setting("default-engine-image", "midflight.local/engine:v1"),
                setting("automatic-engine-upgrade-paused", "free:v1"),
            ],
            images: vec![image],
            managers: vec![manager],
            pods: vec![serde_json::from_value(json!({
                "metadata": { "name": "web", "namespace": "shop" },
                "spec": { "containers": [{ "name": "a", "image": "midflight.local/web:v1" }],
                          "initContainers": [{ "name": "b", "image": "first:v1" }] },
            }))
            .unwrap()],
            sets: vec![serde_json::from_value(json!({
                "metadata": { "name": "watch", "namespace": "shop" },
                "spec": { "selector": {}, "template": { "spec": { "containers": [{ "name": "a", "image": "watch:v1" }] } } },
            }))
            .unwrap()],
            volumes: (0..6).map(|number| volume(&format!("v{number}"), "engine:v2", "engine:v1")).collect(),
        };
        let told = |name: &str| {
            let refused = cluster.spares(&name.parse().unwrap(), "").err();
            refused.map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!(
            told("engine:v1"),
            "midflight.local/engine:v1 is used by the setting default-engine-image, EngineImage ei-1, volume v0, volume v1, volume v2, 3 more"
        );
        assert!(told("midflight.local/engine:v2").contains("is used by volume v0"));
        assert!(told("manager:v1").ends_with("is used by InstanceManager im-1 of node-1"));
        assert!(told("web:v1").ends_with("is used by pod shop/web"));
        assert!(told("first:v1").ends_with("is used by pod shop/web"));
        assert!(told("watch:v1").ends_with("is used by DaemonSet shop/watch"));
        assert_eq!(told("free:v1"), "");
    }
}
