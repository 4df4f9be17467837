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
    pub versions: Vec<KindVersion>,
}

/// One served version of a kind.
#[derive(Debug, Clone)]
pub struct KindVersion {
    pub name: String,
    pub served: bool,
    pub storage: bool,
    /// Set when clients shall get a `Warning:` header.
    pub deprecation_warning: Option<String>,
    /// The OpenAPI v3 schema as declared, inlined; `None` accepts anything.
    pub openapi: Option<Arc<Value>>,
    pub status_subresource: bool,
    pub scale_subresource: Option<ScalePaths>,
    pub columns: Vec<Column>,
    /// JSON paths that field selectors may use, beyond metadata.name and metadata.namespace.
    pub selectable_fields: Vec<String>,
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
}
