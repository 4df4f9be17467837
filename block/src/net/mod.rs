//! Sockets at the edge of the cores: addresses, buffered links and one epoll loop.
//!
//! Invariant: nothing here blocks except `Reactor::wait`.

pub mod address;
pub mod by_link;
mod inner;
pub mod link;
pub mod reactor;
mod receive;
pub mod signal;
mod vigil;
