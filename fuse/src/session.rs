//! Threads that read calls and write answers.
//!
//! Invariant: a thread that is asked to stop does so between two calls: whatever it has
//! read is answered, and what it has not read is still the kernel's.

use std::{
    os::fd::OwnedFd,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use midflight_handover::kernel::{HEAD_IN, Head, answer_head, code};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

use crate::{
    crew::{Crew, Member, Pace},
    folder::{Answer, Caching, Folder},
    nudge::nudge,
    wire::{
        MOST_CALL,
        call::Op,
        init::{InitError, agree},
        reply::Reply,
    },
};

#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error("read the kernel's first call")]
    Read { source: Errno },
    #[error("agree with the kernel")]
    Agree { source: InitError },
    #[error("answer the kernel's first call")]
    Answer { source: Errno },
    #[error("start a thread")]
    Thread { source: std::io::Error },
}

/// Answers the call that opens a session.
pub(crate) fn shake_hands(device: &OwnedFd, caching: Caching) -> Result<(), SessionError> {
    let mut raw = vec![0; MOST_CALL];
    let length = rustix::io::read(device, &mut raw[..]).map_err(|source| SessionError::Read { source })?;
    let raw = &raw[..length];
    let head = Head::parse(raw).ok().filter(|head| head.opcode == code::INIT);
    let agreed = head.ok_or(InitError::NotInit).and_then(|head| Ok((head, agree(&raw[HEAD_IN..], caching)?)));
    let (head, body) = agreed.map_err(|source| SessionError::Agree { source })?;
    let answer = [&answer_head(head.unique, 0, body.len())[..], &body].concat();
    rustix::io::write(device, &answer).map_err(|source| SessionError::Answer { source })?;
    Ok(())
}

/// What all threads share.
#[derive(Debug)]
struct Shared {
    device: OwnedFd,
    folder: Folder,
    stopping: AtomicBool,
    working: AtomicUsize,
    crew: Crew,
    /// Readable when the last thread has ended.
    wake: Arc<OwnedFd>,
}

/// A session that is being served.
#[derive(Debug)]
pub(crate) struct Session {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Session {
    pub(crate) fn serve(
        device: OwnedFd,
        folder: Folder,
        threads: usize,
        wake: Arc<OwnedFd>,
    ) -> Result<Session, SessionError> {
        let (stopping, working) = (AtomicBool::new(false), AtomicUsize::new(threads));
        let shared = Arc::new(Shared { device, folder, stopping, working, crew: Crew::new(), wake });
        let threads = (0..threads).map(|number| {
            let shared = Arc::clone(&shared);
            thread::Builder::new().name(format!("fuse-{number}")).spawn(move || shared.work(number == 0))
        });
        let watcher = Arc::clone(&shared);
        let watcher = thread::Builder::new().name("watch".to_owned()).spawn(move || watcher.crew.watch());
        let threads = threads.chain([watcher]).collect::<Result<_, _>>();
        let threads = threads.map_err(|source| SessionError::Thread { source })?;
        Ok(Session { shared, threads })
    }

    /// Whether the kernel has ended the session: nobody uses it any more.
    pub(crate) fn is_over(&self) -> bool {
        self.shared.working.load(Ordering::Acquire) == 0
    }

    /// Ends all threads, each between two calls. One whose call gets nowhere is left to the end of the process.
    pub(crate) fn stop(self) {
        const AGAIN: Duration = Duration::from_millis(1);
        const AT_MOST: Duration = Duration::from_secs(5);
        let until = Instant::now() + AT_MOST;
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.crew.end();
        for thread in self.threads {
            // A nudge that comes just before the thread waits is lost: hence the next one.
            while !thread.is_finished() && Instant::now() < until {
                nudge(&thread);
                thread::sleep(AGAIN);
            }
            if !thread.is_finished() {
                tracing::warn!("a call gets nowhere: its thread is left behind");
            } else if thread.join().is_err() {
                tracing::error!("a thread of the session ended in a panic");
            }
        }
    }
}

impl Shared {
    fn work(&self, first: bool) {
        let mut raw = vec![0; MOST_CALL];
        let mut reply = Reply::new();
        let mut member = self.crew.join(first);
        while !self.stopping.load(Ordering::Acquire) {
            member.wait();
            member.look(|| self.is_called());
            let read = rustix::io::read(&self.device, &mut raw[..]);
            member.begin();
            match read {
                Ok(length) => self.turn(&raw[..length], &mut reply, &mut member),
                // A nudge, or a call that was taken back while it was read.
                Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => {}
                Err(Errno::NODEV) => break,
                Err(error) => {
                    tracing::error!(%error, "calls cannot be read");
                    break;
                }
            }
        }
        // Nobody else gets a call any more either.
        self.crew.end();
        if self.working.fetch_sub(1, Ordering::AcqRel) == 1 {
            // Full means that it is readable already.
            let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        }
    }

    /// Whether a call can be read at once; others may be faster.
    fn is_called(&self) -> bool {
        const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.device, PollFlags::IN)], Some(&NOW)).is_ok_and(|ready| ready > 0)
    }

    /// Answers one call.
    fn turn(&self, raw: &[u8], reply: &mut Reply, member: &mut Member<'_>) {
        let head = match Head::parse(raw) {
            Ok(head) => head,
            Err(error) => return tracing::error!(%error, "not a call"),
        };
        member.take(pace(head.opcode));
        reply.begin();
        let answer = Op::parse(head.opcode, &raw[HEAD_IN..]).and_then(|op| {
            // Whoever waits gets an answer, also where we are wrong.
            catch_unwind(AssertUnwindSafe(|| self.folder.answer(&head, op, reply))).unwrap_or(Err(Errno::IO))
        });
        member.done();
        let result = match answer {
            Ok(Answer::Unwanted) => return,
            Ok(Answer::Ready) => Ok(()),
            Err(errno) => Err(errno),
        };
        match rustix::io::write(&self.device, reply.finish(head.unique, result)) {
            // Whoever asked has gone.
            Ok(_) | Err(Errno::NOENT | Errno::NODEV) => {}
            Err(error) => tracing::error!(%error, opcode = head.opcode, "the kernel refuses an answer"),
        }
    }
}

/// What is slow by its nature; of all else it shows.
fn pace(opcode: u32) -> Pace {
    match opcode {
        code::FSYNC | code::FSYNCDIR | code::FALLOCATE | code::COPY_FILE_RANGE => Pace::Slow,
        _ => Pace::Quick,
    }
}
