//! What changes between two releases of models: what can be done without a
//! script, and what cannot.
//!
//! The one invariant: nothing that is stored gets lost or misread by an
//! automatic step. A field or table that is gone needs a migration that says
//! where its content went.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;
use serde_json::Value;

use super::{Field, Fields, Kind, Many, Models, Rows};
use crate::northbound::{NorthBound, Object, TouchError, Verdict};
use crate::record::{Snapshot, Table};

/// A change that needs no script.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "step", rename_all = "camelCase")]
pub enum Step {
    AddTable {
        table: Table,
    },
    /// Objects that lack the field are given its default, where it has one.
    AddField {
        table: Table,
        /// Names of the field and of those it lies in, outermost first.
        path: Vec<String>,
        default: Option<Value>,
    },
    /// What the objects of the table were before is not known: fields with a default are given it
    /// wherever they are missing.
    FillMissing {
        table: Table,
        fields: Vec<(Vec<String>, Value)>,
    },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::AddTable { table } => write!(f, "{table}: the table is new"),
            Step::AddField { table, path, default: Some(default) } => {
                write!(
                    f,
                    "{table}.{}: the field is new, and is {default} where it is missing",
                    path.join(".")
                )
            }
            Step::AddField { table, path, default: None } => {
                write!(f, "{table}.{}: the field is new, and may be missing", path.join("."))
            }
            Step::FillMissing { table, .. } => write!(
                f,
                "{table}: the models of before are not known, so fields that have a default are given it where they are missing"
            ),
        }
    }
}

/// A change that no pending migration takes care of.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error(
        "{table}: the table is gone from the models, and no pending migration declares it; \
         write one that moves or removes its rows"
    )]
    RemovedTable { table: Table },

    #[error(
        "{table}.{field}: the field is gone from the models, and no pending migration declares {table}; \
         write one that moves or removes what it holds"
    )]
    RemovedField { table: Table, field: String },

    #[error(
        "{table}.{field}: was {before} and is {after}, and no pending migration declares {table}; \
         write one that turns one into the other"
    )]
    OtherKind { table: Table, field: String, before: String, after: String },

    #[error(
        "{table}.{field}: the field is new and required, has no default, and no pending migration declares {table}; \
         give it a default or write a migration"
    )]
    NewRequired { table: Table, field: String },
}

impl Serialize for Refusal {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// How two releases of models differ.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Difference {
    pub steps: Vec<Step>,
    pub refusals: Vec<Refusal>,
}

/// Works out what is to be done between `old` and `new`. Tables in `scripted`
/// are declared by a pending migration, which is trusted with what changes
/// there; what it leaves behind is found when the result is validated.
pub fn diff(old: &Models, new: &Models, scripted: &BTreeSet<Table>) -> Difference {
    let mut found = Difference::default();
    for (table, model) in &new.tables {
        match (old.tables.get(table).map(|model| &model.rows), &model.rows) {
            (None, _) => found.steps.push(Step::AddTable { table: table.clone() }),
            (Some(Rows::Object(before)), Rows::Object(after)) => {
                let mut walk =
                    Walk { old, new, table, found: &mut found, scripted: scripted.contains(table) };
                walk.fields(&mut vec![], before, after);
            }
            (Some(before), after) if before == after => {}
            (Some(_), _) if scripted.contains(table) => {}
            (Some(before), after) => found.refusals.push(Refusal::OtherKind {
                table: table.clone(),
                field: "*".to_owned(),
                before: of_rows(before),
                after: of_rows(after),
            }),
        }
    }
    let gone =
        old.tables.keys().filter(|table| !new.tables.contains_key(*table) && !scripted.contains(*table));
    found.refusals.extend(gone.map(|table| Refusal::RemovedTable { table: table.clone() }));
    found
}

/// What is to be done where the models of before are not known. What is gone from the models is found
/// when the result is validated.
pub fn diff_from_unknown(new: &Models) -> Difference {
    let mut found = Difference::default();
    for (table, model) in &new.tables {
        let Rows::Object(fields) = &model.rows else { continue };
        let mut with_default = vec![];
        defaults(new, fields, &mut vec![], &mut with_default);
        if !with_default.is_empty() {
            found.steps.push(Step::FillMissing { table: table.clone(), fields: with_default });
        }
    }
    found
}

fn defaults(models: &Models, fields: &Fields, path: &mut Vec<String>, found: &mut Vec<(Vec<String>, Value)>) {
    for (name, field) in fields.iter() {
        path.push(name.to_owned());
        if let Some(default) = &field.default {
            found.push((path.clone(), default.clone()));
        }
        if let (Kind::Embedded(inner), Many::One | Many::List { .. }) = (&field.kind, field.many) {
            defaults(models, &models.embedded[inner], path, found);
        }
        path.pop();
    }
}

struct Walk<'a> {
    old: &'a Models,
    new: &'a Models,
    table: &'a Table,
    found: &'a mut Difference,
    scripted: bool,
}

