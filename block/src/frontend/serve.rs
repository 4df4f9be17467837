//! The frontend as a process: many volumes, their clients and engines, in one
//! loop.
//!
//! Invariant: what happens to one volume's engine never delays another volume.

use std::{
    collections::HashMap,
    io,
    path::PathBuf,
    time::{Duration, Instant},
};

use super::{
    clients::{Clients, Next},
    control::{Answer, Command},
    core::{Input, Output, Volume},
};
use crate::{
    net::{
        address::{Address, Listener, connect},
        reactor::{Door, Event, LinkId, Reactor},
    },
    role,
    wire::{Frame, Header, Kind},
};

/// Hold the clients of this node's volumes.
#[derive(Debug, Clone, clap::Args)]
pub struct FrontendArgs {
    /// Where commands come from: unix:PATH.
    #[arg(long)]
    pub control: Address,
}

/// Why a frontend does not serve (any more).
#[derive(Debug, thiserror::Error)]
pub enum FrontendError {
    #[error("listen on {address}")]
    Listen { address: Address, source: io::Error },
    #[error("wait for messages")]
    Wait(#[source] io::Error),
}

const CONTROL: Door = Door(0);
/// Slots of a volume's table beyond which no request is taken from any client.
const MOST_SLOTS: usize = 2048;

/// Serves until the process is stopped.
pub fn run(args: &FrontendArgs) -> Result<(), FrontendError> {
    let listen = |source| FrontendError::Listen { address: args.control.clone(), source };
    let listener = Listener::bind(&args.control).map_err(listen)?;
    let mut reactor = Reactor::new().map_err(FrontendError::Wait)?;
    reactor.open_door(CONTROL, listener).map_err(listen)?;
    role::announce(&args.control);
    let driver = Driver {
        reactor,
        sender: role::process_name(),
        volumes: HashMap::new(),
        doors: HashMap::new(),
        engines: HashMap::new(),
        clients: Clients::default(),
        stalled: Vec::new(),
        outputs: Vec::new(),
        next_door: 1,
    };
    driver.run()
}

/// A volume and what belongs to it here.
struct Place {
    core: Volume,
    door: Door,
    socket: PathBuf,
    /// Whoever waits for the end of a switch-over.
    asker: Option<(LinkId, u64)>,
}

struct Driver {
    reactor: Reactor,
    sender: u64,
    volumes: HashMap<String, Place>,
    doors: HashMap<Door, String>,
    /// Which volume each engine connection belongs to.
    engines: HashMap<LinkId, String>,
    clients: Clients,
    /// Clients with input that had to wait for answers.
    stalled: Vec<LinkId>,
    outputs: Vec<Output>,
    next_door: u32,
}

impl Driver {
    fn run(mut self) -> Result<(), FrontendError> {
        let mut events = Vec::new();
        loop {
            let deadline = self.volumes.values().filter_map(|place| place.core.deadline()).min();
            self.reactor.wait(deadline, &mut events).map_err(FrontendError::Wait)?;
            let now = Instant::now();
            for event in events.drain(..) {
                self.on_event(now, event);
            }
            if deadline.is_some_and(|deadline| deadline <= now) {
                self.tick(now);
            }
            for link in std::mem::take(&mut self.stalled) {
                self.on_client(now, link);
            }
        }
    }

    fn on_event(&mut self, now: Instant, event: Event) {
        match event {
            Event::Connected(_) | Event::Woken => {}
            Event::Accepted { door: CONTROL, .. } => {}
            Event::Accepted { door, link } => match self.doors.get(&door) {
                Some(volume) => self.clients.accept(&mut self.reactor, link, volume.clone()),
                None => self.reactor.close(link),
            },
            Event::Arrived(link) if self.engines.contains_key(&link) => self.on_engine(now, link),
            Event::Arrived(link) if self.clients.get(link).is_some() => self.on_client(now, link),
            Event::Arrived(link) => self.on_control(now, link),
            Event::Closed(link) => self.on_closed(now, link),
        }
    }

    fn tick(&mut self, now: Instant) {
        let due = |place: &Place| place.core.deadline().is_some_and(|at| at <= now);
        let names: Vec<String> =
            self.volumes.iter().filter(|(_, place)| due(place)).map(|(name, _)| name.clone()).collect();
        for name in names {
            self.feed(now, &name, Input::Tick);
        }
    }

