//! The frontend: holds the clients of a node's volumes, keeps what they asked
//! until it is answered, and changes engines under them.
//!
//! `table` orders requests, `core` drives one volume and its switch-over,
//! `clients` speaks NBD, `control` and `remote` are its commands and their giver,
//! `serve` connects them to sockets.

mod clients;
pub mod control;
pub mod core;
pub mod remote;
pub mod serve;
pub mod table;
