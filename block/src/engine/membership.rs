//! How members leave and come back.
//!
//! Leaving: those who stay note durably what the one who leaves will miss, then
//! the record says that it is out, then nobody waits for it. One that is let go takes
//! writes until then, so no client waits either. Coming back: the
//! record says that it takes writes, it is copied to, the record says that it is
//! in service, the notes are thrown away.
//!
//! Invariant: one change of the record at a time, each with the next member
//! version.

use super::{
    control::Answer,
    core::{CONTROL, Change, Engine, Output, Phase},
    layout::ALIGN,
    members::{Member, Mode, Service, bit},
    requests::Asker,
};
use crate::{
    blocks::Blocks,
    extent::Extent,
    net::address::Address,
    wire::{
        Frame, Header, Kind, PARTIAL,
        members::{Joined, Missing},
    },
};

/// Answers nobody waits for.
pub(super) const IGNORED: u64 = CONTROL;
/// Plus the number of the member that leaves.
const DEPART: u64 = CONTROL + 1000;
const ABSENT: u64 = CONTROL + 2000;
const JOIN: u64 = CONTROL + 3000;
pub(super) const LAYER: u64 = CONTROL + 5000;
/// Plus the member version.
const STANDING: u64 = CONTROL + (1 << 60);

/// This engine began with a record that did not have it.
fn unknown() -> Answer {
    Answer::Refused("the record has no such replica".into())
}

impl Engine {
    /// A member is gone. Before the promise it may come back; after it the
    /// session is over, and the record must say so.
    pub(super) fn on_lost(&mut self, at: usize, out: &mut Vec<Output>) {
        let member = self.members.get(at);
        out.extend(member.part().map(Output::Close));
        match self.phase {
            Phase::Promising { .. } | Phase::Converging { .. } | Phase::Serving | Phase::Draining { .. } => {}
            Phase::Observing | Phase::Preparing { .. } | Phase::Prepared | Phase::Drained | Phase::Ended => {
                return;
            }
        }
        member.promise = None;
        member.stepping = None;
        self.members.untell(at);
        if self.members.is_last(at) {
            return self.on_last_lost(at, out);
        }
        let member = self.members.get(at);
        match member.service {
            // It fails by itself before it was let go: whoever wants it to go says so again, or it returns.
            Service::In => {
                member.released = false;
                member.leave();
            }
            Service::Departing | Service::Joining => member.leave(),
            Service::Returning => member.service = Service::Out,
            Service::Leaving | Service::Out => {}
        }
        self.reread(at, out);
        self.copying_lost(at, out);
        self.change_members(out);
        self.advance(out);
    }

    /// Lets a member go at somebody's word. It is gone when the record says so. One in service is let go
    /// after a flush, so that it misses little more than what is written from then on.
    pub(super) fn release(&mut self, replica: &str, out: &mut Vec<Output>) -> Answer {
        let Some(at) = self.called(replica) else { return unknown() };
        if self.phase != Phase::Serving {
            return Answer::Busy("the volume does not serve".into());
        }
        if self.members.is_last(at) {
            return Answer::Refused("the last replica in service stays".into());
        }
        let version = self.version;
        let member = self.members.get(at);
        member.released = true;
        match member.service {
            // What the others note of it begins with the version that it has noted itself.
            Service::In if member.version != version => {
                return Answer::Busy("it has not noted yet that it is in service".into());
            }
            Service::In if self.operation.is_some() => {
                return Answer::Busy("a snapshot, or the size of the volume, is being changed".into());
            }
            Service::In if self.pending.iter().any(|(_, pending)| pending.asker == Asker::Release(at)) => {}
            Service::In => self.flush(Asker::Release(at), out),
            Service::Joining | Service::Returning => self.on_lost(at, out),
            Service::Out if member.link.is_some() => self.on_lost(at, out),
            Service::Leaving | Service::Departing | Service::Out => {}
        }
        let is_changing = self.changing.is_some_and(|change| change.member == at);
        match self.members.service(at) {
            Service::Out if !is_changing => Answer::Done,
            Service::Out
            | Service::In
            | Service::Leaving
            | Service::Departing
            | Service::Returning
            | Service::Joining => Answer::Busy("the record does not say yet that it is out".into()),
        }
    }

    /// A member that was let go, or of which nobody told, is at this address and is asked to return. One that
    /// is on its way out leaves first.
    pub(super) fn introduce(&mut self, replica: &str, address: Address, out: &mut Vec<Output>) -> Answer {
        let Some(member) = self.called(replica) else { return unknown() };
        self.members.get(member).released = false;
        out.push(Output::Reach { member, address });
        Answer::Done
    }

    fn called(&self, replica: &str) -> Option<usize> {
        (0..self.members.iter().count()).find(|at| self.name_of(*at) == replica)
    }

