//! Decides how a volume gets to a backup, and how a standby follows the newest one until it is activated.
//!
//! ```text
//! fromBackup ──▶ restoring ──▶ restored: a volume like any other
//! fromBackup, Standby ──▶ restoring ──▶ follows ──Standby: false──▶ the newest is restored ──▶ a volume like any other
//! ```
//!
//! What a volume was brought to is in the engine itself, as a snapshot that is taken when all is written.
//!
//! The invariant: clients get the volume only when it holds all of a backup.

use jiff::Timestamp;
use kube::ResourceExt;
use midflight_api::longhorn::{Backup, Volume};
use midflight_api::{Message, Size};

use super::{BadPlace, Place, Work, newest};
use crate::storage::volume::Serving;

/// What the name of a snapshot begins with that says what a volume was brought to.
const MARKER: &str = "backup-";

/// A volume that came from a backup.
#[derive(Debug, Clone)]
pub struct Observed {
    pub now: Timestamp,
    pub volume: Volume,
    /// All of the volume that the backup is of, in its folder.
    pub backups: Vec<Backup>,
    /// What the engine says, if it was reached.
    pub engine: Option<Serving>,
    /// The restore that was ordered last, and of which backup.
    pub work: (String, Work),
}

/// One step. Each is safe to repeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Ask for a volume that the backup fits into.
    Resize { size: Size },
    /// Let the engine's instance manager write the backup.
    Restore { from: Place },
}

/// Why nothing is being done. Shown to the user verbatim.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Wait {
    #[error("all is as it should be")]
    Content,
    #[error("{0}")]
    Bad(BadPlace),
    #[error("no backup target has {0}; is its folder that of a BackupTarget, and is it complete?")]
    NoBackup(String),
    #[error("the engine does not run yet")]
    NoEngine,
    #[error("the volume grows to the size of backup {0}")]
    Grows(String),
    #[error("{percent} percent of backup {backup} are restored")]
    Restoring { backup: String, percent: i32 },
    #[error("backup {backup} cannot be restored: {why}; it is tried again")]
    Failed { backup: String, why: String, again: Timestamp },
}

/// What the status is to say, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub is_standby: bool,
    pub required: bool,
    pub initiated: bool,
    /// The backup that the volume should hold.
    pub wanted: String,
    /// The backup that it holds.
    pub held: String,
    pub percent: i32,
    pub error: Message,
    pub next: Result<Action, Wait>,
}

/// The snapshot that says that a volume was brought to a backup.
pub fn marker(backup: &str) -> String {
    format!("{MARKER}{backup}")
}

/// Whether nobody has to look after the volume's backup any more.
fn is_over(volume: &Volume) -> bool {
    let status = volume.status.as_ref();
    let is_restored = status
        .is_some_and(|status| status.restore_initiated && !status.restore_required && !status.is_standby);
    volume.spec.from_backup.is_empty()
        || volume.metadata.deletion_timestamp.is_some()
        || (is_restored && !volume.spec.standby)
}

/// Nothing if the volume has no more to do with backups.
pub fn decide(seen: &Observed) -> Option<Decision> {
    if is_over(&seen.volume) {
        return None;
    }
    let status = seen.volume.status.clone().unwrap_or_default();
    let held = held(seen).unwrap_or_default();
    let place = Place::parse(seen.volume.spec.from_backup.as_str());
    let wanted = place.as_ref().ok().and_then(|place| wanted(seen, place));
    let name = wanted.map(ResourceExt::name_any).unwrap_or_default();
    let next = match (&place, wanted) {
        (Err(bad), _) => Err(Wait::Bad(bad.clone())),
        (Ok(place), None) => Err(Wait::NoBackup(place.to_string())),
        (Ok(place), Some(wanted)) => step(seen, place, wanted, &held),
    };
    // An activated standby serves what it holds when the newest cannot be had.
    let is_stuck = matches!(next, Err(Wait::Failed { .. } | Wait::NoBackup(_)));
    let has_all =
        !held.is_empty() && (held == name || (is_stuck && status.is_standby && !seen.volume.spec.standby));
    let next = if has_all { Err(Wait::Content) } else { next };
    let percent = match &next {
        Err(Wait::Restoring { percent, .. }) => *percent,
        Err(Wait::Content) => 100,
        Ok(_) | Err(_) => 0,
    };
    let error = match &next {
        Err(Wait::Content | Wait::Restoring { .. }) | Ok(_) => Message::default(),
        Err(wait) => wait.to_string().into(),
    };
    Some(Decision {
        is_standby: seen.volume.spec.standby || (status.is_standby && !has_all),
        required: !has_all,
        initiated: status.restore_initiated || has_all || matches!(next, Ok(Action::Restore { .. })),
        wanted: name,
        held,
        percent,
        error,
        next,
    })
}

