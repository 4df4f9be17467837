//! Connections between nodes: in order within one direction, in any order
//! between directions and connections.
//!
//! Invariant: what was sent before a close may still arrive; then the other
//! side learns of the close.

use std::collections::{BTreeMap, VecDeque};

use crate::{net::reactor::LinkId, wire::Frame};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Node {
    Frontend,
    Engine(usize),
    Replica(usize),
}

#[derive(Debug, Clone)]
struct Half {
    to: Node,
    queue: VecDeque<Frame>,
    /// Nothing more will be put in; once empty the receiver learns it.
    closed: bool,
}

#[derive(Debug, Clone)]
struct Pipe {
    halves: [Option<Half>; 2],
}

/// Something that can arrive next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) link: LinkId,
    pub(crate) to: Node,
}

pub(crate) enum Arrived {
    Frame(Frame),
    Closed,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Network {
    pipes: BTreeMap<LinkId, Pipe>,
    next: u64,
    /// Who sends to whom without anything arriving.
    cuts: Vec<(Node, Node)>,
}

impl Network {
    pub(crate) fn connect(&mut self, from: Node, to: Node) -> LinkId {
        self.next += 1;
        let link = LinkId::from_bits(self.next);
        self.open(link, from, to);
        link
    }

    /// A connection whose name the caller chooses.
    pub(crate) fn open(&mut self, link: LinkId, from: Node, to: Node) {
        let half = |to| Some(Half { to, queue: VecDeque::new(), closed: false });
        self.pipes.insert(link, Pipe { halves: [half(to), half(from)] });
    }

    /// Connections of which both sides still know.
    pub(crate) fn whole(&self) -> impl Iterator<Item = LinkId> {
        self.pipes.iter().filter(|(_, pipe)| pipe.halves.iter().all(Option::is_some)).map(|(link, _)| *link)
    }

    /// Whether both sides still know of a connection and will not learn of its end.
    pub(crate) fn is_open(&self, link: LinkId) -> bool {
        let open = |half: &Option<Half>| half.as_ref().is_some_and(|half| !half.closed);
        self.pipes.get(&link).is_some_and(|pipe| pipe.halves.iter().all(open))
    }

    /// Breaks a connection: what was on its way is lost, both sides learn of it.
    pub(crate) fn sever(&mut self, link: LinkId) {
        let Some(pipe) = self.pipes.get_mut(&link) else { return };
        for half in pipe.halves.iter_mut().flatten() {
            half.queue.clear();
            half.closed = true;
        }
    }

    pub(crate) fn send(&mut self, from: Node, link: LinkId, frame: Frame) {
        let Some(pipe) = self.pipes.get_mut(&link) else { return };
        let half = pipe.halves.iter_mut().flatten().find(|half| half.to != from);
        if let Some(half) = half.filter(|half| !half.closed) {
            half.queue.push_back(frame);
        }
    }

    /// One side is done: it hears nothing more, the other side gets what is on its way.
    pub(crate) fn close(&mut self, by: Node, link: LinkId) {
        let Some(pipe) = self.pipes.get_mut(&link) else { return };
        for slot in &mut pipe.halves {
            match slot {
                Some(half) if half.to == by => *slot = None,
                Some(half) => half.closed = true,
                None => {}
            }
        }
        self.forget_empty(link);
    }

    fn forget_empty(&mut self, link: LinkId) {
        if self.pipes.get(&link).is_some_and(|pipe| pipe.halves.iter().all(Option::is_none)) {
            self.pipes.remove(&link);
        }
    }

    /// A node is gone with all its connections.
    pub(crate) fn drop_node(&mut self, node: Node) {
        let touches = |pipe: &Pipe| pipe.halves.iter().flatten().count() > 0;
        let links: Vec<LinkId> =
            self.pipes.iter().filter(|(_, pipe)| touches(pipe)).map(|(link, _)| *link).collect();
        for link in links {
            if self.pipes[&link].halves.iter().flatten().any(|half| half.to == node) {
                self.close(node, link);
            }
        }
    }

    pub(crate) fn cut(&mut self, one: Node, other: Node) {
        self.cut_way(one, other);
        self.cut_way(other, one);
    }

    /// What one sends does not arrive at the other any more; the way back stays open.
    pub(crate) fn cut_way(&mut self, from: Node, to: Node) {
        self.cuts.push((from, to));
    }

    pub(crate) fn heal(&mut self) {
        self.cuts.clear();
    }

    pub(crate) fn is_cut(&self, one: Node, other: Node) -> bool {
        self.cuts.iter().any(|cut| *cut == (one, other) || *cut == (other, one))
    }

    /// Breaks a connection that stands still, as keep-alive would.
    pub(crate) fn break_cut(&mut self) {
        let broken: Vec<(LinkId, Node, Node)> = self
            .pipes
            .iter()
            .filter_map(|(link, pipe)| match &pipe.halves {
                [Some(one), Some(other)] if self.is_cut(one.to, other.to) => Some((*link, one.to, other.to)),
                _ => None,
            })
            .collect();
        for (link, one, other) in broken {
            self.sever(link);
            self.cuts.retain(|cut| *cut != (one, other) && *cut != (other, one));
        }
    }

    pub(crate) fn arrivals(&self, awake: impl Fn(Node) -> bool) -> Vec<Arrival> {
        let mut all = Vec::new();
        for (link, pipe) in &self.pipes {
            for (side, half) in pipe.halves.iter().enumerate() {
                let Some(half) = half else { continue };
                let from = pipe.halves[1 - side].as_ref().map(|other| other.to);
                let stuck = from.is_some_and(|from| self.cuts.contains(&(from, half.to)));
                if awake(half.to) && !stuck && (!half.queue.is_empty() || half.closed) {
                    all.push(Arrival { link: *link, to: half.to });
                }
            }
        }
        all
    }

    /// What would arrive, if it is a frame.
    pub(crate) fn peek(&self, Arrival { link, to }: Arrival) -> Option<&Frame> {
        self.pipes.get(&link)?.halves.iter().flatten().find(|half| half.to == to)?.queue.front()
    }

    pub(crate) fn take(&mut self, Arrival { link, to }: Arrival) -> Option<Arrived> {
        let pipe = self.pipes.get_mut(&link)?;
        let half = pipe.halves.iter_mut().flatten().find(|half| half.to == to)?;
        if let Some(frame) = half.queue.pop_front() {
            return Some(Arrived::Frame(frame));
        }
        self.close(to, link);
        Some(Arrived::Closed)
    }
}
