//! Why an upgrade does not happen, and what would make it happen.
//!
//! The invariant: every reason reaches the user in the same words, in the plan, in conditions and in
//! events, and each of them names a way out.

use std::fmt;

use jiff::Timestamp;
use midflight_api::longhorn::VolumeState;
use midflight_api::settings::ENGINE_UPGRADE_LIMIT;
use midflight_api::{ImageRef, NodeName};

/// Versions from the oldest to the newest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub oldest: i32,
    pub newest: i32,
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.oldest == self.newest {
            true => write!(f, "version {}", self.newest),
            false => write!(f, "versions {} to {}", self.oldest, self.newest),
        }
    }
}

/// An image whose instances the controllers of the cluster cannot speak to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Incompatible {
    pub image: ImageRef,
    pub its: Span,
    /// What the controllers speak, if that is known.
    pub ours: Option<Span>,
}

impl fmt::Display for Incompatible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Incompatible { image, its, ours } = self;
        write!(
            f,
            "{image} is not compatible with this cluster: it has {its} of the instance managers' API, "
        )?;
        match ours {
            Some(ours) => write!(f, "and the controllers here have {ours}"),
            None => f.write_str("and the manager here has none of them"),
        }
    }
}

/// Why no upgrade begins in the whole cluster.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Hold {
    #[error("no image is the default: the setting default-engine-image is empty")]
    NoTarget,
    #[error("there is no EngineImage for {image}")]
    Unknown { image: ImageRef },
    #[error(transparent)]
    Incompatible(Incompatible),
    #[error("{image} is not deployed on any node yet")]
    Nowhere { image: ImageRef },
    #[error("automatic engine upgrades are off: {setting} is 0", setting = ENGINE_UPGRADE_LIMIT)]
    Off,
    #[error("automatic engine upgrades are paused")]
    Paused,
    #[error("halted: {failed} volumes failed to move, and {threshold} are enough to stop")]
    Halted { failed: usize, threshold: usize },
}

/// What helps where an image is not compatible.
const FITTING: &str = "choose an image whose versions this cluster supports, or upgrade Midflight first";

impl Hold {
    /// One word that a program can match on.
    pub fn word(&self) -> &'static str {
        match self {
            Hold::NoTarget => "NoDefaultImage",
            Hold::Unknown { .. } => "DefaultImageUnknown",
            Hold::Incompatible(_) => "ImageIncompatible",
            Hold::Nowhere { .. } => "DefaultImageNotDeployed",
            Hold::Off => "Off",
            Hold::Paused => "Paused",
            Hold::Halted { .. } => "Halted",
        }
    }

    /// What would let upgrades begin.
    pub fn way_out(&self) -> String {
        match self {
            Hold::NoTarget => "set default-engine-image, or name an image with --to".into(),
            Hold::Unknown { image } => format!("create an EngineImage with spec.image {image}"),
            Hold::Incompatible(_) => FITTING.into(),
            Hold::Nowhere { .. } => {
                "wait until its DaemonSet runs; the condition `ready` of the EngineImage says what is in the way".into()
            }
            Hold::Off => format!("set {ENGINE_UPGRADE_LIMIT} to 1 or more"),
            Hold::Paused => "`midflight upgrade engines --resume`, or set automatic-engine-upgrade-paused to false".into(),
            Hold::Halted { .. } => "find out why the volumes failed; then raise automatic-engine-upgrade-failure-threshold, \
                choose another default image, or remove the annotation midflight.dev/engine-upgrade-attempt from them"
                .into(),
        }
    }
}

/// Why a volume is left out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    #[error("it is being deleted")]
    Deleting,
    #[error("it is a v2 volume, whose engine runs in the instance manager of its node")]
    DataEngineV2,
    #[error("its annotation midflight.dev/engine-upgrade leaves it out")]
    OptedOut,
    #[error("it follows a backup (DR), and a new engine would begin a restore that is under way anew")]
    Standby,
    #[error(transparent)]
    Incompatible(Incompatible),
    #[error("it is expanding")]
    Expanding,
    #[error("it is being restored")]
    Restoring,
    #[error("it is moving to another node")]
    Migrating,
    #[error("it has no engine image yet")]
    NoImageYet,
    #[error("it is {0}")]
    Unsettled(VolumeState),
    #[error("it is faulted: no replica is left to serve")]
    Faulted,
    #[error("it is degraded: a replica is missing or being rebuilt")]
    Degraded,
    #[error("it is attached, and how many replicas serve is not known")]
    RobustnessUnknown,
    #[error("it is attached and strict-local, and such a volume cannot change its engine live")]
    StrictLocal,
    #[error("it has no replica and no node yet")]
    NotPlaced,
    #[error("nothing is known of the image {0} that it runs, so a live change cannot be judged")]
    CurrentUnknown(ImageRef),
    #[error("its engine has {runs} of the engine's interface, and the new image takes over from {takes}")]
    ApiVersions { runs: Span, takes: Span },
    #[error("the new image has not said yet which versions of the engine's interface it takes over from")]
    VersionsUnknown,
    #[error("both images were built from the commit {commit}, so a live change would change nothing")]
    SameCommit { commit: String },
    #[error("it was finalized for {image}, whose format on disk the new image cannot read")]
    Finalized { image: ImageRef },
    #[error("the new image is not on {}", list(.nodes))]
    NotOnNodes { nodes: Vec<NodeName> },
    #[error("it failed {failures} times to move, and rests until {until}")]
    BackingOff { failures: u32, until: Timestamp },
    #[error("somebody took its last move back, and it rests until {until}")]
    TakenBack { until: Timestamp },
    #[error("the API refused {times} times to change it, and is asked again at {until}; it said: {said}")]
    Refused { times: u32, until: Timestamp, said: String },
}

