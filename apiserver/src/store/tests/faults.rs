//! Disks that fill up, fail to sync or lose power.

use proptest::prelude::*;

use super::*;

#[tokio::test]
async fn a_full_disk_refuses_writes_and_recovers_by_itself() {
    let (_folder, path) = place();
    let disk = Fickle::formatted();
    let store = open_on(&disk, &path).unwrap();
    let kept = create(&store, "kept", 1).await.unwrap();
    disk.set_full(true);
    for _ in 0..3 {
        let refused = create(&store, "late", 2).await;
        assert!(matches!(refused, Err(WriteError::Unavailable { .. })), "{refused:?}");
        assert_eq!(store.get(&key("kept")), Some(kept.clone()), "reads go on");
        assert_eq!(store.get(&key("late")), None);
        assert_eq!(store.version(), kept.version);
        assert!(!store.is_open());
    }
    disk.set_full(false);
    let late = create(&store, "late", 3).await.unwrap();
    assert!(store.is_open());
    assert!(late.version > kept.version);
    drop(store);
    let store = open_on(&disk, &path).unwrap();
    assert_eq!((store.get(&key("kept")), store.get(&key("late"))), (Some(kept), Some(late)));
}

#[tokio::test]
async fn a_failed_sync_is_never_tried_again() {
    let (_folder, path) = place();
    let disk = Fickle::formatted();
    let store = open_on(&disk, &path).unwrap();
    let kept = create(&store, "kept", 1).await.unwrap();
    disk.set_sync_fails(true);
    assert!(matches!(create(&store, "doubtful", 2).await, Err(WriteError::Unavailable { .. })));
    disk.set_sync_fails(false);
    let refused = create(&store, "late", 3).await;
    assert!(
        matches!(&refused, Err(WriteError::Unavailable { reason }) if reason.contains("restart")),
        "{refused:?}"
    );
    assert_eq!(store.get(&key("doubtful")), None, "what may not be durable is not shown");
    drop(store);

    let store = open_on(&disk.after_power_loss(|| false), &path).unwrap();
    assert_eq!(store.get(&key("kept")), Some(kept));
    assert_eq!(store.get(&key("doubtful")), None);
}

/// Linux keeps in memory what a failed sync did not bring to the disk, and calls it clean.
#[tokio::test]
async fn what_a_failed_sync_left_in_memory_is_not_taken_for_what_the_disk_holds() {
    let (_folder, path) = place();
    let disk = Fickle::formatted();
    let store = open_on(&disk, &path).unwrap();
    let mut kept =
        vec![create(&store, "first", 1).await.unwrap(), create(&store, "second", 2).await.unwrap()];
    // Closing gives redb what is in the journal, which does not reach the disk.
    disk.set_sync_fails(true);
    drop(store);
    disk.set_sync_fails(false);
    let store = open_on(&disk, &path).unwrap();
    kept.push(create(&store, "third", 3).await.unwrap());
    let power_lost = disk.after_power_loss(|| false);
    drop(store);
    let store = open_on(&power_lost, &path).unwrap();
    for (name, kept) in ["first", "second", "third"].into_iter().zip(kept) {
        assert_eq!(store.get(&key(name)), Some(kept), "{name}");
    }
}

/// Less is free than a journal takes: writes go to redb until that has no room either.
#[tokio::test]
async fn a_disk_without_room_for_a_journal_takes_writes_until_it_is_full() {
    let (_folder, path) = place();
    for room in [0, 128 << 10, 508 << 10] {
        let disk = Fickle::formatted();
        let store = open_on(&disk, &path.with_file_name(format!("{room}"))).unwrap();
        let write = async |index: usize| {
            let body = Body::new(&json!({"metadata": {}, "spec": {"size": index, "fill": "x".repeat(3000)}}));
            store.write(Change::Create { key: key(&format!("g{index}")), body }, vec![]).await
        };
        disk.leave_room(room);
        let mut known = Vec::new();
        let refused = loop {
            match write(known.len()).await {
                Ok(stored) => known.push(stored),
                Err(refused) => break refused,
            }
        };
        assert!(room == 0 || known.len() > 9, "{room} bytes hold {} objects", known.len());
        let full =
            matches!(&refused, WriteError::Unavailable { reason } if reason.contains("the disk is full"));
        assert!(full, "{room} bytes: {refused:?}");
        assert_eq!(store.snapshot(&resource()).len(), known.len());
        let (power_lost, before) = (disk.after_power_loss(|| false), known.len());
        disk.leave_room(64 << 20);
        for _ in 0..200 {
            known.push(write(known.len()).await.unwrap());
        }
        let later = disk.after_power_loss(|| false);
        drop(store);
        for (disk, expected) in [(power_lost, &known[..before]), (later, &known[..])] {
            let store = open_on(&disk, &path.with_file_name(format!("{room}-{}", expected.len()))).unwrap();
            assert_eq!(store.snapshot(&resource()).len(), expected.len(), "{room} bytes");
            for (index, stored) in expected.iter().enumerate() {
                assert_eq!(
                    store.get(&key(&format!("g{index}"))).as_ref(),
                    Some(stored),
                    "{room} bytes: {index}"
                );
            }
        }
    }
}

