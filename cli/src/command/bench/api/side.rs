//! One API server under measurement, and single requests to it.
//!
//! Requests are made by hand and answers are not parsed: what is measured is
//! the server, not the client's JSON.

use std::{path::Path, time::Duration};

use anyhow::Context;
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::BodyExt;
use kube::{
    Client, Config,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::memory;

const GROUP: &str = "bench.midflight.dev";
const NAMESPACE: &str = "midflight-bench";
/// What a custom resource of a storage system weighs.
const PAYLOAD_BYTES: usize = 300;

pub(super) struct Side {
    pub(super) name: &'static str,
    client: Client,
    pids: Vec<i32>,
}

impl Side {
    pub(super) async fn new(name: &'static str, client: Client, pids: Vec<i32>) -> anyhow::Result<Side> {
        let side = Side { name, client, pids };
        side.clear().await?;
        side.install().await?;
        Ok(side)
    }

    pub(super) async fn of_peer(kubeconfig: &Path, pids: &[i32]) -> anyhow::Result<Side> {
        let reading = || format!("read {}", kubeconfig.display());
        let file = Kubeconfig::read_from(kubeconfig).with_context(reading)?;
        let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
            .await
            .with_context(reading)?;
        let port = config.cluster_url.port_u16();
        let found = || port.and_then(memory::listener).into_iter().collect();
        let pids = if pids.is_empty() { found() } else { pids.to_vec() };
        let client = Client::try_from(config).context("make a client for the peer")?;
        Self::new("peer", client, pids).await.context("prepare the peer")
    }

    pub(super) fn resident_mib(&self) -> anyhow::Result<f64> {
        let bytes = self.pids.iter().map(|pid| memory::resident_bytes(*pid)).sum::<anyhow::Result<u64>>()?;
        Ok(bytes as f64 / f64::from(1 << 20))
    }

    pub(super) async fn create(&self, name: &str) -> anyhow::Result<()> {
        self.send(Method::POST, &objects(), "application/json", Some(object(name))).await.map(drop)
    }

    pub(super) async fn patch_status(&self, name: &str, phase: usize) -> anyhow::Result<()> {
        let patch = json!({"status": {"phase": format!("phase-{phase}"), "observed": phase}});
        let path = format!("{}/{name}/status", objects());
        self.send(Method::PATCH, &path, "application/merge-patch+json", Some(patch)).await.map(drop)
    }

    pub(super) async fn apply(&self, name: &str, size: usize) -> anyhow::Result<()> {
        let mut object = object(name);
        object["spec"]["size"] = json!(size);
        let path = format!("{}/{name}?fieldManager=bench&force=true", objects());
        self.send(Method::PATCH, &path, "application/apply-patch+yaml", Some(object)).await.map(drop)
    }

    pub(super) async fn get(&self, name: &str) -> anyhow::Result<()> {
        self.send(Method::GET, &format!("{}/{name}", objects()), "", None).await.map(drop)
    }

    pub(super) async fn list(&self) -> anyhow::Result<()> {
        self.send(Method::GET, &objects(), "", None).await.map(drop)
    }

    /// The newest resourceVersion.
    pub(super) async fn version(&self) -> anyhow::Result<String> {
        let list = self.send(Method::GET, &format!("{}?limit=1", objects()), "", None).await?;
        let list: Value = serde_json::from_slice(&list).context("read a list")?;
        Ok(list["metadata"]["resourceVersion"].as_str().context("a list has no resourceVersion")?.to_owned())
    }

    pub(super) async fn delete_all(&self) -> anyhow::Result<()> {
        self.send(Method::DELETE, &objects(), "", None).await.map(drop)
    }

    /// The lines of a watch from a version on.
    pub(super) async fn watch(&self, version: &str) -> anyhow::Result<Body> {
        let path = format!("{}?watch=true&resourceVersion={version}&timeoutSeconds=600", objects());
        let request = Request::get(path).body(Body::empty()).context("make a request")?;
        let answer = self.client.send(request).await.context("open a watch")?;
        anyhow::ensure!(answer.status().is_success(), "open a watch: {}", answer.status());
        Ok(answer.into_body())
    }

    /// Removes what a run leaves; what is not there is no failure.
    pub(super) async fn clear(&self) -> anyhow::Result<()> {
        let definition = format!("{DEFINITIONS}/widgets.{GROUP}");
        for path in [definition, format!("/api/v1/namespaces/{NAMESPACE}")] {
            if self.exists(&path).await? {
                self.send(Method::DELETE, &path, "", None).await?;
                self.wait(&path, false).await?;
            }
        }
        Ok(())
    }

    async fn install(&self) -> anyhow::Result<()> {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        self.send(Method::POST, "/api/v1/namespaces", "application/json", Some(namespace)).await?;
        self.send(Method::POST, DEFINITIONS, "application/json", Some(definition())).await?;
        self.wait(&objects(), true).await?;
        // The real server holds the first create after a new kind back for two seconds.
        self.create("first").await?;
        self.delete_all().await
    }

    async fn exists(&self, path: &str) -> anyhow::Result<bool> {
        let request = Request::get(path).body(Body::empty()).context("make a request")?;
        let answer = self.client.send(request).await.with_context(|| format!("{}: GET {path}", self.name))?;
        Ok(answer.status().is_success())
    }

    async fn wait(&self, path: &str, present: bool) -> anyhow::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.exists(path).await? != present {
            anyhow::ensure!(
                Instant::now() < deadline,
                "{}: {path} did not come or go within a minute",
                self.name
            );
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        content: &str,
        body: Option<Value>,
    ) -> anyhow::Result<Bytes> {
        let doing = || format!("{}: {method} {path}", self.name);
        let mut request = Request::builder().method(method.clone()).uri(path);
        if !content.is_empty() {
            request = request.header(http::header::CONTENT_TYPE, content);
        }
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string().into_bytes()));
        let answer = self.client.send(request.body(body).with_context(doing)?).await.with_context(doing)?;
        let status = answer.status();
        let answer = answer.into_body().collect().await.with_context(doing)?.to_bytes();
        let text = || String::from_utf8_lossy(&answer[..answer.len().min(500)]).into_owned();
        anyhow::ensure!(status.is_success(), "{}: {status}: {}", doing(), text());
        Ok(answer)
    }
}

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn objects() -> String {
    format!("/apis/{GROUP}/v1/namespaces/{NAMESPACE}/widgets")
}

fn object(name: &str) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/v1"),
        "kind": "Widget",
        "metadata": {"name": name, "labels": {"app": "bench", "shard": "a"}},
        "spec": {"size": 1, "owner": "bench", "payload": "x".repeat(PAYLOAD_BYTES)},
    })
}

fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("widgets.{GROUP}")},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {
                        "size": {"type": "integer", "minimum": 0},
                        "owner": {"type": "string", "maxLength": 63},
                        "payload": {"type": "string"},
                    }},
                    "status": {"type": "object", "properties": {
                        "phase": {"type": "string"},
                        "observed": {"type": "integer"},
                    }},
                }}},
            }],
        },
    })
}
