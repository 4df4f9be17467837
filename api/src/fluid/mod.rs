//! Fluid's kinds, `data.fluid.io/v1alpha1`, with what seed 003 adds to them.
//!
//! The invariant: every name and value is upstream's, so that the same objects
//! work on a Fluid cluster; `tests/api/fixtures.rs` lists what is added and why.

mod dataset;
mod juicefs_runtime;

pub(crate) use dataset::rules as rules_of_whole_datasets;
pub use dataset::{
    Dataset, DatasetCondition, DatasetMount, DatasetPhase, DatasetRuntime, DatasetSpec, DatasetStatus,
    HcfsStatus, NoFolder, Placement,
};
pub use juicefs_runtime::{
    CleanPolicy, EnvironmentVariable, FuseSpec, JuiceFSRuntime, JuiceFSRuntimeSpec, JuiceFSRuntimeStatus,
    NetworkMode, PodMetadata, Quantity, ResourceNeeds, RuntimeCondition, RuntimePhase, UpdateStrategy,
};

/// Group of all kinds here.
pub const GROUP: &str = "data.fluid.io";
/// Annotation of a dataset's PVC: the image its FUSE pods should run, `IMAGE:TAG`.
pub const IMAGE_VERSION_ANNOTATION: &str = "fuse.runtime.fluid.io/image-version";
/// Label of a dataset's PVC and of its FUSE pods: upstream's counter of changes.
pub const GENERATION_LABEL: &str = "fuse.runtime.fluid.io/generation";
/// Variable of a FUSE pod that names the image it was made for.
pub const IMAGE_VERSION_VARIABLE: &str = "RUNTIMEINFO_FUSE_IMAGE_VERSION";
/// Variable of a FUSE pod that names the generation it was made for.
pub const GENERATION_VARIABLE: &str = "RUNTIMEINFO_FUSE_GENERATION";
/// Annotation of a dataset's PVC: `OnIdle` if idle FUSE pods of an old version are to be replaced.
pub const UPDATE_STRATEGY_ANNOTATION: &str = "midflight.dev/fuse-update-strategy";
/// Finalizer of a dataset and its runtime: they stay as long as workloads use them.
pub const IN_USE_FINALIZER: &str = "midflight.dev/in-use";
/// Name of the CSI driver; upstream's, so its volumes are ours.
pub const DRIVER: &str = "fuse.csi.fluid.io";
/// Condition of a dataset: whether workloads can mount it. Upstream's word.
pub const READY_CONDITION: &str = "Ready";
/// Reason of that condition: it was deleted, and workloads use it.
pub const DELETION_WAITS: &str = "DeletionWaits";

/// Name and handle of the volume of a dataset.
pub fn volume_name(namespace: &str, dataset: &str) -> String {
    format!("{namespace}-{dataset}")
}
