//! Snapshots and watches.

use super::*;

#[tokio::test]
async fn a_snapshot_does_not_change_while_the_store_does() {
    let (_folder, path) = place();
    let store = open_on(&Fickle::formatted(), &path).unwrap();
    for name in ["a", "b", "c"] {
        create(&store, name, 1).await.unwrap();
    }
    let snapshot = store.snapshot(&resource());
    delete(&store, "a").await.unwrap();
    replace(&store, "b", 2).await.unwrap();
    create(&store, "d", 1).await.unwrap();

    let seen: Vec<_> = snapshot.iter().map(|entry| (entry.name, size(entry.stored))).collect();
    assert_eq!(seen, [("a", 1), ("b", 1), ("c", 1)]);
    assert_eq!(snapshot.version(), Version::new(4));
    let now = store.snapshot(&resource());
    let seen: Vec<_> = now.iter().map(|entry| (entry.name, size(entry.stored))).collect();
    assert_eq!(seen, [("b", 2), ("c", 1), ("d", 1)]);
}

#[tokio::test]
async fn a_snapshot_is_read_by_namespace_and_from_any_place_on() {
    let (_folder, path) = place();
    let store = open_on(&Fickle::formatted(), &path).unwrap();
    for place in ["a/x", "a-b/x", "b/x", "b/y", "b/z", "c/x"] {
        let (namespace, name) = place.split_once('/').unwrap();
        let key = Key::new(resource(), Some(namespace), name);
        store.write(Change::Create { key, body: body(1) }, vec![]).await.unwrap();
    }
    let snapshot = store.snapshot(&resource());
    #[rustfmt::skip]
    let cases = [
        ("all, as the real server orders them", None, None,                   "a-b/x a/x b/x b/y b/z c/x"),
        ("one namespace",                       Some("b"), None,              "b/x b/y b/z"),
        ("the start of another's name",         Some("a"), None,              "a/x"),
        ("behind a page",                       Some("b"), Some(("b", "x")),  "b/y b/z"),
        ("behind one that is gone",             Some("b"), Some(("b", "xx")), "b/y b/z"),
        ("behind the last of a namespace",      Some("b"), Some(("b", "z")),  ""),
        ("behind another namespace",            Some("b"), Some(("a", "x")),  "b/x b/y b/z"),
        ("all, behind a page",                  None, Some(("b", "y")),       "b/z c/x"),
        ("unknown namespace",                   Some("q"), None,              ""),
    ];
    for (name, namespace, after, expected) in cases {
        let after = after.map(|(namespace, name)| (Some(namespace), name));
        let seen: Vec<String> = snapshot
            .entries(namespace, after)
            .map(|entry| format!("{}/{}", entry.namespace.unwrap(), entry.name))
            .collect();
        assert_eq!(seen.join(" "), expected, "{name}");
    }
    assert!(snapshot.get(Some("b"), "y").is_some());
    assert!(snapshot.get(None, "y").is_none());
}

#[tokio::test]
async fn cluster_scoped_objects_have_no_namespace() {
    let (_folder, path) = place();
    let store = open(&path);
    let key = Key::new(named("nodes"), None, "n1");
    store.write(Change::Create { key: key.clone(), body: body(1) }, vec![]).await.unwrap();
    drop(store);
    let snapshot = open(&path).snapshot(&key.resource);
    let seen: Vec<_> = snapshot.iter().map(|entry| (entry.namespace, entry.name)).collect();
    assert_eq!(seen, [(None, "n1")]);
}

#[tokio::test]
async fn kept_snapshots_are_found_until_there_are_too_many_or_they_are_too_old() {
    let (_folder, path) = place();
    let options = StoreOptions { retained_snapshots: 2, ..StoreOptions::default() };
    let store = Store::start(Fickle::formatted().site(&path), &options, Duration::ZERO).unwrap();
    let mut versions = Vec::new();
    for name in ["a", "b", "c"] {
        create(&store, name, 1).await.unwrap();
        let snapshot = store.snapshot(&resource());
        store.retain(&snapshot);
        versions.push(snapshot.version());
    }
    let found = |version| store.snapshot_at(&resource(), version).map(|snapshot| snapshot.len());
    assert_eq!(versions.iter().map(|version| found(*version)).collect::<Vec<_>>(), [None, Some(2), Some(3)]);
    assert!(store.snapshot_at(&named("others"), versions[2]).is_none());

    let retained = Retained::new(2, Duration::from_secs(10));
    let start = Instant::now();
    retained.keep(&store.snapshot(&resource()), start);
    let at =
        |seconds| retained.find(&resource(), versions[2], start + Duration::from_secs(seconds)).is_some();
    assert!(at(10));
    assert!(!at(11));
}

