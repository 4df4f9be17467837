//! Checks on a single value: its type, its bounds, its choices.

use serde_json::{Number, Value};

use super::error::{FieldError, show_float};
use super::format::FormatKind;
use super::node::{Bounds, Node, Types};
use super::path::Path;

/// The largest integer that a float can hold without loss.
const MAX_SAFE: f64 = 9_007_199_254_740_991.0;

/// A number as the real server holds it: whole if it fits 64 bits, else a float.
#[derive(Clone, Copy)]
enum Numeric {
    Whole(i64),
    Float(f64),
}

impl Numeric {
    fn of(number: &Number) -> Numeric {
        match number.as_i64() {
            Some(whole) => Numeric::Whole(whole),
            None => Numeric::Float(number.as_f64().unwrap_or(f64::NAN)),
        }
    }

    fn as_float(self) -> f64 {
        match self {
            Numeric::Whole(whole) => whole as f64,
            Numeric::Float(float) => float,
        }
    }
}

fn is_whole(float: f64) -> bool {
    float.fract() == 0.0 && float.abs() <= MAX_SAFE
}

/// The schema type of a value and the name its Go type goes by.
fn type_of(value: &Value) -> (Types, &'static str) {
    match value {
        Value::Null => (Types::ANY, ""),
        Value::Bool(_) => (Types::BOOLEAN, ""),
        Value::String(_) => (Types::STRING, ""),
        Value::Array(_) => (Types::ARRAY, ""),
        Value::Object(_) => (Types::OBJECT, ""),
        Value::Number(number) => match Numeric::of(number) {
            Numeric::Whole(_) => (Types::INTEGER, "int64"),
            Numeric::Float(_) => (Types::NUMBER, "float64"),
        },
    }
}

/// Whether the value has one of the node's types.
pub(crate) fn check_type(value: &Value, node: &Node, path: &Path<'_>, errors: &mut Vec<FieldError>) -> bool {
    if value.is_null() {
        if node.types.is_any() || node.nullable {
            return true;
        }
        return wrong_type(path, &node.types.names(), "null", errors);
    }
    let (kind, storage) = type_of(value);
    let fits = node.types.contains(kind)
        || (kind == Types::INTEGER && node.types.contains(Types::NUMBER))
        || (kind == Types::NUMBER && node.types.contains(Types::INTEGER) && whole_float(value));
    if let Some(format) = &node.format {
        let textual = matches!(value, Value::String(_) | Value::Array(_));
        if !textual && !fits && format.name != storage {
            return wrong_type(path, &format.name, storage, errors);
        }
        if textual && !node.types.contains(Types::NUMBER) && !node.types.contains(Types::INTEGER) {
            return true;
        }
    }
    fits || wrong_type(path, &node.types.names(), &kind.names(), errors)
}

fn whole_float(value: &Value) -> bool {
    value.as_f64().is_some_and(is_whole)
}

fn wrong_type(path: &Path<'_>, wanted: &str, got: &str, errors: &mut Vec<FieldError>) -> bool {
    let field = path.dotted();
    let detail = format!("{field} in body must be of type {wanted}: {}", super::error::quote(got));
    errors.push(FieldError::wrong_type(field, got, detail));
    false
}

/// Length first, then pattern, then format; the first fault of length and pattern is told.
pub(crate) fn check_string(text: &str, node: &Node, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if let Some(bounds) = &node.bounds {
        check_text_bounds(text, bounds, path, errors);
    }
    if let Some(format) = &node.format
        && !format.kind.accepts(text)
    {
        wrong_type(path, &format.name, text, errors);
    }
}

fn check_text_bounds(text: &str, bounds: &Bounds, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let length = || text.chars().count() as u64;
    if let Some(max) = bounds.max_length
        && text.len() as u64 > max
        && length() > max
    {
        errors.push(FieldError::too_long(path.dotted(), max));
        return;
    }
    let mut invalid = |detail: String| {
        let field = path.dotted();
        let detail = format!("{field} in body {detail}");
        errors.push(FieldError::invalid(field, &Value::from(text), detail));
    };
    if let Some(min) = bounds.min_length
        && length() < min
    {
        invalid(format!("should be at least {min} chars long"));
        return;
    }
    match &bounds.pattern {
        Some((pattern, Some(regex))) if !regex.is_match(text) => {
            invalid(format!("should match '{pattern}'"));
        }
        Some((pattern, None)) => invalid(format!("should match '{pattern}, but pattern is invalid'")),
        Some((_, Some(_))) | None => {}
    }
}

