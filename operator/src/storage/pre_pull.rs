//! Images that every node has before they are needed (seed 001): their objects, one DaemonSet that pulls and holds
//! them, and the label that lets a node in.
//!
//! All of it is one turn: what a node may pull depends on what the others do.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::ObjectMeta;
use midflight_api::condition::{Condition, READY, RECONCILING};
use midflight_api::longhorn::{ConditionStatus, Image, ImageSpec, ImageState, NAMESPACE, Setting};
use midflight_api::{ImageRef, MANAGED_BY, MANAGER, NodeName};
use midflight_plan::storage::pre_pull::{self as plan, Action, Node, Observed, Plan, Report};

use super::deployment::{by_node, holds};
use super::{pods, settings};
use crate::controller::{Controller, Key, News, Next, Objects, Operator, Stale, Tone, TurnError, Wake};

const AT_ONCE: &str = "pre-pull-max-nodes-at-once";
/// A node lists so many images at most; of one that lists as many it is not known what else it has.
const MOST_LISTED: usize = 50;
/// A node lists within this time what it has.
const LISTED_WITHIN: Duration = Duration::from_secs(120);
/// Nodes with this label run no workloads.
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

pub(crate) struct PrePull {
    images: Objects<Image>,
    settings: Objects<Setting>,
    nodes: Objects<core::Node>,
    sets: Objects<DaemonSet>,
    pods: Objects<Pod>,
}

pub(crate) struct Look {
    images: Vec<Arc<Image>>,
    set: Option<Arc<DaemonSet>>,
    nodes: Vec<Arc<core::Node>>,
    pods: BTreeMap<String, Arc<Pod>>,
    observed: Observed,
}

impl PrePull {
    pub(crate) fn new(operator: &mut Operator) -> PrePull {
        PrePull {
            images: operator.objects(),
            settings: operator.objects(),
            nodes: operator.objects(),
            sets: operator.objects(),
            pods: operator.objects(),
        }
    }

    fn defaults(&self) -> Result<BTreeSet<ImageRef>, Stale> {
        let mut all = BTreeSet::new();
        for name in [settings::INSTANCE_MANAGER_IMAGE, settings::SHARE_MANAGER_IMAGE] {
            all.insert(ImageRef::from(settings::value(&self.settings, name)?));
        }
        all.retain(|image| !image.is_empty());
        Ok(all)
    }
}

/// The one thing that there is a turn for.
fn all() -> Key {
    Key::new(NAMESPACE, pods::PRE_PULL)
}

fn is_worker(node: &core::Node) -> bool {
    node.metadata.deletion_timestamp.is_none() && !node.labels().contains_key(CONTROL_PLANE)
}

fn is_ours(pod: &Pod) -> bool {
    pod.labels().get(pods::COMPONENT).is_some_and(|role| role == pods::PRE_PULL)
}

/// What a look needs of a node; the rest of it changes all the time.
fn facts(node: &core::Node) -> (bool, bool, bool, Option<BTreeSet<String>>) {
    (is_worker(node), is_ready(node), node.labels().contains_key(pods::ADMITTED), listed(node))
}

