//! Asks a file system something, and waits for the answer no longer than a while: whoever serves it may hang.
//!
//! Invariant: of one file system one question at most is without an answer, so a daemon that hangs costs one thread, however often it is asked.

use std::{
    collections::BTreeSet,
    io,
    os::fd::OwnedFd,
    path::Path,
    sync::{Condvar, Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{AtFlags, CWD, StatxFlags, statx},
    io::Errno,
};

/// Whether whoever serves a place answers. What the kernel remembers is asked for, too: it tells that of a daemon that has ended as well.
pub(super) fn answers(at: &Path) -> Result<(), Errno> {
    statx(CWD, at, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS).map(drop)
}

/// The same of something that was opened. Gives the number of its file system, as the table of mounts has it.
pub(super) fn answers_opened(opened: &OwnedFd) -> Result<String, Errno> {
    let flags = AtFlags::STATX_FORCE_SYNC | AtFlags::EMPTY_PATH;
    let seen = statx(opened, c"", flags, StatxFlags::BASIC_STATS)?;
    Ok(format!("{}:{}", seen.stx_dev_major, seen.stx_dev_minor))
}

/// A daemon that has so much to do that it needs longer is none to give to a workload.
const ANSWERS_WITHIN: Duration = Duration::from_secs(3);

/// File systems that were asked something and have not answered.
static ASKED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
static ANSWERED: Condvar = Condvar::new();

/// The answer of the file system of that device, if it came in time.
pub(super) fn ask<T: Send + 'static>(
    device: &str,
    question: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Option<T>> {
    ask_within(ANSWERS_WITHIN, device, question)
}

fn ask_within<T: Send + 'static>(
    patience: Duration,
    device: &str,
    question: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Option<T>> {
    let until = Instant::now() + patience;
    let left = || until.saturating_duration_since(Instant::now());
    let asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut asked, _) = ANSWERED
        .wait_timeout_while(asked, left(), |asked| asked.contains(device))
        .unwrap_or_else(PoisonError::into_inner);
    if !asked.insert(device.to_owned()) {
        return Ok(None);
    }
    drop(asked);
    let (tell, told) = mpsc::sync_channel(1);
    let turn = Turn(device.to_owned());
    thread::Builder::new().name("ask".to_owned()).spawn(move || {
        let answer = question();
        drop(turn);
        // Nobody may wait for it any more.
        let _ = tell.send(answer);
    })?;
    Ok(told.recv_timeout(left()).ok())
}

/// Keeps others from asking the same.
struct Turn(String);

impl Drop for Turn {
    fn drop(&mut self) {
        ASKED.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
        ANSWERED.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than any machine needs for nothing.
    const PATIENCE: Duration = Duration::from_secs(150);

    #[test]
    fn whoever_hangs_is_asked_once_and_others_go_on() {
        let (answer, hangs) = mpsc::channel::<()>();
        let asked = ask_within(Duration::ZERO, "hangs", move || hangs.recv().is_ok());
        assert_eq!(asked.unwrap(), None);
        for _ in 0..3 {
            let again =
                ask_within(Duration::ZERO, "hangs", || panic!("asked though the answer is still owed"));
            assert_eq!(again.unwrap(), None::<()>);
        }
        assert_eq!(ask_within(PATIENCE, "another", || 7).unwrap(), Some(7));
        answer.send(()).unwrap();
        assert_eq!(ask_within(PATIENCE, "hangs", || 8).unwrap(), Some(8), "it has come back");
    }

    #[test]
    fn a_question_that_fails_is_over() {
        let failed = ask_within(PATIENCE, "fails", || panic!("as if it could not be asked"));
        assert_eq!(failed.unwrap(), None::<()>);
        assert_eq!(ask_within(PATIENCE, "fails", || 9).unwrap(), Some(9));
    }
}
