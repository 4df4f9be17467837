//! Spreads work over all cores: whoever is done takes the next piece.
//!
//! The one invariant: results come in the order of the pieces.

use std::sync::{Mutex, PoisonError};

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
            Err(panic) => std::panic::resume_unwind(panic),
        });
        joined.flatten().collect::<Vec<_>>()
    });
    done.sort_unstable_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
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
}
