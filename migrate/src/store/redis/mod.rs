//! The driver of Redis (one server, no cluster).
//!
//! Every write is a script that compares the lock's value first. Redis has no revisions: rows of
//! a generation are watched from before they are read until the swap, so that a foreign write in
//! between makes the swap fail; Dragonflow's own rows are read a second time and compared.

mod connection;
mod info;
mod keys;
mod reading;
mod script;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Cmd, FromRedisValue};
use tokio::sync::Mutex;

use super::url::Server;
use super::{
    Batch, Cleared, Facts, Fence, Guard, Layout, Limits, Note, Op, Options, OtherRoots, Outcome, Place,
    Reading, Revision, Sink, Space, Store, StoreError, names, roots,
};
use crate::record::{RowKey, Snapshot, Table};
use connection::{Dialer, failed};
use keys::Keys;
use reading::Guarded;

/// Keys that one step of a scan passes over.
const SCANNED_AT_ONCE: usize = 4096;
/// Words of one command inside a script; Lua can hand over about eight thousand.
const WORDS: usize = 2000;

pub(super) struct Redis {
    dialer: Dialer,
    keys: Keys,
    layout: Layout,
    /// The connection for everything that is not guarded, until it breaks.
    shared: Mutex<Option<MultiplexedConnection>>,
    guarded: Mutex<Guarded>,
    /// The server's own name for this start of it.
    incarnation: Mutex<Option<String>>,
}

impl Redis {
    pub(super) async fn open(
        server: &Server,
        layout: Layout,
        options: &Options,
    ) -> Result<Redis, StoreError> {
        let redis = Redis {
            dialer: Dialer::new(server, options)?,
            keys: Keys::new(&server.root),
            layout,
            shared: Mutex::default(),
            guarded: Mutex::default(),
            incarnation: Mutex::default(),
        };
        redis.refuse_cluster().await?;
        Ok(redis)
    }

    async fn connection(&self) -> Result<MultiplexedConnection, StoreError> {
        let mut shared = self.shared.lock().await;
        if let Some(connection) = &*shared {
            return Ok(connection.clone());
        }
        let fresh = self.dialer.dial().await?;
        *shared = Some(fresh.clone());
        Ok(fresh)
    }

    /// Runs one command; a connection that gave no answer is not used again.
    async fn ask<T: FromRedisValue>(&self, doing: &str, command: &Cmd) -> Result<T, StoreError> {
        let mut connection = self.connection().await?;
        let answer = connection
            .req_packed_command(command)
            .await
            .and_then(redis::Value::extract_error)
            .and_then(|value| Ok(T::from_redis_value(value)?));
        match answer {
            Ok(answer) => Ok(answer),
            Err(error) => {
                let error = failed(doing, error);
                if error.is_transient() {
                    *self.shared.lock().await = None;
                }
                Err(error)
            }
        }
    }

    /// The beginning of a script that writes: what must hold.
    fn guarded_script(&self, fence: &Fence, guards: &[Guard]) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(script::BATCH).arg(1).arg(self.keys.lock()).arg(lock_value(fence));
        let notes = guards.iter().filter_map(|guard| match guard {
            Guard::Note { note, is } => Some((note, is)),
            Guard::Unchanged { .. } => None,
        });
        command.arg(notes.clone().count());
        for (note, is) in notes {
            command.arg(self.keys.note(*note)).arg(if is.is_some() { "=" } else { "-" });
            command.arg(is.as_deref().unwrap_or_default());
        }
        command
    }

    fn batch_script(&self, fence: &Fence, batch: &Batch<'_>) -> Cmd {
        let mut command = self.guarded_script(fence, &batch.guards);
        Commands::of(&self.keys, &batch.ops).append(&mut command);
        command
    }

    async fn commit_guarded(
        &self,
        fence: &Fence,
        batch: &Batch<'_>,
        since: Revision,
    ) -> Result<Outcome, StoreError> {
        let Some(mut watching) = self.guarded.lock().await.take_watch(since) else {
            return Ok(Outcome::Conflict);
        };
        let mut transaction = redis::pipe();
        transaction.atomic().add_command(self.batch_script(fence, batch));
        let answer: Option<(String,)> = transaction
            .query_async(&mut watching)
            .await
            .map_err(|error| failed("write a guarded batch", error))?;
        match answer {
            Some((word,)) => outcome(&word),
            None => Ok(Outcome::Conflict),
        }
    }
}

#[async_trait]
impl Store for Redis {
    fn layout(&self) -> Layout {
        self.layout
    }

    fn limits(&self) -> Limits {
        Limits { ops: 1000, bytes: 1 << 20, value: 64 << 20, in_flight: 4 }
    }

