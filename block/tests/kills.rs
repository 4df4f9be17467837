//! Real processes under verified I/O while replicas, engines, the frontend and its keeper
//! are killed with SIGKILL at random moments, switch-overs in the middle of it.
//!
//! `MIDFLIGHT_SEED` chooses what happens, `MIDFLIGHT_KILLS` how much of it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod chance;
mod volume;

use std::{
    thread,
    time::{Duration, Instant},
};

use chance::Dice;
use midflight_block::tour::{DRAIN_WITHIN, Layout, Plane, TourError, replicas_equal};
use volume::{WHOLE_WITHIN, layout, start};

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
    let (seed, kills) = (chance::seed(), chance::kills(kills));
    let folder = tempfile::tempdir().unwrap();
    let mut plane = begin(layout(folder.path(), 8 << 20)).unwrap();
    let load = volume::lasting_load(&plane, seed);
    let mut chaos = Chaos { dice: Dice::of(seed), dead: [false; 3], killed_frontends: 0 };
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
    let cuts = 0..=chaos.killed_frontends;
    assert!(cuts.contains(&report.cuts), "seed {seed}: cut off without a reason, {cuts:?}: {report:?}");
}

fn last_words(folder: &std::path::Path) -> String {
    let log = std::fs::read_to_string(folder.join("processes.log")).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

struct Chaos {
    dice: Dice,
    dead: [bool; 3],
    killed_frontends: u64,
}

impl Chaos {
    fn disturb(&mut self, plane: &mut Plane) -> Result<(), TourError> {
        self.dice.linger(Duration::from_millis(40));
        plane.tend()?;
        let victim = self.dice.roll(3) as usize;
        match self.dice.roll(12) {
            0..=2 => self.kill_replica(plane, victim),
            3 => plane.restart_engine()?,
            4 => {
                // Everyone at once.
                plane.engine().kill();
                (0..3).for_each(|number| self.kill_replica(plane, number));
            }
            5 => self.take_in(plane, victim)?,
            6 => self.kill_frontend(plane),
            7 => plane.keeper().kill(),
            8 => {
                // What was offered is known to nobody any more.
                plane.keeper().kill();
                self.kill_frontend(plane);
            }
            _ => {
                let after = self.dice.moment(Duration::from_millis(30));
                self.switch(plane, after)?;
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

    fn kill_frontend(&mut self, plane: &mut Plane) {
        plane.frontend().kill();
        self.killed_frontends += 1;
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
    fn switch(&mut self, plane: &mut Plane, kill_after: Duration) -> Result<(), TourError> {
        for number in 0..3 {
            self.revive(plane, number)?;
        }
        let successor = plane.start_successor()?;
        let victim = self.dice.roll(6) as usize;
        let pid = match victim {
            3 => successor.pid(),
            4 => plane.frontend().pid(),
            5 => plane.keeper().pid(),
            number => plane.replica(number).pid(),
        };
        let killer = chance::kill_later(pid, kill_after);
        let switched = plane.switch_to(successor, DRAIN_WITHIN);
        killer.join().expect("it only kills");
        match victim {
            0..=2 => self.dead[victim] = true,
            4 => self.killed_frontends += 1,
            _ => {}
        }
        plane.tend()?;
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
