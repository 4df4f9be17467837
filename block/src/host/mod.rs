//! Engines and replicas that share one process and one loop.
//!
//! An engine and a replica that meet here speak without a socket between them: a
//! read of that copy passes no other process. The replica listens all the same, for
//! the day its engine is elsewhere.
//!
//! Invariant: an event reaches the part that it concerns, and a part that ends takes
//! none of the others with it.

pub mod run;

use std::{collections::BTreeMap, io, time::Instant};

use crate::{
    engine::serve::{self as engine, EngineArgs, EngineError},
    net::{
        address::Address,
        reactor::{Door, Event, Reactor, Waker},
    },
    replica::serve::{self as replica, Opened, ReplicaArgs, ReplicaError},
};

/// Names one engine or replica of a host for the life of the process.
pub type PartId = Door;

pub enum Part {
    Engine(Box<engine::Serving>),
    Replica(Box<replica::Serving>),
}

/// Why a part does not serve any more.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Replica(#[from] ReplicaError),
}

/// A part that has ended, and why. What it held is free after `Part::end`.
pub struct Over {
    pub id: PartId,
    pub part: Part,
    pub why: Ended,
}

impl Part {
    /// Waits for the last sync of a replica; its folder is free afterwards.
    pub fn end(self) -> Result<(), Ended> {
        match self {
            Part::Engine(_) => Ok(()),
            Part::Replica(replica) => Ok(replica.end()?),
        }
    }

    fn deadline(&self) -> Option<Instant> {
        match self {
            Part::Engine(engine) => engine.deadline(),
            Part::Replica(replica) => replica.deadline(),
        }
    }

    fn on_event(&mut self, event: Event, reactor: &mut Reactor) -> Result<(), Ended> {
        match self {
            Part::Engine(engine) => Ok(engine.on_event(event, reactor)?),
            Part::Replica(replica) => Ok(replica.on_event(event, reactor)?),
        }
    }

    fn mind(&mut self, reactor: &mut Reactor) -> Result<(), Ended> {
        match self {
            Part::Engine(engine) => Ok(engine.mind(reactor)?),
            Part::Replica(replica) => Ok(replica.mind(reactor)?),
        }
    }
}

struct Seat {
    part: Part,
    /// When it wants to be minded.
    due: Option<Instant>,
    touched: bool,
}

pub struct Host {
    reactor: Reactor,
    parts: BTreeMap<PartId, Seat>,
    next: u32,
    events: Vec<Event>,
}

impl Host {
    pub fn new() -> io::Result<Host> {
        Ok(Host { reactor: Reactor::new()?, parts: BTreeMap::new(), next: 0, events: Vec::new() })
    }

    /// Ends `turn` from another thread.
    pub fn waker(&self) -> Waker {
        self.reactor.waker()
    }

    pub fn add_replica(
        &mut self,
        opened: Opened,
        args: &ReplicaArgs,
    ) -> Result<(PartId, Address), ReplicaError> {
        let id = self.begin_part();
        let (replica, address) = replica::Serving::begin(opened, args, id, &mut self.reactor)?;
        self.seat(id, Part::Replica(Box::new(replica)));
        Ok((id, address))
    }

    pub fn add_engine(
        &mut self,
        opened: engine::Opened,
        args: &EngineArgs,
    ) -> Result<(PartId, Address), EngineError> {
        let id = self.begin_part();
        match engine::Serving::begin(opened, args, id, &mut self.reactor) {
            Ok((engine, address)) => {
                self.seat(id, Part::Engine(Box::new(engine)));
                Ok((id, address))
            }
            Err(error) => {
                self.reactor.dismiss(id);
                Err(error)
            }
        }
    }

    /// Takes a part out: it listens no more, and whoever was connected to it finds out.
    pub fn remove(&mut self, id: PartId) -> Option<Part> {
        self.reactor.dismiss(id);
        self.parts.remove(&id).map(|seat| seat.part)
    }

    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    fn begin_part(&mut self) -> PartId {
        self.next += 1;
        let id = Door(self.next);
        self.reactor.act_for(id);
        id
    }

    fn seat(&mut self, id: PartId, part: Part) {
        self.parts.insert(id, Seat { due: part.deadline(), part, touched: false });
    }

    /// Waits until something happens and lets those handle it whom it concerns. Says
    /// who has ended because of it.
    pub fn turn(&mut self) -> io::Result<Vec<Over>> {
        let until = self.parts.values().filter_map(|seat| seat.due).min();
        let mut events = std::mem::take(&mut self.events);
        self.reactor.wait(until, &mut events)?;
        let mut ended = Vec::new();
        for event in events.drain(..) {
            match event.owner() {
                Some(owner) => self.touch(owner, &mut ended, |part, reactor| part.on_event(event, reactor)),
                None => {
                    for id in self.ids() {
                        self.touch(id, &mut ended, |part, reactor| part.on_event(event, reactor));
                    }
                }
            }
        }
        self.events = events;
        self.mind(&mut ended);
        Ok(ended)
    }

    fn ids(&self) -> Vec<PartId> {
        self.parts.keys().copied().collect()
    }

    /// Lets everyone look after itself whose state has changed or whose time has come.
    fn mind(&mut self, ended: &mut Vec<Over>) {
        let now = Instant::now();
        let wants = |seat: &Seat| seat.touched || seat.due.is_some_and(|due| due <= now);
        let ids: Vec<PartId> = self.parts.iter().filter(|(_, seat)| wants(seat)).map(|(id, _)| *id).collect();
        for id in ids {
            self.touch(id, ended, Part::mind);
            if let Some(seat) = self.parts.get_mut(&id) {
                seat.touched = false;
                seat.due = seat.part.deadline();
            }
        }
    }

    fn touch(
        &mut self,
        id: PartId,
        ended: &mut Vec<Over>,
        act: impl FnOnce(&mut Part, &mut Reactor) -> Result<(), Ended>,
    ) {
        let Some(seat) = self.parts.get_mut(&id) else { return };
        seat.touched = true;
        self.reactor.act_for(id);
        if let Err(why) = act(&mut seat.part, &mut self.reactor) {
            ended.extend(self.remove(id).map(|part| Over { id, part, why }));
        }
    }
}
