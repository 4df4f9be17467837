//! What the API says of datasets and their daemons.

use std::collections::BTreeSet;
use std::fmt::Debug;

use anyhow::Context;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::{Api, Client, Resource, ResourceExt, api::ListParams};
use midflight_api::fluid::{
    DELETION_WAITS, Dataset, DatasetPhase, GENERATION_LABEL, IMAGE_VERSION_ANNOTATION,
    IMAGE_VERSION_VARIABLE, JuiceFSRuntime, READY_CONDITION,
};
use midflight_api::longhorn::ConditionStatus;
use midflight_operator::controller::Key;
use midflight_operator::{claim_of, served_dataset, shown_dataset, troubled_daemon, used_claims};
use midflight_plan::mount::replaces_idle;
use midflight_plan::mount::trouble::{self, Troubled};
use serde::de::DeserializeOwned;

use super::{Mounted, Node, User};
use crate::target::refusal;

pub(super) async fn all(client: &Client, namespace: Option<&str>) -> anyhow::Result<Vec<Mounted>> {
    let datasets: Vec<Dataset> = list(client, namespace).await.context("list the datasets")?;
    let runtimes: Vec<JuiceFSRuntime> = list(client, namespace).await.context("list the runtimes")?;
    let (mut found, volumes) = (Vec::new(), volumes(client).await?);
    for dataset in &datasets {
        found.push(look(client, dataset, &volumes).await?);
    }
    let has_dataset = |runtime: &JuiceFSRuntime| datasets.iter().any(|one| Key::of(one) == Key::of(runtime));
    found.extend(runtimes.iter().filter(|runtime| !has_dataset(runtime)).map(alone));
    Ok(found)
}

pub(crate) async fn one(client: &Client, namespace: &str, name: &str) -> anyhow::Result<Option<Mounted>> {
    let datasets: Api<Dataset> = Api::namespaced(client.clone(), namespace);
    let dataset = datasets.get_opt(name).await.map_err(refusal).context("read the dataset")?;
    if let Some(dataset) = dataset {
        return look(client, &dataset, &volumes(client).await?).await.map(Some);
    }
    let runtimes: Api<JuiceFSRuntime> = Api::namespaced(client.clone(), namespace);
    let runtime = runtimes.get_opt(name).await.map_err(refusal).context("read the runtime")?;
    Ok(runtime.as_ref().map(alone))
}

async fn list<K>(client: &Client, namespace: Option<&str>) -> anyhow::Result<Vec<K>>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    let all: Api<K> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    Ok(all.list(&ListParams::default()).await.map_err(refusal)?.items)
}

/// A runtime that has no dataset to serve.
fn alone(runtime: &JuiceFSRuntime) -> Mounted {
    let Key { namespace, name } = Key::of(runtime);
    let fuse = &runtime.spec.fuse;
    Mounted {
        waits_for: Some(format!("there is no Dataset {namespace}/{name} for its JuiceFSRuntime to serve")),
        namespace,
        dataset: name,
        phase: DatasetPhase::NotBound.to_string(),
        strategy: if fuse.replaces_idle_pods() { "OnIdle" } else { "OnDelete" }.to_owned(),
        image: String::new(),
        generation: String::new(),
        nodes: Vec::new(),
    }
}

/// All volumes; none for somebody who may not see them.
async fn volumes(client: &Client) -> anyhow::Result<Vec<PersistentVolume>> {
    const FORBIDDEN: u16 = 403;
    match Api::all(client.clone()).list(&ListParams::default()).await {
        Ok(volumes) => Ok(volumes.items),
        Err(kube::Error::Api(status)) if status.code == FORBIDDEN => Ok(Vec::new()),
        Err(error) => Err(refusal(error)).context("list the volumes"),
    }
}

