//! A store in memory that, like Redis, may lose the end of what it acknowledged when it is restarted,
//! and goes on with the lock still held; and one that carries out a write long after it was given up.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::Notify;

use super::{LAYOUTS, TTL, new, old};
use crate::commit::{CommitError, RunNote, Session, State, snapshot, state};
use crate::record::{RowKey, Table};
use crate::store::{
    Batch, Cleared, Durability, Facts, Fence, Guard, Layout, Limits, Note, Op, Outcome, Place, Reading,
    Revision, Row, Sink, Space, Store, StoreError,
};

/// What happens at the write that was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// Before it, the server restarts without its last writes; those before the last flush are safe.
    Forgets { writes: usize },
    /// It gets no answer, however often it is tried, and happens just before the next other write.
    HappensLate,
    /// The server keeps other bytes than it was given.
    Damages,
}

#[derive(Debug, Clone, Default)]
struct Data {
    rows: BTreeMap<(Space, Table, RowKey), Bytes>,
    notes: BTreeMap<Note, Bytes>,
    /// How often each space was written.
    writes: BTreeMap<Space, u64>,
}

/// One write, kept beyond the call that brought it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Write {
    Batch { guards: Vec<Guard>, rows: Vec<Put>, notes: Vec<(Note, Bytes)> },
    Clear { run: Option<Bytes>, space: Space },
}

impl Write {
    fn damage(&mut self) {
        match self {
            Write::Batch { rows, .. } => {
                let (_, _, _, value) = rows.first_mut().expect("a batch of rows was chosen");
                *value = Some(Bytes::from_static(b"damaged"));
            }
            Write::Clear { .. } => panic!("a batch of rows was chosen"),
        }
    }
}

type Put = (Space, Table, RowKey, Option<Bytes>);

#[derive(Debug)]
struct Server {
    now: Data,
    /// As it was before each write since the last flush.
    unsafe_writes: Vec<Data>,
    lives: u64,
    /// Whether a flush has yet to say that the server was restarted.
    untold: bool,
    written: usize,
    late: Option<Write>,
}

pub(super) struct Forgetful {
    layout: Layout,
    /// Which write it is, counted from zero.
    at: Mutex<Option<(usize, Fault)>>,
    server: Mutex<Server>,
    /// The next reading stops in its middle.
    pause: Mutex<Option<Arc<Pause>>>,
}

#[derive(Debug, Default)]
struct Pause {
    reached: Notify,
    go_on: Notify,
}

impl Forgetful {
    pub(super) fn new(layout: Layout) -> Forgetful {
        let server = Server {
            now: Data::default(),
            unsafe_writes: vec![],
            lives: 1,
            untold: false,
            written: 0,
            late: None,
        };
        Forgetful { layout, at: Mutex::default(), server: Mutex::new(server), pause: Mutex::default() }
    }

    /// From now on, at the k-th write. What is late happens now.
    pub(super) fn fault(&self, fault: Option<(usize, Fault)>) {
        let mut server = self.server();
        server.written = 0;
        if let Some(late) = server.late.take() {
            server.carry_out(late);
        }
        drop(server);
        *self.at.lock().unwrap() = fault;
    }

    pub(super) fn writes(&self) -> usize {
        self.server().written
    }

    fn server(&self) -> MutexGuard<'_, Server> {
        self.server.lock().unwrap()
    }

    fn rows(&self, space: Space) -> Vec<Row> {
        let server = self.server();
        let of_space = server.now.rows.iter().filter(|((of, _, _), _)| *of == space);
        let row = |((_, table, key), value): (&(Space, Table, RowKey), &Bytes)| Row {
            table: table.clone(),
            key: key.clone(),
            value: value.clone(),
        };
        of_space.map(row).collect()
    }

    fn write(&self, mut write: Write) -> Result<Outcome, StoreError> {
        let chosen = *self.at.lock().unwrap();
        let mut server = self.server();
        if let Some(late) = server.late.take() {
            if late == write {
                server.late = Some(late);
                return Err(StoreError::lost("write", "no answer"));
            }
            server.carry_out(late);
        }
        let number = server.written;
        server.written += 1;
        match chosen.filter(|(at, _)| *at == number) {
            Some((_, Fault::Forgets { writes })) => server.restart(writes),
            Some((_, Fault::HappensLate)) => {
                server.late = Some(write);
                return Err(StoreError::lost("write", "no answer"));
            }
            Some((_, Fault::Damages)) => write.damage(),
            None => {}
        }
        Ok(server.carry_out(write))
    }
}

impl Server {
    fn restart(&mut self, lost: usize) {
        let left = self.unsafe_writes.len().saturating_sub(lost);
        if let Some(then) = self.unsafe_writes.drain(left..).next() {
            self.now = then;
        }
        self.lives += 1;
        self.untold = true;
    }

    /// No reading of an earlier life is one of this.
    fn revision(&self, space: Space) -> Revision {
        Revision(self.lives << 32 | self.now.writes.get(&space).copied().unwrap_or(0))
    }

