//! The engine: takes requests from one frontend and carries them out on every
//! replica in service.
//!
//! `core` decides, `requests` counts acknowledgements, `members` knows who is in
//! service, `serve` connects them to sockets.

pub mod core;
pub mod members;
mod requests;
pub mod serve;
