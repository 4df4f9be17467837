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
    refused(&path, |error| matches!(error, OpenError::NewerFormat { found: 3, supported: 2, .. }));
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

/// The files of a store, and what it held.
struct Image {
    store: Vec<u8>,
    beside: Vec<(PathBuf, Vec<u8>)>,
    truth: Vec<(String, u64)>,
}

impl Image {
    fn take(path: &Path, truth: Vec<(String, u64)>) -> Image {
        let beside = ["store.mark", "store.journal"].map(|name| path.with_file_name(name));
        let beside = beside.map(|path| (path.clone(), std::fs::read(&path).unwrap()));
        Image { store: std::fs::read(path).unwrap(), beside: beside.into(), truth }
    }

    /// Puts everything back, and what was changed in its place.
    fn put_back(&self, changed: &Path, bytes: &[u8], path: &Path) {
        std::fs::write(path, &self.store).unwrap();
        for (path, bytes) in &self.beside {
            std::fs::write(path, bytes).unwrap();
        }
        std::fs::write(changed, bytes).unwrap();
    }
}

/// Flips bytes of a store that was closed and of one that was killed. Either
/// it is refused, untouched, or it serves exactly what was written.
#[tokio::test]
async fn a_flipped_byte_is_never_served() {
    let (_folder, path) = place();
    let truth = filled(&path).await;
    let closed = Image::take(&path, truth);
    let store = open(&path);
    for name in ["newest", "of", "all"] {
        create(&store, name, 7).await.unwrap();
    }
    let killed = Image::take(&path, contents(&store));
    drop(store);

    let mut chance = Chance(42);
    let mut refusals = 0;
    for image in [&closed, &killed] {
        let used: Vec<usize> = (0..image.store.len()).filter(|at| image.store[*at] != 0).collect();
        for round in 0..150 {
            let at = match round % 3 {
                0 => chance.below(image.store.len() as u64) as usize,
                1 => chance.below(320) as usize,
                _ => used[chance.below(used.len() as u64) as usize],
            };
            let mut damaged = image.store.clone();
            damaged[at] ^= 1 << chance.below(8);
            image.put_back(&path, &damaged, &path);
            refusals += usize::from(refused_or_true(&path, &image.truth, &format!("byte {at}")));
        }
    }
    assert!(refusals > 50, "the flips must hit something: {refusals}");

    let (journal, bytes) = &killed.beside[1];
    // The first of the three named the journal; its title and the frames of the others have a page each. What lies behind them is of an
    // earlier round.
    let used: Vec<usize> = (0..3 * 4096).filter(|at| bytes[*at] != 0).collect();
    for _ in 0..40 {
        let at = used[chance.below(used.len() as u64) as usize];
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << chance.below(8);
        killed.put_back(journal, &damaged, &path);
        assert!(refused_or_true(&path, &killed.truth, &format!("byte {at} of the journal")), "byte {at}");
    }
}

#[tokio::test]
async fn a_store_that_was_killed_needs_its_journal() {
    let (_folder, path) = place();
    let store = open(&path);
    for index in 0..3 {
        create(&store, &format!("g{index}"), index).await.unwrap();
    }
    let killed = Image::take(&path, contents(&store));
    create(&store, "later", 9).await.unwrap();
    let later = Image::take(&path, contents(&store));
    drop(store);

    let (journal, bytes) = &killed.beside[1];
    killed.put_back(journal, bytes, &path);
    assert!(!refused_or_true(&path, &killed.truth, "as it was"));
    for mark in [true, false] {
        killed.put_back(journal, bytes, &path);
        std::fs::remove_file(journal).unwrap();
        if !mark {
            std::fs::remove_file(&killed.beside[0].0).unwrap();
        }
        refused(&path, |error| error.to_string().contains("its journal is missing"));
    }
    // An older journal beside a newer mark, and one of another store.
    later.put_back(journal, bytes, &path);
    refused(&path, |error| matches!(error, OpenError::Lost { .. }));
    let (_other_folder, other_path) = place();
    let other = open(&other_path);
    for index in 0..4 {
        create(&other, &format!("g{index}"), index).await.unwrap();
    }
    let foreign = Image::take(&other_path, vec![]).beside[1].1.clone();
    drop(other);
    for mark in [true, false] {
        later.put_back(journal, &foreign, &path);
        if !mark {
            std::fs::remove_file(&later.beside[0].0).unwrap();
        }
        refused(&path, |error| error.to_string().contains("the one beside it is not the one it names"));
    }
}

