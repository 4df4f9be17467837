//! The durable half of the store: one redb file, a journal and a mark beside it.
//!
//! The file holds a log of changes by version, from which what was superseded
//! is cleared as it grows. Appending keeps a commit small wherever in the
//! alphabet the objects of a batch stand.
//!
//! ```text
//! whole ──first commit names a journal──▶ journaled ──closed, or opened again after a crash──▶ whole
//! ```
//!
//! Batches go to the journal while it has room; the one for which it has none goes to redb with all that wait. Where the disk
//! has no room for a journal, each goes to redb at once and the file stays whole.
//!
//! The one invariant: when `commit` returns `Ok`, the batch survives the loss
//! of the process and of power; when it fails, nothing was acknowledged.

#[cfg(test)]
pub(super) mod fickle;
mod held;
mod journal;
mod load;
mod mark;
mod medium;
mod place;
mod record;
mod rows;

use std::io;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::{Database, ReadableDatabase, TableDefinition};
use uuid::Uuid;

use self::held::Held;
use self::journal::{Found, Journal, Round, Title};
pub(super) use self::load::Loaded;
use self::load::Unfit;
use self::mark::Mark;
pub(super) use self::medium::is_full;
use self::medium::{Medium, OnFile};
use self::place::Place;
use self::rows::{Row, Rows};
use super::error::OpenError;
use super::history::Event;
use super::key::Version;

/// Raised whenever an older program could misread the file. Files have this one while a journal has what came later.
pub const FORMAT: u64 = 2;
/// The format of a file that needs no journal. Programs that know of none can read it.
const WHOLE: u64 = 1;

/// Changes by version.
const LOG: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("log");
/// What there is to know of the store itself.
const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
const FORMAT_ROW: &str = "format";
const CLUSTER: &str = "cluster";
const TOTALS: &str = "totals";
const JOURNAL: &str = "journal";

/// Commits without a journal, for which there was no room, before room is looked for again.
const COMMITS_WITHOUT: usize = 100;

#[derive(Debug)]
pub(super) struct Disk {
    site: Site,
    mark: Mark,
    open: Open,
    /// `None` while the file is whole.
    journal: Option<Journal>,
    /// What the journal holds and redb does not.
    waiting: Vec<Row>,
    /// Commits until the disk is asked again whether it has room for a journal.
    without: usize,
}

/// Where a store lies. Whoever has it holds the lock.
#[derive(Debug)]
pub(super) struct Site {
    path: PathBuf,
    medium: Medium,
    /// Made when it is needed for the first time.
    journal: Option<Medium>,
    cache_bytes: usize,
}

/// A file that redb has open and that was found good.
#[derive(Debug)]
struct Open {
    database: Database,
    held: Held,
    rows: Rows,
    version: Version,
    cluster: Uuid,
    journal: Option<Uuid>,
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
        let medium: Medium = Arc::new(OnFile(file));
        if let Some(temporary) = temporary {
            create(medium.clone()).map_err(|error| refusal(path, error.into()))?;
            place::settle(&temporary, path).map_err(failed)?;
        }
        let journal = Journal::find(path).map_err(failed)?;
        Ok(Site { path: path.into(), medium, journal, cache_bytes })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whatever was left in memory by a sync that failed must not be taken for what the disk holds.
    fn read_from_disk(&self) -> io::Result<()> {
        std::iter::once(&self.medium).chain(&self.journal).try_for_each(|medium| medium.read_from_disk())
    }

    fn journal(&mut self) -> io::Result<Medium> {
        let journal = match &self.journal {
            Some(journal) => journal.clone(),
            None => self.journal.insert(Journal::make(&self.path)?).clone(),
        };
        // Also of one that was found: whoever made it may have been stopped before its name was durable.
        place::sync_folder_of(&self.path)?;
        Ok(journal)
    }
}

impl Disk {
    pub(super) fn open(site: Site) -> Result<(Disk, Loaded), Box<(Site, OpenError)>> {
        match Disk::judge(&site) {
            Ok((mark, open, loaded)) => {
                Ok((Disk { site, mark, open, journal: None, waiting: Vec::new(), without: 0 }, loaded))
            }
            Err(error) => Err(Box::new((site, error))),
        }
    }

