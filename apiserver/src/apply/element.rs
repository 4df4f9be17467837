//! One step of a field path, and how it is written in `fieldsV1`.

use std::cmp::Ordering;
use std::fmt;

use serde_json::{Map, Value};

/// How a child is found in what holds it.
#[derive(Debug, Clone)]
pub(crate) enum Element {
    /// A field of an object, or a key of a map: `f:name`.
    Field(String),
    /// An item of a list of type map, by its key fields in order: `k:{"name":"a"}`.
    Key(Vec<(String, Value)>),
    /// An item of a set, by its value: `v:"a"`.
    Value(Value),
    /// An item by its place: `i:3`. Read for old objects, never made.
    Index(i64),
}

impl Element {
    pub(crate) fn field(name: &str) -> Element {
        Element::Field(name.to_owned())
    }

    /// Reads a key of a `fieldsV1` object; unknown forms are `None` and ignored.
    pub(crate) fn parse(text: &str) -> Result<Option<Element>, String> {
        let Some((kind, rest)) = text.split_once(':').filter(|(kind, _)| kind.len() == 1) else {
            return Err(format!("missing colon: {text}"));
        };
        let element = match kind {
            "f" => Element::Field(rest.to_owned()),
            "v" => Element::Value(serde_json::from_str(rest).map_err(|e| e.to_string())?),
            "k" => {
                let keys: Map<String, Value> = serde_json::from_str(rest).map_err(|e| e.to_string())?;
                let mut keys: Vec<(String, Value)> = keys.into_iter().collect();
                keys.sort_by(|a, b| a.0.cmp(&b.0));
                Element::Key(keys)
            }
            "i" => Element::Index(rest.parse().map_err(|_| format!("not an index: {rest}"))?),
            _ => return Ok(None),
        };
        Ok(Some(element))
    }

    /// The key in a `fieldsV1` object.
    pub(crate) fn serialize(&self) -> String {
        match self {
            Element::Field(name) => format!("f:{name}"),
            Element::Key(keys) => {
                let map: Map<String, Value> = keys.iter().cloned().collect();
                format!("k:{}", Value::Object(map))
            }
            Element::Value(value) => format!("v:{value}"),
            Element::Index(index) => format!("i:{index}"),
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Element::Field(_) => 0,
            Element::Key(_) => 1,
            Element::Value(_) => 2,
            Element::Index(_) => 3,
        }
    }
}

impl Ord for Element {
    fn cmp(&self, other: &Element) -> Ordering {
        match (self, other) {
            (Element::Field(a), Element::Field(b)) => a.cmp(b),
            (Element::Key(a), Element::Key(b)) => compare_keys(a, b),
            (Element::Value(a), Element::Value(b)) => compare_values(a, b),
            (Element::Index(a), Element::Index(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl PartialOrd for Element {
    fn partial_cmp(&self, other: &Element) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Element {
    fn eq(&self, other: &Element) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Element {}

/// As conflicts name it: `.spec`, `[name="a"]`, `[="a"]`, `[3]`.
impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Element::Field(name) => write!(f, ".{name}"),
            Element::Key(keys) => {
                let shown: Vec<String> = keys.iter().map(|(name, value)| format!("{name}={value}")).collect();
                write!(f, "[{}]", shown.join(","))
            }
            Element::Value(value) => write!(f, "[={value}]"),
            Element::Index(index) => write!(f, "[{index}]"),
        }
    }
}

fn compare_keys(a: &[(String, Value)], b: &[(String, Value)]) -> Ordering {
    for ((a_name, a_value), (b_name, b_value)) in a.iter().zip(b) {
        let order = a_name.cmp(b_name).then_with(|| compare_values(a_value, b_value));
        if order.is_ne() {
            return order;
        }
    }
    a.len().cmp(&b.len())
}

/// A total order over JSON; numbers that are equal are equal however they are written.
fn compare_values(a: &Value, b: &Value) -> Ordering {
    fn rank(value: &Value) -> u8 {
        match value {
            Value::Number(_) => 0,
            Value::String(_) => 1,
            Value::Bool(_) => 2,
            Value::Array(_) => 3,
            Value::Object(_) => 4,
            Value::Null => 5,
        }
    }
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => match (x.as_i64(), y.as_i64()) {
            (Some(x), Some(y)) => x.cmp(&y),
            _ => x.as_f64().unwrap_or(f64::NAN).total_cmp(&y.as_f64().unwrap_or(f64::NAN)),
        },
        (Value::String(x), Value::String(y)) => x.cmp(y),
        (Value::Bool(x), Value::Bool(y)) => x.cmp(y),
        (Value::Array(x), Value::Array(y)) => {
            let first = x.iter().zip(y).map(|(x, y)| compare_values(x, y)).find(|order| order.is_ne());
            first.unwrap_or_else(|| x.len().cmp(&y.len()))
        }
        (Value::Object(x), Value::Object(y)) => {
            let mut pairs = x.iter().zip(y);
            let first = pairs.find_map(|((a, x), (b, y))| {
                Some(a.cmp(b).then_with(|| compare_values(x, y))).filter(|order| order.is_ne())
            });
            first.unwrap_or_else(|| x.len().cmp(&y.len()))
        }
        _ => rank(a).cmp(&rank(b)),
    }
}
