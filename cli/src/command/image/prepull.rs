//! `midflight image prepull`: which nodes have the images that they will need.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use k8s_openapi::api::core::v1::Node;
use kube::{
    ResourceExt,
    api::{Api, ListParams},
};
use midflight_api::{
    condition::READY,
    images_listed,
    longhorn::{Image, ImageState, NAMESPACE},
};
use serde::Serialize;

use crate::{
    failure::{Exit, Failure},
    output::{Answer, Paint, columns},
    session::Session,
    target,
};

/// How much of a digest people are shown.
const SHOWN: usize = 12;

/// What is known of all images.
#[derive(Debug, Serialize)]
struct Told {
    images: Vec<Row>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    image: String,
    state: String,
    /// What is in the way, node by node; empty if nothing is.
    message: String,
    /// By node: the digest of what it has, or nothing.
    nodes: BTreeMap<String, Option<String>>,
}

impl Row {
    fn of(object: &Image, nodes: &[Node]) -> Row {
        let status = object.status.clone().unwrap_or_default();
        let message = status.conditions.get(READY).map(|ready| ready.message.to_string());
        let image = object.spec.image().to_string();
        let held = |(node, there): (&midflight_api::NodeName, &bool)| {
            let known = nodes.iter().find(|known| known.name_any() == node.as_str());
            let digest = known.filter(|_| *there).map(|node| digest(node, &image));
            (node.to_string(), digest)
        };
        Row {
            state: status.state.to_string(),
            message: message.unwrap_or_default(),
            nodes: status.node_deployment_map.iter().map(held).collect(),
            image,
        }
    }
}

/// The digest of an image that a node lists, if it lists it.
fn digest(node: &Node, image: &str) -> String {
    let mut named = images_listed(node).filter(|names| names.iter().any(|name| name == image));
    let digest =
        named.find_map(|names| names.iter().find_map(|name| Some(name.rsplit_once('@')?.1.to_owned())));
    digest.unwrap_or_default()
}

impl Answer for Told {
    fn to_table(&self, _: Paint) -> String {
        let nodes: BTreeSet<&String> = self.images.iter().flat_map(|row| row.nodes.keys()).collect();
        let header = ["IMAGE", "STATE"].map(str::to_owned).into_iter();
        let mut rows = vec![header.chain(nodes.iter().map(|node| (*node).clone())).collect()];
        for row in &self.images {
            let cell = |node: &&String| match row.nodes.get(*node) {
                // A node may have it and not list it by this name.
                Some(Some(digest)) if digest.is_empty() => "yes".to_owned(),
                Some(Some(digest)) => digest.trim_start_matches("sha256:").chars().take(SHOWN).collect(),
                Some(None) | None => "-".to_owned(),
            };
            let state = if row.state.is_empty() { "-".to_owned() } else { row.state.clone() };
            rows.push([row.image.clone(), state].into_iter().chain(nodes.iter().map(cell)).collect());
        }
        let said: BTreeSet<&str> = self.images.iter().map(|row| row.message.as_str()).collect();
        let said: String =
            said.iter().filter(|text| !text.is_empty()).map(|text| format!("{text}\n")).collect();
        columns(&rows) + &said
    }
}

pub(super) async fn run(session: &Session) -> anyhow::Result<()> {
    let client = target::client(session).await?;
    let images: Api<Image> = Api::namespaced(client.clone(), NAMESPACE);
    let nodes: Api<Node> = Api::all(client);
    let all = ListParams::default();
    let images = images.list(&all).await.map_err(target::refusal).context("list images")?;
    let nodes = nodes.list(&all).await.map_err(target::refusal).context("list nodes")?;
    let told = Told { images: images.iter().map(|image| Row::of(image, &nodes.items)).collect() };
    session.answer(&told)?;
    let failing = images
        .iter()
        .filter(|image| image.status.as_ref().is_some_and(|status| status.state == ImageState::Error));
    match failing.count() {
        0 => Ok(()),
        count => Err(Failure::with(
            Exit::Blocked,
            format!("{count} images cannot be pulled on every node"),
            "mend what is said of each node; pulling goes on by itself",
        )),
    }
}
