use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::*;

fn written(path: &Path, name: &str, text: &str) {
    let folder = path.join(name);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(FILE), text).unwrap();
}

const FIELDS: [(&str, &str); 6] = [
    ("id", "'a.b'"),
    ("release", "'r'"),
    ("description", "'d'"),
    ("proposed_at", "'2018-01-01T00:00:00+02:00'"),
    ("tables", "['lport', 'chassis']"),
    ("jq", "{ lport = '.' }"),
];

/// A manifest in which one field is another, or left out.
fn manifest(field: &str, value: Option<&str>) -> String {
    let mut lines: Vec<String> = FIELDS
        .iter()
        .filter(|(name, _)| *name != field)
        .map(|(name, value)| format!("{name} = {value}"))
        .collect();
    lines.extend(value.map(|value| format!("{field} = {value}")));
    lines.join("\n")
}

fn told(search_path: &[PathBuf]) -> String {
    crate::with_causes(&load(search_path, &[]).unwrap_err())
}

#[test]
fn what_is_wrong_is_named_by_file_and_field() {
    #[rustfmt::skip]
    let cases = [
        ("id",          Some("'a b'"),                  "id: \"a b\" may hold only"),
        ("id",          None,                           "missing field `id`"),
        ("proposed_at", Some("'2018-01-01T00:00:00'"),  "proposed_at: \"2018-01-01T00:00:00\" is not a time with a zone"),
        ("tables",      Some("[]"),                     "tables: name at least one table"),
        ("tables",      Some("['a/b']"),                "tables: \"a/b\" may hold only"),
        ("tables",      Some("['schemamigrationlog']"), "tables: schemamigrationlog is kept by the tool itself"),
        ("jq",          None,                           "jq: give either [jq] filters or an [exec] command"),
        ("jq",          Some("{ other = '.' }"),        "jq: other is not among the declared tables"),
        ("jq",          Some("{ lport = '.a |' }"),     "jq: lport: line 1"),
        ("jq",          Some("{ lport = 'now' }"),      "not for migrations"),
        ("exec",        Some("{ command = ['x'] }"),    "exec: give [jq] or [exec], not both"),
        ("limits",      Some("{ stall_seconds = 0 }"),  "limits: stall_seconds is at least 1"),
        ("limits",      Some("{ stall_seconds = 9999999999999 }"), "limits: stall_seconds is at least 1 and at most 30 days"),
        ("limits",      Some("{ cpu = 1 }"),            "unknown field `cpu`"),
        ("affects",     Some("[]"),                     "unknown field `affects`"),
    ];
    for (field, value, expected) in cases {
        let path = TempDir::new().unwrap();
        written(path.path(), "one", &manifest(field, value));
        let told = told(&[path.path().to_owned()]);
        assert!(told.contains(expected), "{field}: {told}");
        assert!(told.contains("one/migration.toml"), "{field}: {told}");
    }
}

#[test]
fn nothing_on_the_search_path_is_passed_over() {
    let (path, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    written(path.path(), "one", &manifest("", None));
    std::fs::write(path.path().join("README.md"), "not a folder").unwrap();
    std::fs::create_dir(path.path().join(".git")).unwrap();
    let both = [path.path().to_owned(), other.path().to_owned()];
    assert_eq!(load(&both[..1], &[]).unwrap().len(), 1);
    assert!(told(&both).starts_with("there is no migration in "));
    let itself = told(&[path.path().join("one")]);
    assert!(itself.contains("one is itself a migration; name the folder that it lies in, /"), "{itself}");

    written(other.path(), "again", &manifest("", None));
    let twice = told(&both);
    assert!(twice.starts_with("migration a.b is found twice: ") && twice.contains("/one and "), "{twice}");

    std::fs::create_dir(path.path().join("empty")).unwrap();
    assert!(told(&both).ends_with("/empty is no migration: it has no migration.toml"));
    let missing = told(&[path.path().join("nowhere")]);
    assert!(missing.starts_with("list the migrations in ") && missing.contains("No such file"), "{missing}");
}

#[test]
fn a_table_is_named_as_the_keys_of_databases_can_hold_it_or_as_a_resource() {
    static PLAIN: Native = Native {
        id: "a.plain",
        release: "r",
        description: "d",
        proposed_at: "2018-01-01T00:00:00Z",
        after: &[],
        replaces: &[],
        tables: &["lport"],
        max_removed: None,
        revision: 1,
        fixtures: None,
        migration: |_| Ok(()),
    };
    static RESOURCE: Native = Native { tables: &["volumes.longhorn.io"], ..PLAIN };
    static NO_GROUP: Native = Native { tables: &["volumes."], ..PLAIN };
    static RESERVED: Native = Native { tables: &["schemamigrationlog"], ..PLAIN };
    let only_letters = "may hold only letters, digits, '_' and '-'";
    #[rustfmt::skip]
    let cases: [(&'static Native, Option<&str>, Option<&str>); 4] = [
        (&PLAIN,    None,                                None),
        (&RESOURCE, Some(only_letters),                  None),
        (&NO_GROUP, Some(only_letters),                  Some("is neither PLURAL nor PLURAL.GROUP")),
        (&RESERVED, Some("is kept by the tool itself"),  Some("is kept by the tool itself")),
    ];
    for (native, in_a_database, as_resources) in cases {
        let found = [load(&[], &[native]), load_for_resources(&[native])];
        for (found, expected) in found.into_iter().zip([in_a_database, as_resources]) {
            let told = found.err().map(|error| error.to_string());
            match expected {
                None => assert_eq!(told, None, "{:?}", native.tables),
                Some(problem) => {
                    assert!(told.as_ref().is_some_and(|told| told.ends_with(problem)), "{told:?}");
                }
            }
        }
    }
}
