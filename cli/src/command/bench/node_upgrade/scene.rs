//! A cluster whose volumes are attached and written to, and whose nodes can be upgraded.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use futures::future::try_join_all;
use kube::{
    Client,
    api::{Api, ListParams, Patch, PatchParams},
};
use midflight_agent::image::Layout;
use midflight_api::longhorn::{DataEngine, DataEngineUpgradeManagerSpec, NAMESPACE, Node, Robustness};
use midflight_block::check::paced::{Log, Paced};
use serde_json::json;
use tokio::time::sleep;

use super::{
    NodeUpgradeBench,
    absences::{Absence, Absences},
    states::{History, States},
};
use crate::{
    cluster::{Temporary, Volumes},
    command::{
        bench::variants::Variants,
        upgrade::{
            engines::set,
            nodes::{
                IMAGE,
                drive::{self, Over},
            },
        },
        version,
    },
    process::Role,
};

/// How long all nodes together may take.
const PATIENCE: Duration = Duration::from_secs(3600);
/// How long the nodes may take to be known.
const KNOWN_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(50);
const REPLICAS: usize = 3;

pub(super) struct Scene<'c> {
    cluster: &'c Temporary,
    client: Client,
    next: PathBuf,
    clients: BTreeMap<String, Paced>,
}

/// An upgrade that went well.
pub(super) struct Upgraded {
    /// From when to when.
    pub(super) span: (Instant, Instant),
    pub(super) over: Over,
    pub(super) absences: Vec<Absence>,
    pub(super) states: History,
}

impl<'c> Scene<'c> {
    /// Volumes of a group have replicas and engines on the nodes of that group only.
    pub(super) async fn build(
        cluster: &'c Temporary,
        wanted: &NodeUpgradeBench,
        groups: &[Vec<u8>],
    ) -> anyhow::Result<Scene<'c>> {
        cluster.starter.start(&Role::Control).await?;
        let all = groups.concat();
        try_join_all(all.iter().map(async |node| cluster.starter.start(&Role::Node(*node)).await)).await?;
        let client = cluster.client().await?;
        until_known(&client, all.len()).await?;
        let volumes = Volumes::of(cluster).await?;
        let mut names = Vec::new();
        let share = wanted.volumes.div_ceil(u32::try_from(groups.len()).unwrap_or(1));
        for group in groups {
            open_only(&client, &all, group).await?;
            let begun = names.len();
            for (number, node) in (0..share).zip(group.iter().cycle()) {
                let name = format!("vol-{node}-{number}");
                let spec = json!({
                    "size": (wanted.size_mib << 20).to_string(), "numberOfReplicas": REPLICAS.min(group.len()),
                    "dataEngine": "v2", "frontend": "nbd", "nodeID": node_name(*node),
                });
                volumes.create(&name, spec).await?;
                names.push(name);
            }
            for name in &names[begun..] {
                volumes.until_it_is(name, Robustness::Healthy).await?;
            }
        }
        open_only(&client, &all, &all).await?;
        let mut clients = BTreeMap::new();
        for (seed, name) in (1..).zip(names) {
            let socket = volumes.socket(&name).await?;
            let client = Paced::start(&socket, &name, wanted.rate, seed);
            clients.insert(name.clone(), client.with_context(|| format!("connect to {name}"))?);
        }
        let next = wanted.next.clone().unwrap_or_else(|| cluster.starter.program.clone());
        Ok(Scene { cluster, client, next, clients })
    }

    /// Upgrades every node to an image that none has yet.
    pub(super) async fn upgrade(&self, name: &str, parallel: i32) -> anyhow::Result<Upgraded> {
        let image = self.publish(format!("instance-manager:{name}")).await?;
        set(&self.client, IMAGE, &image).await?;
        drive::until_settled(&self.client, &image, PATIENCE).await?;
        let (absences, states) = (Absences::watch(&self.client), States::watch(&self.client));
        let spec = DataEngineUpgradeManagerSpec {
            data_engine: DataEngine::V2,
            max_parallel_nodes: parallel,
            ..Default::default()
        };
        let began = Instant::now();
        drive::begin(&self.client, name, spec).await?;
        let over = drive::until_completed(&self.client, name, PATIENCE).await?;
        let span = (began, Instant::now());
        Ok(Upgraded { span, over, absences: absences.over(), states: states.history() })
    }

    async fn publish(&self, name: String) -> anyhow::Result<String> {
        let variants = Variants {
            layout: Layout::at(self.cluster.folder().registry()),
            program: self.next.clone(),
            copy: self.cluster.room("program"),
            engine: Some(version::engine_of(&self.next).await?),
        };
        self.cluster.block(move || variants.publish(&name)).await?
    }

    /// What each client wrote; nothing of it was lost.
    pub(super) async fn stop(self) -> anyhow::Result<BTreeMap<String, Log>> {
        self.clients.values().for_each(Paced::end);
        let clients = self.clients;
        let logs = self.cluster.block(move || {
            let logs = clients.into_iter().map(|(name, client)| {
                let log = client.stop().with_context(|| format!("the client of {name} was cut off"))?;
                ensure!(log.errors == 0, "{} requests to {name} failed", log.errors);
                ensure!(log.wrong.is_empty(), "{name}: {}", log.wrong[0]);
                Ok((name, log))
            });
            logs.collect()
        });
        logs.await?
    }
}

fn node_name(number: u8) -> String {
    format!("node-{number}")
}

/// Waits until the nodes are there.
async fn until_known(client: &Client, nodes: usize) -> anyhow::Result<()> {
    let objects: Api<Node> = Api::namespaced(client.clone(), NAMESPACE);
    let deadline = Instant::now() + KNOWN_WITHIN;
    while objects.list(&ListParams::default()).await.context("look at the nodes")?.items.len() < nodes {
        ensure!(Instant::now() < deadline, "the nodes were not known within {KNOWN_WITHIN:?}");
        sleep(LOOK_EVERY).await;
    }
    Ok(())
}

/// Lets replicas come to these nodes and to no other.
async fn open_only(client: &Client, all: &[u8], open: &[u8]) -> anyhow::Result<()> {
    let objects: Api<Node> = Api::namespaced(client.clone(), NAMESPACE);
    for node in all {
        let change = Patch::Merge(json!({ "spec": { "allowScheduling": open.contains(node) } }));
        let changed = objects.patch(&node_name(*node), &PatchParams::default(), &change).await;
        changed.with_context(|| format!("open or close node-{node}"))?;
    }
    Ok(())
}
