//! The loops in which v2 instances live: one thread for each volume that has any, so that an
//! engine and a replica of its volume meet without a socket between them.
//!
//! Invariant: whoever took a seat hears once how it ended; a loop ends when nobody is left
//! in it.

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

use super::names::Name;
use crate::{
    engine::serve::{self as engine, EngineArgs},
    host::{Ended, Host, Over, Part, PartId},
    net::{address::Address, reactor::Waker},
    replica::serve::{Opened, ReplicaArgs},
    role::in_words,
};

/// What takes a seat. A volume's record and a replica's copy are read by whoever brings them: no
/// loop waits for that.
pub(super) enum Guest {
    Engine(Box<engine::Opened>, EngineArgs),
    Replica(Box<Opened>, ReplicaArgs),
}

/// What whoever took a seat hears: that it has one, and how it ended.
pub(super) enum Heard {
    Seated(Address, Ender),
    NotSeated(Ended),
    Over(Part, String),
}

enum Order {
    Seat(Guest, Sender<Heard>),
    End(PartId),
}

/// Ends one that has a seat.
#[derive(Debug, Clone)]
pub(super) struct Ender {
    id: PartId,
    way: Way,
}

impl Ender {
    pub(super) fn end(&self) {
        self.way.give(Order::End(self.id));
    }
}

/// The way into a loop.
#[derive(Debug, Clone)]
struct Way {
    orders: Sender<Order>,
    waker: Waker,
}

impl Way {
    fn give(&self, order: Order) {
        // A loop that has ended has nobody left to end.
        let _ = self.orders.send(order);
        self.waker.wake();
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Loops(Arc<Mutex<HashMap<Name, Way>>>);

impl Loops {
    fn all(&self) -> MutexGuard<'_, HashMap<Name, Way>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a guest a seat in the loop of its volume, which is begun if there is none.
    pub(super) fn seat(&self, volume: &Name, guest: Guest) -> io::Result<Receiver<Heard>> {
        let (tell, heard) = channel();
        let mut all = self.all();
        let way = match all.get(volume) {
            Some(way) => way.clone(),
            None => {
                let way = self.begin(volume)?;
                all.insert(volume.clone(), way.clone());
                way
            }
        };
        way.give(Order::Seat(guest, tell));
        Ok(heard)
    }

    fn begin(&self, volume: &Name) -> io::Result<Way> {
        let (orders, given) = channel();
        let (tell, begun) = channel();
        let (loops, own) = (self.clone(), volume.clone());
        thread::Builder::new().name(format!("volume-{volume}")).spawn(move || {
            let _leaving = Leaving { loops: loops.clone(), volume: own.clone() };
            let host = match Host::new() {
                Ok(host) => host,
                Err(error) => return drop(tell.send(Err(error))),
            };
            let way = Way { orders, waker: host.waker() };
            if tell.send(Ok(way.clone())).is_ok() {
                Turning { host, given, way, heard: HashMap::new() }.turn(&loops, &own);
            }
        })?;
        begun.recv().unwrap_or_else(|_| Err(io::Error::other("the loop of the volume did not begin")))
    }
}

/// Lets the next guest of a volume begin another loop, also when this one panicked.
struct Leaving {
    loops: Loops,
    volume: Name,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        if thread::panicking() {
            self.loops.all().remove(&self.volume);
        }
    }
}

/// A loop at work.
struct Turning {
    host: Host,
    given: Receiver<Order>,
    way: Way,
    heard: HashMap<PartId, Sender<Heard>>,
}

impl Turning {
    fn turn(mut self, loops: &Loops, volume: &Name) {
        loop {
            while let Ok(order) = self.given.try_recv() {
                self.carry_out(order);
            }
            if self.host.is_empty() {
                // Whoever wants a seat holds this lock until its order is given.
                let mut all = loops.all();
                match self.given.try_recv() {
                    Ok(order) => {
                        drop(all);
                        self.carry_out(order);
                        continue;
                    }
                    Err(_) => {
                        all.remove(volume);
                        return;
                    }
                }
            }
            match self.host.turn() {
                Ok(over) => over.into_iter().for_each(|over| self.tell(over)),
                Err(error) => {
                    tracing::error!(%volume, %error, "the loop of a volume ends");
                    loops.all().remove(volume);
                    return;
                }
            }
        }
    }

    fn carry_out(&mut self, order: Order) {
        match order {
            Order::End(id) => {
                if let (Some(part), Some(heard)) = (self.host.remove(id), self.heard.remove(&id)) {
                    let _ = heard.send(Heard::Over(part, "it was ended".into()));
                }
            }
            Order::Seat(guest, heard) => {
                let seated = match guest {
                    Guest::Engine(opened, args) => self.host.add_engine(*opened, &args).map_err(Ended::from),
                    Guest::Replica(opened, args) => {
                        self.host.add_replica(*opened, &args).map_err(Ended::from)
                    }
                };
                let told = match seated {
                    Ok((id, address)) => {
                        self.heard.insert(id, heard.clone());
                        Heard::Seated(address, Ender { id, way: self.way.clone() })
                    }
                    Err(why) => Heard::NotSeated(why),
                };
                // Whoever does not want to hear it has ended meanwhile.
                let _ = heard.send(told);
            }
        }
    }

    fn tell(&mut self, Over { id, part, why }: Over) {
        if let Some(heard) = self.heard.remove(&id) {
            let _ = heard.send(Heard::Over(part, in_words(&why)));
        }
    }
}
