//! The socket on which kubelet calls.
//!
//! Invariant: only root can reach it, and a socket that an earlier process left is replaced.

use std::{convert::Infallible, fs, io, os::unix::fs::PermissionsExt, path::PathBuf};

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
    CsiConfig,
    identity::Plugin,
    node::NodeService,
    proto::{identity_server::IdentityServer, node_server::NodeServer},
};

#[derive(Debug, thiserror::Error)]
pub enum CsiError {
    #[error("keep records in {}", path.display())]
    State { path: PathBuf, source: io::Error },
    #[error("listen on {}", path.display())]
    Listen { path: PathBuf, source: io::Error },
}

/// Serves until the future is dropped; calls `ready` once kubelet may come.
pub async fn serve(config: CsiConfig, client: Client, ready: impl FnOnce()) -> Result<(), CsiError> {
    let failed = |source| CsiError::Listen { path: config.socket.clone(), source };
    let node = NodeService::open(config.clone(), client)
        .map_err(|source| CsiError::State { path: config.state.clone(), source })?;
    let services = Services { identity: IdentityServer::new(Plugin), node: NodeServer::new(node) };
    match fs::remove_file(&config.socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let listener = UnixListener::bind(&config.socket).map_err(failed)?;
    fs::set_permissions(&config.socket, fs::Permissions::from_mode(0o600)).map_err(failed)?;
    tracing::info!(socket = %config.socket.display(), "CSI plugin serves");
    ready();
    loop {
        let (stream, _) = listener.accept().await.map_err(failed)?;
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

/// Both services on one socket.
#[derive(Clone)]
struct Services {
    identity: IdentityServer<Plugin>,
    node: NodeServer<NodeService>,
}

impl Services {
    async fn answer(mut self, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        match request.uri().path().starts_with("/csi.v1.Node/") {
            true => self.node.call(request).await,
            // Also refuses what nobody serves.
            false => self.identity.call(request).await,
        }
    }
}
