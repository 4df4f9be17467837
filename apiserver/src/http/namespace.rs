//! Objects can be made only in namespaces that exist and stay.

use crate::error::{ApiError, Cause, Reason, Subject};
use crate::kind::ResourceId;
use crate::lifecycle::is_deleting;
use crate::store::{Guard, Key};

use super::call::Call;

pub(crate) fn namespaces() -> ResourceId {
    ResourceId { group: "".into(), plural: "namespaces".into() }
}

/// The condition under which an object may be created in the call's namespace,
/// to be checked again when it is written.
pub(crate) fn guard(call: &Call, name: &str) -> Result<Option<Guard>, ApiError> {
    let Some(namespace) = call.namespace.as_deref() else { return Ok(None) };
    let key = Key::new(namespaces(), None, namespace);
    let Some(stored) = call.server.store.get(&key) else {
        let message = format!("namespaces {namespace:?} not found");
        let subject = Subject { kind: "namespaces".into(), name: namespace.into(), ..Subject::default() };
        return Err(ApiError::new(Reason::NotFound, message).about(subject));
    };
    // Only a namespace that ends has the word in it; looking for it saves parsing those that do not.
    let ends = mentions_deletion(&stored.bytes)
        && is_deleting(&serde_json::from_slice(&stored.bytes).unwrap_or_default());
    if ends {
        let message = format!(
            "{} {name:?} is forbidden: unable to create new content in namespace {namespace} because it is being terminated",
            call.served.qualified()
        );
        let cause = Cause {
            reason: "NamespaceTerminating",
            message: format!("namespace {namespace} is being terminated"),
            field: "metadata.namespace".into(),
        };
        return Err(ApiError::new(Reason::Forbidden, message)
            .about(call.served.subject(name))
            .because(vec![cause]));
    }
    Ok(Some(Guard::exists_at(key, stored.version)))
}

fn mentions_deletion(bytes: &[u8]) -> bool {
    const WORD: &[u8] = b"\"deletionTimestamp\"";
    bytes.windows(WORD.len()).any(|window| window == WORD)
}
