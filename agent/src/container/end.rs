//! Ends the processes of a container.
//!
//! The one invariant: whoever asks for it goes on after a while, also where the kernel does not let a process end, as one that waits
//! for a file system that hangs.

use std::{
    fs, io,
    path::Path,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;

use super::MARK;
use crate::process::Identity;

/// How long those who were killed may take to be gone.
const ENDED_WITHIN: Duration = Duration::from_secs(10);
/// What a last look may take.
const ONE_LOOK: Duration = Duration::from_secs(1);
/// How soon it is looked again at first, and at the latest.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_millis(100);

/// Whether processes of a container are left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    Nobody,
    Somebody,
}

/// Kills every process whose environment names the room, until there is none; so does `others` at each look with those that it knows
/// of, and gives them. Who is there after a while is told and left.
pub(super) fn end(room: &Path, others: impl FnMut() -> io::Result<Vec<i32>> + Send + 'static) -> Left {
    const SAID: &str = "processes of the container cannot be ended";
    match end_within(ENDED_WITHIN, room, others) {
        Ok(left) if left.is_empty() => return Left::Nobody,
        Ok(left) => tracing::error!(room = %room.display(), pids = ?left, "{SAID}"),
        Err(error) => tracing::error!(room = %room.display(), %error, "{SAID}"),
    }
    Left::Somebody
}

fn end_within(
    patience: Duration,
    room: &Path,
    mut others: impl FnMut() -> io::Result<Vec<i32>> + Send + 'static,
) -> io::Result<Vec<i32>> {
    let mark = format!("{MARK}={}\0", room.display());
    let (tell, told) = mpsc::channel();
    // A process whose memory the kernel cannot look at keeps whoever asks for its environment.
    thread::Builder::new().name("end".to_owned()).spawn(move || {
        let look = || {
            let mut there = others()?;
            there.extend(end_marked(mark.as_bytes())?);
            there.sort_unstable();
            there.dedup();
            Ok(there)
        };
        // Nobody may wait for it any more.
        let _ = tell.send(until_none(patience, look));
    })?;
    told.recv_timeout(patience + ONE_LOOK).unwrap_or_else(|error| match error {
        RecvTimeoutError::Timeout => Err(io::ErrorKind::TimedOut.into()),
        RecvTimeoutError::Disconnected => Err(io::Error::other("whoever looks has failed")),
    })
}

/// Looks until nobody is there, ever more seldom; gives those who are there after so long.
fn until_none(patience: Duration, mut look: impl FnMut() -> io::Result<Vec<i32>>) -> io::Result<Vec<i32>> {
    let until = Instant::now() + patience;
    let mut nap = LOOK_AGAIN;
    loop {
        let there = look()?;
        let left = until.saturating_duration_since(Instant::now());
        if there.is_empty() || left.is_zero() {
            return Ok(there);
        }
        thread::sleep(nap.min(left));
        nap = LOOK_AT_LEAST_EVERY.min(nap * 2);
    }
}

/// Kills every process in whose environment this is, and gives those that were there.
fn end_marked(mark: &[u8]) -> io::Result<Vec<i32>> {
    let mut there = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let Ok(identity) = Identity::of(pid) else { continue };
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        if !contains(&environment, mark) {
            continue;
        }
        match identity.open() {
            Ok(None) => {}
            // One that cannot be killed keeps nobody from the others.
            Ok(Some(alive)) => {
                let _ = alive.signal(Signal::KILL);
                there.push(alive.pid);
            }
            Err(_) => there.push(identity.pid),
        }
    }
    Ok(there)
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const SHORT: Duration = Duration::from_millis(200);

    #[test]
    fn who_cannot_be_ended_is_waited_for_no_longer_than_a_while() {
        let mut looks = 0;
        let mut stays = || {
            looks += 1;
            Ok(vec![7])
        };
        let begun = Instant::now();
        assert_eq!(until_none(SHORT, &mut stays).unwrap(), [7]);
        assert!(begun.elapsed() >= SHORT);
        assert!((2..=15).contains(&looks), "ever more seldom: {looks} looks");

        let mut left = vec![3, 2, 1];
        let mut goes = || {
            left.pop();
            Ok(left.clone())
        };
        assert_eq!(until_none(Duration::from_secs(150), &mut goes).unwrap(), Vec::<i32>::new());
        assert!(until_none(SHORT, || Err(io::ErrorKind::PermissionDenied.into())).is_err());
    }

    #[test]
    fn a_look_that_hangs_keeps_nobody_and_is_told() {
        let room = tempfile::tempdir().unwrap();
        let (_keep, hangs) = mpsc::channel::<()>();
        let look = move || {
            let _ = hangs.recv();
            Ok(Vec::new())
        };
        let error = end_within(SHORT, room.path(), look).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn who_names_the_room_is_ended_and_nobody_else() {
        let (room, another) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let start = |room: &Path| Command::new("sleep").arg("600").env(MARK, room).spawn().unwrap();
        let (mut marked, mut stranger) = (start(room.path()), start(another.path()));
        assert_eq!(end(room.path(), || Ok(Vec::new())), Left::Nobody);
        assert!(!marked.wait().unwrap().success());
        assert_eq!(stranger.try_wait().unwrap(), None);
        assert_eq!(end(another.path(), || Ok(Vec::new())), Left::Nobody);
        stranger.wait().unwrap();
    }
}
