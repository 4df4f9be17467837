//! Which threads wait for calls.
//!
//! The kernel wakes those who wait in turn. Each further one costs something at every call: its memory is cold, and another
//! processor may have to be woken for it. So only as many are awake as calls keep busy; the others rest until somebody had
//! to wait for the end of a long call, or until calls come faster than they are answered. Whoever is awake alone, and gets one call soon after
//! another, looks for the next one for a moment before sleeping.
//!
//! Time alone says little: on a busy machine every call takes long now and then, though nobody else waits.
//!
//! | room | what it holds |
//! | --- | --- |
//! | `sense` | the rules |
//!
//! Invariant: whenever someone rests, another waits for calls, or rings before doing something that is slow by its nature, or is
//! watched while it works.

mod sense;

use std::{
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

pub(crate) use self::sense::Pace;
use self::sense::{Need, Seen, Sense, Watch, is_one_enough, watch};

/// A call that hangs holds up the others so long, or twice as long.
const WATCH_EVERY: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
struct Rest {
    resting: usize,
    /// Those who were rung for and have not risen yet.
    called: usize,
    over: bool,
}

#[derive(Debug)]
pub(crate) struct Crew {
    waiting: AtomicUsize,
    working: AtomicUsize,
    /// Calls that were ever begun.
    begun: AtomicU64,
    /// Calls in a row during which nobody else worked.
    alone: AtomicU32,
    /// Whether somebody looks now and then if calls get anywhere.
    is_watched: AtomicBool,
    /// Whoever looks for calls must not keep those who make them from the only processor.
    may_look: bool,
    rest: Mutex<Rest>,
    bell: Condvar,
    /// Rung for whoever watches.
    alarm: Condvar,
}

/// One thread's part.
#[derive(Debug)]
pub(crate) struct Member<'a> {
    crew: &'a Crew,
    free_since: Instant,
    busy_since: Instant,
    /// Whether somebody else waited when this thread began to.
    is_one_of_many: bool,
    sense: Sense,
}

impl Crew {
    pub(crate) fn new() -> Crew {
        Crew {
            waiting: AtomicUsize::default(),
            working: AtomicUsize::default(),
            begun: AtomicU64::default(),
            alone: AtomicU32::default(),
            is_watched: AtomicBool::default(),
            may_look: thread::available_parallelism().is_ok_and(|processors| processors.get() > 1),
            rest: Mutex::default(),
            bell: Condvar::new(),
            alarm: Condvar::new(),
        }
    }

    /// A thread that begins at rest, unless it is the first.
    pub(crate) fn join(&self, first: bool) -> Member<'_> {
        if !first {
            self.sleep(self.rest());
        }
        let now = Instant::now();
        Member {
            crew: self,
            free_since: now,
            busy_since: now,
            is_one_of_many: false,
            sense: Sense::default(),
        }
    }

    /// Nobody rests any more, nor ever again.
    pub(crate) fn end(&self) {
        self.rest().over = true;
        self.bell.notify_all();
        self.alarm.notify_all();
    }

    /// Has one more wait for calls where those who are awake get nowhere; until the end.
    pub(crate) fn watch(&self) {
        let mut rest = self.rest();
        let mut before = self.seen(&rest);
        while !rest.over {
            rest = self.alarm.wait_timeout(rest, WATCH_EVERY).unwrap_or_else(PoisonError::into_inner).0;
            let now = self.seen(&rest);
            match watch(&before, &now) {
                Watch::LookAgain => {}
                Watch::Ring => self.ring(&mut rest),
                Watch::Sleep => rest = self.watch_no_more(rest, now.begun),
            }
            before = now;
        }
    }

    /// Sleeps until another call is begun, or the end.
    fn watch_no_more<'a>(&'a self, mut rest: MutexGuard<'a, Rest>, begun: u64) -> MutexGuard<'a, Rest> {
        self.is_watched.store(false, Ordering::SeqCst);
        // Whoever begins a call after this look sees that nobody watches.
        while self.begun.load(Ordering::SeqCst) == begun && !rest.over {
            rest = self.alarm.wait(rest).unwrap_or_else(PoisonError::into_inner);
        }
        self.is_watched.store(true, Ordering::SeqCst);
        rest
    }

    fn seen(&self, rest: &Rest) -> Seen {
        Seen {
            waiting: self.waiting.load(Ordering::SeqCst),
            working: self.working.load(Ordering::SeqCst),
            resting: rest.resting - rest.called,
            begun: self.begun.load(Ordering::SeqCst),
        }
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
    fn ring(&self, rest: &mut Rest) {
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
        if is_one_enough(crew.alone.load(Ordering::Relaxed)) && crew.waiting.load(Ordering::SeqCst) > 0 {
            let rest = crew.rest();
            // Whoever waits may have got a call meanwhile; then it is watched.
            if crew.waiting.load(Ordering::SeqCst) > 0 {
                crew.alone.store(0, Ordering::Relaxed);
                crew.sleep(rest);
            }
        }
        self.is_one_of_many = crew.waiting.fetch_add(1, Ordering::SeqCst) > 0;
        self.free_since = Instant::now();
    }

    /// Looks whether a call is there, as long as that is worthwhile. With others who wait, one of them is woken anyway.
    pub(crate) fn look(&mut self, mut is_there: impl FnMut() -> bool) {
        if !self.crew.may_look || self.is_one_of_many || !self.sense.is_looking_worthwhile() {
            return;
        }
        let mut looked = self.free_since;
        while !is_there() {
            let (before, now) = (looked, Instant::now());
            if !self.sense.looks_again(now - self.free_since, now - before) {
                return;
            }
            looked = now;
        }
    }

    /// A call has come, or the wait was in vain.
    pub(crate) fn begin(&mut self) {
        self.crew.waiting.fetch_sub(1, Ordering::SeqCst);
        self.busy_since = Instant::now();
    }

    /// What the call is, now that it was read.
    pub(crate) fn take(&mut self, pace: Pace) {
        let crew = self.crew;
        crew.begun.fetch_add(1, Ordering::SeqCst);
        let is_alone = crew.working.fetch_add(1, Ordering::SeqCst) == 0;
        let Need { had_to_wait, help } = self.sense.came(self.busy_since - self.free_since, pace);
        if is_alone && !had_to_wait {
            crew.alone.fetch_add(1, Ordering::Relaxed);
        } else {
            crew.alone.store(0, Ordering::Relaxed);
        }
        if help && crew.waiting.load(Ordering::SeqCst) == 0 {
            crew.ring(&mut crew.rest());
        }
        if !crew.is_watched.load(Ordering::SeqCst) {
            // With the lock in hand whoever watches either sleeps already or sees the call.
            let _rest = crew.rest();
            crew.alarm.notify_one();
        }
    }

    /// What the call asked for is done. Comes before the answer: whoever gets that may ask again at once, before this thread goes on.
    pub(crate) fn done(&mut self) {
        self.crew.working.fetch_sub(1, Ordering::SeqCst);
        self.sense.done(self.busy_since.elapsed());
    }
}
