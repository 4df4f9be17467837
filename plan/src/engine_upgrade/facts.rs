//! What the rules look at: volumes, engine images and settings, reduced to what matters.
//!
//! The invariant: a field that the API left out, or that this version does not know, never makes a
//! volume look safer than it is.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use midflight_api::longhorn::{
    self, DataEngine, DataLocality, EngineChange, EngineChangeState, EngineImage, EngineImageStatus,
    Robustness, VolumeState,
};
use midflight_api::settings;
use midflight_api::{Attempt, ENGINE_UPGRADE, FINALIZED, ImageRef, NodeName, Size, VolumeName};

use super::attempt::Refused;
use super::reason::{Hold, Incompatible, Span};
use crate::storage::engine_image;

/// Which state of an object was read. A later one is greater.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(u64);

impl Version {
    /// Of a resourceVersion; 0 if it is not a number.
    pub fn of(resource_version: &str) -> Version {
        Version(resource_version.parse().unwrap_or_default())
    }

    pub fn next(self) -> Version {
        Version(self.0 + 1)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What the replicas of a volume say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Replicas {
    nodes: BTreeSet<NodeName>,
    /// The least size that one of them was asked to have.
    least: Option<Size>,
}

impl Replicas {
    pub fn add(&mut self, replica: &longhorn::Replica) {
        let spec = &replica.spec.instance;
        self.nodes.extend(Some(&spec.node_id).filter(|node| !node.is_empty()).cloned());
        let size = Some(spec.volume_size).filter(|size| size.bytes() > 0);
        self.least = self.least.into_iter().chain(size).min();
    }
}

impl<'a> FromIterator<&'a longhorn::Replica> for Replicas {
    fn from_iter<I: IntoIterator<Item = &'a longhorn::Replica>>(all: I) -> Replicas {
        let mut replicas = Replicas::default();
        all.into_iter().for_each(|replica| replicas.add(replica));
        replicas
    }
}

/// One volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Volume {
    pub name: VolumeName,
    pub version: Version,
    pub size: Size,
    pub engine: DataEngine,
    /// Image it should run; empty asks for nothing.
    pub wanted: ImageRef,
    /// Image it runs; empty until it is known.
    pub current: ImageRef,
    pub state: VolumeState,
    pub robustness: Robustness,
    pub locality: DataLocality,
    /// Node it is attached to.
    pub node: NodeName,
    /// Node it was last attached to.
    pub owner: NodeName,
    /// Nodes that hold its replicas.
    pub replicas: BTreeSet<NodeName>,
    pub deleting: bool,
    pub standby: bool,
    pub expanding: bool,
    pub restoring: bool,
    pub migrating: bool,
    /// Whether its owner asked to leave it alone.
    pub opted_out: bool,
    /// Image whose on-disk features are in use; empty if none.
    pub finalized: ImageRef,
    pub attempt: Option<Attempt>,
    /// Whether the image it should run has shown that it does not serve.
    pub failed: bool,
    /// What the API said to the last change of it, if it was not made.
    pub refused: Option<Refused>,
}

impl Volume {
    /// What an object of the API and its replicas say.
    pub fn of(object: &longhorn::Volume, replicas: Replicas) -> Volume {
        let metadata = &object.metadata;
        let none = BTreeMap::new();
        let annotations = metadata.annotations.as_ref().unwrap_or(&none);
        let status = object.status.clone().unwrap_or_default();
        Volume {
            name: metadata.name.as_deref().unwrap_or_default().into(),
            version: Version::of(metadata.resource_version.as_deref().unwrap_or_default()),
            size: object.spec.size,
            engine: object.spec.data_engine,
            wanted: object.spec.image.clone(),
            state: status.state,
            robustness: status.robustness,
            locality: object.spec.data_locality,
            replicas: replicas.nodes,
            deleting: metadata.deletion_timestamp.is_some() || status.state == VolumeState::Deleting,
            standby: status.is_standby || object.spec.standby,
            // Whoever has to make it larger says so in the status, and then asks the replicas for it: until then they tell.
            expanding: status.expansion_required
                || replicas.least.is_some_and(|size| size < object.spec.size),
            restoring: status.restore_required,
            migrating: object.is_migrating(),
            // Whatever it says: a misspelt `never` is not taken for a yes.
            opted_out: annotations.get(ENGINE_UPGRADE).is_some_and(|value| !value.is_empty()),
            finalized: annotations.get(FINALIZED).map(String::as_str).unwrap_or_default().into(),
            attempt: Attempt::of(annotations),
            failed: has_failed(&status.engine_change, &object.spec.image),
            current: status.current_image,
            node: status.current_node_id,
            owner: status.owner_id,
            refused: None,
        }
    }

