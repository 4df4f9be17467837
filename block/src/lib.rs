//! The replicated block engine: replicas, engine, frontend, and the way a volume
//! changes engines under a running client.
//!
//! ```text
//! client ── nbd ──▶ frontend ── wire ──▶ engine ── wire ──▶ replica ×N
//! ```
//!
//! | room | what it holds |
//! | --- | --- |
//! | [`epoch`], [`extent`], [`blocks`], [`window`] | small nouns that all parts share |
//! | [`wire`] | the frames between frontend, engine and replica |
//! | [`nbd`] | the NBD protocol as bytes in, bytes out |
//! | [`net`] | sockets: one epoll loop, buffered links |
//! | [`replica`] | one copy of a volume: core, store, promise, process |
//! | [`engine`] | fan-out to the replicas: core, members, process |
//! | [`host`] | engines and replicas that share a process, and meet in it |
//! | [`frontend`] | clients and switch-over: table, core, process |
//! | `blockdev` | a volume as a block device: FUSE, loop device, precautions |
//! | [`backup`] | snapshots kept in a folder: blocks by their hash, manifests, restore |
//! | [`caller`] | commands to a frontend or an engine, from outside |
//! | [`check`] | the judge: blocks that know what they are, ledger, workload |
//! | [`instance`] | the instance manager: hosts engines and replicas, or minds their processes |
//! | [`record`] | who may write and who is in service: the record, its file, its scribe |
//! | [`role`] | the processes as commands |
//! | [`about`] | what the engines of this build can do |
//! | [`tour`] | a whole data plane on one machine, for tour and tests |
//!
//! In each of replica, engine and frontend `core` is a state machine without I/O
//! and `serve` the only place that meets sockets, disks and clocks.

pub mod about;
pub mod backup;
mod blockdev;
pub mod blocks;
pub mod caller;
pub mod check;
mod durable;
pub mod engine;
pub mod epoch;
pub mod extent;
mod failpoint;
pub mod frontend;
pub mod host;
pub mod instance;
#[cfg(test)]
mod model;
pub mod nbd;
pub mod net;
pub mod record;
pub mod replica;
pub mod role;
#[cfg(test)]
mod sim;
pub mod tour;
pub mod window;
pub mod wire;
