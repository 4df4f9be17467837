//! Nodes and their network.
//!
//! Invariant: only `step` moves the world, and what it may do next depends on
//! nothing but the state and the seed.

mod fates;

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use super::{
    client::Client,
    network::{Network, Node},
    nodes::{Nodes, address_of, engine_at, wish},
};
use crate::{
    check::pattern::BLOCK,
    engine::{
        control::{Answer, Command},
        core::{self as engine, Change, Engine, Phase, Seat},
        members::Mode,
    },
    epoch::Epoch,
    frontend::{
        control::Switched,
        core::{self as frontend, Volume},
    },
    net::reactor::LinkId,
    record::{Found, Known, Record, Verdict, Wish},
    replica::{
        core::{self as replica, Replica},
        disk::Disk,
        layers::{Fetch, SyncPlan},
        memory::MemoryDisk,
        promise::{PromiseFile, Standing},
        store::Store,
    },
    wire::{Frame, Header, Kind},
};

pub(super) const BLOCKS: u64 = 8;
const VOLUME: &str = "vol";
/// The connection on which commands come.
const COORDINATOR: LinkId = LinkId::from_bits(1 << 60);

pub(super) struct ReplicaNode {
    pub(super) disk: MemoryDisk,
    pub(super) core: Option<Replica<MemoryDisk>>,
    pub(super) promise: Option<PromiseFile<MemoryDisk>>,
    persisting: Option<Standing>,
    syncing: Option<SyncPlan<MemoryDisk>>,
    noting: bool,
    departures: VecDeque<u64>,
    fetching: VecDeque<(u64, Fetch<MemoryDisk>)>,
    pub(super) boot: u64,
    /// Whether it lost power and has not been made whole since.
    pub(super) lost: bool,
}

impl ReplicaNode {
    fn works(&self) -> bool {
        self.core.as_ref().is_some_and(Replica::has_work)
    }
}

pub(super) struct EngineNode {
    pub(super) core: Option<Engine>,
    pub(super) epoch: Epoch,
    pub(super) paused: bool,
    pub(super) links: Vec<Option<LinkId>>,
    pub(super) changing: Option<Change>,
}

/// The volume's record, whether it can be reached, and what dead engines have sent
/// to it that did not arrive yet.
pub(super) struct Shelf {
    pub(super) record: Record,
    pub(super) reachable: bool,
    pub(super) late: Vec<(u64, Wish)>,
}

pub(super) struct World {
    /// What everything follows from.
    origin: u64,
    seed: u64,
    pub(super) now: Instant,
    pub(super) network: Network,
    pub(super) replicas: Vec<ReplicaNode>,
    pub(super) engines: Vec<EngineNode>,
    pub(super) frontend: Volume,
    /// What the keeper knows of the volume's size.
    kept_size: u64,
    pub(super) client: Client,
    pub(super) shelf: Shelf,
    pub(super) switched: Vec<Switched>,
    pub(super) refused: Vec<String>,
    /// What engines answered to commands.
    pub(super) answers: Vec<Answer>,
}

/// Whoever reads a failure has to know in which world it happened.
impl Drop for World {
    #[allow(clippy::print_stderr, reason = "a test that fails says how to see it again")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("in the world of seed {}; see it again with MIDFLIGHT_WORLD={0}", self.origin);
        }
    }
}

impl Nodes for World {
    fn feed_frontend(&mut self, input: frontend::Input) {
        let mut outputs = Vec::new();
        self.frontend.apply(self.now, input, &mut outputs);
        self.carry_frontend(outputs);
    }

