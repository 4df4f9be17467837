//! Images: what pods run. Packed from a binary, published in a folder and served from there; pulled and unpacked on nodes.
//!
//! The one invariant: content is named by its digest, and what is found under a
//! digest has that digest.

mod collect;
mod digest;
mod layout;
mod name;
mod neighbours;
mod pack;
mod progress;
mod pull;
pub mod registry;
mod remote;
mod store;
mod unpack;

pub(crate) use collect::collect;
pub use digest::Digest;
pub use layout::{Layout, LayoutError, Published};
pub use name::{ImageName, LOCAL, NameError};
pub use neighbours::Neighbours;
pub use pack::{PackError, Program, of_another, pack, pack_for_this_boot};
pub(crate) use progress::Progress;
pub use pull::PullError;
pub(crate) use pull::Puller;
pub use store::{Held, Run, Store, same_file};
