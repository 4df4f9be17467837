//! An engine at work: the core between one frontend and the replicas.
//!
//! Invariant: an engine that has been fenced out ends; it never tries again
//! under the same epoch. One that only reads that another is to follow goes on until
//! then: it can drop nobody, and what a promised replica refuses it does not acknowledge.

use std::{
    io,
    str::FromStr,
    time::{Duration, Instant},
};

use super::{
    core::{Change, Engine, Input, Output, Phase, Seat},
    paths::{Paths, Turn},
};
use crate::{
    epoch::Epoch,
    failpoint::{self, Point},
    net::{
        address::{Address, Listener},
        reactor::{Door, Event, LinkId, Reactor},
    },
    record::{
        Record, RecordError, RecordStore, Wish,
        place::{OpenRecord, RecordPlace},
        scribe::{Outcome, Scribe},
    },
    role,
    wire::Kind,
};

/// Carry out a volume's requests on its replicas.
#[derive(Debug, Clone, clap::Args)]
pub struct EngineArgs {
    /// Volume to serve.
    #[arg(long)]
    pub volume: String,
    /// Term of the volume's record that names this engine.
    #[arg(long)]
    pub term: u64,
    /// How often this engine was restarted within its term.
    #[arg(long, default_value_t = 0)]
    pub incarnation: u16,
    /// The volume's record: a file, or api:KUBECONFIG#VOLUME in a cluster.
    #[arg(long)]
    pub record: RecordPlace,
    /// Where a replica of the record can be reached: NAME=ADDRESS; give it once for each.
    #[arg(long = "replica")]
    pub replicas: Vec<Named>,
    /// Where the frontend connects: unix:PATH or IP:PORT.
    #[arg(long)]
    pub listen: Address,
    /// Let requests wait until the engine is told to resume.
    #[arg(long)]
    pub suspended: bool,
    /// Rebuild this replica when it returns, until the engine is told which; give it once for each. Without it, none is rebuilt.
    #[arg(long = "permit", value_name = "NAME")]
    pub permitted: Vec<String>,
}

impl EngineArgs {
    /// What starts a process with these arguments.
    pub fn command_line(&self) -> Vec<String> {
        let mut line = vec![
            "engine".to_owned(),
            format!("--volume={}", self.volume),
            format!("--term={}", self.term),
            format!("--incarnation={}", self.incarnation),
            format!("--record={}", self.record),
            format!("--listen={}", self.listen),
        ];
        line.extend(self.replicas.iter().map(|named| format!("--replica={}={}", named.name, named.address)));
        line.extend(self.suspended.then(|| "--suspended".to_owned()));
        line.extend(self.permitted.iter().map(|replica| format!("--permit={replica}")));
        line
    }
}

/// A replica and where it can be reached.
#[derive(Debug, Clone)]
pub struct Named {
    pub name: String,
    pub address: Address,
}

impl FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Named, String> {
        let (name, address) = text.split_once('=').ok_or(format!("{text} is not NAME=ADDRESS"))?;
        Ok(Named { name: name.to_owned(), address: address.parse()? })
    }
}

/// Why an engine does not serve (any more).
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("listen on {address}")]
    Listen { address: Address, source: io::Error },
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error("the record gives the volume to term {theirs}, this engine has {ours}")]
    OtherTerm { ours: u64, theirs: u64 },
    #[error("a replica has promised epoch {by}, this engine had {ours}")]
    Fenced { ours: Epoch, by: Epoch },
    #[error("the record gives the volume to term {}, this engine had {ours}", by.term())]
    Outbid { ours: Epoch, by: Epoch },
    #[error("the last replica in service is gone; a successor finds out what it has")]
    Stranded,
    #[error("the record was changed by another engine of this term; start again from what it says")]
    Stale,
}

const THROTTLE_EVERY: Duration = Duration::from_millis(10);
/// By then whoever waited for a switch-over has been served.
const SETTLE_AFTER: Duration = Duration::from_secs(1);

/// The volume's record, opened and read: this may take a while, and no loop has to wait for it.
pub struct Opened {
    store: OpenRecord,
    record: Record,
}

