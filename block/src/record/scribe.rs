//! Changes the record for an engine, on a thread of its own: the engine's loop
//! goes on while the record's store takes its time.
//!
//! Invariant: a wish is reported done only when the record says so durably; while
//! the store cannot be reached it is tried again, never given up.

use std::{
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread,
    time::Duration,
};

use super::{Found, Known, Record, RecordError, RecordStore, Verdict, Wish};
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
/// How often an engine that wishes nothing looks at the record.
const LOOK_EVERY: Duration = Duration::from_secs(2);

impl Scribe {
    /// Starts the thread for an engine that knows the record as `known`; `waker` tells
    /// the loop that an outcome is there.
    pub fn start(mut store: impl RecordStore, known: &Record, waker: Waker) -> Scribe {
        let mut known =
            Known { term: known.term, version: known.member_version, attachment: known.attachment };
        let (wishes, queue) = channel::<Wish>();
        let (tell, outcomes) = channel();
        thread::spawn(move || {
            loop {
                let outcome = match queue.recv_timeout(LOOK_EVERY) {
                    Ok(wish) => {
                        known.version = wish.version;
                        Some(fulfil(&mut store, known.term, &wish))
                    }
                    Err(RecvTimeoutError::Timeout) => look(&mut store, known),
                    Err(RecvTimeoutError::Disconnected) => return,
                };
                let Some(outcome) = outcome else { continue };
                if tell.send(outcome).is_err() {
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

/// Whether the record is not what the engine believes, so that it has to end.
fn look(store: &mut impl RecordStore, known: Known) -> Option<Outcome> {
    let (_, record) = store.read().ok()?;
    match record.found_by(known) {
        Found::AsKnown | Found::Succession => None,
        Found::Outbid { term } => Some(Outcome::Outbid { term }),
        Found::Stale => Some(Outcome::Stale),
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
    use crate::{engine::members::Mode, record::Revision};

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
        let wish = Wish { replica: "b".into(), mode: Mode::Out, version: 2 };
        assert_eq!(fulfil(&mut store, 3, &wish), Outcome::Done);
        assert_eq!((store.record.member_version, store.record.in_service()), (2, 1));
        assert_eq!(fulfil(&mut store, 2, &wish), Outcome::Outbid { term: 3 });
        let last = Wish { replica: "a".into(), mode: Mode::Out, version: 3 };
        assert_eq!(fulfil(&mut store, 3, &last), Outcome::Stale);
        let known = |term, version| Known { term, version, attachment: None };
        assert_eq!(look(&mut store, known(3, 2)), None);
        assert_eq!(look(&mut store, known(3, 1)), Some(Outcome::Stale));
        assert_eq!(look(&mut store, known(2, 2)), Some(Outcome::Outbid { term: 3 }));
        store.record.switching = true;
        assert_eq!(look(&mut store, known(2, 2)), None);
        assert_eq!(fulfil(&mut store, 2, &last), Outcome::Outbid { term: 3 }, "it changes nothing any more");
    }
}
