//! What the API says of datasets and their daemons.

use anyhow::Context;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{Api, Client, ResourceExt, api::ListParams};
use midflight_api::fluid::{
    Dataset, GENERATION_LABEL, IMAGE_VERSION_ANNOTATION, IMAGE_VERSION_VARIABLE, UPDATE_STRATEGY_ANNOTATION,
};

use super::{Mounted, Node, User};
use crate::target::refusal;

pub(super) async fn all(client: &Client, namespace: Option<&str>) -> anyhow::Result<Vec<Mounted>> {
    let datasets: Api<Dataset> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let datasets =
        datasets.list(&ListParams::default()).await.map_err(refusal).context("list the datasets")?;
    let mut found = Vec::new();
    for dataset in datasets {
        found.push(look(client, &dataset).await?);
    }
    Ok(found)
}

pub(crate) async fn one(client: &Client, namespace: &str, name: &str) -> anyhow::Result<Option<Mounted>> {
    let datasets: Api<Dataset> = Api::namespaced(client.clone(), namespace);
    let dataset = datasets.get_opt(name).await.map_err(refusal).context("read the dataset")?;
    match dataset {
        Some(dataset) => look(client, &dataset).await.map(Some),
        None => Ok(None),
    }
}

async fn look(client: &Client, dataset: &Dataset) -> anyhow::Result<Mounted> {
    let (namespace, name) = (dataset.namespace().unwrap_or_default(), dataset.name_any());
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &namespace);
    let claim = claims.get_opt(&name).await.map_err(refusal).context("read the claim")?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let pods = pods.list(&ListParams::default()).await.map_err(refusal).context("list the pods")?;
    Ok(gather(namespace, name, claim.as_ref(), &pods.items))
}

/// Puts a dataset's claim and the pods of its namespace together.
fn gather(
    namespace: String,
    dataset: String,
    claim: Option<&PersistentVolumeClaim>,
    pods: &[Pod],
) -> Mounted {
    let annotation = |key: &str| claim.and_then(|claim| claim.annotations().get(key).cloned());
    let image = annotation(IMAGE_VERSION_ANNOTATION).unwrap_or_default();
    let generation =
        claim.and_then(|claim| claim.labels().get(GENERATION_LABEL).cloned()).unwrap_or_default();
    let mut nodes: Vec<Node> = pods
        .iter()
        .filter(|pod| is_daemon(pod, &dataset))
        .filter_map(|pod| {
            let name = pod.spec.as_ref()?.node_name.clone()?;
            let theirs = pod.labels().get(GENERATION_LABEL).cloned().unwrap_or_default();
            let up_to_date = theirs == generation && image_of(pod) == image;
            let used_by = pods.iter().filter(|pod| uses(pod, &dataset, &name)).map(user).collect();
            Some(Node {
                name,
                image: image_of(pod),
                generation: theirs,
                up_to_date,
                ready: is_ready(pod),
                used_by,
            })
        })
        .collect();
    nodes.sort_by(|one, two| one.name.cmp(&two.name));
    let strategy = annotation(UPDATE_STRATEGY_ANNOTATION).unwrap_or_else(|| "OnDelete".into());
    Mounted { namespace, dataset, strategy, image, generation, nodes }
}

fn is_daemon(pod: &Pod, dataset: &str) -> bool {
    let says = |key: &str, value: &str| pod.labels().get(key).is_some_and(|said| said == value);
    says("role", "juicefs-fuse") && says("release", dataset)
}

/// The image that a daemon was made for.
fn image_of(pod: &Pod) -> String {
    let container = pod.spec.as_ref().and_then(|spec| spec.containers.first());
    let mut variables = container.into_iter().flat_map(|container| container.env.iter().flatten());
    let said = variables.find(|variable| variable.name == IMAGE_VERSION_VARIABLE);
    said.and_then(|variable| variable.value.clone())
        .or_else(|| container.and_then(|container| container.image.clone()))
        .unwrap_or_default()
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
}

fn uses(pod: &Pod, dataset: &str, node: &str) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let ended = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let mut claims =
        spec.volumes.iter().flatten().filter_map(|volume| volume.persistent_volume_claim.as_ref());
    spec.node_name.as_deref() == Some(node)
        && !matches!(ended, Some("Succeeded" | "Failed"))
        && claims.any(|claim| claim.claim_name == dataset)
}

fn user(pod: &Pod) -> User {
    let since = pod.status.as_ref().and_then(|status| status.start_time.as_ref()).map(|time| time.0);
    User { pod: pod.name_any(), since }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(json: Value) -> Pod {
        serde_json::from_value(json).unwrap()
    }

    fn daemon(node: &str, generation: &str, image: &str) -> Pod {
        pod(json!({
            "metadata": {
                "name": format!("data-fuse-{node}"),
                "labels": { "role": "juicefs-fuse", "release": "data", GENERATION_LABEL: generation },
            },
            "spec": { "nodeName": node, "containers": [{
                "name": "juicefs-fuse", "image": image, "env": [{ "name": IMAGE_VERSION_VARIABLE, "value": image }],
            }] },
            "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
        }))
    }

    fn workload(name: &str, node: &str, claim: &str, phase: &str) -> Pod {
        pod(json!({
            "metadata": { "name": name },
            "spec": {
                "nodeName": node,
                "containers": [{ "name": "main" }],
                "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": claim } }],
            },
            "status": { "phase": phase, "startTime": "2026-01-02T03:04:05Z" },
        }))
    }

    #[test]
    fn old_daemons_are_told_from_new_ones_with_those_who_keep_them() {
        let claim = serde_json::from_value(json!({
            "metadata": {
                "name": "data",
                "labels": { GENERATION_LABEL: "2" },
                "annotations": { IMAGE_VERSION_ANNOTATION: "fuse:2", UPDATE_STRATEGY_ANNOTATION: "OnIdle" },
            },
        }));
        let pods = [
            daemon("node-2", "2", "fuse:2"),
            daemon("node-1", "1", "fuse:1"),
            workload("busy", "node-1", "data", "Running"),
            workload("done", "node-1", "data", "Succeeded"),
            workload("other", "node-1", "logs", "Running"),
            workload("elsewhere", "node-3", "data", "Running"),
        ];
        let seen = gather("default".into(), "data".into(), Some(&claim.unwrap()), &pods);
        assert_eq!(
            (seen.strategy.as_str(), seen.image.as_str(), seen.generation.as_str()),
            ("OnIdle", "fuse:2", "2")
        );
        let [one, two] = seen.nodes.as_slice() else { panic!("{seen:?}") };
        assert_eq!((one.name.as_str(), one.up_to_date, one.ready), ("node-1", false, true));
        let users: Vec<&str> = one.used_by.iter().map(|user| user.pod.as_str()).collect();
        assert_eq!(users, ["busy"]);
        assert_eq!(
            one.used_by[0].since.map(|since| since.to_string()).as_deref(),
            Some("2026-01-02T03:04:05Z")
        );
        assert_eq!((two.name.as_str(), two.up_to_date, two.used_by.len()), ("node-2", true, 0));
    }

    #[test]
    fn a_dataset_without_a_claim_has_no_daemons_yet() {
        let seen = gather("default".into(), "data".into(), None, &[]);
        assert_eq!((seen.strategy.as_str(), seen.nodes.len()), ("OnDelete", 0));
    }
}
