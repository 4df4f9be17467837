//! Act: the control plane comes up in an empty folder.

use std::time::Instant;

use anyhow::Context;
use futures::future::try_join_all;
use k8s_openapi::{
    api::core::v1::Node, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{Api, api::ListParams};

use super::{NODES, program::Outcome, stage::Stage};
use crate::{memory::resident_bytes, process::Role};

pub(super) async fn play(stage: &Stage<'_>) -> anyhow::Result<Outcome> {
    let began = Instant::now();
    let control = stage.cluster.starter.start(&Role::Control).await?;
    let ready = began.elapsed();
    try_join_all((1..=NODES).map(async |node| stage.cluster.starter.start(&Role::Node(node)).await)).await?;
    let nodes_known = began.elapsed();

    let client = stage.cluster.client().await?;
    let all = ListParams::default();
    let kinds =
        Api::<CustomResourceDefinition>::all(client.clone()).list(&all).await.context("list kinds")?;
    let nodes = Api::<Node>::all(client).list(&all).await.context("list nodes")?;
    let ready_nodes = nodes.iter().filter(|node| is_ready(node)).count();
    anyhow::ensure!(ready_nodes == usize::from(NODES), "{ready_nodes} of {NODES} nodes are ready");
    Ok(Outcome::Shown(vec![
        format!("the API serves after {} ms, with {} kinds installed", ready.as_millis(), kinds.items.len()),
        format!("{ready_nodes} nodes are Ready after {} ms", nodes_known.as_millis()),
        format!("the control process has {} MiB resident", resident_bytes(control.pid)? >> 20),
    ]))
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
