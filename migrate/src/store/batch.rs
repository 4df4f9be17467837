//! One atomic write: what must hold, what is put and what is removed.
//!
//! Rows are borrowed: a run of a million rows copies none of them into its batches.

use bytes::Bytes;

use super::{Note, Revision, Space};
use crate::record::{RowKey, Snapshot, Table};

/// Where a value lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place<'a> {
    Row { space: Space, table: &'a Table, key: &'a RowKey },
    Note(Note),
}

impl Place<'_> {
    /// Bytes of the key, give or take the driver's own prefix.
    fn size(&self) -> usize {
        match self {
            Place::Row { table, key, .. } => table.as_str().len() + key.topic.len() + key.id.len(),
            Place::Note(note) => note.name().len(),
        }
    }
}

/// One change. No two operations of a batch may name the same place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op<'a> {
    Put { place: Place<'a>, value: &'a Bytes },
    Remove { place: Place<'a> },
}

impl<'a> Op<'a> {
    pub fn place(&self) -> Place<'a> {
        match self {
            Op::Put { place, .. } | Op::Remove { place } => *place,
        }
    }

    pub fn size(&self) -> usize {
        match self {
            Op::Put { place, value } => place.size() + value.len(),
            Op::Remove { place } => place.size(),
        }
    }
}

/// What must be true for a batch to be applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Guard {
    /// The note holds exactly this, or does not exist.
    Note { note: Note, is: Option<Bytes> },
    /// No row of the space was added, changed or removed since the guarded reading at `since`.
    Unchanged { space: Space, since: Revision },
}

/// Applied whole or not at all.
#[derive(Debug, Clone, Default)]
pub struct Batch<'a> {
    pub guards: Vec<Guard>,
    pub ops: Vec<Op<'a>>,
}

/// What became of a batch whose lock was held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// A guard did not hold; nothing was changed.
    Conflict,
}

/// What one batch may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub ops: usize,
    /// Keys and values together. A single larger row goes alone.
    pub bytes: usize,
    /// The largest value the server takes.
    pub value: usize,
    /// Batches worth having on their way at once.
    pub in_flight: usize,
}

/// Cuts a stream of operations into batches within the limits.
pub fn pack<'a>(
    ops: impl Iterator<Item = Op<'a>> + Send,
    limits: Limits,
) -> impl Iterator<Item = Batch<'a>> + Send {
    let mut ops = ops.peekable();
    std::iter::from_fn(move || {
        let mut batch = Batch::default();
        let mut bytes = 0;
        while let Some(op) = ops.next_if(|op| {
            batch.ops.is_empty() || (batch.ops.len() < limits.ops && bytes + op.size() <= limits.bytes)
        }) {
            bytes += op.size();
            batch.ops.push(op);
        }
        (!batch.ops.is_empty()).then_some(batch)
    })
}

/// Puts of every row of a snapshot into a space.
pub fn puts<'a>(space: Space, rows: &'a Snapshot) -> impl Iterator<Item = Op<'a>> + Send {
    rows.tables().flat_map(move |(table, rows)| {
        rows.iter().map(move |(key, value)| Op::Put { place: Place::Row { space, table, key }, value })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn batches_hold_everything_once_and_stay_within_limits(sizes in prop::collection::vec(0..50usize, 0..60), ops in 1..9usize, bytes in 1..120usize) {
            let mut rows = Snapshot::default();
            let table = Table::new("t");
            for (number, size) in sizes.iter().enumerate() {
                rows.put(&table, RowKey::untopical(&format!("{number:03}")), Bytes::from(vec![b'x'; *size]));
            }
            let limits = Limits { ops, bytes, value: 1000, in_flight: 1 };
            let batches: Vec<Batch<'_>> = pack(puts(Space::Plain, &rows), limits).collect();
            for batch in &batches {
                prop_assert!(batch.ops.len() <= ops);
                prop_assert!(batch.ops.len() == 1 || batch.ops.iter().map(Op::size).sum::<usize>() <= bytes);
            }
            let packed: Vec<Op<'_>> = batches.into_iter().flat_map(|batch| batch.ops).collect();
            prop_assert_eq!(packed, puts(Space::Plain, &rows).collect::<Vec<_>>());
        }
    }
}
