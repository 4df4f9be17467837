//! `midflight upgrade engines`: moves volumes to the default engine image.
//!
//! The invariant: it changes settings only; the controller moves the volumes, whether somebody waits for it or not.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use jiff::Timestamp;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use midflight_api::ImageRef;
use midflight_api::longhorn::{EngineImage, EngineImageState, NAMESPACE, Setting, Volume};
use midflight_api::settings::ENGINE_UPGRADE_LIMIT;
use midflight_plan::engine_upgrade::{self as plan, Forecast, Hold, Reason, forecast};
use serde::Serialize;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::command::plan::engine_upgrade::{all, cluster, shown, verdict};
use crate::failure::{Exit, Failure};
use crate::image_name::complete;
use crate::lookout::Lookout;
use crate::output::{Answer, Paint, table};
use crate::session::Session;
use crate::target;

/// The setting that names the image that volumes move to.
pub(crate) const IMAGE: &str = "default-engine-image";
const PAUSED: &str = "automatic-engine-upgrade-paused";
const LOOK_EVERY: Duration = Duration::from_millis(300);

/// Move volumes to another engine image, live where that is safe
///
/// Turns automatic engine upgrades on and shows the plan; the controller does the rest, and goes on with every image that
/// becomes the default, until --off. With --wait every volume is
/// told of as it arrives; an image that is not on the nodes yet is waited for. Exits with 0 if all that can move has
/// moved, with 3 if something waits, with 4 if time is over.
#[derive(Debug, Args)]
pub(crate) struct Engines {
    /// Image to move to, by its whole name or as `image ls` has it without the host; it becomes the default [default: the setting
    /// default-engine-image]
    #[arg(long, value_name = "IMAGE", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    to: Option<String>,
    /// Volumes of a node that may move at once [default: the setting, or 1 where it is 0]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// Turn automatic engine upgrades off; what has begun goes on
    #[arg(long, conflicts_with_all = ["pause", "resume", "to", "limit", "wait"])]
    off: bool,
    /// Begin nothing further; what has begun goes on
    #[arg(long, conflicts_with_all = ["resume", "to", "limit", "wait"])]
    pause: bool,
    /// Go on after a pause
    #[arg(long)]
    resume: bool,
    /// Wait until nothing more can move
    #[arg(long)]
    wait: bool,
    /// Seconds to wait at most
    #[arg(long, default_value_t = 3600, requires = "wait")]
    timeout: u64,
}

/// A volume that arrived while somebody waited.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Moved {
    volume: String,
    node: String,
    way: &'static str,
    seconds: i64,
    /// For how long the frontend held back requests; nothing where the volume had no clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pause_us: Option<i64>,
}

/// What each volume runs.
type Images = BTreeMap<String, ImageRef>;

/// What there was before the first change.
struct Before {
    default: ImageRef,
    images: Images,
}

/// What became of the upgrade.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Upgraded {
    target: String,
    /// Volumes that run the target.
    there: usize,
    moved: Vec<Moved>,
    left_out: BTreeMap<String, String>,
}

impl Answer for Upgraded {
    fn to_table(&self, _: Paint) -> String {
        let rows = self.moved.iter().map(|one| {
            let pause = one.pause_us.map_or_else(|| "-".to_owned(), milliseconds);
            [one.volume.clone(), one.node.clone(), one.way.to_owned(), format!("{} s", one.seconds), pause]
        });
        let mut text = format!("{} volumes run {}\n", self.there, self.target);
        if !self.moved.is_empty() {
            text += &table(["VOLUME", "NODE", "WAY", "TOOK", "PAUSED"], rows);
        }
        for (volume, reason) in &self.left_out {
            text += &format!("left out: {volume}: {reason}\n");
        }
        text
    }
}

fn milliseconds(us: i64) -> String {
    format!("{:.2} ms", us as f64 / 1000.0)
}

