//! The whole data plane in one thread: the production cores, a network that
//! delivers in any order between connections, disks that lose what was not
//! synced, and a client that judges. Everything follows from a seed.
//!
//! Invariant: a run is a function of its seed and its script.

mod client;
mod judgement;
pub(crate) mod network;
pub(crate) mod nodes;
mod scenarios;
mod world;
