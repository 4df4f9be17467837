//! The attempt to move a volume to another engine image, as an annotation of the volume.
//!
//! An annotation, so that it is written in the same patch as `spec.image` and works on Longhorn's
//! own volumes too. The invariant: whoever reads the volume knows who began the attempt, when,
//! and where to go back to.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::names::{ImageRef, NodeName};
use crate::wire::words;

/// Annotation of a volume: `never`, or whatever else it says, leaves it out of automatic engine upgrades.
pub const ENGINE_UPGRADE: &str = "midflight.dev/engine-upgrade";
/// Annotation of a volume: its last [`Attempt`], as JSON.
pub const ENGINE_UPGRADE_ATTEMPT: &str = "midflight.dev/engine-upgrade-attempt";
/// Annotation of a volume: the image whose on-disk features are in use, so that no older one can read it.
pub const FINALIZED: &str = "midflight.dev/finalized";

words! {
    /// Who asked for an attempt.
    pub enum Initiator {
        /// The controller of automatic engine upgrades.
        #[default]
        Automatic = "automatic",
        /// Somebody who changed `spec.image`.
        User = "user",
    }
}

words! {
    /// How a volume changes its engine image.
    pub enum Way {
        /// While no engine of it runs.
        #[default]
        Detached = "detached",
        /// Under its clients.
        Live = "live",
    }
}

words! {
    /// What became of an attempt.
    ///
    /// ```text
    /// running ──▶ done
    ///     └─────▶ failed   (past the deadline, or taken back)
    /// ```
    pub enum Outcome {
        #[default]
        Running = "running",
        Done = "done",
        Failed = "failed",
    }
}

/// One attempt to move a volume from one engine image to another.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    pub by: Initiator,
    pub way: Way,
    pub from: ImageRef,
    pub to: ImageRef,
    /// Node on whose limit the attempt counts.
    pub node: NodeName,
    pub issued_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    pub outcome: Outcome,
    /// Attempts to reach this image that failed in a row, this one included. One that somebody took back is not among them.
    #[serde(default)]
    pub failures: u32,
}

impl Attempt {
    /// The attempt that the annotations of a volume tell of. One that cannot be read is none.
    pub fn of(annotations: &BTreeMap<String, String>) -> Option<Attempt> {
        serde_json::from_str(annotations.get(ENGINE_UPGRADE_ATTEMPT)?).ok()
    }

    /// The value of the annotation.
    pub fn to_annotation(&self) -> String {
        serde_json::to_string(self).expect("an attempt is JSON")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_annotation_holds_what_was_put_into_it_and_nonsense_is_no_attempt() {
        let attempt = Attempt {
            by: Initiator::Automatic,
            way: Way::Live,
            from: "engine:v1".into(),
            to: "engine:v2".into(),
            node: "node-1".into(),
            issued_at: "2026-11-16T06:00:00Z".parse().unwrap(),
            ended_at: None,
            outcome: Outcome::Running,
            failures: 1,
        };
        let read = |value: String| Attempt::of(&BTreeMap::from([(ENGINE_UPGRADE_ATTEMPT.into(), value)]));
        assert_eq!(read(attempt.to_annotation()), Some(attempt));
        assert_eq!(read("yes".into()), None);
        assert_eq!(Attempt::of(&BTreeMap::new()), None);
    }
}
