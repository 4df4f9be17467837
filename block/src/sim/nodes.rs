//! What the simulated and the modelled data plane have in common: who is who, and how what
//! arrives gets to the core that it is for.
//!
//! Invariant: a core is given exactly what the network delivers to its node.

use super::network::{Arrival, Arrived, Node};
use crate::{
    engine::core::{self as engine, Change},
    frontend::core as frontend,
    net::{address::Address, reactor::LinkId},
    record::Wish,
    replica::core as replica,
};

/// Engines have their number for an address.
pub(crate) fn address_of(engine: usize) -> Address {
    Address::Unix(engine.to_string().into())
}

pub(crate) fn engine_at(address: &Address) -> usize {
    match address {
        Address::Unix(path) => path.to_string_lossy().parse().expect("an engine's number"),
        Address::Tcp(_) => unreachable!("engines have Unix addresses here"),
    }
}

/// Replicas are called by their numbers in the record.
pub(crate) fn wish(change: Change) -> Wish {
    Wish { replica: change.member.to_string(), mode: change.mode, version: change.version }
}

/// Cores that can be given something.
pub(crate) trait Nodes {
    fn feed_frontend(&mut self, input: frontend::Input);
    fn feed_engine(&mut self, at: usize, input: engine::Input);
    fn feed_replica(&mut self, at: usize, input: replica::Input);
    /// An engine's connection to a member is gone.
    fn forget_link(&mut self, at: usize, link: LinkId);

    fn arrive(&mut self, Arrival { link, to }: Arrival, arrived: Arrived) {
        match (to, arrived) {
            (Node::Frontend, Arrived::Frame(frame)) => {
                self.feed_frontend(frontend::Input::Frame(link, frame));
            }
            (Node::Frontend, Arrived::Closed) => self.feed_frontend(frontend::Input::Closed(link)),
            (Node::Engine(at), Arrived::Frame(frame)) => {
                self.feed_engine(at, engine::Input::Frame(link, frame));
            }
            (Node::Engine(at), Arrived::Closed) => {
                self.forget_link(at, link);
                self.feed_engine(at, engine::Input::Closed(link));
            }
            (Node::Replica(at), Arrived::Frame(frame)) => {
                self.feed_replica(at, replica::Input::Frame(link, frame));
            }
            (Node::Replica(at), Arrived::Closed) => self.feed_replica(at, replica::Input::Closed(link)),
        }
    }
}
