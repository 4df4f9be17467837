//! One file per command.

pub(crate) mod agent;
pub(crate) mod backup;
pub(crate) mod bench;
pub(crate) mod completion;
pub(crate) mod container;
pub(crate) mod crds;
pub(crate) mod csi;
pub(crate) mod down;
pub(crate) mod engine_image;
pub(crate) mod image;
pub(crate) mod instance;
pub(crate) mod migrate;
pub(crate) mod mount;
pub(crate) mod node;
pub(crate) mod plan;
mod role;
pub(crate) mod serve;
pub(crate) mod status;
pub(crate) mod tour;
pub(crate) mod up;
pub(crate) mod upgrade;
pub(crate) mod version;
pub(crate) mod volume;
