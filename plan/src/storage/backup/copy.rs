//! Decides the next step of a backup: a snapshot is copied to a target once, and kept there until it is deleted.
//!
//! ```text
//! asked for ──▶ Pending ──▶ InProgress ──▶ Completed ──deleted──▶ removed from the target ──▶ gone
//!                  └────────────┴────────▶ Error             found in the target ──▶ Completed
//! ```
//!
//! The invariant: a backup is `Completed` only when its target has said that it has it, and removed only when nobody makes it any more.

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use midflight_api::Size;
use midflight_api::longhorn::{
    Backup, BackupState, BackupStatus, BackupTarget, FINALIZER, Snapshot, Volume, VolumeState,
};

use super::{BadPlace, Folder, GONE, Place, TARGET, VOLUME, Work};
use crate::storage::volume::Serving;

/// What a backup names may be made after it, by whoever makes all of it at once, and within this.
const COMES_WITHIN: SignedDuration = SignedDuration::from_secs(30);

/// How far it is in percent when nothing is to be copied any more, and nobody has seen it in its target.
const NEARLY: i32 = 99;

/// What one node has written all nodes see within this, also through a network.
const SEEN_WITHIN: SignedDuration = SignedDuration::from_secs(90);

/// A backup and what it hangs on.
#[derive(Debug, Clone)]
pub struct Observed {
    pub now: Timestamp,
    pub backup: Backup,
    /// Name of the volume it is of; empty if nothing says it.
    pub volume_name: String,
    pub volume: Option<Volume>,
    pub snapshot: Option<Snapshot>,
    /// Name of the target that it belongs to.
    pub target_name: String,
    pub target: Option<BackupTarget>,
    /// Whether the target was seen to have backups.
    pub is_target_used: bool,
    /// What the volume's engine says, if it was reached.
    pub engine: Option<Serving>,
    /// Whether the engine's node is being upgraded.
    pub is_upgrading: bool,
    pub work: Work,
    /// What the target has under this name, if it was asked.
    pub found: Option<Result<Option<Found>, String>>,
}

/// A backup as its target has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub snapshot: String,
    pub created: Timestamp,
    pub size: Size,
}

/// One step. Each is safe to repeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Keep the object until its backup is gone; say of which volume and where it is.
    Protect,
    /// Let the engine's instance manager copy the snapshot. A folder that has backups has to be there.
    Copy { folder: Folder, existing: bool },
    /// Remove it from the target, then let the object go. If it was there once, the folder has to be.
    Remove { folder: Folder, existing: bool },
    /// Nothing of it is left.
    Release,
}

/// Why nothing is being done. Shown to the user verbatim.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Wait {
    #[error("all is as it should be")]
    Content,
    #[error("it is not said of which volume: name a snapshot that exists, or set the label {VOLUME}")]
    NoVolumeName,
    #[error("there is no BackupTarget {0}")]
    NoTarget(String),
    #[error("{0}")]
    BadTarget(BadPlace),
    #[error("{0}")]
    Unreachable(String),
    #[error("the target has no such backup")]
    NotThere,
    #[error("the target has a backup of this name, of another snapshot; choose another name")]
    OtherThere,
    #[error("volume {0} does not exist")]
    NoVolume(String),
    #[error("volume {0} follows a backup; activate it first")]
    Standby(String),
    #[error("volume {0} is not attached, and only a volume that is attached can be backed up")]
    Detached(String),
    #[error("the engine of volume {0} does not answer")]
    Silent(String),
    #[error(
        "volume {volume} has no snapshot {snapshot}; `midflight volume snapshot ls {volume}` lists those that it has"
    )]
    NoSnapshot { volume: String, snapshot: String },
    #[error("snapshot {0} is not taken yet")]
    NotTaken(String),
    #[error("the node of its engine is being upgraded; it is backed up afterwards")]
    Upgrading,
    #[error("it was copied, and is not seen in the target yet")]
    Unseen,
    #[error(
        "it was copied to {0}, and is not there: not all nodes see the same folder under that name; let them, and create another backup"
    )]
    Lost(Folder),
    #[error("{percent} percent are copied")]
    Copying { percent: i32 },
    #[error("{why}; it is tried again")]
    Failed { why: String, again: Timestamp },
    #[error("{0}")]
    GivenUp(String),
}

/// What is to be written down and done.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    pub status: BackupStatus,
    pub next: Result<Action, Wait>,
}

