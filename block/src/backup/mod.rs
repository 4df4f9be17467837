//! Backups of volumes: the blocks of a snapshot, kept once whoever has them.
//!
//! ```text
//! engine ── snapshot ──▶ create ──▶ blocks/…  (by their hash, compressed)
//!                               └─▶ volumes/V/B  (manifest: which block is where), written last
//! engine ◀── restore ── the blocks of a manifest, or its difference from the one restored before
//! ```
//!
//! `vault` is where they are kept, `block` and `manifest` what is kept, `lease` keeps
//! those who write and those who sweep apart, `create`, `restore` and `keep` (list, verify,
//! delete, sweep) are what can be done, `reader` and `writer` speak to an engine, `progress`
//! says how far it is, `command` is the command line.
//!
//! Invariant: a manifest that is there, and not fenced out, names only blocks that are there.

pub mod block;
pub mod command;
pub mod create;
pub mod keep;
mod lease;
pub mod manifest;
pub mod progress;
mod reader;
pub mod restore;
#[cfg(test)]
mod tests;
pub mod vault;
pub(crate) mod writer;

use std::io;

use self::{block::BadBlock, manifest::BadManifest, vault::VaultError};
use crate::caller::ControlError;

/// Why a backup, or what is done with one, did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error(transparent)]
    Vault(#[from] VaultError),
    #[error("block {name} is damaged")]
    Block { name: String, source: BadBlock },
    #[error("backup {name} is damaged")]
    Manifest { name: String, source: BadManifest },
    #[error("{0:?} is no name: letters, digits, '.', '_' and '-', at most 128, not first a '.'")]
    Name(String),
    #[error("there is no backup {0}")]
    NoBackup(String),
    #[error("there is a backup {0} already; backups are not changed, choose another name")]
    Exists(String),
    #[error("the volume has no snapshot {0}; take it first")]
    NoSnapshot(String),
    #[error("the snapshot was removed while it was read")]
    SnapshotGone,
    #[error("speak to the engine")]
    Engine(#[from] ControlError),
    #[error("speak to the engine")]
    Io(#[from] io::Error),
    #[error("the engine answered {0}; try again when the volume serves")]
    Refused(String),
    #[error("a frontend is attached to the volume: detach it before a restore overwrites it")]
    Attached,
    #[error("the backup has {backup} bytes, the volume {volume}: expand it first")]
    TooSmall { backup: u64, volume: u64 },
    #[error("{what} is under way since {seconds} s; try again when it has ended")]
    Busy { what: String, seconds: u64 },
    #[error("this run was taken for dead and fenced out; run it again")]
    Fenced,
    #[error("{damaged} of {of} are damaged or missing")]
    Damaged { damaged: usize, of: usize },
    #[error("write the result")]
    Output(#[source] io::Error),
}
