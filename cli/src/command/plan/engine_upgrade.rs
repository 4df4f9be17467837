//! `midflight plan engine-upgrade`: which volumes would move, when, which way, and why others stay.
//!
//! The invariant: it only reads, and it asks the same function that the controller asks.

mod observe;
mod show;

use clap::Args;
use jiff::Timestamp;
use midflight_plan::engine_upgrade::{Forecast, Hold, Policy, World, forecast};

use crate::failure::{Exit, Failure};
use crate::image_name::complete;
use crate::output::Answer;
use crate::session::Session;
use crate::target;
pub(crate) use observe::{all, cluster, seen};

/// Show which volumes would move to another engine image, wave by wave
///
/// Works on every cluster whose API has Longhorn's objects, with nothing installed there. Exits with 0 if
/// what waits can move, or nothing waits; with 3 if nothing can.
#[derive(Debug, Args)]
pub(crate) struct EngineUpgrade {
    /// Image to move to, by its whole name or as `image ls` has it without the host [default: the setting default-engine-image]
    #[arg(long, value_name = "IMAGE", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    to: Option<String>,
    /// Volumes of a node that may move at once [default: the setting, or 1 where it is 0]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
}

impl EngineUpgrade {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let client = target::client(session).await?;
        let (world, volumes) = cluster(&client).await?;
        let target = match &self.to {
            Some(image) => complete(session, image, world.images.keys()),
            None => world.target.clone(),
        };
        let per_node = self.limit.map_or(world.policy.per_node, |limit| limit as usize);
        let world = World { target, policy: Policy { per_node, ..world.policy }, ..world };
        let plan = forecast(&world, &volumes, Timestamp::now());
        session.answer(&shown(&plan))?;
        verdict(&plan)
    }
}

/// A plan as people and programs read it.
pub(crate) fn shown(plan: &Forecast) -> impl Answer + use<> {
    show::Shown::of(plan)
}

/// Whether something that waits cannot move.
pub(crate) fn verdict(plan: &Forecast) -> anyhow::Result<()> {
    let blocked = |why: String, advice: String| Err(Failure::with(Exit::Blocked, why, advice));
    let mut waiting = plan.left_out.iter().filter(|one| one.reason.is_waiting()).peekable();
    match &plan.hold {
        // What waits can move as soon as somebody wants it to.
        None | Some(Hold::Off) => {}
        Some(_) if plan.moves() == 0 && waiting.peek().is_none() => {}
        Some(hold) => return blocked(hold.to_string(), hold.way_out()),
    }
    match waiting.next() {
        Some(one) if plan.moves() == 0 && plan.under_way.is_empty() => blocked(
            format!("no volume can move; {}: {}", one.volume, one.reason),
            one.reason.way_out().into(),
        ),
        _ => Ok(()),
    }
}
