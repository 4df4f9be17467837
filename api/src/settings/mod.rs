//! Settings: what values they may have, checked the same way everywhere.
//!
//! The invariant: [`check`] and the rules that [`rules`] writes into the schema
//! of Setting accept the same values; both read [`TABLE`].

mod rules;
mod table;

use std::collections::BTreeMap;

pub(crate) use rules::rules;
pub use table::TABLE;

use crate::longhorn::DataEngine;

/// The setting that turns automatic engine upgrades on: how many volumes of a node may be on their way at once.
pub const ENGINE_UPGRADE_LIMIT: &str = "concurrent-automatic-engine-upgrade-per-node-limit";

/// Longest value of a setting.
pub const MAX_LENGTH: usize = 1024;

/// What a setting's value may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `true` or `false`.
    Switch,
    /// A whole number in this range.
    Number { min: u32, max: u32 },
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Reference of an image.
    Image,
    /// A switch for all data engines, or JSON with one for each: `{"v1":"true","v2":"false"}`.
    SwitchPerEngine,
    /// A number for all data engines, or JSON with one for each: `{"v1":"8","v2":"8"}`.
    NumberPerEngine { min: u32, max: u32 },
}

/// One setting.
#[derive(Debug, Clone, Copy)]
pub struct Definition {
    pub name: &'static str,
    pub format: Format,
    pub default: &'static str,
    /// Whether anything here does what it says; the others are kept for those who set them.
    pub acted_on: bool,
    /// Whether Longhorn sets it itself where it runs, so that nobody else may.
    pub read_only_with_longhorn: bool,
    pub description: &'static str,
}

/// Why a setting is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("there is no setting {0:?}; `kubectl -n longhorn-system get settings` lists those there are")]
    Unknown(String),
    #[error("{name} must be {allowed}, not {value:?}")]
    Value { name: &'static str, allowed: String, value: String },
}

/// The definition of a setting.
pub fn find(name: &str) -> Option<&'static Definition> {
    TABLE.iter().find(|definition| definition.name == name)
}

/// Whether a setting may have this value, and what it may have otherwise.
pub fn check(name: &str, value: &str) -> Result<&'static Definition, Refused> {
    let definition = find(name).ok_or_else(|| Refused::Unknown(name.into()))?;
    if definition.format.accepts(value) {
        return Ok(definition);
    }
    Err(Refused::Value { name: definition.name, allowed: definition.format.to_string(), value: value.into() })
}

/// The number that a value of [`Format::NumberPerEngine`] has for a data engine, if it has one.
pub fn number_for(value: &str, engine: DataEngine) -> Option<u64> {
    value.parse().ok().or_else(|| {
        let per_engine: BTreeMap<String, String> = serde_json::from_str(value).ok()?;
        per_engine.get(engine.as_str())?.parse().ok()
    })
}

impl Format {
    /// Whether a value has this format.
    pub fn accepts(self, value: &str) -> bool {
        match self {
            Format::Switch => is_switch(value),
            Format::Number { min, max } => is_number(value, min, max),
            Format::Choice(words) => words.contains(&value),
            Format::Image => is_image(value),
            Format::SwitchPerEngine => is_switch(value) || per_engine(value, is_switch),
            Format::NumberPerEngine { min, max } => {
                let within = |value: &str| is_number(value, min, max);
                within(value) || per_engine(value, within)
            }
        }
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Format::Switch => f.write_str("true or false"),
            Format::Number { min, max } => write!(f, "a whole number from {min} to {max}"),
            Format::Choice(words) => write!(f, "one of {}", words.join(", ")),
            Format::Image => f.write_str("the reference of an image, such as midflight.local/engine:v1"),
            Format::SwitchPerEngine => {
                f.write_str(r#"true or false, or one for each data engine as {"v1":"true","v2":"false"}"#)
            }
            Format::NumberPerEngine { min, max } => {
                write!(
                    f,
                    r#"a whole number from {min} to {max}, or one for each data engine as {{"v1":"{min}","v2":"{min}"}}"#
                )
            }
        }
    }
}

fn is_switch(value: &str) -> bool {
    matches!(value, "true" | "false")
}

fn is_number(value: &str, min: u32, max: u32) -> bool {
    let digits = value.len() <= 9 && value.bytes().all(|byte| byte.is_ascii_digit());
    digits && value.parse().is_ok_and(|number: u32| (min..=max).contains(&number))
}

fn is_image(value: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._/:@-".contains(&byte);
    value.len() <= 512
        && value.bytes().all(allowed)
        && value.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
}

/// Whether a value is a JSON object of `v1`, `v2` or both, each with a string
/// that is fine. Escapes are refused: no value here needs one.
fn per_engine(value: &str, fine: impl Fn(&str) -> bool) -> bool {
    let blank = [' ', '\t', '\n', '\r'];
    let unquoted = |text: &str| -> Option<String> {
        let inner = text.trim_matches(blank).strip_prefix('"')?.strip_suffix('"')?;
        (!inner.contains(['"', '\\'])).then(|| inner.to_owned())
    };
    let entry = |text: &str| -> Option<String> {
        let (engine, value) = text.split_once(':')?;
        fine(&unquoted(value)?).then(|| unquoted(engine)).flatten()
    };
    let Some(inner) = value.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) else {
        return false;
    };
    let engines: Option<Vec<String>> = inner.split(',').map(entry).collect();
    let mut engines = engines.unwrap_or_default();
    engines.sort();
    matches!(engines.iter().map(String::as_str).collect::<Vec<_>>()[..], ["v1"] | ["v2"] | ["v1", "v2"])
}

#[cfg(test)]
mod tests;
