//! Tells of an upgrade of nodes as it moves, until it is over.

use anyhow::Context;
use jiff::Timestamp;
use kube::Client;
use kube::api::{Api, ListParams};
use midflight_api::NodeName;
use midflight_api::longhorn::{
    DataEngineUpgradeManager, DataEngineUpgradeManagerStatus, NAMESPACE, NodeDataEngineUpgrade,
    UpgradeNodeStatus, UpgradeState,
};
use midflight_plan::node_upgrade::Pace;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::LOOK_EVERY;
use super::view::View;
use crate::failure::{Exit, Failure};
use crate::lookout::Lookout;
use crate::output::{Answer, Paint, duration, milliseconds, size, table};
use crate::session::Session;
use crate::target;

/// What became of the upgrade.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Upgraded {
    image: String,
    state: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
    longest_pause_us: i64,
    nodes: Vec<Node>,
    volumes: Vec<Moved>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Node {
    node: String,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<i64>,
    longest_pause_us: i64,
    /// Copied to replicas of the node when they came back.
    rebuilt_bytes: u64,
    failures: i32,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
}

/// A volume whose engine went elsewhere and came back.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Moved {
    volume: String,
    node: String,
    served_by: String,
    pause_us: i64,
    longest_wait_us: i64,
}

impl Answer for Upgraded {
    fn to_table(&self, _: Paint) -> String {
        let to = if self.image.is_empty() { String::new() } else { format!(" to {}", self.image) };
        let pause = match self.longest_pause_us {
            0 => String::new(),
            pause => format!(", longest pause {}", milliseconds(pause)),
        };
        let mut text = format!("{}{to}{pause}\n", self.state);
        if self.nodes.is_empty() {
            return text;
        }
        let rows = self.nodes.iter().map(|one| {
            let took = one.seconds.map_or("-".to_owned(), duration);
            [
                one.node.clone(),
                one.state.to_owned(),
                took,
                milliseconds(one.longest_pause_us),
                size(one.rebuilt_bytes),
                one.message.clone(),
            ]
        });
        text += &table(["NODE", "STATE", "TOOK", "LONGEST PAUSE", "COPIED BACK", "MESSAGE"], rows);
        if !self.volumes.is_empty() {
            let rows = self.volumes.iter().map(|one| {
                let (pause, wait) = (milliseconds(one.pause_us), milliseconds(one.longest_wait_us));
                [one.volume.clone(), one.node.clone(), one.served_by.clone(), pause, wait]
            });
            text += "\n";
            text += &table(["VOLUME", "NODE", "MEANWHILE ON", "LONGEST PAUSE", "LONGEST WAIT"], rows);
        }
        text
    }
}

