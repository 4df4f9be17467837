//! The example migrations, on their own fixtures and on whole clouds; and what
//! `lint`, `new` and the log say of migrations that are not as they should be.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use midflight_migrate::migration::log::{self, Drift};
use midflight_migrate::migration::{
    Allowed, Context, Fixtures, Migration, Native, Scaffold, ScaffoldKind, Severity, lint, load, pending,
    run, scaffold,
};
use midflight_migrate::model::{self, Models};
use midflight_migrate::northbound::Verdict;
use midflight_migrate::record::{Snapshot, Table};
use midflight_migrate::sample::{Topics, cloud};
use midflight_migrate::worker::Worker;
use tempfile::TempDir;

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/migrations/dragonflow")
}

fn models(release: &str) -> Models {
    Models::read(&examples().join("models").join(release).with_extension("toml")).unwrap()
}

fn with_context<T>(act: impl FnOnce(&Context<'_>) -> T) -> T {
    let worker = Worker::new(env!("CARGO_BIN_EXE_migrate-worker"), &[]);
    act(&Context {
        worker: &worker,
        tool_version: "1.2.3",
        clock: &|| Timestamp::UNIX_EPOCH,
        progress: &|_| {},
    })
}

/// Runs what is pending, fills in what needs no script.
fn upgrade(available: &[Migration], database: &mut Snapshot) {
    let headers: Vec<_> = available.iter().map(|migration| migration.header.clone()).collect();
    let order = pending(&headers, &[], Allowed::default()).unwrap();
    let chosen: Vec<&Migration> = order.into_iter().map(|i| &available[i]).collect();
    with_context(|context| run(&chosen, database, context)).unwrap();
    let scripted: BTreeSet<Table> = headers.iter().flat_map(|header| header.tables.clone()).collect();
    let difference = model::diff(&models("ocata"), &models("queens"), &scripted);
    assert_eq!(difference.refusals, []);
    model::fill(database, &difference.steps).unwrap();
}

#[test]
fn every_example_does_what_its_fixtures_say() {
    let lint = with_context(|context| lint(&[examples().join("migrations")], &[], context));
    assert_eq!(lint.problems, []);
    assert_eq!(lint.tried, 9);
    assert_eq!(lint.migrations.len(), 9);
    assert_eq!(lint.migrations[0], "dragonflow.core.pike.dhcp_options_by_tag");
    assert_eq!(lint.migrations[8], "dragonflow.core.queens.switch_port");
}

#[test]
fn a_cloud_is_whole_before_and_after() {
    let available = load(&[examples().join("migrations")], &[]).unwrap();
    for (ports, topics) in [(0, Topics::InKeys), (1000, Topics::InKeys), (2500, Topics::InObjects)] {
        let mut database = cloud(ports, 7, topics);
        assert_eq!(database, cloud(ports, 7, topics), "the same for the same seed");
        let report = model::validate(&database, &models("ocata"));
        assert!(report.is_clean(), "before: {report:?}");

        let before = database.clone();
        upgrade(&available, &mut database);
        let report = model::validate(&database, &models("queens"));
        assert!(report.is_clean(), "after: {report:?}");
        let rows = |database: &Snapshot, table| database.rows(&Table::new(table)).count();
        assert_eq!(rows(&database, "lport"), ports);
        assert_eq!(rows(&database, "switch_port"), rows(&before, "ovsport"));
        assert!(rows(&database, "lsubnet") >= rows(&before, "lswitch") - 1);
        assert_eq!(log::read(&database).unwrap().len(), 9);
        assert_eq!(log::compare(&available, &log::read(&database).unwrap()), []);

        let old_rules = model::validate(&before, &models("queens"));
        assert!(!old_rules.is_clean(), "what was not migrated is found");
    }
}

#[test]
fn what_no_script_moves_is_refused_and_explained() {
    let difference = model::diff(&models("ocata"), &models("queens"), &BTreeSet::new());
    let told: Vec<String> = difference.refusals.iter().map(ToString::to_string).collect();
    for expected in [
        "lport.chassis: the field is gone from the models, and no pending migration declares lport",
        "lswitch.subnets: the field is gone",
        "floatingip.name: the field is gone",
        "ovsport: the table is gone",
        "lport.subnets: was list of string and is list of reference to lsubnet",
    ] {
        assert!(told.iter().any(|told| told.starts_with(expected)), "{expected}: {told:#?}");
    }
    let steps: Vec<String> = difference.steps.iter().map(ToString::to_string).collect();
    assert!(steps.contains(&"chassis.external_host_ip: the field is new, and may be missing".to_owned()));
    assert!(steps.contains(&"lsubnet: the table is new".to_owned()));
}

/// A copy of the examples that a test may spoil.
fn copy() -> TempDir {
    let path = TempDir::new().unwrap();
    for folder in std::fs::read_dir(examples().join("migrations")).unwrap() {
        let folder = folder.unwrap().path();
        // The models lie beside the migrations, as a link.
        if !folder.is_dir() {
            continue;
        }
        let to = path.path().join(folder.file_name().unwrap());
        std::fs::create_dir(&to).unwrap();
        for file in std::fs::read_dir(&folder).unwrap() {
            let file = file.unwrap().path();
            std::fs::copy(&file, to.join(file.file_name().unwrap())).unwrap();
        }
    }
    path
}

fn edit(path: &Path, file: &str, from: &str, to: &str) {
    let file = path.join(file);
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains(from), "{}: {from}", file.display());
    std::fs::write(file, text.replacen(from, to, 1)).unwrap();
}

