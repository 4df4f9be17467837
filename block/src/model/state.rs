//! The whole data plane as a value: who lives, what is on its way, what is on disk,
//! what the record says, what the client knows.
//!
//! Invariant: a state changes only by `feed_*`, which give a production core one
//! input and carry its outputs away, and by processes that start and end.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::LazyLock,
    time::{Duration, Instant},
};

use bytes::Bytes;

use super::{
    disk::{Files, StateDisk},
    kept::Kept,
    wrong::Wrong,
};
use crate::{
    engine::{
        control::Command,
        core::{self as engine, Change, Engine, Phase, Seat},
        members::Mode,
    },
    epoch::Epoch,
    extent::Extent,
    frontend::{
        core::{self as frontend, Standing, Volume},
        table::{Op as Asked, Request},
    },
    net::reactor::LinkId,
    record::{Record, Verdict, Wish},
    replica::{
        core::{self as replica, Replica},
        layers::SyncPlan,
        promise::{self, PromiseFile},
    },
    sim::{
        network::{Network, Node},
        nodes::{Nodes, address_of, engine_at, wish},
    },
    wire::{Frame, Header, Kind, Status, checksum},
};

pub(super) const VOLUME: &str = "v";
pub(super) const BLOCK: u64 = 4096;
/// The head of a copy without snapshots.
pub(super) const IMAGE: &str = "layer-0000000000000000.img";
/// Time stands still, except that the moment a core waits for may come.
static NOW: LazyLock<Instant> = LazyLock::new(Instant::now);
/// Tags from here on are not requests for data.
pub(super) const CONTROL: u64 = 1 << 62;

/// The connection on which commands come.
const COORDINATOR: LinkId = LinkId::from_bits(1 << 60);

/// What the client does, in this order; it does not wait for answers in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Op {
    Write { block: u8 },
    Read { block: u8 },
}

/// Where a run begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Begin {
    /// One engine serves, everyone is at rest.
    AtRest,
    /// The next engine is connected, its epoch is durable at the replicas, and the
    /// frontend is about to learn it.
    Prepared,
}

/// When a replica's syncs end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Disks {
    /// At once: whoever is killed has stored what it was about to.
    Quick,
    /// At any time: it may be killed before.
    Slow,
}

/// How large the world is and what may befall it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Scope {
    pub(super) replicas: usize,
    pub(super) blocks: u8,
    pub(super) ops: &'static [Op],
    pub(super) begin: Begin,
    pub(super) disks: Disks,
    pub(super) left: Left,
}

/// What can still happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Left {
    pub(super) switches: u8,
    pub(super) engine_kills: u8,
    pub(super) replica_kills: u8,
    pub(super) power_losses: u8,
    pub(super) cuts: u8,
    /// Copies that a coordinator lets go.
    pub(super) releases: u8,
}

/// A rule that a step has broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Fault {
    Interleaved,
    WentBack,
    AcknowledgedEarly,
    ClientError,
    StaleRead,
}

#[derive(Debug, Clone, PartialEq, Hash)]
pub(super) struct Client {
    pub(super) issued: usize,
    /// Requests without an answer, with what was acknowledged when they were made.
    pub(super) open: BTreeMap<u64, u8>,
    /// The newest acknowledged write of each block.
    pub(super) acknowledged: Vec<u8>,
}

#[derive(Debug, Clone)]
pub(super) struct EngineNode {
    pub(super) core: Option<Engine>,
    pub(super) epoch: Epoch,
    pub(super) links: Vec<Option<LinkId>>,
    pub(super) changing: Option<Change>,
}

#[derive(Debug, Clone)]
pub(super) struct Process {
    pub(super) core: Replica<StateDisk>,
    pub(super) promise: PromiseFile<StateDisk>,
    pub(super) persisting: Option<promise::Standing>,
    pub(super) syncing: Option<SyncPlan<StateDisk>>,
    pub(super) noting: bool,
    pub(super) departures: VecDeque<u64>,
}

