//! Moves the engine of a v2 volume to another node under its clients.
//!
//! ```text
//! the next term goes to an engine on the other node ─▶ that starts ─▶ switch-over ─▶ the old one ends
//! it does not serve there ─▶ the same again, to where it can: home, or back from a home that fails
//! ```
//!
//! The frontend stays on the node that the volume is attached to: nothing moves while the instance manager of that node
//! cannot tell it where to go.
//!
//! The invariant: a node whose engine has failed is not asked again until somebody asks for it again; only home is tried again
//! by itself.

use jiff::{SignedDuration, Timestamp};
use midflight_api::NodeName;
use midflight_api::longhorn::{
    Frontend, InstanceState, SwitchoverState, TargetMove, TargetMoveReason, TargetMoveState,
};

use super::seen::{Manager, Observed};
use super::step::{Step, start_engine};
use super::{Action, Wait};

/// An engine serves on its new node within this, or it has failed there.
const SERVES_WITHIN: SignedDuration = SignedDuration::from_secs(30);
/// When a target that could not be brought home is brought home again.
const HOME_AGAIN_AFTER: SignedDuration = SignedDuration::from_secs(30);
/// An engine that ended so often while it should take over does not serve.
const MOST_RESTARTS: i64 = 3;

/// The node that the engine is asked to be on, where that can be another than the clients'.
fn asked(seen: &Observed) -> Option<&NodeName> {
    let home = seen.attached_node().filter(|_| !seen.has_processes() && seen.wanted_node().is_some())?;
    Some(Some(&seen.volume.spec.target_node_id).filter(|node| !node.is_empty()).unwrap_or(home))
}

/// Why the engine does not serve on the node that it is asked to be on, if that shows.
fn failure(seen: &Observed) -> Option<(TargetMoveReason, String)> {
    let (asked, home, seat) = (asked(seen)?, seen.attached_node()?, seen.seat()?);
    let known = seen.target_move();
    let is_moving = seen.is_switching() && known.state == TargetMoveState::Moving && known.to == *asked;
    if seat.node_id != *asked || !(is_moving || asked != home) {
        return None;
    }
    let Some(manager) = seen.manager(asked, seat.name.as_str()) else {
        // Without the instance manager of its own node the frontend can be told nothing.
        let why =
            || (TargetMoveReason::NodeLost, format!("the instance manager of node {asked} does not answer"));
        return (asked != home).then(why);
    };
    if let Some(engine) = manager.find(seat.name.as_str()) {
        if engine.state == InstanceState::Error {
            return Some((
                TargetMoveReason::EngineFailed,
                format!("its engine does not run: {}", engine.why),
            ));
        }
        if is_moving && engine.restarts >= MOST_RESTARTS {
            return Some((
                TargetMoveReason::EngineFailed,
                format!("its engine ended {} times", engine.restarts),
            ));
        }
    }
    let since = known.at.as_str().parse::<Timestamp>().ok()?;
    let is_late = is_moving && since.saturating_add(SERVES_WITHIN).is_ok_and(|until| until <= seen.now);
    let why = || format!("its engine did not serve within {} s", SERVES_WITHIN.as_secs());
    is_late.then(|| (TargetMoveReason::NotInTime, why()))
}

/// Until when a node that has failed is left alone; `None` if it is not, or has not failed.
fn failed_until(seen: &Observed) -> Option<Timestamp> {
    let (asked, known) = (asked(seen)?, seen.target_move());
    if failure(seen).is_some() {
        return Some(Timestamp::MAX);
    }
    if known.state != TargetMoveState::Failed || known.to != *asked {
        return None;
    }
    if Some(asked) != seen.attached_node() {
        return Some(Timestamp::MAX);
    }
    let since = known.at.as_str().parse::<Timestamp>().unwrap_or(seen.now);
    since.saturating_add(HOME_AGAIN_AFTER).ok().filter(|until| *until > seen.now)
}

/// The node that the engine should be on.
fn belongs(seen: &Observed) -> Option<NodeName> {
    let (asked, home) = (asked(seen)?, seen.attached_node()?);
    if failed_until(seen).is_none() {
        return Some(asked.clone());
    }
    if asked != home {
        return Some(home.clone());
    }
    let from = seen.target_move().from;
    let here = seen.seat().map(|seat| seat.node_id.clone());
    let copies = seen.in_service().map(|member| member.node_id.clone());
    let can = |node: &NodeName| node != home && seen.manager(node, "").is_some();
    Some(here.into_iter().chain([from]).chain(copies).find(can).unwrap_or_else(|| home.clone()))
}

/// The instance manager that tells the frontend where to go; none is needed without a frontend.
fn guide(seen: &Observed) -> Result<Option<&Manager>, Wait> {
    match (seen.volume.spec.frontend, seen.attached_node()) {
        (Frontend::None, _) | (_, None) => Ok(None),
        (_, Some(home)) => seen.manager(home, "").map(Some).ok_or_else(|| Wait::NoManager(home.clone())),
    }
}

/// Where the engine is to go, if it is elsewhere and can go there.
fn goal(seen: &Observed) -> Option<NodeName> {
    let goal = belongs(seen).filter(|node| seen.seat().is_some_and(|seat| seat.node_id != *node))?;
    (guide(seen).is_ok() && seen.manager(&goal, "").is_some()).then_some(goal)
}

/// Leaves a node whose engine is lost or has failed, or that is not asked for any more before it serves.
pub(super) fn escape(seen: &Observed) -> Option<Step> {
    let (goal, seat) = (goal(seen)?, seen.seat()?);
    let is_lost = seen.manager(&seat.node_id, seat.name.as_str()).is_none();
    let is_hurried = is_lost || seen.is_switching() || failure(seen).is_some();
    is_hurried.then_some(Ok(Action::MoveEngine { node: goal }))
}

