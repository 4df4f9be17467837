//! Who stores the volume, as one engine sees it.
//!
//! ```text
//! In ─ fails ─▶ Leaving ─ record: out ─▶ Out ─ connected, promised ─▶ Returning ─ record: wo ─▶ Joining
//! ▲                ▲                                                                              │ │
//! │                └───────────────────────────── fails ──────────────────────────────────────────┘ │
//! └──────────────────────────────────── copied, record: rw ───────────────────────────────────────────┘
//! In ─ is let go ─▶ Departing ─ record: out ─▶ Out
//!                       └─────── fails ─▶ Leaving
//! ```
//!
//! Invariant: a member that missed a write is not `In` until it was copied to.

use serde::{Deserialize, Serialize};

use crate::{
    net::reactor::LinkId,
    wire::{layout::Step, members::Promised},
};

/// A set of members, one bit each.
pub type Mask = u32;

/// Most members of a volume.
pub const MOST: usize = 32;

/// What the volume's record says of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// It has every acknowledged write.
    #[serde(rename = "rw")]
    InService,
    /// It takes writes and is being copied to.
    #[serde(rename = "wo")]
    Rebuilding,
    /// It may have missed writes.
    #[serde(rename = "err")]
    Out,
}

impl Mode {
    /// What a new engine makes of it. A rebuild that an engine before it began is
    /// given up by the record first: that engine may still be about to call it done.
    fn at_start(self) -> Service {
        match self {
            Mode::InService => Service::In,
            Mode::Rebuilding => Service::Leaving,
            Mode::Out => Service::Out,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    In,
    /// Failed; the record still counts it, so its writes are still waited for.
    Leaving,
    /// Let go; until the record says so it takes every write and answers for it, so nobody waits. It is asked nothing
    /// else.
    Departing,
    Out,
    /// Connected again; the record does not know it yet.
    Returning,
    /// Takes all writes and is being copied to.
    Joining,
}

#[derive(Debug, Clone)]
pub struct Member {
    /// Names it in the folders of the others.
    pub key: u64,
    pub link: Option<LinkId>,
    pub greeted: bool,
    /// The newest wire version that it knows.
    pub newest: u16,
    /// Tag of the last question put to it on this link.
    pub asked: Option<u64>,
    pub prepared: bool,
    pub promise: Option<Promised>,
    /// A step towards the common layout that it was told to make.
    pub stepping: Option<Step>,
    pub service: Service,
    /// Member version that it is known to have on disk.
    pub version: u64,
    /// Whether it was being rebuilt when it failed: it misses more than we know.
    pub partial: bool,
    /// Whether it was found to lack what others have.
    pub unfit: bool,
    /// Whether it was told to leave: it is not asked to return.
    pub released: bool,
    /// Who was told, and who has noted, that this one leaves.
    pub told: Mask,
    pub noted: Mask,
}

impl Member {
    /// It has to leave; those who stay are to be told.
    pub fn leave(&mut self) {
        match self.service {
            // They have been told, and note all that was written since.
            Service::Departing => {}
            Service::In | Service::Leaving | Service::Out | Service::Returning | Service::Joining => {
                self.partial = self.service != Service::In;
                (self.told, self.noted) = (0, 0);
            }
        }
        self.service = Service::Leaving;
    }

    /// It is let go while it has everything; those who stay are to be told.
    pub fn depart(&mut self) {
        self.partial = false;
        self.service = Service::Departing;
        (self.told, self.noted) = (0, 0);
    }

    /// Whether it is on its way out, by itself or at somebody's word.
    pub fn goes(&self) -> bool {
        match self.service {
            Service::Leaving | Service::Departing => true,
            Service::In | Service::Out | Service::Returning | Service::Joining => false,
        }
    }

    /// It is spoken to no more.
    pub fn part(&mut self) -> Option<LinkId> {
        self.greeted = false;
        self.prepared = false;
        self.asked = None;
        self.link.take()
    }

    fn counts(&self) -> bool {
        match self.service {
            Service::In | Service::Leaving | Service::Departing | Service::Joining => true,
            Service::Out | Service::Returning => false,
        }
    }
}

#[derive(Debug, Clone)]
pub struct Members {
    all: Vec<Member>,
}

impl Members {
    /// `version` is the record's; whoever it says is in service was told so.
    pub fn new(seats: &[(u64, Mode)], version: u64) -> Members {
        assert!((1..=MOST).contains(&seats.len()), "a volume has 1 to {MOST} members");
        let new = |(key, mode): &(u64, Mode)| Member {
            key: *key,
            link: None,
            greeted: false,
            newest: 0,
            asked: None,
            prepared: false,
            promise: None,
            stepping: None,
            service: mode.at_start(),
            version,
            partial: *mode == Mode::Rebuilding,
            unfit: false,
            released: false,
            told: 0,
            noted: 0,
        };
        Members { all: seats.iter().map(new).collect() }
    }

    pub fn get(&mut self, member: usize) -> &mut Member {
        &mut self.all[member]
    }

    pub fn service(&self, member: usize) -> Service {
        self.all[member].service
    }

    pub fn by_link(&self, link: LinkId) -> Option<usize> {
        self.all.iter().position(|member| member.link == Some(link))
    }

    pub fn iter(&self) -> impl Iterator<Item = (usize, &Member)> {
        self.all.iter().enumerate()
    }

    fn linked(&self, of: impl Fn(Service) -> bool) -> impl Iterator<Item = (usize, LinkId)> {
        self.iter()
            .filter(move |(_, member)| of(member.service) && member.greeted)
            .filter_map(|(at, member)| member.link.map(|link| (at, link)))
    }

    /// Those in service that can be spoken to: reads go to one of them.
    pub fn usable(&self) -> impl Iterator<Item = (usize, LinkId)> {
        self.linked(|service| service == Service::In)
    }

    /// Those that get every write.
    pub fn receivers(&self) -> impl Iterator<Item = (usize, LinkId)> {
        self.linked(|service| matches!(service, Service::In | Service::Departing | Service::Joining))
    }

    /// Those whose acknowledgement a write needs.
    pub fn needed(&self) -> Mask {
        self.mask(Member::counts)
    }

    pub fn in_service(&self) -> Mask {
        self.mask(|member| member.service == Service::In)
    }

    fn mask(&self, of: impl Fn(&Member) -> bool) -> Mask {
        self.iter().filter(|(_, member)| of(member)).fold(0, |mask, (at, _)| mask | bit(at))
    }

    /// Whether everyone in service satisfies `is`, and there is someone.
    pub fn all_in(&self, is: impl Fn(&Member) -> bool) -> bool {
        let mut some = false;
        let all = self.all.iter().filter(|member| member.service == Service::In).all(|member| {
            some = true;
            is(member)
        });
        all && some
    }

    /// Whether this is the only member in service.
    pub fn is_last(&self, member: usize) -> bool {
        self.in_service() == bit(member)
    }

    /// Those who were in service and have to leave are to stay after all; says whether there is one.
    pub fn take_back(&mut self) -> bool {
        let mut some = false;
        let may_stay =
            |member: &&mut Member| member.service == Service::Leaving && !member.partial && !member.unfit;
        for member in self.all.iter_mut().filter(may_stay) {
            member.service = Service::In;
            some = true;
        }
        some
    }

    /// What this one was told and has not noted, it may have missed.
    pub fn untell(&mut self, lost: usize) {
        for member in &mut self.all {
            member.told &= member.noted | !bit(lost);
        }
    }

    /// Promises are to be asked for anew.
    pub fn forget_promises(&mut self) {
        for member in &mut self.all {
            member.promise = None;
            member.stepping = None;
            member.asked = None;
        }
    }

    pub fn any(&self, service: Service) -> Option<usize> {
        self.all.iter().position(|member| member.service == service)
    }
}

pub fn bit(member: usize) -> Mask {
    1 << member
}
