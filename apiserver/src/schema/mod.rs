//! What a kind's objects may look like: structural schemas as CRDs carry them.
//!
//! A schema is compiled once and then answers for every request: which fields
//! are unknown, what is missing, what is wrong. Nothing here reads a clock or
//! does I/O.
//!
//! The one invariant: an object that was pruned, defaulted and found valid is
//! still so when it is pruned, defaulted and validated again.

mod cel;
mod defaults;
mod embedded;
mod error;
mod format;
mod lists;
mod meta;
mod node;
mod optional;
mod path;
mod prune;
mod rules;
mod scalar;
mod structural;
mod typing;
mod unique;
mod validate;

#[cfg(test)]
mod rule_tests;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde_json::Value;

use crate::error::Cause;

pub(crate) use cel::holds as expression_holds;
pub(crate) use error::show_value;
pub use error::{Fault, FieldError, invalid};
pub(crate) use error::{quote, show_go};
pub(crate) use meta::{common_field, tidy_metadata};
pub(crate) use node::{Additional, ListType, Node, Types};
pub(crate) use path::Path;

/// How deep an object may nest. Beyond it, its field ownership could not be
/// written as JSON that can be read back.
pub const MAX_DEPTH: usize = 100;

/// A compiled structural schema with its rules. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Schema {
    root: Arc<Node>,
    built_in: bool,
}

/// Whether CEL rules are worth running on an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rules {
    Checked,
    /// Something is wrong with the object that its rules may not survive.
    Blocked,
}

impl Rules {
    /// As those faults leave it.
    pub(crate) fn after(faults: &[Cause]) -> Rules {
        let blocks =
            |fault: &Cause| Fault::ALL.iter().any(|one| one.reason() == fault.reason && one.blocks_rules());
        if faults.iter().any(blocks) { Rules::Blocked } else { Rules::Checked }
    }
}

/// Why a schema cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("schema has {} faults", .0.len())]
pub struct SchemaError(pub Vec<FieldError>);

impl Schema {
    /// Compiles the OpenAPI schema of one version of a kind. Faults are named
    /// by their path within the schema: `openAPIV3Schema.properties[spec].type`.
    pub fn compile(openapi: &Value) -> Result<Schema, SchemaError> {
        let mut faults = structural::faults(openapi);
        if !faults.is_empty() {
            return Err(SchemaError(faults));
        }
        let schema = Schema { root: Arc::new(Node::compile(openapi)), built_in: false };
        typing::faults(&schema.root, &mut faults);
        if faults.is_empty() { Ok(schema) } else { Err(SchemaError(faults)) }
    }

    /// Compiles the schema of a built-in kind, which is known to be right
    /// although it need not be structural.
    pub fn trusted(openapi: &Value) -> Schema {
        Schema { root: Arc::new(Node::compile(openapi)), built_in: true }
    }

    /// The schema that accepts and keeps everything.
    pub fn anything() -> Schema {
        Schema { root: Arc::new(Node::anything()), built_in: false }
    }

    pub(crate) fn is_built_in(&self) -> bool {
        self.built_in
    }

    pub(crate) fn root(&self) -> &Node {
        &self.root
    }

    /// Removes unknown fields and returns their paths, sorted: `spec.siz`.
    pub fn prune(&self, object: &mut Value) -> Vec<String> {
        prune::prune_object(object, &self.root)
    }

    /// Fills in defaults. Nulls where null is not allowed count as absent.
    pub fn default(&self, object: &mut Value) {
        defaults::default_object(object, &self.root);
    }

    /// Everything that is wrong with an object; `old` is what it replaces.
    pub fn validate(&self, new: &Value, old: Option<&Value>) -> Vec<FieldError> {
        self.validate_after(new, old, Rules::Checked)
    }

