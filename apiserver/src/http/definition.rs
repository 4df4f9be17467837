//! What is special about CustomResourceDefinitions: their names are accepted or not, and they are in
//! force from then on.
//!
//! The invariant: of two definitions in one group never both hold a name, and a name that becomes
//! free goes to one that wants it.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use super::Call;
use crate::builtin::crd;
use crate::error::{ApiError, Reason};
use crate::lifecycle::{is_deleting, rfc3339};
use crate::registry::{Definition, definitions};
use crate::server::Shared;
use crate::store::{Body, Change, Key, Stored, Version, WriteError};

/// The group that a definition speaks of: its name is `plural.group`.
pub(crate) fn group_of(name: &str) -> &str {
    name.split_once('.').map_or("", |(_, group)| group)
}

/// Writes into the definitions of a group how they stand to each other, until there is nothing to add.
pub(crate) async fn settle(shared: &Arc<Shared>, group: &str) -> Result<(), WriteError> {
    let _one_at_a_time = shared.settling.lock().await;
    while let Some((key, body, expected)) = next_change(shared, group) {
        match shared.store.write(Change::Replace { key: key.clone(), body, expected }, Vec::new()).await {
            Ok(stored) => shared.learn(&key.name, &stored),
            // Whoever was faster is looked at anew.
            Err(WriteError::Conflict { .. } | WriteError::Missing) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The same for all groups: a server that was stopped in between goes on where it was.
pub(crate) async fn settle_all(shared: &Arc<Shared>) -> Result<(), WriteError> {
    let all = shared.store.snapshot(&definitions());
    let groups: BTreeSet<String> = all.iter().map(|entry| group_of(entry.name).to_owned()).collect();
    for group in groups {
        settle(shared, &group).await?;
    }
    Ok(())
}

/// The first definition whose status is not what it should be.
fn next_change(shared: &Shared, group: &str) -> Option<(Key, Body, Version)> {
    let all = shared.store.snapshot(&definitions());
    let of_group = all.iter().filter(|entry| group_of(entry.name) == group);
    let parsed: Vec<(Arc<Stored>, Value)> = of_group
        .map(|entry| {
            let definition = serde_json::from_slice(&entry.stored.bytes).expect("the store holds JSON");
            (entry.stored.clone(), definition)
        })
        .collect();
    let now = rfc3339(Timestamp::now());
    parsed.iter().filter(|(_, definition)| !is_deleting(definition)).find_map(|(stored, definition)| {
        let status = crd::accept(definition, parsed.iter().map(|(_, other)| other), &now);
        if definition["status"] == status {
            return None;
        }
        let mut settled = definition.clone();
        settled["status"] = status;
        let name = settled["metadata"]["name"].as_str().unwrap_or_default();
        Some((Key::new(definitions(), None, name), Body::new(&settled), stored.version))
    })
}

/// 403 for whatever is to be made of a kind whose definition is being deleted.
pub(crate) fn refuse_where_it_ends(call: &Call, name: &str) -> Result<(), ApiError> {
    let served = &call.served;
    if served.kind().built_in || !call.server.registry.load().is_terminating(served.resource()) {
        return Ok(());
    }
    let object = if name.is_empty() { String::new() } else { format!(" {name:?}") };
    let message = format!(
        "{}{object} is forbidden: create not allowed while custom resource definition is terminating",
        served.qualified()
    );
    Err(ApiError::new(Reason::Forbidden, message).about(served.subject(name)))
}

/// What a stored definition has the server serve, if anything.
pub(crate) fn learnt(definition: &Value) -> Option<Definition> {
    let conditions = definition["status"]["conditions"].as_array()?;
    let established = conditions.iter().any(|one| one["type"] == "Established" && one["status"] == "True");
    if !established {
        return None;
    }
    let kind = crd::kind_from_crd(definition).ok()?;
    let mut hasher = DefaultHasher::new();
    definition["spec"].to_string().hash(&mut hasher);
    Some(Definition { kind, fingerprint: hasher.finish() })
}
