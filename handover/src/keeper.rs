//! A process that holds descriptors while nobody else does, so that whoever
//! serves them can be replaced, or killed, without their other ends noticing.
//!
//! It is small and knows nothing of what it holds: it never needs to change for
//! the sake of those it serves.
//!
//! Invariant: a parcel that is to be taken once is given to one taker only.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    net::{SocketFlags, accept_with, sockopt},
};
use serde::{Deserialize, Serialize};

use crate::{
    packet::{self, MOST_DESCRIPTORS},
    parcel::Stay,
};

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Ask {
    /// The descriptors that come along, in place of what the key had.
    Put {
        key: String,
        stay: Stay,
    },
    Remove {
        key: String,
    },
    Take,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Told {
    Done,
    /// So many parcels follow, each in a message of its own.
    Parcels(usize),
    Parcel {
        key: String,
        stay: Stay,
    },
    Refused(String),
}

/// A parcel at rest: its state, then its descriptors.
#[derive(Debug)]
struct Held {
    stay: Stay,
    descriptors: Vec<OwnedFd>,
}

#[derive(Debug)]
pub struct Keeper {
    door: OwnedFd,
    peers: Vec<OwnedFd>,
    parcels: BTreeMap<String, Held>,
}

const MOST_PARCELS: usize = 1 << 16;
/// A peer that does not take what it asked for is let go after this long.
const PATIENCE: Duration = Duration::from_secs(1);

impl Keeper {
    /// Listens; a dead predecessor's socket file is replaced.
    pub fn bind(path: &Path) -> io::Result<Keeper> {
        Ok(Keeper { door: packet::listen(path, 64)?, peers: Vec::new(), parcels: BTreeMap::new() })
    }

    /// Serves until the process is stopped.
    pub fn run(mut self) -> io::Result<()> {
        loop {
            let mut wanted = vec![PollFd::new(&self.door, PollFlags::IN)];
            wanted.extend(self.peers.iter().map(|peer| PollFd::new(peer, PollFlags::IN)));
            match poll(&mut wanted, None) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let ready: Vec<bool> = wanted.iter().map(|entry| !entry.revents().is_empty()).collect();
            drop(wanted);
            let peers = std::mem::take(&mut self.peers);
            for (peer, ready) in peers.into_iter().zip(&ready[1..]) {
                if !ready || self.hear(peer.as_fd()) {
                    self.peers.push(peer);
                }
            }
            if ready[0] {
                self.admit();
            }
        }
    }

    fn admit(&mut self) {
        let admitted = accept_with(&self.door, SocketFlags::CLOEXEC).and_then(|peer| {
            sockopt::set_socket_timeout(&peer, sockopt::Timeout::Send, Some(PATIENCE))?;
            Ok(peer)
        });
        match admitted {
            Ok(peer) => self.peers.push(peer),
            Err(error) => tracing::warn!(%error, "accept"),
        }
    }

    /// Says whether the peer is still there.
    fn hear(&mut self, peer: BorrowedFd<'_>) -> bool {
        let heard = match packet::receive(peer) {
            Ok(Some((bytes, descriptors))) => self.answer(peer, &bytes, descriptors),
            Ok(None) => return false,
            Err(error) => Err(error),
        };
        if let Err(error) = &heard {
            tracing::warn!(%error, "peer let go");
        }
        heard.is_ok()
    }

    fn answer(&mut self, peer: BorrowedFd<'_>, bytes: &[u8], descriptors: Vec<OwnedFd>) -> io::Result<()> {
        let told = match serde_json::from_slice(bytes) {
            Ok(Ask::Put { key, stay }) => self.put(key, stay, descriptors),
            Ok(Ask::Remove { key }) => {
                self.parcels.remove(&key);
                Told::Done
            }
            Ok(Ask::Take) => return self.give(peer),
            Err(error) => Told::Refused(format!("not understood: {error}")),
        };
        tell(peer, &told, &[])
    }

    fn put(&mut self, key: String, stay: Stay, descriptors: Vec<OwnedFd>) -> Told {
        if descriptors.is_empty() || descriptors.len() > MOST_DESCRIPTORS {
            return Told::Refused("a parcel has its state and a few descriptors".into());
        }
        if self.parcels.len() >= MOST_PARCELS && !self.parcels.contains_key(&key) {
            return Told::Refused("there is no room for more parcels".into());
        }
        self.parcels.insert(key, Held { stay, descriptors });
        Told::Done
    }

    fn give(&mut self, peer: BorrowedFd<'_>) -> io::Result<()> {
        tell(peer, &Told::Parcels(self.parcels.len()), &[])?;
        let once: Vec<String> = self
            .parcels
            .iter()
            .filter(|(_, held)| held.stay == Stay::Once)
            .map(|(key, _)| key.clone())
            .collect();
        for (key, held) in &self.parcels {
            let descriptors: Vec<BorrowedFd> = held.descriptors.iter().map(AsFd::as_fd).collect();
            tell(peer, &Told::Parcel { key: key.clone(), stay: held.stay }, &descriptors)?;
        }
        once.iter().for_each(|key| {
            self.parcels.remove(key);
        });
        Ok(())
    }
}

fn tell(peer: BorrowedFd<'_>, told: &Told, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    packet::send(peer, &serde_json::to_vec(told).map_err(io::Error::other)?, descriptors)
}