    fn feed_engine(&mut self, at: usize, input: engine::Input) {
        let Some(core) = self.engines[at].core.as_mut() else { return };
        let mut outputs = Vec::new();
        core.apply(input, &mut outputs);
        for output in outputs {
            match output {
                engine::Output::Send(COORDINATOR, frame) => {
                    let answer = serde_json::from_slice(&frame.payload).expect("an answer is readable");
                    self.answers.push(answer);
                }
                engine::Output::Send(link, frame) => self.network.send(Node::Engine(at), link, frame),
                engine::Output::Close(link) => {
                    self.network.close(Node::Engine(at), link);
                    self.forget_link(at, link);
                }
                engine::Output::Change(change) => self.engines[at].changing = Some(change),
                // Who is alive can be reached here.
                engine::Output::Reach { .. } | engine::Output::Patience(_) => {}
                engine::Output::Fenced { .. } | engine::Output::Outbid { .. } => {
                    return self.kill_engine(at);
                }
                engine::Output::Stranded => return self.end_engine(at),
            }
        }
    }

    fn feed_replica(&mut self, at: usize, input: replica::Input) {
        let node = &mut self.replicas[at];
        let Some(core) = node.core.as_mut() else { return };
        let (promised, last_write, written) = (core.promised(), core.last_write(), node.disk.image_writes());
        let by_client = is_change(&input);
        let mut outputs = Vec::new();
        core.apply(input, &mut outputs);
        assert!(core.promised() >= promised, "a promise never goes back");
        assert!(core.last_write() >= last_write, "writes of two epochs are mixed");
        if by_client && node.disk.image_writes() != written {
            assert_eq!(core.last_write(), core.promised(), "a write of another epoch than the promised one");
        }
        for output in outputs {
            let node = &mut self.replicas[at];
            match output {
                replica::Output::Send(link, frame) => self.network.send(Node::Replica(at), link, frame),
                replica::Output::Close(link) => self.network.close(Node::Replica(at), link),
                replica::Output::Persist(standing) => node.persisting = Some(standing),
                replica::Output::SyncIntent => node.noting = true,
                replica::Output::SyncAbsent(key) => node.departures.push_back(key),
                replica::Output::Sync => {
                    node.syncing = node.core.as_mut().and_then(|core| core.sync_plan().ok());
                }
                replica::Output::Fetch(number) => {
                    node.fetching.extend(node.core.as_ref().map(|core| (number, core.fetch_plan(number))));
                }
                replica::Output::Die(_) => return self.kill_replica(at),
            }
        }
    }

    fn forget_link(&mut self, at: usize, link: LinkId) {
        self.engines[at].links.iter_mut().filter(|slot| **slot == Some(link)).for_each(|slot| *slot = None);
    }
}

/// Whether what a replica is given may be a client's change: one that has just come, or one that waited.
fn is_change(input: &replica::Input) -> bool {
    match input {
        replica::Input::Frame(_, Frame { header, .. }) => {
            header.layer == 0 && matches!(header.kind, Kind::Write | Kind::Trim | Kind::Zero)
        }
        replica::Input::IntentSynced => true,
        _ => false,
    }
}

impl World {
    /// Three replicas, one engine of term 1 that the frontend is about to find.
    pub(super) fn new(seed: u64) -> World {
        let mut outputs = Vec::new();
        let frontend = Volume::attach(
            VOLUME.into(),
            BLOCKS * BLOCK as u64,
            1,
            frontend::Standing::new(address_of(0)),
            &mut outputs,
        );
        let mut world = World {
            origin: seed,
            seed: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            now: Instant::now(),
            network: Network::default(),
            replicas: Vec::new(),
            engines: Vec::new(),
            frontend,
            kept_size: BLOCKS * BLOCK as u64,
            client: Client::new(BLOCKS),
            shelf: Shelf {
                record: Record::new((0..3).map(|at| at.to_string())).next_term(),
                reachable: true,
                late: Vec::new(),
            },
            switched: Vec::new(),
            refused: Vec::new(),
            answers: Vec::new(),
        };
        for _ in 0..3 {
            let disk = MemoryDisk::default();
            world.replicas.push(ReplicaNode {
                disk,
                core: None,
                promise: None,
                persisting: None,
                syncing: None,
                noting: false,
                departures: VecDeque::new(),
                fetching: VecDeque::new(),
                boot: 1,
                lost: false,
            });
            world.start_replica(world.replicas.len() - 1);
        }
        world.start_engine(Epoch::of_term(1));
        world.carry_frontend(outputs);
        world
    }

