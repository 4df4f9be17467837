//! Changes the engine image of a volume under its clients.
//!
//! ```text
//! the next term goes to an engine of the new image ─▶ that starts ─▶ switch-over ─▶ it proves itself
//!                ─▶ replica after replica follows the process before it ─▶ the volume runs the new image
//! any of it fails ─▶ the same again, with the image before
//! ```
//!
//! Where no client reaches the volume there is nothing to switch over: the next engine gets the volume, and the one before ends.
//!
//! The engine goes first: the newer of two builds speaks what the older does, so that replicas change under
//! either, forth and back, while their engine stays connected.
//!
//! The invariant: what is started in a term is of the image of that term's engine.

use jiff::{SignedDuration, Timestamp};
use midflight_api::longhorn::{EngineChange, EngineChangeState, Frontend, InstanceState};
use midflight_api::{ImageRef, Member, MemberMode};

use super::seen::{Instance, Manager, Observed, Reach};
use super::step::{Step, start_engine};
use super::{Action, Wait};
use crate::storage::engine_image;

/// A new engine serves within this, or it has failed.
const SERVES_WITHIN: SignedDuration = SignedDuration::from_secs(30);
/// How long a new engine has to serve before the replicas follow.
const PROVES_FOR: SignedDuration = SignedDuration::from_secs(2);
/// All replicas have followed within this, or the image has failed.
const FOLLOWED_WITHIN: SignedDuration = SignedDuration::from_mins(5);
/// An engine that ended so often since it was started does not serve.
const MOST_RESTARTS: i64 = 3;

/// The image that the volume is to run: the one that is asked for, unless that has failed.
pub(super) fn wanted(seen: &Observed) -> ImageRef {
    let change = seen.change();
    let asked = &seen.volume.spec.image;
    let has_failed = change.state == EngineChangeState::Failed && change.image == *asked;
    if has_failed || failure(seen).is_some() { seen.current_image().clone() } else { asked.clone() }
}

/// Why the image that the volume is moving to does not serve, if that shows.
fn failure(seen: &Observed) -> Option<String> {
    let change = seen.change();
    let is_moving = change.state == EngineChangeState::Moving && change.image == seen.volume.spec.image;
    if !is_moving || seen.wanted_node().is_none() {
        return None;
    }
    let engine =
        seen.running_engine().map(|(_, engine)| engine).filter(|engine| is_of(engine, &change.image));
    if let Some(engine) = engine {
        if engine.state == InstanceState::Error {
            return Some(format!("its engine does not run: {}", engine.why));
        }
        if engine.restarts >= MOST_RESTARTS {
            return Some(format!("its engine ended {} times", engine.restarts));
        }
    }
    let since = change.at.as_str().parse::<Timestamp>().ok()?;
    let is_past = |limit| since.saturating_add(limit).is_ok_and(|until| until <= seen.now);
    if seen.is_switching() && is_past(SERVES_WITHIN) {
        return Some(format!("its engine did not serve within {} s", SERVES_WITHIN.as_secs()));
    }
    is_past(FOLLOWED_WITHIN)
        .then(|| format!("its replicas did not follow within {} s", FOLLOWED_WITHIN.as_secs()))
}

fn is_of(instance: &Instance, image: &ImageRef) -> bool {
    instance.binary == engine_image::binary(image)
}

/// Brings the engine that has got the term to serve.
pub(super) fn switch(seen: &Observed, manager: &str) -> Option<Step> {
    if !seen.is_switching() || !seen.has_processes() {
        return None;
    }
    let image = wanted(seen);
    let Some((_, engine)) = seen.running_engine() else {
        return Some(start_engine(seen, manager.to_owned(), image));
    };
    if !is_of(engine, &image) {
        return Some(Ok(Action::ChangeEngine { image }));
    }
    Some(match engine.state {
        InstanceState::Running | InstanceState::Suspended if seen.endpoint().is_none() || serves(seen) => {
            Ok(Action::EndSwitch)
        }
        InstanceState::Running | InstanceState::Suspended => {
            Ok(Action::SwitchOver { manager: manager.to_owned(), engine: engine.address.clone() })
        }
        InstanceState::Starting => Err(Wait::EngineStarts),
        InstanceState::Stopped
        | InstanceState::Error
        | InstanceState::Stopping
        | InstanceState::Unknown
        | InstanceState::Terminated
        | InstanceState::Undefined
        | InstanceState::Unrecognised => start_engine(seen, manager.to_owned(), image),
    })
}

