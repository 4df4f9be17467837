//! `midflight upgrade engines`, as somebody would use it who has just packed the next version: the image is on no node yet, and
//! upgrades are off.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use midflight_block::check::workload::{Report, Workload, WorkloadError};
use midflight_plan::storage::engine_image;
use serde_json::{Value, json};
use support::{Sandbox, eventually};

const NEXT: &str = "midflight.local/engine:next";
const OBJECTS: &str = "/apis/longhorn.io/v1beta2/namespaces/longhorn-system";
const LIMIT: &str = "concurrent-automatic-engine-upgrade-per-node-limit";

fn object(sandbox: &Sandbox, path: &str) -> Value {
    serde_json::from_str(&sandbox.get(&format!("{OBJECTS}/{path}")).unwrap()).unwrap()
}

fn setting(sandbox: &Sandbox, name: &str) -> String {
    object(sandbox, &format!("settings/{name}"))["value"].as_str().unwrap().to_owned()
}

/// The object of an engine image, if there is one.
fn image_object(sandbox: &Sandbox, image: &str) -> Option<Value> {
    let all = object(sandbox, "engineimages");
    all["items"].as_array().unwrap().iter().find(|one| one["spec"]["image"] == image).cloned()
}

/// What the API says to somebody who changes an object, as kubectl would.
fn change(sandbox: &Sandbox, path: &str, patch: &Value) -> Result<String, String> {
    let request = http::Request::patch(format!("{OBJECTS}/{path}"))
        .header("content-type", "application/merge-patch+json")
        .body(patch.to_string().into_bytes());
    sandbox.call("kubeconfig", request.unwrap())
}

/// A client that writes, reads and judges every block until it is told to stop.
struct Client {
    stop: Arc<AtomicBool>,
    at_work: JoinHandle<Result<Report, WorkloadError>>,
}

impl Client {
    fn of(sandbox: &Sandbox, volume: &str) -> Client {
        let engine = object(sandbox, &format!("engines/{volume}-e-0"));
        let endpoint = engine["status"]["endpoint"].as_str().unwrap();
        let workload = Workload {
            socket: PathBuf::from(endpoint.split_once("?socket=").unwrap().1),
            volume: volume.into(),
            depth: 4,
            blocks: 0,
            seed: 1,
            connects_again_within: None,
        };
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let at_work = thread::spawn(move || workload.run(Duration::from_secs(3600), &told));
        Client { stop, at_work }
    }

    fn judge(self) {
        self.stop.store(true, Ordering::Relaxed);
        let report = self.at_work.join().unwrap().unwrap();
        assert!(report.is_clean() && report.writes > 0 && report.verified_blocks > 0, "{report:?}");
    }
}