pub fn decide(seen: &Observed) -> Decision {
    let next = next(seen);
    Decision { status: status(seen, &next), next }
}

/// The newest of those that are complete and stay.
pub fn newest<'a>(backups: impl IntoIterator<Item = &'a Backup>) -> Option<&'a Backup> {
    let age = |backup: &&Backup| {
        let status = backup.status.as_ref()?;
        let when = |text: &str| text.parse::<Timestamp>().ok();
        Some((
            when(status.backup_created_at.as_str()),
            when(status.snapshot_created_at.as_str()),
            backup.name_any(),
        ))
    };
    let counts = |backup: &&Backup| is_complete(backup) && backup.metadata.deletion_timestamp.is_none();
    backups.into_iter().filter(counts).max_by_key(age)
}

/// Whether a backup was seen in a folder, and is not known to have left it.
pub fn was_seen_in(backup: &Backup, folder: &Folder) -> bool {
    let url = backup.status.as_ref().map(|status| status.url.to_string()).unwrap_or_default();
    Place::parse(&url).is_ok_and(|place| place.folder == *folder)
}

fn is_complete(backup: &Backup) -> bool {
    backup.status.as_ref().is_some_and(|status| status.state == BackupState::Completed)
}

impl Observed {
    fn state(&self) -> BackupState {
        self.backup.status.as_ref().map(|status| status.state).unwrap_or_default()
    }

    /// Whether what it names should be there by now.
    fn is_late(&self) -> bool {
        let made = self.backup.metadata.creation_timestamp.as_ref().map(|made| made.0);
        made.is_some_and(|made| made.saturating_add(COMES_WITHIN).is_ok_and(|until| until <= self.now))
    }

    /// Whether its snapshot was asked for, and can still be taken.
    fn is_to_be_taken(&self) -> bool {
        let is_asked = |snapshot: &&Snapshot| {
            let was_taken = snapshot.status.as_ref().is_some_and(|status| !status.creation_time.is_empty());
            let is_going = snapshot.metadata.deletion_timestamp.is_some();
            let is_wanted = snapshot.spec.create_snapshot && !was_taken && !is_going;
            snapshot.spec.volume == self.volume_name.as_str() && is_wanted
        };
        self.snapshot.as_ref().filter(is_asked).is_some()
    }

    /// Whether what the target has under its name is another's.
    fn is_anothers(&self) -> bool {
        let asked = &self.backup.spec.snapshot_name;
        let found = self.found.as_ref().and_then(|found| found.as_ref().ok()?.as_ref());
        found.is_some_and(|found| !asked.is_empty() && found.snapshot != asked.as_str())
    }

    /// Bytes that the volume had when its snapshot was taken; 0 if nobody knows.
    pub fn size_then(&self) -> u64 {
        let taken = self.snapshot.as_ref().filter(|taken| taken.spec.volume == self.volume_name.as_str());
        let status = taken.and_then(|taken| taken.status.as_ref());
        status.and_then(|status| status.restore_size.try_into().ok()).unwrap_or_default()
    }

    /// Whether a copy was ordered, and nobody here knows what became of it.
    pub fn is_unheard_of(&self) -> bool {
        self.state() == BackupState::InProgress && self.work == Work::None && !self.volume_name.is_empty()
    }

    /// Whether the target has to be asked what it has under this name.
    pub fn wants_to_know(&self) -> bool {
        if self.backup.metadata.deletion_timestamp.is_some() {
            // One that failed may have done so because its name was taken.
            return matches!(self.state(), BackupState::Error | BackupState::Deleting);
        }
        let is_foreign = self.backup.spec.snapshot_name.is_empty();
        match self.state() {
            BackupState::Completed | BackupState::Error | BackupState::Deleting => false,
            BackupState::New | BackupState::Pending => is_foreign,
            BackupState::InProgress | BackupState::Unknown | BackupState::Unrecognised => {
                is_foreign || matches!(self.work, Work::None | Work::Done { .. })
            }
        }
    }

    /// The folder of its target.
    pub fn folder(&self) -> Result<Folder, Wait> {
        let target = self.target.as_ref().ok_or_else(|| Wait::NoTarget(self.target_name.clone()))?;
        Folder::parse(target.spec.backup_target_url.as_str()).map_err(Wait::BadTarget)
    }
}

