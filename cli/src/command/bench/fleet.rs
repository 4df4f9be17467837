//! `midflight bench fleet`: controllers before a whole fleet of volumes that have no engine behind them.
//!
//! The API server and the controllers are the real ones, in this process; only the engines are
//! hollow: they bring a volume to the image it wants after a given time. The invariant: a watch sees
//! every write, so that the limit is looked at after each of them.

mod hollow;
mod settle;
mod watch;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, ValueEnum};
use kube::api::{Api, Patch, PatchParams};
use midflight_api::longhorn::{NAMESPACE, Setting};
use midflight_apiserver::auth::Identity;
use midflight_apiserver::{ApiServer, Config};
use midflight_operator::{Figures, Writer};
use serde::Serialize;
use serde_json::json;
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

use super::conditions::Conditions;
use super::figure::{Better, Figure, show};
use crate::args::Format;
use crate::cluster::Interrupts;
use crate::failure::Failure;
use crate::output::{Answer, Paint};
use crate::session::Session;

/// How often it is asked whether the controller knows all volumes, and how long that may take.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const KNOWN_WITHIN: Duration = Duration::from_secs(600);

/// Measure controllers before a fleet of hollow volumes
///
/// Prepares an API server with the volumes in a temporary folder, for each scenario anew. With `engine-upgrade`, turns automatic engine upgrades on
/// and waits until every volume runs the new image; the peer is the shortest time that the limit allows. With `volumes`, starts
/// all storage controllers, waits until they know every volume, and measures what one event costs; the peer is the same with 1,000
/// volumes.
#[derive(Debug, Args)]
pub(crate) struct FleetBench {
    /// What happens to the fleet
    #[arg(long, default_value = "all")]
    scenario: Scenario,
    /// Nodes of the fleet
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=5000))]
    nodes: u32,
    /// Volumes of the fleet, spread evenly
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    volumes: u32,
    /// Volumes of a node that may move at once
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// How long one upgrade takes
    #[arg(long, default_value_t = 10, value_name = "SECONDS")]
    upgrade_takes: u64,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Scenario {
    /// Both, one after the other
    All,
    /// Every volume moves to another engine image
    EngineUpgrade,
    /// All storage controllers start before volumes at rest
    Volumes,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Measured {
    #[serde(flatten)]
    conditions: Conditions,
    nodes: u32,
    volumes: u32,
    limit: u32,
    /// The most volumes of one node that were on their way after any write.
    most_at_once: u32,
    figures: Vec<Figure>,
}

impl Answer for Measured {
    fn to_table(&self, _: Paint) -> String {
        let fleet = format!("{} nodes, {} volumes, limit {}", self.nodes, self.volumes, self.limit);
        let most = format!("never more than {} of a node at once", self.most_at_once);
        format!("{}\n{fleet}; {most}\n\n{}", self.conditions, show(&self.figures))
    }
}

/// What controllers cost before a fleet at rest.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Settled {
    #[serde(flatten)]
    conditions: Conditions,
    nodes: u32,
    volumes: u32,
    figures: Vec<Figure>,
}

impl Answer for Settled {
    fn to_table(&self, _: Paint) -> String {
        let fleet = format!("{} nodes, {} volumes", self.nodes, self.volumes);
        format!("{}\n{fleet}\n\n{}", self.conditions, show(&self.figures))
    }
}

/// Every scenario.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct All {
    volumes: Settled,
    /// Missing where it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    engine_upgrade: Option<Measured>,
}

impl Answer for All {
    /// The figures of volumes were shown when they were there.
    fn to_table(&self, paint: Paint) -> String {
        self.engine_upgrade
            .as_ref()
            .map(|measured| format!("\n{}", measured.to_table(paint)))
            .unwrap_or_default()
    }
}

