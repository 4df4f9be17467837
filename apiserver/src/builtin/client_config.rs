//! Judges how a webhook is reached: by URL, or by a Service.

use serde_json::Value;

use super::{
    faults::{invalid, required},
    names::dns_subdomain,
};
use crate::{error::Cause, lifecycle::text};

const FORM: &str = "; desired format: https://host[/path]";

/// Everything wrong with a `clientConfig` that stands at `at`, but for its certificates.
pub(super) fn validate(config: &Value, at: &str, faults: &mut Vec<Cause>) {
    let given = |field: &str| config.get(field).filter(|value| !value.is_null());
    match (given("url"), given("service")) {
        (Some(url), None) => self::url(url.as_str().unwrap_or_default(), &format!("{at}.url"), faults),
        (None, Some(service)) => self::service(service, &format!("{at}.service"), faults),
        (Some(_), Some(_)) | (None, None) => {
            faults.push(required(at, "exactly one of url or service is required"));
        }
    }
}

fn url(url: &str, at: &str, faults: &mut Vec<Cause>) {
    let (rest, fragment) = url.split_once('#').unwrap_or((url, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (scheme, rest) = rest.split_once("://").unwrap_or(("", rest));
    let authority = if scheme.is_empty() { "" } else { rest.split('/').next().unwrap_or_default() };
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    if scheme != "https" {
        faults.push(invalid(at, scheme, &format!("'https' is the only allowed URL scheme{FORM}")));
    }
    if host.is_empty() {
        faults.push(invalid(at, host, &format!("host must be specified{FORM}")));
    }
    #[rustfmt::skip]
    let unwanted = [
        (user,     "user information is not permitted in the URL"),
        (fragment, "fragments are not permitted in the URL"),
        (query,    "query parameters are not permitted in the URL"),
    ];
    for (part, detail) in unwanted.iter().filter(|(part, _)| !part.is_empty()) {
        faults.push(invalid(at, *part, detail));
    }
}

fn service(service: &Value, at: &str, faults: &mut Vec<Cause>) {
    // The real server takes the one for the other in what it says.
    for (field, named) in [("namespace", "name"), ("name", "namespace")] {
        if text(service, &format!("/{field}")).is_empty() {
            faults.push(required(format!("{at}.{named}"), ""));
        }
    }
    let port = service.get("port").and_then(Value::as_i64).unwrap_or_default();
    if !(1..=65535).contains(&port) {
        let detail = "port is not valid: must be between 1 and 65535, inclusive";
        faults.push(invalid(format!("{at}.port"), port, detail));
    }
    path(text(service, "/path"), &format!("{at}.path"), faults);
}

fn path(path: &str, at: &str, faults: &mut Vec<Cause>) {
    if matches!(path, "" | "/") {
        return;
    }
    if path == "//" {
        return faults.push(invalid(at, path, "segment[0] may not be empty"));
    }
    if !path.starts_with('/') {
        faults.push(invalid(at, path, "must start with a '/'"));
    }
    let steps: String = path.chars().skip(1).collect();
    for (index, step) in steps.strip_suffix('/').unwrap_or(&steps).split('/').enumerate() {
        if step.is_empty() {
            faults.push(invalid(at, path, &format!("segment[{index}] may not be empty")));
            continue;
        }
        for wrong in dns_subdomain(step) {
            faults.push(invalid(at, path, &format!("segment[{index}]: {wrong}")));
        }
    }
}