#[derive(Debug, Clone, PartialEq, Hash)]
pub(super) struct ReplicaNode {
    pub(super) files: Kept<Files>,
    pub(super) process: Option<Kept<Process>>,
    pub(super) boot: u64,
    /// Lost power and was not made whole since.
    pub(super) lost: bool,
    /// Epoch of the last write that changed it, and the highest it acknowledged under.
    pub(super) wrote: Epoch,
    pub(super) answered: Epoch,
}

/// The record, and what dead engines have sent to it that did not arrive yet.
#[derive(Debug, Clone)]
pub(super) struct Shelf {
    pub(super) record: Record,
    pub(super) late: Vec<(u64, Wish)>,
}

/// What a replica can finish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Job {
    Persist,
    Note,
    Depart,
    Sync,
}

#[derive(Debug, Clone, PartialEq, Hash)]
pub(super) struct State {
    pub(super) scope: Scope,
    pub(super) wrong: Option<Wrong>,
    pub(super) left: Left,
    pub(super) network: Kept<Network>,
    /// Connections ever made between two nodes: their names do not depend on what
    /// others did meanwhile.
    made: BTreeMap<(u8, u8), u64>,
    pub(super) frontend: Kept<Volume>,
    pub(super) engines: Vec<Kept<EngineNode>>,
    pub(super) replicas: Vec<ReplicaNode>,
    pub(super) shelf: Kept<Shelf>,
    pub(super) client: Client,
    /// Whether the frontend knows of the newest engine.
    pub(super) told: bool,
    pub(super) faults: BTreeSet<Fault>,
}

fn number(node: Node) -> u8 {
    match node {
        Node::Frontend => 0,
        Node::Engine(at) => 1 + at as u8,
        Node::Replica(at) => 100 + at as u8,
    }
}

impl Nodes for State {
    fn feed_frontend(&mut self, input: frontend::Input) {
        self.feed_frontend_at(*NOW, input);
    }

    fn feed_engine(&mut self, at: usize, input: engine::Input) {
        let mut out = Vec::new();
        let lives = self.engines[at].change(|node| match &mut node.core {
            Some(core) => {
                core.apply(input, &mut out);
                // When it comes does not matter to anyone: it changes no byte.
                if core.wants_to_settle() {
                    core.apply(engine::Input::Settle, &mut out);
                }
                true
            }
            None => false,
        });
        if !lives {
            return;
        }
        for output in out {
            match output {
                engine::Output::Send(COORDINATOR, _) => {}
                engine::Output::Send(link, frame) => {
                    self.judge_acknowledgement(at, link, &frame);
                    self.send(Node::Engine(at), link, frame);
                }
                engine::Output::Close(link) => {
                    self.close(Node::Engine(at), link);
                    self.forget_link(at, link);
                }
                engine::Output::Change(change) => {
                    self.engines[at].change(|node| node.changing = Some(change));
                    if self.wrong == Some(Wrong::DropsFirst) {
                        self.feed_engine(at, engine::Input::Changed(change));
                    }
                }
                // Who is alive can be reached here.
                engine::Output::Reach { .. } | engine::Output::Patience(_) => {}
                engine::Output::Fenced { .. } | engine::Output::Outbid { .. } | engine::Output::Stranded => {
                    return self.kill_engine(at);
                }
            }
        }
    }

    fn feed_replica(&mut self, at: usize, input: replica::Input) {
        self.give_replica(at, input);
    }

    fn forget_link(&mut self, at: usize, link: LinkId) {
        self.engines[at].change(|node| {
            node.links.iter_mut().filter(|slot| **slot == Some(link)).for_each(|slot| *slot = None);
        });
    }
}