/// Whether the engine does what it is there for. One that no client reaches serves whoever brings the volume to its backup; where
/// nobody does, it has only to run.
fn serves(seen: &Observed) -> bool {
    match seen.frontend() {
        Frontend::None if !seen.follows_backup() => {
            seen.running_engine().is_some_and(|(_, engine)| engine.state == InstanceState::Running)
        }
        Frontend::None
        | Frontend::Blockdev
        | Frontend::Iscsi
        | Frontend::Nvmf
        | Frontend::Ublk
        | Frontend::Nbd
        | Frontend::Unrecognised => seen.serving.as_ref().is_some_and(|serving| serving.serving),
    }
}

/// The engine that is up, where it is a process and clients reach it or are not to.
fn process(seen: &Observed) -> Option<&Instance> {
    let is_up = seen.endpoint().is_some() || seen.frontend() == Frontend::None;
    seen.running_engine().map(|(_, engine)| engine).filter(|_| seen.has_processes() && is_up)
}

/// Leaves an engine that does not run for one of the image that is asked for by now, before any client has the volume.
pub(super) fn instead(seen: &Observed) -> Option<Step> {
    let (_, engine) = seen.running_engine()?;
    let is_free = seen.has_processes() && seen.endpoint().is_none() && engine.state == InstanceState::Error;
    let image = wanted(seen);
    (is_free && !is_of(engine, &image)).then_some(Ok(Action::ChangeEngine { image }))
}

/// Leaves an engine whose image has failed, or that nobody asks for any more.
pub(super) fn back(seen: &Observed) -> Option<Step> {
    let (engine, image) = (process(seen)?, wanted(seen));
    let is_way_back = image == *seen.current_image() && !is_of(engine, &image);
    is_way_back.then_some(Ok(Action::ChangeEngine { image }))
}

/// Begins to change the engine of a volume that is whole and at rest.
pub(super) fn begin(seen: &Observed) -> Option<Step> {
    let (engine, image) = (process(seen)?, wanted(seen));
    let is_at_rest = serves(seen) && engine.state == InstanceState::Running && !seen.is_to_grow();
    let is_begun = is_of(engine, &image) || !is_at_rest || !is_whole(seen);
    (!is_begun).then_some(Ok(Action::ChangeEngine { image }))
}

/// Whether every replica that the volume should have is in service and can be reached.
fn is_whole(seen: &Observed) -> bool {
    let up = |member: &&Member| member.mode == MemberMode::ReadWrite && reached(seen, member).is_some();
    let count = seen.members().iter().filter(up).count();
    count == seen.members().len() && count >= seen.wanted_replicas()
}

fn reached<'a>(seen: &'a Observed, member: &Member) -> Option<(&'a Manager, &'a Instance)> {
    match seen.reach(&member.replica, &member.node_id) {
        Reach::Up(_) => {
            let manager = seen.manager(&member.node_id, member.replica.as_str())?;
            Some((manager, manager.find(member.replica.as_str())?))
        }
        Reach::Starting | Reach::Down(_) | Reach::Failed(_) | Reach::Lost => None,
    }
}

