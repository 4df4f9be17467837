//! The store against a plain map, under random changes and restarts.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Step {
    Create {
        name: u8,
        size: u64,
    },
    /// `stale`: with a version that is not the current one.
    Replace {
        name: u8,
        size: u64,
        stale: bool,
    },
    Delete {
        name: u8,
        stale: bool,
    },
    /// A create that needs another object to be there.
    Guarded {
        name: u8,
        needs: u8,
        size: u64,
    },
    Many {
        sizes: Vec<(u8, u64)>,
    },
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let name = || 0..6u8;
    prop_oneof![
        4 => (name(), 0..100u64).prop_map(|(name, size)| Step::Create { name, size }),
        4 => (name(), 0..100u64, prop::bool::weighted(0.2)).prop_map(|(name, size, stale)| Step::Replace { name, size, stale }),
        3 => (name(), prop::bool::weighted(0.2)).prop_map(|(name, stale)| Step::Delete { name, stale }),
        2 => (name(), name(), 0..100u64).prop_map(|(name, needs, size)| Step::Guarded { name, needs, size }),
        1 => prop::collection::vec((name(), 0..100u64), 2..12).prop_map(|sizes| Step::Many { sizes }),
        1 => Just(Step::Reopen),
    ]
}

/// What the store should hold: version and size by name.
type Model = BTreeMap<String, (u64, u64)>;

/// The store and what is known of it.
struct Pair {
    disk: Fickle,
    path: PathBuf,
    store: Store,
    model: Model,
    version: u64,
    watch: Watch,
    /// Rebuilt from the watch alone.
    watched: Model,
}

impl Pair {
    fn open(disk: Fickle, path: PathBuf) -> Pair {
        let store = open_on(&disk, &path).unwrap();
        let watch = store.watch(&resource(), store.version()).unwrap();
        Pair { disk, path, store, model: Model::new(), version: 1, watch, watched: Model::new() }
    }

    async fn take(&mut self, step: Step) {
        match step {
            Step::Create { name, size } => self.create(name, size, vec![], true).await,
            Step::Guarded { name, needs, size } => {
                let holds = self.model.contains_key(&needs.to_string());
                self.create(name, size, vec![Guard::exists(key(&needs.to_string()))], holds).await;
            }
            Step::Replace { name, size, stale } => self.replace(name, size, stale).await,
            Step::Delete { name, stale } => self.delete(name, stale).await,
            Step::Many { sizes } => self.many(sizes).await,
            Step::Reopen => self.reopen(),
        }
    }

    async fn create(&mut self, name: u8, size: u64, guards: Vec<Guard>, holds: bool) {
        let name = name.to_string();
        let answer = self.store.write(Change::Create { key: key(&name), body: body(size) }, guards).await;
        match self.model.get(&name) {
            _ if !holds => assert!(matches!(answer, Err(WriteError::GuardFailed { .. }))),
            Some(_) => assert_eq!(answer, Err(WriteError::Exists)),
            None => self.accepted(&name, size, &answer.unwrap()),
        }
    }

    async fn replace(&mut self, name: u8, size: u64, stale: bool) {
        let name = name.to_string();
        let current = self.model.get(&name).copied();
        let expected = Version::new(current.map_or(1, |(version, _)| version) - u64::from(stale));
        let answer =
            self.store.write(Change::Replace { key: key(&name), body: body(size), expected }, vec![]).await;
        match current {
            None => assert_eq!(answer, Err(WriteError::Missing)),
            Some(_) if stale => assert!(matches!(answer, Err(WriteError::Conflict { .. }))),
            Some(_) => self.accepted(&name, size, &answer.unwrap()),
        }
    }

    async fn delete(&mut self, name: u8, stale: bool) {
        let name = name.to_string();
        let current = self.model.get(&name).copied();
        let expected = Version::new(current.map_or(1, |(version, _)| version) - u64::from(stale));
        let answer =
            self.store.write(Change::Delete { key: key(&name), last: body(0), expected }, vec![]).await;
        match current {
            None => assert_eq!(answer, Err(WriteError::Missing)),
            Some((version, _)) if stale => {
                let Err(WriteError::Conflict { current }) = answer else { panic!("{answer:?}") };
                assert_eq!(current.version.get(), version);
            }
            Some(_) => {
                self.version += 1;
                assert_eq!(answer.unwrap().version.get(), self.version);
                self.model.remove(&name);
            }
        }
    }

