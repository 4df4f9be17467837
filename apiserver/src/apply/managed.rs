//! `metadata.managedFields`: who owns what, as stored in the object.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::set::FieldSet;
use crate::schema::quote;

/// The entries of one object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Managed {
    pub(crate) entries: BTreeMap<ManagerId, Owned>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Operation {
    Apply,
    Update,
}

/// What tells entries apart. One who applies has one entry whatever version
/// it applies in; one who updates has one for each version.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ManagerId {
    pub(crate) manager: String,
    pub(crate) operation: Operation,
    /// Empty for `Apply`.
    version: String,
    pub(crate) subresource: String,
}

impl ManagerId {
    pub(crate) fn new(manager: &str, operation: Operation, version: &str, subresource: &str) -> ManagerId {
        let version = match operation {
            Operation::Apply => String::new(),
            Operation::Update => version.to_owned(),
        };
        ManagerId { manager: manager.into(), operation, version, subresource: subresource.into() }
    }

    /// How conflicts speak of it.
    pub(crate) fn describe(&self) -> String {
        let mut text = quote(&self.manager);
        if !self.subresource.is_empty() {
            text.push_str(&format!(" with subresource {}", quote(&self.subresource)));
        }
        if self.operation == Operation::Update {
            text.push_str(&format!(" using {}", self.version));
        }
        text
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owned {
    pub(crate) fields: FieldSet,
    pub(crate) version: String,
    /// RFC 3339; `None` for one who owns without ever having changed anything.
    pub(crate) time: Option<String>,
}

impl Managed {
    /// Reads what an object carries. An object without entries has none.
    pub(crate) fn decode(object: &Value) -> Result<Managed, String> {
        match raw(object) {
            None | Some(Value::Null) => Ok(Managed::default()),
            Some(Value::Array(entries)) => {
                let entries = entries.iter().enumerate().map(|(at, entry)| decode_entry(at, entry));
                Ok(Managed { entries: entries.collect::<Result<_, _>>()? })
            }
            Some(_) => Err("managedFields must be a list".into()),
        }
    }

    /// The stored form, in the order in which Kubernetes keeps entries.
    pub(crate) fn encode(&self) -> Value {
        let mut entries: Vec<(&ManagerId, &Owned)> = self.entries.iter().collect();
        entries.sort_by(|(a, a_owned), (b, b_owned)| {
            (a.operation, &a_owned.time, &a.manager, &a_owned.version, &a.subresource).cmp(&(
                b.operation,
                &b_owned.time,
                &b.manager,
                &b_owned.version,
                &b.subresource,
            ))
        });
        entries.into_iter().map(|(id, owned)| encode_entry(id, owned)).collect()
    }
}

/// `metadata.managedFields` as it stands.
pub(crate) fn raw(object: &Value) -> Option<&Value> {
    object.get("metadata")?.get("managedFields")
}

/// Whether a client asks to forget all ownership: with one empty entry, or,
/// for built-in kinds, an empty list.
pub(crate) fn is_reset(object: &Value, built_in: bool) -> bool {
    match raw(object) {
        Some(Value::Array(entries)) => match entries.as_slice() {
            [] => built_in,
            [Value::Object(only)] => only.is_empty(),
            _ => false,
        },
        _ => false,
    }
}

fn decode_entry(at: usize, entry: &Value) -> Result<(ManagerId, Owned), String> {
    let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or("");
    let operation = match text("operation") {
        "Apply" => Operation::Apply,
        "Update" => Operation::Update,
        _ => return Err("operation must be `Apply` or `Update`".into()),
    };
    if text("apiVersion").is_empty() {
        return Err("apiVersion must not be empty".into());
    }
    match text("fieldsType") {
        "FieldsV1" => {}
        "" => return Err(format!("missing fieldsType in managed fields entry {at}")),
        other => return Err(format!("invalid fieldsType {} in managed fields entry {at}", quote(other))),
    }
    let fields = match entry.get("fieldsV1") {
        None | Some(Value::Null) => FieldSet::default(),
        Some(fields) => FieldSet::from_fields(fields)?,
    };
    let id = ManagerId::new(text("manager"), operation, text("apiVersion"), text("subresource"));
    let time = entry.get("time").and_then(Value::as_str).map(Into::into);
    Ok((id, Owned { fields, version: text("apiVersion").into(), time }))
}

fn encode_entry(id: &ManagerId, owned: &Owned) -> Value {
    let operation = match id.operation {
        Operation::Apply => "Apply",
        Operation::Update => "Update",
    };
    let mut entry = Map::new();
    entry.insert("manager".into(), json!(id.manager));
    entry.insert("operation".into(), json!(operation));
    entry.insert("apiVersion".into(), json!(owned.version));
    if let Some(time) = &owned.time {
        entry.insert("time".into(), json!(time));
    }
    entry.insert("fieldsType".into(), json!("FieldsV1"));
    entry.insert("fieldsV1".into(), owned.fields.to_fields());
    if !id.subresource.is_empty() {
        entry.insert("subresource".into(), json!(id.subresource));
    }
    Value::Object(entry)
}
