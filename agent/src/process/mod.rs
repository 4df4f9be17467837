//! Processes that outlive whoever started them: who they are, and whether they live.

mod identity;
mod system;

pub use identity::{Alive, Identity};
pub(crate) use system::own_namespaces;
