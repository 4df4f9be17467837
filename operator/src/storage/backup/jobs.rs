//! Work that instance managers do for a while: who listens to it, and how far it is.
//!
//! The invariant: nothing here is needed to go on. Work of which nobody knows is ordered again, and then ends at once or
//! is refused until it has ended.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use jiff::{SignedDuration, Timestamp};
use midflight_plan::storage::backup::Work;
use tokio::task::AbortHandle;
use tonic::{Code, Response, Status, Streaming};

use crate::controller::{Key, Wake};
use crate::storage::orders::proto::{self, backup_event::Event};

const LONGEST_WAIT: SignedDuration = SignedDuration::from_secs(60);
/// What is not allowed may have been so only at that moment; this often it was not.
const MEANT: u32 = 3;

struct Job<W> {
    what: W,
    work: Work,
    failures: u32,
    task: AbortHandle,
}

/// The work of one controller, by the key that it is for; of what kind it is `W` says.
pub(super) struct Jobs<W> {
    all: Arc<Mutex<HashMap<Key, Job<W>>>>,
    wake: OnceLock<Wake<Key>>,
}

impl<W> Default for Jobs<W> {
    fn default() -> Jobs<W> {
        Jobs { all: Arc::default(), wake: OnceLock::new() }
    }
}

fn lock<W>(all: &Mutex<HashMap<Key, Job<W>>>) -> MutexGuard<'_, HashMap<Key, Job<W>>> {
    all.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<W: Clone + Default + PartialEq + Send + 'static> Jobs<W> {
    /// Whom to wake when something is heard.
    pub(super) fn wakes(&self, wake: &Wake<Key>) {
        // Set once: a controller is added once.
        let _ = self.wake.set(wake.clone());
    }

    /// What was ordered last for a key, and how far it is.
    pub(super) fn of(&self, key: &Key) -> (W, Work) {
        let all = lock(&self.all);
        all.get(key).map_or_else(|| (W::default(), Work::None), |job| (job.what.clone(), job.work.clone()))
    }

    pub(super) fn forget(&self, key: &Key) {
        if let Some(job) = lock(&self.all).remove(key) {
            job.task.abort();
        }
    }

    /// Orders something, and listens until its end.
    pub(super) fn follow(
        &self,
        key: &Key,
        what: W,
        order: impl Future<Output = Result<Response<Streaming<proto::BackupEvent>>, Status>> + Send + 'static,
    ) {
        self.begin(key, what, |tell| async move {
            listen(order, |percent| tell(Ok(Work::Running { percent }))).await
        });
    }

    /// Orders something that tells only of its end.
    pub(super) fn await_end(
        &self,
        key: &Key,
        what: W,
        order: impl Future<Output = Result<(), Status>> + Send + 'static,
    ) {
        self.begin(key, what, |_| async move { order.await.map(|()| done(0)) });
    }

    /// Begins something that says how far it is, and how it has ended.
    fn begin<F>(&self, key: &Key, what: W, work: impl FnOnce(Tell) -> F)
    where
        F: Future<Output = Result<Work, Status>> + Send + 'static,
    {
        let Some(wake) = self.wake.get().cloned() else { return };
        let (all, of) = (Arc::clone(&self.all), key.clone());
        let tell: Tell = Arc::new(move |work| {
            if let Some(job) = lock(&all).get_mut(&of) {
                job.hear(work);
            }
            wake.one(of.clone());
        });
        let work = work(Arc::clone(&tell));
        // Held until the job is known, so that its task finds it.
        let mut jobs = lock(&self.all);
        let task = tokio::spawn(async move { tell(work.await) });
        let failures = jobs.get(key).filter(|job| job.what == what).map_or(0, |job| job.failures);
        let job = Job { what, work: Work::Running { percent: 0 }, failures, task: task.abort_handle() };
        if let Some(before) = jobs.insert(key.clone(), job) {
            before.task.abort();
        }
    }
}

/// Whom to tell how far something is.
type Tell = Arc<dyn Fn(Result<Work, Status>) + Send + Sync>;

impl<W> Drop for Jobs<W> {
    fn drop(&mut self) {
        lock(&self.all).values().for_each(|job| job.task.abort());
    }
}

impl<W> Job<W> {
    fn hear(&mut self, work: Result<Work, Status>) {
        self.work = work.unwrap_or_else(|status| {
            self.failures += 1;
            let wait = SignedDuration::from_secs(1 << self.failures.min(6)).min(LONGEST_WAIT);
            Work::Failed {
                why: status.message().to_owned(),
                is_final: status.code() == Code::InvalidArgument && self.failures >= MEANT,
                again: Timestamp::now().saturating_add(wait).unwrap_or(Timestamp::MAX),
            }
        });
    }
}

fn done(new_bytes: u64) -> Work {
    Work::Done { new_bytes, at: Timestamp::now() }
}

async fn listen(
    order: impl Future<Output = Result<Response<Streaming<proto::BackupEvent>>, Status>>,
    tell: impl Fn(i32),
) -> Result<Work, Status> {
    let mut events = order.await?.into_inner();
    while let Some(event) = events.message().await? {
        match event.event {
            Some(Event::Progress(now)) => tell(percent(&now)),
            Some(Event::Created(made)) => return Ok(done(made.new_bytes)),
            Some(Event::Restored(all)) => return Ok(done(all.written_bytes)),
            // Something else that a later instance manager tells.
            Some(Event::Verified(_)) | None => {}
        }
    }
    Err(Status::aborted("the instance manager has ended before the work"))
}

/// Short of all, until the end is heard.
fn percent(now: &proto::Progress) -> i32 {
    let hundredths = now.done_bytes.saturating_mul(100).checked_div(now.total_bytes).unwrap_or_default();
    i32::try_from(hundredths.min(99)).unwrap_or(99)
}
