//! The keeper from the side of those who put and take.
//!
//! Invariant: when `put` has returned, a successor finds the parcel even if this
//! process dies at once.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    time::Duration,
};

use rustix::net::sockopt;

use crate::{
    keeper::{Ask, Told},
    packet,
    parcel::{Parcel, Stay, seal, unseal},
};

#[derive(Debug)]
pub struct Desk {
    socket: OwnedFd,
}

#[derive(Debug, thiserror::Error)]
pub enum DeskError {
    #[error("talk to the keeper")]
    Io(#[from] io::Error),
    #[error("the keeper has gone")]
    Gone,
    #[error("the keeper's answer is not understood")]
    Json(#[from] serde_json::Error),
    #[error("the keeper refused: {0}")]
    Refused(String),
}

/// The keeper does nothing that takes time.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// Readable when the keeper has gone; nothing may be read from it.
impl AsFd for Desk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Desk {
    pub fn connect(path: &Path) -> Result<Desk, DeskError> {
        let socket = packet::connect(path)?;
        for direction in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
            sockopt::set_socket_timeout(&socket, direction, Some(ANSWER_WITHIN)).map_err(io::Error::from)?;
        }
        Ok(Desk { socket })
    }

    /// Leaves a parcel with the keeper, in place of one with the same key.
    pub fn put(
        &mut self,
        key: &str,
        stay: Stay,
        state: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), DeskError> {
        let state = seal(state)?;
        let all: Vec<BorrowedFd> = [state.as_fd()].into_iter().chain(descriptors.iter().copied()).collect();
        self.ask(&Ask::Put { key: key.to_owned(), stay }, &all)
    }

    pub fn remove(&mut self, key: &str) -> Result<(), DeskError> {
        self.ask(&Ask::Remove { key: key.to_owned() }, &[])
    }

    /// Takes everything. What is lasting stays with the keeper as well.
    pub fn take(&mut self) -> Result<Vec<Parcel>, DeskError> {
        self.say(&Ask::Take, &[])?;
        let count = match self.hear()? {
            (Told::Parcels(count), _) => count,
            (other, _) => return Err(DeskError::Refused(format!("{other:?}"))),
        };
        let mut parcels = Vec::new();
        for _ in 0..count {
            match self.hear()? {
                (Told::Parcel { key, stay }, descriptors) if !descriptors.is_empty() => {
                    let mut descriptors = descriptors.into_iter();
                    let state = descriptors.next().map_or(Ok(Vec::new()), unseal)?;
                    parcels.push(Parcel { key, stay, state, descriptors: descriptors.collect() });
                }
                (other, _) => return Err(DeskError::Refused(format!("{other:?}"))),
            }
        }
        Ok(parcels)
    }

    fn ask(&mut self, ask: &Ask, descriptors: &[BorrowedFd<'_>]) -> Result<(), DeskError> {
        self.say(ask, descriptors)?;
        match self.hear()?.0 {
            Told::Done => Ok(()),
            Told::Refused(why) => Err(DeskError::Refused(why)),
            other => Err(DeskError::Refused(format!("{other:?}"))),
        }
    }

    fn say(&self, ask: &Ask, descriptors: &[BorrowedFd<'_>]) -> Result<(), DeskError> {
        Ok(packet::send(&self.socket, &serde_json::to_vec(ask)?, descriptors)?)
    }

    fn hear(&self) -> Result<(Told, Vec<OwnedFd>), DeskError> {
        let (bytes, descriptors) = packet::receive(&self.socket)?.ok_or(DeskError::Gone)?;
        Ok((serde_json::from_slice(&bytes)?, descriptors))
    }
}
