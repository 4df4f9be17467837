//! Runs from beginning to end, and the people that come between.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use midflight_migrate::commit::{self, CommitError, RunNote, Session, State};
use midflight_migrate::record::RowKey;
use midflight_migrate::store::{Layout, Options, StoreError};

use crate::foreign;
use crate::proxy::Proxy;
use crate::world::{Kind, Open, World, at_once, new, of, old, put, servers, topic, worlds};
use crate::wrapped::{Event, Wrapped};

/// Every key of the server but our notes, as another client sees them. A file has no other clients.
fn raw(world: &World) -> BTreeMap<String, Vec<u8>> {
    let mut keys = world.server.as_ref().map(foreign::all).unwrap_or_default();
    keys.retain(|key, _| !key.contains("meta"));
    keys
}

#[tokio::test]
async fn applies_rolls_back_to_the_same_bytes_and_finalizes() {
    for world in worlds() {
        let (old, new) = (old(&world), new(&world));
        let open = Open::holding(&world, &old).await;
        let before = raw(&world);
        open.apply(&new).await.unwrap();
        assert_eq!(open.rows().await, new, "{world:?}");
        open.session().rollback().await.unwrap();
        assert_eq!(open.rows().await, old, "{world:?}");
        assert_eq!(raw(&world), before, "{world:?}");
        open.apply(&new).await.unwrap();
        open.session().finalize().await.unwrap();
        assert_eq!(open.rows().await, new, "{world:?}");
        assert!(matches!(commit::state(&*open.store).await.unwrap(), State::Settled(_)), "{world:?}");
    }
}

#[tokio::test]
async fn larger_than_many_batches() {
    for world in worlds() {
        let (mut old, mut new) = (old(&world), new(&world));
        for number in 0..5000 {
            let key = RowKey::new(topic(&world), &format!("{number:05}"));
            put(&mut old, "lport", key.clone(), "{\"a\":1}");
            put(&mut new, "lport", key, "{\"b\":1}");
        }
        let open = Open::holding(&world, &old).await;
        open.apply(&new).await.unwrap();
        assert_eq!(open.rows().await, new, "{world:?}");
        open.session().rollback().await.unwrap();
        assert_eq!(open.rows().await, old, "{world:?}");
    }
}

/// A key that a service writes while the run is on its way.
fn scribbled(world: &World) -> (String, RowKey) {
    let key = RowKey::new(topic(world), "scribbled");
    let name = match (world.kind, world.layout) {
        (Kind::Etcd, Layout::Dragonflow) => "/lport/scribbled".to_owned(),
        (Kind::Etcd, Layout::Generation) => "/midflight/g/1/lport/topic-1/scribbled".to_owned(),
        (Kind::Redis | Kind::Embedded, _) => "{lport.topic-1}scribbled".to_owned(),
    };
    (name, key)
}

fn scribble(world: &World) {
    write(world, "{}");
}

fn write(world: &World, value: &str) {
    if world.kind == Kind::Redis && world.layout == Layout::Generation {
        foreign::redis(world.port(), &["HSET", "{midflight}:g/1:lport", "topic-1/scribbled", value]);
    } else {
        foreign::set(world.server(), &scribbled(world).0, value);
    }
}

#[tokio::test]
async fn a_writer_that_did_not_stop_is_named_and_nothing_changes() {
    for world in servers() {
        let open = Open::holding(&world, &old(&world)).await;
        let taken = commit::snapshot(&*open.store).await.unwrap();
        scribble(&world);
        let error = open.session().apply(&taken, &new(&world), RunNote::default()).await.unwrap_err();
        assert!(matches!(error, CommitError::Writers(_)), "{world:?}: {error}");
        assert!(error.to_string().contains("lport scribbled"), "{world:?}: {error}");
        let mut expected = old(&world);
        put(&mut expected, "lport", scribbled(&world).1, "{}");
        assert_eq!(open.rows().await, expected, "{world:?}");
        assert!(matches!(commit::state(&*open.store).await.unwrap(), State::Settled(_)), "{world:?}");
        open.apply(&new(&world)).await.unwrap();
    }
}

