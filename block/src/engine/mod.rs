//! The engine: takes requests from one frontend and carries them out on every
//! replica in service.
//!
//! `core` decides, `requests` counts acknowledgements, `members` knows who is in
//! service, `membership` changes that, `copying` makes copies equal, `layout` changes snapshots and size, `throttle` slows that down, `suspension` lets requests wait, `alone` bears what the last copy cannot do, `paths` reaches them, `serve`
//! connects them to sockets.

mod alone;
pub mod control;
mod copying;
pub mod core;
mod layout;
pub mod members;
mod membership;
mod paths;
mod requests;
pub mod serve;
mod suspension;
#[cfg(test)]
mod tests;
mod throttle;
