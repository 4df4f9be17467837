use proptest::prelude::*;
use serde_json::json;

use super::*;

#[test]
fn both_views_show_the_same_event() {
    let core = json!({
        "kind": "Event", "apiVersion": "v1", "metadata": {"name": "e", "namespace": "n"},
        "involvedObject": {"kind": "Pod", "name": "p"}, "reason": "Pulled", "message": "did it", "type": "Normal",
        "source": {"component": "k"}, "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:01Z",
        "count": 2, "eventTime": "2026-01-01T00:00:00.000000Z", "reportingComponent": "r", "reportingInstance": "i",
        "series": {"count": 2}, "action": "Pull", "related": {"kind": "Node"},
    });
    let view = from_core(&core);
    assert_eq!(
        view,
        json!({
            "kind": "Event", "apiVersion": "events.k8s.io/v1", "metadata": {"name": "e", "namespace": "n"},
            "regarding": {"kind": "Pod", "name": "p"}, "reason": "Pulled", "note": "did it", "type": "Normal",
            "deprecatedSource": {"component": "k"}, "deprecatedFirstTimestamp": "2026-01-01T00:00:00Z",
            "deprecatedLastTimestamp": "2026-01-01T00:00:01Z", "deprecatedCount": 2,
            "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "r", "reportingInstance": "i",
            "series": {"count": 2}, "action": "Pull", "related": {"kind": "Node"},
        })
    );
    assert_eq!(to_core(&view), core);
}

#[test]
fn a_missing_time_is_named_in_the_new_view_only() {
    let view = from_core(&json!({"reason": "R"}));
    assert_eq!(view.get("eventTime"), Some(&Value::Null));
    assert_eq!(to_core(&view).get("eventTime"), None);
}

proptest! {
    #[test]
    fn a_view_and_back_is_the_event_it_was(picked in proptest::collection::vec(any::<bool>(), 14)) {
        const FIELDS: [&str; 14] = [
            "involvedObject", "reason", "message", "type", "source", "firstTimestamp", "lastTimestamp", "count",
            "eventTime", "series", "action", "related", "metadata", "reportingComponent",
        ];
        let mut core = json!({"kind": "Event", "apiVersion": "v1", "reportingComponent": "", "reportingInstance": "i"});
        for (field, _) in FIELDS.iter().zip(picked).filter(|(_, picked)| *picked) {
            core[*field] = json!(format!("some {field}"));
        }
        prop_assert_eq!(to_core(&from_core(&core)), core);
    }
}
