//! Every command of the operator, on the embedded store in both layouts.

mod cloud;
mod models;

use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Mutex,
    time::Duration,
};

use bytes::Bytes;
use jiff::Timestamp;
use tempfile::TempDir;

use super::*;
use crate::{
    backup,
    cloud::OurDatabase,
    migration::{self, Native},
    northbound::Verdict,
    record::{RowKey, Snapshot, Table},
    store::{self, Layout},
    worker::Worker,
};

static RENAME: Native = Native {
    id: "test.rename",
    release: "queens",
    description: "chassis becomes host",
    proposed_at: "2017-07-19T12:00:00Z",
    after: &[],
    replaces: &[],
    tables: &["lport"],
    max_removed: None,
    revision: 1,
    fixtures: None,
    migration: |rows| {
        rows.edit_each(&Table::new("lport"), |_, port| {
            if let Some(host) = port.remove("chassis") {
                port.insert("host".into(), host);
            }
            Verdict::Keep
        })?;
        Ok(())
    },
};

static DROP: Native = Native {
    id: "test.drop",
    description: "old routers go",
    proposed_at: "2017-08-19T12:00:00Z",
    tables: &["lrouter"],
    migration: |rows| {
        rows.edit_each(&Table::new("lrouter"), |_, _| Verdict::Remove)?;
        Ok(())
    },
    ..RENAME
};

/// The same id as `RENAME`, with another content.
static EDITED: Native = Native { revision: 2, ..RENAME };

static FAILS: Native = Native {
    id: "test.fails",
    proposed_at: "2018-01-01T00:00:00Z",
    migration: |rows| {
        rows.edit_each(&Table::new("lport"), |_, _| Verdict::Remove)?;
        Err("changed its mind".into())
    },
    ..RENAME
};

static EARLY: Native = Native { id: "test.early", proposed_at: "2016-01-01T00:00:00Z", ..RENAME };

const BOTH: &[&Native] = &[&RENAME, &DROP];

struct Sandbox {
    folder: TempDir,
    layout: Layout,
    accept: Mutex<Accept>,
    models: Mutex<Option<PathBuf>>,
}

