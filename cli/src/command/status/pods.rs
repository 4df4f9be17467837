//! Pods that do not run yet, and what keeps them from it.
//!
//! The invariant: what is said of a pod is what its node or the scheduler said of it.

use anyhow::Context;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::Client;
use kube::api::{Api, ListParams};
use midflight_api::IMAGES_PULLED;

use super::storage::Does;
use crate::target::refusal;

/// All pods; none where this user may not see them.
pub(super) async fn all(client: &Client) -> anyhow::Result<Vec<Pod>> {
    match Api::<Pod>::all(client.clone()).list(&ListParams::default()).await {
        Ok(list) => Ok(list.items),
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_forbidden() => Ok(Vec::new()),
        Err(error) => Err(refusal(error)).context("list pods"),
    }
}

/// What a pod does that does not run; nothing of one that runs, has ended or is to go.
pub(super) fn does(pod: &Pod) -> Option<Does> {
    if pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let status = pod.status.as_ref()?;
    let conditions = status.conditions.iter().flatten();
    let failed = |kind: &str| {
        let condition = { conditions.clone() }.find(|one| one.type_ == kind && one.status == "False")?;
        let (reason, message) = (condition.reason.clone()?, condition.message.clone().unwrap_or_default());
        Some((reason, message))
    };
    if let Some((_, message)) = failed("PodScheduled") {
        return Some(Does::Waits(message));
    }
    if let Some((reason, message)) = failed(IMAGES_PULLED).filter(|(_, message)| !message.is_empty()) {
        return Some(if reason == "Pulling" { Does::Moves(message) } else { Does::Waits(message) });
    }
    let statuses = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    let broken = { statuses }.find_map(broken)?;
    Some(Does::Waits(broken))
}

/// Why a container does not start, or not for long.
fn broken(status: &ContainerStatus) -> Option<String> {
    let waiting = status.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.as_deref()?;
    let is_on_its_way = matches!(reason, "ContainerCreating" | "PodInitializing");
    let message = waiting.message.as_deref().unwrap_or_default();
    (!is_on_its_way).then(|| format!("container {}: {reason}: {message}", status.name))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_pod_that_does_not_run_says_why() {
        let condition = |kind: &str, reason: &str, message: &str| json!({ "conditions": [{ "type": kind, "status": "False", "reason": reason, "message": message }] });
        let waiting = |reason: &str| {
            let state = json!({ "waiting": { "reason": reason, "message": "next start at noon" } });
            json!({ "containerStatuses": [
                { "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 3, "state": state },
            ] })
        };
        let moves = |why: &str| Some(Does::Moves(why.into()));
        let waits = |why: &str| Some(Does::Waits(why.into()));
        #[rustfmt::skip]
        let cases: [(Value, Option<Does>); 7] = [
            (json!({}),                                                      None),
            (json!({ "conditions": [{ "type": IMAGES_PULLED, "status": "True" }] }), None),
            (condition("PodScheduled", "Unschedulable", "no node fits"),     waits("no node fits")),
            (condition(IMAGES_PULLED, "Pulling", "a:v1: 1.0 of 2.0 MiB"),    moves("a:v1: 1.0 of 2.0 MiB")),
            (condition(IMAGES_PULLED, "ErrImagePull", "a:v1: no such image"), waits("a:v1: no such image")),
            (waiting("ContainerCreating"),                                   None),
            (waiting("CrashLoopBackOff"),                                    waits("container c: CrashLoopBackOff: next start at noon")),
        ];
        for (status, expected) in cases {
            let pod = json!({ "metadata": { "name": "p" }, "status": status });
            let mut pod: Pod = serde_json::from_value(pod).unwrap();
            assert_eq!(does(&pod), expected, "{status}");
            pod.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
            assert_eq!(does(&pod), None, "it is to go: {status}");
        }
    }
}
