//! Nobody reads what is older than our own last write, and an index says what the objects say.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ObjectMeta;

use super::*;

fn map(name: &str, version: u64, uid: &str, word: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            namespace: Some("default".into()),
            name: Some(name.into()),
            uid: Some(uid.into()),
            resource_version: Some(version.to_string()),
            ..ObjectMeta::default()
        },
        data: Some([("word".to_owned(), word.to_owned())].into()),
        ..ConfigMap::default()
    }
}

fn words(map: &ConfigMap) -> Vec<String> {
    map.data.iter().flat_map(|data| data.values().cloned()).collect()
}

fn key(name: &str) -> Key {
    Key::new("default", name)
}

/// A cache that was told of these objects by a list.
fn listed(objects: Vec<ConfigMap>) -> (Cache<ConfigMap>, Index<ConfigMap>) {
    let cache = Cache::new();
    let index = cache.index(words);
    list(&cache, objects);
    (cache, index)
}

fn list(cache: &Cache<ConfigMap>, objects: Vec<ConfigMap>) {
    cache.take(Event::Init);
    objects.into_iter().for_each(|object| cache.take(Event::InitApply(object)));
    cache.take(Event::InitDone);
}

fn found(cache: &Cache<ConfigMap>, index: Index<ConfigMap>, word: &str) -> Vec<String> {
    cache.by(index, word).unwrap().iter().map(|object| object.name_any()).collect()
}

#[test]
fn who_is_to_be_woken_is_found_whatever_we_have_written_since() {
    let (cache, index) = listed(vec![map("a", 1, "1", "x"), map("b", 2, "2", "x")]);
    cache.wrote(map("b", 3, "2", "y"));
    assert!(cache.by(index, "x").is_err(), "nobody acts on what is older than our own write");
    let shown: Vec<String> = cache.shown_by(index, "x").iter().map(|object| object.name_any()).collect();
    assert_eq!(shown, ["a", "b"]);
    cache.take(Event::Apply(map("b", 3, "2", "y")));
    assert_eq!(cache.shown_by(index, "x").len(), 1);
}

#[test]
fn counts_also_what_was_written_and_is_not_shown() {
    let (cache, index) = listed(vec![map("a", 1, "1", "x"), map("b", 2, "2", "y")]);
    assert_eq!((cache.count(index, "x"), cache.count(index, "z")), (1, 0));
    cache.wrote(map("b", 3, "2", "x"));
    assert_eq!((cache.count(index, "x"), cache.count(index, "y")), (2, 1), "it may be either");
    cache.take(Event::Apply(map("b", 3, "2", "x")));
    assert_eq!((cache.count(index, "x"), cache.count(index, "y")), (2, 0));
    cache.deleted(&cache.get(&key("a")).unwrap().unwrap());
    assert_eq!(cache.count(index, "x"), 2, "until it is shown to be gone");
}

#[test]
fn finds_what_says_a_word_and_nothing_that_did() {
    let (cache, index) = listed(vec![map("a", 1, "1", "x"), map("b", 2, "2", "x"), map("c", 3, "3", "y")]);
    assert_eq!(found(&cache, index, "x"), ["a", "b"]);
    cache.take(Event::Apply(map("a", 4, "1", "y")));
    assert_eq!(
        (found(&cache, index, "x"), found(&cache, index, "y")),
        (vec!["b".into()], vec!["a".into(), "c".into()])
    );
    cache.take(Event::Delete(map("c", 5, "3", "y")));
    assert_eq!(found(&cache, index, "y"), ["a"]);
    list(&cache, vec![map("d", 6, "4", "y")]);
    assert_eq!((found(&cache, index, "x"), found(&cache, index, "y")), (vec![], vec!["d".into()]));
    assert_eq!(cache.index(words).at, 1, "an index that comes late");
    assert_eq!(found(&cache, Index { at: 1, of: PhantomData }, "y"), ["d"]);
}

#[test]
fn refuses_to_show_what_we_have_changed_since() {
    let (cache, index) = listed(vec![map("a", 1, "1", "x")]);
    cache.wrote(map("a", 5, "1", "y"));
    assert!(cache.get(&key("a")).is_err());
    assert!(cache.by(index, "x").is_err(), "it may no longer say so");
    assert!(cache.by(index, "y").is_err(), "it is not shown there yet");
    assert_eq!(found(&cache, index, "z"), Vec::<String>::new(), "others are not held up");
    cache.take(Event::Apply(map("a", 3, "1", "x")));
    assert!(cache.get(&key("a")).is_err(), "somebody's write before ours");
    cache.take(Event::Apply(map("a", 5, "1", "y")));
    assert_eq!(found(&cache, index, "y"), ["a"]);
    cache.wrote(map("a", 5, "1", "y"));
    assert!(cache.get(&key("a")).is_ok(), "the watch was quicker than the answer");
}

#[test]
fn what_we_made_is_missed_until_it_is_shown() {
    let (cache, index) = listed(vec![]);
    cache.wrote(map("a", 5, "1", "x"));
    assert!(cache.get(&key("a")).is_err() && cache.by(index, "x").is_err() && cache.all().is_err());
    cache.take(Event::Apply(map("b", 6, "2", "z")));
    assert!(cache.get(&key("a")).is_ok(), "events come in order: ours was shown, or it was gone again");
}

#[test]
fn what_we_deleted_is_gone_once_it_is_shown() {
    let (cache, _) = listed(vec![map("a", 1, "1", "x")]);
    let a = cache.get(&key("a")).unwrap().unwrap();
    cache.deleted(&a);
    assert!(cache.get(&key("a")).is_err());
    cache.take(Event::Apply(map("b", 7, "2", "x")));
    assert!(
        cache.get(&key("a")).is_err(),
        "a later event of another says nothing about a deletion without version"
    );
    cache.take(Event::Apply(map("a", 9, "3", "x")));
    assert!(cache.get(&key("a")).unwrap().is_some(), "another of its name");
    cache.deleted(&a);
    assert!(cache.get(&key("a")).is_ok(), "the watch was quicker than the answer");
}

#[test]
fn a_list_that_began_after_the_write_ends_the_wait() {
    let (cache, _) = listed(vec![]);
    cache.take(Event::Init);
    cache.wrote(map("a", 5, "1", "x"));
    cache.take(Event::InitDone);
    assert!(cache.get(&key("a")).is_err(), "the list may be older than the write");
    list(&cache, vec![]);
    assert_eq!(cache.get(&key("a")), Ok(None), "somebody else has deleted it");
}
