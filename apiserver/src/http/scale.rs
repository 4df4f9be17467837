//! `scale`: the replicas of a custom resource, seen as autoscaling/v1 Scale.

use bytes::Bytes;
use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::body::Body;
use super::call::Call;
use super::decode;
use super::query::WriteOptions;
use super::respond;
use super::write::{Outcome, Write};
use crate::error::{ApiError, Reason};
use crate::kind::ScalePaths;
use crate::lifecycle::{self, Part, precondition_failed};
use crate::patch::{json_patch, merge_patch};
use crate::schema::{FieldError, invalid};

pub(crate) async fn get(call: &Call) -> Result<Response<Body>, ApiError> {
    let object = call.served.read(&call.stored()?).await?;
    Ok(respond::encoded(call, StatusCode::OK, &shown(call, &object)))
}

pub(crate) async fn update(call: &Call, body: &Bytes) -> Result<Response<Body>, ApiError> {
    let sent = decode::object(body, &call.content_type, &call.server.limits)?;
    change(call, |_| Ok(sent.clone())).await
}

pub(crate) async fn patch(call: &Call, body: &Bytes) -> Result<Response<Body>, ApiError> {
    let wanted = decode::json(body, &call.server.limits)?;
    match call.content_type.as_str() {
        "application/merge-patch+json" => change(call, |scale| Ok(merge_patch(scale, &wanted))).await,
        "application/json-patch+json" => change(call, |scale| Ok(json_patch(scale, &wanted)?)).await,
        _ => Err(decode::unsupported(&["application/json-patch+json", "application/merge-patch+json"])),
    }
}

async fn change(
    call: &Call,
    edit: impl Fn(&Value) -> Result<Value, ApiError>,
) -> Result<Response<Body>, ApiError> {
    let options = WriteOptions::parse(&call.query, "UpdateOptions")?;
    loop {
        let stored = call.stored()?;
        let live = call.served.read(&stored).await?;
        let scale = edit(&shown(call, &live))?;
        check_version(call, &scale, &live)?;
        let replicas = replicas(&scale, call)?;
        let mut new = live.clone();
        if let Some(place) = at_mut(&mut new, &paths(call).spec_replicas) {
            *place = json!(replicas);
        }
        let mut write = Write::new(call, &options, Part::Scale);
        let object = match write.replace(&stored, &live, new).await? {
            Some(Outcome::Stored(stored)) => call.served.read(&stored).await?,
            Some(Outcome::Dry(object)) => object,
            None => continue,
        };
        return Ok(respond::encoded(call, StatusCode::OK, &shown(call, &object)));
    }
}

fn check_version(call: &Call, scale: &Value, live: &Value) -> Result<(), ApiError> {
    let sent = lifecycle::metadata_text(scale, "resourceVersion");
    if !sent.is_empty() && sent != lifecycle::metadata_text(live, "resourceVersion") {
        return Err(lifecycle::modified(&call.served, call.name()));
    }
    let uid = lifecycle::metadata_text(scale, "uid");
    if !uid.is_empty() && uid != lifecycle::metadata_text(live, "uid") {
        return Err(precondition_failed(
            &call.served,
            call.name(),
            "Precondition failed: the UID is another object's",
        ));
    }
    Ok(())
}

fn replicas(scale: &Value, call: &Call) -> Result<i64, ApiError> {
    let wanted = &scale["spec"]["replicas"];
    let replicas = match wanted {
        Value::Null => 0,
        other => other
            .as_i64()
            .ok_or_else(|| ApiError::new(Reason::BadRequest, "spec.replicas must be an integer"))?,
    };
    if replicas < 0 {
        let error = FieldError::invalid(".spec.replicas", wanted, "should be a non-negative integer");
        return Err(invalid(&call.served.kind().kind, &call.served.resource().group, call.name(), &[error]));
    }
    Ok(replicas)
}

fn paths(call: &Call) -> &ScalePaths {
    call.served.version().scale_subresource.as_ref().expect("routed here only with a scale subresource")
}

/// The Scale of an object.
pub(crate) fn shown(call: &Call, object: &Value) -> Value {
    let paths = paths(call);
    let number = |path: &str| at(object, path).and_then(Value::as_i64).unwrap_or(0);
    let metadata: serde_json::Map<String, Value> =
        ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"]
            .into_iter()
            .filter_map(|field| Some((field.to_owned(), object["metadata"].get(field)?.clone())))
            .collect();
    let mut scale = json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata,
        "spec": {}, "status": {"replicas": number(&paths.status_replicas)},
    });
    if number(&paths.spec_replicas) != 0 {
        scale["spec"]["replicas"] = json!(number(&paths.spec_replicas));
    }
    let selector = paths.label_selector.as_ref().and_then(|path| at(object, path)).and_then(Value::as_str);
    if let Some(selector) = selector {
        scale["status"]["selector"] = json!(selector);
    }
    scale
}

fn at<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').filter(|step| !step.is_empty()).try_fold(object, |value, step| value.get(step))
}

fn at_mut<'a>(object: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    path.split('.').filter(|step| !step.is_empty()).try_fold(object, |value, step| {
        if value.is_null() {
            *value = json!({});
        }
        value.as_object_mut().map(|map| map.entry(step).or_insert(Value::Null))
    })
}
