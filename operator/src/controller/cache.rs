//! What is known of all objects of one kind, kept by a watch.
//!
//! Looks go through indexes, so that their cost depends on what is asked for and not on how much
//! there is. A write of ours is noted here until the watch has shown it.
//!
//! The invariant: nobody reads an object that is older than our own last write of it.

use std::collections::{BTreeSet, HashMap};
use std::marker::PhantomData;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use futures::{StreamExt, pin_mut};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch_objects};
use kube::{Api, ResourceExt};
use tokio::sync::{Notify, watch};
use tracing::{debug, warn};

use super::Key;
use super::objects::Kind;

/// How long our own write may stay unseen before the objects are listed anew.
const UNSEEN_FOR: Duration = Duration::from_secs(30);

/// The watch has not shown our own last write yet, or what the API has now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the cache does not show {kind} {key} as it is yet")]
pub struct Stale {
    pub(super) kind: String,
    pub(super) key: Key,
}

/// How the API orders what happened to objects of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Version(u64);

impl Version {
    fn of<K: Kind>(object: &K) -> Version {
        let text = object.meta().resource_version.as_deref().unwrap_or_default();
        Version(text.parse().unwrap_or_default())
    }
}

/// Looks objects up by something they say.
pub struct Index<K> {
    at: usize,
    of: PhantomData<fn(K)>,
}

impl<K> Clone for Index<K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Index<K> {}

/// An object before and after something happened to it.
pub(super) struct Change<K> {
    pub(super) old: Option<Arc<K>>,
    pub(super) new: Option<Arc<K>>,
}

type Listener<K> = Box<dyn Fn(&Change<K>) + Send + Sync>;
type Words<K> = fn(&K) -> Vec<String>;
type Keys = HashMap<String, BTreeSet<Key>>;

pub(super) struct Cache<K> {
    known: RwLock<Known<K>>,
    listeners: RwLock<Vec<Listener<K>>>,
    complete: watch::Sender<bool>,
    list_anew: Notify,
}

struct Known<K> {
    objects: HashMap<Key, Arc<K>>,
    indexes: Vec<(Words<K>, Keys)>,
    /// The newest that the watch has shown. Events come in order: what is older was shown too.
    shown: Version,
    /// Our own writes that the watch has not shown.
    unseen: HashMap<Key, Unseen<K>>,
    writes: u64,
    list: Option<List<K>>,
}

/// A list under way.
struct List<K> {
    objects: Vec<K>,
    /// How many writes we had made when it began: those it shows for sure.
    after_writes: u64,
}

/// A write of ours.
struct Unseen<K> {
    number: u64,
    since: Instant,
    object: Arc<K>,
    what: Wrote,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Wrote {
    Version(Version),
    /// It was deleted; by its uid, since another may come in its place.
    Gone(Option<String>),
}

impl<K: Kind> Cache<K> {
    pub(super) fn new() -> Cache<K> {
        let known = Known {
            objects: HashMap::new(),
            indexes: Vec::new(),
            shown: Version::default(),
            unseen: HashMap::new(),
            writes: 0,
            list: None,
        };
        Cache {
            known: RwLock::new(known),
            listeners: RwLock::default(),
            complete: watch::Sender::new(false),
            list_anew: Notify::new(),
        }
    }

    /// Keeps the cache up to date, for ever.
    pub(super) async fn feed(&self, api: Api<K>) {
        loop {
            let events = watch_objects(api.clone(), watcher::Config::default())
                .modify(|object| object.managed_fields_mut().clear())
                .default_backoff();
            pin_mut!(events);
            loop {
                tokio::select! {
                    event = events.next() => match event {
                        Some(Ok(event)) => self.take(event),
                        Some(Err(error)) => debug!(kind = %K::kind(&()), %error, "the watch was broken"),
                        None => break,
                    },
                    () = self.list_anew.notified() => {
                        warn!(kind = %K::kind(&()), "our own write was not shown; listing anew");
                        break;
                    }
                }
            }
        }
    }

