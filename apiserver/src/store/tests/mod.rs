//! The store as its callers see it.

mod crash;
mod faults;
mod model;
mod offline;
mod reading;
mod refusal;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::*;

fn resource() -> ResourceId {
    named("gadgets")
}

fn named(plural: &str) -> ResourceId {
    ResourceId { group: "example.com".into(), plural: plural.into() }
}

fn key(name: &str) -> Key {
    Key::new(resource(), Some("default"), name)
}

fn body(size: u64) -> Body {
    Body::new(&json!({"kind": "Gadget", "metadata": {"name": "any"}, "spec": {"size": size}}))
}

fn size(stored: &Stored) -> u64 {
    let object: Value = serde_json::from_slice(&stored.bytes).unwrap();
    assert_eq!(object["metadata"]["resourceVersion"], stored.version.to_string());
    object["spec"]["size"].as_u64().unwrap()
}

/// A folder and the file of a store in it.
fn place() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    (folder, path)
}

fn open(path: &Path) -> Store {
    Store::open(path, &StoreOptions::default()).unwrap()
}

async fn create(store: &Store, name: &str, size: u64) -> Result<Arc<Stored>, WriteError> {
    store.write(Change::Create { key: key(name), body: body(size) }, vec![]).await
}

async fn replace(store: &Store, name: &str, size: u64) -> Result<Arc<Stored>, WriteError> {
    let expected = store.get(&key(name)).ok_or(WriteError::Missing)?.version;
    store.write(Change::Replace { key: key(name), body: body(size), expected }, vec![]).await
}

async fn delete(store: &Store, name: &str) -> Result<Arc<Stored>, WriteError> {
    let expected = store.get(&key(name)).ok_or(WriteError::Missing)?.version;
    store.write(Change::Delete { key: key(name), last: body(0), expected }, vec![]).await
}

/// A small source of chance that a seed replays.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}
