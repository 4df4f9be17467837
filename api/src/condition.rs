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

/// What the shapes of conditions have in common.
pub trait Shape {
    /// Whether an object may say `null` in place of its conditions.
    const NULLABLE: bool;

    fn kind(&self) -> &Word;
    fn status(&self) -> ConditionStatus;
    /// When `status` last changed.
    fn since(&mut self) -> &mut Timestamp;
}

impl Shape for Condition {
    const NULLABLE: bool = false;

    fn kind(&self) -> &Word {
        &self.kind
    }

    fn status(&self) -> ConditionStatus {
        self.status
    }

    fn since(&mut self) -> &mut Timestamp {
        &mut self.last_transition_time
    }
}

/// The conditions of an object, at most one of each type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Conditions<C = Condition>(Vec<C>);

impl<C> Default for Conditions<C> {
    fn default() -> Self {
        Conditions(Vec::new())
    }
}

impl<C: Shape> Conditions<C> {
    pub fn get(&self, kind: &str) -> Option<&C> {
        self.0.iter().find(|condition| condition.kind() == kind)
    }

    /// Whether the condition is known to hold.
    pub fn holds(&self, kind: &str) -> bool {
        self.get(kind).is_some_and(|condition| condition.status() == ConditionStatus::True)
    }

    pub fn iter(&self) -> impl Iterator<Item = &C> {
        self.0.iter()
    }

    /// Puts a condition in place of the one of its type. When that one already had the
    /// same status, its time of transition stays.
    pub fn set(&mut self, mut condition: C) {
        match self.0.iter_mut().find(|old| old.kind() == condition.kind()) {
            None => self.0.push(condition),
            Some(old) => {
                if old.status() == condition.status() {
                    std::mem::swap(condition.since(), old.since());
                }
                *old = condition;
            }
        }
    }

    /// Takes a condition away, as kstatus wants it of those that no longer hold.
    pub fn clear(&mut self, kind: &str) {
        self.0.retain(|condition| condition.kind() != kind);
    }
}

impl<C: Shape + JsonSchema> JsonSchema for Conditions<C> {
    fn schema_name() -> Cow<'static, str> {
        format!("ConditionsOf{}", C::schema_name()).into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = json_schema!({
            "type": "array",
            "maxItems": 64,
            "items": C::json_schema(generator),
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        });
        if C::NULLABLE {
            schema.insert("nullable".to_owned(), true.into());
        }
        schema
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::longhorn;

    fn keeps_one_of_each_type<C: Shape>(make: impl Fn(ConditionStatus, &str) -> C) {
        let mut all = Conditions::default();
        for (status, since, kept) in [
            (ConditionStatus::True, "10:00", "10:00"),
            (ConditionStatus::True, "11:00", "10:00"),
            (ConditionStatus::False, "12:00", "12:00"),
        ] {
            all.set(make(status, since));
            assert_eq!(all.iter().count(), 1);
            assert_eq!(*all.0[0].since(), kept);
            assert_eq!(all.holds(READY), status == ConditionStatus::True);
        }
        all.clear(READY);
        assert_eq!(all.iter().count(), 0);
    }

    #[test]
    fn every_shape_keeps_one_of_each_type_and_the_time_of_its_last_change() {
        keeps_one_of_each_type(|status, since| Condition {
            kind: READY.into(),
            status,
            last_transition_time: since.into(),
            ..Condition::default()
        });
        keeps_one_of_each_type(|status, since| longhorn::Condition {
            kind: READY.into(),
            status,
            last_transition_time: since.into(),
            ..longhorn::Condition::default()
        });
    }
}
