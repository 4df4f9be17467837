//! Random histories of a schema: whether migrations run in one go or one at a
//! time, on one worker or several, in memory or on a database, the bytes are the
//! same; and rolling back gives those from before.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use midflight_migrate::backup;
use midflight_migrate::migration::{Allowed, Context, Migration, Native, load, log, pending, run};
use midflight_migrate::northbound::Verdict;
use midflight_migrate::record::{RowKey, Snapshot, Table};
use midflight_migrate::run::{Database, Settings, Tool};
use midflight_migrate::store::Layout;
use midflight_migrate::worker::Worker;
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// One change of the schema of `thing`.
#[derive(Debug, Clone)]
enum Edit {
    Rename(u8, u8),
    Drop(u8),
    Default(u8, i32),
    Wrap(u8),
    RemoveWhere(u8, u8),
    Split(u8),
    Rekey,
}

impl Edit {
    fn filter(&self) -> String {
        match self {
            Edit::Rename(from, to) => {
                format!("if has(\"f{from}\") then .f{from} as $v | del(.f{from}) | .f{to} = $v end")
            }
            Edit::Drop(field) => format!("del(.f{field})"),
            Edit::Default(field, value) => {
                format!("if has(\"f{field}\") then . else .f{field} = {value} end")
            }
            Edit::Wrap(field) => format!("if has(\"f{field}\") then .f{field} |= {{value: .}} end"),
            Edit::RemoveWhere(field, n) => {
                format!("if (.f{field} | type) == \"number\" and .f{field} % 3 == {n} then empty end")
            }
            Edit::Split(field) => format!(
                "(if has(\"f{field}\") then {{id: (.id + \"-\" + $id), v: .f{field}}} | into(\"part\") else empty end), del(.f{field})"
            ),
            Edit::Rekey => "if .id | startswith(\"k\") then . else .id = \"k\" + .id end".to_owned(),
        }
    }
}

fn edit() -> impl Strategy<Value = Edit> {
    let field = || 0..4_u8;
    prop_oneof![
        (field(), field()).prop_map(|(from, to)| Edit::Rename(from, to)),
        field().prop_map(Edit::Drop),
        (field(), any::<i32>()).prop_map(|(field, value)| Edit::Default(field, value)),
        field().prop_map(Edit::Wrap),
        (field(), 0..3_u8).prop_map(|(field, n)| Edit::RemoveWhere(field, n)),
        field().prop_map(Edit::Split),
        Just(Edit::Rekey),
    ]
}

type Thing = (bool, Vec<Option<i16>>);

fn database(things: &[Thing]) -> Snapshot {
    let mut database = Snapshot::default();
    for (n, (topical, fields)) in things.iter().enumerate() {
        let mut object = Map::new();
        object.insert("id".to_owned(), json!(format!("t{n}")));
        for (at, field) in fields.iter().enumerate() {
            if let Some(value) = field {
                object.insert(format!("f{at}"), json!(value));
            }
        }
        let key = RowKey::new(if *topical { "topic" } else { "" }, &format!("t{n}"));
        // Written with spaces, as other tools do: rows that stay must keep them.
        let text = serde_json::to_string_pretty(&Value::Object(object)).unwrap();
        database.put(&Table::new("thing"), key, text.into());
    }
    database
}

/// Each migration in a folder of its own on the search path. Some are older than the one before, and say that they come
/// after it.
///
/// A split may come twice to the same row: then the second run would give the
/// same id again, which is refused. Only the first of each history is kept.
fn history(edits: Vec<(Edit, bool)>) -> (TempDir, Vec<PathBuf>) {
    let home = TempDir::new().unwrap();
    let mut split = false;
    let kept = edits
        .into_iter()
        .filter(|(edit, _)| !matches!(edit, Edit::Split(_)) || !std::mem::replace(&mut split, true));
    let write = |(n, (edit, early)): (usize, (Edit, bool))| {
        let path = home.path().join(format!("p{n}"));
        std::fs::create_dir_all(path.join("m")).unwrap();
        let early = early && n > 0;
        let at = Timestamp::from_second(n as i64 * 10 - if early { 15 } else { 0 }).unwrap();
        let after = if early { format!("'m{}'", n - 1) } else { String::new() };
        let text = format!(
            "id = 'm{n}'\nrelease = 'r'\ndescription = ''\nproposed_at = '{at}'\n\
             after = [{after}]\ntables = ['thing', 'part']\n[jq]\nthing = '''{}'''\n",
            edit.filter()
        );
        std::fs::write(path.join("m/migration.toml"), text).unwrap();
        path
    };
    let paths = kept.enumerate().map(write).collect();
    (home, paths)
}

/// Runs what the log of the database says is pending, `at_a_time` at a time.
fn upgrade(available: &[Migration], database: &mut Snapshot, at_a_time: usize, parallel: usize) {
    let headers: Vec<_> = available.iter().map(|migration| migration.header.clone()).collect();
    let worker = Worker { parallel, ..Worker::new(env!("CARGO_BIN_EXE_migrate-worker"), &[]) };
    let context =
        Context { worker: &worker, tool_version: "1", clock: &|| Timestamp::UNIX_EPOCH, progress: &|_| {} };
    loop {
        let applied: Vec<_> = log::read(database).unwrap().iter().map(log::Entry::applied).collect();
        let order = pending(&headers, &applied, Allowed::default()).unwrap();
        let chosen: Vec<&Migration> = order.into_iter().take(at_a_time).map(|i| &available[i]).collect();
        if chosen.is_empty() {
            return;
        }
        run(&chosen, database, &context).unwrap();
    }
}

