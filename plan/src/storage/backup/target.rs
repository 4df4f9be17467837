//! Decides what becomes of a backup target: when it is looked through, and which objects stand for what it holds.
//!
//! The invariant: an object is let go only when a listing that came after its backup was made does not have it, and that of a folder
//! that was never used is none.

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use midflight_api::longhorn::{Backup, BackupState, BackupTarget};

use super::copy::was_seen_in;
use super::{BadPlace, Folder, GONE, TARGET};

/// How often a target is looked through that says nothing about it.
const USUAL: SignedDuration = SignedDuration::from_mins(5);
/// How soon after a failure.
const AFTER_FAILURE: SignedDuration = SignedDuration::from_secs(10);

/// A backup target and the objects of its backups.
#[derive(Debug, Clone)]
pub struct Observed {
    pub now: Timestamp,
    pub target: BackupTarget,
    /// Those that say they are in this target.
    pub backups: Vec<Backup>,
    /// Other objects that have the name of a backup in the listing.
    pub taken: Vec<String>,
    /// Whether it says the same as when it was last looked through, as far as is known.
    pub is_as_before: bool,
    /// What the folder holds, if it was looked through in this turn.
    pub listing: Option<Result<Vec<Listing>, String>>,
    /// Whether that folder is missing, or nothing was ever kept in it.
    pub is_unused: bool,
}

/// A backup as its target has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    pub volume: String,
    pub name: String,
}

/// One step. Each is safe to repeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Make objects for backups that have none; let those go whose backups are not there any more, and nothing of the target with
    /// them; keep those that were to go, and are there again.
    Align { adopt: Vec<Listing>, let_go: Vec<String>, keep: Vec<String> },
}

/// Why nothing is being done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Wait {
    #[error("{0}")]
    Bad(BadPlace),
    #[error("{why}")]
    Unreachable { why: String, until: Timestamp },
    #[error(
        "{folder} is not there, or nothing was ever kept in it, and {count} of its backups are known; bring it back, or, if they are gone for good, make the folder {}/volumes, as nodes see it",
        .folder.path()
    )]
    Away { folder: Folder, count: usize, until: Timestamp },
    #[error("all is as it should be")]
    Content { until: Option<Timestamp> },
}

/// What is to be written down and done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Why the target cannot be used, if so.
    pub unavailable: Option<String>,
    /// Whether the folder was looked through to the end.
    pub synced: bool,
    pub next: Result<Action, Wait>,
}

/// How often a target is to be looked through; never, if that is what it says.
pub fn poll_interval(text: &str) -> Option<SignedDuration> {
    let interval = if text.is_empty() { USUAL } else { text.parse().unwrap_or(USUAL) };
    (interval > SignedDuration::ZERO).then_some(interval)
}

impl Observed {
    /// Whether the folder has to be looked through now.
    pub fn is_due(&self) -> bool {
        let status = self.target.status.clone().unwrap_or_default();
        let Ok(last) = status.last_synced_at.as_str().parse::<Timestamp>() else { return true };
        let asked = self.target.spec.sync_requested_at.as_str().parse::<Timestamp>();
        !status.available
            || !self.is_as_before
            || asked.is_ok_and(|asked| asked > last && asked <= self.now)
            || self.next_look(last).is_some_and(|next| next <= self.now)
    }

    fn next_look(&self, last: Timestamp) -> Option<Timestamp> {
        let interval = poll_interval(self.target.spec.poll_interval.as_str())?;
        last.saturating_add(interval).ok()
    }
}

