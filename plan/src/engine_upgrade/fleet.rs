//! All volumes, arranged so that the next change is found without looking at the others.
//!
//! Owns what it knows and never waits; the controller feeds it what the API says and carries its
//! changes out. The invariant: a change counts against the limits from the moment [`Fleet::next`]
//! returns it until the API has shown a later state of its volume, or has refused it; what is refused keeps no other from its turn.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use midflight_api::{Attempt, Initiator, NodeName, Outcome, Size, VolumeName, Way};

use super::attempt::{self, Change, Refused, after};
use super::facts::{Volume, World};
use super::judge::{Standing, judge};
use super::reason::{Hold, Reason};

/// The order in which volumes of a node begin: detached ones first, then the smallest.
type Rank = (Way, Size, VolumeName);

/// Every volume that was seen, and what was issued for it.
#[derive(Debug, Clone, Default)]
pub struct Fleet {
    world: World,
    volumes: BTreeMap<VolumeName, Entry>,
    lanes: BTreeMap<NodeName, Lane>,
    /// Lanes with room and the first of their queues.
    ready: BTreeSet<(Rank, NodeName)>,
    /// Volumes whose attempt wants something done now.
    due: BTreeSet<VolumeName>,
    timers: BTreeSet<(Timestamp, Timer)>,
    /// Volumes that hold a place in the limit of the cluster.
    counted: usize,
    /// Volumes whose last attempt to reach the target failed.
    failed: BTreeSet<VolumeName>,
}

#[derive(Debug, Clone)]
struct Entry {
    volume: Volume,
    /// Returned by `next`, and not yet seen.
    issued: Option<Change>,
    place: Place,
}

/// Where the indexes hold a volume.
#[derive(Debug, Clone, Default)]
struct Place {
    lane: Option<NodeName>,
    counts: bool,
    rank: Option<Rank>,
    timer: Option<Timestamp>,
}

/// The volumes of one node.
#[derive(Debug, Clone, Default)]
struct Lane {
    counted: usize,
    queue: BTreeSet<Rank>,
    /// When an automatic upgrade of the node last ended.
    last_end: Option<Timestamp>,
    ready: Option<Rank>,
    timer: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Volume(VolumeName),
    Lane(NodeName),
}

impl Fleet {
    pub fn new(world: World) -> Fleet {
        Fleet { world, ..Fleet::default() }
    }

    pub fn world(&self) -> &World {
        &self.world
    }

    /// Takes over other settings, images or another target.
    pub fn change_world(&mut self, world: World, now: Timestamp) {
        if self.world == world {
            return;
        }
        if self.world.differs_in_limits_only(&world) {
            self.world = world;
            self.change_limits(now);
        } else {
            self.begin_anew(world, now);
        }
    }

    /// Looks at every volume as if none had been looked at.
    pub(super) fn begin_anew(&mut self, world: World, now: Timestamp) {
        let old = std::mem::replace(self, Fleet::new(world));
        for (name, mut entry) in old.volumes {
            entry.place = Place::default();
            // What was refused was another image.
            if old.world.target != self.world.target {
                entry.volume.refused = None;
            }
            self.volumes.insert(name.clone(), entry);
            self.arrange(&name, now);
        }
    }