/// A program that says of itself that it has other versions of the instance managers' API than it has. In the pod that brings it to a
/// node, the program of the default image speaks for it.
fn of_other_versions(sandbox: &Sandbox, oldest: u32, newest: u32) -> PathBuf {
    let there =
        concat!("/node/engine-binaries/midflight.local-engine-v", env!("CARGO_PKG_VERSION"), "/midflight");
    let other =
        format!(r#"s/"api":{{"oldest":1,"newest":1}}/"api":{{"oldest":{oldest},"newest":{newest}}}/"#);
    let answer = format!("said=$({there} \"$@\") || exit 1\necho \"$said\" | sed '{other}'");
    program(sandbox, &format!("other-{oldest}-{newest}"), &answer)
}

/// A program that is this one, except in the pod that brings it to a node.
fn program(sandbox: &Sandbox, name: &str, in_its_pod: &str) -> PathBuf {
    let path = sandbox.dir().with_file_name(name);
    let here = env!("CARGO_BIN_EXE_midflight");
    let script = format!("#!/bin/sh\n[ \"$1\" = engine-image ] || exec {here} \"$@\"\n{in_its_pod}\n");
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// What an engine image says of itself, as people see it.
fn ready(image: &Value) -> &Value {
    let conditions = image["status"]["conditions"].as_array();
    conditions.and_then(|all| all.iter().find(|one| one["type"] == "ready")).unwrap_or(&Value::Null)
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

    // A short name is that of the image which was packed.
    let plan = sandbox.run(&["plan", "engine-upgrade", "--to=engine:next", "-o=json"]);
    let plan: Value = serde_json::from_slice(&plan.stdout).unwrap();
    assert_eq!(plan["target"], NEXT, "{plan:#}");
    let told = sandbox.json(&["upgrade", "engines", "--to=engine:next", "--wait", "--timeout=120"]);
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
    assert_eq!(setting(&sandbox, LIMIT), "1");
    assert_eq!(setting(&sandbox, "default-engine-image"), NEXT);

    // Without --wait it shows the plan, and says that nothing can begin before the image is there.
    let said = sandbox.fails(3, &["upgrade", "engines", "--to=midflight.local/engine:none", "--limit=2"]);
    assert!(said.contains("midflight.local/engine:none"), "{said}");
    assert_eq!(setting(&sandbox, LIMIT), "2");
    // Waited for, an image that never comes costs the time that was given; which node cannot have it is told.
    let on_the_node = "midflight.local/engine:none on node-1: ";
    eventually("the pull has failed", || {
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
    assert_eq!(setting(&sandbox, LIMIT), "0");
    let blocked = sandbox.json(&["status"])["api"]["storage"]["blocked"].to_string();
    assert!(!blocked.contains("engine upgrades"), "nobody asks for any: {blocked}");
}

/// Upstream case 4: images below and above the versions that the controllers have, with a client at work.
#[test]
fn an_image_whose_versions_do_not_fit_is_refused_everywhere_and_costs_no_client_anything() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["up", "--detach", "--nodes=1"]);
    volumes(&sandbox);
    let client = Client::of(&sandbox, "busy");
    let before = setting(&sandbox, "default-engine-image");
    for (tag, oldest, newest, range) in [("older", 0, 0, "version 0"), ("newer", 2, 3, "versions 2 to 3")] {
        let image = format!("midflight.local/engine:{tag}");
        let program = of_other_versions(&sandbox, oldest, newest);
        sandbox.ok(&["image", "pack", "--tag", &image, "--binary", program.to_str().unwrap()]);
        let short = format!("engine:{tag}");
        let refused = sandbox.run(&["upgrade", "engines", "--to", &short, "--wait", "--timeout=150"]);
        let said = support::text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(3), "{said}");
        let both =
            format!("it has {range} of the instance managers' API, and the controllers here have version 1");
        assert!(said.contains(&both), "{said}");
        let back = format!("midflight upgrade engines --to {before}");
        assert!(said.contains("it is the default now") && said.contains(&back), "{said}");
        assert_eq!(image_object(&sandbox, &image).unwrap()["status"]["incompatible"], true);

        let plan = sandbox.run(&["plan", "engine-upgrade", "--to", &short, "-o=json"]);
        assert_eq!(plan.status.code(), Some(3), "{plan:?}");
        let shown: Value = serde_json::from_slice(&plan.stdout).unwrap();
        assert_eq!(shown["hold"]["reason"], "ImageIncompatible", "{shown:#}");
        let left_out: Vec<(&Value, &Value)> =
            shown["leftOut"].as_array().unwrap().iter().map(|one| (&one["volume"], &one["reason"])).collect();
        let (busy, idle, word) = (json!("busy"), json!("idle"), json!("ImageIncompatible"));
        assert_eq!(left_out, [(&busy, &word), (&idle, &word)], "{shown:#}");
        assert!(shown["leftOut"][0]["message"].as_str().unwrap().contains(&both), "{shown:#}");
        for volume in ["busy", "idle"] {
            let by_hand =
                change(&sandbox, &format!("volumes/{volume}"), &json!({ "spec": { "image": image } }));
            assert!(by_hand.unwrap_err().contains(&both));
        }
        // Once it is known, it does not become the default any more.
        sandbox.ok(&["upgrade", "engines", "--to", &before]);
        let said = sandbox.fails(3, &["upgrade", "engines", "--to", &short, "--limit=7"]);
        assert!(said.contains(&both) && !said.contains("the default now"), "{said}");
        let settings = ["default-engine-image", LIMIT].map(|name| setting(&sandbox, name));
        assert_eq!(settings, [before.as_str(), "1"], "nothing was set");
    }
    says_that_it_was_not_heard(&sandbox);
    sandbox.ok(&["upgrade", "engines", "--to", &before, "--wait", "--timeout=150"]);
    for volume in ["busy", "idle"] {
        assert_eq!(object(&sandbox, &format!("volumes/{volume}"))["status"]["currentImage"], json!(before));
    }
    client.judge();
}

/// A binary that does not say what it can do: its image waits, and says for what.
fn says_that_it_was_not_heard(sandbox: &Sandbox) {
    let image = "midflight.local/engine:mute";
    let mute = program(sandbox, "mute", "echo hello");
    sandbox.ok(&["image", "pack", "--tag", image, "--binary", mute.to_str().unwrap()]);
    sandbox.run(&["upgrade", "engines", "--to", image]);
    let told = || image_object(sandbox, image).unwrap_or_default();
    eventually("it is told", || {
        ready(&told())["reason"] == "Unheard" && told()["status"]["state"] == "error"
    });
    let told = told();
    let (status, message) = (&ready(&told)["status"], ready(&told)["message"].as_str().unwrap());
    assert_eq!(status, "False", "{told:#}");
    assert!(message.contains("but \"hello\"") && message.contains("What helps: "), "{message}");
}

/// An engine image that cannot be pulled, with a client at work: it is told, nothing moves, and when it comes all do.
#[test]
fn an_image_that_cannot_be_pulled_costs_no_client_anything_and_is_moved_to_when_it_comes() {
    let sandbox = Sandbox::new();
    let next = support::next();
    sandbox.ok(&["up", "--detach", "--nodes=1"]);
    volumes(&sandbox);
    let client = Client::of(&sandbox, "busy");
    let before = setting(&sandbox, "default-engine-image");
    // Nobody knows which image a short name means that was not published: the API tells what to write.
    let refused = sandbox.run(&["upgrade", "engines", "--to=engine:late"]);
    let said = support::text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("write midflight.local/engine:late "), "{said}");
    assert_eq!(setting(&sandbox, "default-engine-image"), before);

    let late = "midflight.local/engine:late";
    sandbox.fails(3, &["upgrade", "engines", "--to", late]);
    eventually("the pull has failed", || {
        image_object(&sandbox, late).is_some_and(|image| image["status"]["state"] == "error")
    });
    let image = image_object(&sandbox, late).unwrap();
    let message = ready(&image)["message"].as_str().unwrap();
    assert!(message.starts_with(&format!("{late} on node-1: ")), "{image:#}");
    for volume in ["busy", "idle"] {
        let volume = object(&sandbox, &format!("volumes/{volume}"));
        let images = (&volume["spec"]["image"], &volume["status"]["currentImage"]);
        assert_eq!(images, (&json!(before), &json!(before)), "nothing has begun: {volume:#}");
    }

    sandbox.ok(&["image", "pack", "--tag", late, "--binary", next.to_str().unwrap()]);
    let told = sandbox.json(&["upgrade", "engines", "--wait", "--timeout=300"]);
    assert_eq!((&told["target"], &told["there"]), (&json!(late), &json!(2)), "{told:#}");
    client.judge();
}

