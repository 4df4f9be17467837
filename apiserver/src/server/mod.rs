//! The server as a whole: what it is made of, how it is opened and closed.
//!
//! The one invariant: there is one `Shared` per open store, and everything that
//! reads or writes goes through it, whether it came over TLS or from inside the
//! process.

mod bootstrap;
mod config;
mod listen;
mod service;
mod stall;
mod streams;
mod supervise;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use config::{Config, OpenError};
pub use listen::{BindError, Listening};
pub use service::Service;
pub(crate) use supervise::reason;
use supervise::supervise;

use crate::admission::Webhooks;
use crate::auth::{Authorizer, Identity, TokenError, Tokens};
use crate::collect;
use crate::http::{Annex, DocumentCache, Nodes, definition};
use crate::limits::{Gate, Limits};
use crate::metrics::Metrics;
use crate::registry::{Registry, definitions};
use crate::store::{Change, Guard, Store, Stored, WriteError};
use crate::tls::Certificates;

/// How often the server looks whether its certificate nears its end.
const RENEWAL_CHECK: Duration = Duration::from_secs(6 * 3600);
/// How long open connections may take to finish what they do.
const SHUTDOWN_TIME: Duration = Duration::from_secs(5);

/// An open API server. Clones speak to the same one.
#[derive(Debug, Clone)]
pub struct ApiServer {
    pub(crate) shared: Arc<Shared>,
    tasks: TaskTracker,
}

/// What every request needs.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Store,
    pub(crate) registry: Registry,
    pub(crate) tokens: Tokens,
    pub(crate) authorizer: Authorizer,
    pub(crate) gate: Gate,
    pub(crate) limits: Limits,
    pub(crate) metrics: Metrics,
    pub(crate) webhooks: Webhooks,
    pub(crate) documents: DocumentCache,
    pub(crate) certificates: Certificates,
    pub(crate) annexes: Vec<Arc<dyn Annex>>,
    pub(crate) nodes: Option<Arc<dyn Nodes>>,
    /// Set once; from then on watches end and `/readyz` fails.
    pub(crate) stopping: CancellationToken,
    /// Held by whoever judges the names of definitions.
    pub(crate) settling: tokio::sync::Mutex<()>,
    address: OnceLock<SocketAddr>,
}

impl ApiServer {
    /// Opens or makes the store in the configured folder and starts the work
    /// that goes on without requests. Nothing listens yet.
    pub async fn open(config: Config) -> Result<ApiServer, OpenError> {
        let opening = tokio::task::spawn_blocking(move || {
            let directory = config.directory.clone();
            std::fs::create_dir_all(&directory)
                .map_err(|source| OpenError::Folder { path: directory.clone(), source })?;
            let store = Store::open(&directory.join("store.redb"), &config.store)?;
            assemble(config, store)
        });
        ApiServer::start(opening.await.expect("opening does not panic")?).await
    }

    /// A server on a store that a test has opened.
    #[cfg(test)]
    pub(crate) async fn on(config: Config, store: Store) -> Result<ApiServer, OpenError> {
        ApiServer::start(assemble(config, store)?).await
    }

    async fn start(shared: Shared) -> Result<ApiServer, OpenError> {
        let server = ApiServer { shared: Arc::new(shared), tasks: TaskTracker::new() };
        bootstrap::make_namespaces(&server.shared).await?;
        definition::settle_all(&server.shared).await.map_err(OpenError::Definitions)?;
        server.in_background("collector", collect::run);
        server.in_background("renewal of the certificate", renew_certificate);
        Ok(server)
    }

    /// Starts work that goes on until the server stops.
    fn in_background<F>(&self, task: &'static str, work: fn(Arc<Shared>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let shared = self.shared.clone();
        let stopping = shared.stopping.clone();
        self.tasks.spawn(supervise(task, stopping, move || work(shared.clone())));
    }

    /// The API without a socket, for callers in this process.
    pub fn service(&self, identity: Identity) -> Service {
        Service::new(self.shared.clone(), identity)
    }

