//! Everything a database holds, key by key, read by a client that shares no code with the commands.

use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, Instant},
};

use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition, TableHandle};
use serde_json::Value;

use crate::{
    cloud::{DRAGONFLOW, GENERATION},
    foreign,
    server::{Program, Server},
};

const PATIENCE: Duration = Duration::from_secs(10);

/// All keys but the notes on runs, the lock and the pointer: those are read into fields.
pub(crate) struct Dump {
    keys: BTreeMap<String, Vec<u8>>,
    /// What the keys of live rows begin with; all others do where it is `None`.
    live: Option<String>,
    /// What the tool's own keys begin with.
    own: &'static str,
    /// Where the last run stands.
    pub(crate) phase: String,
    /// Which generation is live.
    pub(crate) generation: u64,
}

/// A live row: its table, what names it there, and its bytes.
pub(crate) type Live = BTreeMap<(String, String), Vec<u8>>;

impl Dump {
    pub(crate) fn of_server(server: &Server, layout: &str) -> Dump {
        let mut keys = foreign::all(server);
        let (own, meta) = match server.program {
            Program::Etcd => ("/midflight/", "/midflight/meta/"),
            Program::Redis => ("{midflight}:", "{midflight}:meta:"),
        };
        let mut note = |name: &str| keys.remove(&format!("{meta}{name}"));
        let (run, pointer, _lock) = (note("run"), note("pointer"), note("lock"));
        let generation = number(pointer.as_deref());
        let live = (layout == GENERATION).then(|| match server.program {
            Program::Etcd => format!("{own}g/{generation}/"),
            Program::Redis => format!("{own}g/{generation}:"),
        });
        Dump { keys, live, own, phase: phase(run.as_deref()), generation }
    }

    /// Of a file that no process has open.
    pub(crate) fn of_file(path: &Path, layout: &str) -> Dump {
        let database = opened(path);
        let transaction = database.begin_read().unwrap();
        let notes = transaction.open_table(TableDefinition::<&str, &[u8]>::new("notes")).unwrap();
        let note = |name: &str| notes.get(name).unwrap().map(|value| value.value().to_vec());
        let (run, pointer) = (note("run"), note("pointer"));
        let mut keys = BTreeMap::new();
        for table in transaction.list_tables().unwrap() {
            let name = table.name().to_owned();
            if name == "notes" || name == "touched" {
                continue;
            }
            let table = transaction.open_table(TableDefinition::<&[u8], &[u8]>::new(&name)).unwrap();
            for entry in table.iter().unwrap() {
                let (key, value) = entry.unwrap();
                let key = std::str::from_utf8(key.value()).unwrap();
                keys.insert(format!("{name}\0{key}"), value.value().to_vec());
            }
        }
        let generation = number(pointer.as_deref());
        let live = table_of(layout, generation) + "\0";
        Dump { keys, live: Some(live), own: "", phase: phase(run.as_deref()), generation }
    }

    fn is_live(&self, key: &str) -> bool {
        match &self.live {
            Some(live) => key.starts_with(live),
            None => !key.starts_with(self.own),
        }
    }

    /// What readers see.
    pub(crate) fn live(&self) -> Live {
        let rows = self.keys.iter().filter(|(key, _)| self.is_live(key));
        rows.map(|(key, value)| {
            let key = key.strip_prefix(self.live.as_deref().unwrap_or("/")).unwrap_or(key);
            let (table, row) = match key.strip_prefix('{') {
                Some(tagged) => tagged.split_once('.').unwrap(),
                None => key.split_once(['/', '\0']).unwrap(),
            };
            ((table.to_owned(), row.to_owned()), value.clone())
        })
        .collect()
    }

    /// What readers see, without the log: it tells when things were done.
    pub(crate) fn live_but_log(&self) -> Live {
        let mut live = self.live();
        live.retain(|(table, _), _| table != "schemamigrationlog");
        live
    }

    /// What a run that is over must not leave behind.
    pub(crate) fn assert_settled(&self, what: &str) {
        let is_index = |key: &str| key.strip_prefix(self.own) == Some(&format!("g/{}", self.generation));
        let left = self.keys.keys().filter(|key| {
            !self.is_live(key) && key.starts_with(self.own) && !key.split('\0').next().is_some_and(is_index)
        });
        let left: Vec<_> = left.take(5).collect();
        assert!(left.is_empty(), "{what}: left behind: {left:?}");
    }

    pub(crate) fn assert_same(&self, before: &Dump, what: &str) {
        assert_eq!(self.generation, before.generation, "{what}: the live generation");
        let differs = self.keys.iter().find(|(key, value)| before.keys.get(*key) != Some(value));
        let gone = before.keys.keys().find(|key| !self.keys.contains_key(*key));
        assert!(
            differs.is_none() && gone.is_none(),
            "{what}: differs at {:?}, gone is {gone:?}",
            differs.map(|(key, value)| (key, String::from_utf8_lossy(value).into_owned()))
        );
    }
}

/// The table of a file that holds the live rows.
fn table_of(layout: &str, generation: u64) -> String {
    if layout == DRAGONFLOW { "plain".to_owned() } else { format!("generation/{generation}") }
}

/// A worker that a killed process had just begun to start holds its files for a moment, until it becomes its program.
fn opened(path: &Path) -> Database {
    let began = Instant::now();
    loop {
        match Database::open(path) {
            Err(DatabaseError::DatabaseAlreadyOpen) if began.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(10));
            }
            database => return database.unwrap(),
        }
    }
}

/// Writes a row into a file that no process has open.
pub(crate) fn write_to_file(path: &Path, layout: &str, (table, id): (&str, &str), value: &str) {
    let name = table_of(layout, Dump::of_file(path, layout).generation);
    let database = Database::open(path).unwrap();
    let transaction = database.begin_write().unwrap();
    let key = format!("{table}\0\0{id}");
    let mut rows = transaction.open_table(TableDefinition::<&[u8], &[u8]>::new(&name)).unwrap();
    rows.insert(key.as_bytes(), value.as_bytes()).unwrap();
    drop(rows);
    transaction.commit().unwrap();
}

fn field(note: Option<&[u8]>, name: &str) -> Value {
    note.map_or(Value::Null, |note| serde_json::from_slice::<Value>(note).unwrap()[name].clone())
}

fn number(pointer: Option<&[u8]>) -> u64 {
    field(pointer, "generation").as_u64().unwrap_or(0)
}

fn phase(run: Option<&[u8]>) -> String {
    field(run, "phase").as_str().unwrap_or_default().to_owned()
}
