//! The store as its callers see it.

use serde_json::json;

use super::*;

fn resource() -> ResourceId {
    ResourceId { group: "example.com".into(), plural: "gadgets".into() }
}

fn key(name: &str) -> Key {
    Key::new(resource(), Some("default"), name)
}

fn body(size: u32) -> Body {
    Body::new(&json!({"kind": "Gadget", "metadata": {}, "spec": {"size": size}}))
}

fn open(folder: &tempfile::TempDir) -> Store {
    Store::open(&folder.path().join("store"), &StoreOptions::default()).unwrap()
}

#[tokio::test]
async fn what_was_written_is_there_after_a_reopen() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder);
    let created = store.write(Change::Create { key: key("a"), body: body(1) }, vec![]).await.unwrap();
    let change = Change::Replace { key: key("a"), body: body(2), expected: created.version };
    let replaced = store.write(change, vec![]).await.unwrap();
    let (cluster, version) = (store.cluster(), store.version());
    drop(store);

    let store = open(&folder);
    assert_eq!(store.get(&key("a")), Some(replaced));
    assert_eq!((store.cluster(), store.version()), (cluster, version));
}