/// A journal is made as soon as there is room, without a failure in between.
#[tokio::test]
async fn room_for_a_journal_is_looked_for_again() {
    let (_folder, path) = place();
    let disk = Fickle::formatted();
    let store = open_on(&disk, &path).unwrap();
    disk.leave_room(256 << 10);
    for index in 0..5 {
        create(&store, &format!("early-{index}"), index).await.unwrap();
    }
    assert!(!disk.has_journal(), "there is no room");
    disk.leave_room(64 << 20);
    for index in 0..200 {
        create(&store, &format!("late-{index}"), index).await.unwrap();
    }
    assert!(disk.has_journal());
    let power_lost = disk.after_power_loss(|| false);
    drop(store);
    assert_eq!(open_on(&power_lost, &path).unwrap().snapshot(&resource()).len(), 205);
}

/// The journal is full and the disk too: what it holds was acknowledged, and stays.
#[tokio::test]
async fn a_disk_that_is_full_when_the_journal_is_keeps_all_that_was_acknowledged() {
    let (_folder, path) = place();
    let disk = Fickle::formatted();
    let store = open_on(&disk, &path).unwrap();
    let large = || Body::new(&json!({"metadata": {}, "spec": {"size": 7, "fill": "x".repeat(200_000)}}));
    let write = async |index: u64| {
        store.write(Change::Create { key: key(&format!("large-{index}")), body: large() }, vec![]).await
    };
    // The first names the journal, two fit into it, the next one would need redb.
    for index in 0..3 {
        write(index).await.unwrap();
    }
    disk.set_full(true);
    for _ in 0..3 {
        assert!(matches!(write(3).await, Err(WriteError::Unavailable { .. })));
    }
    let power_lost = disk.after_power_loss(|| false);
    disk.set_full(false);
    write(3).await.unwrap();
    drop(store);
    for (disk, expected) in [(disk, 4), (power_lost, 3)] {
        let store = open_on(&disk, &path.with_file_name(format!("{expected}"))).unwrap();
        let found: Vec<u64> = store.snapshot(&resource()).iter().map(|entry| size(entry.stored)).collect();
        assert_eq!(found, vec![7; expected]);
    }
}

/// A sync failed while the journal was made: it has its length, and nothing of that is durable.
#[tokio::test]
async fn a_journal_that_was_half_made_is_made_whole_before_the_store_counts_on_it() {
    let (_folder, path) = place();
    let disk = Fickle::formatted();
    let store = open_on(&disk, &path).unwrap();
    disk.set_sync_fails(true);
    let refused = create(&store, "early", 1).await;
    assert!(matches!(refused, Err(WriteError::Unavailable { .. })), "{refused:?}");
    disk.set_sync_fails(false);
    let kept = create(&store, "kept", 2).await.unwrap();
    let power_lost = disk.after_power_loss(|| false);
    drop(store);
    let store = open_on(&power_lost, &path).unwrap();
    assert_eq!(store.get(&key("kept")), Some(kept));
}

#[tokio::test]
async fn all_of_a_refused_batch_are_refused() {
    let (_folder, path) = place();
    let disk = Fickle::formatted();
    let store = open_on(&disk, &path).unwrap();
    disk.set_full(true);
    let change = || Change::Create { key: key("same"), body: body(1) };
    let (one, other) = tokio::join!(store.write(change(), vec![]), store.write(change(), vec![]));
    for answer in [one, other] {
        assert!(
            matches!(answer, Err(WriteError::Unavailable { .. })),
            "nobody hears of the other: {answer:?}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// The power goes after any number of disk operations and any part of what
    /// was not synced survives: all that was acknowledged is there, and a write
    /// that was under way is there as a whole or not at all.
    #[test]
    fn what_was_acknowledged_survives_power_loss(operations in 1..600u64, seed: u64) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (_folder, path) = place();
            let mut chance = Chance(seed);
            let mut disk = Fickle::formatted();
            let mut acknowledged = std::collections::BTreeMap::new();
            for _ in 0..2 {
                let store = open_on(&disk, &path).unwrap();
                disk.cut_power_after(operations);
                let mut under_way = None;
                for turn in 0..5000 {
                    let name = format!("g{}", chance.below(8));
                    let answer = match chance.below(4) {
                        0 => delete(&store, &name).await.map(|_| None),
                        _ if store.get(&key(&name)).is_some() => replace(&store, &name, turn).await.map(Some),
                        _ => create(&store, &name, turn).await.map(Some),
                    };
                    match answer {
                        Ok(Some(stored)) => { acknowledged.insert(name, (stored.version, turn)); }
                        Ok(None) => { acknowledged.remove(&name); }
                        Err(WriteError::Missing) => {}
                        Err(WriteError::Unavailable { .. }) => { under_way = Some((name, turn)); break; }
                        Err(other) => panic!("{other:?}"),
                    }
                }
                let version = store.version();
                drop(store);
                disk = disk.after_power_loss(|| chance.below(2) == 0);
                let store = open_on(&disk, &path).unwrap();
                assert!(store.version() >= version);
                let (name, _) = under_way.unwrap();
                for name in (0..8).map(|index| format!("g{index}")).filter(|other| *other != name) {
                    let found = store.get(&key(&name)).map(|stored| (stored.version, size(&stored)));
                    assert_eq!(found, acknowledged.get(&name).copied(), "{name}");
                }
                match store.get(&key(&name)) {
                    Some(found) => acknowledged.insert(name, (found.version, size(&found))),
                    None => acknowledged.remove(&name),
                };
            }
        });
    }
}