fn next(seen: &Observed) -> Result<Action, Wait> {
    let is_protected = seen.backup.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
    if seen.backup.metadata.deletion_timestamp.is_some() {
        return if is_protected { delete(seen) } else { Err(Wait::Content) };
    }
    if seen.volume_name.is_empty() && seen.state() != BackupState::Error {
        return Err(Wait::NoVolumeName);
    }
    let says = |label: &str, value: &str| seen.backup.labels().get(label).is_some_and(|there| there == value);
    let is_labelled = says(VOLUME, &seen.volume_name) && says(TARGET, &seen.target_name);
    if !seen.volume_name.is_empty() && (!is_protected || !is_labelled) {
        return Ok(Action::Protect);
    }
    match seen.state() {
        BackupState::Completed => return Err(Wait::Content),
        BackupState::Error => {
            let why = seen.backup.status.as_ref().map(|status| status.error.to_string());
            return Err(Wait::GivenUp(why.unwrap_or_default()));
        }
        BackupState::New
        | BackupState::Pending
        | BackupState::InProgress
        | BackupState::Unknown
        | BackupState::Deleting
        | BackupState::Unrecognised => {}
    }
    let folder = seen.folder()?;
    let asked = &seen.backup.spec.snapshot_name;
    match &seen.found {
        Some(Err(why)) => return Err(Wait::Unreachable(why.clone())),
        Some(Ok(Some(_))) if seen.is_anothers() => return Err(Wait::OtherThere),
        Some(Ok(Some(_))) => return Err(Wait::Content),
        Some(Ok(None)) if asked.is_empty() => return Err(Wait::NotThere),
        Some(Ok(None)) | None => {}
    }
    if let (Work::Done { at, .. }, Some(Ok(None))) = (&seen.work, &seen.found) {
        let is_late = at.saturating_add(SEEN_WITHIN).is_ok_and(|until| until <= seen.now);
        return Err(if is_late { Wait::Lost(folder) } else { Wait::Unseen });
    }
    copy(seen, folder)
}

/// Copies the snapshot, if the volume's engine can be asked for it.
fn copy(seen: &Observed, folder: Folder) -> Result<Action, Wait> {
    match &seen.work {
        Work::Running { percent } => return Err(Wait::Copying { percent: *percent }),
        Work::Failed { why, is_final: true, .. } => return Err(Wait::GivenUp(why.clone())),
        Work::Failed { why, again, .. } if *again > seen.now => {
            return Err(Wait::Failed { why: why.clone(), again: *again });
        }
        Work::Failed { .. } | Work::None | Work::Done { .. } => {}
    }
    let name = || seen.volume_name.clone();
    let volume = seen.volume.as_ref().filter(|volume| volume.metadata.deletion_timestamp.is_none());
    let volume = volume.ok_or_else(|| Wait::NoVolume(name()))?;
    let status = volume.status.clone().unwrap_or_default();
    if volume.spec.standby || status.is_standby || status.restore_required {
        return Err(Wait::Standby(name()));
    }
    let Some(engine) = seen.engine.as_ref().filter(|engine| engine.serving) else {
        let is_attached = status.state == VolumeState::Attached;
        return Err(if is_attached { Wait::Silent(name()) } else { Wait::Detached(name()) });
    };
    let snapshot = seen.backup.spec.snapshot_name.as_str();
    if !engine.snapshots.iter().any(|known| known == snapshot) {
        return Err(match seen.is_to_be_taken() {
            true => Wait::NotTaken(snapshot.to_owned()),
            false => Wait::NoSnapshot { volume: name(), snapshot: snapshot.to_owned() },
        });
    }
    if seen.is_upgrading {
        return Err(Wait::Upgrading);
    }
    Ok(Action::Copy { folder, existing: seen.is_target_used })
}

fn delete(seen: &Observed) -> Result<Action, Wait> {
    let was_ordered = !matches!(seen.state(), BackupState::New | BackupState::Pending);
    if let Work::Running { percent } = seen.work {
        return Err(Wait::Copying { percent });
    }
    // What a target had and has not may be away with its folder, and come back with it.
    if seen.backup.annotations().contains_key(GONE) {
        return Ok(Action::Release);
    }
    // What belongs to no target that is known cannot be reached, and holds nothing up.
    match seen.folder() {
        // Who ordered the copy is gone, and who makes it may be at it still: what is removed before its end would come back. The same
        // order given again tells of that end.
        Ok(folder) if seen.is_unheard_of() && seen.engine.as_ref().is_some_and(|engine| engine.serving) => {
            Ok(Action::Copy { folder, existing: seen.is_target_used })
        }
        Ok(_) if seen.is_anothers() => Ok(Action::Release),
        Ok(folder) if was_ordered && !seen.volume_name.is_empty() => {
            let existing = was_seen_in(&seen.backup, &folder);
            Ok(Action::Remove { folder, existing })
        }
        Ok(_) | Err(_) => Ok(Action::Release),
    }
}

