//! Requests that wait while a volume is suspended.
//!
//! Invariant: what waits has not been begun, so it may be forgotten at any time: the
//! frontend has no answer and asks again.

use super::core::{Engine, Output};
use crate::{net::reactor::LinkId, wire::Frame};

#[derive(Debug, Clone, Default)]
pub(super) struct Suspension {
    on: bool,
    waiting: Vec<(LinkId, Frame)>,
}

impl Suspension {
    pub(super) fn suspend(&mut self) {
        self.on = true;
    }

    pub(super) fn is_on(&self) -> bool {
        self.on
    }

    /// The request, if it may be carried out now.
    pub(super) fn admit(&mut self, link: LinkId, frame: Frame) -> Option<Frame> {
        if !self.on {
            return Some(frame);
        }
        self.waiting.push((link, frame));
        None
    }

    pub(super) fn forget(&mut self) {
        self.waiting.clear();
    }
}

impl Engine {
    /// Starts suspended: nothing is carried out until `Resume`.
    pub fn suspend(&mut self) {
        self.suspension.suspend();
    }

    pub(super) fn resume(&mut self, out: &mut Vec<Output>) {
        self.suspension.on = false;
        for (link, frame) in std::mem::take(&mut self.suspension.waiting) {
            self.on_request(link, frame, out);
        }
    }
}
