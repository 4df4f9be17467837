//! What will happen: the same fleet, driven by a clock that is thought up.
//!
//! The invariant: volumes begin in the order, and in the company, in which the controller would
//! begin them if nothing else changed and every upgrade took as long as expected.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use midflight_api::{ImageRef, Initiator, NodeName, Outcome, Size, VolumeName, Way};

use super::attempt::{Why, after};
use super::facts::{Policy, Volume, World};
use super::fleet::Fleet;
use super::judge::{Standing, judge};
use super::reason::{Hold, Reason};

/// How long an upgrade is expected to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    pub live: Duration,
    pub detached: Duration,
    /// Upgrades of this cluster that it was learnt from; with none it is assumed.
    pub learnt_from: usize,
}

impl Pace {
    /// Taken where no upgrade was seen yet.
    pub const ASSUMED: Pace =
        Pace { live: Duration::from_secs(30), detached: Duration::from_secs(10), learnt_from: 0 };

    /// The median of the upgrades that the volumes remember.
    pub fn learn<'a>(volumes: impl Iterator<Item = &'a Volume>) -> Pace {
        let mut took: [Vec<Duration>; 2] = [Vec::new(), Vec::new()];
        for attempt in volumes.filter_map(|volume| volume.attempt.as_ref()) {
            let Some(end) = attempt.ended_at.filter(|_| attempt.outcome == Outcome::Done) else { continue };
            let seconds = end.duration_since(attempt.issued_at).as_secs().max(1);
            took[attempt.way as usize].push(Duration::from_secs(seconds.unsigned_abs()));
        }
        let learnt_from = took.iter().map(Vec::len).sum();
        let [mut detached, mut live] = took;
        Pace {
            live: median(&mut live).unwrap_or(Pace::ASSUMED.live),
            detached: median(&mut detached).unwrap_or(Pace::ASSUMED.detached),
            learnt_from,
        }
    }

    pub fn of(&self, way: Way) -> Duration {
        match way {
            Way::Live => self.live,
            Way::Detached => self.detached,
        }
    }
}

/// All that will happen, and what will not.
#[derive(Debug, Clone, PartialEq)]
pub struct Forecast {
    pub target: ImageRef,
    /// What this was worked out with.
    pub policy: Policy,
    pub pace: Pace,
    /// Why none of it begins now.
    pub hold: Option<Hold>,
    pub waves: Vec<Wave>,
    /// From the first begin to the last end.
    pub duration: Duration,
    /// Volumes that are on their way already.
    pub under_way: Vec<UnderWay>,
    /// Volumes that run the target.
    pub there: usize,
    pub left_out: Vec<LeftOut>,
}

/// Volumes that begin at the same moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wave {
    pub after: Duration,
    pub moves: Vec<Move>,
}

/// One volume that moves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    pub volume: VolumeName,
    pub node: NodeName,
    pub way: Way,
    pub from: ImageRef,
    pub size: Size,
    pub takes: Duration,
}

/// One volume that is on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnderWay {
    pub volume: VolumeName,
    pub node: NodeName,
    pub from: ImageRef,
    pub to: ImageRef,
    /// Known of those that the controller began or noticed.
    pub by: Option<Initiator>,
    pub since: Option<Timestamp>,
}

/// One volume that stays as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    pub volume: VolumeName,
    pub node: NodeName,
    pub image: ImageRef,
    pub reason: Reason,
}

/// Works out what will happen to these volumes from now on. A hold that a setting or a person can
/// lift is told, and the rest worked out as if it were lifted.
pub fn forecast(world: &World, volumes: &[Volume], now: Timestamp) -> Forecast {
    let pace = Pace::learn(volumes.iter());
    let hold = fleet(world.clone(), volumes, now).hold();
    let lifted =
        Policy { paused: false, failures: 0, per_node: world.policy.per_node.max(1), ..world.policy };
    let lifted = World { policy: lifted, ..world.clone() };
    let mut report = Forecast {
        target: world.target.clone(),
        policy: lifted.policy.clone(),
        pace,
        hold,
        waves: Vec::new(),
        duration: Duration::ZERO,
        under_way: Vec::new(),
        there: 0,
        left_out: Vec::new(),
    };
    for volume in volumes {
        report.sort_in(volume, &lifted, now);
    }
    report.run(fleet(lifted, volumes, now), now);
    report
}

