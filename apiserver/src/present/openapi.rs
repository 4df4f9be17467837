//! OpenAPI v3: one document per group and version, made when asked for.
//!
//! Invariant: the hash changes whenever the document does, and is known without
//! making the document.

mod choices;
mod definitions;
mod paths;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::discovery::group_version;
use crate::kind::{Kind, KindVersion, SchemaSource};

/// `GET /openapi/v2`, as protobuf: a document that says its version (field 1,
/// `swagger`) and describes nothing. kubectl reads it when it does not find a
/// kind in the v3 documents, and goes on to say that there is no such kind.
pub const OPENAPI_V2: (&str, &[u8]) =
    ("application/com.github.proto-openapi.spec.v2.v1.0+protobuf", b"\x0a\x032.0");

/// `GET /openapi/v3`: where the documents are, each address with its hash.
pub fn openapi_index<'a>(kinds: impl IntoIterator<Item = &'a Kind>) -> Value {
    let kinds: Vec<&Kind> = kinds.into_iter().collect();
    let mut paths = Map::new();
    for kind in &kinds {
        for version in kind.versions.iter().filter(|version| version.served) {
            let path = document_path(&kind.resource.group, &version.name);
            if !paths.contains_key(&path) {
                let hash = openapi_hash(kinds.iter().copied(), &kind.resource.group, &version.name);
                paths.insert(
                    path.clone(),
                    json!({"serverRelativeURL": format!("/openapi/v3/{path}?hash={hash}")}),
                );
            }
        }
    }
    json!({"paths": paths})
}

/// What identifies the document's content: the `hash` in its address and its ETag.
pub fn openapi_hash<'a>(kinds: impl IntoIterator<Item = &'a Kind>, group: &str, version: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(env!("CARGO_PKG_VERSION"));
    for (kind, version) in members(kinds, group, version) {
        let facts = json!([
            kind.kind,
            kind.resource.plural.as_ref(),
            kind.scope == crate::kind::Scope::Namespaced,
            version.name,
            version.status_subresource,
            version.scale_subresource.is_some(),
        ]);
        hash.update(facts.to_string());
        match &version.schema {
            SchemaSource::Declared(schema) => hash.update(schema.as_bytes()),
            SchemaSource::Anything => hash.update("anything"),
            SchemaSource::BuiltIn(_) => hash.update("built in"),
        }
    }
    hash.finalize().iter().map(|byte| format!("{byte:02X}")).collect()
}

/// `GET /openapi/v3/api/v1`, `GET /openapi/v3/apis/{group}/{version}`; `None` when nothing is served there.
pub fn openapi_document<'a>(
    kinds: impl IntoIterator<Item = &'a Kind>,
    group: &str,
    version: &str,
) -> Option<Value> {
    let members = members(kinds, group, version);
    if members.is_empty() {
        return None;
    }
    let mut paths = Map::new();
    for (kind, version) in &members {
        paths::add(&mut paths, kind, version);
    }
    Some(json!({
        "openapi": "3.0.0",
        "info": {"title": "Midflight", "version": env!("CARGO_PKG_VERSION")},
        "paths": paths,
        "components": {"schemas": definitions::schemas(&members)},
    }))
}

fn members<'a>(
    kinds: impl IntoIterator<Item = &'a Kind>,
    group: &str,
    version: &str,
) -> Vec<(&'a Kind, &'a KindVersion)> {
    let mut members: Vec<(&Kind, &KindVersion)> = kinds
        .into_iter()
        .filter(|kind| &*kind.resource.group == group)
        .filter_map(|kind| Some((kind, kind.version(version).filter(|version| version.served)?)))
        .collect();
    members.sort_by(|(a, _), (b, _)| a.resource.cmp(&b.resource));
    members
}

fn document_path(group: &str, version: &str) -> String {
    let root = if group.is_empty() { "api" } else { "apis" };
    format!("{root}/{}", group_version(group, version))
}

fn group_version_kind(kind: &Kind, version: &KindVersion) -> Value {
    json!({"group": kind.resource.group.as_ref(), "version": version.name, "kind": kind.kind})
}

/// The name of a definition as the real server forms it: the group's labels reversed.
fn definition_name(kind: &Kind, version: &KindVersion) -> String {
    let labels: Vec<&str> = kind.resource.group.rsplit('.').collect();
    format!("{}.{}.{}", labels.join("."), version.name, kind.kind)
}

#[cfg(test)]
mod tests;
