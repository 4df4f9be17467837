//! Engine images: makes the object of the default image, brings each to every node, asks its binary what it can
//! do, counts who refers to it, and retires those that nothing refers to.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::ObjectMeta;
use midflight_api::longhorn::{
    Condition, Engine, EngineImage, EngineImageSpec, EngineImageState, NAMESPACE, Node, Replica, Setting,
    Volume,
};
use midflight_api::{ImageRef, NodeName};
use midflight_plan::storage::deployment::{Deployment, Lack};
use midflight_plan::storage::engine_image::{
    self as plan, Action, Hearing, Observed, READY, Seen, Set, UNHEARD, Unheard,
};

use super::deployment::{by_node, holds};
use super::pods;
use super::settings::{self, ENGINE_IMAGE};
use crate::controller::{Controller, Index, Key, News, Next, Objects, Operator, Tone, TurnError, Wake};
use crate::write::in_its_own_words;

/// How soon a binary is asked again that did not answer.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// A binary needs no more than this to say what it can do.
const ANSWERS_WITHIN: SignedDuration = SignedDuration::from_secs(60);
/// So many pods are asked in one turn; where the first is silent, the others may not be.
const ASKED: usize = 3;
/// How much is shown of what a binary said instead of an answer.
const SHOWN: usize = 200;

pub(crate) struct EngineImages {
    images: Objects<EngineImage>,
    settings: Objects<Setting>,
    volumes: (Objects<Volume>, Index<Volume>),
    engines: (Objects<Engine>, Index<Engine>),
    replicas: (Objects<Replica>, Index<Replica>),
    nodes: Objects<Node>,
    sets: Objects<DaemonSet>,
    pods: (Objects<Pod>, Index<Pod>),
}

pub(crate) struct Look {
    key: Key,
    object: Option<Arc<EngineImage>>,
    default: Option<ImageRef>,
    deployment: Deployment,
    set: Option<Arc<DaemonSet>>,
    /// What its binary said, if it has not been written down yet.
    hearing: Hearing,
    /// Whether it is being asked on a node just now.
    is_asked: bool,
    observed: Observed,
}

impl EngineImages {
    pub(crate) fn new(operator: &mut Operator) -> EngineImages {
        let pods: Objects<Pod> = operator.objects();
        let (volumes, engines, replicas) = (operator.objects(), operator.objects(), operator.objects());
        EngineImages {
            images: operator.objects(),
            settings: operator.objects(),
            volumes: (volumes.clone(), volumes.index(of_volume)),
            engines: (engines.clone(), engines.index(of_engine)),
            replicas: (replicas.clone(), replicas.index(of_replica)),
            nodes: operator.objects(),
            sets: operator.objects(),
            pods: (pods.clone(), pods.index(of_pod)),
        }
    }

    /// Every node, and whether it has the image: a pod put the binary there, where it stays when the pod is replaced.
    fn deployment(
        &self,
        object: Option<&EngineImage>,
        pods: &[Arc<Pod>],
        now: Timestamp,
    ) -> Result<Deployment, TurnError> {
        let status = object.and_then(|object| object.status.as_ref());
        let was_there = |node: &NodeName| {
            status.is_some_and(|status| status.node_deployment_map.get(node).is_some_and(|there| *there))
        };
        let on = by_node(pods);
        let nodes = self.nodes.all()?;
        let state = |node: &Arc<Node>| {
            let name = NodeName::from(node.name_any());
            let pod = on.get(name.as_str()).map(|pod| &***pod);
            let late = pod.and_then(|pod| late(pod, now));
            let held = match (holds(pod, pods::HOLDER), late) {
                (Ok(_), _) => Ok(()),
                (Err(Lack::Coming(_)), _) if was_there(&name) => Ok(()),
                (Err(Lack::Coming(_)), Some(since)) => {
                    Err(Lack::Failed(format!("its binary was started at {since} and has not ended")))
                }
                (Err(lack), _) => Err(lack),
            };
            (name, held)
        };
        Ok(Deployment(nodes.iter().map(state).collect()))
    }