    /// Returns when everything has been listed once.
    pub(super) async fn complete(&self) {
        // The sender lives as long as the cache.
        let _ = self.complete.subscribe().wait_for(|complete| *complete).await;
    }

    /// Calls this for every change from now on.
    pub(super) fn listen(&self, listener: Listener<K>) {
        self.listeners.write().unwrap_or_else(PoisonError::into_inner).push(listener);
    }

    /// Looks objects up by words that they say.
    pub(super) fn index(&self, words: Words<K>) -> Index<K> {
        let mut known = self.write();
        let mut keys = HashMap::new();
        for (key, object) in &known.objects {
            enter(&mut keys, words, key, object);
        }
        known.indexes.push((words, keys));
        Index { at: known.indexes.len() - 1, of: PhantomData }
    }

    pub(super) fn get(&self, key: &Key) -> Result<Option<Arc<K>>, Stale> {
        let known = self.read();
        match known.unseen.get(key) {
            Some(unseen) => Err(self.stale(key, unseen)),
            None => Ok(known.objects.get(key).cloned()),
        }
    }

    /// All that say this word, in the order of their keys.
    pub(super) fn by(&self, index: Index<K>, word: &str) -> Result<Vec<Arc<K>>, Stale> {
        let known = self.read();
        let (words, keys) = &known.indexes[index.at];
        let keys = keys.get(word);
        let is_asked_for = |key: &Key, unseen: &Unseen<K>| {
            keys.is_some_and(|keys| keys.contains(key))
                || words(&unseen.object).iter().any(|said| said == word)
        };
        match known.unseen.iter().find(|(key, unseen)| is_asked_for(key, unseen)) {
            Some((key, unseen)) => Err(self.stale(key, unseen)),
            None => {
                Ok(keys.into_iter().flatten().filter_map(|key| known.objects.get(key).cloned()).collect())
            }
        }
    }

    /// All that the watch has shown to say this word, whatever we have written since.
    pub(super) fn shown_by(&self, index: Index<K>, word: &str) -> Vec<Arc<K>> {
        let known = self.read();
        let (_, keys) = &known.indexes[index.at];
        keys.get(word).into_iter().flatten().filter_map(|key| known.objects.get(key).cloned()).collect()
    }

    /// How many say this word. A write of ours that is not shown yet counts too, so that the number is never too low because of it.
    pub(super) fn count(&self, index: Index<K>, word: &str) -> usize {
        let known = self.read();
        let (words, keys) = &known.indexes[index.at];
        let keys = keys.get(word);
        let comes = |(key, unseen): &(&Key, &Unseen<K>)| {
            let is_counted = keys.is_some_and(|keys| keys.contains(key));
            let is_there = matches!(unseen.what, Wrote::Version(_));
            is_there && !is_counted && words(&unseen.object).iter().any(|said| said == word)
        };
        keys.map_or(0, BTreeSet::len) + known.unseen.iter().filter(comes).count()
    }

    /// All there are. For kinds of which there are few.
    pub(super) fn all(&self) -> Result<Vec<Arc<K>>, Stale> {
        let known = self.read();
        match known.unseen.iter().next() {
            Some((key, unseen)) => Err(self.stale(key, unseen)),
            None => Ok(known.objects.values().cloned().collect()),
        }
    }

    /// All that the watch has shown, whatever we have written since.
    pub(super) fn shown(&self) -> Vec<Arc<K>> {
        self.read().objects.values().cloned().collect()
    }

    /// Notes what the API answered to a write of ours.
    pub(super) fn wrote(&self, object: K) -> Arc<K> {
        let object = Arc::new(object);
        self.note(&object, Wrote::Version(Version::of(&*object)));
        object
    }

    /// Notes that the API has deleted an object for us.
    pub(super) fn deleted(&self, object: &Arc<K>) {
        self.note(object, Wrote::Gone(object.uid()));
    }

