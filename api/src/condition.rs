//! Conditions of our own kinds, as Kubernetes' tools understand them.
//!
//! The invariant: `Ready` is True only when the whole of the observed
//! generation is done; `Reconciling` and `Stalled` are there only while True
//! (kstatus), and a Stalled object says what would help.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::longhorn::ConditionStatus;
use crate::names::{Message, Timestamp, Word};

/// All that was asked for is done.
pub const READY: &str = "Ready";
/// Work goes on.
pub const RECONCILING: &str = "Reconciling";
/// Nothing will happen until somebody does something.
pub const STALLED: &str = "Stalled";

/// One thing that can be said about an object.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// What the condition is about, one of each in an object.
    #[serde(rename = "type")]
    pub kind: Word,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// Why, in one word that a program can match on.
    #[schemars(length(min = 1))]
    pub reason: Word,
    /// Why, and what would change it, in words.
    pub message: Message,
    /// When `status` last changed.
    #[schemars(extend("format" = "date-time"))]
    pub last_transition_time: Timestamp,
    /// Generation of the spec that this condition speaks of.
    #[serde(default)]
    #[schemars(range(min = 0), extend("default" = 0))]
    pub observed_generation: i64,
}

/// The conditions of an object.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Conditions(Vec<Condition>);

impl Conditions {
    pub fn get(&self, kind: &str) -> Option<&Condition> {
        self.0.iter().find(|condition| condition.kind == kind)
    }

    /// Whether the condition is known to hold.
    pub fn holds(&self, kind: &str) -> bool {
        self.get(kind).is_some_and(|condition| condition.status == ConditionStatus::True)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Condition> {
        self.0.iter()
    }

    /// Puts a condition in place of the one of its type. When that one already had the
    /// same status, its time of transition stays.
    pub fn set(&mut self, mut condition: Condition) {
        match self.0.iter_mut().find(|old| old.kind == condition.kind) {
            None => self.0.push(condition),
            Some(old) => {
                if old.status == condition.status {
                    condition.last_transition_time = old.last_transition_time.clone();
                }
                *old = condition;
            }
        }
    }

    /// Takes a condition away, as kstatus wants it of those that no longer hold.
    pub fn clear(&mut self, kind: &str) {
        self.0.retain(|condition| condition.kind != kind);
    }
}

impl JsonSchema for Conditions {
    fn schema_name() -> Cow<'static, str> {
        "StandardConditions".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "array",
            "maxItems": 64,
            "items": Condition::json_schema(generator),
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        })
    }
}