impl Opened {
    pub fn open(args: &EngineArgs) -> Result<Opened, EngineError> {
        failpoint::reached(Point::Start);
        let mut store = args.record.open()?;
        let (_, record) = store.read()?;
        match record.term == args.term {
            true => Ok(Opened { store, record }),
            false => Err(EngineError::OtherTerm { ours: args.term, theirs: record.term }),
        }
    }
}

/// An engine in a loop that it may share with others; see `host`.
pub struct Serving {
    core: Engine,
    epoch: Epoch,
    paths: Paths,
    /// Names of the members, as the record has them.
    names: Vec<String>,
    scribe: Scribe,
    changing: Option<Change>,
    outputs: Vec<Output>,
    /// Since when a rebuild waits, or was last told how long.
    throttled: Option<Instant>,
    /// When what engines before have left is to be flushed.
    settle_at: Option<Instant>,
}

impl Serving {
    /// Opens `door` to the frontend; says where that can connect.
    pub fn begin(
        opened: Opened,
        args: &EngineArgs,
        door: Door,
        reactor: &mut Reactor,
    ) -> Result<(Serving, Address), EngineError> {
        let Opened { store, record } = opened;
        let epoch = Epoch::from_bits(Epoch::of_term(args.term).bits() | u64::from(args.incarnation));
        let listen = |source| EngineError::Listen { address: args.listen.clone(), source };
        let listener = Listener::bind(&args.listen).map_err(listen)?;
        let address = listener.address(&args.listen).map_err(listen)?;
        reactor.open_door(door, listener).map_err(listen)?;
        let scribe = Scribe::start(store, &record, reactor.waker());
        let mut core = Engine::new(seat(args, epoch, &record));
        if args.suspended {
            core.suspend();
        }
        core.listen_to(record.attachment);
        let address_of = |name: &str| {
            args.replicas.iter().find(|replica| replica.name == name).map(|replica| replica.address.clone())
        };
        let paths = Paths::new(record.members.iter().map(|member| address_of(&member.replica)).collect());
        let names: Vec<String> = record.members.into_iter().map(|member| member.replica).collect();
        core.call_members(names.clone());
        let mut engine = Serving {
            core,
            epoch,
            paths,
            names,
            scribe,
            changing: None,
            outputs: Vec::new(),
            throttled: None,
            settle_at: None,
        };
        engine.mind(reactor)?;
        tracing::info!(volume = args.volume, %address, %epoch, "engine observes");
        Ok((engine, address))
    }

    /// When `mind` is wanted.
    pub fn deadline(&self) -> Option<Instant> {
        let paths = self.paths.deadline(|member| self.core.may_connect(member));
        let throttle = self.throttled.map(|since| since + THROTTLE_EVERY);
        [paths, throttle, self.settle_at].into_iter().flatten().min()
    }

    pub fn on_event(&mut self, event: Event, reactor: &mut Reactor) -> Result<(), EngineError> {
        match event {
            Event::Accepted { .. } | Event::Readable(_) => Ok(()),
            Event::Connected(link) => self.on_connected(link, reactor),
            Event::Arrived(link) => self.on_arrived(link, reactor),
            Event::Closed(link) => self.on_closed(link, reactor),
            Event::Woken => self.on_woken(reactor),
        }
    }

    /// Looks after members and a rebuild that was asked to be slow.
    pub fn mind(&mut self, reactor: &mut Reactor) -> Result<(), EngineError> {
        self.mind_paths(reactor)?;
        self.settle_in_time(reactor)?;
        if !self.core.is_throttled() {
            self.throttled = None;
            return Ok(());
        }
        let now = Instant::now();
        let since = *self.throttled.get_or_insert(now);
        if now - since < THROTTLE_EVERY {
            return Ok(());
        }
        self.throttled = Some(now);
        self.feed(Input::Passed(now - since), reactor)
    }

    fn settle_in_time(&mut self, reactor: &mut Reactor) -> Result<(), EngineError> {
        if !self.core.wants_to_settle() {
            self.settle_at = None;
            return Ok(());
        }
        let now = Instant::now();
        match self.settle_at {
            Some(at) if at <= now => self.feed(Input::Settle, reactor),
            Some(_) => Ok(()),
            None => {
                self.settle_at = Some(now + SETTLE_AFTER);
                Ok(())
            }
        }
    }

