//! Connections between two parts of one process: frames pass as they are, without
//! a socket, a copy or a checksum of their header.
//!
//! Invariant: what is sent on one end arrives at the other in that order, and its
//! close after all of it.

use std::collections::VecDeque;

use super::{
    by_link::ByLink,
    reactor::{Door, Event, LinkId},
};
use crate::wire::Frame;

#[derive(Debug)]
struct End {
    peer: LinkId,
    arrived: VecDeque<Frame>,
    /// Whether its owner is about to be told that something has arrived.
    rung: bool,
}

#[derive(Debug, Default)]
pub(super) struct Inner {
    ends: ByLink<End>,
    events: Vec<Event>,
    /// Their owners have been told that they are closed, and may still read.
    closed: Vec<LinkId>,
}

impl Inner {
    /// Connects `from` with `to`, which comes through a door.
    pub(super) fn join(&mut self, from: LinkId, to: LinkId, door: Door) {
        let end = |peer| End { peer, arrived: VecDeque::new(), rung: false };
        self.ends.insert(from, end(to));
        self.ends.insert(to, end(from));
        self.events.push(Event::Accepted { door, link: to });
        self.events.push(Event::Connected(from));
    }

    pub(super) fn has(&self, link: LinkId) -> bool {
        self.ends.contains_key(&link)
    }

    pub(super) fn send(&mut self, link: LinkId, frame: Frame) {
        let Some(peer) = self.ends.get(&link).map(|end| end.peer) else { return };
        let Some(end) = self.ends.get_mut(&peer) else { return };
        end.arrived.push_back(frame);
        if !std::mem::replace(&mut end.rung, true) {
            self.events.push(Event::Arrived(peer));
        }
    }

    pub(super) fn next_frame(&mut self, link: LinkId) -> Option<Frame> {
        let end = self.ends.get_mut(&link)?;
        end.rung = false;
        end.arrived.pop_front()
    }

    /// Says whether there was such an end.
    pub(super) fn close(&mut self, link: LinkId) -> bool {
        let Some(end) = self.ends.remove(&link) else { return false };
        if self.ends.contains_key(&end.peer) {
            self.events.push(Event::Closed(end.peer));
        }
        true
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.events.is_empty()
    }

    /// What has happened since this was asked before.
    pub(super) fn take_events(&mut self, events: &mut Vec<Event>) {
        for link in self.closed.drain(..) {
            self.ends.remove(&link);
        }
        let closed = self.events.iter().filter_map(|event| match event {
            Event::Closed(link) => Some(*link),
            _ => None,
        });
        self.closed.extend(closed);
        events.append(&mut self.events);
    }

    /// Closes every end that belongs to an owner.
    pub(super) fn close_all(&mut self, owner: Door) {
        let theirs: Vec<LinkId> = self.ends.keys().copied().filter(|link| link.owner() == owner).collect();
        for link in theirs {
            self.close(link);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        epoch::Epoch,
        wire::{Header, Kind},
    };

    fn frame(tag: u64) -> Frame {
        Frame::bare(Header::new(Kind::Ping, tag, Epoch::NONE))
    }

    fn events(inner: &mut Inner) -> Vec<Event> {
        let mut events = Vec::new();
        inner.take_events(&mut events);
        events
    }

    #[test]
    fn frames_arrive_in_order_and_the_close_after_them() {
        let (a, b) = (LinkId::from_bits(1), LinkId::from_bits(2));
        let mut inner = Inner::default();
        inner.join(a, b, Door(7));
        assert_eq!(events(&mut inner), [Event::Accepted { door: Door(7), link: b }, Event::Connected(a)]);
        inner.send(a, frame(1));
        inner.send(a, frame(2));
        assert!(inner.close(a));
        assert_eq!(events(&mut inner), [Event::Arrived(b), Event::Closed(b)]);
        assert_eq!(inner.next_frame(b), Some(frame(1)));
        assert_eq!(inner.next_frame(b), Some(frame(2)));
        assert_eq!(inner.next_frame(b), None);
        assert!(events(&mut inner).is_empty() && !inner.has(b));
        inner.send(b, frame(3));
        assert!(inner.is_quiet());
    }

    #[test]
    fn who_has_not_read_everything_is_told_of_what_comes_later() {
        let (a, b) = (LinkId::from_bits(1), LinkId::from_bits(2));
        let mut inner = Inner::default();
        inner.join(a, b, Door(0));
        events(&mut inner);
        inner.send(a, frame(1));
        assert_eq!(events(&mut inner), [Event::Arrived(b)]);
        inner.send(a, frame(2));
        assert_eq!(inner.next_frame(b), Some(frame(1)));
        inner.send(a, frame(3));
        assert_eq!(events(&mut inner), [Event::Arrived(b)]);
        assert_eq!(inner.next_frame(b), Some(frame(2)));
        assert_eq!(inner.next_frame(b), Some(frame(3)));
    }
}