impl Engines {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let client = target::client(session).await?;
        // Before the first change, since the controller may be faster than a look after it.
        let (world, volumes) = cluster(&client).await?;
        let to = self.to.as_ref().map(|image| complete(session, image, world.images.keys()));
        if let Some(image) = &to {
            refuse_misfit(image, &world)?;
        }
        if self.pause || self.resume {
            set(&client, PAUSED, if self.pause { "true" } else { "false" }).await?;
        }
        if let Some(image) = &to {
            set(&client, IMAGE, image.as_str()).await?;
        }
        if let Some(limit) = self.limit_for(&world) {
            set(&client, ENGINE_UPGRADE_LIMIT, &limit.to_string()).await?;
        }
        if self.wait {
            let images = volumes.into_iter().map(|volume| (volume.name.to_string(), volume.current));
            let before = Before { default: world.target, images: images.collect() };
            return self.follow(session, &client, &before).await;
        }
        let look = look(&client).await?;
        session.answer(&shown(&look.plan))?;
        if self.pause || self.off {
            return Ok(());
        }
        match (outcome(&look.plan, &world.target), look.comes()) {
            (Err(_), Some(why)) => Err(Failure::with(
                Exit::Blocked,
                why,
                "`midflight upgrade engines --wait` waits for it; mend what is said of a node, or name another image with --to",
            )),
            (verdict, _) => verdict,
        }
    }

    /// What the limit is to become. An image that was just named keeps all from beginning, too, so that what holds them does not
    /// tell whether they are off.
    fn limit_for(&self, world: &plan::World) -> Option<u32> {
        let is_off = world.policy.per_node == 0;
        // Who only goes on after a pause has not asked for upgrades that are off.
        let is_asked_for = !self.pause && (!self.resume || self.to.is_some());
        match self.off {
            true => Some(0),
            false => self.limit.or((is_off && is_asked_for).then_some(1)),
        }
    }

    /// Tells of every volume that arrives, until nothing more can move.
    async fn follow(&self, session: &Session, client: &Client, before: &Before) -> anyhow::Result<()> {
        let mut lookout = Lookout::until(Instant::now() + Duration::from_secs(self.timeout));
        let (mut moved, mut told) = (Vec::new(), String::new());
        loop {
            let seen = lookout.look(async || look(client).await).await?;
            let plan = &seen.plan;
            for volume in arrivals(&seen.volumes, &plan.target, &before.images, &moved) {
                let one = lookout.look(async || arrival(client, volume).await).await?;
                let pause =
                    one.pause_us.map(|us| format!(", paused {}", milliseconds(us))).unwrap_or_default();
                session.say(format_args!("{}: {} after {} s{pause}", one.volume, one.way, one.seconds));
                moved.push(one);
            }
            let comes = seen.comes();
            let now = seen.progress();
            if now != told {
                session.say(&now);
                told = now;
            }
            let is_held = plan.hold.is_some();
            if plan.under_way.is_empty() && comes.is_none() && (plan.moves() == 0 || is_held) {
                session.answer(&upgraded(plan, moved))?;
                return outcome(plan, &before.default);
            }
            if lookout.is_over() {
                return Err(Failure::with(
                    Exit::TimedOut,
                    format!("not all volumes were there within {} s: {told}", self.timeout),
                    match comes {
                        Some(_) => {
                            "mend what is said of a node, or name another image with --to; it goes on by itself"
                        }
                        None => {
                            "they go on by themselves; `midflight plan engine-upgrade` tells what is left"
                        }
                    },
                ));
            }
            sleep(LOOK_EVERY).await;
        }
    }
}

/// Refuses an image that is known not to fit: as the default, new volumes would get it.
fn refuse_misfit(image: &ImageRef, world: &plan::World) -> anyhow::Result<()> {
    match (plan::World { target: image.clone(), ..world.clone() }).hold() {
        Some(hold @ Hold::Incompatible(_)) => {
            Err(Failure::with(Exit::Blocked, hold.to_string(), hold.way_out()))
        }
        _ => Ok(()),
    }
}

/// Whether something that waits cannot move. Where an image was found not to fit only after it had become the default, also how to go
/// back to the one `before`.
fn outcome(plan: &Forecast, before: &ImageRef) -> anyhow::Result<()> {
    match &plan.hold {
        Some(hold @ Hold::Incompatible(_)) if plan.target != *before && !before.is_empty() => {
            Err(Failure::with(
                Exit::Blocked,
                format!("{hold}; it is the default now, and new volumes get it"),
                format!("`midflight upgrade engines --to {before}` goes back; {}", hold.way_out()),
            ))
        }
        Some(hold @ Hold::Off) if plan.moves() > 0 => {
            Err(Failure::with(Exit::Blocked, hold.to_string(), hold.way_out()))
        }
        _ => verdict(plan),
    }
}

/// What is seen of an upgrade at one moment.
struct Look {
    plan: Forecast,
    volumes: Vec<plan::Volume>,
    /// Which node cannot have the image, and why; nothing if none has failed.
    in_the_way: Option<String>,
}

