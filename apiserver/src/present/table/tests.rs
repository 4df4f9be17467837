use super::*;
use crate::builtin::{builtin_kinds, kind_from_crd};

/// What kube-apiserver 1.36 printed of objects in every state worth a word.
#[test]
fn prints_what_the_real_server_prints() {
    let kinds = builtin_kinds();
    let recorded: Vec<Value> = serde_json::from_str(include_str!("../recorded/tables.json")).unwrap();
    for case in recorded {
        let name = case["kind"].as_str().unwrap();
        let kind = match name.split_once(' ') {
            Some((group, name)) => {
                kinds.iter().find(|kind| kind.kind == name && &*kind.resource.group == group)
            }
            None => kinds.iter().find(|kind| kind.kind == name),
        };
        let kind = kind.unwrap_or_else(|| panic!("{name} is built in"));
        let now = case["now"].as_str().unwrap().parse().unwrap();
        let table = Table::new(kind, &kind.versions[0], IncludeObject::Object, now);
        for row in case["rows"].as_array().unwrap() {
            let ours = table.row(&row["object"]);
            assert_eq!(ours, *row, "{name} {}", row["object"]["metadata"]["name"]);
        }
        let mut columns = table.definitions();
        for column in columns.as_array_mut().unwrap() {
            column.as_object_mut().unwrap().remove("description");
        }
        assert_eq!(columns, case["columns"], "{name}");
    }
}

#[test]
fn every_row_has_a_cell_for_every_column() {
    for kind in builtin_kinds() {
        let table = Table::new(&kind, &kind.versions[0], IncludeObject::None, Timestamp::UNIX_EPOCH);
        for object in [json!({}), json!({"spec": 1, "status": [], "metadata": null, "data": "x"})] {
            let row = table.row(&object);
            assert_eq!(
                row["cells"].as_array().unwrap().len(),
                kind.versions[0].columns.len(),
                "{}",
                kind.kind
            );
        }
    }
}

fn gadget() -> Kind {
    let column = |name: &str, kind: &str, path: &str| json!({"name": name, "type": kind, "jsonPath": path});
    kind_from_crd(&json!({"spec": {
        "group": "example.com", "scope": "Namespaced", "names": {"plural": "gadgets", "kind": "Gadget"},
        "versions": [{"name": "v1", "served": true, "storage": true, "additionalPrinterColumns": [
            column("Color", "string", ".spec.color"), column("Size", "integer", ".spec.size"),
            column("Ratio", "number", ".spec.ratio"), column("On", "boolean", ".spec.on"),
            column("Since", "date", ".spec.since"), column("Map", "string", ".spec.map"),
            column("Ready", "string", ".status.conditions[?(@.type==\"Ready\")].status"),
        ]}],
    }}))
    .unwrap()
}

#[test]
fn custom_columns_show_what_their_type_can_show() {
    let gadget = gadget();
    let now = "2026-01-01T01:00:00Z".parse().unwrap();
    let table = Table::new(&gadget, &gadget.versions[0], IncludeObject::None, now);
    let cells = |spec: Value, status: Value| {
        table.row(&json!({"metadata": {"name": "g"}, "spec": spec, "status": status}))["cells"].clone()
    };
    assert_eq!(
        cells(
            json!({"color": "red", "size": 3, "ratio": 0.5, "on": true, "since": "2026-01-01T00:00:00Z", "map": {"a": 1}}),
            json!({"conditions": [{"type": "Other", "status": "x"}, {"type": "Ready", "status": "True"}]}),
        ),
        json!(["g", "red", 3, 0.5, true, "60m", "{\"a\":1}", "True"])
    );
    assert_eq!(
        cells(json!({"color": 5, "size": "big", "ratio": "x", "on": "yes", "since": "soon"}), json!({})),
        json!(["g", "5", null, null, null, "<invalid>", null, null])
    );
}

#[test]
fn a_table_carries_as_much_of_each_object_as_was_asked_for() {
    let gadget = gadget();
    let object =
        json!({"kind": "Gadget", "metadata": {"name": "g", "resourceVersion": "7"}, "spec": {"size": 1}});
    let table =
        |include| Table::new(&gadget, &gadget.versions[0], include, Timestamp::UNIX_EPOCH).object(&object);
    assert_eq!(table(IncludeObject::None)["rows"][0]["object"], Value::Null);
    assert_eq!(
        table(IncludeObject::Metadata)["rows"][0]["object"],
        json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {"name": "g", "resourceVersion": "7"}})
    );
    assert_eq!(table(IncludeObject::Object)["rows"][0]["object"], object);
    assert_eq!(table(IncludeObject::None)["metadata"], json!({"resourceVersion": "7"}));
    assert_eq!("Object".parse::<IncludeObject>().unwrap(), IncludeObject::Object);
    assert_eq!("".parse::<IncludeObject>().unwrap(), IncludeObject::Metadata);
    assert_eq!(
        "X".parse::<IncludeObject>().unwrap_err().message,
        "Unable to convert to Table as requested: includeObject: Invalid value: \"X\": must be 'Metadata', 'Object', 'None', or empty"
    );
}

#[test]
fn only_the_first_event_of_a_watch_names_the_columns() {
    let gadget = gadget();
    let object = json!({"metadata": {"name": "g", "resourceVersion": "7"}});
    let table = Table::new(&gadget, &gadget.versions[0], IncludeObject::None, Timestamp::UNIX_EPOCH);
    assert_eq!(table.event(&object, true)["columnDefinitions"].as_array().unwrap().len(), 8);
    assert_eq!(table.event(&object, false)["columnDefinitions"], Value::Null);
    let meta = ListMeta { resource_version: "9".into(), continue_token: Some("t".into()), remaining: None };
    let list = table.list([&object, &object], &meta);
    assert_eq!(list["metadata"], json!({"resourceVersion": "9", "continue": "t"}));
    assert_eq!(list["rows"].as_array().unwrap().len(), 2);
}
