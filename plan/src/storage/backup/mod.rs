//! Backups as objects: where they are, how one is made, how a target is looked through, how a volume is brought to one.
//!
//! The invariant: an object says `Completed` only of a backup that the target has.

mod copy;
mod place;
mod restore;
mod target;

pub use copy::{
    Action as CopyAction, Decision as CopyDecision, Found, Observed as CopySeen, Wait as CopyWait,
    decide as decide_copy, newest, was_seen_in,
};
pub use place::{BadPlace, Folder, Place};
pub use restore::{
    Action as RestoreAction, Decision as RestoreDecision, Observed as RestoreSeen, Order as RestoreOrder,
    Wait as RestoreWait, decide as decide_restore, marker,
};
pub use target::{
    Action as TargetAction, Decision as TargetDecision, Listing, Observed as TargetSeen, Wait as TargetWait,
    decide as decide_target, poll_interval,
};

/// Label of a Backup: the volume it is of.
pub const VOLUME: &str = "backup-volume";
/// Label of a Backup: the BackupTarget that holds it.
pub const TARGET: &str = "backup-target";
/// Annotation of a Backup whose target was found not to have it any more: the object goes, and nothing is removed for it.
pub const GONE: &str = "midflight.dev/gone-from-target";
/// The BackupTarget of volumes that name none.
pub const DEFAULT_TARGET: &str = "default";

/// How far work is that was ordered of an instance manager, as long as somebody here listens to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// Nothing was ordered, or nobody knows.
    None,
    Running {
        percent: i32,
    },
    /// It did not come to its end; it is ordered again at that time, unless that cannot help.
    Failed {
        why: String,
        is_final: bool,
        again: jiff::Timestamp,
    },
    /// It is done since then, and so many bytes were not in the target before.
    Done {
        new_bytes: u64,
        at: jiff::Timestamp,
    },
}
