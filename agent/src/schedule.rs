//! Decides what the API has to be told next.
//!
//! Input is what it was told and when, output is one step. Nothing here reads
//! a clock, so every rule is a row of the table below.
//!
//! The one invariant: a lease that could be renewed never runs out.

use std::time::Duration;

use crate::machine::Health;

/// How long others believe in the node without hearing from it.
pub(crate) const LEASE: Duration = Duration::from_secs(40);
/// How often the lease is renewed: three chances fit into its life.
const RENEW_EVERY: Duration = Duration::from_secs(10);
/// How often an unchanged status is repeated.
const REPORT_EVERY: Duration = Duration::from_secs(300);
/// How often the machine is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// What a status speaks of that can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Looked {
    pub(crate) health: Health,
    /// How often the images on the node have changed.
    pub(crate) images: u64,
}

/// What the API was told, as time since then.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) registered: bool,
    pub(crate) status: Option<(Duration, Looked)>,
    pub(crate) lease: Option<Duration>,
}

/// Each one is safe to repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Register,
    ReportStatus,
    RenewLease,
    /// Nothing to say: look again after this long.
    Rest(Duration),
}

pub(crate) fn next(told: &Told, looked: Looked) -> Step {
    if !told.registered {
        return Step::Register;
    }
    // The lease goes first, so that a status that is slow or refused does not cost the node its life.
    let Some(renewed) = told.lease.filter(|renewed| *renewed < RENEW_EVERY) else {
        return Step::RenewLease;
    };
    let Some((reported, known)) = told.status else {
        return Step::ReportStatus;
    };
    if known != looked || reported >= REPORT_EVERY {
        return Step::ReportStatus;
    }
    Step::Rest(LOOK_EVERY.min(RENEW_EVERY - renewed).min(REPORT_EVERY - reported))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WELL: Looked = Looked { health: Health { memory_short: false, disk_short: false }, images: 0 };
    const FULL: Looked = Looked { health: Health { memory_short: false, disk_short: true }, images: 0 };
    const ONE_MORE: Looked = Looked { images: 1, ..WELL };

    fn told(status: Option<(u64, Looked)>, lease: Option<u64>) -> Told {
        let secs = Duration::from_secs;
        Told { registered: true, status: status.map(|(at, h)| (secs(at), h)), lease: lease.map(secs) }
    }

    #[test]
    fn says_what_is_due_and_no_more() {
        #[rustfmt::skip]
        let cases = [
            ("new",              Told::default(),                   WELL, Step::Register),
            ("registered",       told(None, None),                  WELL, Step::RenewLease),
            ("lease begun",      told(None, Some(0)),               WELL, Step::ReportStatus),
            ("status refused",   told(None, Some(9)),               WELL, Step::ReportStatus),
            ("refused for long", told(None, Some(10)),              WELL, Step::RenewLease),
            ("reported",         told(Some((0, WELL)), None),       WELL, Step::RenewLease),
            ("all said",         told(Some((0, WELL)), Some(0)),    WELL, Step::Rest(LOOK_EVERY)),
            ("lease soon due",   told(Some((7, WELL)), Some(7)),    WELL, Step::Rest(Duration::from_secs(3))),
            ("lease due",        told(Some((10, WELL)), Some(10)),  WELL, Step::RenewLease),
            ("health changed",   told(Some((5, WELL)), Some(5)),    FULL, Step::ReportStatus),
            ("image pulled",     told(Some((5, WELL)), Some(5)),    ONE_MORE, Step::ReportStatus),
            ("lease goes first", told(Some((30, WELL)), Some(12)),  FULL, Step::RenewLease),
            ("status old",       told(Some((300, WELL)), Some(2)),  WELL, Step::ReportStatus),
        ];
        for (name, told, looked, expected) in cases {
            assert_eq!(next(&told, looked), expected, "{name}");
        }
    }

    #[test]
    fn the_lease_survives_two_lost_renewals() {
        assert!(LEASE > 3 * RENEW_EVERY);
    }
}
