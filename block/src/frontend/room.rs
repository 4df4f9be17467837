//! How much data all clients together may keep in this process, which is locked into memory.
//!
//! When the room is used up, everyone still has a part of its own; what is larger waits for
//! room, and who neither takes its answers nor sends what it has announced is sent away.
//!
//! Invariant: what is counted of a client is at least what it keeps here.

use std::time::{Duration, Instant};

use crate::{nbd::transmission, net::link::Link};

/// Bytes of all clients of a volume, and of all that there are.
const MOST_OF_VOLUME: u64 = 256 << 20;
const MOST_OF_ALL: u64 = 1 << 30;
/// Beyond that, what the clients of a volume have for themselves together, and each at least.
const OWN_OF_VOLUME: u64 = 64 << 20;
const SMALL: u64 = 256 << 10;
const MOVES_WITHIN: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// What each of so many clients of a volume may keep with no room left.
pub(super) fn own(clients: usize) -> u64 {
    (OWN_OF_VOLUME / clients.max(1) as u64).max(SMALL)
}

#[derive(Debug, Default)]
pub(super) struct Room {
    /// What was counted of everyone. Who was not looked at lately may keep less.
    total: u64,
    short: bool,
}

/// What one client keeps.
#[derive(Debug, Default)]
pub(super) struct Share {
    counted: u64,
    /// Bytes that were there when it was last looked at, and since when that many.
    there: u64,
    since: Option<Instant>,
    /// Whether it has to wait before more is read from it: then what it announces takes no room yet.
    pub(super) waits: bool,
}

impl Share {
    /// Whether it has done nothing for long about what it keeps here.
    pub(super) fn is_idle(&self, socket: &Link, now: Instant) -> bool {
        let unsent = !self.waits && transmission::announced(&socket.input) > socket.input.len() as u64;
        let long = self.since.is_some_and(|since| now - since > MOVES_WITHIN);
        long && (socket.backlog() as u64 > SMALL || unsent)
    }
}

impl Room {
    /// Counts a client anew; `under_way` is the data of its unanswered requests.
    pub(super) fn count(&mut self, share: &mut Share, under_way: u64, socket: &Link, now: Instant) -> u64 {
        let (sent, received) = (socket.backlog() as u64, socket.input.len() as u64);
        let announced = if share.waits { 0 } else { transmission::announced(&socket.input) };
        let counted = under_way + sent + received.max(announced);
        self.total = self.total + counted - share.counted;
        share.counted = counted;
        if share.there != sent + received || share.since.is_none() {
            (share.there, share.since) = (sent + received, Some(now));
        }
        counted
    }

    pub(super) fn leave(&mut self, share: &Share) {
        self.total -= share.counted;
    }

    /// Whether there is room for more without a closer look.
    pub(super) fn is_ample(&mut self, more: u64) -> bool {
        let ample = self.total + more <= MOST_OF_VOLUME;
        self.short &= !ample;
        ample
    }

    /// Whether a volume has more than its part, or all have.
    pub(super) fn is_short(&mut self, of_volume: u64) -> bool {
        self.short = of_volume > MOST_OF_VOLUME || self.total > MOST_OF_ALL;
        self.short
    }

    /// When to look again whether someone has made room.
    pub(super) fn deadline(&self, now: Instant) -> Option<Instant> {
        self.short.then(|| now + LOOK_AGAIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_leaves_everyone_a_part_and_all_parts_are_bounded() {
        const MOST_CLIENTS: usize = 256;
        assert_eq!([own(1), own(16), own(MOST_CLIENTS)], [64 << 20, 4 << 20, SMALL]);
        assert!((1..=MOST_CLIENTS).all(|clients| clients as u64 * own(clients) <= OWN_OF_VOLUME));
    }
}