async fn look(client: &Client, dataset: &Dataset, volumes: &[PersistentVolume]) -> anyhow::Result<Mounted> {
    let (namespace, name) = (dataset.namespace().unwrap_or_default(), dataset.name_any());
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &namespace);
    let claim = claims.get_opt(&name).await.map_err(refusal).context("read the claim")?;
    let claims = claims_of(&Key::of(dataset), volumes);
    let namespaces: BTreeSet<&str> = claims.iter().map(|claim| claim.namespace.as_str()).collect();
    let mut pods = Vec::new();
    for namespace in namespaces {
        let all: Api<Pod> = Api::namespaced(client.clone(), namespace);
        pods.extend(all.list(&ListParams::default()).await.map_err(refusal).context("list the pods")?);
    }
    Ok(gather(dataset, claim.as_ref(), &claims, &pods))
}

/// The phase of a dataset, and what keeps workloads from it, or it from going.
fn standing(dataset: &Dataset) -> (String, Option<String>) {
    let status = dataset.status.clone().unwrap_or_default();
    let missing = status.conditions.iter().find(|condition| {
        let waits = condition.status == ConditionStatus::False || condition.reason.as_str() == DELETION_WAITS;
        condition.kind.as_str() == READY_CONDITION && waits
    });
    (status.phase.to_string(), missing.map(|condition| condition.message.as_str().to_owned()))
}

/// Claims through which workloads use a dataset: its own, and those whose volumes are folders of it or name it.
fn claims_of(dataset: &Key, volumes: &[PersistentVolume]) -> BTreeSet<Key> {
    let shows = |volume: &&PersistentVolume| shown_dataset(volume).as_ref() == Some(dataset);
    volumes.iter().filter(shows).filter_map(claim_of).chain([dataset.clone()]).collect()
}

/// Puts a dataset's own claim, all that lead to it, and the pods of their namespaces together.
fn gather(
    dataset: &Dataset,
    claim: Option<&PersistentVolumeClaim>,
    claims: &BTreeSet<Key>,
    pods: &[Pod],
) -> Mounted {
    let (namespace, name) = (dataset.namespace().unwrap_or_default(), dataset.name_any());
    let (phase, waits_for) = standing(dataset);
    let annotation = |key: &str| claim.and_then(|claim| claim.annotations().get(key).cloned());
    let image = annotation(IMAGE_VERSION_ANNOTATION).unwrap_or_default();
    let generation =
        claim.and_then(|claim| claim.labels().get(GENERATION_LABEL).cloned()).unwrap_or_default();
    let own = Key::new(&namespace, &name);
    let daemons: Vec<&Pod> = pods.iter().filter(|pod| served_dataset(pod).as_ref() == Some(&own)).collect();
    let troubled: Vec<Troubled> = daemons.iter().filter_map(|pod| troubled_daemon(pod)).collect();
    let waits_for = waits_for.or_else(|| trouble::in_words(&troubled));
    let mut nodes: Vec<Node> = daemons
        .iter()
        .filter_map(|pod| {
            let name = pod.spec.as_ref()?.node_name.clone()?;
            let theirs = pod.labels().get(GENERATION_LABEL).cloned().unwrap_or_default();
            let up_to_date = theirs == generation && image_of(pod) == image;
            let used_by = pods.iter().filter(|pod| uses(pod, claims, &name)).map(user).collect();
            Some(Node {
                name,
                image: image_of(pod),
                generation: theirs,
                up_to_date,
                ready: is_ready(pod),
                waits_for: why_not_ready(pod),
                used_by,
            })
        })
        .collect();
    nodes.sort_by(|one, two| one.name.cmp(&two.name));
    let is_idle = claim.is_some_and(|claim| replaces_idle(claim.annotations(), claim.labels()));
    let strategy = if is_idle { "OnIdle" } else { "OnDelete" }.to_owned();
    Mounted { namespace, dataset: name, phase, waits_for, strategy, image, generation, nodes }
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

fn why_not_ready(pod: &Pod) -> Option<String> {
    if is_ready(pod) {
        return None;
    }
    let going = pod.metadata.deletion_timestamp.as_ref().map(|_| "it is ending".to_owned());
    let trouble = || troubled_daemon(pod).map(|troubled| troubled.why);
    Some(going.or_else(trouble).unwrap_or_else(|| "it is starting".to_owned()))
}

fn uses(pod: &Pod, claims: &BTreeSet<Key>, node: &str) -> bool {
    let is_there = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node);
    is_there && used_claims(pod).iter().any(|claim| claims.contains(claim))
}

