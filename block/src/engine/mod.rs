//! The engine: takes requests from one frontend and carries them out on every
//! replica in service.
//!
//! `core` decides, `frontend` hears its frontend, `taking` takes a volume over, `requests` counts acknowledgements, `members` knows who is in
//! service, `membership` changes that, `copying` makes copies equal, `layout` changes snapshots and size, `throttle` slows that down, `suspension` lets requests wait, `alone` bears what the last copy cannot do, `paths` reaches them, `serve`
//! connects them to sockets.

mod alone;
pub mod control;
mod copying;
pub mod core;
mod frontend;
mod layout;
pub mod members;
mod membership;
mod paths;
mod requests;
pub mod serve;
mod suspension;
mod taking;
#[cfg(test)]
mod tests;
mod throttle;
