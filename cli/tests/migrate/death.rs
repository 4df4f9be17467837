//! Commands killed with -9 at random times. The next start sees the old or the new, or completes what
//! the marker promises before anything else; and running the command again is harmless.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::{
    cloud::{Cloud, DRAGONFLOW, GENERATION, Kind},
    dump::{Dump, Live},
    random::{self, Random},
    support::text,
};

const APPLY: &[&str] = &["apply", "--path", "own", "--no-backup", "--lock-for", "1"];
const ROLLBACK: &[&str] = &["rollback", "--lock-for", "1"];
const FINALIZE: &[&str] = &["finalize", "--lock-for", "1"];

/// A cloud, what it was before the migration and what it is after it, and how long things take.
struct Story {
    cloud: Cloud,
    random: Random,
    before: Dump,
    old: Live,
    new: Live,
    apply_takes: Duration,
    rollback_takes: Duration,
}

impl Story {
    fn begin(kind: Kind, layout: &'static str, seed: u64) -> Option<Story> {
        let cloud = Cloud::on(kind, layout, 300)?;
        cloud.migration("mark", 1, "lport", "[jq]\nlport = '.mark = 1'");
        let random = Random::of(seed, &format!("{cloud:?}"));
        let before = cloud.dump();
        let timed = |act: &[&str]| {
            let began = Instant::now();
            cloud.ok(act);
            began.elapsed()
        };
        let apply_takes = timed(APPLY);
        let new = cloud.dump().live_but_log();
        let rollback_takes = timed(ROLLBACK);
        let old = before.live_but_log();
        cloud.dump().assert_same(&before, "undisturbed");
        Some(Story { cloud, random, before, old, new, apply_takes, rollback_takes })
    }

    /// Kills the command at a random time, looks, and runs it again.
    fn killed(&mut self, act: &[&str], takes: Duration) -> Dump {
        let moment = self.random.moment(takes);
        let what = format!("{:?}, {} killed after {moment:?}", self.cloud, act[0]);
        let mut run = self.cloud.begin(&mut self.cloud.command(act));
        std::thread::sleep(moment);
        run.signal(Signal::KILL);
        run.end();

        let seen = self.cloud.dump();
        let promised = self.cloud.layout == DRAGONFLOW && ["committed", "undoing"].contains(&&*seen.phase);
        assert!(promised || self.is_whole(&seen), "{what}: a mixture, and no marker");
        // Even a look completes it first, once the dead run's lock is free.
        let looked = self.cloud.insist(&["status"]);
        assert!(looked.status.success(), "{what}: {}", text(&looked.stderr));
        let seen = self.cloud.dump();
        assert!(self.is_whole(&seen), "{what}: still a mixture after the next start");
        assert!(["applied", "finalized", "rolledBack", "abandoned"].contains(&&*seen.phase), "{what}");

        let again = self.cloud.insist(act);
        let harmless = matches!(again.status.code(), Some(0 | 3));
        assert!(harmless, "{what}, and again: {}", text(&again.stderr));
        self.cloud.dump()
    }

    fn is_whole(&self, seen: &Dump) -> bool {
        let live = seen.live_but_log();
        live == self.old || live == self.new
    }

    fn apply(&mut self) {
        let seen = self.killed(APPLY, self.apply_takes);
        assert!(seen.live_but_log() == self.new, "{:?}: the second time it is applied", self.cloud);
    }

    fn rollback(&mut self) {
        let seen = self.killed(ROLLBACK, self.rollback_takes);
        seen.assert_same(&self.before, &format!("{:?}: back to the same bytes", self.cloud));
        seen.assert_settled("rolled back");
    }

    fn finalize(&mut self) {
        let seen = self.killed(FINALIZE, self.rollback_takes);
        assert!(seen.live_but_log() == self.new, "{:?}: for good", self.cloud);
        seen.assert_settled("final");
    }
}

fn on(kind: Kind) {
    let seed = random::seed();
    let rounds = std::env::var("MIDFLIGHT_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    for layout in [DRAGONFLOW, GENERATION] {
        let Some(mut story) = Story::begin(kind, layout, seed) else { return };
        for _ in 0..rounds {
            story.apply();
            story.rollback();
        }
        story.apply();
        story.finalize();
    }
}

#[test]
fn killed_at_random_times_on_a_file() {
    on(Kind::Embedded);
}

#[test]
fn killed_at_random_times_on_etcd() {
    on(Kind::Etcd);
}

#[test]
fn killed_at_random_times_on_redis() {
    on(Kind::Redis);
}
