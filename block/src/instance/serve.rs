//! The instance manager as a process: gRPC and `/metrics` on one port.
//!
//! Invariant: nobody without the secret learns or changes anything, and a connection
//! that does not prove it in time is closed.

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::{Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::{
    net::{TcpListener, TcpStream},
    signal::unix::{SignalKind, signal},
    sync::{Semaphore, broadcast},
    time::timeout,
};
use tonic::{Status, body::Body};
use tower::Service as _;

use super::{
    announce::announce, complaints, life::World, loops::Loops, metrics::Metrics,
    proto::instance_manager_server::InstanceManagerServer, registry::Registry, secret::Secret,
    service::Service, spec::Shelf,
};
use crate::{net::address::Address, record::place::Records, role};

/// Host the engines and replicas of a node.
#[derive(Debug, Clone, clap::Args)]
pub struct InstanceManagerArgs {
    /// Folder of this instance manager; made if it is not there.
    #[arg(long)]
    pub folder: PathBuf,
    /// Where commands come from: the node's address or loopback; port 0 lets the kernel choose.
    #[arg(long)]
    pub listen: SocketAddr,
    /// File with the cluster's secret, which nobody else can read.
    #[arg(long, required_unless_present = "secret_text")]
    pub secret: Option<PathBuf>,
    /// The secret itself, for a pod that has it in its environment.
    #[arg(long, env = "MIDFLIGHT_INSTANCE_SECRET", hide = true)]
    pub secret_text: Option<Secret>,
    /// The volumes' records: a folder, or api:KUBECONFIG in a cluster.
    #[arg(long)]
    pub records: Records,
    /// The InstanceManager in the cluster that is to say where commands are taken.
    #[arg(long)]
    pub name: Option<String>,
    /// Folder of the binaries that v1 instances are started from.
    #[arg(long)]
    pub binaries: Option<PathBuf>,
    /// Where this node's frontend takes commands: unix:PATH.
    #[arg(long)]
    pub frontend: Option<Address>,
    /// Folder of backups that all nodes share: only there, and below it, are backups kept [default: anywhere]
    #[arg(long, env = "MIDFLIGHT_BACKUPS")]
    pub backups: Option<PathBuf>,
    /// Folder of the frontend's socket, as its clients see it [default: as it is named in --frontend]
    #[arg(long)]
    pub endpoints: Option<PathBuf>,
}

/// Why an instance manager does not serve (any more).
#[derive(Debug, thiserror::Error)]
pub enum InstanceManagerError {
    #[error("{0} is every address of the machine; name loopback or the node's own")]
    Everywhere(SocketAddr),
    #[error("read the secret {}", path.display())]
    Secret { path: PathBuf, source: io::Error },
    #[error("take the folder {}", path.display())]
    Folder { path: PathBuf, source: io::Error },
    #[error("listen on {address}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("start the runtime")]
    Runtime(#[source] io::Error),
}

/// Connections beyond this wait.
const MOST_CONNECTIONS: usize = 256;
/// Until when a new connection has to prove that it knows the secret.
const ADMITTED_WITHIN: Duration = Duration::from_secs(10);
/// Changes that someone who watches may be behind.
const WATCH_BEHIND: usize = 1024;
const ENDS_WITHIN: Duration = Duration::from_secs(2);

/// Serves until SIGTERM; then says what it still holds. Processes it started live on.
pub fn run(args: &InstanceManagerArgs) -> Result<(), InstanceManagerError> {
    let address = args.listen;
    if address.ip().is_unspecified() || address.ip().is_multicast() {
        return Err(InstanceManagerError::Everywhere(address));
    }
    let secret = secret(args)?;
    let folder = |source| InstanceManagerError::Folder { path: args.folder.clone(), source };
    let world = World {
        shelf: Shelf::open(&args.folder).map_err(folder)?,
        records: args.records.clone(),
        binaries: args.binaries.clone(),
        node: address.ip(),
        frontend: args.frontend.clone(),
        endpoints: args.endpoints.clone(),
        backups: args.backups.clone(),
        told: broadcast::channel(WATCH_BEHIND).0,
        loops: Loops::default(),
    };
    let registry = Arc::new(Registry::open(world, &args.folder).map_err(folder)?);
    complaints::listen(&registry).map_err(InstanceManagerError::Runtime)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(InstanceManagerError::Runtime)?;
    let served = runtime.block_on(listen(args, secret, Arc::clone(&registry)));
    registry.close();
    runtime.shutdown_timeout(ENDS_WITHIN);
    served
}

/// The secret, from where the arguments say it is.
fn secret(args: &InstanceManagerArgs) -> Result<Secret, InstanceManagerError> {
    match (&args.secret, &args.secret_text) {
        (None, Some(secret)) => Ok(secret.clone()),
        (path, _) => {
            let path = path.clone().unwrap_or_default();
            Secret::load(&path).map_err(|source| InstanceManagerError::Secret { path, source })
        }
    }
}

async fn listen(
    args: &InstanceManagerArgs,
    secret: Secret,
    registry: Arc<Registry>,
) -> Result<(), InstanceManagerError> {
    let address = args.listen;
    let failed = |source| InstanceManagerError::Listen { address, source };
    let mut asked_to_end = signal(SignalKind::terminate()).map_err(InstanceManagerError::Runtime)?;
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    tracing::info!(%address, instances = registry.list().len(), "instance manager serves");
    role::announce(&Address::Tcp(address));
    if let (Some(name), Records::Api(kubeconfig)) = (&args.name, &args.records) {
        announce(kubeconfig, name, address);
    }
    let metrics = Arc::new(Metrics::new());
    let service = Service { registry: Arc::clone(&registry), metrics: Arc::clone(&metrics) };
    let gate = Arc::new(Gate { secret, registry, metrics, service: InstanceManagerServer::new(service) });
    let room = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let Ok(seat) = Arc::clone(&room).acquire_owned().await else { return Ok(()) };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = asked_to_end.recv() => return Ok(()),
        };
        match accepted {
            Ok((stream, _)) => {
                let gate = Arc::clone(&gate);
                tokio::spawn(async move {
                    gate.serve(stream).await;
                    drop(seat);
                });
            }
            Err(error) => {
                // Out of descriptors, most likely: others have to close theirs first.
                tracing::warn!(%error, "accept");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// What stands between a connection and the service.
#[derive(Debug)]
struct Gate {
    secret: Secret,
    registry: Arc<Registry>,
    metrics: Arc<Metrics>,
    service: InstanceManagerServer<Service>,
}

impl Gate {
    async fn serve(self: Arc<Self>, stream: TcpStream) {
        let admitted = Arc::new(AtomicBool::new(false));
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(ADMITTED_WITHIN);
        builder.http2().timer(TokioTimer::new()).max_concurrent_streams(64);
        let seen = Arc::clone(&admitted);
        let answer = service_fn(move |request| Arc::clone(&self).answer(request, Arc::clone(&seen)));
        let connection = builder.serve_connection(TokioIo::new(stream), answer);
        tokio::pin!(connection);
        let ended = match timeout(ADMITTED_WITHIN, connection.as_mut()).await {
            Ok(ended) => ended,
            Err(_) if admitted.load(Ordering::Relaxed) => connection.await,
            Err(_) => return,
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "connection");
        }
    }

    async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        admitted: Arc<AtomicBool>,
    ) -> Result<Response<Body>, Infallible> {
        let proof = request.headers().get(header::AUTHORIZATION).map(|value| value.as_bytes());
        if !self.secret.admits(proof) {
            self.metrics.unauthenticated.inc();
            tracing::warn!(path = request.uri().path(), "a caller without the secret");
            return Ok(refuse(&request));
        }
        admitted.store(true, Ordering::Relaxed);
        if request.uri().path() == "/metrics" {
            return Ok(Response::new(Body::new(Full::from(self.metrics.text(&self.registry.list())))));
        }
        self.service.clone().call(request).await
    }
}

fn refuse(request: &Request<Incoming>) -> Response<Body> {
    let grpc = request.headers().get(header::CONTENT_TYPE);
    if grpc.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc")) {
        return Status::unauthenticated("the cluster's secret is missing or wrong").into_http();
    }
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::UNAUTHORIZED;
    response
}
