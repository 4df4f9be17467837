//! What the server knows of a kind it serves, whether built in or learnt from a CRD.
//!
//! A built-in kind differs from a custom one only in where its definition
//! comes from and in whether it takes strategic merge patches.

use std::sync::Arc;

use serde_json::Value;

/// `group` and plural name: what objects are stored under, whatever the version.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceId {
    /// Empty for the core group.
    pub group: Arc<str>,
    pub plural: Arc<str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    Cluster,
    Namespaced,
}

/// A kind with all its versions.
#[derive(Debug, Clone)]
pub struct Kind {
    pub resource: ResourceId,
    pub kind: String,
    pub list_kind: String,
    pub singular: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub scope: Scope,
    /// Strategic merge patch is a privilege of built-in kinds.
    pub built_in: bool,
    /// Set when this kind is another view of objects stored under that resource
    /// (events.k8s.io events are core events seen differently).
    pub view_of: Option<ResourceId>,
    /// Set while its definition is being deleted: nothing new comes, and what is there goes.
    pub terminating: bool,
    /// Who turns objects of one version into another; without it, only their `apiVersion` differs.
    pub conversion: Option<ConversionWebhook>,
    /// In the order discovery lists them: the preferred version first.
    pub versions: Vec<KindVersion>,
}

/// The webhook that a definition names for conversion.
#[derive(Debug, Clone)]
pub struct ConversionWebhook {
    /// `clientConfig`, as the definition has it.
    pub client: Value,
    pub review: ReviewVersion,
}

/// The version of ConversionReview in which a webhook is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReviewVersion {
    V1,
    V1beta1,
}

/// One served version of a kind.
#[derive(Debug, Clone)]
pub struct KindVersion {
    pub name: String,
    pub served: bool,
    pub storage: bool,
    /// Set when clients shall get a `Warning:` header.
    pub deprecation_warning: Option<String>,
    pub schema: SchemaSource,
    pub status_subresource: bool,
    pub scale_subresource: Option<ScalePaths>,
    /// What a built-in kind has beyond `status` and `scale`.
    pub subresources: &'static [Subresource],
    pub columns: Vec<Column>,
    /// Fields that selectors may use beyond metadata.name and metadata.namespace: `spec.nodeName`.
    pub selectable_fields: Vec<String>,
}

/// Where the structural OpenAPI v3 schema of a version comes from. Schemas are large
/// once parsed and made when asked for, so that an idle server holds none.
#[derive(Debug, Clone)]
pub enum SchemaSource {
    Anything,
    /// As a definition has it, in JSON.
    Declared(Arc<str>),
    BuiltIn(fn() -> Value),
}

/// A subresource other than `status` and `scale`, as discovery lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subresource {
    pub name: &'static str,
    /// Group, version and kind of what is sent to it; group and version are
    /// empty when they are the resource's own.
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub verbs: &'static [&'static str],
}

/// Where `scale` finds its numbers in the object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScalePaths {
    pub spec_replicas: String,
    pub status_replicas: String,
    pub label_selector: Option<String>,
}

/// A printer column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    pub name: String,
    pub column_type: String,
    pub format: String,
    pub description: String,
    pub priority: i32,
    pub json_path: String,
}

impl Kind {
    pub fn version(&self, name: &str) -> Option<&KindVersion> {
        self.versions.iter().find(|version| version.name == name)
    }

    /// `apiVersion` of objects in the given version: `v1` or `group/version`.
    pub fn api_version(&self, version: &str) -> String {
        if self.resource.group.is_empty() {
            version.to_owned()
        } else {
            format!("{}/{version}", self.resource.group)
        }
    }

    /// The version objects are stored in.
    pub fn storage_version(&self) -> Option<&KindVersion> {
        self.versions.iter().find(|version| version.storage)
    }

    /// The resource under which objects of this kind are stored.
    pub fn stored_under(&self) -> &ResourceId {
        self.view_of.as_ref().unwrap_or(&self.resource)
    }
}

impl KindVersion {
    /// The structural schema, inlined; `None` accepts anything. Compile it once
    /// and drop it: it is made anew by each call.
    pub fn openapi(&self) -> Option<Value> {
        match &self.schema {
            SchemaSource::Anything => None,
            SchemaSource::Declared(schema) => {
                Some(serde_json::from_str(schema).expect("what was written as JSON can be read"))
            }
            SchemaSource::BuiltIn(make) => Some(make()),
        }
    }
}
