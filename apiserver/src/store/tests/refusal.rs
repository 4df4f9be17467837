//! Stores that must not be opened, and that must not be harmed by the attempt.

use redb::{Database, TableDefinition};

use super::*;

async fn filled(path: &Path) -> Vec<(String, u64)> {
    let store = open(path);
    for index in 0..60 {
        create(&store, &format!("g{index}"), index).await.unwrap();
    }
    for index in 0..20 {
        replace(&store, &format!("g{index}"), 1000 + index).await.unwrap();
        delete(&store, &format!("g{}", 40 + index)).await.unwrap();
    }
    contents(&store)
}

fn contents(store: &Store) -> Vec<(String, u64)> {
    let snapshot = store.snapshot(&resource());
    snapshot.iter().map(|entry| (entry.name.to_owned(), size(entry.stored))).collect()
}

#[tokio::test]
async fn a_store_in_use_names_its_holder() {
    let (_folder, path) = place();
    let store = open(&path);
    let refused = Store::open(&path, &StoreOptions::default()).unwrap_err();
    assert!(
        matches!(refused, OpenError::Locked { holder: Some(pid), .. } if pid == std::process::id()),
        "{refused:?}"
    );
    assert!(refused.to_string().contains(&format!("in use by process {}", std::process::id())));
    create(&store, "a", 1).await.unwrap();
}

#[tokio::test]
async fn a_store_of_a_newer_format_is_left_alone() {
    let (_folder, path) = place();
    filled(&path).await;
    let meta: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
    let database = Database::open(&path).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(meta).unwrap().insert("format", &(FORMAT + 1).to_le_bytes()[..]).unwrap();
    transaction.commit().unwrap();
    drop(database);
    refused(&path, |error| matches!(error, OpenError::NewerFormat { found: 2, supported: 1, .. }));
}

#[test]
fn what_is_no_store_is_left_alone() {
    let cases = [("empty", vec![]), ("text", b"kind: Gadget\n".repeat(1000)), ("zeros", vec![0; 1 << 20])];
    for (name, bytes) in cases {
        let (_folder, path) = place();
        std::fs::write(&path, bytes).unwrap();
        refused(&path, |error| {
            assert!(matches!(error, OpenError::Corrupt { .. }), "{name}: {error:?}");
            true
        });
    }
}

#[test]
fn a_foreign_database_is_left_alone() {
    let (_folder, path) = place();
    drop(Database::create(&path).unwrap());
    refused(&path, |error| matches!(error, OpenError::Corrupt { .. }));
}

#[test]
fn a_place_that_cannot_hold_a_store_is_an_error_of_io() {
    let (folder, path) = place();
    let missing = folder.path().join("no/such/folder/store");
    std::fs::write(&path, "a file, not a folder").unwrap();
    for place in [missing, path.join("store"), folder.path().to_owned()] {
        let refused = Store::open(&place, &StoreOptions::default()).unwrap_err();
        assert!(matches!(refused, OpenError::Io { .. }), "{}: {refused:?}", place.display());
    }
}

#[test]
fn a_store_that_was_not_finished_is_made_anew() {
    let (folder, path) = place();
    std::fs::write(folder.path().join("store.new"), "half a store").unwrap();
    assert_eq!(open(&path).version(), Version::FIRST);
    assert!(!folder.path().join("store.new").exists());
}

/// Flips bytes of a store that was closed and of one that was killed. Either
/// it is refused, untouched, or it serves exactly what was written.
#[tokio::test]
async fn a_flipped_byte_is_never_served() {
    let (_folder, path) = place();
    let mark = path.with_file_name("store.mark");
    let truth = filled(&path).await;
    let closed = (std::fs::read(&path).unwrap(), std::fs::read(&mark).unwrap(), truth);
    let store = open(&path);
    create(&store, "newest", 7).await.unwrap();
    let killed = (std::fs::read(&path).unwrap(), std::fs::read(&mark).unwrap(), contents(&store));
    drop(store);

    let mut chance = Chance(42);
    let mut refusals = 0;
    for (image, acknowledged, truth) in [&closed, &killed] {
        std::fs::write(&mark, acknowledged).unwrap();
        let used: Vec<usize> = (0..image.len()).filter(|at| image[*at] != 0).collect();
        for round in 0..150 {
            let at = match round % 3 {
                0 => chance.below(image.len() as u64) as usize,
                1 => chance.below(320) as usize,
                _ => used[chance.below(used.len() as u64) as usize],
            };
            let mut damaged = image.clone();
            damaged[at] ^= 1 << chance.below(8);
            refusals += usize::from(refused_or_true(&path, &damaged, truth, &format!("byte {at}")));
        }
    }
    assert!(refusals > 50, "the flips must hit something: {refusals}");
}

#[tokio::test]
async fn a_cut_file_is_never_served() {
    let (_folder, path) = place();
    let truth = filled(&path).await;
    let whole = std::fs::read(&path).unwrap();
    let mut chance = Chance(7);
    for _ in 0..40 {
        let length = chance.below(whole.len() as u64) as usize;
        refused_or_true(&path, &whole[..length], &truth, &format!("cut to {length}"));
    }
}

#[tokio::test]
async fn an_older_copy_is_not_taken_for_the_store() {
    let (_folder, path) = place();
    filled(&path).await;
    let older = std::fs::read(&path).unwrap();
    let store = open(&path);
    create(&store, "newest", 7).await.unwrap();
    drop(store);
    std::fs::write(&path, older).unwrap();
    refused(&path, |error| matches!(error, OpenError::Lost { .. }));
    std::fs::remove_file(path.with_file_name("store.mark")).unwrap();
    assert!(open(&path).get(&key("newest")).is_none(), "the loss was accepted");
}

fn refused(path: &Path, as_expected: impl Fn(&OpenError) -> bool) {
    let before = std::fs::read(path).unwrap();
    let error = Store::open(path, &StoreOptions::default()).unwrap_err();
    assert!(as_expected(&error), "{error:?}");
    assert!(std::fs::read(path).unwrap() == before, "the file was changed");
}

/// Whether it was refused.
fn refused_or_true(path: &Path, image: &[u8], truth: &[(String, u64)], what: &str) -> bool {
    std::fs::write(path, image).unwrap();
    match Store::open(path, &StoreOptions::default()) {
        Ok(store) => {
            assert_eq!(contents(&store), truth, "{what}");
            false
        }
        Err(OpenError::Corrupt { .. } | OpenError::Lost { .. } | OpenError::NewerFormat { .. }) => {
            assert!(std::fs::read(path).unwrap() == image, "{what}: the file was changed");
            true
        }
        Err(other) => panic!("{what}: {other:?}"),
    }
}