    /// Connects to members that are missing, asks the silent ones, gives the dead ones up.
    fn mind_paths(&mut self, reactor: &mut Reactor) -> Result<(), EngineError> {
        let core = &self.core;
        for turn in self.paths.turns(Instant::now(), |member| core.may_connect(member)) {
            match turn {
                Turn::Connect { member, to } => match reactor.connect(&to) {
                    Ok(link) => self.paths.connecting(member, link),
                    Err(error) => tracing::debug!(member, %error, "connect"),
                },
                Turn::Ping { link, frame } => reactor.send(link, frame),
                Turn::GiveUp { link } => {
                    tracing::warn!(?link, "member is silent");
                    reactor.close(link);
                    self.on_closed(link, reactor)?;
                }
                Turn::Unreachable { member } => self.feed(Input::Unreachable { member }, reactor)?,
            }
        }
        Ok(())
    }

    fn on_connected(&mut self, link: LinkId, reactor: &mut Reactor) -> Result<(), EngineError> {
        let Some(member) = self.paths.connected(link) else { return Ok(()) };
        if reactor.is_inner(link) {
            self.core.read_first_from(member);
        }
        self.feed(Input::Connected { member, link }, reactor)
    }

    fn on_arrived(&mut self, link: LinkId, reactor: &mut Reactor) -> Result<(), EngineError> {
        self.paths.heard(link);
        loop {
            match reactor.next_frame(link) {
                Ok(Some(frame)) => self.feed(Input::Frame(link, frame), reactor)?,
                Ok(None) => return Ok(()),
                Err(error) => {
                    tracing::warn!(%error, "link closed");
                    reactor.close(link);
                    return self.on_closed(link, reactor);
                }
            }
        }
    }

    fn on_closed(&mut self, link: LinkId, reactor: &mut Reactor) -> Result<(), EngineError> {
        self.paths.closed(link);
        self.feed(Input::Closed(link), reactor)
    }

    fn on_woken(&mut self, reactor: &mut Reactor) -> Result<(), EngineError> {
        while let Some(outcome) = self.scribe.outcome() {
            match outcome {
                Outcome::Done => {
                    let Some(change) = self.changing.take() else { continue };
                    let replica = &self.names[change.member];
                    tracing::info!(replica, mode = ?change.mode, version = change.version, "record changed");
                    self.feed(Input::Changed(change), reactor)?;
                }
                Outcome::Outbid { term } => {
                    self.feed(Input::Outbid { by: Epoch::of_term(term) }, reactor)?;
                }
                Outcome::Stale => return Err(EngineError::Stale),
            }
        }
        Ok(())
    }

    fn feed(&mut self, input: Input, reactor: &mut Reactor) -> Result<(), EngineError> {
        if matches!(&input, Input::Frame(_, frame) if frame.header.kind == Kind::Go) {
            failpoint::reached(Point::Go);
        }
        let mut outputs = std::mem::take(&mut self.outputs);
        self.core.apply(input, &mut outputs);
        if self.core.phase() == Phase::Serving {
            failpoint::reached(Point::Serve);
        }
        for output in outputs.drain(..) {
            match output {
                Output::Send(link, frame) => reactor.send(link, frame),
                Output::Close(link) => {
                    reactor.close(link);
                    self.paths.closed(link);
                }
                Output::Change(change) => {
                    self.changing = Some(change);
                    let replica = self.names[change.member].clone();
                    self.scribe.wish(Wish { replica, mode: change.mode, version: change.version });
                }
                Output::Reach { member, address } => self.paths.reach(member, address),
                Output::Patience(time) => self.paths.bear(time),
                Output::Fenced { by } => return Err(EngineError::Fenced { ours: self.epoch, by }),
                Output::Outbid { by } => return Err(EngineError::Outbid { ours: self.epoch, by }),
                Output::Stranded => return Err(EngineError::Stranded),
            }
        }
        self.outputs = outputs;
        Ok(())
    }
}

fn seat(args: &EngineArgs, epoch: Epoch, record: &Record) -> Seat {
    Seat {
        volume: args.volume.clone(),
        epoch,
        sender: role::process_name(),
        version: record.member_version,
        members: record.members.iter().map(|member| (Record::key(&member.replica), member.mode)).collect(),
        permitted: args.permitted.clone(),
    }
}
