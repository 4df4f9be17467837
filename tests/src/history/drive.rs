//! Makes a history: clients that write and read the same few objects at once,
//! and one that watches, while the server is killed under them.
//!
//! What clients ask follows from the seed alone; how their requests meet does
//! not, so a replay asks the same and may see something else.
//!
//! The one invariant: all that was asked and answered is in the record.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::chance::Chance;
use super::client::{Client, Lost, Told};
use super::record::{Action, Listing, Object, Operation, Outcome, Record, Session, Value, Version};
use super::server::{Clock, Life};

const CLIENTS: u64 = 3;
const ASKED_BY_EACH: u64 = 9;
const OBJECTS: [&str; 2] = ["a", "b"];

/// Longer than any answer or restart takes, however busy the machine.
const PATIENCE: Duration = Duration::from_secs(150);

/// How many requests a history makes.
pub const REQUESTS: usize = (CLIENTS * ASKED_BY_EACH) as usize;

/// What a history runs on.
#[derive(Debug, Clone)]
pub struct Stage {
    pub lives: watch::Receiver<Life>,
    pub clock: Clock,
    /// Counts requests that have been answered or lost, of all histories.
    pub progress: Arc<watch::Sender<usize>>,
}

/// Runs one history.
///
/// # Panics
/// When the server answers nonsense or nothing.
pub async fn drive(seed: u64, stage: Stage) -> Record {
    let watcher = tokio::spawn(watch_until_end(seed, stage.clone()));
    let clients: Vec<_> =
        (0..CLIENTS).map(|client| tokio::spawn(Asker::new(seed, client, stage.clone()).run())).collect();
    let mut record = Record::default();
    for client in clients {
        let (operations, listings) = client.await.expect("a client does not panic");
        record.operations.extend(operations);
        record.listings.extend(listings);
    }
    record.end = Some(write_end(seed, stage).await);
    let sessions = tokio::time::timeout(PATIENCE, watcher).await.expect("the watch tells of the end");
    record.sessions = sessions.expect("the watcher does not panic");
    record
}

/// One client. It waits for each answer before it asks again.
struct Asker {
    stage: Stage,
    chance: Chance,
    seed: u64,
    number: u64,
    client: Client,
    known: BTreeMap<Object, Version>,
    operations: Vec<Operation>,
    listings: Vec<Listing>,
}

impl Asker {
    fn new(seed: u64, number: u64, stage: Stage) -> Asker {
        Asker {
            stage,
            chance: Chance::new(seed.wrapping_mul(CLIENTS).wrapping_add(number)),
            seed,
            number,
            client: Client::new(&label(seed)),
            known: BTreeMap::new(),
            operations: Vec::new(),
            listings: Vec::new(),
        }
    }

    async fn run(mut self) -> (Vec<Operation>, Vec<Listing>) {
        for turn in 0..ASKED_BY_EACH {
            if self.chance.below(7) == 0 {
                self.list().await;
            } else {
                let object = object(self.seed, OBJECTS[self.chance.below(OBJECTS.len() as u64) as usize]);
                let action = self.choose(&object, Value(self.number * ASKED_BY_EACH + turn));
                self.ask(object, action).await;
            }
            self.stage.progress.send_modify(|done| *done += 1);
        }
        (self.operations, self.listings)
    }

    fn choose(&mut self, object: &str, value: Value) -> Action {
        let known = self.known.get(object).copied();
        match (self.chance.below(10), known) {
            (0..2, _) => Action::Create { value },
            (2..5, Some(expected)) => Action::Update { value, expected },
            (5..7, _) => Action::Apply { value },
            (7, _) => Action::Delete { expected: None },
            (8, Some(expected)) => Action::Delete { expected: Some(expected) },
            _ => Action::Read,
        }
    }

