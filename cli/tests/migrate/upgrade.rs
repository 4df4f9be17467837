//! A whole cloud upgraded from a file: all of it or nothing, and completed by the next run after a kill.

use std::{fs, time::Instant};

use rustix::process::Signal;

use crate::{
    cloud::{Cloud, DRAGONFLOW, GENERATION, Kind, mode},
    random::{self, Random},
    support::{self, text},
};

pub(crate) const UPGRADE: &str = r#"
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

pub(crate) fn small_cloud() -> Cloud {
    let cloud = Cloud::new(GENERATION, 200);
    furnish(&cloud);
    cloud
}

/// Nodes with their code, another database, a migration and the upgrade file.
fn furnish(cloud: &Cloud) {
    cloud.migration("mark", 1, "lport", "[jq]\nlport = '.mark = 1'");
    for node in ["controller", "compute"] {
        fs::write(cloud.path(&format!("{node}.code")), "old\n").unwrap();
        fs::write(cloud.path(&format!("{node}.up")), "old\n").unwrap();
    }
    fs::write(cloud.path("neutron"), "old\n").unwrap();
    fs::write(cloud.path("upgrade.toml"), UPGRADE).unwrap();
}

/// The code of each node and what runs there, and the other database.
pub(crate) fn world(cloud: &Cloud) -> [String; 5] {
    ["controller.code", "controller.up", "compute.code", "compute.up", "neutron"].map(|name| {
        fs::read_to_string(cloud.path(name)).map_or("none".to_owned(), |text| text.trim().to_owned())
    })
}

