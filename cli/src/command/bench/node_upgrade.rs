//! `midflight bench node-upgrade`: what clients wait, what is copied and how long it takes while the data engine of every node
//! is replaced under its volumes.
//!
//! Everything is real: agents, instance managers, frontends, replicas, clients. The one invariant: a write that is answered with an
//! error, or a block that does not hold what was acknowledged, ends the measurement.

mod absences;
mod report;
mod scene;
mod states;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::Args;
use midflight_api::longhorn::VolumeUpgradeStatus;
use midflight_block::check::{paced::Log, pattern::BLOCK};
use tokio::time::sleep;

use self::{
    report::{Group, Measured, NodeTook, Spread, Waits, Worst},
    scene::{Scene, Upgraded},
};
use super::conditions::Conditions;
use crate::{
    cluster::{Interrupts, Temporary},
    failure::Failure,
    session::Session,
};

/// Nodes of the cluster on which clients are watched.
const NODES: u8 = 3;
/// Clients write for so long before anything is done to them.
const WARM_UP: Duration = Duration::from_secs(1);

/// Measure what the upgrade of every node's data engine costs the clients of its volumes
///
/// Builds a cluster of three nodes with attached volumes of three replicas, each with a client that writes at a steady pace, and
/// replaces the instance manager of every node by one of another image. What counts is the longest wait of each volume's client,
/// beside a time of the same length in which nothing is switched, and what its node was doing then. Then upgrades two groups of nodes that share no volume, one node
/// at a time and two at a time.
#[derive(Debug, Args)]
pub(crate) struct NodeUpgradeBench {
    /// Attached volumes, spread over the nodes
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=1000))]
    volumes: u32,
    /// Writes per second on each volume
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// Size of each volume
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..))]
    size_mib: u64,
    /// Length of the time without switches [default: as long as the upgrade took]
    #[arg(long, value_name = "SECONDS")]
    control: Option<u64>,
    /// Nodes of each of the two groups; 0 leaves them out
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(0..=10))]
    group: u8,
    /// Program to upgrade to [default: this one, as another image]
    #[arg(long, value_name = "PATH")]
    next: Option<PathBuf>,
}

impl NodeUpgradeBench {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let mut interrupts = Interrupts::listen().context("listen for signals")?;
        let conditions = Conditions::before();
        session.say("upgrades three nodes");
        let clients = async |cluster: &Temporary| self.watch_clients(session, cluster).await;
        let mut measured = on_cluster(session, &mut interrupts, NODES, clients).await?;
        if self.group > 0 {
            session.say("upgrades two groups of nodes");
            let groups = async |cluster: &Temporary| self.upgrade_groups(session, cluster).await;
            measured.groups = on_cluster(session, &mut interrupts, 2 * self.group, groups).await?;
        }
        measured.conditions = conditions.after();
        session.answer(&measured)
    }

    /// The part with the clients.
    async fn watch_clients(&self, session: &Session, cluster: &Temporary) -> anyhow::Result<Measured> {
        let scene = Scene::build(cluster, self, &[(1..=NODES).collect()]).await?;
        sleep(WARM_UP).await;
        let upgraded = scene.upgrade("bench-1", 1).await?;
        let length = self.control.map_or(upgraded.span.1 - upgraded.span.0, Duration::from_secs);
        session.say(format_args!("leaves them alone for {:.0} s", length.as_secs_f64()));
        let began = Instant::now();
        sleep(length).await;
        let control = (began, Instant::now());
        let logs = scene.stop().await?;
        let waits = |(from, to)| {
            let longest = logs.values().map(|log: &Log| log.longest(from, to).as_secs_f64() * 1000.0);
            Spread::of(&longest.collect::<Vec<_>>())
        };
        let worst = logs.iter().filter_map(|(volume, log)| {
            let (began, wait) = log.worst(upgraded.span.0, upgraded.span.1)?;
            // What made it wait is what came about while it did.
            let reached = upgraded.states.at(began + wait);
            Some(Worst {
                volume: volume.clone(),
                wait_ms: wait.as_secs_f64() * 1000.0,
                node: reached.map(|reached| reached.node.clone()).unwrap_or_default(),
                state: reached.map_or("before it began", |reached| reached.state.as_str()),
            })
        });
        let missed: usize = upgraded
            .absences
            .iter()
            .map(|absence| {
                let log = logs.get(absence.volume.as_str());
                log.map_or(0, |log| log.blocks(absence.from, absence.to) * BLOCK)
            })
            .sum();
        let (missed_bytes, rebuilt_bytes) = (missed as u64, upgraded.rebuilt_bytes());
        Ok(Measured {
            conditions: Conditions::before(),
            nodes: NODES,
            volumes: self.volumes,
            writes_per_second: self.rate,
            writes: logs.values().map(Log::count).sum(),
            waits_ms: Waits { upgrade: waits(upgraded.span), control: waits(control) },
            worst: worst.collect(),
            pauses_ms: Spread::of(&upgraded.moves_ms(|volume| volume.pause_us)),
            waits_of_moves_ms: Spread::of(&upgraded.moves_ms(|volume| volume.longest_wait_us)),
            took: upgraded.nodes(),
            missed_bytes,
            rebuilt_bytes,
            rebuilt_by_missed: rebuilt_bytes as f64 / missed_bytes.max(1) as f64,
            groups: Vec::new(),
        })
    }

    /// The part with the groups.
    async fn upgrade_groups(&self, session: &Session, cluster: &Temporary) -> anyhow::Result<Vec<Group>> {
        let groups = [(1..=self.group).collect(), (self.group + 1..=2 * self.group).collect()];
        let scene = Scene::build(cluster, self, &groups).await?;
        let mut told = Vec::new();
        for parallel in [1, 2] {
            session.say(format_args!("{parallel} at a time"));
            let upgraded = scene.upgrade(&format!("bench-{parallel}"), parallel).await?;
            let (began, ended) = upgraded.span;
            let seconds = (ended - began).as_secs_f64();
            told.push(Group {
                parallel,
                nodes: 2 * self.group,
                seconds,
                nodes_per_hour: f64::from(2 * self.group) * 3600.0 / seconds,
                most_at_once: upgraded.most_at_once(),
            });
        }
        scene.stop().await?;
        Ok(told)
    }
}

