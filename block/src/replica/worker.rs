//! What waits for the disk, on threads beside the loop: one for notes, which are
//! short and on whose end requests wait, one for syncs of the data itself, and one that
//! fetches what is to be read.
//!
//! Invariant: jobs of one kind are done in the order in which they were given, and
//! none waits for one of another kind.

use std::{
    io,
    sync::mpsc::{Receiver, Sender, channel},
    thread::{self, JoinHandle},
};

use super::{
    absent::ReplicaKey,
    core::Input,
    disk::Disk,
    layers::{Fetch, SyncPlan},
    promise::{PromiseFile, Standing},
};
use crate::net::reactor::Waker;

enum Note<D: Disk> {
    Persist(Standing),
    Intent(D::File),
    /// Who has left, and what it misses.
    Absent(ReplicaKey, Option<D::File>),
}

/// How a job ended: with something for the core, or with the end of this replica.
pub(super) type Done = Result<Input, String>;

/// The threads, and the way to them.
pub(super) struct Workers<D: Disk> {
    notes: Sender<Note<D>>,
    data: Sender<SyncPlan<D>>,
    fetches: Sender<(u64, Fetch<D>)>,
    done: Receiver<Done>,
    threads: [JoinHandle<()>; 3],
}

/// Where threads say what they have done.
#[derive(Clone)]
struct Report {
    done: Sender<Done>,
    waker: Waker,
}

impl Report {
    /// Says whether anyone still wants to know.
    fn tell(&self, result: io::Result<()>, input: Input) -> bool {
        self.say(result.map(|()| input))
    }

    fn say(&self, result: io::Result<Input>) -> bool {
        let told = self.done.send(result.map_err(|error| error.to_string()));
        self.waker.wake();
        told.is_ok()
    }
}

const GONE: &str = "a thread that waits for the disk is gone";

impl<D: Disk + Send + 'static> Workers<D>
where
    D::File: Send,
{
    pub(super) fn start(disk: &D, promise: PromiseFile<D>, waker: Waker) -> Workers<D> {
        let (notes, to_note) = channel();
        let (data, to_sync) = channel();
        let (fetches, to_fetch) = channel();
        let (finished, done) = channel();
        let report = Report { done: finished, waker };
        let here = || (disk.clone(), report.clone());
        let (for_notes, for_data, for_fetches) = (here(), here(), here());
        let threads = [
            thread::spawn(move || note(&for_notes.0, promise, &to_note, &for_notes.1)),
            thread::spawn(move || sync(&for_data.0, &to_sync, &for_data.1)),
            thread::spawn(move || fetch(&for_fetches.0, &to_fetch, &for_fetches.1)),
        ];
        Workers { notes, data, fetches, done, threads }
    }

    pub(super) fn persist(&self, standing: Standing) -> Result<(), String> {
        self.notes.send(Note::Persist(standing)).map_err(|_| GONE.into())
    }

    pub(super) fn sync_intent(&self, file: D::File) -> Result<(), String> {
        self.notes.send(Note::Intent(file)).map_err(|_| GONE.into())
    }

    /// A map that is gone again has nothing to sync but that.
    pub(super) fn sync_absent(&self, key: ReplicaKey, file: Option<D::File>) -> Result<(), String> {
        self.notes.send(Note::Absent(key, file)).map_err(|_| GONE.into())
    }

    pub(super) fn sync(&self, plan: SyncPlan<D>) -> Result<(), String> {
        self.data.send(plan).map_err(|_| GONE.into())
    }

    pub(super) fn fetch(&self, number: u64, plan: Fetch<D>) -> Result<(), String> {
        self.fetches.send((number, plan)).map_err(|_| GONE.into())
    }

    pub(super) fn next_done(&self) -> Option<Done> {
        self.done.try_recv().ok()
    }

    /// Waits for the last jobs; nobody holds the disk afterwards.
    pub(super) fn end(self) -> Result<(), String> {
        let Workers { notes, data, fetches, done, threads } = self;
        drop((notes, data, fetches, done));
        threads.into_iter().try_for_each(|thread| {
            thread.join().map_err(|_| "a thread that waits for the disk panicked".into())
        })
    }
}

/// A promise counts when one slot has it; the other follows before anything else is noted.
fn note<D: Disk>(disk: &D, mut promise: PromiseFile<D>, queue: &Receiver<Note<D>>, report: &Report) {
    for note in queue {
        let wanted = match note {
            Note::Intent(file) => report.tell(disk.sync(&file), Input::IntentSynced),
            Note::Absent(key, file) => {
                let synced = file.map_or(Ok(()), |file| disk.sync(&file)).and_then(|()| disk.sync_folder());
                report.tell(synced, Input::AbsentSynced(key))
            }
            Note::Persist(standing) => {
                let wanted = report.tell(promise.store(standing), Input::Persisted(standing));
                match promise.mirror() {
                    Ok(()) => wanted,
                    Err(error) => report.tell(Err(error), Input::Persisted(standing)),
                }
            }
        };
        if !wanted {
            return;
        }
    }
}

fn sync<D: Disk>(disk: &D, queue: &Receiver<SyncPlan<D>>, report: &Report) {
    for plan in queue {
        let done = plan.carry_out(disk).map(Input::Synced);
        if !report.say(done) {
            return;
        }
    }
}

fn fetch<D: Disk>(disk: &D, queue: &Receiver<(u64, Fetch<D>)>, report: &Report) {
    for (number, plan) in queue {
        plan.carry_out(disk);
        if !report.tell(Ok(()), Input::Fetched(number)) {
            return;
        }
    }
}
