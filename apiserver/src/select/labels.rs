//! Label selectors: `app=web,tier in (a, b),!old`.
//!
//! Invariant: what `Display` writes parses back to an equal selector.

mod parse;

use std::fmt;

use serde_json::Value;

use crate::error::{ApiError, Reason};

/// All requirements must hold; none at all selects everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LabelSelector {
    /// Sorted by key, as the real server shows them.
    requirements: Vec<Requirement>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Test {
    Exists,
    Missing,
    Equals(String),
    NotEquals(String),
    /// Sorted, without duplicates.
    In(Vec<String>),
    NotIn(Vec<String>),
    GreaterThan(i64),
    LessThan(i64),
}

impl LabelSelector {
    /// Whether it selects everything.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Judges `metadata.labels` of an object, which may be absent.
    pub fn matches(&self, labels: Option<&Value>) -> bool {
        self.requirements.iter().all(|requirement| {
            let value = labels.and_then(|labels| labels.get(&requirement.key)).and_then(Value::as_str);
            requirement.test.holds(value)
        })
    }

    /// From the object form, `{matchLabels, matchExpressions}`. An absent
    /// selector and an empty one both select everything.
    pub fn from_object(selector: Option<&Value>) -> Result<LabelSelector, ApiError> {
        let mut requirements = Vec::new();
        let Some(selector) = selector else { return Ok(LabelSelector::default()) };
        for (key, value) in selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten() {
            let value = value.as_str().unwrap_or_default().to_owned();
            requirements.push(parse::requirement(key, "=", vec![value])?);
        }
        for expression in selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten() {
            let key = expression.get("key").and_then(Value::as_str).unwrap_or_default();
            let operator = expression.get("operator").and_then(Value::as_str).unwrap_or_default();
            let values = expression.get("values").and_then(Value::as_array).into_iter().flatten();
            let values = values.filter_map(Value::as_str).map(str::to_owned).collect();
            let operator = match operator {
                "In" => "in",
                "NotIn" => "notin",
                "Exists" => "exists",
                "DoesNotExist" => "!",
                other => {
                    let message = format!(
                        "{} is not a valid label selector operator",
                        crate::builtin::names::quoted(other)
                    );
                    return Err(ApiError::new(Reason::BadRequest, message));
                }
            };
            requirements.push(parse::requirement(key, operator, values)?);
        }
        Ok(LabelSelector::sorted(requirements))
    }

    fn sorted(mut requirements: Vec<Requirement>) -> LabelSelector {
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        LabelSelector { requirements }
    }
}

impl Test {
    fn holds(&self, value: Option<&str>) -> bool {
        let number = |value: Option<&str>| value.and_then(|text| text.parse::<i64>().ok());
        match self {
            Test::Exists => value.is_some(),
            Test::Missing => value.is_none(),
            Test::Equals(wanted) => value == Some(wanted),
            Test::NotEquals(unwanted) => value != Some(unwanted),
            Test::In(wanted) => value.is_some_and(|value| wanted.iter().any(|one| one == value)),
            Test::NotIn(unwanted) => value.is_none_or(|value| unwanted.iter().all(|one| one != value)),
            Test::GreaterThan(bound) => number(value).is_some_and(|value| value > *bound),
            Test::LessThan(bound) => number(value).is_some_and(|value| value < *bound),
        }
    }
}

impl std::str::FromStr for LabelSelector {
    type Err = ApiError;

    fn from_str(text: &str) -> Result<LabelSelector, ApiError> {
        parse::selector(text)
            .map(LabelSelector::sorted)
            .map_err(|message| ApiError::new(Reason::BadRequest, message))
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Requirement { key, test }) in self.requirements.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            match test {
                Test::Exists => write!(f, "{key}")?,
                Test::Missing => write!(f, "!{key}")?,
                Test::Equals(value) => write!(f, "{key}={value}")?,
                Test::NotEquals(value) => write!(f, "{key}!={value}")?,
                Test::In(values) => write!(f, "{key} in ({})", values.join(","))?,
                Test::NotIn(values) => write!(f, "{key} notin ({})", values.join(","))?,
                Test::GreaterThan(bound) => write!(f, "{key}>{bound}")?,
                Test::LessThan(bound) => write!(f, "{key}<{bound}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
