//! Tables: what `kubectl get` prints.
//!
//! Invariant: every row has as many cells as the table has columns.

use std::str::FromStr;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    age::since,
    jsonpath::JsonPath,
    metadata::{ListMeta, partial_metadata},
    rows,
};
use crate::{
    error::{ApiError, Reason},
    kind::{Column, Kind, KindVersion},
};

/// How much of each object its row carries (`?includeObject=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IncludeObject {
    None,
    #[default]
    Metadata,
    Object,
}

impl FromStr for IncludeObject {
    type Err = ApiError;

    fn from_str(text: &str) -> Result<IncludeObject, ApiError> {
        match text {
            "None" => Ok(IncludeObject::None),
            "" | "Metadata" => Ok(IncludeObject::Metadata),
            "Object" => Ok(IncludeObject::Object),
            other => Err(ApiError::new(
                Reason::BadRequest,
                format!(
                    "Unable to convert to Table as requested: includeObject: Invalid value: {}: must be 'Metadata', 'Object', 'None', or empty",
                    json!(other)
                ),
            )),
        }
    }
}

/// Makes tables of one kind and version.
pub struct Table<'a> {
    kind: &'a Kind,
    columns: &'a [Column],
    /// The paths of the columns; `None` where a path does not parse.
    paths: Vec<Option<JsonPath>>,
    include: IncludeObject,
    now: Timestamp,
}

impl<'a> Table<'a> {
    pub fn new(
        kind: &'a Kind,
        version: &'a KindVersion,
        include: IncludeObject,
        now: Timestamp,
    ) -> Table<'a> {
        let path = |column: &Column| JsonPath::parse(&column.json_path).ok();
        let paths = if kind.built_in { Vec::new() } else { version.columns.iter().map(path).collect() };
        Table { kind, columns: &version.columns, paths, include, now }
    }

    /// The table of a list.
    pub fn list<'b>(&self, objects: impl IntoIterator<Item = &'b Value>, meta: &ListMeta) -> Value {
        let rows: Vec<Value> = objects.into_iter().map(|object| self.row(object)).collect();
        table(&meta.to_value(), &self.definitions(), &rows)
    }

    /// The table of one object.
    pub fn object(&self, object: &Value) -> Value {
        table(&own_version(object), &self.definitions(), &[self.row(object)])
    }

    /// The object of a watch event; only the first one of a watch names the columns.
    pub fn event(&self, object: &Value, first: bool) -> Value {
        let definitions = if first { self.definitions() } else { Value::Null };
        table(&own_version(object), &definitions, &[self.row(object)])
    }

    fn row(&self, object: &Value) -> Value {
        let included = match self.include {
            IncludeObject::None => Value::Null,
            IncludeObject::Metadata => partial_metadata(object),
            IncludeObject::Object => object.clone(),
        };
        let mut row = json!({"cells": self.cells(object), "object": included});
        if self.kind.kind == "Pod"
            && self.kind.built_in
            && let Some(conditions) = rows::pod_row_conditions(object)
        {
            row["conditions"] = conditions;
        }
        row
    }

    fn cells(&self, object: &Value) -> Vec<Value> {
        if self.kind.built_in {
            return rows::cells(self.kind, object, self.now);
        }
        let columns = self.columns.iter().zip(&self.paths);
        columns.map(|(column, path)| self.cell(column, path.as_ref(), object)).collect()
    }

    fn cell(&self, column: &Column, path: Option<&JsonPath>, object: &Value) -> Value {
        let Some(value) = path.and_then(|path| path.first(object)) else { return Value::Null };
        match (column.column_type.as_str(), value) {
            ("string", Value::Null) => json!("<no value>"),
            ("string", Value::String(text)) => json!(text),
            ("string", other) => json!(other.to_string()),
            ("integer", Value::Number(number)) => number
                .as_i64()
                .or_else(|| number.as_f64().map(|float| float as i64))
                .map_or(Value::Null, Value::from),
            ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) => value.clone(),
            ("date", Value::String(_)) => json!(since(Some(value), self.now)),
            _ => Value::Null,
        }
    }

    fn definitions(&self) -> Value {
        let definition = |column: &Column| {
            json!({
                "name": column.name, "type": column.column_type, "format": column.format,
                "description": column.description, "priority": column.priority,
            })
        };
        self.columns.iter().map(definition).collect()
    }
}

fn own_version(object: &Value) -> Value {
    let version = object.get("metadata").and_then(|metadata| metadata.get("resourceVersion"));
    json!({"resourceVersion": version.and_then(Value::as_str).unwrap_or_default()})
}

fn table(metadata: &Value, definitions: &Value, rows: &[Value]) -> Value {
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
        "columnDefinitions": definitions, "rows": rows,
    })
}

#[cfg(test)]
mod tests;
