//! The frontend: holds the clients of a node's volumes, keeps what they asked
//! until it is answered, and changes engines under them.
//!
//! `table` orders requests, `core` drives one volume, `switch` its switch-over,
//! `clients` speaks NBD, `room` bounds what they keep here, `devices` FUSE, `exposure` makes and removes block devices, `control` has its commands,
//! `serve` connects them to sockets. `succession` is how one such process follows
//! another, `keeping` its dealings with the keeper, `parked` what it leaves there.

mod clients;
pub mod control;
pub mod core;
mod devices;
mod exposure;
mod keeping;
mod negotiating;
mod parked;
mod room;
pub mod serve;
mod succession;
mod switch;
pub mod table;
#[cfg(test)]
mod tests;
