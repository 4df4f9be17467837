//! Decides which images nodes pull before they are needed, and which nodes may begin (seed 001).
//!
//! The DaemonSet replaces no pod by itself: when images change, pods are deleted here, in the same waves in which nodes are let in.
//!
//! The invariant: never more nodes than allowed are let in, or get another pod, while they still pull. What cannot go on keeps no
//! other from its turn.

use std::collections::{BTreeMap, BTreeSet};

use midflight_api::longhorn::ImageState;
use midflight_api::{ImageRef, NodeName};
use sha2::{Digest, Sha512};

use super::deployment::{Deployment, Lack, Stage};

/// Everything `decide` may look at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observed {
    /// Whether images are pulled before they are needed at all.
    pub enabled: bool,
    /// How many nodes may pull at once; 0 is all.
    pub at_once: usize,
    /// Images that managers run from, by the settings.
    pub defaults: BTreeSet<ImageRef>,
    /// The Image objects that are not on their way out.
    pub images: Vec<Image>,
    /// What the DaemonSet pulls, if it is there.
    pub pulled: Option<BTreeSet<ImageRef>>,
    pub nodes: Vec<Node>,
}

/// An Image object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    pub name: String,
    pub image: ImageRef,
    /// Made because a setting named it; others stay until somebody deletes them.
    pub ours: bool,
    /// Nodes of which it was last said that they have it.
    pub on: BTreeSet<NodeName>,
}

/// A node that pods of workloads run on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub name: NodeName,
    /// One that is away neither pulls nor is waited for.
    pub ready: bool,
    /// It has the label that brings the DaemonSet's pod to it.
    pub admitted: bool,
    /// What its pod says of each image that it was made for: the digest that it runs from.
    pub holds: BTreeMap<ImageRef, Result<String, Lack>>,
    /// The digests that the node says it has, if it lists all of them.
    pub listed: Option<BTreeSet<String>>,
    /// Its pod has been ready for so long that the node lists what it runs from.
    pub settled: bool,
    /// Its pod, if there is one that stays.
    pub pod: Option<String>,
}

/// What to do. Each is safe to repeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    MakeImage {
        image: ImageRef,
    },
    DeleteImage {
        name: String,
    },
    /// Make the DaemonSet, or let it pull these.
    Pull {
        images: BTreeSet<ImageRef>,
    },
    DeleteSet,
    /// Let a node pull.
    Admit {
        node: NodeName,
    },
    Dismiss {
        node: NodeName,
    },
    /// The pod was made for other images, or its node has lost one that it was to hold: another pod pulls what is wanted.
    Renew {
        pod: String,
    },
}

/// What an Image object is to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    pub state: ImageState,
    pub deployment: Deployment,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// By the name of the object.
    pub reports: BTreeMap<String, Report>,
    pub actions: Vec<Action>,
}

pub fn decide(seen: &Observed) -> Plan {
    let mut actions = objects(seen);
    if !seen.enabled {
        actions.extend(seen.pulled.is_some().then_some(Action::DeleteSet));
        let admitted = seen.nodes.iter().filter(|node| node.admitted);
        actions.extend(admitted.map(|node| Action::Dismiss { node: node.name.clone() }));
        let unknown = Report { state: ImageState::Unknown, deployment: Deployment::default() };
        let reports = seen.images.iter().map(|image| (image.name.clone(), unknown.clone())).collect();
        return Plan { reports, actions };
    }
    let wanted: BTreeSet<ImageRef> = seen.images.iter().map(|image| image.image.clone()).collect();
    // While an image is exchanged its objects are too: the set follows once they are as they should be.
    if actions.is_empty() && !wanted.is_empty() && seen.pulled.as_ref() != Some(&wanted) {
        actions.push(Action::Pull { images: wanted.clone() });
    }
    let reports: BTreeMap<String, Report> =
        seen.images.iter().map(|image| (image.name.clone(), report(seen, image))).collect();
    actions.extend(wave(seen, &wanted));
    Plan { reports, actions }
}

