//! Replicas of the modelled data plane: they start, are fed, write to their disks and die.
//!
//! Invariant: what a replica has on disk changes only while its own core or job runs.

use std::collections::VecDeque;

use super::{
    disk::{self, Files, StateDisk},
    kept::Kept,
    state::{BLOCK, CONTROL, Fault, Job, Process, State, VOLUME},
    wrong::Wrong,
};
use crate::{
    epoch::Epoch,
    extent::Extent,
    replica::{
        core::{self as replica, Replica},
        disk::Disk,
        promise::PromiseFile,
        store::Store,
    },
    sim::{network::Node, nodes::Nodes},
    wire::{Kind, Status},
};

impl State {
    pub(super) fn start_replica(&mut self, at: usize) {
        let (size, node) = (u64::from(self.scope.blocks) * BLOCK, &mut self.replicas[at]);
        let boot = node.boot;
        let process = disk::with(&mut node.files, || {
            let promise = PromiseFile::open(StateDisk).expect("the promise is readable");
            let store = Store::open(&StateDisk, size, boot).expect("the store opens");
            let core = Replica::new(VOLUME.into(), store, promise.standing(), boot);
            let departures = VecDeque::new();
            Process { core, promise, persisting: None, syncing: None, noting: false, departures }
        });
        node.process = Some(Kept::new(process));
    }

    pub(super) fn kill_replica(&mut self, at: usize) {
        self.replicas[at].process = None;
        self.network.change(|network| network.drop_node(Node::Replica(at)));
    }

    /// The machine of a replica fails: what it had not synced is lost.
    pub(super) fn lose_power(&mut self, at: usize) {
        self.kill_replica(at);
        let node = &mut self.replicas[at];
        node.boot += 1;
        node.lost = true;
        node.files.change(Files::lose_power);
    }

    pub(super) fn give_replica(&mut self, at: usize, input: replica::Input) {
        if let Some((link, answer)) = Wrong::accept(self, at, &input) {
            return self.send(Node::Replica(at), link, answer);
        }
        let before: Vec<u8> = (0..self.scope.blocks).map(|block| self.holds(at, block)).collect();
        let node = &mut self.replicas[at];
        let Some(process) = &mut node.process else { return };
        let mut out = Vec::new();
        let (promised, wrote) = disk::with(&mut node.files, || {
            process.change(|process| {
                process.core.apply(input, &mut out);
                (process.core.promised(), process.core.last_write())
            })
        });
        let after: Vec<u8> = (0..self.scope.blocks).map(|block| self.holds(at, block)).collect();
        if before != after {
            self.wrote(at, promised, wrote);
        }
        for output in out {
            self.carry_replica(at, output);
        }
    }

    /// A copy has been changed under `epoch`, while it had promised another.
    pub(super) fn wrote(&mut self, at: usize, promised: Epoch, epoch: Epoch) {
        let node = &mut self.replicas[at];
        if epoch < node.wrote || epoch != promised {
            self.faults.insert(Fault::Interleaved);
        }
        node.wrote = epoch.max(node.wrote);
    }

    fn carry_replica(&mut self, at: usize, output: replica::Output) {
        let node = &mut self.replicas[at];
        let Some(process) = &mut node.process else { return };
        match output {
            replica::Output::Send(link, frame) => {
                let header = &frame.header;
                let change =
                    header.kind == Kind::Reply && header.extent == Extent::EMPTY && header.tag < CONTROL;
                if change && header.status == Status::Ok {
                    node.answered = node.answered.max(header.epoch);
                }
                self.send(Node::Replica(at), link, frame);
            }
            replica::Output::Close(link) => self.close(Node::Replica(at), link),
            replica::Output::Persist(standing) => {
                process.change(|process| process.persisting = Some(standing));
            }
            replica::Output::SyncIntent => process.change(|process| process.noting = true),
            replica::Output::SyncAbsent(key) => process.change(|process| process.departures.push_back(key)),
            replica::Output::Sync => disk::with(&mut node.files, || {
                process.change(|process| process.syncing = process.core.sync_plan().ok());
            }),
            replica::Output::Fetch(number) => self.feed_replica(at, replica::Input::Fetched(number)),
            replica::Output::Die(_) => self.kill_replica(at),
        }
    }

    pub(super) fn finish(&mut self, at: usize, job: Job) {
        let forgets = self.wrong == Some(Wrong::ForgetsPromise);
        let node = &mut self.replicas[at];
        let Some(process) = &mut node.process else { return };
        let input = disk::with(&mut node.files, || {
            process.change(|process| match job {
                Job::Persist => process.persisting.take().map(|standing| {
                    if !forgets {
                        process.promise.store(standing).expect("this disk does not fail");
                    }
                    replica::Input::Persisted(standing)
                }),
                Job::Note => std::mem::take(&mut process.noting).then(|| {
                    let file = process.core.store().intent_file();
                    Disk::sync(&StateDisk, &file).expect("this disk does not fail");
                    replica::Input::IntentSynced
                }),
                Job::Depart => process.departures.pop_front().map(|key| {
                    if let Some(file) = process.core.store().absent_file(key) {
                        Disk::sync(&StateDisk, &file).expect("this disk does not fail");
                    }
                    Disk::sync_folder(&StateDisk).expect("this disk does not fail");
                    replica::Input::AbsentSynced(key)
                }),
                Job::Sync => process.syncing.take().map(|plan| {
                    replica::Input::Synced(plan.carry_out(&StateDisk).expect("this disk does not fail"))
                }),
            })
        });
        if let Some(input) = input {
            self.feed_replica(at, input);
        }
    }
}
