//! One copy of a volume: a folder, and the process that owns it.
//!
//! `core` decides, `store` keeps the bytes, `promise` keeps the fence, `disk` is
//! the file system or its twin in memory, `serve` connects them to sockets.

pub mod core;
pub mod disk;
#[cfg(test)]
pub mod memory;
pub mod promise;
pub mod serve;
pub mod store;