/// Images that the settings name have an object; those that they named before have none.
fn objects(seen: &Observed) -> Vec<Action> {
    let is_there = |image: &&ImageRef| !seen.images.iter().any(|there| there.image == **image);
    let missing =
        seen.defaults.iter().filter(is_there).map(|image| Action::MakeImage { image: image.clone() });
    let old = seen.images.iter().filter(|image| image.ours && !seen.defaults.contains(&image.image));
    missing.chain(old.map(|image| Action::DeleteImage { name: image.name.clone() })).collect()
}

/// Nodes that may begin to pull, in the order of their names: those that are let in, and those that get another pod.
fn wave(seen: &Observed, wanted: &BTreeSet<ImageRef>) -> Vec<Action> {
    let limit = if seen.at_once == 0 { usize::MAX } else { seen.at_once };
    let mut free = limit.saturating_sub(seen.nodes.iter().filter(|node| pulls(node, wanted)).count());
    let begins = |node: &Node| {
        if !node.admitted {
            return Some(Action::Admit { node: node.name.clone() });
        }
        let pod = node.pod.as_ref()?;
        let is_due = is_outdated(seen, wanted, node) || has_lost(seen, node);
        is_due.then(|| Action::Renew { pod: pod.clone() })
    };
    let mut nodes: Vec<&Node> = seen.nodes.iter().filter(|node| node.ready).collect();
    nodes.sort_by_key(|node| &node.name);
    let mut actions = Vec::new();
    for node in nodes {
        let Some(action) = begins(node) else { continue };
        // One that pulls what is not wanted any more keeps its place.
        if pulls(node, wanted) {
            actions.push(action);
        } else if free > 0 {
            free -= 1;
            actions.push(action);
        }
    }
    actions
}

/// Whether a node pulls, or is about to. One that fails waits longer and longer, and does not count.
fn pulls(node: &Node, wanted: &BTreeSet<ImageRef>) -> bool {
    let comes = node.holds.values().any(|held| matches!(held, Err(Lack::Coming(_))));
    let is_about_to = node.pod.is_none() && !wanted.is_empty();
    node.ready && node.admitted && (comes || is_about_to)
}

/// Whether the pod of a node was made for other images. Another one would be no better before the set has the right ones.
fn is_outdated(seen: &Observed, wanted: &BTreeSet<ImageRef>, node: &Node) -> bool {
    seen.pulled.as_ref() == Some(wanted) && !node.holds.keys().eq(wanted)
}

fn has_lost(seen: &Observed, node: &Node) -> bool {
    seen.images.iter().any(|image| presence(node, image) == Presence::Lost)
}

fn report(seen: &Observed, image: &Image) -> Report {
    let agreed = agreed(seen, &image.image);
    let there = |node: &Node| -> Result<(), Lack> {
        let waits = match &node.pod {
            None if node.admitted => Lack::Coming("it is being pulled"),
            Some(_) | None => Lack::Coming("it waits for its turn to pull"),
        };
        let held = node.holds.get(&image.image).cloned().unwrap_or(Err(waits));
        let digest = &held.map_err(|lack| match lack {
            Lack::Coming(_) if !node.ready => Lack::Coming("the node is not ready"),
            Lack::Coming(_) | Lack::Failed(_) => lack,
        })?;
        match presence(node, image) {
            Presence::Lost => return Err(Lack::Coming("the node has lost it")),
            Presence::Unlisted => return Err(Lack::Coming("the node does not list it yet")),
            Presence::Fine => {}
        }
        match agreed.as_ref().filter(|agreed| *agreed != digest) {
            Some(agreed) => Err(Lack::Failed(format!("it has {digest}, most nodes have {agreed}"))),
            None => Ok(()),
        }
    };
    let deployment = Deployment(seen.nodes.iter().map(|node| (node.name.clone(), there(node))).collect());
    let state = match deployment.stage() {
        Stage::Coming => ImageState::Deploying,
        Stage::Failing => ImageState::Error,
        Stage::Whole => ImageState::Deployed,
    };
    Report { state, deployment }
}