    /// Creates sent at once: one for each name wins.
    async fn many(&mut self, sizes: Vec<(u8, u64)>) {
        let tasks: Vec<_> = sizes
            .into_iter()
            .map(|(name, size)| {
                let store = self.store.clone();
                tokio::spawn(async move { (name.to_string(), create(&store, &name.to_string(), size).await) })
            })
            .collect();
        let mut won = Vec::new();
        for task in tasks {
            match task.await.unwrap() {
                (name, Ok(stored)) => won.push((stored.version, name, size(&stored))),
                (name, Err(error)) => {
                    assert_eq!(error, WriteError::Exists);
                    assert!(self.store.get(&key(&name)).is_some());
                }
            }
        }
        won.sort();
        for (version, name, size) in won {
            self.version += 1;
            assert_eq!(version.get(), self.version);
            assert_eq!(self.model.insert(name, (self.version, size)), None, "exactly one may win");
        }
    }

    fn accepted(&mut self, name: &str, expected: u64, stored: &Stored) {
        self.version += 1;
        assert_eq!((stored.version.get(), size(stored)), (self.version, expected));
        self.model.insert(name.to_owned(), (self.version, expected));
    }

    fn reopen(&mut self) {
        self.follow();
        let watched = std::mem::take(&mut self.watched);
        let (model, version) = (std::mem::take(&mut self.model), self.version);
        let elsewhere = Fickle::formatted();
        let folder = tempfile::tempdir().unwrap();
        let spare = open_on(&elsewhere, &folder.path().join("spare")).unwrap();
        self.watch = spare.watch(&resource(), spare.version()).unwrap();
        self.store = spare;
        let again = Pair::open(self.disk.clone(), self.path.clone());
        *self = Pair { model, version, watched, ..again };
    }

    fn follow(&mut self) {
        while let Some(event) = self.watch.try_next().unwrap() {
            let name = event.key.name.to_string();
            let before = event.before.as_ref().map(|stored| (stored.version.get(), size(stored)));
            assert_eq!(self.watched.get(&name).copied(), before, "each event follows on the last");
            match &event.after {
                Some(stored) => self.watched.insert(name, (event.version.get(), size(stored))),
                None => self.watched.remove(&name),
            };
        }
    }

    fn check(&mut self) {
        let snapshot = self.store.snapshot(&resource());
        let seen: Model = snapshot
            .iter()
            .map(|entry| (entry.name.to_owned(), (entry.stored.version.get(), size(entry.stored))))
            .collect();
        assert_eq!(seen, self.model);
        assert_eq!(snapshot.version().get(), self.version);
        self.follow();
        assert_eq!(self.watched, self.model);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn behaves_like_a_map_that_counts(steps in prop::collection::vec(step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (_folder, path) = place();
            let mut pair = Pair::open(Fickle::formatted(), path);
            for step in steps {
                pair.take(step).await;
                pair.check();
            }
        });
    }
}

/// Enough changes for waste to be cleared over and over; nothing that was
/// deleted rises again.
#[tokio::test]
async fn clearing_the_log_loses_nothing_and_revives_nothing() {
    let (_folder, path) = place();
    let disk = Fickle::formatted();
    let store = open_on(&disk, &path).unwrap();
    let mut chance = Chance(3);
    let mut model = BTreeMap::new();
    for turn in 0..60u64 {
        let tasks: Vec<_> = (0..100)
            .map(|_| (chance.below(400), chance.below(3)))
            .map(|(name, what)| {
                let store = store.clone();
                let name = format!("g{name}");
                tokio::spawn(async move {
                    let answer = match what {
                        0 => delete(&store, &name).await.map(|stored| (stored.version, None)),
                        1 => replace(&store, &name, turn).await.map(|stored| (stored.version, Some(turn))),
                        _ => create(&store, &name, turn).await.map(|stored| (stored.version, Some(turn))),
                    };
                    answer.ok().map(|(version, size)| (version, name, size))
                })
            })
            .collect();
        let mut done = Vec::new();
        for task in tasks {
            done.extend(task.await.unwrap());
        }
        done.sort();
        for (_, name, size) in done {
            match size {
                Some(size) => model.insert(name, size),
                None => model.remove(&name),
            };
        }
    }
    let version = store.version();
    assert!(version.get() > 2000, "enough for waste to be cleared: {version}");
    drop(store);
    let store = open_on(&disk, &path).unwrap();
    let snapshot = store.snapshot(&resource());
    let found: BTreeMap<_, _> =
        snapshot.iter().map(|entry| (entry.name.to_owned(), size(entry.stored))).collect();
    assert_eq!(found, model);
    assert_eq!(store.version(), version);
}
