//! The measurements run and say what they measured. Figures are not judged here: machines differ.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::process::{Command, Stdio};

use serde_json::{Value, json};
use support::Sandbox;

/// Whether the programs are there; in CI they must be.
fn installed(programs: &[&str]) -> bool {
    let there = |program: &&str| {
        Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
    };
    let missing: Vec<_> = programs.iter().filter(|program| !there(program)).collect();
    assert!(missing.is_empty() || std::env::var_os("CI").is_none(), "not installed: {missing:?}");
    if !missing.is_empty() {
        skip(&format!("{missing:?} are not installed"));
    }
    missing.is_empty()
}

#[allow(clippy::print_stderr)]
fn skip(why: &str) {
    eprintln!("SKIPPED: {why}");
}

#[test]
fn the_api_is_measured_beside_a_peer() {
    let peer = Sandbox::new();
    peer.ok(&["up", "--detach"]);
    let kubeconfig = peer.dir().join("kubeconfig");
    let sandbox = Sandbox::new();
    let said = sandbox.json(&[
        "bench",
        "api",
        "--objects=50",
        "--rounds=1",
        "--peer",
        kubeconfig.to_str().unwrap(),
        "--peer-ready-ms=1000",
    ]);
    let figures = said["figures"].as_array().unwrap();
    assert!(figures.len() >= 12, "{said:#}");
    for figure in figures {
        assert!(figure["ours"].as_f64().unwrap() > 0.0 && figure["peer"].as_f64().unwrap() > 0.0, "{said:#}");
    }
    let kinds = peer.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions").unwrap();
    assert!(!kinds.contains("bench.midflight.dev"), "the peer is left as it was");
}

/// Of all scenarios, which is what is measured if nobody asks for one.
#[test]
fn a_fleet_is_known_and_upgraded_within_its_limit() {
    let sandbox = Sandbox::new();
    let said =
        sandbox.json(&["bench", "fleet", "--nodes=3", "--volumes=20", "--limit=2", "--upgrade-takes=0"]);
    let figures = |scenario: &str| said[scenario]["figures"].as_array().unwrap().clone();
    let upgrade = &said["engineUpgrade"];
    assert!(upgrade["mostAtOnce"].as_u64().unwrap() <= 2, "{said:#}");
    let upgrade = figures("engineUpgrade");
    let writes = upgrade.iter().find(|one| one["name"].as_str().unwrap().contains("writes"));
    assert_eq!(writes.unwrap()["ours"], 2.0, "{said:#}");

    assert_eq!((&said["volumes"]["nodes"], &said["volumes"]["volumes"]), (&json!(3), &json!(20)), "{said:#}");
    let volumes = figures("volumes");
    let names: Vec<&str> = volumes.iter().map(|one| one["name"].as_str().unwrap()).collect();
    let expected = [
        "all volumes known after the start",
        "CPU per 1,000 volumes until then",
        "memory per 1,000 volumes",
        "CPU of one event of a volume",
        "one event until its volume's status follows",
    ];
    assert_eq!(names, expected, "{said:#}");
    let answer = volumes.last().unwrap();
    assert!(answer["ours"].as_f64().unwrap() > 0.0 && answer["peer"].as_f64().unwrap() > 0.0, "{said:#}");
}

#[test]
fn an_instance_manager_starts_from_an_image_that_is_there() {
    let said = Sandbox::new().json(&["bench", "prepull", "--rounds=1"]);
    let start = &said["figures"][0];
    assert!(start["ours"].as_f64().unwrap() > 0.0 && start["peer"].as_f64().unwrap() > 0.0, "{said:#}");
}

#[test]
fn the_upgrade_of_every_node_is_measured_beside_a_time_without_switches() {
    let arguments = ["--volumes=4", "--rate=20", "--size-mib=4", "--control=1", "--group=2"];
    let said = Sandbox::new().json(&[&["bench", "node-upgrade"][..], &arguments].concat());
    let milliseconds = |value: &Value| value.as_f64().unwrap() > 0.0;
    for side in ["upgrade", "control"] {
        assert!(
            ["p50", "p99", "max"].iter().all(|share| milliseconds(&said["waitsMs"][side][share])),
            "{said:#}"
        );
    }
    assert!(milliseconds(&said["pausesMs"]["max"]), "{said:#}");
    assert_eq!(said["took"].as_array().unwrap().len(), 3, "{said:#}");
    assert!(
        said["rebuiltBytes"].as_u64().unwrap() > 0 && said["missedBytes"].as_u64().unwrap() > 0,
        "{said:#}"
    );
    let at_once: Vec<u64> = said["groups"]
        .as_array()
        .unwrap()
        .iter()
        .map(|group| group["mostAtOnce"].as_u64().unwrap())
        .collect();
    assert_eq!(at_once, [1, 2], "{said:#}");
}

