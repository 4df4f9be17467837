//! A client of the simulated volume: a few blocks, many overlapping requests, a
//! ledger.
//!
//! Invariant: every answer is judged at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use bytes::Bytes;

use crate::{
    check::{
        ledger::Ledger,
        pattern::{self, BLOCK},
    },
    extent::Extent,
    frontend::{
        core::Answer,
        table::{Op, Request},
    },
    net::reactor::LinkId,
    wire::{Status, checksum},
};

#[derive(Debug, Clone, Copy)]
enum Flight {
    /// A write, or what makes the block zeroes.
    Change {
        address: u64,
        sequence: u64,
        fua: bool,
    },
    Read {
        address: u64,
        acknowledged: u64,
    },
    /// Remembers what had been acknowledged when it began.
    Flush {
        number: u64,
    },
}

pub(super) struct Client {
    pub(super) ledger: Ledger,
    flights: BTreeMap<u64, Flight>,
    cookie: u64,
    pub(super) answered: u64,
    flushes: BTreeMap<u64, Vec<u64>>,
    /// What is certain to survive a loss of power, block by block.
    durable: Vec<u64>,
    /// Blocks with a write that the power was lost on: they may be torn until
    /// they are written again.
    torn: BTreeSet<u64>,
    /// Whether disks fail in this world, so that the last copy may have to tell of an error.
    pub(super) may_fail: bool,
    /// The errors that it was told of.
    pub(super) failed: Vec<Status>,
}

impl Client {
    pub(super) fn new(blocks: u64) -> Client {
        Client {
            ledger: Ledger::new(blocks),
            flights: BTreeMap::new(),
            cookie: 0,
            answered: 0,
            flushes: BTreeMap::new(),
            durable: vec![0; blocks as usize],
            torn: BTreeSet::new(),
            may_fail: false,
            failed: Vec::new(),
        }
    }

    /// The volume is larger.
    pub(super) fn grow(&mut self, blocks: u64) {
        self.ledger.grow(blocks);
        self.durable.resize(blocks as usize, 0);
    }

    pub(super) fn waiting(&self) -> usize {
        self.flights.len()
    }

    pub(super) fn ask(&mut self, dice: u64, arrived: Instant) -> Request {
        let address = dice % self.ledger.blocks();
        self.cookie += 1;
        let fua = (dice >> 32).is_multiple_of(16);
        let (flight, op, payload) = match (dice >> 16) % 10 {
            0 => {
                self.flushes.insert(self.cookie, self.ledger.all_acknowledged());
                (Flight::Flush { number: self.cookie }, Op::Flush, Bytes::new())
            }
            1..=3 => {
                let acknowledged = self.ledger.acknowledged(address);
                (Flight::Read { address, acknowledged }, Op::Read, Bytes::new())
            }
            4 => {
                let sequence = self.ledger.issue_clear(address);
                let op = if (dice >> 24).is_multiple_of(2) { Op::Trim } else { Op::Zero };
                (Flight::Change { address, sequence, fua }, op, Bytes::new())
            }
            _ => {
                let sequence = self.ledger.issue(address);
                let mut block = [0; BLOCK];
                pattern::write(&mut block, address, sequence);
                (Flight::Change { address, sequence, fua }, Op::Write, Bytes::copy_from_slice(&block))
            }
        };
        self.flights.insert(self.cookie, flight);
        let whole = Extent::new(address * BLOCK as u64, BLOCK as u32).expect("inside the volume");
        Request {
            client: LinkId::from_bits(0),
            cookie: self.cookie,
            op,
            fua,
            extent: if op == Op::Flush { Extent::EMPTY } else { whole },
            check: checksum(&payload),
            payload,
            arrived,
        }
    }

    /// The client is gone with what it had under way; with the power, so is what
    /// was not flushed.
    pub(super) fn forget(&mut self, power: bool) {
        self.flights.clear();
        self.flushes.clear();
        if power {
            self.forget_unflushed();
        }
    }

    /// Only what was flushed is certain.
    pub(super) fn forget_unflushed(&mut self) {
        for (address, durable) in (0..).zip(&self.durable) {
            if self.ledger.issued(address) > *durable {
                self.ledger.reduce(address, *durable);
                self.torn.insert(address);
            }
        }
    }

    pub(super) fn may_be_torn(&self, address: u64) -> bool {
        self.torn.contains(&address)
    }

    pub(super) fn take(&mut self, answer: &Answer) {
        let flight = self.flights.remove(&answer.cookie).expect("an answer comes once");
        self.answered += 1;
        if answer.status != Status::Ok {
            assert!(self.may_fail, "a client sees a pause, never {:?}", answer.status);
            self.failed.push(answer.status);
            return;
        }
        match flight {
            Flight::Flush { number } => {
                let acknowledged = self.flushes.remove(&number).expect("it was remembered");
                self.durable
                    .iter_mut()
                    .zip(acknowledged)
                    .for_each(|(durable, now)| *durable = now.max(*durable));
            }
            Flight::Change { address, sequence, fua } => {
                self.ledger.acknowledge(address, sequence);
                self.torn.remove(&address);
                if fua {
                    let durable = &mut self.durable[address as usize];
                    *durable = sequence.max(*durable);
                }
            }
            Flight::Read { address, acknowledged } => {
                let judged = self.ledger.judge(address, &answer.data, acknowledged);
                assert!(judged.is_ok() || self.may_be_torn(address), "{}", judged.unwrap_err());
            }
        }
    }
}
