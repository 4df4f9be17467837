//! Both ways of committing, on a file.

mod forgetful;

use std::sync::Arc;

use super::*;
use crate::record::{RowKey, Table};
use crate::store::{Batch, Op, Options, Place, Url, open};

const TTL: Duration = Duration::from_secs(60);
const LAYOUTS: [Layout; 2] = [Layout::Dragonflow, Layout::Generation];

fn rows(rows: &[(&str, &str, &str)]) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for (table, id, value) in rows {
        snapshot.put(&Table::new(table), RowKey::new("t", id), Bytes::copy_from_slice(value.as_bytes()));
    }
    snapshot
}

fn old() -> Snapshot {
    rows(&[("lport", "a", "1"), ("lport", "b", "2"), ("gone", "x", "9"), ("unique_key", "lport", "17")])
}

fn new() -> Snapshot {
    rows(&[
        ("lport", "a", "1"),
        ("lport", "b", "changed"),
        ("fresh", "y", "8"),
        ("unique_key", "lport", "17"),
    ])
}

struct Home {
    store: Arc<dyn Store>,
    fence: Fence,
    _folder: tempfile::TempDir,
}

impl Home {
    async fn holding(layout: Layout, rows: &Snapshot) -> Home {
        let folder = tempfile::tempdir().unwrap();
        let url = Url::Embedded { path: folder.path().join("db") };
        let store = open(&url, layout, &Options::default()).await.unwrap();
        let fence = store.lock("test", TTL).await.unwrap();
        let place = Home { store, fence, _folder: folder };
        place.apply(rows).await.unwrap();
        place.session().finalize().await.unwrap();
        place
    }

    fn session(&self) -> Session<'_> {
        Session::new(&*self.store, &self.fence, &|_| {})
    }

    async fn apply(&self, after: &Snapshot) -> Result<Applied, CommitError> {
        let taken = snapshot(&*self.store).await?;
        self.session().apply(&taken, after, RunNote::default()).await
    }

    async fn rows(&self) -> Snapshot {
        snapshot(&*self.store).await.unwrap().snapshot
    }

    /// A write by somebody else, as far as the store can tell.
    async fn scribble(&self, table: &str, id: &str) {
        let (_, space) = live(&*self.store).await.unwrap();
        let (table, key, value) = (Table::new(table), RowKey::new("t", id), Bytes::from("scribble"));
        let place = Place::Row { space, table: &table, key: &key };
        let batch = Batch { guards: vec![], ops: vec![Op::Put { place, value: &value }] };
        self.store.commit(&self.fence, &batch).await.unwrap();
    }
}

#[tokio::test]
async fn applies_rolls_back_and_finalizes() {
    for layout in LAYOUTS {
        let place = Home::holding(layout, &old()).await;
        let applied = place.apply(&new()).await.unwrap();
        assert_eq!(place.rows().await, new());
        assert!(matches!(state(&*place.store).await.unwrap(), State::Applied(_)));
        assert_eq!(place.session().rollback().await.unwrap(), applied.run);
        assert_eq!(place.rows().await, old(), "{layout:?}");

        let again = place.apply(&new()).await.unwrap();
        assert_eq!(again.run, applied.run.next());
        place.session().finalize().await.unwrap();
        assert_eq!(place.rows().await, new());
        let refused = place.session().rollback().await;
        assert!(matches!(refused, Err(CommitError::NothingTo { .. })), "{layout:?}: {refused:?}");
        for space in [Space::Journal(again.run), Space::Undo(again.run), Space::Seal(again.run)] {
            let (left, _) = store::collect(&*place.store, space, Reading::Once).await.unwrap();
            assert!(left.is_empty(), "{layout:?}: {space}");
        }
    }
}

#[tokio::test]
async fn a_second_run_waits_for_the_first_to_be_final() {
    for layout in LAYOUTS {
        let place = Home::holding(layout, &old()).await;
        place.apply(&new()).await.unwrap();
        assert!(matches!(place.apply(&old()).await, Err(CommitError::StillOpen { .. })), "{layout:?}");
        assert_eq!(place.rows().await, new());
    }
}

