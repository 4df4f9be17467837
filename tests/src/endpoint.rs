//! An API server as a test sees it: where it is, who calls, what it answered.
//!
//! Requests go out as given and answers come back as they were sent: nothing
//! is retried, decoded into types or turned into an error on the way.

use std::path::Path;

use bytes::Bytes;
use futures::StreamExt;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, BodyStream};
use kube::client::{Body, ClientBuilder};
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use secrecy::ExposeSecret;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::told::Told;
use crate::wire::Wire;

/// A server and the credentials to call it with.
#[derive(Clone)]
pub struct Endpoint {
    client: Client,
    config: Config,
}

/// What came back.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    /// The body as JSON; text that is none is a JSON string.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| Value::String(self.text.clone()))
    }
}

impl Endpoint {
    /// The server and the user of a kubeconfig's current context.
    pub async fn from_kubeconfig(path: &Path) -> anyhow::Result<Self> {
        let file = Kubeconfig::read_from(path)?;
        let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
        // A watch may be silent for longer than the client's default patience.
        config.read_timeout = None;
        Ok(Endpoint { client: Client::try_from(config.clone())?, config })
    }

    /// The same server, called with another bearer token, or with none.
    pub fn with_token(&self, token: Option<&str>) -> anyhow::Result<Self> {
        let mut config = self.config.clone();
        config.auth_info =
            AuthInfo { token: token.map(|text| text.to_owned().into()), ..AuthInfo::default() };
        Ok(Endpoint { client: Client::try_from(config.clone())?, config })
    }

    /// A kube client for it, as a controller would have.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The same, with somebody who listens to what it is told.
    pub fn overheard(&self, told: &Told) -> anyhow::Result<Client> {
        Ok(ClientBuilder::try_from(self.config.clone())?.with_layer(told).build())
    }

    /// A way to send bytes that no client would.
    pub fn wire(&self) -> anyhow::Result<Wire> {
        let url = &self.config.cluster_url;
        let address = format!("{}:{}", url.host().unwrap_or("127.0.0.1"), url.port_u16().unwrap_or(443));
        Wire::new(&address, self.config.root_cert.as_deref().unwrap_or_default())
    }

    /// The bearer token that it calls with.
    pub fn token(&self) -> String {
        self.config.auth_info.token.as_ref().map(|token| token.expose_secret().to_owned()).unwrap_or_default()
    }

    /// Sends one request and reads the whole answer.
    pub async fn call(&self, request: Request<Vec<u8>>) -> anyhow::Result<Answer> {
        let answer = self.client.send(request.map(Body::from)).await?;
        let (parts, body) = answer.into_parts();
        let bytes = body.collect().await?.to_bytes();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Ok(Answer { status: parts.status, headers: parts.headers, text })
    }

    /// Sends one request and hands the answer's lines over as they come; `None` ends the stream.
    pub async fn stream(&self, request: Request<Vec<u8>>) -> anyhow::Result<(StatusCode, Lines)> {
        let answer = self.client.send(request.map(Body::from)).await?;
        let status = answer.status();
        let (sender, incoming) = mpsc::channel(1024);
        tokio::spawn(forward(BodyStream::new(answer.into_body()), sender));
        Ok((status, Lines { incoming, rest: Vec::new() }))
    }
}

/// Carries the body over as it comes, so that whoever holds the lines may be shared between threads.
async fn forward(mut body: BodyStream<Body>, lines: mpsc::Sender<anyhow::Result<Bytes>>) {
    while let Some(frame) = body.next().await {
        let data = frame.map(|frame| frame.into_data().unwrap_or_default()).map_err(anyhow::Error::from);
        if lines.send(data).await.is_err() {
            return;
        }
    }
}

/// The lines of an answer that is still being sent.
pub struct Lines {
    incoming: mpsc::Receiver<anyhow::Result<Bytes>>,
    rest: Vec<u8>,
}

impl Lines {
    /// The next line; `None` when the server has closed the stream.
    pub async fn next(&mut self) -> anyhow::Result<Option<Bytes>> {
        loop {
            if let Some(end) = self.rest.iter().position(|&byte| byte == b'\n') {
                let line = self.rest.drain(..=end).collect::<Vec<_>>();
                return Ok(Some(Bytes::from(line).slice(..end)));
            }
            match self.incoming.recv().await {
                Some(data) => self.rest.extend_from_slice(&data?),
                None => return Ok(None),
            }
        }
    }
}