pub fn decide(seen: &Observed) -> Decision {
    let stop = |wait: Wait| Decision { unavailable: Some(wait.to_string()), synced: false, next: Err(wait) };
    let folder = match Folder::parse(seen.target.spec.backup_target_url.as_str()) {
        Ok(folder) => folder,
        Err(bad) => return stop(Wait::Bad(bad)),
    };
    let again = || seen.now.saturating_add(AFTER_FAILURE).unwrap_or(Timestamp::MAX);
    let last = seen.target.status.as_ref().and_then(|status| status.last_synced_at.as_str().parse().ok());
    let listed = match &seen.listing {
        None => {
            let until = last.and_then(|last| seen.next_look(last));
            return Decision { unavailable: None, synced: false, next: Err(Wait::Content { until }) };
        }
        Some(Err(why)) => {
            return stop(Wait::Unreachable { why: why.clone(), until: again() });
        }
        Some(Ok(listed)) => listed,
    };
    let known = |item: &&Listing| {
        seen.backups.iter().any(|backup| backup.name_any() == item.name) || seen.taken.contains(&item.name)
    };
    let adopt: Vec<Listing> = listed.iter().filter(|item| !known(item)).cloned().collect();
    let gone = seen.backups.iter().filter(|backup| is_gone(seen, backup, listed));
    let let_go: Vec<String> = gone.map(ResourceExt::name_any).collect();
    // Those of a target that was told another folder are in the one before.
    let were_here = seen.backups.iter().filter(|backup| was_seen_in(backup, &folder));
    let count = were_here.filter(|backup| is_gone(seen, backup, listed)).count();
    if seen.is_unused && count > 0 {
        return stop(Wait::Away { folder, count, until: again() });
    }
    let is_back = |backup: &&Backup| {
        let is_marked = backup.annotations().contains_key(GONE);
        is_marked && backup.metadata.deletion_timestamp.is_none() && is_listed(backup, listed)
    };
    let keep: Vec<String> = seen.backups.iter().filter(is_back).map(ResourceExt::name_any).collect();
    let synced = adopt.is_empty() && let_go.is_empty() && keep.is_empty();
    let until = seen.next_look(seen.now);
    let next = if synced { Err(Wait::Content { until }) } else { Ok(Action::Align { adopt, let_go, keep }) };
    Decision { unavailable: None, synced, next }
}

fn is_gone(seen: &Observed, backup: &Backup, listed: &[Listing]) -> bool {
    let is_done = backup.status.as_ref().is_some_and(|status| status.state == BackupState::Completed);
    let is_here = backup.labels().get(TARGET) == seen.target.metadata.name.as_ref();
    is_done && is_here && backup.metadata.deletion_timestamp.is_none() && !is_listed(backup, listed)
}