/// It may be all that its own store has of its newest writes.
#[tokio::test]
async fn what_lies_in_the_place_of_a_journal_is_not_written_over() {
    let (_folder, path) = place();
    let truth = filled(&path).await;
    let closed = Image::take(&path, truth);
    let journal = &closed.beside[1].0;
    let (_other_folder, other_path) = place();
    let other = open(&other_path);
    for index in 0..3 {
        create(&other, &format!("g{index}"), index).await.unwrap();
    }
    let foreign = std::fs::read(other_path.with_file_name("store.journal")).unwrap();
    drop(other);

    for (name, bytes) in [("another's", &foreign[..]), ("text", &b"shopping"[..]), ("cut", &foreign[..20])] {
        closed.put_back(journal, bytes, &path);
        refused(&path, |error| matches!(error, OpenError::ForeignJournal { .. }));
        assert!(Offline::open(&path).is_err(), "{name}");
        assert!(std::fs::read(journal).unwrap() == bytes, "{name} was changed");
    }
    // Nothing, and what was never begun.
    for bytes in [&[][..], &[0; 9000]] {
        closed.put_back(journal, bytes, &path);
        let store = open(&path);
        create(&store, "later", 1).await.unwrap();
        assert_eq!(contents(&store).len(), closed.truth.len() + 1);
    }

    // Without a store it tells that there was one.
    for beside in [&closed.beside[0].0, &path] {
        std::fs::remove_file(beside).unwrap();
    }
    let error = Store::open(&path, &StoreOptions::default()).unwrap_err();
    assert!(matches!(&error, OpenError::Missing { witness, .. } if witness == journal), "{error:?}");
    assert!(!path.exists());
}

#[tokio::test]
async fn programs_that_know_of_no_journal_read_what_was_closed_and_nothing_else() {
    let (_folder, path) = place();
    let format = || {
        let copy = path.with_file_name("copy");
        std::fs::copy(&path, &copy).unwrap();
        let meta: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
        let database = Database::open(copy).unwrap();
        let read = redb::ReadableDatabase::begin_read(&database).unwrap();
        let row = read.open_table(meta).unwrap().get("format").unwrap().unwrap();
        u64::from_le_bytes(row.value().try_into().unwrap())
    };
    drop(open(&path));
    assert_eq!(format(), 1);
    let store = open(&path);
    create(&store, "a", 1).await.unwrap();
    create(&store, "b", 1).await.unwrap();
    assert_eq!(format(), FORMAT);
    drop(store);
    assert_eq!(format(), 1);
    let mut offline = Offline::open(&path).unwrap();
    offline.write(vec![Change::Create { key: key("c"), body: body(1) }]).unwrap();
    drop(offline);
    assert_eq!(format(), 1);
    assert_eq!(contents(&open(&path)).len(), 3);
}

#[tokio::test]
async fn a_cut_file_is_never_served() {
    let (_folder, path) = place();
    let truth = filled(&path).await;
    let whole = std::fs::read(&path).unwrap();
    let mut chance = Chance(7);
    for _ in 0..40 {
        let length = chance.below(whole.len() as u64) as usize;
        std::fs::write(&path, &whole[..length]).unwrap();
        refused_or_true(&path, &truth, &format!("cut to {length}"));
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
fn refused_or_true(path: &Path, truth: &[(String, u64)], what: &str) -> bool {
    let image = std::fs::read(path).unwrap();
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
