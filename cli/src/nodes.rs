//! The way from the API to the agents of the nodes: a socket in the folder of each.

use std::path::PathBuf;

use bytes::Bytes;
use futures::{StreamExt, future::BoxFuture};
use http::{Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use midflight_agent::pod::SOCKET;
use midflight_apiserver::http::{Body, Nodes};
use tokio::net::UnixStream;

/// The longest explanation that is passed on.
const MOST_BYTES: usize = 64 << 10;

/// The sockets in the folder where every node has one.
#[derive(Debug)]
pub(crate) struct Sockets {
    run: PathBuf,
}

impl Sockets {
    pub(crate) fn below(run: PathBuf) -> Sockets {
        Sockets { run }
    }

    async fn send(&self, node: &str, path: &str) -> Result<Response<Body>, String> {
        let socket = self.run.join(node).join(SOCKET);
        let away = |error: &dyn std::error::Error| format!("its agent does not answer: {error}");
        let stream = UnixStream::connect(&socket).await.map_err(|error| away(&error))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| away(&error))?;
        let request = Request::get(path).header("host", "agent").body(Empty::<Bytes>::new());
        let request = request.map_err(|error| error.to_string())?;
        // Ends with the answer's body.
        let serving = tokio::spawn(connection);
        let answer = sender.send_request(request).await.map_err(|error| away(&error))?;
        if answer.status() != StatusCode::OK {
            let text = Limited::new(answer.into_body(), MOST_BYTES).collect().await;
            let text = text.map(|body| body.to_bytes()).unwrap_or_default();
            return Err(String::from_utf8_lossy(&text).into_owned());
        }
        let held = (sender, serving);
        let pieces = answer.into_body().into_data_stream().filter_map(move |piece| {
            let _held = &held;
            std::future::ready(piece.ok())
        });
        let mut response = Response::new(Body::stream(pieces));
        response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("text/plain"));
        Ok(response)
    }
}

impl Nodes for Sockets {
    fn ask<'a>(&'a self, node: &'a str, path: &'a str) -> BoxFuture<'a, Result<Response<Body>, String>> {
        Box::pin(self.send(node, path))
    }
}