    async fn ask(&mut self, object: Object, action: Action) {
        loop {
            let life = *self.stage.lives.borrow_and_update();
            let invoked = self.stage.clock.now();
            let answer = tokio::time::timeout(PATIENCE, self.client.act(life.address, &object, action)).await;
            let (returned, outcome) = match answer.expect("the server answers or dies") {
                Ok(outcome) => (self.stage.clock.now(), outcome),
                Err(lost) => {
                    let death = next_life(&mut self.stage.lives, life).await.since;
                    if lost == Lost::NotSent {
                        continue;
                    }
                    (death, Outcome::Unknown)
                }
            };
            let operation = Operation { object: object.clone(), action, invoked, returned, outcome };
            if let Some((version, _)) = operation.shows() {
                self.known.insert(object, version);
            }
            self.operations.push(operation);
            return;
        }
    }

    /// A list is a read of every object at once.
    async fn list(&mut self) {
        loop {
            let life = *self.stage.lives.borrow_and_update();
            let invoked = self.stage.clock.now();
            let Ok(listing) = self.client.list(life.address).await else {
                next_life(&mut self.stage.lives, life).await;
                continue;
            };
            let returned = self.stage.clock.now();
            for object in OBJECTS.map(|name| object(self.seed, name)) {
                let found = listing.items.get(&object).copied();
                let outcome =
                    found.map_or(Outcome::Absent, |(version, value)| Outcome::Found { version, value });
                self.operations.push(Operation { object, action: Action::Read, invoked, returned, outcome });
            }
            self.listings.push(listing);
            return;
        }
    }
}

/// Writes the object whose event tells the watcher that all is over.
async fn write_end(seed: u64, mut stage: Stage) -> Version {
    let mut client = Client::new(&label(seed));
    loop {
        let life = *stage.lives.borrow_and_update();
        // Asked twice, it changes nothing the second time.
        match client.act(life.address, &object(seed, "end"), Action::Apply { value: Value(0) }).await {
            Ok(Outcome::Stored { version }) => return version,
            Ok(other) => panic!("the end was answered with {other:?}"),
            Err(_) => next_life(&mut stage.lives, life).await,
        };
    }
}

async fn watch_until_end(seed: u64, mut stage: Stage) -> Vec<Session> {
    let mut client = Client::new(&label(seed));
    let mut sessions = Vec::new();
    loop {
        let life = *stage.lives.borrow_and_update();
        let Ok(start) = client.list(life.address).await else {
            next_life(&mut stage.lives, life).await;
            continue;
        };
        let over = start.items.contains_key(&object(seed, "end"));
        let mut session = Session { start, events: Vec::new() };
        let over = over || follow(seed, &mut client, &mut stage.lives, &mut session).await;
        sessions.push(session);
        if over {
            return sessions;
        }
    }
}

/// Follows events over restarts. Whether the end was seen; otherwise the
/// version to go on from is gone.
async fn follow(
    seed: u64,
    client: &mut Client,
    lives: &mut watch::Receiver<Life>,
    session: &mut Session,
) -> bool {
    loop {
        let life = *lives.borrow_and_update();
        let from = session.events.last().map_or(session.start.version, |seen| seen.version);
        let Ok(mut events) = client.watch(life.address, from).await else {
            next_life(lives, life).await;
            continue;
        };
        loop {
            match events.next().await {
                Told::Event(seen) => {
                    let end = seen.object == object(seed, "end");
                    session.events.push(seen);
                    if end {
                        return true;
                    }
                }
                Told::Expired => return false,
                Told::End => break,
            }
        }
        next_life(lives, life).await;
    }
}

/// The life after the one given, which has ended.
async fn next_life(lives: &mut watch::Receiver<Life>, ended: Life) -> Life {
    let next = lives.wait_for(|life| life.number > ended.number);
    let next = tokio::time::timeout(PATIENCE, next).await.expect("the server ends only when it is killed");
    *next.expect("the server outlives its clients")
}

fn label(seed: u64) -> String {
    format!("h{seed}")
}

fn object(seed: u64, name: &str) -> Object {
    format!("h{seed}-{name}")
}
