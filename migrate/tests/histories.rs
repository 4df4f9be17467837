//! Random histories of a schema: whether migrations run in one go or one at a
//! time, on one worker or several, the bytes are the same; and what changed can
//! be put back.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use jiff::Timestamp;
use midflight_migrate::diff::{Change, changes};
use midflight_migrate::migration::{Allowed, Context, Migration, load, log, pending, run};
use midflight_migrate::record::{RowKey, Snapshot, Table};
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

/// A split may come twice to the same row: then the second run would give the
/// same id again, which is refused. Only the first of each history is kept.
fn history(edits: Vec<Edit>) -> (TempDir, Vec<Migration>) {
    let path = TempDir::new().unwrap();
    let mut split = false;
    let kept = edits
        .into_iter()
        .filter(|edit| !matches!(edit, Edit::Split(_)) || !std::mem::replace(&mut split, true));
    for (n, edit) in kept.enumerate() {
        let folder = path.path().join(format!("m{n}"));
        std::fs::create_dir(&folder).unwrap();
        let at = Timestamp::from_second(n as i64).unwrap();
        let text = format!(
            "id = 'm{n}'\nrelease = 'r'\ndescription = ''\nproposed_at = '{at}'\n\
             tables = ['thing', 'part']\n[jq]\nthing = '''{}'''\n",
            edit.filter()
        );
        std::fs::write(folder.join("migration.toml"), text).unwrap();
    }
    let found = load(&[path.path().to_owned()], &[]).unwrap();
    (path, found)
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

fn put_back(before: &Snapshot, after: &Snapshot) -> Snapshot {
    let mut back = after.clone();
    for (table, key, change) in changes(before, after) {
        match change {
            Change::Added { .. } => {
                back.remove(table, key);
            }
            Change::Changed { before, .. } | Change::Removed { before } => {
                back.put(table, key.clone(), before.clone());
            }
        }
    }
    back
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn one_go_or_step_by_step_gives_the_same_bytes(
        edits in prop::collection::vec(edit(), 1..6),
        things in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<Option<i16>>(), 4)), 0..40),
        at_a_time in 1..3_usize,
    ) {
        let (_path, available) = history(edits);
        let before = database(&things);
        let mut at_once = before.clone();
        upgrade(&available, &mut at_once, available.len(), 2);
        let mut in_steps = before.clone();
        upgrade(&available, &mut in_steps, at_a_time, 1);
        prop_assert_eq!(&at_once, &in_steps);
        prop_assert_eq!(put_back(&before, &at_once), before);
    }
}
