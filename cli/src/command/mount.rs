//! `midflight mount`: which nodes serve a dataset, with which daemon, and who keeps each busy.

pub(crate) mod observe;
mod show;

use clap::{Args, Subcommand};
use serde::Serialize;

use crate::{failure::Failure, session::Session, target};

/// See mounted datasets, and which nodes still run an old daemon
#[derive(Debug, Args)]
pub(crate) struct Mount {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List datasets, with the nodes on old and new daemons
    Ls(Ls),
    /// Show a dataset's nodes, and who keeps each busy
    Show(Show),
}

#[derive(Debug, Args)]
struct Ls {
    /// Only those of this namespace [default: all]
    #[arg(short, long)]
    namespace: Option<String>,
}

#[derive(Debug, Args)]
struct Show {
    /// Name of the dataset
    dataset: String,
    /// Its namespace
    #[arg(short, long, default_value = "default")]
    namespace: String,
}

/// A dataset and its daemons.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Mounted {
    namespace: String,
    dataset: String,
    /// Where it stands, such as `Bound`.
    phase: String,
    /// Why workloads cannot mount it, or not everywhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    waits_for: Option<String>,
    /// `OnDelete` or `OnIdle`.
    strategy: String,
    /// The image that daemons should run.
    pub(crate) image: String,
    /// Counter of changes.
    generation: String,
    nodes: Vec<Node>,
}

/// A node with a daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Node {
    name: String,
    pub(crate) image: String,
    generation: String,
    /// Whether the daemon is what is wanted.
    pub(crate) up_to_date: bool,
    ready: bool,
    /// Why the daemon is not ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    waits_for: Option<String>,
    /// Pods that use the dataset there.
    pub(crate) used_by: Vec<User>,
}

/// A pod that uses a dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct User {
    namespace: String,
    pub(crate) pod: String,
    /// When it was started.
    since: Option<jiff::Timestamp>,
}

impl User {
    /// Its name, to somebody who thinks of a namespace.
    fn named(&self, namespace: &str) -> String {
        if self.namespace == namespace {
            self.pod.clone()
        } else {
            format!("{}/{}", self.namespace, self.pod)
        }
    }
}

impl Mounted {
    /// A node that has a daemon.
    pub(crate) fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.iter().find(|node| node.name == name)
    }
}

impl Mount {
    pub(crate) async fn run(self, session: &Session) -> anyhow::Result<()> {
        let client = target::client(session).await?;
        match self.what {
            What::Ls(ls) => session.answer(&observe::all(&client, ls.namespace.as_deref()).await?),
            What::Show(show) => match observe::one(&client, &show.namespace, &show.dataset).await? {
                Some(mounted) => session.answer(&mounted),
                None => Err(Failure::error(
                    format!("there is no dataset {} in {}", show.dataset, show.namespace),
                    "`midflight mount ls` lists those there are",
                )),
            },
        }
    }
}
