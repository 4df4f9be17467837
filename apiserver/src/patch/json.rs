//! JSON patch (RFC 6902), with the habits of the real server: indices may
//! count from the end, a field that is not there counts as null in tests and
//! copies, and replacing it sets it.

use serde_json::Value;

use super::{PatchError, cannot_decode, within_depth};

/// More operations than this are refused.
pub(super) const MAX_OPERATIONS: usize = 10_000;

/// Applies every operation in order, or none.
pub fn json_patch(doc: &Value, patch: &Value) -> Result<Value, PatchError> {
    let Some(operations) = patch.as_array() else {
        return Err(cannot_decode(patch, "error decoding patch: ", "[]handlers.jsonPatchOp"));
    };
    if operations.len() > MAX_OPERATIONS {
        return Err(PatchError::TooLarge { got: operations.len() });
    }
    let mut result = doc.clone();
    for operation in operations {
        let operation = Operation::parse(operation)?;
        operation.apply(&mut result)?;
    }
    within_depth(result)
}

enum Operation<'a> {
    Add { path: Vec<String>, value: Value },
    Remove { path: Vec<String> },
    Replace { path: Vec<String>, value: Value },
    Move { from: Vec<String>, path: Vec<String> },
    Copy { from: Vec<String>, path: Vec<String> },
    Test { path: Vec<String>, value: &'a Value },
}

impl<'a> Operation<'a> {
    fn parse(raw: &'a Value) -> Result<Operation<'a>, PatchError> {
        if !raw.is_object() {
            return Err(cannot_decode(raw, "error decoding patch: ", "handlers.jsonPatchOp"));
        }
        let pointer = |name: &str| parse_pointer(raw.get(name));
        let value = raw.get("value").unwrap_or(&Value::Null);
        let path = pointer("path")?;
        match raw.get("op").and_then(Value::as_str) {
            Some("add") => Ok(Operation::Add { path, value: value.clone() }),
            Some("remove") => Ok(Operation::Remove { path }),
            Some("replace") => Ok(Operation::Replace { path, value: value.clone() }),
            Some("move") => Ok(Operation::Move { from: pointer("from")?, path }),
            Some("copy") => Ok(Operation::Copy { from: pointer("from")?, path }),
            Some("test") => Ok(Operation::Test { path, value }),
            other => {
                Err(PatchError::Inapplicable(format!("Unexpected kind: {}", other.unwrap_or("unknown"))))
            }
        }
    }

    fn apply(self, doc: &mut Value) -> Result<(), PatchError> {
        match self {
            Operation::Add { path, value } => add(doc, &path, value),
            Operation::Remove { path } => remove(doc, &path).map(drop),
            Operation::Replace { path, value } => replace(doc, &path, value),
            Operation::Move { from, path } => {
                if path.len() > from.len() && path.starts_with(&from) {
                    return Err(PatchError::Inapplicable("a value cannot be moved into itself".into()));
                }
                let value = remove(doc, &from)?;
                add(doc, &path, value)
            }
            Operation::Copy { from, path } => {
                let value = look_up(doc, &from).ok_or_else(|| missing("copy", &from))?;
                add(doc, &path, value)
            }
            Operation::Test { path, value } => {
                if look_up(doc, &path).as_ref() == Some(value) {
                    return Ok(());
                }
                Err(PatchError::Inapplicable(format!("testing path {} failed", show(&path))))
            }
        }
    }
}

fn parse_pointer(raw: Option<&Value>) -> Result<Vec<String>, PatchError> {
    let Some(text) = raw.and_then(Value::as_str) else {
        return Err(PatchError::Inapplicable("an operation lacks its path".into()));
    };
    // Whatever stands before the first slash is not looked at.
    Ok(text.split('/').skip(1).map(|token| token.replace("~1", "/").replace("~0", "~")).collect())
}

fn show(path: &[String]) -> String {
    path.iter().map(|token| format!("/{token}")).collect()
}

fn missing(what: &str, path: &[String]) -> PatchError {
    PatchError::Inapplicable(format!("{what} operation does not apply: doc is missing path: {}", show(path)))
}

/// An index into a list of `length`; negative ones count from its end.
fn index_of(token: &str, length: usize) -> Option<usize> {
    let index: i64 = token.parse().ok()?;
    let index = if index < 0 { index + i64::try_from(length).ok()? } else { index };
    usize::try_from(index).ok().filter(|index| *index < length)
}

fn step<'a>(value: &'a mut Value, token: &str) -> Option<&'a mut Value> {
    match value {
        Value::Object(map) => map.get_mut(token),
        Value::Array(items) => {
            let index = index_of(token, items.len())?;
            items.get_mut(index)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

fn find<'a>(doc: &'a mut Value, path: &[String]) -> Option<&'a mut Value> {
    path.iter().try_fold(doc, |value, token| step(value, token))
}

/// The value at a path; a field that an existing object lacks is null.
fn look_up(doc: &mut Value, path: &[String]) -> Option<Value> {
    if let Some(value) = find(doc, path) {
        return Some(value.clone());
    }
    let (_, parents) = path.split_last()?;
    find(doc, parents).filter(|parent| parent.is_object()).map(|_| Value::Null)
}

/// Replaces an item of a list, sets a field of an object whether or not it was there.
fn replace(doc: &mut Value, path: &[String], value: Value) -> Result<(), PatchError> {
    if let Some(target) = find(doc, path) {
        *target = value;
        return Ok(());
    }
    let parent = path.split_last().and_then(|(last, parents)| Some((last, find(doc, parents)?)));
    match parent {
        Some((last, Value::Object(map))) => {
            map.insert(last.clone(), value);
            Ok(())
        }
        Some(_) | None => Err(missing("replace", path)),
    }
}

fn add(doc: &mut Value, path: &[String], value: Value) -> Result<(), PatchError> {
    let (last, parents) = path.split_last().ok_or_else(|| missing("add", path))?;
    match find(doc, parents) {
        Some(Value::Object(map)) => {
            map.insert(last.clone(), value);
            Ok(())
        }
        Some(Value::Array(items)) => {
            let end = items.len();
            let index = if last == "-" { Some(end) } else { index_of(last, end + 1) };
            items.insert(index.ok_or_else(|| missing("add", path))?, value);
            Ok(())
        }
        _ => Err(missing("add", path)),
    }
}

fn remove(doc: &mut Value, path: &[String]) -> Result<Value, PatchError> {
    let (last, parents) = path.split_last().ok_or_else(|| missing("remove", path))?;
    let removed = match find(doc, parents) {
        Some(Value::Object(map)) => map.remove(last),
        Some(Value::Array(items)) => index_of(last, items.len()).map(|index| items.remove(index)),
        _ => None,
    };
    removed.ok_or_else(|| missing("remove", path))
}
