//! A thousand histories of clients that create, swap, apply, delete, list and
//! watch while the server is killed under them, each judged.
//!
//! `MIDFLIGHT_SEED=n` asks again what a failed run asked; it prints its seed.
//! `MIDFLIGHT_HISTORIES=n` runs more or fewer.

#![allow(clippy::print_stdout)]

use std::path::Path;
use std::sync::Arc;

use midflight_tests::history::{Chance, Clock, Outcome, REQUESTS, Record, Server, Stage, check, drive};
use tokio::sync::watch;

const HISTORIES: u64 = 1000;
/// Seeds of two runs next to each other share no history.
const STRIDE: u64 = 1 << 32;
/// Histories that share a server and its deaths.
const TOGETHER: u64 = 25;
const KILLS: usize = 2;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_histories_hold() {
    let seed = number_from("MIDFLIGHT_SEED")
        .unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().expect("it is after 1970").as_secs() % 1_000_000);
    let histories = number_from("MIDFLIGHT_HISTORIES").unwrap_or(HISTORIES);
    println!("MIDFLIGHT_SEED={seed}");
    let (mut answered, mut cut, mut events) = (0, 0, 0);
    for first in (0..histories).step_by(TOGETHER as usize) {
        let seeds: Vec<u64> = (first..first + TOGETHER).map(|index| seed * STRIDE + index).collect();
        for (history, record) in seeds.iter().zip(round(&seeds).await) {
            if let Err(violation) = check(&record) {
                panic!("MIDFLIGHT_SEED={seed}, history {history}: {violation}\n{record}");
            }
            let unknown =
                record.operations.iter().filter(|operation| operation.outcome == Outcome::Unknown).count();
            cut += unknown;
            answered += record.operations.len() - unknown;
            events += record.sessions.iter().map(|session| session.events.len()).sum::<usize>();
        }
    }
    println!("{histories} histories: {answered} requests answered, {cut} cut off by a kill, {events} events");
    assert!(cut as u64 > histories / 10, "the kills must hit something");
    assert!(events > answered / 10, "the watches must see something");
}

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a number, not {text}")))
}

/// Runs histories side by side on one server, which is killed as they go.
async fn round(seeds: &[u64]) -> Vec<Record> {
    let folder = tempfile::tempdir().expect("there is room for a folder");
    let clock = Clock::start();
    let mut server = Server::start(Path::new(env!("CARGO_BIN_EXE_killable")), folder.path(), clock).await;
    let progress = Arc::new(watch::Sender::new(0));
    let stage = Stage { lives: server.lives(), clock, progress: progress.clone() };
    let histories: Vec<_> = seeds.iter().map(|seed| tokio::spawn(drive(*seed, stage.clone()))).collect();

    let all = REQUESTS * seeds.len();
    let mut chance = Chance::new(seeds[0]);
    let mut points: Vec<usize> = (0..KILLS).map(|_| chance.below(all as u64) as usize).collect();
    points.sort_unstable();
    let mut progress = progress.subscribe();
    for point in points {
        progress.wait_for(|done| *done >= point).await.expect("the histories go on");
        server.kill_and_restart().await;
    }
    let mut records = Vec::new();
    for (history, seed) in histories.into_iter().zip(seeds) {
        records.push(history.await.unwrap_or_else(|error| panic!("history {seed}: {error}")));
    }
    server.stop().await;
    records
}
