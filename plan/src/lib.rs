//! The thinking of Midflight: what was seen goes in, one action or a typed
//! reason to wait comes out. No I/O, no clock, no async.

pub mod claim_binding;
pub mod daemon_set;
pub mod engine_upgrade;
pub mod image_collection;
pub mod install;
pub mod mount;
pub mod node_life;
pub mod node_upgrade;
pub mod placement;
pub mod pod;
pub mod storage;
