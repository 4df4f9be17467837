//! The kinds the server knows without being taught, and how CRDs teach it more.
//!
//! Everything here is a pure function; the HTTP layer decides when to call it.

mod blank;
mod client_config;
mod columns;
pub mod crd;
mod decode;
pub mod event;
pub mod faults;
mod kinds;
mod lists;
mod metadata;
pub mod names;
mod prepare;
pub(crate) mod schema;
mod validate;

pub(crate) use blank::blank;
pub use crd::kind_from_crd;
pub(crate) use decode::undecodable;
pub use faults::refusal;
pub use kinds::builtin_kinds;
pub(crate) use kinds::definer;
pub(crate) use metadata::map_faults;
pub use prepare::prepare;
pub use validate::validate;

#[cfg(test)]
mod tests;
