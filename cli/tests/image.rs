//! Images of a cluster: published by `up` and `image pack`, served beside the API, removed again.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Command, Stdio},
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

/// A copy of this program with something after its end. A process of its own writes it: none that another test starts meanwhile has
/// it open, and keeps it from being started.
fn copied(sandbox: &Sandbox, name: &str, end: &str) -> PathBuf {
    let path = sandbox.dir().with_file_name(name);
    let mut copy = Command::new("/bin/sh");
    copy.args([
        "-c",
        "cp \"$1\" \"$2\" && printf %s \"$3\" >> \"$2\"",
        "sh",
        env!("CARGO_BIN_EXE_midflight"),
    ]);
    assert!(copy.arg(&path).arg(end).status().unwrap().success());
    path
}

/// Another build of the same version would have the same names: nodes that pulled before and after it would run different programs.
#[test]
fn another_build_of_the_same_version_leaves_the_images_alone_and_says_so() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["up", "--detach"]);
    let before = own_images(&sandbox);
    let digests = |images: &[Value]| images.iter().map(|image| image["digest"].clone()).collect::<Vec<_>>();
    sandbox.ok(&["down"]);
    // What comes after the end of a program does not matter to it, but makes it another file.
    let other = copied(&sandbox, "other-build", "another build");
    let up = |program: &PathBuf| {
        let mut command = Command::new(program);
        command.args(["up", "--detach", "-o=json"]).env("MIDFLIGHT_DIR", sandbox.dir()).stdin(Stdio::null());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", support::text(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let told = up(&other)["otherBuild"].clone();
    assert_eq!(told.as_array().unwrap().len(), OWN.len(), "{told}");
    let engine = concat!("midflight.local/engine:v", env!("CARGO_PKG_VERSION"));
    assert!(told.as_array().unwrap().iter().any(|image| image == engine), "{told}");
    assert_eq!(digests(&own_images(&sandbox)), digests(&before), "nodes find what they have");
    sandbox.ok(&["down"]);

    // The same program elsewhere is the same build.
    let copy = copied(&sandbox, "same-build", "");
    assert_eq!(up(&copy)["otherBuild"].as_array().unwrap().len(), 0);
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

const OBJECTS: &str = "/apis/longhorn.io/v1beta2/namespaces/longhorn-system";

fn read(sandbox: &Sandbox, path: &str) -> Value {
    serde_json::from_str(&sandbox.get(path).unwrap()).unwrap()
}

/// The states that the Image objects were in, one after the other, by image; those that are gone are gone.
fn states(sandbox: &Sandbox) -> BTreeMap<String, Vec<String>> {
    let history = format!("{OBJECTS}/images?watch=true&resourceVersion=1&timeoutSeconds=1");
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for event in sandbox.get(&history).unwrap().lines() {
        let event: Value = serde_json::from_str(event).unwrap();
        let object = &event["object"];
        let image = object["spec"]["instanceManagerImage"].as_str().unwrap().to_owned();
        if event["type"] == "DELETED" {
            all.remove(&image);
            continue;
        }
        let states = all.entry(image).or_default();
        let state = object["status"]["state"].as_str().unwrap_or_default();
        if !state.is_empty() && states.last().is_none_or(|last| last != state) {
            states.push(state.to_owned());
        }
    }
    all
}

/// Waits until exactly these images are on both nodes, by one DaemonSet, and were on their way before.
fn until_pulled(sandbox: &Sandbox, images: &[String; 2]) {
    let set = || read(sandbox, "/apis/apps/v1/namespaces/longhorn-system/daemonsets/pre-pull-manager-images");
    let deployed = || {
        let all = read(sandbox, &format!("{OBJECTS}/images"))["items"].as_array().unwrap().clone();
        let is_there = |one: &Value| {
            let status = &one["status"];
            let nodes = serde_json::json!({ "node-1": true, "node-2": true });
            status["state"] == "deployed"
                && status["nodeDeploymentMap"] == nodes
                && status["ownerID"] == "node-1"
        };
        let mut named: Vec<&str> =
            all.iter().filter_map(|one| one["spec"]["instanceManagerImage"].as_str()).collect();
        named.sort_unstable();
        named == *images && all.iter().all(is_there)
    };
    eventually("the images are on both nodes", deployed);
    let set = set();
    let mut pulled: Vec<&str> = set["spec"]["template"]["spec"]["containers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|container| container["image"].as_str().unwrap())
        .collect();
    pulled.sort_unstable();
    assert_eq!(pulled, *images, "{set:#}");
    let states = states(sandbox);
    for image in images {
        let states: Vec<&str> = states[image].iter().map(String::as_str).collect();
        assert!(
            states.first() == Some(&"deploying") && states.last() == Some(&"deployed"),
            "{image}: {states:?}"
        );
    }
    let pods =
        "/api/v1/namespaces/longhorn-system/pods?labelSelector=longhorn.io/component=pre-pull-manager-images";
    let pods = read(sandbox, pods)["items"].as_array().unwrap().clone();
    assert_eq!(pods.len(), 2, "one of each node: {pods:#?}");
    for pod in pods {
        let containers = pod["status"]["containerStatuses"].as_array().unwrap();
        let is_right =
            |one: &Value| one["ready"] == true && images.iter().any(|image| one["image"] == *image);
        assert!(containers.len() == 2 && containers.iter().all(is_right), "{pod:#}");
    }
}

/// Seed 001's test plan with real agents: a fresh install, an upgrade to images that really differ, and the setting.
#[test]
fn managers_images_are_pulled_on_install_and_upgrade_by_real_nodes() {
    let sandbox = Sandbox::new();
    let next = support::next();
    sandbox.ok(&["up", "--detach", "--nodes=2"]);
    let named =
        |tag: &str| ["instance-manager", "share-manager"].map(|name| format!("midflight.local/{name}:{tag}"));
    let fresh = named(concat!("v", env!("CARGO_PKG_VERSION")));
    until_pulled(&sandbox, &fresh);

    let upgraded = named("next");
    let [manager, share] = &upgraded;
    sandbox.ok(&["image", "pack", "--tag", manager, "--tag", share, "--binary", next.to_str().unwrap()]);
    let set = |name: &str, value: &str| {
        let request = http::Request::patch(format!("{OBJECTS}/settings/{name}"));
        let request = request.header("content-type", "application/merge-patch+json");
        let value = serde_json::json!({ "value": value }).to_string();
        sandbox.call("kubeconfig", request.body(value.into_bytes()).unwrap()).unwrap();
    };
    set("default-share-manager-image", share);
    set("default-instance-manager-image", manager);
    until_pulled(&sandbox, &upgraded);
    let digest = |image: &str| {
        let all = images(&sandbox);
        all.iter().find(|one| one["image"] == image).map(|one| one["digest"].clone())
    };
    assert_ne!(digest(&fresh[0]), digest(manager), "they really differ");
    for image in sandbox.json(&["image", "prepull"])["images"].as_array().unwrap() {
        let held: Vec<&Value> = image["nodes"].as_object().unwrap().values().collect();
        let packed = digest(image["image"].as_str().unwrap()).unwrap();
        assert_eq!(held, [&packed, &packed], "{image:#}");
    }

    set("start-pre-pull-manager-images", "false");
    eventually("nothing is known of them", || {
        let states = states(&sandbox);
        let is_unknown = |image: &String| states[image].last().is_some_and(|state| state == "unknown");
        upgraded.iter().all(is_unknown)
    });
    let path = "/apis/apps/v1/namespaces/longhorn-system/daemonsets/pre-pull-manager-images";
    eventually("nothing holds them", || sandbox.get(path).is_err());
    set("start-pre-pull-manager-images", "true");
    eventually("they are pulled again", || {
        states(&sandbox).values().all(|states| states.last().is_some_and(|state| state == "deployed"))
    });
}