    fn note(&self, object: &Arc<K>, what: Wrote) {
        let mut known = self.write();
        known.writes += 1;
        let key = Key::of(&**object);
        let is_shown = match &what {
            Wrote::Version(version) => *version <= known.shown,
            Wrote::Gone(uid) => known.objects.get(&key).is_none_or(|there| there.uid() != *uid),
        };
        if !is_shown {
            let (number, since) = (known.writes, Instant::now());
            known.unseen.insert(key, Unseen { number, since, object: Arc::clone(object), what });
        }
    }

    fn stale(&self, key: &Key, unseen: &Unseen<K>) -> Stale {
        if unseen.since.elapsed() > UNSEEN_FOR {
            self.list_anew.notify_one();
        }
        Stale { kind: K::kind(&()).into_owned(), key: key.clone() }
    }

    fn take(&self, event: Event<K>) {
        let is_end_of_list = matches!(event, Event::InitDone);
        let changes = self.write().take(event);
        let listeners = self.listeners.read().unwrap_or_else(PoisonError::into_inner);
        for change in &changes {
            listeners.iter().for_each(|listener| listener(change));
        }
        if is_end_of_list {
            self.complete.send_replace(true);
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Known<K>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Known<K>> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Kind> Known<K> {
    fn take(&mut self, event: Event<K>) -> Vec<Change<K>> {
        match event {
            Event::Init => {
                self.list = Some(List { objects: Vec::new(), after_writes: self.writes });
                Vec::new()
            }
            Event::InitApply(object) => {
                if let Some(list) = &mut self.list {
                    list.objects.push(object);
                }
                Vec::new()
            }
            Event::InitDone => self.list.take().map(|list| self.replace(list)).unwrap_or_default(),
            Event::Apply(object) => {
                self.shown = self.shown.max(Version::of(&object));
                let change = self.put(object);
                self.forget_seen();
                vec![change]
            }
            Event::Delete(object) => {
                self.shown = self.shown.max(Version::of(&object));
                let change = self.remove(&Key::of(&object));
                self.forget_seen();
                vec![change]
            }
        }
    }

    fn replace(&mut self, list: List<K>) -> Vec<Change<K>> {
        let listed: BTreeSet<Key> = list.objects.iter().map(Key::of).collect();
        let gone: Vec<Key> = self.objects.keys().filter(|key| !listed.contains(key)).cloned().collect();
        let newest = list.objects.iter().map(Version::of).max().unwrap_or_default();
        self.shown = self.shown.max(newest);
        let mut changes: Vec<Change<K>> = gone.iter().map(|key| self.remove(key)).collect();
        changes.extend(list.objects.into_iter().map(|object| self.put(object)));
        self.unseen.retain(|_, unseen| unseen.number > list.after_writes);
        self.forget_seen();
        changes
    }

    fn put(&mut self, object: K) -> Change<K> {
        let (key, object) = (Key::of(&object), Arc::new(object));
        let change = self.remove(&key);
        for (words, keys) in &mut self.indexes {
            enter(keys, *words, &key, &object);
        }
        self.objects.insert(key, Arc::clone(&object));
        Change { new: Some(object), ..change }
    }

    fn remove(&mut self, key: &Key) -> Change<K> {
        let old = self.objects.remove(key);
        if let Some(old) = &old {
            for (words, keys) in &mut self.indexes {
                for word in words(old) {
                    if let Some(set) = keys.get_mut(&word) {
                        set.remove(key);
                        if set.is_empty() {
                            keys.remove(&word);
                        }
                    }
                }
            }
        }
        Change { old, new: None }
    }

    /// Forgets those of our writes that the watch has shown.
    fn forget_seen(&mut self) {
        let (shown, objects) = (self.shown, &self.objects);
        self.unseen.retain(|key, unseen| match &unseen.what {
            Wrote::Version(version) => *version > shown,
            Wrote::Gone(uid) => objects.get(key).is_some_and(|there| there.uid() == *uid),
        });
    }
}

fn enter<K>(keys: &mut Keys, words: Words<K>, key: &Key, object: &K) {
    for word in words(object) {
        keys.entry(word).or_default().insert(key.clone());
    }
}

#[cfg(test)]
mod tests;
