//! What an upgrade says that somebody has paused or given up.
//!
//! The invariant: it says what becomes of each node that is under way, and what can be done next.

use midflight_api::longhorn::NodeUpgradeState;
use midflight_api::{ImageRef, NodeName};

use super::facts::Nodes;
use super::run::{Child, Observed};
use super::words::some_of;

/// Name that an upgrade has unless somebody chose another.
pub const USUAL_NAME: &str = "upgrade";

/// What the words of an upgrade begin with that goes back because it was deleted.
pub const ABORTED: &str = "aborted";

/// What an upgrade says of which no further node begins.
pub(super) fn paused(name: &str, under_way: &[NodeName]) -> String {
    let nodes = match under_way {
        [] => "no node is under way, and none begins".to_owned(),
        [one] => format!("{one} goes on to its end, and no further node begins"),
        many => format!("{} go on to their end, and no further node begins", some_of(many, ", ")),
    };
    let name = if name == USUAL_NAME { String::new() } else { format!(" --name {name}") };
    format!("paused: {nodes}; `midflight upgrade nodes{name} --resume` goes on")
}

/// What an upgrade says that is being deleted, with these upgrades of nodes left.
pub(super) fn aborted(seen: &Observed, left: &[&Child]) -> String {
    let going: Vec<&NodeName> = left
        .iter()
        .filter(|child| child.state != NodeUpgradeState::Completed)
        .map(|child| &child.node)
        .collect();
    let back = match going.as_slice() {
        [] => "every node is in service".to_owned(),
        [one] => format!(
            "{} goes back into service: its engines come home, its replicas are rebuilt, and then this upgrade is gone",
            with_image(seen, one)
        ),
        many => format!(
            "{} go back into service: their engines come home, their replicas are rebuilt, and then this upgrade is gone",
            some_of(many.iter().map(|node| with_image(seen, node)), ", ")
        ),
    };
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
