//! Decides the next step of a snapshot: taken once, kept until it is deleted.
//!
//! ```text
//! asked for ──▶ taken ──▶ ready ──deleted──▶ removed from the volume ──▶ gone
//! ```
//!
//! The invariant: a snapshot that was taken is never taken again under its name, whatever became of it: it would
//! hold another moment than it says.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::ResourceExt;
use midflight_api::longhorn::{FINALIZER, Snapshot, SnapshotStatus, VOLUME_LABEL, Volume, VolumeState};

use super::volume::Serving;

/// What stands for the live volume among the successors of a snapshot.
pub const HEAD: &str = "volume-head";

/// A snapshot and what it hangs on.
#[derive(Debug, Clone)]
pub struct Observed {
    pub now: Timestamp,
    pub snapshot: Snapshot,
    pub volume: Option<Volume>,
    /// What the volume's engine says, if it was reached.
    pub engine: Option<Serving>,
    /// What its data takes on the disk of a replica, if somebody has looked.
    pub bytes: Option<u64>,
}

/// One step. Each is safe to repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Keep the object until its snapshot is gone; let it go with its volume.
    Protect,
    /// Let the engine take it.
    Take,
    /// Let the engine forget it.
    Remove,
    /// Nothing of it is left.
    Release,
}

/// Why nothing is being done. Shown to the user verbatim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Wait {
    #[error("all is as it should be")]
    Content,
    #[error("its volume does not exist; snapshots go with their volume")]
    NoVolume,
    #[error("its volume is not attached, and only a volume that is attached tells of its snapshots")]
    Detached,
    #[error("the engine of its volume does not answer")]
    Silent,
    #[error("it was taken and is not there any more; the volume was brought back to an earlier snapshot")]
    Lost,
    #[error("the volume has no such snapshot; set createSnapshot to have one taken")]
    NotAsked,
    #[error("its volume follows a backup; activate it first")]
    Standby,
}

/// What is to be written down and done.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    pub status: SnapshotStatus,
    pub next: Result<Action, Wait>,
}

/// Looks at a snapshot and says how it is and what to do next.
pub fn decide(seen: &Observed) -> Decision {
    let next = next(seen);
    Decision { status: status(seen, next), next }
}

impl Observed {
    fn is_deleting(&self) -> bool {
        self.snapshot.metadata.deletion_timestamp.is_some()
    }

    fn was_taken(&self) -> bool {
        self.snapshot.status.as_ref().is_some_and(|status| !status.creation_time.is_empty())
    }

    /// Whether the engine may have been told to take it.
    fn was_ordered(&self) -> bool {
        self.snapshot.status.as_ref().is_some_and(|status| !status.requested_time.is_empty())
    }

    /// The volume, unless it is about to go with all of its snapshots.
    fn volume(&self) -> Option<&Volume> {
        self.volume.as_ref().filter(|volume| volume.metadata.deletion_timestamp.is_none())
    }

    /// Its place among the snapshots that the engine has.
    fn place(&self) -> Option<usize> {
        let name = self.snapshot.name_any();
        self.engine.as_ref()?.snapshots.iter().position(|known| *known == name)
    }
}

fn next(seen: &Observed) -> Result<Action, Wait> {
    if seen.is_deleting() {
        return delete(seen);
    }
    let volume = seen.volume().ok_or(Wait::NoVolume)?;
    let labelled = seen.snapshot.labels().get(VOLUME_LABEL).is_some_and(|name| *name == volume.name_any());
    let owned =
        seen.snapshot.owner_references().iter().any(|owner| Some(&owner.uid) == volume.uid().as_ref());
    if !is_protected(&seen.snapshot) || !labelled || !owned {
        return Ok(Action::Protect);
    }
    reachable(seen, volume)?;
    if seen.place().is_some() {
        return Err(Wait::Content);
    }
    if seen.was_taken() {
        return Err(Wait::Lost);
    }
    if !seen.snapshot.spec.create_snapshot {
        return Err(Wait::NotAsked);
    }
    if volume.spec.standby {
        return Err(Wait::Standby);
    }
    Ok(Action::Take)
}

