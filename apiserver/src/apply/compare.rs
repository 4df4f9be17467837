//! Which fields differ between two objects, and which fields one object has.

use serde_json::{Map, Value};

use super::element::Element;
use super::set::FieldSet;
use super::shape::{Keys, Shape, Type};

/// How an object differs from another. No path is in more than one set.
#[derive(Debug, Default)]
pub(crate) struct Difference {
    pub(crate) removed: FieldSet,
    pub(crate) modified: FieldSet,
    pub(crate) added: FieldSet,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    Removed,
    Modified,
    Added,
}

impl Difference {
    pub(crate) fn between(old: &Value, new: &Value, schema: Type<'_>) -> Difference {
        let mut difference = Difference::default();
        compare(Some(old), Some(new), schema, &mut difference);
        difference
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.modified.is_empty() && self.added.is_empty()
    }

    /// Forgets changes of these fields and all below them.
    pub(crate) fn ignore(&mut self, fields: &FieldSet) {
        self.removed.subtract_trees(fields);
        self.modified.subtract_trees(fields);
        self.added.subtract_trees(fields);
    }

    /// Takes out what was set: modified and added.
    pub(crate) fn take_set(&mut self) -> FieldSet {
        let mut set = std::mem::take(&mut self.added);
        set.add(std::mem::take(&mut self.modified));
        set
    }

    fn put(&mut self, element: Element, mark: Option<Mark>, below: Difference) {
        let Difference { removed, modified, added } = below;
        self.removed.put(element.clone(), mark == Some(Mark::Removed), removed);
        self.modified.put(element.clone(), mark == Some(Mark::Modified), modified);
        self.added.put(element, mark == Some(Mark::Added), added);
    }
}

/// Compares one value with another; `below` receives what differs under it.
fn compare(old: Option<&Value>, new: Option<&Value>, of: Type<'_>, below: &mut Difference) -> Option<Mark> {
    let (old_shape, new_shape) = (old.map(|v| of.shape(v)), new.map(|v| of.shape(v)));
    let is_leaf = |shape: &Option<Shape<'_, '_>>, value: Option<&Value>| {
        matches!(shape, Some(Shape::Leaf)) && !value.is_some_and(Value::is_null)
    };
    let mut leaf = is_leaf(&old_shape, old) || is_leaf(&new_shape, new);
    let (old_map, new_map) = (as_map(old_shape), as_map(new_shape));
    let (old_list, new_list) = (as_list(old_shape), as_list(new_shape));
    if old_map.is_some() || new_map.is_some() {
        // Two empty ones are told apart whole, so that {} and null differ.
        let empty = |map: Option<&Map<String, Value>>| map.is_none_or(Map::is_empty);
        if empty(old_map) && empty(new_map) {
            leaf = true;
        } else {
            compare_maps(old_map, new_map, of, below);
        }
    }
    if let Some((_, keys)) = old_list.or(new_list) {
        let items = |list: Option<(&'_ [Value], Keys<'_>)>| list.map_or(0, |(items, _)| items.len());
        if items(old_list) + items(new_list) == 0 {
            leaf = true;
        } else {
            let of_list = |list: Option<(_, _)>| list.map_or(&[][..], |(items, _)| items);
            compare_lists(of_list(old_list), of_list(new_list), keys, of, below);
        }
    }
    let only_nulls = !leaf && old_map.or(new_map).is_none() && old_list.or(new_list).is_none();
    match (old, new) {
        (None, _) => Some(Mark::Added),
        (_, None) => Some(Mark::Removed),
        (Some(old), Some(new)) if (leaf || only_nulls) && !same(old, new) => Some(Mark::Modified),
        (Some(_), Some(_)) => None,
    }
}

fn as_map<'v>(shape: Option<Shape<'v, '_>>) -> Option<&'v Map<String, Value>> {
    match shape {
        Some(Shape::Map(map)) => Some(map),
        Some(Shape::Leaf | Shape::List(..)) | None => None,
    }
}

fn as_list<'v, 'a>(shape: Option<Shape<'v, 'a>>) -> Option<(&'v [Value], Keys<'a>)> {
    match shape {
        Some(Shape::List(items, keys)) => Some((items, keys)),
        Some(Shape::Leaf | Shape::Map(_)) | None => None,
    }
}

