//! `midflight status`: the cluster on one screen.

mod observe;
mod pods;
mod show;
mod storage;
mod upgrades;

use std::time::Duration;

use clap::Args;
use kube::Client;
use serde::Serialize;
use tokio::time::timeout;

use crate::{
    failure::{Exit, Failure, Report},
    session::Session,
    target,
};

/// Show the cluster on one screen
///
/// Nodes, engine images, volumes by state and image, what is going on, upgrades included, and what is blocked and why.
///
/// Exits with 0 if the control plane runs and every node is ready, with 1 if it does not run or does not answer, and
/// with 3 if a node is not ready.
#[derive(Debug, Args)]
pub(crate) struct Status {}

/// How long the API may take to answer everything asked here.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// What `status` knows.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Seen {
    /// Absent where another cluster was asked for.
    folder: Option<String>,
    /// What to give kubectl, for the API that is asked here; absent where the folder has none yet.
    kubeconfig: Option<String>,
    /// The process of the embedded control plane; absent where it does not run.
    control: Option<Control>,
    /// What the API says; absent where it does not answer.
    api: Option<Api>,
    /// Why the API does not answer.
    problem: Option<String>,
    store_bytes: Option<u64>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Control {
    pid: i32,
    version: String,
    since: jiff::Timestamp,
    uptime_seconds: i64,
    address: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Api {
    version: String,
    /// Which of its own checks fail.
    not_ready: Option<String>,
    nodes: Vec<Node>,
    /// Absent where the kinds of volumes are not served.
    storage: Option<storage::Storage>,
    kinds_built_in: usize,
    kinds_installed: usize,
    objects: i64,
    /// Kinds that this user may not list.
    not_counted: Vec<String>,
    resource_version: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Node {
    name: String,
    ready: bool,
    /// Why it is not ready.
    reason: String,
    address: String,
    version: String,
    /// Of its agent, where that runs in this folder.
    pid: Option<i32>,
    last_heard_seconds: Option<i64>,
}

/// Which of these nodes are not ready, and why.
pub(super) async fn not_ready(client: &Client, wanted: &[String]) -> anyhow::Result<Vec<String>> {
    Ok(lacking(&observe::nodes(client, None).await?, wanted))
}

fn lacking(nodes: &[Node], wanted: &[String]) -> Vec<String> {
    let why = |name: &String| match nodes.iter().find(|node| node.name == *name) {
        Some(node) if node.ready => None,
        Some(node) => Some(format!("{name} ({})", node.reason)),
        None => Some(format!("{name} (the API does not know it)")),
    };
    wanted.iter().filter_map(why).collect()
}

impl Status {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let folder = if target::is_elsewhere(session) { None } else { Some(session.folder()?) };
        let mut seen = folder.as_ref().map(observe::folder).transpose()?.unwrap_or_default();
        if let Some(given) = &session.global.kubeconfig {
            seen.kubeconfig = Some(given.display().to_string());
        }
        if seen.problem.is_none() {
            let asked = timeout(ANSWER_WITHIN, observe::api(session, folder.as_ref())).await;
            match asked
                .unwrap_or_else(|_| Err(anyhow::anyhow!("the API did not answer within {ANSWER_WITHIN:?}")))
            {
                Ok(api) => seen.api = Some(api),
                Err(error) => seen.problem = Some(Report::of(&error).to_string()),
            }
        }
        session.answer(&seen)?;
        verdict(&seen)
    }
}

fn verdict(seen: &Seen) -> anyhow::Result<()> {
    let Some(api) = &seen.api else {
        return Err(Failure::error(
            seen.problem.clone().unwrap_or_else(|| "the API does not answer".to_owned()),
            match (&seen.folder, &seen.control) {
                (None, _) => "check --kubeconfig and --context, and that this cluster can be reached",
                (Some(_), None) => "start it with `midflight up`, or name another folder with --dir",
                (Some(_), Some(_)) => {
                    "its log is in the folder's logs/control.log; check --kubeconfig if you gave one"
                }
            },
        ));
    };
    if let Some(failing) = &api.not_ready {
        return Err(Failure::with(
            Exit::Blocked,
            format!("the API is not ready: {failing}"),
            "make sure that the disk is not full; the folder's logs/control.log says more",
        ));
    }
    let waiting: Vec<&str> =
        api.nodes.iter().filter(|node| !node.ready).map(|node| node.name.as_str()).collect();
    if waiting.is_empty() {
        return Ok(());
    }
    Err(Failure::with(
        Exit::Blocked,
        format!("not ready: {}", waiting.join(", ")),
        "start what has died with `midflight up`; the nodes' logs are in the folder's logs/",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, ready: bool, reason: &str) -> Node {
        Node {
            name: name.into(),
            ready,
            reason: reason.into(),
            address: String::new(),
            version: String::new(),
            pid: None,
            last_heard_seconds: None,
        }
    }

    #[test]
    fn names_the_nodes_that_are_waited_for() {
        let wanted = ["node-1", "node-2", "node-3"].map(str::to_owned);
        let nodes =
            [node("node-1", true, ""), node("node-2", false, "not heard of"), node("other", false, "")];
        assert_eq!(lacking(&nodes, &wanted), ["node-2 (not heard of)", "node-3 (the API does not know it)"]);
        assert!(lacking(&nodes, &wanted[..1]).is_empty());
    }
}
