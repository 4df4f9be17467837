//! Makes copies equal while the volume serves: piece by piece, each read from a
//! member in service and written to those that lack it.
//!
//! Invariant: while a piece is on its way no client changes it, so what is
//! written to the target is what everyone else holds.

use std::{collections::VecDeque, time::Duration};

use super::{
    core::{Engine, Output, Phase},
    members::{Mask, Service, bit},
    membership::LAYER,
    requests::Asker,
};
use crate::{
    blocks::{BLOCK_BITS, Blocks, REGION_BITS, Run},
    extent::Extent,
    wire::{Frame, Header, Kind, members::Missing},
};

/// Blocks of one piece: 256 KiB.
const PIECE: u64 = 64;
/// Pieces under way at once.
const AT_ONCE: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// One member comes back.
    Join(usize),
    /// Nobody knows what was under way when the volume stopped.
    Converge,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Waits for changes under way.
    Waiting,
    Reading,
    Writing,
}

#[derive(Debug, Clone)]
struct Piece {
    extent: Extent,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// The target puts its layers in order.
    Joining,
    /// These members have been asked what is missing.
    Asking(Mask),
    /// The source has been asked which blocks the next layer has.
    Mapping,
    Copying,
    /// Everything is copied, and the target still has to do what was answered ahead of it.
    CatchingUp,
    Flushing,
    Done,
}

#[derive(Debug, Clone)]
pub(super) struct Copying {
    /// Tells its answers from those of copyings that were given up.
    number: u64,
    purpose: Purpose,
    source: usize,
    todo: Blocks,
    /// All that was ever to be done, to begin again when the source is lost.
    whole: Blocks,
    /// Whether someone knew what is missing.
    known: bool,
    pieces: Vec<Piece>,
    progress: Progress,
    /// The layer being copied, as in a header.
    layer: u8,
    /// Layers still to come, the head as its place.
    layers: VecDeque<u8>,
    /// What was under way when the member began to take writes.
    under_way: Blocks,
}

impl Engine {
    /// Makes regions equal everywhere, from the first member in service.
    pub(super) fn converge(&mut self, regions: &Blocks, out: &mut Vec<Output>) {
        let blocks = regions.refine(REGION_BITS, BLOCK_BITS, self.blocks());
        self.begin(Purpose::Converge, blocks, Progress::Copying);
        self.copy_on(out);
    }

    /// Whether some of those that were to tell or to give what is missing cannot be spoken to.
    pub(super) fn misses_sources(&self) -> bool {
        self.copying.is_some()
            && self.members.iter().any(|(_, member)| member.service == Service::In && member.link.is_none())
    }

    fn begin(&mut self, purpose: Purpose, todo: Blocks, progress: Progress) {
        self.copyings += 1;
        let Some((source, _)) = self.members.usable().next() else { return };
        let whole = if purpose == Purpose::Converge { todo.clone() } else { Blocks::default() };
        let number = self.copyings;
        self.copying = Some(Copying {
            number,
            purpose,
            source,
            todo,
            whole,
            known: false,
            pieces: Vec::new(),
            progress,
            layer: 0,
            layers: VecDeque::new(),
            under_way: Blocks::default(),
        });
    }

    /// A member is about to be copied to.
    pub(super) fn prepare_join(&mut self, member: usize) {
        let under_way = self.being_changed();
        self.begin(Purpose::Join(member), Blocks::default(), Progress::Joining);
        if let Some(copying) = &mut self.copying {
            copying.under_way = under_way;
        }
    }

    fn joining(&mut self, member: usize) -> Option<&mut Copying> {
        let here = |copying: &&mut Copying| {
            copying.purpose == Purpose::Join(member) && copying.progress == Progress::Joining
        };
        self.copying.as_mut().filter(here)
    }

    /// `asked` are asked what the member misses.
    pub(super) fn ask_missing(&mut self, member: usize, asked: Mask) {
        if let Some(copying) = self.joining(member) {
            copying.todo.extend(&copying.under_way);
            copying.progress = Progress::Asking(asked);
        }
    }

