//! How many threads wait for calls.
//!
//! The kernel wakes those who wait in turn. Each further one costs something at every call: its memory is cold, and another
//! processor may have to be woken for it. So only as many are awake as calls keep busy; the others rest until somebody had
//! to wait for the end of a long call, or until calls come faster than they are answered.
//!
//! Time alone says little: on a busy machine every call takes long now and then, though nobody else waits.
//!
//! Invariant: whenever someone rests, another waits for calls, or rings before doing something that is slow by its nature.

use std::{
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// A call that took so long is one during which others may have waited.
const LONG: Duration = Duration::from_micros(150);
/// A call that came so soon was there already.
const AT_ONCE: Duration = Duration::from_micros(3);
/// So many calls in a row that were there already mean that there are more than can be answered.
const PRESSED: u32 = 16;
/// So many calls in a row that one thread could have answered alone mean that one is too many.
const ALONE: u32 = 1024;

/// What a call asks of the crew before it is worked on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    Quick,
    /// Others must not wait for its end.
    Slow,
}

#[derive(Debug, Default)]
struct Rest {
    resting: usize,
    /// Those who were rung for and have not risen yet.
    called: usize,
    over: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Crew {
    waiting: AtomicUsize,
    working: AtomicUsize,
    /// Calls in a row during which nobody else worked.
    alone: AtomicU32,
    rest: Mutex<Rest>,
    bell: Condvar,
}

/// One thread's part.
#[derive(Debug)]
pub(crate) struct Member<'a> {
    crew: &'a Crew,
    free_since: Instant,
    busy_since: Instant,
    /// Whether the last call took long.
    was_long: bool,
    pressed: u32,
}

impl Crew {
    /// A thread that begins at rest, unless it is the first.
    pub(crate) fn join(&self, first: bool) -> Member<'_> {
        if !first {
            self.sleep(self.rest());
        }
        let now = Instant::now();
        Member { crew: self, free_since: now, busy_since: now, was_long: false, pressed: 0 }
    }

    /// Nobody rests any more, nor ever again.
    pub(crate) fn end(&self) {
        self.rest().over = true;
        self.bell.notify_all();
    }

    fn rest(&self) -> MutexGuard<'_, Rest> {
        self.rest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sleep(&self, mut rest: MutexGuard<'_, Rest>) {
        rest.resting += 1;
        while rest.called == 0 && !rest.over {
            rest = self.bell.wait(rest).unwrap_or_else(PoisonError::into_inner);
        }
        rest.resting -= 1;
        rest.called = rest.called.saturating_sub(1);
    }

    /// Has one more wait for calls, if one is left.
    fn ring(&self) {
        let mut rest = self.rest();
        if rest.called < rest.resting {
            rest.called += 1;
            self.bell.notify_one();
        }
    }
}

impl Member<'_> {
    /// Before waiting for a call: rests where that can be done without.
    pub(crate) fn wait(&mut self) {
        let crew = self.crew;
        if crew.alone.load(Ordering::Relaxed) > ALONE && crew.waiting.load(Ordering::SeqCst) > 0 {
            let rest = crew.rest();
            // Whoever waits may have got a call meanwhile; then it has rung before, in vain, or will.
            if crew.waiting.load(Ordering::SeqCst) > 0 {
                crew.alone.store(0, Ordering::Relaxed);
                crew.sleep(rest);
            }
        }
        self.free_since = Instant::now();
        crew.waiting.fetch_add(1, Ordering::SeqCst);
    }

    /// A call has come, or the wait was in vain.
    pub(crate) fn begin(&mut self) {
        self.crew.waiting.fetch_sub(1, Ordering::SeqCst);
        self.busy_since = Instant::now();
    }

    /// What the call is, now that it was read.
    pub(crate) fn take(&mut self, pace: Pace) {
        let crew = self.crew;
        if crew.working.fetch_add(1, Ordering::Relaxed) == 0 {
            crew.alone.fetch_add(1, Ordering::Relaxed);
        } else {
            crew.alone.store(0, Ordering::Relaxed);
        }
        let was_there = self.busy_since - self.free_since < AT_ONCE;
        let had_to_wait = was_there && self.was_long;
        if had_to_wait {
            crew.alone.store(0, Ordering::Relaxed);
        }
        self.pressed = if was_there { self.pressed + 1 } else { 0 };
        let nobody_waits = crew.waiting.load(Ordering::SeqCst) == 0;
        if nobody_waits && (pace == Pace::Slow || had_to_wait || self.pressed >= PRESSED) {
            self.pressed = 0;
            crew.ring();
        }
    }

    /// What the call asked for is done. Comes before the answer: whoever gets that may ask again at once, before this thread goes on.
    pub(crate) fn done(&mut self) {
        self.crew.working.fetch_sub(1, Ordering::Relaxed);
        self.was_long = self.busy_since.elapsed() > LONG;
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread};

    use super::*;

    fn resting(crew: &Crew) -> usize {
        let rest = crew.rest();
        rest.resting - rest.called
    }

    fn reaches(crew: &Crew, expected: usize) {
        let until = Instant::now() + Duration::from_secs(20);
        while resting(crew) != expected {
            assert!(Instant::now() < until, "{} rest instead of {expected}", resting(crew));
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// A thread that rests until it is rung for, then waits for a call for ever.
    fn sleeper(crew: &Arc<Crew>) -> thread::JoinHandle<()> {
        let crew = Arc::clone(crew);
        thread::spawn(move || crew.join(false).wait())
    }

    #[test]
    fn one_is_awake_until_calls_take_long_or_crowd() {
        let crew = Arc::new(Crew::default());
        let others: Vec<_> = (0..3).map(|_| sleeper(&crew)).collect();
        reaches(&crew, 3);
        let mut first = crew.join(true);
        let mut call = |pace: Pace, after: Duration, was_long: bool| {
            first.wait();
            first.begin();
            (first.busy_since, first.was_long) = (first.free_since + after, was_long);
            first.take(pace);
            first.done();
        };
        let later = AT_ONCE * 10;
        (0..100).for_each(|_| call(Pace::Quick, later, false));
        (0..100).for_each(|_| call(Pace::Quick, later, true));
        assert_eq!(resting(&crew), 3, "nobody is needed, however long calls take");
        call(Pace::Slow, later, false);
        reaches(&crew, 2);
        crew.end();
        reaches(&crew, 0);
        others.into_iter().for_each(|other| other.join().unwrap());
    }

    #[test]
    fn whoever_had_to_wait_gets_another_thread() {
        let crew = Arc::new(Crew::default());
        let other = sleeper(&crew);
        reaches(&crew, 1);
        let mut first = crew.join(true);
        first.wait();
        first.begin();
        (first.busy_since, first.was_long) = (first.free_since, true);
        first.take(Pace::Quick);
        reaches(&crew, 0);
        other.join().unwrap();
    }

    #[test]
    fn whoever_is_too_many_rests_while_another_waits() {
        let crew = Arc::new(Crew::default());
        let mut one = crew.join(true);
        crew.alone.store(ALONE + 1, Ordering::Relaxed);
        one.wait();
        assert_eq!(resting(&crew), 0, "somebody has to wait");
        let too_many = Arc::clone(&crew);
        let two = thread::spawn(move || too_many.join(true).wait());
        reaches(&crew, 1);
        one.begin();
        one.take(Pace::Slow);
        two.join().unwrap();
        assert_eq!(resting(&crew), 0);
    }
}
