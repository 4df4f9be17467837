//! Tells whether a dataset is served, and what is missing where it is not.
//!
//! The invariant: a dataset that workloads cannot mount says why.

use k8s_openapi::jiff::Timestamp;
use midflight_api::fluid::{
    DELETION_WAITS, DatasetCondition, DatasetPhase, DatasetStatus, NoFolder, READY_CONDITION,
};
use midflight_api::longhorn::ConditionStatus;
use midflight_plan::mount::dataset::Action;

use crate::controller::Key;

/// Why nobody serves a dataset. Shown to the user verbatim.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Missing {
    #[error("there is no Dataset {0} for it to serve")]
    Dataset(Key),
    #[error("there is no JuiceFSRuntime {0} to serve it: create one of the same name in the same namespace")]
    Runtime(Key),
    #[error(transparent)]
    Folder(#[from] NoFolder),
}

impl Missing {
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Missing::Dataset(_) => "NoDataset",
            Missing::Runtime(_) => "NoRuntime",
            Missing::Folder(NoFolder::NoMount | NoFolder::Path(_)) => "NoFolder",
            Missing::Folder(NoFolder::Scheme(_)) => "SchemeNotServed",
        }
    }

    /// Whether somebody has to change the dataset. What is only not there yet comes by itself a moment later, most of the time.
    pub(super) fn is_a_mistake(&self) -> bool {
        match self {
            Missing::Dataset(_) | Missing::Runtime(_) => false,
            Missing::Folder(_) => true,
        }
    }
}

/// Whether those who read a status have not read yet what is missing.
pub(super) fn is_news(missing: &Missing, before: Option<&DatasetStatus>) -> bool {
    let said =
        before.and_then(|status| status.conditions.iter().find(|said| said.kind.as_str() == READY_CONDITION));
    said.is_none_or(|said| said.message.as_str() != missing.to_string())
}

/// Whether a status says that it was deleted and is used.
pub(super) fn is_kept(status: Option<&DatasetStatus>) -> bool {
    let mut conditions = status.into_iter().flat_map(|status| &status.conditions);
    conditions.any(|said| said.reason.as_str() == DELETION_WAITS)
}

/// Says in a status who uses it though it was deleted. It serves them as before.
pub(super) fn say_kept(words: &str, status: &mut DatasetStatus) {
    put(status, (ConditionStatus::True, DELETION_WAITS), words);
}

/// Says in a status what is missing.
pub(super) fn say_missing(missing: &Missing, status: &mut DatasetStatus) {
    status.phase = DatasetPhase::NotBound;
    status.runtimes.clear();
    put(status, (ConditionStatus::False, missing.reason()), &missing.to_string());
}

/// Daemons that do not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trouble {
    pub(super) words: String,
    /// Whether there are others, and they run.
    pub(super) others_run: bool,
}

/// Says in a status how far a dataset is that has all it needs, by what is to be done next.
pub(super) fn say_served(next: &Action, trouble: Option<&Trouble>, status: &mut DatasetStatus) {
    match next {
        // Bound is what workloads can mount: volume and claim are there, and nothing is to be changed.
        Action::Nothing | Action::MakeAnew { .. } => {
            status.phase = DatasetPhase::Bound;
            if let Some(Trouble { words, others_run: false }) = trouble {
                return put(status, (ConditionStatus::False, "NoDaemonRuns"), words);
            }
            let first = match status.mounts.len() {
                0 | 1 => String::new(),
                all => format!("; of its {all} mounts only the first is served"),
            };
            let trouble = trouble.map(|trouble| format!("; {}", trouble.words)).unwrap_or_default();
            let words = format!("workloads can mount the claim of its name{first}{trouble}");
            put(status, (ConditionStatus::True, "DatasetReady"), &words);
        }
        // Those that could mount it still can.
        Action::ChangeDaemons { .. } | Action::ChangeClaim { .. } => status.phase = DatasetPhase::Updating,
        Action::Guard if matches!(status.phase, DatasetPhase::Bound | DatasetPhase::Updating) => {}
        Action::Guard
        | Action::MakeDaemons { .. }
        | Action::MakeVolume
        | Action::MakeClaim { .. }
        | Action::RemoveVolume
        | Action::LetGo => {
            status.phase = DatasetPhase::NotBound;
            let words = "its daemons, its volume and its claim are being made";
            put(status, (ConditionStatus::False, "BeingMade"), words);
        }
    }
}

