//! `midflight node`: nodes as storage sees them, and how they are emptied.

mod show;

use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand};
use k8s_openapi::api::core::v1 as core;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use midflight_api::longhorn::{InstanceManager, NAMESPACE, Node, Replica, Setting, Volume};
use midflight_plan::storage::drain::{self, Policy};
use midflight_plan::storage::node::some;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::failure::{Exit, Failure};
use crate::lookout::Lookout;
use crate::{session::Session, target};
use show::{Listed, Shown};

/// Show nodes, empty them and take them back
#[derive(Debug, Args)]
pub(crate) struct NodeCommand {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List nodes
    Ls,
    /// Show a node with what it runs and holds
    Show { name: String },
    /// Let no new replicas, pods and volumes come to a node, and its replicas go to others
    ///
    /// Volumes that are attached there stay: detach or move them. `volume attach` refuses the node from then on. Exits with 3 if replicas or volumes cannot leave that
    /// the setting node-drain-policy wants gone.
    Drain {
        name: String,
        /// Wait until no volume is left there, and no replica that node-drain-policy minds
        #[arg(long)]
        wait: bool,
        /// Seconds to wait at most
        #[arg(long, default_value_t = 600, requires = "wait")]
        timeout: u64,
    },
    /// Let replicas, pods and volumes come to a node again
    Uncordon { name: String },
}

const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long what keeps a node from being empty has to last before nobody waits for it any more.
const BLOCKED_FOR: Duration = Duration::from_secs(5);

/// All that is known of nodes.
struct World {
    machines: Vec<core::Node>,
    nodes: Vec<Node>,
    managers: Vec<InstanceManager>,
    replicas: Vec<Replica>,
    volumes: Vec<Volume>,
    policy: Policy,
}

impl NodeCommand {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let client = target::client(session).await?;
        match self.command {
            Command::Ls => session.answer(&Listed::of(&look(&client).await?)),
            Command::Show { name } => {
                let world = look(&client).await?;
                let shown = Shown::of(&world, &name).ok_or_else(|| unknown(&name))?;
                session.answer(&shown)
            }
            Command::Drain { name, wait, timeout } => {
                open(&client, &name, false).await?;
                match wait {
                    true => until_empty(&client, &name, Duration::from_secs(timeout)).await,
                    false => Ok(()),
                }
            }
            Command::Uncordon { name } => open(&client, &name, true).await,
        }
    }
}

fn unknown(name: &str) -> anyhow::Error {
    Failure::error(format!("there is no node {name}"), "`midflight node ls` lists them")
}

async fn look(client: &Client) -> anyhow::Result<World> {
    let all = ListParams::default();
    let namespaced = |doing: &'static str| move || format!("list {doing}");
    let (nodes, managers, replicas, volumes) = (
        Api::<Node>::namespaced(client.clone(), NAMESPACE),
        Api::<InstanceManager>::namespaced(client.clone(), NAMESPACE),
        Api::<Replica>::namespaced(client.clone(), NAMESPACE),
        Api::<Volume>::namespaced(client.clone(), NAMESPACE),
    );
    let machines = Api::<core::Node>::all(client.clone());
    let settings = Api::<Setting>::namespaced(client.clone(), NAMESPACE);
    let policy = settings.get_opt(drain::SETTING).await.map_err(target::refusal);
    let policy = policy.with_context(namespaced("settings"))?.map(|setting| setting.value);
    Ok(World {
        policy: Policy::of(policy.as_deref()),
        machines: machines.list(&all).await.map_err(target::refusal).with_context(namespaced("nodes"))?.items,
        nodes: nodes
            .list(&all)
            .await
            .map_err(target::refusal)
            .with_context(namespaced("nodes of storage"))?
            .items,
        managers: managers
            .list(&all)
            .await
            .map_err(target::refusal)
            .with_context(namespaced("instance managers"))?
            .items,
        replicas: replicas
            .list(&all)
            .await
            .map_err(target::refusal)
            .with_context(namespaced("replicas"))?
            .items,
        volumes: volumes.list(&all).await.map_err(target::refusal).with_context(namespaced("volumes"))?.items,
    })
}

/// Lets things come to a node, or leave it.
async fn open(client: &Client, name: &str, open: bool) -> anyhow::Result<()> {
    let machines = Api::<core::Node>::all(client.clone());
    let nodes = Api::<Node>::namespaced(client.clone(), NAMESPACE);
    let doing = || format!("{} node {name}", if open { "open" } else { "close" });
    if machines.get_opt(name).await.map_err(target::refusal).with_context(doing)?.is_none() {
        return Err(unknown(name));
    }
    let how = PatchParams::default();
    let cordon = Patch::Merge(json!({ "spec": { "unschedulable": !open } }));
    machines.patch(name, &how, &cordon).await.map_err(target::refusal).with_context(doing)?;
    let evict = Patch::Merge(json!({ "spec": { "allowScheduling": open, "evictionRequested": !open } }));
    nodes.patch(name, &how, &evict).await.map_err(target::refusal).with_context(doing)?;
    Ok(())
}

/// What keeps a node from being empty.
#[derive(Debug, PartialEq, Eq)]
enum Left {
    Nothing,
    /// It goes by itself.
    Moves(String),
    /// Somebody has to do something.
    Stuck(String),
}