impl State {
    /// Everyone is started and nobody has spoken yet.
    pub(super) fn new(scope: Scope, wrong: Option<Wrong>) -> State {
        let mut out = Vec::new();
        let size = u64::from(scope.blocks) * BLOCK;
        let frontend = Volume::attach(VOLUME.into(), size, 1, Standing::new(address_of(0)), &mut out);
        let record = Record::new((0..scope.replicas).map(|at| at.to_string())).next_term();
        let fresh = ReplicaNode {
            files: Kept::new(Files::default()),
            process: None,
            boot: 1,
            lost: false,
            wrote: Epoch::NONE,
            answered: Epoch::NONE,
        };
        let acknowledged = vec![0; scope.blocks.into()];
        let mut state = State {
            scope,
            wrong,
            left: Left::default(),
            network: Kept::new(Network::default()),
            made: BTreeMap::new(),
            frontend: Kept::new(frontend),
            engines: Vec::new(),
            replicas: vec![fresh; scope.replicas],
            shelf: Kept::new(Shelf { record, late: Vec::new() }),
            client: Client { issued: 0, open: BTreeMap::new(), acknowledged },
            told: true,
            faults: BTreeSet::new(),
        };
        (0..scope.replicas).for_each(|at| state.start_replica(at));
        state.start_engine(Epoch::of_term(1));
        state.carry_frontend(out);
        state
    }

    pub(super) fn record(&self) -> Record {
        self.shelf.look(|shelf| shelf.record.clone())
    }

    pub(super) fn mode(&self, at: usize) -> Mode {
        self.shelf.look(|shelf| shelf.record.members[at].mode)
    }

    pub(super) fn lives(&self, node: Node) -> bool {
        match node {
            Node::Frontend => true,
            Node::Engine(at) => {
                self.engines.get(at).is_some_and(|node| node.look(|node| node.core.is_some()))
            }
            Node::Replica(at) => self.replicas[at].process.is_some(),
        }
    }

    /// The newest write that a copy has of a block.
    pub(super) fn holds(&self, at: usize, block: u8) -> u8 {
        self.replicas[at].files.look(|files| files.byte(IMAGE, u64::from(block) * BLOCK))
    }

    /// What the write at this place of the script writes: how many there were to the
    /// same block, with this one.
    fn value(&self, at: usize) -> u8 {
        let Op::Write { block } = self.scope.ops[at] else { return 0 };
        self.scope.ops[..=at].iter().filter(|op| **op == Op::Write { block }).count() as u8
    }

    /// How often the same two have connected, at most.
    pub(super) fn most_connections(&self) -> u64 {
        self.made.values().copied().max().unwrap_or(0)
    }

    fn connect(&mut self, from: Node, to: Node) -> LinkId {
        let (one, other) = (number(from), number(to));
        let count = self.made.entry((one, other)).or_insert(0);
        *count += 1;
        let link = LinkId::from_bits(u64::from(one) << 32 | u64::from(other) << 16 | *count);
        self.network.change(|network| network.open(link, from, to));
        link
    }

    pub(super) fn send(&mut self, from: Node, link: LinkId, frame: Frame) {
        self.network.change(|network| network.send(from, link, frame));
    }

    pub(super) fn close(&mut self, by: Node, link: LinkId) {
        self.network.change(|network| network.close(by, link));
    }

    // ---- client

    pub(super) fn issue(&mut self) {
        let at = self.client.issued;
        self.client.issued += 1;
        let (block, op, payload) = match self.scope.ops[at] {
            Op::Write { block } => (block, Asked::Write, Bytes::from(vec![self.value(at)])),
            Op::Read { block } => (block, Asked::Read, Bytes::new()),
        };
        self.client.open.insert(at as u64, self.client.acknowledged[usize::from(block)]);
        let request = Request {
            client: LinkId::NOBODY,
            cookie: at as u64,
            op,
            fua: false,
            extent: Extent::new(u64::from(block) * BLOCK, 1).expect("inside the volume"),
            check: checksum(&payload),
            payload,
            arrived: *NOW,
        };
        self.feed_frontend(frontend::Input::Request(request));
    }

