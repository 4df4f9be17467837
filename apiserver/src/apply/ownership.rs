//! How ownership moves with each write.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::compare::{Difference, fields_of};
use super::managed::{Managed, ManagerId, Operation, Owned};
use super::merge::{merge, remove, settle, with_named_parents};
use super::set::FieldSet;
use super::shape::Type;
use super::versions::{Changes, Seen, Unknown, Versions};
use super::{Conflict, Writer};

/// Update managers beyond this many are merged into one, oldest first.
const MAX_UPDATERS: usize = 10;

/// The manager that stands for the oldest updates.
const ANCIENT: &str = "ancient-changes";

/// Fields that belong to the server or name the object; nobody owns them.
const NEVER_OWNED: &[&[&str]] = &[
    &["apiVersion"],
    &["kind"],
    &["metadata"],
    &["metadata", "name"],
    &["metadata", "namespace"],
    &["metadata", "creationTimestamp"],
    &["metadata", "selfLink"],
    &["metadata", "uid"],
    &["metadata", "clusterName"],
    &["metadata", "generation"],
    &["metadata", "managedFields"],
    &["metadata", "resourceVersion"],
];

static NEVER_OWNED_SET: LazyLock<FieldSet> = LazyLock::new(|| FieldSet::of_fields(NEVER_OWNED));

/// Moves what a plain write changed to its writer.
pub(crate) fn update(
    managed: &mut Managed,
    (live, new): (&Value, &Value),
    writer: &Writer<'_>,
    of: Type<'_>,
    versions: &Versions<'_>,
) -> Result<(), Unknown> {
    managed.settle(of, versions);
    let mut change = Difference::between(live, new, of);
    change.ignore(&FieldSet::of_fields(writer.resets));
    if change.is_empty() {
        return Ok(());
    }
    let mut changes = Changes::new((live, new), change, versions);
    for owned in managed.entries.values_mut() {
        owned.lose(changes.seen_in(&owned.version)?);
    }
    managed.forget_empty();
    let mut set = changes.into_own().set;
    set.subtract(&NEVER_OWNED_SET);
    if !set.is_empty() {
        let id = ManagerId::new(writer.name(), Operation::Update, writer.api_version, writer.subresource);
        let owned = managed.entries.entry(id).or_insert_with(|| Owned::none(writer));
        owned.fields.add(set);
        owned.time = writer.now.map(str::to_owned);
    }
    managed.cap_updaters();
    Ok(())
}

/// What an apply yields.
pub(crate) struct Applied {
    pub(crate) object: Value,
    /// Whether the object differs from the live one.
    pub(crate) changed: bool,
}

/// A configuration to lay over an object, neither with managedFields.
#[derive(Clone, Copy)]
pub(crate) struct Attempt<'a> {
    pub(crate) live: &'a Value,
    pub(crate) config: &'a Value,
    pub(crate) writer: Writer<'a>,
    pub(crate) of: Type<'a>,
    pub(crate) versions: &'a Versions<'a>,
}

/// Lays a configuration over the live object, takes away what the manager no
/// longer applies, and moves ownership; or says who stands in the way.
pub(crate) fn apply(
    managed: &mut Managed,
    attempt: Attempt<'_>,
    force: bool,
) -> Result<Result<Applied, Vec<Conflict>>, Unknown> {
    let Attempt { live, config, writer, of, versions } = attempt;
    managed.settle(of, versions);
    let id = ManagerId::new(writer.name(), Operation::Apply, writer.api_version, writer.subresource);
    let last = managed.entries.get(&id).cloned();
    let mut set = fields_of(config, of);
    let resets = FieldSet::of_fields(writer.resets);
    set.subtract_trees(&resets);
    let time = managed.entries.get(&id).and_then(|owned| owned.time.clone());
    let applied = Owned { fields: set, version: writer.api_version.to_owned(), time };
    managed.entries.insert(id.clone(), applied);

    let merged = merge(live, config, of);
    let object = match last {
        Some(last) if last.fields.is_empty() => merged,
        Some(last) if managed.speaks_of_others(&last, versions) => {
            without_dropped_across(&merged, &last, managed, attempt)?
        }
        Some(last) => without_dropped(&merged, &last.fields, managed, of),
        None => merged,
    };

    let mut change = Difference::between(live, &object, of);
    let changed = !change.is_empty() || *live != object;
    change.ignore(&resets);
    let mut changes = Changes::new((live, &object), change, versions);
    let mut conflicts = Vec::new();
    for (other, owned) in managed.entries.iter().filter(|(other, _)| **other != id) {
        let paths = owned.fields.intersection(&changes.seen_in(&owned.version)?.set).paths();
        conflicts.extend(paths.into_iter().map(|path| Conflict { manager: other.describe(), path }));
    }
    if !force && !conflicts.is_empty() {
        return Ok(Err(conflicts));
    }
    for (other, owned) in &mut managed.entries {
        if *other != id {
            owned.lose(changes.seen_in(&owned.version)?);
        }
    }
    if let Some(owned) = managed.entries.get_mut(&id) {
        owned.fields.subtract(&NEVER_OWNED_SET);
        if changed {
            owned.time = writer.now.map(str::to_owned);
        }
    }
    managed.forget_empty();
    Ok(Ok(Applied { object, changed }))
}

