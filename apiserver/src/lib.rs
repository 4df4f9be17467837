//! A Kubernetes-compatible API server that a laptop can run by itself.
//!
//! It knows no Midflight type: beyond a few built-in kinds it learns what to
//! serve from CustomResourceDefinitions.
//!
//! The one invariant: what was acknowledged is durable, and every reader sees
//! the writes to an object in the order of their resourceVersions.

mod admission;
pub mod apply;
pub mod auth;
pub mod builtin;
mod collect;
mod convert;
pub mod error;
mod hook;
pub mod http;
pub mod kind;
mod lifecycle;
pub mod limits;
mod metrics;
pub mod patch;
pub mod present;
mod registry;
pub mod schema;
pub mod select;
mod served;
mod server;
pub mod store;
#[cfg(test)]
mod testing;
mod tls;

pub use server::{ApiServer, BindError, Config, Listening, OpenError, Service};
