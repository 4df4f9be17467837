//! Threads that burn CPU, to see what waits look like on a busy machine.
//!
//! The one invariant: none is left when the handle is dropped.

use std::{
    hint::spin_loop,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

pub(super) struct Hogs {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Hogs {
    pub(super) fn start(count: usize) -> Hogs {
        let stop = Arc::new(AtomicBool::new(false));
        let burn = |stop: Arc<AtomicBool>| {
            move || {
                while !stop.load(Ordering::Relaxed) {
                    spin_loop();
                }
            }
        };
        let threads = (0..count).map(|_| thread::spawn(burn(Arc::clone(&stop)))).collect();
        Hogs { stop, threads }
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A thread that only burns CPU does not panic.
            let _ = thread.join();
        }
    }
}
