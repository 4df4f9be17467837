//! Engine images: makes the object of the default image, counts who refers to each, retires those
//! that nothing refers to.

use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::ObjectMeta;
use midflight_api::ImageRef;
use midflight_api::longhorn::{Engine, EngineImage, EngineImageSpec, NAMESPACE, Replica, Setting, Volume};
use midflight_plan::storage::engine_image::{self as plan, Action, Observed, Seen};

use super::settings::ENGINE_IMAGE;
use crate::controller::{Controller, Index, Key, Next, Objects, Operator, TurnError, Wake};

pub(crate) struct EngineImages {
    images: Objects<EngineImage>,
    settings: Objects<Setting>,
    volumes: (Objects<Volume>, Index<Volume>),
    engines: (Objects<Engine>, Index<Engine>),
    replicas: (Objects<Replica>, Index<Replica>),
}

pub(crate) struct Look {
    key: Key,
    object: Option<Arc<EngineImage>>,
    default: Option<ImageRef>,
    observed: Observed,
}

impl EngineImages {
    pub(crate) fn new(operator: &mut Operator) -> EngineImages {
        let (volumes, engines, replicas) = (operator.objects(), operator.objects(), operator.objects());
        EngineImages {
            images: operator.objects(),
            settings: operator.objects(),
            volumes: (volumes.clone(), volumes.index(of_volume)),
            engines: (engines.clone(), engines.index(of_engine)),
            replicas: (replicas.clone(), replicas.index(of_replica)),
        }
    }
}

/// The names of the image that an object wants and of the one that it has.
fn names(images: [Option<&ImageRef>; 2]) -> Vec<String> {
    let mut names: Vec<String> =
        images.into_iter().flatten().filter(|image| !image.is_empty()).map(plan::name).collect();
    names.dedup();
    names
}

fn of_volume(volume: &Volume) -> Vec<String> {
    names([Some(&volume.spec.image), volume.status.as_ref().map(|status| &status.current_image)])
}

fn of_engine(engine: &Engine) -> Vec<String> {
    let current = engine.status.as_ref().map(|status| &status.instance.current_image);
    names([Some(&engine.spec.instance.image), current])
}

fn of_replica(replica: &Replica) -> Vec<String> {
    let current = replica.status.as_ref().map(|status| &status.instance.current_image);
    names([Some(&replica.spec.instance.image), current])
}

fn keys(names: &[String]) -> Vec<Key> {
    names.iter().map(|name| Key::new(NAMESPACE, name)).collect()
}

impl Controller for EngineImages {
    const NAME: &'static str = "engine-image";
    type Key = Key;
    type Seen = Look;
    type Decision = Action;

    fn watch(&self, wake: &Wake<Key>) {
        wake.on(&self.images, |image| vec![Key::of(image)]);
        wake.on(&self.settings, |setting| match setting.name_any().as_str() {
            ENGINE_IMAGE => keys(&[plan::name(&setting.value.as_str().into())]),
            _ => Vec::new(),
        });
        wake.on(&self.volumes.0, |volume| keys(&of_volume(volume)));
        wake.on(&self.engines.0, |engine| keys(&of_engine(engine)));
        wake.on(&self.replicas.0, |replica| keys(&of_replica(replica)));
    }

    async fn observe(&self, key: &Key) -> Result<Option<Look>, TurnError> {
        let object = self.images.get(key)?;
        let default = self.settings.get(&Key::new(NAMESPACE, ENGINE_IMAGE))?;
        let default = default
            .map(|setting| ImageRef::from(setting.value.as_str()))
            .filter(|image| plan::name(image) == key.name);
        let image = match &object {
            None => None,
            Some(object) => {
                let references = self.volumes.0.by(self.volumes.1, &key.name)?.len()
                    + self.engines.0.by(self.engines.1, &key.name)?.len()
                    + self.replicas.0.by(self.replicas.1, &key.name)?.len();
                let since =
                    object.status.as_ref().and_then(|status| status.no_ref_since.as_str().parse().ok());
                Some(Seen { references, unreferenced_since: since })
            }
        };
        let observed = Observed { now: Timestamp::now(), is_default: default.is_some(), image };
        Ok(Some(Look { key: key.clone(), object, default, observed }))
    }

    fn decide(seen: &Look) -> Action {
        plan::decide(&seen.observed)
    }

    async fn report(&self, seen: &mut Look, decision: &Action) -> Result<(), TurnError> {
        let (Some(object), Action::Keep { references, unreferenced_since, .. }) =
            (&mut seen.object, decision)
        else {
            return Ok(());
        };
        let since = unreferenced_since.map(|since| since.to_string()).unwrap_or_default();
        let write = self.images.report(object, |image| {
            let status = image.status.get_or_insert_default();
            status.ref_count = i32::try_from(*references).unwrap_or(i32::MAX);
            status.no_ref_since = since.into();
        });
        Ok(write.await?)
    }

    async fn act(&self, seen: Look, decision: Action) -> Result<Next, TurnError> {
        match (decision, seen.object, seen.default) {
            (Action::Create, _, Some(default)) => {
                let metadata = ObjectMeta {
                    name: Some(seen.key.name),
                    namespace: Some(seen.key.namespace),
                    ..ObjectMeta::default()
                };
                let image = EngineImage { metadata, spec: EngineImageSpec { image: default }, status: None };
                self.images.create(&image).await?;
            }
            (Action::Retire, Some(object), _) => self.images.delete(&object).await?,
            (Action::Keep { look_again: Some(at), .. }, ..) => {
                let wait = seen.observed.now.duration_until(at);
                return Ok(Next::After(wait.try_into().unwrap_or_default()));
            }
            (Action::Create | Action::Retire | Action::Keep { .. } | Action::Nothing, ..) => {}
        }
        Ok(Next::OnChange)
    }
}
