//! Every order of events in small clusters: two nodes, three volumes, one crash, one failure.
//!
//! The controller is the real [`Fleet`], fed by a watch that may be late. A crash loses what was on
//! its way to the API or comes after it: the successor lists only when the dead one's last request is
//! done or gone. Invariant: what is checked here is what the module promises.

use std::collections::BTreeMap;

use midflight_api::Initiator;
use stateright::{Checker, Model, Property};

use super::super::attempt::{Change, Why};
use super::super::facts::Volume;
use super::super::fleet::Fleet;
use super::{NEW, at, attached, detached, world};

/// Long enough for a deadline or the first back-off.
const TICK: i64 = 600;
/// Steps within which everything must have arrived, once nothing fails any more.
const BOUND: usize = 80;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    now: i64,
    /// What the API has.
    truth: Vec<Volume>,
    /// What the controller was shown.
    shown: Vec<Volume>,
    /// What the controller issued and has not seen the effect of.
    issued: BTreeMap<usize, Change>,
    /// Requests on their way to the API.
    wire: Vec<Change>,
    /// Volumes that will not arrive until they were asked back.
    stuck: Vec<bool>,
    /// How often each volume came to the new image.
    arrivals: Vec<u8>,
    crashes: u8,
    failures: u8,
    ticks: u8,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Decide,
    /// The API takes or refuses the oldest request.
    Serve,
    Show(usize),
    Arrive(usize),
    Stick(usize),
    Tick,
    /// The controller dies; its requests were served, or never are.
    Crash {
        served: bool,
    },
}

struct Cluster {
    limit: usize,
    /// The limit that the controller is told.
    told: usize,
}

impl State {
    fn fleet(&self, limit: usize) -> Fleet {
        let mut fleet = Fleet::new(world(limit));
        for volume in &self.shown {
            fleet.observe(volume.clone(), at(self.now));
        }
        for change in self.issued.values() {
            fleet.issue(change.clone(), at(self.now));
        }
        fleet
    }

    fn serve(&mut self) {
        let change = self.wire.remove(0);
        let number = self.truth.iter().position(|volume| volume.name == change.volume).unwrap();
        let volume = &mut self.truth[number];
        if volume.version != change.version {
            return;
        }
        if let Some(image) = change.image {
            volume.wanted = image;
            self.stuck[number] &= change.why != Why::GoesBack;
        }
        volume.attempt = Some(change.attempt);
        volume.version = volume.version.next();
    }

    fn apply(&mut self, step: &Step, limit: usize) {
        match *step {
            Step::Decide => {
                let Some(change) = self.fleet(limit).next(at(self.now)) else { return };
                let number = self.truth.iter().position(|volume| volume.name == change.volume).unwrap();
                self.issued.insert(number, change.clone());
                self.wire.push(change);
            }
            Step::Serve => self.serve(),
            Step::Show(number) => {
                self.shown[number] = self.truth[number].clone();
                self.issued.remove(&number);
            }
            Step::Arrive(number) => {
                let volume = &mut self.truth[number];
                volume.current = volume.wanted.clone();
                volume.version = volume.version.next();
                self.arrivals[number] += u8::from(volume.current == NEW);
            }
            Step::Stick(number) => {
                self.stuck[number] = true;
                self.failures -= 1;
            }
            Step::Tick => {
                self.now += TICK;
                self.ticks -= 1;
            }
            Step::Crash { served } => {
                while served && !self.wire.is_empty() {
                    self.serve();
                }
                self.wire.clear();
                self.issued.clear();
                self.shown = self.truth.clone();
                self.crashes -= 1;
            }
        }
    }

    /// What can happen if nothing fails any more; the order is that of a patient world.
    fn progress(&self, limit: usize) -> Vec<Step> {
        let mut steps = Vec::new();
        if !self.wire.is_empty() {
            steps.push(Step::Serve);
        }
        steps.extend((0..3).filter(|n| self.shown[*n] != self.truth[*n]).map(Step::Show));
        if self.wire.is_empty() && self.fleet(limit).next(at(self.now)).is_some() {
            steps.push(Step::Decide);
        }
        steps.extend((0..3).filter(|n| self.truth[*n].is_upgrading() && !self.stuck[*n]).map(Step::Arrive));
        steps
    }