#[test]
fn the_log_shows_what_became_of_applied_migrations() {
    let available = load(&[examples().join("migrations")], &[]).unwrap();
    let mut database = cloud(20, 1, Topics::InKeys);
    upgrade(&available, &mut database);
    let entries = log::read(&database).unwrap();

    let path = copy();
    let changed = |expected: fn(&[Drift]) -> bool| {
        let today = load(&[path.path().to_owned()], &[]).unwrap();
        let drifts = log::compare(&today, &entries);
        assert!(expected(&drifts), "{drifts:#?}");
    };
    edit(
        path.path(),
        "floatingip-name/migration.toml",
        "'del(.name)'",
        "'''\n# by intention\ndel( .name )'''",
    );
    changed(|drifts| drifts.is_empty());
    edit(path.path(), "floatingip-name/migration.toml", "del( .name )", "del(.name, .version)");
    changed(|drifts| {
        matches!(drifts, [Drift::Changed { id, diff, .. }]
            if id.ends_with("remove_name_from_floatingip")
            && diff.contains("-del(.name)") && diff.contains("+del(.name, .version)"))
    });
    std::fs::remove_dir_all(path.path().join("floatingip-name")).unwrap();
    changed(|drifts| {
        matches!(drifts, [Drift::Missing { release, diff, .. }]
            if release == "queens" && diff.contains("-del(.name)") && !diff.contains("\n+del"))
    });
    edit(path.path(), "floatingip-key/migration.toml", "2017-12-20", "2017-12-21");
    changed(|drifts| matches!(drifts, [Drift::Missing { .. }, Drift::Redated { .. }]));
    edit(
        path.path(),
        "port-binding/migration.toml",
        "tables =",
        "after = [\"dragonflow.core.queens.dhcp_params\"]\ntables =",
    );
    edit(path.path(), "floatingip-key/migration.toml", "2017-12-21", "2017-12-20");
    changed(|drifts| {
        matches!(drifts, [Drift::Reordered { id, diff, .. }, Drift::Missing { .. }]
            if id.ends_with("port_binding")
            && diff.contains("+dragonflow.core.queens.dhcp_params\n dragonflow.core.pike.port_binding"))
    });
}

