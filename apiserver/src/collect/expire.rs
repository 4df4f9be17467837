//! Lets events go an hour after they were last written.
//!
//! As where they have a lease in etcd, nobody is asked, and nothing holds them.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use serde_json::Value;

use crate::kind::ResourceId;
use crate::lifecycle::text;
use crate::server::Shared;
use crate::store::{Body, Change, Key, WriteError};

const LIFE: Duration = Duration::from_secs(3600);
/// Removals under way at once, so that the store makes few large commits of them.
const AT_ONCE: usize = 256;

pub(super) async fn expire(shared: &Arc<Shared>) {
    let events = ResourceId { group: "".into(), plural: "events".into() };
    let now = Timestamp::now();
    let snapshot = shared.store.snapshot(&events);
    let old: Vec<Change> = snapshot
        .iter()
        .filter_map(|entry| {
            let event = entry.stored.parse();
            let key = Key::new(events.clone(), entry.namespace, entry.name);
            is_old(&event, now).then(|| Change::Delete {
                key,
                last: Body::new(&event),
                expected: entry.stored.version,
            })
        })
        .collect();
    drop(snapshot);
    let (mut removed, mut failure) = (0, None);
    let mut removals =
        futures::stream::iter(old).map(|change| shared.commit(change, Vec::new())).buffer_unordered(AT_ONCE);
    while let Some(outcome) = removals.next().await {
        match outcome {
            Ok(_) => removed += 1,
            // Somebody was faster: it is gone, or it has just been written.
            Err(WriteError::Missing | WriteError::Conflict { .. }) => {}
            Err(error) => failure = Some(error),
        }
    }
    if let Some(error) = failure {
        tracing::warn!(%error, "could not remove all old events");
    }
    if removed > 0 {
        tracing::debug!(removed, "old events are gone");
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
    use crate::testing::Api;

    #[tokio::test]
    async fn old_events_go_though_they_are_held_and_fresh_ones_stay() {
        let api = Api::open().await;
        let shared = &api.server.shared;
        let events = ResourceId { group: "".into(), plural: "events".into() };
        let make = async |name: &str, created: &str| {
            let metadata = json!({"name": name, "namespace": "default", "creationTimestamp": created, "finalizers": ["a.b/c"]});
            let body = Body::new(&json!({"apiVersion": "v1", "kind": "Event", "metadata": metadata}));
            let key = Key::new(events.clone(), Some("default"), name);
            shared.store.write(Change::Create { key, body }, Vec::new()).await.unwrap();
        };
        for number in 0..600 {
            make(&format!("old-{number}"), "2020-01-01T00:00:00Z").await;
        }
        make("fresh", &crate::lifecycle::rfc3339(Timestamp::now())).await;
        expire(shared).await;
        let left: Vec<String> =
            shared.store.snapshot(&events).iter().map(|entry| entry.name.to_owned()).collect();
        assert_eq!(left, ["fresh"]);
        assert_eq!(shared.metrics.collected.get(), 0, "nobody who owned them is gone");
    }

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
