//! Empties what is to be deleted with its content: namespaces, and definitions
//! with their instances.
//!
//! The invariant: a namespace goes only when nothing is in it, and a definition
//! only when it has no instance and what its instances owned has been looked at;
//! afterwards nobody could say that such an owner is gone.

use std::sync::Arc;

use futures::future::join_all;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::act::{Settled, delete, edit, settle_owned_by, strip};
use super::graph::Graph;
use crate::error::ApiError;
use crate::kind::ResourceId;
use crate::lifecycle::{CUSTOM_RESOURCE_CLEANUP, DeleteOptions, finalizers, is_deleting, rfc3339, text};
use crate::server::Shared;
use crate::store::Key;

/// Deletes what is in the namespace; when nothing is left, the namespace too. What cannot be deleted keeps
/// nothing else from being deleted, and is told in the conditions.
pub(super) async fn empty(shared: &Arc<Shared>, key: &Key, namespace: &Value) -> Result<Settled, ApiError> {
    let held = namespace["spec"]["finalizers"]
        .as_array()
        .is_some_and(|list| list.iter().any(|one| one == "kubernetes"));
    if !held {
        return Ok(Settled::Done);
    }
    let resources: Vec<ResourceId> = shared.registry.load().resources().cloned().collect();
    let mut failures = Vec::new();
    for resource in &resources {
        failures.extend(delete_all(shared, resource, Some(&key.name)).await.err());
    }
    let mut remaining = Remaining::count(shared, &resources, &key.name);
    remaining.failures = failures.iter().map(|error| error.message.clone()).collect();
    let now = rfc3339(Timestamp::now());
    let report = |namespace: &mut Value| remaining.report(namespace, &now);
    if !remaining.objects.is_empty() {
        edit(shared, key, report).await?;
        return failures.into_iter().next().map_or(Ok(Settled::Later), Err);
    }
    edit(shared, key, |namespace| {
        let kept = namespace["spec"]["finalizers"].as_array().cloned().unwrap_or_default();
        let kept: Vec<Value> = kept.into_iter().filter(|one| one != "kubernetes").collect();
        match (kept.is_empty(), namespace["spec"].as_object_mut()) {
            (true, Some(spec)) => drop(spec.remove("finalizers")),
            _ => namespace["spec"]["finalizers"] = json!(kept),
        }
    })
    .await
}

/// Deletes every instance of a definition; when there is none, what they owned, and lets the definition go.
pub(super) async fn remove_instances(
    shared: &Arc<Shared>,
    graph: &Graph,
    key: &Key,
    definition: &Value,
) -> Result<Settled, ApiError> {
    let resource = ResourceId {
        group: text(definition, "/spec/group").into(),
        plural: text(definition, "/spec/names/plural").into(),
    };
    if !shared.store.snapshot(&resource).is_empty() {
        delete_all(shared, &resource, None).await?;
        // By the next look, what was made before the last instance went has been noted.
        return Ok(Settled::Later);
    }
    let kind = text(definition, "/spec/names/kind");
    match settle_owned_by(shared, graph, (&resource.group, kind)).await? {
        Settled::Done => strip(shared, key, CUSTOM_RESOURCE_CLEANUP).await,
        Settled::Later => Ok(Settled::Later),
    }
}

/// Deletes all objects of a resource that are not on their way out. Each is tried; the first refusal is returned.
async fn delete_all(
    shared: &Arc<Shared>,
    resource: &ResourceId,
    namespace: Option<&str>,
) -> Result<(), ApiError> {
    let snapshot = shared.store.snapshot(resource);
    if snapshot.is_empty() {
        return Ok(());
    }
    let Some(served) = shared.registry.load().stored(resource) else { return Ok(()) };
    if namespace.is_some() && !served.is_namespaced() {
        return Ok(());
    }
    let pending = snapshot
        .entries(namespace, None)
        .filter(|entry| !is_deleting(&entry.stored.parse()))
        .map(|entry| Key::new(resource.clone(), entry.namespace, entry.name));
    let pending: Vec<Key> = pending.collect();
    let mut refusal = None;
    for batch in pending.chunks(64) {
        let options = DeleteOptions::default();
        let deletions = batch.iter().map(|key| delete(shared, &served, key, &options));
        let refusals = join_all(deletions).await.into_iter().filter_map(Result::err);
        refusal = refusal.into_iter().chain(refusals).next();
    }
    refusal.map_or(Ok(()), Err)
}