fn put(status: &mut DatasetStatus, (is_so, reason): (ConditionStatus, &str), words: &str) {
    let before = status.conditions.iter().find(|before| before.kind.as_str() == READY_CONDITION);
    if before.is_some_and(|before| before.status == is_so && before.message.as_str() == words) {
        return;
    }
    let now = Timestamp::now().to_string();
    let since =
        before.filter(|before| before.status == is_so).map(|before| before.last_transition_time.clone());
    let told = DatasetCondition {
        kind: READY_CONDITION.into(),
        status: is_so,
        reason: reason.into(),
        message: words.into(),
        last_update_time: now.as_str().into(),
        last_transition_time: since.unwrap_or_else(|| now.as_str().into()),
    };
    status.conditions.retain(|condition| condition.kind.as_str() != READY_CONDITION);
    status.conditions.push(told);
}

#[cfg(test)]
mod tests {
    use midflight_api::fluid::{DatasetMount, DatasetRuntime};
    use midflight_plan::mount::dataset::Generation;

    use super::*;

    fn said(status: &DatasetStatus) -> (DatasetPhase, ConditionStatus, String, String) {
        let [one] = status.conditions.as_slice() else { panic!("{status:#?}") };
        (status.phase, one.status, one.reason.as_str().to_owned(), one.message.as_str().to_owned())
    }

    #[test]
    fn a_dataset_says_what_it_lacks_and_when_it_lacks_nothing_any_more() {
        let missing = Missing::Runtime(Key::new("default", "data"));
        let mut status =
            DatasetStatus { runtimes: vec![DatasetRuntime::default()], ..DatasetStatus::default() };
        assert!(is_news(&missing, None));
        say_missing(&missing, &mut status);
        let words = "there is no JuiceFSRuntime default/data to serve it: create one of the same name in the same namespace";
        let expected = (DatasetPhase::NotBound, ConditionStatus::False, "NoRuntime".into(), words.into());
        assert_eq!((said(&status), status.runtimes.len()), (expected, 0));
        assert!(!is_news(&missing, Some(&status)));
        assert!(is_news(&Missing::Folder(NoFolder::NoMount), Some(&status)));

        say_served(&Action::MakeVolume, None, &mut status);
        assert_eq!(said(&status).0, DatasetPhase::NotBound);
        status.mounts = vec![DatasetMount::default(); 2];
        say_served(&Action::Nothing, None, &mut status);
        let words = "workloads can mount the claim of its name; of its 2 mounts only the first is served";
        let ready = (DatasetPhase::Bound, ConditionStatus::True, "DatasetReady".into(), words.into());
        assert_eq!(said(&status), ready);
        let before = status.clone();
        say_served(&Action::Nothing, None, &mut status);
        assert_eq!(status, before, "nothing new");
        say_served(&Action::ChangeClaim { generation: Generation::FIRST }, None, &mut status);
        assert_eq!(status, DatasetStatus { phase: DatasetPhase::Updating, ..before });
    }

    /// It is ready as long as there is a node where a workload can mount it.
    #[test]
    fn a_dataset_says_which_daemons_do_not_run() {
        let mut status = DatasetStatus::default();
        let trouble = |others_run| Trouble { words: "the daemon on a does not run: why".into(), others_run };
        say_served(&Action::Nothing, Some(&trouble(true)), &mut status);
        let words = "workloads can mount the claim of its name; the daemon on a does not run: why";
        let expected = (DatasetPhase::Bound, ConditionStatus::True, "DatasetReady".into(), words.into());
        assert_eq!(said(&status), expected);
        say_served(&Action::Nothing, Some(&trouble(false)), &mut status);
        let words = "the daemon on a does not run: why";
        let expected = (DatasetPhase::Bound, ConditionStatus::False, "NoDaemonRuns".into(), words.into());
        assert_eq!(said(&status), expected);
        say_served(&Action::Nothing, None, &mut status);
        assert_eq!(said(&status).1, ConditionStatus::True);
    }
}
