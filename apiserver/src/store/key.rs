//! How objects are named and numbered.
//!
//! The one invariant: an object's path and its key determine each other, and
//! paths sort as the real server's do (by bytes, namespace first).

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;
use std::sync::Arc;

use crate::kind::ResourceId;

/// A resourceVersion. Every write to the store takes the next one; it only
/// grows, also over restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(u64);

impl Version {
    /// What an empty store is at. Not zero, which clients use for "any version".
    pub const FIRST: Version = Version(1);

    pub const fn new(number: u64) -> Version {
        Version(number)
    }

    pub const fn get(self) -> u64 {
        self.0
    }

    pub(super) fn next(self) -> Version {
        Version(self.0 + 1)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Version {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Version, ParseIntError> {
        text.parse().map(Version)
    }
}

/// Names one object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub resource: ResourceId,
    /// `None` for objects of a cluster-scoped kind.
    pub namespace: Option<Arc<str>>,
    pub name: Arc<str>,
}

impl Key {
    pub fn new(resource: ResourceId, namespace: Option<&str>, name: &str) -> Key {
        Key { resource, namespace: namespace.map(Arc::from), name: Arc::from(name) }
    }

    pub(super) fn path(&self) -> Arc<str> {
        path(self.namespace.as_deref(), &self.name)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ResourceId { group, plural } = &self.resource;
        let dot = if group.is_empty() { "" } else { "." };
        write!(f, "{plural}{dot}{group}/{}", self.path())
    }
}

/// `namespace/name`, or `name` alone: where an object stands among those of
/// its resource.
pub(super) fn path(namespace: Option<&str>, name: &str) -> Arc<str> {
    match namespace {
        Some(namespace) => format!("{namespace}/{name}").into(),
        None => name.into(),
    }
}

pub(super) fn split_path(path: &str) -> (Option<&str>, &str) {
    match path.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, path),
    }
}
