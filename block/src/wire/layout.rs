//! How a copy of a volume is built: its size, its snapshots, its live head.
//!
//! Invariant: copies with equal layouts that were in service together hold the
//! same bytes in every layer.

use serde::{Deserialize, Serialize};

/// Most snapshots of a volume; a layer's place fits in one byte of a header.
pub const MOST_SNAPSHOTS: usize = 250;
/// Longest name of a snapshot in bytes.
pub const LONGEST_NAME: usize = 128;

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Layout {
    pub size: u64,
    /// Oldest first.
    pub snapshots: Vec<Snapshot>,
    /// Names the layer that takes writes.
    pub head: u64,
}

/// A layer that does not change any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// What the layer was called when it was the head.
    pub id: u64,
    pub name: String,
}

/// A change of the layout, the same at every copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Step {
    /// The head becomes a snapshot; a new head takes writes.
    Freeze {
        name: String,
        head: u64,
    },
    /// What only this snapshot has goes to the layer above it.
    Remove {
        id: u64,
    },
    /// Everything after this snapshot is forgotten; a new head takes writes.
    Revert {
        id: u64,
        head: u64,
    },
    Expand {
        size: u64,
    },
    /// The upgrade is final: what the newest on-disk format has may be used. From wire
    /// version 2 on.
    Finalize {
        volume: String,
    },
}

impl Layout {
    pub fn position(&self, name: &str) -> Option<usize> {
        self.snapshots.iter().position(|snapshot| snapshot.name == name)
    }

    /// The layer above a snapshot, by the snapshot's place. It was made when that one was frozen.
    pub fn above(&self, place: usize) -> u64 {
        self.snapshots.get(place + 1).map_or(self.head, |next| next.id)
    }

    /// Whether a layer has this name.
    pub fn has(&self, id: u64) -> bool {
        self.head == id || self.snapshots.iter().any(|snapshot| snapshot.id == id)
    }

    /// The layout after a step; one that was made already changes nothing.
    pub fn after(&self, step: &Step) -> Layout {
        let mut next = self.clone();
        match step {
            Step::Freeze { head, .. } if self.head == *head => {}
            Step::Freeze { name, head } => {
                next.snapshots.push(Snapshot { id: self.head, name: name.clone() });
                next.head = *head;
            }
            Step::Remove { id } => next.snapshots.retain(|snapshot| snapshot.id != *id),
            Step::Revert { id, head } => {
                let keep = self.snapshots.iter().position(|snapshot| snapshot.id == *id);
                next.snapshots.truncate(keep.map_or(self.snapshots.len(), |at| at + 1));
                next.head = *head;
            }
            Step::Expand { size } => next.size = self.size.max(*size),
            Step::Finalize { .. } => {}
        }
        next
    }

    /// The steps by which a copy with this layout, and the same bytes as one with
    /// `target`, reaches that one: what an engine had begun when it died. `None`
    /// when they are too different.
    pub fn steps_to(&self, target: &Layout) -> Option<Vec<Step>> {
        let mut steps = Vec::new();
        let mut reached = self.clone();
        let mut take = |step: Step, reached: &mut Layout| {
            *reached = reached.after(&step);
            steps.push(step);
        };
        if target.size > self.size {
            take(Step::Expand { size: target.size }, &mut reached);
        }
        for snapshot in &self.snapshots {
            if !target.snapshots.iter().any(|kept| kept.id == snapshot.id) {
                take(Step::Remove { id: snapshot.id }, &mut reached);
            }
        }
        let frozen = target.snapshots.iter().position(|snapshot| snapshot.id == self.head);
        for at in frozen.map_or(target.snapshots.len(), |at| at)..target.snapshots.len() {
            let head = target.snapshots.get(at + 1).map_or(target.head, |next| next.id);
            take(Step::Freeze { name: target.snapshots[at].name.clone(), head }, &mut reached);
        }
        (reached == *target).then_some(steps)
    }

    pub fn encode(&self) -> bytes::Bytes {
        serde_json::to_vec(self).expect("a layout holds only plain fields").into()
    }

    pub fn decode(payload: &[u8]) -> Option<Layout> {
        serde_json::from_slice(payload).ok()
    }
}

impl Step {
    pub fn encode(&self) -> bytes::Bytes {
        serde_json::to_vec(self).expect("a step holds only plain fields").into()
    }

    pub fn decode(payload: &[u8]) -> Option<Step> {
        serde_json::from_slice(payload).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: u64, snapshots: &[u64], head: u64) -> Layout {
        let snapshot = |id: &u64| Snapshot { id: *id, name: format!("s{id}") };
        Layout { size, snapshots: snapshots.iter().map(snapshot).collect(), head }
    }

    #[test]
    fn what_was_begun_can_be_finished_and_what_is_too_different_cannot() {
        let freeze = |id: u64, head| Step::Freeze { name: format!("s{id}"), head };
        #[rustfmt::skip]
        let cases = [
            ("equal",          layout(8, &[1, 2], 3), layout(8, &[1, 2], 3),    Some(vec![])),
            ("a snapshot",     layout(8, &[1, 2], 3), layout(8, &[1, 2, 3], 4), Some(vec![freeze(3, 4)])),
            ("the first",      layout(8, &[], 0),     layout(8, &[0], 4),       Some(vec![freeze(0, 4)])),
            ("a removal",      layout(8, &[1, 2], 3), layout(8, &[2], 3),       Some(vec![Step::Remove { id: 1 }])),
            ("an expansion",   layout(8, &[1], 3),    layout(9, &[1], 3),       Some(vec![Step::Expand { size: 9 }])),
            ("it is ahead",    layout(8, &[1, 2], 3), layout(8, &[1], 2),       None),
            ("it is larger",   layout(9, &[1], 3),    layout(8, &[1], 3),       None),
            ("a revert",       layout(8, &[1, 2], 3), layout(8, &[1], 9),       None),
            ("a stranger",     layout(8, &[], 7),     layout(8, &[1, 2], 3),    None),
        ];
        for (name, from, to, expected) in cases {
            assert_eq!(from.steps_to(&to), expected, "{name}");
        }
    }
}
