//! What must hold in every state, and what must be possible in some, lest the check
//! be of a world in which nothing happens.

use stateright::Property;

use super::{
    state::{Fault, State},
    step::Plane,
};
use crate::{
    engine::{
        core::Phase,
        members::{Mode, Service},
    },
    sim::network::Node,
};

pub(super) const KEPT: &str = "no acknowledged write is lost";
pub(super) const EPOCHS_APART: &str = "writes of two epochs never interleave at a replica";
pub(super) const ONLY_GROWS: &str = "epochs and versions only grow";
pub(super) const COUNTED: &str = "a write is acknowledged when every copy in service has it";
pub(super) const RECORD_FIRST: &str = "a copy is given up only after the record says so";
pub(super) const GOES_ON: &str = "I/O goes on while a copy in service that has everything can be reached";
const NO_ERROR: &str = "a client sees a pause, never an error or an old block";

/// What happens somewhere in a world in which anything may.
pub(super) const SWITCHED: &str = "another engine serves";
pub(super) const DROPPED: &str = "a copy is dropped";
pub(super) const REBUILT: &str = "a dropped copy is back in service";

pub(super) fn all() -> Vec<Property<Plane>> {
    vec![
        Property::always(KEPT, |_, state: &State| is_kept(state)),
        Property::always(EPOCHS_APART, |_, state: &State| !state.faults.contains(&Fault::Interleaved)),
        Property::always(ONLY_GROWS, |_, state: &State| {
            !state.faults.contains(&Fault::WentBack) && promises_stand(state)
        }),
        Property::always(COUNTED, |_, state: &State| !state.faults.contains(&Fault::AcknowledgedEarly)),
        Property::always(RECORD_FIRST, |_, state: &State| is_record_first(state)),
        Property::always(NO_ERROR, |_, state: &State| {
            !state.faults.contains(&Fault::ClientError) && !state.faults.contains(&Fault::StaleRead)
        }),
        Property::always(GOES_ON, |_, state: &State| goes_on(state)),
        Property::sometimes(SWITCHED, |_, state: &State| {
            state.engines.len() > 1 && serves(state, state.engines.len() - 1)
        }),
        Property::sometimes(DROPPED, |_, state: &State| {
            (0..state.replicas.len()).any(|at| state.mode(at) == Mode::Out)
        }),
        Property::sometimes(REBUILT, |_, state: &State| {
            // Out, rebuilding, in service: three changes of the record.
            let record = state.record();
            record.member_version >= 4 && record.in_service() == state.replicas.len()
        }),
    ]
}

/// Every copy that the record counts, and that has not lost power, has every
/// acknowledged write or a later one; and there is such a copy.
fn is_kept(state: &State) -> bool {
    let counts = |at: &usize| state.mode(*at) == Mode::InService && !state.replicas[*at].lost;
    let mut copies = (0..state.replicas.len()).filter(counts).peekable();
    let written = (0..).zip(&state.client.acknowledged).filter(|(_, known)| **known > 0);
    let written: Vec<(u8, u8)> = written.map(|(block, known)| (block, *known)).collect();
    copies.peek().is_some()
        && copies.all(|at| written.iter().all(|(block, known)| state.holds(at, *block) >= *known))
}

/// A replica never promises less than what it has acknowledged a write under.
fn promises_stand(state: &State) -> bool {
    state.replicas.iter().all(|node| {
        let promised = node.process.as_ref().map(|process| process.look(|process| process.core.promised()));
        promised.is_none_or(|promised| promised >= node.answered)
    })
}

/// An engine that the record names does without a member only if the record does.
fn is_record_first(state: &State) -> bool {
    let term = state.record().term;
    state.engines.iter().all(|node| {
        node.look(|node| match &node.core {
            Some(core) if node.epoch.term() == term => core
                .services()
                .into_iter()
                .enumerate()
                .all(|(at, service)| service != Service::Out || state.mode(at) != Mode::InService),
            Some(_) | None => true,
        })
    })
}

fn serves(state: &State, at: usize) -> bool {
    state.engines[at].look(|node| node.core.as_ref().is_some_and(|core| core.phase() == Phase::Serving))
}

/// When nothing is on its way and nothing bad happens any more, the client gets all
/// its answers by waiting. Every state leads to such a one by what is on its way.
fn goes_on(state: &State) -> bool {
    let answered =
        |state: &State| state.client.open.is_empty() && state.client.issued == state.scope.ops.len();
    if !state.faults.is_empty() || !state.is_quiet() || answered(state) {
        return true;
    }
    let mut later = state.clone();
    // One that has lost power may lack what another has, which is waited for; also after it was copied to, until it has
    // noted that it is in service.
    let vouches = |at: usize| {
        let process = state.replicas[at].process.as_ref();
        !state.replicas[at].lost
            && process.is_some_and(|process| process.look(|process| process.core.vouches()))
    };
    let reachable =
        |at: usize| state.mode(at) == Mode::InService && state.lives(Node::Replica(at)) && vouches(at);
    if !(0..state.replicas.len()).any(reachable) {
        let dead: Vec<usize> =
            (0..state.replicas.len()).filter(|at| !state.lives(Node::Replica(*at))).collect();
        dead.into_iter().for_each(|at| later.start_replica(at));
        later.connect_members();
    }
    later.wait(answered)
}
