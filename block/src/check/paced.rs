//! A client that writes at a steady pace, and remembers when it wrote what and how long that took.
//!
//! Invariant: a write is sent when it is due, whether those before it were answered or not, so a
//! pause is met by everything that falls into it; and all that was written is read back in the end.

use std::{
    collections::{BTreeMap, HashSet},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::{
    ledger::{Ledger, Wrong},
    pattern::{self, BLOCK},
};
use crate::nbd::client::{Ask, ClientError, NbdClient};

/// Writes that may be under way at once: a client whose server is silent does not fill the memory.
const MOST: usize = 1024;
/// How long it waits for an answer at a time once no further write is due.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// A client at work.
#[derive(Debug)]
pub struct Paced {
    stop: Arc<AtomicBool>,
    client: Option<JoinHandle<Result<Log, ClientError>>>,
}

/// One write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Write {
    began: Instant,
    ended: Instant,
    block: u64,
}

/// What the client wrote, by the end of each write, and what was wrong.
#[derive(Debug, Default)]
pub struct Log {
    writes: Vec<Write>,
    /// Writes that were answered with an error.
    pub errors: u64,
    /// Blocks that did not hold what they must.
    pub wrong: Vec<Wrong>,
}

impl Log {
    pub fn count(&self) -> usize {
        self.writes.len()
    }

    /// The longest wait of all writes that were under way at some moment of a span.
    pub fn longest(&self, from: Instant, to: Instant) -> Duration {
        self.worst(from, to).map(|(_, wait)| wait).unwrap_or_default()
    }

    /// When the write that waited longest of those was sent, and for how long it waited.
    pub fn worst(&self, from: Instant, to: Instant) -> Option<(Instant, Duration)> {
        let waits = self.met(from, to).map(|write| (write.began, write.ended - write.began));
        waits.max_by_key(|(_, wait)| *wait)
    }

    /// Different blocks of all writes that were under way at some moment of a span.
    pub fn blocks(&self, from: Instant, to: Instant) -> usize {
        self.met(from, to).map(|write| write.block).collect::<HashSet<_>>().len()
    }

    fn met(&self, from: Instant, to: Instant) -> impl Iterator<Item = &Write> {
        let start = self.writes.partition_point(|write| write.ended < from);
        self.writes[start..].iter().filter(move |write| write.began <= to)
    }
}

impl Paced {
    /// Begins to write blocks all over the volume, so many per second.
    pub fn start(socket: &Path, export: &str, per_second: u32, seed: u64) -> Result<Paced, ClientError> {
        let client = NbdClient::connect(socket, export)?;
        let every = Duration::from_secs(1) / per_second.max(1);
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let client = thread::spawn(move || Run::new(client, seed).go(every, &told));
        Ok(Paced { stop, client: Some(client) })
    }

    /// No further write is begun from now on.
    pub fn end(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Lets the writes under way end, and reads back all that was written.
    pub fn stop(mut self) -> Result<Log, ClientError> {
        self.end();
        let client = self.client.take().map(JoinHandle::join);
        let ended = client.and_then(Result::ok);
        ended.unwrap_or(Err(ClientError::Protocol("something that made the client panic")))
    }
}

impl Drop for Paced {
    fn drop(&mut self) {
        self.end();
    }
}

/// A write under way.
struct Flight {
    began: Instant,
    block: u64,
    sequence: u64,
}

struct Run {
    client: NbdClient,
    ledger: Ledger,
    flights: BTreeMap<u64, Flight>,
    cookie: u64,
    random: u64,
    log: Log,
}

impl Run {
    fn new(client: NbdClient, seed: u64) -> Run {
        let ledger = Ledger::new((client.size() / BLOCK as u64).max(1));
        // Neighbouring seeds begin far apart, and none at 0, which stays 0.
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Run { client, ledger, flights: BTreeMap::new(), cookie: 0, random, log: Log::default() }
    }

    fn go(mut self, every: Duration, stop: &AtomicBool) -> Result<Log, ClientError> {
        let mut due = Instant::now();
        loop {
            let is_over = stop.load(Ordering::Relaxed);
            if is_over && self.flights.is_empty() {
                break;
            }
            let left = due.saturating_duration_since(Instant::now());
            if !is_over && left.is_zero() && self.flights.len() < MOST {
                self.write()?;
                due += every;
                continue;
            }
            let longest = if is_over || left.is_zero() { LAST_ANSWERS } else { left };
            if self.client.answers_within(longest)? {
                self.take_answer()?;
            }
        }
        self.read_back()?;
        Ok(self.log)
    }

    fn write(&mut self) -> Result<(), ClientError> {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let block = self.random % self.ledger.blocks();
        let sequence = self.ledger.issue(block);
        let mut data = [0; BLOCK];
        pattern::write(&mut data, block, sequence);
        self.cookie += 1;
        self.flights.insert(self.cookie, Flight { began: Instant::now(), block, sequence });
        self.client.send(self.cookie, Ask::Write { offset: block * BLOCK as u64, data: &data })
    }

    fn take_answer(&mut self) -> Result<(), ClientError> {
        let flights = &self.flights;
        let reply = self.client.receive(|cookie| flights.contains_key(&cookie).then_some(0))?;
        let Some(Flight { began, block, sequence }) = self.flights.remove(&reply.cookie) else {
            return Err(ClientError::Protocol("an answer to nothing that was asked"));
        };
        self.log.writes.push(Write { began, ended: Instant::now(), block });
        match reply.error {
            0 => self.ledger.acknowledge(block, sequence),
            _ => self.log.errors += 1,
        }
        Ok(())
    }

    fn read_back(&mut self) -> Result<(), ClientError> {
        for block in (0..self.ledger.blocks()).filter(|block| self.ledger.was_written(*block)) {
            let ask = Ask::Read { offset: block * BLOCK as u64, length: BLOCK as u32 };
            let reply = self.client.call(ask)?;
            if reply.error != 0 {
                self.log.errors += 1;
            } else if let Err(wrong) = self.ledger.judge(block, &reply.data, self.ledger.acknowledged(block))
            {
                self.log.wrong.push(wrong);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_counts_for_every_span_that_it_meets() {
        let zero = Instant::now();
        let at = |ms: u64| zero + Duration::from_millis(ms);
        let write = |(began, ended, block)| Write { began: at(began), ended: at(ended), block };
        let writes = [(0, 1, 7), (2, 5, 7), (1, 40, 8), (30, 41, 9)].map(write).to_vec();
        let log = Log { writes, ..Log::default() };
        #[rustfmt::skip]
        let cases = [
            ("only the first",    0,  0,  1, 1),
            ("one block, twice",  0,  2, 39, 2),
            ("the long one",      6,  7, 39, 1),
            ("until it is over", 40, 41, 39, 2),
            ("after everything", 42, 50,  0, 0),
        ];
        for (name, from, to, longest, blocks) in cases {
            assert_eq!(log.longest(at(from), at(to)).as_millis(), longest, "{name}");
            let began = log.worst(at(from), at(to)).map(|(began, _)| began);
            let expected = log.writes.iter().find(|write| (write.ended - write.began).as_millis() == longest);
            assert_eq!(began, expected.map(|write| write.began), "{name}");
            assert_eq!(log.blocks(at(from), at(to)), blocks, "{name}");
        }
        assert_eq!(log.count(), 4);
    }
}
