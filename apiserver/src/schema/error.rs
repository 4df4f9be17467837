//! What is wrong with a field, worded as the real server words it.
//!
//! The texts reach users through kubectl and scripts match on them, so every
//! word and quote is part of the contract.

use std::fmt;

use serde_json::{Number, Value};

use crate::error::{ApiError, Cause, Reason, Subject};

/// The kinds of field error; each is a `reason` in `Status.details.causes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Required,
    Duplicate,
    Invalid,
    NotSupported,
    Forbidden,
    TooLong,
    TooMany,
    /// The value has another type than the schema says. Reads like `Invalid`.
    TypeInvalid,
    Internal,
}

impl Fault {
    pub(crate) const ALL: [Fault; 9] = [
        Self::Required,
        Self::Duplicate,
        Self::Invalid,
        Self::NotSupported,
        Self::Forbidden,
        Self::TooLong,
        Self::TooMany,
        Self::TypeInvalid,
        Self::Internal,
    ];

    pub fn reason(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Invalid => "FieldValueInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::Internal => "InternalError",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Required => "Required value",
            Self::Duplicate => "Duplicate value",
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
            Self::Internal => "Internal error",
        }
    }

    /// Whether CEL rules are not worth running on an object with this fault.
    pub(crate) fn blocks_rules(self) -> bool {
        match self {
            Self::NotSupported | Self::Required | Self::TooLong | Self::TooMany | Self::TypeInvalid => true,
            Self::Duplicate | Self::Invalid | Self::Forbidden | Self::Internal => false,
        }
    }
}

/// One thing that is wrong with one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    /// `spec.items[2].name`; `<nil>` where the real server knows no field.
    pub field: String,
    pub fault: Fault,
    /// The offending value as shown; `None` when it is not shown.
    pub value: Option<String>,
    pub detail: String,
}

impl FieldError {
    pub fn required(field: impl Into<String>, detail: impl Into<String>) -> Self {
        FieldError { field: field.into(), fault: Fault::Required, value: None, detail: detail.into() }
    }

    pub fn forbidden(field: impl Into<String>, detail: impl Into<String>) -> Self {
        FieldError { field: field.into(), fault: Fault::Forbidden, value: None, detail: detail.into() }
    }

    pub fn invalid(field: impl Into<String>, value: &Value, detail: impl Into<String>) -> Self {
        FieldError {
            field: field.into(),
            fault: Fault::Invalid,
            value: Some(show_value(value)),
            detail: detail.into(),
        }
    }

    /// An invalid value that is too large to be shown.
    pub fn invalid_whole(field: impl Into<String>, detail: impl Into<String>) -> Self {
        FieldError { field: field.into(), fault: Fault::Invalid, value: None, detail: detail.into() }
    }

    pub fn duplicate(field: impl Into<String>, value: &Value) -> Self {
        FieldError {
            field: field.into(),
            fault: Fault::Duplicate,
            value: Some(show_value(value)),
            detail: String::new(),
        }
    }

    pub fn not_supported(field: impl Into<String>, value: &Value, supported: &[String]) -> Self {
        let quoted: Vec<String> = supported.iter().map(|value| quote(value)).collect();
        let detail = if quoted.is_empty() {
            String::new()
        } else {
            format!("supported values: {}", quoted.join(", "))
        };
        FieldError { field: field.into(), fault: Fault::NotSupported, value: Some(show_value(value)), detail }
    }

    pub fn too_long(field: impl Into<String>, max: u64) -> Self {
        let unit = if max == 1 { "byte" } else { "bytes" };
        let detail = format!("may not be more than {max} {unit}");
        FieldError { field: field.into(), fault: Fault::TooLong, value: None, detail }
    }

    pub fn too_many(field: impl Into<String>, actual: usize, max: u64) -> Self {
        let unit = if max == 1 { "item" } else { "items" };
        let detail = format!("must have at most {max} {unit}");
        FieldError { field: field.into(), fault: Fault::TooMany, value: Some(actual.to_string()), detail }
    }

