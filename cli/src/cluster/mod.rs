//! The processes of one folder as a whole: started, watched, stopped.

mod announce;
mod interrupt;
mod start;
mod stop;
mod temporary;
mod volumes;
mod watch;

pub(crate) use announce::{Announcement, announce};
pub(crate) use interrupt::Interrupts;
pub(crate) use start::{Starter, node_address};
pub(crate) use stop::{Ended, end, kill, stop};
pub(crate) use temporary::Temporary;
pub(crate) use volumes::Volumes;
pub(crate) use watch::watch;
