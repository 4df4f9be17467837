//! The life of volumes, and of the images and instance managers that serve them.

pub mod engine_image;
pub mod instance_manager;
pub mod schedule;
pub mod volume;
