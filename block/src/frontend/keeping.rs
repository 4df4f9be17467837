//! The frontend's dealings with its keeper.
//!
//! Invariant: a volume that is offered is with the keeper, or will be as soon as
//! there is one again; without a keeper the frontend serves on.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use midflight_handover::{Desk, DeskError, Parcel, Stay};

use crate::net::reactor::{LinkId, Reactor};

const LOOK_AGAIN: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Keeping {
    path: PathBuf,
    desk: Option<(Desk, LinkId)>,
    retry_at: Option<Instant>,
}

impl Keeping {
    /// Takes over what a predecessor left with the keeper.
    pub(super) fn begin(path: &Path, reactor: &mut Reactor) -> Result<(Keeping, Vec<Parcel>), DeskError> {
        let mut keeping = Keeping { path: path.to_owned(), desk: None, retry_at: None };
        let parcels = keeping.connect(reactor)?.take()?;
        Ok((keeping, parcels))
    }

    fn connect(&mut self, reactor: &mut Reactor) -> Result<&mut Desk, DeskError> {
        let desk = Desk::connect(&self.path)?;
        // The reactor says when the keeper goes away.
        let link = reactor.add(desk.as_fd().try_clone_to_owned()?)?;
        Ok(&mut self.desk.insert((desk, link)).0)
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Says whether the link was the keeper's; it is looked for from now on.
    pub(super) fn closed(&mut self, now: Instant, link: LinkId) -> bool {
        let ours = self.desk.as_ref().is_some_and(|(_, desk)| *desk == link);
        if ours {
            tracing::warn!("the keeper is gone");
            self.desk = None;
            self.retry_at = Some(now + LOOK_AGAIN);
        }
        ours
    }

    /// Says whether there is a new keeper, which knows nothing yet.
    pub(super) fn found_another(&mut self, now: Instant, reactor: &mut Reactor) -> bool {
        if self.retry_at.is_none_or(|at| at > now) {
            return false;
        }
        let found = self.connect(reactor).is_ok();
        self.retry_at = (!found).then_some(now + LOOK_AGAIN);
        found
    }

    pub(super) fn put(&mut self, key: &str, stay: Stay, state: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let Some((desk, _)) = &mut self.desk else { return };
        if let Err(error) = desk.put(key, stay, state, descriptors) {
            tracing::warn!(key, error = &error as &dyn std::error::Error, "put with the keeper");
        }
    }

    pub(super) fn remove(&mut self, key: &str) {
        let Some((desk, _)) = &mut self.desk else { return };
        if let Err(error) = desk.remove(key) {
            tracing::warn!(key, error = &error as &dyn std::error::Error, "remove from the keeper");
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