    /// The member has this many of the snapshots; the rest, and the head, are copied whole.
    pub(super) fn copy_layers(&mut self, member: usize, snapshots: usize, out: &mut Vec<Output>) {
        let head = self.layout.snapshots.len() as u8 + 1;
        let first = snapshots as u8 + 1;
        tracing::info!(member, first, layers = head, "rebuild of whole layers begins");
        if let Some(copying) = self.joining(member) {
            copying.layers = (first..=head).collect();
            self.map_next(out);
        }
    }

    /// Asks the source what the next layer has.
    fn map_next(&mut self, out: &mut Vec<Output>) {
        let Some(copying) = &mut self.copying else { return };
        let Some(layer) = copying.layers.pop_front() else { return };
        copying.progress = Progress::Mapping;
        copying.layer = layer;
        let source = copying.source;
        if let Some((_, link)) = self.members.usable().find(|(at, _)| *at == source) {
            let header = Header { layer, ..Header::new(Kind::Layer, LAYER, self.epoch) };
            out.push(Output::Send(link, Frame::bare(header)));
        }
    }

    /// Which blocks a layer has. The head is copied as clients see it, so that
    /// their writes and the copy agree.
    pub(super) fn on_layer(&mut self, from: usize, frame: &Frame, out: &mut Vec<Output>) {
        let (limit, head) = (self.blocks(), self.layout.snapshots.len() as u8 + 1);
        let Some(copying) = &mut self.copying else { return };
        if copying.progress != Progress::Mapping || copying.source != from {
            return;
        }
        let Some(held) = Missing::decode(&frame.payload, limit) else { return self.on_lost(from, out) };
        copying.todo = held.blocks;
        if copying.layer == head {
            copying.layer = 0;
            copying.todo.extend(&copying.under_way);
        }
        copying.progress = Progress::Copying;
        self.copy_on(out);
    }

    /// What the returning member misses, as one of the others has it. If nobody's
    /// note fits what the member itself remembers, everything is copied.
    pub(super) fn on_missing(&mut self, from: usize, frame: Option<&Frame>, out: &mut Vec<Output>) {
        let limit = self.blocks();
        let Some(copying) = &mut self.copying else { return };
        let (Purpose::Join(at), Progress::Asking(asked)) = (copying.purpose, copying.progress) else {
            return;
        };
        let member = self.members.get(at);
        let fits = |missing: &Missing| missing.replica == member.key && missing.from == member.version;
        let missing = frame.and_then(|frame| Missing::decode(&frame.payload, limit)).filter(fits);
        if let Some(missing) = missing.filter(|_| !copying.known) {
            copying.known = true;
            copying.todo.extend(&missing.blocks);
        }
        let asked = asked & !bit(from);
        copying.progress = Progress::Asking(asked);
        if asked != 0 {
            return;
        }
        if !copying.known {
            copying.todo.insert_all(Run { first: 0, count: limit });
        }
        tracing::info!(member = at, blocks = copying.todo.len(), of = limit, "rebuild begins");
        copying.progress = Progress::Copying;
        self.copy_on(out);
    }

    /// The member that has been copied to and can go into service.
    pub(super) fn copied_member(&self) -> Option<usize> {
        match &self.copying {
            Some(Copying { purpose: Purpose::Join(member), progress: Progress::Done, .. }) => Some(*member),
            _ => None,
        }
    }

    /// Whether what clients see is on its way to a member that comes back.
    #[cfg(test)]
    pub(crate) fn is_copying_head(&self) -> bool {
        self.copying.as_ref().is_some_and(|copying| {
            copying.layer == 0
                && copying.progress == Progress::Copying
                && copying.purpose != Purpose::Converge
        })
    }

    pub(super) fn is_being_copied(&self, extent: Extent) -> bool {
        self.copying.as_ref().is_some_and(|copying| {
            copying.layer == 0 && copying.pieces.iter().any(|piece| piece.extent.overlaps(extent))
        })
    }

