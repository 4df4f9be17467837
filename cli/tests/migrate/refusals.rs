//! What must not get through: each a clear refusal, and not one byte changed.

use std::fs;

use serde_json::Value;

use crate::{
    cloud::{Cloud, DRAGONFLOW, EXAMPLES, GENERATION, KINDS, SERVERS},
    random,
    support::{self, text},
};

/// One cloud on each database, in a layout that the seed picks.
fn clouds(ports: usize) -> impl Iterator<Item = Cloud> {
    let seed = random::seed() as usize;
    KINDS.into_iter().enumerate().filter_map(move |(number, kind)| {
        Cloud::on(kind, [DRAGONFLOW, GENERATION][(seed >> number) % 2], ports)
    })
}

/// A migration that says when it has begun, and takes its time.
const SLOW: &str = "[exec]\ncommand = [\"/bin/sh\", \"-c\", \"touch began; sleep 1; cat > /dev/null\"]";

#[test]
fn hostile_migrations() {
    let small = "[limits]\nstall_seconds = 1\nmemory_mib = 128\n";
    let within = |seconds: u8, line: &str| {
        format!("[exec]\ntimeout_seconds = {seconds}\ncommand = [\"/bin/sh\", \"-c\", '''{line}''']\n{small}")
    };
    let exec = |line: &str| within(20, line);
    let jq = |filter: &str| format!("{small}[jq]\nlport = '{filter}'");
    #[rustfmt::skip]
    let cases = [
        ("loops for ever",            jq("def f: f; f"),                               "came to no end within 1 s"),
        ("command loops for ever",    within(2, "while :; do :; done"),                "came to no end within 2 s"),
        ("eats memory",               jq("reduce range(40) as $i (\"x\"; . + .)"),     "memory"),
        ("command eats memory",       exec("x=x; while :; do x=$x$x; done"),           "the command failed"),
        ("undeclared table",          jq("into(\"lswitch\")"),                         "lswitch, which is not declared"),
        ("command, undeclared table", exec("cat > /dev/null; echo '{\"table\":\"lswitch\",\"id\":\"x\",\"remove\":true}'"), "table lswitch is not declared"),
        ("command says broken JSON",  exec("cat > /dev/null; echo '{\"table\":'"),     "line 1"),
        ("a result of 2 MiB",         jq(".x = ([range(300000)] | tostring | . + .)"), "bytes"),
        ("removes too much",          format!("max_removed = 1\n{}", jq("empty")),     "max_removed"),
        ("is no program",             jq(".id + "),                                    "jq"),
        ("ends badly",                exec("exit 3"),                                  "exit"),
    ];
    for cloud in clouds(50) {
        for (name, body, expected) in &cases {
            cloud.migration("hostile", 1, "lport", body);
            let said = cloud.refused(1, &["apply", "--path", "own"]);
            assert!(said.contains("hostile") && said.contains(expected), "{cloud:?}, {name}: {said}");
        }
        assert_eq!(cloud.on_store(&["history"]), Value::Array(vec![]), "{cloud:?}");
    }
}

#[test]
fn rows_that_are_broken_or_too_large() {
    let huge = format!("{{\"id\": \"{}\"}}", "x".repeat(2 << 20));
    for cloud in clouds(20) {
        cloud.migration("mark", 1, "lport", "[jq]\nlport = '.mark = 1'");
        for (name, value, expected) in [("broken", "{\"id\": ", "JSON"), ("of 2 MiB", huge.as_str(), "bytes")]
        {
            // etcd takes no such value from anybody.
            if value.len() > 1 << 20 && cloud.kind == crate::cloud::Kind::Etcd {
                continue;
            }
            cloud.scribble("lport", "strange", value);
            let said = cloud.refused(1, &["apply", "--path", "own"]);
            assert!(said.contains("strange") && said.contains(expected), "{cloud:?}, {name}: {said}");
        }
    }
}

#[test]
fn a_table_of_a_removed_model_and_rows_against_their_models() {
    let (before, after) = (format!("{EXAMPLES}/models/ocata.toml"), format!("{EXAMPLES}/models/queens.toml"));
    for cloud in clouds(20) {
        cloud.migration("mark", 1, "lrouter", "[jq]\nlrouter = '.'");
        let said =
            cloud.refused(3, &["apply", "--path", "own", "--models", &after, "--models-before", &before]);
        for expected in ["ovsport: the table is gone", "lport.chassis: the field is gone", "breaks"] {
            assert!(said.contains(expected), "{cloud:?}: {expected}: {said}");
        }
    }
}

/// Models that lie beside the migrations count without a flag; later those that are kept with the data do.
#[test]
fn results_are_validated_without_a_flag() {
    let migrations = format!("{EXAMPLES}/migrations");
    for cloud in clouds(20) {
        let applied = cloud.on_store(&["apply", "--path", &migrations]);
        let automatic = applied["automatic"].to_string();
        assert!(automatic.contains("the models of release queens are kept"), "{cloud:?}: {automatic}");
        cloud.ok(&["finalize"]);
        cloud.migration("stray", 1, "lport", "[jq]\nlport = '.surprise = 1'");
        let beside = &["apply", "--path", "own", "--path", &migrations, "--allow-out-of-order"][..];
        let kept = &["apply", "--path", "own", "--allow-out-of-order", "--allow-newer-database"][..];
        for arguments in [beside, kept] {
            let said = cloud.refused(3, arguments);
            assert!(
                said.contains("surprise: the model has no such field"),
                "{cloud:?} {arguments:?}: {said}"
            );
        }
    }
}

