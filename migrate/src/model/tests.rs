use std::collections::BTreeSet;
use std::path::Path;

use bytes::Bytes;
use serde_json::{Value, json};

use super::*;
use crate::record::{RowKey, Snapshot};

const MODELS: &str = r#"
release = "queens"

[table.lport]
model = "LogicalPort"
max = 3
[table.lport.fields]
id       = { type = "string", required = true }
lswitch  = { reference = "lswitch" }
ips      = { type = "ip", list = true, max = 2 }
mac      = { type = "mac" }
enabled  = { type = "bool", default = true }
n        = { type = "integer" }
weight   = { type = "number" }
opts     = { type = "string", map = true }
extra    = { type = "any" }
binding  = { embedded = "Binding" }
groups   = { embedded = "Group", list = true }

[table.lswitch.fields]
id   = { type = "string", required = true }
cidr = { type = "cidr" }

[table.unique_key]
counter = true

[embedded.Binding.fields]
type    = { one_of = ["chassis", "vtep"], required = true }
address = { type = "ip" }

[embedded.Group.fields]
id = { type = "string" }
"#;

fn models(text: &str) -> Models {
    Models::parse(Path::new("models.toml"), text).unwrap()
}

fn with_port(value: &str) -> Snapshot {
    let mut database = Snapshot::default();
    let put = |database: &mut Snapshot, table: &str, id: &str, value: &str| {
        database.put(&Table::new(table), RowKey::untopical(id), Bytes::copy_from_slice(value.as_bytes()));
    };
    put(&mut database, "lswitch", "s", r#"{"id":"s","cidr":"10.0.0.0/24"}"#);
    put(&mut database, "unique_key", "lport", "17");
    put(&mut database, "lport", "p", value);
    put(&mut database, crate::migration::log::TABLE, "x", "anything");
    database
}

#[test]
fn finds_everything_that_is_not_as_the_models_say() {
    #[rustfmt::skip]
    let cases: [(&str, Vec<&str>); 19] = [
        (r#"{"id":"p"}"#, vec![]),
        (r#"{"id":"p","lswitch":"s","ips":["10.0.0.1","::1"],"mac":"fa:16:3e:aa:bb:cc","enabled":false,"n":-1,
             "weight":1.5,"opts":{"a":"b"},"extra":[{"x":1}],"binding":{"type":"vtep","address":"10.0.0.9"},
             "groups":[{"id":"g"},{}]}"#, vec![]),
        (r#"{"id":"p","n":null,"ips":null}"#, vec![]),
        (r#"{"n":1}"#,                        vec!["lport p id: the field is required, and missing"]),
        (r#"{"id":null}"#,                    vec!["lport p id: the field is required, and missing"]),
        (r#"{"id":"p","x":{"y":[1]},"z":1}"#, vec!["lport p x: the model has no such field", "lport p z: the model has no such field"]),
        (r#"{"id":"q"}"#,                     vec!["lport p id: it names itself \"q\", and is found under another id"]),
        (r#"{"id":7}"#,                       vec!["lport p id: a number where a string belongs"]),
        (r#"{"id":"p","n":1.5}"#,             vec!["lport p n: a fraction where a whole number belongs"]),
        (r#"{"id":"p","ips":"10.0.0.1"}"#,    vec!["lport p ips: a string where a list belongs"]),
        (r#"{"id":"p","ips":["x","::1"]}"#,   vec!["lport p ips: another string where an IP address belongs"]),
        (r#"{"id":"p","ips":["::1","::2","::3"]}"#, vec!["lport p ips: 3 of them, and 2 is the most"]),
        (r#"{"id":"p","opts":[]}"#,           vec!["lport p opts: a list where a map belongs"]),
        (r#"{"id":"p","mac":"fa:16:3e:aa:bb"}"#, vec!["lport p mac: another string where a MAC address belongs"]),
        (r#"{"id":"p","lswitch":"gone"}"#,    vec!["lport p lswitch: there is no lswitch gone"]),
        (r#"{"id":"p","binding":{"type":"sea"}}"#, vec!["lport p binding.type: \"sea\" is none of chassis, vtep"]),
        (r#"{"id":"p","binding":{"y":1}}"#,   vec!["lport p binding.y: the model has no such field", "lport p binding.type: the field is required, and missing"]),
        (r#"{"id":"p","groups":[{"id":"g"},{"id":1}]}"#, vec!["lport p groups.id: a number where a string belongs"]),
        (r#"{"id":"p""#,                      vec!["lport p: EOF while parsing an object at line 1 column 9"]),
    ];
    for (value, expected) in cases {
        let report = validate(&with_port(value), &models(MODELS));
        let shown: Vec<String> = report.shown.iter().map(ToString::to_string).collect();
        assert_eq!(shown, expected, "{value}");
        assert_eq!(report.count as usize, expected.len());
    }
}

#[test]
fn finds_what_is_wrong_with_whole_tables() {
    let mut database = with_port(r#"{"id":"p"}"#);
    for n in 0..100 {
        let value = Bytes::from_static(br#"{"id":1}"#);
        database.put(&Table::new("lport"), RowKey::untopical(&format!("q{n:02}")), value);
    }
    database.put(&Table::new("unique_key"), RowKey::untopical("x"), Bytes::from_static(b"many"));
    database.put(&Table::new("ghost"), RowKey::untopical("g"), Bytes::from_static(b"{}"));
    let report = validate(&database, &models(MODELS));
    assert_eq!(report.count, 103);
    assert_eq!(report.shown.len(), 50, "the rest is only counted");
    let shown: Vec<String> = report.shown.iter().take(3).map(ToString::to_string).collect();
    let expected = [
        "ghost: it holds 1 rows, and there is no model for it",
        "lport: 101 of them, and 3 is the most",
        "lport q00 id: a number where a string belongs",
    ];
    assert_eq!(shown, expected);
}

#[test]
fn refuses_models_that_are_not_whole() {
    #[rustfmt::skip]
    let cases = [
        ("[table.a.fields]\nx = { reference = \"b\" }",          "table.a.fields.x: there is no table b"),
        ("[table.a.fields]\nx = { embedded = \"b\" }",           "table.a.fields.x: there is no embedded model b"),
        ("[table.a.fields]\nx = { type = \"text\" }",            "there is no type \"text\""),
        ("[table.a.fields]\nx = { type = \"any\", one_of = [] }", "takes one of `type`"),
        ("[table.a.fields]\nx = { type = \"bool\", max = 1 }",   "`max` is for lists and maps"),
        ("[table.a.fields]\nx = { type = \"bool\", default = 1 }", "its default: a number where a boolean belongs"),
        ("[table.a]\ncounter = false",                           "has no fields, and is no counter"),
        ("[table.schemamigrationlog]\ncounter = true",           "is kept by the tool itself"),
        ("[table.\"a/b\"]\ncounter = true",                      "may hold only letters"),
        ("[embedded.e.fields]\nx = { embedded = \"e\" }",        "embedded.e: holds itself"),
    ];
    for (rest, expected) in cases {
        let error = Models::parse(Path::new("m.toml"), &format!("release = 'r'\n{rest}")).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}

fn changed(from: &str, to: &str) -> Models {
    assert!(MODELS.contains(from), "{from}");
    models(&MODELS.replacen(from, to, 1))
}

#[test]
fn works_out_what_needs_no_script_and_refuses_the_rest() {
    let old = models(MODELS);
    let mac = "mac      = { type = \"mac\" }\n";
    #[rustfmt::skip]
    let cases = [
        ("nothing",       old.clone(), vec![], vec![]),
        ("optional",      changed(mac, "mac = { type = \"mac\" }\nnew = { type = \"string\" }\n"),
            vec!["lport.new: the field is new, and may be missing"], vec![]),
        ("default",       changed(mac, "mac = { type = \"mac\" }\nnew = { type = \"integer\", required = true, default = 7 }\n"),
            vec!["lport.new: the field is new, and is 7 where it is missing"], vec![]),
        ("required",      changed(mac, "mac = { type = \"mac\" }\nnew = { type = \"integer\", required = true }\n"),
            vec![], vec!["lport.new: the field is new and required"]),
        ("removed",       changed(mac, ""), vec![], vec!["lport.mac: the field is gone"]),
        ("wider",         changed(mac, "mac = { type = \"string\" }\n"), vec![], vec![]),
        ("other kind",    changed(mac, "mac = { type = \"integer\" }\n"), vec![], vec!["lport.mac: was mac and is integer"]),
        ("now a list",    changed(mac, "mac = { type = \"mac\", list = true }\n"), vec![], vec!["lport.mac: was mac and is list of mac"]),
        ("inside",        changed("address = { type = \"ip\" }", "port = { type = \"integer\", default = 1 }"),
            vec!["lport.binding.port: the field is new, and is 1"], vec!["lport.binding.address: the field is gone"]),
        ("new table",     changed("[table.unique_key]", "[table.new]\ncounter = true\n[table.unique_key]"),
            vec!["new: the table is new"], vec![]),
        ("removed table", changed("[table.unique_key]\ncounter = true\n", ""), vec![], vec!["unique_key: the table is gone"]),
    ];
    for (name, new, steps, refusals) in cases {
        let found = diff(&old, &new, &BTreeSet::new());
        assert_eq!(found.steps.len(), steps.len(), "{name}: {found:?}");
        assert_eq!(found.refusals.len(), refusals.len(), "{name}: {found:?}");
        for (found, expected) in found.steps.iter().map(ToString::to_string).zip(steps) {
            assert!(found.starts_with(expected), "{name}: {found}");
        }
        for (found, expected) in found.refusals.iter().map(ToString::to_string).zip(refusals) {
            assert!(found.starts_with(expected), "{name}: {found}");
        }
        let scripted = ["lport", "unique_key"].map(Table::new).into_iter().collect();
        assert_eq!(diff(&old, &new, &scripted).refusals, [], "{name}: with a script");
    }
}

#[test]
fn fills_in_defaults_and_keeps_what_is_there() {
    let add = |path: &[&str], default: Value| Step::AddField {
        table: Table::new("lport"),
        path: path.iter().map(|&name| name.to_owned()).collect(),
        default: Some(default),
    };
    let steps = [add(&["n"], json!(1)), add(&["binding", "x"], json!("y")), add(&["groups", "z"], json!([]))];
    #[rustfmt::skip]
    let cases = [
        (r#"{ "id":"p", "n":2 }"#,             r#"{ "id":"p", "n":2 }"#),
        (r#"{"id":"p"}"#,                      r#"{"id":"p","n":1}"#),
        (r#"{"id":"p","n":2,"binding":{}}"#,   r#"{"binding":{"x":"y"},"id":"p","n":2}"#),
        (r#"{"id":"p","n":2,"groups":[{},{"z":1}]}"#, r#"{"groups":[{"z":[]},{"z":1}],"id":"p","n":2}"#),
    ];
    for (before, after) in cases {
        let mut database = with_port(before);
        fill(&mut database, &steps).unwrap();
        assert_eq!(database, with_port(after), "{before}");
    }
}

#[test]
fn the_models_are_kept_with_the_data() {
    let mut database = with_port(r#"{"id":"p"}"#);
    assert_eq!(stored(&database).unwrap(), None);
    write(&mut database, &models(MODELS));
    assert_eq!(stored(&database).unwrap(), Some(models(MODELS)));
    assert!(validate(&database, &models(MODELS)).is_clean());
}