#[test]
fn a_cloud_is_upgraded_as_a_whole_or_not_at_all() {
    let cloud = small_cloud();
    let before = cloud.dump();
    let steps = cloud.on_store(&["run", "upgrade.toml", "--plan"]);
    assert_eq!(steps["steps"].as_array().unwrap().len(), 6, "{steps:#}");
    assert!(steps["steps"].as_array().unwrap().iter().all(|step| step["canBeUndone"] == true), "{steps:#}");
    assert_eq!(world(&cloud), ["old"; 5]);
    fs::write(cloud.path("lasting.toml"), UPGRADE.replace("undo = \"echo old > neutron\"", "")).unwrap();
    let steps = cloud.ok(&["run", "lasting.toml", "--plan"]);
    let lasting = steps.split_once("migrate database neutron").unwrap().1;
    assert!(lasting.contains("has no undo") && steps.matches("has no undo").count() == 1, "{steps}");

    // A start that fails: everything goes back, the data too.
    let broken = UPGRADE.replace(
        "cp $MIDFLIGHT_NODE.code $MIDFLIGHT_NODE.up",
        "grep -q old $MIDFLIGHT_NODE.code && cp $MIDFLIGHT_NODE.code $MIDFLIGHT_NODE.up",
    );
    fs::write(cloud.path("upgrade.toml"), broken).unwrap();
    let output = cloud.run(&["run", "upgrade.toml"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("start agent on"), "{}", text(&output.stderr));
    assert_eq!(world(&cloud), ["old"; 5]);
    cloud.dump().assert_same(&before, "as before");

    fs::write(cloud.path("upgrade.toml"), UPGRADE).unwrap();
    assert_eq!(cloud.on_store(&["run", "upgrade.toml"])["outcome"], "complete");
    assert_eq!(world(&cloud), ["new"; 5]);
    assert!(cloud.dump().live_but_log() != before.live_but_log());
    assert_eq!(mode(&cloud.path("upgrade.toml.journal")), 0o600);

    // Complete, and still not final: the operator may go back.
    assert_eq!(cloud.on_store(&["run", "upgrade.toml", "--back"])["outcome"], "wentBack");
    assert_eq!(world(&cloud), ["old"; 5]);
    cloud.dump().assert_same(&before, "as before");
}

#[test]
fn an_upgrade_killed_at_any_time_is_completed_by_the_next_run() {
    const ATTEMPTS: u32 = 10;
    let cloud = small_cloud();
    let began = Instant::now();
    assert_eq!(cloud.on_store(&["run", "upgrade.toml"])["outcome"], "complete");
    let takes = began.elapsed();
    let mut random = Random::of(random::seed(), "upgrade");
    for attempt in 0..ATTEMPTS {
        let cloud = small_cloud();
        // One in each part of the time that it takes undisturbed.
        let moment = takes * attempt / ATTEMPTS + random.moment(takes / ATTEMPTS);
        let mut run = cloud.begin(&mut cloud.command(&["run", "upgrade.toml"]));
        std::thread::sleep(moment);
        run.signal(Signal::KILL);
        run.end();
        assert_eq!(cloud.on_store(&["run", "upgrade.toml"])["outcome"], "complete", "after {moment:?}");
        assert_eq!(world(&cloud), ["new"; 5], "after {moment:?}");
        assert_eq!(cloud.on_store(&["history"]).as_array().unwrap().len(), 1, "after {moment:?}");
    }
}

/// A server keeps the lock of a killed run for a while; the same command waits for that, and goes on instead of back.
#[test]
fn an_upgrade_killed_in_its_migrate_step_goes_on_on_servers_as_well() {
    std::thread::scope(|scope| {
        for (kind, layout) in [(Kind::Etcd, GENERATION), (Kind::Redis, DRAGONFLOW)] {
            scope.spawn(move || goes_on_after_a_kill_in_its_migrate_step(kind, layout));
        }
    });
}

fn goes_on_after_a_kill_in_its_migrate_step(kind: Kind, layout: &'static str) {
    let Some(cloud) = Cloud::on(kind, layout, 200) else { return };
    furnish(&cloud);
    let [began, goes_on] = ["began", "goes-on"].map(|name| cloud.path(name));
    let (touch, look) = (began.display(), goes_on.display());
    let script = format!("touch {touch}; [ -e {look} ] || exec sleep 600; cat > /dev/null");
    cloud.migration("hold", 2, "lport", &format!("[exec]\ncommand = [\"/bin/sh\", \"-c\", '''{script}''']"));
    let file = UPGRADE
        .replace("settle_seconds = 1", "settle_seconds = 1\nrehearse = false")
        .replace("embedded:nb.redb", &cloud.store())
        .replace("layout = \"generation\"", &format!("layout = \"{layout}\""));
    fs::write(cloud.path("upgrade.toml"), file).unwrap();
    let mut run = cloud.begin(&mut cloud.command(&["run", "upgrade.toml"]));
    support::eventually("the migration runs", || began.exists());
    run.signal(Signal::KILL);
    run.end();
    fs::write(&goes_on, "").unwrap();
    assert_eq!(cloud.on_store(&["run", "upgrade.toml"])["outcome"], "complete", "{kind:?}");
    assert_eq!(world(&cloud), ["new"; 5], "{kind:?}");
    assert_eq!(cloud.on_store(&["history"]).as_array().unwrap().len(), 2, "{kind:?}");
}

/// While a migration computes nothing else is heard: it ends all the same, and its lock is free for the next.
#[test]
fn an_upgrade_that_is_interrupted_in_its_migrate_step_frees_its_lock() {
    let Some(cloud) = Cloud::on(Kind::Redis, DRAGONFLOW, 50) else { return };
    furnish(&cloud);
    let began = cloud.path("began");
    let script = format!("touch {}; exec sleep 600", began.display());
    cloud.migration("mark", 1, "lport", &format!("[exec]\ncommand = [\"/bin/sh\", \"-c\", \"{script}\"]"));
    let file = UPGRADE
        .replace("settle_seconds = 1", "settle_seconds = 1\nrehearse = false")
        .replace("embedded:nb.redb", &cloud.store())
        .replace("layout = \"generation\"", "layout = \"dragonflow\"\nlock_seconds = 600");
    fs::write(cloud.path("upgrade.toml"), file).unwrap();
    let mut run = cloud.begin(&mut cloud.command(&["run", "upgrade.toml"]));
    support::eventually("the migration runs", || began.exists());
    run.signal(Signal::INT);
    support::eventually("the upgrade ends", || run.is_over());
    let (code, said) = run.end();
    assert!(code == Some(130) && said.contains("interrupted; run it again to go on"), "{code:?}: {said}");

    cloud.migration("mark", 1, "lport", "[jq]\nlport = '.mark = 1'");
    assert_eq!(cloud.on_store(&["run", "upgrade.toml"])["outcome"], "complete");
    assert_eq!(world(&cloud), ["new"; 5]);
}

/// A command of the operator's ends with the run.
#[test]
fn an_upgrade_that_is_interrupted_in_a_command_ends_it() {
    let cloud = small_cloud();
    let waiting =
        UPGRADE.replace("sleep 0.1; echo new > neutron", "touch began; sleep 600; echo new > neutron");
    fs::write(cloud.path("upgrade.toml"), waiting).unwrap();
    let mut run = cloud.begin(&mut cloud.command(&["run", "upgrade.toml"]));
    support::eventually("the command runs", || cloud.path("began").exists());
    run.signal(Signal::TERM);
    support::eventually("the upgrade ends", || run.is_over());
    assert_eq!(run.end().0, Some(130));
    assert_eq!(cloud.on_store(&["run", "upgrade.toml", "--back"])["outcome"], "wentBack");
    assert_eq!(world(&cloud), ["old"; 5]);
}

/// A controller that was started writes its row at once. That is no write that going back would lose; any other is,
/// and is given up only where that is asked for.
#[test]
fn a_service_that_was_started_does_not_close_the_way_back() {
    let Some(cloud) = Cloud::on(Kind::Redis, DRAGONFLOW, 50) else { return };
    furnish(&cloud);
    let port = cloud.server.as_ref().unwrap().port;
    let before = cloud.dump().live();
    // What the new code of the first service writes when it is started; the second does not start with the new code.
    let starting = |row: &str| {
        let start = format!(
            "cp $MIDFLIGHT_NODE.code $MIDFLIGHT_NODE.up; grep -q old $MIDFLIGHT_NODE.code || redis-cli -p {port} set '{row}' '{{}}'"
        );
        let late = "[[services]]\nname = \"late\"\nstop = \"true\"\nstart = \"grep -q old $MIDFLIGHT_NODE.code\"\n\n[[updates]]";
        let file = UPGRADE
            .replace("cp $MIDFLIGHT_NODE.code $MIDFLIGHT_NODE.up", &start)
            .replace("[[updates]]", late)
            .replace("embedded:nb.redb", &cloud.store())
            .replace("layout = \"generation\"", "layout = \"dragonflow\"");
        fs::write(cloud.path("upgrade.toml"), file).unwrap();
    };
    let others = |table: &str| {
        let mut live = cloud.dump().live();
        live.retain(|(of, _), _| of != table);
        live
    };
    starting("{service.}x");
    let said = cloud.fails(1, &["run", "upgrade.toml"]);
    assert!(said.contains("the upgrade was undone"), "{said}");
    assert_eq!(world(&cloud), ["old"; 5]);
    assert!(cloud.dump().live().len() == before.len() + 1 && others("service") == before);

    starting("{extra.}x");
    let said = cloud.fails(3, &["run", "upgrade.toml"]);
    assert!(said.contains("extra x") && said.contains("--discard-writes"), "{said}");
    let output = cloud.run(&["run", "upgrade.toml", "--back", "--discard-writes"]);
    let said = text(&output.stderr);
    assert!(output.status.success() && said.contains("others stay as written: extra x"), "{said}");
    assert_eq!(world(&cloud), ["old"; 5]);
}

/// What Neutron's migration has found out reaches ours, by a folder that both find: neither has to work it
/// out again.
#[test]
fn the_migrations_of_two_databases_share_what_they_found_out() {
    let cloud = small_cloud();
    let line = r#"sed "s/\"object\":{/\"object\":{\"neutron\":\"$(cat $MIDFLIGHT_SHARED/agents)\",/""#;
    cloud.migration("agents", 2, "lport", &format!("[exec]\ncommand = [\"/bin/sh\", \"-c\", '''{line}''']"));
    let file = UPGRADE
        .replace("settle_seconds = 1", "settle_seconds = 1\nrehearse = false")
        .replace("echo new > neutron", "echo new > neutron; echo ovs > $MIDFLIGHT_SHARED/agents");
    fs::write(cloud.path("upgrade.toml"), file).unwrap();
    assert_eq!(cloud.on_store(&["run", "upgrade.toml"])["outcome"], "complete");
    let live = cloud.dump().live();
    let mut ports = live.iter().filter(|((table, _), _)| table == "lport");
    assert!(ports.all(|(_, value)| text(value).contains("\"neutron\":\"ovs\"")));
    assert_eq!(mode(&cloud.path("upgrade.toml.journal.shared")), 0o700);

    // And step by step, with the flag.
    cloud.ok(&["rollback"]);
    let shared = cloud.path("upgrade.toml.journal.shared");
    cloud.ok(&["apply", "--path", "own", "--no-backup", "--shared", shared.to_str().unwrap()]);
}

#[test]
fn without_neutron_its_step_is_left_out() {
    let cloud = small_cloud();
    let (before, after) = UPGRADE.split_once("[[databases]]").unwrap();
    let (_, after) = after.split_once("[migrate]").unwrap();
    fs::write(cloud.path("upgrade.toml"), format!("{before}[migrate]{after}")).unwrap();
    let steps = cloud.on_store(&["run", "upgrade.toml", "--plan"]);
    assert_eq!(steps["steps"].as_array().unwrap().len(), 5, "{steps:#}");
    assert_eq!(cloud.on_store(&["run", "upgrade.toml"])["outcome"], "complete");
    assert_eq!(world(&cloud), ["new", "new", "new", "new", "old"]);
}
