//! Decides what becomes of an engine image.
//!
//! The invariant: the default image and one that something refers to are never retired.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use midflight_api::ImageRef;
use midflight_api::longhorn::{Condition, ConditionStatus, EngineImageState, EngineImageStatus};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha512};

use super::deployment::{Deployment, Stage};

/// How long an image that nothing refers to is kept.
pub const KEPT_FOR: SignedDuration = SignedDuration::from_mins(60);
/// The versions of the instance managers' API that controllers speak.
pub(crate) const SPOKEN: Range = Range { oldest: 1, newest: 1 };

/// Everything `decide` may look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    pub now: Timestamp,
    /// Whether new volumes get this image.
    pub is_default: bool,
    /// The object, if there is one.
    pub image: Option<Seen>,
}

/// What the object says, and who refers to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Volumes, engines and replicas that want or run it, each once.
    pub references: usize,
    pub unreferenced_since: Option<Timestamp>,
    /// It is on its way out.
    pub deleting: bool,
    /// The DaemonSet that brings it to the nodes.
    pub set: Set,
}

/// What there is to bring an image to the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Set {
    Missing,
    /// It was made by another version of Midflight, or with other settings.
    Outdated,
    Fine,
}

/// What to do. Each is safe to repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Make the object of the default image.
    Create,
    /// Make the DaemonSet that brings it to the nodes, or make it as it should be.
    Deploy,
    /// Say who refers to it; look again when it may have to go.
    Keep { references: usize, unreferenced_since: Option<Timestamp>, look_again: Option<Timestamp> },
    /// Nothing has referred to it for so long that it goes.
    Retire,
    /// It is not there and need not be, or is about to go.
    Nothing,
}

pub fn decide(seen: &Observed) -> Action {
    let Some(image) = seen.image else {
        return if seen.is_default { Action::Create } else { Action::Nothing };
    };
    if image.deleting {
        return Action::Nothing;
    }
    match image.set {
        Set::Missing | Set::Outdated => return Action::Deploy,
        Set::Fine => {}
    }
    let references = image.references;
    if references > 0 {
        return Action::Keep { references, unreferenced_since: None, look_again: None };
    }
    let since = image.unreferenced_since.unwrap_or(seen.now);
    if seen.is_default {
        return Action::Keep { references, unreferenced_since: Some(since), look_again: None };
    }
    let until = since.saturating_add(KEPT_FOR).unwrap_or(Timestamp::MAX);
    if image.unreferenced_since.is_some() && until <= seen.now {
        return Action::Retire;
    }
    Action::Keep { references, unreferenced_since: Some(since), look_again: Some(until) }
}

/// Why an engine image cannot be deleted. Shown to whoever asks for it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Needed {
    #[error("{0} is the default engine image; choose another with the setting default-engine-image first")]
    Default(ImageRef),
    #[error(
        "{image} is used by {references} volumes, engines and replicas; move them to another image first"
    )]
    Used { image: ImageRef, references: i32 },
}

/// An engine image under a name that is not its own. Shown to whoever asks for it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the EngineImage of {image} is called {name}, so that there is one of each image")]
pub struct Misnamed {
    image: ImageRef,
    name: String,
}

/// Whether somebody may make an engine image of this name.
pub fn may_come(name: &str, image: &ImageRef) -> Result<(), Misnamed> {
    let own = self::name(image);
    if name == own { Ok(()) } else { Err(Misnamed { image: image.clone(), name: own }) }
}

/// Whether somebody may delete an engine image.
pub fn may_go(image: &ImageRef, default: &str, references: i32) -> Result<(), Needed> {
    if image.as_str().trim() == default.trim() {
        return Err(Needed::Default(image.clone()));
    }
    match references {
        0 => Ok(()),
        references => Err(Needed::Used { image: image.clone(), references }),
    }
}

/// What a binary says of itself (`midflight version -o json`).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct About {
    pub version: String,
    pub engine: Ranges,
}

/// Label of an image: what its program said of itself when it was packed, as [`Ranges`] in JSON.
pub const LABEL: &str = "dev.midflight.engine";
/// Annotation of a Node: the same by the name of each image that is on it, in JSON.
pub const ON_NODE: &str = "midflight.dev/engine-versions";

/// What a program speaks and reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ranges {
    /// Of the instance managers' API.
    pub api: Range,
    /// Of what engines, replicas and frontends say to each other.
    pub wire: Range,
    /// Of replicas' folders.
    pub disk: Range,
}

/// Versions, from the oldest to the newest; 0 while nobody knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Range {
    pub oldest: u32,
    pub newest: u32,
}

