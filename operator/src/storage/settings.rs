//! Settings as controllers read them.

use midflight_api::longhorn::{DataEngine, NAMESPACE, Setting};
use midflight_api::settings;

use crate::controller::{Key, Objects, Stale};

pub(super) const ENGINE_IMAGE: &str = "default-engine-image";
pub(super) const INSTANCE_MANAGER_IMAGE: &str = "default-instance-manager-image";
pub(super) const SHARE_MANAGER_IMAGE: &str = "default-share-manager-image";
pub(super) const PRE_PULL: &str = "start-pre-pull-manager-images";
const PULL_POLICY: &str = "system-managed-pods-image-pull-policy";
pub(super) const REBUILD_LIMIT: &str = "replica-rebuilding-bandwidth-limit";
pub(super) const REPLICA_TIMEOUT: &str = "engine-replica-timeout";
pub(super) const REBUILDS_DETACHED: &str = "offline-replica-rebuilding";
pub(super) const REBUILDS_AT_ONCE: &str = midflight_plan::storage::rebuilds::LIMIT;
pub(super) const AUTO_SALVAGE: &str = "auto-salvage";
pub(super) const REPLENISH_AFTER: &str = "replica-replenishment-wait-interval";

/// The value of a setting, or its default if there is none or a value that nobody may give it.
pub(super) fn value(all: &Objects<Setting>, name: &'static str) -> Result<String, Stale> {
    let given = all.get(&Key::new(NAMESPACE, name))?.map(|setting| setting.value.clone());
    let valid = given.filter(|value| settings::check(name, value).is_ok());
    let default = || settings::find(name).map(|setting| setting.default.to_owned());
    Ok(valid.or_else(default).unwrap_or_default())
}

/// A number that may be another for each data engine; 0 where none is given for this one.
pub(super) fn number_for(
    all: &Objects<Setting>,
    name: &'static str,
    engine: DataEngine,
) -> Result<u64, Stale> {
    Ok(settings::number_for(&value(all, name)?, engine).unwrap_or_default())
}

/// How many replicas of a node may be rebuilt at once.
pub(super) fn rebuilds_at_once(all: &Objects<Setting>) -> Result<usize, Stale> {
    Ok(value(all, REBUILDS_AT_ONCE)?.parse().unwrap_or_default())
}

/// When the pods that are made here pull their images, in the words of Kubernetes.
pub(super) fn pull_policy(all: &Objects<Setting>) -> Result<&'static str, Stale> {
    Ok(match value(all, PULL_POLICY)?.as_str() {
        "always" => "Always",
        "never" => "Never",
        _ => "IfNotPresent",
    })
}

/// Which data engines are served.
pub(super) fn data_engines(all: &Objects<Setting>) -> Result<Vec<DataEngine>, Stale> {
    let mut engines = Vec::new();
    for engine in DataEngine::ALL {
        let name = match engine {
            DataEngine::V1 => "v1-data-engine",
            DataEngine::V2 => "v2-data-engine",
        };
        if value(all, name)? == "true" {
            engines.push(*engine);
        }
    }
    Ok(engines)
}
