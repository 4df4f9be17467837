//! How far the pull of an image is, and why it fails, stands in the conditions and events of the pod that waits for it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use serde_json::{Value, json};
use support::{
    eventually,
    pods::{Cluster, ready},
    registry::{Mood, Registry},
};

const PULLED: &str = "midflight.dev/ImagesPulled";

/// A program that is as large as a layer has to be for its progress to be seen.
fn program(filler: &str) -> String {
    format!("#!/bin/sh\nexec sleep 600\n# {}\n", filler.repeat(2 << 20))
}

fn pulled(pod: &Value) -> [String; 3] {
    let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let condition = conditions.into_iter().find(|condition| condition["type"] == PULLED).unwrap_or_default();
    ["status", "reason", "message"].map(|field| condition[field].as_str().unwrap_or_default().to_owned())
}

/// Whether an event of a pod has this reason and says this.
fn tells(cluster: &Cluster, pod: &str, reason: &str, text: &str) -> bool {
    let events = cluster.sandbox.get("/api/v1/namespaces/default/events").unwrap();
    let events: Value = serde_json::from_str(&events).unwrap();
    events["items"].as_array().unwrap().iter().any(|event| {
        let message = event["message"].as_str().unwrap_or_default();
        event["involvedObject"]["name"] == pod && event["reason"] == reason && message.contains(text)
    })
}

#[test]
fn a_pod_says_how_far_its_image_is_and_why_it_does_not_come() {
    let cluster = Cluster::up();
    cluster.pack("large:v1", &program("a"));
    cluster.pack("forged:v1", &program("b"));
    let registry = Registry::of(&cluster, Mood::Slow);
    let create = |name: &str, image: &str| {
        let image = format!("{}/{image}", registry.host);
        cluster.create(name, json!({ "containers": [{ "name": "c", "image": image }] }));
    };

    create("slow", "large:v1");
    let half = |pod: &Value| pulled(pod)[2].ends_with("/large:v1: 1.0 of 2.0 MiB have arrived");
    let pod = cluster.eventually("half of its image is there", "slow", half);
    assert_eq!(pulled(&pod)[..2], ["False", "Pulling"]);
    assert_eq!(pod["status"]["phase"], "Pending");
    eventually("an event tells of the pull", || tells(&cluster, "slow", "Pulling", "/large:v1"));
    registry.becomes(Mood::Well);
    let pod = cluster.eventually("it runs", "slow", ready);
    assert_eq!(pulled(&pod), ["True", "", ""]);
    eventually("an event tells of its end", || tells(&cluster, "slow", "Pulled", "Image size: "));

    create("absent", "none:v1");
    let refused =
        |pod: &Value| pulled(pod)[1].contains("Pull") && pulled(pod)[2].contains("; it is tried again at ");
    let pod = cluster.eventually("it is not there", "absent", refused);
    assert!(pulled(&pod)[2].contains(&format!("the registry {} has no none:v1", registry.host)), "{pod:#}");
    eventually("an event tells why", || tells(&cluster, "absent", "Failed", "has no none:v1"));

    registry.becomes(Mood::Forges);
    create("forged", "forged:v1");
    let pod = cluster.eventually("it is not what it says", "forged", refused);
    assert!(pulled(&pod)[2].contains("a layer is not what was asked for: its digest is sha256:"), "{pod:#}");
    registry.becomes(Mood::Well);
    let pod = cluster.eventually("it is tried again", "forged", ready);
    assert_eq!(pulled(&pod), ["True", "", ""]);
    assert_ne!(pulled(&cluster.pod("absent"))[0], "True", "what is not there is still not there");
}
