//! What becomes of a request that the only copy in service cannot carry out.
//!
//! With others in service the one that fails is dropped, and the client only waits. The last one
//! cannot be dropped, and another engine would meet the same damage or the same full disk: so
//! the client is told, as by any disk, and `status` says what is wrong.
//!
//! Invariant: what the last copy failed to write no other copy counts as having.

use super::{
    control::Trouble,
    core::{Engine, Output, Phase},
    members::{Service, bit},
    requests::{Asker, changes},
};
use crate::wire::{Frame, Status};

impl Engine {
    /// Tells whoever waits for a request that the last member has failed at it. False if it is not
    /// the last one, or nobody can be told.
    pub(super) fn bear(&mut self, at: usize, number: u64, status: Status, out: &mut Vec<Output>) -> bool {
        let serves = matches!(self.phase, Phase::Serving | Phase::Draining { .. });
        let telling = matches!(status, Status::NoSpace | Status::Failed);
        // One that is let go still has everything: another engine may keep it instead.
        let is_alone = self.members.is_last(at) && self.members.any(Service::Departing).is_none();
        if !serves || !telling || !is_alone {
            return false;
        }
        let Some(pending) = self.pending.get(number).filter(|pending| pending.owed & bit(at) != 0) else {
            return false;
        };
        let (asked, asker) = (pending.asked.clone(), pending.asker);
        let link = match asker {
            Asker::Frontend(link) | Asker::Reader(link, _) => Some(link),
            // What is to be copied cannot be read: whoever is copied to stays out.
            Asker::Copy(_) if !changes(asked.kind) => None,
            Asker::Copy(_)
            | Asker::Copied(_)
            | Asker::Operation
            | Asker::Ahead
            | Asker::Release(_)
            | Asker::Nobody => return false,
        };
        let replica = self.name_of(at);
        self.trouble = Some(match status {
            Status::NoSpace => Trouble::Full { replica },
            _ => Trouble::Failed { replica, offset: asked.extent.offset() },
        });
        self.pending.remove(number);
        if (link.is_none() || changes(asked.kind))
            && let Some(joining) = self.members.any(Service::Joining)
        {
            self.on_lost(joining, out);
        }
        if let Some(link) = link {
            out.push(Output::Send(link, Frame::bare(asked.reply(status, self.epoch))));
        }
        self.after_request(out);
        true
    }
}
