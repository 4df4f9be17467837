//! `midflight upgrade nodes`: replaces the data engine of every node while its volumes serve.
//!
//! The invariant: it makes, changes or deletes one DataEngineUpgradeManager; the controllers upgrade the nodes, whether
//! somebody waits for it or not.

pub(crate) mod drive;
mod follow;
mod halt;
mod view;

use std::collections::BTreeSet;
use std::time::Duration;

use clap::Args;
use kube::api::Api;
use kube::{Client, ResourceExt};
use midflight_api::ImageRef;
use midflight_api::longhorn::{
    DataEngine, DataEngineUpgradeManager, DataEngineUpgradeManagerSpec, NAMESPACE, UpgradeState,
};
use midflight_plan::node_upgrade::{Forecast, Obstacle, Pace, Stand, USUAL_NAME};
use tokio::time::Instant;

use self::halt::{Halt, delete, until_gone};
use super::engines::set;
use crate::command::plan::engine_upgrade::all;
use crate::command::plan::node_upgrade::{Wish, default_image, known_images, look_ahead, shown, verdict};
use crate::failure::{Exit, Failure};
use crate::image_name::complete;
use crate::session::Session;
use crate::target;

pub(crate) const IMAGE: &str = "default-instance-manager-image";
const LOOK_EVERY: Duration = Duration::from_millis(300);

/// Replace the data engine of every node, live
///
/// Creates a DataEngineUpgradeManager; the controllers do the rest, node by node. With --wait every step is told as it is
/// taken, with the pause of each volume, and it exits with 0 if every node is upgraded, with 3 if something is in the way or a
/// node has failed, with 4 if time is over. Without --wait it shows the plan, and exits as `plan node-upgrade` does. Where something
/// that does not pass by itself is in the way of the image of --to, that does not become the default, and nothing is changed.
#[derive(Debug, Args)]
pub(crate) struct Nodes {
    /// Instance-manager image to upgrade to, by its whole name or as `image ls` has it without the host; it becomes the default
    /// [default: the setting default-instance-manager-image]
    #[arg(long, value_name = "IMAGE", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    to: Option<String>,
    /// Nodes to upgrade [default: all]
    #[arg(long, value_name = "NODE", value_delimiter = ',', value_parser = clap::builder::NonEmptyStringValueParser::new())]
    nodes: Vec<String>,
    /// Nodes that may be upgraded at once, where they share no volume
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(i32).range(1..=100))]
    parallel: i32,
    /// Name of the DataEngineUpgradeManager
    #[arg(long, default_value = USUAL_NAME)]
    name: String,
    /// Begin no further node; those that have begun go on
    #[arg(long, conflicts_with_all = ["resume", "abort", "to", "nodes", "parallel", "wait"])]
    pause: bool,
    /// Go on after a pause, or where the upgrade has failed
    #[arg(long, conflicts_with_all = ["abort", "to", "nodes", "parallel"])]
    resume: bool,
    /// Give the upgrade up: nodes that are under way go back into service, those that are upgraded stay so
    #[arg(long, conflicts_with_all = ["to", "nodes", "parallel"])]
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
        let deadline = Instant::now() + Duration::from_secs(self.timeout);
        let halt = Halt { session, client: &client, upgrades: &upgrades, name: &self.name };
        if self.abort {
            return halt.abort(self.wait.then_some(deadline)).await;
        }
        if self.pause {
            return halt.pause().await;
        }
        // What was in the way before it began: what is under way looks like trouble of its own.
        let mut begun = None;
        if self.resume {
            halt.resume().await?;
        } else {
            self.refuse_what_the_api_would(session, &client).await?;
            if let Some(image) = &self.to {
                let image = complete(session, image, known_images(&client).await?.iter());
                self.refuse_what_would_fail(session, &client, &image).await?;
                let image = image.as_str();
                set(&client, IMAGE, image).await?;
                if !drive::is_settled(&client, image).await? {
                    session.say(format_args!("waits until every node has {image}"));
                    let within = deadline.saturating_duration_since(Instant::now());
                    drive::until_settled(&client, image, within).await?;
                }
            }
            halt.let_go_of_one_given_up(deadline).await?;
            let plan = self.plan(session, &client, None).await?;
            begun = self.begin(&halt, &plan, deadline).await?.then_some(plan);
        }
        if self.wait {
            let pace = begun.map_or(Pace::ASSUMED, |plan| plan.pace);
            return follow::follow(session, &client, &self.name, pace, deadline).await;
        }
        // A plan that is made while an upgrade is under way finds the upgrade itself in the way.
        let Some(plan) = begun else { return follow::show(session, &client, &self.name).await };
        session.answer(&shown(&plan))?;
        session.say(format_args!("`midflight upgrade nodes --name {} --wait` follows it", self.name));
        verdict(&plan)
    }

    /// Makes the upgrade, in place of one that is over; says whether. One that is under way, or has left nothing to do, is followed.
    async fn begin(&self, halt: &Halt<'_>, plan: &Forecast, deadline: Instant) -> anyhow::Result<bool> {
        let upgrades = halt.upgrades;
        if let Some(there) = halt.look().await? {
            let state = there.status.as_ref().map(|status| status.state).unwrap_or_default();
            match state {
                // What it did is worth more than another that has nothing to do.
                UpgradeState::Completed if plan.stages.is_empty() && plan.obstacles.is_empty() => {
                    return Ok(false);
                }
                UpgradeState::Completed | UpgradeState::Error => {
                    delete(upgrades, &there).await?;
                    until_gone(upgrades, &there, deadline, |_| {}).await?;
                }
                UpgradeState::Undefined | UpgradeState::Initializing | UpgradeState::Upgrading => {
                    return Ok(false);
                }
            }
        }
        drive::begin(halt.client, &self.name, self.spec()).await
    }

    fn spec(&self) -> DataEngineUpgradeManagerSpec {
        let nodes: BTreeSet<&str> = self.nodes.iter().map(String::as_str).collect();
        DataEngineUpgradeManagerSpec {
            data_engine: DataEngine::V2,
            nodes: nodes.into_iter().map(Into::into).collect(),
            max_parallel_nodes: self.parallel,
            paused: false,
        }
    }

    /// What is refused when the object is created is in the way as everything else is, and told as such.
    async fn refuse_what_the_api_would(&self, session: &Session, client: &Client) -> anyhow::Result<()> {
        let mut plan = self.plan(session, client, None).await?;
        plan.obstacles.retain(|one| matches!(one, Obstacle::SingleNode | Obstacle::UnknownNodes { .. }));
        verdict(&plan)?;
        let upgrades = all::<DataEngineUpgradeManager>(client).await?;
        let is_active =
            |one: &&DataEngineUpgradeManager| one.name_any() != self.name && Stand::of(one).is_active();
        match upgrades.iter().find(is_active).map(ResourceExt::name_any) {
            Some(other) => Err(Failure::with(
                Exit::Blocked,
                format!("the node upgrade `{other}` is not over, and nothing was changed"),
                format!(
                    "`midflight upgrade nodes --name {other} --wait` follows it, --abort instead of --wait gives it up"
                ),
            )),
            None => drive::may_begin(client, &self.name, self.spec()).await,
        }
    }

    /// An image that the nodes cannot be upgraded to must not become the default: instance managers that are started anew would get it.
    /// What may pass is waited for by the upgrade itself.
    async fn refuse_what_would_fail(
        &self,
        session: &Session,
        client: &Client,
        image: &ImageRef,
    ) -> anyhow::Result<()> {
        let plan = self.plan(session, client, Some(image)).await?;
        let refused = refused(&plan.obstacles, default_image(client).await? == *image);
        if refused.is_err() {
            session.answer(&shown(&plan))?;
        }
        refused
    }

    /// What an upgrade to this image, or to the default, would do.
    async fn plan(
        &self,
        session: &Session,
        client: &Client,
        to: Option<&ImageRef>,
    ) -> anyhow::Result<Forecast> {
        look_ahead(session, client, &Wish { to, nodes: &self.nodes, parallel: self.parallel }).await
    }
}

