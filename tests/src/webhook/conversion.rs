//! Answers conversion reviews, well or badly: version `v1` has `spec.address`, `host:port`, which in others is
//! `spec.host` and `spec.port`.

use serde_json::{Value, json};

/// The answer to a review. `manner` is empty, or says what is wrong with it.
pub(super) fn answer(review: &Value, manner: &str) -> Value {
    let request = &review["request"];
    let to = request["desiredAPIVersion"].as_str().unwrap_or_default();
    let objects = request["objects"].as_array().into_iter().flatten();
    let objects: Vec<Value> = objects.map(|object| spoilt(object, to, manner)).collect();
    let result = match manner {
        "-refuse" => json!({"status": "Failure", "message": "not this one"}),
        "-fail" => json!({"status": "Failure"}),
        _ => json!({"status": "Success"}),
    };
    let uid = if manner == "-wrong-uid" { json!("somebody-else") } else { request["uid"].clone() };
    let kind = if manner == "-no-review" { "AdmissionReview" } else { "ConversionReview" };
    let objects = if manner == "-few" { Vec::new() } else { objects };
    json!({"apiVersion": review["apiVersion"], "kind": kind,
        "response": {"uid": uid, "result": result, "convertedObjects": objects}})
}

fn spoilt(object: &Value, to: &str, manner: &str) -> Value {
    let mut new = converted(object, to);
    match manner {
        "-unchanged" => return object.clone(),
        "-kind" => new["kind"] = json!("Other"),
        "-renamed" => new["metadata"]["name"] = json!("other"),
        "-bad-labels" => new["metadata"]["labels"] = json!({"not a label": "x"}),
        "-bare" => drop(new.as_object_mut().and_then(|fields| fields.remove("metadata"))),
        "-labels" => {
            let version = to.rsplit('/').next().unwrap_or_default();
            new["metadata"]["labels"] = json!({"converted": format!("to-{version}")});
            new["metadata"]["finalizers"] = json!(["midflight.dev/not-for-webhooks"]);
        }
        "-extra" => new["spec"]["extra"] = json!("in no version"),
        _ => {}
    }
    new
}

fn converted(object: &Value, to: &str) -> Value {
    let mut new = object.clone();
    if new["apiVersion"] == to {
        return new;
    }
    new["apiVersion"] = json!(to);
    let Some(spec) = new["spec"].as_object_mut() else { return new };
    let mut take = |field: &str| match spec.remove(field) {
        Some(Value::String(text)) => text,
        _ => String::new(),
    };
    if to.ends_with("/v1") {
        let address = format!("{}:{}", take("host"), take("port"));
        spec.insert("address".into(), json!(address));
    } else {
        let address = take("address");
        let (host, port) = address.split_once(':').unwrap_or((&address, ""));
        spec.insert("host".into(), json!(host));
        spec.insert("port".into(), json!(port));
    }
    new
}
