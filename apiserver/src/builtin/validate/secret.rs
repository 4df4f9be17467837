//! Judges secrets: what their type says they must hold.

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::Value;

use super::{data_keys, immutable_data, text};
use crate::builtin::faults::{invalid, required};
use crate::error::Cause;

const ACCOUNT: &str = "kubernetes.io/service-account.name";

pub(super) fn validate(new: &Value, old: Option<&Value>, faults: &mut Vec<Cause>) {
    if old.is_some_and(|old| old.get("type") != new.get("type")) {
        faults.push(invalid("type", text(new, "/type"), "field is immutable"));
    }
    immutable_data(new, old, &["data"], faults);
    data_keys(new, &["data"], faults);
    let given = |key: &str| new.get("data").and_then(|data| data.get(key)).and_then(Value::as_str);
    let need = |key: &str| required(format!("data[{key}]"), "");
    match text(new, "/type") {
        "kubernetes.io/service-account-token" => {
            let annotations = new.pointer("/metadata/annotations");
            if annotations.and_then(|all| all.get(ACCOUNT)).and_then(Value::as_str).is_none_or(str::is_empty)
            {
                faults.push(required(format!("metadata.annotations[{ACCOUNT}]"), ""));
            }
        }
        "kubernetes.io/dockercfg" => docker(".dockercfg", given(".dockercfg"), faults),
        "kubernetes.io/dockerconfigjson" => docker(".dockerconfigjson", given(".dockerconfigjson"), faults),
        "kubernetes.io/basic-auth" if given("username").is_none() && given("password").is_none() => {
            faults.extend([need("username"), need("password")]);
        }
        "kubernetes.io/ssh-auth" if given("ssh-privatekey").is_none_or(str::is_empty) => {
            faults.push(need("ssh-privatekey"));
        }
        "kubernetes.io/tls" => {
            faults.extend(["tls.crt", "tls.key"].into_iter().filter(|key| given(key).is_none()).map(need));
        }
        _ => {}
    }
}

/// The credentials of a registry must be an object in JSON.
fn docker(key: &str, given: Option<&str>, faults: &mut Vec<Cause>) {
    let Some(encoded) = given else {
        return faults.push(required(format!("data[{key}]"), ""));
    };
    let bytes = BASE64_STANDARD.decode(encoded).unwrap_or_default();
    if let Err(error) = serde_json::from_slice::<serde_json::Map<String, Value>>(&bytes) {
        faults.push(invalid(format!("data[{key}]"), "<secret contents redacted>", &error.to_string()));
    }
}
