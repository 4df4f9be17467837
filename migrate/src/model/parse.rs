//! Reads models from TOML, with every name checked.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::shape::Shape;
use super::{Field, Fields, Kind, Many, Model, Models, Rows};
use crate::migration::{is_reserved, is_table};
use crate::record::Table;

/// What can be wrong with a file of models.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("read {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },

    #[error("{}: not a file of models", path.display())]
    Syntax { path: PathBuf, source: Box<toml::de::Error> },

    #[error("{}: {place}: {problem}", path.display())]
    Field { path: PathBuf, place: String, problem: String },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    release: String,
    #[serde(default)]
    table: BTreeMap<String, WrittenModel>,
    #[serde(default)]
    embedded: BTreeMap<String, WrittenEmbedded>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenModel {
    model: Option<String>,
    max: Option<u64>,
    #[serde(default)]
    counter: bool,
    #[serde(default)]
    fields: BTreeMap<String, WrittenField>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenEmbedded {
    fields: BTreeMap<String, WrittenField>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenField {
    r#type: Option<String>,
    one_of: Option<Vec<String>>,
    reference: Option<String>,
    embedded: Option<String>,
    #[serde(default)]
    list: bool,
    #[serde(default)]
    map: bool,
    max: Option<u64>,
    #[serde(default)]
    required: bool,
    default: Option<Value>,
}

/// Where something is wrong, and what.
type Wrong = (String, String);

impl Models {
    pub fn read(path: &Path) -> Result<Models, ModelError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ModelError::Read { path: path.to_owned(), source })?;
        Models::parse(path, &text)
    }

    pub fn parse(path: &Path, text: &str) -> Result<Models, ModelError> {
        let written: Written = toml::from_str(text)
            .map_err(|source| ModelError::Syntax { path: path.to_owned(), source: Box::new(source) })?;
        let wrong = |(place, problem)| ModelError::Field { path: path.to_owned(), place, problem };
        let mut models = Models {
            release: written.release,
            tables: BTreeMap::new(),
            embedded: BTreeMap::new(),
            source: text.to_owned(),
        };
        for (name, embedded) in written.embedded {
            let fields = fields(&format!("embedded.{name}"), embedded.fields).map_err(wrong)?;
            models.embedded.insert(name, fields);
        }
        for (name, model) in written.table {
            let table = Table::new(&name);
            models.tables.insert(table, of_table(&name, model).map_err(wrong)?);
        }
        check_names(&models).map_err(wrong)?;
        check_depth(&models).map_err(wrong)?;
        check_defaults(&models).map_err(wrong)?;
        Ok(models)
    }
}

fn of_table(name: &str, written: WrittenModel) -> Result<Model, Wrong> {
    let place = format!("table.{name}");
    if !is_table(name) {
        return Err((place, "may hold only letters, digits, '_' and '-'".to_owned()));
    }
    if is_reserved(&Table::new(name)) {
        return Err((place, "is kept by the tool itself".to_owned()));
    }
    let rows = match (written.counter, written.fields.is_empty()) {
        (true, true) => Rows::Counter,
        (true, false) => return Err((place, "a counter has no fields".to_owned())),
        (false, true) => return Err((place, "has no fields, and is no counter".to_owned())),
        (false, false) => Rows::Object(fields(&place, written.fields)?),
    };
    Ok(Model { name: written.model.unwrap_or_else(|| name.to_owned()), max: written.max, rows })
}

fn fields(place: &str, written: BTreeMap<String, WrittenField>) -> Result<Fields, Wrong> {
    if written.len() > Fields::MOST {
        return Err((place.to_owned(), format!("has more than {} fields", Fields::MOST)));
    }
    let fields = written.into_iter().map(|(name, field)| {
        let field = of_field(field).map_err(|problem| (format!("{place}.fields.{name}"), problem))?;
        Ok((name, field))
    });
    fields.collect::<Result<_, _>>().map(Fields)
}

fn of_field(written: WrittenField) -> Result<Field, String> {
    let WrittenField { r#type, one_of, reference, embedded, list, map, max, required, default } = written;
    let kind = match (r#type.as_deref(), one_of, reference, embedded) {
        (Some("any"), None, None, None) => Kind::Any,
        (Some("string"), None, None, None) => Kind::String,
        (Some("integer"), None, None, None) => Kind::Integer,
        (Some("number"), None, None, None) => Kind::Number,
        (Some("bool"), None, None, None) => Kind::Bool,
        (Some("ip"), None, None, None) => Kind::Ip,
        (Some("cidr"), None, None, None) => Kind::Cidr,
        (Some("mac"), None, None, None) => Kind::Mac,
        (Some(other), None, None, None) => {
            let known = "any, string, integer, number, bool, ip, cidr, mac";
            return Err(format!("there is no type {other:?}; there are {known}"));
        }
        (None, Some(values), None, None) => Kind::OneOf(values),
        (None, None, Some(table), None) => Kind::Reference(Table::new(table)),
        (None, None, None, Some(name)) => Kind::Embedded(name),
        _ => return Err("takes one of `type`, `one_of`, `reference` and `embedded`".to_owned()),
    };
    let many = match (list, map) {
        (false, false) if max.is_some() => return Err("`max` is for lists and maps".to_owned()),
        (false, false) => Many::One,
        (true, false) => Many::List { max },
        (false, true) if matches!(kind, Kind::Embedded(_)) => {
            return Err("a map holds no embedded models; make it a list".to_owned());
        }
        (false, true) => Many::Map { max },
        (true, true) => return Err("is either a list or a map".to_owned()),
    };
    Ok(Field { kind, many, required, default })
}

/// Every set of fields, and where it stands in the file.
fn places(models: &Models) -> impl Iterator<Item = (String, &Fields)> {
    let tables = models.tables.iter().filter_map(|(table, model)| match &model.rows {
        Rows::Counter => None,
        Rows::Object(fields) => Some((format!("table.{table}"), fields)),
    });
    tables.chain(models.embedded.iter().map(|(name, fields)| (format!("embedded.{name}"), fields)))
}

fn check_names(models: &Models) -> Result<(), Wrong> {
    for (place, fields) in places(models) {
        for (name, field) in fields.iter() {
            let place = format!("{place}.fields.{name}");
            match &field.kind {
                Kind::Reference(table) if !models.tables.contains_key(table) => {
                    return Err((place, format!("there is no table {table}")));
                }
                Kind::Embedded(other) if !models.embedded.contains_key(other) => {
                    return Err((place, format!("there is no embedded model {other}")));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// Embedded models that hold themselves would have no end.
fn check_depth(models: &Models) -> Result<(), Wrong> {
    fn reaches(models: &Models, from: &str, wanted: &str, left: usize) -> bool {
        let inner = models.embedded[from].iter().filter_map(|(_, field)| match &field.kind {
            Kind::Embedded(name) => Some(name.as_str()),
            _ => None,
        });
        left > 0 && inner.into_iter().any(|name| name == wanted || reaches(models, name, wanted, left - 1))
    }
    match models.embedded.keys().find(|name| reaches(models, name, name, models.embedded.len())) {
        Some(name) => Err((format!("embedded.{name}"), "holds itself".to_owned())),
        None => Ok(()),
    }
}

fn check_defaults(models: &Models) -> Result<(), Wrong> {
    for (place, fields) in places(models) {
        for (name, field) in fields.iter() {
            let Some(default) = &field.default else { continue };
            if let Err(problem) = Shape::new(models).check(field, default) {
                return Err((format!("{place}.fields.{name}"), format!("its default: {problem}")));
            }
        }
    }
    Ok(())
}
