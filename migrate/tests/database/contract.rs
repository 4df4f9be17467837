//! What every driver must do, one suite for all of them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use midflight_migrate::record::{RowKey, Snapshot, Table};
use midflight_migrate::store::{
    self, Batch, Fence, Generation, Glimpse, Guard, Layout, Note, Op, Outcome, Place, Reading, Revision,
    RunNumber, Space, Store, StoreError,
};

use crate::foreign;
use crate::world::{Kind, Open, TTL, World, at_once, put, servers, topic, worlds};

const JOURNAL: Space = Space::Journal(RunNumber::FIRST);

/// The space that is live in a layout, as far as a driver is concerned.
fn live(layout: Layout) -> Space {
    match layout {
        Layout::Dragonflow => Space::Plain,
        Layout::Generation => Space::Generation(Generation::of(RunNumber::FIRST)),
    }
}

async fn fill(store: &dyn Store, fence: &Fence, space: Space, rows: &Snapshot) {
    for batch in store::pack(store::puts(space, rows), store.limits()) {
        assert_eq!(store.commit(fence, &batch).await.unwrap(), Outcome::Done);
    }
}

async fn rows(store: &dyn Store, space: Space) -> Snapshot {
    store::collect(store, space, Reading::Once).await.unwrap().0
}

fn note<'a>(value: &'a Bytes, is: Option<&Bytes>) -> Batch<'a> {
    Batch {
        guards: vec![Guard::Note { note: Note::Run, is: is.cloned() }],
        ops: vec![Op::Put { place: Place::Note(Note::Run), value }],
    }
}

#[tokio::test]
async fn rows_come_back_as_they_were_written() {
    for world in worlds() {
        let Open { store, fence } = Open::lock(world.open().await).await;
        let mut written = Snapshot::default();
        for number in 0..9000_u32 {
            let id = format!("{:08x}", number.wrapping_mul(2_654_435_761));
            put(&mut written, "lport", RowKey::new(topic(&world), &id), &format!("{{\"id\":\"{id}\"}}"));
        }
        for id in ["ü", "a/b", "100%", "a b", "{x}", "-", "%2F"] {
            put(&mut written, "odd", RowKey::new(topic(&world), id), id);
        }
        let large = "x".repeat(store.limits().value.min(1_500_000));
        put(&mut written, "large", RowKey::untopical("one"), &large);
        put(&mut written, "unique_key", RowKey::untopical("lport"), "17");
        for space in [live(world.layout), JOURNAL] {
            fill(&*store, &fence, space, &written).await;
            assert_eq!(rows(&*store, space).await, written, "{world:?}: {space}");
            let mut seen = Snapshot::default();
            let mut look = |row: Glimpse<'_>| {
                let value = Bytes::copy_from_slice(row.value);
                seen.put(&Table::new(row.table), RowKey::new(row.topic, row.id), value);
            };
            store.look_at(space, &mut look).await.unwrap();
            assert_eq!(seen, written, "{world:?}: {space}");
        }
        assert_eq!(store::clear(&*store, &fence, None, JOURNAL).await.unwrap(), Outcome::Done, "{world:?}");
        assert!(rows(&*store, JOURNAL).await.is_empty(), "{world:?}");
        assert_eq!(
            rows(&*store, live(world.layout)).await,
            written,
            "{world:?}: clearing one space leaves others"
        );
    }
}

#[tokio::test]
async fn a_space_is_exactly_what_was_written_to_it() {
    for world in worlds() {
        let Open { store, fence } = Open::lock(world.open().await).await;
        assert!(
            store.is_exactly(JOURNAL, &Snapshot::default(), &|_| {}).await.unwrap(),
            "{world:?}: nothing"
        );
        let mut written = Snapshot::default();
        for number in 0..9000_u32 {
            put(&mut written, "lport", RowKey::new(topic(&world), &number.to_string()), "{}");
        }
        put(&mut written, "odd", RowKey::untopical("one"), "1");
        fill(&*store, &fence, JOURNAL, &written).await;
        let found = AtomicU64::new(0);
        let tell = |so_far| {
            found.fetch_max(so_far, Relaxed);
        };
        assert!(store.is_exactly(JOURNAL, &written, &tell).await.unwrap(), "{world:?}");
        assert_eq!(found.into_inner(), 9001, "{world:?}");

        let key = || RowKey::new(topic(&world), "4711");
        let lport = Table::new("lport");
        let other = |change: &dyn Fn(&mut Snapshot)| {
            let mut other = written.clone();
            change(&mut other);
            other
        };
        #[rustfmt::skip]
        let cases = [
            ("nothing",       Snapshot::default()),
            ("another value", other(&|rows| put(rows, "lport", key(), "[]"))),
            ("one more",      other(&|rows| put(rows, "lport", RowKey::new(topic(&world), "x"), "{}"))),
            ("one less",      other(&|rows| drop(rows.remove(&lport, &key())))),
            ("another key",   other(&|rows| {
                rows.remove(&lport, &key());
                put(rows, "lport", RowKey::new(topic(&world), "x"), "{}");
            })),
            ("another table", other(&|rows| {
                rows.remove(&Table::new("odd"), &RowKey::untopical("one"));
                put(rows, "even", RowKey::untopical("one"), "1");
            })),
        ];
        for (name, rows) in cases {
            assert!(!store.is_exactly(JOURNAL, &rows, &|_| {}).await.unwrap(), "{world:?}: {name}");
        }
    }
}