pub(crate) fn check_number(number: &Number, node: &Node, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let value = Numeric::of(number);
    check_range(value, node, path, errors);
    let Some(bounds) = &node.bounds else { return };
    if let (Some(factor), Numeric::Whole(_)) = (bounds.multiple_of, value)
        && factor < 1.0
    {
        // The real server takes the whole part of the factor for whole numbers.
        let field = path.dotted();
        let detail = format!("factor MultipleOf declared for {field} must be positive: 0");
        errors.push(FieldError::invalid(field, &Value::from(0), detail));
    }
    let mut invalid = |detail: String| {
        let field = path.dotted();
        let detail = format!("{field} in body should be {detail}");
        errors.push(FieldError::invalid(field, &Value::Number(number.clone()), detail));
    };
    if let Some(factor) = bounds.multiple_of
        && !is_multiple(value, factor)
    {
        invalid(format!("a multiple of {}", show_bound(value, factor)));
    }
    if let Some(min) = bounds.minimum {
        let (below, equal) = compare(value, min);
        if below.is_lt() || (equal && bounds.exclusive_minimum) {
            let than = if bounds.exclusive_minimum { "greater than" } else { "greater than or equal to" };
            invalid(format!("{than} {}", show_bound(value, min)));
        }
    }
    if let Some(max) = bounds.maximum {
        let (above, equal) = compare(value, max);
        if above.is_gt() || (equal && bounds.exclusive_maximum) {
            let than = if bounds.exclusive_maximum { "less than" } else { "less than or equal to" };
            invalid(format!("{than} {}", show_bound(value, max)));
        }
    }
}

/// Whole numbers are compared with the whole part of the bound, as the real server does.
fn compare(value: Numeric, bound: f64) -> (std::cmp::Ordering, bool) {
    let order = match value {
        Numeric::Whole(whole) => whole.cmp(&(bound as i64)),
        Numeric::Float(float) => float.total_cmp(&bound),
    };
    (order, order.is_eq())
}

fn show_bound(value: Numeric, bound: f64) -> String {
    match value {
        Numeric::Whole(_) => (bound as i64).to_string(),
        Numeric::Float(_) => show_float(bound),
    }
}

fn is_multiple(value: Numeric, factor: f64) -> bool {
    match value {
        Numeric::Whole(_) if factor < 1.0 => true,
        Numeric::Whole(whole) => whole % (factor as i64) == 0,
        Numeric::Float(float) if factor < 1.0 => is_whole(1.0 / factor * float),
        Numeric::Float(float) => is_whole(float / factor),
    }
}

/// Whether the number fits the machine type that its type and format name.
fn check_range(value: Numeric, node: &Node, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let format = node.format.as_ref();
    let float = value.as_float();
    let whole = match value {
        Numeric::Whole(_) => true,
        Numeric::Float(float) => float.fract() == 0.0 && float.abs() < 9.2e18,
    };
    let fits = match format.map(|format| format.kind) {
        Some(FormatKind::Int32) => whole && i32::MIN as f64 <= float && float <= i32::MAX as f64,
        Some(FormatKind::Float) => float.abs() <= f64::from(f32::MAX),
        _ => whole || node.types != Types::INTEGER,
    };
    if !fits {
        let types = node.types.names();
        let format = match format {
            Some(format) => format!("with format {}", format.name),
            None => "(default format)".to_owned(),
        };
        let detail = format!("Checked value must be of type {types} {format} in {}", path.dotted());
        errors.push(FieldError::invalid("<nil>", &Value::from(""), detail));
    }
}

/// Whether the value is one of those allowed, if only some are.
pub(crate) fn check_choices(value: &Value, node: &Node, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if node.choices.is_empty() || node.choices.iter().any(|choice| same(value, choice)) {
        return;
    }
    let shown = |choice: &Value| match choice {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let supported: Vec<String> = node.choices.iter().map(shown).collect();
    errors.push(FieldError::not_supported(path.dotted(), value, &supported));
}

fn same(value: &Value, choice: &Value) -> bool {
    match (value, choice) {
        // The real server converts the value to the type of the choice, which cuts fractions off.
        (Value::Number(a), Value::Number(b)) if !b.is_f64() => a.as_f64().map(f64::trunc) == b.as_f64(),
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Null, Value::Null) => false,
        _ => value == choice,
    }
}
