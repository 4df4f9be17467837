//! Volumes as block devices: the kernel as a client of the frontend.
//!
//! Invariant: a call that has no answer is known to the kernel, which sends it
//! again when asked; so a frontend may die at any moment.

use std::{
    io::{self, IoSlice},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    time::Instant,
};

use bytes::Bytes;
use midflight_handover::kernel::resend;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::{core::Answer, table::Request};
use crate::{
    blockdev::{
        mount::LoopDevice,
        protocol::{Carried, MOST_CALL, Turn, answer_head, turn},
    },
    net::{
        by_link::ByLink,
        reactor::{LinkId, Reactor},
    },
    wire::checksum,
};

/// A volume's file system and loop device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Exposed {
    pub(super) volume: String,
    pub(super) mount: PathBuf,
    #[serde(flatten)]
    pub(super) device: LoopDevice,
}

impl Exposed {
    /// Whether the device is still there: one that was to go has gone with its last user.
    pub(super) fn is_there(&self) -> bool {
        self.device.is_of(&self.mount)
    }
}

#[derive(Debug)]
struct Device {
    volume: String,
    mount: PathBuf,
    session: OwnedFd,
    /// Where calls are read to. Every page of it is there: the kernel fails a call
    /// whose reader is killed while it waits for memory, and does not send it again.
    input: Vec<u8>,
    /// The loop device, once there is one.
    device: Option<LoopDevice>,
}

/// What a session's calls amount to.
pub(super) enum NextCall {
    /// No call waits.
    Wait,
    Request(Request),
    /// Nobody can call any more.
    Gone,
}

#[derive(Debug, Default)]
pub(super) struct Devices {
    all: ByLink<Device>,
}

impl Devices {
    pub(super) fn open(
        &mut self,
        reactor: &mut Reactor,
        volume: String,
        mount: PathBuf,
        session: OwnedFd,
    ) -> io::Result<LinkId> {
        let link = reactor.watch(session.as_fd())?;
        self.all.insert(link, Device { volume, mount, session, input: touched(MOST_CALL), device: None });
        Ok(link)
    }

    /// Goes on with a predecessor's session.
    pub(super) fn resume(
        &mut self,
        reactor: &mut Reactor,
        exposed: Exposed,
        session: OwnedFd,
    ) -> io::Result<()> {
        let link = self.open(reactor, exposed.volume, exposed.mount, session)?;
        if let Some(device) = self.all.get_mut(&link) {
            device.device = Some(exposed.device);
            rustix::io::write(&device.session, &resend())?;
        }
        Ok(())
    }

    pub(super) fn volume(&self, link: LinkId) -> Option<&String> {
        self.all.get(&link).map(|device| &device.volume)
    }

    pub(super) fn of_volume(&self, volume: &str) -> Option<LinkId> {
        self.all.iter().find(|(_, device)| device.volume == volume).map(|(link, _)| *link)
    }

    /// The loop device of a session, or that it has none now.
    pub(super) fn is_at(&mut self, link: LinkId, at: Option<LoopDevice>) {
        if let Some(device) = self.all.get_mut(&link) {
            device.device = at;
        }
    }

    /// The session and what belongs to it, when it is complete.
    pub(super) fn exposed(&self, link: LinkId) -> Option<(Exposed, BorrowedFd<'_>)> {
        let device = self.all.get(&link)?;
        let exposed = Exposed {
            volume: device.volume.clone(),
            mount: device.mount.clone(),
            device: device.device.clone()?,
        };
        Some((exposed, device.session.as_fd()))
    }

    /// Ends a session; gives the folder of its file system.
    pub(super) fn remove(&mut self, reactor: &mut Reactor, link: LinkId) -> Option<PathBuf> {
        let device = self.all.remove(&link)?;
        reactor.unwatch(link, device.session.as_fd());
        Some(device.mount)
    }

    /// The next call that the volume has to carry out; others are answered here.
    pub(super) fn next(&mut self, link: LinkId, size: u64, now: Instant) -> NextCall {
        let Some(device) = self.all.get_mut(&link) else { return NextCall::Gone };
        loop {
            let length = match rustix::io::read(&device.session, &mut device.input[..]) {
                Ok(length) => length,
                Err(Errno::AGAIN) => return NextCall::Wait,
                // It was taken back before we read it.
                Err(Errno::INTR | Errno::NOENT) => continue,
                Err(_) => return NextCall::Gone,
            };
            match turn(Bytes::copy_from_slice(&device.input[..length]), size) {
                Ok(Turn::Nothing) => {}
                Ok(Turn::Answer(answer)) => device.say(&answer, &[]),
                Ok(Turn::Carry(Carried { unique, op, extent, payload })) => {
                    return NextCall::Request(Request {
                        client: link,
                        cookie: unique,
                        op,
                        fua: false,
                        extent,
                        check: checksum(&payload),
                        payload,
                        arrived: now,
                    });
                }
                Err(error) => tracing::warn!(%error, "call not understood"),
            }
        }
    }

    /// Says whether the answer was for a device.
    pub(super) fn answer(&self, answer: &Answer) -> bool {
        let Some(device) = self.all.get(&answer.client) else { return false };
        let head = answer_head(answer.cookie, answer.op, answer.extent, answer.status);
        device.say(&head, &answer.data);
        true
    }
}

/// Memory that has been written to; zeroes would be only a promise of it.
fn touched(length: usize) -> Vec<u8> {
    vec![0xff; length]
}

impl Device {
    fn say(&self, head: &[u8], data: &[u8]) {
        let parts = [IoSlice::new(head), IoSlice::new(data)];
        match rustix::io::writev(&self.session, &parts[..if data.is_empty() { 1 } else { 2 }]) {
            // Nobody waits for it any more.
            Ok(_) | Err(Errno::NOENT) => {}
            Err(error) => tracing::warn!(volume = self.volume, %error, "answer the kernel"),
        }
    }
}
