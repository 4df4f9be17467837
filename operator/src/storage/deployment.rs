//! What pods say of the images that they hold on their nodes.
//!
//! The invariant: a node has an image only while the container that runs from it there is ready.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod};
use midflight_plan::storage::deployment::Lack;

const PULLED: Lack = Lack::Coming("it is being pulled");

/// Pods by the node that they are on: of each the first that stays, and one that ends where there is no other.
pub(super) fn by_node(pods: &[Arc<Pod>]) -> HashMap<&str, &Arc<Pod>> {
    let ends = |pod: &&Arc<Pod>| pod.metadata.deletion_timestamp.is_some();
    let (ending, staying): (Vec<_>, Vec<_>) = pods.iter().rev().partition(ends);
    let all = ending.into_iter().chain(staying);
    all.filter_map(|pod| Some((pod.spec.as_ref()?.node_name.as_deref()?, pod))).collect()
}

/// Whether a container of the pod holds its image, and which that is; or what is in the way.
pub(super) fn holds<'a>(pod: Option<&'a Pod>, container: &str) -> Result<&'a str, Lack> {
    let pod = pod.ok_or(Lack::Coming("its pod is not there yet"))?;
    if pod.metadata.deletion_timestamp.is_some() {
        return Err(Lack::Coming("its pod is being replaced"));
    }
    let status = pod.status.as_ref().ok_or(PULLED)?;
    let mut all = status.container_statuses.iter().flatten();
    let own = all.find(|status| status.name == container);
    if let Some(own) = own.filter(|own| own.ready) {
        return Ok(&own.image_id);
    }
    let before = status.init_container_statuses.iter().flatten();
    Err(before.chain(own).find_map(trouble).map_or(PULLED, Lack::Failed))
}

/// What keeps a container from running, if anything does.
fn trouble(status: &ContainerStatus) -> Option<String> {
    let ContainerState { waiting, terminated, .. } = status.state.as_ref()?;
    if let Some(waiting) = waiting {
        let (reason, message) = (waiting.reason.as_deref()?, waiting.message.as_deref());
        let is_on_its_way = matches!(reason, "ContainerCreating" | "PodInitializing");
        return (!is_on_its_way).then(|| in_words(reason, message));
    }
    let ended = terminated.as_ref().filter(|ended| ended.exit_code != 0)?;
    Some(in_words(ended.reason.as_deref().unwrap_or("Error"), ended.message.as_deref()))
}

fn in_words(reason: &str, message: Option<&str>) -> String {
    match message {
        Some(message) if !message.is_empty() => format!("{reason}: {message}"),
        _ => reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_pod_that_ends_hides_none_that_has_come_in_its_place() {
        let pod = |name: &str, deleted: Option<&str>| -> Arc<Pod> {
            let metadata = json!({ "name": name, "deletionTimestamp": deleted });
            let pod = json!({ "metadata": metadata, "spec": { "nodeName": "node-1", "containers": [] } });
            Arc::new(serde_json::from_value(pod).unwrap())
        };
        let (ends, stays) = (pod("ends", Some("2026-01-02T03:04:05Z")), pod("stays", None));
        #[rustfmt::skip]
        let cases = [
            (vec![ends.clone()],                        "ends"),
            (vec![ends.clone(), stays.clone()],         "stays"),
            (vec![stays.clone(), ends.clone()],         "stays"),
            (vec![stays.clone(), pod("second", None)],  "stays"),
        ];
        for (pods, expected) in cases {
            assert_eq!(by_node(&pods)["node-1"].metadata.name.as_deref(), Some(expected), "{pods:?}");
        }
    }

    #[test]
    fn says_what_keeps_a_node_from_having_an_image() {
        let pod = |status: Value| -> Pod {
            serde_json::from_value(json!({ "metadata": {}, "status": status })).unwrap()
        };
        let named = |ready: bool, state: Value| json!({ "name": "c", "image": "", "imageID": "id", "restartCount": 0, "ready": ready, "state": state });
        let waits = |reason: &str, message: &str| {
            named(false, json!({ "waiting": { "reason": reason, "message": message } }))
        };
        let ended =
            named(false, json!({ "terminated": { "exitCode": 1, "reason": "Error", "message": "no room" } }));
        #[rustfmt::skip]
        let cases = [
            (json!({}),                                                                    Err("it is being pulled")),
            (json!({ "containerStatuses": [named(true, json!({ "running": {} }))] }),      Ok("id")),
            (json!({ "containerStatuses": [named(false, json!({ "running": {} }))] }),     Err("it is being pulled")),
            (json!({ "containerStatuses": [waits("ContainerCreating", "")] }),             Err("it is being pulled")),
            (json!({ "containerStatuses": [waits("ErrImagePull", "it is not there")] }),   Err("ErrImagePull: it is not there")),
            (json!({ "initContainerStatuses": [ended], "containerStatuses": [waits("PodInitializing", "")] }), Err("Error: no room")),
        ];
        for (status, expected) in cases {
            let found = pod(status.clone());
            assert_eq!(
                holds(Some(&found), "c").map_err(|lack| lack.to_string()),
                expected.map_err(str::to_owned),
                "{status}"
            );
        }
        assert!(holds(None, "c").is_err());
        let mut going = pod(json!({ "containerStatuses": [named(true, json!({ "running": {} }))] }));
        going.metadata.deletion_timestamp =
            Some(serde_json::from_value(json!("2020-01-01T00:00:00Z")).unwrap());
        assert_eq!(holds(Some(&going), "c"), Err(Lack::Coming("its pod is being replaced")));
    }
}
