//! Hears when someone wants us to stop.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Ctrl-C and SIGTERM. A closed terminal (SIGHUP) is left to its default: it
/// ends a watching `up` and nothing else.
#[derive(Debug)]
pub(crate) struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupts {
    pub(crate) fn listen() -> io::Result<Interrupts> {
        Ok(Interrupts {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Returns at the next one.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