    /// Everyone has flushed what was there when this member was to go. If it cannot go now, whoever lets it
    /// go asks again.
    pub(super) fn depart(&mut self, at: usize, out: &mut Vec<Output>) {
        let version = self.version;
        let may_go = self.phase == Phase::Serving && self.operation.is_none() && !self.members.is_last(at);
        let member = self.members.get(at);
        if may_go && member.released && member.service == Service::In && member.version == version {
            member.depart();
            // Nothing is copied from one that goes.
            self.copying_lost(at, out);
            self.change_members(out);
        }
    }

    /// The record says that a member is out. One that came back while it was leaving was not asked for anything on that
    /// connection: it is met anew on the next one, when it may return.
    fn part_from(&mut self, at: usize, out: &mut Vec<Output>) {
        let member = self.members.get(at);
        out.extend(member.part().map(Output::Close));
        member.promise = None;
        self.members.untell(at);
        self.reread(at, out);
    }

    /// Whoever came back before this engine served was asked too early to return, and is met anew.
    pub(super) fn part_from_absent(&mut self, out: &mut Vec<Output>) {
        for at in 0..self.members.iter().count() {
            if self.members.service(at) == Service::Out {
                self.part_from(at, out);
            }
        }
    }

    /// Whoever was let go when this engine gave the volume away, or was being copied to and was lost since, or whose sources
    /// were, is not asked to promise again: it leaves at once.
    pub(super) fn lose_who_cannot_stay(&mut self, out: &mut Vec<Output>) {
        let without_sources = self.misses_sources();
        for at in 0..self.members.iter().count() {
            let member = self.members.get(at);
            let is_lost = match member.service {
                Service::Departing => true,
                Service::Joining => member.link.is_none() || without_sources,
                Service::In | Service::Leaving | Service::Out | Service::Returning => false,
            };
            if is_lost {
                out.extend(member.part().map(Output::Close));
                member.leave();
                self.copying_lost(at, out);
            }
        }
    }

    /// Whether a member was told to leave.
    #[cfg(test)]
    pub(crate) fn is_released(&self, at: usize) -> bool {
        self.members.iter().any(|(member, state)| member == at && (state.released || state.goes()))
    }

    /// Nobody else has the newest data: before it was written to it is waited for, and so is everyone who
    /// was given up for it; afterwards a successor has to ask it what it has.
    fn on_last_lost(&mut self, at: usize, out: &mut Vec<Output>) {
        match self.phase {
            Phase::Promising { .. } => {
                let others = self.members.take_back();
                tracing::debug!(member = at, others, "waiting for the last member in service");
            }
            _ => self.end(Output::Stranded, out),
        }
    }

    /// Members without which this engine cannot begin to serve, and which it cannot give up either.
    pub(super) fn waits_for(&self) -> impl Iterator<Item = usize> {
        let waits = matches!(self.phase, Phase::Promising { .. }) && !self.someone_is_fit();
        self.members
            .iter()
            .filter(move |(_, member)| waits && member.service == Service::In && member.promise.is_none())
            .map(|(at, _)| at)
    }

    /// Whether a member in service is known to have everything.
    fn someone_is_fit(&self) -> bool {
        let fit =
            |member: &Member| member.promise.as_ref().is_some_and(|promise| !promise.lacks(self.version));
        self.members.iter().any(|(_, member)| member.service == Service::In && fit(member))
    }

    /// Before it serves, an engine gives nobody up for copies that all lack something: whoever cannot be
    /// reached may have it, and is waited for like the last one. Says whether there is such a one.
    fn take_back(&mut self) -> bool {
        matches!(self.phase, Phase::Promising { .. }) && !self.someone_is_fit() && self.members.take_back()
    }

    /// Takes the next step of whoever is on the way out or in.
    pub(super) fn change_members(&mut self, out: &mut Vec<Output>) {
        if !self.members.all_in(|member| member.promise.is_some()) || self.take_back() {
            return;
        }
        self.tell_departures(out);
        if self.changing.is_some() {
            return;
        }
        let staying = self.members.in_service();
        let gone = self.members.iter().find(|(_, member)| member.goes() && member.noted & staying == staying);
        let change = if let Some((member, _)) = gone {
            Some((member, Mode::Out))
        } else if self.phase != Phase::Serving || self.operation.is_some() {
            None
        } else if self.copying.is_some() {
            self.copied_member().map(|member| (member, Mode::InService))
        } else {
            self.next_to_rebuild().map(|member| (member, Mode::Rebuilding))
        };
        if let Some((member, mode)) = change {
            let change = Change { member, mode, version: self.version + 1 };
            self.changing = Some(change);
            out.push(Output::Change(change));
        }
    }

    /// The first of those that have come back and may be copied to.
    fn next_to_rebuild(&self) -> Option<usize> {
        let returning = self.members.iter().filter(|(_, member)| member.service == Service::Returning);
        returning.map(|(at, _)| at).find(|at| self.permitted.contains(&self.name_of(*at)))
    }

