//! Who has connected and not finished negotiating, in the order they came.
//!
//! Invariant: nobody is here who has finished or gone: one that comes and goes costs whoever comes next nothing.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use crate::net::reactor::LinkId;

/// An honest client negotiates in milliseconds.
const WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct Negotiating {
    all: VecDeque<(LinkId, Instant)>,
}

impl Negotiating {
    pub(super) fn begin(&mut self, link: LinkId, now: Instant) {
        self.all.push_back((link, now));
    }

    /// It has finished, or gone. Those that came last are first to do so.
    pub(super) fn end(&mut self, link: LinkId) {
        if let Some(at) = self.all.iter().rposition(|(one, _)| *one == link) {
            self.all.remove(at);
        }
    }

    /// When someone is overdue.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.all.front().map(|(_, since)| *since + WITHIN)
    }

    /// Whose time is over.
    pub(super) fn overdue(&mut self, now: Instant) -> Vec<LinkId> {
        let over = self.all.partition_point(|(_, since)| *since + WITHIN <= now);
        self.all.drain(..over).map(|(link, _)| link).collect()
    }

    /// Who came first of those that are meant.
    pub(super) fn first(&self, is_meant: impl Fn(LinkId) -> bool) -> Option<LinkId> {
        self.all.iter().map(|(link, _)| *link).find(|link| is_meant(*link))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_negotiation_has_its_time_and_no_more() {
        let (began, link) = (Instant::now(), LinkId::from_bits);
        let mut all = Negotiating::default();
        assert_eq!((all.deadline(), all.overdue(began)), (None, vec![]));
        for number in 1..=3 {
            all.begin(link(number), began + Duration::from_secs(number));
        }
        assert_eq!(all.deadline(), Some(began + Duration::from_secs(1) + WITHIN));
        assert_eq!(all.overdue(began + WITHIN), []);
        assert_eq!(all.overdue(began + Duration::from_secs(2) + WITHIN), [link(1), link(2)]);
        assert_eq!(all.deadline(), Some(began + Duration::from_secs(3) + WITHIN));
    }

    #[test]
    fn who_has_finished_is_neither_waited_for_nor_looked_at() {
        let (began, link) = (Instant::now(), LinkId::from_bits);
        let mut all = Negotiating::default();
        (1..=3).for_each(|number| all.begin(link(number), began + Duration::from_secs(number)));
        [1, 1, 7].map(link).into_iter().for_each(|link| all.end(link));
        assert_eq!(all.deadline(), Some(began + Duration::from_secs(2) + WITHIN));
        assert_eq!(all.first(|_| true), Some(link(2)));
        assert_eq!(all.overdue(began + WITHIN + WITHIN), [link(2), link(3)]);
        assert_eq!(all.deadline(), None);
    }

    #[test]
    fn who_came_first_of_a_volume_is_found_also_behind_others() {
        let mut all = Negotiating::default();
        (1..=4).for_each(|number| all.begin(LinkId::from_bits(number), Instant::now()));
        let even = |link: LinkId| link.bits().is_multiple_of(2);
        assert_eq!(all.first(even), Some(LinkId::from_bits(2)));
        assert_eq!(all.first(|_| false), None);
    }
}
