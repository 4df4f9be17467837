//! Changes the record for an engine, on a thread of its own: the engine's loop
//! goes on while the record's store takes its time.
//!
//! Invariant: a wish is reported done only when the record says so durably; while
//! the store cannot be reached it is tried again, never given up.

use std::{
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::Duration,
};

use super::{RecordError, RecordStore, Verdict, Wish};
use crate::net::reactor::Waker;

/// How a wish ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Done,
    Outbid { term: u64 },
    Stale,
}

#[derive(Debug)]
pub struct Scribe {
    wishes: Sender<Wish>,
    outcomes: Receiver<Outcome>,
}

/// Waits between attempts while the store cannot be reached.
const FIRST_WAIT: Duration = Duration::from_millis(10);
const LONGEST_WAIT: Duration = Duration::from_secs(1);

impl Scribe {
    /// Starts the thread; `waker` tells the loop that an outcome is there.
    pub fn start(mut store: impl RecordStore, term: u64, waker: Waker) -> Scribe {
        let (wishes, queue) = channel::<Wish>();
        let (tell, outcomes) = channel();
        thread::spawn(move || {
            for wish in queue {
                if tell.send(fulfil(&mut store, term, &wish)).is_err() {
                    return;
                }
                waker.wake();
            }
        });
        Scribe { wishes, outcomes }
    }

    /// One at a time.
    pub fn wish(&self, wish: Wish) {
        // The thread ends only with this handle.
        let _ = self.wishes.send(wish);
    }

    pub fn outcome(&self) -> Option<Outcome> {
        self.outcomes.try_recv().ok()
    }
}

fn fulfil(store: &mut impl RecordStore, term: u64, wish: &Wish) -> Outcome {
    let mut wait = FIRST_WAIT;
    loop {
        match attempt(store, term, wish) {
            Ok(Some(outcome)) => return outcome,
            Ok(None) => {}
            Err(error) => {
                let why = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                tracing::warn!(%error, why, replica = wish.replica, "writes wait for the record");
                thread::sleep(wait);
                wait = (wait * 2).min(LONGEST_WAIT);
            }
        }
    }
}

/// `None`: someone was faster; look again.
fn attempt(store: &mut impl RecordStore, term: u64, wish: &Wish) -> Result<Option<Outcome>, RecordError> {
    let (seen, record) = store.read()?;
    match record.judge(term, wish) {
        Verdict::Apply(next) => Ok(store.swap(&seen, &next)?.then_some(Outcome::Done)),
        Verdict::Done => Ok(Some(Outcome::Done)),
        Verdict::Outbid { term } => Ok(Some(Outcome::Outbid { term })),
        Verdict::Stale => Ok(Some(Outcome::Stale)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::members::Mode,
        record::{Record, Revision},
    };

    /// Fails a number of times, also after it has made the change.
    struct Flaky {
        record: Record,
        failures: u32,
    }

    impl Flaky {
        fn fail(&mut self) -> Result<(), RecordError> {
            match self.failures {
                0 => Ok(()),
                _ => {
                    self.failures -= 1;
                    Err(RecordError { doing: "reach", source: "nobody answers".into() })
                }
            }
        }
    }

    impl RecordStore for Flaky {
        fn read(&mut self) -> Result<(Revision, Record), RecordError> {
            Ok((Revision(self.record.member_version.to_string()), self.record.clone()))
        }

        fn swap(&mut self, _: &Revision, record: &Record) -> Result<bool, RecordError> {
            self.record = record.clone();
            self.fail().map(|()| true)
        }
    }

    #[test]
    fn a_change_whose_answer_was_lost_is_made_once() {
        let record = Record { term: 3, ..Record::new(["a".into(), "b".into()]) };
        let mut store = Flaky { record, failures: 1 };
        let wish = Wish { replica: "b".into(), mode: Mode::Out, version: 1 };
        assert_eq!(fulfil(&mut store, 3, &wish), Outcome::Done);
        assert_eq!((store.record.member_version, store.record.in_service()), (1, 1));
        assert_eq!(fulfil(&mut store, 2, &wish), Outcome::Outbid { term: 3 });
        let last = Wish { replica: "a".into(), mode: Mode::Out, version: 2 };
        assert_eq!(fulfil(&mut store, 3, &last), Outcome::Stale);
    }
}
