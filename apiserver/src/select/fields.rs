//! Field selectors: `metadata.name=a,status.phase!=Running`.
//!
//! Invariant: only fields the kind offers are accepted; anything else is
//! refused before an object is looked at.

use std::fmt;

use serde_json::Value;

use crate::{
    builtin::names::quoted,
    error::{ApiError, Reason},
    kind::{Kind, KindVersion, Scope},
};

/// All terms must hold; none at all selects everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSelector {
    terms: Vec<Term>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Term {
    field: String,
    value: String,
    equal: bool,
}

impl FieldSelector {
    pub fn parse(text: &str, kind: &Kind, version: &KindVersion) -> Result<FieldSelector, ApiError> {
        let selector =
            FieldSelector::syntax(text).map_err(|message| ApiError::new(Reason::BadRequest, message))?;
        for term in &selector.terms {
            if !offered(&term.field, kind, version) {
                return Err(ApiError::new(Reason::BadRequest, refusal(&term.field, kind, version)));
            }
        }
        Ok(selector)
    }

    /// The selector a request for one name amounts to.
    pub fn name(name: &str) -> FieldSelector {
        FieldSelector {
            terms: vec![Term { field: "metadata.name".into(), value: name.to_owned(), equal: true }],
        }
    }

    /// Whether it selects everything.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// The value that `field` must have, when one term says so.
    pub fn required(&self, field: &str) -> Option<&str> {
        self.terms.iter().find(|term| term.equal && term.field == field).map(|term| term.value.as_str())
    }

    /// Judges an object in the version it was asked for in.
    pub fn matches(&self, object: &Value) -> bool {
        self.terms.iter().all(|term| (field_text(object, &term.field) == term.value) == term.equal)
    }

    fn syntax(text: &str) -> Result<FieldSelector, String> {
        let mut terms = Vec::new();
        for part in split_terms(text) {
            if part.is_empty() {
                continue;
            }
            let Some((field, value, equal)) = split_term(part) else {
                return Err(format!("invalid selector: '{text}'; can't understand '{part}'"));
            };
            terms.push(Term { field: field.to_owned(), value: unescape(value)?, equal });
        }
        terms.sort();
        Ok(FieldSelector { terms })
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, term) in self.terms.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let operator = if term.equal { "=" } else { "!=" };
            let value = term.value.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=");
            write!(f, "{comma}{}{operator}{value}", term.field)?;
        }
        Ok(())
    }
}

fn offered(field: &str, kind: &Kind, version: &KindVersion) -> bool {
    match field {
        "metadata.name" => true,
        "metadata.namespace" => kind.scope == Scope::Namespaced || plain(kind, version),
        _ => version.selectable_fields.iter().any(|own| own == field),
    }
}

/// Built-in kinds without selectable fields of their own are refused in other words.
fn plain(kind: &Kind, version: &KindVersion) -> bool {
    kind.built_in && version.selectable_fields.is_empty()
}

fn refusal(field: &str, kind: &Kind, version: &KindVersion) -> String {
    if plain(kind, version) {
        let field = quoted(field);
        format!(r#"{field} is not a known field selector: only "metadata.name", "metadata.namespace""#)
    } else {
        format!("field label not supported: {field}")
    }
}

/// The field as the text a selector compares with; what is absent is empty.
fn field_text(object: &Value, field: &str) -> String {
    let mut value = object;
    for step in field.split('.') {
        value = value.get(step).unwrap_or(&Value::Null);
    }
    match value {
        Value::Null if absent_is_false(field) => "false".to_owned(),
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        // status.podIPs is a list of {ip}; the real server compares the joined addresses.
        Value::Array(items) => {
            let addresses: Vec<&str> = items.iter().filter_map(|item| item.get("ip")?.as_str()).collect();
            addresses.join(",")
        }
        // `source` of an event means its component.
        Value::Object(map) => map.get("component").and_then(Value::as_str).unwrap_or_default().to_owned(),
        other => other.to_string(),
    }
}

fn absent_is_false(field: &str) -> bool {
    matches!(field, "spec.unschedulable" | "spec.hostNetwork")
}

/// Splits at commas that no backslash protects; backslashes stay.
fn split_terms(text: &str) -> Vec<&str> {
    let mut terms = Vec::new();
    let mut start = 0;
    let mut escaped = false;
    for (index, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                terms.push(&text[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms
}

fn split_term(term: &str) -> Option<(&str, &str, bool)> {
    for (index, _) in term.char_indices() {
        let rest = &term[index..];
        for (operator, equal) in [("!=", false), ("==", true), ("=", true)] {
            if let Some(value) = rest.strip_prefix(operator) {
                return Some((&term[..index], value, equal));
            }
        }
    }
    None
}

fn unescape(text: &str) -> Result<String, String> {
    let mut value = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(next @ ('\\' | ',' | '=')) => value.push(next),
                Some(next) => {
                    return Err(format!("invalid field selector: invalid escape sequence: \\{next}"));
                }
                None => return Err("invalid field selector: invalid escape sequence: \\".into()),
            },
            ',' | '=' => {
                return Err(format!("invalid field selector: unescaped character in value: {}", c as u32));
            }
            _ => value.push(c),
        }
    }
    Ok(value)
}

#[cfg(test)]
mod tests;
