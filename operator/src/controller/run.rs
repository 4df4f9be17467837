//! Runs controllers: feeds the caches, wakes keys, gives them their turns.
//!
//! The invariant: no controller has a turn before every cache is complete, and none after the
//! writer has ended.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt, join_all};
use kube::Api;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, warn};

use super::cache::Cache;
use super::objects::{Kind, Objects};
use super::queue::{Ended, Queue};
use super::{Controller, Next, TurnError};
use crate::figures::Figures;
use crate::write::{WriteError, Writer};

/// How long a turn waits that came before the cache had shown our last write.
const CATCH_UP: Duration = Duration::from_millis(20);

/// All controllers of a process, their caches and their one writer.
pub struct Operator {
    writer: Arc<Writer>,
    figures: Figures,
    caches: HashMap<TypeId, Box<dyn Any + Send>>,
    feeds: Vec<BoxFuture<'static, ()>>,
    complete: Vec<BoxFuture<'static, ()>>,
    controllers: Vec<BoxFuture<'static, ()>>,
}

impl Operator {
    pub fn new(writer: Arc<Writer>) -> Operator {
        Operator::counting(writer, Figures::default())
    }

    /// One whose controllers count here.
    pub fn counting(writer: Arc<Writer>, figures: Figures) -> Operator {
        Operator {
            writer,
            figures,
            caches: HashMap::new(),
            feeds: Vec::new(),
            complete: Vec::new(),
            controllers: Vec::new(),
        }
    }

    pub(crate) fn figures(&self) -> Figures {
        self.figures.clone()
    }

    /// The objects of a kind. Whoever asks for the same kind has the same cache.
    pub fn objects<K: Kind>(&mut self) -> Objects<K> {
        let there = self.caches.get(&TypeId::of::<K>()).and_then(|any| any.downcast_ref::<Objects<K>>());
        if let Some(there) = there {
            return there.clone();
        }
        let cache = Arc::new(Cache::<K>::new());
        let api: Api<K> = Api::all(self.writer.client().clone());
        let (fed, listed) = (Arc::clone(&cache), Arc::clone(&cache));
        self.feeds.push(async move { fed.feed(api).await }.boxed());
        self.complete.push(async move { listed.complete().await }.boxed());
        let objects = Objects::new(cache, Arc::clone(&self.writer));
        self.caches.insert(TypeId::of::<K>(), Box::new(objects.clone()));
        objects
    }

    pub fn add<C: Controller>(&mut self, controller: C) {
        let wake = Wake::gathering(C::GATHERS);
        controller.watch(&wake);
        self.controllers.push(give_turns(Arc::new(controller), wake).boxed());
    }

    /// Runs until the writer has ended; then nothing of it goes on.
    pub async fn run(self) {
        let mut tasks = JoinSet::new();
        self.feeds.into_iter().for_each(|feed| {
            tasks.spawn(feed);
        });
        let work = async {
            join_all(self.complete).await;
            self.controllers.into_iter().for_each(|controller| {
                tasks.spawn(controller);
            });
            while let Some(ended) = tasks.join_next().await {
                ended.expect("a controller ends only with the operator");
            }
        };
        tokio::select! {
            () = work => {}
            () = self.writer.ended() => {}
        }
    }
}

/// Gives keys their turn when something changes.
pub struct Wake<Key> {
    turns: Arc<Turns<Key>>,
}

impl<Key> Clone for Wake<Key> {
    fn clone(&self) -> Self {
        Wake { turns: Arc::clone(&self.turns) }
    }
}

struct Turns<Key> {
    queue: Mutex<Queue<Key>>,
    added: Notify,
    /// Whoever is due since then has been due for longest.
    began: Instant,
    /// How long changes are gathered before a turn.
    gathers: Duration,
}