    fn take_answer(&mut self, answer: &frontend::Answer) {
        let floor = self.client.open.remove(&answer.cookie);
        let Some(floor) = floor.filter(|_| answer.status == Status::Ok) else {
            self.faults.insert(Fault::ClientError);
            return;
        };
        let at = answer.cookie as usize;
        match self.scope.ops[at] {
            Op::Write { block } => {
                let value = self.value(at);
                let known = &mut self.client.acknowledged[usize::from(block)];
                *known = value.max(*known);
            }
            Op::Read { .. } if answer.data[0] < floor => {
                self.faults.insert(Fault::StaleRead);
            }
            Op::Read { .. } => {}
        }
    }

    // ---- frontend

    /// The coordinator names the newest engine to the frontend.
    pub(super) fn tell(&mut self) {
        self.told = true;
        let to = address_of(self.engines.len() - 1);
        self.feed_frontend(frontend::Input::Switch { to, drain_within: Duration::from_millis(20) });
    }

    /// What the frontend waits for has come.
    pub(super) fn tick(&mut self) {
        let Some(deadline) = self.frontend.look(Volume::deadline_of_live) else { return };
        self.feed_frontend_at(deadline, frontend::Input::Tick);
    }

    fn feed_frontend_at(&mut self, now: Instant, input: frontend::Input) {
        let replays = Wrong::replays(&input);
        let mut out = Vec::new();
        self.frontend.change(|core| core.apply(now, input, &mut out));
        if replays && self.wrong == Some(Wrong::DoesNotReplay) {
            out.retain(|output| !Wrong::is_write(output));
        }
        self.carry_frontend(out);
    }

    fn carry_frontend(&mut self, out: Vec<frontend::Output>) {
        for output in out {
            match output {
                frontend::Output::Answer(answer) => self.take_answer(&answer),
                frontend::Output::Send(link, frame) => self.send(Node::Frontend, link, frame),
                frontend::Output::Close(link) => self.close(Node::Frontend, link),
                frontend::Output::Switched(_) | frontend::Output::Grown => {}
                frontend::Output::NotSwitched(_) => self.told = false,
                frontend::Output::Connect(to) => {
                    let engine = Node::Engine(engine_at(&to));
                    let input = if self.lives(engine) {
                        let link = self.connect(Node::Frontend, engine);
                        frontend::Input::Connected { to, link }
                    } else {
                        frontend::Input::Unreachable { to }
                    };
                    self.feed_frontend(input);
                }
            }
        }
    }

    // ---- engines

    fn seat(&self, epoch: Epoch, engine: usize) -> Seat {
        let record = self.record();
        let members = (0..).zip(&record.members).map(|(key, member)| (key, member.mode)).collect();
        let sender = 1000 * (1 + engine as u64) + u64::from(epoch.incarnation());
        let permitted = (0..record.members.len()).map(|number| number.to_string()).collect();
        Seat { volume: VOLUME.into(), epoch, sender, version: record.member_version, members, permitted }
    }

    fn start_engine(&mut self, epoch: Epoch) {
        let core = Some(Engine::new(self.seat(epoch, self.engines.len())));
        let links = vec![None; self.scope.replicas];
        self.engines.push(Kept::new(EngineNode { core, epoch, links, changing: None }));
    }

    /// The coordinator raises the term and starts an engine for it.
    pub(super) fn take_term(&mut self) {
        let term = self.shelf.change(|shelf| {
            shelf.record = shelf.record.next_term();
            shelf.record.term
        });
        self.start_engine(Epoch::of_term(term));
        self.told = false;
    }

    /// The engine that serves is told to let the last copy go.
    pub(super) fn release(&mut self) {
        let command = Command::Release { replica: (self.scope.replicas - 1).to_string() };
        let payload = serde_json::to_vec(&command).expect("a command is plain").into();
        let frame = Frame::with(Header::new(Kind::Control, 0, Epoch::NONE), payload);
        let serves = |node: &Kept<EngineNode>| {
            node.look(|node| node.core.as_ref().is_some_and(|core| core.phase() == Phase::Serving))
        };
        if let Some(at) = self.engines.iter().position(serves) {
            self.feed_engine(at, engine::Input::Frame(COORDINATOR, frame));
        }
    }

