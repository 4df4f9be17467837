//! When replicas were away, as the records of their volumes say.
//!
//! The one invariant: a replica is away from the moment that the record has it out of service until it takes writes again.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use futures::StreamExt;
use kube::{
    Client, ResourceExt,
    api::Api,
    runtime::{WatchStreamExt, watcher},
};
use midflight_api::{MemberMode, VolumeRecord, VolumeRecordSpec, longhorn::NAMESPACE};
use tokio::task::JoinHandle;

/// One replica that was away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Absence {
    pub(super) volume: String,
    pub(super) from: Instant,
    pub(super) to: Instant,
}

/// What was seen of all records so far.
#[derive(Debug, Default)]
struct Seen {
    /// Since when replicas that are away are, by volume and name.
    away: HashMap<(String, String), Instant>,
    over: Vec<Absence>,
}

impl Seen {
    fn take(&mut self, volume: &str, record: &VolumeRecordSpec, now: Instant) {
        for member in &record.members {
            let key = (volume.to_owned(), member.replica.to_string());
            match member.mode {
                MemberMode::Error => drop(self.away.entry(key).or_insert(now)),
                MemberMode::ReadWrite | MemberMode::WriteOnly => {
                    if let Some(from) = self.away.remove(&key) {
                        self.over.push(Absence { volume: volume.to_owned(), from, to: now });
                    }
                }
            }
        }
    }
}

/// Watches until it is asked what it has seen, or nobody is interested any more.
pub(super) struct Absences {
    seen: Arc<Mutex<Seen>>,
    watching: JoinHandle<()>,
}

impl Absences {
    pub(super) fn watch(client: &Client) -> Absences {
        let records: Api<VolumeRecord> = Api::namespaced(client.clone(), NAMESPACE);
        let seen = Arc::new(Mutex::new(Seen::default()));
        let told = Arc::clone(&seen);
        let watching = tokio::spawn(async move {
            let changes = watcher(records, watcher::Config::default()).default_backoff().applied_objects();
            let mut changes = changes.boxed();
            while let Some(change) = changes.next().await {
                let Ok(record) = change else { continue };
                let mut seen = told.lock().unwrap_or_else(PoisonError::into_inner);
                seen.take(&record.name_any(), &record.spec, Instant::now());
            }
        });
        Absences { seen, watching }
    }

    pub(super) fn over(&self) -> Vec<Absence> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).over.clone()
    }
}

impl Drop for Absences {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use midflight_api::Member;

    use super::*;

    #[test]
    fn a_replica_is_away_until_it_takes_writes_again() {
        let zero = Instant::now();
        let at = |ms: u64| zero + Duration::from_millis(ms);
        let record = |modes: [MemberMode; 2]| {
            let member = |(number, mode)| Member { mode, ..member_named(number) };
            let members = modes.into_iter().enumerate().map(member).collect();
            VolumeRecordSpec { members, ..VolumeRecordSpec::default() }
        };
        let mut seen = Seen::default();
        use MemberMode::{Error, ReadWrite, WriteOnly};
        for (moment, modes) in [
            (0, [ReadWrite, ReadWrite]),
            (1, [Error, ReadWrite]),
            (2, [Error, ReadWrite]),
            (5, [WriteOnly, ReadWrite]),
            (6, [ReadWrite, ReadWrite]),
            (8, [ReadWrite, Error]),
        ] {
            seen.take("vol", &record(modes), at(moment));
        }
        assert_eq!(seen.over, [Absence { volume: "vol".into(), from: at(1), to: at(5) }]);
        assert_eq!(seen.away.len(), 1);
    }

    fn member_named(number: usize) -> Member {
        let member =
            serde_json::json!({ "replica": format!("r-{number}"), "nodeID": "node-1", "mode": "rw" });
        serde_json::from_value(member).expect("a member")
    }
}