#[test]
fn lint_looks_at_everything() {
    let path = copy();
    edit(path.path(), "port-binding/after.json", "compute-1", "compute-2");
    edit(path.path(), "dhcp-params/migration.toml", "then", "thenn");
    edit(path.path(), "floatingip-key/migration.toml", "max_removed = 1", "max_removed = 0");
    edit(path.path(), "switch-port/migration.toml", "release = \"queens\"", "relaese = \"queens\"");
    edit(path.path(), "ovsport-peer-bridge/migration.toml", "2017-12-27T00:00:00Z", "2017-12-27");
    std::fs::remove_file(path.path().join("subnet-table/after.json")).unwrap();
    std::fs::remove_file(path.path().join("floatingip-name/after.json")).unwrap();
    std::fs::remove_file(path.path().join("floatingip-name/before.json")).unwrap();
    std::fs::create_dir(path.path().join("stray")).unwrap();
    let lint = with_context(|context| lint(&[path.path().to_owned()], &[], context));
    let told: Vec<String> = lint.problems.iter().map(ToString::to_string).collect();
    for expected in [
        "dhcp-params/migration.toml: jq: lport: line ",
        "relaese",
        "proposed_at: \"2017-12-27\" is not a time with a zone",
        "stray is no migration: it has no migration.toml",
        "+lport here@t1 {\"binding\":{\"chassis\":\"compute-1\"",
        "remove_key_from_floatingip: it removed 1 rows, and 0 is what it declares at most",
        "subnet_table: it has one of before.json and after.json, but not the other",
        "remove_name_from_floatingip: it has no before.json and after.json",
    ] {
        assert!(told.iter().any(|told| told.contains(expected)), "{expected}: {told:#?}");
    }
    assert_eq!(told.len(), 8, "{told:#?}");
    assert!(!lint.is_clean());
    assert_eq!(lint.problems.iter().filter(|problem| problem.severity == Severity::Warning).count(), 1);
}

#[test]
fn lint_tries_functions_as_well() {
    const FIELDS: Native = Native {
        id: "rust.host",
        release: "rocky",
        description: "chassis becomes host",
        proposed_at: "2018-01-01T00:00:00Z",
        after: &[],
        replaces: &[],
        tables: &["lport"],
        max_removed: Some(0),
        revision: 1,
        fixtures: None,
        migration: |nb| {
            nb.edit_all(&Table::new("lport"), |_, port| {
                let host = port.remove("chassis");
                port.extend(host.map(|host| ("host".to_owned(), host)));
                Verdict::Keep
            })?;
            Ok(())
        },
    };
    const BEFORE: &str = r#"{"lport": [{"id": "a", "chassis": "c"}]}"#;
    static UNTRIED: Native = FIELDS;
    static RIGHT: Native = Native {
        fixtures: Some(Fixtures { before: BEFORE, after: r#"{"lport": [{"id": "a", "host": "c"}]}"# }),
        ..FIELDS
    };
    static WRONG: Native = Native { fixtures: Some(Fixtures { before: BEFORE, after: BEFORE }), ..FIELDS };
    static BROKEN: Native = Native { fixtures: Some(Fixtures { before: BEFORE, after: "{" }), ..FIELDS };
    #[rustfmt::skip]
    let cases: [(&'static Native, usize, Option<&str>); 4] = [
        (&RIGHT,   1, None),
        (&WRONG,   1, Some("rust.host: it does not make after.json of before.json")),
        (&BROKEN,  0, Some("rust.host: after.json: not a JSON object of tables")),
        (&UNTRIED, 0, Some("rust.host: it has no fixtures to be tried on")),
    ];
    for (native, tried, expected) in cases {
        let lint = with_context(|context| lint(&[], &[native], context));
        let told: Vec<String> = lint.problems.iter().map(ToString::to_string).collect();
        assert_eq!((lint.tried, told.len()), (tried, usize::from(expected.is_some())), "{told:?}");
        assert!(
            told.iter().all(|told| expected.is_some_and(|expected| told.starts_with(expected))),
            "{told:?}"
        );
    }
}

#[test]
fn a_new_migration_loads_and_changes_nothing_yet() {
    let path = TempDir::new().unwrap();
    for (id, kind) in [("a.b.first_one", ScaffoldKind::Jq), ("a.b.second", ScaffoldKind::Exec)] {
        let seconds = if kind == ScaffoldKind::Jq { 0 } else { 1 };
        let new = Scaffold {
            id,
            release: "rocky",
            description: "says \"what\" it does",
            tables: &["lport".to_owned(), "chassis".to_owned()],
            kind,
            now: Timestamp::from_second(seconds).unwrap(),
        };
        scaffold(path.path(), &new).unwrap();
        let again = scaffold(path.path(), &new).unwrap_err();
        assert!(again.to_string().starts_with("write "), "{again}");
    }
    assert!(path.path().join("first-one/migration.toml").exists());
    let lint = with_context(|context| lint(&[path.path().to_owned()], &[], context));
    assert_eq!(lint.problems, []);
    assert_eq!(lint.migrations, ["a.b.first_one", "a.b.second"]);
    assert_eq!(lint.tried, 2);
}
