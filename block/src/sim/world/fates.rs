//! What befalls nodes: processes are killed, replaced and started anew, machines lose power.

use super::{BLOCKS, VOLUME, World};
use crate::{
    check::pattern::BLOCK,
    engine::core::Engine,
    epoch::Epoch,
    frontend::{
        core::{self as frontend, Volume},
        table::Request,
    },
    record::Record,
    sim::{
        network::{Network, Node},
        nodes::{Nodes, address_of, wish},
    },
};

impl World {
    pub(in crate::sim) fn kill_engine(&mut self, at: usize) {
        self.engines[at].core = None;
        // What it sent to the record before it died may still get there.
        if let Some(change) = self.engines[at].changing.take() {
            self.shelf.late.push((self.engines[at].epoch.term(), wish(change)));
        }
        self.network.drop_node(Node::Engine(at));
    }

    /// The same address, a new process, the next incarnation.
    pub(in crate::sim) fn restart_engine(&mut self, at: usize) {
        self.kill_engine(at);
        let epoch = self.engines[at].epoch.next_incarnation().expect("incarnations are left");
        let sender = self.dice();
        let core = Engine::new(self.seat(epoch, sender));
        let node = &mut self.engines[at];
        node.epoch = epoch;
        node.paused = false;
        node.changing = None;
        node.core = Some(core);
        node.links.fill(None);
    }

    /// The frontend's process is replaced while engines live: on purpose, with all that it knows, or by a
    /// successor that knows only where the volume is, and whose clients come anew.
    pub(in crate::sim) fn replace_frontend(&mut self, on_purpose: bool) {
        let standing = self.frontend.standing();
        let standing = match on_purpose {
            true => standing,
            false => frontend::Standing { epoch: Epoch::NONE, ..standing },
        };
        self.replace_frontend_by(standing, on_purpose);
    }

    /// The same, by one that knows only this much.
    pub(in crate::sim) fn replace_frontend_by(&mut self, standing: frontend::Standing, on_purpose: bool) {
        let requests: Vec<Request> = self.frontend.requests().cloned().collect();
        self.network.drop_node(Node::Frontend);
        let (sender, mut outputs) = (self.dice(), Vec::new());
        self.frontend = Volume::attach(VOLUME.into(), self.kept_size, sender, standing, &mut outputs);
        self.carry_frontend(outputs);
        match on_purpose {
            true => {
                requests
                    .into_iter()
                    .for_each(|request| self.feed_frontend(frontend::Input::Request(request)));
            }
            false => self.client.forget(false),
        }
    }

    pub(in crate::sim) fn kill_replica(&mut self, at: usize) {
        let node = &mut self.replicas[at];
        node.core = None;
        node.persisting = None;
        node.syncing = None;
        node.noting = false;
        node.departures.clear();
        node.fetching.clear();
        self.network.drop_node(Node::Replica(at));
    }

    /// The machine of a replica fails: what it had not synced is lost, or torn.
    pub(in crate::sim) fn lose_power(&mut self, at: usize) {
        self.kill_replica(at);
        self.replicas[at].boot += 1;
        self.replicas[at].lost = true;
        let disk = self.replicas[at].disk.clone();
        disk.lose_power(|| self.dice().is_multiple_of(2));
    }

    /// The last of the copies is gone for good: it is taken out of the record, and the engine is started anew.
    pub(in crate::sim) fn remove_last(&mut self) {
        let last = self.replicas.len() - 1;
        self.kill_replica(last);
        self.replicas.pop();
        let without = self.shelf.record.without_member(&last.to_string());
        self.shelf.record = without.expect("others are in service").expect("it was a member");
        self.restart_engine(self.engines.len() - 1);
    }

    /// Everything stops at once and comes back, without the client and what it
    /// had under way.
    pub(in crate::sim) fn restart_everything(&mut self, power: bool) {
        for at in 0..self.engines.len() {
            self.kill_engine(at);
        }
        self.network = Network::default();
        for at in 0..self.replicas.len() {
            if power {
                self.lose_power(at);
            } else {
                self.kill_replica(at);
            }
            self.start_replica(at);
        }
        self.client.forget(power);
        let all_lost = self.in_service().all(|at| self.replicas[at].lost);
        if all_lost {
            self.replicas.iter_mut().for_each(|node| node.lost = false);
        }
        self.shelf.record = Record { switching: false, ..self.shelf.record.next_term() };
        let engine = self.start_engine(Epoch::of_term(self.shelf.record.term));
        let mut outputs = Vec::new();
        let sender = self.dice();
        self.frontend = Volume::attach(
            VOLUME.into(),
            BLOCKS * BLOCK as u64,
            sender,
            frontend::Standing::new(address_of(engine)),
            &mut outputs,
        );
        self.carry_frontend(outputs);
    }
}
