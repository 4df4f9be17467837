//! Looks at one object in the store, decides, and carries it out.

use std::sync::Arc;

use serde_json::Value;

use super::decide::{Action, Dependents, Owner, decide};
use super::graph::Graph;
use super::namespaces;
use crate::error::{ApiError, Reason};
use crate::http::{Call, namespaces as namespace_resource, remove};
use crate::lifecycle::{
    CUSTOM_RESOURCE_CLEANUP, DeleteOptions, FOREGROUND, Propagation, finalizers, is_deleting, is_finished,
    metadata_text,
};
use crate::registry::definitions;
use crate::served::Served;
use crate::server::Shared;
use crate::store::{Body, Change, Key, WriteError};

/// Whether an object needs to be looked at again without being asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Settled {
    Done,
    Later,
}

pub(super) async fn settle(shared: &Arc<Shared>, graph: &Graph, key: &Key) -> Result<Settled, ApiError> {
    let Some(served) = shared.registry.load().stored(&key.resource) else { return Ok(Settled::Done) };
    let Some(stored) = shared.store.get(key) else { return Ok(Settled::Done) };
    let object = stored.parse();
    if is_deleting(&object) && key.resource == namespace_resource() {
        return namespaces::empty(shared, key, &object).await;
    }
    if finalizers(&object).contains(&CUSTOM_RESOURCE_CLEANUP)
        && is_deleting(&object)
        && key.resource == definitions()
    {
        return namespaces::remove_instances(shared, graph, key, &object).await;
    }
    settle_family(shared, graph, key, &served, &object).await
}

/// Looks at every object that names an owner of a kind, whatever version it names it by.
pub(super) async fn settle_owned_by(
    shared: &Arc<Shared>,
    graph: &Graph,
    (group, kind): (&str, &str),
) -> Result<Settled, ApiError> {
    let (mut settled, mut refusal) = (Settled::Done, None);
    for key in graph.owned() {
        let Some(served) = shared.registry.load().stored(&key.resource) else { continue };
        let Some(stored) = shared.store.get(key) else { continue };
        let object = stored.parse();
        let mut references = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        let is_named = references.any(|one| {
            let api_version = one["apiVersion"].as_str().unwrap_or_default();
            one["kind"] == kind && api_version.split_once('/').is_some_and(|(named, _)| named == group)
        });
        if !is_named {
            continue;
        }
        match settle_family(shared, graph, key, &served, &object).await {
            Ok(Settled::Done) => {}
            Ok(Settled::Later) => settled = Settled::Later,
            Err(error) => refusal = refusal.or(Some(error)),
        }
    }
    refusal.map_or(Ok(settled), Err)
}

/// Does what an object's owners and dependents ask for.
async fn settle_family(
    shared: &Arc<Shared>,
    graph: &Graph,
    key: &Key,
    served: &Arc<Served>,
    object: &Value,
) -> Result<Settled, ApiError> {
    let uid = metadata_text(object, "uid").to_owned();
    let found = Found::look(shared, graph, object, &uid);
    match decide(object, &found.owners, found.dependents) {
        Action::Nothing => Ok(Settled::Done),
        Action::DropReferences(uids) => drop_references(shared, key, &uids).await,
        Action::Delete(propagation) => {
            let version = metadata_text(object, "resourceVersion").to_owned();
            let options = DeleteOptions {
                propagation: Some(propagation),
                uid: Some(uid),
                resource_version: Some(version),
                ..DeleteOptions::default()
            };
            delete(shared, served, key, &options).await
        }
        Action::DeleteDependents => {
            let mut refusal = None;
            for (dependent, blocks) in &found.present {
                let refused = delete_dependent(shared, dependent, &uid, *blocks).await.err();
                refusal = refusal.or(refused);
            }
            if let Some(refusal) = refusal {
                return Err(refusal);
            }
            Ok(if found.dependents.blocking { Settled::Done } else { strip(shared, key, FOREGROUND).await? })
        }
        Action::OrphanDependents => {
            for (dependent, _) in &found.present {
                drop_references(shared, dependent, std::slice::from_ref(&uid)).await?;
            }
            strip(shared, key, crate::lifecycle::ORPHAN).await
        }
        Action::RemoveFinalizer(finalizer) => strip(shared, key, finalizer).await,
    }
}

/// What the store says of an object's owners and dependents.
struct Found {
    owners: Vec<(String, Owner)>,
    dependents: Dependents,
    /// Dependents that exist, and whether the object must wait for them.
    present: Vec<(Key, bool)>,
}

impl Found {
    fn look(shared: &Arc<Shared>, graph: &Graph, object: &Value, uid: &str) -> Found {
        let references = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        let namespace = object["metadata"]["namespace"].as_str();
        let owners = references
            .map(|one| (one["uid"].as_str().unwrap_or_default().to_owned(), owner(shared, one, namespace)));
        let present: Vec<(Key, bool)> =
            graph.dependents_of(uid).filter_map(|key| dependent(shared, key, uid)).collect();
        let dependents =
            Dependents { any: !present.is_empty(), blocking: present.iter().any(|(_, blocks)| *blocks) };
        Found { owners: owners.collect(), dependents, present }
    }
}

