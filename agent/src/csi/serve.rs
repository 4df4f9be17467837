//! The socket on which kubelet calls.
//!
//! Invariant: only root can reach it, a socket that an earlier process left is replaced, and one that was removed is made anew.

use std::{
    convert::Infallible,
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use http::{Request, Response};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use kube::Client;
use tokio::net::UnixListener;
use tonic::body::Body;
use tower::Service as _;

use super::{
    CsiConfig, Images,
    controller::ControllerService,
    identity::Plugin,
    mounts::{self, Mounts},
    node::NodeService,
    proto::{controller_server::ControllerServer, identity_server::IdentityServer, node_server::NodeServer},
};

/// A daemon that takes the place of another shows in the table of mounts; looked at so often at least.
const LOOK_EVERY: Duration = Duration::from_millis(500);

#[derive(Debug, thiserror::Error)]
pub enum CsiError {
    #[error("keep records in {}", path.display())]
    State { path: PathBuf, source: io::Error },
    #[error("listen on {}", path.display())]
    Listen { path: PathBuf, source: io::Error },
}

/// Serves until the future is dropped; calls `ready` once kubelet may come.
pub async fn serve(config: CsiConfig, client: Client, ready: impl FnOnce()) -> Result<(), CsiError> {
    serve_with(config, client, Images::Kubelet, ready).await
}

/// The same, where it is known who brings images.
pub(crate) async fn serve_with(
    config: CsiConfig,
    client: Client,
    images: Images,
    ready: impl FnOnce(),
) -> Result<(), CsiError> {
    let failed = |source| CsiError::Listen { path: config.socket.clone(), source };
    let look_at_idle_every = config.look_at_idle_every;
    let node = NodeService::open(config.clone(), client.clone(), Mounts::Machine, images)
        .map_err(|source| CsiError::State { path: config.state.clone(), source })?;
    let node = Arc::new(node);
    let services = Services {
        identity: IdentityServer::new(Plugin),
        controller: ControllerServer::new(ControllerService::new(client, config.root.clone())),
        node: NodeServer::from_arc(Arc::clone(&node)),
    };
    let listener = bind(&config.socket).map_err(failed)?;
    tracing::info!(socket = %config.socket.display(), "CSI plugin serves");
    ready();
    tokio::select! {
        error = listen(listener, &config.socket, &services) => Err(failed(error)),
        never = repair(Arc::clone(&node)) => match never {},
        never = follow_wishes(node, look_at_idle_every) => match never {},
    }
}

fn bind(at: &Path) -> io::Result<UnixListener> {
    match fs::remove_file(at) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let socket = UnixListener::bind(at)?;
    fs::set_permissions(at, fs::Permissions::from_mode(0o600))?;
    Ok(socket)
}

/// Returns when the socket is gone: whoever tidied up did not know whose it was.
async fn removed(at: &Path) {
    let is_gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    while !fs::symlink_metadata(at).as_ref().is_err_and(is_gone) {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Serves whoever calls, at that place, until nobody can any more.
async fn listen(mut listener: UnixListener, at: &Path, services: &Services) -> io::Error {
    loop {
        tokio::select! {
            error = accept(&listener, services) => return error,
            () = removed(at) => {}
        }
        tracing::warn!(socket = %at.display(), "the socket was removed: it is made anew");
        listener = match bind(at) {
            Ok(listener) => listener,
            Err(error) => return error,
        };
    }
}

/// Serves whoever calls, until nobody can any more.
async fn accept(listener: &UnixListener, services: &Services) -> io::Error {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => return error,
        };
        let services = services.clone();
        tokio::spawn(async move {
            let answer = service_fn(move |request| services.clone().answer(request));
            let builder = auto::Builder::new(TokioExecutor::new()).http2_only();
            if let Err(error) = builder.serve_connection(TokioIo::new(stream), answer).await {
                tracing::debug!(%error, "connection");
            }
        });
    }
}

/// Follows daemons that were replaced.
async fn repair(node: Arc<NodeService>) -> Infallible {
    loop {
        let looking = Arc::clone(&node);
        let looked = tokio::task::spawn_blocking(move || {
            let repaired = looking.repair();
            mounts::change(LOOK_EVERY).and(repaired)
        });
        match looked.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "mounts of workloads cannot be repaired");
                tokio::time::sleep(LOOK_EVERY).await;
            }
            Err(error) => tracing::error!(%error, "looking after mounts ended"),
        }
    }
}

/// Sends daemons away that nobody uses and that are not wanted any more.
async fn follow_wishes(node: Arc<NodeService>, every: Duration) -> Infallible {
    loop {
        tokio::time::sleep(every).await;
        if let Err(status) = node.look_at_resting().await {
            tracing::warn!(error = status.message(), "idle daemons cannot be looked at");
        }
    }
}

/// All services on one socket.
#[derive(Clone)]
struct Services {
    identity: IdentityServer<Plugin>,
    controller: ControllerServer<ControllerService>,
    node: NodeServer<NodeService>,
}

impl Services {
    async fn answer(mut self, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        match request.uri().path().split('/').nth(1) {
            Some("csi.v1.Node") => self.node.call(request).await,
            Some("csi.v1.Controller") => self.controller.call(request).await,
            // Also refuses what nobody serves.
            _ => self.identity.call(request).await,
        }
    }
}