impl Range {
    /// From two fields of a status.
    pub fn of(oldest: i32, newest: i32) -> Range {
        let number = |version: i32| u32::try_from(version).unwrap_or_default();
        Range { oldest: number(oldest), newest: number(newest) }
    }

    /// As two fields of a status have it: the oldest, the newest.
    pub fn fields(self) -> (i32, i32) {
        let number = |version: u32| i32::try_from(version).unwrap_or(i32::MAX);
        (number(self.oldest), number(self.newest))
    }

    pub fn is_known(self) -> bool {
        self.newest > 0
    }

    pub(crate) fn meets(self, other: Range) -> bool {
        self.oldest <= other.newest && other.oldest <= self.newest
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.oldest, self.newest) {
            (oldest, newest) if oldest == newest => write!(f, "{newest}"),
            (oldest, newest) => write!(f, "{oldest} to {newest}"),
        }
    }
}

/// Why nobody knows what an image can do, although a node has it. Shown to the user verbatim.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unheard {
    #[error("what its binary has said in the pod {pod} cannot be read: {why}")]
    Unread { pod: String, why: String },
    #[error("its binary did not say in the pod {pod} which versions it has, but {said:?}")]
    Nonsense { pod: String, said: String },
    #[error("its binary was started in the pod {pod} at {since} and has not answered")]
    Silent { pod: String, since: Timestamp },
}

impl Unheard {
    /// What would let it be heard.
    pub fn way_out(&self) -> &'static str {
        match self {
            Unheard::Unread { .. } => {
                "wait; if it stays so, delete the pod, so that another asks the binary anew, and look whether logs of pods can be read"
            }
            Unheard::Nonsense { .. } => {
                "make the image of a build of midflight under another tag, and delete the EngineImage of this one"
            }
            Unheard::Silent { .. } => {
                "look what the container `install` of the pod does; delete the pod to ask anew, or choose another image"
            }
        }
    }

    /// Whether it stays so unless somebody does something.
    fn is_certain(&self) -> bool {
        match self {
            Unheard::Unread { .. } => false,
            Unheard::Nonsense { .. } | Unheard::Silent { .. } => true,
        }
    }
}

fn is_hopeless(hearing: &Hearing) -> bool {
    hearing.as_ref().is_err_and(Unheard::is_certain)
}

/// What a binary said when it was asked: nothing is asked of one that was heard before, or is on no node.
pub type Hearing = Result<Option<About>, Unheard>;

/// Condition that says whether every node has the image, and its binary was heard.
pub const READY: &str = "ready";
/// Its reason while the binary is not heard.
pub const UNHEARD: &str = "Unheard";

/// What is said of an image of which the status tells all else already.
pub fn ready(
    image: &ImageRef,
    status: &EngineImageStatus,
    deployment: &Deployment,
    hearing: &Hearing,
) -> Condition {
    let complaint = deployment.complaint(image);
    let (status, reason, message) = match (deployment.stage(), hearing) {
        (Stage::Failing, hearing) if !is_hopeless(hearing) => {
            (ConditionStatus::False, "PullFails", complaint)
        }
        (Stage::Coming | Stage::Whole | Stage::Failing, Err(unheard)) => {
            let said = format!("{image}: {unheard}. What helps: {}", unheard.way_out());
            let said = [said, complaint].into_iter().filter(|said| !said.is_empty()).collect::<Vec<_>>();
            (ConditionStatus::False, UNHEARD, said.join("; "))
        }
        (Stage::Whole, Ok(_)) if !status.version.is_empty() => (ConditionStatus::True, "", complaint),
        (Stage::Coming | Stage::Whole | Stage::Failing, Ok(_)) => {
            (ConditionStatus::False, "daemonSet", complaint)
        }
    };
    Condition {
        kind: READY.into(),
        status,
        reason: reason.into(),
        message: message.into(),
        ..Condition::default()
    }
}

/// Writes down where an image is, and what its binary said once it was asked.
pub fn tell(status: &mut EngineImageStatus, deployment: &Deployment, hearing: &Hearing) {
    status.node_deployment_map = deployment.map();
    if let Ok(Some(about)) = hearing {
        let Ranges { api, wire, disk } = about.engine;
        status.version = about.version.as_str().into();
        (status.cli_api_min_version, status.cli_api_version) = api.fields();
        (status.controller_api_min_version, status.controller_api_version) = wire.fields();
        (status.data_format_min_version, status.data_format_version) = disk.fields();
    }
    // Each time, since other controllers than those that asked may speak other versions.
    if !status.version.is_empty() {
        status.incompatible = !Range::of(status.cli_api_min_version, status.cli_api_version).meets(SPOKEN);
    }
    status.state = match deployment.stage() {
        Stage::Failing => EngineImageState::Error,
        Stage::Whole | Stage::Coming if is_hopeless(hearing) => EngineImageState::Error,
        Stage::Whole if !status.version.is_empty() => EngineImageState::Deployed,
        Stage::Whole | Stage::Coming => EngineImageState::Deploying,
    };
}