#[tokio::test]
async fn a_full_batch_is_taken_and_is_atomic() {
    for world in worlds() {
        let Open { store, fence } = Open::lock(world.open().await).await;
        let (table, value) = (Table::new("lport"), Bytes::from("{}"));
        let keys: Vec<RowKey> =
            (0..store.limits().ops).map(|number| RowKey::new(topic(&world), &number.to_string())).collect();
        let op = |key| Op::Put { place: Place::Row { space: JOURNAL, table: &table, key }, value: &value };
        let guard = Guard::Note { note: Note::Run, is: Some(Bytes::from("something else")) };
        let mut batch = Batch { guards: vec![guard], ops: keys.iter().map(op).collect() };
        assert_eq!(store.commit(&fence, &batch).await.unwrap(), Outcome::Conflict, "{world:?}");
        assert!(rows(&*store, JOURNAL).await.is_empty(), "{world:?}: nothing of a refused batch");
        batch.guards.clear();
        assert_eq!(store.commit(&fence, &batch).await.unwrap(), Outcome::Done, "{world:?}");
        assert_eq!(rows(&*store, JOURNAL).await.len(), keys.len(), "{world:?}");

        let removes =
            keys.iter().map(|key| Op::Remove { place: Place::Row { space: JOURNAL, table: &table, key } });
        let batch = Batch { guards: vec![], ops: removes.collect() };
        for _ in 0..2 {
            assert_eq!(
                store.commit(&fence, &batch).await.unwrap(),
                Outcome::Done,
                "{world:?}: also repeated"
            );
            assert!(rows(&*store, JOURNAL).await.is_empty(), "{world:?}");
        }
    }
}

#[tokio::test]
async fn notes_change_by_compare_and_swap() {
    for world in worlds() {
        let Open { store, fence } = Open::lock(world.open().await).await;
        let (first, second) = (Bytes::from("first"), Bytes::from("second"));
        assert_eq!(store.note(Note::Run).await.unwrap(), None, "{world:?}");
        #[rustfmt::skip]
        let steps = [
            ("absent, expected",     note(&first, None),          Outcome::Done,     &first),
            ("absent, but is there", note(&second, None),         Outcome::Conflict, &first),
            ("another is there",     note(&second, Some(&second)), Outcome::Conflict, &first),
            ("as expected",          note(&second, Some(&first)), Outcome::Done,     &second),
        ];
        for (name, batch, expected, left) in steps {
            assert_eq!(store.commit(&fence, &batch).await.unwrap(), expected, "{world:?}: {name}");
            assert_eq!(store.note(Note::Run).await.unwrap().as_ref(), Some(left), "{world:?}: {name}");
        }
        assert_eq!(store.note(Note::Pointer).await.unwrap(), None, "{world:?}");
    }
}

#[tokio::test]
async fn the_lock_has_one_holder_and_fences_out_the_one_before() {
    for world in worlds() {
        let store = world.open().await;
        let first = store.lock("alice on host-1", TTL).await.unwrap();
        match store.lock("bob", TTL).await {
            Err(StoreError::Busy { owner }) => assert_eq!(owner, "alice on host-1", "{world:?}"),
            other => panic!("{world:?}: {other:?}"),
        }
        store.renew(&first).await.unwrap();
        store.unlock(&first).await.unwrap();
        store.unlock(&first).await.unwrap();
        let second = store.lock("bob", TTL).await.unwrap();
        let value = Bytes::from("late");
        let late = [store.commit(&first, &note(&value, None)).await.map(|_| ()), store.renew(&first).await];
        for answer in late {
            assert!(matches!(answer, Err(StoreError::FencedOut)), "{world:?}: {answer:?}");
        }
        let mut some = Snapshot::default();
        put(&mut some, "lport", RowKey::untopical("a"), "{}");
        fill(&*store, &second, JOURNAL, &some).await;
        let answer = store::clear(&*store, &first, None, JOURNAL).await;
        assert!(matches!(answer, Err(StoreError::FencedOut)), "{world:?}: {answer:?}");
        assert_eq!(rows(&*store, JOURNAL).await, some, "{world:?}");
        store.unlock(&first).await.unwrap();
        store.commit(&second, &note(&value, None)).await.unwrap();
    }
}

