//! The thinking of Midflight: what was seen goes in, one action or a typed
//! reason to wait comes out. No I/O, no clock, no async.

pub mod engine_upgrade;
pub mod install;
pub mod mount;
pub mod storage;
