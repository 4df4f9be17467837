//! A new object, from what the client sent to what is stored.

use serde_json::{Value, json};

use super::metadata::{check_shape, drop_empty, metadata_mut};
use super::{built_in, rfc3339};
use crate::error::{ApiError, Reason};
use crate::schema::{FieldError, invalid};
use crate::served::Served;

const SUFFIX_LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const MAX_GENERATED_BASE: usize = 58;

/// Where the new object goes, what it is called, and when it is made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Naming<'a> {
    pub(crate) namespace: Option<&'a str>,
    /// The name in the path, which apply has and create has not.
    pub(crate) name: Option<&'a str>,
    pub(crate) uid: &'a str,
    /// What `generateName` is completed with.
    pub(crate) suffix: &'a str,
    pub(crate) now: jiff::Timestamp,
}

/// Sets what the server sets and refuses what it does not take. Defaulting and
/// validation are the caller's.
pub(crate) fn for_create(served: &Served, object: &mut Value, naming: Naming<'_>) -> Result<(), ApiError> {
    check_shape(served, object)?;
    check_type(served, object)?;
    check_placement(served, object, naming)?;
    let has_status = served.version().status_subresource;
    let metadata = metadata_mut(object);
    if metadata.get("resourceVersion").and_then(Value::as_str).is_some_and(|version| !version.is_empty()) {
        let message = "resourceVersion should not be set on objects to be created";
        return Err(ApiError::new(Reason::BadRequest, message));
    }
    for field in ["uid", "resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"] {
        metadata.remove(field);
    }
    drop_empty(metadata);
    let name = match (
        metadata.get("name").and_then(Value::as_str),
        metadata.get("generateName").and_then(Value::as_str),
    ) {
        (Some(name), _) => name.to_owned(),
        (None, Some(base)) => generated_name(base, naming.suffix),
        (None, None) => naming.name.unwrap_or_default().to_owned(),
    };
    metadata.insert("name".into(), json!(name));
    if let Some(namespace) = naming.namespace {
        metadata.insert("namespace".into(), json!(namespace));
    } else {
        metadata.remove("namespace");
    }
    metadata.insert("uid".into(), json!(naming.uid));
    metadata.insert("creationTimestamp".into(), json!(rfc3339(naming.now)));
    if built_in::has_generation(served) {
        metadata.insert("generation".into(), json!(1));
    }
    if has_status && let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
    built_in::on_create(served, object);
    Ok(())
}

/// `apiVersion` and `kind` must be those of the path; absent ones are filled in.
pub(super) fn check_type(served: &Served, object: &mut Value) -> Result<(), ApiError> {
    let (wanted_version, wanted_kind) = (served.api_version(), served.kind().kind.as_str());
    let given = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
    let (version, kind) = (given("apiVersion"), given("kind"));
    if !version.is_empty() && version != wanted_version {
        return Err(other_version(&version, wanted_version));
    }
    if !kind.is_empty() && kind != wanted_kind {
        let error = FieldError::invalid("kind", &json!(kind), format!("must be {wanted_kind}"));
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        return Err(invalid(&kind, &served.resource().group, name, &[error]));
    }
    object["apiVersion"] = json!(wanted_version);
    object["kind"] = json!(wanted_kind);
    Ok(())
}

/// 400 for an object of another version than the path speaks of.
pub(crate) fn other_version(given: &str, wanted: &str) -> ApiError {
    let message =
        format!("the API version in the data ({given}) does not match the expected API version ({wanted})");
    ApiError::new(Reason::BadRequest, message)
}

/// Name and namespace in the body must not contradict the path.
pub(super) fn check_placement(served: &Served, object: &Value, naming: Naming<'_>) -> Result<(), ApiError> {
    let metadata = &object["metadata"];
    let namespace = metadata["namespace"].as_str().unwrap_or_default();
    if !namespace.is_empty() && served.is_namespaced() && naming.namespace != Some(namespace) {
        let message = "the namespace of the provided object does not match the namespace sent on the request";
        return Err(ApiError::new(Reason::BadRequest, message));
    }
    let name = metadata["name"].as_str().unwrap_or_default();
    if let Some(wanted) = naming.name
        && !name.is_empty()
        && name != wanted
    {
        let message =
            format!("the name of the object ({name}) does not match the name on the URL ({wanted})");
        return Err(ApiError::new(Reason::BadRequest, message));
    }
    Ok(())
}

fn generated_name(base: &str, suffix: &str) -> String {
    let mut end = base.len().min(MAX_GENERATED_BASE);
    while !base.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{suffix}", &base[..end])
}

/// Five letters out of a random number, without vowels, so that they form no words.
pub(crate) fn random_suffix(random: u128) -> String {
    let mut rest = random;
    (0..5)
        .map(|_| {
            let letter = SUFFIX_LETTERS[(rest % SUFFIX_LETTERS.len() as u128) as usize];
            rest /= SUFFIX_LETTERS.len() as u128;
            char::from(letter)
        })
        .collect()
}