#[test]
fn reads_and_writes_are_measured_on_every_side() {
    if !installed(&["fio", "qemu-nbd"]) {
        return;
    }
    let sandbox = Sandbox::new();
    let said = sandbox.ok(&[
        "bench",
        "io",
        "-o",
        "json",
        "--rounds=1",
        "--seconds=1",
        "--size-mib=8",
        "--only=4k random write, depth 16",
    ]);
    let said: Value = serde_json::from_str(&said).unwrap();
    let samples = said["samples"].as_array().unwrap();
    assert_eq!(samples.len(), 5, "{said:#}");
    assert!(samples.iter().all(|sample| sample["perSecond"].as_f64().unwrap() > 0.0), "{said:#}");
    let against_quorum = &said["figures"][0];
    assert_eq!(against_quorum["name"], "4k random write, depth 16: 3 replicas, qemu quorum");
    assert!(against_quorum["ratio"].as_f64().unwrap() > 0.0);
}

#[test]
fn every_kind_of_pause_is_measured_without_an_error() {
    if !installed(&["qemu-nbd"]) {
        return;
    }
    let sandbox = Sandbox::new();
    let said = sandbox.ok(&[
        "bench",
        "pause",
        "-o",
        "json",
        "--switches=3",
        "--kills=2",
        "--minded-kills=1",
        "--manager-kills=1",
        "--reconnects=1",
        "--hogs=0",
        "--size-mib=8",
    ]);
    let said: Value = serde_json::from_str(&said).unwrap();
    let pauses = said["pauses"].as_array().unwrap();
    let counts: Vec<(&str, u64)> = pauses
        .iter()
        .map(|pause| (pause["what"].as_str().unwrap(), pause["count"].as_u64().unwrap()))
        .collect();
    let expected = [
        ("planned switch", 3),
        ("start of the next", 3),
        ("end of the old", 3),
        ("30 ms of nothing", 3),
        ("killed engine", 2),
        ("killed v1 engine", 1),
        ("killed manager", 1),
        ("qemu reconnect", 1),
    ];
    assert_eq!(counts, expected, "{said:#}");
    assert!(
        pauses.iter().all(|pause| pause["errors"] == 0 && pause["maxMs"].as_f64().unwrap() > 0.0),
        "{said:#}"
    );
}

#[test]
fn a_migration_is_measured_on_every_database() {
    if !installed(&["etcd", "redis-server"]) {
        return;
    }
    let said = Sandbox::new().ok(&["bench", "migrate", "-o", "json", "--objects=3000"]);
    let said: Value = serde_json::from_str(&said).unwrap();
    let databases = said["databases"].as_array().unwrap();
    let names: Vec<&str> = databases.iter().map(|one| one["database"].as_str().unwrap()).collect();
    assert_eq!(names, ["embedded", "etcd", "redis"], "{said:#}");
    for one in databases {
        for figure in ["rawReadPerSecond", "rawWritePerSecond", "ratio", "jqPerSecond", "bindingPerSecond"] {
            assert!(one[figure].as_f64().unwrap() > 0.0, "{figure}: {said:#}");
        }
        let native = &one["native"];
        assert!(
            native["switchMs"].as_f64().unwrap() > 0.0 && native["peakMib"].as_f64().unwrap() > 1.0,
            "{said:#}"
        );
        let phases: Vec<&str> = native["phases"]
            .as_array()
            .unwrap()
            .iter()
            .map(|phase| phase["name"].as_str().unwrap())
            .collect();
        let expected = [
            "read",
            "migrate",
            "stage",
            "verify what was staged",
            "look for writers",
            "switch",
            "sync",
            "the rest",
        ];
        assert_eq!(phases, expected, "{said:#}");
    }
}

#[test]
fn a_load_that_does_not_exist_is_refused() {
    let said = Sandbox::new().fails(2, &["bench", "io", "--only", "5k"]);
    assert!(said.contains("4k random read, depth 1;"), "{said}");
}

#[test]
fn files_of_a_mount_are_measured_on_every_side() {
    if !installed(&["fuse-overlayfs", "fio", "git", "tar"]) {
        return;
    }
    if !rustix::process::geteuid().is_root() || !std::path::Path::new("/dev/fuse").exists() {
        assert!(std::env::var_os("CI").is_none(), "mounts cannot be made here");
        return skip("mounts cannot be made here");
    }
    let sandbox = Sandbox::new();
    let arguments = ["--rounds=1", "--seconds=1", "--size-mib=8", "--files=100"];
    let said = sandbox.json(&[&["bench", "fuse"][..], &arguments].concat());
    let figures = said["figures"].as_array().unwrap();
    assert_eq!(figures.len(), 10 * 2, "{said:#}");
    for figure in figures {
        assert!(figure["ours"].as_f64().unwrap() > 0.0 && figure["peer"].as_f64().unwrap() > 0.0, "{said:#}");
    }
}

/// What nodes ask grows with their number, so it is exact; what the operator tells depends on how long it takes.
#[test]
fn an_upgrade_of_fuse_daemons_costs_two_writes_per_node_and_no_list() {
    const NODES: u64 = 50;
    let said = Sandbox::new().json(&["bench", "mount", &format!("--nodes={NODES}")]);
    let count = |who: &str, what: &str| said[who][what].as_u64().unwrap();
    assert_eq!((count("plugins", "writes"), count("plugins", "reads")), (2 * NODES, 2 * NODES), "{said:#}");
    assert_eq!((count("plugins", "lists"), count("plugins", "watches")), (0, 0), "{said:#}");
    assert_eq!(count("operator", "lists"), 0, "{said:#}");
}
