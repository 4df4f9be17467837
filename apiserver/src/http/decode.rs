//! Turns the bytes of a request into a JSON value, within limits.
//!
//! The invariant: nothing is parsed that is larger or deeper than the limits
//! allow, so no request can exhaust memory or stack.

use bytes::{Buf, Bytes, BytesMut};
use http_body_util::BodyExt;
use serde_json::Value;

use super::protobuf;
use super::strict::{self, Read};
use crate::error::{ApiError, Reason};
use crate::lifecycle::{json_type, other_version};
use crate::limits::{BodyShare, Limits};
use crate::served::Served;

/// Reads a whole body, or refuses it as soon as it is known to be too large, too slow or more than all
/// bodies together may hold. The caller keeps the share as long as anything made of the body.
pub(crate) async fn read<B>(body: B, limits: &Limits, share: &mut BodyShare) -> Result<Bytes, ApiError>
where
    B: http_body::Body,
    B::Error: std::fmt::Display,
{
    if body.size_hint().lower() > limits.body_bytes as u64 {
        return Err(too_large(limits));
    }
    let late = || ApiError::new(Reason::Timeout, "the body of the request did not arrive in time");
    tokio::time::timeout(limits.read_time, collect(body, limits, share)).await.map_err(|_| late())?
}

async fn collect<B>(body: B, limits: &Limits, share: &mut BodyShare) -> Result<Bytes, ApiError>
where
    B: http_body::Body,
    B::Error: std::fmt::Display,
{
    let mut body = std::pin::pin!(body);
    let mut first: Option<Bytes> = None;
    let mut more = BytesMut::new();
    let mut refused = None;
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|error| ApiError::new(Reason::BadRequest, format!("read the body: {error}")))?;
        let Ok(mut data) = frame.into_data() else { continue };
        let held = first.as_ref().map_or(0, Bytes::len) + more.len();
        if held + data.remaining() > limits.body_bytes {
            return Err(too_large(limits));
        }
        if let Err(reason) = share.take(data.remaining()) {
            refused = Some(reason);
            break;
        }
        // A body that came in one piece, as most do, is not copied.
        let piece = data.copy_to_bytes(data.remaining());
        if first.is_none() && more.is_empty() {
            first = Some(piece);
        } else {
            if let Some(first) = first.take() {
                more.extend_from_slice(&first);
            }
            more.extend_from_slice(&piece);
        }
    }
    if let Some(reason) = refused {
        drop((first, more));
        share.give_back();
        skip_rest(body, limits).await;
        return Err(reason);
    }
    Ok(first.unwrap_or_else(|| more.freeze()))
}

/// Reads on without keeping anything: a client that is still sending does not look for an answer.
async fn skip_rest<B: http_body::Body>(mut body: std::pin::Pin<&mut B>, limits: &Limits) {
    let mut skipped = 0;
    while skipped <= limits.body_bytes
        && let Some(Ok(frame)) = body.frame().await
    {
        skipped += frame.data_ref().map_or(0, Buf::remaining);
    }
}

fn too_large(limits: &Limits) -> ApiError {
    let message = format!("Request entity too large: limit is {}", limits.body_bytes);
    ApiError::new(Reason::RequestEntityTooLarge, message)
}

const OBJECT_MEDIA: [&str; 3] =
    ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];

/// What a `Content-Type` header says, without parameters; absent means JSON.
pub(crate) fn media_type(header: Option<&str>) -> &str {
    match header.map(str::trim) {
        None | Some("") => "application/json",
        Some(header) => header.split(';').next().unwrap_or_default().trim(),
    }
}

/// Parses a body that is an object in JSON, YAML or, for some kinds, protobuf.
pub(crate) fn object(bytes: &[u8], media: &str, limits: &Limits) -> Result<Value, ApiError> {
    match media {
        "application/json" => json(bytes, limits),
        "application/yaml" | "application/x-yaml" | "text/yaml" => Ok(yaml(bytes, limits)?.value),
        "application/vnd.kubernetes.protobuf" => {
            protobuf::object(bytes).ok_or_else(|| unsupported(&OBJECT_MEDIA))
        }
        _ => Err(unsupported(&OBJECT_MEDIA)),
    }
}

