//! The frontend's dealings with its keeper, on a thread beside the loop: no client waits
//! for the keeper.
//!
//! Invariant: a volume that is offered is with the keeper, or will be as soon as
//! there is one again; without a keeper the frontend serves on. What is left with it
//! is left in order, and `Then` comes only afterwards.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, Sender, channel},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use midflight_handover::{Desk, DeskError, Parcel, Stay};

use super::{
    control::Answer,
    exposure::{Asker, Done},
};
use crate::net::{
    address::Address,
    reactor::{LinkId, Reactor, Waker},
};

const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What is done once the keeper has something.
#[derive(Debug)]
pub(super) enum Then {
    Tell(Asker, Answer),
    Switch { volume: String, to: Address, drain_within: Duration },
}

enum Job {
    Put {
        key: String,
        stay: Stay,
        state: Vec<u8>,
        descriptors: Vec<OwnedFd>,
        then: Option<Then>,
    },
    Remove {
        key: String,
    },
    /// There is another keeper, which knows nothing yet.
    Anew(Desk),
    Gone,
}

#[derive(Debug)]
pub(super) struct Keeping {
    path: PathBuf,
    /// A connection on which nothing is said: it closes when the keeper goes away.
    bell: Option<LinkId>,
    retry_at: Option<Instant>,
    jobs: Sender<Job>,
    thread: JoinHandle<()>,
}

impl Keeping {
    /// Takes over what a predecessor left with the keeper; `done` and `waker` are for what
    /// is to happen when something has been kept.
    pub(super) fn begin(
        path: &Path,
        reactor: &mut Reactor,
        done: Sender<Done>,
    ) -> Result<(Keeping, Vec<Parcel>), DeskError> {
        let mut desk = Desk::connect(path)?;
        let parcels = desk.take()?;
        let bell = Some(hang_bell(path, reactor)?);
        let (jobs, waiting) = channel();
        let waker = reactor.waker();
        let thread = thread::Builder::new()
            .name("keeping".into())
            .spawn(move || work(Some(desk), &waiting, &done, &waker))?;
        Ok((Keeping { path: path.to_owned(), bell, retry_at: None, jobs, thread }, parcels))
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Says whether the link was the keeper's; it is looked for from now on.
    pub(super) fn closed(&mut self, now: Instant, link: LinkId) -> bool {
        let ours = self.bell == Some(link);
        if ours {
            tracing::warn!("the keeper is gone");
            self.bell = None;
            self.retry_at = Some(now + LOOK_AGAIN);
            self.ask(Job::Gone);
        }
        ours
    }

    /// Says whether there is a new keeper, which knows nothing yet.
    pub(super) fn found_another(&mut self, now: Instant, reactor: &mut Reactor) -> bool {
        if self.retry_at.is_none_or(|at| at > now) {
            return false;
        }
        let found = Desk::connect(&self.path).and_then(|desk| Ok((desk, hang_bell(&self.path, reactor)?)));
        self.retry_at = found.is_err().then_some(now + LOOK_AGAIN);
        let Ok((desk, bell)) = found else { return false };
        self.bell = Some(bell);
        self.ask(Job::Anew(desk));
        true
    }

    /// Leaves something with the keeper, in place of what the key had; `then` comes afterwards.
    pub(super) fn put(
        &self,
        key: String,
        stay: Stay,
        (state, descriptors): (Vec<u8>, &[BorrowedFd<'_>]),
        then: Option<Then>,
    ) {
        match descriptors.iter().map(|fd| fd.try_clone_to_owned()).collect() {
            Ok(descriptors) => self.ask(Job::Put { key, stay, state, descriptors, then }),
            Err(error) => tracing::error!(key, %error, "leave something with the keeper"),
        }
    }

    pub(super) fn remove(&self, key: String) {
        self.ask(Job::Remove { key });
    }

    fn ask(&self, job: Job) {
        let asked = self.jobs.send(job);
        debug_assert!(asked.is_ok(), "the thread lives as long as this");
    }

    /// Waits until the keeper has everything.
    pub(super) fn finish(self) {
        drop(self.jobs);
        if self.thread.join().is_err() {
            tracing::error!("the thread that speaks to the keeper panicked");
        }
    }
}

fn hang_bell(path: &Path, reactor: &mut Reactor) -> Result<LinkId, DeskError> {
    Ok(reactor.add(Desk::connect(path)?.as_fd().try_clone_to_owned()?)?)
}

fn work(mut desk: Option<Desk>, jobs: &Receiver<Job>, done: &Sender<Done>, waker: &Waker) {
    for job in jobs {
        let (key, result, then) = match (job, &mut desk) {
            (Job::Anew(another), _) => {
                desk = Some(another);
                continue;
            }
            (Job::Gone, _) => {
                desk = None;
                continue;
            }
            (Job::Put { key, stay, state, descriptors, then }, Some(desk)) => {
                let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
                let result = desk.put(&key, stay, &state, &descriptors);
                (key, result, then)
            }
            (Job::Remove { key }, Some(desk)) => {
                let result = desk.remove(&key);
                (key, result, None)
            }
            (Job::Put { key, then, .. }, None) => (key, Ok(()), then),
            (Job::Remove { key }, None) => (key, Ok(()), None),
        };
        if let Err(error) = result {
            tracing::warn!(key, error = &error as &dyn std::error::Error, "speak to the keeper");
        }
        if let Some(then) = then {
            // The driver outlives its threads, or the process ends.
            let _ = done.send(Done::Kept(then));
            waker.wake();
        }
    }
}

/// Waits until no other process is the frontend of this control socket, for as
/// long as the answer is held.
pub(super) fn take_place(control: &Path) -> io::Result<std::fs::File> {
    use rustix::fs::{FlockOperation, flock};
    let mut name = control.as_os_str().to_owned();
    name.push(".lock");
    let lock = std::fs::File::options().write(true).create(true).truncate(false).open(name)?;
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        tracing::info!("stands by until its predecessor ends");
        loop {
            match flock(&lock, FlockOperation::LockExclusive) {
                Err(rustix::io::Errno::INTR) => {}
                locked => break locked?,
            }
        }
    }
    Ok(lock)
}
