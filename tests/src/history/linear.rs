//! Decides whether the operations on one object can be put in an order that
//! explains every answer and keeps to time (Wing and Gong's search).
//!
//! ```text
//! client 1   ├── create 1: stored ──┤
//! client 2        ├─ read: absent ─┤    ├── read: 1 ──┤      read, create, read explains all
//! ```
//!
//! An operation whose answer was cut off took place before the server died, or
//! never. Versions must grow along the order.
//!
//! The one invariant: an order is accepted only if an operation that returned
//! before another was invoked comes before it.

use std::collections::{HashMap, HashSet};

use super::record::{Action, Moment, Object, Operation, Outcome, Value, Version};

/// The largest history of one object that can be judged.
const MOST: usize = 128;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotLinearizable {
    #[error("{object} shows value {value:?} both at {first:?} and at {second:?}")]
    TwoVersions { object: Object, value: Value, first: Version, second: Version },

    #[error("no order explains what was seen of {object}")]
    NoOrder { object: Object },

    #[error("{object} has more operations than can be judged: {number}")]
    TooMany { object: Object, number: usize },
}

/// The object between two operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    value: Option<Value>,
    /// The highest version so far.
    newest: Version,
    /// The latest start of an operation that took place.
    started: Moment,
}

pub(super) fn check(object: &str, operations: &[&Operation]) -> Result<(), NotLinearizable> {
    if operations.len() > MOST {
        return Err(NotLinearizable::TooMany { object: object.to_owned(), number: operations.len() });
    }
    let mut versions: HashMap<Value, Version> = HashMap::new();
    for (version, value) in operations.iter().filter_map(|operation| operation.shows()) {
        let first = *versions.entry(value).or_insert(version);
        if first != version {
            return Err(NotLinearizable::TwoVersions {
                object: object.to_owned(),
                value,
                first,
                second: version,
            });
        }
    }
    let search = Search::new(operations, versions);
    let start = State { value: None, newest: Version(0), started: Moment(0) };
    if search.explains(0, start, &mut HashSet::new()) {
        return Ok(());
    }
    Err(NotLinearizable::NoOrder { object: object.to_owned() })
}

struct Search<'a> {
    operations: &'a [&'a Operation],
    /// Of every value that was seen, the version it was stored at.
    versions: HashMap<Value, Version>,
    values: HashMap<Version, Value>,
    /// Of every value, the operation that writes it.
    writers: HashMap<Value, usize>,
}

