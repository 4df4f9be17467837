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
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn backup() -> Observed {
        let mut backup = Backup::new("b-1", Default::default());
        backup.spec.snapshot_name = "monday".into();
        backup.metadata.finalizers = Some(vec![FINALIZER.into()]);
        let labels = [(VOLUME, "vol-1"), (TARGET, "default")];
        backup.metadata.labels = Some(labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
        let mut volume = Volume::new("vol-1", Default::default());
        volume.status.get_or_insert_default().state = VolumeState::Attached;
        let mut target = BackupTarget::new("default", Default::default());
        target.spec.backup_target_url = "file:///backups".into();
        Observed {
            now: at(1_000),
            backup,
            volume_name: "vol-1".into(),
            volume: Some(volume),
            snapshot: None,
            target_name: "default".into(),
            target: Some(target),
            is_target_used: false,
            engine: Some(Serving {
                attached: true,
                serving: true,
                size: Size::from_bytes(4096),
                snapshots: vec!["monday".into()],
                rebuilt_bytes: 0,
                rebuild_limit: None,
                patience: None,
                trouble: None,
                permitted: None,
                flaws: Vec::new(),
            }),
            is_upgrading: false,
            work: Work::None,
            found: None,
        }
    }

    fn with(change: impl FnOnce(&mut Observed)) -> Observed {
        let mut seen = backup();
        change(&mut seen);
        seen
    }

    fn in_state(state: BackupState, change: impl FnOnce(&mut Observed)) -> Observed {
        with(|seen| {
            seen.backup.status.get_or_insert_default().state = state;
            change(seen);
        })
    }

    /// Long after it was asked for.
    fn late(change: impl FnOnce(&mut Observed)) -> Observed {
        with(|seen| {
            seen.backup.metadata.creation_timestamp = Some(Time(at(970)));
            change(seen);
        })
    }

    /// The engine has no snapshot; this object asks for one.
    fn snapshot(seen: &mut Observed, volume: &str, taken: &str) {
        seen.engine.as_mut().unwrap().snapshots.clear();
        let mut snapshot = Snapshot::new("monday", Default::default());
        snapshot.spec.volume = volume.into();
        snapshot.spec.create_snapshot = true;
        snapshot.status.get_or_insert_default().creation_time = taken.into();
        seen.snapshot = Some(snapshot);
    }

    fn seen_in(seen: &mut Observed, folder: &str) {
        seen.backup.status.get_or_insert_default().url = format!("{folder}?backup=b-1&volume=vol-1").into();
    }

    fn deleted(state: BackupState, change: impl FnOnce(&mut Observed)) -> Observed {
        in_state(state, |seen| {
            seen.backup.metadata.deletion_timestamp = Some(Time(seen.now));
            change(seen);
        })
    }

    fn found() -> Found {
        Found { snapshot: "monday".into(), created: at(900), size: Size::from_bytes(4096) }
    }

    #[test]
    fn a_backup_is_made_once_and_removed_once() {
        use BackupState::*;
        let folder = || Folder::parse("file:///backups").unwrap();
        let copied = || Action::Copy { folder: folder(), existing: false };
        let removed = |existing| Action::Remove { folder: folder(), existing };
        let done = |at_second| Work::Done { new_bytes: 1, at: at(at_second) };
        let there = |seen: &mut Observed| seen.found = Some(Ok(Some(found())));
        let name = || "vol-1".to_owned();
        let failed = |is_final, again| Work::Failed { why: "no".into(), is_final, again: at(again) };
        #[rustfmt::skip]
        let cases = [
            ("new",               with(|seen| seen.backup.metadata.finalizers = None), Ok(Action::Protect),                     New),
            ("without labels",    with(|seen| seen.backup.metadata.labels = None),     Ok(Action::Protect),                     New),
            ("of nobody knows",   with(|seen| seen.volume_name.clear()),               Err(Wait::NoVolumeName),                 Pending),
            ("protected",         backup(),                                            Ok(copied()),   InProgress),
            ("without target",    with(|seen| seen.target = None),                     Err(Wait::NoTarget("default".into())),   Pending),
            ("detached",          with(|seen| { seen.engine = None; seen.volume.as_mut().unwrap().status = None; }), Err(Wait::Detached(name())), Pending),
            ("silent",            with(|seen| seen.engine = None),                     Err(Wait::Silent(name())),               Pending),
            ("no snapshot",       with(|seen| seen.engine.as_mut().unwrap().snapshots.clear()), Err(Wait::NoSnapshot { volume: name(), snapshot: "monday".into() }), Pending),
            ("and not to be had", late(|seen| seen.engine.as_mut().unwrap().snapshots.clear()), Err(Wait::NoSnapshot { volume: name(), snapshot: "monday".into() }), Error),
            ("of another volume", late(|seen| snapshot(seen, "vol-2", "")), Err(Wait::NoSnapshot { volume: name(), snapshot: "monday".into() }), Error),
            ("taken once, and lost", late(|seen| snapshot(seen, "vol-1", "1970-01-01T00:00:00Z")), Err(Wait::NoSnapshot { volume: name(), snapshot: "monday".into() }), Error),
            ("yet to be taken",   late(|seen| snapshot(seen, "vol-1", "")), Err(Wait::NotTaken("monday".into())), Pending),
            ("nobody says of what", late(|seen| seen.volume_name.clear()),             Err(Wait::NoVolumeName),                 Error),
            ("and never will",    in_state(Error, |seen| seen.volume_name.clear()),    Err(Wait::GivenUp(String::new())),       Error),
            ("volume is gone",    late(|seen| seen.volume = None),                     Err(Wait::NoVolume(name())),             Error),
            ("detached for long", late(|seen| { seen.engine = None; seen.volume.as_mut().unwrap().status = None; }), Err(Wait::Detached(name())), Pending),
            ("no volume",         with(|seen| seen.volume = None),                     Err(Wait::NoVolume(name())),             Pending),
            ("of a standby",      with(|seen| seen.volume.as_mut().unwrap().spec.standby = true), Err(Wait::Standby(name())),   Pending),
            ("node is upgraded",  with(|seen| seen.is_upgrading = true),               Err(Wait::Upgrading),                    Pending),
            ("under way",         in_state(InProgress, |seen| seen.work = Work::Running { percent: 40 }), Err(Wait::Copying { percent: 40 }), InProgress),
            ("ordered before us", in_state(InProgress, |seen| seen.found = Some(Ok(None))), Ok(copied()), InProgress),
            ("to a used target",  with(|seen| seen.is_target_used = true),             Ok(Action::Copy { folder: folder(), existing: true }), InProgress),
            ("done, not seen yet", in_state(InProgress, |seen| (seen.found, seen.work) = (Some(Ok(None)), done(911))), Err(Wait::Unseen), InProgress),
            ("done, never seen",  in_state(InProgress, |seen| (seen.found, seen.work) = (Some(Ok(None)), done(910))), Err(Wait::Lost(folder())), Error),
            ("done",              in_state(InProgress, there),                         Err(Wait::Content),                      Completed),
            ("known to be done",  in_state(Completed, |_| {}),                         Err(Wait::Content),                      Completed),
            ("failed a while ago", in_state(InProgress, |seen| seen.work = failed(false, 999)), Ok(copied()), InProgress),
            ("failed just now",   in_state(InProgress, |seen| seen.work = failed(false, 1001)), Err(Wait::Failed { why: "no".into(), again: at(1001) }), InProgress),
            ("failed for good",   in_state(InProgress, |seen| seen.work = failed(true, 1001)), Err(Wait::GivenUp("no".into())),  Error),
            ("volume went away",  in_state(InProgress, |seen| { seen.volume = None; seen.found = Some(Ok(None)); }), Err(Wait::NoVolume(name())), Error),
            ("name is taken",     in_state(InProgress, |seen| { there(seen); seen.backup.spec.snapshot_name = "tuesday".into(); }), Err(Wait::OtherThere), Error),
            ("found in a target", with(|seen| { there(seen); seen.backup.spec.snapshot_name = "".into(); seen.volume = None; }), Err(Wait::Content), Completed),
            ("not in the target", with(|seen| { seen.found = Some(Ok(None)); seen.backup.spec.snapshot_name = "".into(); }), Err(Wait::NotThere), Error),
            ("deleted",           deleted(Completed, |_| {}),                          Ok(removed(false)), Deleting),
            ("deleted, was seen there", deleted(Completed, |seen| seen_in(seen, "file:///backups")), Ok(removed(true)), Deleting),
            ("deleted, was seen elsewhere", deleted(Completed, |seen| seen_in(seen, "file:///nas")), Ok(removed(false)), Deleting),
            ("deleted, was gone", deleted(Completed, |seen| drop(seen.backup.annotations_mut().insert(GONE.into(), "true".into()))), Ok(Action::Release), Deleting),
            ("deleted, never made", deleted(Pending, |_| {}),                          Ok(Action::Release),                     Pending),
            ("deleted under way", deleted(InProgress, |seen| seen.work = Work::Running { percent: 1 }), Err(Wait::Copying { percent: 1 }), InProgress),
            ("deleted, unheard of", deleted(InProgress, |_| {}),                       Ok(copied()),   InProgress),
            ("and being upgraded", deleted(InProgress, |seen| seen.is_upgrading = true), Ok(copied()), InProgress),
            ("and nobody to ask", deleted(InProgress, |seen| seen.engine = None),      Ok(removed(false)), Deleting),
            ("and no target",     deleted(InProgress, |seen| seen.target = None),      Ok(Action::Release),                     Deleting),
            ("deleted, it ended", deleted(InProgress, |seen| seen.work = done(999)), Ok(removed(false)), Deleting),
            ("deleted, it failed", deleted(InProgress, |seen| seen.work = failed(false, 1001)), Ok(removed(false)), Deleting),
            ("deleted, removed half", deleted(Deleting, |_| {}),                       Ok(removed(false)), Deleting),
            ("deleted, name was taken", deleted(Error, |seen| { there(seen); seen.backup.spec.snapshot_name = "tuesday".into(); }), Ok(Action::Release), Deleting),
            ("and again",         deleted(Deleting, |seen| { there(seen); seen.backup.spec.snapshot_name = "tuesday".into(); }), Ok(Action::Release), Deleting),
            ("deleted, ours after all", deleted(Error, there),                         Ok(removed(false)), Deleting),
            ("deleted, target gone", deleted(Completed, |seen| seen.target = None),    Ok(Action::Release),                     Deleting),
        ];
        for (case, seen, expected, state) in cases {
            let decision = decide(&seen);
            assert_eq!(decision.next, expected, "{case}");
            assert_eq!(decision.status.state, state, "{case}");
        }
    }

    #[test]
    fn a_complete_backup_says_where_it_is_and_how_large() {
        let seen = in_state(BackupState::InProgress, |seen| {
            (seen.found, seen.work) = (Some(Ok(Some(found()))), Work::Done { new_bytes: 77, at: at(999) });
        });
        let status = decide(&seen).status;
        assert_eq!(status.url.as_str(), "file:///backups?backup=b-1&volume=vol-1");
        assert_eq!((status.progress, status.newly_upload_data_size), (100, Size::from_bytes(77)));
        assert_eq!(
            (status.volume_size.bytes(), status.backup_created_at.as_str()),
            (4096, "1970-01-01T00:15:00Z")
        );
        let mut again = seen.clone();
        again.backup.status = Some(status.clone());
        (again.found, again.work, again.now) = (None, Work::None, at(2_000));
        assert!(!again.wants_to_know());
        assert_eq!(decide(&again).status, status, "nothing changes while nothing happens");
    }

    #[test]
    fn a_backup_that_is_copied_and_not_seen_yet_is_nearly_done_and_no_error() {
        let seen = in_state(BackupState::InProgress, |seen| {
            (seen.found, seen.work) = (Some(Ok(None)), Work::Done { new_bytes: 1, at: at(999) });
            seen.backup.status.get_or_insert_default().error = "before".into();
        });
        let status = decide(&seen).status;
        assert_eq!((status.state, status.progress, status.error.as_str()), (BackupState::InProgress, 99, ""));
    }

    #[test]
    fn the_newest_counts_only_while_it_is_whole() {
        let made = |name: &str, second: i64, state: BackupState| {
            let mut backup = Backup::new(name, Default::default());
            let status = backup.status.get_or_insert_default();
            (status.state, status.backup_created_at) = (state, at(second).to_string().into());
            backup
        };
        let all = [
            made("b", 20, BackupState::Completed),
            made("a", 10, BackupState::Completed),
            made("c", 30, BackupState::InProgress),
        ];
        assert_eq!(newest(&all).map(ResourceExt::name_any).as_deref(), Some("b"));
        assert_eq!(newest([]), None);
    }
}
