//! What a CustomResourceDefinition teaches the server.
//!
//! Invariant: a CRD without faults gives a kind; the kind says nothing the CRD does not.

mod accept;
mod conversion;
mod validate;

use std::{cmp::Ordering, sync::Arc};

use serde_json::{Value, json};

pub use accept::accept;
pub use validate::validate;

use super::faults::required;
use crate::{
    error::Cause,
    kind::{
        Column, ConversionWebhook, Kind, KindVersion, ResourceId, ReviewVersion, ScalePaths, SchemaSource,
        Scope,
    },
};

/// The kind a CRD defines. It reads what it needs and judges nothing else: a
/// CRD is judged by `validate` when it is written.
pub fn kind_from_crd(crd: &Value) -> Result<Kind, Vec<Cause>> {
    let mut missing = Vec::new();
    let mut need = |path: &str| {
        let found = text(crd, &format!("/spec/{}", path.replace('.', "/")));
        if found.is_empty() {
            missing.push(required(format!("spec.{path}"), ""));
        }
        found.to_owned()
    };
    let group = need("group");
    let plural = need("names.plural");
    let kind = need("names.kind");
    let scope = if need("scope") == "Cluster" { Scope::Cluster } else { Scope::Namespaced };
    if !missing.is_empty() {
        return Err(missing);
    }
    let or = |path: &str, otherwise: String| match text(crd, path) {
        "" => otherwise,
        found => found.to_owned(),
    };
    let mut versions: Vec<KindVersion> =
        items(crd.pointer("/spec/versions")).map(|version| kind_version(version, &group, &kind)).collect();
    versions.sort_by(|a, b| version_priority(&a.name, &b.name));
    Ok(Kind {
        resource: ResourceId { group: Arc::from(group), plural: Arc::from(plural) },
        list_kind: or("/spec/names/listKind", format!("{kind}List")),
        singular: or("/spec/names/singular", kind.to_lowercase()),
        kind,
        short_names: texts(crd.pointer("/spec/names/shortNames")),
        categories: texts(crd.pointer("/spec/names/categories")),
        scope,
        built_in: false,
        view_of: None,
        terminating: items(crd.pointer("/status/conditions"))
            .any(|one| one["type"] == "Terminating" && one["status"] == "True"),
        conversion: conversion(crd),
        versions,
    })
}

fn conversion(crd: &Value) -> Option<ConversionWebhook> {
    let webhook = crd.pointer("/spec/conversion/webhook")?;
    let understood =
        texts(webhook.get("conversionReviewVersions")).iter().find_map(|version| match version.as_str() {
            "v1" => Some(ReviewVersion::V1),
            "v1beta1" => Some(ReviewVersion::V1beta1),
            _ => None,
        });
    Some(ConversionWebhook { client: webhook.get("clientConfig")?.clone(), review: understood? })
}

fn kind_version(version: &Value, group: &str, kind: &str) -> KindVersion {
    let name = text(version, "/name").to_owned();
    let flag = |path: &str| version.pointer(path).and_then(Value::as_bool) == Some(true);
    let deprecation_warning = flag("/deprecated").then(|| match text(version, "/deprecationWarning") {
        "" => format!("{group}/{name} {kind} is deprecated"),
        warning => warning.to_owned(),
    });
    let schema = version.pointer("/schema/openAPIV3Schema");
    let scale = version.pointer("/subresources/scale").map(|scale| ScalePaths {
        spec_replicas: text(scale, "/specReplicasPath").to_owned(),
        status_replicas: text(scale, "/statusReplicasPath").to_owned(),
        label_selector: Some(text(scale, "/labelSelectorPath").to_owned()).filter(|path| !path.is_empty()),
    });
    let fields = items(version.get("selectableFields")).map(|field| text(field, "/jsonPath"));
    KindVersion {
        served: flag("/served"),
        storage: flag("/storage"),
        deprecation_warning,
        schema: schema
            .map_or(SchemaSource::Anything, |schema| SchemaSource::Declared(schema.to_string().into())),
        status_subresource: version.pointer("/subresources/status").is_some_and(Value::is_object),
        scale_subresource: scale,
        subresources: &[],
        columns: columns(version),
        selectable_fields: fields.map(|path| path.trim_start_matches('.').to_owned()).collect(),
        name,
    }
}

/// The name, then what the CRD asks for, or the age when it asks for nothing.
fn columns(version: &Value) -> Vec<Column> {
    let name = json!({"name": "Name", "type": "string", "format": "name", "jsonPath": ".metadata.name",
        "description": "Name of the object, unique among its kind and namespace."});
    let age = json!({"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp",
        "description": "When the object was created."});
    let declared = version.get("additionalPrinterColumns").and_then(Value::as_array);
    let declared = declared.filter(|columns| !columns.is_empty()).cloned().unwrap_or_else(|| vec![age]);
    std::iter::once(&name).chain(&declared).map(column).collect()
}

fn column(column: &Value) -> Column {
    let json_path = text(column, "/jsonPath").to_owned();
    let description = match text(column, "/description") {
        "" => format!("Custom resource definition column (in JSONPath format): {json_path}"),
        description => description.to_owned(),
    };
    let priority = column.get("priority").and_then(Value::as_i64).unwrap_or_default();
    Column {
        name: text(column, "/name").to_owned(),
        column_type: text(column, "/type").to_owned(),
        format: text(column, "/format").to_owned(),
        description,
        priority: i32::try_from(priority).unwrap_or_default(),
        json_path,
    }
}

/// Kubernetes' order of versions, the preferred one first: v2, v1, v2beta1, v1alpha3, then other names.
pub(crate) fn version_priority(a: &str, b: &str) -> Ordering {
    match (parsed(a), parsed(b)) {
        (Some(a), Some(b)) => b.cmp(&a),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.cmp(b),
    }
}

/// Stability (2 for general availability), major and minor number.
fn parsed(version: &str) -> Option<(u8, u64, u64)> {
    let number = |text: &str| if text.starts_with('0') { None } else { text.parse::<u64>().ok() };
    let rest = version.strip_prefix('v')?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let major = number(&rest[..digits])?;
    let rest = &rest[digits..];
    if rest.is_empty() {
        return Some((2, major, 0));
    }
    let (stability, minor) = match rest.strip_prefix("beta") {
        Some(minor) => (1, minor),
        None => (0, rest.strip_prefix("alpha")?),
    };
    Some((stability, major, number(minor)?))
}

fn is_established(crd: &Value) -> bool {
    items(crd.pointer("/status/conditions"))
        .any(|one| text(one, "/type") == "Established" && text(one, "/status") == "True")
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn texts(value: Option<&Value>) -> Vec<String> {
    items(value).filter_map(Value::as_str).map(str::to_owned).collect()
}

fn items(value: Option<&Value>) -> impl Iterator<Item = &Value> {
    value.and_then(Value::as_array).into_iter().flatten()
}

#[cfg(test)]
mod tests;
