//! One copy of a volume: a folder, and the process that owns it.
//!
//! `core` decides (`requests` what is asked), `store` keeps the copy, `layers` its bytes, `promise` the fence, `intent` where
//! copies may differ after a crash, `absent` what other copies miss, `map` a set
//! of blocks in a file, `disk` is the file system or its twin in memory, `worker` waits for it, `pace` lets work make
//! way for requests, `serve` connects them to sockets, `succession` gives them to another process.

pub mod absent;
pub mod core;
pub mod disk;
pub mod intent;
pub mod layers;
pub mod map;
#[cfg(test)]
pub mod memory;
mod pace;
pub mod promise;
mod requests;
pub mod serve;
pub mod store;
pub mod succession;
#[cfg(test)]
mod tests;
mod worker;