#[tokio::test]
async fn a_watch_sees_every_event_in_order_with_what_was_before() {
    let (_folder, path) = place();
    let store = open_on(&Fickle::formatted(), &path).unwrap();
    let mut watch = store.watch(&resource(), store.version()).unwrap();
    create(&store, "a", 1).await.unwrap();
    replace(&store, "a", 2).await.unwrap();
    let other = Key::new(named("others"), None, "o");
    store.write(Change::Create { key: other, body: body(9) }, vec![]).await.unwrap();
    delete(&store, "a").await.unwrap();

    let mut seen = Vec::new();
    while let Some(event) = watch.try_next().unwrap() {
        let sizes = |stored: &Option<Arc<Stored>>| stored.as_ref().map(|stored| size(stored));
        let last: Value = serde_json::from_slice(&event.last).unwrap();
        assert_eq!(last["metadata"]["resourceVersion"], event.version.to_string());
        seen.push((
            event.version.get(),
            sizes(&event.before),
            sizes(&event.after),
            last["spec"]["size"].as_u64(),
        ));
    }
    let expected = [(2, None, Some(1), Some(1)), (3, Some(1), Some(2), Some(2)), (5, Some(2), None, Some(0))];
    assert_eq!(seen, expected);
    assert_eq!(watch.position(), store.version());
}

#[tokio::test]
async fn a_waiting_watch_is_woken() {
    let (_folder, path) = place();
    let store = open_on(&Fickle::formatted(), &path).unwrap();
    let mut watch = store.watch(&resource(), store.version()).unwrap();
    let waiting = tokio::spawn(async move { watch.next().await.unwrap().version });
    tokio::task::yield_now().await;
    let created = create(&store, "a", 1).await.unwrap();
    assert_eq!(waiting.await.unwrap(), created.version);
}

#[tokio::test]
async fn the_position_grows_with_the_store_while_nothing_happens_to_the_resource() {
    let (_folder, path) = place();
    let store = open_on(&Fickle::formatted(), &path).unwrap();
    let quiet = store.watch(&named("quiet"), store.version()).unwrap();
    let busy = store.watch(&resource(), store.version()).unwrap();
    create(&store, "a", 1).await.unwrap();
    assert_eq!(quiet.position(), store.version());
    assert_eq!(busy.position(), Version::FIRST, "an event is waiting");
}

#[tokio::test]
async fn a_watch_from_a_version_to_come_waits_for_it() {
    let (_folder, path) = place();
    let store = open_on(&Fickle::formatted(), &path).unwrap();
    let mut watch = store.watch(&resource(), Version::new(3)).unwrap();
    for name in ["a", "b", "c"] {
        create(&store, name, 1).await.unwrap();
    }
    assert_eq!(watch.try_next().unwrap().unwrap().version, Version::new(4));
    assert_eq!(watch.try_next().unwrap(), None);
}

#[tokio::test]
async fn who_lags_behind_the_history_is_told() {
    let (_folder, path) = place();
    let options = StoreOptions { history_events: 3, ..StoreOptions::default() };
    let store = Store::start(Fickle::formatted().site(&path), &options, Duration::ZERO).unwrap();
    let mut slow = store.watch(&resource(), Version::FIRST).unwrap();
    let mut quiet = store.watch(&named("quiet"), Version::FIRST).unwrap();
    for name in ["a", "b", "c", "d"] {
        create(&store, name, 1).await.unwrap();
    }
    let too_old = TooOld { asked: Version::FIRST, oldest: Version::new(2) };
    assert_eq!(slow.try_next(), Err(too_old));
    assert_eq!(slow.next().await, Err(too_old));
    assert_eq!(store.watch(&resource(), Version::FIRST).err(), Some(too_old));
    assert!(store.watch(&resource(), Version::new(2)).is_ok());
    assert_eq!(quiet.try_next(), Ok(None), "a busy resource does not disturb a quiet one");
}

#[tokio::test]
async fn the_history_is_bounded_by_bytes_over_all_resources() {
    let (_folder, path) = place();
    let options = StoreOptions { history_bytes: 64 << 10, ..StoreOptions::default() };
    let store = Store::start(Fickle::formatted().site(&path), &options, Duration::ZERO).unwrap();
    let heavy = Body::new(&json!({"spec": {"fill": "x".repeat(10_000)}}));
    for plural in ["first", "second"] {
        let key = Key::new(named(plural), None, "o");
        let change = Change::Create { key: key.clone(), body: heavy.clone() };
        let mut expected = store.write(change, vec![]).await.unwrap().version;
        for _ in 0..10 {
            let change = Change::Replace { key: key.clone(), body: heavy.clone(), expected };
            expected = store.write(change, vec![]).await.unwrap().version;
        }
    }
    assert!(store.watch(&named("first"), Version::new(2)).is_err(), "the oldest went first");
    let mut recent = store.watch(&named("second"), Version::new(store.version().get() - 3)).unwrap();
    assert!(recent.try_next().unwrap().is_some(), "the newest are still there");
}

#[tokio::test]
async fn after_a_restart_a_watch_goes_on_from_the_last_version_only() {
    let (_folder, path) = place();
    let disk = Fickle::formatted();
    let store = open_on(&disk, &path).unwrap();
    let before = create(&store, "a", 1).await.unwrap().version;
    let last = create(&store, "b", 1).await.unwrap().version;
    drop(store);

    let store = open_on(&disk, &path).unwrap();
    assert_eq!(store.watch(&resource(), before).err(), Some(TooOld { asked: before, oldest: last }));
    let mut watch = store.watch(&resource(), last).unwrap();
    let next = create(&store, "c", 1).await.unwrap();
    assert_eq!(watch.next().await.unwrap().version, next.version);
    assert!(next.version > last);
}