    /// What the binary of the image says of itself, from the first pod that has started it and can tell.
    async fn ask(&self, object: &EngineImage, pods: &[Arc<Pod>], now: Timestamp) -> Hearing {
        if object.status.as_ref().is_some_and(|status| !status.version.is_empty()) {
            return Ok(None);
        }
        let mut hearing = silent(pods, now);
        let started = pods.iter().filter(|pod| holds(Some(pod), pods::HOLDER).is_ok());
        for pod in started.take(ASKED) {
            let name = pod.name_any();
            hearing = match self.pods.0.last_words(pod, pods::INSTALLER).await {
                Ok(words) if words.trim().is_empty() => {
                    Err(Unheard::Unread { pod: name, why: "nothing is there".into() })
                }
                Ok(words) => serde_json::from_str(&words).map(Some).map_err(|_| {
                    let said = words.trim().chars().take(SHOWN).collect();
                    Unheard::Nonsense { pod: name, said }
                }),
                Err(error) => Err(Unheard::Unread { pod: name, why: in_its_own_words(&error) }),
            };
            if hearing.is_ok() {
                break;
            }
        }
        hearing
    }

    /// The DaemonSet as it should be.
    fn wanted_set(&self, object: &EngineImage) -> Result<DaemonSet, TurnError> {
        Ok(pods::engine_image(object, settings::pull_policy(&self.settings)?))
    }
}

/// The first pod whose binary should have answered long ago.
fn silent(pods: &[Arc<Pod>], now: Timestamp) -> Hearing {
    let late = pods.iter().filter_map(|pod| Some((pod, late(pod, now)?)));
    match late.min_by_key(|(_, since)| *since) {
        Some((pod, since)) => Err(Unheard::Silent { pod: pod.name_any(), since }),
        None => Ok(None),
    }
}

/// Since when the binary of a pod is being asked, if that is too long ago.
fn late(pod: &Pod, now: Timestamp) -> Option<Timestamp> {
    started(pod).filter(|since| now.duration_since(*since) >= ANSWERS_WITHIN)
}

