//! The life of a cluster: up, used, killed in parts, up again, down, gone.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::{
    fs::{self, File},
    io::{BufRead, BufReader},
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::Path,
};

use rustix::process::Signal;
use serde_json::{Value, json};
use support::{Sandbox, eventually, kill, lives, signal};

#[test]
fn comes_up_ready_shows_itself_and_goes_without_a_trace() {
    let sandbox = Sandbox::new();
    let up = sandbox.json(&["up", "--nodes", "2", "--detach"]);
    assert_eq!(up["nodes"], json!(["node-1", "node-2"]));
    let crds = sandbox.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions").unwrap();
    assert!(
        crds.contains("volumes.longhorn.io") && crds.contains("datasets.data.fluid.io"),
        "kinds are installed"
    );

    let status = sandbox.json(&["status"]);
    assert_eq!(status["control"]["pid"], sandbox.running("control"));
    assert_eq!(status["kubeconfig"], sandbox.dir().join("kubeconfig").to_str().unwrap());
    assert_eq!(status["api"]["nodes"][1]["name"], "node-2");
    assert_eq!(status["api"]["nodes"][1]["ready"], true);
    assert_eq!(status["api"]["nodes"][1]["address"], "127.0.0.3");
    assert!(status["api"]["kindsInstalled"].as_u64().unwrap() > 10);
    assert!(status["api"]["objects"].as_i64().unwrap() > 20);
    let screen = sandbox.ok(&["status"]);
    assert!(screen.contains("running") && screen.contains("node-1   Ready"), "{screen}");

    let pids = ["control", "node-1", "node-2"].map(|role| sandbox.running(role));
    let down = sandbox.ok(&["down", "--purge"]);
    assert!(down.contains("stopped control") && down.contains("removed the data"), "{down}");
    assert!(pids.iter().all(|pid| !lives(*pid)));
    assert!(!sandbox.dir().exists());
    assert!(sandbox.ok(&["down"]).contains("nothing runs"));
    assert!(sandbox.fails(1, &["status"]).contains("there is no cluster in"));
}

#[test]
fn every_process_logs_json_when_asked_to() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["up", "--detach", "--log-format", "json"]);
    sandbox.ok(&["down"]);
    for role in ["control", "node-1"] {
        let log = fs::read_to_string(sandbox.dir().join("logs").join(format!("{role}.log"))).unwrap();
        assert!(log.lines().count() > 1, "{role} has said something: {log:?}");
        for line in log.lines() {
            let said: Value =
                serde_json::from_str(line).unwrap_or_else(|error| panic!("{role}: {error}: {line}"));
            for field in ["timestamp", "level", "target", "message"] {
                assert!(said[field].is_string(), "{role} gives no {field}: {line}");
            }
        }
    }
}

#[test]
fn a_dead_control_plane_comes_back_and_living_nodes_are_taken_up() {
    let sandbox = Sandbox::new();
    let before = sandbox.json(&["up", "--detach"]);
    let kubeconfig = fs::read(sandbox.dir().join("kubeconfig")).unwrap();
    let node = sandbox.running("node-1");
    kill(sandbox.running("control"));
    let after = sandbox.json(&["up", "--detach"]);
    assert_eq!(sandbox.running("node-1"), node, "the node lived on");
    assert_eq!(after["api"], before["api"], "clients find it where it was");
    assert_eq!(fs::read(sandbox.dir().join("kubeconfig")).unwrap(), kubeconfig);
    eventually("the node is ready again", || sandbox.run(&["status"]).status.success());
}

#[test]
fn a_dead_agent_is_started_again_beside_a_living_control_plane() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["up", "--nodes", "2", "--detach"]);
    let control = sandbox.running("control");
    kill(sandbox.running("node-2"));
    sandbox.ok(&["up", "--detach"]);
    assert_eq!(sandbox.running("control"), control);
    sandbox.running("node-2");
}

