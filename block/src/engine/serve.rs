//! An engine as a process: the core between one frontend and the replicas.
//!
//! Invariant: an engine that has been fenced out ends; it never tries again
//! under the same epoch.

use std::{io, path::PathBuf, str::FromStr, time::Instant};

use super::{
    core::{Change, Engine, Input, Output, Seat},
    paths::{Paths, Turn},
};
use crate::{
    epoch::Epoch,
    net::{
        address::{Address, Listener},
        reactor::{Door, Event, LinkId, Reactor},
        stop::Stop,
    },
    record::{
        Record, RecordError, RecordStore, Wish,
        file::FileRecord,
        scribe::{Outcome, Scribe},
    },
    role,
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
    /// File with the volume's record.
    #[arg(long)]
    pub record: PathBuf,
    /// Where a replica of the record can be reached: NAME=ADDRESS; give it once for each.
    #[arg(long = "replica", required = true)]
    pub replicas: Vec<Named>,
    /// Where the frontend connects: unix:PATH or IP:PORT.
    #[arg(long)]
    pub listen: Address,
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
    #[error("wait for messages")]
    Wait(#[source] io::Error),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error("the record gives the volume to term {theirs}, this engine has {ours}")]
    OtherTerm { ours: u64, theirs: u64 },
    #[error("a replica has promised epoch {by}, this engine had {ours}")]
    Fenced { ours: Epoch, by: Epoch },
    #[error("the last replica in service is gone; a successor finds out what it has")]
    Stranded,
    #[error("the record was changed by another engine of this term; start again from what it says")]
    Stale,
}

const FRONTENDS: Door = Door(0);

/// Serves until it is fenced out or the process is stopped.
pub fn run(args: &EngineArgs) -> Result<(), EngineError> {
    host(args, |address, _| role::announce(address))
}

/// Serves in the calling thread; `started` is told where it can be reached and how it is ended.
pub fn host(args: &EngineArgs, started: impl FnOnce(&Address, Stop)) -> Result<(), EngineError> {
    let epoch = Epoch::from_bits(Epoch::of_term(args.term).bits() | u64::from(args.incarnation));
    let mut store = FileRecord::at(&args.record);
    let (_, record) = store.read()?;
    if record.term != args.term {
        return Err(EngineError::OtherTerm { ours: args.term, theirs: record.term });
    }
    let listen = |source| EngineError::Listen { address: args.listen.clone(), source };
    let listener = Listener::bind(&args.listen).map_err(listen)?;
    let address = listener.address(&args.listen).map_err(listen)?;
    let mut reactor = Reactor::new().map_err(EngineError::Wait)?;
    reactor.open_door(FRONTENDS, listener).map_err(listen)?;
    let scribe = Scribe::start(store, &record, reactor.waker());
    let core = Engine::new(seat(args, epoch, &record));
    let address_of = |name: &str| {
        args.replicas.iter().find(|replica| replica.name == name).map(|replica| replica.address.clone())
    };
    let paths = Paths::new(record.members.iter().map(|member| address_of(&member.replica)).collect());
    let names = record.members.into_iter().map(|member| member.replica).collect();
    let stop = Stop::of(reactor.waker());
    let mut driver = Driver {
        core,
        epoch,
        reactor,
        paths,
        names,
        scribe,
        changing: None,
        outputs: Vec::new(),
        stop: stop.clone(),
    };
    driver.mind_paths()?;
    tracing::info!(volume = args.volume, %address, %epoch, "engine observes");
    started(&address, stop);
    driver.run()
}

fn seat(args: &EngineArgs, epoch: Epoch, record: &Record) -> Seat {
    Seat {
        volume: args.volume.clone(),
        epoch,
        sender: role::process_name(),
        version: record.member_version,
        members: record.members.iter().map(|member| (Record::key(&member.replica), member.mode)).collect(),
    }
}

struct Driver {
    core: Engine,
    epoch: Epoch,
    reactor: Reactor,
    paths: Paths,
    /// Names of the members, as the record has them.
    names: Vec<String>,
    scribe: Scribe,
    changing: Option<Change>,
    outputs: Vec<Output>,
    stop: Stop,
}

impl Driver {
    fn run(mut self) -> Result<(), EngineError> {
        let mut events = Vec::new();
        while !self.stop.is_asked() {
            let until = self.paths.deadline(|member| self.core.may_connect(member));
            self.reactor.wait(until, &mut events).map_err(EngineError::Wait)?;
            for event in events.drain(..) {
                match event {
                    Event::Accepted { .. } | Event::Readable(_) => {}
                    Event::Connected(link) => self.on_connected(link)?,
                    Event::Arrived(link) => self.on_arrived(link)?,
                    Event::Closed(link) => self.on_closed(link)?,
                    Event::Woken => self.on_woken()?,
                }
            }
            self.mind_paths()?;
        }
        Ok(())
    }

    /// Connects to members that are missing, asks the silent ones, gives the dead ones up.
    fn mind_paths(&mut self) -> Result<(), EngineError> {
        let core = &self.core;
        for turn in self.paths.turns(Instant::now(), |member| core.may_connect(member)) {
            match turn {
                Turn::Connect { member, to } => match self.reactor.connect(&to) {
                    Ok(link) => self.paths.connecting(member, link),
                    Err(error) => tracing::debug!(member, %error, "connect"),
                },
                Turn::Ping { link, frame } => self.reactor.send(link, frame),
                Turn::GiveUp { link } => {
                    tracing::warn!(?link, "member is silent");
                    self.reactor.close(link);
                    self.on_closed(link)?;
                }
                Turn::Unreachable { member } => self.feed(Input::Unreachable { member })?,
            }
        }
        Ok(())
    }

    fn on_connected(&mut self, link: LinkId) -> Result<(), EngineError> {
        match self.paths.connected(link) {
            Some(member) => self.feed(Input::Connected { member, link }),
            None => Ok(()),
        }
    }

    fn on_arrived(&mut self, link: LinkId) -> Result<(), EngineError> {
        self.paths.heard(link);
        loop {
            match self.reactor.next_frame(link) {
                Ok(Some(frame)) => self.feed(Input::Frame(link, frame))?,
                Ok(None) => return Ok(()),
                Err(error) => {
                    tracing::warn!(%error, "link closed");
                    self.reactor.close(link);
                    return self.on_closed(link);
                }
            }
        }
    }

    fn on_closed(&mut self, link: LinkId) -> Result<(), EngineError> {
        self.paths.closed(link);
        self.feed(Input::Closed(link))
    }

    fn on_woken(&mut self) -> Result<(), EngineError> {
        while let Some(outcome) = self.scribe.outcome() {
            match outcome {
                Outcome::Done => {
                    let Some(change) = self.changing.take() else { continue };
                    let replica = &self.names[change.member];
                    tracing::info!(replica, mode = ?change.mode, version = change.version, "record changed");
                    self.feed(Input::Changed(change))?;
                }
                Outcome::Outbid { term } => self.feed(Input::Outbid { by: Epoch::of_term(term) })?,
                Outcome::Stale => return Err(EngineError::Stale),
            }
        }
        Ok(())
    }

    fn feed(&mut self, input: Input) -> Result<(), EngineError> {
        let mut outputs = std::mem::take(&mut self.outputs);
        self.core.apply(input, &mut outputs);
        for output in outputs.drain(..) {
            match output {
                Output::Send(link, frame) => self.reactor.send(link, frame),
                Output::Close(link) => {
                    self.reactor.close(link);
                    self.paths.closed(link);
                }
                Output::Change(change) => {
                    self.changing = Some(change);
                    let replica = self.names[change.member].clone();
                    self.scribe.wish(Wish { replica, mode: change.mode, version: change.version });
                }
                Output::Fenced { by } => return Err(EngineError::Fenced { ours: self.epoch, by }),
                Output::Stranded => return Err(EngineError::Stranded),
            }
        }
        self.outputs = outputs;
        Ok(())
    }
}