/// The digest that most nodes have.
fn agreed(seen: &Observed, image: &ImageRef) -> Option<String> {
    let mut counts: BTreeMap<&String, usize> = BTreeMap::new();
    for node in &seen.nodes {
        if let Some(Ok(digest)) = node.holds.get(image) {
            *counts.entry(digest).or_default() += 1;
        }
    }
    let most = counts.into_iter().max_by_key(|(digest, count)| (*count, std::cmp::Reverse(*digest)));
    most.map(|(digest, _)| digest.clone())
}

/// What the node's own list says of an image that its pod runs from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    /// It is listed, or nothing can be said.
    Fine,
    /// It is not listed, and may just have come.
    Unlisted,
    /// It is not listed any more.
    Lost,
}

fn presence(node: &Node, image: &Image) -> Presence {
    let (Some(Ok(digest)), Some(listed)) = (node.holds.get(&image.image), &node.listed) else {
        return Presence::Fine;
    };
    match listed.contains(digest) {
        true => Presence::Fine,
        false if image.on.contains(&node.name) || node.settled => Presence::Lost,
        false => Presence::Unlisted,
    }
}

/// The name of the object of an image.
pub fn name(image: &ImageRef) -> String {
    let digest = Sha512::digest(image.as_str().trim().as_bytes());
    let hex: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("image-{hex}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn image(name: &str, ours: bool) -> Image {
        Image { name: format!("image-{name}"), image: name.into(), ours, on: BTreeSet::new() }
    }

    fn node(name: &str, admitted: bool, held: Option<Result<&str, Lack>>) -> Node {
        let pod = held.as_ref().map(|_| format!("pod-{name}"));
        let holds = held.into_iter().map(|held| ("a".into(), held.map(str::to_owned))).collect();
        Node { name: name.into(), ready: true, admitted, holds, listed: None, settled: false, pod }
    }

    /// One whose pod was made for the image before.
    fn outdated(name: &str) -> Node {
        Node { holds: [("old".into(), Ok("sha256:0".to_owned()))].into(), ..node(name, true, HERE) }
    }

    /// One that has not even got the image before.
    fn still_pulls(name: &str) -> Node {
        Node { holds: [("old".into(), Err(Lack::Coming("it is being pulled")))].into(), ..outdated(name) }
    }

    fn away(node: Node) -> Node {
        Node { ready: false, ..node }
    }

    fn seen(nodes: Vec<Node>) -> Observed {
        Observed {
            enabled: true,
            at_once: 0,
            defaults: ["a".into()].into(),
            images: vec![image("a", true)],
            pulled: Some(["a".into()].into()),
            nodes,
        }
    }

    fn admit(node: &str) -> Action {
        Action::Admit { node: node.into() }
    }

    fn renew(node: &str) -> Action {
        Action::Renew { pod: format!("pod-{node}") }
    }

    const COMES: Option<Result<&str, Lack>> = Some(Err(Lack::Coming("it is being pulled")));
    const HERE: Option<Result<&str, Lack>> = Some(Ok("sha256:1"));

    #[test]
    fn objects_follow_the_settings_and_the_set_follows_the_objects() {
        let pull =
            |images: &[&str]| Action::Pull { images: images.iter().map(|image| (*image).into()).collect() };
        let make = || Action::MakeImage { image: "a".into() };
        let delete = || Action::DeleteImage { name: "image-old".into() };
        let (new, old, own) = (image("a", true), image("old", true), image("own", false));
        #[rustfmt::skip]
        let cases = [
            ("nothing is there",     vec![],                          None,              vec![make()]),
            ("the object is there",  vec![new.clone()],               None,              vec![pull(&["a"])]),
            ("all is there",         vec![new.clone()],               Some(vec!["a"]),   vec![]),
            ("a setting changed",    vec![old.clone()],               Some(vec!["old"]), vec![make(), delete()]),
            ("half exchanged",       vec![new.clone(), old],          Some(vec!["old"]), vec![delete()]),
            ("exchanged",            vec![new.clone()],               Some(vec!["old"]), vec![pull(&["a"])]),
            ("somebody's own stays", vec![new, own],                  Some(vec!["a"]),   vec![pull(&["a", "own"])]),
        ];
        for (case, images, pulled, expected) in cases {
            let pulled = pulled.map(|all: Vec<&str>| all.into_iter().map(ImageRef::from).collect());
            let seen = Observed { images, pulled, ..seen(vec![]) };
            assert_eq!(decide(&seen).actions, expected, "{case}");
        }
    }

    #[test]
    fn switched_off_nothing_stays_and_nothing_is_known() {
        let seen = Observed { enabled: false, ..seen(vec![node("n", true, HERE)]) };
        let plan = decide(&seen);
        assert_eq!(plan.actions, [Action::DeleteSet, Action::Dismiss { node: "n".into() }]);
        assert_eq!(plan.reports["image-a"].state, ImageState::Unknown);
    }

    #[test]
    fn says_which_nodes_have_it_and_what_is_in_the_way() {
        let failed = || Some(Err(Lack::Failed("ErrImagePull: no".into())));
        let unlisted = Node { listed: Some(BTreeSet::new()), ..node("m", true, HERE) };
        let lost = Node { settled: true, ..unlisted.clone() };
        #[rustfmt::skip]
        let cases = [
            ("no node",   vec![],                                                           ImageState::Deploying, ""),
            ("comes",     vec![node("m", true, COMES), node("n", true, HERE)],              ImageState::Deploying, "m: it is being pulled"),
            ("has begun", vec![node("m", true, None)],                                      ImageState::Deploying, "m: it is being pulled"),
            ("waits",     vec![node("m", false, None), node("n", true, HERE)],              ImageState::Deploying, "m: it waits for its turn to pull"),
            ("outdated",  vec![outdated("m"), node("n", true, HERE)],                       ImageState::Deploying, "m: it waits for its turn to pull"),
            ("is away",   vec![away(node("m", true, COMES)), node("n", true, HERE)],        ImageState::Deploying, "m: the node is not ready"),
            ("had it",    vec![away(node("m", true, HERE)), node("n", true, HERE)],         ImageState::Deployed,  ""),
            ("is there",  vec![node("m", true, HERE), node("n", true, HERE)],               ImageState::Deployed,  ""),
            ("fails",     vec![node("m", true, failed()), node("n", true, HERE)],           ImageState::Error,     "m: ErrImagePull: no"),
            ("unlisted",  vec![unlisted.clone(), node("n", true, HERE)],                    ImageState::Deploying, "m: the node does not list it yet"),
            ("lost",      vec![lost.clone(), node("n", true, HERE)],                        ImageState::Deploying, "m: the node has lost it"),
            ("differs",   vec![node("m", true, Some(Ok("sha256:2"))), node("n", true, HERE), node("o", true, HERE)],
                                                                                            ImageState::Error,     "m: it has sha256:2, most nodes have sha256:1"),
        ];
        for (case, nodes, state, complaint) in cases {
            let report = decide(&seen(nodes)).reports["image-a"].clone();
            let complaint = if complaint.is_empty() { String::new() } else { format!("a on {complaint}") };
            assert_eq!(
                (report.state, report.deployment.complaint(&"a".into())),
                (state, complaint),
                "{case}"
            );
        }
        assert_eq!(decide(&seen(vec![lost])).actions, [renew("m")]);
        let mut had = seen(vec![unlisted]);
        assert_eq!(decide(&had).actions, []);
        had.images[0].on.insert("m".into());
        assert_eq!(decide(&had).actions, [renew("m")]);
    }

    #[test]
    fn nodes_are_let_in_wave_by_wave() {
        let fails = || Some(Err(Lack::Failed("no".into())));
        #[rustfmt::skip]
        let cases = [
            ("all at once",        0, vec![node("b", false, None), node("a", false, None)],                     vec![admit("a"), admit("b")]),
            ("one at a time",      1, vec![node("b", false, None), node("a", false, None)],                     vec![admit("a")]),
            ("one pulls",          1, vec![node("a", true, COMES), node("b", false, None)],                     vec![]),
            ("one has begun",      1, vec![node("a", true, None), node("b", false, None)],                      vec![]),
            ("one has it",         1, vec![node("a", true, HERE), node("b", false, None)],                      vec![admit("b")]),
            ("one fails",          1, vec![node("a", true, fails()), node("b", false, None)],                   vec![admit("b")]),
            ("two of three",       2, vec![node("a", true, COMES), node("b", false, None), node("c", false, None)], vec![admit("b")]),
            ("one is away",        1, vec![away(node("a", true, None)), node("b", false, None)],                vec![admit("b")]),
            ("one away had begun", 1, vec![away(node("a", true, COMES)), node("b", false, None)],               vec![admit("b")]),
            ("one away has to wait", 1, vec![away(node("a", false, None)), node("b", false, None)],             vec![admit("b")]),
            ("other images",       1, vec![outdated("a"), outdated("b")],                                       vec![renew("a")]),
            ("two at once",        2, vec![outdated("a"), outdated("b"), outdated("c")],                        vec![renew("a"), renew("b")]),
            ("one gets its pod",   1, vec![node("a", true, None), outdated("b")],                               vec![]),
            ("one pulls them",     1, vec![node("a", true, COMES), outdated("b")],                              vec![]),
            ("one has them",       1, vec![node("a", true, HERE), outdated("b")],                               vec![renew("b")]),
            ("one fails to",       1, vec![node("a", true, fails()), outdated("b")],                            vec![renew("b")]),
            ("one lacks its pod and is away", 1, vec![away(node("a", true, None)), outdated("b")],              vec![renew("b")]),
            ("one with old images is away",   1, vec![away(outdated("a")), outdated("b")],                      vec![renew("b")]),
            ("one pulls old images",          1, vec![still_pulls("a"), outdated("b")],                         vec![renew("a")]),
            ("a new node and an old pod",     1, vec![outdated("a"), node("b", false, None)],                   vec![renew("a")]),
        ];
        for (case, at_once, nodes, expected) in cases {
            assert_eq!(decide(&Observed { at_once, ..seen(nodes) }).actions, expected, "{case}");
        }
        let behind = Observed { pulled: Some(["old".into()].into()), ..seen(vec![outdated("a")]) };
        let pull = Action::Pull { images: ["a".into()].into() };
        assert_eq!(decide(&behind).actions, [pull], "another pod comes once the set has the images");
    }

    proptest! {
        #[test]
        fn never_more_nodes_pull_than_may(states in prop::collection::vec(0..7u8, 0..12), at_once in 1..5usize) {
            let of = |(number, state): (usize, &u8)| {
                let name = format!("n-{number:02}");
                match state {
                    0 => node(&name, false, None),
                    1 => node(&name, true, COMES),
                    2 => node(&name, true, None),
                    3 => outdated(&name),
                    4 => away(node(&name, true, COMES)),
                    5 => still_pulls(&name),
                    _ => node(&name, true, HERE),
                }
            };
            let nodes: Vec<Node> = states.iter().enumerate().map(of).collect();
            let before = states.iter().filter(|state| matches!(state, 1 | 2)).count();
            let keep_their_place = states.iter().filter(|state| **state == 5).count();
            let plan = decide(&Observed { at_once, ..seen(nodes) });
            let begin = |action: &&Action| matches!(action, Action::Admit { .. } | Action::Renew { .. });
            let begun = plan.actions.iter().filter(begin).count();
            prop_assert!(begun >= keep_their_place);
            prop_assert!(begun == keep_their_place || before + begun <= at_once);
        }
    }
}
