//! One kind in one version, ready to answer requests: its schema, and how its
//! objects look in this version.
//!
//! Objects are stored in the storage version and mostly sent as they are; only
//! one that was stored under an older definition, or is asked for in another
//! version, is parsed and shown anew.
//!
//! The one invariant: an object is shown only once it is `Here`, in this very
//! version, or stored so that nobody has to be asked how it looks in it.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::apply::{Unknown, Versions};
use crate::builtin::event;
use crate::convert::convert;
use crate::error::{ApiError, Subject};
use crate::kind::{ConversionWebhook, Kind, KindVersion, ResourceId, SchemaSource, Scope};
use crate::schema::{Schema, quote};
use crate::store::{Stored, Version};

/// A kind in one of its versions.
#[derive(Debug)]
pub(crate) struct Served {
    kind: Arc<Kind>,
    index: usize,
    api_version: String,
    /// Of all versions, each made when it is first needed.
    schemas: Arc<[OnceLock<Schema>]>,
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
    /// It is stored in another version.
    OtherVersion,
    /// An events.k8s.io view of a core event.
    Event,
}

/// An object that a version can show without asking anyone.
#[derive(Debug, Clone)]
pub(crate) struct Here {
    stored: Arc<Stored>,
    /// Set when the bytes are what is to be shown.
    ready: bool,
}

impl Here {
    pub(crate) fn raw(&self) -> &Bytes {
        &self.stored.bytes
    }

    /// An object that is already as it is to be shown.
    pub(crate) fn ready(object: &Value, version: Version) -> Here {
        let bytes = serde_json::to_vec(object).expect("a Value always serializes").into();
        Here { stored: Arc::new(Stored { version, bytes }), ready: true }
    }
}

/// As much of an object as tells in which version it is.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Typed<'a> {
    #[serde(borrow)]
    api_version: Cow<'a, str>,
}

