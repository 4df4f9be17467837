//! Answers the control plane's questions about the pods of the node, on a socket that only its owner can open.

use std::{convert::Infallible, fs, io, os::unix::fs::PermissionsExt, sync::Arc};

use bytes::Bytes;
use futures::StreamExt;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming},
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use tokio::{net::UnixListener, sync::mpsc, task::JoinSet};
use tracing::warn;

use super::{
    Shell,
    logs::{self, Wanted},
};
use crate::chain;

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// Name of the socket in the node's run folder.
pub const SOCKET: &str = "agent.sock";
/// How many lines wait for a slow reader.
const LINES: usize = 64;

/// Serves until dropped.
pub(crate) async fn serve(shell: Arc<Shell>) -> io::Result<()> {
    let path = shell.config.run.join(SOCKET);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = tokio::select! {
            accepted = listener.accept() => accepted?,
            Some(_) = connections.join_next() => continue,
        };
        let shell = shell.clone();
        connections.spawn(async move {
            let service = service_fn(move |request| {
                let shell = shell.clone();
                async move { Ok::<_, Infallible>(answer(&shell, &request).await) }
            });
            let served =
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            if let Err(error) = served.await {
                warn!(error = chain(&error), "a question about pods was cut off");
            }
        });
    }
}

async fn answer(shell: &Shell, request: &Request<Incoming>) -> Answer {
    let parts: Vec<&str> = request.uri().path().trim_start_matches('/').split('/').collect();
    match (request.method(), &parts[..]) {
        (&Method::GET, ["logs", uid, container]) if super::is_uid(uid) && super::is_uid(container) => {
            log(shell, uid, container, request.uri().query().unwrap_or_default()).await
        }
        _ => say(StatusCode::NOT_FOUND, "the agent has nothing at this path"),
    }
}

async fn log(shell: &Shell, uid: &str, container: &str, query: &str) -> Answer {
    let wanted = match Wanted::parse(query, Timestamp::now()) {
        Ok(wanted) => wanted,
        Err(why) => return say(StatusCode::BAD_REQUEST, &why),
    };
    let Some(room) = logs::room(&shell.pods().join(uid), container, wanted.previous) else {
        let which = if wanted.previous { "previous terminated container" } else { "container" };
        return say(
            StatusCode::BAD_REQUEST,
            &format!("{which} {container:?} has not been started on this node"),
        );
    };
    let (to, mut from) = mpsc::channel(LINES);
    // Ends when nobody listens any more.
    tokio::task::spawn_blocking(move || {
        if let Err(error) = logs::send(&room, &wanted, to) {
            warn!(error = chain(&error), "a log could not be read");
        }
    });
    let pieces = futures::stream::poll_fn(move |context| from.poll_recv(context));
    let body = StreamBody::new(pieces.map(|piece| Ok::<_, Infallible>(Frame::data(piece))));
    Response::new(UnsyncBoxBody::new(body))
}

fn say(status: StatusCode, text: &str) -> Answer {
    let body = Full::new(Bytes::from(text.to_owned()));
    let mut response = Response::new(UnsyncBoxBody::new(body.map_err(|never| match never {})));
    *response.status_mut() = status;
    response
}
