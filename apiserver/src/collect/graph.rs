//! Who depends on whom, as far as it has been seen.
//!
//! Only objects with owners are remembered, so that the graph is small where
//! ownership is rare. It may lag behind the store; whoever uses it asks the
//! store before acting.

use std::collections::{BTreeSet, HashMap};

use super::observe::Seen;
use crate::kind::ResourceId;
use crate::store::Key;

#[derive(Debug, Default)]
pub(super) struct Graph {
    /// Objects by the uid of each of their owners.
    dependents: HashMap<String, BTreeSet<Key>>,
    owners: HashMap<Key, Vec<String>>,
    /// Objects that wait for their dependents, by uid.
    leaving: HashMap<String, Key>,
}

impl Graph {
    /// Remembers what was seen and returns the objects that should be looked at because of it.
    pub(super) fn note(&mut self, seen: Seen) -> Vec<Key> {
        let Seen { key, uid, owners, deleting, gone } = seen;
        let before = self.forget(&key);
        let mut due = Vec::new();
        // An owner that waits for this object may wait no longer.
        due.extend(before.iter().chain(&owners).filter_map(|owner| self.leaving.get(owner)).cloned());
        if gone {
            self.leaving.remove(&uid);
            due.extend(self.dependents_of(&uid).cloned());
            return due;
        }
        if deleting {
            self.leaving.insert(uid, key.clone());
            due.push(key.clone());
        }
        if !owners.is_empty() {
            if owners != before {
                due.push(key.clone());
            }
            for owner in &owners {
                self.dependents.entry(owner.clone()).or_default().insert(key.clone());
            }
            self.owners.insert(key, owners);
        }
        due
    }

    /// Forgets what is no more of a resource whose deletions may have gone unseen, and returns all
    /// that may have waited to hear of one. `uid_of` says who has a key now.
    pub(super) fn relisted(
        &mut self,
        resource: &ResourceId,
        uid_of: impl Fn(&Key) -> Option<String>,
    ) -> Vec<Key> {
        let of_resource = self.owners.keys().filter(|key| key.resource == *resource);
        let missing: Vec<Key> = of_resource.filter(|key| uid_of(key).is_none()).cloned().collect();
        for key in &missing {
            self.forget(key);
        }
        self.leaving.retain(|uid, key| key.resource != *resource || uid_of(key).as_ref() == Some(uid));
        self.owners.keys().chain(self.leaving.values()).cloned().collect()
    }

    /// Forgets an object as a dependent, and returns the uids of those that owned it.
    fn forget(&mut self, key: &Key) -> Vec<String> {
        let owners = self.owners.remove(key).unwrap_or_default();
        for owner in &owners {
            if let Some(dependents) = self.dependents.get_mut(owner) {
                dependents.remove(key);
                if dependents.is_empty() {
                    self.dependents.remove(owner);
                }
            }
        }
        owners
    }

    /// Every object that has owners.
    pub(super) fn owned(&self) -> impl Iterator<Item = &Key> {
        self.owners.keys()
    }

    pub(super) fn dependents_of(&self, uid: &str) -> impl Iterator<Item = &Key> {
        self.dependents.get(uid).into_iter().flatten()
    }
}
