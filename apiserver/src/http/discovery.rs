//! Which groups, versions and resources there are, and their OpenAPI documents.
//!
//! Documents are made when asked for and kept for one catalogue: an idle
//! server holds none.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use http::header::{ACCEPT, ETAG, HeaderMap, IF_NONE_MATCH, VARY};
use http::{HeaderValue, Response, StatusCode};

use super::body::Body;
use super::negotiate::wants_aggregated;
use super::path::Route;
use super::respond;
use super::route::nothing_here;
use crate::error::ApiError;
use crate::present;
use crate::server::Shared;

/// A document and its tag.
type Tagged = (Bytes, String);

/// Answers made from one edition of the catalogue, by path.
#[derive(Debug, Default)]
pub(crate) struct Cache(Mutex<(u64, HashMap<String, Tagged>)>);

impl Cache {
    fn get_or_make(&self, edition: u64, path: &str, make: impl FnOnce() -> Option<Tagged>) -> Option<Tagged> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.0 != edition {
            *kept = (edition, HashMap::new());
        }
        if let Some(answer) = kept.1.get(path) {
            return Some(answer.clone());
        }
        let made = make()?;
        kept.1.insert(path.to_owned(), made.clone());
        Some(made)
    }
}

pub(crate) fn answer(
    server: &Shared,
    route: &Route<'_>,
    headers: &HeaderMap,
) -> Result<Response<Body>, ApiError> {
    let catalogue = server.registry.load();
    let kinds = || catalogue.kinds();
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok());
    let aggregated = wants_aggregated(accept);
    let value = match *route {
        Route::CoreVersions if aggregated => {
            return Ok(discovered(&present::aggregated_discovery(kinds(), true)));
        }
        Route::Groups if aggregated => return Ok(discovered(&present::aggregated_discovery(kinds(), false))),
        Route::CoreVersions => Some(present::api_versions(&server.address())),
        Route::Groups => Some(present::api_group_list(kinds())),
        Route::Group(group) => present::api_group(kinds(), group),
        Route::Resources { group, version } => present::api_resource_list(kinds(), group, version),
        Route::OpenApi(None) => Some(present::openapi_index(kinds())),
        Route::OpenApi(Some(path)) => return document(server, path, headers),
        Route::Resource(_) | Route::Other(_) => None,
    };
    let value = value.ok_or_else(nothing_here)?;
    Ok(respond::json_value(StatusCode::OK, &value))
}

fn discovered(value: &serde_json::Value) -> Response<Body> {
    let content_type = HeaderValue::from_static(present::AGGREGATED_CONTENT_TYPE);
    let mut response = respond::with_body(StatusCode::OK, content_type, Body::full(respond::to_bytes(value)));
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
    response
}

fn document(server: &Shared, path: &str, headers: &HeaderMap) -> Result<Response<Body>, ApiError> {
    let (group, version) = match path.split('/').collect::<Vec<_>>()[..] {
        ["api", version] => ("", version),
        ["apis", group, version] => (group, version),
        _ => return Err(nothing_here()),
    };
    let catalogue = server.registry.load();
    let made = server.documents.get_or_make(catalogue.edition, path, || {
        let document = present::openapi_document(catalogue.kinds(), group, version)?;
        Some((respond::to_bytes(&document), present::openapi_hash(catalogue.kinds(), group, version)))
    });
    let (bytes, hash) = made.ok_or_else(nothing_here)?;
    let tag = format!("\"{hash}\"");
    let known = headers
        .get(IF_NONE_MATCH)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|given| given.contains(&tag));
    let mut response = match known {
        true => respond::with_body(
            StatusCode::NOT_MODIFIED,
            HeaderValue::from_static("application/json"),
            Body::empty(),
        ),
        false => respond::json_bytes(StatusCode::OK, bytes),
    };
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        response.headers_mut().insert(ETAG, tag);
    }
    Ok(response)
}
