//! A process that writes is killed at random points, over and over, on the
//! same file. What it said was acknowledged must be there afterwards.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use super::*;

const CHILD: &str = "MIDFLIGHT_STORE_CRASH_CHILD";
const ROUNDS: u64 = 24;
const WRITERS: u64 = 6;

#[tokio::test]
async fn what_was_acknowledged_survives_kill_9() {
    if let Ok(arguments) = std::env::var(CHILD) {
        return child(&arguments).await;
    }
    let (_folder, path) = place();
    let mut chance = Chance(2026);
    let mut known: BTreeMap<String, (u64, Option<u64>)> = BTreeMap::new();
    let mut version = Version::FIRST;
    for round in 0..ROUNDS {
        let mut child = spawn(&path, round);
        let enough = 1 + chance.below(150) as usize;
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut acknowledged: Vec<String> = lines.by_ref().map_while(Result::ok).take(enough).collect();
        child.kill().unwrap();
        child.wait().unwrap();
        acknowledged.extend(lines.map_while(Result::ok));
        let acknowledged: Vec<_> = acknowledged.iter().filter_map(|line| parse(line)).collect();
        assert!(!acknowledged.is_empty() || enough < 10, "round {round}: the child did nothing");
        for (name, at, size) in acknowledged {
            assert!(Version::new(at) > version, "round {round}: version {at} was given before {version}");
            known.insert(name, (at, size));
        }

        let store = open(&path);
        let mut under_way = BTreeMap::new();
        for (name, (at, size)) in &known {
            let found = store.get(&key(name)).map(|stored| (stored.version.get(), super::size(&stored)));
            if found.map(|(_, size)| size) != *size {
                assert!(
                    found.is_none_or(|(found, _)| found > *at),
                    "round {round}: {name} went back to {found:?}"
                );
                // Of each writer, the one write under way at the kill may have landed.
                let writer = name.split('-').next().unwrap().to_owned();
                let other = under_way.insert(writer, name);
                assert_eq!(other, None, "round {round}: {name} is {found:?}, known {size:?} at {at}");
            }
        }
        let newest = known.values().map(|(at, _)| *at).max().unwrap_or(1);
        assert!(store.version() >= Version::new(newest), "round {round}");
        version = store.version();
        known = contents(&store);
    }
    assert!(version.get() > ROUNDS, "the children wrote");
}

fn contents(store: &Store) -> BTreeMap<String, (u64, Option<u64>)> {
    let snapshot = store.snapshot(&resource());
    snapshot
        .iter()
        .map(|entry| (entry.name.to_owned(), (entry.stored.version.get(), Some(size(entry.stored)))))
        .collect()
}

fn spawn(path: &Path, seed: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "store::tests::crash::what_was_acknowledged_survives_kill_9", "--nocapture"])
        .env(CHILD, format!("{seed} {}", path.display()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// `ack NAME VERSION SIZE`, where the size of a deleted object is `-`.
fn parse(line: &str) -> Option<(String, u64, Option<u64>)> {
    let fields: Vec<&str> = line.split(' ').collect();
    let ["ack", name, version, size] = fields[..] else { return None };
    Some((name.to_owned(), version.parse().ok()?, size.parse().ok()))
}

async fn child(arguments: &str) {
    let (seed, path) = arguments.split_once(' ').unwrap();
    let store = open(Path::new(path));
    let seed: u64 = seed.parse().unwrap();
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| tokio::spawn(write_for_ever(store.clone(), writer, Chance(seed * 31 + writer))))
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
}

/// Each writer has names of its own, so it knows what comes after what.
async fn write_for_ever(store: Store, writer: u64, mut chance: Chance) {
    loop {
        let name = format!("w{writer}-{}", chance.below(4));
        let size = chance.below(1 << 30);
        let (stored, size) = match (store.get(&key(&name)), chance.below(3)) {
            (None, _) => (create(&store, &name, size).await.unwrap(), size.to_string()),
            (Some(_), 0) => (delete(&store, &name).await.unwrap(), "-".to_owned()),
            (Some(_), _) => (replace(&store, &name, size).await.unwrap(), size.to_string()),
        };
        let line = format!("ack {name} {} {size}\n", stored.version);
        std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
    }
}
