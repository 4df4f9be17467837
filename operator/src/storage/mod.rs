//! Storage controllers: the shells around `plan::storage`.

mod backup;
mod deployment;
mod engine_image;
mod engines;
mod held;
mod instance_manager;
mod nodes;
mod orders;
mod pods;
mod pre_pull;
mod rebuilds;
mod settings;
mod snapshot;
#[cfg(test)]
mod tests;
mod usage;
mod volume;

pub(crate) use backup::{BackupTargets, Backups, Restores};
pub(crate) use engine_image::EngineImages;
pub(crate) use held::Held;
pub(crate) use instance_manager::InstanceManagers;
pub(crate) use nodes::Nodes;
pub(crate) use orders::{Orders, SECRET};
pub(crate) use pre_pull::PrePull;
pub(crate) use rebuilds::Rebuilds;
pub(crate) use snapshot::Snapshots;
pub(crate) use usage::Usage;
pub(crate) use volume::Volumes;