impl Served {
    /// The kind in each of its versions, in their order.
    pub(crate) fn versions(kind: &Arc<Kind>, since: Version) -> Vec<Served> {
        let schemas: Arc<[OnceLock<Schema>]> = kind.versions.iter().map(|_| OnceLock::new()).collect();
        let served = kind.versions.iter().enumerate().map(|(index, version)| Served {
            kind: kind.clone(),
            index,
            api_version: kind.api_version(&version.name),
            schemas: schemas.clone(),
            view: match (&kind.view_of, version.storage) {
                (Some(_), _) => View::Event,
                (None, true) => View::Same,
                (None, false) => View::OtherVersion,
            },
            since,
            retired: CancellationToken::new(),
        });
        served.collect()
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

    /// The compiled schema of this version.
    pub(crate) fn schema(&self) -> &Schema {
        self.schema_at(self.index)
    }

    /// The schema of another version of the kind, if there is one by that `apiVersion`.
    pub(crate) fn schema_of(&self, api_version: &str) -> Option<&Schema> {
        let named = |version: &KindVersion| self.kind.api_version(&version.name) == api_version;
        self.kind.versions.iter().position(named).map(|index| self.schema_at(index))
    }

    fn schema_at(&self, index: usize) -> &Schema {
        let version = &self.kind.versions[index];
        self.schemas[index].get_or_init(|| match (&version.schema, version.openapi()) {
            (SchemaSource::BuiltIn(_), Some(openapi)) => Schema::trusted(&openapi),
            (_, Some(openapi)) => Schema::compile(&openapi).unwrap_or_else(|_| Schema::anything()),
            (_, None) => Schema::anything(),
        })
    }

    /// The webhook that knows how objects of one version look in another, if the kind has one.
    pub(crate) fn webhook(&self) -> Option<&ConversionWebhook> {
        self.kind.conversion.as_ref()
    }

    /// Whether the stored bytes can be sent as they are.
    fn as_stored(&self, version: Version) -> bool {
        self.view == View::Same && version >= self.since
    }

    /// Whether only the webhook knows how the object looks in this version.
    fn is_foreign(&self, stored: &Stored) -> bool {
        if self.webhook().is_none() || self.as_stored(stored.version) {
            return false;
        }
        let typed: Typed<'_> = serde_json::from_slice(&stored.bytes).expect("the store holds objects");
        typed.api_version != self.api_version
    }

    /// Brings stored objects into this version.
    pub(crate) async fn all_here(&self, stored: Vec<Arc<Stored>>) -> Result<Vec<Here>, ApiError> {
        let mut foreign = Vec::new();
        let mut here: Vec<Here> = Vec::with_capacity(stored.len());
        for (at, stored) in stored.into_iter().enumerate() {
            if self.is_foreign(&stored) {
                foreign.push(at);
            }
            here.push(Here { ready: self.as_stored(stored.version), stored });
        }
        let Some(webhook) = self.webhook().filter(|_| !foreign.is_empty()) else { return Ok(here) };
        let asked = foreign.iter().map(|at| self.as_written(&here[*at].stored.bytes)).collect();
        let answers = convert(webhook, asked, &self.api_version).await?;
        for (at, mut object) in foreign.into_iter().zip(answers) {
            self.schema().prune(&mut object);
            here[at] = Here::ready(&object, here[at].stored.version);
        }
        Ok(here)
    }

    pub(crate) async fn here(&self, stored: &Arc<Stored>) -> Result<Here, ApiError> {
        if !self.is_foreign(stored) {
            return Ok(Here { ready: self.as_stored(stored.version), stored: stored.clone() });
        }
        let mut all = self.all_here(vec![stored.clone()]).await?;
        Ok(all.pop().expect("as many as were given"))
    }

    /// The stored object in this version.
    pub(crate) async fn read(&self, stored: &Arc<Stored>) -> Result<Value, ApiError> {
        Ok(self.object(&self.here(stored).await?))
    }

    /// The object as bytes to send.
    pub(crate) fn bytes(&self, here: &Here) -> Bytes {
        match here.ready {
            true => here.stored.bytes.clone(),
            false => serde_json::to_vec(&self.object(here)).expect("a Value always serializes").into(),
        }
    }

    pub(crate) fn object(&self, here: &Here) -> Value {
        let bytes = &here.stored.bytes;
        if here.ready {
            return serde_json::from_slice(bytes).expect("the store holds JSON");
        }
        let mut object = self.as_written(bytes);
        match self.view {
            View::Event => return event::from_core(&object),
            View::Same | View::OtherVersion => object["apiVersion"] = self.api_version.as_str().into(),
        }
        if !self.kind.built_in {
            self.schema().prune(&mut object);
        }
        object
    }

    /// The object in the version it was written in, with what that version's schema defaults today.
    fn as_written(&self, bytes: &[u8]) -> Value {
        let mut object: Value = serde_json::from_slice(bytes).expect("the store holds JSON");
        if !self.kind.built_in {
            let schema = self.schema_of(object["apiVersion"].as_str().unwrap_or_default());
            schema.unwrap_or_else(|| self.schema()).default(&mut object);
        }
        object
    }

    /// The object as it is stored.
    pub(crate) async fn to_stored<'a>(&self, object: &'a Value) -> Result<Cow<'a, Value>, ApiError> {
        let storage = match (self.view, self.kind.storage_version()) {
            (View::Event, _) => return Ok(Cow::Owned(event::to_core(object))),
            (View::Same, _) | (View::OtherVersion, None) => return Ok(Cow::Borrowed(object)),
            (View::OtherVersion, Some(version)) => self.kind.api_version(&version.name),
        };
        let mut stored = self.in_version(object, &storage).await?;
        if let Some(schema) = self.schema_of(&storage) {
            schema.prune(&mut stored);
            // What is stored is sent as it is, so it has what its own version defaults.
            schema.default(&mut stored);
        }
        Ok(Cow::Owned(stored))
    }

    /// An object of this kind, in whatever version, in another one.
    pub(crate) async fn in_version(&self, object: &Value, api_version: &str) -> Result<Value, ApiError> {
        if let Some(webhook) = self.webhook() {
            let mut answers = convert(webhook, vec![object.clone()], api_version).await?;
            return Ok(answers.pop().expect("as many as were given"));
        }
        let mut other = object.clone();
        other["apiVersion"] = api_version.into();
        Ok(other)
    }

    /// The other versions of the kind, where their fields may differ from this one's.
    pub(crate) fn other_versions(&self) -> Versions<'_> {
        if self.webhook().is_none() {
            return Versions::default();
        }
        let others = self.kind.versions.iter().enumerate().filter(|(index, _)| *index != self.index);
        let others =
            others.map(|(index, version)| (self.kind.api_version(&version.name), self.schema_at(index)));
        Versions::differing(others.collect())
    }

    /// Finds out what is not known of an object in another version, by way of the stored one.
    pub(crate) async fn find_out(&self, versions: &mut Versions<'_>, asked: Unknown) -> Result<(), ApiError> {
        let storage = self.kind.storage_version().map(|version| self.kind.api_version(&version.name));
        let from = asked.object["apiVersion"].as_str().unwrap_or_default();
        let stop = storage.filter(|storage| from != storage && asked.api_version != *storage);
        let answer = match stop {
            Some(stop) => {
                let stored = self.in_version(&asked.object, &stop).await?;
                self.in_version(&stored, &asked.api_version).await?
            }
            None => self.in_version(&asked.object, &asked.api_version).await?,
        };
        versions.learn(asked, answer);
        Ok(())
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
