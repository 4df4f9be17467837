//! How the members are reached: connections that are wanted, under way, up, and
//! those that have fallen silent.
//!
//! Invariant: nothing here waits; a member that does not answer is given up after
//! a time, never waited for in the loop.

use std::time::{Duration, Instant};

use super::membership::IGNORED;
use crate::{
    epoch::Epoch,
    net::{address::Address, reactor::LinkId},
    wire::{Frame, Header, Kind},
};

const RECONNECT_EVERY: Duration = Duration::from_millis(50);
const CONNECT_WITHIN: Duration = Duration::from_millis(500);
/// A member that cannot be reached for so long is told to the core. One whose
/// process was only started anew is back sooner.
const PATIENCE: Duration = Duration::from_millis(250);
const PING_AFTER: Duration = Duration::from_secs(1);
/// Seconds that a member may be silent, unless somebody says otherwise: as long as Longhorn's engines wait.
pub(super) const PATIENCE_S: u32 = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Down { tried: Option<Instant> },
    Connecting { link: LinkId, since: Instant },
    Up { link: LinkId, heard: Instant, pinged: bool },
}

#[derive(Debug)]
struct Path {
    /// Unknown to those whom nobody told where the member is.
    address: Option<Address>,
    state: State,
    /// Since when it is wanted and not there.
    missing: Option<Instant>,
}

/// Something to be done about a path.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Connect { member: usize, to: Address },
    Ping { link: LinkId, frame: Frame },
    GiveUp { link: LinkId },
    Unreachable { member: usize },
}

#[derive(Debug)]
pub(super) struct Paths {
    all: Vec<Path>,
    /// How long a member may be silent.
    silence: Duration,
}

impl Paths {
    pub(super) fn new(addresses: Vec<Option<Address>>) -> Paths {
        let path = |address| Path { address, state: State::Down { tried: None }, missing: None };
        let silence = Duration::from_secs(PATIENCE_S.into());
        Paths { all: addresses.into_iter().map(path).collect(), silence }
    }

    /// Members may be silent for this long from now on.
    pub(super) fn bear(&mut self, silence: Duration) {
        self.silence = silence;
    }

    /// The member is there now: it is tried at once, if it is wanted and not connected.
    pub(super) fn reach(&mut self, member: usize, address: Address) {
        let path = &mut self.all[member];
        path.address = Some(address);
        if let State::Down { tried } = &mut path.state {
            (*tried, path.missing) = (None, None);
        }
    }

    fn by_link(&mut self, of: LinkId) -> Option<(usize, &mut Path)> {
        self.all.iter_mut().enumerate().find(|(_, path)| match path.state {
            State::Down { .. } => false,
            State::Connecting { link, .. } | State::Up { link, .. } => link == of,
        })
    }

    pub(super) fn connecting(&mut self, member: usize, link: LinkId) {
        self.all[member].state = State::Connecting { link, since: Instant::now() };
    }

    /// The member whose connection stands now.
    pub(super) fn connected(&mut self, link: LinkId) -> Option<usize> {
        let (member, path) = self.by_link(link)?;
        path.state = State::Up { link, heard: Instant::now(), pinged: false };
        path.missing = None;
        Some(member)
    }

    pub(super) fn heard(&mut self, link: LinkId) {
        if let Some((_, path)) = self.by_link(link) {
            path.state = State::Up { link, heard: Instant::now(), pinged: false };
        }
    }

    pub(super) fn closed(&mut self, link: LinkId) {
        if let Some((_, path)) = self.by_link(link) {
            path.state = State::Down { tried: Some(Instant::now()) };
        }
    }

    /// When `turns` should be asked next.
    pub(super) fn deadline(&self, wanted: impl Fn(usize) -> bool) -> Option<Instant> {
        let next = |(member, path): (usize, &Path)| match path.state {
            State::Down { .. } if !wanted(member) => None,
            State::Down { tried } => Some(tried.map_or_else(Instant::now, |tried| tried + RECONNECT_EVERY)),
            State::Connecting { since, .. } => Some(since + CONNECT_WITHIN),
            State::Up { heard, pinged, .. } => {
                Some(heard + if pinged { self.silence } else { PING_AFTER.min(self.silence) })
            }
        };
        self.all.iter().enumerate().filter_map(next).min()
    }