    /// The member for which no frontend waits: it is being copied to, and has to catch up before it can be in service.
    pub(super) fn lagging(&self) -> Mask {
        let Some(Copying { purpose: Purpose::Join(member), progress, .. }) = &self.copying else { return 0 };
        match progress {
            Progress::Joining | Progress::Asking(_) | Progress::Mapping | Progress::Copying => bit(*member),
            Progress::CatchingUp | Progress::Flushing | Progress::Done => 0,
        }
    }

    /// Begins what can be begun.
    pub(super) fn copy_on(&mut self, out: &mut Vec<Output>) {
        let Some(copying) = &mut self.copying else { return };
        match (self.phase, copying.progress) {
            (Phase::Serving | Phase::Converging { .. }, Progress::Copying) => {}
            (Phase::Serving | Phase::Converging { .. }, Progress::CatchingUp) => {
                return self.flush_copied(out);
            }
            // Begun again if this engine gets the volume back.
            (Phase::Draining { .. }, Progress::Copying) => {
                for piece in copying.pieces.extract_if(.., |piece| piece.stage == Stage::Waiting) {
                    let (offset, length) = (piece.extent.offset(), u64::from(piece.extent.length()));
                    copying.todo.insert_all(Run::touched(offset, length, BLOCK_BITS));
                }
                return;
            }
            _ => return,
        }
        while copying.pieces.len() < AT_ONCE
            && let Some(run) = copying.todo.take_run(PIECE)
        {
            let offset = run.first << BLOCK_BITS;
            let length = (run.count << BLOCK_BITS).min(self.size - offset) as u32;
            let extent = Extent::new(offset, length).expect("a piece lies inside the volume");
            if copying.purpose != Purpose::Converge && !self.throttle.admits(length.into()) {
                copying.todo.insert_all(run);
                break;
            }
            copying.pieces.push(Piece { extent, stage: Stage::Waiting });
        }
        let (source, number, layer) = (copying.source, copying.number, copying.layer);
        let waiting: Vec<Extent> = copying
            .pieces
            .iter()
            .filter(|piece| piece.stage == Stage::Waiting)
            .map(|piece| piece.extent)
            .collect();
        for extent in waiting {
            if layer == 0 && self.is_being_changed(extent) {
                continue;
            }
            self.set_stage(extent, Stage::Reading);
            let header = Header { extent, layer, ..Header::new(Kind::Read, 0, self.epoch) };
            self.send_to(bit(source), Frame::bare(header), Asker::Copy(number), out);
        }
        self.finish_copying(out);
    }

    pub(super) fn set_throttle(&mut self, bytes_per_second: Option<u64>, out: &mut Vec<Output>) {
        self.throttle.set(bytes_per_second);
        self.copy_on(out);
    }

    /// Whether a rebuild waits until time has passed.
    pub fn is_throttled(&self) -> bool {
        self.copying.is_some() && self.throttle.waits()
    }

    pub(super) fn on_passed(&mut self, time: Duration, out: &mut Vec<Output>) {
        self.throttle.pass(time, PIECE << BLOCK_BITS);
        self.copy_on(out);
    }

    fn set_stage(&mut self, extent: Extent, stage: Stage) {
        let pieces = self.copying.iter_mut().flat_map(|copying| &mut copying.pieces);
        pieces.filter(|piece| piece.extent == extent).for_each(|piece| piece.stage = stage);
    }

    fn targets(&self) -> Mask {
        match &self.copying {
            Some(Copying { purpose: Purpose::Join(member), .. }) => bit(*member),
            Some(Copying { purpose: Purpose::Converge, source, .. }) => {
                self.members.in_service() & !bit(*source)
            }
            None => 0,
        }
    }

