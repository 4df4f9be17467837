//! Killed at every single write, before and after it: the next start makes it whole.

use std::sync::Arc;

use midflight_migrate::commit::{self, CommitError, Recovered, RunNote, Session, State};
use midflight_migrate::record::Snapshot;
use midflight_migrate::store::{Fence, Store};

use crate::world::{Kind, Open, TTL, World, new, of, old, worlds};
use crate::wrapped::{Event, Wrapped};

/// What the process was doing when it died.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Doing {
    Apply,
    RollBack,
    Finalize,
}

pub(crate) async fn act(
    doing: Doing,
    store: &dyn Store,
    fence: &Fence,
    after: &Snapshot,
) -> Result<(), CommitError> {
    let session = Session::new(store, fence, &|_| {});
    match doing {
        Doing::Apply => {
            let taken = commit::snapshot(store).await?;
            session.apply(&taken, after, RunNote::default()).await.map(|_| ())
        }
        Doing::RollBack => session.rollback().await.map(|_| ()),
        Doing::Finalize => session.finalize().await.map(|_| ()),
    }
}

fn deaths(at: usize) -> [(usize, bool); 2] {
    [(at, false), (at, true)]
}

fn event(after: bool) -> Event {
    if after { Event::DieAfter } else { Event::DieBefore }
}

/// One database that is brought to a known state before each death.
pub(crate) struct Scene {
    pub(crate) world: World,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) fence: Fence,
    pub(crate) old: Snapshot,
    pub(crate) new: Snapshot,
}

impl Scene {
    pub(crate) async fn new(world: World) -> Scene {
        let (old, new) = (old(&world), new(&world));
        let Open { store, fence } = Open::holding(&world, &old).await;
        Scene { world, store, fence, old, new }
    }

    pub(crate) fn session(&self) -> Session<'_> {
        Session::new(&*self.store, &self.fence, &|_| {})
    }

    pub(crate) async fn rows(&self) -> Snapshot {
        commit::snapshot(&*self.store).await.unwrap().snapshot
    }

    /// The old rows live and nothing open, or the new rows applied over them.
    pub(crate) async fn set(&self, applied: bool) {
        self.session().recover().await.unwrap();
        if let State::Applied(_) = commit::state(&*self.store).await.unwrap() {
            self.session().finalize().await.unwrap();
        }
        if self.rows().await != self.old {
            act(Doing::Apply, &*self.store, &self.fence, &self.old).await.unwrap();
            self.session().finalize().await.unwrap();
        }
        if applied {
            act(Doing::Apply, &*self.store, &self.fence, &self.new).await.unwrap();
        }
    }

    /// The lease of the dead process ends, and a new one starts.
    pub(crate) async fn start_again(&mut self) {
        self.store.unlock(&self.fence).await.unwrap();
        self.fence = self.store.lock("next", TTL).await.unwrap();
    }

    /// What a reader may see: old, new, or a refusal because the marker stands.
    async fn check_readable(&self, what: &str) {
        match commit::snapshot(&*self.store).await {
            Ok(taken) => {
                assert!(taken.snapshot == self.old || taken.snapshot == self.new, "{what}: a mixture");
            }
            Err(CommitError::Unfinished { .. }) => {}
            Err(error) => panic!("{what}: {error}"),
        }
    }

    /// After a recovery: whole, nothing left to do, and the next run works.
    pub(crate) async fn check_whole(&self, what: &str) {
        let rows = self.rows().await;
        assert!(rows == self.old || rows == self.new, "{what}: a mixture");
        assert_eq!(self.session().recover().await.unwrap(), Recovered::Nothing, "{what}: recovered for good");
        match commit::state(&*self.store).await.unwrap() {
            State::Applied(_) => {
                assert_eq!(rows, self.new, "{what}");
                self.session().rollback().await.unwrap();
                assert_eq!(self.rows().await, self.old, "{what}: the way back leads to the same bytes");
            }
            State::Settled(_) => {}
            other => panic!("{what}: {other:?}"),
        }
    }
}

/// Dies once, in each act, at each write.
async fn dies_once(world: World) {
    let mut scene = Scene::new(world).await;
    for doing in [Doing::Apply, Doing::RollBack, Doing::Finalize] {
        let mut reached = true;
        let mut at = 0;
        while reached {
            for (at, after) in deaths(at) {
                let what = format!("{:?}, {doing:?}, write {at}, after {after}", scene.world);
                scene.set(!matches!(doing, Doing::Apply)).await;
                let dying = Wrapped::new(&scene.store, at, event(after));
                let result = act(doing, &dying, &scene.fence, &scene.new).await;
                reached = dying.reached();
                assert_eq!(result.is_err(), reached, "{what}: {result:?}");
                scene.check_readable(&what).await;
                scene.start_again().await;
                scene.session().recover().await.unwrap();
                scene.check_whole(&what).await;
            }
            at += 1;
        }
        assert!(at > 3, "{:?} {doing:?}: only {at} writes", scene.world);
    }
}

/// Dies at one write, and then again while it recovers, at each write of that.
async fn dies_again_in_recovery(world: World, every: usize, offset: usize) {
    let mut scene = Scene::new(world).await;
    for doing in [Doing::Apply, Doing::RollBack, Doing::Finalize] {
        let mut number = offset;
        for first in 0.. {
            scene.set(!matches!(doing, Doing::Apply)).await;
            let dying = Wrapped::new(&scene.store, first, Event::DieAfter);
            let _ = act(doing, &dying, &scene.fence, &scene.new).await;
            if !dying.reached() {
                break;
            }
            for second in 0.. {
                number += 1;
                let what = format!("{:?}, {doing:?}, writes {first} and {second}", scene.world);
                if second > 0 {
                    scene.set(!matches!(doing, Doing::Apply)).await;
                    let dying = Wrapped::new(&scene.store, first, Event::DieAfter);
                    let _ = act(doing, &dying, &scene.fence, &scene.new).await;
                }
                scene.start_again().await;
                let dying = Wrapped::new(&scene.store, second, event(number.is_multiple_of(2)));
                let _ = Session::new(&dying, &scene.fence, &|_| {}).recover().await;
                scene.check_readable(&what).await;
                scene.start_again().await;
                scene.session().recover().await.unwrap();
                scene.check_whole(&what).await;
                if !dying.reached() || !number.is_multiple_of(every) {
                    break;
                }
            }
        }
    }
}

#[tokio::test]
async fn killed_at_every_write_of_a_file() {
    for world in of(&[Kind::Embedded]) {
        dies_once(world).await;
    }
}

#[tokio::test]
async fn killed_at_every_write_of_etcd() {
    for world in of(&[Kind::Etcd]) {
        dies_once(world).await;
    }
}

#[tokio::test]
async fn killed_at_every_write_of_redis() {
    for world in of(&[Kind::Redis]) {
        dies_once(world).await;
    }
}

/// All pairs of deaths on a file; on servers those that the seed picks, all of them in the soak.
#[tokio::test]
async fn killed_again_while_it_recovers() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<usize>().ok());
    let all = number("MIDFLIGHT_ALL_DEATHS").is_some();
    let seed = number("MIDFLIGHT_SEED").unwrap_or(0);
    for world in worlds() {
        let every = if all || world.kind == Kind::Embedded { 1 } else { 5 };
        dies_again_in_recovery(world, every, seed % every).await;
    }
}
