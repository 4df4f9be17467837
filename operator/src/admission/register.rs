//! Tells the API server which questions to ask, and where.
//!
//! The invariant: while nobody answers, only the controllers may ask for another engine image, call or make one by a short name, or
//! delete one or the record of a volume, nobody may delete the namespace, a node or the Secret of the instance managers, and everybody
//! may go back; no upgrade of nodes begins.

use std::net::SocketAddr;

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::{Api, Patch, PatchParams, PostParams};
use midflight_api::longhorn::NAMESPACE;
use midflight_api::{MANAGED_BY, MANAGER};
use serde_json::json;

use super::AdmissionError;
use crate::storage;
use crate::write::Writer;

/// Name of the configuration.
const NAME: &str = "midflight";
/// What a question is about: the path that it comes to.
const ENGINE_IMAGE: &str = "engine-image";
pub(super) const ENGINE_IMAGE_OBJECT: &str = "engine-image-object";
pub(super) const PLACE: &str = "place";
pub(super) const IMAGE_NAME: &str = "image-name";
pub(super) const ATTACHMENT: &str = "attachment";
pub(super) const TARGET: &str = "target";
pub(super) const NODE_UPGRADE: &str = "node-upgrade";
pub(super) const SETTING: &str = "setting";
pub(super) const NODE: &str = "node";
pub(super) const RECORD: &str = "record";
pub(super) const SECRET: &str = "secret";
pub(super) const NAMESPACE_OBJECT: &str = "namespace";

/// The name of a volume is a label of its replicas, that of an upgrade one of the upgrades of its nodes, and labels are so long.
pub(super) const LONGEST_NAME: usize = 63;
/// Images whose name says in which registry they are, as `midflight_api::split_registry` sees it.
const NAMES_ITS_REGISTRY: &str = "^(localhost|[^/]*[.:][^/]*)/";

