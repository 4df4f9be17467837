//! `midflight upgrade nodes`: replaces the data engine of every node while its volumes serve.
//!
//! The invariant: it makes, changes or deletes one DataEngineUpgradeManager; the controllers upgrade the nodes, whether
//! somebody waits for it or not.

pub(crate) mod drive;
mod follow;

use std::time::Duration;

use anyhow::Context;
use clap::Args;
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use midflight_api::longhorn::{
    DataEngine, DataEngineUpgradeManager, DataEngineUpgradeManagerSpec, NAMESPACE, UpgradeState,
};
use midflight_plan::node_upgrade::{Forecast, Obstacle, forecast};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::engines::set;
use crate::command::plan::node_upgrade::{cluster, known_images, shown, verdict};
use crate::failure::{Exit, Failure};
use crate::image_name::complete;
use crate::lookout::Lookout;
use crate::session::Session;
use crate::target;

pub(crate) const IMAGE: &str = "default-instance-manager-image";
const LOOK_EVERY: Duration = Duration::from_millis(300);

/// Replace the data engine of every node, live
///
/// Creates a DataEngineUpgradeManager; the controllers do the rest, node by node. With --wait every step is told as it is
/// taken, with the pause of each volume, and it exits with 0 if every node is upgraded, with 3 if something is in the way or a
/// node has failed, with 4 if time is over. Without --wait it shows the plan, and exits as `plan node-upgrade` does.
#[derive(Debug, Args)]
pub(crate) struct Nodes {
    /// Instance-manager image to upgrade to, by its whole name or as `image ls` has it without the host; it becomes the default
    /// [default: the setting default-instance-manager-image]
    #[arg(long, value_name = "IMAGE", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    to: Option<String>,
    /// Nodes to upgrade [default: all]
    #[arg(long, value_name = "NODE", value_delimiter = ',')]
    nodes: Vec<String>,
    /// Nodes that may be upgraded at once, where they share no volume
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(i32).range(1..=100))]
    parallel: i32,
    /// Name of the DataEngineUpgradeManager
    #[arg(long, default_value = "upgrade")]
    name: String,
    /// Begin no further node; those that have begun go on
    #[arg(long, conflicts_with_all = ["resume", "abort", "to", "nodes", "wait"])]
    pause: bool,
    /// Go on after a pause, or where the upgrade has failed
    #[arg(long, conflicts_with_all = ["abort", "to", "nodes"])]
    resume: bool,
    /// Bring every node back and give the upgrade up
    #[arg(long, conflicts_with_all = ["to", "nodes"])]
    abort: bool,
    /// Wait until it is over
    #[arg(long)]
    wait: bool,
    /// Seconds to wait at most
    #[arg(long, default_value_t = 3600, requires = "wait")]
    timeout: u64,
}

