//! Counts what is asked of an API server, by kind of request.
//!
//! The one invariant: a request is counted when it is sent, whatever becomes of it.

use std::sync::{Arc, Mutex, PoisonError};

use http::{Method, Request};
use kube::{Client, client::Body};
use midflight_apiserver::{ApiServer, auth::Identity};
use serde::Serialize;
use tower::ServiceExt;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Requests {
    pub(super) reads: u64,
    pub(super) lists: u64,
    pub(super) watches: u64,
    pub(super) writes: u64,
}

/// What one party has asked so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Counter(Arc<Mutex<Requests>>);

impl Counter {
    /// A client of the server whose requests are counted.
    pub(super) fn client(&self, server: &ApiServer) -> Client {
        let (inner, counter) = (server.service(Identity::admin("bench")), self.clone());
        let service = tower::service_fn(move |request: Request<Body>| {
            counter.count(request.method(), request.uri());
            inner.clone().oneshot(request)
        });
        Client::new(service, "default")
    }

    fn count(&self, method: &Method, uri: &http::Uri) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match kind(method, uri.path(), uri.query().unwrap_or_default()) {
            Kind::Read => all.reads += 1,
            Kind::List => all.lists += 1,
            Kind::Watch => all.watches += 1,
            Kind::Write => all.writes += 1,
        }
    }

    /// What was asked since this was last called.
    pub(super) fn take(&self) -> Requests {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    List,
    Watch,
    Write,
}

fn kind(method: &Method, path: &str, query: &str) -> Kind {
    if method != Method::GET {
        return Kind::Write;
    }
    if query.split('&').any(|pair| pair == "watch=true" || pair == "watch=1") {
        return Kind::Watch;
    }
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    // `api/VERSION` or `apis/GROUP/VERSION`, perhaps a namespace, then the kind and perhaps a name.
    let begins = if parts[0] == "api" { 2 } else { 3 };
    let begins = if parts.get(begins) == Some(&"namespaces") && parts.len() > begins + 2 {
        begins + 2
    } else {
        begins
    };
    if parts.len() == begins + 1 { Kind::List } else { Kind::Read }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_apart() {
        #[rustfmt::skip]
        let cases = [
            ("GET",   "/api/v1/nodes",                                               "limit=500",  Kind::List),
            ("GET",   "/api/v1/nodes",                                               "watch=true", Kind::Watch),
            ("GET",   "/api/v1/nodes/node-1",                                        "",           Kind::Read),
            ("PATCH", "/api/v1/nodes/node-1",                                        "",           Kind::Write),
            ("GET",   "/api/v1/namespaces/default/persistentvolumeclaims",           "",           Kind::List),
            ("GET",   "/api/v1/namespaces/default/persistentvolumeclaims/data",      "",           Kind::Read),
            ("GET",   "/apis/data.fluid.io/v1alpha1/datasets",                       "",           Kind::List),
            ("GET",   "/apis/data.fluid.io/v1alpha1/namespaces/default/datasets",    "",           Kind::List),
            ("GET",   "/apis/data.fluid.io/v1alpha1/namespaces/default/datasets/d",  "",           Kind::Read),
            ("PUT",   "/apis/data.fluid.io/v1alpha1/namespaces/default/datasets/d/status", "",     Kind::Write),
        ];
        for (method, path, query, expected) in cases {
            assert_eq!(kind(&method.parse().unwrap(), path, query), expected, "{method} {path}?{query}");
        }
    }
}