    /// What is to be done now.
    pub(super) fn turns(&mut self, now: Instant, wanted: impl Fn(usize) -> bool) -> Vec<Turn> {
        let mut turns = Vec::new();
        for (member, path) in self.all.iter_mut().enumerate() {
            match path.state {
                State::Down { .. } if !wanted(member) => path.missing = None,
                State::Down { tried: Some(tried) } if now < tried + RECONNECT_EVERY => {}
                State::Down { .. } => {
                    path.state = State::Down { tried: Some(now) };
                    let missing = *path.missing.get_or_insert(now);
                    if now >= missing + PATIENCE {
                        turns.push(Turn::Unreachable { member });
                    }
                    turns.extend(path.address.clone().map(|to| Turn::Connect { member, to }));
                }
                State::Connecting { link, since } if now >= since + CONNECT_WITHIN => {
                    turns.push(Turn::GiveUp { link });
                }
                State::Up { link, heard, .. } if now >= heard + self.silence => {
                    turns.push(Turn::GiveUp { link });
                }
                State::Up { link, heard, pinged: false } if now >= heard + PING_AFTER => {
                    path.state = State::Up { link, heard, pinged: true };
                    let frame = Frame::bare(Header::new(Kind::Ping, IGNORED, Epoch::NONE));
                    turns.push(Turn::Ping { link, frame });
                }
                State::Connecting { .. } | State::Up { .. } => {}
            }
        }
        turns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> Address {
        "127.0.0.1:9".parse().unwrap()
    }

    #[test]
    fn a_missing_member_is_tried_again_and_told_after_a_while() {
        let mut paths = Paths::new(vec![Some(address())]);
        let now = Instant::now();
        let connect = || Turn::Connect { member: 0, to: address() };
        assert_eq!(paths.turns(now, |_| false), []);
        assert_eq!(paths.turns(now, |_| true), [connect()]);
        assert_eq!(paths.turns(now, |_| true), []);
        assert_eq!(paths.turns(now + RECONNECT_EVERY, |_| true), [connect()]);
        assert_eq!(paths.turns(now + PATIENCE, |_| true), [Turn::Unreachable { member: 0 }, connect()]);
    }

    #[test]
    fn a_member_is_tried_at_once_where_it_is_said_to_be() {
        let mut paths = Paths::new(vec![None]);
        let now = Instant::now();
        assert_eq!(paths.turns(now, |_| true), [], "nobody knows where it is");
        assert_eq!(paths.turns(now + PATIENCE, |_| true), [Turn::Unreachable { member: 0 }]);
        paths.reach(0, address());
        let connect = Turn::Connect { member: 0, to: address() };
        assert_eq!(paths.turns(now + PATIENCE, |_| true), [connect]);
        let link = LinkId::from_bits(7);
        paths.connecting(0, link);
        paths.connected(link);
        paths.reach(0, address());
        assert_eq!(paths.turns(Instant::now(), |_| true), [], "who is connected stays so");
    }

    #[test]
    fn a_silent_member_is_asked_and_then_given_up() {
        let mut paths = Paths::new(vec![Some(address())]);
        let link = LinkId::from_bits(7);
        paths.connecting(0, link);
        let late = Instant::now() + CONNECT_WITHIN;
        assert_eq!(paths.turns(late, |_| true), [Turn::GiveUp { link }]);
        assert_eq!(paths.connected(link), Some(0));
        let now = Instant::now();
        assert!(matches!(paths.turns(now + PING_AFTER, |_| true)[..], [Turn::Ping { .. }]));
        assert_eq!(paths.turns(now + PING_AFTER, |_| true), []);
        let default = Duration::from_secs(PATIENCE_S.into());
        assert_eq!(paths.turns(now + default, |_| true), [Turn::GiveUp { link }]);
        paths.closed(link);
        assert_eq!(paths.connected(link), None);
    }

    #[test]
    fn a_silent_member_is_borne_for_as_long_as_was_said() {
        let mut paths = Paths::new(vec![Some(address())]);
        let (link, long) = (LinkId::from_bits(7), Duration::from_secs(30));
        paths.connecting(0, link);
        paths.connected(link);
        paths.bear(long);
        let heard = Instant::now();
        assert!(matches!(paths.turns(heard + PING_AFTER, |_| true)[..], [Turn::Ping { .. }]));
        assert_eq!(paths.turns(heard + Duration::from_secs(20), |_| true), []);
        assert_eq!(paths.turns(heard + long, |_| true), [Turn::GiveUp { link }]);
        paths.bear(Duration::from_secs(8));
        assert_eq!(paths.turns(heard + Duration::from_secs(9), |_| true), [Turn::GiveUp { link }]);
    }
}
