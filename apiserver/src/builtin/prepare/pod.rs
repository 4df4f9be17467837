//! Defaults of a pod's spec, alone or in a template.

use serde_json::{Value, json};

use super::{default, each, field, host_path, quantities};

/// A pod by itself: a template gets less, because its pods get the rest.
pub(super) fn pod(object: &mut Value) {
    let spec = field(object, "spec");
    self::spec(spec);
    default(spec, "enableServiceLinks", json!(true));
    for list in ["containers", "initContainers"] {
        each(spec.get_mut(list), |container| request_what_is_limited(field(container, "resources")));
    }
    let class = quality(spec);
    let gated = spec.get("schedulingGates").and_then(Value::as_array).is_some_and(|gates| !gates.is_empty());
    let status = field(object, "status");
    default(status, "phase", json!("Pending"));
    default(status, "qosClass", json!(class));
    if gated {
        default(
            status,
            "conditions",
            json!([{
                "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
            }]),
        );
    }
}

fn request_what_is_limited(resources: &mut Value) {
    let Some(Value::Object(limits)) = resources.get("limits").cloned() else { return };
    let requests = field(resources, "requests");
    for (name, limit) in limits {
        default(requests, &name, limit);
    }
}

/// How safe a pod is from eviction, by what it asked for.
fn quality(spec: &Value) -> &'static str {
    let containers = ["initContainers", "containers"].iter();
    let containers = containers.filter_map(|list| spec.get(*list)?.as_array()).flatten();
    let of = |container: &Value, kind: &str, name: &str| {
        container.get("resources")?.get(kind)?.get(name).filter(|quantity| *quantity != "0").cloned()
    };
    let mut guaranteed = true;
    let mut any = false;
    for container in containers {
        for name in ["cpu", "memory"] {
            let (limit, request) = (of(container, "limits", name), of(container, "requests", name));
            any |= limit.is_some() || request.is_some();
            guaranteed &= limit.is_some() && limit == request;
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

pub(super) fn spec(spec: &mut Value) {
    default(spec, "restartPolicy", json!("Always"));
    default(spec, "dnsPolicy", json!("ClusterFirst"));
    default(spec, "schedulerName", json!("default-scheduler"));
    default(spec, "securityContext", json!({}));
    default(spec, "terminationGracePeriodSeconds", json!(30));
    // The old name of the field is kept equal to the new one.
    if let Some(account) = spec.get("serviceAccountName").or_else(|| spec.get("serviceAccount")).cloned() {
        default(spec, "serviceAccountName", account.clone());
        default(spec, "serviceAccount", account);
    }
    let host_network = spec.get("hostNetwork") == Some(&json!(true));
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        each(spec.get_mut(list), |container| self::container(container, host_network));
    }
    each(spec.get_mut("volumes"), volume);
}

fn container(container: &mut Value, host_network: bool) {
    let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
    let policy = if is_latest(image) { "Always" } else { "IfNotPresent" };
    default(container, "imagePullPolicy", json!(policy));
    default(container, "terminationMessagePath", json!("/dev/termination-log"));
    default(container, "terminationMessagePolicy", json!("File"));
    let resources = field(container, "resources");
    quantities(resources.get_mut("limits"));
    quantities(resources.get_mut("requests"));
    each(container.get_mut("ports"), |port| {
        default(port, "protocol", json!("TCP"));
        if host_network && let Some(number) = port.get("containerPort").cloned() {
            default(port, "hostPort", number);
        }
    });
    each(container.get_mut("env"), |variable| field_reference(variable.pointer_mut("/valueFrom/fieldRef")));
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe @ Value::Object(_)) = container.get_mut(probe) {
            self::probe(probe);
        }
    }
    for hook in ["/lifecycle/postStart/httpGet", "/lifecycle/preStop/httpGet"] {
        http_get(container.pointer_mut(hook));
    }
}

fn probe(probe: &mut Value) {
    default(probe, "timeoutSeconds", json!(1));
    default(probe, "periodSeconds", json!(10));
    default(probe, "successThreshold", json!(1));
    default(probe, "failureThreshold", json!(3));
    http_get(probe.get_mut("httpGet"));
    if let Some(grpc @ Value::Object(_)) = probe.get_mut("grpc") {
        default(grpc, "service", json!(""));
    }
}

fn http_get(action: Option<&mut Value>) {
    if let Some(action @ Value::Object(_)) = action {
        default(action, "path", json!("/"));
        default(action, "scheme", json!("HTTP"));
    }
}

fn volume(volume: &mut Value) {
    let sources = volume.as_object().map_or(0, |fields| fields.keys().filter(|key| *key != "name").count());
    if sources == 0 {
        default(volume, "emptyDir", json!({}));
    }
    for source in ["secret", "configMap", "projected", "downwardAPI"] {
        if let Some(source @ Value::Object(_)) = volume.get_mut(source) {
            default(source, "defaultMode", json!(0o644));
        }
    }
    let files = |source: &mut Value| {
        each(source.get_mut("items"), |file| field_reference(file.get_mut("fieldRef")));
    };
    if let Some(source) = volume.get_mut("downwardAPI") {
        files(source);
    }
    each(volume.pointer_mut("/projected/sources"), |source| {
        if let Some(source) = source.get_mut("downwardAPI") {
            files(source);
        }
        if let Some(token @ Value::Object(_)) = source.get_mut("serviceAccountToken") {
            default(token, "expirationSeconds", json!(3600));
        }
    });
    host_path(volume.get_mut("hostPath"));
}

fn field_reference(reference: Option<&mut Value>) {
    if let Some(reference @ Value::Object(_)) = reference {
        default(reference, "apiVersion", json!("v1"));
    }
}

/// Whether an image is named without a fixed version, so that it is pulled each time.
fn is_latest(image: &str) -> bool {
    if image.contains('@') {
        return false;
    }
    let last = image.rsplit('/').next().unwrap_or(image);
    last.split_once(':').is_none_or(|(_, tag)| tag == "latest")
}
