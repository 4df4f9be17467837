//! A store that does something at its k-th write: dies, or lets others act.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use midflight_migrate::record::{RowKey, Table};
use midflight_migrate::store::{
    Batch, Cleared, Facts, Fence, Guard, Layout, Limits, Note, Op, Outcome, Place, Reading, Revision, Sink,
    Space, Store, StoreError,
};

/// What happens at the write that was chosen.
pub(crate) enum Event {
    /// The process dies before the server hears of the write.
    DieBefore,
    /// The process dies before it hears of the answer.
    DieAfter,
    /// Somebody else acts behind the first reading of the live rows of Dragonflow's layout.
    AfterReading(Box<dyn Fn() + Send + Sync>),
    /// Somebody else acts before the write that is guarded against writers.
    AtSwitch(Box<dyn Fn() + Send + Sync>),
    /// Somebody else acts before the first write to the live rows of Dragonflow's layout.
    AtReplay(Box<dyn Fn() + Send + Sync>),
    /// Somebody else acts before the write.
    Meanwhile(Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>),
    /// The server is full from this write on: it takes deletions and nothing else.
    Full,
    /// Something befalls the server when it has answered.
    Afterwards(Box<dyn Fn() + Send + Sync>),
}

pub(crate) struct Wrapped {
    inner: Arc<dyn Store>,
    event: Event,
    /// Which write it is, counted from zero.
    at: usize,
    writes: AtomicUsize,
    dead: AtomicBool,
    acted: AtomicBool,
}

impl Wrapped {
    pub(crate) fn new(inner: &Arc<dyn Store>, at: usize, event: Event) -> Wrapped {
        Wrapped {
            inner: inner.clone(),
            event,
            at,
            writes: AtomicUsize::new(0),
            dead: AtomicBool::new(false),
            acted: AtomicBool::new(false),
        }
    }

    /// Whether the chosen write was reached.
    pub(crate) fn reached(&self) -> bool {
        self.writes.load(Ordering::SeqCst) > self.at
    }

    fn alive(&self) -> Result<(), StoreError> {
        if self.dead.load(Ordering::SeqCst) { Err(killed()) } else { Ok(()) }
    }

    async fn write<T>(
        &self,
        write: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        self.alive()?;
        if self.writes.fetch_add(1, Ordering::SeqCst) != self.at {
            return write.await;
        }
        match &self.event {
            Event::AfterReading(_) | Event::AtSwitch(_) | Event::AtReplay(_) | Event::Full => write.await,
            Event::DieBefore => {
                self.dead.store(true, Ordering::SeqCst);
                Err(killed())
            }
            Event::DieAfter => {
                let _ = write.await;
                self.dead.store(true, Ordering::SeqCst);
                Err(killed())
            }
            Event::Meanwhile(act) => {
                act().await;
                write.await
            }
            Event::Afterwards(act) => {
                let answer = write.await;
                act();
                answer
            }
        }
    }
}

fn full() -> StoreError {
    StoreError::Refused { doing: "write a batch".to_owned(), reason: "no space is left".to_owned() }
}

fn killed() -> StoreError {
    StoreError::Refused { doing: "go on".to_owned(), reason: "the process is dead".to_owned() }
}

#[async_trait]
impl Store for Wrapped {
    fn layout(&self) -> Layout {
        self.inner.layout()
    }

    /// Small batches, one after the other: many writes from few rows, always in the same order.
    fn limits(&self) -> Limits {
        Limits { ops: 3, in_flight: 1, ..self.inner.limits() }
    }

    fn refuses(&self, table: &Table, key: &RowKey) -> Option<&'static str> {
        self.inner.refuses(table, key)
    }

    async fn facts(&self) -> Result<Facts, StoreError> {
        self.alive()?;
        self.inner.facts().await
    }

    async fn read(
        &self,
        space: Space,
        reading: Reading,
        sink: &mut Sink<'_>,
    ) -> Result<Revision, StoreError> {
        self.alive()?;
        let read = self.inner.read(space, reading, sink).await;
        if let Event::AfterReading(act) = &self.event
            && space == Space::Plain
            && !self.acted.swap(true, Ordering::SeqCst)
        {
            act();
        }
        read
    }

    async fn confirm(&self, space: Space, since: Revision) -> Result<Option<Revision>, StoreError> {
        self.alive()?;
        self.inner.confirm(space, since).await
    }

    async fn note(&self, note: Note) -> Result<Option<Bytes>, StoreError> {
        self.alive()?;
        self.inner.note(note).await
    }

    async fn commit(&self, fence: &Fence, batch: &Batch<'_>) -> Result<Outcome, StoreError> {
        if let Event::AtSwitch(act) = &self.event
            && batch.guards.iter().any(|guard| matches!(guard, Guard::Unchanged { .. }))
            && !self.acted.swap(true, Ordering::SeqCst)
        {
            act();
        }
        let live = |op: &Op<'_>| matches!(op.place(), Place::Row { space: Space::Plain, .. });
        if let Event::AtReplay(act) = &self.event
            && batch.ops.iter().any(live)
            && !self.acted.swap(true, Ordering::SeqCst)
        {
            act();
        }
        let puts = batch.ops.iter().any(|op| matches!(op, Op::Put { .. }));
        if matches!(self.event, Event::Full) && puts && self.writes.load(Ordering::SeqCst) >= self.at {
            self.writes.fetch_add(1, Ordering::SeqCst);
            return Err(full());
        }
        self.write(self.inner.commit(fence, batch)).await
    }

    async fn clear_some(
        &self,
        fence: &Fence,
        run: Option<&Bytes>,
        space: Space,
    ) -> Result<Cleared, StoreError> {
        self.write(self.inner.clear_some(fence, run, space)).await
    }

    async fn flush(&self) -> Result<(), StoreError> {
        self.alive()?;
        self.inner.flush().await
    }

    async fn lock(&self, owner: &str, ttl: Duration) -> Result<Fence, StoreError> {
        self.inner.lock(owner, ttl).await
    }

    async fn renew(&self, fence: &Fence) -> Result<(), StoreError> {
        self.inner.renew(fence).await
    }

    async fn unlock(&self, fence: &Fence) -> Result<(), StoreError> {
        self.inner.unlock(fence).await
    }
}
