//! Images of a cluster: published by `up` and `image pack`, served beside the API, removed again.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use support::{Sandbox, eventually};

const OWN: [&str; 4] = ["engine", "frontend", "instance-manager", "share-manager"];

fn images(sandbox: &Sandbox) -> Vec<Value> {
    sandbox.json(&["image", "ls"])["images"].as_array().unwrap().clone()
}

fn names(images: &[Value]) -> Vec<&str> {
    images.iter().map(|image| image["image"].as_str().unwrap()).collect()
}

/// They are published in the background.
fn own_images(sandbox: &Sandbox) -> Vec<Value> {
    let began = Instant::now();
    loop {
        let images = images(sandbox);
        if images.len() == OWN.len() {
            return images;
        }
        assert!(began.elapsed() < Duration::from_secs(150), "{images:?}{}", sandbox.logs());
        thread::sleep(Duration::from_millis(50));
    }
}

fn script(sandbox: &Sandbox, content: &str, mode: u32) -> PathBuf {
    let path = sandbox.dir().with_file_name("script");
    fs::write(&path, content).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    path
}

fn ask(sandbox: &Sandbox, kubeconfig: &str, method: &str, path: &str) -> Result<String, String> {
    let request = http::Request::builder().method(method).uri(path).body(Vec::new()).unwrap();
    sandbox.call(kubeconfig, request)
}

#[test]
fn up_publishes_itself_under_the_names_that_settings_have() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["up", "--detach"]);
    let published = own_images(&sandbox);
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(names(&published), OWN.map(|name| format!("midflight.local/{name}:v{version}")));
    for (image, setting) in published.iter().zip(OWN).filter(|(_, name)| *name != "frontend") {
        let path =
            format!("/apis/longhorn.io/v1beta2/namespaces/longhorn-system/settings/default-{setting}-image");
        let setting: Value = serde_json::from_str(&sandbox.get(&path).unwrap()).unwrap();
        assert_eq!(setting["value"], image["image"]);
    }
    let at = published[0]["publishedAt"].clone();
    sandbox.ok(&["down"]);
    sandbox.ok(&["up", "--detach"]);
    assert_eq!(own_images(&sandbox)[0]["publishedAt"], at, "the same binary is not packed again");
}

#[test]
fn a_packed_binary_is_served_to_those_with_a_token() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["up", "--detach"]);
    own_images(&sandbox);
    let binary = script(&sandbox, "#!/bin/sh\necho hello\n", 0o755);
    let packed = sandbox.json(&["image", "pack", "--tag", "hello:v1", "--binary", binary.to_str().unwrap()]);
    let digest = packed["images"][0]["digest"].as_str().unwrap();

    let read = |path: &str| ask(&sandbox, "viewer.kubeconfig", "GET", path).unwrap();
    let manifest: Value = serde_json::from_str(&read("/v2/hello/manifests/v1")).unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(&read(&format!("/v2/hello/manifests/{digest}"))).unwrap(),
        manifest
    );
    let layer = read(&format!("/v2/hello/blobs/{}", manifest["layers"][0]["digest"].as_str().unwrap()));
    assert!(layer.contains("midflight") && layer.contains("echo hello"), "{layer}");
    assert_eq!(layer.len() as u64, manifest["layers"][0]["size"].as_u64().unwrap());
    let node = "nodes/node-1/access/kubeconfig";
    assert!(ask(&sandbox, node, "GET", "/v2/hello/tags/list").unwrap().contains("v1"));
    assert!(ask(&sandbox, "kubeconfig", "PUT", "/v2/hello/manifests/v2").is_err(), "it is read-only");
    assert!(ask(&sandbox, node, "GET", "/v2/hello/manifests/v2").is_err());

    assert!(sandbox.ok(&["image", "ls"]).contains(&digest["sha256:".len()..][..12]));
    sandbox.ok(&["image", "rm", "hello:v1"]);
    assert!(ask(&sandbox, node, "GET", "/v2/hello/manifests/v1").is_err());
    assert_eq!(images(&sandbox).len(), OWN.len());
}