fn fleet(world: World, volumes: &[Volume], now: Timestamp) -> Fleet {
    let mut fleet = Fleet::new(world);
    for volume in volumes {
        fleet.observe(volume.clone(), now);
    }
    fleet
}

impl Forecast {
    /// How many volumes move.
    pub fn moves(&self) -> usize {
        self.waves.iter().map(|wave| wave.moves.len()).sum()
    }

    fn sort_in(&mut self, volume: &Volume, world: &World, now: Timestamp) {
        let (name, node) = (volume.name.clone(), volume.seat().cloned().unwrap_or_default());
        match judge(volume, world, now) {
            Standing::There => self.there += 1,
            Standing::Candidate(_) => {}
            Standing::LeftOut(reason) => {
                self.left_out.push(LeftOut { volume: name, node, image: volume.current.clone(), reason });
            }
            Standing::UnderWay => {
                let told = volume.attempt.as_ref().filter(|attempt| attempt.to == volume.wanted);
                self.under_way.push(UnderWay {
                    volume: name,
                    node,
                    from: volume.current.clone(),
                    to: volume.wanted.clone(),
                    by: told.map(|attempt| attempt.by),
                    since: told.map(|attempt| attempt.issued_at),
                });
            }
        }
    }

    /// Lets the fleet run until nothing is under way and nothing waits for room.
    fn run(&mut self, mut fleet: Fleet, start: Timestamp) {
        let mut now = start;
        let mut arrivals: BTreeSet<(Timestamp, VolumeName)> = fleet
            .volumes()
            .filter(|volume| volume.is_upgrading())
            .map(|volume| (after(now, self.pace.of(way(volume))), volume.name.clone()))
            .collect();
        loop {
            while let Some(change) = fleet.next(now) {
                let Some(volume) = fleet.volume(&change.volume).cloned() else { continue };
                if change.why == Why::Begins {
                    let takes = self.pace.of(change.attempt.way);
                    arrivals.insert((after(now, takes), volume.name.clone()));
                    self.begins(&volume, change.attempt.way, now.duration_since(start).unsigned_abs());
                }
                let wanted = change.image.unwrap_or(volume.wanted.clone());
                let next = volume.version.next();
                fleet.observe(Volume { wanted, version: next, attempt: Some(change.attempt), ..volume }, now);
            }
            let turn = match arrivals.first() {
                Some((at, _)) => {
                    Some(fleet.wake_at().filter(|wake| fleet.waiting() > 0 && wake < at).unwrap_or(*at))
                }
                None if fleet.waiting() > 0 => fleet.wake_at(),
                None => None,
            };
            let Some(turn) = turn.filter(|turn| *turn > now) else { return };
            now = turn;
            while let Some((at, name)) = arrivals.pop_first() {
                if at > now {
                    arrivals.insert((at, name));
                    break;
                }
                if let Some(volume) = fleet.volume(&name).filter(|volume| volume.is_upgrading()).cloned() {
                    let (current, version) = (volume.wanted.clone(), volume.version.next());
                    fleet.observe(Volume { current, version, ..volume }, now);
                }
                self.duration = now.duration_since(start).unsigned_abs();
            }
        }
    }

    fn begins(&mut self, volume: &Volume, way: Way, after: Duration) {
        let one = Move {
            volume: volume.name.clone(),
            node: volume.seat().cloned().unwrap_or_default(),
            way,
            from: volume.current.clone(),
            size: volume.size,
            takes: self.pace.of(way),
        };
        match self.waves.last_mut() {
            Some(wave) if wave.after == after => wave.moves.push(one),
            _ => self.waves.push(Wave { after, moves: vec![one] }),
        }
    }
}

fn way(volume: &Volume) -> Way {
    if volume.node.is_empty() { Way::Detached } else { Way::Live }
}

fn median(of: &mut [Duration]) -> Option<Duration> {
    of.sort();
    of.get(of.len() / 2).copied()
}