impl Walk<'_> {
    fn fields(&mut self, path: &mut Vec<String>, before: &Fields, after: &Fields) {
        for (name, field) in after.iter() {
            path.push(name.to_owned());
            match before.get(name) {
                Some(was) => self.field(path, was, field),
                None => self.added(path, field),
            }
            path.pop();
        }
        if self.scripted {
            return;
        }
        for (name, _) in before.iter().filter(|(name, _)| after.get(name).is_none()) {
            let field = [path.as_slice(), &[name.to_owned()]].concat().join(".");
            self.found.refusals.push(Refusal::RemovedField { table: self.table.clone(), field });
        }
    }

    fn field(&mut self, path: &mut Vec<String>, before: &Field, after: &Field) {
        let alike = std::mem::discriminant(&before.many) == std::mem::discriminant(&after.many);
        match (&before.kind, &after.kind) {
            (Kind::Embedded(was), Kind::Embedded(is)) if alike => {
                let (was, is) = (self.old.embedded[was].clone(), self.new.embedded[is].clone());
                self.fields(path, &was, &is);
            }
            (was, is) if alike && (was == is || widens(was, is)) => {}
            _ if self.scripted => {}
            _ => self.found.refusals.push(Refusal::OtherKind {
                table: self.table.clone(),
                field: path.join("."),
                before: of_field(before),
                after: of_field(after),
            }),
        }
    }

    fn added(&mut self, path: &[String], field: &Field) {
        if field.required && field.default.is_none() {
            if !self.scripted {
                let field = path.join(".");
                self.found.refusals.push(Refusal::NewRequired { table: self.table.clone(), field });
            }
            return;
        }
        let step =
            Step::AddField { table: self.table.clone(), path: path.to_vec(), default: field.default.clone() };
        self.found.steps.push(step);
    }
}

/// Whether every value of the one is also a value of the other.
fn widens(before: &Kind, after: &Kind) -> bool {
    match (before, after) {
        (_, Kind::Any) => true,
        (Kind::Integer, Kind::Number) => true,
        (Kind::Ip | Kind::Cidr | Kind::Mac | Kind::OneOf(_) | Kind::Reference(_), Kind::String) => true,
        (Kind::OneOf(before), Kind::OneOf(after)) => before.iter().all(|value| after.contains(value)),
        _ => false,
    }
}

fn of_rows(rows: &Rows) -> String {
    match rows {
        Rows::Counter => "a counter".to_owned(),
        Rows::Object(_) => "objects".to_owned(),
    }
}

fn of_field(field: &Field) -> String {
    let kind = match &field.kind {
        Kind::Any => "any".to_owned(),
        Kind::String => "string".to_owned(),
        Kind::Integer => "integer".to_owned(),
        Kind::Number => "number".to_owned(),
        Kind::Bool => "bool".to_owned(),
        Kind::Ip => "ip".to_owned(),
        Kind::Cidr => "cidr".to_owned(),
        Kind::Mac => "mac".to_owned(),
        Kind::OneOf(values) => format!("one of {}", values.join(", ")),
        Kind::Reference(table) => format!("reference to {table}"),
        Kind::Embedded(name) => format!("embedded {name}"),
    };
    match field.many {
        Many::One => kind,
        Many::List { .. } => format!("list of {kind}"),
        Many::Map { .. } => format!("map of {kind}"),
    }
}

/// Carries the automatic steps out. Objects that have a field already keep it.
pub fn fill(database: &mut Snapshot, steps: &[Step]) -> Result<(), TouchError> {
    let mut by_table: BTreeMap<&Table, Vec<(&[String], &Value)>> = BTreeMap::new();
    for step in steps {
        match step {
            Step::AddTable { .. } | Step::AddField { default: None, .. } => {}
            Step::AddField { table, path, default: Some(default) } => {
                by_table.entry(table).or_default().push((path, default));
            }
            Step::FillMissing { table, fields } => {
                let fields = fields.iter().map(|(path, default)| (path.as_slice(), default));
                by_table.entry(table).or_default().extend(fields);
            }
        }
    }
    for (table, fields) in by_table {
        let mut north_bound = NorthBound::new(database, std::slice::from_ref(table));
        north_bound.edit_all(table, |_, object| {
            for (path, default) in &fields {
                add(object, path, default);
            }
            Verdict::Keep
        })?;
    }
    Ok(())
}

fn add(object: &mut Object, path: &[String], default: &Value) {
    let [name, inner @ ..] = path else { return };
    if inner.is_empty() {
        object.entry(name).or_insert_with(|| default.clone());
        return;
    }
    match object.get_mut(name) {
        Some(Value::Object(embedded)) => add(embedded, inner, default),
        Some(Value::Array(items)) => {
            for item in items.iter_mut().filter_map(Value::as_object_mut) {
                add(item, inner, default);
            }
        }
        _ => {}
    }
}