fn is_ready(node: &core::Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// The digests of the images that a node says it has.
fn listed(node: &core::Node) -> Option<BTreeSet<String>> {
    let images = node.status.as_ref()?.images.as_ref()?;
    let names = images.iter().flat_map(|image| image.names.iter().flatten());
    let digests = names.filter_map(|name| Some(name.rsplit_once('@')?.1.to_owned())).collect();
    (images.len() < MOST_LISTED).then_some(digests)
}

/// The digest in the name of an image that runs.
fn digest(id: &str) -> String {
    id.rsplit_once('@').map_or(id, |(_, digest)| digest).to_owned()
}

fn node(object: &core::Node, pod: Option<&Arc<Pod>>) -> Node {
    let (_, ready, admitted, listed) = facts(object);
    let stays = pod.filter(|pod| pod.metadata.deletion_timestamp.is_none());
    let images = stays.map(|pod| pods::images(pod)).unwrap_or_default();
    let held = |image: ImageRef| {
        let held = holds(stays.map(|pod| &**pod), &plan::name(&image)).map(digest);
        (image, held)
    };
    Node {
        name: object.name_any().into(),
        ready,
        admitted,
        holds: images.into_iter().map(held).collect(),
        listed,
        settled: stays.is_some_and(|pod| is_settled(pod)),
        pod: stays.map(|pod| pod.name_any()),
    }
}

fn is_settled(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions.filter(|condition| condition.type_ == "Ready" && condition.status == "True");
    let mut since = ready.filter_map(|condition| Some(condition.last_transition_time.as_ref()?.0));
    since.any(|since| since.saturating_add(LISTED_WITHIN).is_ok_and(|at| at <= Timestamp::now()))
}

impl Controller for PrePull {
    const NAME: &'static str = "pre-pull";
    type Key = Key;
    type Seen = Look;
    type Decision = Plan;

    fn watch(&self, wake: &Wake<Key>) {
        wake.on(&self.images, |_| vec![all()]);
        wake.on(&self.settings, |setting| match setting.name_any().as_str() {
            settings::PRE_PULL
            | AT_ONCE
            | settings::INSTANCE_MANAGER_IMAGE
            | settings::SHARE_MANAGER_IMAGE => {
                vec![all()]
            }
            _ => Vec::new(),
        });
        wake.on(&self.pods, |pod| is_ours(pod).then(all).into_iter().collect());
        wake.on(&self.sets, |set| (set.name_any() == pods::PRE_PULL).then(all).into_iter().collect());
        wake.on_change(&self.nodes, |old, new| {
            let changed = old.map(facts) != new.map(facts);
            changed.then(all).into_iter().collect()
        });
    }

    async fn observe(&self, key: &Key) -> Result<Option<Look>, TurnError> {
        let mut images = self.images.all()?;
        images.retain(|image| image.metadata.deletion_timestamp.is_none());
        let set = self.sets.get(key)?.filter(|set| set.metadata.deletion_timestamp.is_none());
        let mut nodes = self.nodes.all()?;
        nodes.retain(|node| is_worker(node));
        let pods: Vec<Arc<Pod>> = self.pods.all()?.into_iter().filter(|pod| is_ours(pod)).collect();
        let on = by_node(&pods);
        let observed = Observed {
            enabled: settings::value(&self.settings, settings::PRE_PULL)? == "true",
            at_once: settings::value(&self.settings, AT_ONCE)?.parse().unwrap_or_default(),
            defaults: self.defaults()?,
            images: images.iter().map(|image| of(image)).collect(),
            pulled: set.as_deref().map(pods::pulled),
            nodes: nodes
                .iter()
                .map(|object| node(object, on.get(object.name_any().as_str()).copied()))
                .collect(),
        };
        let pods = pods.iter().map(|pod| (pod.name_any(), Arc::clone(pod))).collect();
        Ok(Some(Look { images, set, nodes, pods, observed }))
    }

    fn decide(seen: &Look) -> Plan {
        plan::decide(&seen.observed)
    }

    async fn report(&self, seen: &mut Look, decision: &Plan) -> Result<(), TurnError> {
        let owner = seen.nodes.iter().map(|node| NodeName::from(node.name_any())).min().unwrap_or_default();
        for image in &mut seen.images {
            let Some(report) = decision.reports.get(&image.name_any()) else { continue };
            let before = image.status.as_ref().map(|status| status.state).unwrap_or_default();
            let generation = image.metadata.generation.unwrap_or_default();
            let write = self.images.report(image, |image| {
                let ready = ready(image.spec.image(), report, generation);
                let status = image.status.get_or_insert_default();
                status.owner_id = owner.clone();
                status.state = report.state;
                status.node_deployment_map = report.deployment.map();
                match report.state {
                    ImageState::Deploying | ImageState::Error => {
                        let kind = RECONCILING.into();
                        status.conditions.set(Condition {
                            kind,
                            status: ConditionStatus::True,
                            ..ready.clone()
                        });
                    }
                    ImageState::Undefined
                    | ImageState::Deployed
                    | ImageState::Unknown
                    | ImageState::Unrecognised => {
                        status.conditions.clear(RECONCILING);
                    }
                }
                status.conditions.set(ready);
            });
            write.await?;
            if report.state == ImageState::Error && before != ImageState::Error {
                let note = report.deployment.complaint(image.spec.image());
                let news = News { by: Self::NAME, tone: Tone::Warning, reason: "PullFailed", note: &note };
                self.images.tell(image, &news).await;
            }
        }
        Ok(())
    }

    async fn act(&self, mut seen: Look, decision: Plan) -> Result<Next, TurnError> {
        for action in decision.actions {
            match action {
                Action::MakeImage { image } => self.images.create(&new(image)).await?,
                Action::DeleteImage { name } => {
                    if let Some(image) = seen.images.iter().find(|image| image.name_any() == name) {
                        self.images.delete(image).await?;
                    }
                }
                Action::Pull { images } => {
                    let wanted = pods::pre_pull(&images, settings::pull_policy(&self.settings)?);
                    match &mut seen.set {
                        Some(set) => self.sets.change(set, |set| set.spec = wanted.spec).await?,
                        None => self.sets.create(&wanted).await?,
                    }
                }
                Action::DeleteSet => {
                    if let Some(set) = &seen.set {
                        self.sets.delete(set).await?;
                    }
                }
                Action::Admit { node } => self.label(&mut seen.nodes, &node, true).await?,
                Action::Dismiss { node } => self.label(&mut seen.nodes, &node, false).await?,
                Action::Renew { pod } => {
                    if let Some(pod) = seen.pods.get(&pod) {
                        self.pods.delete(pod).await?;
                    }
                }
            }
        }
        // Nothing tells when a node should have listed what it has.
        let is_unlisted = |node: &Node| !node.settled && node.listed.is_some() && !node.holds.is_empty();
        match seen.observed.nodes.iter().any(is_unlisted) {
            true => Ok(Next::After(LISTED_WITHIN)),
            false => Ok(Next::OnChange),
        }
    }
}

impl PrePull {
    async fn label(
        &self,
        nodes: &mut [Arc<core::Node>],
        name: &NodeName,
        admitted: bool,
    ) -> Result<(), TurnError> {
        let Some(node) = nodes.iter_mut().find(|node| node.name_any() == name.as_str()) else {
            return Ok(());
        };
        let write = self.nodes.change(node, |node| {
            if admitted {
                node.labels_mut().insert(pods::ADMITTED.into(), "true".into());
            } else {
                node.labels_mut().remove(pods::ADMITTED);
            }
        });
        Ok(write.await?)
    }
}

fn of(object: &Image) -> plan::Image {
    let ours = object.labels().get(MANAGED_BY).is_some_and(|by| by == MANAGER);
    let nodes = object.status.iter().flat_map(|status| &status.node_deployment_map);
    let on = nodes.filter(|(_, there)| **there).map(|(node, _)| node.clone()).collect();
    plan::Image { name: object.name_any(), image: object.spec.image().clone(), ours, on }
}

fn new(image: ImageRef) -> Image {
    let metadata = ObjectMeta {
        name: Some(plan::name(&image)),
        namespace: Some(NAMESPACE.into()),
        labels: Some([(MANAGED_BY.to_owned(), MANAGER.to_owned())].into()),
        ..ObjectMeta::default()
    };
    Image {
        metadata,
        spec: ImageSpec { instance_manager_image: image, ..ImageSpec::default() },
        status: None,
    }
}

fn ready(image: &ImageRef, report: &Report, generation: i64) -> Condition {
    let (status, reason) = match report.state {
        ImageState::Deployed => (ConditionStatus::True, "OnEveryNode"),
        ImageState::Error => (ConditionStatus::False, "PullFails"),
        ImageState::Unknown => (ConditionStatus::Unknown, "SwitchedOff"),
        ImageState::Undefined | ImageState::Deploying | ImageState::Unrecognised => {
            (ConditionStatus::False, "Pulling")
        }
    };
    let message = match report.state {
        ImageState::Unknown => format!("the setting {} is false", settings::PRE_PULL),
        ImageState::Undefined
        | ImageState::Deploying
        | ImageState::Deployed
        | ImageState::Error
        | ImageState::Unrecognised => report.deployment.complaint(image),
    };
    Condition {
        kind: READY.into(),
        status,
        reason: reason.into(),
        message: message.into(),
        last_transition_time: Timestamp::now().to_string().into(),
        observed_generation: generation,
    }
}
