//! Says why a volume is not at rest: what it waits for, or what keeps a step from being done that is tried again and again.
//!
//! The invariant: that a step was refused is told as long as the same step is the next one, and no longer.

use midflight_api::longhorn::InstanceState;
use midflight_api::{ImageRef, NodeName};

use super::seen::Observed;
use super::{Action, Wait};

/// Condition of a volume: whether nothing is waited for.
pub const SETTLED: &str = "Settled";
/// Reason of that condition: what is waited for comes by itself.
pub const MOVING: &str = "Moving";
/// Reason of that condition: replicas were told to leave for a while, by an upgrade of their nodes or by somebody.
pub const REPLICAS_AWAY: &str = "ReplicasAway";
/// Reason of that condition: the node that the volume is attached to is lost, and nobody is served.
pub const NODE_LOST: &str = "NodeLost";
/// How much of a refusal is told.
const LONGEST: usize = 1000;

/// Why a volume is not at rest. Shown to the user verbatim.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unsettled {
    #[error("{0}")]
    Waiting(String),
    /// It ends by itself.
    #[error("{0}")]
    Moving(String),
    /// Copies are away that come back when they are told to.
    #[error("{0}")]
    Away(String),
    #[error(
        "node {0}, to which it is attached, is lost, and its clients with it: the node is not Ready, and no instance manager answers there; it serves there again when the node is back, and elsewhere as soon as it is detached and attached to another node"
    )]
    NodeLost(NodeName),
    #[error(
        "there is no EngineImage of {0}, so that no node has it; create one, or set spec.image to an image that there is"
    )]
    NoEngineImage(ImageRef),
    #[error("engine image {image} is on no node: {why}")]
    ImageOnNoNode { image: ImageRef, why: String },
    #[error("engine image {image} is not on node {node}: {why}")]
    ImageNotOnNode { image: ImageRef, node: NodeName, why: String },
    #[error("its engine does not run: {0}")]
    EngineFails(String),
    #[error("{doing}: {why}")]
    Refused { doing: String, why: String },
}

impl Unsettled {
    /// One word that a program can match on.
    pub fn reason(&self) -> &'static str {
        match self {
            Unsettled::Waiting(_) => "Waiting",
            Unsettled::Moving(_) => MOVING,
            Unsettled::Away(_) => REPLICAS_AWAY,
            Unsettled::NodeLost(_) => NODE_LOST,
            Unsettled::NoEngineImage(_) => "NoEngineImage",
            Unsettled::ImageOnNoNode { .. } => "ImageOnNoNode",
            Unsettled::ImageNotOnNode { .. } => "ImageNotOnNode",
            Unsettled::EngineFails(_) => "EngineFails",
            Unsettled::Refused { .. } => "Refused",
        }
    }

    /// Whether a condition says this already; the words of a refusal may be others each time.
    pub fn is_said_by(&self, reason: &str, message: &str) -> bool {
        let says = match self {
            Unsettled::Refused { doing, .. } => message.starts_with(&format!("{doing}: ")),
            Unsettled::Waiting(_)
            | Unsettled::Moving(_)
            | Unsettled::Away(_)
            | Unsettled::NodeLost(_)
            | Unsettled::NoEngineImage(_)
            | Unsettled::ImageOnNoNode { .. }
            | Unsettled::ImageNotOnNode { .. }
            | Unsettled::EngineFails(_) => message == self.to_string(),
        };
        says && reason == self.reason()
    }

    /// Whether a condition with this reason ends when nodes get an image.
    pub fn waits_for_image(reason: &str) -> bool {
        matches!(reason, "NoEngineImage" | "ImageOnNoNode" | "ImageNotOnNode")
    }
}

/// What to say of something that is waited for.
pub(super) fn of_wait(wait: &Wait) -> Unsettled {
    let why = wait.to_string();
    match wait {
        Wait::ReplicaStarts(_)
        | Wait::EngineStarts
        | Wait::Missing { .. }
        | Wait::Rebuilding
        | Wait::Turn { .. }
        | Wait::Proving { .. }
        | Wait::NotHome { .. }
        | Wait::NodeUpgraded(_) => Unsettled::Moving(why),
        Wait::Left(_) => Unsettled::Away(why),
        Wait::Content
        | Wait::NoImage
        | Wait::NoSize
        | Wait::NoManager(_)
        | Wait::NoCopy(_)
        | Wait::NotSalvaged(_)
        | Wait::NoPlace(_)
        | Wait::CannotLeave { .. }
        | Wait::RebuildsOff
        | Wait::NoTarget(_)
        | Wait::TargetFailed { .. }
        | Wait::LastCopy { .. }
        | Wait::LastWhole { .. }
        | Wait::CannotRemove { .. } => Unsettled::Waiting(why),
    }
}

/// What is wrong while a step is tried, as far as it shows.
pub(super) fn of_step(seen: &Observed, action: &Action) -> Option<Unsettled> {
    missing_image(seen, action).or_else(|| engine_fails(seen)).or_else(|| refused_before(seen, action))
}

