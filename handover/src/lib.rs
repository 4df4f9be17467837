//! One process takes over another's live work: its descriptors, and the state
//! that makes sense of them.
//!
//! ```text
//! a process ── put ──▶ keeper ── take ──▶ its successor     when it ends before the next begins
//! a process ── say ──▶ line ──── hear ──▶ its successor     while both live
//! ```
//!
//! | room | what it holds |
//! | --- | --- |
//! | [`parcel`] | what is handed over |
//! | [`keeper`] | the process that holds parcels while nobody else does |
//! | [`desk`] | putting and taking, from the side of those who do it |
//! | [`kernel`] | sessions whose client is the kernel (FUSE) |
//! | [`line`] | what is given straight to a successor |
//! | `packet` | bytes and descriptors in one message, over sockets of the same user |

pub mod desk;
pub mod keeper;
pub mod kernel;
pub mod line;
mod packet;
pub mod parcel;

pub use desk::{Desk, DeskError};
pub use keeper::Keeper;
pub use line::{Hatch, Line};
pub use parcel::{Parcel, Stay};
