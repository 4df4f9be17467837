//! `midflight status`: the cluster on one screen.

mod observe;
mod show;

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tokio::time::timeout;

use crate::{
    failure::{Exit, Failure, Report},
    session::Session,
};

/// Show the cluster on one screen
///
/// Exits with 0 if the control plane runs and every node is ready, with 1 if it does not run or does not answer, and
/// with 3 if a node is not ready.
#[derive(Debug, Args)]
pub(crate) struct Status {}

/// How long the API may take to answer everything asked here.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// What `status` knows.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Seen {
    folder: String,
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
    nodes: Vec<Node>,
    kinds_built_in: usize,
    kinds_installed: usize,
    objects: i64,
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

impl Status {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let folder = session.folder()?;
        let mut seen = observe::folder(&folder, session)?;
        if seen.problem.is_none() {
            let asked = timeout(ANSWER_WITHIN, observe::api(session, &folder)).await;
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
            "start it with `midflight up`; its log is in the folder's logs/control.log",
        ));
    };
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
