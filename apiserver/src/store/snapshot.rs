//! All objects of one resource as they were at one version.
//!
//! Taking a snapshot copies nothing: the map is persistent, and a later write
//! makes new nodes instead of changing shared ones.
//!
//! The one invariant: what a snapshot shows never changes.

use std::ops::Bound;
use std::sync::Arc;

use imbl::OrdMap;

use super::body::Stored;
use super::key::{Version, path, split_path};
use crate::kind::ResourceId;

/// Objects of one resource by path.
pub(super) type Objects = OrdMap<Arc<str>, Arc<Stored>>;

/// A consistent view of one resource.
#[derive(Debug, Clone)]
pub struct Snapshot {
    resource: ResourceId,
    version: Version,
    objects: Objects,
}

/// One object of a snapshot.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    pub namespace: Option<&'a str>,
    pub name: &'a str,
    pub stored: &'a Arc<Stored>,
}

impl Snapshot {
    pub(super) fn new(resource: ResourceId, version: Version, objects: Objects) -> Snapshot {
        Snapshot { resource, version, objects }
    }

    pub fn resource(&self) -> &ResourceId {
        &self.resource
    }

    /// The version of the whole store when the snapshot was taken.
    pub fn version(&self) -> Version {
        self.version
    }

    /// How many objects there are, in all namespaces.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    pub fn get(&self, namespace: Option<&str>, name: &str) -> Option<&Arc<Stored>> {
        self.objects.get(&*path(namespace, name))
    }

    /// All objects, ordered by namespace and name.
    pub fn iter(&self) -> impl Iterator<Item = Entry<'_>> {
        self.entries(None, None)
    }

    /// The objects of one namespace, or of all; those behind `after` (namespace
    /// and name of the last object already seen) if it is given.
    pub fn entries<'a>(
        &'a self,
        namespace: Option<&str>,
        after: Option<(Option<&str>, &str)>,
    ) -> impl Iterator<Item = Entry<'a>> + use<'a> {
        let prefix = namespace.map(|namespace| format!("{namespace}/")).unwrap_or_default();
        let after = after.map(|(namespace, name)| path(namespace, name));
        let start = match &after {
            Some(last) if **last >= *prefix => Bound::Excluded(&**last),
            _ => Bound::Included(&*prefix),
        };
        self.objects
            .range::<_, str>((start, Bound::Unbounded))
            .take_while(move |(path, _)| path.starts_with(&prefix))
            .map(|(path, stored)| {
                let (namespace, name) = split_path(path);
                Entry { namespace, name, stored }
            })
    }
}
