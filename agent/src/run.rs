//! The loop of an agent: look, decide, tell the API, rest.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use futures::{
    FutureExt,
    future::{BoxFuture, Shared},
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
    Backoff, Config, chain,
    connect::{ConnectError, connect},
    csi::{self, CsiConfig, Images},
    image::{ImageName, NameError, Puller, Store, collect},
    machine::{Health, Machine},
    node::{self, FIELD_MANAGER, LEASE_NAMESPACE, Since},
    pod::{self, CSI_SOCKET, Claims, Shell},
    schedule::{Looked, Step, Told, next},
};

/// How long a pod waits for the daemon of a volume before it is tried again.
const VOLUME_WITHIN: Duration = Duration::from_secs(20);
/// How often daemons of datasets that nobody uses are looked at; a folder has few nodes.
const LOOK_AT_IDLE_EVERY: Duration = Duration::from_secs(5);
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

/// Is a node until the future is dropped; its pods go on. Says once on `ready` that the API
/// knows the node, its status and its lease.
pub async fn run(config: Config, ready: oneshot::Sender<()>) -> io::Result<()> {
    let store = Store::open(&config.data.join(Store::FOLDER))?;
    let images = Puller::new(store, config.neighbours.clone());
    let shell = Arc::new(Shell { images, claims: Claims::default(), config });
    tokio::select! {
        () = be_node(shell.clone(), ready) => {}
        () = pod::run(shell.clone()) => {}
        () = serve_volumes(&shell) => {}
        served = pod::serve(shell.clone()) => return served,
        () = collect(&shell.images.store, &shell.config.data, || pod::images_in_use(&shell)) => {}
    }
    Ok(())
}

/// The CSI plugin of the node, for as long as the agent runs. Without root there is none: nothing can be mounted.
async fn serve_volumes(shell: &Arc<Shell>) {
    if !rustix::process::geteuid().is_root() {
        return std::future::pending().await;
    }
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
    loop {
        let wait = match serve_csi(shell).await {
            Ok(()) => return,
            Err(error) => {
                let wait = backoff.failed();
                let node = &shell.config.name;
                warn!(node, ?wait, error = chain(&*error), "the CSI plugin does not serve");
                wait
            }
        };
        tokio::time::sleep(wait).await;
    }
}

async fn serve_csi(shell: &Arc<Shell>) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let config = &shell.config;
    let client = connect(&config.kubeconfig).await?;
    let csi = CsiConfig {
        node: config.name.clone(),
        socket: config.run.join(CSI_SOCKET),
        // As the table of mounts has it.
        root: std::fs::canonicalize(&config.data)?,
        state: config.data.join("csi"),
        patience: VOLUME_WITHIN,
        look_at_idle_every: LOOK_AT_IDLE_EVERY,
    };
    let images = images(Arc::clone(shell), client.clone());
    Ok(csi::serve_with(csi, client, images, || ()).await?)
}

/// How a pull ended.
type Pulled = Result<(), String>;

/// This agent brings images. A pull goes on though nobody waits for it any more: who asks again hears how it ended.
fn images(shell: Arc<Shell>, client: Client) -> Images {
    let under_way: Arc<Mutex<HashMap<String, Shared<BoxFuture<'static, Pulled>>>>> = Arc::default();
    Images::Agent(Arc::new(move |image: String| {
        let begin = || pull(Arc::clone(&shell), client.clone(), image.clone()).shared();
        let pulling = held(&under_way).entry(image.clone()).or_insert_with(begin).clone();
        let under_way = Arc::clone(&under_way);
        pulling.inspect(move |_| drop(held(&under_way).remove(&image))).boxed()
    }))
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pull(shell: Arc<Shell>, client: Client, image: String) -> BoxFuture<'static, Pulled> {
    let pulling = tokio::spawn(async move {
        let image: ImageName = image.parse().map_err(|error: NameError| chain(&error))?;
        shell.images.pull(&image, false, &client).await.map(drop).map_err(|error| chain(&error))
    });
    pulling.map(|pulled| pulled.unwrap_or_else(|error| Err(chain(&error)))).boxed()
}