impl<Key> Turns<Key> {
    fn queue(&self) -> MutexGuard<'_, Queue<Key>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<Key: Clone + Ord + Hash + Send + 'static> Wake<Key> {
    fn gathering(gathers: Duration) -> Wake<Key> {
        let turns = Turns { queue: Mutex::default(), added: Notify::new(), began: Instant::now(), gathers };
        Wake { turns: Arc::new(turns) }
    }

    /// Wakes the keys that an object touches, as it was and as it is, when it changes.
    pub fn on<K: Kind>(
        &self,
        objects: &Objects<K>,
        touched: impl Fn(&K) -> Vec<Key> + Send + Sync + 'static,
    ) {
        self.on_change(objects, move |old, new| old.into_iter().chain(new).flat_map(&touched).collect());
    }

    /// Wakes the keys that a change touches; the object is missing before it came and after it went.
    pub fn on_change<K: Kind>(
        &self,
        objects: &Objects<K>,
        touched: impl Fn(Option<&K>, Option<&K>) -> Vec<Key> + Send + Sync + 'static,
    ) {
        let wake = self.clone();
        objects.cache().listen(Box::new(move |change| {
            wake.changed(touched(change.old.as_deref(), change.new.as_deref()));
        }));
    }

    /// Wakes this key when an object changes, ahead of all keys that wait for their turn.
    pub fn first_on<K: Kind>(
        &self,
        objects: &Objects<K>,
        key: Key,
        touches: impl Fn(&K) -> bool + Send + Sync + 'static,
    ) where
        Key: Sync,
    {
        let wake = self.clone();
        objects.cache().listen(Box::new(move |change| {
            if change.old.iter().chain(&change.new).any(|object| touches(object)) {
                wake.first(key.clone());
            }
        }));
    }

    /// Wakes a key for a reason that no object tells of.
    pub fn one(&self, key: Key) {
        self.all([key], Instant::now());
    }

    fn changed(&self, keys: Vec<Key>) {
        self.all(keys, Instant::now() + self.turns.gathers);
    }

    fn first(&self, key: Key) {
        self.all([key], self.turns.began);
    }

    fn all(&self, keys: impl IntoIterator<Item = Key>, due: Instant) {
        let mut queue = self.turns.queue();
        keys.into_iter().for_each(|key| queue.add(key, due));
        drop(queue);
        self.turns.added.notify_one();
    }
}

/// Gives the keys of one controller their turns, a few at once.
async fn give_turns<C: Controller>(controller: Arc<C>, wake: Wake<C::Key>) {
    let turns = wake.turns;
    let mut running: JoinSet<(C::Key, Result<Next, TurnError>)> = JoinSet::new();
    loop {
        while running.len() < C::WORKERS {
            let Some(key) = turns.queue().take(Instant::now()) else { break };
            let controller = Arc::clone(&controller);
            running.spawn(async move {
                let ended = turn(&*controller, &key).await;
                (key, ended)
            });
        }
        let next = turns.queue().next_due().filter(|_| running.len() < C::WORKERS);
        tokio::select! {
            () = turns.added.notified() => {}
            () = async { sleep_until(next.expect("checked before")).await }, if next.is_some() => {}
            Some(ended) = running.join_next() => {
                let (key, ended) = ended.expect("a turn does not panic");
                end::<C>(&turns, &key, ended);
            }
        }
    }
}

/// Looks, decides, writes down what it decided, acts.
async fn turn<C: Controller>(controller: &C, key: &C::Key) -> Result<Next, TurnError> {
    let Some(mut seen) = controller.observe(key).await? else { return Ok(Next::OnChange) };
    let decision = C::decide(&seen);
    controller.report(&mut seen, &decision).await?;
    controller.act(seen, decision).await
}

fn end<C: Controller>(turns: &Turns<C::Key>, key: &C::Key, ended: Result<Next, TurnError>) {
    let outcome = match &ended {
        Ok(Next::OnChange) => Ended::Done(None),
        Ok(Next::After(time)) => Ended::Done(Some(*time)),
        Err(TurnError::Stale(_)) => Ended::Early(CATCH_UP),
        Err(TurnError::Write(failed)) if failed.source.is_outdated() => Ended::Early(CATCH_UP),
        Err(TurnError::Write(_) | TurnError::Failed { .. }) => Ended::Failed,
    };
    let wait = turns.queue().end(key.clone(), outcome, Instant::now());
    match (ended, wait) {
        (Err(TurnError::Write(failed)), _) if matches!(failed.source, WriteError::Ended) => {}
        (Err(error), Some(wait)) => {
            let error: &dyn std::error::Error = &error;
            let why = std::iter::successors(error.source(), |cause| cause.source())
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(": ");
            warn!(controller = C::NAME, %key, %error, why, ?wait, "a turn failed");
        }
        (Err(error), None) => debug!(controller = C::NAME, %key, %error, "a turn came too early"),
        (Ok(_), _) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_comes_first_goes_ahead_of_all_that_wait() {
        let wake = Wake::gathering(Duration::ZERO);
        wake.all(0..100, Instant::now());
        wake.first(200);
        let mut queue = wake.turns.queue();
        assert_eq!(queue.take(Instant::now()), Some(200));
        assert_eq!(queue.take(Instant::now()), Some(0));
    }

    #[test]
    fn changes_are_gathered_and_the_first_of_them_says_when() {
        const GATHERS: Duration = Duration::from_secs(100);
        let wake = Wake::gathering(GATHERS);
        let begun = Instant::now();
        wake.changed(vec![7]);
        let due = wake.turns.queue().next_due().unwrap();
        assert!(due >= begun + GATHERS);
        wake.changed(vec![7]);
        let mut queue = wake.turns.queue();
        assert_eq!(queue.next_due(), Some(due));
        assert_eq!((queue.take(due), queue.take(due + GATHERS)), (Some(7), None));
    }
}
