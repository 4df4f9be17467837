//! Makes answers out of objects, statuses and errors.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WARNING};
use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::body::Body;
use super::call::Call;
use super::negotiate::{Encoding, Form};
use crate::error::ApiError;
use crate::lifecycle::metadata_text;
use crate::present::{IncludeObject, Table, partial_metadata};

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const YAML: HeaderValue = HeaderValue::from_static("application/yaml");

/// An answer with ready JSON.
pub(crate) fn json_bytes(code: StatusCode, bytes: Bytes) -> Response<Body> {
    with_body(code, JSON, Body::full(bytes))
}

pub(crate) fn json_value(code: StatusCode, value: &Value) -> Response<Body> {
    json_bytes(code, to_bytes(value))
}

pub(crate) fn text(code: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    with_body(code, HeaderValue::from_static("text/plain; charset=utf-8"), Body::full(text))
}

pub(crate) fn with_body(code: StatusCode, content_type: HeaderValue, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

pub(crate) fn failure(error: &ApiError) -> Response<Body> {
    let code = StatusCode::from_u16(error.reason.code()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = json_value(code, &error.to_status());
    if let Some(seconds) = error.retry_after {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// One object, given as JSON in the requested version, in the form the client asked for.
pub(crate) fn object(call: &Call, code: StatusCode, bytes: Bytes) -> Response<Body> {
    if call.accept.form == Form::Whole && call.accept.encoding == Encoding::Json && !call.pretty {
        return json_bytes(code, bytes);
    }
    value(call, code, serde_json::from_slice(&bytes).expect("objects are JSON"))
}

/// One object in the form the client asked for.
pub(crate) fn value(call: &Call, code: StatusCode, object: Value) -> Response<Body> {
    let shown = match call.accept.form {
        Form::Whole => object,
        Form::Metadata => partial_metadata(&object),
        Form::Table => call.table().object(&object),
    };
    encoded(call, code, &shown)
}

pub(crate) fn encoded(call: &Call, code: StatusCode, value: &Value) -> Response<Body> {
    match call.accept.encoding {
        Encoding::Json if call.pretty => {
            json_bytes(code, serde_json::to_vec_pretty(value).expect("a Value always serializes").into())
        }
        Encoding::Json => json_value(code, value),
        Encoding::Yaml => {
            let text = serde_saphyr::to_string(value).unwrap_or_default();
            with_body(code, YAML, Body::full(text))
        }
    }
}

/// The answer to a delete that left nothing behind.
pub(crate) fn deleted(call: &Call, object: &Value) -> Response<Body> {
    let resource = call.served.resource();
    let mut details = json!({"name": metadata_text(object, "name")});
    if !resource.group.is_empty() {
        details["group"] = json!(&*resource.group);
    }
    details["kind"] = json!(&*resource.plural);
    details["uid"] = object["metadata"]["uid"].clone();
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details});
    json_value(StatusCode::OK, &status)
}

/// Adds a `Warning:` header per line, as kubectl prints them.
pub(crate) fn with_warnings(mut response: Response<Body>, warnings: &[String]) -> Response<Body> {
    for warning in warnings {
        let escaped = warning.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{escaped}\"")) {
            response.headers_mut().append(WARNING, value);
        }
    }
    response
}

pub(crate) fn to_bytes(value: &Value) -> Bytes {
    serde_json::to_vec(value).expect("a Value always serializes").into()
}

impl Call {
    /// Makes tables as this client asked for them.
    pub(crate) fn table(&self) -> Table<'_> {
        let include = match self.query.get("includeObject") {
            Some("None") => IncludeObject::None,
            Some("Object") => IncludeObject::Object,
            _ => IncludeObject::Metadata,
        };
        Table::new(self.served.kind(), self.served.version(), include, jiff::Timestamp::now())
    }
}