    /// The refusal after which nothing is asked of it yet.
    pub(super) fn refused_now(&self, now: Timestamp) -> Option<&Refused> {
        self.refused.as_ref().filter(|refused| now < refused.until)
    }

    /// Node on whose limit it counts: where it is attached, else where it was last, else that of its first replica.
    pub fn seat(&self) -> Option<&NodeName> {
        [&self.node, &self.owner].into_iter().find(|node| !node.is_empty()).or(self.replicas.first())
    }

    /// Whether it is on its way to another image, or stuck on it. Volumes of the v2 data engine never are:
    /// their image says nothing about what runs.
    pub fn is_upgrading(&self) -> bool {
        self.engine == DataEngine::V1
            && !self.current.is_empty()
            && !self.wanted.is_empty()
            && self.wanted != self.current
    }

    /// Nodes that must have an image before the volume can run it, each once.
    pub(super) fn needs(&self) -> BTreeSet<&NodeName> {
        self.replicas.iter().chain(Some(&self.node).filter(|node| !node.is_empty())).collect()
    }
}

/// Whether the last change of the engine was to this image and came to nothing.
fn has_failed(change: &EngineChange, wanted: &ImageRef) -> bool {
    change.state == EngineChangeState::Failed && change.image == *wanted
}

/// What the settings ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Volumes of a node that may be on their way at once; 0 is off.
    pub per_node: usize,
    /// Volumes of the cluster; 0 is no limit.
    pub cluster: usize,
    pub paused: bool,
    /// Rest of a node after one upgrade of it has ended.
    pub settle: Duration,
    /// Volumes whose upgrade may fail before no further one begins; 0 is any number.
    pub failures: usize,
    pub deadline: Duration,
    /// Whether a live upgrade between two images of one commit is worth it.
    pub same_commit: bool,
}

impl Policy {
    /// From the values of settings by name. One that is not there has its default; a value that
    /// cannot be read is the default, too, and turns nothing on.
    pub fn of<'a>(value: impl Fn(&str) -> Option<&'a str>) -> Policy {
        let text = |name: &'static str| match value(name).filter(|text| settings::check(name, text).is_ok()) {
            Some(text) => text.to_owned(),
            None => settings::find(name).map(|setting| setting.default).unwrap_or_default().to_owned(),
        };
        let number = |name| text(name).parse::<u32>().unwrap_or_default();
        let seconds = |name| Duration::from_secs(number(name).into());
        Policy {
            per_node: number(settings::ENGINE_UPGRADE_LIMIT) as usize,
            cluster: number("concurrent-automatic-engine-upgrade-cluster-limit") as usize,
            paused: text("automatic-engine-upgrade-paused") == "true",
            settle: seconds("automatic-engine-upgrade-settle-seconds"),
            failures: number("automatic-engine-upgrade-failure-threshold") as usize,
            deadline: seconds("automatic-engine-upgrade-deadline-seconds"),
            same_commit: text("allow-live-engine-upgrade-on-same-image-commit") == "true",
        }
    }
}

