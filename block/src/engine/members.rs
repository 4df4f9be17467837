//! Who stores the volume, as one engine sees it.
//!
//! Invariant: a member that left never comes back into service in the life of
//! this engine's session with it.

use crate::net::reactor::LinkId;

/// A set of members, one bit each.
pub type Mask = u32;

/// Most members of a volume.
pub const MOST: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// Must have every write before it is acknowledged.
    In,
    /// Failed; the record still counts it, so its writes are still waited for.
    Leaving,
    /// The record says that it is out.
    Out,
}

#[derive(Debug)]
pub struct Member {
    pub link: Option<LinkId>,
    pub greeted: bool,
    /// Tag of the last question put to it on this link.
    pub asked: Option<u64>,
    pub prepared: bool,
    pub promised: bool,
    pub service: Service,
}

#[derive(Debug)]
pub struct Members {
    all: Vec<Member>,
}

impl Members {
    pub fn new(count: usize) -> Members {
        assert!((1..=MOST).contains(&count), "a volume has 1 to {MOST} members");
        let new = || Member {
            link: None,
            greeted: false,
            asked: None,
            prepared: false,
            promised: false,
            service: Service::In,
        };
        Members { all: std::iter::repeat_with(new).take(count).collect() }
    }

    pub fn get(&mut self, member: usize) -> &mut Member {
        &mut self.all[member]
    }

    pub fn by_link(&self, link: LinkId) -> Option<usize> {
        self.all.iter().position(|member| member.link == Some(link))
    }

    pub fn iter(&self) -> impl Iterator<Item = (usize, &Member)> {
        self.all.iter().enumerate()
    }

    /// Those that can be spoken to and are in service.
    pub fn usable(&self) -> impl Iterator<Item = (usize, LinkId)> {
        self.iter()
            .filter(|(_, member)| member.service == Service::In && member.greeted)
            .filter_map(|(at, member)| member.link.map(|link| (at, link)))
    }

    /// Those whose acknowledgement a write needs.
    pub fn needed(&self) -> Mask {
        self.mask(|member| member.service != Service::Out)
    }

    fn mask(&self, of: impl Fn(&Member) -> bool) -> Mask {
        self.iter().filter(|(_, member)| of(member)).fold(0, |mask, (at, _)| mask | bit(at))
    }

    /// Whether every member that the record counts satisfies `is`.
    pub fn all_counted(&self, is: impl Fn(&Member) -> bool) -> bool {
        self.all.iter().filter(|member| member.service != Service::Out).all(is)
    }

    /// Whether someone would remain in service if everyone who fails were dropped.
    pub fn someone_stays(&self) -> bool {
        self.all.iter().any(|member| member.service == Service::In && member.promised)
    }
}

pub fn bit(member: usize) -> Mask {
    1 << member
}
