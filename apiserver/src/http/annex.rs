//! Paths beside the Kubernetes API, answered by whoever opened the server.
//!
//! The one invariant: an annex is asked only by those whom a token or the process itself has made known.

use std::fmt::Debug;
use std::sync::Arc;

use futures::future::BoxFuture;
use http::{Method, Response};

use super::body::Body;
use crate::auth::{Identity, Role};
use crate::error::{ApiError, Reason};
use crate::limits::HeldPass;
use crate::server::Shared;

/// Answers what lies below a path of its own.
pub trait Annex: Debug + Send + Sync {
    /// Where its paths begin; no path of the API does.
    fn prefix(&self) -> &str;

    fn answer<'a>(&'a self, method: &'a Method, path: &'a str) -> BoxFuture<'a, Response<Body>>;
}

pub(super) fn find(server: &Shared, path: &str) -> Option<Arc<dyn Annex>> {
    server.annexes.iter().find(|annex| path.starts_with(annex.prefix())).cloned()
}

pub(super) async fn visit(
    server: &Shared,
    identity: &Identity,
    annex: Arc<dyn Annex>,
    (method, path): (&Method, &str),
) -> Result<Response<Body>, ApiError> {
    if identity.role() == Role::Nobody {
        let message = format!("forbidden: User {:?} cannot visit path {path:?}", identity.user());
        return Err(ApiError::new(Reason::Forbidden, message));
    }
    let pass = server.gate.request()?;
    let mut response = annex.answer(method, path).await;
    response.extensions_mut().insert(HeldPass::new(pass));
    Ok(response)
}
