//! A changed object, from what the client wants to what is stored.

use serde_json::{Value, json};

use super::create::{Naming, check_placement, check_type};
use super::metadata::{
    check_shape, drop_empty, finalizers, is_deleting, metadata_mut, metadata_text, precondition_failed,
};
use super::{Part, built_in};
use crate::error::ApiError;
use crate::schema::{FieldError, invalid};
use crate::served::Served;

/// Makes `new` what may replace `live`: fields outside the written part are
/// `live`'s, as is what only the server sets. Checks the client's
/// resourceVersion, if it sent one, against `live`.
pub(crate) fn for_update(
    served: &Served,
    live: &Value,
    new: &mut Value,
    part: Part,
    naming: Naming<'_>,
) -> Result<(), ApiError> {
    check_shape(served, new)?;
    check_type(served, new)?;
    check_placement(served, new, naming)?;
    let name = naming.name.unwrap_or_default();
    check_version(served, live, new, name)?;

    let old = live["metadata"].as_object().cloned().unwrap_or_default();
    let metadata = metadata_mut(new);
    drop_empty(metadata);
    for field in ["name", "namespace", "uid"] {
        if !metadata.contains_key(field)
            && let Some(value) = old.get(field)
        {
            metadata.insert(field.into(), value.clone());
        }
    }
    let mut kept = vec!["resourceVersion", "generation", "creationTimestamp"];
    // Whoever sets the time of a deletion that has not begun is told that only a delete does.
    if is_deleting(live) || !metadata.contains_key("deletionTimestamp") {
        kept.extend(["deletionTimestamp", "deletionGracePeriodSeconds"]);
    }
    for field in kept {
        match old.get(field) {
            Some(value) => metadata.insert(field.into(), value.clone()),
            None => metadata.remove(field),
        };
    }
    keep_other_parts(served, live, new, part);
    built_in::on_update(served, live, new, part);
    if built_in::has_generation(served) && content_changed(served, live, new) {
        let generation = live["metadata"]["generation"].as_i64().unwrap_or(0);
        new["metadata"]["generation"] = json!(generation + 1);
    }
    Ok(())
}

fn check_version(served: &Served, live: &Value, new: &Value, name: &str) -> Result<(), ApiError> {
    let sent = new["metadata"]["resourceVersion"].as_str().filter(|text| !text.is_empty());
    let Some(version) = sent else { return Ok(()) };
    if version.parse::<u64>().is_err() {
        let error = FieldError::invalid("metadata.resourceVersion", &json!(version), "must be a number");
        return Err(invalid(&served.kind().kind, &served.resource().group, name, &[error]));
    }
    if Some(version) != live["metadata"]["resourceVersion"].as_str() {
        return Err(modified(served, name));
    }
    Ok(())
}

/// A PUT that names a uid means that very object; a patch that does would change it.
pub(crate) fn check_uid(served: &Served, live: &Value, new: &Value, name: &str) -> Result<(), ApiError> {
    let uid = |object: &Value| metadata_text(object, "uid").to_owned();
    let (wanted, actual) = (uid(new), uid(live));
    if wanted.is_empty() || wanted == actual {
        return Ok(());
    }
    let detail = format!("Precondition failed: UID in precondition: {wanted}, UID in object meta: {actual}");
    Err(precondition_failed(served, name, &detail))
}

/// 409: somebody else was faster.
pub(crate) fn modified(served: &Served, name: &str) -> ApiError {
    let detail =
        "the object has been modified; please apply your changes to the latest version and try again";
    precondition_failed(served, name, detail)
}

fn keep_other_parts(served: &Served, live: &Value, new: &mut Value, part: Part) {
    match part {
        Part::Main | Part::Scale if served.version().status_subresource => copy_field(live, new, "status"),
        Part::Main | Part::Scale => {}
        Part::Status => {
            let status = new.get("status").cloned();
            let mut metadata = new["metadata"].clone();
            if !served.kind().built_in {
                let managed = metadata.get("managedFields").cloned();
                metadata = live["metadata"].clone();
                match managed {
                    Some(managed) => metadata["managedFields"] = managed,
                    None => drop(metadata.as_object_mut().and_then(|map| map.remove("managedFields"))),
                }
            }
            *new = live.clone();
            new["metadata"] = metadata;
            match status {
                Some(status) => new["status"] = status,
                None => drop(new.as_object_mut().and_then(|fields| fields.remove("status"))),
            }
        }
        Part::Finalize => {
            let wanted = new["spec"]["finalizers"].clone();
            let metadata = new["metadata"].clone();
            *new = live.clone();
            new["metadata"] = metadata;
            match wanted {
                Value::Array(items) if items.is_empty() => {
                    drop(new["spec"].as_object_mut().and_then(|spec| spec.remove("finalizers")));
                }
                Value::Null => drop(new["spec"].as_object_mut().and_then(|spec| spec.remove("finalizers"))),
                wanted => new["spec"]["finalizers"] = wanted,
            }
        }
    }
}

fn copy_field(live: &Value, new: &mut Value, field: &str) {
    match live.get(field) {
        Some(value) => new[field] = value.clone(),
        None => drop(new.as_object_mut().and_then(|fields| fields.remove(field))),
    }
}

/// Whether anything but metadata, and status where it stands alone, differs.
fn content_changed(served: &Served, live: &Value, new: &Value) -> bool {
    let status_apart = served.version().status_subresource || served.kind().built_in;
    let counts = |field: &str| field != "metadata" && !(status_apart && field == "status");
    let (Some(live), Some(new)) = (live.as_object(), new.as_object()) else { return true };
    let fields = live.keys().chain(new.keys());
    fields.filter(|field| counts(field)).any(|field| live.get(field) != new.get(field))
}

/// Whether an object that is being deleted has nothing left to wait for.
pub(crate) fn is_finished(served: &Served, object: &Value) -> bool {
    let grace = object["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
    is_deleting(object) && grace == 0 && finalizers(object).is_empty() && built_in::may_go(served, object)
}

/// PUT must say what it replaces, unless the kind allows otherwise.
pub(crate) fn check_version_given(served: &Served, new: &Value, name: &str) -> Result<(), ApiError> {
    let given = new["metadata"]["resourceVersion"].as_str().is_some_and(|version| !version.is_empty());
    if given || built_in::allows_blind_update(served) {
        return Ok(());
    }
    let error = FieldError::invalid("metadata.resourceVersion", &json!(0), "must be specified for an update");
    Err(invalid(&served.resource().plural, &served.resource().group, name, &[error]))
}
