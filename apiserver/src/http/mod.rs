//! HTTP: from a request to an answer.
//!
//! ```text
//! identify ──▶ route ──▶ authorize ──▶ gate ──▶ handle ──▶ count and log
//! ```
//!
//! The one invariant: every request gets an answer, and one that failed gets a
//! Kubernetes `Status` that says why.

mod annex;
mod binding;
mod body;
mod call;
mod decode;
pub(crate) mod definition;
mod delete_collection;
mod discovery;
mod event;
mod filter;
mod handlers;
mod health;
mod impersonate;
mod item;
mod list;
mod log;
mod namespace;
mod negotiate;
mod page;
mod patch;
mod path;
mod protobuf;
mod protobuf_kinds;
mod query;
mod respond;
mod route;
mod scale;
mod strict;
#[cfg(test)]
mod tests;
mod watch;
mod write;

pub use annex::Annex;
pub use body::Body;
pub(crate) use call::Call;
pub(crate) use discovery::Cache as DocumentCache;
pub(crate) use handlers::remove;
pub use log::Nodes;
pub(crate) use namespace::namespaces;
pub(crate) use query::{Query, dry_run};
pub(crate) use respond::text;
pub(crate) use route::answer;