/// What to say of a step that an instance manager has refused for this reason; nothing of steps that are not its own.
pub fn refused(seen: &Observed, action: &Action, why: &str) -> Option<Unsettled> {
    let doing = doing(seen, action)?;
    let why = why.chars().take(LONGEST).collect();
    let known = missing_image(seen, action).or_else(|| engine_fails(seen));
    Some(known.unwrap_or(Unsettled::Refused { doing, why }))
}

/// Whether the image of a process that is to be started is not where it is to be.
fn missing_image(seen: &Observed, action: &Action) -> Option<Unsettled> {
    let (Action::StartReplica { manager, image, .. } | Action::StartEngine { manager, image, .. }) = action
    else {
        return None;
    };
    let node = seen.managers.iter().find(|known| known.name == *manager).map(|known| &known.node)?;
    if !seen.has_processes() {
        return None;
    }
    let Some(known) = seen.images.iter().find(|known| known.image == *image) else {
        return Some(Unsettled::NoEngineImage(image.clone()));
    };
    let own = format!("{image} on ");
    let why = match known.complaint.strip_prefix(&own).unwrap_or(&known.complaint) {
        "" => "it is on its way".to_owned(),
        complaint => complaint.to_owned(),
    };
    let (image, node) = (image.clone(), node.clone());
    match known.nodes.contains(&node) {
        true => None,
        false if known.nodes.is_empty() => Some(Unsettled::ImageOnNoNode { image, why }),
        false => Some(Unsettled::ImageNotOnNode { image, node, why }),
    }
}

/// What is wrong with the engine, while it is started again and again.
fn engine_fails(seen: &Observed) -> Option<Unsettled> {
    let (_, engine) = seen.running_engine()?;
    (engine.state == InstanceState::Error).then(|| Unsettled::EngineFails(engine.why.clone()))
}

/// Why the same step was refused the last time, as the status says.
fn refused_before(seen: &Observed, action: &Action) -> Option<Unsettled> {
    let doing = doing(seen, action)?;
    let settled = seen.volume.status.as_ref()?.conditions.get(SETTLED)?;
    let why = settled.message.as_str().strip_prefix(&format!("{doing}: "))?.to_owned();
    let refused = Unsettled::Refused { doing, why };
    (settled.reason == refused.reason()).then_some(refused)
}

/// What an instance manager is ordered to do by a step, if it is ordered anything.
fn doing(seen: &Observed, action: &Action) -> Option<String> {
    let at = |manager: &str| {
        let known = seen.managers.iter().find(|known| known.name == manager);
        known.map_or_else(String::new, |known| known.node.to_string())
    };
    Some(match action {
        Action::StartReplica { manager, replica, .. } => {
            format!("start replica {replica} on node {}", at(manager))
        }
        Action::StopReplica { manager, replica } => format!("stop replica {replica} on node {}", at(manager)),
        Action::StartEngine { manager, .. } => {
            format!("start engine {} on node {}", seen.engine_in_charge(), at(manager))
        }
        Action::StopEngine { manager, engine } => format!("stop engine {engine} on node {}", at(manager)),
        Action::SwitchOver { .. } => format!("switch over to engine {}", seen.engine_in_charge()),
        Action::AddReplica { replica, .. } => format!("tell the engine of replica {replica}"),
        Action::RemoveReplica { replica, .. } => format!("take replica {replica} out of service"),
        Action::ReleaseReplica { replica, .. } => format!("let replica {replica} leave"),
        Action::Expand { size, .. } => format!("grow to {size} bytes"),
        Action::Throttle { .. } => "limit rebuilds".to_owned(),
        Action::Bear { .. } => "say how long to wait for a replica".to_owned(),
        Action::Permit { .. } => "say which replicas to rebuild".to_owned(),
        Action::Offer { manager, .. } => format!("offer the volume to clients on node {}", at(manager)),
        Action::Withdraw { manager: Some(manager) } => {
            format!("take the volume from clients on node {}", at(manager))
        }
        Action::ForgetReplica { manager: Some(manager), replica } => {
            format!("remove replica {replica} from node {}", at(manager))
        }
        Action::Withdraw { manager: None }
        | Action::ForgetReplica { manager: None, .. }
        | Action::Protect { .. }
        | Action::MakeReplica { .. }
        | Action::MakeRecord { .. }
        | Action::MakeEngine { .. }
        | Action::TakeTerm { .. }
        | Action::EndAttachment
        | Action::Enlist { .. }
        | Action::Strike { .. }
        | Action::Salvage { .. }
        | Action::EndSalvage
        | Action::ChangeEngine { .. }
        | Action::MoveEngine { .. }
        | Action::ClearTarget
        | Action::EndSwitch
        | Action::DoubtReplica { .. }
        | Action::DeleteReplica { .. }
        | Action::DeleteEngine
        | Action::DeleteRecord
        | Action::Release => return None,
    })
}
