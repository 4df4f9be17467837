//! What an operator does wrong with `midflight migrate`, and what the real binary says to it.

use std::{
    fs,
    net::TcpListener,
    time::{Duration, Instant},
};

use rustix::process::Signal;

use crate::{
    cloud::Cloud,
    support::{self, text},
    upgrade::{UPGRADE, small_cloud, world},
};

const STOPPED: [&str; 5] = ["new", "none", "new", "none", "new"];

fn write(desk: &Cloud, name: &str, text: &str) {
    fs::write(desk.path(name), text).unwrap();
}

fn mark(desk: &Cloud, value: u8) {
    desk.migration("mark", 1, "lport", &format!("[jq]\nlport = '.mark = {value}'"));
}

fn assert_says(said: &str, words: &[&str]) {
    for word in words {
        assert!(said.contains(word), "{word:?} is not said: {said}");
    }
}

#[test]
fn a_folder_that_holds_no_migration_is_not_nothing_to_do() {
    let desk = small_cloud();
    fs::create_dir(desk.path("empty")).unwrap();
    for (path, why) in [("own/mark", "is itself a migration"), ("empty", "there is no migration in")] {
        desk.fails(1, &["lint", "--path", path]);
        assert_says(&desk.fails(2, &["plan", "--path", path]), &[why, "--path"]);
        assert_says(&desk.fails(2, &["apply", "--path", path]), &[why, "--path"]);
        write(&desk, "upgrade.toml", &UPGRADE.replace("\"own\"", &format!("{path:?}")));
        assert_says(&desk.fails(1, &["run", "upgrade.toml"]), &[why]);
        assert_eq!(world(&desk), ["old"; 5]);
    }
    desk.fails(1, &["lint"]);
    assert_says(&desk.fails(2, &["apply"]), &["not one migration at hand", "--path"]);
    desk.ok(&["status"]);
}

#[test]
fn a_wrong_command_is_mended_in_the_file() {
    let desk = small_cloud();
    let wrong = UPGRADE.replace("undo = \"echo old > neutron\"", "undo = \"exit 3\"");
    let wrong = wrong.replace("start = \"cp $MIDFLIGHT_NODE.code $MIDFLIGHT_NODE.up\"", "start = \"exit 1\"");
    write(&desk, "upgrade.toml", &wrong);
    let said = desk.fails(3, &["run", "upgrade.toml"]);
    assert_says(&said, &["migrate database neutron could not be undone", "--accept-changes", "--forward"]);
    assert_eq!(world(&desk), STOPPED);

    write(&desk, "upgrade.toml", UPGRADE);
    let said = desk.fails(3, &["run", "upgrade.toml"]);
    assert_says(
        &said,
        &[
            "- exit 3",
            "+ echo old > neutron",
            "+ cp $MIDFLIGHT_NODE.code $MIDFLIGHT_NODE.up",
            "--accept-changes",
        ],
    );
    assert_eq!(world(&desk), STOPPED, "only told");
    let said = desk.fails(1, &["run", "upgrade.toml", "--accept-changes"]);
    assert_says(&said, &["+ echo old > neutron", "the upgrade was undone"]);
    assert_eq!(world(&desk), ["old"; 5]);

    desk.ok(&["run", "upgrade.toml"]);
    assert_eq!(world(&desk), ["new"; 5]);
}

#[test]
fn there_is_no_way_back_from_what_is_final() {
    let desk = small_cloud();
    assert_says(&desk.fails(2, &["run", "upgrade.toml", "--start-anyway"]), &["nothing to start anyway"]);
    assert_eq!(world(&desk), ["old"; 5]);
    desk.ok(&["run", "upgrade.toml"]);
    desk.ok(&["run", "upgrade.toml", "--back"]);
    assert_eq!(world(&desk), ["old"; 5], "back, as asked");

    desk.ok(&["run", "upgrade.toml"]);
    desk.ok(&["finalize"]);
    let said = desk.fails(3, &["run", "upgrade.toml", "--back"]);
    assert_says(&said, &["was made final", "nothing was stopped", "restore"]);
    assert_eq!(world(&desk), ["new"; 5]);
    assert_says(&desk.fails(3, &["rollback"]), &["restore"]);
}

#[test]
fn a_server_that_is_not_there_is_named_at_once() {
    let desk = small_cloud();
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
    let desk = small_cloud();
    let shown = desk.ok(&["plan", "--path", "own"]);
    assert_says(&shown, &["    + mark: 1\n"]);
    assert!(!shown.contains("\"id\":"), "{shown}");
    desk.ok(&["apply", "--path", "own"]);
    desk.ok(&["finalize"]);
    mark(&desk, 2);
    for command in ["plan", "apply"] {
        let output = desk.run(&[command, "--path", "own"]);
        let said = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{command}: {said}");
        assert_eq!(said.matches("was changed after it was applied").count(), 1, "{command}: {said}");
        desk.ok(&[command, "--path", "own", "--allow-edited"]);
    }
}

#[test]
fn an_interrupted_change_says_where_it_stands() {
    let desk = small_cloud();
    desk.migration("mark", 1, "lport", "[exec]\ncommand = [\"/bin/sh\", \"-c\", \"touch began; sleep 30\"]");
    let log = fs::File::create(desk.path("said")).unwrap();
    let mut apply = desk.command(&["apply", "--path", "own"]).stderr(log).spawn().unwrap();
    let began = desk.path("own/mark/began");
    support::eventually("the command runs", || began.exists());
    support::signal(i32::try_from(apply.id()).unwrap(), Signal::INT);
    assert_eq!(apply.wait().unwrap().code(), Some(130));
    assert_says(&fs::read_to_string(desk.path("said")).unwrap(), &["interrupted; nothing was changed"]);
    mark(&desk, 1);
    desk.ok(&["apply", "--path", "own"]);
}

/// With `-o json` every line on stderr is an event.
#[test]
fn every_event_is_a_line_of_json() {
    let desk = small_cloud();
    // Long enough to be worth a word on how far it is.
    desk.migration(
        "mark",
        1,
        "lport",
        "[exec]\ncommand = [\"/bin/sh\", \"-c\", \"sleep 0.5; cat > /dev/null\"]",
    );
    let output = desk.run(&["apply", "--path", "own", "-o", "json"]);
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    let events: Vec<serde_json::Value> = said
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    let of = |name: &str| events.iter().filter(|event| event["event"] == name).collect::<Vec<_>>();
    let switched = of("switched");
    assert!(
        matches!(switched.as_slice(), [one] if one["run"].is_u64() && one["microseconds"].is_u64()),
        "{said}"
    );
    let migrating = of("progress").into_iter().find(|event| event["step"] == "migrate test.mark");
    let progress = migrating.unwrap_or_else(|| panic!("no progress is told: {said}"));
    assert!(
        progress["perSecond"].is_u64() && progress["done"].is_u64() && progress["total"].is_u64(),
        "{said}"
    );
}
