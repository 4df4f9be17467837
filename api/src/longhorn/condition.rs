//! A condition as Longhorn writes it: six plain strings.
//!
//! The invariant: at most one condition of each type.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::names::{Message, Timestamp, Word};
use crate::wire::words;

words! {
    /// Whether a condition holds.
    pub enum ConditionStatus {
        #[default]
        Unknown = "Unknown",
        True = "True",
        False = "False",
    } or Unrecognised
}

/// One thing that can be said about an object.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// What the condition is about, one of each in an object.
    #[serde(rename = "type")]
    pub kind: Word,
    /// Whether it holds.
    #[serde(default)]
    #[schemars(extend("default" = "Unknown"))]
    pub status: ConditionStatus,
    /// Why, in one word that a program can match on.
    #[serde(default, skip_serializing_if = "Word::is_empty")]
    pub reason: Word,
    /// Why, and what would change it, in words.
    #[serde(default, skip_serializing_if = "Message::is_empty")]
    pub message: Message,
    /// When it was last looked at, RFC 3339.
    #[serde(default, skip_serializing_if = "Timestamp::is_empty")]
    pub last_probe_time: Timestamp,
    /// When `status` last changed, RFC 3339.
    #[serde(default, skip_serializing_if = "Timestamp::is_empty")]
    pub last_transition_time: Timestamp,
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
}

impl JsonSchema for Conditions {
    fn schema_name() -> Cow<'static, str> {
        "Conditions".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "array",
            "nullable": true,
            "maxItems": 64,
            "items": Condition::json_schema(generator),
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(status: ConditionStatus, since: &str) -> Condition {
        Condition { kind: "Ready".into(), status, last_transition_time: since.into(), ..Default::default() }
    }

    #[test]
    fn keeps_one_of_each_type_and_the_time_of_its_last_change() {
        let mut all = Conditions::default();
        for (status, since, kept) in [
            (ConditionStatus::True, "10:00", "10:00"),
            (ConditionStatus::True, "11:00", "10:00"),
            (ConditionStatus::False, "12:00", "12:00"),
        ] {
            all.set(condition(status, since));
            assert_eq!(all.iter().count(), 1);
            assert_eq!(all.get("Ready").unwrap().last_transition_time, kept);
            assert_eq!(all.holds("Ready"), status == ConditionStatus::True);
        }
    }
}