    pub(crate) fn wrong_type(field: impl Into<String>, shown: &str, detail: impl Into<String>) -> Self {
        FieldError {
            field: field.into(),
            fault: Fault::TypeInvalid,
            value: Some(quote(shown)),
            detail: detail.into(),
        }
    }

    /// The message without the field.
    pub fn body(&self) -> String {
        let mut body = self.fault.title().to_owned();
        for part in [self.value.as_deref().unwrap_or(""), &self.detail] {
            if !part.is_empty() {
                body.push_str(": ");
                body.push_str(part);
            }
        }
        body
    }
}

impl From<FieldError> for Cause {
    fn from(error: FieldError) -> Cause {
        Cause { reason: error.fault.reason(), message: error.body(), field: error.field }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.body())
    }
}

/// The answer to a request whose object is not valid: 422 with one cause per
/// field. `kind` is the kind, not the plural.
pub fn invalid(kind: &str, group: &str, name: &str, errors: &[FieldError]) -> ApiError {
    let mut messages: Vec<String> = Vec::with_capacity(errors.len());
    for error in errors {
        let message = error.to_string();
        if !messages.contains(&message) {
            messages.push(message);
        }
    }
    let qualified = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
    let list = match messages.as_slice() {
        [] => String::new(),
        [one] => format!(": {one}"),
        many => format!(": [{}]", many.join(", ")),
    };
    let causes = errors
        .iter()
        .map(|error| Cause {
            reason: error.fault.reason(),
            message: error.body(),
            field: error.field.clone(),
        })
        .collect();
    ApiError::new(Reason::Invalid, format!("{qualified} {} is invalid{list}", quote(name)))
        .about(Subject { group: group.into(), kind: kind.into(), name: name.into(), uid: String::new() })
        .because(causes)
}

/// A value as it stands in an error message.
pub(crate) fn show_value(value: &Value) -> String {
    match value {
        Value::String(text) => quote(text),
        Value::Number(number) => show_number(number),
        Value::Bool(flag) => flag.to_string(),
        Value::Null | Value::Array(_) | Value::Object(_) => to_html_safe_json(value),
    }
}

/// JSON in which no character means anything to HTML, as Go writes it.
pub(crate) fn to_html_safe_json(value: &Value) -> String {
    let plain = value.to_string();
    if !plain.contains(['<', '>', '&', '\u{2028}', '\u{2029}']) {
        return plain;
    }
    let mut safe = String::with_capacity(plain.len() + 16);
    for c in plain.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => safe.push_str(&format!("\\u{:04x}", c as u32)),
            _ => safe.push(c),
        }
    }
    safe
}

fn show_number(number: &Number) -> String {
    match number.as_i64() {
        Some(integer) => integer.to_string(),
        None => show_float(number.as_f64().unwrap_or(f64::NAN)),
    }
}

/// A float in the shortest form, with an exponent from a million on, as Go prints it.
pub(crate) fn show_float(float: f64) -> String {
    if float == 0.0 || !float.is_finite() {
        return if float == 0.0 { "0".into() } else { float.to_string() };
    }
    let scientific = format!("{float:e}");
    let (digits, exponent) = scientific.split_once('e').expect("exponent form has an e");
    let exponent: i32 = exponent.parse().expect("exponent is an integer");
    if (-4..6).contains(&exponent) {
        return float.to_string();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// A string in double quotes with Go's escapes.
pub(crate) fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            c if (c as u32) < 0x20 || c as u32 == 0x7f => quoted.push_str(&format!("\\x{:02x}", c as u32)),
            c if c.is_control() || (c.is_whitespace() && c != ' ') => {
                quoted.push_str(&format!("\\u{:04x}", c as u32));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// A value as Go prints it.
pub(crate) fn show_go(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".into(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let shown: Vec<String> = items.iter().map(show_go).collect();
            format!("[{}]", shown.join(" "))
        }
        Value::Object(map) => {
            let shown: Vec<String> =
                map.iter().map(|(name, child)| format!("{name}:{}", show_go(child))).collect();
            format!("map[{}]", shown.join(" "))
        }
    }
}