/// The backup that the volume should hold: the newest for a standby, else the one that is named.
fn wanted<'a>(seen: &'a Observed, place: &Place) -> Option<&'a Backup> {
    let follows =
        seen.volume.spec.standby || seen.volume.status.as_ref().is_some_and(|status| status.is_standby);
    let named = || seen.backups.iter().filter(|backup| backup.name_any() == place.backup);
    if follows { newest(&seen.backups) } else { newest(named()) }
}

/// The backup that the volume was brought to last, as its engine says.
fn held(seen: &Observed) -> Option<String> {
    let engine = seen.engine.as_ref().filter(|engine| engine.serving)?;
    engine.snapshots.iter().rev().find_map(|name| Some(name.strip_prefix(MARKER)?.to_owned()))
}

fn step(seen: &Observed, place: &Place, wanted: &Backup, held: &str) -> Result<Action, Wait> {
    let name = wanted.name_any();
    let size = wanted.status.as_ref().map(|status| status.volume_size).unwrap_or_default();
    if seen.volume.spec.size < size {
        return Ok(Action::Resize { size });
    }
    if held == name {
        return Err(Wait::Content);
    }
    match &seen.work {
        (backup, Work::Running { percent }) => {
            return Err(Wait::Restoring { backup: backup.clone(), percent: *percent });
        }
        (backup, Work::Failed { why, again, .. }) if *backup == name && *again > seen.now => {
            return Err(Wait::Failed { backup: backup.clone(), why: why.clone(), again: *again });
        }
        (_, Work::None | Work::Failed { .. } | Work::Done { .. }) => {}
    }
    let engine = seen.engine.as_ref().ok_or(Wait::NoEngine)?;
    if engine.serving && engine.size < size {
        return Err(Wait::Grows(name));
    }
    Ok(Action::Restore { from: Place { backup: name, ..place.clone() } })
}

#[cfg(test)]
mod tests {
    use midflight_api::longhorn::BackupState;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn made(name: &str, second: i64) -> Backup {
        let mut backup = Backup::new(name, Default::default());
        let status = backup.status.get_or_insert_default();
        (status.state, status.backup_created_at) = (BackupState::Completed, at(second).to_string().into());
        status.volume_size = Size::from_bytes(8192);
        backup
    }

    fn restored(standby: bool) -> Observed {
        let mut volume = Volume::new("vol-2", Default::default());
        volume.spec.from_backup = "file:///backups?backup=a&volume=vol-1".into();
        (volume.spec.standby, volume.spec.size) = (standby, Size::from_bytes(8192));
        Observed {
            now: at(1_000),
            volume,
            backups: vec![made("a", 10), made("b", 20)],
            engine: Some(engine(false, &[])),
            work: (String::new(), Work::None),
        }
    }

    fn engine(serving: bool, snapshots: &[&str]) -> Serving {
        let snapshots = snapshots.iter().map(|name| (*name).to_owned()).collect();
        Serving {
            attached: true,
            serving,
            size: Size::from_bytes(8192),
            snapshots,
            rebuilt_bytes: 0,
            rebuild_limit: None,
            trouble: None,
            flaws: Vec::new(),
        }
    }

    fn with(mut seen: Observed, change: impl FnOnce(&mut Observed)) -> Observed {
        change(&mut seen);
        seen
    }

    fn activated(seen: Observed) -> Observed {
        with(seen, |seen| {
            seen.volume.spec.standby = false;
            let status = seen.volume.status.get_or_insert_default();
            (status.is_standby, status.restore_initiated) = (true, true);
        })
    }

