//! The table of settings.
//!
//! The invariant: every default is a value that its format accepts.

use super::{Definition, ENGINE_UPGRADE_LIMIT, Format};
use Format::{Choice, Image, Number, NumberPerEngine, Switch, SwitchPerEngine};

const COUNT: Format = Number { min: 0, max: 1_000_000 };
const SECONDS: Format = Number { min: 0, max: 86_400 };

const fn setting(
    name: &'static str,
    format: Format,
    default: &'static str,
    description: &'static str,
) -> Definition {
    Definition { name, format, default, acted_on: true, read_only_with_longhorn: false, description }
}

/// One that Longhorn's tools and manifests set, and that nothing here acts on.
const fn kept(
    name: &'static str,
    format: Format,
    default: &'static str,
    description: &'static str,
) -> Definition {
    Definition { name, format, default, acted_on: false, read_only_with_longhorn: false, description }
}

const fn default_image(name: &'static str, default: &'static str, description: &'static str) -> Definition {
    Definition { name, format: Image, default, acted_on: true, read_only_with_longhorn: true, description }
}

/// All settings that are served, in the order in which they are shown.
pub const TABLE: &[Definition] = &[
    default_image(
        "default-engine-image",
        concat!("midflight.local/engine:v", env!("CARGO_PKG_VERSION")),
        "Engine image of new volumes, and the one that automatic upgrades lead to.",
    ),
    default_image(
        "default-instance-manager-image",
        concat!("midflight.local/instance-manager:v", env!("CARGO_PKG_VERSION")),
        "Image of new instance managers, and the one that node upgrades lead to.",
    ),
    default_image(
        "default-share-manager-image",
        concat!("midflight.local/share-manager:v", env!("CARGO_PKG_VERSION")),
        "Share-manager image that is pulled on every node. It idles: shared volumes are not served.",
    ),
    setting(
        ENGINE_UPGRADE_LIMIT,
        COUNT,
        "0",
        "How many volumes of a node may be on their way to the default engine image at once; 0 turns automatic upgrades off.",
    ),
    setting(
        "concurrent-automatic-engine-upgrade-cluster-limit",
        COUNT,
        "0",
        "How many volumes of the cluster may be on their way to the default engine image at once; 0 is no limit.",
    ),
    setting(
        "automatic-engine-upgrade-paused",
        Switch,
        "false",
        "Begin no further automatic engine upgrade. Those that have begun go on.",
    ),
    setting(
        "automatic-engine-upgrade-settle-seconds",
        SECONDS,
        "0",
        "Seconds to wait on a node after one automatic engine upgrade before the next begins.",
    ),
    setting(
        "automatic-engine-upgrade-failure-threshold",
        COUNT,
        "3",
        "Automatic engine upgrades that may fail before no further one begins; 0 is any number.",
    ),
    setting(
        "automatic-engine-upgrade-deadline-seconds",
        Number { min: 1, max: 86_400 },
        "600",
        "Seconds after which an automatic engine upgrade that is not done goes back to the old image.",
    ),
    setting(
        "node-upgrade-deadline-seconds",
        Number { min: 1, max: 86_400 },
        "600",
        "Seconds that each step of a node upgrade may take before the node goes back; rebuilds have six times as long.",
    ),
    setting(
        "node-upgrade-retry-limit",
        COUNT,
        "5",
        "How often the upgrade of a node is tried again after it failed.",
    ),
    setting(
        "node-upgrade-back-off-seconds",
        SECONDS,
        "60",
        "Seconds after which a node upgrade that failed is tried again; they double with each failure.",
    ),
    setting(
        "allow-live-engine-upgrade-on-same-image-commit",
        Switch,
        "false",
        "Upgrade an attached volume also if both images were built from the same commit; false waits until it is detached.",
    ),
    setting(
        "start-pre-pull-manager-images",
        Switch,
        "true",
        "Pull the instance-manager and share-manager images on every node before they are needed, and keep them there.",
    ),
    setting(
        "pre-pull-max-nodes-at-once",
        COUNT,
        "0",
        "How many nodes may pull at once, so that a registry is not stormed; 0 is all.",
    ),
    setting("v1-data-engine", Switch, "true", "Serve volumes of the v1 data engine."),
    setting("v2-data-engine", Switch, "true", "Serve volumes of the v2 data engine."),
    setting(
        "concurrent-replica-rebuild-per-node-limit",
        COUNT,
        "5",
        "How many replicas of a node may be rebuilt at once. With 0 no rebuild begins: no replica is replaced, added or moved to another node, and no node upgrade begins; rebuilds that have begun go on.",
    ),
    setting(
        "replica-replenishment-wait-interval",
        SECONDS,
        "600",
        "Seconds that a degraded volume waits for a failed replica to return before it gets a new one.",
    ),
    setting(
        "replica-rebuilding-bandwidth-limit",
        NumberPerEngine { min: 0, max: 1_000_000 },
        r#"{"v2":"0"}"#,
        "Greatest rate of a volume's rebuild in MB/s; 0 is no limit. `spec.replicaRebuildingBandwidthLimit` of a volume goes first.",
    ),
    kept(
        "fast-replica-rebuild-enabled",
        SwitchPerEngine,
        r#"{"v1":"true","v2":"true"}"#,
        "Copy only what a returning replica misses. Longhorn finds that out by checksums of snapshots, which cost time and can be turned off; here engines note what a replica misses while it is away, so that there is nothing to turn off.",
    ),
    setting(
        "offline-replica-rebuilding",
        Switch,
        "false",
        "Rebuild replicas of detached volumes at once, and let them leave nodes that are emptied; else that is done when the volume is next attached. `spec.offlineRebuilding` of a volume goes first.",
    ),
    setting(
        "engine-replica-timeout",
        NumberPerEngine { min: 8, max: 30 },
        r#"{"v1":"8","v2":"8"}"#,
        "Seconds that an engine waits for a replica that is silent before it takes it out of service.",
    ),
    setting(
        "auto-salvage",
        Switch,
        "true",
        "Serve again by itself after all replicas of a volume failed, as soon as one that has all data is back, and never from an older one. With false the volume stays faulted until somebody sets `spec.salvageRequested` of a replica that has all data; asked for on an older one, what the others have more is lost.",
    ),
    kept(
        "auto-delete-pod-when-volume-detached-unexpectedly",
        Switch,
        "true",
        "Delete a pod whose volume was lost under it, so that it mounts it anew. Here frontends outlive engines: a client waits until its volume serves again and sees no error, so that no pod has to be started anew.",
    ),
    kept(
        "upgrade-checker",
        Switch,
        "true",
        "Ask on the Internet whether there is a newer version. Here nothing is asked of anybody outside the cluster.",
    ),
    setting(
        "node-drain-policy",
        Choice(&[
            "block-for-eviction",
            "block-for-eviction-if-contains-last-replica",
            "block-if-contains-last-replica",
            "allow-if-replica-is-stopped",
            "always-allow",
        ]),
        "block-if-contains-last-replica",
        "When `midflight node drain --wait` calls a node drained. Replicas leave it whatever the policy is; `block-for-eviction` waits until none is left, `block-for-eviction-if-contains-last-replica` and `block-if-contains-last-replica` until no volume has its last healthy replica there, `allow-if-replica-is-stopped` does not mind such a one of a volume that is not attached, `always-allow` waits for none.",
    ),
    setting(
        "system-managed-pods-image-pull-policy",
        Choice(&["always", "if-not-present", "never"]),
        "if-not-present",
        "When the pods that Midflight makes pull their images.",
    ),
];
