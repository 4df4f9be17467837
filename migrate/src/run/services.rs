//! Finds services that say in the database itself that they run.
//!
//! Dragonflow's services keep a row each and write the time into it as long as they live.

use jiff::Timestamp;
use serde_json::Value;

use crate::record::{Snapshot, Table};

/// Tables in which services announce themselves, and the field that holds the time.
const ANNOUNCED: [(&str, &str); 2] = [("service", "last_seen_up"), ("publisher", "last_activity_timestamp")];
/// A service that was not heard of for longer is taken for stopped.
const RECENT_SECONDS: i64 = 60;

/// Services that were heard of in the last minute, in words.
pub(super) fn live(rows: &Snapshot, now: Timestamp) -> Vec<String> {
    let mut live = Vec::new();
    for (table, field) in ANNOUNCED {
        for (key, value) in rows.rows(&Table::new(table)) {
            let Ok(Value::Object(object)) = serde_json::from_slice(value) else { continue };
            let seen = object.get(field).and_then(Value::as_f64).map(|seconds| seconds as i64);
            let Some(ago) = seen.map(|seen| now.as_second() - seen) else { continue };
            if ago.abs() < RECENT_SECONDS {
                let name = object.get("binary").and_then(Value::as_str).unwrap_or(&key.id);
                let place = object.get("chassis").and_then(Value::as_str).map(|node| format!(" on {node}"));
                live.push(format!(
                    "{table} {name}{} said {ago} s ago that it runs",
                    place.unwrap_or_default()
                ));
            }
        }
    }
    live
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::record::RowKey;

    #[test]
    fn only_those_heard_of_lately_live() {
        let mut rows = Snapshot::default();
        let mut put = |table: &str, id: &str, value: &'static str| {
            rows.put(&Table::new(table), RowKey::untopical(id), Bytes::from_static(value.as_bytes()));
        };
        put("service", "1", r#"{"binary":"df-local-controller","chassis":"c1","last_seen_up":990}"#);
        put("service", "2", r#"{"binary":"df-metadata","chassis":"c1","last_seen_up":900}"#);
        put("publisher", "3", r#"{"last_activity_timestamp":999.5}"#);
        put("lport", "4", r#"{"last_seen_up":999}"#);
        let found = live(&rows, Timestamp::from_second(1000).unwrap());
        assert_eq!(
            found,
            [
                "service df-local-controller on c1 said 10 s ago that it runs",
                "publisher 3 said 1 s ago that it runs"
            ]
        );
    }
}