impl Default for Policy {
    fn default() -> Policy {
        Policy::of(|_| None)
    }
}

/// From which engines those of another image take a volume over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TakeOver {
    /// From all with which they have a version of the interface in common, newer ones too: what only a newer one can do is used once
    /// that is final.
    #[default]
    OfAnyAge,
    /// From older ones only, as Longhorn's do.
    OfOlder,
}

/// What holds for all volumes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct World {
    /// Image that upgrades lead to.
    pub target: ImageRef,
    pub policy: Policy,
    pub take_over: TakeOver,
    pub images: BTreeMap<ImageRef, EngineImageStatus>,
}

impl World {
    /// From the values of settings by name, and the engine images there are.
    pub fn of<'a, 'b>(
        value: impl Fn(&str) -> Option<&'a str>,
        images: impl IntoIterator<Item = &'b EngineImage>,
    ) -> World {
        World {
            target: value("default-engine-image").unwrap_or_default().into(),
            policy: Policy::of(&value),
            take_over: TakeOver::default(),
            images: images.into_iter().map(|image| (image.spec.image.clone(), facts_of(image))).collect(),
        }
    }

    /// Whether a volume that is at rest would be judged as before.
    pub(super) fn differs_in_limits_only(&self, other: &World) -> bool {
        let World { target, policy, take_over, images } = other;
        (&self.target, &self.take_over, &self.images) == (target, take_over, images)
            && self.policy.same_commit == policy.same_commit
    }

    /// Whether a running engine of the old image can hand its volume to one of the new.
    pub(super) fn takes_over(&self, new: &EngineImageStatus, old: &EngineImageStatus) -> bool {
        match self.take_over {
            TakeOver::OfAnyAge => new.speaks_with(old),
            TakeOver::OfOlder => new.takes_over_from(old),
        }
    }

    /// What is said of an image that is not compatible. What Longhorn's managers speak they do not tell.
    pub(super) fn misfit(&self, image: &ImageRef, status: &EngineImageStatus) -> Incompatible {
        let spoken = engine_image::SPOKEN;
        let number = |version: u32| i32::try_from(version).unwrap_or(i32::MAX);
        let ours = Span { oldest: number(spoken.oldest), newest: number(spoken.newest) };
        Incompatible {
            image: image.clone(),
            its: Span { oldest: status.cli_api_min_version, newest: status.cli_api_version },
            ours: match self.take_over {
                TakeOver::OfAnyAge => Some(ours),
                TakeOver::OfOlder => None,
            },
        }
    }

    /// Why no upgrade can begin, whatever the volumes are.
    pub fn hold(&self) -> Option<Hold> {
        let image = || self.target.clone();
        if self.target.is_empty() {
            return Some(Hold::NoTarget);
        }
        let Some(target) = self.images.get(&self.target) else {
            return Some(Hold::Unknown { image: image() });
        };
        if target.incompatible {
            return Some(Hold::Incompatible(self.misfit(&self.target, target)));
        }
        if !target.node_deployment_map.values().any(|there| *there) {
            return Some(Hold::Nowhere { image: image() });
        }
        if self.policy.per_node == 0 {
            return Some(Hold::Off);
        }
        self.policy.paused.then_some(Hold::Paused)
    }
}

/// What the rules ask of an image. What changes all the time and decides nothing is left out, so that two worlds are
/// equal exactly if they lead to the same decisions.
fn facts_of(image: &EngineImage) -> EngineImageStatus {
    let status = image.status.clone().unwrap_or_default();
    EngineImageStatus {
        incompatible: status.incompatible,
        node_deployment_map: status.node_deployment_map,
        git_commit: status.git_commit,
        cli_api_version: status.cli_api_version,
        cli_api_min_version: status.cli_api_min_version,
        controller_api_version: status.controller_api_version,
        controller_api_min_version: status.controller_api_min_version,
        data_format_version: status.data_format_version,
        ..EngineImageStatus::default()
    }
}
