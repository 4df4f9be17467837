//! Whether an image may be called so, a volume may be asked for it, and its object may be made.
//!
//! The invariant: who asks is told what to write or to do instead.

use std::collections::BTreeMap;

use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use midflight_api::ImageRef;
use midflight_api::longhorn::{
    EngineImage, InstanceManager, NAMESPACE, Replica, Setting, VOLUME_LABEL, Volume,
};
use midflight_plan::engine_upgrade::{self as plan, World, admit};
use midflight_plan::storage::engine_image;
use serde_json::Value;

use super::Verdict;

/// Whether a setting or a new volume may name this image.
pub(super) async fn may_be_named(object: &Value, client: &Client) -> Verdict {
    let image = object["value"].as_str().or(object["spec"]["image"].as_str()).unwrap_or_default();
    let known = known_to(object, client).await?;
    Ok(plan::may_be_named(&ImageRef::from(image), known.iter()).map_err(|short| short.to_string()))
}

/// Images that a setting or a volume may call as they are called already.
async fn known_to(object: &Value, client: &Client) -> Result<Vec<ImageRef>, kube::Error> {
    let setting = object["metadata"]["name"].as_str().filter(|_| object["value"].is_string());
    let all = ListParams::default();
    match setting {
        None | Some("default-engine-image") => {
            let images: Api<EngineImage> = Api::namespaced(client.clone(), NAMESPACE);
            Ok(images.list(&all).await?.into_iter().map(|image| image.spec.image).collect())
        }
        Some("default-instance-manager-image") => {
            let managers: Api<InstanceManager> = Api::namespaced(client.clone(), NAMESPACE);
            Ok(managers.list(&all).await?.into_iter().map(|manager| manager.spec.image).collect())
        }
        Some(_) => Ok(Vec::new()),
    }
}

pub(super) fn may_be_made(image: &Value) -> Verdict {
    let image: EngineImage = serde_json::from_value(image.clone()).map_err(kube::Error::SerdeError)?;
    if let Err(short) = plan::may_be_named(&image.spec.image, std::iter::empty()) {
        return Ok(Err(short.to_string()));
    }
    Ok(engine_image::may_come(&image.name_any(), &image.spec.image).map_err(|wrong| wrong.to_string()))
}

pub(super) async fn may_change(request: &Value, client: &Client) -> Verdict {
    let read =
        |object: &Value| serde_json::from_value::<Volume>(object.clone()).map_err(kube::Error::SerdeError);
    let (old, new) = (read(&request["oldObject"])?, read(&request["object"])?);
    let settings: Api<Setting> = Api::namespaced(client.clone(), NAMESPACE);
    let images: Api<EngineImage> = Api::namespaced(client.clone(), NAMESPACE);
    let replicas: Api<Replica> = Api::namespaced(client.clone(), NAMESPACE);
    let all = ListParams::default();
    let of_volume = ListParams::default().labels(&format!("{VOLUME_LABEL}={}", old.name_any()));
    let (settings, images, replicas) =
        tokio::try_join!(settings.list(&all), images.list(&all), replicas.list(&of_volume))?;
    let values: BTreeMap<String, String> =
        settings.into_iter().map(|setting| (setting.name_any(), setting.value)).collect();
    let value = |name: &str| values.get(name).map(String::as_str);
    let world = World::of(value, &images);
    let volume = plan::Volume::of(&old, replicas.iter().collect());
    Ok(admit(&volume, &new.spec.image, &world).map_err(|refusal| refusal.to_string()))
}