    pub(super) fn kill_engine(&mut self, at: usize) {
        let (change, term) = self.engines[at].change(|node| {
            node.core = None;
            node.links.fill(None);
            (node.changing.take(), node.epoch.term())
        });
        // What it sent to the record before it died may still get there.
        if let Some(change) = change {
            self.shelf.change(|shelf| shelf.late.push((term, wish(change))));
        }
        self.network.change(|network| network.drop_node(Node::Engine(at)));
    }

    /// The same address, a new process, the next incarnation.
    pub(super) fn restart_engine(&mut self, at: usize) {
        let epoch = self.engines[at].look(|node| node.epoch.next_incarnation()).expect("some are left");
        let core = Some(Engine::new(self.seat(epoch, at)));
        let links = vec![None; self.scope.replicas];
        self.engines[at] = Kept::new(EngineNode { core, epoch, links, changing: None });
    }

    /// An engine has an answer about the record.
    pub(super) fn write_record(&mut self, at: usize) {
        let (change, term) = self.engines[at].change(|node| (node.changing.take(), node.epoch.term()));
        let Some(change) = change else { return };
        match self.judge(term, &wish(change)) {
            Verdict::Apply(_) | Verdict::Done => {
                if self.wrong != Some(Wrong::DropsFirst) {
                    self.feed_engine(at, engine::Input::Changed(change));
                }
            }
            Verdict::Outbid { term } => {
                self.feed_engine(at, engine::Input::Outbid { by: Epoch::of_term(term) });
            }
            Verdict::Stale => self.kill_engine(at),
        }
    }

    pub(super) fn judge(&mut self, term: u64, wish: &Wish) -> Verdict {
        let verdict = self.shelf.look(|shelf| shelf.record.judge(term, wish));
        if let Verdict::Apply(next) = &verdict {
            let before = self.record();
            if next.term < before.term || next.member_version <= before.member_version {
                self.faults.insert(Fault::WentBack);
            }
            self.shelf.change(|shelf| shelf.record = next.clone());
            if wish.mode == Mode::InService {
                let member: usize = wish.replica.parse().expect("a member's number");
                self.replicas[member].lost = false;
            }
        }
        verdict
    }

    /// An engine answers the frontend: whoever the record counts must have the write.
    fn judge_acknowledgement(&mut self, at: usize, link: LinkId, frame: &Frame) {
        let to_member = self.engines[at].look(|node| node.links.contains(&Some(link)));
        let header = &frame.header;
        let tag = header.tag as usize;
        if to_member
            || header.kind != Kind::Reply
            || header.status != Status::Ok
            || tag >= self.scope.ops.len()
        {
            return;
        }
        // The frontend numbers requests from 0 on.
        let Op::Write { block } = self.scope.ops[tag] else { return };
        let lacks = |at: usize| !self.replicas[at].lost && self.holds(at, block) < self.value(tag);
        let early = (0..self.scope.replicas).any(|at| self.mode(at) == Mode::InService && lacks(at));
        if early {
            self.faults.insert(Fault::AcknowledgedEarly);
        }
    }

    /// Engines connect to members that they lack, as soon as they can.
    pub(super) fn connect_members(&mut self) {
        for at in 0..self.engines.len() {
            for member in 0..self.scope.replicas {
                let wants = self.engines[at].look(|node| {
                    let wants = node.core.as_ref().is_some_and(|core| core.may_connect(member));
                    wants && node.links[member].is_none()
                });
                if wants && self.lives(Node::Replica(member)) {
                    let link = self.connect(Node::Engine(at), Node::Replica(member));
                    self.engines[at].change(|node| node.links[member] = Some(link));
                    self.feed_engine(at, engine::Input::Connected { member, link });
                }
            }
        }
    }
}
