//! What an engine does with what its frontend says.
//!
//! Invariant: one frontend is listened to at a time, that of the attachment which the record names; the
//! next one is told that it is served only when nothing that another asked for is under way.

use super::core::{Engine, Output, Phase, REPLAYED};
use crate::{
    extent::Extent,
    net::reactor::LinkId,
    wire::{CONTINUED, Frame, Header, Kind, Status, hello::Hello},
};

impl Engine {
    pub(super) fn on_frontend(&mut self, link: LinkId, frame: Frame, out: &mut Vec<Output>) {
        let header = &frame.header;
        if header.kind == Kind::Hello {
            return self.on_frontend_hello(link, &frame, out);
        }
        if header.kind == Kind::Control {
            return self.on_command(link, &frame, out);
        }
        if matches!(header.kind, Kind::Past | Kind::Changes) {
            return self.on_reader(link, &frame, out);
        }
        if self.frontend != Some(link) {
            return out.push(Output::Close(link));
        }
        if header.kind == Kind::Reply && header.tag == REPLAYED {
            self.replayed = true;
            return;
        }
        let tag = header.tag;
        match (header.kind, self.phase) {
            (Kind::Read | Kind::Write | Kind::Flush | Kind::Trim | Kind::Zero, Phase::Serving) => {
                if let Some(frame) = self.suspension.admit(link, frame) {
                    self.on_request(link, frame, out);
                }
            }
            (Kind::Prepare, Phase::Observing | Phase::Preparing { .. }) => {
                self.phase = Phase::Preparing { tag };
                self.advance(out);
            }
            (
                Kind::Go,
                Phase::Observing | Phase::Preparing { .. } | Phase::Prepared | Phase::Promising { .. },
            ) => {
                self.phase = Phase::Promising { tag };
                self.advance(out);
            }
            (Kind::Go, Phase::Drained) => {
                self.members.forget_promises();
                self.lose_who_cannot_stay(out);
                self.phase = Phase::Promising { tag };
                self.advance(out);
            }
            (Kind::Go, Phase::Converging { .. }) => self.phase = Phase::Converging { tag },
            (Kind::Drain, Phase::Serving | Phase::Draining { .. }) => {
                // Without an answer, the frontend asks the next engine.
                self.suspension.forget();
                self.held.clear();
                self.give_up_operation(out);
                self.phase = Phase::Draining { tag };
                self.copy_on(out);
                self.advance(out);
            }
            (Kind::Go, Phase::Serving) => {
                self.welcome = Some((link, tag));
                self.greet_successor(out);
            }
            (Kind::Prepare, Phase::Prepared) | (Kind::Drain, Phase::Drained) => {
                let reply = Header { extent: self.whole(), ..header.reply(Status::Ok, self.epoch) };
                out.push(Output::Send(link, Frame::bare(reply)));
            }
            // Whether it serves or not, it is there.
            (Kind::Ping, _) => {
                out.push(Output::Send(link, Frame::bare(header.reply(Status::Ok, self.epoch))));
            }
            _ => out.push(Output::Send(link, Frame::bare(header.reply(Status::NotServing, self.epoch)))),
        }
    }

    pub(super) fn on_frontend_hello(&mut self, link: LinkId, frame: &Frame, out: &mut Vec<Output>) {
        match Hello::accept(&frame.payload, &self.volume) {
            Ok(_) if self.phase == Phase::Ended => out.push(Output::Close(link)),
            Ok(hello) if self.attachment.is_some_and(|ours| ours.bits() != hello.sender) => {
                let why = "the volume is attached elsewhere".into();
                out.push(Output::Send(
                    link,
                    Frame::with(frame.header.reply(Status::Invalid, self.epoch), why),
                ));
            }
            Ok(hello) => {
                if let Some(old) = self.frontend.replace(link)
                    && old != link
                {
                    self.forget_waiting();
                    out.push(Output::Close(old));
                }
                self.frontend_epoch = hello.epoch;
                let header = Header::new(Kind::Hello, frame.header.tag, self.epoch);
                out.push(Output::Send(link, Frame::with(header, self.hello().encode())));
            }
            Err(error) => {
                let header = frame.header.reply(Status::Invalid, self.epoch);
                out.push(Output::Send(link, Frame::with(header, error.to_string().into())));
            }
        }
    }

    /// Tells a frontend that it is served, unless changes that another asked for are still under way.
    pub(super) fn greet_successor(&mut self, out: &mut Vec<Output>) {
        let Some((link, tag)) = self.welcome.filter(|(link, _)| !self.changes_of_others(*link)) else {
            return;
        };
        self.welcome = None;
        let header = Header::new(Kind::Reply, tag, self.epoch);
        out.push(Output::Send(
            link,
            Frame::bare(Header { extent: self.whole(), flags: CONTINUED, ..header }),
        ));
        // The one before may have gone without an answer.
        if !self.replayed {
            self.tell_frontend(out);
        }
    }

    /// The frontend is gone, or another has come: what it asked for and nobody began is asked for again by
    /// whoever still wants it.
    pub(super) fn forget_waiting(&mut self) {
        self.suspension.forget();
        self.held.clear();
        self.welcome = None;
    }

    /// Tells the frontend where the volume ends; its answer says that it has sent
    /// everything unanswered again.
    pub(super) fn tell_frontend(&self, out: &mut Vec<Output>) {
        let header = Header { extent: self.whole(), ..Header::new(Kind::Ping, REPLAYED, self.epoch) };
        out.extend(self.frontend.map(|link| Output::Send(link, Frame::bare(header))));
    }

    /// Tells the frontend where the volume ends.
    pub(super) fn whole(&self) -> Extent {
        Extent::new(self.size, 0).unwrap_or(Extent::EMPTY)
    }
}
