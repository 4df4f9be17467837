//! What can happen next.
//!
//! Invariant: a step is one input to one process, or the birth or death of one;
//! what follows by itself (engines that connect again) follows at once.

use stateright::Model;

use super::{
    properties,
    state::{Begin, Disks, Job, Left, Scope, State},
    wrong::Wrong,
};
use crate::{
    engine::{
        core::{self as engine, Engine, Phase},
        members::Mode,
    },
    frontend::core::Volume,
    net::reactor::LinkId,
    sim::{
        network::{Arrival, Arrived, Node},
        nodes::{Nodes, wish},
    },
    wire::{Frame, Kind},
};

/// A world of this size, with one rule broken or none.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plane {
    pub(super) scope: Scope,
    pub(super) wrong: Option<Wrong>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Deliver(Arrival),
    Finish(usize, Job),
    /// The record answers an engine, or takes what a dead one had sent.
    Record(usize),
    Late(usize),
    /// An engine looks at the record and finds other members than it knows. (One that
    /// finds a higher term goes on while the frontend is on its way from it, as here it
    /// always is; afterwards it ends: the same as if it were killed.)
    Look(usize),
    /// An engine gives up on a member that cannot be reached.
    GiveUp(usize, usize),
    RestartEngine(usize),
    StartReplica(usize),
    Tick,
    Issue,
    TakeTerm,
    Tell,
    Release,
    KillEngine(usize),
    KillReplica(usize),
    LosePower(usize),
    Cut(LinkId),
}

impl Step {
    /// Whether it happens by itself, if one only waits.
    fn is_progress(self) -> bool {
        match self {
            Step::Deliver(_)
            | Step::Finish(..)
            | Step::Record(_)
            | Step::Late(_)
            | Step::Look(_)
            | Step::GiveUp(..)
            | Step::RestartEngine(_)
            | Step::Tick
            | Step::Issue
            | Step::TakeTerm
            | Step::Tell => true,
            Step::StartReplica(_)
            | Step::Release
            | Step::KillEngine(_)
            | Step::KillReplica(_)
            | Step::LosePower(_)
            | Step::Cut(_) => false,
        }
    }
}

impl State {
    pub(super) fn steps(&self) -> Vec<Step> {
        let mut steps: Vec<Step> =
            self.network.look(|network| network.arrivals(|_| true)).into_iter().map(Step::Deliver).collect();
        self.replica_steps(&mut steps);
        self.engine_steps(&mut steps);
        steps.extend((0..self.shelf.look(|shelf| shelf.late.len())).map(Step::Late));
        // Nobody hangs here: an engine that is given up for its silence is one whose connection is cut.
        if self.frontend.look(Volume::deadline_of_live).is_some() {
            steps.push(Step::Tick);
        }
        if self.client.issued < self.scope.ops.len() {
            steps.push(Step::Issue);
        }
        if self.left.switches > 0 {
            steps.push(Step::TakeTerm);
        }
        if !self.told {
            steps.push(Step::Tell);
        }
        if self.left.releases > 0 {
            steps.push(Step::Release);
        }
        if self.left.cuts > 0 {
            steps.extend(
                self.network.look(|network| network.whole().collect::<Vec<_>>()).into_iter().map(Step::Cut),
            );
        }
        steps
    }

    /// A step on which nothing else depends and which depends on nothing else: whether
    /// it comes now or later leads to the same states, so it comes now. Once no copy
    /// can fail any more, what prepares for a failure is of that kind too: engines
    /// count answers by their number and do not mind in which order they come.
    fn commuting(&self) -> Option<Step> {
        let delivery = self.network.look(|network| {
            let mut arrivals = network.arrivals(|_| true).into_iter();
            let free = |at: &Arrival| match network.peek(*at) {
                Some(frame) => self.commutes(*at, frame),
                None => self.is_end_unnoticed(*at),
            };
            arrivals.find(free).map(Step::Deliver)
        });
        delivery.or_else(|| {
            let mut jobs = Vec::new();
            self.replica_steps(&mut jobs);
            jobs.into_iter().find(|step| self.is_done_at_once(*step))
        })
    }

    fn is_calm(&self) -> bool {
        let Left { replica_kills, power_losses, cuts, .. } = self.left;
        // One that is let go leaves when flushes and notes have ended.
        let lets_go = self.scope.left.releases > 0;
        replica_kills == 0 && power_losses == 0 && cuts == 0 && !lets_go
    }

