//! Migrations of every kind, run on a small database by real workers, and the
//! programs that must not get through.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;

use bytes::Bytes;
use jiff::Timestamp;
use midflight_migrate::migration::{Context, Failure, Migration, Native, Ran, StepError, load, log, run};
use midflight_migrate::northbound::{NorthBound, Verdict};
use midflight_migrate::record::{RowKey, Snapshot, Table};
use midflight_migrate::with_causes;
use midflight_migrate::worker::Worker;
use serde_json::json;
use tempfile::TempDir;

fn worker() -> Worker {
    Worker::new(env!("CARGO_BIN_EXE_migrate-worker"), &[])
}

fn database() -> Snapshot {
    let mut database = Snapshot::default();
    let port = Table::new("lport");
    for n in 0..5000 {
        let id = format!("p{n:04}");
        let value = format!(r#"{{"id": "{id}", "topic": "t{}", "chassis": "c{}", "n": {n}}}"#, n % 3, n % 7);
        database.put(&port, RowKey::new(&format!("t{}", n % 3), &id), value.into());
    }
    database.put(&Table::new("unique_key"), RowKey::untopical("lport"), Bytes::from_static(b"5000"));
    database.put(&Table::new("other"), RowKey::untopical("x"), Bytes::from_static(br#"{"id":"x"}"#));
    database
}

/// A search path with one migration: the fields that every one has, then `rest`.
fn migration(rest: &str) -> (TempDir, Migration) {
    let path = TempDir::new().unwrap();
    let folder = path.path().join("one");
    std::fs::create_dir(&folder).unwrap();
    let text = format!(
        "id = 'one'\nrelease = 'pike'\ndescription = 'd'\nproposed_at = '2017-07-19T12:00:00Z'\n{rest}"
    );
    std::fs::write(folder.join("migration.toml"), text).unwrap();
    let found = load(&[path.path().to_owned()], &[]).unwrap();
    (path, found.into_iter().next().unwrap())
}

fn apply(migration: &Migration, database: &mut Snapshot) -> Result<Vec<Ran>, StepError> {
    let context = Context {
        worker: &worker(),
        tool_version: "1.2.3",
        clock: &|| Timestamp::UNIX_EPOCH,
        progress: &|_| {},
    };
    run(&[migration], database, &context).map_err(|error| error.source)
}

/// chassis becomes binding; every tenth port goes; a port whose n is 5 splits off a subnet.
fn natively(nb: &mut NorthBound<'_>) -> Result<(), Failure> {
    let (port, subnet) = (Table::new("lport"), Table::new("lsubnet"));
    let mut subnets = vec![];
    nb.edit_each(&port, |key, object| {
        let n = object["n"].as_u64().unwrap_or(0);
        if n % 10 == 0 {
            return Verdict::Remove;
        }
        if n % 7 == 0 {
            return Verdict::Keep;
        }
        if n == 5 {
            subnets.push(key.beside("s5"));
        }
        let chassis = object.remove("chassis");
        object.insert("binding".into(), json!({"type": "chassis", "chassis": chassis}));
        Verdict::Keep
    })?;
    for key in subnets {
        let object = json!({"id": "s5", "cidr": "10.0.0.0/24"});
        nb.create(&subnet, key, object.as_object().expect("it is one"))?;
    }
    Ok(())
}

const NATIVE_FIELDS: Native = Native {
    id: "one",
    release: "pike",
    description: "d",
    proposed_at: "2017-07-19T12:00:00Z",
    after: &[],
    replaces: &[],
    tables: &["lport", "lsubnet"],
    max_removed: None,
    revision: 1,
    fixtures: None,
    migration: natively,
};

static NATIVE: Native = NATIVE_FIELDS;

const JQ: &str = r#"
tables = ["lport", "lsubnet"]
[jq]
lport = '''
if .n % 10 == 0 then empty
elif .n % 7 == 0 then .
else
    .n as $n
    | (.binding = {type: "chassis", chassis} | del(.chassis)),
      (if $n == 5 then {id: "s5", cidr: "10.0.0.0/24"} | into("lsubnet") else empty end)
end
'''
"#;

/// The same as a command that reads and writes lines.
const LINES: &str = r#"
.object.n as $n
| if $n % 10 == 0 then {table, topic, id, remove: true}
  elif $n % 7 == 0 then empty
  else
    (.object.binding = {type: "chassis", chassis: .object.chassis} | del(.object.chassis)),
    (if $n == 5 then {table: "lsubnet", topic, id: "s5", object: {id: "s5", cidr: "10.0.0.0/24"}} else empty end)
  end
"#;

#[test]
fn rust_jq_and_commands_give_the_same_bytes() {
    let native = load(&[], &[&NATIVE]).unwrap().remove(0);
    let (_kept, jq) = migration(JQ);
    let (path, exec) =
        migration("tables = ['lport', 'lsubnet']\n[exec]\ncommand = ['jq', '-c', '-f', 'lines.jq']\n");
    std::fs::write(path.path().join("one/lines.jq"), LINES).unwrap();

    let mut results = vec![];
    for migration in [&native, &jq, &exec] {
        let mut after = database();
        let ran = apply(migration, &mut after).unwrap();
        assert_eq!(ran[0].removed, 500, "{}", migration.origin());
        let logged = log::read(&after).unwrap();
        assert_eq!(logged.len(), 1);
        assert_eq!(logged[0].applied_at, Timestamp::UNIX_EPOCH);
        after.take_table(&Table::new(log::TABLE));
        results.push(after);
    }
    assert_eq!(results[0].len(), 4500 + 1 + 2);
    assert_eq!(results[0], results[1], "Rust and jq");
    assert_eq!(results[0], results[2], "Rust and a command");
    let value = |id| results[0].get(&Table::new("lport"), &RowKey::new("t1", id)).unwrap().clone();
    assert_eq!(
        value("p0001"),
        r#"{"binding":{"chassis":"c1","type":"chassis"},"id":"p0001","n":1,"topic":"t1"}"#
    );
    assert_eq!(value("p0007"), r#"{"id": "p0007", "topic": "t1", "chassis": "c0", "n": 7}"#);
}

fn refusal(rest: &str, mut database: Snapshot) -> String {
    let (_path, migration) = migration(rest);
    with_causes(&apply(&migration, &mut database).expect_err("this must not get through"))
}

#[test]
fn a_filter_that_misbehaves_is_stopped_and_named() {
    #[rustfmt::skip]
    let cases = [
        ("loops",         "def f: f; f",                         "came to no end within 3 s, at or soon after p0000@t0"),
        ("eats memory",   "reduce range(40) as $i (\"x\"; . + .)",  "ran out of memory"),
        ("undeclared",    "into(\"other\")",                     "lport p0000@t0: an output goes to other, which is not declared"),
        ("its own error", "if .n == 3 then error(\"no\") else . end", "lport p0003@t0: \"no\""),
        ("two of a kind", ".id = \"same\"",                      "lport same@t0: two rows would end up under this key"),
        ("takes another", "if .n == 3 then .id = \"p0000\" else . end", "lport p0000@t0: two rows would end up under this key"),
        ("no id",         "del(.id)",                            "without its id"),
        ("too large",     ".x = \"x\" * 2000000",                "1572864 is the most"),
        ("multiplies",    "., (range(30) as $i | .id += \"-\\($i)\" | .x = \"x\" * 1000)", "would grow by more than 128 MiB"),
    ];
    for (name, filter, expected) in cases {
        let rest = format!(
            "tables = ['lport']\n[jq]\nlport = '{filter}'\n[limits]\nstall_seconds = 3\nmemory_mib = 128\n"
        );
        let told = refusal(&rest, database());
        assert!(told.contains(expected), "{name}: {told}");
    }
}

#[test]
fn a_command_that_misbehaves_is_stopped_and_named() {
    let say = |line: &str| format!("echo '{line}'");
    #[rustfmt::skip]
    let cases = [
        ("fails",        "echo 'no such thing' >&2; exit 3".to_owned(), "exit code 3: no such thing"),
        ("never ends",   "exec sleep 100".to_owned(),                   "came to no end within 1 s"),
        ("not JSON",     say("hello"),                                  "line 1 of the command's output: expected"),
        ("undeclared",   say(r#"{"table":"other","id":"x","remove":true}"#), "table other is not declared"),
        ("misnamed",     say(r#"{"table":"lport","id":"x","object":{"id":"y"}}"#), "lport x: the object names itself y"),
        ("not there",    say(r#"{"table":"lport","id":"x","remove":true}"#), "lport x: there is no such row"),
        ("unknown word", say(r#"{"table":"lport","id":"x","delete":true}"#), "unknown field `delete`"),
        ("undecided",    say(r#"{"table":"lport","id":"x"}"#),          "either an \"object\" or \"remove\""),
        ("line too long", "head -c 3000000 /dev/zero | tr '\\0' x".to_owned(), "longer than"),
        ("endless",      r#"yes "$(head -c 100000 /dev/zero | tr '\0' ' ')""#.to_owned(), "more than 128 MiB"),
        ("eats memory",  "exec jq -n 'reduce range(40) as $i (\"x\"; . + .)'".to_owned(), "cannot allocate memory"),
        ("not found",    "exec /nowhere/program".to_owned(),            "exit code 127"),
    ];
    for (name, script, expected) in cases {
        let seconds = if name == "never ends" { 1 } else { 60 };
        let rest = format!(
            "tables = ['lport']\n[exec]\ncommand = ['sh', '-c', {}]\ntimeout_seconds = {seconds}\n[limits]\nmemory_mib = 128\n",
            json!(script)
        );
        let told = refusal(&rest, database());
        assert!(told.contains(expected), "{name}: {told}");
    }
}

/// Two numbers that differ in digits beyond a double are not the same, and neither is written down as another.
#[test]
fn a_command_does_not_lose_digits() {
    let (port, key) = (Table::new("lport"), RowKey::untopical("long"));
    for (number, kept) in [("18446744073709551617", true), ("18446744073709551618", false), ("17.25", true)] {
        let line = format!(r#"{{"table":"lport","id":"long","object":{{"id":"long","n":{number}}}}}"#);
        let rest = format!("tables = ['lport']\n[exec]\ncommand = ['echo', {}]\n", json!(line));
        let mut database = Snapshot::default();
        let before = Bytes::from_static(br#"{"id": "long", "n": 18446744073709551617}"#);
        database.put(&port, key.clone(), before.clone());
        let (_path, migration) = migration(&rest);
        match apply(&migration, &mut database) {
            Ok(_) if number == "17.25" => {
                assert_eq!(database.get(&port, &key).unwrap(), r#"{"id":"long","n":17.25}"#);
            }
            Ok(_) => assert!(kept && *database.get(&port, &key).unwrap() == before, "{number}"),
            Err(error) => assert!(!kept && with_causes(&error).contains(number), "{}", with_causes(&error)),
        }
    }
}

#[test]
fn what_a_command_leaves_running_is_ended_whatever_its_session() {
    let leave =
        r#"setsid sh -c 'echo $$ > left; exec sleep 1000' & while [ ! -s left ]; do sleep 0.01; done"#;
    for (then, expected) in [("exit 0", None), ("exec sleep 1000", Some("came to no end within 4 s"))] {
        let rest = format!(
            "tables = ['lport']\n[exec]\ncommand = ['sh', '-c', {}]\ntimeout_seconds = 4\n",
            json!(format!("{leave}; {then}"))
        );
        let (path, migration) = migration(&rest);
        let told = apply(&migration, &mut database()).map(drop).map_err(|error| error.to_string());
        match expected {
            None => assert_eq!(told, Ok(())),
            Some(expected) => assert!(told.unwrap_err().contains(expected)),
        }
        let left = std::fs::read_to_string(path.path().join("one/left")).unwrap();
        assert!(!Path::new("/proc").join(left.trim()).exists(), "{then}: {left} still runs");
    }
}

#[test]
fn a_command_finds_no_credential() {
    // Above the command is the worker that watches it, and above that the tool.
    let script = r#"env | cut -d= -f1 | grep -vxE "PATH|LANG|PWD|SHLVL|_" >&2 && exit 9
        tool=$(sed -n 's/^PPid:\s*//p' /proc/$PPID/status)
        grep -q migrate-worker /proc/$PPID/cmdline && [ -r /proc/$tool/cmdline ] || exit 10
        for file in environ maps; do
            head -c 1 /proc/$tool/$file 2> /dev/null | grep -q . && { echo "$file can be read" >&2; exit 11; }
        done
        exit 0"#;
    let rest = format!("tables = ['lport']\n[exec]\ncommand = ['sh', '-c', {}]\n", json!(script));
    let (_path, migration) = migration(&rest);
    apply(&migration, &mut database()).unwrap();
}

#[test]
fn broken_and_oversized_rows_are_refused_by_every_kind() {
    let (port, key) = (Table::new("lport"), RowKey::new("t0", "a0"));
    let large = format!(r#"{{"id":"a0","n":1,"x":"{}"}}"#, "x".repeat(2 << 20));
    let kinds = ["[jq]\nlport = '.'", "[exec]\ncommand = ['cat']"];
    for (value, expected) in [("{\"id\":", "not JSON"), (large.as_str(), "is the most a row may have")] {
        for kind in kinds {
            let mut database = database();
            database.put(&port, key.clone(), Bytes::copy_from_slice(value.as_bytes()));
            let told = refusal(&format!("tables = ['lport', 'lsubnet']\n{kind}\n"), database);
            assert!(told.contains("lport a0@t0") && told.contains(expected), "{kind}: {told}");
        }
        let native = load(&[], &[&NATIVE]).unwrap().remove(0);
        let mut database = database();
        database.put(&port, key.clone(), Bytes::copy_from_slice(value.as_bytes()));
        let told = apply(&native, &mut database).unwrap_err().to_string();
        assert!(told.starts_with("lport a0@t0"), "{told}");
    }
}

#[test]
fn removes_no_more_than_it_declares() {
    let rest =
        "tables = ['lport']\nmax_removed = 499\n[jq]\nlport = 'if .n % 10 == 0 then empty else . end'\n";
    let told = refusal(rest, database());
    assert_eq!(told, "it removed 500 rows, and 499 is what it declares at most (max_removed)");
}

#[test]
fn a_function_that_gives_up_or_panics_ends_the_run() {
    fn gives_up(_: &mut NorthBound<'_>) -> Result<(), Failure> {
        Err("no port has a name".into())
    }
    fn panics(_: &mut NorthBound<'_>) -> Result<(), Failure> {
        panic!("index out of range")
    }
    fn strays(nb: &mut NorthBound<'_>) -> Result<(), Failure> {
        Ok(nb.remove(&Table::new("other"), &RowKey::untopical("x"))?)
    }
    static GIVES_UP: Native = Native { migration: gives_up, ..NATIVE_FIELDS };
    static PANICS: Native = Native { migration: panics, ..NATIVE_FIELDS };
    static STRAYS: Native = Native { migration: strays, ..NATIVE_FIELDS };
    let cases: [(&'static Native, &str); 3] = [
        (&GIVES_UP, "its function gave up"),
        (&PANICS, "its function panicked: index out of range"),
        (&STRAYS, "table other is not declared; add it to `tables` of the migration"),
    ];
    for (native, expected) in cases {
        let migration = load(&[], &[native]).unwrap().remove(0);
        let error = apply(&migration, &mut database()).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn a_filter_reaches_counters_too() {
    let (_path, migration) = migration(
        "tables = ['unique_key']\n[jq]\nunique_key = 'if $id == \"lport\" then . + 1 else . end'\n",
    );
    let mut database = database();
    apply(&migration, &mut database).unwrap();
    assert_eq!(database.get(&Table::new("unique_key"), &RowKey::untopical("lport")).unwrap(), "5001");
}

#[test]
fn a_worker_that_cannot_be_started_is_said() {
    let (_path, migration) = migration("tables = ['lport']\n[jq]\nlport = '.'\n");
    let worker = Worker::new(Path::new("/nowhere/midflight"), &["migrate-worker"]);
    let context =
        Context { worker: &worker, tool_version: "1", clock: &|| Timestamp::UNIX_EPOCH, progress: &|_| {} };
    let error = run(&[&migration], &mut database(), &context).unwrap_err();
    assert_eq!(error.source.to_string(), "start /nowhere/midflight, which runs jq filters");
}
