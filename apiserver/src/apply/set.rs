//! Sets of field paths, as trees.
//!
//! A path being in the set says nothing about its parents or children: owning
//! `spec` and owning `spec.size` are two different things.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::element::Element;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FieldSet {
    entries: BTreeMap<Element, Entry>,
}

/// Whether a path is in the set, and what is in it below that path. An entry
/// that holds neither is never kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) member: bool,
    pub(crate) children: FieldSet,
}

impl Entry {
    fn is_empty(&self) -> bool {
        !self.member && self.children.is_empty()
    }
}

impl FieldSet {
    /// The set of these paths of plain field names.
    pub(crate) fn of_fields(paths: &[&[&str]]) -> FieldSet {
        let mut set = FieldSet::default();
        for path in paths {
            let Some((last, parents)) = path.split_last() else { continue };
            let mut at = &mut set;
            for name in parents {
                at = &mut at.entries.entry(Element::field(name)).or_default().children;
            }
            at.entries.entry(Element::field(last)).or_default().member = true;
        }
        set
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds a child path and what lies below it.
    pub(crate) fn put(&mut self, element: Element, member: bool, children: FieldSet) {
        if !member && children.is_empty() {
            return;
        }
        let entry = self.entries.entry(element).or_default();
        entry.member |= member;
        if entry.children.is_empty() {
            entry.children = children;
        } else {
            entry.children.add(children);
        }
    }

    pub(crate) fn get(&self, element: &Element) -> Option<&Entry> {
        self.entries.get(element)
    }

    /// Union, in place.
    pub(crate) fn add(&mut self, other: FieldSet) {
        for (element, entry) in other.entries {
            self.put(element, entry.member, entry.children);
        }
    }

    pub(crate) fn union(mut self, other: &FieldSet) -> FieldSet {
        self.add(other.clone());
        self
    }

    /// What is in both.
    pub(crate) fn intersection(&self, other: &FieldSet) -> FieldSet {
        let mut both = FieldSet::default();
        for (element, entry) in &self.entries {
            if let Some(theirs) = other.entries.get(element) {
                let children = entry.children.intersection(&theirs.children);
                both.put(element.clone(), entry.member && theirs.member, children);
            }
        }
        both
    }

    /// Takes out exactly the paths of `other`; what lies below them stays.
    pub(crate) fn subtract(&mut self, other: &FieldSet) {
        if other.is_empty() {
            return;
        }
        self.entries.retain(|element, entry| {
            if let Some(theirs) = other.entries.get(element) {
                entry.member &= !theirs.member;
                entry.children.subtract(&theirs.children);
            }
            !entry.is_empty()
        });
    }

    /// Takes out the paths of `other` with everything below them.
    pub(crate) fn subtract_trees(&mut self, other: &FieldSet) {
        if other.is_empty() {
            return;
        }
        self.entries.retain(|element, entry| {
            let Some(theirs) = other.entries.get(element) else { return true };
            if theirs.member {
                return false;
            }
            entry.children.subtract_trees(&theirs.children);
            !entry.is_empty()
        });
    }

    /// Rebuilds every entry with `change`; empty ones are dropped.
    pub(crate) fn retain_mut(&mut self, mut change: impl FnMut(&Element, &mut Entry)) {
        self.entries.retain(|element, entry| {
            change(element, entry);
            !entry.is_empty()
        });
    }

    /// All paths as conflicts list them: a level's own members before what lies deeper.
    pub(crate) fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.collect_paths("", &mut paths);
        paths
    }

    fn collect_paths(&self, prefix: &str, paths: &mut Vec<String>) {
        let members = self.entries.iter().filter(|(_, entry)| entry.member);
        paths.extend(members.map(|(element, _)| format!("{prefix}{element}")));
        for (element, entry) in &self.entries {
            entry.children.collect_paths(&format!("{prefix}{element}"), paths);
        }
    }

    /// The `fieldsV1` form.
    pub(crate) fn to_fields(&self) -> Value {
        let mut map = Map::new();
        for (element, entry) in &self.entries {
            let mut value = entry.children.to_fields();
            if entry.member && !entry.children.is_empty() {
                value["."] = Value::Object(Map::new());
            }
            map.insert(element.serialize(), value);
        }
        Value::Object(map)
    }

    /// Reads the `fieldsV1` form. A leaf is a member whether or not it says so.
    pub(crate) fn from_fields(fields: &Value) -> Result<FieldSet, String> {
        let Some(map) = fields.as_object() else {
            return Err("fieldsV1 must be an object".into());
        };
        let mut set = FieldSet::default();
        for (key, below) in map {
            if key == "." {
                continue;
            }
            let Some(element) = Element::parse(key)? else { continue };
            let children = FieldSet::from_fields(below)?;
            let member = children.is_empty() || below.get(".").is_some();
            set.put(element, member, children);
        }
        Ok(set)
    }

    /// All paths, element by element.
    #[cfg(test)]
    pub(crate) fn paths_with_elements(&self) -> Vec<Vec<Element>> {
        let mut paths = Vec::new();
        for (element, entry) in &self.entries {
            if entry.member {
                paths.push(vec![element.clone()]);
            }
            for mut below in entry.children.paths_with_elements() {
                below.insert(0, element.clone());
                paths.push(below);
            }
        }
        paths
    }
}