/// Equality in which 1 and 1.0 are the same number.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => x == y || x.as_f64() == y.as_f64(),
        (Value::Array(x), Value::Array(y)) => x.len() == y.len() && x.iter().zip(y).all(|(x, y)| same(x, y)),
        (Value::Object(x), Value::Object(y)) => {
            x.len() == y.len() && x.iter().all(|(key, x)| y.get(key).is_some_and(|y| same(x, y)))
        }
        _ => a == b,
    }
}

fn compare_maps(
    old: Option<&Map<String, Value>>,
    new: Option<&Map<String, Value>>,
    of: Type<'_>,
    below: &mut Difference,
) {
    for (name, old_value) in old.into_iter().flatten() {
        let new_value = new.and_then(|new| new.get(name));
        compare_child(|| Element::field(name), Some(old_value), new_value, of.field(name), below);
    }
    for (name, new_value) in new.into_iter().flatten() {
        if old.is_none_or(|old| !old.contains_key(name)) {
            compare_child(|| Element::field(name), None, Some(new_value), of.field(name), below);
        }
    }
}

fn compare_child(
    element: impl FnOnce() -> Element,
    old: Option<&Value>,
    new: Option<&Value>,
    of: Type<'_>,
    below: &mut Difference,
) {
    let mut child = Difference::default();
    let mark = compare(old, new, of, &mut child);
    if mark.is_some() || !child.is_empty() {
        below.put(element(), mark, child);
    }
}

/// The items of a list by what names them; those that cannot be named are left out.
type Index<'v> = std::collections::BTreeMap<Element, Vec<&'v Value>>;

fn index<'v>(items: &'v [Value], keys: Keys<'_>, of: Type<'_>) -> Index<'v> {
    let mut index = Index::new();
    for item in items {
        if let Ok(element) = keys.element(item, of.item()) {
            index.entry(element).or_default().push(item);
        }
    }
    index
}

fn compare_lists(old: &[Value], new: &[Value], keys: Keys<'_>, of: Type<'_>, below: &mut Difference) {
    let (old, mut new) = (index(old, keys, of), index(new, keys, of));
    let mut pairs: Vec<(Element, Vec<&Value>, Vec<&Value>)> = Vec::with_capacity(old.len().max(new.len()));
    for (element, olds) in old {
        let news = new.remove(&element).unwrap_or_default();
        pairs.push((element, olds, news));
    }
    pairs.extend(new.into_iter().map(|(element, news)| (element, Vec::new(), news)));
    for (element, olds, news) in pairs {
        match (olds.as_slice(), news.as_slice()) {
            (old @ ([] | [_]), new @ ([] | [_])) => {
                let (old, new) = (old.first().copied(), new.first().copied());
                compare_child(|| element, old, new, of.item(), below);
            }
            // Items of one name are owned together, as if they were one.
            (old @ [_, _, ..], new @ [_, _, ..]) => {
                let equal = old.len() == new.len() && old.iter().zip(new).all(|(a, b)| same(a, b));
                let mark = if equal { None } else { Some(Mark::Modified) };
                below.put(element, mark, Difference::default());
            }
            ([_, _, ..], new) => {
                if let Some(new) = new.first() {
                    compare_child(|| element.clone(), None, Some(new), of.item(), below);
                }
                below.put(element, Some(Mark::Removed), Difference::default());
            }
            (old, [_, _, ..]) => {
                if let Some(old) = old.first() {
                    compare_child(|| element.clone(), Some(old), None, of.item(), below);
                }
                below.put(element, Some(Mark::Added), Difference::default());
            }
        }
    }
}

/// The fields that an object has, as one who applies it owns them.
pub(crate) fn fields_of(object: &Value, schema: Type<'_>) -> FieldSet {
    let mut fields = FieldSet::default();
    collect(object, schema, &mut fields);
    fields
}

/// Fills `below` with what lies under a value and says whether the value itself is owned.
fn collect(value: &Value, of: Type<'_>, below: &mut FieldSet) -> bool {
    match of.shape(value) {
        Shape::Leaf => true,
        Shape::Map(map) => {
            for (name, child) in map {
                let mut under = FieldSet::default();
                let owned = collect(child, of.field(name), &mut under);
                let empty = child.as_object().is_some_and(Map::is_empty);
                below.put(Element::field(name), owned || empty || !of.declares(name), under);
            }
            false
        }
        Shape::List(items, keys) => {
            for (element, items) in index(items, keys, of) {
                let mut under = FieldSet::default();
                if let [item] = items.as_slice() {
                    collect(item, of.item(), &mut under);
                }
                below.put(element, true, under);
            }
            false
        }
    }
}
