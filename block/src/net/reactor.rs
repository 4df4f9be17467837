//! One thread, one epoll, many links: wakes up, lets its owner handle what came,
//! then sends once per link.
//!
//! Invariant: a `LinkId` is never used again, so an event for a closed link
//! cannot reach its successor.

use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

use super::{
    address::{Address, Listener, begin_connect},
    by_link::ByLink,
    inner::Inner,
    link::{Link, Released},
    vigil::Vigil,
};
use crate::wire::{
    self, BadFrame, Frame, Kind,
    hello::{Features, Hello},
};

/// Names one connection for the life of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(u64);

impl LinkId {
    /// A name for tests of cores, where no socket exists.
    pub const fn from_bits(bits: u64) -> LinkId {
        LinkId(bits)
    }

    pub const fn bits(self) -> u64 {
        self.0
    }

    /// No connection: whoever asked is gone.
    pub const NOBODY: LinkId = LinkId(0);

    /// Whose it is, where several share a reactor: the door through which it came,
    /// or the one for which it was made.
    pub fn owner(self) -> Door {
        Door((self.0 >> OWNER_SHIFT) as u32 & OWNER_MASK)
    }
}

const OWNER_SHIFT: u32 = 40;
const OWNER_MASK: u32 = (1 << 20) - 1;

/// Names one listening socket; chosen by the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Door(pub u32);

/// What woke the owner up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    Accepted {
        door: Door,
        link: LinkId,
    },
    /// A connection begun by `connect` stands.
    Connected(LinkId),
    /// Bytes have been appended to the link's input.
    Arrived(LinkId),
    /// The peer closed, or could not be reached, or the socket failed; the link is gone.
    Closed(LinkId),
    /// A watched descriptor can be read, or has failed.
    Readable(LinkId),
    /// Another thread called `Waker::wake`.
    Woken,
}

impl Event {
    /// Whom it concerns; nobody in particular when another thread has called.
    pub fn owner(self) -> Option<Door> {
        match self {
            Event::Accepted { door, .. } => Some(door),
            Event::Connected(link) | Event::Arrived(link) | Event::Closed(link) | Event::Readable(link) => {
                Some(link.owner())
            }
            Event::Woken => None,
        }
    }
}

const WAKER: u64 = u64::MAX;
const DOOR_BIT: u64 = 1 << 63;
const WATCH_BIT: u64 = 1 << 62;

/// Wakes the reactor from another thread.
#[derive(Debug, Clone)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    pub fn wake(&self) {
        // A full counter is already a pending wake-up.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}

pub struct Reactor {
    epoll: OwnedFd,
    waker: Waker,
    links: ByLink<Link>,
    inner: Inner,
    doors: HashMap<Door, Listener>,
    /// Whose the links are that are made now.
    owner: Door,
    dirty: Vec<LinkId>,
    broken: Vec<LinkId>,
    next: u64,
    ready: Vec<epoll::Event>,
    /// How often in a row nobody outside was looked at.
    inner_turns: u32,
    vigil: Vigil,
}

/// Turns that parts of this process may keep to themselves.
const MOST_INNER_TURNS: u32 = 8;