    fn commutes(&self, Arrival { link, to }: Arrival, frame: &Frame) -> bool {
        /// Tag of the frontend's answer to `Ping`, of answers nobody waits for, and the
        /// first of those to `Standing`.
        const REPLAYED: u64 = u64::MAX - 3;
        const IGNORED: u64 = 1 << 62;
        const STANDING: u64 = IGNORED + (1 << 60);
        let calmer = self.is_calm() && self.left.switches == 0 && self.left.engine_kills == 0;
        match (to, frame.header.kind, frame.header.tag) {
            // The size of the volume, which does not change here.
            (Node::Frontend, Kind::Ping, _) => true,
            // From an engine that it has let go.
            (Node::Frontend, _, _) => !self.frontend.look(|volume| volume.listens_to(link)),
            // Only changes of the layout, which there are none of, ask for it.
            (Node::Engine(_), Kind::Reply, REPLAYED | IGNORED) => true,
            (Node::Engine(_), Kind::Reply, tag) => calmer && (STANDING..REPLAYED).contains(&tag),
            // Regions are let go only after more flushes than there are here.
            (Node::Replica(_), Kind::Settled, _) => true,
            (Node::Replica(_), Kind::Standing | Kind::Flush, _) => calmer,
            _ => false,
        }
    }

    /// A connection ends on which nobody waits for anything: a replica only forgets it then, and the frontend has
    /// let it go before.
    fn is_end_unnoticed(&self, Arrival { link, to }: Arrival) -> bool {
        match to {
            Node::Frontend => !self.frontend.look(|volume| volume.listens_to(link)),
            Node::Engine(_) => false,
            Node::Replica(at) => {
                let process = self.replicas[at].process.as_ref();
                process.is_none_or(|process| process.look(|process| !process.core.owes(link)))
            }
        }
    }

    fn is_done_at_once(&self, step: Step) -> bool {
        match (step, self.scope.disks) {
            (Step::Finish(..), Disks::Quick) => true,
            (Step::Finish(_, Job::Persist | Job::Sync), Disks::Slow) => self.is_calm(),
            _ => false,
        }
    }

    fn replica_steps(&self, steps: &mut Vec<Step>) {
        for (at, node) in self.replicas.iter().enumerate() {
            let Some(process) = &node.process else {
                steps.push(Step::StartReplica(at));
                continue;
            };
            process.look(|process| {
                let jobs = [
                    (Job::Persist, process.persisting.is_some()),
                    (Job::Note, process.noting),
                    (Job::Depart, !process.departures.is_empty()),
                    (Job::Sync, process.syncing.is_some()),
                ];
                steps.extend(
                    jobs.into_iter().filter(|(_, there)| *there).map(|(job, _)| Step::Finish(at, job)),
                );
            });
            if self.left.replica_kills > 0 {
                steps.push(Step::KillReplica(at));
            }
            let stays = |other: usize| other != at && self.stays(other);
            if self.left.power_losses > 0 && (0..self.scope.replicas).any(stays) {
                steps.push(Step::LosePower(at));
            }
        }
    }

    /// Whether a copy is in service and stays there, whatever is on its way to the record: who loses the others' power and
    /// this one together may lose what nobody has synced.
    fn stays(&self, at: usize) -> bool {
        let asked = self.engines.iter().filter_map(|node| node.look(|node| node.changing.map(wish)));
        let late =
            self.shelf.look(|shelf| shelf.late.iter().map(|(_, wish)| wish.clone()).collect::<Vec<_>>());
        let goes = asked.chain(late).any(|wish| wish.replica == at.to_string() && wish.mode == Mode::Out);
        self.mode(at) == Mode::InService && !self.replicas[at].lost && !goes
    }

    fn engine_steps(&self, steps: &mut Vec<Step>) {
        let record = self.record();
        for (at, node) in self.engines.iter().enumerate() {
            node.look(|node| {
                let term = node.epoch.term();
                let Some(core) = &node.core else {
                    // Its supervisor starts it again while the record names it.
                    steps.extend((term == record.term).then_some(Step::RestartEngine(at)));
                    return;
                };
                let known = record.member_version == core.version();
                match node.changing {
                    Some(_) => steps.push(Step::Record(at)),
                    None if record.term == term && !known => steps.push(Step::Look(at)),
                    None => {}
                }
                for member in 0..self.scope.replicas {
                    let lacks = core.may_connect(member) && node.links[member].is_none();
                    if lacks && !self.lives(Node::Replica(member)) {
                        steps.push(Step::GiveUp(at, member));
                    }
                }
                if self.left.engine_kills > 0 {
                    steps.push(Step::KillEngine(at));
                }
            });
        }
    }