    /// The same for an object of which something is known to be wrong already.
    pub(crate) fn validate_after(&self, new: &Value, old: Option<&Value>, rules: Rules) -> Vec<FieldError> {
        if let Some(too_deep) = check_depth(new) {
            return vec![too_deep];
        }
        let mut errors = check_values(new, old, &self.root);
        embedded::check(new, &self.root, &Path::Root, &mut errors);
        self.validate_whole(new, old, rules, &mut errors);
        errors
    }

    /// What is wrong with an object of which only the status is written. As on
    /// the real server, texts name fields from the status on.
    pub(crate) fn validate_status(&self, new: &Value, old: Option<&Value>, rules: Rules) -> Vec<FieldError> {
        if let Some(too_deep) = check_depth(new) {
            return vec![too_deep];
        }
        let mut errors = Vec::new();
        if let (Some(status), Some(node)) = (new.get("status"), self.root.child("status")) {
            errors = check_values(status, old.and_then(|old| old.get("status")), node);
            for error in &mut errors {
                error.field = match error.field.as_str() {
                    "" | "<nil>" => "status".into(),
                    field => format!("status.{field}"),
                };
            }
        }
        self.validate_whole(new, old, rules, &mut errors);
        errors
    }

    /// The checks that look at more than one value: uniqueness, then rules.
    fn validate_whole(&self, new: &Value, old: Option<&Value>, rules: Rules, errors: &mut Vec<FieldError>) {
        // Built-in kinds say by themselves where an item may not come twice:
        // a node may have two addresses of one type, a container a variable twice.
        if !self.built_in {
            self.validate_uniqueness(new, old, errors);
        }
        if self.root.below.rules {
            if rules == Rules::Blocked || errors.iter().any(|error| error.fault.blocks_rules()) {
                errors.push(rules_not_checked());
            } else {
                rules::check(new, old, &self.root, errors);
            }
        }
    }

    fn validate_uniqueness(&self, new: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
        let before = errors.len();
        unique::check(new, &self.root, &Path::Root, errors);
        if errors.len() == before {
            return;
        }
        let mut of_old = Vec::new();
        if let Some(old) = old {
            unique::check(old, &self.root, &Path::Root, &mut of_old);
        }
        if !of_old.is_empty() {
            errors.truncate(before);
        }
    }
}

fn check_depth(object: &Value) -> Option<FieldError> {
    let detail = || format!("must not nest deeper than {MAX_DEPTH} levels");
    nests_deeper_than(object, MAX_DEPTH).then(|| FieldError::invalid_whole("<nil>", detail()))
}

fn check_values(new: &Value, old: Option<&Value>, node: &Node) -> Vec<FieldError> {
    let mut findings = validate::Findings::default();
    validate::check(new, old, node, &Path::Root, &mut findings);
    remove_repeated(&mut findings.errors);
    findings.errors
}

fn rules_not_checked() -> FieldError {
    let detail = "some validation rules were not checked because the object was invalid; \
                  correct the existing errors to complete validation";
    FieldError::invalid("<nil>", &Value::Null, detail)
}

fn remove_repeated(errors: &mut Vec<FieldError>) {
    if errors.len() > 1 {
        let mut kept: Vec<FieldError> = Vec::with_capacity(errors.len());
        for error in errors.drain(..) {
            if !kept.contains(&error) {
                kept.push(error);
            }
        }
        *errors = kept;
    }
}

/// Whether containers stand in each other more than `limit` deep. Does not recurse.
pub fn nests_deeper_than(value: &Value, limit: usize) -> bool {
    let mut open = vec![(value, 1)];
    while let Some((value, depth)) = open.pop() {
        let children: &mut dyn Iterator<Item = &Value> = match value {
            Value::Array(items) => &mut items.iter(),
            Value::Object(map) => &mut map.values(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => continue,
        };
        if depth > limit {
            return true;
        }
        open.extend(children.filter(|c| c.is_array() || c.is_object()).map(|child| (child, depth + 1)));
    }
    false
}
