//! A client of the simulated volume: a few blocks, many overlapping requests, a
//! ledger.
//!
//! Invariant: every answer is judged at once.

use std::{collections::BTreeMap, time::Instant};

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
    Write { address: u64, sequence: u64 },
    Read { address: u64, acknowledged: u64 },
    Flush,
}

pub(super) struct Client {
    pub(super) ledger: Ledger,
    flights: BTreeMap<u64, Flight>,
    cookie: u64,
    pub(super) answered: u64,
}

impl Client {
    pub(super) fn new(blocks: u64) -> Client {
        Client { ledger: Ledger::new(blocks), flights: BTreeMap::new(), cookie: 0, answered: 0 }
    }

    pub(super) fn waiting(&self) -> usize {
        self.flights.len()
    }

    pub(super) fn ask(&mut self, dice: u64, arrived: Instant) -> Request {
        let address = dice % self.ledger.blocks();
        self.cookie += 1;
        let (flight, op, payload) = match (dice >> 16) % 10 {
            0 => (Flight::Flush, Op::Flush, Bytes::new()),
            1..=3 => {
                let acknowledged = self.ledger.acknowledged(address);
                (Flight::Read { address, acknowledged }, Op::Read, Bytes::new())
            }
            _ => {
                let sequence = self.ledger.issue(address);
                let mut block = [0; BLOCK];
                pattern::write(&mut block, address, sequence);
                (Flight::Write { address, sequence }, Op::Write, Bytes::copy_from_slice(&block))
            }
        };
        self.flights.insert(self.cookie, flight);
        let whole = Extent::new(address * BLOCK as u64, BLOCK as u32).expect("inside the volume");
        Request {
            client: LinkId::from_bits(0),
            cookie: self.cookie,
            op,
            fua: (dice >> 32).is_multiple_of(16),
            extent: if op == Op::Flush { Extent::EMPTY } else { whole },
            check: checksum(&payload),
            payload,
            arrived,
        }
    }

    pub(super) fn take(&mut self, answer: &Answer) {
        let flight = self.flights.remove(&answer.cookie).expect("an answer comes once");
        assert_eq!(answer.status, Status::Ok, "a client sees a pause, never an error");
        self.answered += 1;
        match flight {
            Flight::Flush => {}
            Flight::Write { address, sequence } => self.ledger.acknowledge(address, sequence),
            Flight::Read { address, acknowledged } => {
                let judged = self.ledger.judge(address, &answer.data, acknowledged);
                assert!(judged.is_ok(), "{}", judged.unwrap_err());
            }
        }
    }
}