/// The merged object without what the manager applied last time, does not
/// apply now, and nobody else owns.
fn without_dropped(merged: &Value, last: &FieldSet, managed: &Managed, of: Type<'_>) -> Value {
    let without = |fields: &FieldSet| remove(merged, fields, of).unwrap_or_else(|| Value::Object(Map::new()));
    let named = |fields: &FieldSet| with_named_parents(fields, of);
    let last = named(last);
    let owned = managed.entries.values().fold(FieldSet::default(), |all, owned| all.union(&owned.fields));
    let owned = named(&owned);
    let merged_fields = named(&fields_of(merged, of));

    let mut gone = merged_fields.clone();
    gone.subtract(&named(&fields_of(&without(&last), of)).union(&owned));
    let mut dropped = merged_fields;
    dropped.subtract(&named(&fields_of(&without(&gone), of)));
    let mut dropped = dropped.intersection(&last);
    dropped.subtract(&owned);
    if dropped.is_empty() { merged.clone() } else { without(&dropped) }
}

/// The same where managers wrote in other versions: each says in its own which fields it wants to stay.
fn without_dropped_across(
    merged: &Value,
    last: &Owned,
    managed: &Managed,
    attempt: Attempt<'_>,
) -> Result<Value, Unknown> {
    let Attempt { writer, of, versions, .. } = attempt;
    let typed = |version: &str| versions.type_in(version).unwrap_or(of);
    let without = |value: &Value, fields: &FieldSet, of: Type<'_>| {
        let mut left = remove(value, fields, of).unwrap_or_else(|| Value::Object(Map::new()));
        left["apiVersion"] = value["apiVersion"].clone();
        left["kind"] = value["kind"].clone();
        left
    };
    let fields = |value: &Value, of: Type<'_>| with_named_parents(&fields_of(value, of), of);
    let home = last.version.as_str();
    let applied_last = with_named_parents(&last.fields, typed(home));
    let whole = versions.show(merged, home)?;
    let (mut all, mut kept) = (whole.clone(), without(&whole, &applied_last, typed(home)));

    // In the version of the last apply first, for the sake of fields that conversion cannot do without.
    let others = managed.entries.values().map(|owned| owned.version.as_str()).filter(|other| *other != home);
    for version in std::iter::once(home).chain(others.collect::<BTreeSet<_>>()) {
        let of = typed(version);
        let here = managed.entries.values().filter(|owned| owned.version == version);
        let owned = here.fold(FieldSet::default(), |sum, owned| sum.union(&owned.fields));
        (all, kept) = (versions.show(&all, version)?, versions.show(&kept, version)?);
        let mut gone = fields(&all, of);
        gone.subtract(&fields(&kept, of).union(&with_named_parents(&owned, of)));
        kept = without(&all, &gone, of);
    }
    let mut dropped = fields(&whole, typed(home));
    dropped.subtract(&fields(&versions.show(&kept, home)?, typed(home)));
    let dropped = dropped.intersection(&applied_last);
    versions.show(&without(&whole, &dropped, typed(home)), writer.api_version)
}

impl Owned {
    /// Gives up what a write has set or removed.
    fn lose(&mut self, change: &Seen) {
        self.fields.subtract(&change.set);
        self.fields.subtract(&change.removed);
    }

    fn none(writer: &Writer<'_>) -> Owned {
        Owned { fields: FieldSet::default(), version: writer.api_version.to_owned(), time: None }
    }
}

impl Managed {
    fn settle(&mut self, of: Type<'_>, versions: &Versions<'_>) {
        for owned in self.entries.values_mut() {
            settle(&mut owned.fields, versions.type_in(&owned.version).unwrap_or(of));
        }
    }

    /// Whether any of this is about fields of another version.
    fn speaks_of_others(&self, last: &Owned, versions: &Versions<'_>) -> bool {
        let mut all = self.entries.values().chain([last]);
        all.any(|owned| versions.type_in(&owned.version).is_some())
    }

    fn forget_empty(&mut self) {
        self.entries.retain(|_, owned| !owned.fields.is_empty());
    }

    /// Merges the oldest updates of a version into one entry while there are too many.
    fn cap_updaters(&mut self) {
        let mut updaters: Vec<(Option<String>, ManagerId)> = self
            .entries
            .iter()
            .filter(|(id, _)| id.operation == Operation::Update)
            .map(|(id, owned)| (owned.time.clone(), id.clone()))
            .collect();
        let mut excess = updaters.len().saturating_sub(MAX_UPDATERS);
        if excess == 0 {
            return;
        }
        updaters.sort();
        let mut first_of: std::collections::BTreeMap<String, ManagerId> = Default::default();
        for (time, id) in updaters {
            if excess == 0 {
                return;
            }
            let version = self.entries[&id].version.clone();
            let bucket = ManagerId::new(ANCIENT, Operation::Update, &version, "");
            let Some(first) = first_of.get(&version) else {
                first_of.insert(version, id);
                continue;
            };
            if !self.entries.contains_key(&bucket) {
                let owned = self.entries.remove(first).expect("the first updater of a version is kept");
                self.entries.insert(bucket.clone(), owned);
            }
            if id != bucket {
                let owned = self.entries.remove(&id).expect("an updater is merged once");
                let into = self.entries.get_mut(&bucket).expect("the bucket was made above");
                into.fields.add(owned.fields);
                into.time = time;
                excess -= 1;
            }
        }
    }
}
