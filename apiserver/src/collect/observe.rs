//! Watches one resource and tells what matters for collection: who owns what,
//! and what is on its way out.

use serde::Deserialize;
use tokio::sync::mpsc;

use crate::kind::ResourceId;
use crate::store::{Key, Store};

/// What an observer tells.
#[derive(Debug)]
pub(super) enum Told {
    Object(Seen),
    /// The observer fell behind and has listed anew: deletions of this resource may have gone unseen.
    Relisted(ResourceId),
}

/// One object as the collector sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) key: Key,
    pub(super) uid: String,
    /// The uids of its owners.
    pub(super) owners: Vec<String>,
    pub(super) deleting: bool,
    pub(super) gone: bool,
}

#[derive(Deserialize)]
struct Object {
    metadata: Metadata,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    uid: String,
    owner_references: Vec<Owner>,
    deletion_timestamp: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Owner {
    uid: String,
}

impl Seen {
    pub(super) fn of(key: Key, bytes: &[u8], gone: bool) -> Option<Seen> {
        let Object { metadata } = serde_json::from_slice(bytes).ok()?;
        let owners = metadata.owner_references.into_iter().map(|owner| owner.uid).collect();
        Some(Seen { key, uid: metadata.uid, owners, deleting: metadata.deletion_timestamp.is_some(), gone })
    }
}

/// Tells everything there is, then everything that happens. Ends when nobody listens.
pub(super) async fn observe(store: Store, resource: ResourceId, tell: mpsc::Sender<Told>) {
    // A watch that fell behind begins anew: what was missed is seen in the next snapshot, and what
    // was deleted meanwhile is found missing by those who hear of the relist.
    for relisted in std::iter::once(false).chain(std::iter::repeat(true)) {
        let snapshot = store.snapshot(&resource);
        for entry in snapshot.iter() {
            let key = Key::new(resource.clone(), entry.namespace, entry.name);
            if !tell_of(&tell, Seen::of(key, &entry.stored.bytes, false)).await {
                return;
            }
        }
        if relisted && tell.send(Told::Relisted(resource.clone())).await.is_err() {
            return;
        }
        let Ok(mut watch) = store.watch(&resource, snapshot.version()) else { continue };
        drop(snapshot);
        while let Ok(event) = watch.next().await {
            let seen = Seen::of(event.key.clone(), &event.last, event.after.is_none());
            if !tell_of(&tell, seen).await {
                return;
            }
        }
    }
}

async fn tell_of(tell: &mpsc::Sender<Told>, seen: Option<Seen>) -> bool {
    match seen {
        Some(seen) => tell.send(Told::Object(seen)).await.is_ok(),
        None => true,
    }
}
