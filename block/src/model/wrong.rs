//! Parts that break one rule each, wrapped around the real ones: a check that never
//! fails proves nothing.

use super::state::State;
use crate::{
    engine::core as engine,
    epoch::Epoch,
    frontend::core as frontend,
    net::reactor::LinkId,
    replica::core as replica,
    wire::{Frame, Kind, Status},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Wrong {
    /// A replica carries out writes of an engine that it has promised away.
    AcceptsLowerEpoch,
    /// A replica says that its promise is durable, and has not stored it.
    ForgetsPromise,
    /// An engine does without a member before the record says so.
    DropsFirst,
    /// An engine takes the first acknowledgement for everyone's.
    CountsOneForAll,
    /// A frontend sends nothing again after a switch.
    DoesNotReplay,
}

impl Wrong {
    /// The answer of a replica that accepts what it must refuse.
    pub(super) fn accept(state: &mut State, at: usize, input: &replica::Input) -> Option<(LinkId, Frame)> {
        let replica::Input::Frame(link, frame) = input else { return None };
        let promised = state.replicas[at].process.as_ref()?.look(|process| process.core.promised());
        let header = &frame.header;
        let refused = header.kind == Kind::Write && promised.fences_out(header.epoch);
        if state.wrong != Some(Wrong::AcceptsLowerEpoch) || !refused {
            return None;
        }
        let (offset, byte, epoch) = (header.extent.offset(), frame.payload[0], header.epoch);
        state.replicas[at].files.change(|files| files.set_byte(super::state::IMAGE, offset, byte));
        state.wrote(at, promised, epoch);
        Some((*link, Frame::bare(header.reply(Status::Ok, epoch))))
    }

    /// Whether a frontend may send requests again upon this.
    pub(super) fn replays(input: &frontend::Input) -> bool {
        const NOT_A_REQUEST: u64 = 1 << 62;
        matches!(input, frontend::Input::Frame(_, frame) if frame.header.tag > NOT_A_REQUEST)
    }

    pub(super) fn is_write(output: &frontend::Output) -> bool {
        matches!(output, frontend::Output::Send(_, frame) if frame.header.kind == Kind::Write)
    }

    /// What an engine that takes one for all believes to have heard from the others.
    pub(super) fn echo(state: &State, at: usize, frame: &Frame) -> Vec<engine::Input> {
        const NOT_A_REQUEST: u64 = 1 << 62;
        let header = &frame.header;
        let counted =
            header.kind == Kind::Reply && header.status == Status::Ok && header.epoch != Epoch::NONE;
        if state.wrong != Some(Wrong::CountsOneForAll) || !counted || header.tag >= NOT_A_REQUEST {
            return Vec::new();
        }
        let links: Vec<LinkId> =
            state.engines[at].look(|node| node.links.iter().flatten().copied().collect());
        links.into_iter().map(|link| engine::Input::Frame(link, frame.clone())).collect()
    }
}
