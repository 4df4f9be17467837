//! A condition as Longhorn writes it: six plain strings.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::condition::Shape;
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

impl Shape for Condition {
    const NULLABLE: bool = true;

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

/// The conditions of one of Longhorn's objects.
pub type Conditions = crate::condition::Conditions<Condition>;
