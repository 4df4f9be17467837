//! Answers the API server's questions: whether a volume may be asked for another engine image, attached to a node or served from one,
//! whether an image may be called so, an engine image be made, something be deleted, and an upgrade of nodes begin.
//!
//! A webhook, so that the same guards hold on every API server, whoever writes. The invariant: a
//! question is judged by what the API says at that moment, never by a cache.

mod certificate;
mod deletion;
mod images;
mod nodes;
mod register;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::Client;
use midflight_api::longhorn::NAMESPACE;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tracing::{debug, warn};

use crate::write::{WriteError, Writer};

/// Longest question; an object of the API is at most 1.5 MiB, and a question holds two.
const LONGEST_QUESTION: usize = 4 * 1024 * 1024;

/// Why questions cannot be answered.
#[derive(Debug, thiserror::Error)]
pub enum AdmissionError {
    #[error("make a certificate for the admission webhook")]
    Certificate { source: Box<dyn std::error::Error + Send + Sync> },
    #[error("listen for questions of the API server")]
    Listen { source: io::Error },
    #[error("ask the API who we are")]
    Identity { source: Box<WriteError> },
    #[error("register the admission webhook")]
    Register { source: Box<WriteError> },
}

/// Answers questions on a loopback address until it is dropped.
pub struct Admission {
    listener: TcpListener,
    tls: TlsAcceptor,
    ca_bundle: String,
    address: SocketAddr,
}

impl Admission {
    /// Takes a free port of loopback.
    pub async fn open() -> Result<Admission, AdmissionError> {
        let listen = |source| AdmissionError::Listen { source };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let (tls, ca_bundle) =
            certificate::make(address.ip()).map_err(|source| AdmissionError::Certificate { source })?;
        Ok(Admission { listener, tls, ca_bundle, address })
    }

    /// Makes the API server ask here from now on.
    pub async fn register(&self, writer: &Writer) -> Result<(), AdmissionError> {
        register::register(writer, self.address, &self.ca_bundle).await
    }

    /// Answers, for ever.
    pub async fn serve(self, client: Client) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((socket, _)) => {
                        let (tls, client) = (self.tls.clone(), client.clone());
                        connections.spawn(async move {
                            let Ok(stream) = tls.accept(socket).await else { return };
                            let service = service_fn(|request| answer(request, client.clone()));
                            let http = hyper::server::conn::http1::Builder::new();
                            if let Err(error) = http.serve_connection(TokioIo::new(stream), service).await {
                                debug!(%error, "a question was broken off");
                            }
                        });
                    }
                    Err(error) => warn!(%error, "a question could not be accepted"),
                },
                Some(_) = connections.join_next() => {}
            }
        }
    }
}

async fn answer(request: Request<Incoming>, client: Client) -> Result<Response<Full<Bytes>>, Infallible> {
    let about = request.uri().path().trim_start_matches('/').to_owned();
    let body = Limited::new(request.into_body(), LONGEST_QUESTION).collect().await;
    let review = body.ok().and_then(|body| serde_json::from_slice::<Value>(&body.to_bytes()).ok());
    let Some(review) = review else {
        return Ok(reply(StatusCode::BAD_REQUEST, "this is no AdmissionReview".into()));
    };
    let verdict = judge(&about, &review["request"], &client).await;
    Ok(match verdict {
        Ok(verdict) => {
            let response = response(&review["request"]["uid"], verdict);
            let answer = json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response });
            reply(StatusCode::OK, answer.to_string())
        }
        Err(error) => reply(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    })
}

fn response(uid: &Value, verdict: Result<(), String>) -> Value {
    match verdict {
        Ok(()) => json!({ "uid": uid, "allowed": true }),
        Err(refusal) => {
            let status = json!({ "message": refusal, "reason": "Forbidden", "code": 403 });
            json!({ "uid": uid, "allowed": false, "status": status })
        }
    }
}

fn reply(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Whether something is allowed, or why not.
type Verdict = Result<Result<(), String>, kube::Error>;

/// Judges a question. What is not known here is a failure, which counts as a refusal.
async fn judge(about: &str, request: &Value, client: &Client) -> Verdict {
    match about {
        register::ATTACHMENT => nodes::may_be_attached(&request["object"], client).await,
        register::TARGET => nodes::may_be_target(&request["object"], client).await,
        register::NODE_UPGRADE => nodes::may_begin(request, client).await,
        register::ENGINE_IMAGE_OBJECT if request["operation"] == "CREATE" => {
            images::may_be_made(&request["object"])
        }
        register::ENGINE_IMAGE_OBJECT => deletion::of_engine_image(&request["oldObject"], client).await,
        register::PLACE => Ok(Err(why_nobody_serves(&request["object"]))),
        register::IMAGE_NAME => images::may_be_named(&request["object"], client).await,
        register::SETTING => deletion::of_setting(&request["oldObject"], client).await,
        register::NODE => deletion::of_node(&request["oldObject"], client).await,
        register::RECORD => deletion::of_record(&request["oldObject"], client).await,
        register::SECRET => deletion::of_secret(client).await,
        register::NAMESPACE_OBJECT => deletion::of_namespace(client).await,
        _ => images::may_change(request, client).await,
    }
}

/// What is wrong with a volume whose namespace or name lets nobody serve it.
fn why_nobody_serves(volume: &Value) -> String {
    match volume["metadata"]["namespace"] == NAMESPACE {
        false => {
            format!(
                "volumes are served in the namespace {NAMESPACE} only; create it there, with `-n {NAMESPACE}`"
            )
        }
        true => format!(
            "the name of a volume becomes a label of its replicas, and labels have at most {} characters; choose a shorter one",
            register::LONGEST_NAME
        ),
    }
}
