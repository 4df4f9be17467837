//! What a server does before it answers: it learns the stored definitions and
//! makes the namespaces that every cluster has.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{OpenError, Shared};
use crate::http::{definition, namespaces};
use crate::lifecycle::rfc3339;
use crate::registry::{Registry, definitions};
use crate::store::{Body, Change, Key, Store, WriteError};

const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

pub(super) fn learn_definitions(store: &Store, registry: &Registry) {
    for entry in store.snapshot(&definitions()).iter() {
        let definition: Value = serde_json::from_slice(&entry.stored.bytes).expect("the store holds JSON");
        registry.learn(entry.name, definition::learnt(&definition), entry.stored.version);
    }
}

pub(super) async fn make_namespaces(shared: &Arc<Shared>) -> Result<(), OpenError> {
    let make = |name: &'static str| async move {
        let key = Key::new(namespaces(), None, name);
        if shared.store.get(&key).is_some() {
            return Ok(());
        }
        let object = json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {
                "name": name, "uid": Uuid::new_v4().to_string(), "creationTimestamp": rfc3339(Timestamp::now()),
                "labels": {"kubernetes.io/metadata.name": name},
            },
            "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"},
        });
        match shared.commit(Change::Create { key, body: Body::new(&object) }, Vec::new()).await {
            Ok(_) | Err(WriteError::Exists) => Ok(()),
            Err(error) => Err(OpenError::Namespaces(error)),
        }
    };
    futures::future::try_join_all(NAMESPACES.map(make)).await.map(drop)
}
