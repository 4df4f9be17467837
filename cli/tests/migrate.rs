//! `midflight migrate`, as an operator uses it: the real binary, its real worker processes, real files.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Duration,
};

use rustix::process::Signal;
use serde_json::Value;
use support::BINARY;
use tempfile::TempDir;

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/migrations/dragonflow");

/// A folder with a made-up cloud in an embedded store.
struct Cloud {
    folder: TempDir,
    layout: &'static str,
}

impl Cloud {
    fn new(layout: &'static str, ports: usize) -> Cloud {
        let cloud = Cloud { folder: tempfile::tempdir().unwrap(), layout };
        cloud.ok(&["sample", "cloud.backup", "--ports", &ports.to_string(), "--keys", "redis"]);
        cloud.on_store(&["restore", "cloud.backup", "--no-backup"]);
        cloud.on_store(&["finalize"]);
        cloud
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command.arg("migrate").args(arguments).current_dir(self.folder.path()).stdin(Stdio::null());
        command.env("MIDFLIGHT_STORE", "embedded:nb.redb").env("MIDFLIGHT_LAYOUT", self.layout);
        command.env_remove("MIDFLIGHT_LOG");
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    fn on_store(&self, arguments: &[&str]) -> Value {
        let mut all = arguments.to_vec();
        all.extend(["-o", "json"]);
        serde_json::from_str(&self.ok(&all)).unwrap()
    }

    /// The same, with the example migrations.
    fn with_examples(&self, arguments: &[&str]) -> Value {
        let (migrations, models) =
            (format!("{EXAMPLES}/migrations"), format!("{EXAMPLES}/models/queens.toml"));
        let mut all = arguments.to_vec();
        all.extend(["--path", &migrations, "--models", &models]);
        self.on_store(&all)
    }

    fn refused(&self, code: i32, arguments: &[&str]) -> String {
        let before = self.rows();
        let output = self.run(arguments);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
        assert_eq!(self.rows(), before, "{arguments:?} changed something");
        stderr
    }

    /// Every row, as the digest of a backup's content says it.
    fn rows(&self) -> Vec<u8> {
        let path = self.path("look.backup");
        let _ = fs::remove_file(&path);
        self.ok(&["backup", "look.backup"]);
        let (_, rows) = midflight_migrate::backup::read(&path).unwrap();
        format!("{rows:?}").into_bytes()
    }

    /// Makes a migration of one jq filter.
    fn migration(&self, name: &str, day: u32, table: &str, body: &str) {
        let folder = self.path("own").join(name);
        fs::create_dir_all(&folder).unwrap();
        let text = format!(
            "id = \"test.{name}\"\nrelease = \"test\"\ndescription = \"{name}\"\n\
             proposed_at = \"2020-01-{day:02}T00:00:00Z\"\ntables = [\"{table}\"]\n{body}\n"
        );
        fs::write(folder.join("migration.toml"), text).unwrap();
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_examples_pass_lint_and_migrate_there_and_back() {
    for layout in ["dragonflow", "generation"] {
        let cloud = Cloud::new(layout, 300);
        let lint = cloud.on_store(&["lint", "--path", &format!("{EXAMPLES}/migrations")]);
        assert_eq!((&lint["problems"], &lint["tried"]), (&Value::Array(vec![]), &9.into()));
        let before = cloud.rows();

        let plan = cloud.with_examples(&["plan", "--out", "plan.json"]);
        assert_eq!(plan["migrations"].as_array().unwrap().len(), 9);
        assert_eq!((&plan["violations"], &plan["refusedBecause"]), (&0.into(), &Value::Array(vec![])));
        assert!(
            plan["destructive"].to_string().contains("floatingip: field \\\"name\\\" is gone"),
            "{plan:#}"
        );
        assert_eq!(mode(&cloud.path("plan.json")), 0o600);
        assert_eq!(cloud.rows(), before, "a plan changes nothing");

        let applied = cloud.with_examples(&["apply", "--plan", "plan.json"]);
        assert_eq!(applied["result"], "applied");
        assert_eq!(mode(Path::new(&cloud.path(applied["backup"].as_str().unwrap()))), 0o600);
        assert_ne!(cloud.rows(), before);
        assert_eq!(cloud.on_store(&["history"]).as_array().unwrap().len(), 9);

        cloud.on_store(&["rollback"]);
        assert_eq!(cloud.rows(), before, "byte for byte");
        cloud.with_examples(&["apply"]);
        cloud.on_store(&["finalize"]);
        assert_eq!(cloud.with_examples(&["apply"])["result"], "nothing");
        cloud.refused(3, &["rollback"]);
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn hostile_migrations_are_refused_and_nothing_changes() {
    let cloud = Cloud::new("dragonflow", 50);
    #[rustfmt::skip]
    let cases = [
        ("forever", "lport", "[limits]\nstall_seconds = 1\n[jq]\nlport = 'def f: f; f'",                 "forever"),
        ("stray",   "lport", "[jq]\nlport = 'into(\"lswitch\")'",                                "lswitch"),
        ("broken",  "lport", "[jq]\nlport = '.id + '",                                           "broken"),
        ("removes", "lport", "max_removed = 1\n[jq]\nlport = 'empty'",                           "max_removed"),
        ("huge",    "lport", "[jq]\nlport = '.x = ([range(300000)] | tostring | . + .)'",        "bytes"),
        ("exits",   "lport", "[exec]\ncommand = [\"/bin/sh\", \"-c\", \"exit 3\"]",              "exits"),
    ];
    for (name, table, body, expected) in cases {
        let _ = fs::remove_dir_all(cloud.path("own"));
        cloud.migration(name, 1, table, body);
        let said = cloud.refused(1, &["apply", "--path", "own"]);
        assert!(said.contains(expected), "{name}: {said}");
    }
    assert_eq!(cloud.on_store(&["history"]), Value::Array(vec![]));
}

#[test]
fn an_edited_applied_migration_is_shown_as_a_difference() {
    let cloud = Cloud::new("generation", 20);
    cloud.migration("mark", 1, "lport", "[jq]\nlport = '.mark = 1'");
    cloud.on_store(&["apply", "--path", "own"]);
    cloud.on_store(&["finalize"]);
    // A comment and other spaces are no change.
    cloud.migration("mark", 1, "lport", "[jq]\n# said differently\nlport = '.mark  =  1'");
    assert_eq!(cloud.on_store(&["apply", "--path", "own"])["result"], "nothing");
    cloud.migration("mark", 1, "lport", "[jq]\nlport = '.mark = 2'");
    cloud.migration("next", 2, "lport", "[jq]\nlport = '.next = 1'");
    let said = cloud.refused(3, &["apply", "--path", "own"]);
    assert!(
        said.contains("mark = 1") && said.contains("mark = 2") && said.contains("--allow-edited"),
        "{said}"
    );
    cloud.on_store(&["apply", "--path", "own", "--allow-edited"]);
}

#[test]
fn a_run_killed_at_any_time_leaves_the_old_or_the_new_and_can_be_repeated() {
    for layout in ["dragonflow", "generation"] {
        let cloud = Cloud::new(layout, 2000);
        cloud.migration("mark", 1, "lport", "[jq]\nlport = '.mark = 1'");
        let before = cloud.rows();
        let mut seen = [0, 0];
        for attempt in 0..12 {
            let mut run = cloud
                .command(&["apply", "--path", "own", "--no-backup"])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            std::thread::sleep(Duration::from_millis(20 + attempt * 60));
            support::signal(i32::try_from(run.id()).unwrap(), Signal::KILL);
            run.wait().unwrap();
            // The lock is a lock on the file here, which a dead process does not hold.
            let after = cloud.rows();
            if after == before {
                seen[0] += 1;
                continue;
            }
            seen[1] += 1;
            let marked = cloud.on_store(&["status", "--path", "own"]);
            assert_eq!((&marked["applied"], &marked["lastRun"]["phase"]), (&1.into(), &"applied".into()));
            cloud.on_store(&["rollback"]);
            assert_eq!(cloud.rows(), before, "{layout}: rolled back after a kill");
        }
        assert_eq!(seen.iter().sum::<i32>(), 12);
        cloud.on_store(&["apply", "--path", "own"]);
        cloud.on_store(&["finalize"]);
    }
}

const UPGRADE: &str = r#"
name = "small-cloud"
settle_seconds = 1

[nodes]
controller = {}
compute = {}

[[services]]
name = "agent"
stop = "rm -f $MIDFLIGHT_NODE.up"
start = "cp $MIDFLIGHT_NODE.code $MIDFLIGHT_NODE.up"

[[updates]]
name = "packages"
apply = "echo new > $MIDFLIGHT_NODE.code"
undo = "echo old > $MIDFLIGHT_NODE.code"

[[databases]]
name = "neutron"
apply = "sleep 0.1; echo new > neutron"
undo = "echo old > neutron"

[migrate]
store = "embedded:nb.redb"
layout = "generation"
paths = ["own"]
"#;

fn small_cloud() -> Cloud {
    let cloud = Cloud::new("generation", 200);
    cloud.migration("mark", 1, "lport", "[jq]\nlport = '.mark = 1'");
    for node in ["controller", "compute"] {
        fs::write(cloud.path(&format!("{node}.code")), "old\n").unwrap();
        fs::write(cloud.path(&format!("{node}.up")), "old\n").unwrap();
    }
    fs::write(cloud.path("neutron"), "old\n").unwrap();
    fs::write(cloud.path("upgrade.toml"), UPGRADE).unwrap();
    cloud
}

fn world(cloud: &Cloud) -> Vec<String> {
    let files = ["controller.code", "controller.up", "compute.code", "compute.up", "neutron"];
    files.iter().map(|name| fs::read_to_string(cloud.path(name)).unwrap().trim().to_owned()).collect()
}

#[test]
fn a_cloud_is_upgraded_as_a_whole_or_not_at_all() {
    let cloud = small_cloud();
    let before = cloud.rows();
    let steps = cloud.on_store(&["run", "upgrade.toml", "--plan"]);
    assert_eq!(steps["steps"].as_array().unwrap().len(), 6, "{steps:#}");
    assert_eq!(world(&cloud), ["old"; 5]);

    // A start that fails: everything goes back, the data too.
    let broken = UPGRADE.replace(
        "cp $MIDFLIGHT_NODE.code $MIDFLIGHT_NODE.up",
        "grep -q old $MIDFLIGHT_NODE.code && cp $MIDFLIGHT_NODE.code $MIDFLIGHT_NODE.up",
    );
    fs::write(cloud.path("upgrade.toml"), broken).unwrap();
    let output = cloud.run(&["run", "upgrade.toml"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("start agent on compute failed"), "{}", text(&output.stderr));
    assert_eq!(world(&cloud), ["old"; 5]);
    assert_eq!(cloud.rows(), before);

    fs::write(cloud.path("upgrade.toml"), UPGRADE).unwrap();
    assert_eq!(cloud.on_store(&["run", "upgrade.toml"])["outcome"], "complete");
    assert_eq!(world(&cloud), ["new"; 5]);
    assert_ne!(cloud.rows(), before);
    assert_eq!(mode(&cloud.path("upgrade.toml.journal")), 0o600);

    // Complete, and still not final: the operator may go back.
    assert_eq!(cloud.run(&["run", "upgrade.toml", "--back"]).status.code(), Some(1));
    assert_eq!(world(&cloud), ["old"; 5]);
    assert_eq!(cloud.rows(), before);
}

#[test]
fn an_upgrade_killed_at_any_time_is_completed_by_the_next_run() {
    for attempt in 0..10 {
        let cloud = small_cloud();
        let mut run = cloud
            .command(&["run", "upgrade.toml"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(10 + attempt * 70));
        support::signal(i32::try_from(run.id()).unwrap(), Signal::KILL);
        run.wait().unwrap();
        assert_eq!(cloud.on_store(&["run", "upgrade.toml"])["outcome"], "complete", "attempt {attempt}");
        assert_eq!(world(&cloud), ["new"; 5], "attempt {attempt}");
        assert_eq!(cloud.on_store(&["history"]).as_array().unwrap().len(), 1, "attempt {attempt}");
    }
}

#[test]
fn two_runners_and_wrong_flags_are_told_apart() {
    let cloud = Cloud::new("generation", 20);
    cloud.migration(
        "slow",
        1,
        "lport",
        "[exec]\ncommand = [\"/bin/sh\", \"-c\", \"touch began; sleep 2; cat >/dev/null\"]",
    );
    let mut first = cloud.command(&["apply", "--path", "own"]).stderr(Stdio::null()).spawn().unwrap();
    let began = cloud.path("own/slow/began");
    support::eventually("the first run is at work", || began.exists() || cloud.path("began").exists());
    let second = cloud.run(&["apply", "--path", "own"]);
    assert_eq!(second.status.code(), Some(3), "{}", text(&second.stderr));
    first.wait().unwrap();

    let secret = cloud.command(&["status", "--store", "etcd://root:hunter2@127.0.0.1:1"]).output().unwrap();
    assert!(
        !text(&secret.stderr).contains("hunter2") && !secret.status.success(),
        "{}",
        text(&secret.stderr)
    );
    let absent = cloud.command(&["status", "--store", "embedded:absent.redb"]).output().unwrap();
    assert_eq!(absent.status.code(), Some(2), "{}", text(&absent.stderr));
    assert!(!cloud.path("absent.redb").exists());
}
