//! Backups: the targets they go to, the objects that stand for them, and the volumes that come from them.
//!
//! What takes long is ordered of an instance manager, and listened to by `jobs`; whoever comes next orders it again.

mod copies;
mod jobs;
mod reach;
mod restores;
mod targets;

pub(crate) use copies::Backups;
pub(crate) use restores::Restores;
pub(crate) use targets::BackupTargets;
