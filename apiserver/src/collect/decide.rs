//! What is to be done with one object, given how its owners and dependents stand.
//!
//! Pure. The rules are those of the Kubernetes garbage collector:
//!
//! ```text
//! some owner exists            ──▶ drop the references to those that do not
//! no owner exists              ──▶ delete
//! an owner waits for it        ──▶ delete, and let its own dependents go first
//! leaving, dependents blocking ──▶ wait for them
//! leaving, to orphan           ──▶ cut the dependents loose, then go
//! ```

use serde_json::Value;

use crate::lifecycle::{FOREGROUND, ORPHAN, Propagation, finalizers, is_deleting};

/// How an owner named by an object stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    Exists,
    /// It is being deleted and waits for its dependents.
    WaitsForDependents,
    Gone,
    /// Its kind is not served now; nothing can be said about it.
    Unknown,
}

/// How the objects that name this one as their owner stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Dependents {
    pub(super) any: bool,
    /// At least one that this object must wait for.
    pub(super) blocking: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    Nothing,
    /// Remove the references with these uids from the object.
    DropReferences(Vec<String>),
    Delete(Propagation),
    /// Delete the dependents; the object waits for those that block it.
    DeleteDependents,
    /// Remove the references of the dependents to this object, then this finalizer.
    OrphanDependents,
    /// Nothing holds it any more.
    RemoveFinalizer(&'static str),
}

pub(super) fn decide(object: &Value, owners: &[(String, Owner)], dependents: Dependents) -> Action {
    let held_by = finalizers(object);
    if is_deleting(object) {
        return match () {
            () if held_by.contains(&ORPHAN) && dependents.any => Action::OrphanDependents,
            () if held_by.contains(&ORPHAN) => Action::RemoveFinalizer(ORPHAN),
            () if held_by.contains(&FOREGROUND) && dependents.any => Action::DeleteDependents,
            () if held_by.contains(&FOREGROUND) => Action::RemoveFinalizer(FOREGROUND),
            () => Action::Nothing,
        };
    }
    if owners.is_empty() || owners.iter().any(|(_, owner)| *owner == Owner::Unknown) {
        return Action::Nothing;
    }
    let useless: Vec<String> =
        owners.iter().filter(|(_, owner)| *owner != Owner::Exists).map(|(uid, _)| uid.clone()).collect();
    if useless.len() < owners.len() {
        return if useless.is_empty() { Action::Nothing } else { Action::DropReferences(useless) };
    }
    let awaited = owners.iter().any(|(_, owner)| *owner == Owner::WaitsForDependents);
    Action::Delete(match () {
        () if awaited && dependents.any => Propagation::Foreground,
        () if held_by.contains(&ORPHAN) => Propagation::Orphan,
        () if held_by.contains(&FOREGROUND) => Propagation::Foreground,
        () => Propagation::Background,
    })
}