static COUNTED: Native = Native {
    id: "native",
    release: "r",
    description: "things count their fields",
    proposed_at: "2018-01-01T00:00:00Z",
    after: &[],
    replaces: &[],
    tables: &["thing"],
    max_removed: None,
    revision: 1,
    fixtures: None,
    migration: |rows| {
        rows.edit_each(&Table::new("thing"), |_, thing| {
            let fields = thing.len();
            thing.insert("fields".into(), fields.into());
            Verdict::Keep
        })?;
        Ok(())
    },
};

const MODELS: &str = "release = 'r'
[table.thing.fields]
id = { type = 'string' }
f0 = { type = 'any' }
f1 = { type = 'any' }
f2 = { type = 'any' }
f3 = { type = 'any' }
fields = { type = 'integer' }
colour = { type = 'string', default = 'red' }
[table.part.fields]
id = { type = 'string' }
v = { type = 'any' }
";

/// A database in a file, as an operator works on it.
struct Operated<'h> {
    home: &'h Path,
    name: &'static str,
    layout: Layout,
}

impl Operated<'_> {
    /// With these migrations at hand, and with the models and the one in Rust where all are.
    async fn open(&self, paths: &[PathBuf], all: bool) -> Database {
        let tool = Tool {
            version: "1",
            compiled_in: if all { vec![&COUNTED] } else { vec![] },
            worker: Worker::new(env!("CARGO_BIN_EXE_migrate-worker"), &[]),
        };
        let models = self.home.join("first.toml");
        std::fs::write(&models, MODELS).unwrap();
        let settings = Settings {
            layout: self.layout,
            create: true,
            no_backup: true,
            paths: paths.to_vec(),
            models: all.then_some(models),
            ..Settings::of(format!("embedded:{}", self.home.join(self.name).display()))
        };
        Database::open(tool, settings).await.unwrap()
    }

    async fn put(&self, rows: &Snapshot) {
        let path = self.home.join(format!("{}.backup", self.name));
        let url = "embedded:any".parse().unwrap();
        backup::write(&path, rows, backup::Header::new(&url, "1", Timestamp::UNIX_EPOCH)).unwrap();
        let database = self.open(&[], false).await;
        database.restore(&path, &|_| {}).await.unwrap();
        database.finalize(&|_| {}).await.unwrap();
    }

    /// All rows but the log's, which say when they were written.
    async fn rows(&self) -> Snapshot {
        let path = self.home.join(format!("{}-{}", self.name, Timestamp::now().as_nanosecond()));
        self.open(&[], false).await.backup(&path, &|_| {}).await.unwrap();
        let (_, mut rows) = backup::read(&path).unwrap();
        rows.take_table(&Table::new("schemamigrationlog"));
        rows
    }
}

/// What became of the rows in one go; checked to be the same step by step, and to go back.
async fn operate(
    home: &Path,
    paths: &[PathBuf],
    layout: Layout,
    before: &Snapshot,
    first: usize,
) -> Snapshot {
    let one = Operated { home, name: "one", layout };
    one.put(before).await;
    one.open(paths, true).await.apply(None, &|_| {}).await.unwrap();
    let after = one.rows().await;
    one.open(paths, true).await.rollback(&|_| {}).await.unwrap();
    assert_eq!(one.rows().await, *before, "{layout:?}: rolled back");
    one.open(paths, true).await.apply(None, &|_| {}).await.unwrap();
    assert_eq!(one.rows().await, after, "{layout:?}: and forth again");

    let steps = Operated { home, name: "steps", layout };
    steps.put(before).await;
    for (paths, all) in [(&paths[..first.min(paths.len())], false), (paths, true)] {
        steps.open(paths, all).await.apply(None, &|_| {}).await.unwrap();
        steps.open(paths, all).await.finalize(&|_| {}).await.unwrap();
    }
    assert_eq!(steps.rows().await, after, "{layout:?}: step by step");
    after
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn one_go_or_step_by_step_gives_the_same_bytes(
        edits in prop::collection::vec((edit(), any::<bool>()), 1..6),
        things in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<Option<i16>>(), 4)), 0..40),
        at_a_time in 1..3_usize,
    ) {
        let (_home, paths) = history(edits);
        let available = load(&paths, &[]).unwrap();
        let before = database(&things);
        let mut at_once = before.clone();
        upgrade(&available, &mut at_once, available.len(), 2);
        let mut in_steps = before.clone();
        upgrade(&available, &mut in_steps, at_a_time, 1);
        prop_assert_eq!(&at_once, &in_steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]
    #[test]
    fn a_database_goes_there_and_back_by_the_byte(
        edits in prop::collection::vec((edit(), any::<bool>()), 1..5),
        things in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<Option<i16>>(), 4)), 1..20),
        first in 1..3_usize,
    ) {
        let (home, paths) = history(edits);
        let before = database(&things);
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let in_place = runtime.block_on(operate(home.path(), &paths, Layout::Dragonflow, &before, first));
        let other = TempDir::new().unwrap();
        let generations = runtime.block_on(operate(other.path(), &paths, Layout::Generation, &before, first));
        prop_assert_eq!(in_place, generations);
    }
}
