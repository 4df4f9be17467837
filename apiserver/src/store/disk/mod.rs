//! The durable half of the store: one redb file, and a mark beside it.
//!
//! The file holds a log of changes by version, from which what was superseded
//! is cleared as it grows. Appending keeps a commit small wherever in the
//! alphabet the objects of a batch stand.
//!
//! The one invariant: when `commit` returns `Ok`, the batch survives the loss
//! of the process and of power; when it fails, nothing was acknowledged.

#[cfg(test)]
pub(super) mod fickle;
mod held;
mod load;
mod mark;
mod place;
mod record;
mod rows;

use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::backends::FileBackend;
use redb::{Database, ReadableDatabase, TableDefinition};
use uuid::Uuid;

use self::held::{Held, Medium};
pub(super) use self::load::Loaded;
use self::load::Unfit;
use self::mark::Mark;
use self::place::Place;
use self::rows::Rows;
use super::error::OpenError;
use super::history::Event;
use super::key::Version;

/// Raised whenever an older program could misread the file.
pub const FORMAT: u64 = 1;

/// Changes by version.
const LOG: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("log");
/// What there is to know of the store itself.
const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
const FORMAT_ROW: &str = "format";
const CLUSTER: &str = "cluster";
const TOTALS: &str = "totals";

#[derive(Debug)]
pub(super) struct Disk {
    site: Site,
    mark: Mark,
    open: Open,
}

/// Where a store lies. Whoever has it holds the lock.
#[derive(Debug)]
pub(super) struct Site {
    path: PathBuf,
    medium: Medium,
    cache_bytes: usize,
}

/// A file that redb has open and that was found good.
#[derive(Debug)]
struct Open {
    database: Database,
    held: Held,
    rows: Rows,
}

/// A commit that did not succeed.
#[derive(Debug)]
pub(super) enum CommitError {
    /// The file must be opened again to learn what became of the batch.
    Failed(redb::Error),
    /// The kernel could not say what reached the disk, and will not say it later.
    SyncFailed(redb::Error),
}

impl Site {
    /// Finds the store at `path`, or makes a new one.
    pub(super) fn claim(path: &Path, cache_bytes: usize) -> Result<Site, OpenError> {
        let failed = |source| OpenError::Io { path: path.into(), source };
        let (file, temporary) = match Place::find(path)? {
            Place::Existing(file) => (file, None),
            Place::New { file, temporary } => (file, Some(temporary)),
        };
        let medium: Medium = Arc::new(FileBackend::new(file).map_err(|error| refusal(path, error.into()))?);
        if let Some(temporary) = temporary {
            create(medium.clone()).map_err(|error| refusal(path, error.into()))?;
            place::settle(&temporary, path).map_err(failed)?;
        }
        Ok(Site { path: path.into(), medium, cache_bytes })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Disk {
    pub(super) fn open(site: Site) -> Result<(Disk, Loaded), (Site, OpenError)> {
        match Disk::judge(&site) {
            Ok((mark, open, loaded)) => Ok((Disk { site, mark, open }, loaded)),
            Err(error) => Err((site, error)),
        }
    }

    /// Writes to the file only after everything was found good.
    fn judge(site: &Site) -> Result<(Mark, Open, Loaded), OpenError> {
        let path = &*site.path;
        let failed = |source| OpenError::Io { path: path.into(), source };
        let (open, loaded) = Open::judge(site).map_err(|unfit| refusal(path, unfit))?;
        let mark = Mark::open(path, loaded.cluster).map_err(failed)?;
        let acknowledged = mark.read().map_err(failed)?.unwrap_or(loaded.version);
        if acknowledged > loaded.version {
            let (found, mark) = (loaded.version, mark.location().into());
            return Err(OpenError::Lost { path: path.into(), acknowledged, found, mark });
        }
        open.held.release().map_err(failed)?;
        mark.write(loaded.version).map_err(failed)?;
        Ok((mark, open, loaded))
    }

    /// Closes the file, keeps the lock. To be opened again after a failed commit.
    pub(super) fn close(self) -> Site {
        self.site
    }

    /// Writes the batch and makes it durable.
    pub(super) fn commit(&mut self, events: &[Arc<Event>]) -> Result<(), CommitError> {
        let Some(newest) = events.last() else { return Ok(()) };
        self.open.commit(events, newest.version).map_err(|error| {
            if self.open.held.sync_failed() {
                CommitError::SyncFailed(error)
            } else {
                CommitError::Failed(error)
            }
        })?;
        // A mark that is behind is still true; the write is durable without it.
        let _ = self.mark.write(newest.version);
        Ok(())
    }
}

impl Open {
    /// Opens the file with all writes held back, and looks at every part of it.
    fn judge(site: &Site) -> Result<(Open, Loaded), Unfit> {
        let judged = std::panic::catch_unwind(AssertUnwindSafe(|| {
            let held = Held::new(site.medium.clone()).map_err(redb::Error::Io)?;
            let repaired = Arc::new(AtomicBool::new(false));
            let flag = repaired.clone();
            let mut database = Database::builder()
                .set_cache_size(site.cache_bytes)
                .set_repair_callback(move |_| flag.store(true, Ordering::Relaxed))
                .create_with_backend(held.clone())?;
            load::check_format(&database.begin_read()?)?;
            // A repair has read every page already.
            if !repaired.load(Ordering::Relaxed) && !database.check_integrity()? {
                return Err(Unfit::Damaged("its pages do not match their checksums".into()));
            }
            let mut loaded = load::load(&database.begin_read()?)?;
            let rows = std::mem::take(&mut loaded.rows);
            Ok((Open { database, held, rows }, loaded))
        }));
        judged.unwrap_or_else(|_| Err(Unfit::Damaged("it cannot be read".into())))
    }

    fn commit(&mut self, events: &[Arc<Event>], newest: Version) -> Result<(), redb::Error> {
        let transaction = self.database.begin_write()?;
        {
            let mut log = transaction.open_table(LOG)?;
            for event in events {
                log.insert(event.version.get(), &*record::encode(event))?;
            }
            for version in self.rows.turn_over(events.iter().map(|event| &**event)) {
                log.remove(version.get())?;
            }
            let mut meta = transaction.open_table(META)?;
            meta.insert(TOTALS, &self.rows.encode_totals(newest)[..])?;
        }
        transaction.commit()?;
        Ok(())
    }
}

/// Fills an empty file with an empty store.
fn create(medium: Medium) -> Result<(), redb::Error> {
    let held = Held::new(medium).map_err(redb::Error::Io)?;
    held.release().map_err(redb::Error::Io)?;
    let database = Database::builder().create_with_backend(held)?;
    let transaction = database.begin_write()?;
    {
        transaction.open_table(LOG)?;
        let mut meta = transaction.open_table(META)?;
        meta.insert(FORMAT_ROW, &FORMAT.to_le_bytes()[..])?;
        meta.insert(CLUSTER, &Uuid::new_v4().as_bytes()[..])?;
        meta.insert(TOTALS, &Rows::default().encode_totals(Version::FIRST)[..])?;
    }
    transaction.commit()?;
    Ok(())
}

fn refusal(path: &Path, unfit: Unfit) -> OpenError {
    match unfit {
        Unfit::Newer { found } => OpenError::NewerFormat { path: path.into(), found, supported: FORMAT },
        Unfit::Damaged(detail) => OpenError::corrupt(path, detail),
        Unfit::Redb(error) => OpenError::from_redb(path, error),
    }
}
