//! The durable half of the store: one redb file.
//!
//! The one invariant: when `commit` returns `Ok`, the batch survives the loss
//! of the process and of power; when it fails, nothing was acknowledged.

use std::path::Path;
use std::sync::Arc;

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

use super::error::OpenError;
use super::history::Event;
use super::key::Version;
use super::record;
use super::world::Resources;

/// Raised whenever an older program could misread the file.
pub const FORMAT: u64 = 1;

const OBJECTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("objects");
const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");

#[derive(Debug)]
pub(super) struct Disk {
    database: Database,
}

/// What was found on disk.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) version: Version,
    pub(super) cluster: uuid::Uuid,
    pub(super) resources: Resources,
}

impl Disk {
    pub(super) fn open(path: &Path, cache_bytes: usize) -> Result<(Disk, Loaded), OpenError> {
        let database = Database::builder()
            .set_cache_size(cache_bytes)
            .create(path)
            .map_err(|error| OpenError::from_redb(path, error.into()))?;
        let disk = Disk { database };
        let loaded = disk.load(path)?;
        Ok((disk, loaded))
    }

    fn load(&self, path: &Path) -> Result<Loaded, OpenError> {
        let wrong = |error: redb::Error| OpenError::from_redb(path, error);
        self.initialize().map_err(wrong)?;
        let transaction = self.database.begin_read().map_err(|error| wrong(error.into()))?;
        let meta = transaction.open_table(META).map_err(|error| wrong(error.into()))?;
        let number = |name: &'static str| -> Result<u64, OpenError> {
            let value = meta.get(name).map_err(|error| wrong(error.into()))?;
            let bytes = value.as_ref().and_then(|value| value.value().try_into().ok());
            bytes
                .map(u64::from_le_bytes)
                .ok_or_else(|| OpenError::corrupt(path, format!("its {name} is missing")))
        };
        let found = number("format")?;
        if found > FORMAT {
            return Err(OpenError::NewerFormat { path: path.into(), found, supported: FORMAT });
        }
        let cluster = meta.get("cluster").map_err(|error| wrong(error.into()))?;
        let cluster = cluster.as_ref().and_then(|value| uuid::Uuid::from_slice(value.value()).ok());
        let cluster = cluster.ok_or_else(|| OpenError::corrupt(path, "its cluster is missing".into()))?;
        let version = Version::new(number("version")?);
        let mut resources = Resources::new();
        let objects = transaction.open_table(OBJECTS).map_err(|error| wrong(error.into()))?;
        for entry in objects.iter().map_err(|error| wrong(error.into()))? {
            let (key, value) = entry.map_err(|error| wrong(error.into()))?;
            let (key, stored) = record::decode(key.value(), value.value())
                .map_err(|damage| OpenError::corrupt(path, format!("object {:?}: {damage}", key.value())))?;
            resources.entry(key.resource.clone()).or_default().insert(key.path(), Arc::new(stored));
        }
        Ok(Loaded { version, cluster, resources })
    }

    fn initialize(&self) -> Result<(), redb::Error> {
        let transaction = self.database.begin_write()?;
        {
            let mut meta = transaction.open_table(META)?;
            if meta.get("format")?.is_some() {
                return Ok(());
            }
            meta.insert("format", &FORMAT.to_le_bytes()[..])?;
            meta.insert("version", &Version::FIRST.get().to_le_bytes()[..])?;
            meta.insert("cluster", &uuid::Uuid::new_v4().as_bytes()[..])?;
            transaction.open_table(OBJECTS)?;
        }
        transaction.commit()?;
        Ok(())
    }

    /// Writes the batch and makes it durable.
    pub(super) fn commit(&mut self, events: &[Arc<Event>]) -> Result<(), redb::Error> {
        let Some(newest) = events.last() else { return Ok(()) };
        let transaction = self.database.begin_write()?;
        {
            let mut objects = transaction.open_table(OBJECTS)?;
            for event in events {
                let key = record::encode_key(&event.key);
                match &event.after {
                    Some(stored) => objects.insert(&*key, &*record::encode_value(&key, stored))?,
                    None => objects.remove(&*key)?,
                };
            }
            let mut meta = transaction.open_table(META)?;
            meta.insert("version", &newest.version.get().to_le_bytes()[..])?;
        }
        transaction.commit()?;
        Ok(())
    }
}
