//! The node's label and the volume's claim, in the API.
//!
//! Invariant: one call of kubelet's costs at most one read, and a write only where something
//! changes; nothing is listed and nothing is watched.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, ObjectReference, PersistentVolumeClaim};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{Patch, PatchParams},
};
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
    /// A claim that has gone wishes no daemon.
    fn of(claim: Option<&PersistentVolumeClaim>) -> Wish {
        let Some(claim) = claim else {
            return Wish { policy: Policy::Remove, version: Version::default(), about: None };
        };
        let (annotations, labels) = (claim.annotations(), claim.labels());
        let (policy, version) = (Policy::of_claim(annotations, labels), Version::wanted(annotations, labels));
        Wish { policy, version, about: Some(asked(claim)) }
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
    fn people_are_told_of_a_claim_s_owner() {
        let owner = json!({ "apiVersion": "v9", "kind": "Other", "name": "owner", "uid": "2" });
        let about = |metadata| {
            let mut claim: PersistentVolumeClaim =
                serde_json::from_value(json!({ "metadata": metadata })).unwrap();
            claim.metadata.name = Some("data".into());
            claim.metadata.namespace = Some("team".into());
            let about = Wish::of(Some(&claim)).about.unwrap();
            assert_eq!(about.namespace.as_deref(), Some("team"));
            [about.api_version, about.kind, about.name, about.uid].map(Option::unwrap_or_default).join(" ")
        };
        assert_eq!(about(json!({ "ownerReferences": [owner] })), "v9 Other owner 2", "the operator's");
        assert_eq!(about(json!({ "uid": "3" })), "v1 PersistentVolumeClaim data 3", "Fluid's");
        assert_eq!(Wish::of(None), Wish { policy: Policy::Remove, version: Version::default(), about: None });
    }
}
