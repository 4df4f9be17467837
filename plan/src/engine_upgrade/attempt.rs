//! Decides what becomes of an attempt: whether it has arrived, is too late, or was taken back.
//!
//! The invariant: an attempt that began automatically ends, when the image has failed or at its deadline at the
//! latest, and then the volume is asked for the image that it had before.

use std::time::Duration;

use jiff::Timestamp;
use midflight_api::{Attempt, ImageRef, Initiator, Outcome, VolumeName, Way};

use super::facts::{Policy, Version, Volume};
use super::reason::Reason;

/// Rest after the first failure; it doubles with each further one.
const FIRST_REST: Duration = Duration::from_secs(60);
/// Longest rest.
const LONGEST_REST: Duration = Duration::from_secs(6 * 3600);
/// Rest after the API has refused a change; it doubles with each further refusal. What refuses may be mended at any moment.
const FIRST_REFUSAL: Duration = Duration::from_secs(2);
/// Longest rest after a refusal.
const LONGEST_REFUSAL: Duration = Duration::from_secs(600);

/// One patch of one volume. It holds only if the volume is still as it was seen.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Change {
    pub volume: VolumeName,
    /// State of the volume that this was decided on.
    pub version: Version,
    /// New `spec.image`, if that changes.
    pub image: Option<ImageRef>,
    /// What the annotation will say.
    pub attempt: Attempt,
    pub why: Why,
}

/// What a change means to a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Why {
    /// The volume begins to move to the target.
    Begins,
    /// It has arrived.
    Arrived,
    /// It has not arrived in time, or the image does not serve, and it goes back.
    GoesBack,
    /// Somebody asked for the old image before it had arrived.
    TakenBack,
    /// Somebody asked for another image; the time is taken.
    Noticed,
}

/// What is to be done about an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Upkeep {
    /// To be done now.
    pub(super) change: Option<Change>,
    /// Whether the volume holds a place in the limits.
    pub(super) counts: bool,
    /// When this may be judged otherwise.
    pub(super) until: Option<Timestamp>,
}

/// How long a volume rests after so many failures in a row.
pub fn back_off(failures: u32) -> Duration {
    doubled(FIRST_REST, failures).min(LONGEST_REST)
}

/// The first rest, doubled with each further time.
fn doubled(first: Duration, times: u32) -> Duration {
    first * (1 << times.saturating_sub(1).min(16))
}

/// What the API says to the changes of a volume, again and again.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Refused {
    /// When it was first said.
    pub(super) since: Timestamp,
    times: u32,
    /// Before that nothing is asked of the volume.
    pub(super) until: Timestamp,
    said: String,
}

impl Refused {
    /// One refusal more than before.
    pub(super) fn again(before: Option<&Refused>, said: &str, now: Timestamp) -> Refused {
        let times = before.map_or(0, |before| before.times).saturating_add(1);
        let rest = doubled(FIRST_REFUSAL, times).min(LONGEST_REFUSAL);
        let since = before.map_or(now, |before| before.since);
        Refused { since, times, until: after(now, rest), said: said.to_owned() }
    }

    pub(super) fn reason(&self) -> Reason {
        Reason::Refused { times: self.times, until: self.until, said: self.said.clone() }
    }
}

/// Until when a volume rests whose attempt failed.
pub(super) fn rests_until(failed: &Attempt) -> Timestamp {
    after(failed.ended_at.unwrap_or(failed.issued_at), back_off(failed.failures))
}

/// A moment so much later, or the last there is.
pub(super) fn after(moment: Timestamp, wait: Duration) -> Timestamp {
    moment.checked_add(wait).unwrap_or(Timestamp::MAX)
}

/// The change with which a volume begins to move.
pub(super) fn begin(volume: &Volume, way: Way, target: &ImageRef, now: Timestamp) -> Change {
    let before = volume.attempt.as_ref().filter(|last| last.to == *target && last.outcome == Outcome::Failed);
    Change {
        volume: volume.name.clone(),
        version: volume.version,
        image: Some(target.clone()),
        attempt: Attempt {
            by: Initiator::Automatic,
            way,
            from: volume.current.clone(),
            to: target.clone(),
            node: volume.seat().cloned().unwrap_or_default(),
            issued_at: now,
            ended_at: None,
            outcome: Outcome::Running,
            failures: before.map_or(0, |last| last.failures),
        },
        why: Why::Begins,
    }
}