fn is_listed(backup: &Backup, listed: &[Listing]) -> bool {
    let name = backup.name_any();
    listed.iter().any(|item| item.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn target(url: &str) -> Observed {
        let mut target = BackupTarget::new("default", Default::default());
        target.spec.backup_target_url = url.into();
        Observed {
            now: at(1_000),
            target,
            backups: Vec::new(),
            taken: Vec::new(),
            is_as_before: true,
            listing: None,
            is_unused: false,
        }
    }

    fn object(name: &str, state: BackupState) -> Backup {
        let mut backup = Backup::new(name, Default::default());
        backup.metadata.labels = Some([(TARGET.to_owned(), "default".to_owned())].into());
        let status = backup.status.get_or_insert_default();
        status.state = state;
        if state == BackupState::Completed {
            status.url = format!("file:///backups?backup={name}&volume=vol-1").into();
        }
        backup
    }

    fn item(name: &str) -> Listing {
        Listing { volume: "vol-1".into(), name: name.into() }
    }

    #[test]
    fn objects_follow_what_the_folder_holds() {
        let listed = |items: &[&str], backups: Vec<Backup>| {
            let listing = Some(Ok(items.iter().map(|name| item(name)).collect()));
            Observed { listing, backups, ..target("file:///backups") }
        };
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let align = |adopt: &[&str], let_go: &[&str]| {
            let adopt = adopt.iter().map(|name| item(name)).collect();
            Ok(Action::Align { adopt, let_go: names(let_go), keep: Vec::new() })
        };
        let marked = |name| {
            let mut backup = object(name, BackupState::Completed);
            backup.annotations_mut().insert(GONE.into(), "true".into());
            backup
        };
        let unused = |seen: Observed| Observed { is_unused: true, ..seen };
        let done = |name| object(name, BackupState::Completed);
        let content = Err(Wait::Content { until: Some(at(1_300)) });
        let mut taken = listed(&["a"], vec![]);
        taken.taken = vec!["a".into()];
        #[rustfmt::skip]
        let cases = [
            ("nothing there",        listed(&[], vec![]),                                          content.clone()),
            ("a new one",            listed(&["a"], vec![]),                                       align(&["a"], &[])),
            ("a known one",          listed(&["a"], vec![done("a")]),                              content.clone()),
            ("one that is made now", listed(&[], vec![object("a", BackupState::InProgress)]),      content.clone()),
            ("one that is gone",     listed(&[], vec![done("a")]),                                 align(&[], &["a"])),
            ("a name that is taken", taken,                                                        content.clone()),
            ("one that was to go",   listed(&[], vec![marked("a")]),                               align(&[], &["a"])),
            ("one that is back",     listed(&["a"], vec![marked("a")]),                            Ok(Action::Align { adopt: vec![], let_go: vec![], keep: names(&["a"]) })),
            ("a fresh folder",       unused(listed(&[], vec![])),                                  content.clone()),
            ("its first backup",     unused(listed(&[], vec![object("a", BackupState::InProgress)])), content.clone()),
            ("nothing is mounted",   unused(listed(&[], vec![done("a"), done("b")])),              Err(Wait::Away { folder: Folder::parse("file:///backups").unwrap(), count: 2, until: at(1_010) })),
        ];
        for (case, seen, expected) in cases {
            assert_eq!(decide(&seen).next, expected, "{case}");
        }
    }

    #[test]
    fn what_cannot_be_used_says_why_and_is_tried_again() {
        let bad = decide(&target("s3://bucket@region/"));
        assert!(bad.unavailable.unwrap().contains("file:///FOLDER"));
        let at_nas = || {
            let mut backup = object("a", BackupState::Completed);
            backup.status.as_mut().unwrap().url = "file:///backups/nas?backup=a&volume=vol-1".into();
            backup
        };
        let away = Observed {
            listing: Some(Ok(Vec::new())),
            is_unused: true,
            backups: vec![at_nas()],
            ..target("file:///backups/nas")
        };
        let moved = Observed { backups: vec![at_nas()], ..away.clone() };
        let moved = Observed { target: target("file:///backups/new").target, ..moved };
        assert_eq!(decide(&moved).unavailable, None, "what is elsewhere is not missed here");
        let told = decide(&away).unavailable.unwrap();
        assert!(told.starts_with("file:///backups/nas is not there"), "{told}");
        assert!(told.contains("1 of its backups are known; bring it back"), "{told}");
        assert!(told.ends_with("make the folder /backups/nas/volumes, as nodes see it"), "{told}");
        let silent = Observed { listing: Some(Err("no node answers".into())), ..target("file:///backups") };
        let until = at(1_010);
        assert_eq!(decide(&silent).next, Err(Wait::Unreachable { why: "no node answers".into(), until }));
    }

    #[test]
    fn a_target_is_looked_through_when_it_is_time_or_when_asked() {
        let synced = |second: i64, interval: &str, asked: &str| {
            let mut seen = target("file:///backups");
            seen.target.spec.poll_interval = interval.into();
            seen.target.spec.sync_requested_at = asked.into();
            let status = seen.target.status.get_or_insert_default();
            (status.available, status.last_synced_at) = (true, at(second).to_string().into());
            seen
        };
        #[rustfmt::skip]
        let cases = [
            ("never looked through", target("file:///backups"),              true),
            ("just now",             synced(990, "", ""),                    false),
            ("five minutes ago",     synced(700, "", ""),                    true),
            ("every ten seconds",    synced(990, "10s", ""),                 true),
            ("never",                synced(1, "0s", ""),                    false),
            ("told another folder",  Observed { is_as_before: false, ..synced(990, "", "") }, true),
            ("asked since",          synced(990, "0s", &at(995).to_string()), true),
            ("asked before",         synced(990, "0s", &at(985).to_string()), false),
        ];
        for (case, seen, expected) in cases {
            assert_eq!(seen.is_due(), expected, "{case}");
        }
    }
}