#[test]
fn a_node_that_somebody_deleted_comes_back_as_it_was() {
    const NODE: &str = "/api/v1/nodes/node-1";
    const STORAGE: &str = "/apis/longhorn.io/v1beta2/namespaces/longhorn-system/nodes/node-1";
    let sandbox = Sandbox::new();
    sandbox.ok(&["up", "--detach"]);
    let ask = |request: http::request::Builder, body: &str| {
        sandbox.call("kubeconfig", request.body(body.as_bytes().to_vec()).unwrap())
    };
    let seen = |path: &str| sandbox.get(path).ok().and_then(|text| serde_json::from_str::<Value>(&text).ok());
    eventually("storage knows the node", || seen(STORAGE).is_some());
    let tags = r#"{"spec":{"tags":["fast"],"allowScheduling":false}}"#;
    let patch = http::Request::patch(STORAGE).header("content-type", "application/merge-patch+json");
    ask(patch, tags).unwrap();
    let refused = ask(http::Request::delete(STORAGE), "").unwrap_err();
    assert!(refused.contains("node-1 is a node of this cluster"), "{refused}");

    let before = seen(NODE).unwrap()["metadata"]["uid"].clone();
    ask(http::Request::delete(NODE), "").unwrap();
    eventually("the node is registered again", || {
        seen(NODE).is_some_and(|node| node["metadata"]["uid"] != before)
    });
    eventually("it is ready", || sandbox.run(&["status"]).status.success());
    let node = seen(STORAGE).unwrap();
    assert_eq!((&node["spec"]["tags"], &node["spec"]["allowScheduling"]), (&json!(["fast"]), &json!(false)));
}

#[test]
fn a_namespace_that_was_being_deleted_is_made_anew_by_the_next_start() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["up", "--detach"]);
    let delete = http::Request::delete("/api/v1/namespaces/longhorn-system").body(Vec::new()).unwrap();
    sandbox.call("kubeconfig", delete).unwrap();
    kill(sandbox.running("control"));
    sandbox.ok(&["up", "--detach"]);
    let settings = sandbox.get("/apis/longhorn.io/v1beta2/namespaces/longhorn-system/settings").unwrap();
    assert!(settings.contains("default-engine-image"), "{settings}");
}

#[test]
fn up_says_ready_only_when_the_nodes_are() {
    let sandbox = Sandbox::new();
    let up = sandbox.json(&["up", "--nodes", "3", "--detach"]);
    assert_eq!(up["notReady"], json!([]));
    for node in sandbox.json(&["status"])["api"]["nodes"].as_array().unwrap() {
        assert_eq!(node["ready"], true, "{node}");
    }
}

#[test]
fn in_the_foreground_what_dies_is_started_again_and_ctrl_c_stops_all() {
    let sandbox = Sandbox::new();
    let mut up = sandbox.spawn(&["up"]);
    let mut lines = BufReader::new(up.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("is up"), "says when it is ready");
    for role in ["control", "node-1"] {
        let first = sandbox.running(role);
        kill(first);
        eventually("it runs again", || sandbox.pid(role).is_some_and(|pid| pid != first && lives(pid)));
    }
    eventually("all is well again", || sandbox.run(&["status"]).status.success());
    let pids = ["control", "node-1"].map(|role| sandbox.running(role));
    signal(i32::try_from(up.id()).unwrap(), Signal::INT);
    assert!(up.wait().unwrap().success());
    assert!(pids.iter().all(|pid| !lives(*pid)));
}

#[test]
fn down_also_stops_a_watching_up() {
    let sandbox = Sandbox::new();
    let mut up = sandbox.spawn(&["up"]);
    let mut lines = BufReader::new(up.stdout.take().unwrap()).lines();
    lines.next().unwrap().unwrap();
    let pids = ["control", "node-1"].map(|role| sandbox.running(role));
    let down = sandbox.ok(&["down"]);
    assert!(down.contains("stopped up") && down.contains("stopped control"), "{down}");
    assert!(up.wait().unwrap().success());
    assert!(pids.iter().all(|pid| !lives(*pid)));
}

#[test]
fn a_killed_up_leaves_the_cluster_running() {
    let sandbox = Sandbox::new();
    let mut up = sandbox.spawn(&["up"]);
    let mut lines = BufReader::new(up.stdout.take().unwrap()).lines();
    lines.next().unwrap().unwrap();
    up.kill().unwrap();
    up.wait().unwrap();
    let control = sandbox.running("control");
    sandbox.ok(&["status"]);
    assert!(sandbox.fails(2, &["up"]).contains("already up"));
    assert_eq!(sandbox.running("control"), control);
    kill(control);
    sandbox.ok(&["up", "--detach"]);
}

