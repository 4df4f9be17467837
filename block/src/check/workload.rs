//! A client that keeps a volume busy and the ledger true.
//!
//! Invariant: every block that was ever written is read back and judged at the
//! end, so a report without complaints is a proof for all of them.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use super::{
    ledger::{Ledger, Wrong},
    pattern::{self, BLOCK},
};
use crate::nbd::client::{Ask, ClientError, NbdClient, Reply};

#[derive(Debug, Clone)]
pub struct Workload {
    pub socket: PathBuf,
    pub volume: String,
    pub depth: usize,
    /// Blocks to use; 0 means all.
    pub blocks: u64,
    pub seed: u64,
    /// How long it tries to connect again when it was cut off, as clients of a killed frontend do;
    /// without it, being cut off is the end.
    pub connects_again_within: Option<Duration>,
}

/// What the client saw.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub writes: u64,
    /// Blocks that were trimmed or zeroed.
    pub clears: u64,
    pub reads: u64,
    pub flushes: u64,
    /// Blocks read back and judged at the end.
    pub verified_blocks: u64,
    /// Requests that were answered with an error.
    pub errors: u64,
    /// How often it was cut off and connected again.
    pub cuts: u64,
    pub longest_wait_us: u64,
    pub writes_per_second: u64,
    /// The first few things that were wrong, in words.
    pub complaints: Vec<String>,
}

impl Report {
    pub fn is_clean(&self) -> bool {
        self.errors == 0 && self.complaints.is_empty()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    #[error("the client was cut off after {writes} writes")]
    Cut { writes: u64, source: ClientError },
    #[error("the volume has no room for a single block")]
    TooSmall,
}

/// A request under way.
struct Flight {
    what: What,
    began: Instant,
}

#[derive(Clone, Copy)]
enum What {
    Write { address: u64, sequence: u64 },
    Clear { by: Clearing, address: u64, sequence: u64 },
    Read { address: u64, acknowledged: u64 },
    Flush,
}

/// What makes a block zeroes.
#[derive(Clone, Copy)]
enum Clearing {
    Trim,
    Zero,
    SolidZero,
}

const MOST_COMPLAINTS: usize = 10;
const TRY_AGAIN: Duration = Duration::from_millis(5);

struct Run {
    client: NbdClient,
    ledger: Ledger,
    flights: HashMap<u64, Flight>,
    report: Report,
    random: u64,
    cookie: u64,
}

impl Workload {
    /// Writes (and now and then reads, trims, zeroes and flushes) for a while or until told to
    /// stop, then reads back everything.
    pub fn run(&self, for_long: Duration, stop: &AtomicBool) -> Result<Report, WorkloadError> {
        let client = NbdClient::connect(&self.socket, &self.volume)
            .map_err(|source| WorkloadError::Cut { writes: 0, source })?;
        let whole = client.size() / BLOCK as u64;
        let blocks = if self.blocks == 0 { whole } else { self.blocks.min(whole) };
        if blocks == 0 {
            return Err(WorkloadError::TooSmall);
        }
        let mut run = Run {
            client,
            ledger: Ledger::new(blocks),
            flights: HashMap::new(),
            report: Report::default(),
            random: self.seed | 1,
            cookie: 0,
        };
        let (depth, began) = (self.depth.max(1), Instant::now());
        let is_over = || began.elapsed() >= for_long || stop.load(Ordering::Relaxed);
        self.persist(&mut run, |run| run.keep_busy(depth, is_over))?;
        run.report.writes_per_second = (run.report.writes as f64 / began.elapsed().as_secs_f64()) as u64;
        self.persist(&mut run, |run| run.read_back(depth))?;
        Ok(run.report)
    }

    /// Does something to its end, and goes on with it after each time the client was cut off. What was
    /// under way then was not acknowledged: it may have been done or not.
    fn persist(
        &self,
        run: &mut Run,
        mut work: impl FnMut(&mut Run) -> Result<(), ClientError>,
    ) -> Result<(), WorkloadError> {
        while let Err(source) = work(run) {
            run.flights.clear();
            run.client = self
                .connect_again(source)
                .map_err(|source| WorkloadError::Cut { writes: run.report.writes, source })?;
            run.report.cuts += 1;
        }
        Ok(())
    }