impl Sandbox {
    /// A database with ports and routers in it.
    async fn new(layout: Layout) -> Sandbox {
        let sandbox = Sandbox {
            folder: tempfile::tempdir().unwrap(),
            layout,
            accept: Mutex::default(),
            models: Mutex::default(),
        };
        sandbox.seed(&rows()).await;
        sandbox
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    async fn seed(&self, rows: &Snapshot) {
        let database = self.open(&[]).await;
        let path = self.path(&format!("seed-{}", Timestamp::now().as_nanosecond()));
        let header = backup::Header::new(&database.url, "test", Timestamp::now());
        backup::write(&path, rows, header).unwrap();
        database.restore(&path, &|_| {}).await.unwrap();
        database.finalize(&|_| {}).await.unwrap();
    }

    fn tool(compiled_in: &[&'static Native]) -> Tool {
        Tool { version: "test", compiled_in: compiled_in.to_vec(), worker: Worker::new("/bin/false", &[]) }
    }

    fn settings(&self) -> Settings {
        let mut settings = Settings::of(format!("embedded:{}", self.path("nb.redb").display()));
        settings.layout = self.layout;
        settings.create = true;
        settings.backups = self.path("backups");
        settings.watch_seconds = 0;
        settings.models = self.models.lock().unwrap().clone();
        settings.accept = *self.accept.lock().unwrap();
        settings
    }

    async fn open(&self, compiled_in: &[&'static Native]) -> Database {
        Database::open(Sandbox::tool(compiled_in), self.settings()).await.unwrap()
    }

    async fn rows(&self) -> Snapshot {
        self.open(&[]).await.take(&|_| {}).await.unwrap().taken.snapshot
    }

    async fn apply(&self, compiled_in: &[&'static Native]) -> Result<Changed, RunError> {
        self.open(compiled_in).await.apply(None, &|_| {}).await
    }

    async fn refused(&self, compiled_in: &[&'static Native]) -> String {
        let before = self.rows().await;
        let error = self.apply(compiled_in).await.unwrap_err();
        assert!(error.is_refusal(), "{error}");
        assert_eq!(self.rows().await, before, "{error}");
        error.to_string()
    }
}

fn rows() -> Snapshot {
    let mut rows = Snapshot::default();
    for number in 0..50 {
        let value = format!(r#"{{"id":"p{number}","chassis":"c{}"}}"#, number % 3);
        rows.put(&Table::new("lport"), RowKey::new("t", &format!("p{number}")), value.into());
    }
    rows.put(&Table::new("lrouter"), RowKey::new("t", "r"), Bytes::from_static(br#"{"id":"r"}"#));
    rows.put(&Table::new("unique_key"), RowKey::untopical("lport"), Bytes::from_static(b"50"));
    rows
}

const LAYOUTS: [Layout; 2] = [Layout::Dragonflow, Layout::Generation];

#[tokio::test(flavor = "multi_thread")]
async fn upgrade_roll_back_upgrade_again_finalize() {
    for layout in LAYOUTS {
        let sandbox = Sandbox::new(layout).await;
        let before = sandbox.rows().await;
        assert_eq!(before, rows());

        let plan = sandbox.open(BOTH).await.plan(&|_| {}).await.unwrap();
        assert_eq!(
            plan.migrations.iter().map(|m| m.id.as_str()).collect::<Vec<_>>(),
            ["test.rename", "test.drop"]
        );
        assert_eq!(plan.tables[&Table::new("lport")].changed, 50);
        assert_eq!(plan.destructive.len(), 2, "{:?}", plan.destructive);
        assert_eq!(plan.refused_because, Vec::<String>::new());
        assert_eq!(sandbox.rows().await, before, "a plan changes nothing");

        let applied = sandbox.apply(BOTH).await.unwrap();
        let Changed::Applied { migrations, backup, .. } = applied else { panic!("{applied:?}") };
        assert_eq!(migrations.len(), 2);
        let backup = backup.unwrap();
        assert_eq!(std::fs::metadata(&backup).unwrap().permissions().mode() & 0o777, 0o600);
        let after = sandbox.rows().await;
        assert_eq!(after.rows(&Table::new("lrouter")).count(), 0);
        assert!(
            after.rows(&Table::new("lport")).all(|(_, value)| value.windows(4).any(|part| part == b"host"))
        );
        let history = sandbox.open(BOTH).await.history(&|_| {}).await.unwrap();
        assert_eq!(history.len(), 2);

        assert!(sandbox.open(BOTH).await.status(&|_| {}).await.unwrap().last_run.unwrap().can_roll_back);
        sandbox.open(BOTH).await.rollback(&|_| {}).await.unwrap();
        assert_eq!(sandbox.rows().await, before, "rolled back to the byte");

        sandbox.apply(BOTH).await.unwrap();
        sandbox.open(BOTH).await.finalize(&|_| {}).await.unwrap();
        let again = sandbox.apply(BOTH).await.unwrap();
        assert!(matches!(again, Changed::Nothing { applied: 2 }), "{again:?}");
        let late = sandbox.open(BOTH).await.rollback(&|_| {}).await.unwrap_err();
        assert!(late.is_refusal(), "{late}");

        sandbox.open(BOTH).await.restore(&backup, &|_| {}).await.unwrap();
        assert_eq!(sandbox.rows().await, before, "restored to the byte");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_migration_changes_nothing() {
    for layout in LAYOUTS {
        let sandbox = Sandbox::new(layout).await;
        let error = sandbox.apply(&[&RENAME, &FAILS]).await.unwrap_err();
        assert!(error.to_string().contains("test.fails"), "{error}");
        assert_eq!(sandbox.rows().await, rows());
        assert_eq!(sandbox.open(&[]).await.history(&|_| {}).await.unwrap(), []);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_in_order_is_refused_with_the_flag_that_allows_it() {
    let sandbox = Sandbox::new(Layout::Generation).await;
    sandbox.apply(&[&RENAME]).await.unwrap();
    let open = sandbox.refused(BOTH).await;
    assert!(open.contains("neither final nor rolled back"), "{open}");
    sandbox.open(&[]).await.finalize(&|_| {}).await.unwrap();

    let edited = sandbox.refused(&[&EDITED, &DROP]).await;
    assert!(edited.contains("--allow-edited") && edited.contains("-compiled in, revision 1"), "{edited}");
    let early = sandbox.refused(&[&RENAME, &EARLY]).await;
    assert!(early.contains("--allow-out-of-order"), "{early}");
    let newer = sandbox.refused(&[&DROP]).await;
    assert!(newer.contains("--allow-newer-database"), "{newer}");
    assert!(newer.contains("\n-compiled in, revision 1"), "its text is shown: {newer}");

    *sandbox.accept.lock().unwrap() = Accept { edited: true, out_of_order: true, ..Accept::default() };
    sandbox.apply(&[&EDITED, &EARLY, &DROP]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_file_is_private_and_binding() {
    let sandbox = Sandbox::new(Layout::Generation).await;
    let path = sandbox.path("plan.json");
    sandbox.open(&[&DROP]).await.plan(&|_| {}).await.unwrap().write(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);

    let other = sandbox.open(BOTH).await.apply(Some(&path), &|_| {}).await.unwrap_err();
    assert!(other.to_string().contains("other migrations"), "{other}");
    let mut more = rows();
    more.put(&Table::new("lrouter"), RowKey::new("t", "r2"), Bytes::from_static(br#"{"id":"r2"}"#));
    sandbox.seed(&more).await;
    let more = sandbox.open(&[&DROP]).await.apply(Some(&path), &|_| {}).await.unwrap_err();
    assert!(more.to_string().contains("lrouter: 2 rows would be removed, 1 were planned"), "{more}");
    let elsewhere = Sandbox::new(Layout::Generation).await;
    let other = elsewhere.open(&[&DROP]).await.apply(Some(&path), &|_| {}).await.unwrap_err();
    assert!(other.to_string().contains("it was made for embedded:"), "{other}");
    sandbox.seed(&rows()).await;
    sandbox.open(&[&DROP]).await.apply(Some(&path), &|_| {}).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wrong_layout_is_refused_by_every_command() {
    for (made, other, named) in [
        (Layout::Dragonflow, Layout::Generation, "--layout dragonflow"),
        (Layout::Generation, Layout::Dragonflow, "--layout generation"),
    ] {
        let sandbox = Sandbox::new(made).await;
        let settings = Settings { layout: other, ..sandbox.settings() };
        let database = Database::open(Sandbox::tool(BOTH), settings).await.unwrap();
        let copy = sandbox.path("copy.backup");
        let errors = [
            database.status(&|_| {}).await.map(drop).unwrap_err(),
            database.check(&|_| {}).await.map(drop).unwrap_err(),
            database.plan(&|_| {}).await.map(drop).unwrap_err(),
            database.apply(None, &|_| {}).await.map(drop).unwrap_err(),
            database.backup(&copy, &|_| {}).await.map(drop).unwrap_err(),
            database.baseline(None, &|_| {}).await.map(drop).unwrap_err(),
        ];
        for error in errors {
            assert!(error.is_refusal() && error.to_string().contains(named), "{made:?}: {error}");
        }
        assert!(!copy.exists());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_says_when_it_was() {
    let sandbox = Sandbox::new(Layout::Generation).await;
    let earlier = Timestamp::now();
    sandbox.apply(BOTH).await.unwrap();
    let later = Timestamp::now();
    let log = sandbox.open(BOTH).await.history(&|_| {}).await.unwrap();
    assert_eq!(log.len(), 2);
    // As other tools find it, by the names of the fields.
    let rows = sandbox.rows().await;
    let row = rows.get(&Table::new("schemamigrationlog"), &RowKey::untopical("test.rename")).unwrap();
    let row: serde_json::Value = serde_json::from_slice(row).unwrap();
    let at_hand = migration::load(&[], BOTH).unwrap();
    let checksum = at_hand.iter().find(|of| of.header.id == "test.rename").unwrap().checksum.to_string();
    #[rustfmt::skip]
    let expected = [
        ("id", "test.rename"), ("release", "queens"), ("description", "chassis becomes host"),
        ("proposed_at", "2017-07-19T12:00:00Z"), ("checksum", checksum.as_str()), ("tool_version", "test"),
    ];
    for (name, value) in expected {
        assert_eq!(row[name], value, "{name}: {row:#}");
    }
    assert!(log.iter().all(|entry| earlier <= entry.applied_at && entry.applied_at <= later), "{log:?}");
}

/// What a neighbour keeps in the same etcd or Redis looks like rows of one table more.
#[tokio::test(flavor = "multi_thread")]
async fn a_restore_asks_before_it_removes_tables_of_somebody_else() {
    let sandbox = Sandbox::new(Layout::Dragonflow).await;
    let path = sandbox.path("copy.backup");
    sandbox.open(&[]).await.backup(&path, &|_| {}).await.unwrap();
    let mut more = rows();
    more.put(&Table::new("registry"), RowKey::untopical("pods/x"), Bytes::from_static(b"{}"));
    sandbox.seed(&more).await;
    let refused = sandbox.open(&[]).await.restore(&path, &|_| {}).await.unwrap_err();
    assert!(refused.is_refusal() && refused.to_string().contains("registry (to remove"), "{refused}");
    assert_eq!(sandbox.rows().await, more);
    sandbox.accept.lock().unwrap().removal = true;
    sandbox.open(&[]).await.restore(&path, &|_| {}).await.unwrap();
    assert_eq!(sandbox.rows().await, rows());
}

/// Let pass once, an edit is in the log; the next one is noticed again.
#[tokio::test(flavor = "multi_thread")]
async fn an_edit_that_was_let_pass_is_taken_into_the_log() {
    static AGAIN: Native = Native { revision: 3, ..RENAME };
    let sandbox = Sandbox::new(Layout::Generation).await;
    sandbox.apply(&[&RENAME]).await.unwrap();
    sandbox.open(&[]).await.finalize(&|_| {}).await.unwrap();
    assert!(sandbox.refused(&[&EDITED]).await.contains("was changed after it was applied"));
    sandbox.accept.lock().unwrap().edited = true;
    let applied = sandbox.apply(&[&EDITED]).await.unwrap();
    let Changed::Applied { automatic, migrations, .. } = applied else { panic!("{applied:?}") };
    assert_eq!(
        (automatic.as_slice(), migrations.len()),
        (&["the log takes over today's text of test.rename".to_owned()][..], 0)
    );
    sandbox.open(&[]).await.finalize(&|_| {}).await.unwrap();
    sandbox.accept.lock().unwrap().edited = false;
    assert!(matches!(sandbox.apply(&[&EDITED]).await.unwrap(), Changed::Nothing { .. }));
    assert!(sandbox.open(&[]).await.history(&|_| {}).await.unwrap()[0].edit_accepted_at.is_some());
    assert!(sandbox.refused(&[&AGAIN]).await.contains("was changed after it was applied"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_baseline_marks_without_running() {
    for layout in LAYOUTS {
        let sandbox = Sandbox::new(layout).await;
        let marked = sandbox.open(BOTH).await.baseline(Some("test.rename"), &|_| {}).await.unwrap();
        assert!(matches!(marked, Changed::Baselined { migrations } if migrations == ["test.rename"]));
        let ports =
            |rows: &Snapshot| rows.rows(&Table::new("lport")).map(|(_, v)| v.clone()).collect::<Vec<_>>();
        assert_eq!(ports(&sandbox.rows().await), ports(&rows()));
        let pending = sandbox.open(BOTH).await.status(&|_| {}).await.unwrap().pending;
        assert_eq!(pending.iter().map(|m| m.id.as_str()).collect::<Vec<_>>(), ["test.drop"]);
        let again = sandbox.open(BOTH).await.baseline(Some("test.rename"), &|_| {}).await.unwrap_err();
        assert!(matches!(again, RunError::AlreadyApplied { .. }), "{again}");
        let log = sandbox.open(BOTH).await.history(&|_| {}).await.unwrap();
        assert!(log[0].marked, "the log tells that it never ran");
        let backups = std::fs::read_dir(sandbox.path("backups")).unwrap().count();
        assert_eq!(backups, 2, "one of the seed, one of the rows before the mark");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_backup_is_not_restored() {
    let sandbox = Sandbox::new(Layout::Generation).await;
    let path = sandbox.path("copy.backup");
    sandbox.open(&[]).await.backup(&path, &|_| {}).await.unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let error = sandbox.open(&[]).await.restore(Path::new(&path), &|_| {}).await.unwrap_err();
    assert!(matches!(error, RunError::Backup(_)), "{error}");
    assert_eq!(sandbox.rows().await, rows());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mistyped_path_makes_no_database() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nb.redb");
    let tool = Tool { version: "test", compiled_in: vec![], worker: Worker::new("/bin/false", &[]) };
    let opened = Database::open(tool, Settings::of(format!("embedded:{}", path.display()))).await;
    assert!(matches!(opened, Err(RunError::Settings(SettingsError::Absent { .. }))));
    assert!(!path.exists());
}

/// Writes the phase of the last run, as a run under way would.
async fn stand_at(database: &Database, phase: &str, fence: &store::Fence) {
    let raw = database.store.note(store::Note::Run).await.unwrap().unwrap();
    let mut record: serde_json::Value = serde_json::from_slice(&raw).unwrap();
    record["phase"] = phase.into();
    let value = Bytes::from(record.to_string());
    let put = store::Op::Put { place: store::Place::Note(store::Note::Run), value: &value };
    let batch = store::Batch { ops: vec![put], ..store::Batch::default() };
    database.store.commit(fence, &batch).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn status_tells_of_a_run_whose_lock_is_held() {
    for (layout, phase, readable) in
        [(Layout::Generation, "staging", true), (Layout::Dragonflow, "committed", false)]
    {
        let sandbox = Sandbox::new(layout).await;
        let database = sandbox.open(BOTH).await;
        let held = store::hold(&database.store, "somebody", Duration::from_secs(60)).await.unwrap();
        stand_at(&database, phase, held.fence()).await;
        let status = database.status(&|_| {}).await.unwrap();
        assert_eq!(status.locked_by.as_deref(), Some("somebody"));
        assert_eq!(status.last_run.unwrap().phase, phase);
        assert_eq!((status.rows.is_some(), status.pending.len()), (readable, if readable { 2 } else { 0 }));
        let busy = database.apply(None, &|_| {}).await.unwrap_err();
        assert!(busy.is_refusal(), "{busy}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_is_given_up_frees_its_lock_and_says_where_it_stands() {
    let sandbox = Sandbox::new(Layout::Generation).await;
    let database = sandbox.open(BOTH).await;
    assert_eq!(database.handle().give_up().await.unwrap(), GivenUp::Untouched);
    let quiet = |_: Event| {};
    let work = database.work(&quiet).await.unwrap();
    assert_eq!(database.handle().give_up().await.unwrap(), GivenUp::Untouched);
    let next = store::hold(&database.store, "next", Duration::from_secs(60)).await.unwrap();
    next.release(database.store.as_ref()).await.unwrap();
    drop(work);
}

/// The answer may be on its way to the operator when he gives up: what was done was done.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_is_given_up_at_its_end_tells_what_it_did() {
    for layout in LAYOUTS {
        let sandbox = Sandbox::new(layout).await;
        let given_up = async |database: Database| database.handle().give_up().await.unwrap();
        let database = sandbox.open(BOTH).await;
        database.apply(None, &|_| {}).await.unwrap();
        let run = match given_up(database).await {
            GivenUp::Live { run } => run,
            other => panic!("{layout:?}: {other:?}"),
        };
        let database = sandbox.open(BOTH).await;
        database.status(&|_| {}).await.unwrap();
        assert_eq!(given_up(database).await, GivenUp::Untouched, "{layout:?}");
        let database = sandbox.open(BOTH).await;
        database.rollback(&|_| {}).await.unwrap();
        assert_eq!(given_up(database).await, GivenUp::Over { run, phase: "rolled back" }, "{layout:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_applied_migration_that_is_missing_is_shown_as_a_difference() {
    const OTHERS: &[&Native] = &[&FAILS];
    let sandbox = Sandbox::new(Layout::Generation).await;
    sandbox.apply(BOTH).await.unwrap();
    let drift = async |at_hand| sandbox.open(at_hand).await.status(&|_| {}).await.unwrap().drift;
    assert_eq!(drift(BOTH).await, Vec::<String>::new());

    let shown = drift(OTHERS).await;
    assert_eq!(shown.len(), 2, "{shown:?}");
    for (shown, id) in shown.iter().zip(["test.rename", "test.drop"]) {
        let told = format!("{id} of release queens is applied, but not among the migrations at hand:\n");
        assert!(shown.starts_with(&told), "{shown}");
        assert!(
            shown[told.len()..].lines().any(|line| line.starts_with('-')),
            "no line is shown as gone: {shown}"
        );
    }
    let nothing_at_hand = "applied, but not among the migrations at hand: test.rename, test.drop";
    assert_eq!(drift(&[]).await, [nothing_at_hand]);

    // Whoever is refused for it is shown the same.
    sandbox.open(&[]).await.finalize(&|_| {}).await.unwrap();
    let planned = sandbox.open(OTHERS).await.plan(&|_| {}).await.unwrap_err().to_string();
    for refused in [planned, sandbox.refused(OTHERS).await] {
        assert!(shown.iter().all(|shown| refused.contains(shown)), "{refused}");
    }
    assert!(sandbox.refused(&[]).await.contains(nothing_at_hand));
}