/// Since when the binary of a pod is being asked, if it is.
fn started(pod: &Pod) -> Option<Timestamp> {
    let all = pod.status.as_ref()?.init_container_statuses.as_ref()?;
    let own = all.iter().find(|status| status.name == pods::INSTALLER)?;
    Some(own.state.as_ref()?.running.as_ref()?.started_at.as_ref()?.0)
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

/// The name of the engine image that a pod brings to its node.
fn of_pod(pod: &Pod) -> Vec<String> {
    pod.labels().get(pods::ENGINE_IMAGE).cloned().into_iter().collect()
}

fn keys(names: &[String]) -> Vec<Key> {
    names.iter().map(|name| Key::new(NAMESPACE, name)).collect()
}

/// The images that something refers to no more, or only now.
fn changed<K>(old: Option<&K>, new: Option<&K>, names: fn(&K) -> Vec<String>) -> Vec<Key> {
    let (old, new) = (old.map(names).unwrap_or_default(), new.map(names).unwrap_or_default());
    let is_in_one = |name: &&String| old.contains(name) != new.contains(name);
    old.iter().chain(&new).filter(is_in_one).map(|name| Key::new(NAMESPACE, name)).collect()
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
        wake.on_change(&self.volumes.0, |old, new| changed(old, new, of_volume));
        wake.on_change(&self.engines.0, |old, new| changed(old, new, of_engine));
        wake.on_change(&self.replicas.0, |old, new| changed(old, new, of_replica));
        wake.on(&self.pods.0, |pod| keys(&of_pod(pod)));
        let image_of = |set: &DaemonSet| set.labels().get(pods::ENGINE_IMAGE).cloned();
        wake.on(&self.sets, move |set| keys(&image_of(set).into_iter().collect::<Vec<_>>()));
        let images = self.images.clone();
        wake.on_change(&self.nodes, move |old, new| {
            if old.is_some() && new.is_some() {
                return Vec::new();
            }
            // One came or went. Images that were written just now wake themselves.
            images.all().unwrap_or_default().iter().map(|image| Key::of(&**image)).collect()
        });
    }

    async fn observe(&self, key: &Key) -> Result<Option<Look>, TurnError> {
        let object = self.images.get(key)?;
        let default = self.settings.get(&Key::new(NAMESPACE, ENGINE_IMAGE))?;
        let default = default
            .map(|setting| ImageRef::from(setting.value.as_str()))
            .filter(|image| plan::name(image) == key.name);
        let set = self.sets.get(&Key::new(NAMESPACE, &pods::engine_image_set(&key.name)))?;
        let image = match &object {
            None => None,
            Some(object) => {
                let references = self.volumes.0.count(self.volumes.1, &key.name)
                    + self.engines.0.count(self.engines.1, &key.name)
                    + self.replicas.0.count(self.replicas.1, &key.name);
                let since =
                    object.status.as_ref().and_then(|status| status.no_ref_since.as_str().parse().ok());
                Some(Seen {
                    references,
                    unreferenced_since: since,
                    deleting: object.metadata.deletion_timestamp.is_some(),
                    set: match &set {
                        None => Set::Missing,
                        Some(set) if pods::is_outdated(set, &self.wanted_set(object)?) => Set::Outdated,
                        Some(_) => Set::Fine,
                    },
                })
            }
        };
        let pods = self.pods.0.by(self.pods.1, &key.name)?;
        let now = Timestamp::now();
        let deployment = self.deployment(object.as_deref(), &pods, now)?;
        let hearing = match &object {
            Some(object) => self.ask(object, &pods, now).await,
            None => Ok(None),
        };
        let is_asked = pods.iter().any(|pod| started(pod).is_some());
        let observed = Observed { now, is_default: default.is_some(), image };
        Ok(Some(Look { key: key.clone(), object, default, deployment, set, hearing, is_asked, observed }))
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
        let (deployment, hearing, now) = (&seen.deployment, &seen.hearing, seen.observed.now);
        let before = object.status.as_ref().map(|status| status.state);
        let write = self.images.report(object, |image| {
            let status = image.status.get_or_insert_default();
            status.ref_count = i32::try_from(*references).unwrap_or(i32::MAX);
            status.no_ref_since = since.into();
            plan::tell(status, deployment, hearing);
            let ready = plan::ready(&image.spec.image, status, deployment, hearing);
            status.conditions.set(Condition { last_transition_time: now.to_string().into(), ..ready });
        });
        write.await?;
        let now = object.status.as_ref().filter(|status| status.state == EngineImageState::Error);
        let ready = now.and_then(|status| status.conditions.get(READY));
        if let Some(ready) = ready.filter(|_| before != Some(EngineImageState::Error)) {
            let reason = if ready.reason == UNHEARD { UNHEARD } else { "PullFailed" };
            let note = ready.message.to_string();
            let news = News { by: Self::NAME, tone: Tone::Warning, reason, note: &note };
            self.images.tell(object, &news).await;
        }
        Ok(())
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
            (Action::Deploy, Some(object), _) => {
                let wanted = self.wanted_set(&object)?;
                match seen.set {
                    Some(mut set) => self.sets.change(&mut set, |set| pods::renew(set, wanted)).await?,
                    None => self.sets.create(&wanted).await?,
                }
            }
            (Action::Retire, Some(object), _) => self.images.delete(&object).await?,
            // Nothing tells when a log can be read.
            (Action::Keep { .. }, Some(object), _)
                if seen.is_asked || is_unheard(&object, &seen.deployment) =>
            {
                return Ok(Next::After(ASK_AGAIN));
            }
            (Action::Keep { look_again: Some(at), .. }, ..) => {
                let wait = seen.observed.now.duration_until(at);
                return Ok(Next::After(wait.try_into().unwrap_or_default()));
            }
            (
                Action::Create | Action::Deploy | Action::Retire | Action::Keep { .. } | Action::Nothing,
                ..,
            ) => {}
        }
        Ok(Next::OnChange)
    }
}

/// Whether a node has it and its binary has not said yet what it can do.
fn is_unheard(object: &EngineImage, deployment: &Deployment) -> bool {
    let heard = object.status.as_ref().is_some_and(|status| !status.version.is_empty());
    !heard && deployment.0.values().any(Result::is_ok)
}
