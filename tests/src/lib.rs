//! What tests of more than one crate share: where programs are, and how to speak to an API server.

pub mod cluster;
pub mod dataset;
pub mod endpoint;
pub mod fleet;
pub mod follow;
pub mod history;
pub mod kinds;
pub mod leaks;
pub mod load;
pub mod longhorn;
pub mod network;
pub mod noise;
pub mod pattern;
pub mod place;
pub mod running;
pub mod server;
pub mod storage;
pub mod told;
pub mod watching;
pub mod webhook;
pub mod wire;
