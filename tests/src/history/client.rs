//! Speaks to the API server as a client would, and reads its answers as
//! outcomes.
//!
//! The one invariant: a request that may have reached the server is never sent
//! again as if it had not.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::{Value as Json, json};
use tokio::net::TcpStream;

use super::record::{Action, Change, Listing, Outcome, Seen, Value, Version};

const COLLECTION: &str = "/api/v1/namespaces/default/configmaps";
const LABEL: &str = "history";

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lost {
    /// The request did not leave.
    NotSent,
    /// It may have been carried out.
    Cut,
}

/// One connection, made anew when it is gone.
#[derive(Debug)]
pub(super) struct Client {
    label: String,
    connection: Option<(SocketAddr, http1::SendRequest<Full<Bytes>>)>,
}

impl Client {
    /// A client that sees only objects with this label.
    pub(super) fn new(label: &str) -> Client {
        Client { label: label.to_owned(), connection: None }
    }

    pub(super) async fn act(
        &mut self,
        server: SocketAddr,
        object: &str,
        action: Action,
    ) -> Result<Outcome, Lost> {
        let item = format!("{COLLECTION}/{object}");
        let request = match action {
            Action::Create { value } => {
                request(Method::POST, COLLECTION, JSON, &self.body(object, value, None))
            }
            Action::Update { value, expected } => {
                request(Method::PUT, &item, JSON, &self.body(object, value, Some(expected)))
            }
            Action::Apply { value } => {
                let path = format!("{item}?fieldManager=history&force=true");
                request(Method::PATCH, &path, APPLY, &self.body(object, value, None))
            }
            Action::Delete { expected } => {
                let version = expected.map(|Version(version)| version.to_string());
                let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"resourceVersion": version}});
                request(Method::DELETE, &item, JSON, if version.is_some() { &options } else { &Json::Null })
            }
            Action::Read => request(Method::GET, &item, JSON, &Json::Null),
        };
        let (status, answer) = self.send(server, request).await?;
        Ok(outcome(action, status, &answer))
    }

    pub(super) async fn list(&mut self, server: SocketAddr) -> Result<Listing, Lost> {
        let path = format!("{COLLECTION}?labelSelector={LABEL}%3D{}", self.label);
        let (status, answer) = self.send(server, request(Method::GET, &path, JSON, &Json::Null)).await?;
        assert_eq!(status, StatusCode::OK, "list: {answer}");
        let items = answer["items"].as_array().expect("a list has items");
        let item = |item: &Json| (name(item), (version(item), value(item)));
        let items: BTreeMap<_, _> = items.iter().map(item).collect();
        Ok(Listing { version: version(&answer), items })
    }

    pub(super) async fn watch(&mut self, server: SocketAddr, from: Version) -> Result<Events, Lost> {
        let Version(from) = from;
        let path =
            format!("{COLLECTION}?watch=true&resourceVersion={from}&labelSelector={LABEL}%3D{}", self.label);
        // A watch keeps its connection busy.
        let mut own = Client::new(&self.label);
        let answer = own.exchange(server, request(Method::GET, &path, JSON, &Json::Null)).await?;
        assert_eq!(answer.status(), StatusCode::OK, "watch");
        Ok(Events { _client: own, body: answer.into_body(), buffer: Vec::new() })
    }

    fn body(&self, object: &str, Value(value): Value, expected: Option<Version>) -> Json {
        let mut metadata = json!({"name": object, "labels": {LABEL: self.label}});
        if let Some(Version(version)) = expected {
            metadata["resourceVersion"] = json!(version.to_string());
        }
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"value": value.to_string()}})
    }

    async fn send(
        &mut self,
        server: SocketAddr,
        request: Request<Full<Bytes>>,
    ) -> Result<(StatusCode, Json), Lost> {
        let answer = self.exchange(server, request).await?;
        let status = answer.status();
        let Ok(body) = answer.into_body().collect().await else {
            self.connection = None;
            return Err(Lost::Cut);
        };
        let body = body.to_bytes();
        let json = serde_json::from_slice(&body).unwrap_or_else(|_| json!(String::from_utf8_lossy(&body)));
        Ok((status, json))
    }

    async fn exchange(
        &mut self,
        server: SocketAddr,
        request: Request<Full<Bytes>>,
    ) -> Result<http::Response<Incoming>, Lost> {
        let sender = self.connect(server).await.ok_or(Lost::NotSent)?;
        match sender.send_request(request).await {
            Ok(answer) => Ok(answer),
            Err(_) => {
                self.connection = None;
                Err(Lost::Cut)
            }
        }
    }

    async fn connect(&mut self, server: SocketAddr) -> Option<&mut http1::SendRequest<Full<Bytes>>> {
        let fits = self
            .connection
            .as_ref()
            .is_some_and(|(address, sender)| *address == server && !sender.is_closed());
        if !fits {
            let stream = TcpStream::connect(server).await.ok()?;
            stream.set_nodelay(true).ok()?;
            let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.ok()?;
            // How it ended is told by the requests on it.
            tokio::spawn(async { drop(connection.await) });
            self.connection = Some((server, sender));
        }
        let (_, sender) = self.connection.as_mut()?;
        sender.ready().await.ok()?;
        Some(sender)
    }
}