    /// Looks again at the volumes that limits and deadlines tell something about, and at the room of every node; what all others
    /// wait for is as it was.
    fn change_limits(&mut self, now: Timestamp) {
        let runs = |last: &Attempt| last.outcome == Outcome::Running;
        let is_moving = |entry: &Entry| {
            let volume = &entry.volume;
            entry.issued.is_some() || volume.is_upgrading() || volume.attempt.as_ref().is_some_and(runs)
        };
        let moving = self.volumes.iter().filter(|(_, entry)| is_moving(entry));
        for name in moving.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.arrange(&name, now);
        }
        for node in self.lanes.keys().cloned().collect::<Vec<_>>() {
            self.refresh(&node, now);
        }
    }

    /// Takes over what the API says of a volume, unless something later was seen already.
    pub fn observe(&mut self, volume: Volume, now: Timestamp) {
        let name = volume.name.clone();
        match self.volumes.get_mut(&name) {
            Some(known) if volume.version < known.volume.version => return,
            Some(known) => {
                // A later state is ours, or one that ours was refused for.
                if volume.version > known.volume.version {
                    known.issued = None;
                }
                // A change was made, or somebody wants it tried at once.
                let is_over = volume.attempt != known.volume.attempt;
                let refused = known.volume.refused.take().filter(|_| !is_over);
                known.volume = Volume { refused, ..volume };
            }
            None => {
                self.volumes.insert(name.clone(), Entry { volume, issued: None, place: Place::default() });
            }
        }
        self.arrange(&name, now);
    }

    /// Forgets a volume that is gone.
    pub fn forget(&mut self, name: &VolumeName, now: Timestamp) {
        self.take_out(name, now);
        self.volumes.remove(name);
    }

    /// The change of a volume that is on its way to the API.
    pub fn issued(&self, name: &VolumeName) -> Option<&Change> {
        self.volumes.get(name)?.issued.as_ref()
    }

    /// A change was refused and nothing was done; it is tried again after a rest.
    pub fn refused(&mut self, name: &VolumeName, said: &str, now: Timestamp) {
        if let Some(entry) = self.volumes.get_mut(name) {
            entry.issued = None;
            entry.volume.refused = Some(Refused::again(entry.volume.refused.as_ref(), said, now));
            self.arrange(name, now);
        }
    }

    /// The next change, which counts from now on; none if there is nothing to do before [`Fleet::wake_at`].
    pub fn next(&mut self, now: Timestamp) -> Option<Change> {
        self.ring(now);
        while let Some(name) = self.due.pop_first() {
            let volume = &self.volumes.get(&name)?.volume;
            if let Some(change) = attempt::upkeep(volume, &self.world.policy, now).change {
                return Some(self.issue(change, now));
            }
        }
        if self.hold().is_some() || self.is_full() {
            return None;
        }
        let ((way, _, name), _) = self.ready.first()?;
        let volume = &self.volumes.get(name)?.volume;
        let change = attempt::begin(volume, *way, &self.world.target, now);
        Some(self.issue(change, now))
    }

    /// When to ask again although nothing was observed.
    pub fn wake_at(&self) -> Option<Timestamp> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Why no upgrade begins, whatever waits.
    pub fn hold(&self) -> Option<Hold> {
        let threshold = self.world.policy.failures;
        let halted = threshold > 0 && self.failed.len() >= threshold;
        self.world.hold().or_else(|| halted.then_some(Hold::Halted { failed: self.failed.len(), threshold }))
    }

    pub fn volumes(&self) -> impl Iterator<Item = &Volume> {
        self.volumes.values().map(|entry| &entry.volume)
    }

    pub fn volume(&self, name: &VolumeName) -> Option<&Volume> {
        self.volumes.get(name).map(|entry| &entry.volume)
    }

    /// Volumes that count against the limits.
    pub fn under_way(&self) -> usize {
        self.counted
    }

    /// Volumes that wait for room.
    pub fn waiting(&self) -> usize {
        self.lanes.values().map(|lane| lane.queue.len()).sum()
    }

    /// Why each volume that is left out is.
    pub fn left_out(&self, now: Timestamp) -> impl Iterator<Item = (&Volume, Reason)> {
        self.volumes().filter_map(move |volume| match judge(volume, &self.world, now) {
            Standing::LeftOut(reason) => Some((volume, reason)),
            Standing::There | Standing::UnderWay | Standing::Candidate(_) => None,
        })
    }

    fn is_full(&self) -> bool {
        self.world.policy.cluster > 0 && self.counted >= self.world.policy.cluster
    }

    /// A change is on its way to the API.
    pub(super) fn issue(&mut self, change: Change, now: Timestamp) -> Change {
        if let Some(entry) = self.volumes.get_mut(&change.volume) {
            entry.issued = Some(change.clone());
        }
        self.arrange(&change.volume, now);
        change
    }

    /// Looks again at what a moment has changed.
    fn ring(&mut self, now: Timestamp) {
        while let Some((at, timer)) = self.timers.first().cloned()
            && at <= now
        {
            self.timers.remove(&(at, timer.clone()));
            match timer {
                Timer::Volume(name) => {
                    if let Some(entry) = self.volumes.get_mut(&name) {
                        entry.place.timer = None;
                    }
                    self.arrange(&name, now);
                }
                Timer::Lane(node) => {
                    if let Some(lane) = self.lanes.get_mut(&node) {
                        lane.timer = None;
                    }
                    self.refresh(&node, now);
                }
            }
        }
    }

    /// Puts a volume where it belongs by what is known of it.
    fn arrange(&mut self, name: &VolumeName, now: Timestamp) {
        self.take_out(name, now);
        let Some(entry) = self.volumes.get_mut(name) else { return };
        let volume = &entry.volume;
        let upkeep = attempt::upkeep(volume, &self.world.policy, now);
        let issued = entry.issued.is_some();
        let standing = if issued { Standing::UnderWay } else { judge(volume, &self.world, now) };
        let rank = match standing {
            Standing::Candidate(way) if upkeep.change.is_none() => {
                Some((way, volume.size, volume.name.clone()))
            }
            Standing::Candidate(_) | Standing::There | Standing::UnderWay | Standing::LeftOut(_) => None,
        };
        let timer = match (&standing, issued) {
            (_, true) => None,
            (
                Standing::LeftOut(
                    Reason::BackingOff { until, .. }
                    | Reason::TakenBack { until }
                    | Reason::Refused { until, .. },
                ),
                false,
            ) => Some(upkeep.until.unwrap_or(*until)),
            (_, false) => upkeep.until,
        };
        let begins = entry.issued.as_ref().is_some_and(|change| change.image.is_some());
        let counts = upkeep.counts || begins;
        if upkeep.change.is_some() && !issued {
            self.due.insert(name.clone());
        }
        if has_failed(volume, &self.world) {
            self.failed.insert(name.clone());
        }
        if let Some(at) = timer {
            self.timers.insert((at, Timer::Volume(name.clone())));
        }
        self.counted += usize::from(counts);
        let lane = volume.seat().cloned();
        let told = entry.issued.as_ref().map(|change| &change.attempt).or(volume.attempt.as_ref());
        let end = told.filter(|last| last.by == Initiator::Automatic);
        let end = end.and_then(|last| Some((last.node.clone(), last.ended_at?)));
        entry.place = Place { lane: lane.clone(), counts, rank: rank.clone(), timer };
        if let Some((node, at)) = end {
            let lane = self.lanes.entry(node.clone()).or_default();
            lane.last_end = lane.last_end.max(Some(at));
            self.refresh(&node, now);
        }
        if let Some(node) = lane {
            let lane = self.lanes.entry(node.clone()).or_default();
            lane.counted += usize::from(counts);
            lane.queue.extend(rank);
            self.refresh(&node, now);
        }
    }

    /// Takes a volume out of every index.
    fn take_out(&mut self, name: &VolumeName, now: Timestamp) {
        let Some(entry) = self.volumes.get_mut(name) else { return };
        let place = std::mem::take(&mut entry.place);
        self.due.remove(name);
        self.failed.remove(name);
        if let Some(at) = place.timer {
            self.timers.remove(&(at, Timer::Volume(name.clone())));
        }
        self.counted -= usize::from(place.counts);
        let Some(node) = place.lane else { return };
        if let Some(lane) = self.lanes.get_mut(&node) {
            lane.counted -= usize::from(place.counts);
            if let Some(rank) = place.rank {
                lane.queue.remove(&rank);
            }
        }
        self.refresh(&node, now);
    }

    /// Finds out whether a node may begin another upgrade, and else when.
    fn refresh(&mut self, node: &NodeName, now: Timestamp) {
        let Some(lane) = self.lanes.get_mut(node) else { return };
        let policy = &self.world.policy;
        let rests = lane.last_end.map(|end| after(end, policy.settle)).filter(|until| *until > now);
        let has_room = lane.counted < policy.per_node && rests.is_none();
        let ready = lane.queue.first().filter(|_| has_room).cloned();
        if lane.ready != ready {
            if let Some(rank) = lane.ready.take() {
                self.ready.remove(&(rank, node.clone()));
            }
            lane.ready.clone_from(&ready);
            self.ready.extend(ready.map(|rank| (rank, node.clone())));
        }
        let timer = rests.filter(|_| !lane.queue.is_empty());
        if lane.timer != timer {
            if let Some(at) = lane.timer.take() {
                self.timers.remove(&(at, Timer::Lane(node.clone())));
            }
            lane.timer = timer;
            self.timers.extend(timer.map(|at| (at, Timer::Lane(node.clone()))));
        }
    }
}

/// Whether an attempt to bring the volume to the target failed, and nothing has helped since. One that somebody took back says
/// nothing of the image.
fn has_failed(volume: &Volume, world: &World) -> bool {
    let failed = |last: &Attempt| {
        last.outcome == Outcome::Failed
            && last.failures > 0
            && last.by == Initiator::Automatic
            && last.to == world.target
    };
    volume.current != world.target && volume.attempt.as_ref().is_some_and(failed)
}
