//! The one thread that writes.
//!
//! It takes all changes that wait, commits them together, shows them to
//! readers, then answers. While it waits for the disk the next batch gathers.
//!
//! ```text
//! Good ──commit failed──▶ Doubtful ──opened again──▶ Good
//!   └─────sync failed────────┴──────▶ Stopped          (until the process starts anew)
//! ```
//!
//! The one invariant: nothing is shown or answered before it is durable.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

use super::body::Stored;
use super::change::{Change, Guard, WriteError};
use super::disk::{CommitError, Disk, Loaded, Site, is_full};
use super::error::OpenError;
use super::history::Event;
use super::ledger::Ledger;
use super::world::{Resources, World};

/// Changes in one commit at most; bounds what a reader may have to wait for.
const BATCH: usize = 512;

/// How long a failed commit keeps writers away, so that a full disk is not
/// hammered.
pub(super) const REST: Duration = Duration::from_secs(1);

pub(super) type Answer = Result<Arc<Stored>, WriteError>;

/// A change on its way to the writer.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) change: Change,
    pub(super) guards: Vec<Guard>,
    pub(super) answer: oneshot::Sender<Answer>,
}

pub(super) struct Writer {
    health: Health,
    ledger: Ledger,
    world: Arc<World>,
    queue: mpsc::Receiver<Request>,
    rest: Duration,
}

enum Health {
    Good(Disk),
    /// The batch is on disk or it is not; the file must be opened again to tell.
    Doubtful {
        site: Site,
        batch: Batch,
        until: Instant,
        reason: Arc<str>,
    },
    Stopped {
        reason: Arc<str>,
    },
}

/// Events and the objects of the resources they touched.
type Batch = (Vec<Arc<Event>>, Resources);

impl Writer {
    pub(super) fn new(
        disk: Disk,
        world: Arc<World>,
        queue: mpsc::Receiver<Request>,
        rest: Duration,
    ) -> Writer {
        let ledger = Ledger::new(world.version(), world.resources());
        Writer { health: Health::Good(disk), ledger, world, queue, rest }
    }

    /// Runs until the last handle of the store is gone.
    pub(super) fn run(mut self) {
        let mut requests = Vec::new();
        while let Some(first) = self.queue.blocking_recv() {
            requests.push(first);
            while requests.len() < BATCH
                && let Ok(next) = self.queue.try_recv()
            {
                requests.push(next);
            }
            self.write(&mut requests);
        }
        self.close();
    }

    /// Leaves a file that needs no journal. Where that fails, whoever opens it next reads the journal.
    fn close(&mut self) {
        if let Health::Good(disk) = &mut self.health
            && let Err(error) = disk.make_whole()
        {
            tracing::warn!(?error, "the store is left with its journal");
        }
    }

    fn write(&mut self, requests: &mut Vec<Request>) {
        self.resolve(Instant::now());
        let mut answers = Vec::with_capacity(requests.len());
        for Request { change, guards, answer } in requests.drain(..) {
            answers.push((answer, self.ledger.stage(change, &guards)));
        }
        let refused = self.commit();
        for (sender, answer) in answers {
            let answer = match &refused {
                None => answer,
                Some(reason) => Err(WriteError::Unavailable { reason: reason.clone() }),
            };
            // A caller that no longer waits has nobody to tell.
            let _ = sender.send(answer);
        }
    }

    /// Makes what is staged durable and visible, or says why not.
    fn commit(&mut self) -> Option<Arc<str>> {
        let batch = self.ledger.take();
        let disk = match &mut self.health {
            Health::Good(disk) => disk,
            Health::Doubtful { reason, .. } | Health::Stopped { reason } => {
                let reason = reason.clone();
                self.start_over();
                return Some(reason);
            }
        };
        let Err(error) = disk.commit(&batch.0) else {
            self.world.publish(batch.1, &batch.0);
            return None;
        };
        self.start_over();
        Some(self.fail(&error, batch))
    }

    fn fail(&mut self, error: &CommitError, batch: Batch) -> Arc<str> {
        let reason: Arc<str> = match error {
            CommitError::Failed(redb::Error::Io(cause)) if is_full(cause) => {
                format!("the disk is full ({cause}); it goes on by itself once there is room").into()
            }
            CommitError::Failed(cause) => format!("a commit failed: {cause}").into(),
            CommitError::SyncFailed(cause) => format!(
                "a sync failed ({cause}), so it is not known what the disk holds; restart to read it back"
            )
            .into(),
        };
        tracing::error!(%reason, "store takes no writes");
        self.world.set_takes_writes(false);
        let stopped = Health::Stopped { reason: reason.clone() };
        let Health::Good(disk) = std::mem::replace(&mut self.health, stopped) else { return reason };
        if let CommitError::Failed(_) = error {
            let (site, until) = (disk.close(), Instant::now() + self.rest);
            self.health = Health::Doubtful { site, batch, until, reason: reason.clone() };
        }
        reason
    }

    /// Opens the file again once it has rested, and learns what became of the
    /// batch that failed.
    fn resolve(&mut self, now: Instant) {
        let due = matches!(&self.health, Health::Doubtful { until, .. } if *until <= now);
        if !due {
            return;
        }
        let stopped = Health::Stopped { reason: "it is being opened again".into() };
        let Health::Doubtful { site, batch, .. } = std::mem::replace(&mut self.health, stopped) else {
            return;
        };
        self.health = match Disk::open(site).map_err(|failed| *failed) {
            Ok((disk, loaded)) => self.take_up(disk, &loaded, batch),
            Err((_, error @ OpenError::NotSynced { .. })) => {
                Health::Stopped { reason: error.to_string().into() }
            }
            Err((site, error)) => {
                let reason = format!("it could not be opened again: {error}").into();
                Health::Doubtful { site, batch, until: now + self.rest, reason }
            }
        };
    }

    fn take_up(&mut self, disk: Disk, loaded: &Loaded, (events, touched): Batch) -> Health {
        let landed = events.last().is_some_and(|newest| newest.version == loaded.version);
        if !landed && loaded.version != self.world.version() {
            let found = loaded.version;
            return Health::Stopped { reason: format!("its file is unexpectedly at version {found}").into() };
        }
        if landed {
            self.world.publish(touched, &events);
            self.start_over();
        }
        tracing::info!(landed, "store takes writes again");
        self.world.set_takes_writes(true);
        Health::Good(disk)
    }

    /// Forgets what was staged and stands where the readers are.
    fn start_over(&mut self) {
        self.ledger = Ledger::new(self.world.version(), self.world.resources());
    }
}