    pub(super) fn dice(&mut self) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed
    }

    pub(super) fn start_replica(&mut self, at: usize) {
        let node = &mut self.replicas[at];
        node.disk.mend();
        let promise = PromiseFile::open(node.disk.clone()).expect("the promise is readable");
        let store = Store::open(&node.disk, BLOCKS * BLOCK as u64, node.boot).expect("the store opens");
        node.core = Some(Replica::new(VOLUME.into(), store, promise.standing(), node.boot));
        node.promise = Some(promise);
        node.persisting = None;
        node.syncing = None;
        node.noting = false;
        node.departures.clear();
        node.fetching.clear();
    }

    fn seat(&self, epoch: Epoch, sender: u64) -> Seat {
        let record = &self.shelf.record;
        let members =
            record.members.iter().enumerate().map(|(key, member)| (key as u64, member.mode)).collect();
        let permitted = (0..record.members.len()).map(|number| number.to_string()).collect();
        Seat { volume: VOLUME.into(), epoch, sender, version: record.member_version, members, permitted }
    }

    /// Carries out an engine's wish to change the record.
    fn change_record(&mut self, at: usize) {
        let Some(change) = self.engines[at].changing.take() else { return };
        match self.write_record(self.engines[at].epoch.term(), &wish(change)) {
            Verdict::Apply(_) | Verdict::Done => self.feed_engine(at, engine::Input::Changed(change)),
            Verdict::Outbid { term } => {
                self.feed_engine(at, engine::Input::Outbid { by: Epoch::of_term(term) });
            }
            Verdict::Stale => self.end_engine(at),
        }
    }

    /// An engine that asks for nothing looks at the record now and then, and ends when it has to.
    pub(super) fn look_at_record(&mut self, at: usize) {
        let node = &self.engines[at];
        let Some(core) = node.core.as_ref().filter(|_| node.changing.is_none() && !node.paused) else {
            return;
        };
        let known = Known { term: node.epoch.term(), version: core.version(), attachment: None };
        match self.shelf.record.found_by(known) {
            Found::AsKnown | Found::Succession => {}
            Found::Outbid { term } => {
                self.feed_engine(at, engine::Input::Outbid { by: Epoch::of_term(term) });
            }
            Found::Stale => self.end_engine(at),
        }
    }

    fn write_record(&mut self, term: u64, wish: &Wish) -> Verdict {
        let verdict = self.shelf.record.judge(term, wish);
        if let Verdict::Apply(next) = &verdict {
            self.shelf.record = next.clone();
            if wish.mode == Mode::InService {
                let member: usize = wish.replica.parse().expect("a member's number");
                self.replicas[member].lost = false;
            }
        }
        verdict
    }

    /// An engine ends by itself; while the record names it, its supervisor starts
    /// it again.
    fn end_engine(&mut self, at: usize) {
        if self.engines[at].epoch.term() == self.shelf.record.term {
            self.restart_engine(at);
        } else {
            self.kill_engine(at);
        }
    }

    pub(super) fn start_engine(&mut self, epoch: Epoch) -> usize {
        let at = self.engines.len();
        let core = Engine::new(self.seat(epoch, 100 + at as u64));
        let links = vec![None; self.replicas.len()];
        self.engines.push(EngineNode { core: Some(core), epoch, paused: false, links, changing: None });
        at
    }

    /// Gives a command to the newest engine.
    pub(super) fn command(&mut self, command: &Command) {
        let payload = serde_json::to_vec(command).expect("a command is plain").into();
        let frame = Frame::with(Header::new(Kind::Control, 0, Epoch::NONE), payload);
        let newest = self.engines.len() - 1;
        if !self.engines[newest].paused {
            self.feed_engine(newest, engine::Input::Frame(COORDINATOR, frame));
        }
    }

    /// Gives the next term to an engine that the frontend is to go to.
    pub(super) fn hand_over(&mut self) {
        self.shelf.record = Record { switching: true, ..self.shelf.record.next_term() };
    }

    /// Records a new term, starts its engine and asks the frontend to move.
    pub(super) fn switch(&mut self) -> usize {
        self.hand_over();
        let to = self.start_engine(Epoch::of_term(self.shelf.record.term));
        let drain_within = Duration::from_millis(20);
        self.feed_frontend(frontend::Input::Switch { to: address_of(to), drain_within });
        to
    }

    pub(super) fn ask(&mut self) {
        let dice = self.dice();
        let request = self.client.ask(dice, self.now);
        self.feed_frontend(frontend::Input::Request(request));
    }

    fn carry_frontend(&mut self, outputs: Vec<frontend::Output>) {
        for output in outputs {
            match output {
                frontend::Output::Answer(answer) => self.client.take(&answer),
                frontend::Output::Send(link, frame) => self.network.send(Node::Frontend, link, frame),
                frontend::Output::Close(link) => self.network.close(Node::Frontend, link),
                frontend::Output::Switched(switched) => {
                    if switched.epoch.term() == self.shelf.record.term {
                        self.shelf.record.switching = false;
                    }
                    self.switched.push(switched);
                }
                frontend::Output::NotSwitched(why) => self.refused.push(why),
                frontend::Output::Grown => self.kept_size = self.frontend.size(),
                frontend::Output::Connect(to) => {
                    let engine = engine_at(&to);
                    let alive = self.engines.get(engine).is_some_and(|node| node.core.is_some());
                    if alive && !self.network.is_cut(Node::Frontend, Node::Engine(engine)) {
                        let link = self.network.connect(Node::Frontend, Node::Engine(engine));
                        self.feed_frontend(frontend::Input::Connected { to, link });
                    } else {
                        self.feed_frontend(frontend::Input::Unreachable { to });
                    }
                }
            }
        }
    }

    /// What engines do by themselves: connect to members they lack, and flush some time after they began to
    /// serve.
    fn mind_engines(&mut self) {
        for at in 0..self.engines.len() {
            let node = &self.engines[at];
            let wants = !node.paused && node.core.as_ref().is_some_and(Engine::wants_to_settle);
            if wants && self.dice().is_multiple_of(50) {
                self.feed_engine(at, engine::Input::Settle);
            }
            let older = self.engines[at].epoch.term() < self.shelf.record.term;
            if older && self.shelf.reachable && self.dice().is_multiple_of(20) {
                self.look_at_record(at);
            }
            for member in 0..self.replicas.len() {
                let node = &self.engines[at];
                let wants = node.core.as_ref().is_some_and(|core| core.may_connect(member));
                if !wants || node.paused || node.links[member].is_some() {
                    continue;
                }
                let is_promising =
                    matches!(node.core.as_ref().map(Engine::phase), Some(Phase::Promising { .. }));
                let cut = self.network.is_cut(Node::Engine(at), Node::Replica(member));
                let is_away = self.replicas[member].core.is_none() || cut;
                // It may also be given up while the connection to it is on its way.
                if is_promising && self.dice().is_multiple_of(20) {
                    self.feed_engine(at, engine::Input::Unreachable { member });
                }
                if is_away {
                    continue;
                }
                let link = self.network.connect(Node::Engine(at), Node::Replica(member));
                self.engines[at].links[member] = Some(link);
                self.feed_engine(at, engine::Input::Connected { member, link });
            }
        }
    }

    /// Does one thing that can happen now; false when nothing can.
    pub(super) fn step(&mut self) -> bool {
        self.mind_engines();
        let awake = |node| match node {
            Node::Frontend | Node::Replica(_) => true,
            Node::Engine(at) => !self.engines[at].paused,
        };
        let arrivals = self.network.arrivals(awake);
        let jobs: Vec<usize> = (0..self.replicas.len())
            .filter(|at| {
                let node = &self.replicas[*at];
                node.persisting.is_some()
                    || node.syncing.is_some()
                    || node.noting
                    || !node.departures.is_empty()
                    || !node.fetching.is_empty()
                    || node.works()
            })
            .collect();
        let wishes: Vec<usize> = (0..self.engines.len())
            .filter(|at| {
                self.shelf.reachable && self.engines[*at].changing.is_some() && !self.engines[*at].paused
            })
            .collect();
        let late = if self.shelf.reachable { self.shelf.late.len() } else { 0 };
        let choices = arrivals.len() + jobs.len() + wishes.len() + late;
        if choices == 0 {
            return self.pass_time();
        }
        let choice = (self.dice() % choices as u64) as usize;
        self.now += Duration::from_micros(10);
        match arrivals.get(choice) {
            Some(arrival) => {
                if let Some(arrived) = self.network.take(*arrival) {
                    self.arrive(*arrival, arrived);
                }
            }
            None => match jobs.get(choice - arrivals.len()) {
                Some(at) => self.finish_job(*at),
                None => match wishes.get(choice - arrivals.len() - jobs.len()) {
                    Some(at) => self.change_record(*at),
                    None => {
                        let late = choice - arrivals.len() - jobs.len() - wishes.len();
                        let (term, wish) = self.shelf.late.swap_remove(late);
                        if let Verdict::Apply(_) = self.write_record(term, &wish) {
                            (0..self.engines.len()).for_each(|at| self.look_at_record(at));
                        }
                    }
                },
            },
        }
        if self.frontend.deadline().is_some_and(|at| at <= self.now) {
            self.feed_frontend(frontend::Input::Tick);
        }
        true
    }

    fn pass_time(&mut self) -> bool {
        let Some(deadline) = self.frontend.deadline() else { return false };
        self.now = self.now.max(deadline);
        self.feed_frontend(frontend::Input::Tick);
        true
    }

    fn finish_job(&mut self, at: usize) {
        let node = &mut self.replicas[at];
        let (done, input) = if let Some(standing) = node.persisting.take() {
            let promise = node.promise.as_mut().expect("a live replica has its promise open");
            let stored = promise.store(standing).and_then(|()| promise.mirror());
            (stored, replica::Input::Persisted(standing))
        } else if std::mem::take(&mut node.noting) {
            let file = node.core.as_ref().map(|core| core.store().intent_file());
            (file.map_or(Ok(()), |file| node.disk.sync(&file)), replica::Input::IntentSynced)
        } else if let Some(key) = node.departures.pop_front() {
            let file = node.core.as_ref().and_then(|core| core.store().absent_file(key));
            let synced = file.map_or(Ok(()), |file| node.disk.sync(&file));
            (synced.and_then(|()| node.disk.sync_folder()), replica::Input::AbsentSynced(key))
        } else if let Some((number, plan)) = node.fetching.pop_front() {
            plan.carry_out(&node.disk);
            (Ok(()), replica::Input::Fetched(number))
        } else {
            match node.syncing.take() {
                Some(plan) => match plan.carry_out(&node.disk) {
                    Ok(carried) => (Ok(()), replica::Input::Synced(carried)),
                    Err(error) => (Err(error), replica::Input::Work),
                },
                None => (Ok(()), replica::Input::Work),
            }
        };
        match done {
            Ok(()) => self.feed_replica(at, input),
            Err(_) => self.kill_replica(at),
        }
    }

    /// Goes on until the client has every answer.
    pub(super) fn settle(&mut self) {
        let mut steps = 0;
        while self.client.waiting() > 0 {
            assert!(self.step(), "the world stands still with {} unanswered", self.client.waiting());
            steps += 1;
            assert!(steps < 200_000, "no answer after {steps} steps");
        }
    }
}