async fn look(client: &Client) -> anyhow::Result<Look> {
    let (world, volumes) = cluster(client).await?;
    let plan = forecast(&world, &volumes, Timestamp::now());
    let images = all::<EngineImage>(client).await?;
    let target = images.iter().find(|image| image.spec.image == plan.target);
    Ok(Look { in_the_way: target.and_then(trouble), plan, volumes })
}

/// What an engine image says of a node that cannot have it.
fn trouble(image: &EngineImage) -> Option<String> {
    let status = image.status.as_ref().filter(|status| status.state == EngineImageState::Error)?;
    let message = status.conditions.get("ready").map(|condition| condition.message.to_string());
    message.filter(|text| !text.is_empty())
}

impl Look {
    fn progress(&self) -> String {
        let plan = &self.plan;
        let (there, under_way, to_go) = (plan.there, plan.under_way.len(), plan.moves());
        let staying = plan.left_out.iter().filter(|one| !one.reason.is_waiting()).count();
        let waiting = self.volumes.len().saturating_sub(there + under_way + to_go + staying);
        let waiting = if waiting == 0 { String::new() } else { format!(", {waiting} waiting") };
        let why = self.comes().map(|what| format!("; {what}")).unwrap_or_default();
        format!("{there} there, {under_way} on the way, {to_go} to go{waiting}{why}")
    }

    /// Why nothing, or not all, begins yet although nobody has to do anything: the image is on its way to the nodes. What keeps it
    /// from one is told, too.
    fn comes(&self) -> Option<String> {
        let why = comes(&self.plan)?;
        Some(match &self.in_the_way {
            Some(trouble) => format!("{why}; {trouble}"),
            None => why,
        })
    }
}

/// Changes a setting.
pub(crate) async fn set(client: &Client, name: &str, value: &str) -> anyhow::Result<()> {
    let settings: Api<Setting> = Api::namespaced(client.clone(), NAMESPACE);
    let change = Patch::Merge(json!({ "value": value }));
    let set = settings.patch(name, &PatchParams::default(), &change).await;
    set.map(drop).map_err(target::refusal).with_context(|| format!("set {name} to {value}"))
}

/// The same, as the planner says it.
fn comes(plan: &Forecast) -> Option<String> {
    match &plan.hold {
        Some(hold @ (Hold::Unknown { .. } | Hold::Nowhere { .. })) => return Some(hold.to_string()),
        Some(Hold::NoTarget | Hold::Incompatible(_) | Hold::Off | Hold::Paused | Hold::Halted { .. }) => {
            return None;
        }
        None => {}
    }
    let waits =
        |one: &&plan::LeftOut| matches!(one.reason, Reason::NotOnNodes { .. } | Reason::VersionsUnknown);
    plan.left_out.iter().find(waits).map(|one| format!("{}: {}", one.volume, one.reason))
}

/// Volumes that run the target and ran another image before, and that were not told of yet. The attempt may not be written off by
/// then.
fn arrivals<'a>(
    volumes: &'a [plan::Volume],
    target: &ImageRef,
    before: &Images,
    told: &[Moved],
) -> Vec<&'a plan::Volume> {
    let has_arrived = |volume: &&plan::Volume| {
        let was = before.get(volume.name.as_str());
        volume.current == *target && was.is_some_and(|was| was != target)
    };
    let is_new = |volume: &&plan::Volume| told.iter().all(|one| one.volume != volume.name.as_str());
    volumes.iter().filter(has_arrived).filter(is_new).collect()
}

async fn arrival(client: &Client, volume: &plan::Volume) -> anyhow::Result<Moved> {
    let volumes: Api<Volume> = Api::namespaced(client.clone(), NAMESPACE);
    let object = volumes.get_opt(volume.name.as_str()).await.map_err(target::refusal)?;
    let change = object.and_then(|object| object.status).map(|status| status.engine_change);
    let change = change.filter(|change| change.image == volume.current && change.pause_us > 0);
    let attempt = volume.attempt.as_ref().filter(|attempt| attempt.to == volume.current);
    let took = attempt
        .map(|attempt| attempt.ended_at.unwrap_or_else(Timestamp::now).duration_since(attempt.issued_at));
    Ok(Moved {
        volume: volume.name.to_string(),
        node: volume.seat().map(ToString::to_string).unwrap_or_default(),
        way: attempt.map(|attempt| attempt.way.as_str()).unwrap_or_default(),
        seconds: took.map_or(0, |took| took.as_secs()),
        pause_us: change.map(|change| change.pause_us),
    })
}