async fn be_node(shell: Arc<Shell>, ready: oneshot::Sender<()>) {
    let mut ready = Some(ready);
    let config = shell.config.clone();
    let mut agent = Agent { config, shell, connection: None, said: Said::default() };
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
                // Others may have called the node lost meanwhile.
                agent.said.status = None;
                wait
            }
        };
        // Others wait for what is pulled, and for what can be known of it.
        tokio::select! {
            () = tokio::time::sleep(rest) => {}
            () = agent.shell.images.store.changed() => {}
        }
    }
}

struct Agent {
    config: Config,
    shell: Arc<Shell>,
    connection: Option<Client>,
    said: Said,
}

/// What the API acknowledged in this connection or an earlier one.
#[derive(Default)]
struct Said {
    node_uid: Option<String>,
    /// What the images of the node speak.
    engines: String,
    since: Since,
    status: Option<(Instant, Looked)>,
    lease: Option<Instant>,
}

impl Said {
    fn told(&self) -> Told {
        Told {
            registered: self.node_uid.is_some(),
            status: self.status.map(|(at, looked)| (at.elapsed(), looked)),
            lease: self.lease.map(|at| at.elapsed()),
        }
    }
}

impl Agent {
    async fn step(&mut self) -> Result<Step, StepError> {
        let health = Health::look(&self.config.data).map_err(StepError::Machine)?;
        let looked = Looked { health, images: self.shell.images.store.changes() };
        let step = next(&self.said.told(), looked);
        let client = match &self.connection {
            Some(client) => client.clone(),
            None => self.connection.insert(connect(&self.config.kubeconfig).await?).clone(),
        };
        let done = timeout(ANSWER_WITHIN, self.act(step, looked, client)).await;
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

    async fn act(&mut self, step: Step, looked: Looked, client: Client) -> Result<(), StepError> {
        let refused = |source| StepError::Refused { step, source: Box::new(source) };
        let name = self.config.name.as_str();
        let how = PatchParams::apply(FIELD_MANAGER).force();
        let nodes: Api<Node> = Api::all(client.clone());
        match step {
            Step::Rest(_) => {}
            Step::Register => {
                let engines = node::engines(&self.shell.images.store.list());
                let object = node::node(&self.config, &engines);
                let node = nodes.patch(name, &how, &Patch::Apply(&object)).await.map_err(refused)?;
                self.said.since = node::since(&node);
                self.said.node_uid = node.uid();
                self.said.engines = engines;
            }
            Step::ReportStatus => {
                let machine = Machine::look(&self.config.data).map_err(StepError::Machine)?;
                let (since, images) = (&self.said.since, self.shell.images.store.list());
                // Before the image is listed, so that whoever sees it there knows what can be known of it.
                let engines = node::engines(&images);
                if engines != self.said.engines {
                    let object = node::node(&self.config, &engines);
                    nodes.patch(name, &how, &Patch::Apply(&object)).await.map_err(refused)?;
                    self.said.engines = engines;
                }
                let now = Timestamp::now();
                let object = node::status(&self.config, &machine, (looked.health, &images), since, now);
                let node = nodes.patch_status(name, &how, &Patch::Apply(&object)).await.map_err(refused)?;
                self.said.since = node::since(&node);
                self.said.status = Some((Instant::now(), looked));
            }
            Step::RenewLease => {
                // The lease comes back by itself when it is renewed; a node that somebody deleted does not.
                let known = nodes.get_metadata_opt(name).await.map_err(refused)?;
                if known.and_then(|node| node.metadata.uid) != self.said.node_uid {
                    info!(node = name, "the node was deleted; registers again");
                    self.said = Said::default();
                    return Ok(());
                }
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