/// Tells every step, until the upgrade is over or time is. `pace` is what nodes are thought to take before one of these has told.
pub(super) async fn follow(
    session: &Session,
    client: &Client,
    name: &str,
    pace: Pace,
    deadline: Instant,
) -> anyhow::Result<()> {
    let upgrades: Api<DataEngineUpgradeManager> = Api::namespaced(client.clone(), NAMESPACE);
    let (mut lookout, mut view) = (Lookout::until(deadline), View::default());
    loop {
        let look = async || {
            let upgrade = upgrades.get_opt(name).await.map_err(target::refusal);
            let upgrade = upgrade.context("look at the upgrade")?.ok_or_else(|| gone(name))?;
            Ok((upgrade, children_of(client, name).await?))
        };
        let (upgrade, of) = lookout.look(look).await?;
        let status = upgrade.status.clone().unwrap_or_default();
        for line in view.news(&upgrade, &of, pace, Timestamp::now()) {
            session.say(line);
        }
        match status.state {
            UpgradeState::Completed => return session.answer(&upgraded(&status, &of)),
            UpgradeState::Error if is_told(&upgrade) => {
                session.answer(&upgraded(&status, &of))?;
                return Err(failed(name, &status));
            }
            UpgradeState::Undefined
            | UpgradeState::Initializing
            | UpgradeState::Upgrading
            | UpgradeState::Error => {}
        }
        if lookout.is_over() {
            return Err(Failure::with(
                Exit::TimedOut,
                format!("the node upgrade `{name}` is not over: {}", status.message),
                "it goes on by itself; the same command with --wait follows it",
            ));
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Tells where an upgrade stands.
pub(super) async fn show(session: &Session, client: &Client, name: &str) -> anyhow::Result<()> {
    let upgrades: Api<DataEngineUpgradeManager> = Api::namespaced(client.clone(), NAMESPACE);
    let upgrade = upgrades.get_opt(name).await.map_err(target::refusal).context("look at the upgrade")?;
    let status = upgrade.ok_or_else(|| gone(name))?.status.unwrap_or_default();
    session.answer(&upgraded(&status, &children_of(client, name).await?))?;
    match status.state {
        UpgradeState::Completed => Ok(()),
        UpgradeState::Error => Err(failed(name, &status)),
        UpgradeState::Undefined | UpgradeState::Initializing | UpgradeState::Upgrading => {
            if !status.message.is_empty() {
                session.say(&status.message);
            }
            session.say(format_args!(
                "it is under way: `midflight upgrade nodes --name {name} --wait` follows it"
            ));
            Ok(())
        }
    }
}

fn failed(name: &str, status: &DataEngineUpgradeManagerStatus) -> anyhow::Error {
    Failure::with(
        Exit::Blocked,
        format!("the node upgrade `{name}` has failed: {}", status.message),
        format!("take away what is in the way, then `midflight upgrade nodes --name {name} --resume --wait`"),
    )
}

async fn children_of(client: &Client, name: &str) -> anyhow::Result<Vec<NodeDataEngineUpgrade>> {
    let children: Api<NodeDataEngineUpgrade> = Api::namespaced(client.clone(), NAMESPACE);
    let all = children.list(&ListParams::default()).await.map_err(target::refusal)?;
    Ok(all.into_iter().filter(|child| child.spec.data_engine_upgrade_manager == *name).collect())
}

/// An upgrade goes only when its nodes are back, or were done.
fn gone(name: &str) -> anyhow::Error {
    Failure::error(
        format!("the node upgrade `{name}` is gone: somebody has deleted it, and nothing of it is under way"),
        "`midflight upgrade nodes --wait` begins again",
    )
}

/// Whether the status speaks of the spec as it is.
pub(super) fn is_told(upgrade: &DataEngineUpgradeManager) -> bool {
    let observed = upgrade.status.as_ref().map(|status| status.observed_generation);
    observed == upgrade.metadata.generation
}

fn upgraded(status: &DataEngineUpgradeManagerStatus, children: &[NodeDataEngineUpgrade]) -> Upgraded {
    let node = |(name, entry): (&NodeName, &UpgradeNodeStatus)| Node {
        node: name.to_string(),
        state: entry.state.as_str(),
        seconds: took(entry),
        longest_pause_us: entry.longest_pause_us,
        rebuilt_bytes: rebuilt(name, children),
        failures: entry.failures,
        message: entry.message.to_string(),
    };
    let volumes = children.iter().flat_map(|child| {
        let entries = child.status.iter().flat_map(|status| &status.volumes);
        entries.filter(|(_, entry)| !entry.temporary_node_id.is_empty()).map(|(volume, entry)| Moved {
            volume: volume.to_string(),
            node: child.spec.node_id.to_string(),
            served_by: entry.temporary_node_id.to_string(),
            pause_us: entry.pause_us,
            longest_wait_us: entry.longest_wait_us,
        })
    });
    Upgraded {
        image: status.instance_manager_image.to_string(),
        state: status.state.as_str(),
        message: status.message.to_string(),
        longest_pause_us: status.longest_pause_us,
        nodes: status.upgrade_nodes.iter().map(node).collect(),
        volumes: volumes.collect(),
    }
}

/// Bytes that were copied to the replicas of a node.
fn rebuilt(node: &NodeName, children: &[NodeDataEngineUpgrade]) -> u64 {
    let of_node = children.iter().filter(|child| child.spec.node_id == *node);
    let volumes = of_node.flat_map(|child| child.status.iter().flat_map(|status| status.volumes.values()));
    volumes.map(|volume| u64::try_from(volume.rebuilt_bytes).unwrap_or(0)).sum()
}

fn took(entry: &UpgradeNodeStatus) -> Option<i64> {
    let began: Timestamp = entry.started_at.as_str().parse().ok()?;
    let ended: Timestamp = entry.completed_at.as_str().parse().ok()?;
    Some(ended.duration_since(began).as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_pause_of_any_node_is_told_first() {
        let status = DataEngineUpgradeManagerStatus {
            state: UpgradeState::Completed,
            instance_manager_image: "im:2".into(),
            longest_pause_us: 1500,
            ..DataEngineUpgradeManagerStatus::default()
        };
        let told = upgraded(&status, &[]);
        assert_eq!(told.to_table(Paint { on: false }), "completed to im:2, longest pause 1.50 ms\n");
        assert_eq!(serde_json::to_value(&told).unwrap()["longestPauseUs"], 1500);
        let none = upgraded(&DataEngineUpgradeManagerStatus { longest_pause_us: 0, ..status }, &[]);
        assert_eq!(none.to_table(Paint { on: false }), "completed to im:2\n");
    }
}