#[tokio::test]
async fn the_lock_of_a_dead_run_frees_itself() {
    at_once(worlds(), |world| async move {
        let store = world.open().await;
        let dead = store.lock("dead", Duration::from_secs(1)).await.unwrap();
        let began = Instant::now();
        let next = loop {
            match store.lock("next", TTL).await {
                Ok(fence) => break fence,
                Err(error) => {
                    assert!(
                        error.is_transient() && began.elapsed() < Duration::from_secs(20),
                        "{world:?}: {error}"
                    );
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        };
        assert!(began.elapsed() > Duration::from_millis(800), "{world:?}: it lived as long as it should");
        let value = Bytes::from("v");
        let answer = store.commit(&dead, &note(&value, None)).await;
        assert!(matches!(answer, Err(StoreError::FencedOut)), "{world:?}: {answer:?}");
        assert_eq!(store.commit(&next, &note(&value, None)).await.unwrap(), Outcome::Done, "{world:?}");
    })
    .await;
}

#[tokio::test]
async fn a_held_lock_outlives_its_time() {
    at_once(worlds(), |world| async move {
        let store = world.open().await;
        let held = store::hold(&store, "holder", Duration::from_secs(2)).await.unwrap();
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(5) {
            assert!(matches!(store.lock("other", TTL).await, Err(StoreError::Busy { .. })), "{world:?}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        held.release(&*store).await.unwrap();
        store.lock("other", TTL).await.unwrap();
    })
    .await;
}

/// Writes one note under the guard that a reading gave.
async fn guarded(store: &dyn Store, fence: &Fence, space: Space, since: Revision) -> Outcome {
    let value = Bytes::from("committed");
    let batch = Batch {
        guards: vec![Guard::Unchanged { space, since }],
        ops: vec![Op::Put { place: Place::Note(Note::Run), value: &value }],
    };
    let Some(since) = store.confirm(space, since).await.unwrap() else { return Outcome::Conflict };
    let guards = vec![Guard::Unchanged { space, since }];
    store.commit(fence, &Batch { guards, ..batch }).await.unwrap()
}

#[tokio::test]
async fn a_guarded_batch_notices_every_foreign_write() {
    for world in servers() {
        let Open { store, fence } = Open::lock(world.open().await).await;
        let space = live(world.layout);
        let key = |id: &str| match (world.kind, world.layout) {
            (Kind::Etcd, Layout::Dragonflow) => format!("/lport/{id}"),
            (Kind::Etcd, Layout::Generation) => format!("/midflight/g/1/lport/topic-1/{id}"),
            (Kind::Redis, Layout::Dragonflow) => format!("{{lport.topic-1}}{id}"),
            (Kind::Redis | Kind::Embedded, _) => format!("topic-1/{id}"),
        };
        let generation_of_redis = world.kind == Kind::Redis && world.layout == Layout::Generation;
        let write = |id: &str, value: Option<&str>| match (generation_of_redis, value) {
            (true, Some(value)) => {
                foreign::redis(world.port(), &["HSET", "{midflight}:g/1:lport", &key(id), value]);
            }
            (true, None) => {
                foreign::redis(world.port(), &["HDEL", "{midflight}:g/1:lport", &key(id)]);
            }
            (false, Some(value)) => foreign::set(world.server(), &key(id), value),
            (false, None) => foreign::delete(world.server(), &key(id)),
        };
        let mut some = Snapshot::default();
        for id in ["a", "b", "c"] {
            put(&mut some, "lport", RowKey::new(topic(&world), id), "{}");
        }
        fill(&*store, &fence, space, &some).await;

        let (_, at) = store::collect(&*store, space, Reading::Guarded).await.unwrap();
        assert_eq!(guarded(&*store, &fence, space, at).await, Outcome::Done, "{world:?}: nobody wrote");
        #[rustfmt::skip]
        let cases = [
            ("changed", "a", Some("{\"x\":1}")),
            ("added",   "d", Some("{}")),
            ("removed", "b", None),
        ];
        for (name, id, value) in cases {
            let (_, at) = store::collect(&*store, space, Reading::Guarded).await.unwrap();
            write(id, value);
            assert_eq!(guarded(&*store, &fence, space, at).await, Outcome::Conflict, "{world:?}: {name}");
        }
    }
}

#[tokio::test]
async fn etcd_takes_back_a_batch_that_came_after_a_foreign_write() {
    let Some(world) = World::new(Kind::Etcd, Layout::Dragonflow) else { return };
    let Open { store, fence } = Open::lock(world.open().await).await;
    let mut some = Snapshot::default();
    put(&mut some, "lport", RowKey::untopical("a"), "{}");
    fill(&*store, &fence, Space::Plain, &some).await;
    let before = Bytes::from("before");
    store.commit(&fence, &note(&before, None)).await.unwrap();

    let (_, at) = store::collect(&*store, Space::Plain, Reading::Guarded).await.unwrap();
    let since = store.confirm(Space::Plain, at).await.unwrap().unwrap();
    foreign::delete(world.server(), "/lport/a");
    let value = Bytes::from("after");
    let batch = Batch {
        guards: vec![Guard::Unchanged { space: Space::Plain, since }],
        ops: vec![Op::Put { place: Place::Note(Note::Run), value: &value }],
    };
    assert_eq!(store.commit(&fence, &batch).await.unwrap(), Outcome::Conflict);
    assert_eq!(store.note(Note::Run).await.unwrap(), Some(before));

    let (_, at) = store::collect(&*store, Space::Plain, Reading::Guarded).await.unwrap();
    let since = store.confirm(Space::Plain, at).await.unwrap().unwrap();
    foreign::set(world.server(), "unrelated", "x");
    let guards = vec![Guard::Unchanged { space: Space::Plain, since }];
    assert_eq!(
        store.commit(&fence, &Batch { guards, ..batch }).await.unwrap(),
        Outcome::Done,
        "another's key"
    );
}

#[tokio::test]
async fn dragonflow_finds_its_rows_where_it_left_them() {
    for world in servers().filter(|world| world.layout == Layout::Dragonflow) {
        #[rustfmt::skip]
        let (kept, counter, written) = match world.kind {
            Kind::Etcd => ("/lport/5a0f", "/unique_key/lport", "/lsubnet/77aa"),
            Kind::Redis | Kind::Embedded => ("{lport.9b1d}5a0f", "{unique_key.}lport", "{lsubnet.9b1d}77aa"),
        };
        let topic = if world.kind == Kind::Etcd { "" } else { "9b1d" };
        foreign::set(world.server(), kept, "{\"id\":\"5a0f\"}");
        foreign::set(world.server(), counter, "17");
        foreign::set(world.server(), "not-a-row", "mine");
        let open = Open::lock(world.open().await).await;
        let mut found = open.rows().await;
        assert_eq!(found.len(), 2, "{world:?}");
        assert_eq!(
            found.get(&Table::new("lport"), &RowKey::new(topic, "5a0f")).unwrap(),
            "{\"id\":\"5a0f\"}"
        );
        assert_eq!(found.get(&Table::new("unique_key"), &RowKey::untopical("lport")).unwrap(), "17");
        put(&mut found, "lsubnet", RowKey::new(topic, "77aa"), "{}");
        open.apply(&found).await.unwrap();
        assert_eq!(foreign::get(world.server(), written).as_deref(), Some("{}"), "{world:?}");
        assert_eq!(foreign::get(world.server(), kept).as_deref(), Some("{\"id\":\"5a0f\"}"), "{world:?}");
        open.session().rollback().await.unwrap();
        assert_eq!(foreign::get(world.server(), written), None, "{world:?}");
        assert_eq!(foreign::get(world.server(), "not-a-row").as_deref(), Some("mine"), "{world:?}");
    }
}

#[tokio::test]
async fn a_value_beyond_the_limit_is_refused_with_its_row_before_anything_is_written() {
    for world in servers().filter(|world| world.kind == Kind::Etcd) {
        let open = Open::lock(world.open().await).await;
        let mut rows = Snapshot::default();
        put(&mut rows, "lport", RowKey::new(topic(&world), "huge"), &"x".repeat(2 << 20));
        let error = open.apply(&rows).await.unwrap_err().to_string();
        assert!(error.starts_with("lport huge") && error.contains("2097152"), "{world:?}: {error}");
        assert_eq!(open.store.note(Note::Run).await.unwrap(), None, "{world:?}");
    }
}

#[tokio::test]
async fn servers_tell_what_the_pre_flight_check_wants_to_know() {
    for world in worlds() {
        let facts = world.open().await.facts().await.unwrap();
        let name = match world.kind {
            Kind::Embedded => "embedded",
            Kind::Etcd => "etcd 3.",
            Kind::Redis => "redis ",
        };
        assert!(facts.server.starts_with(name), "{world:?}: {facts:?}");
        assert!(facts.room_for(1 << 20).is_ok(), "{world:?}: {facts:?}");
        assert!(facts.room_for(1 << 50).is_err(), "{world:?}: {facts:?}");
    }
}