    fn holds(&self, guard: &Guard) -> bool {
        match guard {
            Guard::Note { note, is } => self.now.notes.get(note) == is.as_ref(),
            Guard::Unchanged { space, since } => *since == self.revision(*space),
        }
    }

    fn carry_out(&mut self, write: Write) -> Outcome {
        let before = self.now.clone();
        match write {
            Write::Batch { guards, rows, notes } => {
                if !guards.iter().all(|guard| self.holds(guard)) {
                    return Outcome::Conflict;
                }
                for (space, table, key, value) in rows {
                    *self.now.writes.entry(space).or_default() += 1;
                    match value {
                        Some(value) => self.now.rows.insert((space, table, key), value),
                        None => self.now.rows.remove(&(space, table, key)),
                    };
                }
                self.now.notes.extend(notes);
            }
            Write::Clear { run, space } => {
                if self.now.notes.get(&Note::Run) != run.as_ref() {
                    return Outcome::Conflict;
                }
                *self.now.writes.entry(space).or_default() += 1;
                self.now.rows.retain(|(of, _, _), _| *of != space);
            }
        }
        self.unsafe_writes.push(before);
        Outcome::Done
    }
}

#[async_trait]
impl Store for Forgetful {
    fn layout(&self) -> Layout {
        self.layout
    }

    fn limits(&self) -> Limits {
        Limits { ops: 2, bytes: 1 << 20, value: 1 << 20, in_flight: 1 }
    }

    fn refuses(&self, _table: &Table, _key: &RowKey) -> Option<&'static str> {
        None
    }

    async fn facts(&self) -> Result<Facts, StoreError> {
        Ok(Facts::of("forgetful", Durability::NextSave))
    }

    async fn read(
        &self,
        space: Space,
        _reading: Reading,
        sink: &mut Sink<'_>,
    ) -> Result<Revision, StoreError> {
        let revision = self.server().revision(space);
        let half = self.rows(space).len() / 2;
        sink(self.rows(space).into_iter().take(half).collect());
        let pause = self.pause.lock().unwrap().take();
        if let Some(pause) = pause {
            pause.reached.notify_one();
            pause.go_on.notified().await;
        }
        sink(self.rows(space).into_iter().skip(half).collect());
        Ok(revision)
    }

    async fn confirm(&self, space: Space, since: Revision) -> Result<Option<Revision>, StoreError> {
        Ok((self.server().revision(space) == since).then_some(since))
    }

    async fn note(&self, note: Note) -> Result<Option<Bytes>, StoreError> {
        Ok(self.server().now.notes.get(&note).cloned())
    }

    async fn commit(&self, _fence: &Fence, batch: &Batch<'_>) -> Result<Outcome, StoreError> {
        let (mut rows, mut notes) = (vec![], vec![]);
        for op in &batch.ops {
            match (op.place(), op) {
                (Place::Row { space, table, key }, Op::Put { value, .. }) => {
                    rows.push((space, table.clone(), key.clone(), Some((*value).clone())));
                }
                (Place::Row { space, table, key }, Op::Remove { .. }) => {
                    rows.push((space, table.clone(), key.clone(), None));
                }
                (Place::Note(note), Op::Put { value, .. }) => notes.push((note, (*value).clone())),
                (Place::Note(note), Op::Remove { .. }) => panic!("nobody removes the {} note", note.name()),
            }
        }
        self.write(Write::Batch { guards: batch.guards.clone(), rows, notes })
    }

    async fn clear_some(
        &self,
        _fence: &Fence,
        run: Option<&Bytes>,
        space: Space,
    ) -> Result<Cleared, StoreError> {
        Ok(match self.write(Write::Clear { run: run.cloned(), space })? {
            Outcome::Done => Cleared::All,
            Outcome::Conflict => Cleared::Conflict,
        })
    }

    async fn flush(&self) -> Result<(), StoreError> {
        let mut server = self.server();
        if std::mem::take(&mut server.untold) {
            return Err(StoreError::lost("flush", "the server was started anew"));
        }
        server.unsafe_writes.clear();
        Ok(())
    }

    async fn lock(&self, owner: &str, ttl: Duration) -> Result<Fence, StoreError> {
        Ok(Fence { number: 1, lease: 0, owner: owner.into(), ttl })
    }

    async fn renew(&self, _fence: &Fence) -> Result<(), StoreError> {
        Ok(())
    }

    async fn unlock(&self, _fence: &Fence) -> Result<(), StoreError> {
        Ok(())
    }
}

const PATIENCE: Duration = Duration::from_millis(8);

/// What the process was doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    Apply,
    RollBack,
    Finalize,
}

/// The old rows live, and nothing open; or the new rows applied over them.
async fn scene(layout: Layout, doing: Doing) -> (Forgetful, Fence) {
    let store = Forgetful::new(layout);
    let fence = store.lock("test", TTL).await.unwrap();
    let session = Session::new(&store, &fence, &|_| {});
    let taken = snapshot(&store).await.unwrap();
    session.apply(&taken, &old(), RunNote::default()).await.unwrap();
    session.finalize().await.unwrap();
    if doing != Doing::Apply {
        let taken = snapshot(&store).await.unwrap();
        session.apply(&taken, &new(), RunNote::default()).await.unwrap();
    }
    (store, fence)
}