/// What a watch tells.
#[derive(Debug)]
pub(super) struct Events {
    _client: Client,
    body: Incoming,
    buffer: Vec<u8>,
}

/// One line of a watch.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Told {
    Event(Seen),
    /// The version asked for is gone from the history; list again.
    Expired,
    /// The connection ended.
    End,
}

impl Events {
    pub(super) async fn next(&mut self) -> Told {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                let event: Json = serde_json::from_slice(&line).expect("a watch tells JSON, line by line");
                return told(&event);
            }
            match self.body.frame().await {
                Some(Ok(frame)) => self.buffer.extend(frame.into_data().unwrap_or_default()),
                Some(Err(_)) | None => return Told::End,
            }
        }
    }
}

fn told(event: &Json) -> Told {
    let object = &event["object"];
    let change = match event["type"].as_str() {
        Some("ADDED") => Change::Added,
        Some("MODIFIED") => Change::Modified,
        Some("DELETED") => Change::Deleted,
        Some("ERROR") if object["code"] == 410 => return Told::Expired,
        _ => panic!("a watch told {event}"),
    };
    Told::Event(Seen { change, object: name(object), version: version(object), value: value(object) })
}

const JSON: &str = "application/json";
const APPLY: &str = "application/apply-patch+yaml";

fn request(method: Method, path: &str, content: &str, body: &Json) -> Request<Full<Bytes>> {
    let bytes = if body.is_null() { Bytes::new() } else { body.to_string().into() };
    Request::builder()
        .method(method)
        .uri(path)
        .header("host", "localhost")
        .header("content-type", content)
        .header("accept", JSON)
        .body(Full::new(bytes))
        .expect("the parts are well formed")
}

fn outcome(action: Action, status: StatusCode, answer: &Json) -> Outcome {
    match (action, status.as_u16(), answer["reason"].as_str()) {
        (
            Action::Create { value: sent }
            | Action::Update { value: sent, .. }
            | Action::Apply { value: sent },
            200 | 201,
            _,
        ) => {
            assert_eq!(value(answer), sent, "the answer shows what was written");
            Outcome::Stored { version: version(answer) }
        }
        (Action::Delete { .. }, 200, _) => Outcome::Deleted,
        (Action::Read, 200, _) => Outcome::Found { version: version(answer), value: value(answer) },
        (Action::Create { .. }, 409, Some("AlreadyExists")) => Outcome::Exists,
        (Action::Update { .. } | Action::Apply { .. } | Action::Delete { .. }, 409, Some("Conflict")) => {
            Outcome::Conflict
        }
        (Action::Update { .. } | Action::Delete { .. } | Action::Read, 404, _) => Outcome::Absent,
        _ => panic!("{action:?} was answered {status} {answer}"),
    }
}

fn name(object: &Json) -> String {
    object["metadata"]["name"].as_str().expect("an object has a name").to_owned()
}

fn version(object: &Json) -> Version {
    let text = object["metadata"]["resourceVersion"].as_str().expect("an object has a resourceVersion");
    Version(text.parse().expect("a resourceVersion is a number"))
}

fn value(object: &Json) -> Value {
    let text = object["data"]["value"].as_str().expect("an object holds a value");
    Value(text.parse().expect("a value is a number"))
}