/// How an owner stands: it is looked up by name, and must have the uid the reference says.
fn owner(shared: &Shared, reference: &Value, namespace: Option<&str>) -> Owner {
    let text = |field: &str| reference[field].as_str().unwrap_or_default();
    let catalogue = shared.registry.load();
    let Some(kind) = catalogue.by_kind(text("apiVersion"), text("kind")) else { return Owner::Unknown };
    let namespace = match kind.scope {
        crate::kind::Scope::Cluster => None,
        // A namespaced owner of a cluster-scoped object cannot be: it is as good as gone.
        crate::kind::Scope::Namespaced if namespace.is_none() => return Owner::Gone,
        crate::kind::Scope::Namespaced => namespace,
    };
    let Some(stored) = shared.store.get(&Key::new(kind.stored_under().clone(), namespace, text("name")))
    else {
        return Owner::Gone;
    };
    let owner = stored.parse();
    match () {
        () if metadata_text(&owner, "uid") != text("uid") => Owner::Gone,
        () if is_deleting(&owner) && finalizers(&owner).contains(&FOREGROUND) => Owner::WaitsForDependents,
        () => Owner::Exists,
    }
}

/// A dependent, if it still exists and names the owner; and whether it blocks it.
fn dependent(shared: &Shared, key: &Key, owner: &str) -> Option<(Key, bool)> {
    let stored = shared.store.get(key)?;
    let object = stored.parse();
    let reference =
        object["metadata"]["ownerReferences"].as_array()?.iter().find(|one| one["uid"] == owner)?;
    Some((key.clone(), reference["blockOwnerDeletion"] == true))
}

async fn delete_dependent(shared: &Arc<Shared>, key: &Key, uid: &str, blocks: bool) -> Result<(), ApiError> {
    let Some(served) = shared.registry.load().stored(&key.resource) else { return Ok(()) };
    let Some(stored) = shared.store.get(key) else { return Ok(()) };
    let object = stored.parse();
    let has_other_owner =
        object["metadata"]["ownerReferences"].as_array().into_iter().flatten().any(|reference| {
            owner(shared, reference, object["metadata"]["namespace"].as_str()) == Owner::Exists
        });
    if is_deleting(&object) {
        return Ok(());
    }
    // One that someone else owns too stays, and is only cut loose.
    if has_other_owner {
        return drop_references(shared, key, &[uid.to_owned()]).await.map(drop);
    }
    let propagation = Some(if blocks { Propagation::Foreground } else { Propagation::Background });
    let options = DeleteOptions { propagation, ..DeleteOptions::default() };
    delete(shared, &served, key, &options).await.map(drop)
}

/// Deletes as the collector; one that is gone or has changed meanwhile is looked at again when that is seen.
pub(super) async fn delete(
    shared: &Arc<Shared>,
    served: &Arc<Served>,
    key: &Key,
    options: &DeleteOptions,
) -> Result<Settled, ApiError> {
    let call = Call::internal(shared.clone(), served.clone(), key);
    match remove(&call, options).await {
        Ok(_) => {
            shared.metrics.collected.inc();
            tracing::info!(object = %key, "collected");
            Ok(Settled::Done)
        }
        Err(error) if error.reason == Reason::NotFound => Ok(Settled::Done),
        Err(error) if error.reason == Reason::Conflict => Ok(Settled::Later),
        Err(error) => Err(error),
    }
}

/// Removes a finalizer; with the last one the object goes.
pub(super) async fn strip(shared: &Arc<Shared>, key: &Key, finalizer: &str) -> Result<Settled, ApiError> {
    edit(shared, key, |object| {
        let kept: Vec<Value> =
            finalizers(object).into_iter().filter(|one| *one != finalizer).map(Value::from).collect();
        set_list(object, "finalizers", kept);
    })
    .await
}

async fn drop_references(shared: &Arc<Shared>, key: &Key, uids: &[String]) -> Result<Settled, ApiError> {
    edit(shared, key, |object| {
        let references = object["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
        let kept = references.into_iter().filter(|one| !uids.iter().any(|uid| one["uid"] == uid.as_str()));
        let kept = kept.collect();
        set_list(object, "ownerReferences", kept);
    })
    .await
}

fn set_list(object: &mut Value, field: &str, items: Vec<Value>) {
    let Some(metadata) = object["metadata"].as_object_mut() else { return };
    match items.is_empty() {
        true => drop(metadata.remove(field)),
        false => drop(metadata.insert(field.to_owned(), Value::Array(items))),
    }
}

/// Changes a stored object until the change sticks; removes it if nothing holds it afterwards.
pub(super) async fn edit(
    shared: &Arc<Shared>,
    key: &Key,
    change: impl Fn(&mut Value),
) -> Result<Settled, ApiError> {
    let Some(served) = shared.registry.load().stored(&key.resource) else { return Ok(Settled::Done) };
    loop {
        let Some(stored) = shared.store.get(key) else { return Ok(Settled::Done) };
        let live = served.read(&stored).await?;
        let mut new = live.clone();
        change(&mut new);
        if new == live {
            return Ok(Settled::Done);
        }
        let (body, expected) = (Body::new(&new), stored.version);
        let key = key.clone();
        let write = match is_finished(&served, &new) {
            true => Change::Delete { key, last: body, expected },
            false => Change::Replace { key, body, expected },
        };
        match shared.commit(write, Vec::new()).await {
            Ok(_) | Err(WriteError::Missing) => return Ok(Settled::Done),
            Err(WriteError::Conflict { .. }) => {}
            Err(
                error
                @ (WriteError::Exists | WriteError::GuardFailed { .. } | WriteError::Unavailable { .. }),
            ) => {
                return Err(ApiError::new(Reason::InternalError, error.to_string()));
            }
        }
    }
}