#[test]
fn a_node_changes_only_the_records_of_volumes_that_name_it() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["up", "--nodes", "2", "--detach"]);
    let records = "/apis/midflight.dev/v1alpha1/namespaces/longhorn-system/volumerecords";
    let record = serde_json::json!({
        "apiVersion": "midflight.dev/v1alpha1", "kind": "VolumeRecord", "metadata": {"name": "v1"},
        "spec": {"term": 1, "memberVersion": 1, "engine": {"name": "v1-e", "nodeID": "node-1"},
                 "members": [{"replica": "v1-r", "nodeID": "node-1", "mode": "rw"}]},
    });
    let create = http::Request::post(records).header("Content-Type", "application/json");
    sandbox.call("kubeconfig", create.body(record.to_string().into_bytes()).unwrap()).unwrap();

    let as_node = |node: &str, request| sandbox.call(&format!("nodes/{node}/access/kubeconfig"), request);
    let raise = |term: u64| {
        let patch = http::Request::patch(format!("{records}/v1"));
        let body = serde_json::json!({"spec": {"term": term}}).to_string().into_bytes();
        patch.header("Content-Type", "application/merge-patch+json").body(body).unwrap()
    };
    as_node("node-1", raise(2)).unwrap();
    let refusal = as_node("node-2", raise(3)).unwrap_err();
    assert!(refusal.contains("forbidden") && refusal.contains("system:node:node-2"), "{refusal}");
    for node in ["node-1", "node-2"] {
        let read = http::Request::get(format!("{records}/v1")).body(Vec::new()).unwrap();
        assert!(as_node(node, read).unwrap().contains("\"term\":2"), "every node may read it");
        let delete = http::Request::delete(format!("{records}/v1")).body(Vec::new()).unwrap();
        assert!(as_node(node, delete).unwrap_err().contains("forbidden"), "no node may remove it");
    }
}

#[test]
fn a_log_that_cannot_be_written_takes_nothing_with_it() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["up", "--detach"]);
    sandbox.ok(&["down"]);
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut control = sandbox.command(&["serve", "--log", "debug"]).stderr(full).spawn().unwrap();
    eventually("the API answers", || sandbox.get("/readyz").is_ok());
    for _ in 0..10 {
        let refused = sandbox.get("/api/v1/nothing").unwrap_err();
        assert!(refused.contains("could not find the requested resource"), "{refused}");
    }
    assert!(control.try_wait().unwrap().is_none(), "it runs on");
    control.kill().unwrap();
    control.wait().unwrap();
}

/// What is asked, by which program, with which arguments and kubeconfig of kubectl's, and the folder it must speak of.
type Asked<'a> = (&'a str, &'a Path, &'a [&'a str], &'a str, Option<&'a str>);

#[test]
fn status_speaks_of_the_cluster_that_was_asked_for() {
    let sandbox = Sandbox::new();
    let nothing = sandbox.fails(1, &["status"]);
    assert!(nothing.contains("there is no cluster in"), "{nothing}");
    sandbox.ok(&["up", "--detach"]);
    let kubeconfig = sandbox.dir().join("kubeconfig").display().to_string();
    assert_eq!(sandbox.json(&["status"])["kubeconfig"], kubeconfig);

    let viewer = sandbox.dir().join("viewer.kubeconfig").display().to_string();
    let seen = sandbox.json(&["status", "--kubeconfig", &viewer]);
    assert_eq!(seen["api"]["notCounted"], serde_json::json!(["secrets"]));
    assert!(seen["api"]["objects"].as_i64() > Some(0));

    let plugin = sandbox.dir().with_file_name("kubectl-midflight");
    std::os::unix::fs::symlink(support::BINARY, &plugin).unwrap();
    let asked = |program: &Path, arguments: &[&str], kubectls: &str| {
        let mut command = std::process::Command::new(program);
        command.args(["status", "-o", "json"]).args(arguments);
        command.env_remove("MIDFLIGHT_DIR").env("KUBECONFIG", kubectls);
        let output = command.output().unwrap();
        serde_json::from_slice::<Value>(&output.stdout)
            .unwrap_or_else(|_| panic!("{arguments:?}: {}", String::from_utf8_lossy(&output.stderr)))
    };
    let folder = sandbox.dir().display().to_string();
    let elsewhere = "/does/not/exist";
    let (itself, named) = (Path::new(support::BINARY), Some(folder.as_str()));
    #[rustfmt::skip]
    let cases: [Asked<'_>; 5] = [
        ("kubectl's own",          &plugin, &[],                                           &kubeconfig, None),
        ("a context of kubectl's", itself,  &["--context", "midflight"],                   &kubeconfig, None),
        ("a folder",               itself,  &["--dir", &folder],                           elsewhere,   named),
        ("a folder, as plugin",    &plugin, &["--dir", &folder],                           elsewhere,   named),
        ("a folder and a context", itself,  &["--dir", &folder, "--context", "midflight"], elsewhere,   named),
    ];
    for (name, program, arguments, kubectls, folder) in cases {
        let seen = asked(program, arguments, kubectls);
        assert_eq!(seen["folder"].as_str(), folder, "{name}: {seen}");
        assert_eq!(seen["control"].is_null(), folder.is_none(), "{name}: {seen}");
        assert_eq!(seen["api"]["nodes"][0]["ready"], true, "{name}: {seen}");
    }
    let wrong = sandbox.fails(1, &["status", "--context", "another"]);
    assert!(wrong.contains("another"), "the folder has no such context: {wrong}");

    let wrong = sandbox.fails(1, &["status", "--kubeconfig", "/does/not/exist"]);
    assert!(wrong.contains("/does/not/exist") && wrong.contains("--kubeconfig"), "{wrong}");
}

#[test]
fn a_viewer_may_look_and_not_touch() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["up", "--detach"]);
    let as_viewer = |request| sandbox.call("viewer.kubeconfig", request);
    let get = |path: &str| http::Request::get(path).body(Vec::new()).unwrap();
    let maps = "/api/v1/namespaces/default/configmaps";
    assert!(as_viewer(get(maps)).unwrap().contains("ConfigMapList"));

    let map = serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine"}});
    let create = http::Request::post(maps).header("Content-Type", "application/json");
    let secrets = get("/api/v1/namespaces/default/secrets");
    for refused in [create.body(map.to_string().into_bytes()).unwrap(), secrets] {
        let refusal = as_viewer(refused).unwrap_err();
        assert!(refusal.contains("forbidden") && refusal.contains("\"viewer\""), "{refusal}");
    }
    assert!(sandbox.get(&format!("{maps}/mine")).unwrap_err().contains("not found"), "nothing was made");
}

