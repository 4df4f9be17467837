//! The node's label and the volume's claim, in the API.
//!
//! Invariant: one call of kubelet's costs at most one read, and a write only where something
//! changes; nothing is listed and nothing is watched.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::{Node, ObjectReference, PersistentVolumeClaim};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{Patch, PatchParams},
};
use midflight_api::fluid::{GENERATION_LABEL, UPDATE_STRATEGY_ANNOTATION};
use midflight_plan::mount::{Policy, Version};
use serde_json::json;
use tokio::time::timeout;
use tonic::Status;

use super::volume::Attributes;

/// Longest wait for one answer of the API.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// What a dataset wants of its daemons.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Wish {
    pub(super) policy: Policy,
    pub(super) version: Version,
    /// Whom people ask why something is not done: the dataset, or its claim.
    pub(super) about: Option<ObjectReference>,
}

impl Wish {
    /// A claim that has gone wishes no daemon. One that Fluid's own controller made says nothing of a strategy; there daemons tell
    /// their generation where `cleanPolicy` is `OnFuseChanged`, and what is not told never differs.
    fn of(claim: Option<&PersistentVolumeClaim>) -> Wish {
        let Some(claim) = claim else {
            return Wish { policy: Policy::Remove, version: Version::default(), about: None };
        };
        let empty = BTreeMap::new();
        let annotations = claim.metadata.annotations.as_ref().unwrap_or(&empty);
        let labels = claim.metadata.labels.as_ref().unwrap_or(&empty);
        let policy = match annotations.get(UPDATE_STRATEGY_ANNOTATION).map(String::as_str) {
            Some("OnIdle") => Policy::ReplaceIdle,
            Some(_) => Policy::Keep,
            None if labels.contains_key(GENERATION_LABEL) => Policy::ReplaceIdle,
            None => Policy::Keep,
        };
        Wish { policy, version: Version::wanted(annotations, labels), about: Some(asked(claim)) }
    }
}

/// The owner of a claim, or itself.
fn asked(claim: &PersistentVolumeClaim) -> ObjectReference {
    let Some(owner) = claim.owner_references().first() else { return claim.object_ref(&()) };
    ObjectReference {
        api_version: Some(owner.api_version.clone()),
        kind: Some(owner.kind.clone()),
        name: Some(owner.name.clone()),
        uid: Some(owner.uid.clone()),
        namespace: claim.namespace(),
        ..ObjectReference::default()
    }
}

/// Whether the daemon of a volume is asked for on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Label {
    Present,
    Absent,
}

pub(super) struct Cluster {
    client: Client,
    node: String,
}

impl Cluster {
    pub(super) fn new(client: Client, node: String) -> Cluster {
        Cluster { client, node }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) async fn wish(&self, attributes: &Attributes) -> Result<Wish, Status> {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &attributes.namespace);
        let claim = answered("read the claim", claims.get_opt(&attributes.name)).await?;
        Ok(Wish::of(claim.as_ref()))
    }

    pub(super) async fn label(&self, key: &str, label: Label) -> Result<(), Status> {
        let value = match label {
            Label::Present => json!("true"),
            Label::Absent => json!(null),
        };
        let nodes: Api<Node> = Api::all(self.client.clone());
        let patch = Patch::Merge(json!({ "metadata": { "labels": { key: value } } }));
        let params = PatchParams::default();
        answered("label the node", nodes.patch(&self.node, &params, &patch)).await.map(drop)
    }
}

/// An answer, or a failure after which kubelet tries again.
pub(super) async fn answered<T>(
    doing: &str,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Status> {
    match timeout(ANSWER_WITHIN, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(Status::unavailable(format!("{doing}: {error}"))),
        Err(_) => Err(Status::unavailable(format!("{doing}: no answer within {ANSWER_WITHIN:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_says_whether_idle_daemons_go() {
        let claim = |json| serde_json::from_value::<PersistentVolumeClaim>(json).unwrap();
        #[rustfmt::skip]
        let cases = [
            (json!({}),                                         json!({}),                        Policy::Keep),
            (json!({ UPDATE_STRATEGY_ANNOTATION: "OnDelete" }), json!({ GENERATION_LABEL: "2" }), Policy::Keep),
            (json!({ UPDATE_STRATEGY_ANNOTATION: "OnIdle" }),   json!({ GENERATION_LABEL: "2" }), Policy::ReplaceIdle),
            (json!({}),                                         json!({ GENERATION_LABEL: "2" }), Policy::ReplaceIdle),
        ];
        for (annotations, labels, expected) in cases {
            let claim = claim(json!({ "metadata": { "annotations": annotations, "labels": labels } }));
            assert_eq!(Wish::of(Some(&claim)).policy, expected, "{annotations} {labels}");
        }
        assert_eq!(Wish::of(None).policy, Policy::Remove);
    }
}