    /// Writes to the file only after everything was found good.
    fn judge(site: &Site) -> Result<(Mark, Open, Loaded), OpenError> {
        let path = &*site.path;
        let failed = |source| OpenError::Io { path: path.into(), source };
        let not_synced =
            |error: redb::Error| OpenError::NotSynced { path: path.into(), source: error.into() };
        site.read_from_disk().map_err(|error| not_synced(error.into()))?;
        let (mut open, loaded, waiting) = Open::judge(site).map_err(|unfit| refusal(path, unfit))?;
        let mark = Mark::open(path, loaded.cluster).map_err(failed)?;
        let acknowledged = mark.read().map_err(failed)?.unwrap_or(loaded.version);
        if acknowledged > loaded.version {
            let (found, mark) = (loaded.version, mark.location().into());
            return Err(OpenError::Lost { path: path.into(), acknowledged, found, mark });
        }
        let mut made_good = open.held.release().map_err(redb::Error::Io);
        if loaded.journal.is_some() {
            made_good = made_good.and_then(|()| open.commit(&waiting, None));
        }
        made_good.map_err(|error| match error {
            error if open.held.sync_failed() => not_synced(error),
            error => OpenError::from_redb(path, error),
        })?;
        mark.write(loaded.version).map_err(failed)?;
        Ok((mark, open, loaded))
    }

    /// Closes the file, keeps the lock. To be opened again after a failed commit.
    pub(super) fn close(self) -> Site {
        self.site
    }

    /// Makes the batch durable.
    pub(super) fn commit(&mut self, events: &[Arc<Event>]) -> Result<(), CommitError> {
        let Some(newest) = events.last() else { return Ok(()) };
        let rows: Vec<Row> = events.iter().map(|event| Row::of(event)).collect();
        let journaled = match &mut self.journal {
            Some(journal) => journal.append(&rows).map_err(redb::Error::Io),
            None => Ok(false),
        };
        let journaled = journaled.map_err(|error| self.judge_failure(error))?;
        self.waiting.extend(rows);
        if !journaled {
            self.hand_over(newest.version).map_err(|error| self.judge_failure(error))?;
        }
        self.acknowledge(newest.version);
        Ok(())
    }

    /// Makes the batch durable in the file itself, which is whole afterwards.
    pub(super) fn commit_whole(&mut self, events: &[Arc<Event>]) -> Result<(), CommitError> {
        let Some(newest) = events.last() else { return Ok(()) };
        self.waiting.extend(events.iter().map(|event| Row::of(event)));
        self.make_whole()?;
        self.acknowledge(newest.version);
        Ok(())
    }

    /// Gives redb all that waits, so that the file needs no journal any more.
    pub(super) fn make_whole(&mut self) -> Result<(), CommitError> {
        if self.journal.take().is_none() && self.waiting.is_empty() {
            return Ok(());
        }
        let rows = std::mem::take(&mut self.waiting);
        self.open.commit(&rows, None).map_err(|error| self.judge_failure(error))
    }

    /// Gives redb all that waits; the journal begins anew.
    fn hand_over(&mut self, newest: Version) -> Result<(), redb::Error> {
        let mut journal = match self.journal.take() {
            Some(journal) => Some(journal),
            None => self.begin_journal(newest).map_err(redb::Error::Io)?,
        };
        let rows = std::mem::take(&mut self.waiting);
        self.open.commit(&rows, journal.as_ref().map(Journal::name))?;
        if let Some(journal) = &mut journal {
            journal.begin_anew(newest);
        }
        self.journal = journal;
        Ok(())
    }

    /// `None` if the disk has no room for one: redb may still have some of its own.
    fn begin_journal(&mut self, at: Version) -> io::Result<Option<Journal>> {
        if self.without > 0 {
            self.without -= 1;
            return Ok(None);
        }
        let title = Title { store: self.open.cluster, name: Uuid::new_v4() };
        let begun = match self.site.journal() {
            Ok(medium) => Journal::begin(medium, title, at)?,
            Err(error) if is_full(&error) => None,
            Err(error) => return Err(error),
        };
        if begun.is_none() {
            tracing::warn!("the disk is nearly full: the store works without its journal, and slower");
            self.without = COMMITS_WITHOUT;
        }
        Ok(begun)
    }

