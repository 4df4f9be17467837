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
    Taken {
        rows: u64,
        bytes: u64,
        milliseconds: u64,
    },
    BackedUp {
        path: PathBuf,
        bytes: u64,
        rows: u64,
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
    since: Instant,
    told: Instant,
}

impl<'t> Meter<'t> {
    pub(crate) fn new(tell: &'t Tell<'t>) -> Meter<'t> {
        Meter { tell, now: Mutex::new(None) }
    }

    pub(crate) fn commit(&self, progress: commit::Progress) {
        self.report(stage(progress.stage), progress.done, progress.total);
    }

    pub(crate) fn report(&self, step: &str, done: u64, total: u64) {
        let now = Instant::now();
        let mut counting = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *counting {
            Some(counting) if counting.step == step => {
                if now - counting.told < OFTEN {
                    return;
                }
                counting.told = now;
                (self.tell)(progress(step, done, total, now - counting.since));
            }
            _ => *counting = Some(Counting { step: step.to_owned(), since: now, told: now }),
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
        commit::Stage::Switching => "switch",
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
