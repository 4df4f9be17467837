//! The API as a tower service: what `kube::Client::new` takes, without a socket.

use std::convert::Infallible;
use std::fmt::Display;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};

use super::Shared;
use crate::auth::Identity;
use crate::http::{Body, answer};

/// Answers requests as if they came from one identity.
#[derive(Debug, Clone)]
pub struct Service {
    shared: Arc<Shared>,
    identity: Arc<Identity>,
}

impl Service {
    pub(super) fn new(shared: Arc<Shared>, identity: Identity) -> Service {
        Service { shared, identity: Arc::new(identity) }
    }
}

impl<B> tower::Service<Request<B>> for Service
where
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Display,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (shared, identity) = (self.shared.clone(), self.identity.clone());
        Box::pin(async move { Ok(answer(&shared, Some(identity), request).await) })
    }
}
