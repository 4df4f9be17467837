//! Finds services that say in the database itself that they run, and tells when they have fallen silent.
//!
//! Dragonflow's services keep a row each and write the time into it as long as they live. They do not take it out
//! when they stop, so a row of the last minute may be that of a service which was stopped a moment ago.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use serde_json::Value;

use crate::{
    announced,
    record::{RowKey, Snapshot, Table},
};

/// A service that was not heard of for longer is taken for stopped. Longer than two of their own intervals.
const RECENT_SECONDS: i64 = 60;
/// How long services are given to fall silent: one that writes once more while it stops still has the time.
const PATIENCE_SECONDS: i64 = 90;

/// Where the time comes from.
#[async_trait]
pub(super) trait Clock: Send + Sync {
    fn now(&self) -> Timestamp;
    async fn sleep(&self, time: Duration);
}

/// The time of this machine.
pub(super) struct OfMachine;

#[async_trait]
impl Clock for OfMachine {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    async fn sleep(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

/// A row with the very text by which its service said that it runs.
pub(super) type Said = (Table, RowKey, Bytes);

/// A service that was heard of lately.
pub(super) struct Live {
    pub(super) said: Said,
    seconds_ago: i64,
    pub(super) words: String,
}

/// Services that were heard of in the last minute.
pub(super) fn live(rows: &Snapshot, now: Timestamp) -> Vec<Live> {
    let mut live = Vec::new();
    for (name, field) in announced::TABLES {
        let table = Table::new(name);
        for (key, value) in rows.rows(&table) {
            let Ok(Value::Object(object)) = serde_json::from_slice(value) else { continue };
            let seen = object.get(field).and_then(Value::as_f64).map(|seconds| seconds as i64);
            let Some(seconds_ago) = seen.map(|seen| now.as_second() - seen) else { continue };
            if seconds_ago.abs() < RECENT_SECONDS {
                let name = object.get("binary").and_then(Value::as_str).unwrap_or(&key.id);
                let place = object.get("chassis").and_then(Value::as_str).map(|node| format!(" on {node}"));
                let place = place.unwrap_or_default();
                let words = format!("{table} {name}{place} said {seconds_ago} s ago that it runs");
                live.push(Live { said: (table.clone(), key.clone(), value.clone()), seconds_ago, words });
            }
        }
    }
    live
}

/// What a look at the announcements leads to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// None was heard of lately, or since the look a minute before.
    Silent,
    /// They may have stopped; it shows in so many seconds.
    Wait { seconds: u64 },
    /// They were given the time, and still speak.
    Speaking,
}

/// Listens whether services say anything new.
#[derive(Default)]
pub(super) struct Vigil {
    began: Option<Timestamp>,
    /// Since when each row was seen to say what it says.
    same: BTreeMap<Said, Timestamp>,
}

impl Vigil {
    pub(super) fn look(&mut self, live: &[Live], now: Timestamp) -> Heard {
        let began = *self.began.get_or_insert(now);
        let left = live.iter().map(|row| self.seconds_left(row, now)).max().unwrap_or(0);
        if left <= 0 {
            return Heard::Silent;
        }
        match PATIENCE_SECONDS - seconds_between(began, now) {
            patience if patience > 0 => Heard::Wait { seconds: left.min(patience).unsigned_abs() },
            _ => Heard::Speaking,
        }
    }

    /// Until the row is old, or was seen unchanged for as long: its service may have another clock.
    fn seconds_left(&mut self, row: &Live, now: Timestamp) -> i64 {
        let since = *self.same.entry(row.said.clone()).or_insert(now);
        (RECENT_SECONDS - row.seconds_ago).min(RECENT_SECONDS - seconds_between(since, now))
    }

    /// The rows that may look recent and were seen unchanged for so long that their services have stopped.
    pub(super) fn silent(self, now: Timestamp) -> BTreeSet<Said> {
        let silent =
            self.same.into_iter().filter(|(_, since)| seconds_between(*since, now) >= RECENT_SECONDS);
        silent.map(|(said, _)| said).collect()
    }
}

fn seconds_between(one: Timestamp, later: Timestamp) -> i64 {
    later.as_second() - one.as_second()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: &[(&str, &str, String)]) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for (table, id, value) in rows {
            snapshot.put(&Table::new(*table), RowKey::untopical(id), value.clone().into());
        }
        snapshot
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn only_those_heard_of_lately_live() {
        let rows = rows(&[
            ("service", "1", r#"{"binary":"df-local-controller","chassis":"c1","last_seen_up":990}"#.into()),
            ("service", "2", r#"{"binary":"df-metadata","chassis":"c1","last_seen_up":900}"#.into()),
            ("publisher", "3", r#"{"last_activity_timestamp":999.5}"#.into()),
            ("lport", "4", r#"{"last_seen_up":999}"#.into()),
        ]);
        let found: Vec<String> = live(&rows, at(1000)).into_iter().map(|live| live.words).collect();
        assert_eq!(
            found,
            [
                "service df-local-controller on c1 said 10 s ago that it runs",
                "publisher 3 said 1 s ago that it runs"
            ]
        );
    }

    /// Each look: the second at which it is made, and what the row says then.
    #[test]
    fn a_service_is_silent_when_it_has_said_nothing_for_a_minute() {
        use Heard::{Silent, Speaking, Wait};
        #[rustfmt::skip]
        let cases = [
            ("long silent",        vec![(1000, 940, Silent)]),
            ("stopped just now",   vec![(1000, 950, Wait { seconds: 10 }), (1010, 950, Silent)]),
            ("one word more",      vec![(1000, 990, Wait { seconds: 50 }), (1050, 1005, Wait { seconds: 15 }), (1065, 1005, Silent)]),
            ("its clock is ahead", vec![(1000, 1030, Wait { seconds: 60 }), (1060, 1030, Silent)]),
            ("never stops",        vec![(1000, 990, Wait { seconds: 50 }), (1050, 1040, Wait { seconds: 40 }), (1090, 1080, Speaking)]),
        ];
        for (name, looks) in cases {
            let mut vigil = Vigil::default();
            for (now, said, heard) in looks {
                let rows = rows(&[("service", "s", format!(r#"{{"last_seen_up":{said}}}"#))]);
                assert_eq!(vigil.look(&live(&rows, at(now)), at(now)), heard, "{name}, at {now}");
            }
        }
    }
}
