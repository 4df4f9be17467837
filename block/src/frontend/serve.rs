//! The frontend as a process: many volumes, their clients and engines, in one
//! loop.
//!
//! Invariant: what happens to one volume's engine never delays another volume.

use std::{
    collections::HashMap,
    io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    time::{Duration, Instant},
};

use midflight_handover::DeskError;

use super::{
    clients::{Clients, Next},
    control::{Answer, Command},
    core::{Input, Output, Standing, Volume},
    devices::Devices,
    exposure::{Asker, Done},
    keeping::{Keeping, take_place},
    parked::ParkedVolume,
};
use crate::{
    net::{
        address::{Address, Listener},
        by_link::ByLink,
        reactor::{Door, Event, LinkId, Reactor},
        signal::on_term,
    },
    record::Attachment,
    role,
    wire::{Frame, Header, Kind},
};

/// Hold the clients of this node's volumes.
#[derive(Debug, Clone, clap::Args)]
pub struct FrontendArgs {
    /// Where commands come from: unix:PATH.
    #[arg(long)]
    pub control: Address,
    /// The keeper that holds this frontend's descriptors for its successor.
    #[arg(long)]
    pub keeper: Option<PathBuf>,
}

/// Why a frontend does not serve (any more).
#[derive(Debug, thiserror::Error)]
pub enum FrontendError {
    #[error("listen on {address}")]
    Listen { address: Address, source: io::Error },
    #[error("wait for messages")]
    Wait(#[source] io::Error),
    #[error("{0} is not a Unix socket")]
    Control(Address),
    #[error("take the place of the predecessor")]
    Place(#[source] io::Error),
    #[error("take over from the keeper at {}", path.display())]
    Keeper { path: PathBuf, source: DeskError },
    #[error("listen for the signal to end")]
    Signal(#[source] io::Error),
}

const CONTROL: Door = Door(0);
/// Slots of a volume's table beyond which no request is taken from any client.
const MOST_SLOTS: usize = 2048;
/// An engine that cannot be connected to for so long is away.
const CONNECT_WITHIN: Duration = Duration::from_millis(500);

/// Serves until the process is stopped. With a keeper, SIGTERM ends it so that its
/// successor goes on where it stood.
pub fn run(args: &FrontendArgs) -> Result<(), FrontendError> {
    let Address::Unix(control) = &args.control else {
        return Err(FrontendError::Control(args.control.clone()));
    };
    let mut reactor = Reactor::new().map_err(FrontendError::Wait)?;
    let _place = take_place(control).map_err(FrontendError::Place)?;
    let asked_to_end = match &args.keeper {
        Some(_) => Some(on_term(reactor.waker()).map_err(FrontendError::Signal)?),
        None => None,
    };
    let listen = |source| FrontendError::Listen { address: args.control.clone(), source };
    let listener = Listener::bind(&args.control).map_err(listen)?;
    reactor.open_door(CONTROL, listener).map_err(listen)?;
    let (done, works) = channel();
    let (keeping, parcels) = match &args.keeper {
        Some(path) => {
            let began = Keeping::begin(path, &mut reactor, done.clone());
            let (keeping, parcels) =
                began.map_err(|source| FrontendError::Keeper { path: path.clone(), source })?;
            (Some(keeping), parcels)
        }
        None => (None, Vec::new()),
    };
    let mut driver = Driver {
        reactor,
        sender: role::process_name(),
        volumes: HashMap::new(),
        doors: HashMap::new(),
        engines: ByLink::default(),
        connecting: ByLink::default(),
        clients: Clients::default(),
        devices: Devices::default(),
        works,
        done,
        stalled: Vec::new(),
        outputs: Vec::new(),
        next_door: 1,
        keeping,
        asked_to_end,
    };
    driver.resume(parcels);
    role::announce(&args.control);
    driver.run()
}

/// A volume and what belongs to it here.
pub(super) struct Place {
    pub(super) core: Volume,
    pub(super) door: Door,
    pub(super) socket: PathBuf,
    /// Whoever waits for the end of a switch-over.
    asker: Option<(LinkId, u64)>,
}

pub(super) struct Driver {
    pub(super) reactor: Reactor,
    sender: u64,
    pub(super) volumes: HashMap<String, Place>,
    doors: HashMap<Door, String>,
    /// Which volume each engine connection belongs to.
    engines: ByLink<String>,
    /// Those that do not stand yet: where they lead, and until when they may take.
    connecting: ByLink<(Address, Instant)>,
    pub(super) clients: Clients,
    pub(super) devices: Devices,
    /// What threads beside the loop have done.
    pub(super) works: Receiver<Done>,
    pub(super) done: Sender<Done>,
    /// Clients with input that had to wait for answers.
    stalled: Vec<LinkId>,
    outputs: Vec<Output>,
    next_door: u32,
    pub(super) keeping: Option<Keeping>,
    asked_to_end: Option<Arc<AtomicBool>>,
}

impl Driver {
    fn run(mut self) -> Result<(), FrontendError> {
        let mut events = Vec::new();
        loop {
            let deadlines = self.volumes.values().filter_map(|place| place.core.deadline());
            let keeper = self.keeping.as_ref().and_then(Keeping::deadline);
            let connecting = self.connecting.values().map(|(_, until)| *until);
            let room = self.clients.deadline(Instant::now());
            let deadline = deadlines.chain(keeper).chain(connecting).chain(room).min();
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
            if self.asked_to_end.as_ref().is_some_and(|asked| asked.load(Ordering::Relaxed)) {
                self.park();
                return Ok(());
            }
        }
    }

    fn on_event(&mut self, now: Instant, event: Event) {
        match event {
            Event::Woken => self.on_done(now),
            Event::Connected(link) => self.on_connected(now, link),
            Event::Accepted { door: CONTROL, .. } => {}
            Event::Accepted { door, link } => match self.doors.get(&door) {
                Some(volume) => self.clients.accept(&mut self.reactor, link, volume.clone(), now),
                None => self.reactor.close(link),
            },
            Event::Readable(link) => self.on_device(now, link),
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
        let late = |(link, (_, until)): (&LinkId, &(Address, Instant))| (*until <= now).then_some(*link);
        let late: Vec<LinkId> = self.connecting.iter().filter_map(late).collect();
        for link in late {
            self.reactor.close(link);
            self.on_closed(now, link);
        }
        self.clients.tick(&mut self.reactor, now);
        self.look_for_keeper(now);
    }

    fn on_connected(&mut self, now: Instant, link: LinkId) {
        let Some((to, _)) = self.connecting.remove(&link) else { return };
        if let Some(volume) = self.engines.get(&link).cloned() {
            self.feed(now, &volume, Input::Connected { to, link });
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

    pub(super) fn on_client(&mut self, now: Instant, link: LinkId) {
        let Some(volume) = self.clients.get(link).map(|client| client.volume.clone()) else { return };
        loop {
            let Some(place) = self.volumes.get(&volume) else { return };
            // Whoever only negotiates takes no slot, and has not for ever.
            let asks = self.clients.get(link).is_some_and(|client| !client.is_negotiating());
            if asks && place.core.span() >= MOST_SLOTS {
                self.reactor.set_deaf(link, true);
                return self.stalled.push(link);
            }
            match self.clients.next(&mut self.reactor, link, place.core.size(), now) {
                Next::Wait => return,
                Next::Full => return self.stalled.push(link),
                Next::Negotiated => {}
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
        if self.keeping.as_mut().is_some_and(|keeping| keeping.closed(now, link)) {
            return;
        }
        self.clients.remove(link);
        let input = match self.connecting.remove(&link) {
            Some((to, _)) => Input::Unreachable { to },
            None => Input::Closed(link),
        };
        if let Some(volume) = self.engines.remove(&link) {
            self.feed(now, &volume, input);
        }
    }

    pub(super) fn feed(&mut self, now: Instant, volume: &str, input: Input) {
        let Some(place) = self.volumes.get_mut(volume) else { return };
        let mut outputs = std::mem::take(&mut self.outputs);
        place.core.apply(now, input, &mut outputs);
        let mut later = Vec::new();
        for output in outputs.drain(..) {
            match output {
                Output::Send(link, frame) => self.reactor.send(link, frame),
                Output::Answer(answer) if self.devices.answer(&answer) => {}
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
                    self.keep(volume);
                    self.tell_asker(volume, &Answer::Switched(switched));
                }
                Output::NotSwitched(why) => {
                    tracing::warn!(volume, why, "not switched");
                    self.keep(volume);
                    self.tell_asker(volume, &Answer::Refused(why));
                }
                Output::Grown => self.keep(volume),
            }
        }
        self.outputs = outputs;
        for to in later {
            self.connect(now, volume, to);
        }
    }

    fn connect(&mut self, now: Instant, volume: &str, to: Address) {
        match self.reactor.connect(&to) {
            Ok(link) => {
                self.engines.insert(link, volume.to_owned());
                self.connecting.insert(link, (to, now + CONNECT_WITHIN));
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

    pub(super) fn tell(&mut self, link: LinkId, tag: u64, answer: &Answer) {
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
                self.attach(now, (link, tag), (volume, size, socket), (&engine, None))
            }
            Command::AttachAs { attachment, volume, size, socket, engine } => {
                self.attach(now, (link, tag), (volume, size, socket), (&engine, Some(attachment)))
            }
            Command::Detach { volume } => {
                self.detach(&volume);
                Some(Answer::Detached)
            }
            Command::Expose { volume, mount } => self.expose((link, tag), &volume, &mount),
            Command::Withdraw { volume } => self.withdraw((link, tag), &volume),
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
                self.keep_and_switch(now, &volume, to, Duration::from_millis(drain_within_ms));
                None
            }
        }
    }

    /// The answer comes at once, or when a successor of this process would offer the volume too.
    fn attach(
        &mut self,
        now: Instant,
        asker: Asker,
        (volume, size, socket): (String, u64, PathBuf),
        (engine, attachment): (&str, Option<Attachment>),
    ) -> Option<Answer> {
        if let Some(place) = self.volumes.get(&volume) {
            let is_another = attachment.is_some() && place.core.standing().attachment != attachment;
            return Some(if is_another { Answer::AttachedAsAnother } else { Answer::Attached });
        }
        let engine = match engine.parse() {
            Ok(engine) => engine,
            Err(why) => return Some(Answer::Refused(why)),
        };
        let standing = Standing { attachment, ..Standing::new(engine) };
        let offered = Listener::bind(&Address::Unix(socket.clone())).and_then(|listener| {
            let parked = ParkedVolume { volume: volume.clone(), size, socket: socket.clone(), standing };
            self.offer(now, parked, listener)
        });
        if let Err(error) = offered {
            return Some(Answer::Refused(format!("listen on {}: {error}", socket.display())));
        }
        self.keep_and_tell(now, &volume, asker, Answer::Attached);
        None
    }

    /// Opens a volume to clients and connects it to its engine.
    pub(super) fn offer(&mut self, now: Instant, parked: ParkedVolume, listener: Listener) -> io::Result<()> {
        let ParkedVolume { volume, size, socket, standing } = parked;
        let door = Door(self.next_door);
        self.reactor.open_door(door, listener)?;
        self.next_door += 1;
        let mut outputs = Vec::new();
        let core = Volume::attach(volume.clone(), size, self.sender, standing, &mut outputs);
        self.doors.insert(door, volume.clone());
        self.volumes.insert(volume.clone(), Place { core, door, socket, asker: None });
        for output in outputs {
            if let Output::Connect(to) = output {
                self.connect(now, &volume, to);
            }
        }
        Ok(())
    }

    fn detach(&mut self, volume: &str) {
        let Some(place) = self.volumes.remove(volume) else { return };
        if let Some(link) = self.devices.of_volume(volume) {
            self.end_session(link);
        }
        self.forget(volume);
        self.reactor.shut_door(place.door);
        self.doors.remove(&place.door);
        // The file may be gone already; nobody can connect either way.
        let _ = std::fs::remove_file(&place.socket);
        let ours: Vec<LinkId> =
            self.engines.iter().filter(|(_, of)| *of == volume).map(|(link, _)| *link).collect();
        for link in ours {
            self.engines.remove(&link);
            self.connecting.remove(&link);
            self.reactor.close(link);
        }
        for link in self.clients.of_volume(volume) {
            self.clients.remove(link);
            self.reactor.close(link);
        }
    }
}