#[tokio::test]
async fn a_writer_that_did_not_stop_is_named_and_nothing_changes() {
    for layout in LAYOUTS {
        let place = Home::holding(layout, &old()).await;
        let taken = snapshot(&*place.store).await.unwrap();
        place.scribble("lport", "c").await;
        let error = place.session().apply(&taken, &new(), RunNote::default()).await.unwrap_err();
        assert_eq!(error.to_string(), "a writer did not stop: lport c@t", "{layout:?}");
        let mut expected = old();
        expected.put(&Table::new("lport"), RowKey::new("t", "c"), Bytes::from("scribble"));
        assert_eq!(place.rows().await, expected);
        assert!(matches!(state(&*place.store).await.unwrap(), State::Settled(_)), "nothing is left to do");
    }
}

/// Staging may be over long before the backup is: the old rows stay live until it is there, and for good if it fails.
#[tokio::test]
async fn nothing_becomes_live_before_the_backup_is_there() {
    for layout in LAYOUTS {
        let place = Home::holding(layout, &old()).await;
        let session = place.session();
        let taken = snapshot(&*place.store).await.unwrap();
        let (done, wait) = tokio::sync::oneshot::channel();
        let backup = async { wait.await.expect("it is told") };
        let look = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            assert_eq!(place.rows().await, old(), "{layout:?}");
            done.send(Ok(())).unwrap();
        };
        let new = new();
        let apply = session.apply_with_backup(&taken, &new, RunNote::default(), backup);
        let (applied, ()) = tokio::join!(apply, look);
        applied.unwrap();
        assert_eq!(place.rows().await, new, "{layout:?}");
        session.rollback().await.unwrap();

        let taken = snapshot(&*place.store).await.unwrap();
        let failed = async { Err(BackupError::NotABackup { path: "full".into() }) };
        let error = session.apply_with_backup(&taken, &new, RunNote::default(), failed).await.unwrap_err();
        assert!(matches!(error, CommitError::Backup(_)), "{layout:?}: {error}");
        assert_eq!(place.rows().await, old(), "{layout:?}");
        assert!(matches!(state(&*place.store).await.unwrap(), State::Settled(_)), "nothing is left to do");
    }
}

#[tokio::test]
async fn rolling_back_over_newer_writes_is_refused() {
    for layout in LAYOUTS {
        let place = Home::holding(layout, &old()).await;
        place.apply(&new()).await.unwrap();
        place.scribble("lport", "a").await;
        let error = place.session().rollback().await.unwrap_err();
        assert!(error.to_string().contains("lport a@t"), "{layout:?}: {error}");
        assert!(matches!(state(&*place.store).await.unwrap(), State::Applied(_)));
    }
}

/// The first service that is started says so in its row; that is no reason to stay.
#[tokio::test]
async fn announcements_of_services_do_not_close_the_way_back() {
    for layout in LAYOUTS {
        let place = Home::holding(layout, &old()).await;
        place.apply(&new()).await.unwrap();
        place.scribble("service", "x").await;
        place.session().rollback().await.unwrap();
        let mut rows = place.rows().await;
        rows.remove(&Table::new("service"), &RowKey::new("t", "x"));
        assert_eq!(rows, old(), "{layout:?}");
    }
}

#[tokio::test]
async fn what_was_written_since_is_given_up_where_that_is_asked_for() {
    for (layout, stays) in [(Layout::Dragonflow, true), (Layout::Generation, false)] {
        let place = Home::holding(layout, &old()).await;
        place.apply(&new()).await.unwrap();
        place.scribble("lport", "b").await;
        place.scribble("lport", "c").await;
        let told = std::sync::Mutex::new(vec![]);
        let tell = |rows: &Changed| told.lock().unwrap().push(rows.to_string());
        place.session().rollback_over(&tell).await.unwrap();
        assert_eq!(*told.lock().unwrap(), ["lport b@t, lport c@t"], "{layout:?}");
        let mut expected = old();
        if stays {
            expected.put(&Table::new("lport"), RowKey::new("t", "c"), Bytes::from("scribble"));
        }
        assert_eq!(place.rows().await, expected, "{layout:?}");
        assert!(matches!(state(&*place.store).await.unwrap(), State::Settled(_)));
    }
}

#[tokio::test]
async fn a_lost_lock_stops_everything() {
    for layout in LAYOUTS {
        let place = Home::holding(layout, &old()).await;
        let taken = snapshot(&*place.store).await.unwrap();
        place.store.unlock(&place.fence).await.unwrap();
        let other = place.store.lock("other", TTL).await.unwrap();
        let error = place.session().apply(&taken, &new(), RunNote::default()).await.unwrap_err();
        assert!(matches!(error, CommitError::Store(StoreError::FencedOut)), "{layout:?}: {error}");
        assert_eq!(place.rows().await, old());
        assert_ne!(other, place.fence);
    }
}
