//! How work on the layers makes way for requests, in all copies that one process serves.
//!
//! Each volume has a loop of its own, and they share the CPUs and the disk of their node: copies take turns, so
//! that snapshots of many volumes that are sealed or merged at once cost clients no more than that of one.
//!
//! Invariant: while requests come to any of them, at most a fifth of one CPU goes into work that can wait, and no
//! more than 64 MiB of it are done in a second.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::wire::{Frame, Kind};

/// So long after a request others are expected.
const BUSY_FOR: Duration = Duration::from_millis(100);
/// For every moment of work so many of rest.
const RESTS: u32 = 4;
/// From one piece to the next, however fast it is: a disk has to keep up with them.
const LEAST: Duration = Duration::from_millis(4);

/// Who may do a piece of work when.
#[derive(Debug)]
pub(super) struct Pace(Mutex<Turns>);

#[derive(Debug)]
struct Turns {
    /// When the last request came.
    heard: Option<Instant>,
    /// When the turn after those that were given begins.
    free: Option<Instant>,
    /// How long a piece took last.
    usual: Duration,
}

impl Pace {
    pub(super) const fn new() -> Pace {
        Pace(Mutex::new(Turns { heard: None, free: None, usual: Duration::ZERO }))
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn heard(&self, now: Instant) {
        self.turns().heard = Some(now);
    }

    /// Gives the next turn away.
    pub(super) fn turn(&self, now: Instant) -> Turn {
        let mut turns = self.turns();
        let expected = rest(turns.usual);
        if !turns.is_busy(now) {
            turns.free = None;
            return Turn { at: now, expected };
        }
        let at = turns.free.map_or(now, |free| free.max(now));
        turns.free = Some(at + expected);
        Turn { at, expected }
    }

    /// A piece of work was done. What it took beyond what was expected, those rest who come next.
    pub(super) fn worked(&self, turn: Turn, took: Duration) {
        let mut turns = self.turns();
        let beyond = rest(took).saturating_sub(turn.expected);
        turns.free = turns.free.map(|free| free + beyond);
        turns.usual = took;
    }
}

/// When whoever has it may do a piece of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) at: Instant,
    /// How long it keeps all others away, as far as was known.
    expected: Duration,
}

/// Whether others are expected after it. Engines ask every copy each second whether it is there, also where nobody
/// reads or writes: with many of them something would always have just come.
pub(super) fn is_request(frame: &Frame) -> bool {
    frame.header.kind != Kind::Ping || !frame.payload.is_empty()
}

/// From the beginning of a piece of work that takes so long to that of the next.
fn rest(took: Duration) -> Duration {
    (took * (1 + RESTS)).max(LEAST)
}

impl Turns {
    fn is_busy(&self, now: Instant) -> bool {
        self.heard.is_some_and(|heard| now < heard + BUSY_FOR)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{epoch::Epoch, wire::Header};

    #[test]
    fn who_only_asks_whether_a_copy_is_there_keeps_no_work_waiting() {
        let header = |kind| Header::new(kind, 0, Epoch::NONE);
        assert!(!is_request(&Frame::bare(header(Kind::Ping))));
        for kind in [Kind::Read, Kind::Write, Kind::Flush, Kind::Step, Kind::Promise] {
            assert!(is_request(&Frame::bare(header(kind))), "{kind:?}");
        }
        let announced = Frame::with(header(Kind::Ping), Bytes::from_static(b"a step"));
        assert!(is_request(&announced), "writes will wait for it");
    }

    #[test]
    fn copies_take_turns_while_requests_come() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let ms = Duration::from_millis;
        let pace = Pace::new();
        let turn = |now: u64| pace.turn(at(now)).at;
        assert_eq!([turn(0), turn(0)], [at(0), at(0)], "nobody asks for anything");

        pace.heard(at(10));
        let first = pace.turn(at(10));
        assert_eq!(first.at, at(10), "the first may begin at once");
        let second = pace.turn(at(10));
        assert_eq!([second.at, turn(10)], [at(14), at(18)], "the others one by one");
        pace.worked(first, ms(2));
        assert_eq!(turn(12), at(22 + 6), "a piece of 2 ms takes 8 ms of rest with it");
        assert_eq!(turn(12), at(38), "and so will the next, as far as anybody knows");
        pace.worked(second, ms(2));
        assert_eq!(turn(15), at(48 + 6), "nor was this expected when its turn was given");
        let quick = pace.turn(at(15));
        pace.worked(quick, Duration::ZERO);
        assert_eq!([turn(15), turn(15)], [at(74), at(78)], "what was quick gives nothing back");
        assert_eq!(turn(90), at(90), "what is due is due now");

        assert_eq!([turn(110), turn(110)], [at(110), at(110)], "nobody asks any more");
        pace.heard(at(120));
        assert_eq!(turn(120), at(120), "turns of before are forgotten");
    }

    #[test]
    fn work_takes_its_share_however_many_copies_have_some() {
        let start = Instant::now();
        let pace = Pace::new();
        let (mut worked, took) = (Duration::ZERO, Duration::from_millis(3));
        pace.heard(start);
        let mut turns: Vec<Turn> = (0..60).map(|_| pace.turn(start)).collect();
        for ms in 0..10_000 {
            let now = start + Duration::from_millis(ms);
            pace.heard(now);
            for turn in turns.iter_mut().filter(|turn| turn.at <= now) {
                worked += took;
                pace.worked(*turn, took);
                *turn = pace.turn(now);
            }
        }
        assert!(worked <= Duration::from_millis(2_100), "{worked:?} of ten seconds");
        assert!(worked >= Duration::from_millis(1_900), "{worked:?} of ten seconds");
    }
}
