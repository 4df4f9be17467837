//! All definitions of our kinds, in one order, as objects and as YAML.
//!
//! The invariant: what `midflight crds` prints, what `deploy/crds.yaml` holds
//! and what an operator installs are the same.

use std::fmt;

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
        match crd.spec.names.kind.as_str() {
            "Volume" => add_rules(crd, &longhorn::rules_of_whole_volumes()),
            "Dataset" => add_rules(crd, &fluid::rules_of_whole_datasets()),
            _ => {}
        }
    }
    all
}

/// Puts rules at the top of a kind's schema, where they see both spec and status.
fn add_rules(crd: &mut CustomResourceDefinition, rules: &[Value]) {
    for version in &mut crd.spec.versions {
        let schema = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut());
        let schema = schema.expect("every kind has a schema");
        let rules = rules.iter().map(|rule| serde_json::from_value(rule.clone()).expect("it is a rule"));
        schema.x_kubernetes_validations.get_or_insert_default().extend(rules);
    }
}

/// A system whose kinds we share where it does not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    Longhorn,
    Fluid,
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            System::Longhorn => "Longhorn",
            System::Fluid => "Fluid",
        })
    }
}

/// Whose kind a definition of this name is; nobody's but ours if it comes from a seed or from us.
pub fn system_of(definition: &str) -> Option<System> {
    match definition {
        "volumes.longhorn.io"
        | "engines.longhorn.io"
        | "replicas.longhorn.io"
        | "instancemanagers.longhorn.io"
        | "engineimages.longhorn.io"
        | "nodes.longhorn.io"
        | "settings.longhorn.io"
        | "snapshots.longhorn.io"
        | "backuptargets.longhorn.io"
        | "backups.longhorn.io" => Some(System::Longhorn),
        "datasets.data.fluid.io" | "juicefsruntimes.data.fluid.io" => Some(System::Fluid),
        _ => None,
    }
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
