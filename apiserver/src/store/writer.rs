//! The one thread that writes.
//!
//! It takes all changes that wait, commits them together, shows them to
//! readers, then answers. While it waits for the disk the next batch gathers.
//!
//! The one invariant: nothing is shown or answered before it is durable.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::body::Stored;
use super::change::{Change, Guard, WriteError};
use super::disk::Disk;
use super::ledger::Ledger;
use super::world::World;

/// Changes in one commit at most; bounds what a reader may have to wait for.
const BATCH: usize = 512;

pub(super) type Answer = Result<Arc<Stored>, WriteError>;

/// A change on its way to the writer.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) change: Change,
    pub(super) guards: Vec<Guard>,
    pub(super) answer: oneshot::Sender<Answer>,
}

pub(super) struct Writer {
    disk: Disk,
    ledger: Ledger,
    world: Arc<World>,
    queue: mpsc::Receiver<Request>,
    /// Why no more writes are taken.
    stopped: Option<Arc<str>>,
}

impl Writer {
    pub(super) fn new(disk: Disk, world: Arc<World>, queue: mpsc::Receiver<Request>) -> Writer {
        let ledger = Ledger::new(world.version(), world.resources());
        Writer { disk, ledger, world, queue, stopped: None }
    }

    /// Runs until the last handle of the store is gone.
    pub(super) fn run(mut self) {
        let mut batch = Vec::new();
        while let Some(first) = self.queue.blocking_recv() {
            batch.push(first);
            while batch.len() < BATCH
                && let Ok(next) = self.queue.try_recv()
            {
                batch.push(next);
            }
            self.write(&mut batch);
        }
    }

    fn write(&mut self, batch: &mut Vec<Request>) {
        let mut answers = Vec::with_capacity(batch.len());
        for Request { change, guards, answer } in batch.drain(..) {
            answers.push((answer, self.ledger.stage(change, &guards)));
        }
        let (events, touched) = self.ledger.take();
        if self.stopped.is_none() {
            match self.disk.commit(&events) {
                Ok(()) => self.world.publish(touched, &events),
                Err(error) => self.stopped = Some(error.to_string().into()),
            }
        }
        for (sender, answer) in answers {
            let answer = match &self.stopped {
                None => answer,
                Some(reason) => Err(WriteError::Unavailable { reason: reason.clone() }),
            };
            // A caller that no longer waits has nobody to tell.
            let _ = sender.send(answer);
        }
    }
}