    fn refuses(&self, table: &Table, key: &RowKey) -> Option<&'static str> {
        match self.layout {
            Layout::Dragonflow => keys::refuses(table, key),
            Layout::Generation => None,
        }
    }

    async fn facts(&self) -> Result<Facts, StoreError> {
        self.look_at_server().await
    }

    async fn read(
        &self,
        space: Space,
        reading: Reading,
        sink: &mut Sink<'_>,
    ) -> Result<Revision, StoreError> {
        self.read_space(space, reading, sink).await
    }

    async fn confirm(&self, space: Space, since: Revision) -> Result<Option<Revision>, StoreError> {
        self.confirm_space(space, since).await
    }

    async fn note(&self, note: Note) -> Result<Option<Bytes>, StoreError> {
        let doing = format!("read the {} note", note.name());
        let found: Option<Vec<u8>> = self.ask(&doing, redis::cmd("GET").arg(self.keys.note(note))).await?;
        Ok(found.map(Bytes::from))
    }

    async fn other_roots(&self, _plain: &Snapshot) -> Result<OtherRoots, StoreError> {
        let doing = "look for other roots";
        let ours = [self.keys.note(Note::Run), self.keys.lock()];
        let mut found = OtherRoots::new();
        let mut cursor = "0".to_owned();
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(keys::NOTES).arg("COUNT").arg(SCANNED_AT_ONCE);
            let (next, names): (String, Vec<Vec<u8>>) = self.ask(doing, &scan).await?;
            for name in names.into_iter().filter_map(|name| String::from_utf8(name).ok()) {
                let Some((root, trace)) = keys::trace(&name).filter(|_| !ours.contains(&name)) else {
                    continue;
                };
                let value: Option<Vec<u8>> = self.ask(doing, redis::cmd("GET").arg(&name)).await?;
                roots::note(&mut found, root, trace, value.unwrap_or_default().into());
            }
            if next == "0" {
                return Ok(found);
            }
            cursor = next;
        }
    }

    async fn commit(&self, fence: &Fence, batch: &Batch<'_>) -> Result<Outcome, StoreError> {
        let guarded = batch.guards.iter().find_map(|guard| match guard {
            Guard::Unchanged { space, since } => Some((*space, *since)),
            Guard::Note { .. } => None,
        });
        match guarded {
            Some((Space::Plain, since)) if !self.guarded.lock().await.take_confirmed(since) => {
                Ok(Outcome::Conflict)
            }
            Some((Space::Plain, _)) | None => {
                outcome(&self.ask::<String>("write a batch", &self.batch_script(fence, batch)).await?)
            }
            Some((_, since)) => self.commit_guarded(fence, batch, since).await,
        }
    }

    /// A table at a time: unlinking is done in a moment, whatever it holds.
    async fn clear_some(
        &self,
        fence: &Fence,
        run: Option<&Bytes>,
        space: Space,
    ) -> Result<Cleared, StoreError> {
        let doing = format!("delete {space}");
        let Some(tables) = self.keys.tables(space) else {
            return Err(StoreError::refused(doing, &"Dragonflow's rows are never deleted as a whole"));
        };
        let next: Option<String> = self.ask(&doing, redis::cmd("SRANDMEMBER").arg(&tables.index)).await?;
        let Some(table) = next else { return Ok(Cleared::All) };
        let same_run = Guard::Note { note: Note::Run, is: run.cloned() };
        let mut command = self.guarded_script(fence, &[same_run]);
        command.arg(2).arg("UNLINK").arg(tables.hash(&table));
        command.arg(3).arg("SREM").arg(&tables.index).arg(&table);
        Ok(match outcome(&self.ask::<String>(&doing, &command).await?)? {
            Outcome::Done => Cleared::Some,
            Outcome::Conflict => Cleared::Conflict,
        })
    }

    async fn flush(&self) -> Result<(), StoreError> {
        self.make_durable().await
    }

    async fn lock(&self, owner: &str, ttl: Duration) -> Result<Fence, StoreError> {
        let number = uuid::Uuid::new_v4().as_u64_pair().0;
        let fence = Fence { number, lease: 0, owner: Arc::from(owner), ttl };
        let mut command = redis::cmd("EVAL");
        command.arg(script::LOCK).arg(1).arg(self.keys.lock()).arg(lock_value(&fence)).arg(milliseconds(ttl));
        let holder: String = self.ask("take the lock", &command).await?;
        match holder.split_once(' ') {
            None if holder.is_empty() => Ok(fence),
            None => Err(StoreError::Busy { owner: "another run".to_owned() }),
            Some((_, owner)) => Err(StoreError::Busy { owner: owner.to_owned() }),
        }
    }

    async fn renew(&self, fence: &Fence) -> Result<(), StoreError> {
        let mut command = redis::cmd("EVAL");
        command.arg(script::RENEW).arg(1).arg(self.keys.lock()).arg(lock_value(fence));
        command.arg(milliseconds(fence.ttl));
        outcome(&self.ask::<String>("renew the lock", &command).await?).map(|_| ())
    }

    async fn unlock(&self, fence: &Fence) -> Result<(), StoreError> {
        let mut command = redis::cmd("EVAL");
        command.arg(script::UNLOCK).arg(1).arg(self.keys.lock()).arg(lock_value(fence));
        self.ask::<String>("free the lock", &command).await.map(|_| ())
    }
}

