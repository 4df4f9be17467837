//! What people are told of an engine upgrade, by events.
//!
//! The invariant: whatever keeps a volume from moving is told with what would help.

use midflight_plan::engine_upgrade::{Change, Hold, Reason, Why, back_off};

use crate::controller::{News, Tone};

/// What is told.
pub(super) struct Told {
    tone: Tone,
    reason: &'static str,
    note: String,
}

impl Told {
    pub(super) fn news(&self, by: &'static str) -> News<'_> {
        News { by, tone: self.tone, reason: self.reason, note: &self.note }
    }
}

/// What a change that was made means.
pub(super) fn of_change(change: &Change) -> Option<Told> {
    let attempt = &change.attempt;
    let (from, to) = (&attempt.from, &attempt.to);
    let rest = back_off(attempt.failures).as_secs();
    let (tone, reason, note) = match change.why {
        Why::Begins => {
            (Tone::Normal, "EngineUpgradeStarted", format!("moves from {from} to {to}, {}", attempt.way))
        }
        Why::Arrived => {
            let took = attempt.ended_at.map_or(0, |end| end.duration_since(attempt.issued_at).as_secs());
            (Tone::Normal, "EngineUpgraded", format!("runs {to} after {took} s"))
        }
        Why::GoesBack => (
            Tone::Warning,
            "EngineUpgradeFailed",
            format!(
                "did not come to run {to} and goes back to {from}; the next attempt comes after {rest} s"
            ),
        ),
        Why::TakenBack => (
            Tone::Warning,
            "EngineUpgradeTakenBack",
            format!("was asked back to {from} before it reached {to}; the next attempt comes after {rest} s"),
        ),
        Why::Noticed => return None,
    };
    Some(Told { tone, reason, note })
}

/// What a change that was made is counted as.
pub(super) fn outcome(why: Why) -> Option<&'static str> {
    match why {
        Why::Begins => Some("begun"),
        Why::Arrived => Some("done"),
        Why::GoesBack => Some("failed"),
        Why::TakenBack => Some("taken-back"),
        Why::Noticed => None,
    }
}

/// Why a volume is left out.
pub(super) fn of_volume(reason: &Reason) -> Told {
    let note = format!("not upgraded ({}): {reason}. What helps: {}", reason.word(), reason.way_out());
    let told = if reason.is_waiting() { "EngineUpgradeWaits" } else { "EngineUpgradeSkipped" };
    Told { tone: Tone::Normal, reason: told, note }
}

/// Why no upgrade begins at all.
pub(super) fn of_hold(hold: &Hold) -> Told {
    let tone = match hold {
        Hold::Off | Hold::Paused => Tone::Normal,
        Hold::NoTarget
        | Hold::Unknown { .. }
        | Hold::Incompatible(_)
        | Hold::Nowhere { .. }
        | Hold::Halted { .. } => Tone::Warning,
    };
    Told { tone, reason: "EngineUpgradesHeld", note: format!("{hold}. To begin: {}", hold.way_out()) }
}