pub(super) async fn register(
    writer: &Writer,
    address: SocketAddr,
    ca_bundle: &str,
) -> Result<(), AdmissionError> {
    let reviews: Api<SelfSubjectReview> = Api::all(writer.client().clone());
    let who = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await;
    let who = who.map_err(|error| AdmissionError::Identity { source: Box::new(error.into()) })?;
    let user = who.status.and_then(|status| status.user_info?.username).unwrap_or_default();
    let image_changes =
        "has(object.spec.image) && (!has(oldObject.spec.image) || object.spec.image != oldObject.spec.image)";
    let goes_elsewhere = "!has(oldObject.status) || !has(oldObject.status.currentImage) || \
         object.spec.image != oldObject.status.currentImage";
    // The controllers judge by the same rules before they write.
    let somebody_else_asks = json!({ "name": "somebody-else-asks", "expression": format!("request.userInfo.username != {user:?}") });
    let is_attached = "has(object.spec.nodeID) && object.spec.nodeID != '' && \
         (oldObject == null || !has(oldObject.spec.nodeID) || object.spec.nodeID != oldObject.spec.nodeID)";
    let is_moved = "has(object.spec.targetNodeID) && object.spec.targetNodeID != '' && \
         (oldObject == null || !has(oldObject.spec.targetNodeID) || object.spec.targetNodeID != oldObject.spec.targetNodeID)";
    let has_host = format!(".matches('{NAMES_ITS_REGISTRY}')");
    let is_short_default = format!(
        "object.metadata.name in ['default-engine-image', 'default-instance-manager-image', 'default-share-manager-image'] && \
         !object.value{has_host} && (oldObject == null || object.value != oldObject.value)"
    );
    let is_short =
        format!("has(object.spec.image) && object.spec.image != '' && !object.spec.image{has_host}");
    let is_asked_for = "oldObject == null || \
         object.spec != oldObject.spec && !(has(object.spec.paused) && object.spec.paused)";
    let is_ours = json!({ "name": "it-is-ours", "expression": format!("oldObject.metadata.namespace == '{NAMESPACE}'") });
    let client_config =
        |about: &str| json!({ "url": format!("https://{address}/{about}"), "caBundle": ca_bundle });
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": NAME, "labels": { MANAGED_BY: MANAGER } },
        "webhooks": [{
            "name": "engine-image.midflight.dev",
            "clientConfig": client_config(ENGINE_IMAGE),
            "rules": [{
                "apiGroups": ["longhorn.io"], "apiVersions": ["v1beta2"], "resources": ["volumes"],
                "operations": ["UPDATE"], "scope": "Namespaced",
            }],
            "matchConditions": [
                { "name": "the-image-changes", "expression": image_changes },
                // The way back is open, also while nobody answers.
                { "name": "it-does-not-go-back", "expression": goes_elsewhere },
                somebody_else_asks,
            ],
            "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 10,
        }, {
            "name": "engine-image-object.midflight.dev",
            "clientConfig": client_config(ENGINE_IMAGE_OBJECT),
            "rules": [{
                "apiGroups": ["longhorn.io"], "apiVersions": ["v1beta2"], "resources": ["engineimages"],
                "operations": ["CREATE", "DELETE"], "scope": "Namespaced",
            }],
            "matchConditions": [somebody_else_asks],
            "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 10,
        }, {
            "name": "default-image-name.midflight.dev",
            "clientConfig": client_config(IMAGE_NAME),
            "rules": [{
                "apiGroups": ["longhorn.io"], "apiVersions": ["v1beta2"], "resources": ["settings"],
                "operations": ["CREATE", "UPDATE"], "scope": "Namespaced",
            }],
            "matchConditions": [
                { "name": "it-is-short", "expression": is_short_default },
                somebody_else_asks,
            ],
            "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 10,
        }, {
            "name": "image-name.midflight.dev",
            "clientConfig": client_config(IMAGE_NAME),
            "rules": [{
                "apiGroups": ["longhorn.io"], "apiVersions": ["v1beta2"], "resources": ["volumes"],
                "operations": ["CREATE"], "scope": "Namespaced",
            }],
            "matchConditions": [{ "name": "it-is-short", "expression": is_short }, somebody_else_asks],
            "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 10,
        }, {
            "name": "place.midflight.dev",
            "clientConfig": client_config(PLACE),
            "rules": [{
                "apiGroups": ["longhorn.io"], "apiVersions": ["v1beta2"], "resources": ["volumes"],
                "operations": ["CREATE"], "scope": "Namespaced",
            }],
            "matchConditions": [{
                "name": "nobody-serves-it",
                "expression": format!("object.metadata.namespace != '{NAMESPACE}' || size(object.metadata.name) > {LONGEST_NAME}"),
            }],
            "failurePolicy": "Ignore", "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 10,
        }, {
            "name": "attachment.midflight.dev",
            "clientConfig": client_config(ATTACHMENT),
            "rules": [{
                "apiGroups": ["longhorn.io"], "apiVersions": ["v1beta2"], "resources": ["volumes"],
                "operations": ["CREATE", "UPDATE"], "scope": "Namespaced",
            }],
            "matchConditions": [{ "name": "it-is-attached", "expression": is_attached }],
            // A volume that comes to an upgraded node nevertheless is moved on, and one of a node that nobody knows waits for it; one that
            // cannot come at all is worse.
            "failurePolicy": "Ignore", "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 10,
        }, {
            "name": "target.midflight.dev",
            "clientConfig": client_config(TARGET),
            "rules": [{
                "apiGroups": ["longhorn.io"], "apiVersions": ["v1beta2"], "resources": ["volumes"],
                "operations": ["CREATE", "UPDATE"], "scope": "Namespaced",
            }],
            "matchConditions": [{ "name": "its-target-is-moved", "expression": is_moved }, somebody_else_asks],
            // A target that is to be on a node that nobody knows stays where it is, and says so.
            "failurePolicy": "Ignore", "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 10,
        }, {
            "name": "node-upgrade.midflight.dev",
            "clientConfig": client_config(NODE_UPGRADE),
            "rules": [{
                "apiGroups": ["longhorn.io"], "apiVersions": ["v1beta2"], "resources": ["dataengineupgrademanagers"],
                "operations": ["CREATE", "UPDATE"], "scope": "Namespaced",
            }],
            // One that failed goes on when its spec changes; whatever else changes, and a pause, depends on nobody.
            "matchConditions": [{ "name": "it-is-asked-for", "expression": is_asked_for }],
            "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 10,
        }, {
            "name": "setting.midflight.dev",
            "clientConfig": client_config(SETTING),
            "rules": [{
                "apiGroups": ["longhorn.io"], "apiVersions": ["v1beta2"], "resources": ["settings"],
                "operations": ["DELETE"], "scope": "Namespaced",
            }],
            "matchConditions": [is_ours],
            // Without a setting its default holds, and the next start makes it again.
            "failurePolicy": "Ignore", "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 10,
        }, {
            "name": "node.midflight.dev",
            "clientConfig": client_config(NODE),
            "rules": [{
                "apiGroups": ["longhorn.io"], "apiVersions": ["v1beta2"], "resources": ["nodes"],
                "operations": ["DELETE"], "scope": "Namespaced",
            }],
            "matchConditions": [is_ours],
            "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 10,
        }, {
            "name": "record.midflight.dev",
            "clientConfig": client_config(RECORD),
            "rules": [{
                "apiGroups": ["midflight.dev"], "apiVersions": ["v1alpha1"], "resources": ["volumerecords"],
                "operations": ["DELETE"], "scope": "Namespaced",
            }],
            "matchConditions": [is_ours, somebody_else_asks],
            "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 10,
        }, {
            "name": "secret.midflight.dev",
            "clientConfig": client_config(SECRET),
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets"],
                "operations": ["DELETE"], "scope": "Namespaced",
            }],
            "matchConditions": [
                is_ours,
                { "name": "orders-carry-it", "expression": format!("oldObject.metadata.name == '{}'", storage::SECRET.0) },
            ],
            "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 10,
        }, {
            "name": "namespace.midflight.dev",
            "clientConfig": client_config(NAMESPACE_OBJECT),
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "resources": ["namespaces"],
                "operations": ["DELETE"], "scope": "Cluster",
            }],
            "matchConditions": [{ "name": "it-is-ours", "expression": format!("oldObject.metadata.name == '{NAMESPACE}'") }],
            "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 10,
        }],
    });
    let all: Api<ValidatingWebhookConfiguration> = Api::all(writer.client().clone());
    let parameters = PatchParams::apply(MANAGER).force();
    let applied =
        writer.send("apply", NAME, all.patch(NAME, &parameters, &Patch::Apply(&configuration))).await;
    applied.map(drop).map_err(|source| AdmissionError::Register { source: Box::new(source) })
}

#[cfg(test)]
mod tests {
    use midflight_api::split_registry;

    use super::*;

    /// The API server asks us about a name only if the pattern says that it is short.
    #[test]
    fn the_api_calls_the_same_names_short_as_we_do() {
        let pattern = regex::Regex::new(NAMES_ITS_REGISTRY).unwrap();
        let pieces = ["", "a", "localhost", ".", ":", "/", "@", "\n"];
        let mut names = vec![String::new()];
        for _ in 0..5 {
            let longer = |name: &String| pieces.map(|piece| format!("{name}{piece}"));
            names = names.iter().flat_map(longer).collect();
            names.sort_unstable();
            names.dedup();
        }
        assert!(names.len() > 10_000);
        for name in names {
            assert_eq!(pattern.is_match(&name), split_registry(&name).is_some(), "{name:?}");
        }
    }
}
