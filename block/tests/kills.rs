//! Real processes under verified I/O while replicas and engines are killed with
//! SIGKILL at random moments, switch-overs in the middle of it.
//!
//! `MIDFLIGHT_SEED` chooses what happens, `MIDFLIGHT_KILLS` how much of it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod volume;

use std::{
    thread,
    time::{Duration, Instant},
};

use midflight_block::tour::{DRAIN_WITHIN, Layout, Plane, TourError, replicas_equal};
use rustix::process::{Pid, Signal};
use volume::{WHOLE_WITHIN, layout, start};

fn from_environment(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }
}

#[test]
fn a_killed_replica_is_dropped_by_the_record_and_rebuilt_by_what_it_missed() {
    let folder = tempfile::tempdir().unwrap();
    let mut plane = start(folder.path(), 32 << 20);
    let load = volume::load(&plane, 5);
    for number in 0..3 {
        thread::sleep(Duration::from_millis(100));
        plane.replica(number).kill();
        let began = Instant::now();
        while plane.record().unwrap().in_service() == 3 {
            assert!(began.elapsed() < WHOLE_WITHIN, "it is never dropped");
            thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(plane.record().unwrap().in_service(), 2);
        plane.restart_replica(number).unwrap();
        plane.wait_until_whole(WHOLE_WITHIN).unwrap();
    }
    load.judge();
    assert!(replicas_equal(&plane.stop().unwrap()).unwrap());
}

#[test]
fn nothing_is_lost_when_processes_are_killed_at_random() {
    kill_at_random(30, Plane::start);
}

#[test]
fn nothing_is_lost_when_an_engine_dies_with_a_copy_in_its_process() {
    kill_at_random(20, Plane::start_with_local);
}

fn kill_at_random(kills: u64, begin: impl FnOnce(Layout) -> Result<Plane, TourError>) {
    let seed = from_environment("MIDFLIGHT_SEED", 1);
    let kills = from_environment("MIDFLIGHT_KILLS", kills);
    let folder = tempfile::tempdir().unwrap();
    let mut plane = begin(layout(folder.path(), 8 << 20)).unwrap();
    let load = volume::load(&plane, seed);
    let mut chaos = Chaos { dice: Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1), dead: [false; 3] };
    for _ in 0..kills {
        chaos.disturb(&mut plane).unwrap_or_else(|error| {
            panic!("seed {seed}: {error}\n{}", last_words(folder.path()));
        });
    }
    for number in 0..3 {
        chaos.revive(&mut plane, number).unwrap();
    }
    plane.wait_until_whole(WHOLE_WITHIN).unwrap_or_else(|error| {
        panic!("seed {seed}: {error}\n{}", last_words(folder.path()));
    });
    let report = load.judge();
    assert!(replicas_equal(&plane.stop().unwrap()).unwrap(), "seed {seed}");
    assert!(report.writes > kills, "seed {seed}: {report:?}");
}

fn last_words(folder: &std::path::Path) -> String {
    let log = std::fs::read_to_string(folder.join("processes.log")).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

struct Chaos {
    dice: Dice,
    dead: [bool; 3],
}

impl Chaos {
    fn disturb(&mut self, plane: &mut Plane) -> Result<(), TourError> {
        thread::sleep(Duration::from_micros(self.dice.roll(40_000)));
        plane.tend()?;
        let victim = self.dice.roll(3) as usize;
        match self.dice.roll(8) {
            0..=2 => self.kill_replica(plane, victim),
            3 => plane.restart_engine()?,
            4 => {
                // Everyone at once.
                plane.engine().kill();
                (0..3).for_each(|number| self.kill_replica(plane, number));
            }
            5 => self.take_in(plane, victim)?,
            _ => {
                let after = Duration::from_micros(self.dice.roll(30_000));
                self.switch(plane, Some(after))?;
            }
        }
        for number in 0..3 {
            if self.dice.roll(3) > 0 {
                self.revive(plane, number)?;
            }
        }
        plane.tend()
    }

    fn kill_replica(&mut self, plane: &mut Plane, number: usize) {
        plane.replica(number).kill();
        self.dead[number] = true;
    }

    fn revive(&mut self, plane: &mut Plane, number: usize) -> Result<(), TourError> {
        if std::mem::take(&mut self.dead[number]) {
            plane.restart_replica(number)?;
        }
        Ok(())
    }

    /// A switch-over to an engine that serves a copy itself, whose process was killed.
    fn take_in(&mut self, plane: &mut Plane, number: usize) -> Result<(), TourError> {
        for other in (0..3).filter(|other| *other != number) {
            self.revive(plane, other)?;
        }
        let switched = plane.switch_to_copy(number, DRAIN_WITHIN);
        self.dead[number] = switched.is_err();
        match switched {
            Ok(_) => Ok(()),
            Err(TourError::Control(_)) => {
                self.revive(plane, number)?;
                plane.go_forward(DRAIN_WITHIN)
            }
            Err(error) => Err(error),
        }
    }

    /// A switch-over; after a while someone who takes part in it is killed. For a
    /// switch to end, a copy in service must be there.
    fn switch(&mut self, plane: &mut Plane, kill_after: Option<Duration>) -> Result<(), TourError> {
        for number in 0..3 {
            self.revive(plane, number)?;
        }
        let successor = plane.start_successor()?;
        let victim = self.dice.roll(4) as usize;
        let pid = match victim {
            3 => successor.pid(),
            number => plane.replica(number).pid(),
        };
        let killer = kill_after.map(|after| thread::spawn(move || kill_later(pid, after)));
        let switched = plane.switch_to(successor, DRAIN_WITHIN);
        if killer.is_some_and(|killer| killer.join().is_ok()) && victim < 3 {
            self.dead[victim] = true;
        }
        match switched {
            Ok(_) => Ok(()),
            Err(TourError::Control(_)) => {
                // It may have been the last copy in service, which everyone waits for.
                (0..3).try_for_each(|number| self.revive(plane, number))?;
                plane.go_forward(DRAIN_WITHIN)
            }
            Err(error) => Err(error),
        }
    }
}

/// Its parent has not waited for it, so the pid is still its own.
fn kill_later(pid: Pid, after: Duration) {
    thread::sleep(after);
    let _ = rustix::process::kill_process(pid, Signal::KILL);
}
