//! The three ways to change a part of an object: JSON patch, merge patch and
//! strategic merge patch.
//!
//! The one invariant: a patch that fails changes nothing, and one that succeeds
//! yields an object that can be stored and read back.

mod json;
mod merge;
mod order;
mod strategic;

#[cfg(test)]
mod tests;

use serde_json::Value;

use crate::error::{ApiError, Reason};
use crate::schema::{MAX_DEPTH, nests_deeper_than};

pub use json::json_patch;
pub use merge::merge_patch;
pub use strategic::strategic_merge_patch;

/// Why a patch was not applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// The patch itself makes no sense.
    #[error("{0}")]
    Malformed(String),
    /// The patch is well formed, but not for this object.
    #[error("{0}")]
    Inapplicable(String),
    /// The patch contradicts itself or the lists it speaks of.
    #[error("{0}")]
    Contradictory(String),
    /// A JSON patch of too many operations.
    #[error("The allowed maximum operations in a JSON patch is {max}, got {got}", max = json::MAX_OPERATIONS)]
    TooLarge { got: usize },
}

impl From<PatchError> for ApiError {
    fn from(error: PatchError) -> ApiError {
        match error {
            PatchError::Malformed(message) => ApiError::new(Reason::BadRequest, message),
            PatchError::Inapplicable(_) => ApiError::new(Reason::Invalid, REJECTED),
            PatchError::Contradictory(message) => ApiError::new(Reason::Unknown, message),
            PatchError::TooLarge { .. } => ApiError::new(Reason::RequestEntityTooLarge, error.to_string()),
        }
    }
}

/// What the real server answers to every patch that does not apply.
const REJECTED: &str = "the server rejected our request due to an error in our request";

fn cannot_decode(value: &Value, prefix: &str, wanted: &str) -> PatchError {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    PatchError::Malformed(format!("{prefix}json: cannot unmarshal {kind} into Go value of type {wanted}"))
}

fn within_depth(object: Value) -> Result<Value, PatchError> {
    if nests_deeper_than(&object, MAX_DEPTH) {
        let message = format!("the patched object must not nest deeper than {MAX_DEPTH} levels");
        return Err(PatchError::Inapplicable(message));
    }
    Ok(object)
}