#[tokio::test]
async fn live_writers_are_seen_by_the_check() {
    at_once(servers(), |world| async move {
        let open = Open::holding(&world, &old(&world)).await;
        let quiet = commit::writers(&*open.store, Duration::from_millis(1)).await.unwrap();
        assert!(quiet.is_empty(), "{world:?}: {quiet}");
        let looking = commit::writers(&*open.store, Duration::from_millis(300));
        // Until the look has ended: whenever its two readings are, something was written between them.
        let writing = async {
            for number in 0.. {
                write(&world, &number.to_string());
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let seen = tokio::select! {
            seen = looking => seen,
            () = writing => unreachable!("it never ends"),
        };
        assert!(seen.unwrap().to_string().contains("scribbled"), "{world:?}");
    })
    .await;
}

#[tokio::test]
async fn rolling_back_over_newer_writes_is_refused_with_their_names() {
    for world in servers() {
        let open = Open::holding(&world, &old(&world)).await;
        open.apply(&new(&world)).await.unwrap();
        let key = match (world.kind, world.layout) {
            (Kind::Etcd, Layout::Dragonflow) => "/lport/port-1",
            (Kind::Etcd, Layout::Generation) => "/midflight/g/2/lport/topic-1/port-1",
            (Kind::Redis | Kind::Embedded, _) => "{lport.topic-1}port-1",
        };
        if world.kind == Kind::Redis && world.layout == Layout::Generation {
            foreign::redis(world.port(), &["HDEL", "{midflight}:g/2:lport", "topic-1/port-1"]);
        } else {
            foreign::set(world.server(), key, "{\"newer\":1}");
        }
        let error = open.session().rollback().await.unwrap_err();
        assert!(matches!(error, CommitError::Modified(_)), "{world:?}: {error}");
        assert!(error.to_string().contains("lport port-1"), "{world:?}: {error}");
        assert!(matches!(commit::state(&*open.store).await.unwrap(), State::Applied(_)), "{world:?}");
        open.session().finalize().await.unwrap();
    }
}

/// Writes a row of a generation as a service that guards its writes with the pointer: only while that is what
/// the service has read.
fn write_guarded(world: &World, pointer: &str, generation: u64) -> bool {
    match world.kind {
        Kind::Etcd => {
            let row = format!("/midflight/g/{generation}/lport/topic-1/guarded");
            foreign::put_etcd_if(world.port(), ("/midflight/meta/pointer", pointer), &row, "{}")
        }
        Kind::Redis | Kind::Embedded => {
            let script = "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])";
            let rows = format!("{{midflight}}:g/{generation}:lport");
            let keys = ["EVAL", script, "2", "{midflight}:meta:pointer", &rows];
            let written =
                foreign::redis(world.port(), &[&keys[..], &[pointer, "topic-1/guarded", "{}"]].concat());
            written.is_some()
        }
    }
}

#[tokio::test]
async fn a_writer_that_guards_its_writes_with_the_pointer_is_fenced_out_by_the_switch() {
    for world in servers().filter(|world| world.layout == Layout::Generation) {
        let pointer = || {
            let key = match world.kind {
                Kind::Etcd => "/midflight/meta/pointer",
                Kind::Redis | Kind::Embedded => "{midflight}:meta:pointer",
            };
            foreign::get(world.server(), key).unwrap()
        };
        let guarded = RowKey::new(topic(&world), "guarded");
        let open = Open::holding(&world, &old(&world)).await;
        let before = pointer();
        assert!(write_guarded(&world, &before, 1), "{world:?}");
        let mut with_it = old(&world);
        put(&mut with_it, "lport", guarded.clone(), "{}");
        assert_eq!(open.rows().await, with_it, "{world:?}");

        open.apply(&new(&world)).await.unwrap();
        assert!(!write_guarded(&world, &before, 1), "{world:?}: into the generation that was");
        assert!(!write_guarded(&world, &before, 2), "{world:?}: into the one that is");
        assert_eq!(open.rows().await, new(&world), "{world:?}");
        open.session().rollback().await.unwrap();
        assert_eq!(open.rows().await, with_it, "{world:?}: nothing was written behind the switch");

        open.apply(&new(&world)).await.unwrap();
        assert!(write_guarded(&world, &pointer(), 3), "{world:?}: having looked again");
        let mut with_it = new(&world);
        put(&mut with_it, "lport", guarded, "{}");
        assert_eq!(open.rows().await, with_it, "{world:?}");
    }
}

/// The lock passes to another run in the middle of the first: whichever write that is, the first
/// writes nothing more, and the second can work.
#[tokio::test]
async fn a_run_that_lost_its_lock_cannot_harm_the_next() {
    for world in worlds() {
        let (old, new) = (old(&world), new(&world));
        let open = Open::holding(&world, &old).await;
        for at in 0.. {
            let first = open.store.lock("first", crate::world::TTL).await;
            let first = match first {
                Ok(fence) => fence,
                Err(StoreError::Busy { .. }) => {
                    open.store.unlock(&open.fence).await.unwrap();
                    open.store.lock("first", crate::world::TTL).await.unwrap()
                }
                Err(error) => panic!("{world:?}: {error}"),
            };
            let (inner, lost) = (open.store.clone(), first.clone());
            let second: Arc<std::sync::Mutex<Option<_>>> = Arc::default();
            let slot = second.clone();
            let event = Event::Meanwhile(Box::new(move || {
                let (inner, lost, slot) = (inner.clone(), lost.clone(), slot.clone());
                Box::pin(async move {
                    inner.unlock(&lost).await.unwrap();
                    let next = inner.lock("second", crate::world::TTL).await.unwrap();
                    *slot.lock().unwrap() = Some(next);
                })
            }));
            let store = Wrapped::new(&open.store, at, event);
            let taken = commit::snapshot(&store).await.unwrap();
            let first_run =
                Session::new(&store, &first, &|_| {}).apply(&taken, &new, RunNote::default()).await;
            let Some(next) = second.lock().unwrap().take() else {
                first_run.unwrap();
                break;
            };
            assert!(
                matches!(first_run, Err(CommitError::Store(StoreError::FencedOut))),
                "{world:?} at {at}: {first_run:?}"
            );
            let session = Session::new(&*open.store, &next, &|_| {});
            session.recover().await.unwrap();
            let rows = open.rows().await;
            assert!(rows == old || rows == new, "{world:?} at {at}");
            if rows == new {
                session.rollback().await.unwrap();
            }
            assert_eq!(open.rows().await, old, "{world:?} at {at}");
            open.store.unlock(&next).await.unwrap();
        }
    }
}

/// A service writes behind the reading that a roll-back compares: it is named, and nothing is lost.
#[tokio::test]
async fn rolling_back_notices_a_write_behind_its_reading() {
    let Some(world) = World::new(Kind::Redis, Layout::Dragonflow) else { return };
    let open = Open::holding(&world, &old(&world)).await;
    open.apply(&new(&world)).await.unwrap();
    let port = world.port();
    let act = move || {
        foreign::redis(port, &["SET", "{lport.topic-1}port-5", "newer"]);
    };
    let store = Wrapped::new(&open.store, 0, Event::AfterReading(Box::new(act)));
    let error = Session::new(&store, &open.fence, &|_| {}).rollback().await.unwrap_err();
    assert!(error.to_string().contains("lport port-5"), "{error}");
    let mut expected = new(&world);
    put(&mut expected, "lport", RowKey::new(topic(&world), "port-5"), "newer");
    assert_eq!(open.rows().await, expected);
}

/// A service that writes while the rows are written in place is named; the run is complete all the same.
#[tokio::test]
async fn a_write_during_the_replay_is_named() {
    let Some(world) = World::new(Kind::Redis, Layout::Dragonflow) else { return };
    let open = Open::holding(&world, &old(&world)).await;
    let port = world.port();
    let act = move || {
        foreign::redis(port, &["SET", "{lport.topic-1}port-0", "meanwhile"]);
    };
    let store = Wrapped::new(&open.store, 0, Event::AtReplay(Box::new(act)));
    let taken = commit::snapshot(&store).await.unwrap();
    let session = Session::new(&store, &open.fence, &|_| {});
    let applied = session.apply(&taken, &new(&world), RunNote::default()).await.unwrap();
    assert!(
        applied.meanwhile.to_string().contains("lport port-0@topic-1 (different)"),
        "{}",
        applied.meanwhile
    );
    assert!(matches!(commit::state(&*open.store).await.unwrap(), State::Applied(_)));
}

/// A service writes in the moment of the switch, and its answer is lost: the switch is taken back.
#[tokio::test]
async fn a_writer_is_noticed_though_the_answer_was_lost() {
    for world in of(&[Kind::Etcd]) {
        let open = Open::holding(&world, &old(&world)).await;
        let proxy = Proxy::to(world.port()).await;
        let options = Options { timeout: Duration::from_secs(3), ..Options::default() };
        let far = world.open_at(&world.through(proxy.port), &options).await;
        let (lose, port, key) = (Arc::new(proxy.lose_answer()), world.port(), scribbled(&world).0);
        let act = move || {
            foreign::put_etcd(port, &key, "{}");
            lose();
        };
        let store = Wrapped::new(&far, 0, Event::AtSwitch(Box::new(act)));
        let taken = commit::snapshot(&store).await.unwrap();
        let session = Session::new(&store, &open.fence, &|_| {});
        let error = session.apply(&taken, &new(&world), RunNote::default()).await.unwrap_err();
        assert!(matches!(error, CommitError::Writers(_)), "{world:?}: {error}");
        let mut expected = old(&world);
        put(&mut expected, "lport", scribbled(&world).1, "{}");
        assert_eq!(open.rows().await, expected, "{world:?}");
        assert!(matches!(commit::state(&*open.store).await.unwrap(), State::Settled(_)), "{world:?}");
    }
}

/// A service writes in the moment of a roll-back, and its answer is lost: the new rows stay, and what was written.
#[tokio::test]
async fn rolling_back_notices_a_writer_though_the_answer_was_lost() {
    for world in of(&[Kind::Etcd]) {
        let open = Open::holding(&world, &old(&world)).await;
        open.apply(&new(&world)).await.unwrap();
        let proxy = Proxy::to(world.port()).await;
        let options = Options { timeout: Duration::from_secs(3), ..Options::default() };
        let far = world.open_at(&world.through(proxy.port), &options).await;
        let (lose, port) = (Arc::new(proxy.lose_answer()), world.port());
        let key = scribbled(&world).0.replace("/g/1/", "/g/2/");
        let act = move || {
            foreign::put_etcd(port, &key, "{}");
            lose();
        };
        let store = Wrapped::new(&far, 0, Event::AtSwitch(Box::new(act)));
        let error = Session::new(&store, &open.fence, &|_| {}).rollback().await.unwrap_err();
        assert!(matches!(error, CommitError::Modified(_)), "{world:?}: {error}");
        let mut expected = new(&world);
        put(&mut expected, "lport", scribbled(&world).1, "{}");
        assert_eq!(open.rows().await, expected, "{world:?}");
        assert!(matches!(commit::state(&*open.store).await.unwrap(), State::Applied(_)), "{world:?}");
        open.session().rollback_over(&|_| {}).await.unwrap();
        assert!(matches!(commit::state(&*open.store).await.unwrap(), State::Settled(_)), "{world:?}");
    }
}
