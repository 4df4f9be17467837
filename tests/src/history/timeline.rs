//! Puts all that was seen in one order, by version, and checks that lists and
//! watches tell the same story.
//!
//! The one invariant: one version stands for one change of one object, for all
//! who saw it, before and after every restart.

use std::collections::BTreeMap;

use super::record::{Change, Listing, Object, Operation, Outcome, Record, Seen, Session, Value, Version};

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    #[error("{version:?} is {first:?} for one and {second:?} for another")]
    TwoStories { version: Version, first: (Object, Option<Value>), second: (Object, Option<Value>) },

    #[error("{later:?} was given after {earlier:?} had been")]
    WentBack { earlier: Version, later: Version },

    #[error("a watch told {version:?} of {object} after {after:?}")]
    OutOfOrder { object: Object, version: Version, after: Version },

    #[error("a watch that told up to {told:?} left {version:?} of {object} out")]
    Gap { object: Object, version: Version, told: Version },

    #[error(
        "a watch told {change:?} of {object} at {version:?}, which does not follow on what it told before"
    )]
    DoesNotFollow { change: Change, object: Object, version: Version },

    #[error("a list at {listed:?} does not know {version:?} of {object}")]
    OldList { object: Object, version: Version, listed: Version },

    #[error("a list at {listed:?} holds {version:?} of {object}")]
    ListFromTheFuture { object: Object, version: Version, listed: Version },
}

/// Every change that anybody saw: which object, and its value unless it was deleted.
type Timeline = BTreeMap<Version, (Object, Option<Value>)>;

pub(super) fn check(record: &Record) -> Result<(), Broken> {
    let timeline = build(record)?;
    check_growth(&record.operations)?;
    for listing in record.listings.iter().chain(record.sessions.iter().map(|session| &session.start)) {
        check_listing(listing, &timeline)?;
    }
    for (index, session) in record.sessions.iter().enumerate() {
        let last = index + 1 == record.sessions.len();
        check_session(session, &timeline, record.end.filter(|_| last))?;
    }
    Ok(())
}

fn build(record: &Record) -> Result<Timeline, Broken> {
    let mut timeline = Timeline::new();
    let mut tell = |version: Version, object: &Object, value: Option<Value>| {
        let told = (object.clone(), value);
        match timeline.insert(version, told.clone()) {
            Some(first) if first != told => Err(Broken::TwoStories { version, first, second: told }),
            Some(_) | None => Ok(()),
        }
    };
    for operation in &record.operations {
        if let Some((version, value)) = operation.shows() {
            tell(version, &operation.object, Some(value))?;
        }
    }
    for listing in record.listings.iter().chain(record.sessions.iter().map(|session| &session.start)) {
        for (object, (version, value)) in &listing.items {
            tell(*version, object, Some(*value))?;
        }
    }
    for seen in record.sessions.iter().flat_map(|session| &session.events) {
        tell(seen.version, &seen.object, (seen.change != Change::Deleted).then_some(seen.value))?;
    }
    Ok(timeline)
}

/// A write that began when another had been answered has a higher version,
/// whatever their objects.
fn check_growth(operations: &[Operation]) -> Result<(), Broken> {
    let stored = |operation: &&Operation| matches!(operation.outcome, Outcome::Stored { .. });
    let mut begun: Vec<&Operation> = operations.iter().filter(stored).collect();
    let mut ended = begun.clone();
    begun.sort_by_key(|operation| operation.invoked);
    ended.sort_by_key(|operation| operation.returned);
    let mut ended = ended.into_iter().peekable();
    let mut highest = Version(0);
    for operation in begun {
        while let Some(earlier) = ended.next_if(|earlier| earlier.returned < operation.invoked) {
            highest = highest.max(version_of(earlier));
        }
        let later = version_of(operation);
        if later <= highest {
            return Err(Broken::WentBack { earlier: highest, later });
        }
    }
    Ok(())
}

fn version_of(operation: &Operation) -> Version {
    operation.shows().map_or(Version(0), |(version, _)| version)
}

/// A list holds the newest of each object up to its version. Whether an object
/// that is not in it was really gone is for the search of its own operations.
fn check_listing(listing: &Listing, timeline: &Timeline) -> Result<(), Broken> {
    let listed = listing.version;
    for (object, (version, _)) in &listing.items {
        if *version > listed {
            return Err(Broken::ListFromTheFuture { object: object.clone(), version: *version, listed });
        }
    }
    for (version, (object, _)) in timeline.range(..=listed) {
        if listing.items.get(object).is_some_and(|(item, _)| item < version) {
            return Err(Broken::OldList { object: object.clone(), version: *version, listed });
        }
    }
    Ok(())
}