impl Reactor {
    pub fn new() -> io::Result<Reactor> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &bell, epoll::EventData::new_u64(WAKER), epoll::EventFlags::IN)?;
        Ok(Reactor {
            epoll,
            waker: Waker(Arc::new(bell)),
            links: ByLink::default(),
            inner: Inner::default(),
            doors: HashMap::new(),
            owner: Door(0),
            dirty: Vec::new(),
            broken: Vec::new(),
            next: 0,
            ready: Vec::with_capacity(64),
            inner_turns: 0,
            vigil: Vigil::default(),
        })
    }

    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    pub fn open_door(&mut self, door: Door, listener: Listener) -> io::Result<()> {
        let data = epoll::EventData::new_u64(DOOR_BIT | u64::from(door.0));
        epoll::add(&self.epoll, &listener, data, epoll::EventFlags::IN)?;
        self.doors.insert(door, listener);
        Ok(())
    }

    /// Stops listening; connections that came through the door stay.
    pub fn shut_door(&mut self, door: Door) {
        if let Some(listener) = self.doors.remove(&door) {
            // Another process may hold the same socket: closing it here is not enough.
            let _ = epoll::delete(&self.epoll, &listener);
        }
    }

    /// Connections that are made from now on belong to the owner of this door.
    pub fn act_for(&mut self, owner: Door) {
        debug_assert!(owner.0 <= OWNER_MASK, "{owner:?} has too large a number");
        self.owner = owner;
    }

    /// Shuts an owner's door and closes all its connections, without an event for them.
    pub fn dismiss(&mut self, owner: Door) {
        self.shut_door(owner);
        self.links.retain(|link, _| link.owner() != owner);
        self.inner.close_all(owner);
    }

    fn new_link(&mut self, owner: Door) -> LinkId {
        self.next += 1;
        LinkId(self.next | u64::from(owner.0 & OWNER_MASK) << OWNER_SHIFT)
    }

    pub fn door(&self, door: Door) -> Option<BorrowedFd<'_>> {
        self.doors.get(&door).map(AsFd::as_fd)
    }

    pub fn add(&mut self, fd: OwnedFd) -> io::Result<LinkId> {
        self.add_for(self.owner, fd)
    }

    fn add_for(&mut self, owner: Door, fd: OwnedFd) -> io::Result<LinkId> {
        let id = self.new_link(owner);
        epoll::add(&self.epoll, &fd, epoll::EventData::new_u64(id.0), epoll::EventFlags::IN)?;
        self.links.insert(id, Link::new(fd));
        Ok(id)
    }

    /// Begins to connect; `Connected` or `Closed` tells how it ended. Where one of our
    /// own doors is at that address there is no socket between the two.
    pub fn connect(&mut self, address: &Address) -> io::Result<LinkId> {
        let ours = self.doors.iter().find(|(_, listener)| listener.is_at(address)).map(|(door, _)| *door);
        if let Some(door) = ours {
            let (from, to) = (self.new_link(self.owner), self.new_link(door));
            self.inner.join(from, to, door);
            return Ok(from);
        }
        let fd = begin_connect(address)?;
        let id = self.new_link(self.owner);
        epoll::add(&self.epoll, &fd, epoll::EventData::new_u64(id.0), epoll::EventFlags::OUT)?;
        let mut link = Link::new(fd);
        link.connecting = true;
        self.links.insert(id, link);
        Ok(id)
    }

    /// Says when a descriptor that is no stream of ours can be read. It must be let
    /// go with `unwatch` before it is closed.
    pub fn watch(&mut self, fd: BorrowedFd<'_>) -> io::Result<LinkId> {
        let id = self.new_link(self.owner);
        let data = epoll::EventData::new_u64(WATCH_BIT | id.0);
        epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN)?;
        Ok(id)
    }

    pub fn unwatch(&mut self, id: LinkId, fd: BorrowedFd<'_>) {
        let removed = epoll::delete(&self.epoll, fd);
        debug_assert!(removed.is_ok(), "{id:?} is watched");
    }

    /// Goes on with a connection that another process released.
    pub fn resume(&mut self, released: Released) -> io::Result<LinkId> {
        let id = self.add(released.fd)?;
        self.with_dirty(id, |link| {
            link.compact = released.compact;
            link.input = released.input;
            link.put(&[], released.output.freeze());
        });
        Ok(id)
    }

    /// Gives a connection away, after a last attempt to send what is queued.
    pub fn release(&mut self, id: LinkId) -> Option<Released> {
        let mut link = self.links.remove(&id)?;
        // What the kernel does not take now goes along.
        let _ = link.flush();
        let _ = epoll::delete(&self.epoll, link.fd());
        Some(link.release())
    }

    /// Closes a link at once; what was not sent is lost. No event follows.
    pub fn close(&mut self, id: LinkId) {
        if self.links.remove(&id).is_none() {
            self.inner.close(id);
        }
    }

    /// Closes a link after a last attempt to send what is queued.
    pub fn close_after_sending(&mut self, id: LinkId) {
        if let Some(mut link) = self.links.remove(&id) {
            // Whoever does not take it at once does without.
            let _ = link.flush();
        }
    }

    /// Every connection with a socket.
    pub fn links(&self) -> Vec<LinkId> {
        self.links.keys().copied().collect()
    }

    pub fn link(&mut self, id: LinkId) -> Option<&mut Link> {
        self.links.get_mut(&id)
    }

    pub fn send(&mut self, id: LinkId, frame: Frame) {
        if self.inner.has(id) {
            return self.inner.send(id, frame);
        }
        self.with_dirty(id, |link| link.put_frame(frame));
    }

    /// Whether both ends of a connection are in this process.
    pub fn is_inner(&self, id: LinkId) -> bool {
        self.inner.has(id)
    }

    pub fn send_bytes(&mut self, id: LinkId, head: &[u8], payload: Bytes) {
        self.with_dirty(id, |link| link.put(head, payload));
    }

    fn with_dirty(&mut self, id: LinkId, put: impl FnOnce(&mut Link)) {
        if let Some(link) = self.links.get_mut(&id) {
            put(link);
            if !link.dirty {
                link.dirty = true;
                self.dirty.push(id);
            }
        }
    }

    /// The next whole frame that has arrived on a link.
    pub fn next_frame(&mut self, id: LinkId) -> Result<Option<Frame>, BadFrame> {
        let Some(link) = self.links.get_mut(&id) else { return Ok(self.inner.next_frame(id)) };
        match wire::decode(&mut link.input)? {
            Ok(frame) => {
                if frame.header.kind == Kind::Hello {
                    link.compact = Hello::shared_features(&frame.payload).has(Features::COMPACT);
                }
                link.taken += 1;
                if link.taken == 2 {
                    self.vigil.had_several();
                }
                Ok(Some(frame))
            }
            Err(missing) => {
                link.input.reserve(missing);
                Ok(None)
            }
        }
    }

    /// Stops (or resumes) reading from a link whose owner has no room for more.
    pub fn set_deaf(&mut self, id: LinkId, deaf: bool) {
        if let Some(link) = self.links.get_mut(&id)
            && link.deaf != deaf
        {
            link.deaf = deaf;
            Self::listen_for(&self.epoll, id, link);
        }
    }

    /// Sends what is queued, then sleeps until something happens or `until`.
    pub fn wait(&mut self, until: Option<Instant>, events: &mut Vec<Event>) -> io::Result<()> {
        events.clear();
        // First what others wait for, then what passes inside this process.
        self.flush();
        events.extend(self.broken.drain(..).map(Event::Closed));
        if !self.inner.is_quiet() && self.inner_turns < MOST_INNER_TURNS {
            self.inner_turns += 1;
            self.inner.take_events(events);
            return Ok(());
        }
        self.inner_turns = 0;
        self.inner.take_events(events);
        let now = Instant::now();
        let left = match events.is_empty() {
            true => until.map(|until| until.saturating_duration_since(now)),
            false => Some(Duration::ZERO),
        };
        let limit = self.vigil.limit(now).min(left.unwrap_or(Duration::MAX));
        if limit.is_zero() || !self.look(now, limit)? {
            self.poll(left)?;
        }
        if !self.ready.is_empty() && left != Some(Duration::ZERO) {
            self.vigil.learn(now.elapsed());
        }
        for at in 0..self.ready.len() {
            let event = self.ready[at];
            self.on_ready(event.data.u64(), event.flags, events);
        }
        Ok(())
    }

    /// Looks for something that has happened, again and again, until a time has passed.
    fn look(&mut self, began: Instant, limit: Duration) -> io::Result<bool> {
        loop {
            self.poll(Some(Duration::ZERO))?;
            let looked = Instant::now();
            if !self.ready.is_empty() || looked - began >= limit {
                return Ok(!self.ready.is_empty());
            }
            std::thread::yield_now();
            let now = Instant::now();
            self.vigil.gave_way(now, now - looked);
        }
    }

    /// Sleeps until something has happened, or for a time.
    fn poll(&mut self, at_most: Option<Duration>) -> io::Result<()> {
        let timeout = at_most.map(|left| Timespec {
            tv_sec: left.as_secs().min(1 << 30) as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        });
        self.ready.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.ready), timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn on_ready(&mut self, data: u64, flags: epoll::EventFlags, events: &mut Vec<Event>) {
        if data == WAKER {
            let _ = rustix::io::read(&*self.waker.0, &mut [0u8; 8]);
            events.push(Event::Woken);
        } else if data & WATCH_BIT != 0 {
            events.push(Event::Readable(LinkId(data & !WATCH_BIT)));
        } else if data & DOOR_BIT != 0 {
            self.accept(Door((data & !DOOR_BIT) as u32), events);
        } else {
            self.on_link(LinkId(data), flags, events);
        }
    }

    fn accept(&mut self, door: Door, events: &mut Vec<Event>) {
        let Some(listener) = self.doors.get(&door) else { return };
        match listener.accept().and_then(|fd| self.add_for(door, fd)) {
            Ok(link) => events.push(Event::Accepted { door, link }),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => tracing::warn!(%error, "accept"),
        }
    }

    fn on_link(&mut self, id: LinkId, flags: epoll::EventFlags, events: &mut Vec<Event>) {
        let Some(link) = self.links.get_mut(&id) else { return };
        if link.connecting {
            return self.on_connect_ended(id, events);
        }
        if flags.contains(epoll::EventFlags::OUT) && !link.dirty {
            link.dirty = true;
            self.dirty.push(id);
        }
        let gone = epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        if link.deaf {
            if flags.intersects(gone) {
                self.links.remove(&id);
                events.push(Event::Closed(id));
            }
            return;
        }
        if !flags.intersects(epoll::EventFlags::IN | gone) {
            return;
        }
        match link.fill(0) {
            Ok(0) => {
                self.links.remove(&id);
                events.push(Event::Closed(id));
            }
            Ok(_) => events.push(Event::Arrived(id)),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => {
                self.links.remove(&id);
                events.push(Event::Closed(id));
            }
        }
    }

    fn on_connect_ended(&mut self, id: LinkId, events: &mut Vec<Event>) {
        let Some(link) = self.links.get_mut(&id) else { return };
        if let Ok(Ok(())) = rustix::net::sockopt::socket_error(link.fd()) {
            link.connecting = false;
            link.dirty = true;
            self.dirty.push(id);
            Self::listen_for(&self.epoll, id, link);
            events.push(Event::Connected(id));
        } else {
            self.links.remove(&id);
            events.push(Event::Closed(id));
        }
    }

    fn flush(&mut self) {
        for id in self.dirty.drain(..) {
            let Some(link) = self.links.get_mut(&id) else { continue };
            link.dirty = false;
            if link.connecting {
                continue;
            }
            match link.flush() {
                Ok(done) if done == link.awaits_room => {
                    link.awaits_room = !done;
                    Self::listen_for(&self.epoll, id, link);
                }
                Ok(_) => {}
                Err(_) => {
                    self.links.remove(&id);
                    self.broken.push(id);
                }
            }
        }
    }

    fn listen_for(epoll: &OwnedFd, id: LinkId, link: &Link) {
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, !link.deaf);
        flags.set(epoll::EventFlags::OUT, link.awaits_room);
        let changed = epoll::modify(epoll, link.fd(), epoll::EventData::new_u64(id.0), flags);
        debug_assert!(changed.is_ok(), "a link in the table is registered");
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
