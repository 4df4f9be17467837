//! The life of volumes, and of the images and instance managers that serve them.

pub mod backup;
pub mod deployment;
pub mod drain;
pub mod engine_image;
pub mod guard;
pub mod held;
pub mod instance_manager;
pub mod node;
pub mod pre_pull;
pub mod rebuilds;
pub mod schedule;
pub mod snapshot;
pub mod usage;
pub mod volume;