#[test]
fn a_baseline_keeps_the_models_of_data_that_has_them() {
    let cloud = Cloud::new(GENERATION, 20);
    let (migrations, ocata) = (format!("{EXAMPLES}/migrations"), format!("{EXAMPLES}/models/ocata.toml"));
    let said = cloud.refused(3, &["baseline", "--path", &migrations]);
    assert!(said.contains("breaks"), "these rows were not made with the migrations: {said}");
    cloud.migration("nothing", 1, "lport", "[jq]\nlport = '.'");
    cloud.ok(&["baseline", "--path", "own", "--models", &ocata]);
    cloud.migration("stray", 2, "lport", "[jq]\nlport = '.surprise = 1'");
    let said = cloud.refused(3, &["apply", "--path", "own"]);
    assert!(said.contains("surprise: the model has no such field"), "{said}");
}

#[test]
fn an_edited_applied_migration_is_shown_as_a_difference() {
    for cloud in clouds(20) {
        cloud.migration("mark", 1, "lport", "[jq]\nlport = '.mark = 1'");
        cloud.on_store(&["apply", "--path", "own"]);
        cloud.on_store(&["finalize"]);
        // A comment and other spaces are no change.
        cloud.migration("mark", 1, "lport", "[jq]\n# said differently\nlport = '.mark  =  1'");
        assert_eq!(cloud.on_store(&["apply", "--path", "own"])["result"], "nothing");
        cloud.migration("mark", 1, "lport", "[jq]\nlport = '.mark = 2'");
        cloud.migration("next", 2, "lport", "[jq]\nlport = '.next = 1'");
        let said = cloud.refused(3, &["apply", "--path", "own"]);
        for expected in ["-.mark = 1", "+.mark = 2", "--allow-edited"] {
            assert!(said.contains(expected), "{cloud:?}: {expected}: {said}");
        }
        cloud.on_store(&["apply", "--path", "own", "--allow-edited"]);
    }
}

#[test]
fn two_runners() {
    for cloud in clouds(20) {
        cloud.migration("slow", 1, "lport", SLOW);
        let mut first = cloud.begin(&mut cloud.command(&["apply", "--path", "own"]));
        let began = cloud.path("own/slow/began");
        support::eventually("the first run is at work", || began.exists());
        for second in [&["apply", "--path", "own"][..], &["rollback"], &["finalize"]] {
            let output = cloud.run(second);
            assert_eq!(output.status.code(), Some(3), "{cloud:?} {second:?}: {}", text(&output.stderr));
            assert!(text(&output.stderr).contains("is locked by"), "{cloud:?}: {}", text(&output.stderr));
        }
        let (code, said) = first.end();
        assert_eq!(code, Some(0), "{cloud:?}: {said}");
    }
}

/// It writes after the snapshot was taken: the run is refused, names the row, and leaves what was written.
#[test]
fn a_writer_that_did_not_stop() {
    for kind in SERVERS {
        for layout in [DRAGONFLOW, GENERATION] {
            let Some(cloud) = Cloud::on(kind, layout, 20) else { continue };
            cloud.migration("mark", 1, "lport", "[jq]\nlport = '.mark = 1'");
            cloud.migration("slow", 2, "lport", SLOW);
            let mut run = cloud.begin(&mut cloud.command(&["apply", "--path", "own"]));
            let began = cloud.path("own/slow/began");
            support::eventually("the run has taken its snapshot", || began.exists());
            cloud.scribble("lport", "intruder", "{\"id\": \"intruder\"}");
            let expected = cloud.dump();
            let (code, said) = run.end();
            assert_eq!(code, Some(3), "{cloud:?}: {said}");
            assert!(said.contains("a writer did not stop") && said.contains("intruder"), "{cloud:?}: {said}");
            cloud.dump().assert_same(&expected, &format!("{cloud:?}: what the writer wrote stays"));
            cloud.dump().assert_settled("refused");

            let mut check = cloud.begin(&mut cloud.command(&["check", "--watch", "1"]));
            for number in 0.. {
                if check.is_over() {
                    break;
                }
                cloud.scribble("lport", "intruder", &format!("{{\"id\": \"intruder\", \"n\": {number}}}"));
            }
            let (code, said) = check.end();
            assert_eq!(code, Some(3), "{cloud:?}: {said}");
            assert!(said.contains("intruder"), "{cloud:?}: {said}");
        }
    }
}

#[test]
fn addresses_that_are_wrong_tell_no_secret_and_make_no_file() {
    let cloud = Cloud::new(GENERATION, 1);
    let secret = cloud.run(&["status", "--store", "etcd://root:hunter2@127.0.0.1:1", "--answer-within", "1"]);
    let said = text(&secret.stderr);
    assert!(!said.contains("hunter2") && !secret.status.success(), "{said}");
    let absent = cloud.run(&["status", "--store", "embedded:absent.redb"]);
    assert_eq!(absent.status.code(), Some(2), "{}", text(&absent.stderr));
    assert!(!fs::exists(cloud.path("absent.redb")).unwrap());
}