fn delete(seen: &Observed) -> Result<Action, Wait> {
    if !is_protected(&seen.snapshot) {
        return Err(Wait::Content);
    }
    let Some(volume) = seen.volume() else { return Ok(Action::Release) };
    if !seen.was_taken() && !seen.was_ordered() {
        return Ok(Action::Release);
    }
    reachable(seen, volume)?;
    Ok(if seen.place().is_some() { Action::Remove } else { Action::Release })
}

fn reachable(seen: &Observed, volume: &Volume) -> Result<(), Wait> {
    let state = volume.status.as_ref().map(|status| status.state).unwrap_or_default();
    match &seen.engine {
        Some(engine) if engine.serving => Ok(()),
        Some(_) => Err(Wait::Silent),
        None if state == VolumeState::Attached => Err(Wait::Silent),
        None => Err(Wait::Detached),
    }
}

fn is_protected(snapshot: &Snapshot) -> bool {
    snapshot.finalizers().iter().any(|finalizer| finalizer == FINALIZER)
}

fn status(seen: &Observed, next: Result<Action, Wait>) -> SnapshotStatus {
    let mut status = seen.snapshot.status.clone().unwrap_or_default();
    let now = seen.now.to_string();
    if let Some(volume) = &seen.volume {
        status.owner_id = volume.status.as_ref().map(|status| status.owner_id.clone()).unwrap_or_default();
    }
    if next == Ok(Action::Take) && status.requested_time.is_empty() {
        status.requested_time = now.as_str().into();
    }
    status.user_created = seen.snapshot.spec.create_snapshot;
    status.labels = seen.snapshot.spec.labels.clone();
    status.mark_removed = seen.is_deleting();
    status.ready_to_use = false;
    if let (Some(place), Some(engine)) = (seen.place(), &seen.engine) {
        if status.creation_time.is_empty() {
            status.creation_time = now.into();
            status.restore_size = i64::try_from(engine.size.bytes()).unwrap_or(i64::MAX);
        }
        let parent = place.checked_sub(1).and_then(|before| engine.snapshots.get(before));
        status.parent = parent.cloned().unwrap_or_default().into();
        let child = engine.snapshots.get(place + 1).map_or(HEAD, String::as_str);
        status.children = BTreeMap::from([(child.to_owned(), true)]);
        status.ready_to_use = engine.serving && !seen.is_deleting();
    }
    if let Some(bytes) = seen.bytes {
        status.size = i64::try_from(bytes).unwrap_or(i64::MAX);
    }
    match next {
        Err(Wait::Content) => status.error = "".into(),
        Err(wait) => status.error = wait.to_string().into(),
        // What an engine answered stays until it is asked again with success.
        Ok(_) => {}
    }
    status
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};

    use super::*;
    use midflight_api::Size;

    fn snapshot() -> Observed {
        let mut volume = Volume::new("vol-1", Default::default());
        volume.metadata.uid = Some("uid-1".into());
        volume.status = Some(Default::default());
        volume.status.as_mut().unwrap().state = VolumeState::Attached;
        let mut snapshot = Snapshot::new("monday", Default::default());
        snapshot.spec.create_snapshot = true;
        snapshot.metadata.finalizers = Some(vec![FINALIZER.into()]);
        snapshot.metadata.labels = Some([(VOLUME_LABEL.to_owned(), "vol-1".to_owned())].into());
        snapshot.metadata.owner_references =
            Some(vec![OwnerReference { uid: "uid-1".into(), ..OwnerReference::default() }]);
        let engine = Some(layers(&[]));
        let now = Timestamp::from_second(1_000).unwrap();
        Observed { now, snapshot, volume: Some(volume), engine, bytes: None }
    }

    fn layers(names: &[&str]) -> Serving {
        let snapshots = names.iter().map(|name| (*name).to_owned()).collect();
        Serving {
            attached: true,
            serving: true,
            size: Size::from_bytes(1 << 20),
            snapshots,
            rebuilt_bytes: 0,
            rebuild_limit: None,
            patience: None,
            trouble: None,
            permitted: None,
            flaws: Vec::new(),
        }
    }

    fn taken(mut seen: Observed) -> Observed {
        seen.engine = Some(layers(&["sunday", "monday"]));
        seen.snapshot.status = Some(decide(&seen).status);
        seen
    }

    fn deleted(mut seen: Observed) -> Observed {
        seen.snapshot.metadata.deletion_timestamp = Some(Time(seen.now));
        seen
    }

    fn with(mut seen: Observed, change: impl FnOnce(&mut Observed)) -> Observed {
        change(&mut seen);
        seen
    }

    #[test]
    fn a_snapshot_is_taken_once_and_removed_once() {
        let detach = |seen: &mut Observed| {
            seen.engine = None;
            seen.volume.as_mut().unwrap().status = None;
        };
        let silent = |seen: &mut Observed| seen.engine = None;
        let gone = |seen: &mut Observed| seen.volume = None;
        let forgotten = |seen: &mut Observed| seen.engine = Some(layers(&["sunday"]));
        #[rustfmt::skip]
        let cases = [
            ("new",                   with(snapshot(), |seen| seen.snapshot.metadata.finalizers = None), Ok(Action::Protect)),
            ("without its label",     with(snapshot(), |seen| seen.snapshot.metadata.labels = None),     Ok(Action::Protect)),
            ("protected",             snapshot(),                                                        Ok(Action::Take)),
            ("taken",                 taken(snapshot()),                                                 Err(Wait::Content)),
            ("taken and lost",        with(taken(snapshot()), forgotten),                                Err(Wait::Lost)),
            ("not asked for",         with(snapshot(), |seen| seen.snapshot.spec.create_snapshot = false), Err(Wait::NotAsked)),
            ("of a detached volume",  with(snapshot(), detach),                                          Err(Wait::Detached)),
            ("of a silent engine",    with(snapshot(), silent),                                          Err(Wait::Silent)),
            ("of no volume",          with(snapshot(), gone),                                            Err(Wait::NoVolume)),
            ("of a standby",          with(snapshot(), |seen| seen.volume.as_mut().unwrap().spec.standby = true), Err(Wait::Standby)),
            ("deleted, never asked",  deleted(with(snapshot(), detach)),                                 Ok(Action::Release)),
            ("deleted",               deleted(taken(snapshot())),                                        Ok(Action::Remove)),
            ("deleted, detached",     deleted(with(taken(snapshot()), detach)),                          Err(Wait::Detached)),
            ("deleted and removed",   deleted(with(taken(snapshot()), forgotten)),                       Ok(Action::Release)),
            ("deleted, volume gone",  deleted(with(taken(snapshot()), gone)),                            Ok(Action::Release)),
            ("deleted and released",  deleted(with(taken(snapshot()), |seen| seen.snapshot.metadata.finalizers = None)), Err(Wait::Content)),
        ];
        for (case, seen, expected) in cases {
            assert_eq!(decide(&seen).next, expected, "{case}");
        }
    }

    #[test]
    fn an_order_that_may_have_reached_the_engine_is_looked_after() {
        let mut seen = snapshot();
        seen.snapshot.status = Some(decide(&seen).status);
        assert!(!seen.snapshot.status.as_ref().unwrap().requested_time.is_empty());
        let seen = deleted(with(seen, |seen| seen.engine = None));
        assert_eq!(decide(&seen).next, Err(Wait::Silent));
    }

    #[test]
    fn the_status_says_what_the_engine_says() {
        let seen = taken(snapshot());
        let status = decide(&seen).status;
        assert!(status.ready_to_use && status.user_created && status.error.is_empty());
        assert_eq!((status.parent.as_str(), status.restore_size), ("sunday", 1 << 20));
        assert_eq!(status.children, BTreeMap::from([(HEAD.to_owned(), true)]));
        let later = with(seen.clone(), |seen| seen.now = Timestamp::from_second(2_000).unwrap());
        assert_eq!(decide(&later).status, status, "nothing changes while nothing happens");
        let measured = with(seen.clone(), |seen| seen.bytes = Some(4096));
        assert_eq!((status.size, decide(&measured).status.size), (0, 4096));
        let away = decide(&with(seen, |seen| seen.engine = None)).status;
        assert!(!away.ready_to_use && !away.error.is_empty());
        assert_eq!(away.creation_time, status.creation_time);
    }
}
