//! Every order of events in small clusters: three nodes, two volumes, one crash, one node that is lost.
//!
//! Both planners are the real ones. Their writes reach the API one by one; a crash loses those that have not. The
//! invariant: what is checked here is what the module promises.

use std::collections::{BTreeSet, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use midflight_api::longhorn::UpgradeState;
use midflight_api::{NodeName, VolumeName};
use stateright::{Checker, Model, Property};

use super::super::place::are_disjoint;
use super::world::{Event, World};
use super::{attached, by_name, detached, name, nodes};

/// Steps within which everything must be over, once nothing fails any more.
const BOUND: usize = 800;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    world: World,
    crashes: u8,
    losses: u8,
    waits: u8,
    lost: Option<NodeName>,
    /// The volumes that must have a healthy replica on a node that serves: all, until one has lost its last with a node.
    served: BTreeSet<VolumeName>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    /// A controller has its turn, of which this comes: working it out is what takes long.
    Turn(Box<World>),
    Serve,
    Happens(Event),
    Crash,
    Lose(NodeName),
    BringBack(NodeName),
    Wait,
}

struct Cluster {
    start: World,
    crashes: u8,
    losses: u8,
    /// Worlds that are known to come to a good end, by their hashes: ways that meet are gone once.
    ends: Mutex<HashSet<u64>>,
}

impl Cluster {
    fn new(start: World, crashes: u8, losses: u8) -> Cluster {
        Cluster { start, crashes, losses, ends: Mutex::default() }
    }

    /// Whether it ends once nothing fails any more, and all serves then.
    fn ends_well(&self, mut world: World) -> bool {
        let mut known = self.ends.lock().unwrap();
        let mut way = Vec::new();
        while way.len() < BOUND {
            let mut hash = DefaultHasher::new();
            world.hash(&mut hash);
            let hash = hash.finish();
            if known.contains(&hash) {
                known.extend(way);
                return true;
            }
            way.push(hash);
            if !world.goes_one_step() {
                let is_whole = world.is_whole();
                known.extend(way.into_iter().filter(|_| is_whole));
                return is_whole;
            }
        }
        false
    }
}