/// Lets one replica after the other follow the engine, while all the others serve.
pub(super) fn follow(seen: &Observed) -> Option<Step> {
    let engine = process(seen).filter(|_| serves(seen) && is_whole(seen))?;
    let image = seen.image_of(engine)?;
    let (member, manager) = seen.members().iter().find_map(|member| {
        let (manager, replica) = reached(seen, member)?;
        (!is_of(replica, &image)).then_some((member, manager))
    })?;
    if let Some(until) = proves_until(seen) {
        return Some(Err(Wait::Proving { image, until }));
    }
    let (manager, replica) = (manager.name.clone(), member.replica.clone());
    Some(Ok(Action::StartReplica { manager, replica, image, existing: seen.has_data(member) }))
}

/// Why a volume that needs nothing else is at rest. While something of it is of another image it is looked at again, since no
/// watch tells when its engine begins to serve.
pub(super) fn rest(seen: &Observed) -> Wait {
    let Some(engine) = process(seen) else { return Wait::Content };
    let follows =
        |member: &Member| reached(seen, member).is_none_or(|(_, replica)| replica.binary == engine.binary);
    match is_of(engine, &wanted(seen)) && seen.members().iter().all(follows) {
        true => Wait::Content,
        false => Wait::EngineStarts,
    }
}

/// Until when the new engine is watched, if that is not over. The image before needs no proof.
fn proves_until(seen: &Observed) -> Option<Timestamp> {
    let change = seen.change();
    let since = change.at.as_str().parse::<Timestamp>().ok()?;
    let until = since.saturating_add(PROVES_FOR).ok()?;
    (change.state == EngineChangeState::Moving && seen.now < until).then_some(until)
}

/// Whether all of the volume that can be seen runs the image that is asked for.
fn is_through(seen: &Observed) -> bool {
    let asked = &seen.volume.spec.image;
    let Some((_, engine)) = seen.running_engine() else { return false };
    let followed = |member: &Member| reached(seen, member).is_none_or(|(_, replica)| is_of(replica, asked));
    engine.state == InstanceState::Running
        && is_of(engine, asked)
        && !seen.is_switching()
        && serves(seen)
        && proves_until(seen).is_none()
        && seen.members().iter().all(followed)
        && seen.engines().count() == 1
}

/// The image that the volume runs: a v2 engine that of its instance manager. One that is not attached, or of which nothing runs, runs
/// what it is to run.
pub(super) fn image(seen: &Observed, is_moving: bool) -> ImageRef {
    match is_moving {
        true if seen.has_processes() && is_through(seen) => seen.volume.spec.image.clone(),
        true if seen.is_down() => wanted(seen),
        true if seen.has_processes() => seen.current_image().clone(),
        true => match seen.running_engine() {
            Some((manager, _)) => manager.image.clone(),
            None => seen.current_image().clone(),
        },
        false if seen.has_processes() => wanted(seen),
        false => seen.volume.spec.image.clone(),
    }
}

/// What the status is to say of the change of the engine image, once the next step is done.
pub(super) fn change(seen: &Observed, next: &Step, runs: &ImageRef) -> EngineChange {
    let change = seen.change();
    let asked = &seen.volume.spec.image;
    match next {
        Ok(Action::ChangeEngine { image }) if image == asked && image != seen.current_image() => {
            return EngineChange {
                state: EngineChangeState::Moving,
                image: image.clone(),
                at: seen.now.to_string().into(),
                ..EngineChange::default()
            };
        }
        Ok(_) | Err(_) => {}
    }
    if let Some(why) = failure(seen) {
        return EngineChange { state: EngineChangeState::Failed, message: why.into(), ..change };
    }
    match change.state {
        EngineChangeState::Moving | EngineChangeState::Failed if change.image != *asked => {
            EngineChange { state: EngineChangeState::TakenBack, ..change }
        }
        EngineChangeState::Moving if runs == asked => {
            EngineChange { state: EngineChangeState::Done, ..change }
        }
        EngineChangeState::None
        | EngineChangeState::Moving
        | EngineChangeState::Done
        | EngineChangeState::Failed
        | EngineChangeState::TakenBack
        | EngineChangeState::Unrecognised => change,
    }
}