    fn holds(seen: Observed, backup: &str) -> Observed {
        with(seen, |seen| seen.engine = Some(engine(true, &[&marker(backup)])))
    }

    fn failed(seen: Observed, backup: &str) -> Observed {
        let work = Work::Failed { why: "no".into(), is_final: false, again: at(1_010) };
        with(seen, |seen| seen.work = (backup.into(), work))
    }

    #[test]
    fn a_volume_gets_to_its_backup_and_a_standby_to_the_newest() {
        let from = |backup: &str| {
            let place = Place::parse(&format!("file:///backups?backup={backup}&volume=vol-1")).unwrap();
            Ok(Action::Restore { from: place })
        };
        let running = |seen: &mut Observed| seen.work = ("a".into(), Work::Running { percent: 7 });
        let failure =
            |backup: &str| Err(Wait::Failed { backup: backup.into(), why: "no".into(), again: at(1_010) });
        let done = |seen| {
            with(holds(seen, "a"), |seen| {
                let status = seen.volume.status.get_or_insert_default();
                status.restore_initiated = true;
            })
        };
        // What is decided, then: is it a standby, is something still to be restored.
        #[rustfmt::skip]
        let cases = [
            ("new",                    restored(false),                                             Some((from("a"), false, true))),
            ("of no known size",       with(restored(false), |seen| seen.volume.spec.size = Size::default()), Some((Ok(Action::Resize { size: Size::from_bytes(8192) }), false, true))),
            ("no engine yet",          with(restored(false), |seen| seen.engine = None),            Some((Err(Wait::NoEngine), false, true))),
            ("no such backup",         with(restored(false), |seen| seen.backups.clear()),          Some((Err(Wait::NoBackup("file:///backups?backup=a&volume=vol-1".into())), false, true))),
            ("under way",              with(restored(false), running),                              Some((Err(Wait::Restoring { backup: "a".into(), percent: 7 }), false, true))),
            ("failed",                 failed(restored(false), "a"),                                Some((failure("a"), false, true))),
            ("failed with another",    failed(restored(false), "x"),                                Some((from("a"), false, true))),
            ("restored",               holds(restored(false), "a"),                                 Some((Err(Wait::Content), false, false))),
            ("restored and noted",     done(restored(false)),                                       None),
            ("no backup at all",       with(restored(false), |seen| seen.volume.spec.from_backup = "".into()), None),
            ("new standby",            restored(true),                                              Some((from("b"), true, true))),
            ("standby of an old one",  holds(restored(true), "a"),                                  Some((from("b"), true, true))),
            ("standby of the newest",  holds(restored(true), "b"),                                  Some((Err(Wait::Content), true, false))),
            ("activated, newest",      holds(activated(restored(true)), "b"),                       Some((Err(Wait::Content), false, false))),
            ("activated, not newest",  holds(activated(restored(true)), "a"),                       Some((from("b"), true, true))),
            ("activated, store lost",  with(holds(activated(restored(true)), "a"), |seen| seen.backups.clear()), Some((Err(Wait::Content), false, false))),
            ("activated, newest bad",  failed(holds(activated(restored(true)), "a"), "b"),          Some((Err(Wait::Content), false, false))),
            ("activated with nothing", failed(activated(restored(true)), "b"),                      Some((failure("b"), true, true))),
        ];
        for (case, seen, expected) in cases {
            let decision =
                decide(&seen).map(|decision| (decision.next, decision.is_standby, decision.required));
            assert_eq!(decision, expected, "{case}");
        }
    }

    #[test]
    fn a_backup_that_has_grown_makes_its_standby_grow() {
        let mut seen = holds(restored(true), "a");
        seen.backups[1].status.as_mut().unwrap().volume_size = Size::from_bytes(16384);
        assert_eq!(decide(&seen).unwrap().next, Ok(Action::Resize { size: Size::from_bytes(16384) }));
        seen.volume.spec.size = Size::from_bytes(16384);
        assert_eq!(decide(&seen).unwrap().next, Err(Wait::Grows("b".into())));
    }
}
