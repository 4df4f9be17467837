//! A client that writes without a break and remembers how long each write took.
//!
//! Invariant: a write is counted from before its first byte is sent until its
//! answer has been read, so no wait of the client is left out.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::pattern::BLOCK;
use crate::nbd::client::{Ask, ClientError, NbdClient};

/// A client at work.
#[derive(Debug)]
pub struct Stopwatch {
    shared: Arc<Shared>,
    client: JoinHandle<Result<Waits, ClientError>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    answered: AtomicU64,
}

/// When each write began and when it was answered, by the end.
#[derive(Debug, Default)]
pub struct Waits {
    writes: Vec<(Instant, Instant)>,
    /// Writes that were answered with an error.
    pub errors: u64,
}

impl Waits {
    pub fn count(&self) -> usize {
        self.writes.len()
    }

    pub fn per_second(&self) -> f64 {
        match (self.writes.first(), self.writes.last()) {
            (Some((began, _)), Some((_, ended))) if ended > began => {
                self.writes.len() as f64 / (*ended - *began).as_secs_f64()
            }
            _ => 0.0,
        }
    }

    /// The longest wait of all writes that were under way at some moment of a span.
    pub fn longest(&self, from: Instant, to: Instant) -> Duration {
        let start = self.writes.partition_point(|(_, ended)| *ended < from);
        let met = self.writes[start..].iter().filter(|(began, _)| *began <= to);
        met.map(|(began, ended)| *ended - *began).max().unwrap_or_default()
    }
}

impl Stopwatch {
    /// Begins to write blocks all over the volume, `depth` at a time.
    pub fn start(socket: &Path, export: &str, depth: u64) -> Result<Stopwatch, ClientError> {
        let client = NbdClient::connect(socket, export)?;
        let shared = Arc::new(Shared::default());
        let ours = Arc::clone(&shared);
        let client = thread::spawn(move || write_on(client, depth.max(1), &ours));
        Ok(Stopwatch { shared, client })
    }

    /// Writes answered so far.
    pub fn answered(&self) -> u64 {
        self.shared.answered.load(Ordering::Relaxed)
    }

    /// Lets the writes under way end.
    pub fn stop(self) -> Result<Waits, ClientError> {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.client.join().unwrap_or(Err(ClientError::Protocol("something that made the client panic")))
    }
}

fn write_on(mut client: NbdClient, depth: u64, shared: &Shared) -> Result<Waits, ClientError> {
    let blocks = (client.size() / BLOCK as u64).max(1);
    let block = [0xa5; BLOCK];
    let mut waits = Waits::default();
    let mut began = vec![None; depth as usize];
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    loop {
        let go_on = !shared.stop.load(Ordering::Relaxed);
        for cookie in 0..depth {
            if go_on && began[cookie as usize].is_none() {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                began[cookie as usize] = Some(Instant::now());
                client.send(cookie, Ask::Write { offset: random % blocks * BLOCK as u64, data: &block })?;
            }
        }
        if began.iter().all(Option::is_none) {
            return Ok(waits);
        }
        let reply = client.receive(|cookie| (cookie < depth).then_some(0))?;
        let begun = began[reply.cookie as usize].take();
        let begun = begun.ok_or(ClientError::Protocol("an answer to nothing that was asked"))?;
        waits.writes.push((begun, Instant::now()));
        shared.answered.fetch_add(1, Ordering::Relaxed);
        waits.errors += u64::from(reply.error != 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_counts_for_every_span_that_it_meets() {
        let zero = Instant::now();
        let at = |ms: u64| zero + Duration::from_millis(ms);
        let waits = Waits { writes: vec![(at(0), at(1)), (at(2), at(5)), (at(1), at(40))], errors: 0 };
        #[rustfmt::skip]
        let cases = [
            ("only the first",       0, 0,   1),
            ("the long one",         6, 7,  39),
            ("begins in the span",   0, 2,  39),
            ("after everything",    41, 50,  0),
        ];
        for (name, from, to, expected) in cases {
            assert_eq!(waits.longest(at(from), at(to)).as_millis(), expected, "{name}");
        }
        assert_eq!(waits.count(), 3);
    }
}
