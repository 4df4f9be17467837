//! Spreads work over all cores: whoever is done takes the next piece; and puts work aside that has time.
//!
//! The one invariant: results come in the order of the pieces.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, PoisonError};

use tokio::sync::oneshot;

/// Rows in a piece: enough to be worth the taking, few enough that no core
/// waits long for the last one.
pub(crate) const PIECE: usize = 4096;

/// What `work` makes of each piece. A panic in it goes on in the caller.
pub(crate) fn each<T: Send, R: Send>(
    pieces: impl ExactSizeIterator<Item = T> + Send,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from).min(pieces.len());
    let pieces = Mutex::new(pieces.enumerate());
    let lane = || {
        let mut done = vec![];
        loop {
            // The guard is gone before the work begins.
            let next = pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((index, piece)) = next else { return done };
            done.push((index, work(piece)));
        }
    };
    let mut done = std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..cores).map(|_| scope.spawn(lane)).collect();
        let joined = lanes.into_iter().map(|lane| match lane.join() {
            Ok(done) => done,
            Err(panic) => resume_unwind(panic),
        });
        joined.flatten().collect::<Vec<_>>()
    });
    done.sort_unstable_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

/// How much an aside steps back behind those who talk to the server, and behind the server itself: half of what they
/// get, so that it comes to an end on a busy machine too.
const STEP_BACK: i32 = 3;

/// Runs `work` on a thread of its own that takes what the others leave of the processors. A panic in it goes on in the
/// caller.
pub(crate) async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = oneshot::channel();
    std::thread::spawn(move || {
        // A favour to the others: without it all is as well, only later.
        let _ = rustix::process::nice(STEP_BACK);
        // Nobody to hear it means that nobody wants it any more.
        let _ = tell.send(catch_unwind(AssertUnwindSafe(work)));
    });
    match told.await.expect("the thread always tells how it ended") {
        Ok(done) => done,
        Err(panic) => resume_unwind(panic),
    }
}

/// Frees something large without anybody having to wait for it.
pub(crate) fn let_go<T: Send + 'static>(what: T) {
    // Where no thread can be had it is freed here.
    let _ = std::thread::Builder::new().spawn(move || drop(what));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_order_and_leaves_nothing_out() {
        for count in [0, 1, 2, 1000] {
            let squares = each(0..count, |n| n * n);
            assert_eq!(squares, (0..count).map(|n| n * n).collect::<Vec<_>>());
        }
    }

    #[tokio::test]
    async fn what_is_put_aside_comes_back_also_as_a_panic() {
        assert_eq!(aside(|| 6 * 7).await, 42);
        let panicked = tokio::spawn(aside(|| -> u8 { panic!("on purpose") })).await;
        assert!(panicked.is_err_and(|error| error.is_panic()));
    }
}
