//! One database that the operator works on: opened, locked, and recovered before anything else.
//!
//! The one invariant: whoever holds a [`Work`] has the lock, and what an earlier run left unfinished is finished.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::{
    error::RunError,
    event::{Event, Meter, Tell},
    give_up::{Shared, Standing},
    services::{self, Clock, Live, OfMachine, Said},
    settings::Settings,
};
use crate::{
    commit::{self, Recovered, State},
    migration::{self, Migration, Native},
    record::Snapshot,
    store::{self, Held, Store, StoreError, Url},
    worker::Worker,
};

/// How much longer than its lease the lock of a dead run is waited for.
const LOCK_MARGIN: Duration = Duration::from_secs(10);
const LOOK_FOR_LOCK: Duration = Duration::from_millis(250);

/// What the program brings along.
#[derive(Debug, Clone)]
pub struct Tool {
    /// Written into the log, the run's record and backups.
    pub version: &'static str,
    pub compiled_in: Vec<&'static Native>,
    pub worker: Worker,
}

/// A database and the settings that speak of it.
pub struct Database {
    pub(super) tool: Tool,
    pub(super) settings: Settings,
    pub(super) url: Url,
    pub(super) store: Arc<dyn Store>,
    pub(super) standing: Shared,
    pub(super) clock: Arc<dyn Clock>,
    /// Announcements of services that were found to have stopped, however recent they look.
    pub(super) silent: Mutex<BTreeSet<Said>>,
}

impl Database {
    pub async fn open(tool: Tool, settings: Settings) -> Result<Database, RunError> {
        let (url, options) = (settings.url()?, settings.options()?);
        settings.refuse_odd_times()?;
        settings.refuse_absent(&url)?;
        settings.refuse_adoption_in_place()?;
        settings.refuse_unused_tls(&url)?;
        let store = store::open(&url, settings.layout, &options).await?;
        let (standing, silent) = (Shared::default(), Mutex::default());
        Ok(Database { tool, settings, url, store, standing, clock: Arc::new(OfMachine), silent })
    }

    /// Services that say in these rows that they run, and were not found to have stopped.
    pub(super) fn live_services(&self, rows: &Snapshot) -> Vec<Live> {
        let silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        let mut live = services::live(rows, self.clock.now());
        live.retain(|service| !silent.contains(&service.said));
        live
    }

    /// The address, without its password.
    pub fn address(&self) -> String {
        self.url.to_string()
    }

    pub(super) fn migrations(&self) -> Result<Vec<Migration>, RunError> {
        Ok(migration::load(&self.settings.search_path(), &self.tool.compiled_in)?)
    }

    /// Takes the lock and finishes what an interrupted run left.
    pub(super) async fn work<'a>(&'a self, tell: &'a Tell<'a>) -> Result<Work<'a>, RunError> {
        let held = self.lock(tell).await?;
        self.standing().fence = Some(held.fence().clone());
        let work = Work { database: self, held, meter: Meter::new(tell), tell };
        match work.begin().await {
            Ok(()) => Ok(work),
            Err(error) => work.end(Err(error)).await,
        }
    }

    /// A step of a cloud upgrade waits while somebody else has the lock: it may be a part of the same upgrade
    /// that was killed, and its lock frees itself.
    async fn lock(&self, tell: &Tell<'_>) -> Result<Held, RunError> {
        let ttl = Duration::from_secs(self.settings.lock_seconds);
        let began = Instant::now();
        let mut told = false;
        loop {
            let busy = match store::hold(&self.store, &owner(self.tool.version), ttl).await {
                Err(busy @ StoreError::Busy { .. }) => busy,
                held => return Ok(held?),
            };
            if self.settings.part_of.is_none() || began.elapsed() > ttl + LOCK_MARGIN {
                return Err(busy.into());
            }
            if !std::mem::replace(&mut told, true) {
                (tell)(Event::Warning { text: format!("{busy}; waiting for that") });
            }
            tokio::time::sleep(LOOK_FOR_LOCK).await;
        }
    }

    fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finishes what an interrupted run left, if there is any: even a look must not see half of it.
    pub(super) async fn settle<'a>(&'a self, tell: &'a Tell<'a>) -> Result<(), RunError> {
        match commit::state(self.store.as_ref()).await? {
            State::Fresh | State::Settled(_) | State::Applied(_) => Ok(()),
            State::Interrupted(_) => self.work(tell).await?.end(Ok(())).await,
        }
    }
}

/// A locked database.
pub(super) struct Work<'a> {
    pub(super) database: &'a Database,
    held: Held,
    pub(super) meter: Meter<'a>,
    pub(super) tell: &'a Tell<'a>,
}

impl Work<'_> {
    pub(super) fn store(&self) -> &dyn Store {
        self.database.store.as_ref()
    }

    /// Runs `act` with the session that may write.
    pub(super) async fn session<T>(
        &self,
        act: impl AsyncFnOnce(commit::Session<'_>) -> Result<T, commit::CommitError>,
    ) -> Result<T, RunError> {
        let progress = |progress| self.meter.commit(progress);
        let session = commit::Session::new(self.store(), self.held.fence(), &progress);
        let done = act(session).await;
        self.meter.end();
        Ok(done?)
    }

    /// Remembers where the database stood, and finishes what an interrupted run left.
    async fn begin(&self) -> Result<(), RunError> {
        let stood = commit::state(self.store()).await?;
        self.database.standing().before.get_or_insert(stood.record().cloned());
        self.recover().await
    }

    async fn recover(&self) -> Result<(), RunError> {
        let recovered = self.session(async |session| session.recover().await).await?;
        let what = match recovered {
            Recovered::Nothing => return Ok(()),
            Recovered::Abandoned(run) => {
                format!(
                    "what run {run} had staged before it was interrupted is removed; the old data is live"
                )
            }
            Recovered::Completed(run) => {
                format!(
                    "run {run} was interrupted after its commit and is now complete; the new data is live"
                )
            }
            Recovered::RolledBack(run) => {
                format!("the way back of run {run} was interrupted and is now complete; the old data is live")
            }
            Recovered::Finalized(run) => format!("run {run} was being made final and now is"),
        };
        (self.tell)(Event::Recovered { what });
        Ok(())
    }

    /// Frees the lock. A failure to free it only matters if all else went well: it frees itself.
    pub(super) async fn end<T>(self, outcome: Result<T, RunError>) -> Result<T, RunError> {
        let released = self.held.release(self.database.store.as_ref()).await;
        self.database.standing().fence = None;
        if let (Ok(_), Err(error)) = (&outcome, released) {
            (self.tell)(Event::Warning { text: format!("the lock was not freed and frees itself: {error}") });
        }
        outcome
    }
}

/// Who holds the lock, for whoever finds it held.
fn owner(version: &str) -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("midflight {version}, process {} on {host}", std::process::id())
}
