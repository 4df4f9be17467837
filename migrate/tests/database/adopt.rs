//! Dragonflow's own keys taken over by the first generation, killed at every write of it.

use midflight_migrate::commit::{self, CommitError, RunNote, Session, State};
use midflight_migrate::record::Snapshot;
use midflight_migrate::store::{self, Layout, Reading, Space, Store};

use crate::world::{Kind, Open, TTL, World, new, old};
use crate::wrapped::{Event, Wrapped};

async fn plain(store: &dyn Store) -> Snapshot {
    store::collect(store, Space::Plain, Reading::Once).await.unwrap().0
}

/// A database with rows in Dragonflow's keys, seen as one of generations.
async fn legacy(kind: Kind) -> Option<(World, Snapshot)> {
    let world = World::new(kind, Layout::Dragonflow)?;
    let rows = old(&world);
    let open = Open::holding(&world, &rows).await;
    open.store.unlock(&open.fence).await.unwrap();
    Some((world.seen_as(Layout::Generation), rows))
}

async fn adopts(kind: Kind) {
    let Some((world, old)) = legacy(kind).await else { return };
    let new = new(&world);
    let mut open = Open::lock(world.open().await).await;
    let refused = commit::snapshot(&*open.store).await.unwrap_err();
    assert!(matches!(refused, CommitError::PlainLayout { .. }), "{kind:?}: {refused}");
    'deaths: for at in 0.. {
        for after in [false, true] {
            let what = format!("{kind:?}, write {at}, after {after}");
            let event = if after { Event::DieAfter } else { Event::DieBefore };
            let dying = Wrapped::new(&open.store, at, event);
            let taken = commit::snapshot_to_adopt(&dying, &|_| {}).await.unwrap();
            assert!(taken.is_plain() && taken.snapshot == old, "{what}");
            let result =
                Session::new(&dying, &open.fence, &|_| {}).apply(&taken, &new, RunNote::default()).await;
            assert_eq!(result.is_err(), dying.reached(), "{what}: {result:?}");

            open.store.unlock(&open.fence).await.unwrap();
            open.fence = open.store.lock("next", TTL).await.unwrap();
            open.session().recover().await.unwrap();
            assert_eq!(plain(&*open.store).await, old, "{what}: Dragonflow's keys are not touched");
            match commit::state(&*open.store).await.unwrap() {
                State::Applied(_) => {
                    assert_eq!(open.rows().await, new, "{what}");
                    open.session().rollback().await.unwrap();
                }
                // Before the first write nobody has said that the keys are taken over.
                State::Settled(_) => match commit::snapshot(&*open.store).await {
                    Ok(taken) => assert!(taken.snapshot.is_empty(), "{what}: no generation is live"),
                    Err(refused) => assert!(matches!(refused, CommitError::PlainLayout { .. }), "{what}"),
                },
                other => panic!("{what}: {other:?}"),
            }
            if !dying.reached() {
                assert!(at > 3, "{what}: only {at} writes");
                break 'deaths;
            }
        }
    }
    for_good(world, open, &new).await;
}

/// Adopted for good: what is taken for Dragonflow's layout now is refused.
async fn for_good(world: World, open: Open, new: &Snapshot) {
    let taken = commit::snapshot_to_adopt(&*open.store, &|_| {}).await.unwrap();
    open.session().apply(&taken, new, RunNote::default()).await.unwrap();
    open.session().finalize().await.unwrap();
    let again = commit::snapshot_to_adopt(&*open.store, &|_| {}).await.unwrap();
    assert!(!again.is_plain() && again.snapshot == *new, "{world:?}: there is nothing more to adopt");
    open.store.unlock(&open.fence).await.unwrap();
    drop(open);
    let world = world.seen_as(Layout::Dragonflow);
    let refused = commit::snapshot(&*world.open().await).await.unwrap_err();
    assert!(matches!(refused, CommitError::OtherLayout { .. }), "{world:?}: {refused}");
}

#[tokio::test]
async fn killed_at_every_write_while_adopting() {
    for kind in [Kind::Embedded, Kind::Etcd, Kind::Redis] {
        adopts(kind).await;
    }
}