fn left_on(world: &World, name: &str) -> Left {
    let there = |replica: &&Replica| {
        replica.spec.instance.node_id == name && world.policy.minds(replica, &world.replicas)
    };
    let replicas: Vec<&Replica> = world.replicas.iter().filter(there).collect();
    let why = |volume: &Volume| {
        let holds = |replica: &&Replica| replica.spec.instance.volume_name == volume.name_any().as_str();
        replicas.iter().copied().find(holds)?;
        let unscheduled = volume.status.as_ref()?.conditions.get("Schedulable")?.message.to_string();
        (!unscheduled.is_empty()).then(|| format!("volume {}: {unscheduled}", volume.name_any()))
    };
    let mut stuck: Vec<String> = world.volumes.iter().filter_map(why).collect();
    let attached = world.volumes.iter().filter(|volume| volume.spec.node_id == name);
    let attached: Vec<String> = attached.map(ResourceExt::name_any).collect();
    let attached = (!attached.is_empty()).then(|| {
        format!("attached there: {}; each leaves by `midflight volume detach NAME`", some(&attached))
    });
    match (stuck.is_empty(), replicas.first()) {
        (true, Some(replica)) => {
            let leave =
                format!("{} replicas have to leave it, such as {}", replicas.len(), replica.name_any());
            Left::Moves([Some(leave), attached].into_iter().flatten().collect::<Vec<_>>().join("; "))
        }
        (true, None) => attached.map_or(Left::Nothing, Left::Stuck),
        (false, _) => {
            stuck.extend(attached);
            Left::Stuck(stuck.join("; "))
        }
    }
}

async fn until_empty(client: &Client, name: &str, patience: Duration) -> anyhow::Result<()> {
    let (mut lookout, mut moved) = (Lookout::until(Instant::now() + patience), Instant::now());
    let hint = "`midflight node show` tells what is there; it goes on by itself when it can";
    loop {
        let why = match left_on(&lookout.look(async || look(client).await).await?, name) {
            Left::Nothing => return Ok(()),
            Left::Moves(why) => {
                moved = Instant::now();
                why
            }
            Left::Stuck(why) if moved.elapsed() > BLOCKED_FOR => {
                return Err(Failure::with(
                    Exit::Blocked,
                    format!("node {name} cannot be emptied: {why}"),
                    hint,
                ));
            }
            Left::Stuck(why) => why,
        };
        if lookout.is_over() {
            let late = format!("node {name} was not empty within {} s: {why}", patience.as_secs());
            return Err(Failure::with(Exit::TimedOut, late, hint));
        }
        sleep(LOOK_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use midflight_api::longhorn::Condition;

    use super::*;

    #[test]
    fn says_whether_what_is_left_goes_by_itself() {
        let replica = |name: &str, node: &str| {
            let mut replica = Replica::new(name, Default::default());
            replica.spec.instance.node_id = node.into();
            replica.spec.instance.volume_name = "vol-1".into();
            replica
        };
        let volume = |node: &str| {
            let mut volume = Volume::new("vol-1", Default::default());
            volume.spec.node_id = node.into();
            volume
        };
        let world = |replicas, volumes| World {
            machines: Vec::new(),
            nodes: Vec::new(),
            managers: Vec::new(),
            replicas,
            volumes,
            policy: Policy::Empty,
        };
        assert_eq!(left_on(&world(vec![replica("r", "node-2")], vec![volume("")]), "node-1"), Left::Nothing);
        let moves = left_on(&world(vec![replica("r", "node-1")], vec![volume("node-1")]), "node-1");
        assert!(matches!(moves, Left::Moves(_)), "{moves:?}");
        let spared =
            World { policy: Policy::Anything, ..world(vec![replica("r", "node-1")], vec![volume("")]) };
        assert_eq!(left_on(&spared, "node-1"), Left::Nothing, "the policy minds none");
        let stuck = left_on(&world(vec![], vec![volume("node-1")]), "node-1");
        assert!(matches!(stuck, Left::Stuck(_)), "{stuck:?}");
    }

    #[test]
    fn names_all_that_keep_a_node() {
        let volume = |name: &str, node: &str, why: &str| {
            let mut volume = Volume::new(name, Default::default());
            volume.spec.node_id = node.into();
            let condition =
                Condition { kind: "Schedulable".into(), message: why.into(), ..Condition::default() };
            volume.status.get_or_insert_default().conditions.set(condition);
            volume
        };
        let replica = |volume: &str| {
            let mut replica = Replica::new(&format!("{volume}-r"), Default::default());
            replica.spec.instance.node_id = "node-1".into();
            replica.spec.instance.volume_name = volume.into();
            replica
        };
        let world = World {
            machines: Vec::new(),
            nodes: Vec::new(),
            managers: Vec::new(),
            replicas: ["a", "b"].map(replica).into(),
            volumes: vec![
                volume("a", "", "no room"),
                volume("b", "node-1", "no node"),
                volume("c", "node-1", ""),
                volume("d", "node-2", "elsewhere"),
            ],
            policy: Policy::Empty,
        };
        let told = "volume a: no room; volume b: no node; attached there: b, c; each leaves by `midflight volume detach NAME`";
        assert_eq!(left_on(&world, "node-1"), Left::Stuck(told.to_owned()));
    }
}