fn user(pod: &Pod) -> User {
    let since = pod.status.as_ref().and_then(|status| status.start_time.as_ref()).map(|time| time.0);
    User { namespace: pod.namespace().unwrap_or_default(), pod: pod.name_any(), since }
}

#[cfg(test)]
mod tests {
    use midflight_api::fluid::{DRIVER, UPDATE_STRATEGY_ANNOTATION};
    use serde_json::{Value, json};

    use super::*;

    fn data() -> Dataset {
        let mut dataset = Dataset::new("data", Default::default());
        dataset.metadata.namespace = Some("default".into());
        dataset
    }

    fn pod(json: Value) -> Pod {
        serde_json::from_value(json).unwrap()
    }

    fn daemon(node: &str, generation: &str, image: &str) -> Pod {
        pod(json!({
            "metadata": {
                "name": format!("data-fuse-{node}"),
                "namespace": "default",
                "labels": { "role": "juicefs-fuse", "release": "data", GENERATION_LABEL: generation },
            },
            "spec": { "nodeName": node, "containers": [{
                "name": "juicefs-fuse", "image": image, "env": [{ "name": IMAGE_VERSION_VARIABLE, "value": image }],
            }] },
            "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
        }))
    }

    fn workload(name: &str, node: &str, claim: &str, phase: &str) -> Pod {
        let source = json!({ "name": "data", "persistentVolumeClaim": { "claimName": claim } });
        workload_with(("default", name), node, &source, phase)
    }

