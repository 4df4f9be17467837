//! `midflight plan node-upgrade`: which nodes would be upgraded when, where engines go meanwhile, and what is in the way.
//!
//! The invariant: it only reads, and it asks the same function that the controller asks.

mod observe;
mod show;

use clap::Args;
use kube::Client;
use midflight_api::ImageRef;
use midflight_plan::node_upgrade::{Forecast, forecast};

use crate::failure::{Exit, Failure};
use crate::image_name::{complete, is_published};
use crate::output::Answer;
use crate::session::Session;
use crate::target;
pub(crate) use observe::{cluster, default_image, known_images};

/// Show in which order nodes would get a new data engine, and where their volumes are served meanwhile
///
/// Exits with 0 if the upgrade can begin, or nothing is to be done; with 3 if something is in the way, as `upgrade nodes` does.
#[derive(Debug, Args)]
pub(crate) struct NodeUpgrade {
    /// Instance-manager image to upgrade to, by its whole name or as `image ls` has it without the host [default: the setting
    /// default-instance-manager-image]
    #[arg(long, value_name = "IMAGE", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    to: Option<String>,
    /// Nodes to upgrade [default: all]
    #[arg(long, value_name = "NODE", value_delimiter = ',')]
    nodes: Vec<String>,
    /// Nodes that may be upgraded at once, where they share no volume
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(i32).range(1..))]
    parallel: i32,
}

impl NodeUpgrade {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let client = target::client(session).await?;
        let image = match &self.to {
            Some(image) => Some(complete(session, image, known_images(&client).await?.iter())),
            None => None,
        };
        let (mut seen, pace) = cluster(&client, image.as_ref().map(ImageRef::as_str)).await?;
        seen.spec.nodes = self.nodes.into_iter().map(Into::into).collect();
        seen.spec.max_parallel_nodes = self.parallel;
        let mut plan = forecast(&seen, pace);
        judge_image(session, &client, &mut plan).await?;
        session.answer(&shown(&plan))?;
        verdict(&plan)
    }
}

/// Says of an image that nodes lack whether they can get it.
pub(crate) async fn judge_image(
    session: &Session,
    client: &Client,
    plan: &mut Forecast,
) -> anyhow::Result<()> {
    let is_default = default_image(client).await? == plan.image;
    plan.judge_image(is_published(session, &plan.image), is_default);
    Ok(())
}

/// A plan as people and programs read it.
pub(crate) fn shown(plan: &Forecast) -> impl Answer + use<> {
    show::Shown::of(plan)
}

/// Whether something is in the way.
pub(crate) fn verdict(plan: &Forecast) -> anyhow::Result<()> {
    match plan.obstacles.first() {
        Some(first) => Err(Failure::with(Exit::Blocked, first.to_string(), first.way_out())),
        None => Ok(()),
    }
}
