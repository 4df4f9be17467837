//! JSON paths as printer columns use them: `.status.conditions[?(@.type=="Ready")].status`.
//!
//! Invariant: reading never fails; a path that leads nowhere finds nothing.

mod parse;

use serde_json::Value;

/// A parsed path.
#[derive(Debug, Clone, PartialEq)]
pub struct JsonPath {
    steps: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Field(String),
    /// `[*]` and `.*`: every item of a list, every value of an object.
    Each,
    /// `[n]`; negative counts from the end.
    Index(i64),
    /// `[from:to:by]`.
    Slice {
        from: Option<i64>,
        to: Option<i64>,
        by: Option<i64>,
    },
    /// `..`: this value and everything in it.
    Descend,
    /// `[?(@.a == "b")]`.
    Filter {
        left: Vec<Step>,
        test: Test,
    },
    /// `['a','b']`.
    Union(Vec<Vec<Step>>),
}

#[derive(Debug, Clone, PartialEq)]
enum Test {
    Exists,
    Compare(Comparison, Operand),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Debug, Clone, PartialEq)]
enum Operand {
    Literal(Value),
    Path(Vec<Step>),
}

impl JsonPath {
    /// Reads a path; braces around it are optional, as is the leading `$` or `@`.
    pub fn parse(text: &str) -> Result<JsonPath, String> {
        parse::path(text).map(|steps| JsonPath { steps })
    }

    pub fn all<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        follow(&self.steps, value)
    }

    pub fn first<'a>(&self, value: &'a Value) -> Option<&'a Value> {
        self.all(value).into_iter().next()
    }

    /// The field names, when the path is nothing but fields: `.spec.replicas`.
    pub fn fields(&self) -> Option<Vec<&str>> {
        let mut fields = Vec::new();
        for step in &self.steps {
            let Step::Field(name) = step else { return None };
            fields.push(name.as_str());
        }
        Some(fields)
    }
}

fn follow<'a>(steps: &[Step], value: &'a Value) -> Vec<&'a Value> {
    let mut found = vec![value];
    for step in steps {
        found = found.into_iter().flat_map(|value| step.of(value)).collect();
    }
    found
}

impl Step {
    fn of<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        match self {
            Step::Field(name) => value.get(name).into_iter().collect(),
            Step::Each => children(value),
            Step::Index(index) => {
                let Some(items) = value.as_array() else { return Vec::new() };
                position(*index, items.len()).and_then(|at| items.get(at)).into_iter().collect()
            }
            Step::Slice { from, to, by } => slice(value, *from, *to, *by),
            Step::Descend => {
                let mut all = vec![value];
                let mut next = 0;
                while next < all.len() {
                    all.extend(children(all[next]));
                    next += 1;
                }
                all
            }
            Step::Filter { left, test } => {
                children(value).into_iter().filter(|item| test.holds(left, item)).collect()
            }
            Step::Union(paths) => paths.iter().flat_map(|path| follow(path, value)).collect(),
        }
    }
}

fn children(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(items) => items.iter().collect(),
        Value::Object(fields) => fields.values().collect(),
        _ => Vec::new(),
    }
}

fn position(index: i64, length: usize) -> Option<usize> {
    let length = i64::try_from(length).ok()?;
    usize::try_from(if index < 0 { index + length } else { index }).ok()
}

fn slice(value: &Value, from: Option<i64>, to: Option<i64>, by: Option<i64>) -> Vec<&Value> {
    let Some(items) = value.as_array() else { return Vec::new() };
    let bound = |at: i64| position(at, items.len()).unwrap_or(0).min(items.len());
    let from = from.map_or(0, bound);
    let to = to.map_or(items.len(), bound);
    let by = by.and_then(|by| usize::try_from(by).ok()).filter(|by| *by > 0).unwrap_or(1);
    items.get(from..to.max(from)).into_iter().flatten().step_by(by).collect()
}

impl Test {
    fn holds(&self, left: &[Step], item: &Value) -> bool {
        let left = follow(left, item);
        match self {
            Test::Exists => !left.is_empty(),
            Test::Compare(comparison, operand) => {
                let right = match operand {
                    Operand::Literal(value) => Some(value),
                    Operand::Path(path) => follow(path, item).into_iter().next(),
                };
                left.first().zip(right).is_some_and(|(left, right)| comparison.holds(left, right))
            }
        }
    }
}

impl Comparison {
    fn holds(self, left: &Value, right: &Value) -> bool {
        let order = match (left, right) {
            (Value::Number(left), Value::Number(right)) => {
                left.as_f64().zip(right.as_f64()).and_then(|(left, right)| left.partial_cmp(&right))
            }
            (Value::String(left), Value::String(right)) => Some(left.cmp(right)),
            (Value::Bool(left), Value::Bool(right)) => Some(left.cmp(right)),
            _ => None,
        };
        match self {
            Comparison::Equal => order.is_some_and(std::cmp::Ordering::is_eq),
            Comparison::NotEqual => order.is_none_or(std::cmp::Ordering::is_ne),
            Comparison::Less => order.is_some_and(std::cmp::Ordering::is_lt),
            Comparison::LessOrEqual => order.is_some_and(std::cmp::Ordering::is_le),
            Comparison::Greater => order.is_some_and(std::cmp::Ordering::is_gt),
            Comparison::GreaterOrEqual => order.is_some_and(std::cmp::Ordering::is_ge),
        }
    }
}

#[cfg(test)]
mod tests;
