//! `midflight plan node-upgrade`: which nodes would be upgraded when, where engines go meanwhile, and what is in the way.
//!
//! The invariant: it only reads, and it asks the same function that the controller asks.

mod observe;
mod show;

use clap::Args;
use kube::Client;
use midflight_api::ImageRef;
use midflight_plan::node_upgrade::{Forecast, Image, forecast};

use crate::failure::{Exit, Failure};
use crate::image_name::{complete, is_published, speaks};
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
    #[arg(long, value_name = "NODE", value_delimiter = ',', value_parser = clap::builder::NonEmptyStringValueParser::new())]
    nodes: Vec<String>,
    /// Nodes that may be upgraded at once, where they share no volume
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(i32).range(1..=100))]
    parallel: i32,
}

impl NodeUpgrade {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let client = target::client(session).await?;
        let image = match &self.to {
            Some(image) => Some(complete(session, image, known_images(&client).await?.iter())),
            None => None,
        };
        let wish = Wish { to: image.as_ref(), nodes: &self.nodes, parallel: self.parallel };
        let plan = look_ahead(session, &client, &wish).await?;
        session.answer(&shown(&plan))?;
        verdict(&plan)
    }
}

/// What is asked of an upgrade.
pub(crate) struct Wish<'a> {
    /// The image to upgrade to; the default if none is named.
    pub(crate) to: Option<&'a ImageRef>,
    /// All, if none is named.
    pub(crate) nodes: &'a [String],
    pub(crate) parallel: i32,
}

/// What an upgrade would do. Of an image that nodes lack the registry knows whether they can get it, and what it speaks.
pub(crate) async fn look_ahead(
    session: &Session,
    client: &Client,
    wish: &Wish<'_>,
) -> anyhow::Result<Forecast> {
    let (mut seen, pace) = cluster(client, wish.to.map(ImageRef::as_str)).await?;
    seen.spec.nodes = wish.nodes.iter().map(|node| node.as_str().into()).collect();
    seen.spec.max_parallel_nodes = wish.parallel;
    let labels = speaks(session, &seen.default_image).unwrap_or_default();
    for node in seen.nodes.values_mut().filter(|node| node.image == Image::Missing) {
        node.labels = labels;
    }
    let mut plan = forecast(&seen, pace);
    let is_default = default_image(client).await? == plan.image;
    plan.judge_image(is_published(session, &plan.image), is_default);
    Ok(plan)
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
