//! Decides what becomes of an instance manager.
//!
//! Instance managers of one node and data engine share a folder, so one of them runs at a time: that of a new image has an object at
//! once, and a process when the one before it is gone, which goes when it holds nothing or is deleted. One that was brought back
//! because that of the default image does not start on its node stands in for it, and stays as long as that image is the default.
//!
//! One that serves goes only where its node has the image of the next one, so that a name that was mistyped takes nothing away. One that
//! has never answered serves nobody, and goes before it does.
//!
//! The invariant: one with instances in it, or that is to have some, is never removed to make room for another. One that has
//! just begun again after a crash holds nothing yet.

use midflight_api::longhorn::{DataEngine, InstanceManagerState};
use midflight_api::{ImageRef, NodeName};
use sha2::{Digest, Sha512};

/// Annotation of an instance manager that stands in for that of another image, which does not start: that image.
pub const STANDS_IN_FOR: &str = "midflight.dev/stands-in-for";

/// Everything `decide` may look at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observed {
    /// Whether its node is there and its image is the one that new instance managers have.
    pub wanted: bool,
    /// Whether its node is there and it stands in for that of the image that new instance managers have.
    pub stands_in: bool,
    /// Whether an attached volume has an engine or a replica on its node.
    pub needed: bool,
    /// The object, if there is one.
    pub manager: Option<Seen>,
    /// Whether its node lacks the image of the one that is to take its place.
    pub next_is_missing: bool,
    /// Whether another of its node and data engine has an object.
    pub has_rival: bool,
    /// Whether another of its node and data engine has a pod, which may be on its way out.
    pub is_taken: bool,
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
    /// Nobody knows yet where to ask: it has never answered.
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
    let is_empty = !seen.wanted && !seen.stands_in && manager.instances == 0;
    let is_idle = is_empty && !seen.needed && !seen.next_is_missing;
    let has_answered = manager.answer != Answer::NoAddress;
    if !manager.has_pod {
        return match () {
            // It is needed only where no other runs, and if it has ever run.
            () if is_idle || is_empty && (seen.is_taken || !has_answered) => Action::Retire,
            () if seen.is_taken || seen.wanted && seen.has_rival => {
                Action::Report(InstanceManagerState::Stopped)
            }
            () => Action::MakePod,
        };
    }
    match manager.answer {
        Answer::Well if is_idle => Action::Retire,
        Answer::NoAddress if is_empty && !seen.next_is_missing => Action::Retire,
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
        use InstanceManagerState::{Running, Starting, Stopped, Unknown};
        let seen = |instances, answer| Some(Seen { deleting: false, has_pod: true, instances, answer });
        let bare =
            |instances| Some(Seen { deleting: false, has_pod: false, instances, answer: Answer::NoAddress });
        let going = Some(Seen { deleting: true, has_pod: true, instances: 1, answer: Answer::Well });
        let (alone, beside, after) = ((false, false), (true, true), (false, true));
        #[rustfmt::skip]
        let cases = [
            ("wanted, not there",      true,  None,                       alone,         Action::Create),
            ("wanted, another there",  true,  None,                       beside,        Action::Create),
            ("not wanted, not there",  false, None,                       alone,         Action::Nothing),
            ("no pod",                 true,  bare(0),                    alone,         Action::MakePod),
            ("new, the old one runs",  true,  bare(0),                    beside,        Action::Report(Stopped)),
            ("new, the old one ends",  true,  bare(0),                    after,         Action::Report(Stopped)),
            ("new, the old one lost its pod", true, bare(0),              (true, false), Action::Report(Stopped)),
            ("old, lost its pod",      false, bare(1),                    (true, false), Action::MakePod),
            ("old, another runs",      false, bare(1),                    beside,        Action::Report(Stopped)),
            ("not needed after all",   false, bare(0),                    beside,        Action::Retire),
            ("starting",               true,  seen(0, Answer::NoAddress), alone,         Action::Report(Starting)),
            ("serves",                 true,  seen(2, Answer::Well),      alone,         Action::Report(Running)),
            ("silent",                 true,  seen(2, Answer::Silent),    alone,         Action::Report(Unknown)),
            ("old, holds something",   false, seen(1, Answer::Well),      (true, false), Action::Report(Running)),
            ("old, holds nothing",     false, seen(0, Answer::Well),      (true, false), Action::Retire),
            ("old, never came up",     false, seen(0, Answer::NoAddress), (true, false), Action::Retire),
            ("old, nobody knows",      false, seen(0, Answer::Silent),    (true, false), Action::Report(Unknown)),
            ("deleted",                false, going,                      (true, false), Action::Nothing),
        ];
        for (case, wanted, manager, (has_rival, is_taken), expected) in cases {
            let seen = Observed { wanted, manager, has_rival, is_taken, ..Observed::default() };
            assert_eq!(decide(&seen), expected, "{case}");
        }
    }

    #[test]
    fn one_that_holds_nothing_yet_stays_while_volumes_need_it() {
        use InstanceManagerState::{Running, Unknown};
        let seen = |has_pod, answer| Some(Seen { deleting: false, has_pod, instances: 0, answer });
        #[rustfmt::skip]
        let cases = [
            // what,        how it is seen,               needed,                  and another runs,        and nobody needs it
            ("crashed",      seen(true,  Answer::Well),   Action::Report(Running), Action::Report(Running), Action::Retire),
            ("comes back",   seen(true,  Answer::Silent), Action::Report(Unknown), Action::Report(Unknown), Action::Report(Unknown)),
            ("lost its pod", seen(false, Answer::Silent), Action::MakePod,         Action::Retire,          Action::Retire),
        ];
        for (case, manager, needed, taken, free) in cases {
            let seen = Observed { needed: true, manager, has_rival: true, ..Observed::default() };
            assert_eq!(decide(&seen), needed, "{case}");
            assert_eq!(
                decide(&Observed { is_taken: true, ..seen.clone() }),
                taken,
                "{case}, and another runs"
            );
            assert_eq!(decide(&Observed { needed: false, ..seen }), free, "{case}, and nobody needs it");
        }
    }

    /// The default image was mistyped, or is not on the node yet.
    #[test]
    fn one_that_serves_stays_until_the_next_image_is_there_and_one_that_never_did_goes() {
        use InstanceManagerState::{Running, Starting};
        let seen = |has_pod, answer| Some(Seen { deleting: false, has_pod, instances: 0, answer });
        #[rustfmt::skip]
        let cases = [
            // what,                                    how it is seen,                  needed, missing, expected
            ("idle, and the next can come",             seen(true,  Answer::Well),       false,  false,   Action::Retire),
            ("idle, and the next cannot",               seen(true,  Answer::Well),       false,  true,    Action::Report(Running)),
            ("idle, and lost its pod meanwhile",        seen(false, Answer::Silent),     false,  true,    Action::MakePod),
            ("never answered, needed, next can come",   seen(true,  Answer::NoAddress),  true,   false,   Action::Retire),
            ("never answered, next cannot come",        seen(true,  Answer::NoAddress),  true,   true,    Action::Report(Starting)),
            ("never began, needed",                     seen(false, Answer::NoAddress),  true,   true,    Action::Retire),
        ];
        for (case, manager, needed, next_is_missing, expected) in cases {
            let seen = Observed { needed, next_is_missing, manager, has_rival: true, ..Observed::default() };
            assert_eq!(decide(&seen), expected, "{case}");
        }
    }

    #[test]
    fn one_that_stands_in_takes_the_place_when_it_is_free_and_keeps_it() {
        use InstanceManagerState::{Running, Stopped};
        let seen = |has_pod, answer| Some(Seen { deleting: false, has_pod, instances: 0, answer });
        #[rustfmt::skip]
        let cases = [
            ("the other has not gone", seen(false, Answer::NoAddress), true,  Action::Report(Stopped)),
            ("the place is free",      seen(false, Answer::NoAddress), false, Action::MakePod),
            ("serves, holds nothing",  seen(true,  Answer::Well),      false, Action::Report(Running)),
        ];
        for (case, manager, is_taken, expected) in cases {
            let seen =
                Observed { stands_in: true, manager, has_rival: true, is_taken, ..Observed::default() };
            assert_eq!(decide(&seen), expected, "{case}");
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