/// Whether something that lasts is in the way of an image that is to become the default; the plan names all of it. Of the one that is the
/// default nothing would change, and its upgrade says itself what is in the way.
fn refused(obstacles: &[Obstacle], is_default: bool) -> anyhow::Result<()> {
    let counts = |one: &&Obstacle| match one {
        Obstacle::Unpublished { .. } => true,
        one => !is_default && !one.passes(),
    };
    let mut lasting = obstacles.iter().filter(counts);
    let Some(first) = lasting.next() else { return Ok(()) };
    let more = match lasting.count() {
        0 => String::new(),
        count => format!(", and {count} more that the plan names"),
    };
    Err(Failure::with(Exit::Blocked, format!("{first}{more}; nothing was changed"), first.way_out()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lasts_keeps_an_image_from_becoming_the_default_and_what_passes_does_not() {
        let unpublished = || Obstacle::Unpublished { image: "im:v2".into(), nodes: vec!["node-1".into()] };
        let single = |volume: &str| Obstacle::SingleReplica(volume.into());
        let not_ready = || Obstacle::NodeNotReady("node-1".into());
        #[rustfmt::skip]
        let cases = [
            // in the way,                              the default,  refused with
            (vec![],                                    false,        None),
            (vec![not_ready(), Obstacle::RebuildsOff],  false,        None),
            (vec![single("a")],                         false,        Some("single replica of a; nothing was changed")),
            (vec![single("a"), not_ready()],            false,        Some("single replica of a; nothing was changed")),
            (vec![single("a"), single("b")],            false,        Some("single replica of a, and 1 more that the plan names; nothing was changed")),
            (vec![single("a")],                         true,         None),
            (vec![unpublished(), single("a")],          true,         Some("im:v2 is not published, and is not on node-1; nothing was changed")),
        ];
        for (obstacles, is_default, expected) in cases {
            let told = refused(&obstacles, is_default).err().map(|error| error.to_string());
            assert_eq!(told.as_deref(), expected, "{obstacles:?}");
        }
    }
}
