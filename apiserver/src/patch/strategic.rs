//! Strategic merge patch: a merge patch that knows which lists are maps in
//! disguise, and takes directives.
//!
//! Lists merge by the key that the schema names for them; all other lists are
//! replaced. Directives: `$patch`, `$retainKeys`, `$deleteFromPrimitiveList/…`
//! and `$setElementOrder/…`.

use serde_json::{Map, Value};

use super::order::in_order;
use super::{PatchError, cannot_decode, within_depth};
use crate::schema::{Node, Schema, common_field, show_go};

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const SET_ORDER: &str = "$setElementOrder/";

/// Applies a strategic merge patch to an object of a kind with this schema.
pub fn strategic_merge_patch(doc: &Value, patch: &Value, schema: &Schema) -> Result<Value, PatchError> {
    let (Value::Object(original), Value::Object(patch)) = (doc, patch) else {
        return Err(cannot_decode(patch, "", "map[string]interface {}"));
    };
    let merged = merge_maps(original.clone(), patch, Known::Object(schema.root()))?;
    within_depth(Value::Object(merged))
}

/// What the schema says of a value, if anything.
#[derive(Clone, Copy)]
enum Known<'a> {
    /// A whole object, with the metadata every object has.
    Object(&'a Node),
    Node(&'a Node),
    Nothing,
}

impl<'a> Known<'a> {
    fn field(self, name: &str) -> Known<'a> {
        let child = match self {
            Known::Object(node) => common_field(name).or_else(|| node.child(name)),
            Known::Node(node) => node.child(name),
            Known::Nothing => None,
        };
        child.map_or(Known::Nothing, Known::Node)
    }

    fn items(self) -> Known<'a> {
        match self {
            Known::Node(node) => node.items.as_deref().map_or(Known::Nothing, Known::Node),
            Known::Object(_) | Known::Nothing => Known::Nothing,
        }
    }

    fn merges(self) -> bool {
        matches!(self, Known::Node(node) if node.patch.merge)
    }

    fn merge_key(self) -> Option<&'a str> {
        match self {
            Known::Node(node) => node.patch.merge_key.as_deref(),
            Known::Object(_) | Known::Nothing => None,
        }
    }
}

type Fields = Map<String, Value>;

fn malformed(text: impl Into<String>) -> PatchError {
    PatchError::Malformed(text.into())
}

fn list<'a>(value: &'a Value, what: &str) -> Result<&'a Vec<Value>, PatchError> {
    value.as_array().ok_or_else(|| malformed(format!("invalid patch format of {what}")))
}

fn merge_maps(mut original: Fields, patch: &Fields, known: Known<'_>) -> Result<Fields, PatchError> {
    match patch.get(DIRECTIVE).map(Value::as_str) {
        None => {}
        Some(Some("replace")) => {
            return Ok(patch
                .iter()
                .filter(|(k, _)| *k != DIRECTIVE)
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect());
        }
        Some(Some("delete")) => return Ok(Fields::new()),
        Some(_) => return Err(unknown_directive(patch)),
    }
    if let Some(keys) = patch.get(RETAIN_KEYS) {
        retain_keys(&mut original, patch, list(keys, RETAIN_KEYS)?)?;
    }
    let mut ordered = Vec::new();
    for (directive, order) in patch {
        if let Some(name) = directive.strip_prefix(SET_ORDER) {
            set_order(&mut original, patch, name, list(order, SET_ORDER)?, known)?;
            ordered.push(name);
        }
    }
    for (name, change) in patch {
        if name == RETAIN_KEYS || name.starts_with(SET_ORDER) || ordered.contains(&name.as_str()) {
            continue;
        }
        match name.strip_prefix(DELETE_FROM) {
            Some(name) => delete_from(&mut original, name, list(change, DELETE_FROM)?),
            None => merge_field(&mut original, name, change, known.field(name))?,
        }
    }
    Ok(original)
}

fn merge_field(
    original: &mut Fields,
    name: &str,
    change: &Value,
    known: Known<'_>,
) -> Result<(), PatchError> {
    if change.is_null() {
        original.remove(name);
        return Ok(());
    }
    let merged = match (original.remove(name), change) {
        (Some(Value::Object(fields)), Value::Object(changes)) => {
            Some(Value::Object(merge_maps(fields, changes, known)?))
        }
        (Some(Value::Array(items)), Value::Array(changes)) if known.merges() => {
            Some(Value::Array(merge_lists(items, changes, known)?))
        }
        (Some(Value::Array(_)), Value::Array(_)) => Some(change.clone()),
        (Some(_) | None, _) => plain(change),
    };
    original.extend(merged.map(|value| (name.to_owned(), value)));
    Ok(())
}

/// A new value: without nulls and without anything that carries a directive.
fn plain(value: &Value) -> Option<Value> {
    match value {
        Value::Object(map) if map.contains_key(DIRECTIVE) => None,
        Value::Object(map) => {
            let fields = map.iter().filter(|(_, child)| !child.is_null());
            Some(Value::Object(
                fields.filter_map(|(name, child)| Some((name.clone(), plain(child)?))).collect(),
            ))
        }
        Value::Array(items) => Some(Value::Array(items.iter().filter_map(plain).collect())),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Some(value.clone()),
    }
}