/// Somebody cleans up on a node: the program of an engine image is put there again, and volumes that need it come up.
#[test]
fn a_program_that_was_removed_from_a_node_is_brought_back() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["up", "--detach", "--nodes=1"]);
    volumes(&sandbox);
    let client = Client::of(&sandbox, "busy");
    let binaries = sandbox.dir().join("nodes/node-1/engine-binaries");
    let program = fs::read_dir(&binaries).unwrap().next().unwrap().unwrap().path().join("midflight");
    fs::remove_file(&program).unwrap();
    eventually("the program is back", || program.exists());
    fs::remove_dir_all(program.parent().unwrap()).unwrap();
    eventually("the folder is back", || program.exists());
    sandbox.ok(&["volume", "attach", "idle", "--node=node-1", "--wait"]);
    client.judge();
}

/// Makes a volume with replicas on so many nodes, attaches it and sets a client to work on it.
fn served(sandbox: &Sandbox, name: &str, replicas: u8) -> Client {
    let replicas = format!("--replicas={replicas}");
    sandbox.ok(&["volume", "create", name, "--size=8Mi", &replicas, "--engine=v1", "--wait"]);
    sandbox.ok(&["volume", "attach", name, "--node=node-1", "--wait"]);
    Client::of(sandbox, name)
}