    /// A piece has been read, or written.
    pub(super) fn on_copied(
        &mut self,
        number: u64,
        asked: &Header,
        last: Option<Frame>,
        out: &mut Vec<Output>,
    ) {
        let extent = asked.extent;
        if self.copying.as_ref().is_none_or(|copying| copying.number != number) {
            return;
        }
        let pieces = self.copying.iter().flat_map(|copying| &copying.pieces);
        let Some(stage) = pieces.filter(|piece| piece.extent == extent).map(|piece| piece.stage).next()
        else {
            return;
        };
        match (stage, asked.kind, last) {
            (Stage::Reading, Kind::Read, Some(frame)) if frame.intact() && self.targets() != 0 => {
                self.set_stage(extent, Stage::Writing);
                let zeroes = frame.payload.iter().all(|byte| *byte == 0);
                let kind = if zeroes { Kind::Zero } else { Kind::Write };
                let header = Header { extent, layer: asked.layer, ..Header::new(kind, 0, self.epoch) };
                let frame = if zeroes { Frame::bare(header) } else { Frame::with(header, frame.payload) };
                self.send_to(self.targets(), frame, Asker::Copy(number), out);
            }
            (Stage::Reading, Kind::Read, Some(_)) if self.targets() != 0 => {
                self.set_stage(extent, Stage::Waiting);
            }
            (Stage::Reading, Kind::Read, _) | (Stage::Writing, Kind::Write | Kind::Zero, _) => {
                if let Some(copying) = &mut self.copying {
                    copying.pieces.retain(|piece| piece.extent != extent);
                    if copying.purpose != Purpose::Converge {
                        self.copied += u64::from(extent.length());
                    }
                }
                self.release_held(out);
            }
            _ => {}
        }
    }

    /// Changes that waited for pieces may go on; those that still touch one wait again.
    pub(super) fn release_held(&mut self, out: &mut Vec<Output>) {
        for (link, frame) in std::mem::take(&mut self.held) {
            self.on_request(link, frame, out);
        }
    }

    fn finish_copying(&mut self, out: &mut Vec<Output>) {
        let Some(copying) = &mut self.copying else { return };
        if copying.progress != Progress::Copying || !copying.pieces.is_empty() || !copying.todo.is_empty() {
            return;
        }
        if !copying.layers.is_empty() {
            return self.map_next(out);
        }
        copying.progress = Progress::CatchingUp;
        self.flush_copied(out);
    }

    /// What is copied is made durable when the target has done everything else as well.
    fn flush_copied(&mut self, out: &mut Vec<Output>) {
        let targets = self.targets();
        let Some(copying) = &mut self.copying else { return };
        if self.ahead > 0 {
            return;
        }
        copying.progress = Progress::Flushing;
        let flush = Frame::bare(Header::new(Kind::Flush, 0, self.epoch));
        let (everyone, number) = (targets | bit(copying.source), copying.number);
        self.send_to(everyone, flush, Asker::Copied(number), out);
    }

    /// Everything is copied and durable.
    pub(super) fn on_all_copied(&mut self, number: u64, out: &mut Vec<Output>) {
        let Some(copying) = &mut self.copying else { return };
        if copying.progress != Progress::Flushing || copying.number != number {
            return;
        }
        copying.progress = Progress::Done;
        match (copying.purpose, self.phase) {
            (Purpose::Converge, Phase::Converging { tag }) => {
                self.copying = None;
                self.serve(tag, out);
            }
            _ => self.change_members(out),
        }
    }

    /// A member is lost while copies are made: a target is given up, from a lost
    /// source all begins again with another.
    pub(super) fn copying_lost(&mut self, lost: usize, out: &mut Vec<Output>) {
        let Some(copying) = &mut self.copying else { return };
        match copying.purpose {
            Purpose::Join(member) if member == lost || copying.source == lost => {
                self.copying = None;
                if member != lost && self.members.service(member) == Service::Joining {
                    self.on_lost(member, out);
                }
            }
            Purpose::Converge if copying.source == lost => {
                let whole = std::mem::take(&mut copying.whole);
                self.copying = None;
                self.begin(Purpose::Converge, whole, Progress::Copying);
                self.copy_on(out);
            }
            Purpose::Join(_) => self.on_missing(lost, None, out),
            Purpose::Converge => {}
        }
        self.release_held(out);
    }
}
