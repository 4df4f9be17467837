//! Keeps the models of the stored data beside it, so that the next upgrade
//! knows what it starts from.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{ModelError, Models};
use crate::json;
use crate::migration::log::MODELS_TABLE;
use crate::record::{RowKey, Snapshot, Table};

const ID: &str = "current";

#[derive(Serialize, Deserialize)]
struct Row {
    id: String,
    release: String,
    source: String,
}

/// Why the models kept with the data cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum StoredError {
    #[error("{MODELS_TABLE} {ID}: not the models of a release")]
    Row(#[source] serde_json::Error),
    #[error("the models kept with the data")]
    Models(#[source] ModelError),
}

/// The models that the data was last migrated to, where that is known.
pub fn stored(database: &Snapshot) -> Result<Option<Models>, StoredError> {
    let Some(value) = database.get(&Table::new(MODELS_TABLE), &RowKey::untopical(ID)) else {
        return Ok(None);
    };
    let row: Row = serde_json::from_slice(value).map_err(StoredError::Row)?;
    let path = Path::new(MODELS_TABLE).join(&row.release);
    Models::parse(&path, &row.source).map(Some).map_err(StoredError::Models)
}

/// Writes down that the data is as `models` say.
pub fn write(database: &mut Snapshot, models: &Models) {
    let row = Row { id: ID.to_owned(), release: models.release.clone(), source: models.source.clone() };
    let value = serde_json::to_value(row).expect("plain data");
    let mut bytes = vec![];
    json::write_value(&mut bytes, &value);
    database.put(&Table::new(MODELS_TABLE), RowKey::untopical(ID), bytes.into());
}
