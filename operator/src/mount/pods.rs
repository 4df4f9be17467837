//! What pods and volumes say that have to do with datasets.
//!
//! The invariant: a daemon is called troubled only where its node says that nothing of it runs.

use k8s_openapi::api::core::v1::{ContainerStateWaiting, ContainerStatus, PersistentVolume, Pod};
use kube::ResourceExt;
use midflight_api::fluid::{DRIVER, GENERATION_LABEL, JuiceFSRuntime};
use midflight_plan::mount::dataset::Generation;
use midflight_plan::mount::trouble::Troubled;

use super::objects::FuseRuntime as _;
use crate::controller::Key;

/// The dataset that a pod is a daemon of.
pub fn served_dataset(pod: &Pod) -> Option<Key> {
    let says = |key: &str| pod.labels().get(key).map(String::as_str);
    let is_daemon = says("role").and_then(|role| role.strip_suffix("-fuse")) == Some(JuiceFSRuntime::TYPE);
    let release = says("release").filter(|_| is_daemon)?;
    Some(Key::new(&pod.namespace().unwrap_or_default(), release))
}

/// The claims whose volumes a pod has on its node; none once it has ended, and before it has one.
pub fn used_claims(pod: &Pod) -> Vec<Key> {
    let Some(spec) = pod.spec.as_ref().filter(|spec| spec.node_name.is_some()) else { return Vec::new() };
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    if matches!(phase, Some("Succeeded" | "Failed")) {
        return Vec::new();
    }
    let claims = spec.volumes.iter().flatten().filter_map(|volume| {
        let named = volume.persistent_volume_claim.as_ref().map(|claim| claim.claim_name.clone());
        // A claim that comes and goes with the pod is called by both.
        let own = volume.ephemeral.as_ref().map(|_| format!("{}-{}", pod.name_any(), volume.name));
        named.or(own)
    });
    let namespace = pod.namespace().unwrap_or_default();
    claims.map(|name| Key::new(&namespace, &name)).collect()
}

/// The dataset that a volume shows, or a folder of it.
pub fn shown_dataset(volume: &PersistentVolume) -> Option<Key> {
    let source = volume.spec.as_ref()?.csi.as_ref().filter(|source| source.driver == DRIVER)?;
    let attributes = source.volume_attributes.as_ref()?;
    Some(Key::new(attributes.get("runtime_namespace")?, attributes.get("runtime_name")?))
}

/// The claim that a volume is set aside for.
pub fn claim_of(volume: &PersistentVolume) -> Option<Key> {
    let claim = volume.spec.as_ref()?.claim_ref.as_ref()?;
    Some(Key::new(claim.namespace.as_ref()?, claim.name.as_ref()?))
}

/// A daemon that does not run and says why; nothing of one that runs, is about to, or goes.
pub fn troubled(pod: &Pod) -> Option<Troubled> {
    if pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let containers = pod.status.as_ref()?.container_statuses.as_deref()?;
    let waits: Option<Vec<&ContainerStateWaiting>> = containers.iter().map(waiting).collect();
    let wait = waits?.into_iter().find(|wait| !is_about_to_run(wait))?;
    let spec = pod.spec.as_ref()?;
    let image = spec.containers.first().and_then(|container| container.image.as_deref()).unwrap_or_default();
    Some(Troubled {
        pod: pod.name_any(),
        node: spec.node_name.clone()?,
        generation: Generation::read(pod.labels().get(GENERATION_LABEL)).unwrap_or_default(),
        has_run: containers.iter().any(has_run),
        why: why(wait, image),
    })
}

fn waiting(container: &ContainerStatus) -> Option<&ContainerStateWaiting> {
    container.state.as_ref()?.waiting.as_ref()
}

fn is_about_to_run(wait: &ContainerStateWaiting) -> bool {
    matches!(wait.reason.as_deref(), None | Some("ContainerCreating" | "PodInitializing"))
}

fn has_run(container: &ContainerStatus) -> bool {
    let ended = container.last_state.as_ref().is_some_and(|state| state.terminated.is_some());
    ended || container.restart_count > 0
}

/// The words of a node differ with every try, and are in the pod.
fn why(wait: &ContainerStateWaiting, image: &str) -> String {
    match (wait.reason.as_deref().unwrap_or_default(), wait.message.as_deref()) {
        ("ErrImagePull" | "ImagePullBackOff" | "ErrImageNeverPull" | "InvalidImageName", _) => {
            format!("its image {image} cannot be had; publish it, or name another in the runtime")
        }
        ("CrashLoopBackOff", _) => format!("what {image} starts ends again and again"),
        (reason, None) => reason.to_owned(),
        (reason, Some(message)) => format!("{reason}: {message}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn daemon(container: &Value) -> Pod {
        let pod = json!({
            "metadata": {
                "name": "data-fuse-1", "namespace": "team",
                "labels": { "role": "juicefs-fuse", "release": "data", GENERATION_LABEL: "2" },
            },
            "spec": { "nodeName": "node-1", "containers": [{ "name": "juicefs-fuse", "image": "fuse:2" }] },
            "status": { "containerStatuses": [container] },
        });
        serde_json::from_value(pod).unwrap()
    }

    fn container(state: &Value, last: &Value, restarts: u32) -> Value {
        json!({
            "name": "juicefs-fuse", "image": "fuse:2", "imageID": "", "ready": false,
            "restartCount": restarts, "state": state, "lastState": last,
        })
    }

    #[test]
    fn daemons_that_do_not_run_say_why() {
        let waits = |reason: &str| json!({ "waiting": { "reason": reason, "message": "no such folder" } });
        let (never, ended) = (json!({}), json!({ "terminated": { "exitCode": 1 } }));
        let pull = "its image fuse:2 cannot be had; publish it, or name another in the runtime";
        #[rustfmt::skip]
        let cases = [
            (waits("ErrImagePull"),         &never, 0, Some((false, pull))),
            (waits("ImagePullBackOff"),     &never, 0, Some((false, pull))),
            (waits("ImagePullBackOff"),     &ended, 0, Some((true,  pull))),
            (waits("CreateContainerError"), &never, 0, Some((false, "CreateContainerError: no such folder"))),
            (waits("CreateContainerError"), &never, 1, Some((true,  "CreateContainerError: no such folder"))),
            (waits("CrashLoopBackOff"),     &ended, 3, Some((true,  "what fuse:2 starts ends again and again"))),
            (waits("ContainerCreating"),    &never, 0, None),
            (waits("PodInitializing"),      &never, 0, None),
            (json!({ "running": {} }),      &ended, 3, None),
            (json!({}),                     &never, 0, None),
        ];
        for (state, last, restarts, expected) in cases {
            let pod = daemon(&container(&state, last, restarts));
            let seen = troubled(&pod).map(|one| (one.has_run, one.why));
            assert_eq!(seen, expected.map(|(has_run, why)| (has_run, why.to_owned())), "{state} {last}");
        }
        let mut going = daemon(&container(&waits("ErrImagePull"), &never, 0));
        assert_eq!(served_dataset(&going), Some(Key::new("team", "data")));
        going.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-02T03:04:05Z")).unwrap();
        assert_eq!(troubled(&going), None);
        going.labels_mut().insert("role".into(), "juicefs-worker".into());
        assert_eq!(served_dataset(&going), None);
    }
}
