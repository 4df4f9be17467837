//! Somebody is killed in a state of a node's upgrade: it ends completed or cleanly back, and no acknowledged write is lost.
//!
//! The cells are every state of both machines, and of the way back of a node, by everybody who may die. `MIDFLIGHT_KILLS=all` plays all of them (the soak does), and
//! `MIDFLIGHT_KILLS=14..21` those of these numbers; otherwise a few are drawn, and `MIDFLIGHT_SEED` draws the same again.

#![expect(clippy::print_stdout, reason = "whoever repeats a failed run needs its seed")]

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use kube::api::ListParams;
use midflight_api::longhorn::{NodeDataEngineUpgrade, NodeUpgradeState, UpgradeState};
use midflight_tests::fleet::{DOES_NOT_START, Fleet, NEXT, NODES};
use midflight_tests::load::Load;
use midflight_tests::place;
use serde_json::json;
use tokio::time::Instant;

const SIZE: u64 = 8 << 20;
/// The node that is upgraded, and that has the volume.
const NODE: &str = "node-1";
/// An image whose instance manager does not start.
const BROKEN: &str = "midflight.local/instance-manager:broken";
/// Settings that let a node fail soon, and their defaults; what is lost meanwhile has so many seconds to come back.
const RETRIES: (&str, &str) = ("node-upgrade-retry-limit", "5");
const DEADLINE: (&str, &str) = ("node-upgrade-deadline-seconds", "600");
const FAILS_WITHIN: &str = "20";
/// How many cells one test run plays.
const DRAWN: usize = 2;

/// What dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Control,
    Agent,
    OldManager,
    NewManager,
    /// The instance manager of a node that only has a copy.
    Replica,
    /// All of the node that serves meanwhile.
    TemporaryNode,
    Frontend,
}

const VICTIMS: [Victim; 7] = [
    Victim::Control,
    Victim::Agent,
    Victim::OldManager,
    Victim::NewManager,
    Victim::Replica,
    Victim::TemporaryNode,
    Victim::Frontend,
];

/// When it dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    Run(UpgradeState),
    Node(NodeUpgradeState),
    /// On the way back of a node whose new instance manager does not start.
    Back(NodeUpgradeState),
}

/// Every state that an upgrade without faults comes through, and every state of the way back.
fn moments() -> Vec<Moment> {
    let runs = UpgradeState::ALL.iter().filter(|state| **state != UpgradeState::Error);
    let nodes = NodeUpgradeState::ALL.iter().filter(|state| **state != NodeUpgradeState::Error);
    let forth = runs.map(|state| Moment::Run(*state)).chain(nodes.map(|state| Moment::Node(*state)));
    let back = NodeUpgradeState::ALL.iter().filter(|state| is_on_the_way_back(**state));
    forth.chain(back.map(|state| Moment::Back(*state))).collect()
}

fn is_on_the_way_back(state: NodeUpgradeState) -> bool {
    match state {
        NodeUpgradeState::SwitchingBack
        | NodeUpgradeState::RebuildingReplica
        | NodeUpgradeState::Finalizing
        | NodeUpgradeState::Error => true,
        NodeUpgradeState::Undefined
        | NodeUpgradeState::Initializing
        | NodeUpgradeState::FailingReplicas
        | NodeUpgradeState::SwitchingOver
        | NodeUpgradeState::UpgradingInstanceManager
        | NodeUpgradeState::Completed => false,
    }
}

fn cells() -> Vec<(Moment, Victim)> {
    moments().into_iter().flat_map(|moment| VICTIMS.map(|victim| (moment, victim))).collect()
}

/// The numbers of the cells that are played, of so many.
fn chosen(which: Option<&str>, count: usize, seed: u64) -> Vec<usize> {
    let number = |text: &str| text.parse::<usize>().ok();
    let range = |text: &str| text.split_once("..").and_then(|(from, to)| Some(number(from)?..number(to)?));
    match which {
        Some("all") => (0..count).collect(),
        Some(which) => match range(which).filter(|range| range.start < range.end && range.end <= count) {
            Some(range) => range.collect(),
            None => panic!("MIDFLIGHT_KILLS={which} is neither `all` nor a range of cells within 0..{count}"),
        },
        // Steps by a number without a factor in common with their count come to every one.
        None => {
            (0..DRAWN).map(|turn| (seed as usize).wrapping_mul(41).wrapping_add(37 * turn) % count).collect()
        }
    }
}

/// Waits until the upgrade is there, or further.
async fn until(fleet: &Fleet, moment: Moment) -> anyhow::Result<()> {
    match moment {
        Moment::Run(wanted) => fleet.until_run_at_least(wanted).await,
        Moment::Node(wanted) => fleet.until_node(NODE, wanted).await,
        Moment::Back(wanted) => fleet.until_back(NODE, wanted).await,
    }
}

/// The node that serves the volume meanwhile, or would do well.
async fn temporary(fleet: &Fleet) -> anyhow::Result<String> {
    let upgrades = fleet.all::<NodeDataEngineUpgrade>().list(&ListParams::default()).await?;
    let volumes = upgrades.into_iter().flat_map(|one| one.status.unwrap_or_default().volumes);
    let chosen = volumes.map(|(_, volume)| volume.temporary_node_id.to_string());
    Ok(chosen.into_iter().find(|node| !node.is_empty()).unwrap_or_else(|| "node-2".to_owned()))
}