fn status(seen: &Observed, next: &Result<Action, Wait>) -> BackupStatus {
    let mut status = seen.backup.status.clone().unwrap_or_default();
    let is_deleting = seen.backup.metadata.deletion_timestamp.is_some();
    status.state = match next {
        // Until its end is heard it is being made: whoever comes next has to know.
        Ok(Action::Copy { .. }) | Err(Wait::Copying { .. }) if is_deleting => BackupState::InProgress,
        _ if is_deleting => match status.state {
            BackupState::New | BackupState::Pending => status.state,
            _ => BackupState::Deleting,
        },
        Ok(Action::Copy { .. }) | Err(Wait::Copying { .. }) => BackupState::InProgress,
        Ok(Action::Protect | Action::Remove { .. } | Action::Release) => status.state,
        Err(Wait::Content) => BackupState::Completed,
        Err(Wait::NotThere | Wait::OtherThere | Wait::Lost(_) | Wait::GivenUp(_)) => BackupState::Error,
        // The volume will not come back, and half a backup is none.
        Err(Wait::NoVolume(_)) if status.state == BackupState::InProgress => BackupState::Error,
        Err(Wait::NoVolumeName | Wait::NoVolume(_) | Wait::NoSnapshot { .. }) if seen.is_late() => {
            BackupState::Error
        }
        Err(_) if matches!(status.state, BackupState::New | BackupState::Pending) => BackupState::Pending,
        Err(_) => status.state,
    };
    status.error = match next {
        // What is copied and comes into sight by itself is no error.
        Err(Wait::Content | Wait::Copying { .. } | Wait::Unseen) => "".into(),
        Err(wait) => wait.to_string().into(),
        Ok(_) => status.error,
    };
    status.backup_target_name = seen.target_name.as_str().into();
    status.volume_name = seen.volume_name.as_str().into();
    if status.snapshot_name.is_empty() {
        status.snapshot_name = seen.backup.spec.snapshot_name.clone();
    }
    if !seen.backup.spec.labels.is_empty() {
        status.labels = seen.backup.spec.labels.clone();
    }
    of_volume(&mut status, seen);
    match next {
        Err(Wait::Copying { percent }) => status.progress = *percent,
        Err(Wait::Unseen) => status.progress = NEARLY,
        Ok(_) | Err(_) => {}
    }
    if let (Some(Ok(Some(found))), BackupState::Completed) = (&seen.found, status.state) {
        of_found(&mut status, found, seen);
    }
    status
}

fn of_volume(status: &mut BackupStatus, seen: &Observed) {
    if let Some(volume) = &seen.volume {
        let owner = volume.status.as_ref().map(|status| status.owner_id.clone()).unwrap_or_default();
        if status.state != BackupState::Completed {
            status.owner_id = owner;
        }
        if status.volume_created.is_empty() && !seen.backup.spec.snapshot_name.is_empty() {
            let created = volume.metadata.creation_timestamp.as_ref().map(|time| time.0.to_string());
            status.volume_created = created.unwrap_or_default().into();
        }
    }
    if let Some(snapshot) = seen.snapshot.as_ref().and_then(|snapshot| snapshot.status.as_ref())
        && status.snapshot_created_at.is_empty()
    {
        status.snapshot_created_at = snapshot.creation_time.clone();
    }
}

fn of_found(status: &mut BackupStatus, found: &Found, seen: &Observed) {
    status.progress = 100;
    status.snapshot_name = found.snapshot.as_str().into();
    status.backup_created_at = found.created.to_string().into();
    (status.size, status.volume_size) = (found.size, found.size);
    status.last_synced_at = seen.now.to_string().into();
    if let Work::Done { new_bytes, .. } = seen.work {
        status.newly_upload_data_size = Size::from_bytes(new_bytes);
    }
    if let Ok(folder) = seen.folder() {
        let (volume, backup) = (seen.volume_name.clone(), seen.backup.name_any());
        status.url = Place { folder, volume, backup }.to_string().into();
    }
}

#[cfg(test)]
mod tests;
