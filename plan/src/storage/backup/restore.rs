//! Decides how a volume gets to a backup, and how a standby follows the newest one until it is activated.
//!
//! ```text
//! fromBackup ──▶ restoring ──▶ restored: a volume like any other
//! fromBackup, Standby ──▶ restoring ──▶ follows ──Standby: false──▶ the newest is restored ──▶ a volume like any other
//!                                                       └──▶ it cannot be: back to the one that is held ──▲
//! ```
//!
//! What a volume was brought to is in the engine itself, as a snapshot that is taken when all is written. A restore that did not come
//! to its end has written part of another backup over it: then the volume is what its snapshot says only when it was brought back to that.
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
    /// What was ordered last, and how far it is.
    pub work: (Order, Work),
}

/// What an instance manager was told to do with the volume.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Order {
    #[default]
    Nothing,
    /// To bring it to this backup.
    Restore(String),
    /// To bring it back to this backup, which it holds.
    Revert(String),
}

/// One step. Each is safe to repeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Ask for a volume that the backup fits into.
    Resize { size: Size },
    /// Let the engine's instance manager write the backup.
    Restore { from: Place },
    /// Let the engine make the volume what it was when it was brought to the backup that it holds. The number is drawn for this
    /// order alone: given again with it, the same order throws nothing more away.
    Revert { to: String, number: u64 },
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
    #[error("somebody still writes to the volume; clients get it afterwards")]
    Written,
    #[error("the volume is brought back to backup {0}, the last that it holds")]
    Reverting(String),
    #[error(
        "the volume cannot be brought back to backup {backup}, the last that it holds: {why}; it is tried again"
    )]
    NotReverted { backup: String, why: String, again: Timestamp },
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
    let next = if !held.is_empty() && held == name { Err(Wait::Content) } else { next };
    let is_activated = status.is_standby && !seen.volume.spec.standby;
    let next = if is_activated && !held.is_empty() { activate(seen, &held, next) } else { next };
    let has_all = next == Err(Wait::Content);
    let percent = match &next {
        Err(Wait::Restoring { percent, .. }) => *percent,
        Err(Wait::Content) => 100,
        Ok(_) | Err(_) => 0,
    };
    let error = match &next {
        Err(Wait::Content | Wait::Restoring { .. } | Wait::Written | Wait::Reverting(_)) | Ok(_) => {
            Message::default()
        }
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

/// An activated standby serves what it holds: the newest backup, or the last that could be had. Nobody may write to it any more, and it
/// has to be known that nothing was written over that: this was the last that was ordered, or the volume was brought back to it.
fn activate(seen: &Observed, held: &str, next: Result<Action, Wait>) -> Result<Action, Wait> {
    let has_newest = next == Err(Wait::Content);
    let is_stuck = matches!(next, Err(Wait::Failed { .. } | Wait::NoBackup(_)));
    let is_written = seen.engine.as_ref().is_none_or(|engine| engine.attached);
    match &seen.work {
        (Order::Revert(to), Work::Running { .. }) => return Err(Wait::Reverting(to.clone())),
        (Order::Revert(to), Work::Done { .. }) if to == held && !is_written => return Err(Wait::Content),
        (Order::Revert(backup), Work::Failed { why, again, .. }) if *again > seen.now => {
            let (backup, why) = (backup.clone(), why.clone());
            return Err(Wait::NotReverted { backup, why, again: *again });
        }
        (Order::Restore(backup), Work::Running { percent }) => {
            return Err(Wait::Restoring { backup: backup.clone(), percent: *percent });
        }
        (Order::Restore(last), Work::Done { .. })
            if last == held && (has_newest || is_stuck) && !is_written =>
        {
            return Err(Wait::Content);
        }
        (Order::Nothing | Order::Restore(_) | Order::Revert(_), _) => {}
    }
    match (has_newest, is_stuck, is_written) {
        (false, false, _) | (false, true, true) => next,
        (true, _, true) => Err(Wait::Written),
        (_, _, false) => {
            let number = u64::try_from(seen.now.as_nanosecond()).unwrap_or(1);
            Ok(Action::Revert { to: held.to_owned(), number })
        }
    }
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
        (Order::Restore(backup), Work::Running { percent }) => {
            return Err(Wait::Restoring { backup: backup.clone(), percent: *percent });
        }
        (Order::Revert(to), Work::Running { .. }) => return Err(Wait::Reverting(to.clone())),
        (Order::Restore(backup), Work::Failed { why, again, .. }) if *backup == name && *again > seen.now => {
            return Err(Wait::Failed { backup: backup.clone(), why: why.clone(), again: *again });
        }
        (Order::Nothing | Order::Restore(_) | Order::Revert(_), _) => {}
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
            work: (Order::Nothing, Work::None),
        }
    }

    fn engine(serving: bool, snapshots: &[&str]) -> Serving {
        let snapshots = snapshots.iter().map(|name| (*name).to_owned()).collect();
        Serving {
            attached: false,
            serving,
            size: Size::from_bytes(8192),
            snapshots,
            rebuilt_bytes: 0,
            rebuild_limit: None,
            patience: None,
            trouble: None,
            permitted: None,
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
        with(seen, |seen| seen.work = (Order::Restore(backup.into()), work))
    }

    fn done(seen: Observed, order: Order) -> Observed {
        with(seen, |seen| seen.work = (order, Work::Done { new_bytes: 0, at: at(0) }))
    }

    /// Whoever restores is at it still, whether anybody listens or not.
    fn written(seen: Observed) -> Observed {
        with(seen, |seen| seen.engine.as_mut().unwrap().attached = true)
    }

    #[test]
    fn a_volume_gets_to_its_backup_and_a_standby_to_the_newest() {
        let from = |backup: &str| {
            let place = Place::parse(&format!("file:///backups?backup={backup}&volume=vol-1")).unwrap();
            Ok(Action::Restore { from: place })
        };
        let running =
            |seen: &mut Observed| seen.work = (Order::Restore("a".into()), Work::Running { percent: 7 });
        let failure =
            |backup: &str| Err(Wait::Failed { backup: backup.into(), why: "no".into(), again: at(1_010) });
        let noted = |seen| {
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
            ("restored and noted",     noted(restored(false)),                                      None),
            ("no backup at all",       with(restored(false), |seen| seen.volume.spec.from_backup = "".into()), None),
            ("new standby",            restored(true),                                              Some((from("b"), true, true))),
            ("standby of an old one",  holds(restored(true), "a"),                                  Some((from("b"), true, true))),
            ("standby of the newest",  holds(restored(true), "b"),                                  Some((Err(Wait::Content), true, false))),
            ("activated, not newest",  holds(activated(restored(true)), "a"),                       Some((from("b"), true, true))),
            ("activated with nothing", failed(activated(restored(true)), "b"),                      Some((failure("b"), true, true))),
        ];
        for (case, seen, expected) in cases {
            let decision =
                decide(&seen).map(|decision| (decision.next, decision.is_standby, decision.required));
            assert_eq!(decision, expected, "{case}");
        }
    }

    #[test]
    fn an_activated_standby_is_what_its_snapshot_says_before_clients_get_it() {
        let standby = |holds_backup: &str| holds(activated(restored(true)), holds_backup);
        let back_to = |backup: &str| Ok(Action::Revert { to: backup.into(), number: 1_000_000_000_000 });
        let revert = || Order::Revert("a".into());
        let restore = |backup: &str| Order::Restore(backup.into());
        let lost = |seen| with(seen, |seen: &mut Observed| seen.backups.clear());
        let nothing = || Err(Wait::NoBackup("file:///backups?backup=a&volume=vol-1".into()));
        let not_restored = || Err(Wait::Failed { backup: "b".into(), why: "no".into(), again: at(1_010) });
        let not_reverted = |again| Work::Failed { why: "busy".into(), is_final: false, again: at(again) };
        let under_way = |order: Order| (order, Work::Running { percent: 0 });
        let ordered = |seen, work| with(seen, |seen: &mut Observed| seen.work = work);
        let wait_for_revert =
            || Err(Wait::NotReverted { backup: "a".into(), why: "busy".into(), again: at(1_010) });
        // Clients get it where it is content.
        #[rustfmt::skip]
        let cases = [
            ("it was brought to the newest",         done(standby("b"), restore("b")),                        Err(Wait::Content)),
            ("and whoever did it is still there",    written(done(standby("b"), restore("b"))),               Err(Wait::Written)),
            ("nobody knows who wrote last",          standby("b"),                                            back_to("b")),
            ("nobody knows who writes",              written(standby("b")),                                   Err(Wait::Written)),
            ("a later one was begun and is gone",    failed(standby("b"), "c"),                               back_to("b")),
            ("a later one is under way and is gone", ordered(standby("b"), under_way(restore("c"))),          Err(Wait::Restoring { backup: "c".into(), percent: 0 })),
            ("brought back to the newest",           done(standby("b"), Order::Revert("b".into())),           Err(Wait::Content)),
            ("the newest is bad",                    failed(standby("a"), "b"),                               back_to("a")),
            ("it is bad, and written still",         written(failed(standby("a"), "b")),                      not_restored()),
            ("being brought back",                   ordered(standby("a"), under_way(revert())),              Err(Wait::Reverting("a".into()))),
            ("cannot be brought back now",           ordered(standby("a"), (revert(), not_reverted(1_010))),  wait_for_revert()),
            ("could not be brought back before",     lost(ordered(standby("a"), (revert(), not_reverted(1_000)))), back_to("a")),
            ("brought back",                         done(standby("a"), revert()),                            Err(Wait::Content)),
            ("brought back, and written since",      written(done(standby("b"), Order::Revert("b".into()))),  Err(Wait::Written)),
            ("brought back to another",              done(standby("b"), revert()),                            back_to("b")),
            ("the store is lost",                    lost(standby("a")),                                      back_to("a")),
            ("it is lost, and written still",        lost(written(standby("a"))),                             nothing()),
            ("it is lost after all was written",     lost(done(standby("a"), restore("a"))),                  Err(Wait::Content)),
            ("lost, and brought back",               lost(done(standby("a"), revert())),                      Err(Wait::Content)),
        ];
        for (case, seen, expected) in cases {
            let decision = decide(&seen).unwrap();
            let is_open = expected == Err(Wait::Content);
            assert_eq!(decision.next, expected, "{case}");
            assert_eq!((decision.is_standby, decision.required), (!is_open, !is_open), "{case}");
        }
    }

    #[test]
    fn a_standby_that_is_not_activated_is_not_brought_back() {
        for seen in [holds(restored(true), "b"), written(holds(restored(true), "b"))] {
            assert_eq!(decide(&seen).unwrap().next, Err(Wait::Content));
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