/// The processes of a node's instance managers that run this program.
fn managers(fleet: &Fleet, node: &str, image: &str) -> anyhow::Result<Vec<i32>> {
    let program = if image == NEXT { place::next()? } else { place::midflight()? };
    let size = std::fs::metadata(program)?.len();
    let of_program = |(pid, theirs): (i32, u64)| (theirs == size).then_some(pid);
    Ok(fleet.processes(node)?.into_iter().filter_map(of_program).collect())
}

/// Kills it, and starts again what nobody else starts. Says whether there was anybody.
async fn kill(fleet: &Fleet, victim: Victim, from: &str, to: &str) -> anyhow::Result<bool> {
    let cluster = &fleet.cluster;
    let pids = match victim {
        Victim::Control => vec![cluster.process("control")?],
        Victim::Agent => vec![cluster.process(NODE)?],
        Victim::OldManager => managers(fleet, NODE, from)?,
        Victim::NewManager => managers(fleet, NODE, to)?,
        Victim::Replica => {
            let away = temporary(fleet).await?;
            let other = NODES.into_iter().find(|node| *node != NODE && *node != away);
            fleet.processes(other.context("there is a third node")?)?.into_keys().collect()
        }
        Victim::TemporaryNode => {
            cluster.kill_node(&temporary(fleet).await?).await?;
            Vec::new()
        }
        Victim::Frontend => cluster.processes_of(NODE, "frontend")?,
    };
    cluster.kill(&pids).await?;
    match victim {
        Victim::Control | Victim::Agent | Victim::TemporaryNode => {
            cluster.start().await?;
            Ok(true)
        }
        Victim::OldManager | Victim::NewManager | Victim::Replica | Victim::Frontend => Ok(!pids.is_empty()),
    }
}

/// Upgrades a node from one image to the other while somebody dies, under a client of a volume that nobody wrote to before.
async fn play(
    fleet: &Fleet,
    volume: &str,
    (moment, victim): (Moment, Victim),
    from: &str,
    to: &str,
) -> anyhow::Result<&'static str> {
    let fails = matches!(moment, Moment::Back(_));
    fleet.make(volume, ("v2", SIZE), NODE, &NODES).await?;
    fleet.make_default(if fails { BROKEN } else { to }).await?;
    if fails {
        fleet.set(RETRIES.0, "0").await?;
        fleet.set(DEADLINE.0, FAILS_WITHIN).await?;
    }
    let load = Load::connecting_again(&fleet.endpoint(volume).await?, volume, 1)?;
    fleet.begin(json!({ "dataEngine": "v2", "nodes": [NODE] })).await?;
    until(fleet, moment).await?;
    let met = kill(fleet, victim, from, to).await?;
    let over = async || {
        let state = fleet.run().await?.status.unwrap_or_default().state;
        Ok(matches!(state, UpgradeState::Completed | UpgradeState::Error))
    };
    fleet.until("the upgrade is over", over).await?;
    let state = fleet.run().await?.status.unwrap_or_default().state;
    // What died after the end, or beside it, heals by itself.
    let whole = async || fleet.is_whole().await.map(|()| true);
    fleet.until("all is whole", whole).await?;
    load.judge().await?;
    fleet.end().await?;
    let image = if state == UpgradeState::Completed { to } else { from };
    let served = async || fleet.serves(NODE, image).await;
    fleet.until(&format!("{NODE} serves with {image}"), served).await?;
    if fails {
        ensure!(state == UpgradeState::Error, "an image that does not start was upgraded to");
        for (setting, value) in [RETRIES, DEADLINE] {
            fleet.set(setting, value).await?;
        }
        fleet.make_default(to).await?;
    }
    if state == UpgradeState::Error {
        // Cleanly back: the next one completes.
        fleet.begin(json!({ "dataEngine": "v2", "nodes": [NODE] })).await?;
        fleet.until_run(UpgradeState::Completed).await?;
        fleet.end().await?;
    }
    ensure!(fleet.serves(NODE, to).await?, "{NODE} is not served by {to}");
    fleet.remove(volume).await?;
    Ok(if met { "killed" } else { "nobody was there" })
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_dies_in_the_upgrade_of_a_node_it_ends_completed_or_cleanly_back() {
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let seed = std::env::var("MIDFLIGHT_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(clock);
    let cells = cells();
    let which = std::env::var("MIDFLIGHT_KILLS").ok();
    let drawn = chosen(which.as_deref(), cells.len(), seed);
    // Everybody dies once in a cluster: who dies again and again is started ever later, as on any node.
    for drawn in drawn.chunks(VICTIMS.len()) {
        let fleet = Fleet::up().await.unwrap();
        fleet.set("node-upgrade-back-off-seconds", "1").await.unwrap();
        fleet.pack_after("broken", DOES_NOT_START).await.unwrap();
        let (mut from, mut to) = (fleet.this.clone(), NEXT.to_owned());
        for (turn, number) in drawn.iter().enumerate() {
            let began = Instant::now();
            let cell = cells[*number];
            let about = format!("cell {number}: {cell:?}, MIDFLIGHT_SEED={seed}");
            let played = Box::pin(play(&fleet, &format!("vol-{turn}"), cell, &from, &to)).await;
            let ended = played.with_context(|| about.clone()).unwrap();
            println!("{about}: {ended}, {:?}", began.elapsed());
            (from, to) = (to, from);
        }
    }
}