async fn act(doing: Doing, session: &Session<'_>, store: &Forgetful) -> Result<(), CommitError> {
    match doing {
        Doing::Apply => {
            let taken = snapshot(store).await?;
            session.apply(&taken, &new(), RunNote::default()).await.map(|_| ())
        }
        Doing::RollBack => session.rollback().await.map(|_| ()),
        Doing::Finalize => session.finalize().await.map(|_| ()),
    }
}

/// One act with one fault in it, by a process that survives it; whatever it says is true, the rows
/// are whole then and after the next start, and the way back, where there is one, leads to the old.
async fn survives(layout: Layout, doing: Doing, at: usize, fault: Fault) -> bool {
    let what = format!("{layout:?}, {doing:?}, {fault:?} at write {at}");
    let (store, fence) = scene(layout, doing).await;
    store.fault(Some((at, fault)));
    let session = Session::new(&store, &fence, &|_| {}).with_patience(PATIENCE);
    let done = act(doing, &session, &store).await;
    let reached = store.writes() > at;
    store.fault(None);
    match snapshot(&store).await {
        Ok(taken) => {
            let rows = taken.snapshot;
            assert!(rows == old() || rows == new(), "{what}: a mixture after {done:?}");
            let promised = if doing == Doing::RollBack { old() } else { new() };
            assert!(done.is_err() || rows == promised, "{what}: said that it was done");
        }
        Err(CommitError::Unfinished { .. }) => assert!(done.is_err(), "{what}: said that it was done"),
        Err(error) => panic!("{what}: {error}"),
    }
    let session = Session::new(&store, &fence, &|_| {}).with_patience(PATIENCE);
    session.recover().await.unwrap_or_else(|error| panic!("{what}: {error}"));
    let rows = snapshot(&store).await.unwrap().snapshot;
    assert!(rows == old() || rows == new(), "{what}: a mixture after the next start");
    if let State::Applied(_) = state(&store).await.unwrap() {
        session.rollback().await.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(snapshot(&store).await.unwrap().snapshot, old(), "{what}: the way back");
    }
    reached
}

#[tokio::test]
async fn a_server_that_forgot_its_last_writes_harms_nothing() {
    for layout in LAYOUTS {
        for doing in [Doing::Apply, Doing::RollBack, Doing::Finalize] {
            for writes in 0..8 {
                let mut at = 0;
                while survives(layout, doing, at, Fault::Forgets { writes }).await {
                    at += 1;
                }
                assert!(at > 3, "{layout:?} {doing:?}: only {at} writes");
            }
        }
    }
}

#[tokio::test]
async fn a_write_that_happens_after_it_was_given_up_harms_nothing() {
    for layout in LAYOUTS {
        for doing in [Doing::Apply, Doing::RollBack, Doing::Finalize] {
            let mut at = 0;
            while survives(layout, doing, at, Fault::HappensLate).await {
                at += 1;
            }
        }
    }
}

/// What was staged is read back before it counts.
#[tokio::test]
async fn what_is_not_as_it_was_written_never_becomes_live() {
    for layout in LAYOUTS {
        let (store, fence) = scene(layout, Doing::Apply).await;
        // The first write is the note, the next the first rows.
        store.fault(Some((1, Fault::Damages)));
        let session = Session::new(&store, &fence, &|_| {});
        let error = act(Doing::Apply, &session, &store).await.unwrap_err();
        assert!(matches!(error, CommitError::NotAsWritten { .. }), "{layout:?}: {error}");
        assert_eq!(snapshot(&store).await.unwrap().snapshot, old(), "{layout:?}");
        assert!(
            matches!(state(&store).await.unwrap(), State::Settled(_)),
            "{layout:?}: nothing is left to do"
        );
        store.fault(None);
        act(Doing::Apply, &session, &store).await.unwrap();
        assert_eq!(snapshot(&store).await.unwrap().snapshot, new(), "{layout:?}");
    }
}

/// While somebody looks, a whole run of somebody else comes and goes.
#[tokio::test]
async fn a_look_never_sees_half_of_a_run() {
    for layout in LAYOUTS {
        for doing in [Doing::Apply, Doing::RollBack, Doing::Finalize] {
            let (store, fence) = scene(layout, doing).await;
            let pause = Arc::<Pause>::default();
            *store.pause.lock().unwrap() = Some(pause.clone());
            let session = Session::new(&store, &fence, &|_| {});
            let run = async {
                pause.reached.notified().await;
                act(doing, &session, &store).await.unwrap();
                pause.go_on.notify_one();
            };
            let (seen, ()) = tokio::join!(snapshot(&store), run);
            let expected = if doing == Doing::RollBack { old() } else { new() };
            assert_eq!(seen.unwrap().snapshot, expected, "{layout:?} {doing:?}");
        }
    }
}
