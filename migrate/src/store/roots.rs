//! Notes of this tool under another root than ours.
//!
//! Dragonflow's rows do not lie under any root, but the lock, the run note and the journals of a run do. Under two roots
//! two runs would write the same rows, and neither would see the marker of the other.

use std::collections::BTreeMap;

use bytes::Bytes;

/// What was found under another root.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OtherRoot {
    /// The note of its last run, if it has one.
    pub run: Option<Bytes>,
    /// Whether somebody holds its lock.
    pub locked: bool,
}

/// Other roots, by their names.
pub type OtherRoots = BTreeMap<String, OtherRoot>;

/// The notes that tell of another root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trace {
    Run,
    Lock,
}

impl Trace {
    pub(super) fn named(name: &str) -> Option<Trace> {
        match name {
            "run" => Some(Trace::Run),
            "lock" => Some(Trace::Lock),
            _ => None,
        }
    }
}

/// Takes down what was found. Somebody else may use the same names for other things.
pub(super) fn note(roots: &mut OtherRoots, root: &str, trace: Trace, value: Bytes) {
    match trace {
        Trace::Run => roots.entry(root.to_owned()).or_default().run = Some(value),
        Trace::Lock if is_lock(&value) => roots.entry(root.to_owned()).or_default().locked = true,
        Trace::Lock => {}
    }
}

/// A number in hex and the owner: so every driver writes it.
fn is_lock(value: &[u8]) -> bool {
    let number = value.split(|byte| *byte == b' ').next().unwrap_or_default();
    number.len() < value.len() && !number.is_empty() && number.iter().all(u8::is_ascii_hexdigit)
}