pub(crate) fn json(bytes: &[u8], limits: &Limits) -> Result<Value, ApiError> {
    check_depth(bytes, limits.json_depth)?;
    serde_json::from_slice(bytes).map_err(|error| malformed("json", &error))
}

/// YAML, of which JSON is a part.
pub(crate) fn yaml(bytes: &[u8], limits: &Limits) -> Result<Read, ApiError> {
    if let Ok(read) = strict::json(bytes) {
        check_depth(bytes, limits.json_depth)?;
        return Ok(read);
    }
    let text = std::str::from_utf8(bytes).map_err(|error| malformed("yaml", &error))?;
    let read = strict::yaml(text).map_err(|error| malformed("yaml", &error))?;
    if depth(&read.value) > limits.json_depth {
        return Err(too_deep(limits.json_depth));
    }
    Ok(read)
}

/// Parses a patch other than an apply.
pub(crate) fn patch(bytes: &[u8], limits: &Limits) -> Result<Read, ApiError> {
    check_depth(bytes, limits.json_depth)?;
    strict::json(bytes).map_err(|error| {
        ApiError::new(Reason::BadRequest, format!("error decoding patch: {}", go_words(&error)))
    })
}

/// Parses the options that a delete carries in its body.
pub(crate) fn options(bytes: &[u8], media: &str, limits: &Limits) -> Result<Value, ApiError> {
    if media != "application/json" {
        return object(bytes, media, limits);
    }
    check_depth(bytes, limits.json_depth)?;
    serde_json::from_slice(bytes).map_err(|error| {
        let message = format!("couldn't get version/kind; json parse error: {}", go_words(&error));
        ApiError::new(Reason::BadRequest, message)
    })
}

/// Parses the object that a create or update of a kind carries. Objects of
/// custom kinds must say what they are.
pub(crate) fn object_of(
    served: &Served,
    bytes: &[u8],
    media: &str,
    limits: &Limits,
) -> Result<Read, ApiError> {
    let kind = &served.kind().kind;
    let refuse = |reason: &str| {
        let message = format!(
            "the object provided is unrecognized (must be of type {kind}): {reason} ({})",
            summary(bytes)
        );
        Err(ApiError::new(Reason::BadRequest, message))
    };
    let read = match media {
        "application/json" => {
            check_depth(bytes, limits.json_depth)?;
            match strict::json(bytes) {
                Ok(read) => read,
                Err(error) => {
                    return refuse(&format!(
                        "couldn't get version/kind; json parse error: {}",
                        go_words(&error)
                    ));
                }
            }
        }
        "application/yaml" => yaml(bytes, limits)?,
        _ => Read { value: object(bytes, media, limits)?, faults: Vec::new() },
    };
    let value = &read.value;
    if !value.is_object() && !value.is_null() {
        let found = json_type(value);
        return refuse(&format!(
            "couldn't get version/kind; json parse error: json: cannot unmarshal {found} into Go value of type struct {{ APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }}"
        ));
    }
    for (field, shown, go_name) in [("kind", "Kind", "kind"), ("apiVersion", "apiVersion", "apiVersion")] {
        match &value[field] {
            Value::String(text) if !text.is_empty() => {}
            Value::String(_) | Value::Null if served.kind().built_in && value.is_object() => {}
            Value::String(_) | Value::Null if field == "apiVersion" => {
                return Err(other_version("", served.api_version()));
            }
            Value::String(_) | Value::Null => {
                return refuse(&format!(
                    "Object '{shown}' is missing in '{}'",
                    String::from_utf8_lossy(bytes)
                ));
            }
            other => {
                let found = json_type(other);
                return refuse(&format!(
                    "couldn't get version/kind; json parse error: json: cannot unmarshal {found} into Go struct field .{go_name} of type string"
                ));
            }
        }
    }
    Ok(read)
}