impl Model for Cluster {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let (crashes, losses) = (self.crashes, self.losses);
        let served = self.start.served();
        vec![State { world: self.start.clone(), crashes, losses, waits: 2, lost: None, served }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        let world = &state.world;
        // Writes of a turn follow each other; the world goes on beside them.
        match world.wire.is_empty() {
            true => {
                let after = world.controllers().filter_map(|controller| world.after_turn(controller));
                steps.extend(after.map(|after| Step::Turn(Box::new(after))));
            }
            false => steps.push(Step::Serve),
        }
        let has_turns = !steps.is_empty();
        // What becomes of different volumes and nodes does not depend on each other: one of them at a time is enough.
        let event = world.events().into_iter().next();
        let is_quiet = event.is_none() && !has_turns;
        steps.extend(event.map(Step::Happens));
        if state.crashes > 0 && !world.wire.is_empty() {
            steps.push(Step::Crash);
        }
        if state.losses > 0 && !world.is_over() {
            steps.extend(world.nodes.keys().cloned().map(Step::Lose));
        }
        if is_quiet && !world.is_over() && state.waits > 0 {
            steps.push(Step::Wait);
        }
        steps.extend(state.lost.iter().filter(|_| is_quiet).cloned().map(Step::BringBack));
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = state.clone();
        match step {
            Step::Turn(world) => next.world = *world,
            Step::Serve => next.world.serve(),
            Step::Happens(event) => next.world.happens(&event),
            Step::Crash => {
                next.world.crash();
                next.crashes -= 1;
            }
            Step::Lose(node) => {
                next.world.lose(&node);
                next.losses -= 1;
                next.lost = Some(node);
                // What went with the node is not because of us; whatever goes after it is.
                next.served = next.world.served();
            }
            Step::BringBack(node) => {
                next.world.bring_back(&node);
                next.lost = None;
            }
            Step::Wait => {
                next.world.wait();
                next.waits -= 1;
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("a volume has a healthy replica on a node that serves", |_, state: &State| {
                state.served.is_subset(&state.world.served())
            }),
            Property::always("nothing that is used is deleted", |_, state: &State| {
                state.world.broken.is_none()
            }),
            Property::always("one writer in each term", |_, state: &State| state.world.writers_are_alone()),
            Property::always("no more nodes than allowed", |_, state: &State| {
                state.world.under_way() <= state.world.parallel as usize
                    && state.world.nodes.values().filter(|node| node.requested).count()
                        <= state.world.parallel as usize
            }),
            Property::always("completed only if every node runs the new image", |_, state: &State| {
                state.world.whole.state != UpgradeState::Completed
                    || state.lost.is_some()
                    || state.world.runs_everywhere(super::NEW)
            }),
            Property::always(
                "whatever happened, it ends, and all serves",
                |cluster: &Cluster, state: &State| {
                    let mut after = state.world.clone();
                    state.lost.iter().for_each(|node| after.bring_back(node));
                    cluster.ends_well(after)
                },
            ),
            Property::sometimes("it is completed", |_, state: &State| {
                state.world.whole.state == UpgradeState::Completed
            }),
        ]
    }
}

/// Every way to lay out two volumes that can be upgraded, each attached to any node or to none; two that change places are the same layout.
fn layouts() -> Vec<World> {
    let sets: [&[usize]; 4] = [&[1, 2], &[1, 3], &[2, 3], &[1, 2, 3]];
    let ways = || (0..=3).flat_map(|on| sets.map(|set| (on, set)));
    let volume = |name, (on, set)| if on == 0 { detached(name, 2, set) } else { attached(name, on, set) };
    let mut all = Vec::new();
    for (number, first) in ways().enumerate() {
        for second in ways().skip(number) {
            let volumes = by_name(vec![volume("a", first), volume("b", second)]);
            // Where no two nodes may run together, it makes no difference that they might.
            let pairs = [(1, 2), (1, 3), (2, 3)];
            let apart = |(one, other)| are_disjoint(&name(one), &name(other), volumes.values());
            let most = if pairs.into_iter().any(apart) { 2 } else { 1 };
            all.extend((1..=most).map(|parallel| World::new(nodes(3), volumes.clone(), parallel)));
        }
    }
    all
}

fn check(start: World, crashes: u8, losses: u8) -> usize {
    let checker = Cluster::new(start, crashes, losses).checker().spawn_bfs().join();
    checker.assert_properties();
    checker.unique_state_count()
}

/// A few of the layouts; `dev/soak node-upgrade` takes all of them, with one node that is lost.
#[test]
fn every_order_of_events_keeps_the_promises() {
    let all = layouts();
    let states: usize = all.iter().step_by(97).map(|start| check(start.clone(), 1, 0)).sum();
    assert!(states > 300, "{states} states are too few");
}

/// One of the layouts in which no volume is on all nodes, so that a node that is lost can take the last copy.
#[test]
fn a_lost_node_is_the_only_one_that_takes_a_last_copy() {
    let volumes = by_name(vec![attached("a", 1, &[1, 2]), detached("b", 2, &[1, 2])]);
    let states = check(World::new(nodes(3), volumes, 1), 0, 1);
    assert!(states > 300, "{states} states are too few");
}

#[test]
#[ignore = "takes minutes: dev/soak runs it"]
#[expect(clippy::print_stdout, reason = "a run says how large its world was")]
fn every_layout_keeps_the_promises() {
    let (layouts, began) = (layouts(), Instant::now());
    let (next, all) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        while let Some(start) = layouts.get(next.fetch_add(1, Ordering::Relaxed)) {
            let states = check(start.clone(), 1, 1);
            assert!(states > 300, "{states} states are too few: {start:#?}");
            let sum = all.fetch_add(states, Ordering::Relaxed) + states;
            println!("{states} states, {sum} so far, {:?}", began.elapsed());
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |count| count.get()) {
            scope.spawn(work);
        }
    });
    println!("{} layouts, {} states", layouts.len(), all.into_inner());
}

/// An image that does not start: every node that tried it is back on the image before, and all of it serves.
#[test]
fn an_image_that_does_not_start_leaves_every_node_on_the_one_before() {
    for mut world in layouts().into_iter().step_by(29) {
        world.starts = false;
        assert!(world.goes_on(3 * BOUND), "{world:#?}");
        assert_eq!(world.whole.state, UpgradeState::Error);
        assert!(world.is_whole(), "{world:#?}");
        assert!((1..=3).all(|number| world.runs_old(&name(number))), "{world:#?}");
    }
}

/// An image whose instance manager starts and whose engines do not serve: the nodes that have engines are back on the image before, and none
/// waits for ever for those that do not come home.
#[test]
fn an_image_whose_engines_do_not_serve_leaves_the_nodes_of_engines_on_the_one_before() {
    for mut world in layouts().into_iter().step_by(29) {
        world.serves = false;
        assert!(world.goes_on(3 * BOUND), "{world:#?}");
        assert!(world.is_over() && world.is_whole() && world.broken.is_none(), "{world:#?}");
        let attached = world.volumes.values().filter(|volume| !volume.node.is_empty());
        for node in attached.map(|volume| &volume.node) {
            assert!(world.runs_old(node), "{node}: {world:#?}");
            assert_eq!(world.whole.state, UpgradeState::Error);
        }
    }
}

/// The check can fail: a volume with one replica that nobody refused is found out.
#[test]
fn a_world_without_a_spare_copy_is_refused_before_any_change() {
    let mut world = World::new(nodes(3), by_name(vec![attached("a", 1, &[2])]), 1);
    assert!(world.goes_on(BOUND));
    assert_eq!(world.whole.state, UpgradeState::Error);
    assert!(world.is_whole() && world.ones.is_empty() && world.runs_old(&name(1)));
}
