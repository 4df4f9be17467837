//! The server asked without a socket: requests and the answers they must get.

mod access;
mod disk;
mod lists;
mod objects;
mod patches;
mod special;
mod watches;
