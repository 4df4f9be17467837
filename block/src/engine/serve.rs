//! An engine as a process: the core between one frontend and the replicas.
//!
//! Invariant: an engine that has been fenced out ends; it never tries again
//! under the same epoch.

use std::{
    io,
    time::{Duration, Instant},
};

use super::{
    core::{Engine, Input, Output, Seat},
    members::Mode,
};
use crate::{
    epoch::Epoch,
    net::{
        address::{Address, Listener, connect},
        reactor::{Door, Event, LinkId, Reactor},
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
    /// A replica in service; give it once for each.
    #[arg(long = "replica", required = true)]
    pub replicas: Vec<Address>,
    /// Where the frontend connects: unix:PATH or IP:PORT.
    #[arg(long)]
    pub listen: Address,
}

/// Why an engine does not serve (any more).
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("listen on {address}")]
    Listen { address: Address, source: io::Error },
    #[error("wait for messages")]
    Wait(#[source] io::Error),
    #[error("a replica has promised epoch {by}, this engine had {ours}")]
    Fenced { ours: Epoch, by: Epoch },
}

const FRONTENDS: Door = Door(0);
const RECONNECT_EVERY: Duration = Duration::from_millis(50);

/// Serves until it is fenced out or the process is stopped.
pub fn run(args: &EngineArgs) -> Result<(), EngineError> {
    let epoch = Epoch::from_bits(Epoch::of_term(args.term).bits() | u64::from(args.incarnation));
    let listen = |source| EngineError::Listen { address: args.listen.clone(), source };
    let listener = Listener::bind(&args.listen).map_err(listen)?;
    let address = listener.address(&args.listen).map_err(listen)?;
    let mut reactor = Reactor::new().map_err(EngineError::Wait)?;
    reactor.open_door(FRONTENDS, listener).map_err(listen)?;
    let members = (0..args.replicas.len() as u64).map(|key| (key, Mode::InService)).collect();
    let core = Engine::new(Seat {
        volume: args.volume.clone(),
        epoch,
        sender: role::process_name(),
        version: 0,
        members,
    });
    let members = args.replicas.iter().map(|address| Path { address: address.clone(), link: None }).collect();
    let mut driver = Driver { core, epoch, reactor, members, outputs: Vec::new(), retry_at: None };
    driver.connect_missing()?;
    tracing::info!(volume = args.volume, %address, %epoch, "engine observes");
    role::announce(&address);
    driver.run()
}

/// How a member is reached.
struct Path {
    address: Address,
    link: Option<LinkId>,
}

struct Driver {
    core: Engine,
    epoch: Epoch,
    reactor: Reactor,
    members: Vec<Path>,
    outputs: Vec<Output>,
    retry_at: Option<Instant>,
}

impl Driver {
    fn run(mut self) -> Result<(), EngineError> {
        let mut events = Vec::new();
        loop {
            self.reactor.wait(self.retry_at, &mut events).map_err(EngineError::Wait)?;
            for event in events.drain(..) {
                match event {
                    Event::Accepted { .. } | Event::Woken => {}
                    Event::Arrived(link) => self.on_arrived(link)?,
                    Event::Closed(link) => self.on_closed(link)?,
                }
            }
            if self.retry_at.is_some_and(|at| at <= Instant::now()) {
                self.connect_missing()?;
            }
        }
    }

    /// Before the volume is taken over a member may come and go; afterwards its
    /// session is over and it returns by rebuild.
    fn connect_missing(&mut self) -> Result<(), EngineError> {
        self.retry_at = None;
        for at in 0..self.members.len() {
            if self.members[at].link.is_some() || !self.core.may_connect(at) {
                continue;
            }
            let linked = connect(&self.members[at].address).and_then(|fd| self.reactor.add(fd));
            match linked {
                Ok(link) => {
                    self.members[at].link = Some(link);
                    self.feed(Input::Connected { member: at, link })?;
                }
                Err(error) => {
                    tracing::debug!(member = at, %error, "connect");
                    self.retry_at = Some(Instant::now() + RECONNECT_EVERY);
                    self.feed(Input::Unreachable { member: at })?;
                }
            }
        }
        Ok(())
    }

    fn on_arrived(&mut self, link: LinkId) -> Result<(), EngineError> {
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
        self.forget(link);
        self.feed(Input::Closed(link))
    }

    fn forget(&mut self, link: LinkId) {
        if let Some(member) = self.members.iter_mut().find(|member| member.link == Some(link)) {
            member.link = None;
            self.retry_at = Some(Instant::now() + RECONNECT_EVERY);
        }
    }

    fn feed(&mut self, input: Input) -> Result<(), EngineError> {
        let mut outputs = std::mem::take(&mut self.outputs);
        self.core.apply(input, &mut outputs);
        for output in outputs.drain(..) {
            match output {
                Output::Send(link, frame) => self.reactor.send(link, frame),
                Output::Close(link) => {
                    self.reactor.close(link);
                    self.forget(link);
                }
                Output::Change(change) => {
                    tracing::warn!(?change, "writes wait for the record");
                }
                Output::Fenced { by } => return Err(EngineError::Fenced { ours: self.epoch, by }),
            }
        }
        self.outputs = outputs;
        Ok(())
    }
}
