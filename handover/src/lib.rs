//! One process takes over another's live work: its descriptors, and the state
//! that makes sense of them.
//!
//! ```text
//! a process ── put ──▶ keeper ── take ──▶ its successor
//! ```
//!
//! | room | what it holds |
//! | --- | --- |
//! | [`parcel`] | what is handed over |
//! | [`keeper`] | the process that holds parcels while nobody else does |
//! | [`desk`] | putting and taking, from the side of those who do it |
//! | [`kernel`] | sessions whose client is the kernel (FUSE) |
//! | `packet` | bytes and descriptors in one message |

pub mod desk;
pub mod keeper;
pub mod kernel;
mod packet;
pub mod parcel;

pub use desk::{Desk, DeskError};
pub use keeper::Keeper;
pub use parcel::{Parcel, Stay};
