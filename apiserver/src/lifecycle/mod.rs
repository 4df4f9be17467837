//! What a write makes of an object: which fields the server sets, keeps or
//! refuses to change, and when an object is gone.
//!
//! Pure functions from the stored object, the wanted one and the time. The one
//! invariant: of an object that passes validation `uid`, `creationTimestamp` and
//! `deletionTimestamp` have not changed by the write, and `generation` only grows.

mod built_in;
mod create;
mod delete;
mod metadata;
#[cfg(test)]
mod tests;
mod update;

pub(crate) use built_in::{CUSTOM_RESOURCE_CLEANUP, complete_new};
pub(crate) use create::{Naming, for_create, other_version, random_suffix};
pub(crate) use delete::{DeleteOptions, Deletion, FOREGROUND, ORPHAN, Propagation, decide_deletion};
pub(crate) use metadata::{
    drop_unknown_metadata, finalizers, is_deleting, json_type, metadata_text, precondition_failed, text,
    type_of, undecodable,
};
pub(crate) use update::{check_uid, check_version_given, for_update, is_finished, modified};

use jiff::Timestamp;

/// Which part of an object a write is allowed to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Everything but the status, if that has its own endpoint.
    Main,
    Status,
    /// `spec.finalizers` of a namespace.
    Finalize,
    /// The replicas, seen as a Scale.
    Scale,
}

impl Part {
    /// The subresource as managedFields name it.
    pub(crate) fn subresource(self) -> &'static str {
        match self {
            Part::Main => "",
            Part::Status => "status",
            Part::Finalize => "finalize",
            Part::Scale => "scale",
        }
    }
}

/// A time as metadata carries it: RFC 3339, UTC, whole seconds.
pub(crate) fn rfc3339(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
