//! Decides what becomes of an instance manager.
//!
//! The invariant: one with instances in it is never removed to make room for another.

use midflight_api::longhorn::{DataEngine, InstanceManagerState};
use midflight_api::{ImageRef, NodeName};
use sha2::{Digest, Sha512};

/// Everything `decide` may look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    /// Whether its node is there and its image is the one that new instance managers have.
    pub wanted: bool,
    /// The object, if there is one.
    pub manager: Option<Seen>,
}

/// What the object and its process say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub deleting: bool,
    /// Whether there is a pod for its process.
    pub has_pod: bool,
    /// How many engines and replicas it holds, as far as is known.
    pub instances: usize,
    /// What the process answered, if it was asked.
    pub answer: Answer,
}

/// How an instance manager answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Nobody knows yet where to ask.
    NoAddress,
    Well,
    /// It was asked and did not answer.
    Silent,
}

/// What to do. Each is safe to repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Create,
    /// Make the pod of its process.
    MakePod,
    /// Say how it is.
    Report(InstanceManagerState),
    /// It holds nothing and is of an image that is no longer used.
    Retire,
    Nothing,
}

pub fn decide(seen: &Observed) -> Action {
    let Some(manager) = &seen.manager else {
        return if seen.wanted { Action::Create } else { Action::Nothing };
    };
    if manager.deleting {
        return Action::Nothing;
    }
    if !manager.has_pod {
        return Action::MakePod;
    }
    match manager.answer {
        Answer::Well if !seen.wanted && manager.instances == 0 => Action::Retire,
        Answer::Well => Action::Report(InstanceManagerState::Running),
        Answer::NoAddress => Action::Report(InstanceManagerState::Starting),
        Answer::Silent => Action::Report(InstanceManagerState::Unknown),
    }
}

/// The name of the instance manager of a node, image and data engine, as upstream makes it.
pub fn name(node: &NodeName, image: &ImageRef, engine: DataEngine) -> String {
    let digest = Sha512::digest(format!("{node}{image}{engine}").as_bytes());
    let hex: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("instance-manager-{hex}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_holds_something_stays() {
        use InstanceManagerState::{Running, Starting, Unknown};
        let seen = |instances, answer| Some(Seen { deleting: false, has_pod: true, instances, answer });
        let bare = || Some(Seen { deleting: false, has_pod: false, instances: 0, answer: Answer::NoAddress });
        #[rustfmt::skip]
        let cases = [
            ("wanted, not there",      true,  None,                          Action::Create),
            ("not wanted, not there",  false, None,                          Action::Nothing),
            ("no pod",                 true,  bare(),                        Action::MakePod),
            ("starting",               true,  seen(0, Answer::NoAddress),    Action::Report(Starting)),
            ("serves",                 true,  seen(2, Answer::Well),         Action::Report(Running)),
            ("silent",                 true,  seen(2, Answer::Silent),       Action::Report(Unknown)),
            ("old, holds something",   false, seen(1, Answer::Well),         Action::Report(Running)),
            ("old, holds nothing",     false, seen(0, Answer::Well),         Action::Retire),
            ("old, nobody knows",      false, seen(0, Answer::Silent),       Action::Report(Unknown)),
        ];
        for (case, wanted, manager, expected) in cases {
            assert_eq!(decide(&Observed { wanted, manager }), expected, "{case}");
        }
    }

    #[test]
    fn is_named_by_node_image_and_engine() {
        let of = |node: &str, image: &str, engine| name(&node.into(), &image.into(), engine);
        // printf 'node-1img:1v2' | sha512sum | head -c 32
        assert_eq!(
            of("node-1", "img:1", DataEngine::V2),
            "instance-manager-71b94ed042288096329c161b89a2eeee"
        );
        assert_ne!(of("node-1", "img:1", DataEngine::V1), of("node-1", "img:1", DataEngine::V2));
    }
}