    fn acknowledge(&self, newest: Version) {
        // A mark that is behind is still true; the write is durable without it.
        let _ = self.mark.write(newest);
    }

    fn judge_failure(&self, error: redb::Error) -> CommitError {
        let of_journal = self.journal.as_ref().is_some_and(Journal::sync_failed);
        if of_journal || self.open.held.sync_failed() {
            CommitError::SyncFailed(error)
        } else {
            CommitError::Failed(error)
        }
    }
}

impl Open {
    /// Opens the file with all writes held back, and looks at every part of it.
    fn judge(site: &Site) -> Result<(Open, Loaded, Vec<Row>), Unfit> {
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
            let (version, cluster, journal) = (loaded.version, loaded.cluster, loaded.journal);
            let waiting = replay(site, &mut loaded)?;
            Ok((Open { database, held, rows, version, cluster, journal }, loaded, waiting))
        }));
        judged.unwrap_or_else(|_| Err(Unfit::Damaged("it cannot be read".into())))
    }

    /// Writes rows, and the name of the journal that gets what comes after them.
    fn commit(&mut self, rows: &[Row], journal: Option<Uuid>) -> Result<(), redb::Error> {
        let newest = rows.last().map_or(self.version, |row| row.version);
        let transaction = self.database.begin_write()?;
        {
            let mut log = transaction.open_table(LOG)?;
            for row in rows {
                log.insert(row.version.get(), &*row.value)?;
            }
            for version in self.rows.turn_over(rows) {
                log.remove(version.get())?;
            }
            let mut meta = transaction.open_table(META)?;
            meta.insert(TOTALS, &self.rows.encode_totals(newest)[..])?;
            if self.journal != journal {
                let format = if journal.is_some() { FORMAT } else { WHOLE };
                meta.insert(FORMAT_ROW, &format.to_le_bytes()[..])?;
                match journal {
                    Some(name) => meta.insert(JOURNAL, &name.as_bytes()[..])?,
                    None => meta.remove(JOURNAL)?,
                };
            }
        }
        transaction.commit()?;
        (self.version, self.journal) = (newest, journal);
        Ok(())
    }
}

/// What the journal of a store that was not closed has to add, taken up. One that was closed needs none, but what lies there may
/// be all that another store has of its newest writes.
fn replay(site: &Site, loaded: &mut Loaded) -> Result<Vec<Row>, Unfit> {
    let missing = |detail: &str| Err(Unfit::Damaged(format!("its journal is missing{detail}")));
    let found = match &site.journal {
        Some(medium) => journal::look(&**medium).map_err(redb::Error::Io)?,
        None => Found::Nothing,
    };
    let (name, medium) = match (loaded.journal, &site.journal, found) {
        (None, _, Found::Nothing) => return Ok(Vec::new()),
        (None, _, Found::Journal(title)) if title.store == loaded.cluster => return Ok(Vec::new()),
        (None, _, Found::Journal(_) | Found::Unreadable) => return Err(Unfit::ForeignJournal),
        (Some(name), Some(medium), Found::Journal(title))
            if title == (Title { store: loaded.cluster, name }) =>
        {
            (name, medium)
        }
        (Some(_), _, Found::Journal(_)) => return missing(": the one beside it is not the one it names"),
        (Some(_), _, Found::Unreadable) => return missing(": what lies in its place is none, or is damaged"),
        (Some(_), _, Found::Nothing) => return missing(""),
    };
    let round = Round { name, began_at: loaded.version };
    match journal::read(&**medium, round).map_err(redb::Error::Io)? {
        Some(records) => loaded.replay(records),
        None => missing(": a part of it is cut off"),
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
        meta.insert(FORMAT_ROW, &WHOLE.to_le_bytes()[..])?;
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
        Unfit::ForeignJournal => {
            OpenError::ForeignJournal { path: path.into(), journal: journal::path(path) }
        }
        Unfit::Redb(error) => OpenError::from_redb(path, error),
    }
}