impl Reason {
    /// One word that a program can match on.
    pub fn word(&self) -> &'static str {
        match self {
            Reason::Deleting => "Deleting",
            Reason::DataEngineV2 => "DataEngineV2",
            Reason::OptedOut => "OptedOut",
            Reason::Standby => "Standby",
            Reason::Incompatible(_) => "ImageIncompatible",
            Reason::Expanding => "Expanding",
            Reason::Restoring => "Restoring",
            Reason::Migrating => "Migrating",
            Reason::NoImageYet => "NoImageYet",
            Reason::Unsettled(_) => "Unsettled",
            Reason::Faulted => "Faulted",
            Reason::Degraded => "Degraded",
            Reason::RobustnessUnknown => "RobustnessUnknown",
            Reason::StrictLocal => "StrictLocal",
            Reason::NotPlaced => "NotPlaced",
            Reason::CurrentUnknown(_) => "CurrentImageUnknown",
            Reason::ApiVersions { .. } => "IncompatibleVersions",
            Reason::VersionsUnknown => "VersionsUnknown",
            Reason::SameCommit { .. } => "SameCommit",
            Reason::Finalized { .. } => "Finalized",
            Reason::NotOnNodes { .. } => "ImageNotOnNodes",
            Reason::BackingOff { .. } => "BackingOff",
            Reason::TakenBack { .. } => "TakenBack",
            Reason::Refused { .. } => "ChangeRefused",
        }
    }

    /// What would let the volume move.
    pub fn way_out(&self) -> &'static str {
        match self {
            Reason::Deleting => "nothing: it goes away",
            Reason::DataEngineV2 => "upgrade the data engine of its nodes instead",
            Reason::OptedOut => "remove the annotation midflight.dev/engine-upgrade",
            Reason::Standby => "activate it, or set the limit to 0 and change spec.image by hand",
            Reason::Incompatible(_) => FITTING,
            Reason::Expanding => "wait until it has grown",
            Reason::Restoring => "wait until it is restored",
            Reason::Migrating => "wait until it has moved",
            Reason::NoImageYet | Reason::Unsettled(_) => "wait until it is attached or detached",
            Reason::Faulted => "salvage it, or restore it from a backup",
            Reason::Degraded => {
                "wait for the rebuild; if none runs, make room for the replica or lower numberOfReplicas"
            }
            Reason::RobustnessUnknown => "wait for its controller to look at it",
            Reason::StrictLocal | Reason::CurrentUnknown(_) | Reason::ApiVersions { .. } => {
                "scale its workload down and up: it moves while it is detached"
            }
            Reason::VersionsUnknown => {
                "wait: its binary is asked once a node has it; the condition `ready` of the EngineImage says if it does not answer"
            }
            Reason::SameCommit { .. } => {
                "scale its workload down and up, or set allow-live-engine-upgrade-on-same-image-commit to true"
            }
            Reason::NotPlaced => "make room for its replicas",
            Reason::Finalized { .. } => {
                "choose a default image that is not older than the one it was finalized for"
            }
            Reason::NotOnNodes { .. } => "wait for the image on these nodes, or bring them back",
            Reason::BackingOff { .. } | Reason::TakenBack { .. } => {
                "wait, or remove its annotation midflight.dev/engine-upgrade-attempt to try at once"
            }
            Reason::Refused { .. } => {
                "mend what the API says: a webhook, a policy or a right that the operator lacks"
            }
        }
    }

    /// Whether people are to be told: it waits for something, or somebody has asked for it to be left alone.
    pub fn is_news(&self) -> bool {
        self.is_waiting() || *self == Reason::OptedOut
    }

    /// Whether the volume is meant to move and only waits for something.
    pub fn is_waiting(&self) -> bool {
        !matches!(self, Reason::Deleting | Reason::DataEngineV2 | Reason::OptedOut)
    }
}

fn list(nodes: &[NodeName]) -> String {
    nodes.iter().map(NodeName::as_str).collect::<Vec<_>>().join(", ")
}