/// The name of the object of an image, as upstream makes it.
pub fn name(image: &ImageRef) -> String {
    let digest = Sha512::digest(image.as_str().trim().as_bytes());
    let hex: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("ei-{hex}")
}

/// Where a node has the program of an image, below its folder of engine binaries.
pub fn binary(image: &ImageRef) -> String {
    format!("{}/midflight", image.as_str().trim().replace(['/', ':', '@'], "-"))
}

#[cfg(test)]
mod tests {
    use midflight_api::NodeName;

    use super::super::deployment::Lack;
    use super::*;

    fn at(minute: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + minute * 60).unwrap()
    }

    #[test]
    fn keeps_what_is_used_and_retires_the_rest_in_time() {
        let kept = |references, since: Option<i64>, again: Option<i64>| Action::Keep {
            references,
            unreferenced_since: since.map(at),
            look_again: again.map(at),
        };
        #[rustfmt::skip]
        let cases = [
            // what,                   default, (references, since),     at,  expected
            ("default, not there",       true,  None,                      0,   Action::Create),
            ("other, not there",         false, None,                      0,   Action::Nothing),
            ("used",                     false, Some((3, None)),           0,   kept(3, None, None)),
            ("used again",               false, Some((1, Some(0))),        90,  kept(1, None, None)),
            ("just released",            false, Some((0, None)),           5,   kept(0, Some(5), Some(65))),
            ("released a while ago",     false, Some((0, Some(5))),        64,  kept(0, Some(5), Some(65))),
            ("released an hour ago",     false, Some((0, Some(5))),        65,  Action::Retire),
            ("default, never used",      true,  Some((0, Some(5))),        500, kept(0, Some(5), None)),
        ];
        for (case, is_default, image, now, expected) in cases {
            let image = image.map(|(references, since): (usize, Option<i64>)| Seen {
                references,
                unreferenced_since: since.map(at),
                deleting: false,
                set: Set::Fine,
            });
            let seen = Observed { now: at(now), is_default, image };
            assert_eq!(decide(&seen), expected, "{case}");
        }
    }

    #[test]
    fn is_brought_to_the_nodes_while_it_stays() {
        let seen = |deleting, set| {
            let image = Some(Seen { references: 1, unreferenced_since: None, deleting, set });
            decide(&Observed { now: at(0), is_default: false, image })
        };
        let kept = Action::Keep { references: 1, unreferenced_since: None, look_again: None };
        #[rustfmt::skip]
        let cases = [
            (false, Set::Missing,  Action::Deploy),
            (false, Set::Outdated, Action::Deploy),
            (false, Set::Fine,     kept),
            (true,  Set::Missing,  Action::Nothing),
            (true,  Set::Outdated, Action::Nothing),
        ];
        for (deleting, set, expected) in cases {
            assert_eq!(seen(deleting, set), expected, "{deleting} {set:?}");
        }
    }

    #[test]
    fn the_default_and_what_is_used_cannot_be_deleted() {
        let refused = |image: &str, references| {
            may_go(&image.into(), "a:1", references).err().map(|needed| needed.to_string())
        };
        assert!(refused("a:1", 0).unwrap().starts_with("a:1 is the default engine image"));
        assert!(refused("b:1", 2).unwrap().starts_with("b:1 is used by 2 volumes"));
        assert_eq!(refused("b:1", 0), None);
    }

    #[test]
    fn is_deployed_when_every_node_has_it_and_its_binary_has_answered() {
        let about = |oldest, newest| About {
            version: "1.0".into(),
            engine: Ranges {
                api: Range { oldest, newest },
                wire: Range { oldest: 2, newest: 3 },
                disk: Range { oldest: 4, newest: 5 },
            },
        };
        let well = || [("node-1".into(), Ok(())), ("node-2".into(), Ok(()))];
        let sick = || [("node-1".into(), Ok(())), ("node-2".into(), Err(Lack::Failed("no room".into())))];
        let told = |nodes: Vec<(NodeName, Result<(), Lack>)>, about: Option<About>| {
            let mut status = EngineImageStatus::default();
            let deployment = Deployment(nodes.into_iter().collect());
            tell(&mut status, &deployment, &Ok(about));
            status
        };
        let status = told(well().into(), Some(about(1, 1)));
        assert_eq!((status.state, status.incompatible), (EngineImageState::Deployed, false));
        assert_eq!((status.controller_api_min_version, status.data_format_version), (2, 5));
        let status = told(sick().into(), Some(about(2, 2)));
        assert_eq!((status.state, status.incompatible), (EngineImageState::Error, true));
        assert!(!status.node_deployment_map["node-2"]);
        assert_eq!(told(well().into(), None).state, EngineImageState::Deploying);
        assert_eq!(told(Vec::new(), Some(about(1, 1))).state, EngineImageState::Deploying);
    }

    #[test]
    fn says_when_its_binary_is_not_heard_and_what_helps() {
        let pod = || "pod-1".to_owned();
        let unread = || Err(Unheard::Unread { pod: pod(), why: "the node is away".into() });
        let nonsense = || Err(Unheard::Nonsense { pod: pod(), said: "hello".into() });
        let silent = || Err(Unheard::Silent { pod: pod(), since: at(0) });
        let well = || vec![("node-1".into(), Ok(()))];
        let comes = || vec![("node-1".into(), Err(Lack::Coming("it is being pulled")))];
        let fails = || vec![("node-1".into(), Err(Lack::Failed("no room".into())))];
        use EngineImageState::{Deployed, Deploying, Error};
        type Nodes = Vec<(NodeName, Result<(), Lack>)>;
        #[rustfmt::skip]
        let cases: [(Nodes, &str, Hearing, EngineImageState, &str, &str); 9] = [
            (well(),  "1.0", Ok(None),   Deployed,  "",          ""),
            (well(),  "",    Ok(None),   Deploying, "daemonSet", ""),
            (comes(), "",    Ok(None),   Deploying, "daemonSet", "a:1 on node-1: it is being pulled"),
            (well(),  "",    unread(),   Deploying, "Unheard",   "a:1: what its binary has said in the pod pod-1 cannot be read: the node is away. What helps: wait;"),
            (well(),  "",    nonsense(), Error,     "Unheard",   "a:1: its binary did not say in the pod pod-1 which versions it has, but \"hello\". What helps: make"),
            (comes(), "",    silent(),   Error,     "Unheard",   "a:1: its binary was started in the pod pod-1 at"),
            (fails(), "",    silent(),   Error,     "Unheard",   "a:1: its binary was started in the pod pod-1 at"),
            (fails(), "",    unread(),   Error,     "PullFails", "a:1 on node-1: no room"),
            (fails(), "1.0", Ok(None),   Error,     "PullFails", "a:1 on node-1: no room"),
        ];
        for (nodes, version, hearing, state, reason, message) in cases {
            let deployment = Deployment(nodes.into_iter().collect());
            let mut status = EngineImageStatus { version: version.into(), ..EngineImageStatus::default() };
            tell(&mut status, &deployment, &hearing);
            let ready = ready(&"a:1".into(), &status, &deployment, &hearing);
            assert_eq!((status.state, ready.reason.as_str()), (state, reason), "{hearing:?}");
            assert_eq!(ready.status == ConditionStatus::True, reason.is_empty(), "{hearing:?}");
            assert!(ready.message.as_str().starts_with(message), "{}", ready.message);
        }
    }

    #[test]
    fn is_judged_by_what_the_controllers_speak_now_whatever_others_said_of_it() {
        #[rustfmt::skip]
        let cases = [
            // what,                     version, oldest, newest, it was,  it is
            ("older controllers said no",  "1.0",   1,      2,      true,    false),
            ("older controllers said yes", "1.0",   2,      3,      false,   true),
            ("none of them has changed",   "1.0",   1,      1,      false,   false),
            ("its binary was not heard",   "",      0,      0,      false,   false),
        ];
        for (case, version, oldest, newest, was, is) in cases {
            let mut status = EngineImageStatus {
                version: version.into(),
                cli_api_min_version: oldest,
                cli_api_version: newest,
                incompatible: was,
                ..EngineImageStatus::default()
            };
            tell(&mut status, &Deployment(Default::default()), &Ok(None));
            assert_eq!(status.incompatible, is, "{case}");
        }
    }

    #[test]
    fn is_named_as_upstream_names_it() {
        // printf 'longhornio/longhorn-engine:v1.7.0' | sha512sum | head -c 8
        assert_eq!(name(&"longhornio/longhorn-engine:v1.7.0".into()), "ei-04c05bf8");
        assert_eq!(name(&" a:b ".into()), name(&"a:b".into()));
    }
}
