//! The lock of a database, and what proves that it is held.
//!
//! A lease alone is no lock: its holder may sleep past the end of it. So every batch carries the
//! fence, and the server compares it in the same transaction that writes.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::{Store, StoreError};

/// Proof of one taking of the lock; a later taking has another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    /// Differs for every taking of this database's lock.
    pub(crate) number: u64,
    /// What the server knows the lease by, where that is not the number.
    pub(crate) lease: i64,
    pub(crate) owner: Arc<str>,
    pub(crate) ttl: Duration,
}

/// Holds the lock and keeps renewing it. Dropped without [`Held::release`], the lock frees itself
/// when its time is over, as it does for a process that died.
#[derive(Debug)]
pub struct Held {
    fence: Fence,
    renewing: JoinHandle<()>,
}

impl Held {
    pub fn fence(&self) -> &Fence {
        &self.fence
    }

    pub async fn release(mut self, store: &dyn Store) -> Result<(), StoreError> {
        self.renewing.abort();
        // Until it has ended it keeps the store open, which for a file means for everybody else.
        let _ = (&mut self.renewing).await;
        store.unlock(&self.fence).await
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.renewing.abort();
    }
}

/// Takes the lock and renews it in the background until it is released or lost.
pub async fn hold(store: &Arc<dyn Store>, owner: &str, ttl: Duration) -> Result<Held, StoreError> {
    let fence = store.lock(owner, ttl).await?;
    let renewing = tokio::spawn(keep(store.clone(), fence.clone()));
    Ok(Held { fence, renewing })
}

/// A renewal that gets no answer is tried again: the batches find out by themselves when it is
/// too late.
async fn keep(store: Arc<dyn Store>, fence: Fence) {
    let mut every = tokio::time::interval(fence.ttl / 3);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        match store.renew(&fence).await {
            Ok(()) => {}
            Err(error) if error.is_transient() => {
                tracing::warn!(error = %error, "the lock could not be renewed, trying again");
            }
            Err(error) => {
                tracing::warn!(error = %error, "the lock is lost");
                return;
            }
        }
    }
}
