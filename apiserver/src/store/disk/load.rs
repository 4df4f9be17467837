//! Reads a store back and judges it.
//!
//! Every row is checked, and the rows as a whole against their number and sum,
//! so that nothing is believed that was not written.
//!
//! The one invariant: what is loaded is exactly what the last commit left.

use std::sync::Arc;

use redb::{ReadTransaction, ReadableTable};
use uuid::Uuid;

use super::journal::Records;
use super::record::{Decoder, Record};
use super::rows::{Row, Rows};
use super::{CLUSTER, FORMAT, FORMAT_ROW, JOURNAL, LOG, META, TOTALS, WHOLE};
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
    /// The journal that has what came later, unless the store was closed.
    pub(super) journal: Option<Uuid>,
}

/// Why a store cannot be used.
#[derive(Debug)]
pub(super) enum Unfit {
    Newer {
        found: u64,
    },
    Damaged(String),
    /// It needs no journal, and what lies in the place of one is not its own.
    ForeignJournal,
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
    let names_a_journal = meta.get(JOURNAL)?.is_some();
    match bytes.map(u64::from_le_bytes) {
        Some(found) if found > FORMAT => Err(Unfit::Newer { found }),
        Some(WHOLE) if !names_a_journal => Ok(()),
        Some(FORMAT) if names_a_journal => Ok(()),
        Some(WHOLE | FORMAT) => Err(Unfit::Damaged("its format does not tell of its journal".into())),
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

    let journal = match meta.get(JOURNAL)? {
        Some(row) => Some(
            Uuid::from_slice(row.value())
                .map_err(|_| Unfit::Damaged("it does not name its journal".into()))?,
        ),
        None => None,
    };

    let (resources, rows) = (Resources::new(), Rows::default());
    let mut loaded = Loaded { version, cluster, resources, rows, journal };
    let mut decoder = Decoder::default();
    for row in transaction.open_table(LOG)?.iter()? {
        let (number, value) = row?;
        let version = Version::new(number.value());
        let record = decoder
            .decode(version, value.value())
            .map_err(|damage| Unfit::Damaged(format!("the record of version {version}: {damage}")))?;
        let (present, superseded) = loaded.take(version, record);
        loaded.rows.add(version, present, superseded);
    }
    if loaded.rows.totals() != expected {
        return Err(Unfit::Damaged("records are missing".into()));
    }
    Ok(loaded)
}

impl Loaded {
    /// Takes up what a journal tells on top of it, and gives the rows that the log is still to get.
    pub(super) fn replay(&mut self, journaled: Records) -> Result<Vec<Row>, Unfit> {
        let mut decoder = Decoder::default();
        let mut rows = Vec::with_capacity(journaled.len());
        for (version, value) in journaled {
            let record = decoder.decode(version, &value).map_err(|damage| {
                Unfit::Damaged(format!("the record of version {version} in its journal: {damage}"))
            })?;
            let (present, superseded) = self.take(version, record);
            self.version = version;
            rows.push(Row { version, value, present, superseded });
        }
        Ok(rows)
    }

    /// Whether the object is there now, and which row spoke of it before.
    fn take(&mut self, version: Version, record: Record) -> (bool, Option<Version>) {
        let objects = self.resources.entry(record.key.resource.clone()).or_default();
        let path = record.key.path();
        let present = record.json.is_some();
        let before = match record.json {
            Some(bytes) => objects.insert(path, Arc::new(Stored { version, bytes })),
            None => objects.remove(&path),
        };
        (present, before.map(|stored| stored.version))
    }
}