type Pairs<'a> = Vec<(Cow<'a, str>, &'a Bytes)>;

/// The operations of a batch, put together to as few commands as possible.
#[derive(Default)]
struct Commands<'a> {
    set: Pairs<'a>,
    remove: Vec<String>,
    hashes: Vec<OfHash<'a>>,
}

/// What happens to one table of a space.
struct OfHash<'a> {
    space: Space,
    table: &'a Table,
    /// The set that names the tables of the space.
    index: String,
    name: String,
    puts: Pairs<'a>,
    removes: Vec<Cow<'a, str>>,
}

impl<'a> Commands<'a> {
    fn of(keys: &Keys, ops: &[Op<'a>]) -> Commands<'a> {
        let mut commands = Commands::default();
        for op in ops {
            let (space, table, key) = match op.place() {
                Place::Note(note) => {
                    commands.string(keys.note(note), op);
                    continue;
                }
                Place::Row { space: Space::Plain, table, key } => {
                    commands.string(keys::plain(table, key), op);
                    continue;
                }
                Place::Row { space, table, key } => (space, table, key),
            };
            let Some(hash) = commands.hash(keys, space, table) else { continue };
            match op {
                Op::Put { value, .. } => hash.puts.push((names::row(key), value)),
                Op::Remove { .. } => hash.removes.push(names::row(key)),
            }
        }
        commands
    }

    /// The hash of a table; none for Dragonflow's own rows. The one before is nearly always the one.
    fn hash(&mut self, keys: &Keys, space: Space, table: &'a Table) -> Option<&mut OfHash<'a>> {
        let same = |hash: &OfHash<'_>| hash.space == space && hash.table == table;
        let at = match self.hashes.iter().rposition(same) {
            Some(at) => at,
            None => {
                let tables = keys.tables(space)?;
                let name = tables.hash(table.as_str());
                let (puts, removes) = (vec![], vec![]);
                self.hashes.push(OfHash { space, table, index: tables.index, name, puts, removes });
                self.hashes.len() - 1
            }
        };
        self.hashes.get_mut(at)
    }

    fn string(&mut self, key: String, op: &Op<'a>) {
        match op {
            Op::Put { value, .. } => self.set.push((Cow::Owned(key), value)),
            Op::Remove { .. } => self.remove.push(key),
        }
    }

    fn append(&self, command: &mut Cmd) {
        for OfHash { table, index, name, puts, removes, .. } in &self.hashes {
            command.arg(3).arg("SADD").arg(index).arg(table.as_str());
            for part in puts.chunks(WORDS / 2) {
                command.arg(part.len() * 2 + 2).arg("HSET").arg(name);
                append_pairs(command, part);
            }
            for part in removes.chunks(WORDS) {
                command.arg(part.len() + 2).arg("HDEL").arg(name);
                for field in part {
                    command.arg(field.as_bytes());
                }
            }
        }
        for part in self.set.chunks(WORDS / 2) {
            command.arg(part.len() * 2 + 1).arg("MSET");
            append_pairs(command, part);
        }
        for part in self.remove.chunks(WORDS) {
            command.arg(part.len() + 1).arg("UNLINK").arg(part);
        }
    }
}

fn append_pairs(command: &mut Cmd, pairs: &[(Cow<'_, str>, &Bytes)]) {
    for (name, value) in pairs {
        command.arg(name.as_bytes()).arg(value.as_ref());
    }
}

fn lock_value(fence: &Fence) -> String {
    format!("{:016x} {}", fence.number, fence.owner)
}

fn milliseconds(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1)
}

fn outcome(word: &str) -> Result<Outcome, StoreError> {
    match word {
        "done" => Ok(Outcome::Done),
        "conflict" => Ok(Outcome::Conflict),
        _ => Err(StoreError::FencedOut),
    }
}
