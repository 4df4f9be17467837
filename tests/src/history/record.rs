//! What clients did and saw, with the times at which they did.
//!
//! The one invariant: every write carries a value that no other write carries,
//! so what is read tells who wrote it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The name of an object.
pub type Object = String;

/// A resourceVersion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

/// What an object holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Value(pub u64);

/// Nanoseconds since the history began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub u64);

/// One request about one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    pub object: Object,
    pub action: Action,
    pub invoked: Moment,
    /// When the answer was there. Without one: when the server was surely dead.
    pub returned: Moment,
    pub outcome: Outcome,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Create {
        value: Value,
    },
    /// Compare-and-swap.
    Update {
        value: Value,
        expected: Version,
    },
    /// Writes whatever is there, or creates.
    Apply {
        value: Value,
    },
    /// Compare-and-delete if a version is given.
    Delete {
        expected: Option<Version>,
    },
    Read,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Stored {
        version: Version,
    },
    Deleted,
    Found {
        version: Version,
        value: Value,
    },
    Absent,
    Exists,
    Conflict,
    /// The server died with the request; it happened before that or never.
    Unknown,
}

/// All objects at once, at one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    pub version: Version,
    pub items: BTreeMap<Object, (Version, Value)>,
}

/// A list and all that a watch told since, over any number of connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    pub start: Listing,
    pub events: Vec<Seen>,
}

/// One event of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub change: Change,
    pub object: Object,
    pub version: Version,
    pub value: Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Added,
    Modified,
    Deleted,
}

/// A whole history.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Record {
    pub operations: Vec<Operation>,
    pub listings: Vec<Listing>,
    pub sessions: Vec<Session>,
    /// What the last session had to have seen everything up to.
    pub end: Option<Version>,
}

impl Record {
    pub fn objects(&self) -> BTreeSet<&Object> {
        self.operations.iter().map(|operation| &operation.object).collect()
    }

    pub fn operations_on(&self, object: &str) -> Vec<&Operation> {
        self.operations.iter().filter(|operation| operation.object == object).collect()
    }
}

/// One line for each thing that was done or seen.
impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut operations: Vec<&Operation> = self.operations.iter().collect();
        operations.sort_by_key(|operation| operation.invoked);
        for operation in operations {
            writeln!(f, "{operation}")?;
        }
        for listing in &self.listings {
            writeln!(f, "list {listing:?}")?;
        }
        for session in &self.sessions {
            writeln!(f, "watch from {:?}", session.start)?;
            for seen in &session.events {
                writeln!(f, "    {seen:?}")?;
            }
        }
        writeln!(f, "end {:?}", self.end)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Operation { object, action, invoked: Moment(invoked), returned: Moment(returned), outcome } =
            self;
        write!(f, "{:>9} {:>9} µs  {object}  {action:?}  {outcome:?}", invoked / 1000, returned / 1000)
    }
}

impl Action {
    /// What it writes.
    pub fn value(self) -> Option<Value> {
        match self {
            Action::Create { value } | Action::Update { value, .. } | Action::Apply { value } => Some(value),
            Action::Delete { .. } | Action::Read => None,
        }
    }
}

impl Operation {
    /// The value it shows an object to have had, and at which version.
    pub fn shows(&self) -> Option<(Version, Value)> {
        match self.outcome {
            Outcome::Stored { version } => self.action.value().map(|value| (version, value)),
            Outcome::Found { version, value } => Some((version, value)),
            Outcome::Deleted | Outcome::Absent | Outcome::Exists | Outcome::Conflict | Outcome::Unknown => {
                None
            }
        }
    }
}
