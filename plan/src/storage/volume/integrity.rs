//! Says what is known of the data that the copies of a volume hold.
//!
//! The invariant: a copy is called repaired only after an engine has found it whole.

use kube::ResourceExt;
use midflight_api::MemberMode;
use midflight_api::longhorn::{ConditionStatus, Conditions, Replica};

use super::seen::{Flaw, Observed};

/// Condition of volumes and replicas: whether what they hold can be read.
pub const INTACT: &str = "DataIntact";

/// What became of data that was found damaged, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Integrity {
    /// Another copy has it, and it is copied from there.
    Damaged(String),
    /// Clients are told of errors: no other copy in service has it.
    Failed(String),
    Repaired(String),
}

impl Integrity {
    pub fn holds(&self) -> bool {
        matches!(self, Integrity::Repaired(_))
    }

    pub fn reason(&self) -> &'static str {
        match self {
            Integrity::Damaged(_) => "ReplicaDamaged",
            Integrity::Failed(_) => "ReplicaFailed",
            Integrity::Repaired(_) => "Repaired",
        }
    }

    pub fn message(&self) -> String {
        match self {
            Integrity::Damaged(what) => format!("{what}; it is copied anew from another replica"),
            Integrity::Failed(what) => format!(
                "{what}; no other replica in service has it, so clients are told of errors there: \
                 write it anew, or restore a backup"
            ),
            Integrity::Repaired(what) => format!("it is whole again, after this: {what}"),
        }
    }
}

/// What is known of a copy; nothing if it was never found damaged.
pub fn of_replica(seen: &Observed, replica: &Replica) -> Option<Integrity> {
    let serving = seen.serving.as_ref()?;
    let name = replica.name_any();
    if let Some(flaw) = serving.flaws.iter().find(|flaw| flaw.replica == name.as_str()) {
        return Some(of_flaw(seen, flaw, flaw.what.clone()));
    }
    let is_in_service = seen.member(&name).is_some_and(|member| member.mode == MemberMode::ReadWrite);
    let was = told(&replica.status.as_ref()?.instance.conditions)?;
    // The engine that found it is gone, and the next one has found it whole.
    is_in_service.then_some(Integrity::Repaired(was))
}

/// The same of the whole volume.
pub(super) fn of_volume(seen: &Observed) -> Option<Integrity> {
    let serving = seen.serving.as_ref()?;
    if let Some(trouble) = &serving.trouble {
        return Some(Integrity::Failed(trouble.clone()));
    }
    let in_words = |flaw: &Flaw| format!("replica {}: {}", flaw.replica, flaw.what);
    if let Some(flaw) = serving.flaws.iter().find(|flaw| !flaw.repaired) {
        return Some(of_flaw(seen, flaw, in_words(flaw)));
    }
    if let Some(flaw) = serving.flaws.last() {
        return Some(Integrity::Repaired(in_words(flaw)));
    }
    told(&seen.volume.status.as_ref()?.conditions).map(Integrity::Repaired)
}

fn of_flaw(seen: &Observed, flaw: &Flaw, what: String) -> Integrity {
    let has_others = seen.in_service().any(|member| member.replica != flaw.replica);
    match (flaw.repaired, has_others) {
        (true, _) => Integrity::Repaired(what),
        (false, true) => Integrity::Damaged(what),
        (false, false) => Integrity::Failed(what),
    }
}

/// What was told to be damaged, without what is done about it.
fn told(conditions: &Conditions) -> Option<String> {
    let condition = conditions.get(INTACT).filter(|condition| condition.status == ConditionStatus::False)?;
    Some(condition.message.as_str().split("; ").next().unwrap_or_default().to_owned())
}
