//! The processes of one folder: who they are, whether they live, how they start and end.

mod record;
mod spawn;
mod system;

pub(crate) use midflight_agent::process::{Alive, Identity};
pub(crate) use record::{Lock, Record, Recorded, Role};
pub(crate) use spawn::Launch;
pub(crate) use system::leave_parent;