/// The beginning of a body, as text if it looks like JSON, else in hex.
fn summary(bytes: &[u8]) -> String {
    const SHOWN: usize = 30;
    let more = if bytes.len() > SHOWN { " ..." } else { "" };
    let beginning = &bytes[..bytes.len().min(SHOWN)];
    match bytes.first() {
        None => "<empty>".to_owned(),
        Some(b'{') => format!("{}{more}", String::from_utf8_lossy(beginning)),
        Some(_) => {
            format!("{}{more}", beginning.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
        }
    }
}

fn go_words(error: &serde_json::Error) -> String {
    if error.is_eof() { "unexpected end of JSON input".to_owned() } else { error.to_string() }
}

fn malformed(language: &str, error: &dyn std::fmt::Display) -> ApiError {
    ApiError::new(Reason::BadRequest, format!("the body of the request was not valid {language}: {error}"))
}

pub(crate) fn unsupported(supported: &[&str]) -> ApiError {
    let message = format!(
        "the body of the request was in an unknown format - accepted media types include: {}",
        supported.join(", ")
    );
    ApiError::new(Reason::UnsupportedMediaType, message)
}

fn too_deep(limit: usize) -> ApiError {
    ApiError::new(Reason::Invalid, format!("the body of the request is nested deeper than {limit} levels"))
}

/// Counts brackets outside strings, before anything is parsed.
fn check_depth(bytes: &[u8], limit: usize) -> Result<(), ApiError> {
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for &byte in bytes {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => {
                depth += 1;
                if depth > limit {
                    return Err(too_deep(limit));
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Gate;

    #[test]
    fn refuses_what_is_too_deep_before_parsing_it() {
        let limits = Limits { json_depth: 3, ..Limits::default() };
        #[rustfmt::skip]
        let cases = [
            (r#"{"a":{"b":[1]}}"#,           Ok(())),
            (r#"{"a":{"b":[[1]]}}"#,         Err(Reason::Invalid)),
            (r#"{"a":"[[[[[{{{{\"[[[["}"#,   Ok(())),
            (r#"{"a":"#,                     Err(Reason::BadRequest)),
            (&"[".repeat(1_000_000),         Err(Reason::Invalid)),
        ];
        for (text, expected) in cases {
            let outcome = json(text.as_bytes(), &limits).map(drop).map_err(|error| error.reason);
            assert_eq!(outcome, expected, "{}", &text[..text.len().min(40)]);
        }
    }

    #[test]
    fn takes_yaml_and_json_by_content_type() {
        let limits = Limits::default();
        let value = object(b"a: 1\nb: [x, z]\n", "application/yaml", &limits).unwrap();
        assert_eq!(value, serde_json::json!({"a": 1, "b": ["x", "z"]}));
        assert_eq!(object(b"{}", "text/plain", &limits).unwrap_err().reason, Reason::UnsupportedMediaType);
        assert_eq!(media_type(Some("application/json; charset=utf-8")), "application/json");
        assert_eq!(media_type(None), "application/json");
        assert_eq!(
            object(b"{}", media_type(Some(";;;")), &limits).unwrap_err().reason,
            Reason::UnsupportedMediaType
        );
    }

    #[tokio::test]
    async fn refuses_a_body_that_is_too_large() {
        let limits = Limits { body_bytes: 10, ..Limits::default() };
        let full = |text: &'static str| http_body_util::Full::new(Bytes::from_static(text.as_bytes()));
        let mut share = Gate::new(&limits).body();
        assert_eq!(read(full("0123456789"), &limits, &mut share).await.unwrap(), "0123456789");
        let refused = read(full("0123456789a"), &limits, &mut share).await.unwrap_err();
        assert_eq!(refused.reason, Reason::RequestEntityTooLarge);
    }
}