#[test]
fn mistakes_are_named_and_nothing_is_published() {
    let sandbox = Sandbox::new();
    assert!(sandbox.fails(2, &["image", "ls"]).contains("there is no cluster in"));
    sandbox.ok(&["up", "--detach"]);
    let before = own_images(&sandbox);
    let plain = script(&sandbox, "text", 0o644);
    let other = sandbox.dir().with_file_name("other");
    fs::copy(script(&sandbox, "#!/bin/sh\necho '{\"version\":\"9\"}'\n", 0o755), &other).unwrap();
    script(&sandbox, "text", 0o644);
    #[rustfmt::skip]
    let cases: [(&[&str], &str); 7] = [
        (&["--tag", "a:v1", "--binary", plain.to_str().unwrap()], "nobody may execute it"),
        (&["--tag", "a:v1", "--binary", "/does/not/exist"],       "/does/not/exist"),
        (&["--tag", "a:v1", "--binary", "/tmp"],                  "it is not a file"),
        (&["--tag", "engine:v9", "--binary", "/bin/true"],        "/bin/true is neither an engine nor an instance manager, as midflight.local/engine:v9 has to be"),
        (&["--tag", "instance-manager:v9", "--binary", other.to_str().unwrap()], "does not say which versions"),
        (&["--tag", "quay.io/a:v1"],                              "belongs to another registry"),
        (&["--tag", &format!("a@sha256:{}", "0".repeat(64))],     "is named by its digest"),
    ];
    for (arguments, reason) in cases {
        let refused = sandbox.fails(2, &[&["image", "pack"], arguments].concat());
        assert!(refused.contains(reason), "{refused}");
    }
    assert!(sandbox.fails(2, &["image", "rm", "a:v1"]).contains("midflight.local/a:v1 is not published"));
    assert_eq!(images(&sandbox), before);

    let default = concat!("engine:v", env!("CARGO_PKG_VERSION"));
    let refused = sandbox.fails(3, &["image", "rm", default]);
    assert!(
        refused.contains("is used by the setting default-engine-image") && refused.contains("--force"),
        "{refused}"
    );
    let engine = format!("#!/bin/sh\nexec {} \"$@\"\n", env!("CARGO_BIN_EXE_midflight"));
    let program = script(&sandbox, &engine, 0o755);
    let pack = ["image", "pack", "--tag", default, "--binary", program.to_str().unwrap()];
    let refused = sandbox.fails(3, &pack);
    assert!(
        refused.contains("is used by the setting default-engine-image")
            && refused.contains("a tag of its own"),
        "{refused}"
    );
    assert_eq!(images(&sandbox), before);
    sandbox.ok(&[&pack[..], &["--force"]].concat());
    let now = images(&sandbox);
    assert_ne!(now, before, "it is another image under the same name");
    sandbox.ok(&pack);
    assert_eq!(
        images(&sandbox),
        now,
        "the same binary changes nothing, so that those who use it do not mind"
    );
    sandbox.ok(&["image", "rm", "--force", default]);
    assert_eq!(images(&sandbox).len(), before.len() - 1);
}

/// `image prepull` shows nodes by images, to people and to programs, and says what is in the way.
#[test]
fn what_nodes_have_before_they_need_it_is_shown_by_node_and_image() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["up", "--detach", "--nodes=2"]);
    let shown = || sandbox.json(&["image", "prepull"])["images"].as_array().unwrap().clone();
    let state = |image: &Value| image["state"].as_str().unwrap().to_owned();
    eventually("both images are on both nodes", || {
        let images = shown();
        images.len() == 2 && images.iter().all(|image| state(image) == "deployed")
    });
    let mut images = shown();
    images.sort_by_key(|image| image["image"].to_string());
    let version = env!("CARGO_PKG_VERSION");
    let own = ["instance-manager", "share-manager"].map(|name| format!("midflight.local/{name}:v{version}"));
    assert_eq!(names(&images), own);
    let published = own_images(&sandbox);
    for image in &images {
        let packed = published.iter().find(|one| one["image"] == image["image"]).unwrap();
        let nodes = image["nodes"].as_object().unwrap();
        assert_eq!(nodes.keys().collect::<Vec<_>>(), ["node-1", "node-2"], "{image:#}");
        assert!(nodes.values().all(|digest| *digest == packed["digest"]), "{image:#} is not {packed:#}");
        assert_eq!(image["message"], "", "{image:#}");
    }
    let table = sandbox.ok(&["image", "prepull"]);
    let mut lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    assert_eq!(lines.next().unwrap(), ["IMAGE", "STATE", "node-1", "node-2"], "{table}");
    let digest = published[2]["digest"].as_str().unwrap().trim_start_matches("sha256:")[..12].to_owned();
    assert!(lines.any(|line| line == [own[0].as_str(), "deployed", &digest, &digest]), "{digest}: {table}");

    let missing = r#"{"value":"midflight.local/share-manager:none"}"#;
    let path = "/apis/longhorn.io/v1beta2/namespaces/longhorn-system/settings/default-share-manager-image";
    let request = http::Request::patch(path).header("content-type", "application/merge-patch+json");
    sandbox.call("kubeconfig", request.body(missing.into()).unwrap()).unwrap();
    eventually("it says that an image cannot be pulled", || {
        sandbox.run(&["image", "prepull"]).status.code() == Some(3)
    });
    let said = sandbox.run(&["image", "prepull"]);
    let (table, complaint) = (support::text(&said.stdout), support::text(&said.stderr));
    assert!(complaint.contains("1 images cannot be pulled on every node"), "{complaint}");
    assert!(table.contains("midflight.local/share-manager:none on node-"), "{table}");
}
