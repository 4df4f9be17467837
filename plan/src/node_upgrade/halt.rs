//! What an upgrade says that somebody has paused or given up.
//!
//! The invariant: it says what becomes of each node that is under way, who has to do something for that, and what can be done next.

use midflight_api::longhorn::NodeUpgradeState;
use midflight_api::{ImageRef, NodeName};

use super::attempts::Child;
use super::facts::Nodes;
use super::run::Observed;
use super::words::some_of;

/// Name that an upgrade has unless somebody chose another.
pub const USUAL_NAME: &str = "upgrade";

/// What the words of an upgrade begin with that goes back because it was deleted.
pub const ABORTED: &str = "aborted";

/// What an upgrade says of which no further node begins.
pub(super) fn paused(seen: &Observed, under_way: &[NodeName]) -> String {
    let (lost, well): (Vec<&NodeName>, Vec<&NodeName>) =
        under_way.iter().partition(|node| !is_ready(&seen.nodes, node));
    let goes_on = match well.as_slice() {
        [] if lost.is_empty() => Some("no node is under way, and none begins".to_owned()),
        [] => None,
        [one] => Some(format!("{one} goes on to its end")),
        many => Some(format!("{} go on to their end", some_of(many, ", "))),
    };
    let waits = (!lost.is_empty()).then(|| {
        format!("{}, else what began there goes back when its step is out of time", bring_back(&lost))
    });
    let none = (!under_way.is_empty()).then(|| "no further node begins".to_owned());
    let nodes = goes_on.into_iter().chain(waits).chain(none).collect::<Vec<_>>().join("; ");
    let name = if seen.name == USUAL_NAME { String::new() } else { format!(" --name {}", seen.name) };
    format!("paused: {nodes}; `midflight upgrade nodes{name} --resume` goes on")
}

/// What an upgrade says that begins anew with another image once these nodes are back.
pub(super) fn turned(seen: &Observed, under_way: &[&NodeName]) -> String {
    let lost: Vec<&NodeName> =
        under_way.iter().copied().filter(|node| !is_ready(&seen.nodes, node)).collect();
    let waits = if lost.is_empty() { String::new() } else { format!("; {}", bring_back(&lost)) };
    format!("the default image became {}; nodes that are under way go back{waits}", seen.default_image)
}

fn is_ready(nodes: &Nodes, node: &NodeName) -> bool {
    nodes.get(node).is_some_and(|node| node.ready)
}

/// What somebody has to do about nodes that are lost: nothing here can.
fn bring_back(lost: &[&NodeName]) -> String {
    match lost {
        [one] => format!("{one} is not ready: bring it back"),
        many => format!("{} are not ready: bring them back", some_of(many, ", ")),
    }
}

/// How the nodes are when no upgrade has anything to do with them any more.
pub fn in_service(nodes: &Nodes) -> String {
    let lost: Vec<&NodeName> = nodes.iter().filter(|(_, node)| !node.ready).map(|(name, _)| name).collect();
    match lost.as_slice() {
        [] => "every node is in service".to_owned(),
        lost => format!("nothing is left to go back; {}", bring_back(lost)),
    }
}

/// What an upgrade says that is being deleted, with these upgrades of nodes left.
pub(super) fn aborted(seen: &Observed, left: &[&Child]) -> String {
    let going: Vec<&NodeName> = left
        .iter()
        .filter(|child| child.state != NodeUpgradeState::Completed)
        .map(|child| &child.node)
        .collect();
    let (lost, well): (Vec<&NodeName>, Vec<&NodeName>) =
        going.iter().partition(|node| !is_ready(&seen.nodes, node));
    let back = match well.as_slice() {
        [] if lost.is_empty() => Some(in_service(&seen.nodes)),
        [] => None,
        [one] => Some(format!(
            "{} goes back into service: its engines come home, its replicas are rebuilt, and then this upgrade is gone",
            with_image(seen, one)
        )),
        many => Some(format!(
            "{} go back into service: their engines come home, their replicas are rebuilt, and then this upgrade is gone",
            some_of(many.iter().map(|node| with_image(seen, node)), ", ")
        )),
    };
    let waits = (!lost.is_empty()).then(|| {
        format!("{}, or detach what is attached there; this upgrade waits for that", bring_back(&lost))
    });
    let back = back.into_iter().chain(waits).collect::<Vec<_>>().join("; ");
    let image = &seen.status.instance_manager_image;
    let is_default = !image.is_empty() && seen.default_image == *image;
    let next = still_default(image, &seen.nodes).filter(|_| is_default).map(|next| format!("; {next}"));
    format!("{ABORTED}: {back}{}{}", upgraded(seen, &going), next.unwrap_or_default())
}

/// A node and the instance manager that it keeps.
fn with_image(seen: &Observed, node: &NodeName) -> String {
    match seen.nodes.get(node).and_then(|node| node.serving()) {
        Some(manager) => format!("{node} (keeps {})", manager.image),
        None => format!("{node} (gets the instance manager of before back)"),
    }
}

/// The nodes that have got the image, and are not brought back.
fn upgraded(seen: &Observed, going: &[&NodeName]) -> String {
    let image = &seen.status.instance_manager_image;
    let is_there = |node: &&NodeName| {
        let manager = seen.nodes.get(*node).and_then(|node| node.serving());
        !going.contains(node) && manager.is_some_and(|manager| manager.image == *image)
    };
    let there: Vec<&NodeName> = seen.status.upgrade_nodes.keys().filter(is_there).collect();
    match there.as_slice() {
        [] => String::new(),
        [one] => format!("; {one} runs {image} and stays so"),
        many => format!("; {} run {image} and stay so", some_of(many, ", ")),
    }
}

/// What an upgrade leaves that was given up, and what can be done next: its image is the default, and the next instance manager is of it.
pub fn still_default(image: &ImageRef, nodes: &Nodes) -> Option<String> {
    let serving = nodes.values().filter_map(|node| node.serving()).map(|manager| &manager.image);
    let before = serving.filter(|serving| *serving != image).min()?;
    Some(format!(
        "default-instance-manager-image is still {image}, which instance managers that are started anew get: \
         `midflight upgrade nodes --to {before}` brings it and every node back, `midflight upgrade nodes` begins again"
    ))
}
