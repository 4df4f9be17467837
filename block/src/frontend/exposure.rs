//! Makes volumes block devices, and takes that back.
//!
//! Mounting and loop devices ask the very process that serves the file, so they
//! are done on a thread beside the loop.
//!
//! Invariant: a session is ended only when no loop device is on its file.

use std::{
    io,
    path::{Path, PathBuf},
    thread,
    time::Instant,
};

use midflight_handover::kernel::unmount;

use super::{
    control::Answer,
    core::Input,
    devices::NextCall,
    keeping::Then,
    serve::{Driver, Place},
};
use crate::{
    blockdev::{
        mount::{LoopDevice, attach_loop, detach_loop, left_behind, mount},
        shield,
    },
    net::reactor::LinkId,
};

/// A command's giver and its number.
pub(super) type Asker = (LinkId, u64);

/// What the thread beside has done.
pub(super) enum Done {
    Looped {
        link: LinkId,
        asker: Asker,
        volume: String,
        at: PathBuf,
        device: io::Result<LoopDevice>,
    },
    Unlooped {
        link: LinkId,
        asker: Asker,
        result: io::Result<()>,
    },
    /// The keeper has what was to be with it first.
    Kept(Then),
}

/// Takes a device away that nobody was told of.
fn clear(device: &LoopDevice, at: &Path) {
    match detach_loop(device, at) {
        Ok(()) => tracing::warn!(device = %device.path.display(), "was left behind, and is taken away"),
        Err(error) => tracing::warn!(%error, "a device was left behind"),
    }
}

impl Driver {
    /// Begins; the answer comes when the loop device is there, or is given at once.
    pub(super) fn expose(&mut self, asker: Asker, volume: &str, at: &Path) -> Option<Answer> {
        if !self.volumes.contains_key(volume) {
            return Some(Answer::Refused(format!("{volume} is not attached")));
        }
        if let Some(link) = self.devices.of_volume(volume) {
            let Some((exposed, _)) = self.devices.exposed(link) else {
                return Some(Answer::Refused(format!("{volume} is being exposed")));
            };
            if exposed.is_there() {
                return Some(Answer::Exposed(exposed.device.path));
            }
            self.devices.is_at(link, None);
            self.put_loop(asker, link, (volume, &exposed.mount), Vec::new());
            return None;
        }
        let left = left_behind(at);
        let opened = mount(at).and_then(|session| {
            self.devices.open(&mut self.reactor, volume.to_owned(), at.to_owned(), session)
        });
        let link = match opened {
            Ok(link) => link,
            Err(error) => return Some(Answer::Refused(format!("mount at {}: {error}", at.display()))),
        };
        if !shield::is_raised() {
            tracing::warn!(volume, "{}", shield::BARE);
        }
        self.put_loop(asker, link, (volume, at), left);
        None
    }

    fn put_loop(&self, asker: Asker, link: LinkId, (volume, at): (&str, &Path), left: Vec<LoopDevice>) {
        let (volume, at) = (volume.to_owned(), at.to_owned());
        let (done, waker) = (self.done.clone(), self.reactor.waker());
        thread::spawn(move || {
            left.iter().for_each(|device| clear(device, &at));
            let device = attach_loop(&at);
            // The driver outlives its threads, or the process ends.
            let _ = done.send(Done::Looped { link, asker, volume, at, device });
            waker.wake();
        });
    }

    pub(super) fn withdraw(&mut self, asker: Asker, volume: &str) -> Option<Answer> {
        let Some(link) = self.devices.of_volume(volume) else { return Some(Answer::Withdrawn) };
        let Some((exposed, _)) = self.devices.exposed(link) else {
            return Some(Answer::Refused(format!("{volume} is being exposed")));
        };
        let (done, waker) = (self.done.clone(), self.reactor.waker());
        thread::spawn(move || {
            let result = detach_loop(&exposed.device, &exposed.mount);
            let _ = done.send(Done::Unlooped { link, asker, result });
            waker.wake();
        });
        None
    }

    pub(super) fn on_done(&mut self, now: Instant) {
        while let Ok(done) = self.works.try_recv() {
            let (asker, answer) = match done {
                Done::Kept(then) => {
                    self.go_on(now, then);
                    continue;
                }
                Done::Looped { link, asker, volume, at, device: Ok(device) }
                    if self.devices.volume(link).is_none() =>
                {
                    thread::spawn(move || clear(&device, &at));
                    (asker, Answer::Refused(format!("{volume} was detached meanwhile")))
                }
                Done::Looped { link, asker, device: Ok(device), .. } => {
                    let path = device.path.clone();
                    self.devices.is_at(link, Some(device));
                    self.keep_device(now, link, Some(Then::Tell(asker, Answer::Exposed(path))));
                    continue;
                }
                Done::Looped { link, asker, device: Err(error), .. } => {
                    self.end_session(link);
                    (asker, Answer::Refused(format!("make a loop device: {error}")))
                }
                Done::Unlooped { link, asker, result: Ok(()) } => {
                    self.end_session(link);
                    (asker, Answer::Withdrawn)
                }
                Done::Unlooped { asker, result: Err(error), .. } => {
                    (asker, Answer::Refused(format!("remove the loop device: {error}")))
                }
            };
            self.tell(asker.0, asker.1, &answer);
        }
    }

    /// Ends a session for good: whoever still calls gets errors.
    pub(super) fn end_session(&mut self, link: LinkId) {
        let Some(volume) = self.devices.volume(link).cloned() else { return };
        if let Some(at) = self.devices.remove(&mut self.reactor, link) {
            self.forget_device(&volume);
            unmount(&at);
        }
    }

    pub(super) fn on_device(&mut self, now: Instant, link: LinkId) {
        let Some(volume) = self.devices.volume(link).cloned() else { return };
        let Some(size) = self.volumes.get(&volume).map(|place: &Place| place.core.size()) else { return };
        loop {
            match self.devices.next(link, size, now) {
                NextCall::Wait => return,
                NextCall::Request(request) => self.feed(now, &volume, Input::Request(request)),
                NextCall::Gone => return self.end_session(link),
            }
        }
    }
}
