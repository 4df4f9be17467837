//! What a test that kills at random leaves to chance; `MIDFLIGHT_SEED` chooses it, `MIDFLIGHT_KILLS` how much.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{thread, time::Duration};

use rustix::process::{Pid, Signal};

fn from_environment(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

pub(crate) fn seed() -> u64 {
    from_environment("MIDFLIGHT_SEED", 1)
}

pub(crate) fn kills(otherwise: u64) -> u64 {
    from_environment("MIDFLIGHT_KILLS", otherwise)
}

pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn of(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }

    /// Waits for a moment that nobody has chosen.
    pub(crate) fn linger(&mut self, at_most: Duration) {
        thread::sleep(self.moment(at_most));
    }

    pub(crate) fn moment(&mut self, at_most: Duration) -> Duration {
        Duration::from_micros(self.roll(u64::try_from(at_most.as_micros()).unwrap()))
    }
}

/// Kills a process after a while. Its parent has not waited for it, so the pid is still its own.
pub(crate) fn kill_later(pid: Pid, after: Duration) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        thread::sleep(after);
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    })
}
