//! All definitions of our kinds, in one order, as objects and as YAML.
//!
//! The invariant: what `midflight crds` prints, what `deploy/crds.yaml` holds
//! and what an operator installs are the same.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::CustomResourceExt;
use serde_json::Value;

use crate::{VolumeRecord, fluid, longhorn};

/// Label on everything that Midflight created and may therefore change.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY`] on our objects, and our name as a field manager.
pub const MANAGER: &str = "midflight";

/// The definitions of all kinds: Longhorn's, Fluid's, our own.
pub fn crds() -> Vec<CustomResourceDefinition> {
    let mut all = vec![
        longhorn::Volume::crd(),
        longhorn::Engine::crd(),
        longhorn::Replica::crd(),
        longhorn::InstanceManager::crd(),
        longhorn::EngineImage::crd(),
        longhorn::Image::crd(),
        longhorn::Node::crd(),
        longhorn::Setting::crd(),
        longhorn::Snapshot::crd(),
        longhorn::BackupTarget::crd(),
        longhorn::Backup::crd(),
        longhorn::DataEngineUpgradeManager::crd(),
        longhorn::NodeDataEngineUpgrade::crd(),
        fluid::Dataset::crd(),
        fluid::JuiceFSRuntime::crd(),
        VolumeRecord::crd(),
    ];
    for crd in &mut all {
        let labels = crd.metadata.labels.get_or_insert_default();
        labels.insert(MANAGED_BY.into(), MANAGER.into());
        crd.spec.names.list_kind = Some(format!("{}List", crd.spec.names.kind));
    }
    all
}

/// The definitions as a stream of YAML documents that `kubectl apply` takes.
pub fn render(crds: &[CustomResourceDefinition]) -> String {
    let documents = crds.iter().map(|crd| {
        let object = serde_json::to_value(crd).expect("a definition is JSON");
        let yaml = serde_saphyr::to_string(&without_nulls(object)).expect("JSON is YAML");
        format!("---\n{yaml}")
    });
    documents.collect()
}

fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(
            fields
                .into_iter()
                .filter(|(_, value)| !value.is_null())
                .map(|(key, value)| (key, without_nulls(value)))
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.into_iter().map(without_nulls).collect()),
        other => other,
    }
}