fn upgraded(plan: &Forecast, moved: Vec<Moved>) -> Upgraded {
    let waiting = plan.left_out.iter().filter(|one| one.reason.is_waiting());
    Upgraded {
        target: plan.target.to_string(),
        there: plan.there,
        moved,
        left_out: waiting.map(|one| (one.volume.to_string(), one.reason.to_string())).collect(),
    }
}

#[cfg(test)]
mod tests {
    use midflight_api::longhorn::{Condition, DataEngine, Replica, Robustness, VolumeState};

    use super::*;
    use crate::command::plan::engine_upgrade::seen;

    fn image(name: &str, state: EngineImageState, says: &str) -> EngineImage {
        let mut image = EngineImage::new(name, Default::default());
        image.spec.image = name.into();
        let status = image.status.get_or_insert_default();
        status.state = state;
        status.node_deployment_map = [("node-1".into(), state == EngineImageState::Deployed)].into();
        status.controller_api_version = i32::from(state == EngineImageState::Deployed);
        let (kind, message) = ("ready".into(), says.into());
        status.conditions.set(Condition { kind, message, ..Condition::default() });
        image
    }

    fn volume(name: &str, image: &str) -> Volume {
        let mut volume = Volume::new(name, Default::default());
        (volume.spec.data_engine, volume.spec.image) = (DataEngine::V1, image.into());
        let status = volume.status.get_or_insert_default();
        (status.state, status.robustness) = (VolumeState::Detached, Robustness::Unknown);
        (status.current_image, status.owner_id) = (image.into(), "node-1".into());
        volume
    }

    #[test]
    fn an_image_that_does_not_come_is_told_with_its_node_and_cause_and_who_waits() {
        let settings = [("default-engine-image", "engine:2"), (ENGINE_UPGRADE_LIMIT, "1")];
        let settings = settings.map(|(name, value)| {
            let mut setting = Setting::default();
            (setting.metadata.name, setting.value) = (Some(name.to_owned()), value.to_owned());
            setting
        });
        let told = |new: EngineImage| {
            let images = [image("engine:1", EngineImageState::Deployed, ""), new];
            let volumes = [volume("a", "engine:1"), volume("b", "engine:1")];
            let replicas = ["a", "b"].map(|volume| {
                let mut replica = Replica::new(volume, Default::default());
                let spec = &mut replica.spec.instance;
                (spec.volume_name, spec.node_id) = (volume.into(), "node-1".into());
                replica
            });
            let (world, volumes) = seen(&volumes, &replicas, &images, &settings);
            let plan = forecast(&world, &volumes, Timestamp::UNIX_EPOCH);
            Look { in_the_way: trouble(&images[1]), plan, volumes }.progress()
        };
        let failed =
            image("engine:2", EngineImageState::Error, "engine:2 on node-1: ErrImagePull: no such image");
        assert_eq!(
            told(failed),
            "0 there, 0 on the way, 0 to go, 2 waiting; engine:2 is not deployed on any node yet; \
             engine:2 on node-1: ErrImagePull: no such image"
        );
        assert_eq!(
            told(image("engine:2", EngineImageState::Deploying, "is brought to node-1")),
            "0 there, 0 on the way, 0 to go, 2 waiting; engine:2 is not deployed on any node yet"
        );
        assert_eq!(told(image("engine:2", EngineImageState::Deployed, "")), "0 there, 0 on the way, 2 to go");
    }

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        engines: Engines,
    }

    #[test]
    fn upgrades_that_are_off_stay_off_unless_they_are_asked_for() {
        for (args, off, on) in [
            (&[][..], Some(1), None),
            (&["--resume"], None, None),
            (&["--pause"], None, None),
            (&["--off"], Some(0), Some(0)),
            (&["--to", "engine:2"], Some(1), None),
            (&["--resume", "--to", "engine:2"], Some(1), None),
            (&["--resume", "--limit", "3"], Some(3), Some(3)),
        ] {
            let line = <Line as clap::Parser>::try_parse_from([&["engines"], args].concat()).unwrap();
            let limit = |per_node| {
                let mut world = plan::World::default();
                world.policy.per_node = per_node;
                line.engines.limit_for(&world)
            };
            assert_eq!((limit(0), limit(2)), (off, on), "{args:?}");
        }
    }
}
