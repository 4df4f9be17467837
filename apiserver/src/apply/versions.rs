//! An object in the versions that its managers wrote it in.
//!
//! Managers of other versions own fields of those versions. Where only a webhook knows how an object looks in
//! them, the thinking stops and says what it has to know; whoever called it asks, and has it think again.
//!
//! The one invariant: what was asked once is known from then on, so thinking again always ends.

use std::collections::BTreeMap;

use serde_json::Value;

use super::compare::Difference;
use super::set::FieldSet;
use super::shape::Type;
use crate::schema::Schema;

/// What one has to know to go on: the object in that version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the object in version {api_version} is not known")]
pub struct Unknown {
    pub object: Value,
    pub api_version: String,
}

/// The other versions of a kind, and what is known of an object in them. The default knows none: all
/// versions have the same fields.
#[derive(Debug, Default)]
pub struct Versions<'a> {
    others: Vec<(String, &'a Schema)>,
    known: Vec<(Unknown, Value)>,
}

impl<'a> Versions<'a> {
    /// For a kind whose versions differ: all but the one that is written in.
    pub fn differing(others: Vec<(String, &'a Schema)>) -> Versions<'a> {
        Versions { others, known: Vec::new() }
    }

    pub fn learn(&mut self, asked: Unknown, answer: Value) {
        self.known.push((asked, answer));
    }

    /// How objects of a version are typed, if that is another one.
    pub(crate) fn type_in(&self, api_version: &str) -> Option<Type<'a>> {
        let other = self.others.iter().find(|(name, _)| name == api_version);
        other.map(|(_, schema)| Type::Object(schema.root()))
    }

    /// The object in a version.
    pub(crate) fn show(&self, object: &Value, api_version: &str) -> Result<Value, Unknown> {
        if self.others.is_empty() || object["apiVersion"] == api_version {
            return Ok(object.clone());
        }
        let asked =
            |known: &&(Unknown, Value)| known.0.api_version == api_version && known.0.object == *object;
        match self.known.iter().find(asked) {
            Some((_, answer)) => Ok(answer.clone()),
            None => Err(Unknown { object: object.clone(), api_version: api_version.to_owned() }),
        }
    }
}

/// What a write sets and what it removes, as managers of any version see it.
pub(crate) struct Changes<'a> {
    old: &'a Value,
    new: &'a Value,
    versions: &'a Versions<'a>,
    own: Seen,
    elsewhere: BTreeMap<String, Seen>,
}

#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) set: FieldSet,
    pub(crate) removed: FieldSet,
}

impl From<Difference> for Seen {
    fn from(mut change: Difference) -> Seen {
        let set = change.take_set();
        Seen { set, removed: change.removed }
    }
}

impl<'a> Changes<'a> {
    /// `change` is how the objects differ in the version of the write.
    pub(crate) fn new(
        (old, new): (&'a Value, &'a Value),
        change: Difference,
        versions: &'a Versions<'a>,
    ) -> Changes<'a> {
        Changes { old, new, versions, own: change.into(), elsewhere: BTreeMap::new() }
    }

    pub(crate) fn seen_in(&mut self, api_version: &str) -> Result<&Seen, Unknown> {
        let Some(of) = self.versions.type_in(api_version) else { return Ok(&self.own) };
        if !self.elsewhere.contains_key(api_version) {
            let old = self.versions.show(self.old, api_version)?;
            let new = self.versions.show(self.new, api_version)?;
            let seen = Difference::between(&old, &new, of).into();
            self.elsewhere.insert(api_version.to_owned(), seen);
        }
        Ok(&self.elsewhere[api_version])
    }

    pub(crate) fn into_own(self) -> Seen {
        self.own
    }
}