    fn workload_with((namespace, name): (&str, &str), node: &str, volume: &Value, phase: &str) -> Pod {
        pod(json!({
            "metadata": { "name": name, "namespace": namespace },
            "spec": {
                "nodeName": node,
                "containers": [{ "name": "main" }],
                "volumes": [volume],
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
        let claims = claims_of(&Key::new("default", "data"), &[]);
        let seen = gather(&data(), Some(&claim.unwrap()), &claims, &pods);
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
    fn a_daemon_that_is_not_ready_says_why() {
        let said = |pod: Pod| {
            let seen = gather(&data(), None, &BTreeSet::new(), &[pod]);
            (seen.nodes[0].ready, seen.nodes[0].waits_for.clone(), seen.waits_for)
        };
        let not_ready = |state: Value| {
            let mut pod = daemon("node-1", "1", "fuse:9");
            let container = json!({
                "name": "juicefs-fuse", "image": "fuse:9", "imageID": "", "ready": false, "restartCount": 0, "state": state,
            });
            pod.status = serde_json::from_value(json!({ "containerStatuses": [container] })).unwrap();
            pod
        };
        assert_eq!(said(daemon("node-1", "1", "fuse:1")), (true, None, None));
        let why = "its image fuse:9 cannot be had; publish it, or name another in the runtime";
        let waits = json!({ "waiting": { "reason": "ImagePullBackOff", "message": "Back-off" } });
        let (ready, node, dataset) = said(not_ready(waits));
        assert_eq!((ready, node.as_deref()), (false, Some(why)));
        assert_eq!(dataset, Some(format!("the daemon on node-1 does not run: {why}")));
        let starting = not_ready(json!({ "waiting": { "reason": "ContainerCreating" } }));
        assert_eq!(said(starting), (false, Some("it is starting".into()), None));
    }

    #[test]
    fn a_dataset_that_nobody_serves_says_why() {
        let dataset = |status: &str| -> Dataset {
            serde_json::from_value(json!({
                "apiVersion": "data.fluid.io/v1alpha1", "kind": "Dataset", "metadata": { "name": "data" }, "spec": {},
                "status": { "phase": "NotBound", "conditions": [
                    { "type": "Other", "status": "False", "message": "something else" },
                    { "type": "Ready", "status": status, "message": "there is no runtime" },
                ] },
            }))
            .unwrap()
        };
        assert_eq!(standing(&dataset("False")), ("NotBound".into(), Some("there is no runtime".into())));
        assert_eq!(standing(&dataset("True")), ("NotBound".into(), None));
    }

    #[test]
    fn a_runtime_without_a_dataset_says_what_it_waits_for() {
        let runtime = serde_json::from_value(json!({
            "apiVersion": "data.fluid.io/v1alpha1", "kind": "JuiceFSRuntime",
            "metadata": { "name": "data", "namespace": "team" },
            "spec": { "fuse": { "updateStrategy": "OnIdle" } },
        }));
        let shown = alone(&runtime.unwrap());
        assert_eq!((shown.phase.as_str(), shown.strategy.as_str()), ("NotBound", "OnIdle"));
        let words = "there is no Dataset team/data for its JuiceFSRuntime to serve";
        assert_eq!(shown.waits_for.as_deref(), Some(words));
    }

    #[test]
    fn a_dataset_without_a_claim_has_no_daemons_yet() {
        let seen = gather(&data(), None, &BTreeSet::new(), &[]);
        assert_eq!((seen.strategy.as_str(), seen.nodes.len()), ("OnDelete", 0));
    }

    #[test]
    fn claims_of_fluid_itself_say_the_strategy_by_their_label() {
        for (labels, expected) in [(json!({ GENERATION_LABEL: "2" }), "OnIdle"), (json!({}), "OnDelete")] {
            let claim = json!({ "metadata": { "name": "data", "labels": labels } });
            let claim = serde_json::from_value(claim).unwrap();
            let seen = gather(&data(), Some(&claim), &BTreeSet::new(), &[]);
            assert_eq!(seen.strategy, expected, "{labels}");
        }
    }

    #[test]
    fn whoever_uses_the_dataset_through_another_claim_keeps_its_daemon_busy() {
        let volume = |driver: &str, dataset: &str, claim: (&str, &str)| -> PersistentVolume {
            serde_json::from_value(json!({
                "metadata": { "name": format!("of-{}", claim.1) },
                "spec": {
                    "claimRef": { "namespace": claim.0, "name": claim.1 },
                    "csi": { "driver": driver, "volumeHandle": "h", "volumeAttributes": {
                        "runtime_namespace": "default", "runtime_name": dataset,
                    } },
                },
            }))
            .unwrap()
        };
        let volumes = [
            volume(DRIVER, "data", ("team", "room")),
            volume(DRIVER, "data", ("default", "job-scratch")),
            volume(DRIVER, "logs", ("team", "logs")),
            volume("other.csi.io", "data", ("team", "foreign")),
        ];
        let claim = |name: &str| json!({ "name": "v", "persistentVolumeClaim": { "claimName": name } });
        let pods = [
            daemon("node-1", "1", "fuse:1"),
            workload_with(("team", "in-a-room"), "node-1", &claim("room"), "Running"),
            workload_with(("default", "not-its"), "node-1", &claim("room"), "Running"),
            workload_with(("team", "of-logs"), "node-1", &claim("logs"), "Running"),
            workload_with(("team", "of-others"), "node-1", &claim("foreign"), "Running"),
            workload_with(
                ("default", "job"),
                "node-1",
                &json!({ "name": "scratch", "ephemeral": {} }),
                "Running",
            ),
        ];
        let claims = claims_of(&Key::new("default", "data"), &volumes);
        let seen = gather(&data(), None, &claims, &pods);
        let users: Vec<String> = seen.nodes[0].used_by.iter().map(|user| user.named("default")).collect();
        assert_eq!(users, ["team/in-a-room", "job"]);
    }
}