/// What is still in a namespace, by resource, and which finalizers hold it.
#[derive(Debug, Default)]
struct Remaining {
    objects: Vec<(String, usize)>,
    finalizers: Vec<(String, usize)>,
    /// What the first refused deletion of each resource was told.
    failures: Vec<String>,
}

impl Remaining {
    fn count(shared: &Shared, resources: &[ResourceId], namespace: &str) -> Remaining {
        let mut remaining = Remaining::default();
        for resource in resources {
            let Some(served) = shared.registry.load().stored(resource) else { continue };
            if !served.is_namespaced() {
                continue;
            }
            let snapshot = shared.store.snapshot(resource);
            let mut count = 0;
            for entry in snapshot.entries(Some(namespace), None) {
                count += 1;
                for finalizer in finalizers(&entry.stored.parse()) {
                    match remaining.finalizers.iter_mut().find(|(name, _)| name == finalizer) {
                        Some((_, held)) => *held += 1,
                        None => remaining.finalizers.push((finalizer.to_owned(), 1)),
                    }
                }
            }
            if count > 0 {
                remaining.objects.push((served.qualified(), count));
            }
        }
        remaining
    }

    /// The conditions that tell why a namespace is still there.
    fn report(&self, namespace: &mut Value, now: &str) {
        let content: Vec<String> = self
            .objects
            .iter()
            .map(|(resource, count)| format!("{resource} has {count} resource instances"))
            .collect();
        let held: Vec<String> = self
            .finalizers
            .iter()
            .map(|(name, count)| format!("{name} in {count} resource instances"))
            .collect();
        let list = |intro: &str, lines: &[String]| format!("{intro}{}", lines.join(", "));
        let (refused, failed) = (!self.failures.is_empty(), self.content_failure());
        #[rustfmt::skip]
        let conditions = [
            ("NamespaceDeletionDiscoveryFailure", false, "ResourcesDiscovered", "All resources successfully discovered".to_owned()),
            ("NamespaceDeletionGroupVersionParsingFailure", false, "ParsedGroupVersions", "All legacy kube types successfully parsed".to_owned()),
            ("NamespaceDeletionContentFailure", refused, if refused { "ContentDeletionFailed" } else { "ContentDeleted" }, failed),
            ("NamespaceContentRemaining", !content.is_empty(), if content.is_empty() { "ContentRemoved" } else { "SomeResourcesRemain" },
                if content.is_empty() { "All content successfully removed".to_owned() } else { list("Some resources are remaining: ", &content) }),
            ("NamespaceFinalizersRemaining", !held.is_empty(), if held.is_empty() { "ContentHasNoFinalizers" } else { "SomeFinalizersRemain" },
                if held.is_empty() { "All content-preserving finalizers finished".to_owned() } else { list("Some content in the namespace has finalizers remaining: ", &held) }),
        ];
        for (kind, holds, reason, message) in conditions {
            set_condition(namespace, kind, holds, (reason, &message), now);
        }
    }

    fn content_failure(&self) -> String {
        if self.failures.is_empty() {
            return "All content successfully deleted, may be waiting on finalization".to_owned();
        }
        let mut failures = self.failures.clone();
        failures.sort();
        let (count, failures) = (failures.len(), failures.join(", "));
        format!("Failed to delete all resource types, {count} remaining: {failures}")
    }
}

fn set_condition(namespace: &mut Value, kind: &str, holds: bool, (reason, message): (&str, &str), now: &str) {
    let status = if holds { "True" } else { "False" };
    let mut conditions = namespace["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let mut condition = json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": now});
    match conditions.iter_mut().find(|one| one["type"] == kind) {
        Some(old) => {
            if old["status"] == status {
                condition["lastTransitionTime"] = old["lastTransitionTime"].clone();
            }
            *old = condition;
        }
        None => conditions.push(condition),
    }
    namespace["status"]["conditions"] = Value::Array(conditions);
}
