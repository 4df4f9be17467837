//! The table of settings as rules of a schema.
//!
//! The invariant: each format is one rule, whose names are those of the table.

use serde_json::Value;

use super::{Definition, Format, TABLE};
use crate::names::IMAGE;
use crate::wire::rule;

const BLANK: &str = r"[ \\t\\n\\r]*";

/// The rules of the Setting kind: known names only, and each value in its format.
pub(crate) fn rules() -> Vec<Value> {
    let known = rule(
        &format!("self.metadata.name in {}", names(TABLE.iter())),
        "there is no such setting; `kubectl -n longhorn-system get settings` lists those there are",
    );
    let mut formats: Vec<Format> = Vec::new();
    for definition in TABLE {
        if !formats.contains(&definition.format) {
            formats.push(definition.format);
        }
    }
    let values = formats.into_iter().map(|format| {
        let names = names(TABLE.iter().filter(|definition| definition.format == format));
        rule(
            &format!("!(self.metadata.name in {names}) || {}", expression(format)),
            &format!("value must be {format}"),
        )
    });
    std::iter::once(known).chain(values).collect()
}

/// [`Format::accepts`] in CEL.
fn expression(format: Format) -> String {
    match format {
        Format::Switch => "self.value in ['true', 'false']".into(),
        Format::Number { min, max } => {
            format!(
                "(self.value.matches('^[0-9]{{1,9}}$') && int(self.value) >= {min} && int(self.value) <= {max})"
            )
        }
        Format::Choice(words) => format!("self.value in {}", list(words.iter().copied())),
        Format::Image => format!("self.value.matches('{IMAGE}')"),
        Format::SwitchPerEngine => {
            format!(
                "(self.value in ['true', 'false'] || self.value.matches('{}'))",
                per_engine("(true|false)")
            )
        }
        Format::NumberPerEngine { min, max } => format!(
            "({} || (self.value.matches('{}') && self.value.findAll('\"[0-9]+\"').all(quoted, \
             int(quoted.replace('\"', '')) >= {min} && int(quoted.replace('\"', '')) <= {max})))",
            expression(Format::Number { min, max }),
            per_engine("[0-9]{1,9}"),
        ),
    }
}

/// A pattern of the JSON object that holds a value for one data engine or both.
fn per_engine(value: &str) -> String {
    let entry = |engine: &str| format!(r#"{BLANK}"{engine}"{BLANK}:{BLANK}"{value}"{BLANK}"#);
    let (first, second) = (entry("v1"), entry("v2"));
    format!(r"^\\{{({first}(,{second})?|{second}(,{first})?)\\}}$")
}

fn names<'a>(definitions: impl Iterator<Item = &'a Definition>) -> String {
    list(definitions.map(|definition| definition.name))
}

fn list<'a>(words: impl Iterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = words.map(|word| format!("'{word}'")).collect();
    format!("[{}]", quoted.join(", "))
}
