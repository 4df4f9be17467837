//! One kind in one version, ready to answer requests: its schema, and how its
//! objects look in this version.
//!
//! Objects are stored in the storage version and mostly sent as they are; only
//! one that was stored under an older definition, or is asked for in another
//! version, is parsed and shown anew.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::builtin::event;
use crate::error::{ApiError, Subject};
use crate::kind::{Kind, KindVersion, ResourceId, SchemaSource, Scope};
use crate::schema::{Schema, quote};
use crate::store::{Stored, Version};

/// A kind in one of its versions.
#[derive(Debug)]
pub(crate) struct Served {
    kind: Arc<Kind>,
    index: usize,
    api_version: String,
    schema: OnceLock<Schema>,
    view: View,
    /// Objects stored before this version may not be as the schema wants them.
    since: Version,
    retired: CancellationToken,
}

/// How a stored object becomes one of this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum View {
    /// It is stored so.
    Same,
    /// Only `apiVersion` differs.
    OtherVersion,
    /// An events.k8s.io view of a core event.
    Event,
}

impl Served {
    pub(crate) fn new(kind: Arc<Kind>, index: usize, since: Version) -> Served {
        let version = &kind.versions[index];
        let view = match (&kind.view_of, version.storage) {
            (Some(_), _) => View::Event,
            (None, true) => View::Same,
            (None, false) => View::OtherVersion,
        };
        let api_version = kind.api_version(&version.name);
        Served {
            kind,
            index,
            api_version,
            schema: OnceLock::new(),
            view,
            since,
            retired: CancellationToken::new(),
        }
    }

    pub(crate) fn kind(&self) -> &Arc<Kind> {
        &self.kind
    }

    pub(crate) fn version(&self) -> &KindVersion {
        &self.kind.versions[self.index]
    }

    pub(crate) fn api_version(&self) -> &str {
        &self.api_version
    }

    pub(crate) fn resource(&self) -> &ResourceId {
        &self.kind.resource
    }

    pub(crate) fn stored_under(&self) -> &ResourceId {
        self.kind.stored_under()
    }

    pub(crate) fn is_namespaced(&self) -> bool {
        self.kind.scope == Scope::Namespaced
    }

    pub(crate) fn is(&self, group: &str, plural: &str) -> bool {
        &*self.kind.resource.group == group && &*self.kind.resource.plural == plural
    }

    /// `gadgets.example.com`, or `pods`.
    pub(crate) fn qualified(&self) -> String {
        match &*self.kind.resource.group {
            "" => self.kind.resource.plural.to_string(),
            group => format!("{}.{group}", self.kind.resource.plural),
        }
    }

    pub(crate) fn subject(&self, name: &str) -> Subject {
        Subject {
            group: self.kind.resource.group.to_string(),
            kind: self.kind.resource.plural.to_string(),
            name: name.to_owned(),
            uid: String::new(),
        }
    }

    /// The compiled schema, made when it is first needed.
    pub(crate) fn schema(&self) -> &Schema {
        self.schema.get_or_init(|| match (&self.version().schema, self.version().openapi()) {
            (SchemaSource::BuiltIn(_), Some(openapi)) => Schema::trusted(&openapi),
            (_, Some(openapi)) => Schema::compile(&openapi).unwrap_or_else(|_| Schema::anything()),
            (_, None) => Schema::anything(),
        })
    }

    /// Whether the stored bytes can be sent as they are.
    fn as_stored(&self, version: Version) -> bool {
        self.view == View::Same && version >= self.since
    }

    /// The object in this version, as bytes to send.
    pub(crate) fn bytes(&self, stored: &Stored) -> Bytes {
        self.show(&stored.bytes, stored.version)
    }

    pub(crate) fn show(&self, bytes: &Bytes, version: Version) -> Bytes {
        if self.as_stored(version) {
            return bytes.clone();
        }
        serde_json::to_vec(&self.parse(bytes, version)).expect("a Value always serializes").into()
    }

    /// The object in this version.
    pub(crate) fn object(&self, stored: &Stored) -> Value {
        self.parse(&stored.bytes, stored.version)
    }

    pub(crate) fn parse(&self, bytes: &[u8], version: Version) -> Value {
        let stored: Value = serde_json::from_slice(bytes).expect("the store holds JSON");
        if self.as_stored(version) {
            return stored;
        }
        let mut object = match self.view {
            View::Event => event::from_core(&stored),
            View::Same | View::OtherVersion => {
                let mut object = stored;
                object["apiVersion"] = self.api_version.as_str().into();
                object
            }
        };
        if !self.kind.built_in {
            self.schema().prune(&mut object);
            self.schema().default(&mut object);
        }
        object
    }

    /// The object as it is stored.
    pub(crate) fn to_stored<'a>(&self, object: &'a Value) -> Cow<'a, Value> {
        match self.view {
            View::Same => Cow::Borrowed(object),
            View::Event => Cow::Owned(event::to_core(object)),
            View::OtherVersion => {
                let mut stored = object.clone();
                if let Some(version) = self.kind.storage_version() {
                    stored["apiVersion"] = self.kind.api_version(&version.name).into();
                }
                Cow::Owned(stored)
            }
        }
    }

    /// Ends the watches of this version: its definition has changed or is gone.
    pub(crate) fn retire(&self) {
        self.retired.cancel();
    }

    pub(crate) fn retired(&self) -> CancellationToken {
        self.retired.clone()
    }

    /// The refusal for a subresource or verb this kind does not have.
    pub(crate) fn not_found(&self, name: &str) -> ApiError {
        let message = format!("{} {} not found", self.qualified(), quote(name));
        ApiError::new(crate::error::Reason::NotFound, message).about(self.subject(name))
    }
}
