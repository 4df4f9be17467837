//! The loop of an agent: look, decide, tell the API, rest.

use std::{
    io,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
};
use tokio::{sync::oneshot, time::timeout};
use tracing::{info, warn};

use crate::{
    Backoff, Config,
    connect::{ConnectError, connect},
    machine::{Health, Machine},
    node::{self, FIELD_MANAGER, LEASE_NAMESPACE, Since},
    schedule::{Step, Told, next},
};

/// Longest wait for one answer of the API.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Why one step failed. Each is tried again.
#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error("connect to the API")]
    Connect(#[from] ConnectError),
    #[error("look at the machine")]
    Machine(#[source] io::Error),
    #[error("{step:?}")]
    Refused { step: Step, source: Box<kube::Error> },
    #[error("{step:?}: no answer within {ANSWER_WITHIN:?}")]
    NoAnswer { step: Step },
}

/// Is a node until the future is dropped. Says once on `ready` that the API
/// knows the node, its status and its lease.
pub async fn run(config: Config, ready: oneshot::Sender<()>) {
    let mut ready = Some(ready);
    let mut agent = Agent { config, connection: None, said: Said::default() };
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
    loop {
        let rest = match agent.step().await {
            Ok(Step::Rest(rest)) => {
                backoff.succeeded();
                if let Some(ready) = ready.take() {
                    info!(node = agent.config.name, "the API knows this node");
                    // Whoever started us may have lost interest.
                    let _ = ready.send(());
                }
                rest
            }
            Ok(Step::Register | Step::ReportStatus | Step::RenewLease) => continue,
            Err(error) => {
                let wait = backoff.failed();
                warn!(node = agent.config.name, ?wait, error = chain(&error), "step failed");
                agent.connection = None;
                wait
            }
        };
        tokio::time::sleep(rest).await;
    }
}

struct Agent {
    config: Config,
    connection: Option<Client>,
    said: Said,
}

/// What the API acknowledged in this connection or an earlier one.
#[derive(Default)]
struct Said {
    node_uid: Option<String>,
    since: Since,
    status: Option<(Instant, Health)>,
    lease: Option<Instant>,
}

impl Said {
    fn told(&self) -> Told {
        Told {
            registered: self.node_uid.is_some(),
            status: self.status.map(|(at, health)| (at.elapsed(), health)),
            lease: self.lease.map(|at| at.elapsed()),
        }
    }
}

impl Agent {
    async fn step(&mut self) -> Result<Step, StepError> {
        let health = Health::look(&self.config.data).map_err(StepError::Machine)?;
        let step = next(&self.said.told(), health);
        let client = match &self.connection {
            Some(client) => client.clone(),
            None => self.connection.insert(connect(&self.config.kubeconfig).await?).clone(),
        };
        let done = timeout(ANSWER_WITHIN, self.act(step, health, client)).await;
        match done.map_err(|_| StepError::NoAnswer { step })? {
            Ok(()) => Ok(step),
            Err(StepError::Refused { step, source }) => {
                if matches!(&*source, kube::Error::Api(status) if status.is_not_found()) {
                    // Someone deleted the node: be born again.
                    self.said = Said::default();
                }
                Err(StepError::Refused { step, source })
            }
            Err(error) => Err(error),
        }
    }

    async fn act(&mut self, step: Step, health: Health, client: Client) -> Result<(), StepError> {
        let refused = |source| StepError::Refused { step, source: Box::new(source) };
        let name = self.config.name.as_str();
        let how = PatchParams::apply(FIELD_MANAGER).force();
        let nodes: Api<Node> = Api::all(client.clone());
        match step {
            Step::Rest(_) => {}
            Step::Register => {
                let object = node::node(&self.config);
                let node = nodes.patch(name, &how, &Patch::Apply(&object)).await.map_err(refused)?;
                self.said.since = node::since(&node);
                self.said.node_uid = Some(node.uid().unwrap_or_default());
            }
            Step::ReportStatus => {
                let machine = Machine::look(&self.config.data).map_err(StepError::Machine)?;
                let object = node::status(&self.config, &machine, health, &self.said.since, Timestamp::now());
                let node = nodes.patch_status(name, &how, &Patch::Apply(&object)).await.map_err(refused)?;
                self.said.since = node::since(&node);
                self.said.status = Some((Instant::now(), health));
            }
            Step::RenewLease => {
                let leases: Api<Lease> = Api::namespaced(client, LEASE_NAMESPACE);
                let uid = self.said.node_uid.as_deref().unwrap_or_default();
                let object = node::lease(&self.config, uid, Timestamp::now());
                leases.patch(name, &how, &Patch::Apply(&object)).await.map_err(refused)?;
                self.said.lease = Some(Instant::now());
            }
        }
        Ok(())
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}
