//! Reads a store back and judges it.
//!
//! Every row is checked, and the rows as a whole against their number and sum,
//! so that nothing is believed that was not written.
//!
//! The one invariant: what is loaded is exactly what the last commit left.

use std::sync::Arc;

use redb::{ReadTransaction, ReadableTable};
use uuid::Uuid;

use super::record::{Decoder, Record};
use super::rows::Rows;
use super::{CLUSTER, FORMAT, FORMAT_ROW, LOG, META, TOTALS};
use crate::store::body::Stored;
use crate::store::key::Version;
use crate::store::world::Resources;

/// What was found on disk.
#[derive(Debug)]
pub(in crate::store) struct Loaded {
    pub(in crate::store) version: Version,
    pub(in crate::store) cluster: Uuid,
    pub(in crate::store) resources: Resources,
    pub(super) rows: Rows,
}

/// Why a store cannot be used.
#[derive(Debug)]
pub(super) enum Unfit {
    Newer { found: u64 },
    Damaged(String),
    Redb(redb::Error),
}

impl<E: Into<redb::Error>> From<E> for Unfit {
    fn from(error: E) -> Unfit {
        Unfit::Redb(error.into())
    }
}

/// The format is judged before all else: a newer one may mean anything.
pub(super) fn check_format(transaction: &ReadTransaction) -> Result<(), Unfit> {
    let meta = transaction.open_table(META)?;
    let row = meta.get(FORMAT_ROW)?;
    let bytes = row.as_ref().and_then(|row| row.value().try_into().ok());
    match bytes.map(u64::from_le_bytes) {
        Some(found) if found > FORMAT => Err(Unfit::Newer { found }),
        Some(FORMAT) => Ok(()),
        Some(found) => Err(Unfit::Damaged(format!("it has format {found}, which never was"))),
        None => Err(Unfit::Damaged("it does not tell its format".into())),
    }
}

pub(super) fn load(transaction: &ReadTransaction) -> Result<Loaded, Unfit> {
    let meta = transaction.open_table(META)?;
    let cluster = meta.get(CLUSTER)?.and_then(|row| Uuid::from_slice(row.value()).ok());
    let cluster = cluster.ok_or_else(|| Unfit::Damaged("it does not tell its cluster".into()))?;
    let totals = meta.get(TOTALS)?;
    let totals = totals.as_ref().and_then(|row| Rows::decode_totals(row.value()));
    let (version, expected) = totals.ok_or_else(|| Unfit::Damaged("its totals are not readable".into()))?;

    let mut loaded = Loaded { version, cluster, resources: Resources::new(), rows: Rows::default() };
    let mut decoder = Decoder::default();
    for row in transaction.open_table(LOG)?.iter()? {
        let (number, value) = row?;
        let version = Version::new(number.value());
        let record = decoder
            .decode(version, value.value())
            .map_err(|damage| Unfit::Damaged(format!("the record of version {version}: {damage}")))?;
        loaded.take(version, record);
    }
    if loaded.rows.totals() != expected {
        return Err(Unfit::Damaged("records are missing".into()));
    }
    Ok(loaded)
}

impl Loaded {
    fn take(&mut self, version: Version, record: Record) {
        let objects = self.resources.entry(record.key.resource.clone()).or_default();
        let path = record.key.path();
        let present = record.json.is_some();
        let before = match record.json {
            Some(bytes) => objects.insert(path, Arc::new(Stored { version, bytes })),
            None => objects.remove(&path),
        };
        self.rows.add(version, present, before.map(|stored| stored.version));
    }
}
