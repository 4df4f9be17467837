//! The wish that one loop of this process ends, from another thread.
//!
//! Invariant: a loop that was asked to stop is woken, so it finds out at once.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use super::reactor::Waker;

/// Ends the loop whose waker it holds.
#[derive(Debug, Clone)]
pub struct Stop {
    asked: Arc<AtomicBool>,
    waker: Waker,
}

impl Stop {
    pub fn of(waker: Waker) -> Stop {
        Stop { asked: Arc::new(AtomicBool::new(false)), waker }
    }

    pub fn ask(&self) {
        self.asked.store(true, Ordering::Release);
        self.waker.wake();
    }

    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }
}
