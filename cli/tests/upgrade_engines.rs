//! `midflight upgrade engines`, as somebody would use it who has just packed the next version: the image is on no node yet, and
//! upgrades are off.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use serde_json::Value;
use support::Sandbox;

const NEXT: &str = "midflight.local/engine:next";
const SETTINGS: &str = "/apis/longhorn.io/v1beta2/namespaces/longhorn-system/settings";

fn setting(sandbox: &Sandbox, name: &str) -> String {
    let object: Value = serde_json::from_str(&sandbox.get(&format!("{SETTINGS}/{name}")).unwrap()).unwrap();
    object["value"].as_str().unwrap().to_owned()
}

/// One volume that a frontend has, and one that nobody has.
fn volumes(sandbox: &Sandbox) {
    for name in ["busy", "idle"] {
        sandbox.ok(&["volume", "create", name, "--size=8Mi", "--replicas=1", "--engine=v1", "--wait"]);
    }
    sandbox.ok(&["volume", "attach", "busy", "--node=node-1", "--wait"]);
}

#[test]
fn an_image_that_was_just_packed_becomes_the_default_and_every_volume_arrives() {
    let sandbox = Sandbox::new();
    let next = support::next();
    sandbox.ok(&["up", "--detach", "--nodes=1"]);
    volumes(&sandbox);
    sandbox.ok(&["image", "pack", "--tag=engine:next", "--binary", next.to_str().unwrap()]);

    let told = sandbox.json(&["upgrade", "engines", "--to", NEXT, "--wait", "--timeout=120"]);
    assert_eq!((&told["target"], &told["there"]), (&Value::from(NEXT), &Value::from(2)), "{told:#}");
    assert_eq!(told["leftOut"], serde_json::json!({}), "{told:#}");
    let mut moved: Vec<(&str, &str, bool)> = told["moved"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            let text = |field: &str| one[field].as_str().unwrap();
            (text("volume"), text("way"), one["pauseUs"].as_i64().is_some_and(|us| us > 0))
        })
        .collect();
    moved.sort_unstable();
    assert_eq!(moved, [("busy", "live", true), ("idle", "detached", false)], "{told:#}");
    assert_eq!(setting(&sandbox, "concurrent-automatic-engine-upgrade-per-node-limit"), "1");
    assert_eq!(setting(&sandbox, "default-engine-image"), NEXT);

    // Without --wait it shows the plan, and says that nothing can begin before the image is there.
    let said = sandbox.fails(3, &["upgrade", "engines", "--to=midflight.local/engine:none", "--limit=2"]);
    assert!(said.contains("midflight.local/engine:none"), "{said}");
    assert_eq!(setting(&sandbox, "concurrent-automatic-engine-upgrade-per-node-limit"), "2");
    // Waited for, an image that never comes costs the time that was given; which node cannot have it is told.
    let on_the_node = "midflight.local/engine:none on node-1: ";
    support::eventually("the pull has failed", || {
        sandbox.json(&["status"])["api"]["storage"]["blocked"].to_string().contains(on_the_node)
    });
    let waited = sandbox.run(&["upgrade", "engines", "--wait", "--timeout=2"]);
    let said = String::from_utf8(waited.stderr).unwrap();
    assert_eq!(waited.status.code(), Some(4), "{said}");
    assert!(said.contains("error: not all volumes were there"), "{said}");
    assert!(said.contains("2 waiting") && said.contains(on_the_node), "{said}");
    let blocked = sandbox.json(&["status"])["api"]["storage"]["blocked"].to_string();
    assert!(blocked.contains("engine upgrades") && blocked.contains("0 on the way"), "{blocked}");
    // Off, nothing further begins, and it says so.
    assert!(sandbox.ok(&["upgrade", "engines", "--off"]).contains("engine:none"));
    assert_eq!(setting(&sandbox, "concurrent-automatic-engine-upgrade-per-node-limit"), "0");
    let blocked = sandbox.json(&["status"])["api"]["storage"]["blocked"].to_string();
    assert!(!blocked.contains("engine upgrades"), "nobody asks for any: {blocked}");
}