/// What is to be done about the attempt of a volume, now and later. What the API refuses rests, and holds no place for longer
/// than an attempt may take.
pub(super) fn upkeep(volume: &Volume, policy: &Policy, now: Timestamp) -> Upkeep {
    let wanted = wanted(volume, policy, now);
    let Some(refused) = volume.refused_now(now).filter(|_| wanted.change.is_some()) else { return wanted };
    let deadline = after(refused.since, policy.deadline);
    let counts = wanted.counts && now < deadline;
    let until = if counts { refused.until.min(deadline) } else { refused.until };
    Upkeep { change: None, counts, until: Some(until) }
}

/// What would be done if the API took everything.
fn wanted(volume: &Volume, policy: &Policy, now: Timestamp) -> Upkeep {
    let idle = Upkeep { change: None, counts: false, until: None };
    let change = |image, attempt, why| {
        Some(Change { volume: volume.name.clone(), version: volume.version, image, attempt, why })
    };
    if volume.deleting || volume.current.is_empty() {
        return Upkeep { counts: volume.is_upgrading(), ..idle };
    }
    let notice = || {
        // Nobody counts while upgrades are off, so nobody needs the time.
        let change =
            if policy.per_node == 0 { None } else { change(None, manual(volume, now), Why::Noticed) };
        Upkeep { change, counts: true, until: None }
    };
    let Some(attempt) = volume.attempt.as_ref() else {
        return if volume.is_upgrading() { notice() } else { idle };
    };
    if !volume.is_upgrading() {
        let (why, outcome, failures) = match attempt.to == volume.current {
            true => (Why::Arrived, Outcome::Done, 0),
            // That says nothing of the image.
            false => (Why::TakenBack, Outcome::Failed, attempt.failures),
        };
        let ended = Attempt { outcome, failures, ended_at: Some(now), ..attempt.clone() };
        return match attempt.outcome {
            Outcome::Running => Upkeep { change: change(None, ended, why), ..idle },
            Outcome::Done | Outcome::Failed => idle,
        };
    }
    match (attempt.outcome, attempt.by) {
        (Outcome::Running, by) if attempt.to == volume.wanted => {
            let deadline = after(attempt.issued_at, policy.deadline);
            match by {
                Initiator::Automatic if now >= deadline || volume.failed => {
                    let back = Some(volume.current.clone());
                    Upkeep {
                        change: change(back, failed(attempt, now), Why::GoesBack),
                        counts: true,
                        until: None,
                    }
                }
                Initiator::User if now >= deadline => idle,
                Initiator::Automatic | Initiator::User => {
                    Upkeep { change: None, counts: true, until: Some(deadline) }
                }
            }
        }
        (Outcome::Failed, _) if attempt.from == volume.wanted => {
            // It arrived in the very moment in which it was asked back.
            let deadline = after(attempt.ended_at.unwrap_or(attempt.issued_at), policy.deadline);
            if now >= deadline { idle } else { Upkeep { change: None, counts: true, until: Some(deadline) } }
        }
        (Outcome::Running | Outcome::Done | Outcome::Failed, _) => notice(),
    }
}

/// An attempt that fails now.
fn failed(attempt: &Attempt, now: Timestamp) -> Attempt {
    let failures = attempt.failures.saturating_add(1);
    Attempt { outcome: Outcome::Failed, failures, ended_at: Some(now), ..attempt.clone() }
}

/// The attempt of somebody who changed `spec.image`, from when it was first seen.
fn manual(volume: &Volume, now: Timestamp) -> Attempt {
    Attempt {
        by: Initiator::User,
        way: if volume.node.is_empty() { Way::Detached } else { Way::Live },
        from: volume.current.clone(),
        to: volume.wanted.clone(),
        node: volume.seat().cloned().unwrap_or_default(),
        issued_at: now,
        ended_at: None,
        outcome: Outcome::Running,
        failures: 0,
    }
}