/// `end` is what the session must have told everything up to.
fn check_session(session: &Session, timeline: &Timeline, end: Option<Version>) -> Result<(), Broken> {
    let mut told = session.start.version;
    let mut present: BTreeMap<&Object, Version> =
        session.start.items.iter().map(|(object, (version, _))| (object, *version)).collect();
    for seen in &session.events {
        let Seen { change, object, version, .. } = seen;
        if *version <= told {
            return Err(Broken::OutOfOrder { object: object.clone(), version: *version, after: told });
        }
        told = *version;
        let before = match change {
            Change::Added | Change::Modified => present.insert(object, *version),
            Change::Deleted => present.remove(object),
        };
        if before.is_some() == (*change == Change::Added) {
            return Err(Broken::DoesNotFollow { change: *change, object: object.clone(), version: *version });
        }
    }
    let told = end.unwrap_or(told).max(told);
    let mut events = session.events.iter().map(|seen| seen.version).peekable();
    for (version, (object, _)) in
        timeline.range(..=told).filter(|(version, _)| **version > session.start.version)
    {
        while events.next_if(|seen| seen < version).is_some() {}
        if events.peek() != Some(version) {
            return Err(Broken::Gap { object: object.clone(), version: *version, told });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::record::{Action, Moment};

    fn stored(object: &str, value: u64, version: u64, span: (u64, u64)) -> Operation {
        Operation {
            object: object.into(),
            action: Action::Apply { value: Value(value) },
            invoked: Moment(span.0),
            returned: Moment(span.1),
            outcome: Outcome::Stored { version: Version(version) },
        }
    }

    fn listing(version: u64, items: &[(&str, u64, u64)]) -> Listing {
        let item = |(object, version, value): &(&str, u64, u64)| {
            (object.to_string(), (Version(*version), Value(*value)))
        };
        Listing { version: Version(version), items: items.iter().map(item).collect() }
    }

    fn seen(change: Change, object: &str, version: u64, value: u64) -> Seen {
        Seen { change, object: object.into(), version: Version(version), value: Value(value) }
    }

    /// Four writes to two objects, a list between them and a watch over all.
    fn good() -> Record {
        Record {
            operations: vec![
                stored("a", 1, 2, (0, 1)),
                stored("b", 2, 3, (2, 3)),
                stored("a", 3, 5, (4, 5)),
                stored("b", 4, 8, (6, 7)),
            ],
            listings: vec![listing(6, &[("a", 5, 3), ("b", 3, 2)])],
            sessions: vec![Session {
                start: listing(1, &[]),
                events: vec![
                    seen(Change::Added, "a", 2, 1),
                    seen(Change::Added, "b", 3, 2),
                    seen(Change::Modified, "a", 5, 3),
                    seen(Change::Deleted, "b", 7, 2),
                    seen(Change::Added, "b", 8, 4),
                ],
            }],
            end: Some(Version(8)),
        }
    }

    #[test]
    fn a_good_story_passes() {
        assert_eq!(check(&good()), Ok(()));
    }

    #[test]
    fn every_kind_of_wrong_is_found() {
        type Spoil = fn(&mut Record);
        type Expected = fn(&Broken) -> bool;
        #[rustfmt::skip]
        let cases: [(&str, Spoil, Expected); 11] = [
            ("a gap in a watch",         |r| { r.sessions[0].events.remove(2); },             |b| matches!(b, Broken::Gap { version: Version(5), .. })),
            ("a gap at the start",       |r| { r.sessions[0].events.remove(0); },             |b| matches!(b, Broken::Gap { .. } | Broken::DoesNotFollow { .. })),
            ("a watch that stops early", |r| { r.sessions[0].events.pop(); },                 |b| matches!(b, Broken::Gap { version: Version(8), .. })),
            ("events in another order",  |r| r.sessions[0].events.swap(0, 1),                 |b| matches!(b, Broken::OutOfOrder { .. })),
            ("an event told twice",      |r| { let e = r.sessions[0].events[2].clone(); r.sessions[0].events.insert(3, e); }, |b| matches!(b, Broken::OutOfOrder { .. })),
            ("added what is there",      |r| r.sessions[0].events[2].change = Change::Added,  |b| matches!(b, Broken::DoesNotFollow { .. })),
            ("modified what is not",     |r| r.sessions[0].events[4].change = Change::Modified, |b| matches!(b, Broken::DoesNotFollow { .. })),
            ("a version given twice",    |r| r.operations[3] = stored("b", 9, 5, (6, 7)),     |b| matches!(b, Broken::TwoStories { version: Version(5), .. })),
            ("versions that go back",    |r| { r.operations[3] = stored("c", 9, 4, (6, 7)); r.sessions.clear(); }, |b| matches!(b, Broken::WentBack { .. })),
            ("a list of old objects",    |r| r.listings[0] = listing(6, &[("a", 2, 1), ("b", 3, 2)]), |b| matches!(b, Broken::OldList { version: Version(5), .. })),
            ("a list ahead of itself",   |r| r.listings[0] = listing(4, &[("a", 5, 3), ("b", 3, 2)]), |b| matches!(b, Broken::ListFromTheFuture { .. })),
        ];
        for (name, spoil, expected) in cases {
            let mut record = good();
            spoil(&mut record);
            let found = check(&record).expect_err(name);
            assert!(expected(&found), "{name}: {found:?}");
        }
    }

    #[test]
    fn a_watch_that_lists_again_need_not_tell_what_lies_between() {
        let mut record = good();
        let later = record.sessions[0].events.split_off(4);
        record.sessions.push(Session { start: listing(7, &[("a", 5, 3)]), events: later });
        record.sessions[0].events.truncate(2);
        assert_eq!(check(&record), Ok(()));
    }
}