#[test]
fn an_address_of_loopback_is_kept_with_a_certificate_for_it() {
    let sandbox = Sandbox::new();
    let address = TcpListener::bind("127.0.0.9:0").unwrap().local_addr().unwrap();
    let listen = address.to_string();
    let first = sandbox.json(&["up", "--detach", "--listen", &listen]);
    assert_eq!(first["api"], format!("https://{listen}"));
    assert!(first["exposed"].is_null(), "{first}");
    sandbox.ok(&["down"]);
    assert_eq!(sandbox.json(&["up", "--detach"])["api"], first["api"]);
    sandbox.ok(&["status"]);
}

#[test]
fn an_address_beyond_loopback_is_not_taken_again_untold() {
    let sandbox = Sandbox::new();
    let first = sandbox.json(&["up", "--detach"]);
    sandbox.ok(&["down"]);
    // As if the first start had been told to listen there.
    let marker = sandbox.dir().join("midflight.json");
    let elsewhere = fs::read_to_string(&marker).unwrap().replace("127.0.0.1:", "198.51.100.1:");
    assert!(elsewhere.contains("198.51.100.1:"), "{elsewhere}");
    fs::write(&marker, elsewhere).unwrap();
    assert_eq!(sandbox.json(&["up", "--detach"])["api"], first["api"], "loopback, at the same port");
    sandbox.ok(&["status"]);
}

#[test]
fn nothing_of_a_cluster_is_readable_by_others() {
    let sandbox = Sandbox::new();
    fs::create_dir(sandbox.dir()).unwrap();
    fs::set_permissions(sandbox.dir(), fs::Permissions::from_mode(0o755)).unwrap();
    sandbox.ok(&["up", "--detach"]);
    let open = open_to_others(&sandbox.dir());
    assert!(open.is_empty(), "{open:#?}");
    let named = [
        "kubeconfig",
        "viewer.kubeconfig",
        "store.redb",
        "store.redb.journal",
        "store.redb.mark",
        "tokens.json",
        "tls/ca.key",
    ];
    for file in named {
        let mode = fs::metadata(sandbox.dir().join(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
}

/// All from the path on that anyone but its owner may use, with its mode.
fn open_to_others(path: &Path) -> Vec<String> {
    let metadata = fs::metadata(path).unwrap();
    let mode = metadata.permissions().mode() & 0o777;
    let mut open = Vec::new();
    if mode & 0o077 != 0 {
        open.push(format!("{mode:o} {}", path.display()));
    }
    if metadata.is_dir() {
        let entries = fs::read_dir(path).unwrap().map(Result::unwrap);
        open.extend(entries.flat_map(|entry| open_to_others(&entry.path())));
    }
    open
}