impl Nodes {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let client = target::client(session).await?;
        let upgrades: Api<DataEngineUpgradeManager> = Api::namespaced(client.clone(), NAMESPACE);
        if self.abort {
            return self.give_up(session, &upgrades).await;
        }
        let deadline = Instant::now() + Duration::from_secs(self.timeout);
        // What was in the way before it began: what is under way looks like trouble of its own.
        let mut begun = None;
        if self.pause {
            self.known(&upgrades).await?;
            self.set_paused(&upgrades, true).await?;
        } else if self.resume {
            self.go_on(&upgrades).await?;
        } else {
            self.refuse_what_the_api_would(&client).await?;
            if let Some(image) = &self.to {
                let image = complete(session, image, known_images(&client).await?.iter());
                let image = image.as_str();
                set(&client, IMAGE, image).await?;
                if !drive::is_settled(&client, image).await? {
                    session.say(format_args!("waits until every node has {image}"));
                    let within = deadline.saturating_duration_since(Instant::now());
                    drive::until_settled(&client, image, within).await?;
                }
            }
            let plan = self.plan(&client).await?;
            begun = self.begin(&client, &upgrades, &plan, deadline).await?.then_some(plan);
        }
        if self.wait {
            return follow::follow(session, &client, &self.name, deadline).await;
        }
        let is_new = begun.is_some();
        let plan = match begun {
            Some(plan) => plan,
            None => self.plan(&client).await?,
        };
        session.answer(&shown(&plan))?;
        session.say(format_args!("`midflight upgrade nodes --name {} --wait` follows it", self.name));
        if is_new { verdict(&plan) } else { Ok(()) }
    }

    /// Makes the upgrade, in place of one that is over; says whether. One that is under way, or has left nothing to do, is followed.
    async fn begin(
        &self,
        client: &Client,
        upgrades: &Api<DataEngineUpgradeManager>,
        plan: &Forecast,
        deadline: Instant,
    ) -> anyhow::Result<bool> {
        let looking = || format!("look for the DataEngineUpgradeManager {}", self.name);
        let there = upgrades.get_opt(&self.name).await.map_err(target::refusal).with_context(looking)?;
        if let Some(there) = there {
            let state = there.status.as_ref().map(|status| status.state).unwrap_or_default();
            match state {
                // What it did is worth more than another that has nothing to do.
                UpgradeState::Completed if plan.stages.is_empty() && plan.obstacles.is_empty() => {
                    return Ok(false);
                }
                UpgradeState::Completed | UpgradeState::Error => {
                    upgrades.delete(&self.name, &DeleteParams::default()).await.map_err(target::refusal)?;
                    until_gone(upgrades, &self.name, deadline).await?;
                }
                UpgradeState::Undefined | UpgradeState::Initializing | UpgradeState::Upgrading => {
                    return Ok(false);
                }
            }
        }
        let spec = DataEngineUpgradeManagerSpec {
            data_engine: DataEngine::V2,
            nodes: self.nodes.iter().map(|node| node.as_str().into()).collect(),
            max_parallel_nodes: self.parallel,
            paused: false,
        };
        drive::begin(client, &self.name, spec).await?;
        Ok(true)
    }

    /// What is refused when the object is created is in the way as everything else is, and told as such.
    async fn refuse_what_the_api_would(&self, client: &Client) -> anyhow::Result<()> {
        let mut plan = self.plan(client).await?;
        plan.obstacles.retain(|one| matches!(one, Obstacle::SingleNode | Obstacle::UnknownNodes { .. }));
        verdict(&plan)
    }

    async fn plan(&self, client: &Client) -> anyhow::Result<Forecast> {
        let (mut seen, pace) = cluster(client, None).await?;
        seen.spec.nodes = self.nodes.iter().map(|node| node.as_str().into()).collect();
        seen.spec.max_parallel_nodes = self.parallel;
        Ok(forecast(&seen, pace))
    }

    /// The upgrade that is to be held, gone on with or given up; or advice.
    async fn known(
        &self,
        upgrades: &Api<DataEngineUpgradeManager>,
    ) -> anyhow::Result<DataEngineUpgradeManager> {
        let there = upgrades.get_opt(&self.name).await.map_err(target::refusal);
        there.context("look for the node upgrade")?.ok_or_else(|| {
            Failure::error(
                format!("there is no node upgrade `{}`", self.name),
                "`midflight upgrade nodes --wait` begins one; `kubectl get lhum -n longhorn-system` lists those there are",
            )
        })
    }

    async fn set_paused(&self, upgrades: &Api<DataEngineUpgradeManager>, paused: bool) -> anyhow::Result<()> {
        let change = Patch::Merge(json!({ "spec": { "paused": paused } }));
        let set = upgrades.patch(&self.name, &PatchParams::default(), &change).await;
        let doing = || format!("set spec.paused of the node upgrade `{}` to {paused}", self.name);
        set.map(drop).map_err(target::refusal).with_context(doing)
    }

    /// An upgrade that has failed goes on when its spec changes.
    async fn go_on(&self, upgrades: &Api<DataEngineUpgradeManager>) -> anyhow::Result<()> {
        let upgrade = self.known(upgrades).await?;
        let has_failed = upgrade.status.is_some_and(|status| status.state == UpgradeState::Error);
        if has_failed && !upgrade.spec.paused {
            self.set_paused(upgrades, true).await?;
        }
        self.set_paused(upgrades, false).await
    }

    async fn give_up(
        &self,
        session: &Session,
        upgrades: &Api<DataEngineUpgradeManager>,
    ) -> anyhow::Result<()> {
        self.known(upgrades).await?;
        let deleted = upgrades.delete(&self.name, &DeleteParams::default()).await;
        deleted
            .map(drop)
            .map_err(target::refusal)
            .with_context(|| format!("abort the node upgrade `{}`", self.name))?;
        if self.wait {
            until_gone(upgrades, &self.name, Instant::now() + Duration::from_secs(self.timeout)).await?;
            session.say("every node is back");
        } else {
            let how = "`kubectl get lhnu -n longhorn-system` shows how far they are";
            session.say(format_args!("its nodes go back; {how}. The default image stays as it is"));
        }
        Ok(())
    }
}

async fn until_gone(
    upgrades: &Api<DataEngineUpgradeManager>,
    name: &str,
    deadline: Instant,
) -> anyhow::Result<()> {
    let mut lookout = Lookout::until(deadline);
    let look = async || upgrades.get_opt(name).await.map_err(target::refusal);
    while let Some(there) = lookout.look(&look).await? {
        if lookout.is_over() {
            let why = there.status.map(|status| status.message.to_string()).unwrap_or_default();
            return Err(Failure::with(
                Exit::TimedOut,
                format!(
                    "not every node of the node upgrade `{}` was back in time: {why}",
                    there.metadata.name.unwrap_or_default()
                ),
                "they go back by themselves; `kubectl get lhnu -n longhorn-system -o yaml` tells what they wait for",
            ));
        }
        sleep(LOOK_EVERY).await;
    }
    Ok(())
}