    /// Whether every volume comes to the new image if nothing fails from here on.
    fn ends_well(&self, limit: usize) -> bool {
        let mut state = self.clone();
        for _ in 0..BOUND {
            if state.truth.iter().all(|volume| volume.current == NEW && !volume.is_upgrading()) {
                return true;
            }
            match state.progress(limit).first() {
                Some(step) => state.apply(step, limit),
                None => state.now += TICK,
            }
        }
        false
    }
}

impl Model for Cluster {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let truth = vec![attached("a", "node-1"), detached("b", "node-1"), detached("c", "node-2")];
        vec![State {
            now: 0,
            shown: truth.clone(),
            truth,
            issued: BTreeMap::new(),
            wire: Vec::new(),
            stuck: vec![false; 3],
            arrivals: vec![0; 3],
            crashes: 1,
            failures: 1,
            ticks: 2,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        steps.extend(state.progress(self.told));
        if state.failures > 0 {
            let may_stick = |n: &usize| state.truth[*n].is_upgrading() && !state.stuck[*n];
            steps.extend((0..3).filter(may_stick).map(Step::Stick));
        }
        // Only what is stuck takes as long as a deadline.
        let on_their_way = (0..3).any(|n| state.truth[n].is_upgrading() && !state.stuck[n]);
        let rests = |volume: &Volume| volume.attempt.as_ref().is_some_and(|attempt| attempt.failures > 0);
        let waits = state.stuck.contains(&true) || state.truth.iter().any(rests);
        if state.ticks > 0 && waits && !on_their_way && state.wire.is_empty() {
            steps.push(Step::Tick);
        }
        if state.crashes > 0 {
            steps.push(Step::Crash { served: true });
            steps.extend((!state.wire.is_empty()).then_some(Step::Crash { served: false }));
        }
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = state.clone();
        next.apply(&step, self.told);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("the limit of a node is never exceeded", |cluster: &Cluster, state: &State| {
                ["node-1", "node-2"].iter().all(|node| {
                    let on_node = |volume: &&Volume| volume.seat().is_some_and(|seat| seat == node);
                    let counted = state.truth.iter().filter(on_node).filter(|volume| volume.is_upgrading());
                    counted.count() <= cluster.limit
                })
            }),
            Property::always("no volume is upgraded twice to one image", |_, state: &State| {
                state.arrivals.iter().all(|arrivals| *arrivals <= 1)
            }),
            Property::always("nobody but the controller is said to have begun", |_, state: &State| {
                let of_user =
                    |volume: &Volume| volume.attempt.as_ref().is_some_and(|a| a.by == Initiator::User);
                !state.truth.iter().any(of_user)
            }),
            // Whatever is on its way comes first: it ends in a quiet state, which is looked at, too.
            Property::always("whatever happened, all arrive once nothing fails", |cluster, state: &State| {
                let is_quiet = state.wire.is_empty() && state.shown == state.truth;
                !is_quiet || state.ends_well(cluster.told)
            }),
            Property::sometimes("a volume goes back and arrives later", |_, state: &State| {
                state.truth.iter().zip(&state.shown).any(|(truth, shown)| {
                    let failed = shown.attempt.as_ref().is_some_and(|attempt| attempt.failures > 0);
                    failed && truth.current == NEW
                })
            }),
        ]
    }
}

#[test]
fn every_order_of_events_keeps_the_promises() {
    for limit in [1, 2] {
        let checker = Cluster { limit, told: limit }.checker().threads(2).spawn_bfs().join();
        checker.assert_properties();
        assert!(checker.unique_state_count() > 1000, "{} states are too few", checker.unique_state_count());
    }
}

/// The check can fail: a controller that thinks it may begin two is found out by the limit of one.
#[test]
fn a_controller_that_begins_too_many_is_found_out() {
    let checker = Cluster { limit: 1, told: 2 }.checker().target_max_depth(10).spawn_bfs().join();
    checker.assert_any_discovery("the limit of a node is never exceeded");
}
