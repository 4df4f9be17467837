//! Keeps work going that nobody waits for.
//!
//! The one invariant: a task that is supervised ends only when it says so itself; a panic is told and the work
//! begins anew, from what it finds.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt;
use tokio_util::sync::CancellationToken;

/// A defect that comes back at once must not take a whole core.
const REST: Duration = Duration::from_secs(1);

/// Does the work until it returns, or until the server stops while it rests after a panic.
pub(super) async fn supervise<F>(task: &'static str, stopping: CancellationToken, work: impl Fn() -> F)
where
    F: Future<Output = ()>,
{
    while let Err(panic) = AssertUnwindSafe(work()).catch_unwind().await {
        let reason = reason(&*panic);
        tracing::error!(task, reason, "ran into a defect of the server and begins anew");
        tokio::select! {
            () = stopping.cancelled() => return,
            () = tokio::time::sleep(REST) => {}
        }
    }
}

/// What a panic says.
pub(crate) fn reason(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test]
    async fn work_goes_on_after_a_panic_and_ends_when_it_says_so() {
        let begun = AtomicU32::new(0);
        let work = || async {
            let turn = begun.fetch_add(1, Ordering::Relaxed);
            assert!(turn > 0, "a defect in turn {turn}");
        };
        supervise("work", CancellationToken::new(), work).await;
        assert_eq!(begun.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn a_server_that_stops_does_not_wait_for_a_task_that_rests() {
        let stopping = CancellationToken::new();
        stopping.cancel();
        supervise("work", stopping, || async { panic!("always") }).await;
    }
}
