//! What is handed over: descriptors with the state that goes with them.
//!
//! Invariant: state travels in a memory file, so it has no limit of size and
//! whoever keeps it never reads it.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::FileExt,
    },
};

use rustix::fs::{MemfdFlags, SealFlags};
use serde::{Deserialize, Serialize};

/// How often a parcel can be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Stay {
    /// Until it is removed: every successor gets it, also one of a process that was killed.
    Lasting,
    /// Once: what it says is true only until someone goes on from it.
    Once,
}

#[derive(Debug)]
pub struct Parcel {
    pub key: String,
    pub stay: Stay,
    pub state: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
}

/// Puts state into a memory file that cannot change any more.
pub(crate) fn seal(state: &[u8]) -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("parcel", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let file = File::from(file);
    file.write_all_at(state, 0)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE)?;
    Ok(file.into())
}

pub(crate) fn unseal(file: impl AsFd) -> io::Result<Vec<u8>> {
    let file = File::from(file.as_fd().try_clone_to_owned()?);
    let mut state = vec![0; usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?];
    file.read_exact_at(&mut state, 0)?;
    Ok(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_state_reads_back_and_does_not_change() {
        for state in [vec![], vec![7; 3 << 20]] {
            let file = seal(&state).unwrap();
            assert_eq!(unseal(&file).unwrap(), state);
            assert_eq!(unseal(&file).unwrap(), state, "reading leaves no mark");
            assert!(File::from(file).write_all_at(b"x", 0).is_err());
        }
    }
}
