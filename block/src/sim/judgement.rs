//! What can be seen of a world, and what must be true of it.
//!
//! Invariant: looking changes nothing.

use super::{
    nodes::wish,
    world::{BLOCKS, EngineNode, World},
};
use crate::{
    check::pattern::BLOCK,
    engine::{
        core::Phase,
        members::{Mode, Service},
    },
    epoch::Epoch,
    extent::Extent,
};

impl World {
    pub(super) fn mode(&self, at: usize) -> Mode {
        self.shelf.record.members[at].mode
    }

    /// Whether the engine of the record's term serves with every copy in service.
    pub(super) fn is_whole(&self) -> bool {
        let whole = |node: &EngineNode| {
            let serves = node.core.as_ref().is_some_and(|core| {
                core.phase() == Phase::Serving
                    && core.services().iter().all(|service| *service == Service::In)
            });
            serves && node.epoch.term() == self.shelf.record.term
        };
        self.engines.iter().any(whole) && self.shelf.record.in_service() == self.replicas.len()
    }

    pub(super) fn is_serving(&self, engine: usize) -> bool {
        self.engines[engine].core.as_ref().is_some_and(|core| core.phase() == Phase::Serving)
    }

    /// What a live replica has promised.
    pub(super) fn promised(&self, at: usize) -> Option<Epoch> {
        self.replicas[at].core.as_ref().map(|core| core.promised())
    }

    /// Where everyone stands, for whoever reads a failure.
    pub(super) fn describe(&self) -> String {
        let engines: Vec<_> = self
            .engines
            .iter()
            .filter_map(|node| {
                node.core.as_ref().map(|core| (node.epoch.to_string(), core.phase(), core.services()))
            })
            .collect();
        let replicas: Vec<_> = self
            .replicas
            .iter()
            .map(|node| node.core.as_ref().map(|core| core.promised().to_string()))
            .collect();
        format!(
            "record {} {:?}, engines {engines:?}, replicas {replicas:?}, {} unanswered, refused {:?}",
            self.shelf.record.term,
            self.shelf.record.members,
            self.client.waiting(),
            self.refused.last()
        )
    }

    pub(super) fn content(&self, at: usize) -> Vec<u8> {
        let extent = Extent::new(0, (BLOCKS * BLOCK as u64) as u32).expect("small");
        let core = self.replicas[at].core.as_ref().expect("a live replica");
        core.store().read(extent).expect("memory reads").to_vec()
    }

    /// The snapshots of a replica, each with what the volume was then.
    pub(super) fn snapshots(&self, at: usize) -> Vec<(String, Vec<u8>)> {
        let extent = Extent::new(0, (BLOCKS * BLOCK as u64) as u32).expect("small");
        let layers = self.replicas[at].core.as_ref().expect("a live replica").store().layers();
        let names = layers.layout().snapshots.into_iter().map(|snapshot| snapshot.name).enumerate();
        let read = |place| layers.read_snapshot(place, extent).expect("memory reads").to_vec();
        names.map(|(place, name)| (name, read(place))).collect()
    }

    pub(super) fn in_service(&self) -> impl Iterator<Item = usize> {
        (0..self.replicas.len()).filter(|at| self.mode(*at) == Mode::InService)
    }

    /// Whether a replica has noted durably that it serves in the present run of its machine.
    pub(super) fn has_noted(&self, at: usize) -> bool {
        let node = &self.replicas[at];
        node.promise.as_ref().is_some_and(|promise| promise.standing().boot == node.boot)
    }

    /// Whether an engine can rely on this copy alone: it runs, has lost nothing, knows that it serves, and stays in
    /// service.
    pub(super) fn vouches(&self, at: usize) -> bool {
        let node = &self.replicas[at];
        node.core.is_some() && !node.lost && self.has_noted(at) && !self.is_to_go(at)
    }

    /// Whether an engine, be it dead by now, has asked to take this copy out of service, or is going to ask because
    /// its connection is broken or it was told to let it go.
    fn is_to_go(&self, at: usize) -> bool {
        let under_way = self.engines.iter().filter_map(|node| node.changing.map(wish));
        let late = self.shelf.late.iter().map(|(_, wish)| wish.clone());
        let is_asked =
            under_way.chain(late).any(|wish| wish.replica == at.to_string() && wish.mode == Mode::Out);
        let misses = |node: &EngineNode| {
            node.core.is_some()
                && node.epoch.term() == self.shelf.record.term
                && !node.links[at].is_some_and(|link| self.network.is_open(link))
        };
        let lets_go = |node: &EngineNode| {
            node.epoch.term() == self.shelf.record.term
                && node.core.as_ref().is_some_and(|core| core.is_released(at))
        };
        is_asked || self.engines.iter().any(|node| misses(node) || lets_go(node))
    }

    /// Every block at every replica in service holds what the client may expect.
    pub(super) fn judge(&self) {
        for (at, node) in self.replicas.iter().enumerate() {
            let Some(core) = node.core.as_ref().filter(|_| self.mode(at) == Mode::InService) else {
                continue;
            };
            for address in 0..self.client.ledger.blocks() {
                let extent = Extent::new(address * BLOCK as u64, BLOCK as u32).expect("inside");
                let block = core.store().read(extent).expect("memory reads");
                let acknowledged = self.client.ledger.acknowledged(address);
                let judged = self.client.ledger.judge(address, &block, acknowledged);
                let excused = self.client.may_be_torn(address);
                assert!(judged.is_ok() || excused, "replica {at}: {}", judged.unwrap_err());
            }
        }
    }
}