    fn connect_again(&self, cut: ClientError) -> Result<NbdClient, ClientError> {
        let until = self.connects_again_within.map(|within| Instant::now() + within);
        let mut last = cut;
        while last.is_cut() && until.is_some_and(|until| Instant::now() < until) {
            match NbdClient::connect(&self.socket, &self.volume) {
                Ok(client) => return Ok(client),
                Err(error) => last = error,
            }
            thread::sleep(TRY_AGAIN);
        }
        Err(last)
    }
}

impl Run {
    fn keep_busy(&mut self, depth: usize, is_over: impl Fn() -> bool) -> Result<(), ClientError> {
        while !is_over() {
            while self.flights.len() < depth {
                self.ask_something()?;
            }
            self.take_answer()?;
        }
        while !self.flights.is_empty() {
            self.take_answer()?;
        }
        Ok(())
    }

    fn dice(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn ask_something(&mut self) -> Result<(), ClientError> {
        let address = self.dice() % self.ledger.blocks();
        match self.dice() % 100 {
            0 => self.ask(What::Flush),
            1..=20 => {
                let acknowledged = self.ledger.acknowledged(address);
                self.ask(What::Read { address, acknowledged })
            }
            dice @ 21..=29 => {
                let by = [Clearing::Trim, Clearing::Zero, Clearing::SolidZero][(dice % 3) as usize];
                let sequence = self.ledger.issue_clear(address);
                self.ask(What::Clear { by, address, sequence })
            }
            _ => {
                let sequence = self.ledger.issue(address);
                self.ask(What::Write { address, sequence })
            }
        }
    }

    fn ask(&mut self, what: What) -> Result<(), ClientError> {
        self.cookie += 1;
        self.flights.insert(self.cookie, Flight { what, began: Instant::now() });
        let (length, offset) = (BLOCK as u32, |address: u64| address * BLOCK as u64);
        let mut block = [0; BLOCK];
        let ask = match what {
            What::Flush => Ask::Flush,
            What::Read { address, .. } => Ask::Read { offset: offset(address), length },
            What::Write { address, sequence } => {
                pattern::write(&mut block, address, sequence);
                Ask::Write { offset: offset(address), data: &block }
            }
            What::Clear { by: Clearing::Trim, address, .. } => Ask::Trim { offset: offset(address), length },
            What::Clear { by: Clearing::Zero, address, .. } => Ask::Zero { offset: offset(address), length },
            What::Clear { by: Clearing::SolidZero, address, .. } => {
                Ask::SolidZero { offset: offset(address), length }
            }
        };
        self.client.send(self.cookie, ask)
    }

    fn take_answer(&mut self) -> Result<(), ClientError> {
        let flights = &self.flights;
        let reply = self.client.receive(|cookie| {
            flights.get(&cookie).map(|flight| match flight.what {
                What::Read { .. } => BLOCK as u32,
                What::Write { .. } | What::Clear { .. } | What::Flush => 0,
            })
        })?;
        let Some(flight) = self.flights.remove(&reply.cookie) else {
            return Err(ClientError::Protocol("an answer to nothing that was asked"));
        };
        let waited = flight.began.elapsed().as_micros() as u64;
        self.report.longest_wait_us = self.report.longest_wait_us.max(waited);
        if reply.error != 0 {
            self.report.errors += 1;
            return Ok(());
        }
        self.account(flight.what, &reply);
        Ok(())
    }

    fn account(&mut self, what: What, reply: &Reply) {
        match what {
            What::Flush => self.report.flushes += 1,
            What::Write { address, sequence } => {
                self.report.writes += 1;
                self.ledger.acknowledge(address, sequence);
            }
            What::Clear { address, sequence, .. } => {
                self.report.clears += 1;
                self.ledger.acknowledge(address, sequence);
            }
            What::Read { address, acknowledged } => {
                self.report.reads += 1;
                if let Err(wrong) = self.ledger.judge(address, &reply.data, acknowledged) {
                    self.complain(&wrong);
                }
            }
        }
    }

    fn complain(&mut self, wrong: &Wrong) {
        if self.report.complaints.len() < MOST_COMPLAINTS {
            self.report.complaints.push(wrong.to_string());
        }
    }

    fn read_back(&mut self, depth: usize) -> Result<(), ClientError> {
        self.report.verified_blocks = 0;
        for address in 0..self.ledger.blocks() {
            if !self.ledger.was_written(address) {
                continue;
            }
            while self.flights.len() >= depth {
                self.take_answer()?;
            }
            let acknowledged = self.ledger.acknowledged(address);
            self.ask(What::Read { address, acknowledged })?;
            self.report.verified_blocks += 1;
        }
        while !self.flights.is_empty() {
            self.take_answer()?;
        }
        Ok(())
    }
}
