//! The paths that are no resources: health, version, metrics.

use http::{HeaderValue, Response, StatusCode};
use serde_json::json;

use super::body::Body;
use super::query::Query;
use super::respond;
use super::route::nothing_here;
use crate::error::ApiError;
use crate::present;
use crate::server::Shared;

const METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

pub(crate) fn answer(server: &Shared, path: &str, query: Option<&str>) -> Result<Response<Body>, ApiError> {
    let query = Query::parse(query);
    match path.trim_end_matches('/') {
        "/livez" | "/healthz" => Ok(health("livez", &[("ping", true)], &query)),
        "/readyz" => {
            let serving = !server.stopping.is_cancelled();
            Ok(health(
                "readyz",
                &[("ping", true), ("store", server.store_works()), ("shutdown", serving)],
                &query,
            ))
        }
        "/version" => Ok(respond::json_value(StatusCode::OK, &version())),
        "/metrics" => {
            let catalogue = server.registry.load();
            let text = server.metrics.text(&server.store, catalogue.resources());
            Ok(respond::with_body(StatusCode::OK, METRICS, Body::full(text)))
        }
        "/openapi/v2" => {
            let (content_type, document) = present::OPENAPI_V2;
            let content_type = HeaderValue::from_static(content_type);
            Ok(respond::with_body(StatusCode::OK, content_type, Body::full(document)))
        }
        "" => Ok(respond::json_value(StatusCode::OK, &json!({"paths": PATHS}))),
        _ => Err(nothing_here()),
    }
}

const PATHS: [&str; 9] =
    ["/api", "/apis", "/healthz", "/livez", "/metrics", "/openapi/v2", "/openapi/v3", "/readyz", "/version"];

fn health(name: &str, checks: &[(&str, bool)], query: &Query) -> Response<Body> {
    let healthy = checks.iter().all(|(_, passed)| *passed);
    let code = if healthy { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
    if healthy && !query.flag("verbose") {
        return respond::text(code, "ok");
    }
    let mut lines = String::new();
    for (check, passed) in checks {
        let line = if *passed {
            format!("[+]{check} ok\n")
        } else {
            format!("[-]{check} failed: reason withheld\n")
        };
        lines.push_str(&line);
    }
    lines.push_str(&format!("{name} check {}\n", if healthy { "passed" } else { "failed" }));
    respond::text(code, lines)
}

/// The Kubernetes release whose behaviour this server follows.
fn version() -> serde_json::Value {
    let release = concat!("v1.36.0+midflight.", env!("CARGO_PKG_VERSION"));
    json!({
        "major": "1", "minor": "36", "gitVersion": release, "gitCommit": "", "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z", "goVersion": "none", "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
}