impl<'a> Search<'a> {
    fn new(operations: &'a [&'a Operation], versions: HashMap<Value, Version>) -> Search<'a> {
        let values = versions.iter().map(|(value, version)| (*version, *value)).collect();
        let writer =
            |(index, operation): (usize, &&Operation)| operation.action.value().map(|value| (value, index));
        let writers = operations.iter().enumerate().filter_map(writer).collect();
        Search { operations, versions, values, writers }
    }

    /// Whether the operations that are not in `done` can follow on `state`.
    fn explains(&self, done: u128, state: State, tried: &mut HashSet<(u128, State)>) -> bool {
        let open = || (0..self.operations.len()).filter(|index| done & (1 << index) == 0);
        let certain = open().filter(|&index| self.operations[index].outcome != Outcome::Unknown);
        let Some(first_return) = certain.map(|index| self.operations[index].returned).min() else {
            return true;
        };
        if open().any(|index| self.is_too_late(done, state, self.operations[index]))
            || !tried.insert((done, state))
        {
            return false;
        }
        open().any(|index| {
            let operation = self.operations[index];
            operation.invoked <= first_return
                && state.started <= operation.returned
                && self
                    .step(state, operation)
                    .is_some_and(|next| self.explains(done | (1 << index), next, tried))
        })
    }

    /// Whether an operation that certainly took place can no longer do so: its
    /// version has been passed, or what it needs to find has been overwritten.
    fn is_too_late(&self, done: u128, state: State, operation: &Operation) -> bool {
        let needs = match (operation.action, operation.outcome) {
            (_, Outcome::Stored { version }) if version <= state.newest => return true,
            (Action::Read, Outcome::Found { value, .. }) => Some(value),
            (Action::Update { expected, .. }, Outcome::Stored { .. })
            | (Action::Delete { expected: Some(expected) }, Outcome::Deleted) => {
                self.values.get(&expected).copied()
            }
            _ => None,
        };
        needs.is_some_and(|value| {
            let written = self.writers.get(&value).is_some_and(|writer| done & (1 << writer) != 0);
            written && state.value != Some(value)
        })
    }

    /// The state after the operation, if its outcome fits.
    fn step(&self, state: State, operation: &Operation) -> Option<State> {
        let stays = |fits: bool| fits.then_some(state);
        let version = state.value.and_then(|value| self.versions.get(&value).copied());
        let matches = |expected: Version| state.value.is_some() && version == Some(expected);
        let next = match (operation.action, operation.outcome) {
            (Action::Create { value }, Outcome::Stored { .. } | Outcome::Unknown) => {
                state.value.is_none().then(|| self.put(state, value))?
            }
            (Action::Create { .. }, Outcome::Exists) => stays(state.value.is_some()),
            (Action::Update { value, expected }, Outcome::Stored { .. } | Outcome::Unknown) => {
                matches(expected).then(|| self.put(state, value))?
            }
            (Action::Update { expected, .. }, Outcome::Conflict) => {
                stays(state.value.is_some() && !matches(expected))
            }
            (Action::Apply { value }, Outcome::Stored { .. } | Outcome::Unknown) => self.put(state, value),
            // It gave up against other writers; nothing happened.
            (Action::Apply { .. }, Outcome::Conflict) => Some(state),
            (Action::Delete { expected }, Outcome::Deleted | Outcome::Unknown) => {
                let fits = state.value.is_some() && expected.is_none_or(matches);
                fits.then_some(State { value: None, ..state })
            }
            (Action::Delete { expected }, Outcome::Conflict) => {
                stays(state.value.is_some() && expected.is_some_and(|expected| !matches(expected)))
            }
            (Action::Update { .. } | Action::Delete { .. } | Action::Read, Outcome::Absent) => {
                stays(state.value.is_none())
            }
            (Action::Read, Outcome::Found { value, .. }) => stays(state.value == Some(value)),
            (Action::Read, Outcome::Unknown) => Some(state),
            // Answers that make no sense for what was asked.
            (
                Action::Create { .. },
                Outcome::Deleted | Outcome::Found { .. } | Outcome::Absent | Outcome::Conflict,
            )
            | (Action::Update { .. }, Outcome::Deleted | Outcome::Found { .. } | Outcome::Exists)
            | (
                Action::Apply { .. },
                Outcome::Deleted | Outcome::Found { .. } | Outcome::Absent | Outcome::Exists,
            )
            | (Action::Delete { .. }, Outcome::Stored { .. } | Outcome::Found { .. } | Outcome::Exists)
            | (
                Action::Read,
                Outcome::Stored { .. } | Outcome::Deleted | Outcome::Exists | Outcome::Conflict,
            ) => None,
        };
        next.map(|next| State { started: state.started.max(operation.invoked), ..next })
    }

    /// The state after a write, if its version grew.
    fn put(&self, state: State, value: Value) -> Option<State> {
        // A write that nobody saw may have had any version.
        let newest = self.versions.get(&value).copied();
        let grew = newest.is_none_or(|version| version > state.newest);
        grew.then_some(State { value: Some(value), newest: newest.unwrap_or(state.newest), ..state })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(action: Action, span: (u64, u64), outcome: Outcome) -> Operation {
        Operation { object: "a".into(), action, invoked: Moment(span.0), returned: Moment(span.1), outcome }
    }

    fn create(value: u64, span: (u64, u64), outcome: Outcome) -> Operation {
        operation(Action::Create { value: Value(value) }, span, outcome)
    }

    fn update(value: u64, expected: u64, span: (u64, u64), outcome: Outcome) -> Operation {
        operation(Action::Update { value: Value(value), expected: Version(expected) }, span, outcome)
    }

    fn apply(value: u64, span: (u64, u64), outcome: Outcome) -> Operation {
        operation(Action::Apply { value: Value(value) }, span, outcome)
    }

    fn delete(span: (u64, u64), outcome: Outcome) -> Operation {
        operation(Action::Delete { expected: None }, span, outcome)
    }

    fn read(span: (u64, u64), outcome: Outcome) -> Operation {
        operation(Action::Read, span, outcome)
    }

    fn stored(version: u64) -> Outcome {
        Outcome::Stored { version: Version(version) }
    }

    fn found(version: u64, value: u64) -> Outcome {
        Outcome::Found { version: Version(version), value: Value(value) }
    }

    use Outcome::{Absent, Conflict, Deleted, Exists, Unknown};

    #[test]
    fn tells_right_from_wrong() {
        #[rustfmt::skip]
        let cases = [
            ("in order",                    true,  vec![create(1, (0, 1), stored(2)), read((2, 3), found(2, 1))]),
            ("a read beside a write, old",  true,  vec![create(1, (0, 9), stored(2)), read((2, 3), Absent)]),
            ("a read beside a write, new",  true,  vec![create(1, (0, 9), stored(2)), read((2, 3), found(2, 1))]),
            ("new, then old again",         false, vec![create(1, (0, 9), stored(2)), read((2, 3), found(2, 1)), read((4, 5), Absent)]),
            ("a lost write",                false, vec![create(1, (0, 1), stored(2)), read((2, 3), Absent)]),
            ("a stale read",                false, vec![create(1, (0, 1), stored(2)), update(2, 2, (2, 3), stored(3)), read((4, 5), found(2, 1))]),
            ("a lost update",               false, vec![create(1, (0, 1), stored(2)), update(2, 2, (2, 5), stored(3)), update(3, 2, (2, 5), stored(4))]),
            ("one swap wins",               true,  vec![create(1, (0, 1), stored(2)), update(2, 2, (2, 5), stored(3)), update(3, 2, (2, 5), Conflict)]),
            ("a conflict without reason",   false, vec![create(1, (0, 1), stored(2)), update(2, 2, (2, 3), Conflict)]),
            ("two creates win",             false, vec![create(1, (0, 5), stored(2)), create(2, (0, 5), stored(3))]),
            ("exists, but what",            false, vec![create(1, (0, 1), Exists)]),
            ("created again after delete",  true,  vec![create(1, (0, 1), stored(2)), delete((2, 3), Deleted), create(2, (4, 5), stored(4))]),
            ("back from the dead",          false, vec![create(1, (0, 1), stored(2)), delete((2, 3), Deleted), read((4, 5), found(2, 1))]),
            ("deleted twice",               false, vec![create(1, (0, 1), stored(2)), delete((2, 9), Deleted), delete((2, 9), Deleted)]),
            ("versions that go back",       false, vec![create(1, (0, 1), stored(5)), update(2, 5, (2, 3), stored(4))]),
            ("applies go in any order",     true,  vec![apply(1, (0, 9), stored(3)), apply(2, (0, 9), stored(2)), read((10, 11), found(3, 1))]),
            ("applies, the lower one last", false, vec![apply(1, (0, 9), stored(3)), apply(2, (0, 9), stored(2)), read((10, 11), found(2, 2))]),
            ("cut off and happened",        true,  vec![create(1, (0, 9), Unknown), read((10, 11), found(2, 1))]),
            ("cut off, never happened",     true,  vec![create(1, (0, 9), Unknown), read((10, 11), Absent)]),
            ("happened after the death",    false, vec![create(1, (0, 9), Unknown), read((10, 11), Absent), read((12, 13), found(2, 1))]),
            ("cut off, then undone",        false, vec![create(1, (0, 9), Unknown), read((3, 4), found(2, 1)), read((10, 11), Absent)]),
            ("a delete that was cut off",   true,  vec![create(1, (0, 1), stored(2)), delete((2, 9), Unknown), create(2, (10, 11), stored(4))]),
            ("a swap that was cut off",     true,  vec![create(1, (0, 1), stored(2)), update(2, 2, (2, 9), Unknown), update(3, 2, (10, 11), Conflict), read((12, 13), found(3, 2))]),
            ("a swap undone by the death",  false, vec![create(1, (0, 1), stored(2)), update(2, 2, (2, 9), Unknown), update(3, 2, (10, 11), Conflict), read((12, 13), found(2, 1))]),
            ("a value out of nowhere",      false, vec![read((0, 1), found(2, 77))]),
        ];
        for (name, right, operations) in cases {
            let operations: Vec<&Operation> = operations.iter().collect();
            assert_eq!(check("a", &operations).is_ok(), right, "{name}");
        }
    }

    #[test]
    fn one_value_has_one_version() {
        let operations = [create(1, (0, 1), stored(2)), read((2, 3), found(3, 1))];
        let operations: Vec<&Operation> = operations.iter().collect();
        assert!(matches!(check("a", &operations), Err(NotLinearizable::TwoVersions { .. })));
    }

    /// A hundred reads beside a hundred writes would take for ever without
    /// remembering what was tried.
    #[test]
    fn does_not_get_lost() {
        let mut operations = vec![create(0, (0, 1), stored(2))];
        operations.extend((1..60).map(|value| apply(value, (2, 1000), stored(2 + value))));
        operations.extend((0..60).map(|_| read((2, 1000), found(2, 0))));
        let operations: Vec<&Operation> = operations.iter().collect();
        assert_eq!(check("a", &operations), Ok(()));
    }
}