/// Upstream case 13, with an image that one node really does not have: something is in the way of its program there.
#[test]
fn volumes_whose_nodes_have_the_image_move_and_the_others_follow_when_it_comes() {
    let sandbox = Sandbox::new();
    let next = support::next();
    sandbox.ok(&["up", "--detach", "--nodes=2"]);
    let before = setting(&sandbox, "default-engine-image");
    let mut clients = vec![served(&sandbox, "both", 2)];
    let keeps_out = json!({ "spec": { "allowScheduling": false } });
    change(&sandbox, "nodes/node-2", &keeps_out).unwrap();
    eventually("no replica comes to the other node", || {
        let conditions = object(&sandbox, "nodes/node-2")["status"]["conditions"].clone();
        let is_closed = |one: &Value| one["type"] == "Schedulable" && one["status"] == "False";
        conditions.as_array().unwrap().iter().any(is_closed)
    });
    clients.extend(["by-hand", "by-itself"].map(|name| served(&sandbox, name, 1)));
    let in_the_way = sandbox.dir().join("nodes/node-2/engine-binaries/midflight.local-engine-next");
    fs::write(&in_the_way, "not a folder").unwrap();
    sandbox.ok(&["image", "pack", "--tag", NEXT, "--binary", next.to_str().unwrap()]);
    let name = engine_image::name(&NEXT.into());
    let image = json!({ "apiVersion": "longhorn.io/v1beta2", "kind": "EngineImage",
        "metadata": { "name": name }, "spec": { "image": NEXT } });
    let request = http::Request::post(format!("{OBJECTS}/engineimages"));
    let request = request.header("content-type", "application/json").body(image.to_string().into_bytes());
    sandbox.call("kubeconfig", request.unwrap()).unwrap();
    eventually("one node has it, and the other says why it has not", || {
        let image = object(&sandbox, &format!("engineimages/{name}"));
        let (status, why) =
            (&image["status"], ready(&image)["message"].as_str().unwrap_or_default().to_owned());
        let there = json!({ "node-1": true, "node-2": false });
        let is_heard = status["controllerAPIVersion"].as_i64().is_some_and(|version| version > 0);
        let is_told = status["state"] == "error" && why.starts_with(&format!("{NEXT} on node-2: "));
        status["nodeDeploymentMap"] == there && is_heard && is_told
    });

    let ask =
        |volume: &str| change(&sandbox, &format!("volumes/{volume}"), &json!({ "spec": { "image": NEXT } }));
    let runs = |volume: &str, image: &str| {
        object(&sandbox, &format!("volumes/{volume}"))["status"]["currentImage"] == image
    };
    let refused = ask("both").unwrap_err();
    assert!(refused.contains("the new image is not on node-2"), "{refused}");
    ask("by-hand").unwrap();
    eventually("it moves by hand", || runs("by-hand", NEXT));
    sandbox.run(&["upgrade", "engines", "--to", NEXT]);
    eventually("it moves by itself", || runs("by-itself", NEXT));
    let events =
        sandbox.get("/api/v1/namespaces/longhorn-system/events?fieldSelector=involvedObject.name=both");
    let events = events.unwrap();
    assert!(events.contains("not upgraded (ImageNotOnNodes): the new image is not on node-2"), "{events}");
    assert!(runs("both", &before), "its image is not where it is needed");

    fs::remove_file(&in_the_way).unwrap();
    let told = sandbox.json(&["upgrade", "engines", "--wait", "--timeout=300"]);
    assert_eq!((&told["target"], &told["there"]), (&json!(NEXT), &json!(3)), "{told:#}");
    for client in clients {
        client.judge();
    }
}
