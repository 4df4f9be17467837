//! What is on disk of a pod: every container's newest run, and how the one before ended.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

use crate::container::{Blueprint, Exit, Room, RoomError, State};

/// The newest run of a container.
#[derive(Debug)]
pub(super) struct Newest {
    pub(super) room: Room,
    pub(super) blueprint: Blueprint,
    pub(super) state: State,
    /// How the run before it ended.
    pub(super) before: Option<Exit>,
}

/// Where the runs of a container are.
pub(super) fn runs(pod: &Path, container: &str) -> PathBuf {
    pod.join("containers").join(container)
}

pub(super) fn room(pod: &Path, container: &str, attempt: u32) -> Room {
    Room::at(runs(pod, container).join(attempt.to_string()))
}

/// The newest run that was planned as a whole.
pub(super) fn newest(pod: &Path, container: &str) -> Result<Option<Newest>, RoomError> {
    let mut attempts = attempts(&runs(pod, container));
    while let Some(attempt) = attempts.pop_last() {
        let room = room(pod, container, attempt);
        let Some(mut blueprint) = room.blueprint()? else { continue };
        if room.is_forgiven() {
            blueprint.failures = 0;
        }
        let state = match room.state()? {
            State::Lost => State::Ended(room.bury(jiff::Timestamp::now())?),
            state => state,
        };
        let before = match attempts.last().map(|earlier| self::room(pod, container, *earlier).state()) {
            Some(Ok(State::Ended(exit))) => Some(exit),
            _ => None,
        };
        return Ok(Some(Newest { room, blueprint, state, before }));
    }
    Ok(None)
}

/// Removes all but the newest runs.
pub(super) fn forget_before(pod: &Path, container: &str, attempt: u32) -> Result<(), RoomError> {
    let old = attempts(&runs(pod, container)).into_iter().filter(|old| *old < attempt);
    old.into_iter().try_for_each(|old| room(pod, container, old).remove())
}

/// The containers that were ever started.
pub(super) fn containers(pod: &Path) -> Vec<String> {
    let entries = fs::read_dir(pod.join("containers")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// The pods of which something is on disk.
pub(super) fn pods(root: &Path) -> io::Result<BTreeSet<String>> {
    let entries = fs::read_dir(root)?;
    Ok(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

fn attempts(runs: &Path) -> BTreeSet<u32> {
    let entries = fs::read_dir(runs).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}
