//! Lays an applied configuration over an object, and takes fields out of one.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::element::Element;
use super::set::FieldSet;
use super::shape::{Keys, Shape, Type};

/// The object with the configuration laid over it. Items of keyed lists keep
/// the object's order except where the configuration has another.
pub(crate) fn merge(object: &Value, config: &Value, of: Type<'_>) -> Value {
    match (of.shape(object), of.shape(config)) {
        (Shape::Map(old), Shape::Map(new)) if !old.is_empty() || !new.is_empty() => {
            let mut merged = old.clone();
            for (name, value) in new {
                let value = match old.get(name) {
                    Some(old) => merge(old, value, of.field(name)),
                    None => value.clone(),
                };
                merged.insert(name.clone(), value);
            }
            Value::Object(merged)
        }
        (Shape::List(old, keys), Shape::List(new, _)) if !old.is_empty() || !new.is_empty() => {
            Value::Array(merge_lists(old, new, keys, of))
        }
        // Null says nothing about the parts of a granular map or list.
        (Shape::Map(old), Shape::Leaf) if config.is_null() && !old.is_empty() => object.clone(),
        (Shape::List(old, _), Shape::Leaf) if config.is_null() && !old.is_empty() => object.clone(),
        _ => config.clone(),
    }
}

fn merge_lists(old: &[Value], new: &[Value], keys: Keys<'_>, of: Type<'_>) -> Vec<Value> {
    let name = |item: &Value| keys.element(item, of.item()).ok();
    let old: Vec<(Option<Element>, &Value)> = old.iter().map(|item| (name(item), item)).collect();
    let new: Vec<(Element, &Value)> = new.iter().filter_map(|item| Some((name(item)?, item))).collect();
    // An item that the object has twice is not merged with, it is replaced.
    let mut by_name: BTreeMap<&Element, Option<&Value>> = BTreeMap::new();
    for (element, item) in &old {
        if let Some(element) = element {
            by_name.entry(element).and_modify(|known| *known = None).or_insert(Some(item));
        }
    }
    let wanted: BTreeSet<&Element> = new.iter().map(|(element, _)| element).collect();
    let in_config = |item: &(Option<Element>, &Value)| item.0.as_ref().is_some_and(|e| wanted.contains(e));
    // Items that both have come in the configuration's order; `shared` is at the next of them.
    let mut shared = new.iter().map(|(element, _)| element).filter(|e| by_name.contains_key(e)).peekable();
    let merged = |(element, item): &(Element, &Value)| match by_name.get(element) {
        Some(Some(old)) => merge(old, item, of.item()),
        Some(None) | None => (*item).clone(),
    };

    let mut out = Vec::with_capacity(old.len().max(new.len()));
    let mut done: BTreeSet<&Element> = BTreeSet::new();
    let (mut left, mut right) = (0, 0);
    while left < old.len() || right < new.len() {
        if let (Some(theirs), Some(ours)) = (old.get(left), new.get(right)) {
            if theirs.0.as_ref() == Some(&ours.0) {
                out.push(merged(ours));
                done.insert(&ours.0);
                (left, right) = (left + 1, right + 1);
                shared.next();
                continue;
            }
            if in_config(theirs) && shared.peek().is_some_and(|next| theirs.0.as_ref() != Some(next)) {
                left += 1;
                continue;
            }
        }
        if let Some(theirs) = old.get(left) {
            if !in_config(theirs) {
                out.push(theirs.1.clone());
                left += 1;
                continue;
            }
            left += usize::from(theirs.0.as_ref().is_some_and(|element| done.contains(element)));
        }
        if let Some(ours) = new.get(right) {
            out.push(merged(ours));
            done.insert(&ours.0);
            right += 1;
            shared.next_if_eq(&&ours.0);
        }
    }
    out
}

/// The value without the paths of a set, each taken out with all below it.
/// `None` when nothing is left of it.
pub(crate) fn remove(value: &Value, fields: &FieldSet, of: Type<'_>) -> Option<Value> {
    match of.shape(value) {
        Shape::Leaf if value.is_array() || value.is_object() => None,
        Shape::Leaf => Some(value.clone()),
        Shape::Map(map) => {
            let mut kept = Map::new();
            for (name, child) in map {
                let entry = fields.get(&Element::field(name));
                if entry.is_some_and(|entry| entry.member) {
                    continue;
                }
                let left = match entry {
                    Some(entry) => {
                        remove(child, &entry.children, of.field(name)).unwrap_or_else(|| emptied(child))
                    }
                    None => child.clone(),
                };
                kept.insert(name.clone(), left);
            }
            (!kept.is_empty()).then_some(Value::Object(kept))
        }
        Shape::List(items, keys) => {
            let mut kept = Vec::with_capacity(items.len());
            for item in items {
                let element = keys.element(item, of.item()).ok();
                match element.and_then(|element| fields.get(&element)) {
                    Some(entry) if entry.member => {}
                    Some(entry) => {
                        kept.push(remove(item, &entry.children, of.item()).unwrap_or_else(|| emptied(item)));
                    }
                    None => kept.push(item.clone()),
                }
            }
            (!kept.is_empty()).then_some(Value::Array(kept))
        }
    }
}

/// What is left of a container that lost all it held and is owned itself. The
/// real server leaves null, which its own validation then refuses.
fn emptied(container: &Value) -> Value {
    if container.is_array() { Value::Array(Vec::new()) } else { Value::Object(Map::new()) }
}

/// The set with every declared field that leads to one of its paths.
pub(crate) fn with_named_parents(set: &FieldSet, of: Type<'_>) -> FieldSet {
    let mut full = set.clone();
    add_named_parents(&mut full, of);
    full
}

fn add_named_parents(set: &mut FieldSet, of: Type<'_>) {
    set.retain_mut(|element, entry| {
        let below = match element {
            Element::Field(name) => {
                entry.member |= !entry.children.is_empty() && of.declares(name);
                of.field(name)
            }
            Element::Key(_) => of.item(),
            Element::Value(_) | Element::Index(_) => Type::Whole,
        };
        add_named_parents(&mut entry.children, below);
    });
}

/// Brings ownership up to a schema in which something became atomic since.
pub(crate) fn settle(set: &mut FieldSet, of: Type<'_>) {
    set.retain_mut(|element, entry| {
        if entry.children.is_empty() {
            return;
        }
        let below = match element {
            Element::Field(name) => of.field(name),
            Element::Key(_) | Element::Value(_) | Element::Index(_) => of.item(),
        };
        if below.is_atomic() {
            entry.member = true;
            entry.children = FieldSet::default();
        } else {
            settle(&mut entry.children, below);
        }
    });
}
