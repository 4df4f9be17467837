//! What is special about the built-in kinds.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::Part;
use super::metadata::{is_deleting, text};
use super::rfc3339;
use crate::error::{ApiError, Reason};
use crate::served::Served;

pub(crate) const CUSTOM_RESOURCE_CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Every custom resource counts its generations, of the built-in kinds only some.
pub(super) fn has_generation(served: &Served) -> bool {
    let kind = served.kind();
    !kind.built_in
        || matches!(
            (&*kind.resource.group, &*kind.resource.plural),
            ("", "pods")
                | ("apps", "daemonsets")
                | ("apiextensions.k8s.io", "customresourcedefinitions")
                | ("admissionregistration.k8s.io", "validatingwebhookconfigurations")
        )
}

/// Whether PUT may leave the resourceVersion out and so overwrite whatever there is.
pub(super) fn allows_blind_update(served: &Served) -> bool {
    let strict = ["customresourcedefinitions", "leases", "validatingwebhookconfigurations"];
    served.kind().built_in && !strict.contains(&&*served.resource().plural)
}

pub(super) fn on_create(served: &Served, object: &mut Value) {
    if served.is("", "namespaces") {
        object["status"] = json!({"phase": "Active"});
    } else if served.is("", "pods") {
        object["status"] = json!({"phase": "Pending", "qosClass": quality_of_service(object)});
    } else if served.is("apps", "daemonsets") {
        let given = object["metadata"]["annotations"][TEMPLATE_GENERATION].as_str();
        let generation = given.and_then(|text| text.parse().ok()).unwrap_or(1).max(1);
        set_template_generation(object, generation);
    } else if served.is("", "configmaps") || served.is("", "secrets") {
        for field in ["data", "binaryData"] {
            if object[field].as_object().is_some_and(serde_json::Map::is_empty) {
                object.as_object_mut().map(|fields| fields.remove(field));
            }
        }
    }
}

/// Counts the templates of a daemon set, as an annotation that only the server writes.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

fn set_template_generation(set: &mut Value, generation: i64) {
    set["metadata"]["annotations"][TEMPLATE_GENERATION] = json!(generation.to_string());
}

/// The finalizers of a namespace change only through their own endpoint; a daemon set counts its templates.
pub(super) fn on_update(served: &Served, live: &Value, new: &mut Value, part: Part) {
    if served.is("apps", "daemonsets") && part == Part::Main {
        let before = text(live, "/metadata/annotations/deprecated.daemonset.template.generation");
        let before: i64 = before.parse().unwrap_or(1);
        let changed = live["spec"]["template"] != new["spec"]["template"];
        set_template_generation(new, before + i64::from(changed));
    }
    if served.is("", "namespaces") && part == Part::Main {
        if !new["spec"].is_object() {
            new["spec"] = json!({});
        }
        match live["spec"].get("finalizers") {
            Some(finalizers) => new["spec"]["finalizers"] = finalizers.clone(),
            None => drop(new["spec"].as_object_mut().and_then(|spec| spec.remove("finalizers"))),
        }
    }
}

/// Some namespaces are there as long as the cluster is.
pub(super) fn check_may_be_deleted(served: &Served, live: &Value) -> Result<(), ApiError> {
    let name = text(live, "/metadata/name");
    if served.is("", "namespaces") && ["default", "kube-system", "kube-public"].contains(&name) {
        let message = format!("namespaces {name:?} is forbidden: this namespace may not be deleted");
        return Err(ApiError::new(Reason::Forbidden, message).about(served.subject(name)));
    }
    Ok(())
}

/// What is set once the managers of the fields have been noted, so that nobody owns it.
pub(crate) fn complete_new(served: &Served, object: &mut Value) {
    if served.is("", "namespaces") {
        let given = object["spec"]["finalizers"].as_array().cloned().unwrap_or_default();
        if !given.contains(&json!("kubernetes")) {
            object["spec"]["finalizers"] = given.into_iter().chain([json!("kubernetes")]).collect();
        }
    } else if served.is("apiextensions.k8s.io", "customresourcedefinitions") {
        // Until its names have been judged there is nothing to say of it.
        object["status"]["conditions"] = Value::Null;
    }
}

/// Adds what holds the object until the server has cleaned up behind it. Says whether it is held.
pub(super) fn on_delete(served: &Served, object: &mut Value, now: Timestamp) -> bool {
    if served.is("", "namespaces") {
        if object["spec"]["finalizers"].as_array().is_none_or(Vec::is_empty) {
            return false;
        }
        object["status"]["phase"] = json!("Terminating");
        return true;
    }
    if served.is("apiextensions.k8s.io", "customresourcedefinitions") && !is_deleting(object) {
        object["metadata"]["finalizers"] = json!([CUSTOM_RESOURCE_CLEANUP]);
        terminating_condition(object, now);
        return true;
    }
    false
}

fn terminating_condition(definition: &mut Value, now: Timestamp) {
    let condition = json!({
        "type": "Terminating", "status": "True", "reason": "InstanceDeletionPending",
        "message": "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
        "lastTransitionTime": rfc3339(now),
    });
    let conditions = definition["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let others = conditions.into_iter().filter(|condition| condition["type"] != "Terminating");
    definition["status"]["conditions"] = others.chain([condition]).collect();
}

/// Whether nothing beyond metadata.finalizers holds an object that is being deleted.
pub(super) fn may_go(served: &Served, object: &Value) -> bool {
    !served.is("", "namespaces") || object["spec"]["finalizers"].as_array().is_none_or(Vec::is_empty)
}

/// How long a pod may take to stop; `None` for kinds that stop at once.
pub(super) fn grace_seconds(served: &Served, live: &Value, wanted: Option<i64>) -> Option<i64> {
    if !served.is("", "pods") {
        return None;
    }
    let unbound = text(live, "/spec/nodeName").is_empty();
    let ended = matches!(text(live, "/status/phase"), "Succeeded" | "Failed");
    if unbound || ended {
        return Some(0);
    }
    let period = wanted.or_else(|| live["spec"]["terminationGracePeriodSeconds"].as_i64()).unwrap_or(30);
    Some(if period < 0 { 1 } else { period })
}

fn quality_of_service(pod: &Value) -> &'static str {
    let containers: Vec<&Value> = pod["spec"]["containers"].as_array().into_iter().flatten().collect();
    let set = |kind: &str, container: &&Value| {
        container["resources"][kind].as_object().is_some_and(|map| !map.is_empty())
    };
    if !containers.iter().any(|container| set("requests", container) || set("limits", container)) {
        return "BestEffort";
    }
    let full = |container: &&Value| {
        let resources = &container["resources"];
        ["cpu", "memory"].iter().all(|name| {
            let limit = &resources["limits"][name];
            !limit.is_null()
                && (resources["requests"][name].is_null() || resources["requests"][name] == *limit)
        })
    };
    if containers.iter().all(full) { "Guaranteed" } else { "Burstable" }
}