/// Begins to move the engine of a volume that serves and is at rest.
pub(super) fn begin(seen: &Observed) -> Option<Step> {
    let goal = goal(seen)?;
    let runs = seen.running_engine().is_some_and(|(_, engine)| engine.state == InstanceState::Running);
    let is_open = seen.volume.spec.frontend == Frontend::None || seen.endpoint().is_some();
    let grows =
        seen.serving.as_ref().is_some_and(|serving| serving.serving && serving.size != seen.volume.spec.size);
    (runs && is_open && seen.serves() && !grows).then_some(Ok(Action::MoveEngine { node: goal }))
}

/// Brings the engine that has got the term to serve.
pub(super) fn switch(seen: &Observed, manager: &str) -> Option<Step> {
    if seen.has_processes() || !seen.is_switching() {
        return None;
    }
    let start = || start_engine(seen, manager.to_owned(), seen.current_image().clone());
    let Some((_, engine)) = seen.running_engine() else { return Some(start()) };
    Some(match engine.state {
        InstanceState::Running | InstanceState::Suspended if seen.serves() => Ok(Action::EndSwitch),
        InstanceState::Running | InstanceState::Suspended => match guide(seen) {
            Ok(Some(guide)) => {
                Ok(Action::SwitchOver { manager: guide.name.clone(), engine: engine.address.clone() })
            }
            Ok(None) => Ok(Action::EndSwitch),
            Err(wait) => Err(wait),
        },
        InstanceState::Starting => Err(Wait::EngineStarts),
        InstanceState::Stopped
        | InstanceState::Error
        | InstanceState::Stopping
        | InstanceState::Unknown
        | InstanceState::Terminated
        | InstanceState::Undefined
        | InstanceState::Unrecognised => start(),
    })
}

/// Why the target is not where it should be, if it is not. No watch tells when an engine begins to serve, so the volume is looked at
/// again until it was seen to.
pub(super) fn wait(seen: &Observed) -> Option<Wait> {
    let (asked, seat) = (asked(seen)?, seen.seat()?);
    let known = seen.target_move();
    if seat.node_id != *asked {
        let why = || known.message.to_string();
        return match failed_until(seen) {
            Some(until) if until < Timestamp::MAX => {
                Some(Wait::NotHome { node: asked.clone(), why: why(), until })
            }
            Some(_) => Some(Wait::TargetFailed { node: asked.clone(), why: why() }),
            None => Some(Wait::NoTarget(asked.clone())),
        };
    }
    let is_through = known.state != TargetMoveState::Moving || is_through(seen, &known);
    (!is_through).then_some(Wait::EngineStarts)
}

/// Whether the engine serves on its new node, and no other is left.
fn is_through(seen: &Observed, known: &TargetMove) -> bool {
    let is_there = seen.seat().is_some_and(|seat| seat.node_id == known.to);
    is_there && !seen.is_switching() && seen.serves() && seen.engines().count() == 1
}

/// Where the target was seen to serve.
pub(super) fn current(seen: &Observed) -> NodeName {
    let seat = seen.seat().filter(|_| seen.serves() && seen.attached_node().is_some());
    seat.map(|seat| seat.node_id.clone()).unwrap_or_default()
}

/// How far a change of hands is, in upstream's words.
pub(super) fn switchover(seen: &Observed) -> SwitchoverState {
    let (known, is_there) = (seen.target_move(), seen.running_engine().is_some());
    match (seen.is_switching(), known.state) {
        _ if seen.has_processes() => SwitchoverState::None,
        (true, TargetMoveState::Failed | TargetMoveState::TakenBack) => SwitchoverState::Reverting,
        (true, _) if is_there => SwitchoverState::SwitchingOver,
        (true, _) => SwitchoverState::Preparing,
        (false, TargetMoveState::Moving) if seen.serves() => SwitchoverState::Finalizing,
        (false, _) => SwitchoverState::None,
    }
}

/// What the status is to say of the move of the target, once the next step is done.
pub(super) fn moved(seen: &Observed, next: &Step) -> TargetMove {
    let known = seen.target_move();
    let Some(asked) = asked(seen) else { return known };
    let is_of_asked = known.to == *asked;
    if let Ok(Action::MoveEngine { node }) = next
        && node == asked
        && !(is_of_asked && known.state == TargetMoveState::Moving)
    {
        return TargetMove {
            state: TargetMoveState::Moving,
            from: seen.seat().map(|seat| seat.node_id.clone()).unwrap_or_default(),
            to: asked.clone(),
            at: seen.now.to_string().into(),
            ..TargetMove::default()
        };
    }
    if let Some((reason, message)) = failure(seen) {
        let is_told = is_of_asked && known.state == TargetMoveState::Failed;
        return match is_told {
            true => known,
            false => TargetMove {
                state: TargetMoveState::Failed,
                to: asked.clone(),
                at: seen.now.to_string().into(),
                reason,
                message: message.into(),
                ..known
            },
        };
    }
    match known.state {
        TargetMoveState::Moving | TargetMoveState::Failed if !is_of_asked => {
            TargetMove { state: TargetMoveState::TakenBack, ..known }
        }
        TargetMoveState::Moving if is_through(seen, &known) => {
            TargetMove { state: TargetMoveState::Done, ..known }
        }
        TargetMoveState::None
        | TargetMoveState::Moving
        | TargetMoveState::Done
        | TargetMoveState::Failed
        | TargetMoveState::TakenBack
        | TargetMoveState::Unrecognised => known,
    }
}