    /// Tells everyone who stays what those who leave may lack already.
    fn tell_departures(&mut self, out: &mut Vec<Output>) {
        if !self.members.iter().any(|(_, member)| member.goes()) {
            return;
        }
        let blocks = self.unflushed.all(self.blocks());
        let usable: Vec<_> = self.members.usable().collect();
        for leaving in 0..self.members.iter().count() {
            let member = self.members.get(leaving);
            if !member.goes() {
                continue;
            }
            let missing = Missing { replica: member.key, from: member.version, blocks: blocks.clone() };
            for (at, link) in &usable {
                if member.told & bit(*at) == 0 {
                    member.told |= bit(*at);
                    let mut header = Header::new(Kind::Depart, DEPART + leaving as u64, self.epoch);
                    header.flags = if member.partial { PARTIAL } else { 0 };
                    out.push(Output::Send(*link, Frame::with(header, missing.encode())));
                }
            }
        }
    }

    /// An answer that is not about data.
    pub(super) fn on_told(&mut self, at: usize, tag: u64, frame: &Frame, out: &mut Vec<Output>) {
        if tag == ALIGN {
            self.on_aligned(at, out);
        } else if tag == LAYER {
            self.on_layer(at, frame, out);
        } else if tag == JOIN {
            self.on_joined(at, frame, out);
        } else if tag >= STANDING {
            self.members.get(at).version = tag - STANDING;
        } else if tag == ABSENT {
            self.on_missing(at, Some(frame), out);
        } else if tag >= DEPART {
            let leaving = (tag - DEPART) as usize;
            if leaving < self.members.iter().count() {
                self.members.get(leaving).noted |= bit(at);
            }
            self.change_members(out);
        }
    }

    /// The record has been changed.
    pub(super) fn on_changed(&mut self, change: Change, out: &mut Vec<Output>) {
        if self.changing.take() != Some(change) || self.phase == Phase::Ended {
            return;
        }
        self.version = change.version;
        let member = self.members.get(change.member);
        match (change.mode, member.service) {
            (Mode::Out, _) => {
                member.service = Service::Out;
                self.discount(change.member, out);
                self.part_from(change.member, out);
            }
            (Mode::Rebuilding, Service::Returning) => {
                member.service = Service::Joining;
                self.begin_join(change.member, out);
            }
            (Mode::InService, Service::Joining) => {
                member.service = Service::In;
                self.trouble = None;
                self.damaged.entry(change.member).and_modify(|(_, repaired)| *repaired = true);
                self.copying = None;
                self.forget_absent(change.member, out);
            }
            // It failed while the record was being changed: it has to leave again.
            (Mode::Rebuilding | Mode::InService, _) => member.leave(),
        }
        // Before it serves, an engine does not know yet who may stay in service.
        if matches!(self.phase, Phase::Serving | Phase::Draining { .. }) {
            self.tell_standing(out);
        }
        self.change_members(out);
        self.advance(out);
    }

    /// Tells everyone in service the member version, for the day they leave.
    pub(super) fn tell_standing(&mut self, out: &mut Vec<Output>) {
        let extent = Extent::new(self.version, 0).unwrap_or(Extent::EMPTY);
        for (_, link) in self.members.usable() {
            let header = Header::new(Kind::Standing, STANDING + self.version, self.epoch);
            out.push(Output::Send(link, Frame::bare(Header { extent, ..header })));
        }
    }

    fn forget_absent(&mut self, back: usize, out: &mut Vec<Output>) {
        let missing = Missing { replica: self.members.get(back).key, from: 0, blocks: Blocks::default() };
        for (_, link) in self.members.usable() {
            let header = Header::new(Kind::Forget, IGNORED, self.epoch);
            out.push(Output::Send(link, Frame::with(header, missing.encode())));
        }
    }

    /// A member takes writes from now on, into the layers that it is told of. What
    /// was under way before is not among them and is copied with the rest.
    fn begin_join(&mut self, at: usize, out: &mut Vec<Output>) {
        if let Some(link) = self.members.get(at).link {
            let header = Header::new(Kind::Join, JOIN, self.epoch);
            out.push(Output::Send(link, Frame::with(header, self.layout.encode())));
        }
        self.prepare_join(at);
    }

    /// The member has the layers; either only what it missed must come, or whole layers.
    fn on_joined(&mut self, at: usize, frame: &Frame, out: &mut Vec<Output>) {
        let Some(joined) = Joined::decode(&frame.payload) else { return self.on_lost(at, out) };
        if let Some(snapshots) = joined.snapshots {
            return self.copy_layers(at, snapshots, out);
        }
        let missing = Missing { replica: self.members.get(at).key, from: 0, blocks: Blocks::default() };
        let mut asked = 0;
        for (other, link) in self.members.usable() {
            asked |= bit(other);
            let header = Header::new(Kind::Absent, ABSENT, self.epoch);
            out.push(Output::Send(link, Frame::with(header, missing.encode())));
        }
        self.ask_missing(at, asked);
    }
}
