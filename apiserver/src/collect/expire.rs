//! Lets events go an hour after they were last written.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::act::delete;
use crate::kind::ResourceId;
use crate::lifecycle::{DeleteOptions, text};
use crate::server::Shared;
use crate::store::Key;

const LIFE: Duration = Duration::from_secs(3600);

pub(super) async fn expire(shared: &Arc<Shared>) {
    let events = ResourceId { group: "".into(), plural: "events".into() };
    let Some(served) = shared.registry.load().stored(&events) else { return };
    let now = Timestamp::now();
    let snapshot = shared.store.snapshot(&events);
    let old: Vec<Key> = snapshot
        .iter()
        .filter(|entry| is_old(&entry.stored.parse(), now))
        .map(|entry| Key::new(events.clone(), entry.namespace, entry.name))
        .collect();
    for key in old {
        if let Err(error) = delete(shared, &served, &key, &DeleteOptions::default()).await {
            tracing::warn!(%key, %error, "could not remove an old event");
        }
    }
}

/// By the newest of the times an event carries.
fn is_old(event: &Value, now: Timestamp) -> bool {
    let times = ["/metadata/creationTimestamp", "/eventTime", "/lastTimestamp", "/series/lastObservedTime"];
    let newest = times.iter().filter_map(|pointer| text(event, pointer).parse::<Timestamp>().ok()).max();
    newest.is_some_and(|time| time < now - LIFE)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_goes_an_hour_after_its_newest_time() {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        #[rustfmt::skip]
        let cases = [
            ("fresh",         json!({"metadata": {"creationTimestamp": "2026-01-01T11:30:00Z"}}), false),
            ("old",           json!({"metadata": {"creationTimestamp": "2026-01-01T10:59:59Z"}}), true),
            ("seen again",    json!({"metadata": {"creationTimestamp": "2026-01-01T09:00:00Z"}, "lastTimestamp": "2026-01-01T11:59:00Z"}), false),
            ("in a series",   json!({"metadata": {"creationTimestamp": "2026-01-01T09:00:00Z"}, "series": {"lastObservedTime": "2026-01-01T11:59:00.5Z"}}), false),
            ("never to end",  json!({"metadata": {"creationTimestamp": "2026-01-01T09:00:00Z"}, "series": {"lastObservedTime": "9999-12-30T21:30:00Z"}}), false),
            ("without times", json!({"metadata": {}}), false),
        ];
        for (name, event, expected) in cases {
            assert_eq!(is_old(&event, now), expected, "{name}");
        }
    }
}