fn retain_keys(original: &mut Fields, patch: &Fields, keys: &[Value]) -> Result<(), PatchError> {
    let kept = |name: &str| keys.iter().any(|key| key.as_str() == Some(name));
    let is_change = |(name, change): &(&String, &Value)| {
        !change.is_null()
            && *name != RETAIN_KEYS
            && !name.starts_with(DELETE_FROM)
            && !name.starts_with(SET_ORDER)
    };
    if patch.iter().filter(is_change).any(|(name, _)| !kept(name)) {
        return Err(malformed("invalid patch format of retainKeys"));
    }
    original.retain(|name, _| kept(name));
    Ok(())
}

fn delete_from(original: &mut Fields, name: &str, gone: &[Value]) {
    if let Some(Value::Array(items)) = original.get_mut(name) {
        items.retain(|item| !gone.contains(item));
    }
}

/// Merges a list and puts it in the order that the patch asks for.
fn set_order(
    original: &mut Fields,
    patch: &Fields,
    name: &str,
    order: &[Value],
    known: Known<'_>,
) -> Result<(), PatchError> {
    let known = known.field(name);
    if let Some(Value::Array(changes)) = patch.get(name) {
        check_order(changes, order, known.merge_key())?;
    }
    let before = match original.get(name) {
        None => None,
        Some(items) => Some(list(items, SET_ORDER)?.clone()),
    };
    let merged = match (&before, patch.get(name)) {
        (None, None) => return Ok(()),
        (Some(items), None) => items.clone(),
        (None, Some(changes)) => match plain(changes) {
            Some(Value::Array(items)) => items,
            _ => return Err(malformed("invalid patch format of setElementOrder list")),
        },
        (Some(items), Some(changes)) => {
            let changes = list(changes, SET_ORDER)?;
            if known.merges() { merge_lists(items.clone(), changes, known)? } else { changes.clone() }
        }
    };
    let items = in_order(merged, order, &before.unwrap_or_default(), known.merge_key());
    original.insert(name.to_owned(), Value::Array(items));
    Ok(())
}

fn merge_lists(original: Vec<Value>, patch: &[Value], known: Known<'_>) -> Result<Vec<Value>, PatchError> {
    if original.is_empty() && patch.is_empty() {
        return Ok(original);
    }
    let has_objects = original.iter().chain(patch).any(Value::is_object);
    if !has_objects {
        let mut merged = original.clone();
        for item in patch {
            if !merged.contains(item) {
                merged.push(item.clone());
            }
        }
        return Ok(in_order(merged, patch, &original, None));
    }
    let Some(key) = known.merge_key() else {
        return Err(malformed("cannot merge lists without merge key"));
    };
    merge_keyed(original, patch, key, known.items())
}

fn merge_keyed(
    original: Vec<Value>,
    patch: &[Value],
    key: &str,
    known: Known<'_>,
) -> Result<Vec<Value>, PatchError> {
    let mut original = original;
    let mut changes: Vec<&Fields> = Vec::with_capacity(patch.len());
    let mut replace = false;
    for item in patch {
        let fields =
            item.as_object().ok_or_else(|| malformed("lists of different types cannot be merged"))?;
        match fields.get(DIRECTIVE).map(Value::as_str) {
            None => changes.push(fields),
            Some(Some("replace")) => replace = true,
            Some(Some("delete")) => {
                let gone = fields.get(key).ok_or_else(|| no_merge_key(item, key))?;
                original.retain(|item| item.get(key) != Some(gone));
            }
            Some(_) => return Err(unknown_directive(fields)),
        }
    }
    if replace {
        return Ok(changes.into_iter().cloned().map(Value::Object).collect());
    }
    let before = original.clone();
    let mut merged = original;
    for change in &changes {
        let name = change.get(key).ok_or_else(|| no_merge_key(&Value::Object((*change).clone()), key))?;
        match merged.iter_mut().find(|item| item.get(key) == Some(name)) {
            Some(Value::Object(item)) => *item = merge_maps(std::mem::take(item), change, known)?,
            Some(_) | None => merged.extend(plain(&Value::Object((*change).clone()))),
        }
    }
    if let Some(item) = merged.iter().find(|item| item.get(key).is_none()) {
        return Err(no_merge_key(item, key));
    }
    let order: Vec<Value> = changes.into_iter().cloned().map(Value::Object).collect();
    Ok(in_order(merged, &order, &before, Some(key)))
}

fn no_merge_key(item: &Value, key: &str) -> PatchError {
    let text = format!("map: {} does not contain declared merge key: {key}", show_go(item));
    PatchError::Contradictory(text)
}

fn unknown_directive(fields: &Fields) -> PatchError {
    let directive = show_go(fields.get(DIRECTIVE).unwrap_or(&Value::Null));
    let map = show_go(&Value::Object(fields.clone()));
    PatchError::Contradictory(format!("unknown patch type: {directive} in map: {map}"))
}

/// The items of a patch must come in the order that it asks for.
fn check_order(changes: &[Value], order: &[Value], key: Option<&str>) -> Result<(), PatchError> {
    let mut wanted = order.iter();
    let in_order = changes.iter().filter(|item| item.get(DIRECTIVE).is_none()).all(|item| {
        wanted.any(|place| match key {
            Some(key) => item.get(key) == place.get(key),
            None => item == place,
        })
    });
    if in_order || order.is_empty() {
        return Ok(());
    }
    let list = |items: &[Value]| show_go(&Value::Array(items.to_vec()));
    let text = format!(
        "The order in patch list:\n{}\n doesn't match $setElementOrder list:\n{}\n",
        list(changes),
        list(order)
    );
    Err(PatchError::Contradictory(text))
}
