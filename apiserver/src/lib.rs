//! A Kubernetes-compatible API server that a laptop can run by itself.
//!
//! It knows no Midflight type: beyond a few built-in kinds it learns what to
//! serve from CustomResourceDefinitions.
//!
//! The one invariant: what was acknowledged is durable, and every reader sees
//! the writes to an object in the order of their resourceVersions.

pub mod apply;
pub mod builtin;
pub mod error;
pub mod kind;
pub mod patch;
pub mod present;
pub mod schema;
pub mod select;
pub mod store;