    pub(super) fn take(&mut self, step: Step) {
        match step {
            Step::Deliver(arrival) => self.deliver(arrival),
            Step::Finish(at, job) => self.finish(at, job),
            Step::Record(at) => self.write_record(at),
            Step::Late(at) => {
                let (term, wish) = self.shelf.change(|shelf| shelf.late.remove(at));
                self.judge(term, &wish);
            }
            Step::Look(at) => self.kill_engine(at),
            Step::GiveUp(at, member) => self.feed_engine(at, engine::Input::Unreachable { member }),
            Step::RestartEngine(at) => self.restart_engine(at),
            Step::StartReplica(at) => self.start_replica(at),
            Step::Tick => self.tick(),
            Step::Issue => self.issue(),
            Step::TakeTerm => {
                self.left.switches -= 1;
                self.take_term();
            }
            Step::Tell => self.tell(),
            Step::Release => {
                self.left.releases -= 1;
                self.release();
            }
            Step::KillEngine(at) => {
                self.left.engine_kills -= 1;
                self.kill_engine(at);
            }
            Step::KillReplica(at) => {
                self.left.replica_kills -= 1;
                self.kill_replica(at);
            }
            Step::LosePower(at) => {
                self.left.power_losses -= 1;
                self.lose_power(at);
            }
            Step::Cut(link) => {
                self.left.cuts -= 1;
                self.network.change(|network| network.sever(link));
            }
        }
        self.connect_members();
    }

    fn deliver(&mut self, arrival: Arrival) {
        let Some(arrived) = self.network.change(|network| network.take(arrival)) else { return };
        let echoes = match (arrival.to, &arrived) {
            (Node::Engine(at), Arrived::Frame(frame)) => Wrong::echo(self, at, frame),
            _ => Vec::new(),
        };
        self.arrive(arrival, arrived);
        if let Node::Engine(at) = arrival.to {
            echoes.into_iter().for_each(|echo| self.feed_engine(at, echo));
        }
    }

    /// Lets everything happen that happens by itself, each thing in its turn, until
    /// `done` or for as many rounds as anything could need.
    pub(super) fn wait(&mut self, done: impl Fn(&State) -> bool) -> bool {
        for _ in 0..100 {
            let steps: Vec<Step> = self.steps().into_iter().filter(|step| step.is_progress()).collect();
            for step in steps {
                if done(self) {
                    return true;
                }
                // An earlier one of the round may have made it impossible.
                if self.steps().contains(&step) {
                    self.take(step);
                }
            }
        }
        done(self)
    }

    /// Whether nothing is on its way: only time, or a misfortune, can change something.
    pub(super) fn is_quiet(&self) -> bool {
        let busy = |step: &Step| step.is_progress() && !matches!(step, Step::Tick | Step::GiveUp(..));
        !self.steps().iter().any(busy)
    }
}

impl Plane {
    fn begin(&self) -> State {
        let calm = Scope { ops: &[], left: Left::default(), ..self.scope };
        let mut state = State::new(calm, None);
        state.connect_members();
        let phase =
            |state: &State, at: usize| state.engines[at].look(|node| node.core.as_ref().map(Engine::phase));
        let serves = |state: &State| state.is_quiet() && phase(state, 0) == Some(Phase::Serving);
        assert!(state.wait(serves), "the first engine serves");
        if self.scope.begin == Begin::Prepared {
            state.take_term();
            state.tell();
            state.connect_members();
            assert!(state.wait(|state| phase(state, 1) == Some(Phase::Prepared)), "the next is prepared");
        }
        (state.scope, state.left, state.wrong) = (self.scope, self.scope.left, self.wrong);
        state
    }
}

impl Model for Plane {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![self.begin()]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        match state.commuting() {
            Some(step) => steps.push(step),
            None => steps.extend(state.steps()),
        }
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = state.clone();
        next.take(step);
        (next != *state).then_some(next)
    }

    /// What is broken stays so, and two who connect for the fifth time have seen all
    /// that can come of it: there is nothing to be learnt beyond.
    fn within_boundary(&self, state: &State) -> bool {
        state.faults.len() < 3 && state.most_connections() <= 4
    }

    fn properties(&self) -> Vec<stateright::Property<Plane>> {
        properties::all()
    }
}
