//! A server in a temporary folder, asked without a socket.

mod webhook;

pub(crate) use webhook::Webhook;

use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tempfile::TempDir;
use tower::Service as _;

use crate::auth::Identity;
use crate::http::Body;
use crate::limits::Limits;
use crate::store::{Store, StoreOptions};
use crate::{ApiServer, Config, Service};

/// A server that is gone with its folder when dropped.
pub(crate) struct Api {
    pub(crate) server: ApiServer,
    service: Service,
    pub(crate) folder: TempDir,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl Answer {
    pub(crate) fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or_default()
    }

    pub(crate) fn reason(&self) -> &str {
        self.body["reason"].as_str().unwrap_or_default()
    }

    /// The object, if the request succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> Value {
        assert!(self.code < 300, "{} {}", self.code, self.body);
        self.body
    }
}

pub(crate) const JSON: &str = "application/json";
pub(crate) const MERGE: &str = "application/merge-patch+json";
pub(crate) const APPLY: &str = "application/apply-patch+yaml";
pub(crate) const GADGETS: &str = "/apis/example.com/v1/namespaces/default/gadgets";

impl Api {
    pub(crate) async fn open() -> Api {
        Api::with_limits(Limits::default()).await
    }

    pub(crate) async fn with_limits(limits: Limits) -> Api {
        Api::configured(|config| config.limits = limits).await
    }

    pub(crate) async fn with_store(store: StoreOptions) -> Api {
        Api::configured(|config| config.store = store).await
    }

    pub(crate) async fn configured(change: impl FnOnce(&mut Config)) -> Api {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::new(folder.path());
        change(&mut config);
        let server = ApiServer::open(config).await.unwrap();
        let service = server.service(Identity::admin("admin"));
        Api { server, service, folder }
    }

    /// A server on a store of the test's own.
    pub(crate) async fn on(store: Store) -> Api {
        let folder = tempfile::tempdir().unwrap();
        let server = ApiServer::on(Config::new(folder.path()), store).await.unwrap();
        let service = server.service(Identity::admin("admin"));
        Api { server, service, folder }
    }

    /// A server that knows Gadgets.
    pub(crate) async fn with_gadgets() -> Api {
        let api = Api::open().await;
        api.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", gadget_definition()).await.ok();
        api
    }

    /// The same store, opened anew.
    pub(crate) async fn reopen(self) -> Api {
        let Api { server, service, folder } = self;
        server.shutdown().await;
        drop((server, service));
        let server = ApiServer::open(Config::new(folder.path())).await.unwrap();
        let service = server.service(Identity::admin("admin"));
        Api { server, service, folder }
    }

    pub(crate) fn acting_as(&self, identity: Identity) -> Api {
        let folder = tempfile::tempdir().unwrap();
        Api { server: self.server.clone(), service: self.server.service(identity), folder }
    }

    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> http::Response<Body> {
        self.service.clone().call(request).await.unwrap()
    }

    pub(crate) async fn ask(&self, method: Method, path: &str, media: &str, body: Value) -> Answer {
        let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let request = Request::builder().method(method).uri(path).header("content-type", media);
        self.answer(request.body(Full::new(body)).unwrap()).await
    }

    pub(crate) async fn answer(&self, request: Request<Full<Bytes>>) -> Answer {
        let response = self.send(request).await;
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
        Answer { code: parts.status.as_u16(), headers: parts.headers, body }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.ask(Method::GET, path, JSON, Value::Null).await
    }

    pub(crate) async fn get_as(&self, path: &str, accept: &str) -> Answer {
        self.answer(Request::get(path).header("accept", accept).body(Full::default()).unwrap()).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.ask(Method::POST, path, JSON, body).await
    }

    pub(crate) async fn put(&self, path: &str, body: Value) -> Answer {
        self.ask(Method::PUT, path, JSON, body).await
    }

    pub(crate) async fn merge(&self, path: &str, body: Value) -> Answer {
        self.ask(Method::PATCH, path, MERGE, body).await
    }

    pub(crate) async fn delete(&self, path: &str, options: Value) -> Answer {
        self.ask(Method::DELETE, path, JSON, options).await
    }

    /// The events of a watch, until it ends.
    pub(crate) async fn watch(&self, path: &str) -> Vec<Value> {
        let response = self.send(Request::get(path).body(Full::default()).unwrap()).await;
        assert_eq!(response.status(), 200);
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        bytes
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect()
    }

    /// Asks again and again until the answer satisfies the condition.
    pub(crate) async fn until(&self, path: &str, holds: impl Fn(&Answer) -> bool) -> Answer {
        for _ in 0..1000 {
            let answer = self.get(path).await;
            if holds(&answer) {
                return answer;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("{path} never came to be as expected: {:?}", self.get(path).await);
    }
}

pub(crate) fn gadget_definition() -> Value {
    let spec = json!({"type": "object", "properties": {
        "size": {"type": "integer", "minimum": 0, "x-kubernetes-validations": [{"rule": "self <= 10", "message": "size too big"}]},
        "color": {"type": "string", "default": "red"},
        "replicas": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
    }});
    let status = json!({"type": "object", "properties": {"phase": {"type": "string"}, "replicas": {"type": "integer"}}});
    let schema = json!({"type": "object", "properties": {"spec": spec, "status": status}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "gadgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "gadgets", "singular": "gadget", "kind": "Gadget", "shortNames": ["gd"]},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
                "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}],
            }],
        },
    })
}

pub(crate) fn gadget(name: &str, size: i64) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Gadget", "metadata": {"name": name}, "spec": {"size": size}})
}