    /// Makes a bearer token for the identity. It is shown here and never again.
    pub fn issue_token(&self, identity: Identity) -> Result<String, TokenError> {
        self.shared.tokens.issue(identity)
    }

    /// Whether the token is good, and whose it is.
    pub fn identify(&self, token: &str) -> Option<Identity> {
        self.shared.tokens.identify(token).map(|identity| (*identity).clone())
    }

    /// Makes all tokens of the user worthless.
    pub fn revoke_tokens(&self, user: &str) -> Result<(), TokenError> {
        self.shared.tokens.revoke(user)
    }

    /// The certificate that clients must trust, in PEM.
    pub fn ca_pem(&self) -> &str {
        self.shared.certificates.ca_pem()
    }

    /// A name this server's store was given when it was made.
    pub fn cluster(&self) -> uuid::Uuid {
        self.shared.store.cluster()
    }

    /// Starts to listen; `serve` on what is returned answers requests.
    pub async fn bind(&self, address: SocketAddr) -> Result<Listening, BindError> {
        let listening = Listening::bind(self.shared.clone(), address).await?;
        // The first address is the one discovery names.
        let _ = self.shared.address.set(listening.address());
        Ok(listening)
    }

    /// Ends watches and background work and waits for both. Listeners end too.
    pub async fn shutdown(&self) {
        self.shared.stopping.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

fn assemble(config: Config, store: Store) -> Result<Shared, OpenError> {
    let Config { directory, names, limits, node_rules, store: _, annexes, nodes, figures } = config;
    let registry = Registry::new();
    bootstrap::learn_definitions(&store, &registry);
    Ok(Shared {
        tokens: Tokens::open(directory.join("tokens.json"))?,
        certificates: Certificates::open(&directory.join("tls"), &names, SystemTime::now())?,
        authorizer: Authorizer::new(node_rules),
        gate: Gate::new(&limits),
        metrics: Metrics::new(figures),
        webhooks: Webhooks::default(),
        documents: DocumentCache::default(),
        stopping: CancellationToken::new(),
        settling: tokio::sync::Mutex::default(),
        address: OnceLock::new(),
        store,
        registry,
        limits,
        annexes,
        nodes,
    })
}

async fn renew_certificate(shared: Arc<Shared>) {
    loop {
        tokio::select! {
            () = shared.stopping.cancelled() => return,
            () = tokio::time::sleep(RENEWAL_CHECK) => {}
        }
        match shared.certificates.renew_if_due(SystemTime::now()) {
            Ok(true) => tracing::info!("renewed the server's certificate"),
            Ok(false) => {}
            Err(error) => tracing::error!(%error, "could not renew the server's certificate"),
        }
    }
}

impl Shared {
    /// Where the server listens, as discovery tells clients.
    pub(crate) fn address(&self) -> String {
        self.address.get().map(SocketAddr::to_string).unwrap_or_default()
    }

    /// Makes one durable change. A changed definition is judged and in force when this returns.
    pub(crate) async fn commit(
        self: &Arc<Self>,
        change: Change,
        guards: Vec<Guard>,
    ) -> Result<Arc<Stored>, WriteError> {
        if change.key().resource != definitions() {
            return self.store.write(change, guards).await;
        }
        // In a task of its own: a client that goes away must not leave the registry behind the store.
        let shared = self.clone();
        let task = async move {
            let name = change.key().name.clone();
            let gone = matches!(change, Change::Delete { .. });
            let stored = shared.store.write(change, guards).await?;
            match gone {
                true => shared.registry.learn(&name, None, stored.version),
                false => shared.learn(&name, &stored),
            }
            definition::settle(&shared, definition::group_of(&name)).await?;
            Ok(stored)
        };
        tokio::spawn(task).await.expect("learning a definition does not panic")
    }

    /// Takes over a definition as it is stored now.
    pub(crate) fn learn(&self, name: &str, stored: &Stored) {
        let definition = serde_json::from_slice(&stored.bytes).expect("the store holds JSON");
        self.registry.learn(name, definition::learnt(&definition), stored.version);
    }

    /// Whether the store still takes writes.
    pub(crate) fn store_works(&self) -> bool {
        self.store.is_open()
    }
}