impl FleetBench {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let mut interrupts = Interrupts::listen().context("listen for signals")?;
        let most = match self.scenario {
            Scenario::All => self.all(session, &mut interrupts).await?,
            Scenario::EngineUpgrade => {
                let measured = self.upgrade(session, &mut interrupts).await?;
                session.answer(&measured)?;
                measured.most_at_once
            }
            Scenario::Volumes => return session.answer(&self.settle(session, &mut interrupts).await?),
        };
        if most > self.limit {
            return Err(Failure::error(
                format!("{most} volumes of a node moved at once"),
                "report this: the limit must never be exceeded",
            ));
        }
        Ok(())
    }

    /// Says how many volumes of a node were on their way at once. What the first scenario has told is not lost when
    /// the second fails.
    async fn all(&self, session: &Session, interrupts: &mut Interrupts) -> anyhow::Result<u32> {
        // First, since it looks at how the process grows.
        let volumes = self.settle(session, interrupts).await?;
        if session.global.output == Format::Table {
            session.answer(&volumes)?;
        }
        let measured = self.upgrade(session, interrupts).await;
        let most = measured.as_ref().map(|measured| measured.most_at_once).unwrap_or_default();
        let (engine_upgrade, failed) = match measured {
            Ok(measured) => (Some(measured), None),
            Err(error) => (None, Some(error)),
        };
        session.answer(&All { volumes, engine_upgrade })?;
        failed.map_or(Ok(most), Err)
    }

    async fn settle(&self, session: &Session, interrupts: &mut Interrupts) -> anyhow::Result<Settled> {
        let conditions = Conditions::before();
        let say = |text: String| session.say(text);
        let figures = tokio::select! {
            figures = settle::measure(self.nodes, self.volumes, &say) => figures?,
            () = interrupts.next() => return Err(interrupted()),
        };
        let (nodes, volumes) = (self.nodes, self.volumes);
        Ok(Settled { conditions: conditions.after(), nodes, volumes, figures })
    }

    async fn upgrade(&self, session: &Session, interrupts: &mut Interrupts) -> anyhow::Result<Measured> {
        let folder = TempDir::with_prefix("midflight-fleet.").context("make a temporary folder")?;
        let server = ApiServer::open(Config::new(folder.path())).await.context("open an API server")?;
        let measured = tokio::select! {
            measured = self.measure(session, &server) => measured,
            () = interrupts.next() => Err(interrupted()),
        };
        server.shutdown().await;
        measured
    }

    async fn measure(&self, session: &Session, server: &ApiServer) -> anyhow::Result<Measured> {
        let conditions = Conditions::before();
        let client = kube::Client::new(server.service(Identity::admin("system:midflight")), "default");
        midflight_operator::bootstrap(&client).await.context("install the kinds")?;
        session.say(format_args!("preparing {} volumes on {} nodes", self.volumes, self.nodes));
        hollow::prepare(&client, self.nodes, self.volumes).await?;

        let takes = Duration::from_secs(self.upgrade_takes);
        let watching = watch::begin(&client).await?;
        let engines = tokio::spawn(hollow::engines(client.clone(), takes));
        let (writer, figures) = (Arc::new(Writer::new(client.clone())), Figures::default());
        let controller = tokio::spawn(midflight_operator::run_engine_upgrades(writer, figures.clone()));
        let all_known = async {
            while figures.upgrades_waiting() < i64::from(self.volumes) {
                sleep(LOOK_EVERY).await;
            }
        };
        timeout(KNOWN_WITHIN, all_known).await.context("wait until the controller knows all volumes")?;
        session.say("upgrading");
        let began = Instant::now();
        set_limit(&client, self.limit).await?;
        let seen = watching.until_all_moved(self.volumes).await;
        engines.abort();
        controller.abort();
        let seen = seen?;

        let busiest = self.volumes.div_ceil(self.nodes).div_ceil(self.limit);
        let least = (takes * busiest).as_secs_f64();
        let took = seen.last.duration_since(began).as_secs_f64();
        let first = seen.first.duration_since(began).as_secs_f64() * 1000.0;
        let writes = seen.writes_of_controller as f64 / f64::from(self.volumes);
        let figures = [
            Figure::new("all volumes moved", "s", Better::Lower, &[took], &[least]),
            Figure::new("first begins after the setting changed", "ms", Better::Lower, &[first], &[]),
            Figure::new("writes of the controller per volume", "", Better::Lower, &[writes], &[]),
        ];
        Ok(Measured {
            conditions: conditions.after(),
            nodes: self.nodes,
            volumes: self.volumes,
            limit: self.limit,
            most_at_once: seen.most_at_once,
            figures: figures.into_iter().flatten().collect(),
        })
    }
}

fn interrupted() -> anyhow::Error {
    Failure::error("interrupted", "start it again any time")
}

async fn set_limit(client: &kube::Client, limit: u32) -> anyhow::Result<()> {
    let settings: Api<Setting> = Api::namespaced(client.clone(), NAMESPACE);
    let change = Patch::Merge(json!({ "value": limit.to_string() }));
    let name = midflight_api::settings::ENGINE_UPGRADE_LIMIT;
    settings.patch(name, &PatchParams::default(), &change).await.context("set the limit")?;
    Ok(())
}
