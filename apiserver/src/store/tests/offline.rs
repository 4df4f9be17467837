//! Work on a whole store at once.

use super::*;

#[tokio::test]
async fn all_changes_happen_or_none_does() {
    let (_folder, path) = place();
    let store = open(&path);
    for (name, size) in [("a", 1), ("b", 2)] {
        create(&store, name, size).await.unwrap();
    }
    let node = Key::new(named("nodes"), None, "n");
    store.write(Change::Create { key: node.clone(), body: body(3) }, vec![]).await.unwrap();
    assert!(matches!(Offline::open(&path), Err(OpenError::Locked { .. })), "not while it is served");
    let cluster = store.cluster();
    drop(store);

    let mut offline = Offline::open(&path).unwrap();
    assert_eq!(offline.cluster(), cluster);
    let mut before: Vec<_> = offline.records().map(|(key, stored)| (key, size(stored))).collect();
    before.sort();
    assert_eq!(before, [(key("a"), 1), (key("b"), 2), (node.clone(), 3)]);

    let doubled = |key: &Key, stored: &Stored| Change::Replace {
        key: key.clone(),
        body: body(2 * size(stored)),
        expected: stored.version,
    };
    let changes: Vec<Change> = offline.records().map(|(key, stored)| doubled(&key, stored)).collect();
    let refused = changes.iter().cloned().chain([Change::Create { key: key("a"), body: body(0) }]).collect();
    assert_eq!(offline.write(refused), Err(WriteError::Exists));
    let version = offline.write(changes).unwrap();
    assert!(matches!(Store::open(&path, &StoreOptions::default()), Err(OpenError::Locked { .. })));
    drop(offline);

    let store = open(&path);
    assert_eq!(store.version(), version);
    let sizes = [key("a"), key("b"), node].map(|key| size(&store.get(&key).unwrap()));
    assert_eq!(sizes, [2, 4, 6]);
}

#[test]
fn work_on_a_store_that_is_not_there_makes_none() {
    let (_folder, path) = place();
    assert!(matches!(Offline::open(&path), Err(OpenError::Io { .. })));
    assert!(!path.exists());
}
