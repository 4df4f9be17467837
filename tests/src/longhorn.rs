//! Clusters that have Longhorn's objects and nothing that runs: hollow volumes.

use anyhow::Context;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::place;

/// Longhorn's namespace.
pub const NAMESPACE: &str = "longhorn-system";

/// The definitions as Longhorn ships them. Each has one line of Helm's, which is taken for what it renders.
/// They stand beside the repository and are no part of it: `None`, with a word, where they are not.
pub fn upstream_definitions() -> anyhow::Result<Option<Vec<CustomResourceDefinition>>> {
    let file = place::workspace().join("../shared/fixtures/longhorn-crds.yaml");
    if !file.is_file() {
        place::skip("Longhorn's own definitions: no ../shared/fixtures beside the repository");
        return Ok(None);
    }
    let text = std::fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    let plain = text.lines().map(|line| match line.split_once("labels:") {
        Some((before, after)) if after.contains("{{") => format!("{before}labels:\n"),
        _ => format!("{line}\n"),
    });
    let plain: String = plain.collect();
    let documents = plain.split("\n---").map(str::trim).filter(|document| document.contains("kind:"));
    let read = documents.map(|document| serde_saphyr::from_str(document).context("read a definition"));
    read.collect::<anyhow::Result<_>>().map(Some)
}

/// Installs definitions and waits until they are served.
pub async fn install(client: &Client, definitions: &[CustomResourceDefinition]) -> anyhow::Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for definition in definitions {
        api.create(&PostParams::default(), definition).await?;
    }
    for definition in definitions {
        await_condition(api.clone(), &definition.name_any(), conditions::is_crd_established()).await?;
    }
    let namespaces = Api::<k8s_openapi::api::core::v1::Namespace>::all(client.clone());
    let namespace = serde_json::from_value(json!({ "metadata": { "name": NAMESPACE } }))?;
    match namespaces.create(&PostParams::default(), &namespace).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        made => made.map(drop).map_err(Into::into),
    }
}

/// Makes an object of Longhorn's with its status.
pub async fn make(client: &Client, kind: &str, name: &str, body: Value) -> anyhow::Result<()> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("longhorn.io", "v1beta2", kind));
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &resource);
    let mut object = DynamicObject::new(name, &resource);
    object.data = body.clone();
    api.create(&PostParams::default(), &object).await.with_context(|| format!("make {kind} {name}"))?;
    if body["status"].is_object() {
        let status = Patch::Merge(json!({ "status": body["status"] }));
        api.patch_status(name, &PatchParams::default(), &status)
            .await
            .with_context(|| format!("write the status of {kind} {name}"))?;
    }
    Ok(())
}

/// A volume with a replica on each node; `change` is merged into it.
pub async fn volume(client: &Client, name: &str, nodes: &[&str], change: Value) -> anyhow::Result<()> {
    let mut body = json!({
        "spec": { "size": "1073741824", "numberOfReplicas": nodes.len(), "frontend": "blockdev", "dataEngine": "v1" },
        "status": { "state": "detached", "robustness": "unknown", "ownerID": nodes.first() },
    });
    merge(&mut body, change);
    make(client, "Volume", name, body).await?;
    for node in nodes {
        let spec = json!({ "volumeName": name, "nodeID": node, "dataEngine": "v1" });
        make(client, "Replica", &format!("{name}-r-{node}"), json!({ "spec": spec })).await?;
    }
    Ok(())
}

fn merge(into: &mut Value, change: Value) {
    match (into, change) {
        (Value::Object(into), Value::Object(change)) => {
            for (name, value) in change {
                merge(into.entry(name).or_insert(Value::Null), value);
            }
        }
        (into, change) => *into = change,
    }
}
