//! Objects without their substance, and the shapes lists and bookmarks have.
//!
//! Invariant: metadata is passed on as it is.

use serde_json::{Map, Value, json};

use crate::kind::Kind;

/// What a list says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListMeta {
    pub resource_version: String,
    /// Where the next page begins.
    pub continue_token: Option<String>,
    pub remaining: Option<u64>,
}

impl ListMeta {
    pub fn to_value(&self) -> Value {
        let mut meta = json!({"resourceVersion": self.resource_version});
        if let Some(token) = &self.continue_token {
            meta["continue"] = json!(token);
        }
        if let Some(remaining) = self.remaining {
            meta["remainingItemCount"] = json!(remaining);
        }
        meta
    }
}

/// The parts of a list before and after its items, to be sent around objects
/// that are JSON already. Items are separated by commas.
pub fn list_envelope(kind: &Kind, version: &str, meta: &ListMeta) -> (String, &'static str) {
    envelope(&kind.list_kind, &kind.api_version(version), meta)
}

/// As `list_envelope`, for a `PartialObjectMetadataList`.
pub fn partial_metadata_list_envelope(meta: &ListMeta) -> (String, &'static str) {
    envelope("PartialObjectMetadataList", "meta.k8s.io/v1", meta)
}

fn envelope(kind: &str, api_version: &str, meta: &ListMeta) -> (String, &'static str) {
    let (kind, api_version) = (json!(kind), json!(api_version));
    (format!(r#"{{"kind":{kind},"apiVersion":{api_version},"metadata":{},"items":["#, meta.to_value()), "]}")
}

/// The object with nothing but its metadata.
pub fn partial_metadata(object: &Value) -> Value {
    let metadata = object.get("metadata").cloned().unwrap_or_else(|| Map::new().into());
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
}

/// The object of a BOOKMARK event: how far the watch has come, and nothing else.
pub fn bookmark(kind: &Kind, version: &str, resource_version: &str, end_of_initial_events: bool) -> Value {
    let mut object = json!({
        "kind": kind.kind, "apiVersion": kind.api_version(version),
        "metadata": {"resourceVersion": resource_version},
    });
    if end_of_initial_events {
        object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_envelope_closes_around_its_items() {
        let kinds = crate::builtin::builtin_kinds();
        let pods = kinds.iter().find(|kind| kind.kind == "Pod").unwrap();
        let meta = ListMeta {
            resource_version: "7".into(),
            continue_token: Some("next".into()),
            remaining: Some(3),
        };
        let (before, after) = list_envelope(pods, "v1", &meta);
        let list: Value = serde_json::from_str(&format!("{before}{{}},{{}}{after}")).unwrap();
        assert_eq!(
            list,
            json!({"kind": "PodList", "apiVersion": "v1", "items": [{}, {}],
                "metadata": {"resourceVersion": "7", "continue": "next", "remainingItemCount": 3}})
        );
    }

    #[test]
    fn a_bookmark_says_when_the_initial_events_end() {
        let kinds = crate::builtin::builtin_kinds();
        let sets = kinds.iter().find(|kind| kind.kind == "DaemonSet").unwrap();
        let end = bookmark(sets, "v1", "9", true);
        assert_eq!(end["apiVersion"], "apps/v1");
        assert_eq!(end["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
        assert_eq!(bookmark(sets, "v1", "9", false)["metadata"].get("annotations"), None);
    }
}