/// Does something on a cluster of its own that is gone afterwards, also when it is interrupted.
async fn on_cluster<T>(
    session: &Session,
    interrupts: &mut Interrupts,
    nodes: u8,
    work: impl AsyncFnOnce(&Temporary) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let cluster = Temporary::build(session, nodes)?;
    let done = tokio::select! {
        done = work(&cluster) => done,
        () = interrupts.next() => Err(Failure::error("interrupted", "start it again any time")),
    };
    cluster.clear().await.context("clean up after the measurement")?;
    done
}

impl Upgraded {
    /// What each frontend measured where the engine was moved.
    fn moves_ms(&self, measure: impl Fn(&VolumeUpgradeStatus) -> i64) -> Vec<f64> {
        let volumes =
            self.over.nodes.iter().flat_map(|node| node.status.iter().flat_map(|of| of.volumes.values()));
        let moved = volumes.filter(|volume| !volume.temporary_node_id.is_empty());
        moved.map(|volume| measure(volume) as f64 / 1000.0).collect()
    }

    fn rebuilt_bytes(&self) -> u64 {
        let volumes =
            self.over.nodes.iter().flat_map(|node| node.status.iter().flat_map(|of| of.volumes.values()));
        volumes.map(|volume| volume.rebuilt_bytes.unsigned_abs()).sum()
    }

    fn nodes(&self) -> Vec<NodeTook> {
        let times = self.times();
        let took = |(node, (began, ended)): (String, (jiff::Timestamp, jiff::Timestamp))| NodeTook {
            node,
            seconds: ended.duration_since(began).as_secs_f64(),
        };
        times.into_iter().map(took).collect()
    }

    /// How many nodes were under way at the same time.
    fn most_at_once(&self) -> usize {
        let times = self.times();
        let at =
            |moment| times.iter().filter(|(_, (began, ended))| *began <= moment && moment < *ended).count();
        times.iter().map(|(_, (began, _))| at(*began)).max().unwrap_or_default()
    }

    /// From when to when each node was upgraded.
    fn times(&self) -> Vec<(String, (jiff::Timestamp, jiff::Timestamp))> {
        let nodes = self.over.status.upgrade_nodes.iter();
        let times = nodes.filter_map(|(node, entry)| {
            let began = entry.started_at.as_str().parse().ok()?;
            Some((node.to_string(), (began, entry.completed_at.as_str().parse().ok()?)))
        });
        times.collect()
    }
}
