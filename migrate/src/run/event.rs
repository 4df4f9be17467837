//! What is told while a run goes on: what was done, and how far it is.
//!
//! The one invariant: progress is told at most a few times a second, however fast it is reported.

use std::{
    path::PathBuf,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use serde::Serialize;

use crate::commit;

/// Shortest time between two tellings of progress.
const OFTEN: Duration = Duration::from_millis(200);

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "event")]
pub enum Event {
    /// An interrupted run was finished or cleared before anything else.
    Recovered {
        what: String,
    },
    Progress {
        step: String,
        done: u64,
        /// Zero where it is not known.
        total: u64,
        per_second: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        eta_seconds: Option<u64>,
    },
    /// A step of reading or writing the database is over.
    Finished {
        step: String,
        done: u64,
        milliseconds: u64,
    },
    Taken {
        rows: u64,
        bytes: u64,
        milliseconds: u64,
    },
    BackedUp {
        path: PathBuf,
        bytes: u64,
        rows: u64,
        milliseconds: u64,
    },
    Migrated {
        id: String,
        rows: u64,
        removed: u64,
        milliseconds: u64,
    },
    Validated {
        rows: u64,
        violations: u64,
        milliseconds: u64,
    },
    /// The result is live.
    Switched {
        run: u64,
        microseconds: u64,
    },
    /// These services said a moment ago that they run, and are given the time to fall silent.
    Waiting {
        services: Vec<String>,
        seconds: u64,
    },
    Warning {
        text: String,
    },
}

/// Who hears of it.
pub type Tell<'t> = dyn Fn(Event) + Sync + 't;

/// Turns many reports of progress into few events.
pub(crate) struct Meter<'t> {
    tell: &'t Tell<'t>,
    now: Mutex<Option<Counting>>,
}

struct Counting {
    step: String,
    done: u64,
    since: Instant,
    told: Instant,
    /// Whether its end is worth an event: that of a migration has one of its own.
    tell_end: bool,
}

impl<'t> Meter<'t> {
    pub(crate) fn new(tell: &'t Tell<'t>) -> Meter<'t> {
        Meter { tell, now: Mutex::new(None) }
    }

    pub(crate) fn commit(&self, progress: commit::Progress) {
        self.count(stage(progress.stage), progress.done, progress.total, true);
    }

    pub(crate) fn report(&self, step: &str, done: u64, total: u64) {
        self.count(step, done, total, false);
    }

    /// Ends the step that is under way.
    pub(crate) fn end(&self) {
        self.end_of(self.now.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    fn end_of(&self, counting: Option<Counting>) {
        if let Some(Counting { step, done, since, tell_end: true, .. }) = counting {
            let milliseconds = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
            (self.tell)(Event::Finished { step, done, milliseconds });
        }
    }

    fn count(&self, step: &str, done: u64, total: u64, tell_end: bool) {
        let now = Instant::now();
        let mut counting = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *counting {
            Some(counting) if counting.step == step => {
                counting.done = done;
                if now - counting.told < OFTEN {
                    return;
                }
                counting.told = now;
                (self.tell)(progress(step, done, total, now - counting.since));
            }
            _ => {
                let next = Counting { step: step.to_owned(), done, since: now, told: now, tell_end };
                self.end_of(counting.replace(next));
            }
        }
    }
}

fn progress(step: &str, done: u64, total: u64, took: Duration) -> Event {
    let per_second = (done as f64 / took.as_secs_f64().max(0.001)) as u64;
    let eta_seconds = (total > done && per_second > 0).then(|| (total - done).div_ceil(per_second));
    Event::Progress { step: step.to_owned(), done, total, per_second, eta_seconds }
}

fn stage(stage: commit::Stage) -> &'static str {
    match stage {
        commit::Stage::Reading => "read",
        commit::Stage::Staging => "stage",
        commit::Stage::Verifying => "verify what was staged",
        commit::Stage::Confirming => "look for writers",
        commit::Stage::Switching => "switch",
        commit::Stage::Syncing => "sync",
        commit::Stage::Replaying => "write in place",
        commit::Stage::Clearing => "clear",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_the_rate_and_when_it_ends() {
        let told = progress("stage", 500, 2000, Duration::from_secs(5));
        let expected = Event::Progress {
            step: "stage".into(),
            done: 500,
            total: 2000,
            per_second: 100,
            eta_seconds: Some(15),
        };
        assert_eq!(told, expected);
    }

    #[test]
    fn the_end_of_a_step_is_told_once() {
        let told = Mutex::new(vec![]);
        let tell = |event: Event| {
            if let Event::Finished { step, done, .. } = event {
                told.lock().unwrap().push((step, done));
            }
        };
        let meter = Meter::new(&tell);
        meter.report("migrate a", 0, 5);
        for (stage, done) in [(commit::Stage::Staging, 1), (commit::Stage::Staging, 7)] {
            meter.commit(commit::Progress { stage, done, total: 7 });
        }
        meter.commit(commit::Progress { stage: commit::Stage::Switching, done: 1, total: 1 });
        meter.end();
        meter.end();
        assert_eq!(*told.lock().unwrap(), [("stage".to_owned(), 7), ("switch".to_owned(), 1)]);
    }

    #[test]
    fn many_reports_become_few_events() {
        let told = Mutex::new(0);
        let tell = |_: Event| *told.lock().unwrap() += 1;
        let meter = Meter::new(&tell);
        for done in 0..100_000 {
            meter.report("read", done, 0);
        }
        assert!(*told.lock().unwrap() < 1000);
    }
}
