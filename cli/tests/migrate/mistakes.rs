//! What an operator does wrong with `midflight migrate`, and what the real binary says to it.

use std::{
    fs,
    net::TcpListener,
    path::PathBuf,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::support::{self, BINARY, text};

/// A folder with a made-up cloud, one migration and an upgrade file.
struct Desk {
    folder: TempDir,
}

const UPGRADE: &str = r#"
name = "small-cloud"
[nodes]
controller = {}
[[services]]
name = "agent"
stop = "rm -f up"
start = "cp code up"
[[updates]]
name = "packages"
apply = "echo new > code"
undo = "echo old > code"
[[databases]]
name = "neutron"
apply = "echo new > neutron"
undo = "echo old > neutron"
[migrate]
store = "embedded:nb.redb"
layout = "generation"
paths = ["own"]
"#;

impl Desk {
    fn new() -> Desk {
        let desk = Desk { folder: tempfile::tempdir().unwrap() };
        desk.ok(&["sample", "cloud.backup", "--ports", "20", "--keys", "redis"]);
        desk.ok(&["restore", "cloud.backup", "--no-backup"]);
        desk.ok(&["finalize"]);
        desk.migration("'.mark = 1'");
        for name in ["code", "up", "neutron"] {
            desk.write(name, "old\n");
        }
        desk.write("upgrade.toml", UPGRADE);
        desk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn migration(&self, filter: &str) {
        self.program(&format!("[jq]\nlport = {filter}"));
    }

    fn program(&self, program: &str) {
        fs::create_dir_all(self.path("own/mark")).unwrap();
        let head = "id = \"test.mark\"\nrelease = \"test\"\ndescription = \"mark\"\n\
                    proposed_at = \"2020-01-01T00:00:00Z\"\ntables = [\"lport\"]\n";
        self.write("own/mark/migration.toml", &format!("{head}{program}\n"));
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command.arg("migrate").args(arguments).current_dir(self.folder.path()).stdin(Stdio::null());
        command.env("MIDFLIGHT_STORE", "embedded:nb.redb").env("MIDFLIGHT_LAYOUT", "generation");
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

    fn fails(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        said
    }

    /// Code, what runs, and the other database.
    fn world(&self) -> [String; 3] {
        ["code", "up", "neutron"].map(|name| {
            fs::read_to_string(self.path(name)).map_or("none".to_owned(), |text| text.trim().to_owned())
        })
    }
}

fn assert_says(said: &str, words: &[&str]) {
    for word in words {
        assert!(said.contains(word), "{word:?} is not said: {said}");
    }
}

#[test]
fn a_folder_that_holds_no_migration_is_not_nothing_to_do() {
    let desk = Desk::new();
    fs::create_dir(desk.path("empty")).unwrap();
    for (path, why) in [("own/mark", "is itself a migration"), ("empty", "there is no migration in")] {
        desk.fails(1, &["lint", "--path", path]);
        assert_says(&desk.fails(2, &["plan", "--path", path]), &[why, "--path"]);
        assert_says(&desk.fails(2, &["apply", "--path", path]), &[why, "--path"]);
        desk.write("upgrade.toml", &UPGRADE.replace("\"own\"", &format!("{path:?}")));
        assert_says(&desk.fails(1, &["run", "upgrade.toml"]), &[why]);
        assert_eq!(desk.world(), ["old"; 3]);
    }
    desk.fails(1, &["lint"]);
    assert_says(&desk.fails(2, &["apply"]), &["not one migration at hand", "--path"]);
    desk.ok(&["status"]);
}

#[test]
fn a_wrong_command_is_mended_in_the_file() {
    let desk = Desk::new();
    let wrong = UPGRADE.replace("undo = \"echo old > neutron\"", "undo = \"exit 3\"");
    let wrong = wrong.replace("start = \"cp code up\"", "start = \"exit 1\"");
    desk.write("upgrade.toml", &wrong);
    let said = desk.fails(3, &["run", "upgrade.toml"]);
    assert_says(&said, &["migrate database neutron could not be undone", "--accept-changes", "--forward"]);
    assert_eq!(desk.world(), ["new", "none", "new"]);

    desk.write("upgrade.toml", UPGRADE);
    let said = desk.fails(3, &["run", "upgrade.toml"]);
    assert_says(&said, &["- exit 3", "+ echo old > neutron", "+ cp code up", "--accept-changes"]);
    assert_eq!(desk.world(), ["new", "none", "new"], "only told");
    let said = desk.fails(1, &["run", "upgrade.toml", "--accept-changes"]);
    assert_says(&said, &["+ echo old > neutron", "the upgrade was undone"]);
    assert_eq!(desk.world(), ["old"; 3]);

    desk.ok(&["run", "upgrade.toml"]);
    assert_eq!(desk.world(), ["new"; 3]);
}

#[test]
fn there_is_no_way_back_from_what_is_final() {
    let desk = Desk::new();
    assert_says(&desk.fails(2, &["run", "upgrade.toml", "--start-anyway"]), &["nothing to start anyway"]);
    assert_eq!(desk.world(), ["old"; 3]);
    desk.ok(&["run", "upgrade.toml"]);
    desk.ok(&["run", "upgrade.toml", "--back"]);
    assert_eq!(desk.world(), ["old"; 3], "back, as asked");

    desk.ok(&["run", "upgrade.toml"]);
    desk.ok(&["finalize"]);
    let said = desk.fails(3, &["run", "upgrade.toml", "--back"]);
    assert_says(&said, &["was made final", "nothing was stopped", "restore"]);
    assert_eq!(desk.world(), ["new"; 3]);
    assert_says(&desk.fails(3, &["rollback"]), &["restore"]);
}

#[test]
fn a_server_that_is_not_there_is_named_at_once() {
    let desk = Desk::new();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for scheme in ["etcd", "redis"] {
        let began = Instant::now();
        let said = desk.fails(1, &["status", "--store", &format!("{scheme}://127.0.0.1:{port}")]);
        assert!(began.elapsed() < Duration::from_secs(9), "{:?}", began.elapsed());
        assert_says(&said, &[&format!("127.0.0.1:{port}"), "refused", "see that it runs"]);
        assert!(!said.contains("ConnectError(") && !said.contains("not known"), "{said}");
    }
    let said = desk.fails(2, &["status", "--store", "etcd://127.0.0.1:1", "--ca", "cloud.backup"]);
    assert_says(&said, &["etcds://"]);
}

#[test]
fn plan_shows_the_field_that_changes_and_agrees_with_apply() {
    let desk = Desk::new();
    let shown = desk.ok(&["plan", "--path", "own"]);
    assert_says(&shown, &["    + mark: 1\n"]);
    assert!(!shown.contains("\"id\":"), "{shown}");
    desk.ok(&["apply", "--path", "own"]);
    desk.ok(&["finalize"]);
    desk.migration("'.mark = 2'");
    for command in ["plan", "apply"] {
        assert_says(&desk.fails(3, &[command, "--path", "own"]), &["was changed after it was applied"]);
        desk.ok(&[command, "--path", "own", "--allow-edited"]);
    }
}

#[test]
fn an_interrupted_change_says_where_it_stands() {
    let desk = Desk::new();
    desk.program("[exec]\ncommand = [\"/bin/sh\", \"-c\", \"touch began; sleep 30\"]");
    let log = fs::File::create(desk.path("said")).unwrap();
    let mut apply = desk.command(&["apply", "--path", "own"]).stderr(log).spawn().unwrap();
    let began = desk.path("own/mark/began");
    support::eventually("the command runs", || began.exists());
    support::signal(i32::try_from(apply.id()).unwrap(), Signal::INT);
    assert_eq!(apply.wait().unwrap().code(), Some(130));
    assert_says(&fs::read_to_string(desk.path("said")).unwrap(), &["interrupted; nothing was changed"]);
    desk.migration("'.mark = 1'");
    desk.ok(&["apply", "--path", "own"]);
}