    fn on_engine(&mut self, now: Instant, link: LinkId) {
        let Some(volume) = self.engines.get(&link).cloned() else { return };
        loop {
            match self.reactor.next_frame(link) {
                Ok(Some(frame)) => self.feed(now, &volume, Input::Frame(link, frame)),
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "engine link closed");
                    self.reactor.close(link);
                    return self.on_closed(now, link);
                }
            }
        }
    }

    fn on_client(&mut self, now: Instant, link: LinkId) {
        let Some(volume) = self.clients.get(link).map(|client| client.volume.clone()) else { return };
        loop {
            let Some(place) = self.volumes.get(&volume) else { return };
            if place.core.span() >= MOST_SLOTS {
                self.reactor.set_deaf(link, true);
                return self.stalled.push(link);
            }
            match self.clients.next(&mut self.reactor, link, place.core.size(), now) {
                Next::Wait => return,
                Next::Full => return self.stalled.push(link),
                Next::Request(request) => self.feed(now, &volume, Input::Request(request)),
                Next::Close => {
                    self.reactor.close_after_sending(link);
                    self.clients.remove(link);
                    return;
                }
            }
        }
    }

    fn on_closed(&mut self, now: Instant, link: LinkId) {
        self.clients.remove(link);
        if let Some(volume) = self.engines.remove(&link) {
            self.feed(now, &volume, Input::Closed(link));
        }
    }

    fn feed(&mut self, now: Instant, volume: &str, input: Input) {
        let Some(place) = self.volumes.get_mut(volume) else { return };
        let mut outputs = std::mem::take(&mut self.outputs);
        place.core.apply(now, input, &mut outputs);
        let mut later = Vec::new();
        for output in outputs.drain(..) {
            match output {
                Output::Send(link, frame) => self.reactor.send(link, frame),
                Output::Answer(answer) => self.clients.answer(&mut self.reactor, answer),
                Output::Close(link) => {
                    self.reactor.close(link);
                    self.engines.remove(&link);
                }
                Output::Connect(to) => later.push(to),
                Output::Switched(switched) => {
                    tracing::info!(
                        volume,
                        pause_us = switched.pause_us,
                        replayed = switched.replayed,
                        "switched"
                    );
                    self.tell_asker(volume, &Answer::Switched(switched));
                }
                Output::NotSwitched(why) => {
                    tracing::warn!(volume, why, "not switched");
                    self.tell_asker(volume, &Answer::Refused(why));
                }
            }
        }
        self.outputs = outputs;
        for to in later {
            self.connect(now, volume, to);
        }
    }

    fn connect(&mut self, now: Instant, volume: &str, to: Address) {
        match connect(&to).and_then(|fd| self.reactor.add(fd)) {
            Ok(link) => {
                self.engines.insert(link, volume.to_owned());
                self.feed(now, volume, Input::Connected { to, link });
            }
            Err(error) => {
                tracing::debug!(volume, %to, %error, "connect");
                self.feed(now, volume, Input::Unreachable { to });
            }
        }
    }

    fn tell_asker(&mut self, volume: &str, answer: &Answer) {
        let asker = self.volumes.get_mut(volume).and_then(|place| place.asker.take());
        if let Some((link, tag)) = asker {
            self.tell(link, tag, answer);
        }
    }

    fn tell(&mut self, link: LinkId, tag: u64, answer: &Answer) {
        let payload = serde_json::to_vec(answer).expect("an answer holds only plain fields");
        let header = Header::new(Kind::Control, tag, crate::epoch::Epoch::NONE);
        self.reactor.send(link, Frame::with(header, payload.into()));
    }

    fn on_control(&mut self, now: Instant, link: LinkId) {
        loop {
            let frame = match self.reactor.next_frame(link) {
                Ok(Some(frame)) => frame,
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "control link closed");
                    return self.reactor.close(link);
                }
            };
            let tag = frame.header.tag;
            let answer = match serde_json::from_slice(&frame.payload) {
                Ok(command) => self.on_command(now, link, tag, command),
                Err(error) => Some(Answer::Refused(format!("not a command: {error}"))),
            };
            if let Some(answer) = answer {
                self.tell(link, tag, &answer);
            }
        }
    }

    fn on_command(&mut self, now: Instant, link: LinkId, tag: u64, command: Command) -> Option<Answer> {
        match command {
            Command::Attach { volume, size, socket, engine } => {
                let place = (socket, engine);
                Some(self.attach(now, &volume, size, place).unwrap_or_else(Answer::Refused))
            }
            Command::Detach { volume } => {
                self.detach(&volume);
                Some(Answer::Detached)
            }
            Command::Switch { volume, engine, drain_within_ms } => {
                let Ok(to) = engine.parse() else {
                    return Some(Answer::Refused(format!("{engine} is no address")));
                };
                let Some(place) = self.volumes.get_mut(&volume) else {
                    return Some(Answer::Refused(format!("{volume} is not attached")));
                };
                let earlier = place.asker.replace((link, tag));
                if let Some((link, tag)) = earlier {
                    self.tell(link, tag, &Answer::Refused("a later switch-over took its place".into()));
                }
                let drain_within = Duration::from_millis(drain_within_ms);
                self.feed(now, &volume, Input::Switch { to, drain_within });
                None
            }
        }
    }

    fn attach(
        &mut self,
        now: Instant,
        volume: &str,
        size: u64,
        (socket, engine): (PathBuf, String),
    ) -> Result<Answer, String> {
        if self.volumes.contains_key(volume) {
            return Ok(Answer::Attached);
        }
        let engine: Address = engine.parse()?;
        let door = Door(self.next_door);
        let listener = Listener::bind(&Address::Unix(socket.clone()))
            .and_then(|listener| self.reactor.open_door(door, listener));
        listener.map_err(|error| format!("listen on {}: {error}", socket.display()))?;
        self.next_door += 1;
        let mut outputs = Vec::new();
        let core = Volume::attach(volume.to_owned(), size, self.sender, engine, &mut outputs);
        self.doors.insert(door, volume.to_owned());
        self.volumes.insert(volume.to_owned(), Place { core, door, socket, asker: None });
        for output in outputs {
            if let Output::Connect(to) = output {
                self.connect(now, volume, to);
            }
        }
        Ok(Answer::Attached)
    }

    fn detach(&mut self, volume: &str) {
        let Some(place) = self.volumes.remove(volume) else { return };
        self.reactor.shut_door(place.door);
        self.doors.remove(&place.door);
        // The file may be gone already; nobody can connect either way.
        let _ = std::fs::remove_file(&place.socket);
        for link in place.core.links() {
            self.engines.remove(&link);
            self.reactor.close(link);
        }
        for link in self.clients.of_volume(volume) {
            self.clients.remove(link);
            self.reactor.close(link);
        }
    }
}
