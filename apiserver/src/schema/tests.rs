//! The rules of schemas as tables, each row checked against a real server.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{MAX_DEPTH, Rules, Schema, invalid, nests_deeper_than};

fn spec_schema(spec: &Value) -> Schema {
    let whole = json!({"type": "object", "properties": {"spec": spec}});
    Schema::compile(&whole).unwrap_or_else(|faults| panic!("{:#?}", faults.0))
}

fn field_schema(field: &Value) -> Schema {
    spec_schema(&json!({"type": "object", "properties": {"f": field}}))
}

fn messages(schema: &Schema, new: &Value, old: Option<&Value>) -> Vec<String> {
    schema.validate(new, old).iter().map(ToString::to_string).collect()
}

/// What is said of `{"spec": {"f": VALUE}}`.
fn said_of(field: &Value, value: &Value) -> Vec<String> {
    messages(&field_schema(field), &json!({"spec": {"f": value}}), None)
}

#[test]
fn a_value_is_told_what_is_wrong_with_it() {
    let int = json!({"type": "integer", "minimum": 1, "maximum": 10});
    let name = json!({"type": "string", "minLength": 2, "maxLength": 3, "pattern": "^[a-zü]+$"});
    let time = json!({"type": "string", "format": "date-time"});
    let int32 = json!({"type": "integer", "format": "int32"});
    let list = json!({"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2});
    let map = json!({"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1, "maxProperties": 2});
    let either = json!({"x-kubernetes-int-or-string": true});
    let choice = json!({"type": "string", "enum": ["a", "b"], "nullable": true});
    #[rustfmt::skip]
    let cases = [
        (&int, json!(3), ""),
        (&int, json!(3.0), ""),
        (&int, json!("x"), r#"spec.f: Invalid value: "string": spec.f in body must be of type integer: "string""#),
        (&int, json!(11), "spec.f: Invalid value: 11: spec.f in body should be less than or equal to 10"),
        (&int, json!(0), "spec.f: Invalid value: 0: spec.f in body should be greater than or equal to 1"),
        (&json!({"type": "number", "maximum": 10, "exclusiveMaximum": true}), json!(10), "spec.f: Invalid value: 10: spec.f in body should be less than 10"),
        (&json!({"type": "integer", "multipleOf": 3}), json!(4), "spec.f: Invalid value: 4: spec.f in body should be a multiple of 3"),
        (&int32, json!(3_000_000_000_i64), r#"<nil>: Invalid value: "": Checked value must be of type integer with format int32 in spec.f"#),
        (&int32, json!(true), r#"spec.f: Invalid value: "": spec.f in body must be of type int32: """#),
        (&name, json!("äöü!"), "spec.f: Too long: may not be more than 3 bytes"),
        (&name, json!("üü"), ""),
        (&name, json!("a"), r#"spec.f: Invalid value: "a": spec.f in body should be at least 2 chars long"#),
        (&name, json!("AB"), r#"spec.f: Invalid value: "AB": spec.f in body should match '^[a-zü]+$'"#),
        (&time, json!("2020-01-01T00:00:00Z"), ""),
        (&time, json!("noon"), r#"spec.f: Invalid value: "noon": spec.f in body must be of type date-time: "noon""#),
        (&time, json!(5), r#"spec.f: Invalid value: "int64": spec.f in body must be of type date-time: "int64""#),
        (&choice, json!("x"), r#"spec.f: Unsupported value: "x": supported values: "a", "b""#),
        (&choice, json!(null), r#"spec.f: Unsupported value: null: supported values: "a", "b""#),
        (&list, json!([]), "spec.f: Invalid value: 0: spec.f in body should have at least 1 items"),
        (&list, json!(["a", "b", "c"]), "spec.f: Too many: 3: must have at most 2 items"),
        (&list, json!(["a", 1]), r#"spec.f[1]: Invalid value: "integer": spec.f[1] in body must be of type string: "integer""#),
        (&list, json!([null]), r#"spec.f[0]: Invalid value: "null": spec.f[0] in body must be of type string: "null""#),
        (&map, json!({}), "spec.f: Invalid value: 0: spec.f in body should have at least 1 properties"),
        (&map, json!({"a": 1, "b": 2, "c": 3}), "spec.f: Too many: 3: must have at most 2 items"),
        (&map, json!({"k": "x"}), r#"spec.f.k: Invalid value: "string": spec.f.k in body must be of type integer: "string""#),
        (&either, json!(5), ""),
        (&either, json!("50%"), ""),
        (&either, json!(true), r#"spec.f: Invalid value: "boolean": spec.f in body must be of type integer,string: "boolean""#),
        (&json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}}), json!({}), "spec.f.a: Required value"),
    ];
    for (field, value, expected) in cases {
        let expected: Vec<&str> = Some(expected).filter(|text| !text.is_empty()).into_iter().collect();
        assert_eq!(said_of(field, &value), expected, "{field} with {value}");
    }
}

#[test]
fn formats_are_those_of_kubernetes() {
    #[rustfmt::skip]
    let cases = [
        ("date", &["2024-02-29"][..], &["2023-02-29", "2020-13-01", "x"][..]),
        ("date-time", &["2020-01-01T00:00:00.5+02:00", "2020-01-01t00:00:00z"], &["2020-01-01", "2020-01-01T25:00:00Z", "2020-01-01T00:00:00"]),
        ("duration", &["1h30m", "5 days", "0", "1.5s"], &["5 parsecs", "", "h"]),
        ("byte", &["YWI="], &["a", "", "YW=I"]),
        ("ipv4", &["01.2.3.4"], &["1.2.3", "::1"]),
        ("ipv6", &["::1", "fe80::1"], &["1.2.3.4", "x"]),
        ("cidr", &["10.0.0.0/8", "::/0"], &["10.0.0.0/33", "10.0.0.0"]),
        ("mac", &["00:11:22:33:44:55"], &["00:11"]),
        ("uuid", &["123e4567-e89b-12d3-a456-426614174000", "123E4567E89B12D3A456426614174000"], &["x"]),
        ("uuid4", &["123e4567-e89b-42d3-a456-426614174000"], &["123e4567-e89b-12d3-a456-426614174000"]),
        ("email", &["a@b.c", "A <a@b>"], &["a", "a@", "@b"]),
        ("hostname", &["a.example.com", "my-host.example.com", "host", "a-b"], &["a_b", "a.c1", "my-host", ""]),
        ("uri", &["http://a/b", "/a"], &["foo", ""]),
        ("k8s-short-name", &["a-1"], &["A", "-a", ""]),
        ("k8s-long-name", &["a.b-1"], &["a..b"]),
        ("hexcolor", &["#fff", "aabbcc"], &["#12"]),
        ("some-other", &["anything"], &[]),
    ];
    for (format, good, bad) in cases {
        let field = json!({"type": "string", "format": format});
        for text in good {
            assert_eq!(said_of(&field, &json!(text)), [""; 0], "{format} {text}");
        }
        for text in bad {
            assert_eq!(said_of(&field, &json!(text)).len(), 1, "{format} {text}");
        }
    }
}

#[test]
fn combinations_say_which_and_why() {
    let fields = json!({"a": {"type": "string"}, "b": {"type": "integer"}});
    let with = |name: &str, branches: Value| json!({"type": "object", "properties": fields, name: branches});
    let one = with("oneOf", json!([{"required": ["a"]}, {"required": ["b"]}]));
    let any = with("anyOf", json!([{"required": ["a"]}, {"required": ["b"]}]));
    let all = with("allOf", json!([{"required": ["a"]}, {"properties": {"b": {"minimum": 5}}}]));
    let not = with("not", json!({"required": ["a"]}));
    let nil = |text: &str| format!(r#"<nil>: Invalid value: "": "spec.f" must {text}"#);
    #[rustfmt::skip]
    let cases = [
        (&one, json!({"a": "x"}), vec![]),
        (&one, json!({}), vec![nil("validate one and only one schema (oneOf). Found none valid"), "spec.f.a: Required value".into()]),
        (&one, json!({"a": "x", "b": 1}), vec![nil("validate one and only one schema (oneOf). Found 2 valid alternatives")]),
        (&any, json!({"b": 1}), vec![]),
        (&any, json!({}), vec![nil("validate at least one schema (anyOf)"), "spec.f.a: Required value".into()]),
        (&all, json!({"a": "x", "b": 5}), vec![]),
        (&all, json!({"a": "x", "b": 1}), vec![
            "spec.f.b: Invalid value: 1: spec.f.b in body should be greater than or equal to 5".into(),
            nil("validate all the schemas (allOf)")]),
        (&not, json!({}), vec![]),
        (&not, json!({"a": "x"}), vec![nil("not validate the schema (not)")]),
    ];
    for (field, value, expected) in cases {
        assert_eq!(said_of(field, &value), expected, "{field} with {value}");
    }
}

#[test]
fn sets_and_maps_hold_each_item_once() {
    let set = json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"});
    let map = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
        "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}}}});
    let of_sets = json!({"type": "object", "additionalProperties": set});
    #[rustfmt::skip]
    let cases = [
        (&set, json!(["a", "b"]), vec![]),
        (&set, json!(["a", "b", "a", "a"]), vec![r#"spec.f[2]: Duplicate value: "a""#]),
        (&map, json!([{"k": "a"}, {"k": "b"}]), vec![]),
        (&map, json!([{"k": "a"}, {"k": "a"}]), vec![r#"spec.f[1]: Duplicate value: {"k":"a"}"#]),
        (&of_sets, json!({"x.y": ["a", "a"]}), vec![r#"spec.f[x.y][1]: Duplicate value: "a""#]),
    ];
    for (field, value, expected) in cases {
        assert_eq!(said_of(field, &value), expected, "{value}");
    }
}

#[test]
fn unknown_fields_are_pruned_and_named() {
    let schema = spec_schema(&json!({"type": "object", "properties": {
        "known": {"type": "string"},
        "list": {"type": "array", "items": {"type": "object", "properties": {"k": {"type": "string"}}}},
        "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                 "properties": {"closed": {"type": "object", "properties": {"a": {"type": "string"}}}}},
        "pod": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true},
    }}));
    let mut object = json!({
        "apiVersion": "v1", "kind": "K", "metadata": {"name": "n", "nope": 1, "managedFields": [{"manager": "m"}]},
        "stray": 1,
        "spec": {
            "known": "x", "siz": 1,
            "list": [{"k": "a", "bad": 1}],
            "open": {"free": {"deep": 1}, "closed": {"a": "x", "zz": 1}},
            "pod": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "foo": 1}, "spec": {"any": 1}},
        },
    });
    let removed = schema.prune(&mut object);
    let expected = [
        "metadata.nope",
        "spec.list[0].bad",
        "spec.open.closed.zz",
        "spec.pod.metadata.foo",
        "spec.siz",
        "stray",
    ];
    assert_eq!(removed, expected);
    assert_eq!(
        object,
        json!({
            "apiVersion": "v1", "kind": "K", "metadata": {"name": "n", "managedFields": [{"manager": "m"}]},
            "spec": {
                "known": "x", "list": [{"k": "a"}], "open": {"free": {"deep": 1}, "closed": {"a": "x"}},
                "pod": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"any": 1}},
            },
        })
    );
}

#[test]
fn defaults_reach_into_lists_and_into_each_other() {
    let schema = spec_schema(&json!({"type": "object", "properties": {
        "mode": {"type": "string", "default": "auto"},
        "size": {"type": "integer"},
        "none": {"type": "string", "nullable": true},
        "nest": {"type": "object", "default": {}, "properties": {"x": {"type": "integer", "default": 3}}},
        "list": {"type": "array", "items": {"type": "object", "properties": {"v": {"type": "integer", "default": 7}}}},
        "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"d": {"type": "boolean", "default": true}}}},
    }}));
    #[rustfmt::skip]
    let cases = [
        ("absent",             json!({}),                     json!({"mode": "auto", "nest": {"x": 3}})),
        ("given",              json!({"mode": "m", "nest": {"x": 1}}), json!({"mode": "m", "nest": {"x": 1}})),
        ("null is defaulted",  json!({"mode": null}),         json!({"mode": "auto", "nest": {"x": 3}})),
        ("null is dropped",    json!({"size": null}),         json!({"mode": "auto", "nest": {"x": 3}})),
        ("null is kept",       json!({"none": null}),         json!({"mode": "auto", "nest": {"x": 3}, "none": null})),
        ("in lists",           json!({"list": [{}, {"v": 1}]}), json!({"mode": "auto", "nest": {"x": 3}, "list": [{"v": 7}, {"v": 1}]})),
        ("in maps",            json!({"map": {"k": {}}}),     json!({"mode": "auto", "nest": {"x": 3}, "map": {"k": {"d": true}}})),
        ("whole floats",       json!({"size": 3.0}),          json!({"mode": "auto", "nest": {"x": 3}, "size": 3})),
    ];
    for (name, spec, expected) in cases {
        let mut object = json!({"spec": spec});
        schema.default(&mut object);
        assert_eq!(object["spec"].to_string(), expected.to_string(), "{name}");
    }
}

#[test]
fn empty_metadata_is_absent_metadata() {
    let mut object = json!({"metadata": {"name": "n", "labels": {}, "finalizers": [], "creationTimestamp": null,
        "annotations": {"a": ""}, "managedFields": []}});
    Schema::anything().default(&mut object);
    assert_eq!(object, json!({"metadata": {"name": "n", "annotations": {"a": ""}, "managedFields": []}}));
}

#[test]
fn what_did_not_change_is_not_held_against_an_update() {
    let items = json!({"type": "object", "required": ["k"],
        "properties": {"k": {"type": "string"}, "v": {"type": "integer", "maximum": 5}}});
    let schema = spec_schema(&json!({"type": "object", "properties": {
        "a": {"type": "integer", "maximum": 5},
        "b": {"type": "string"},
        "map": {"type": "array", "items": items, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]},
        "list": {"type": "array", "items": items},
        "rule": {"type": "integer", "x-kubernetes-validations": [{"rule": "self < 5", "message": "too big"}]},
    }}));
    #[rustfmt::skip]
    let cases = [
        ("changed",             json!({"a": 9}),             json!({"a": 8}),                      1),
        ("unchanged",           json!({"a": 9}),             json!({"a": 9, "b": "x"}),            0),
        ("item by key",         json!({"map": [{"k": "x", "v": 9}]}), json!({"map": [{"k": "y"}, {"k": "x", "v": 9}]}), 0),
        ("item without key",    json!({"list": [{"k": "x", "v": 9}]}), json!({"list": [{"k": "x", "v": 9}, {"k": "y"}]}), 1),
        ("whole list",          json!({"list": [{"k": "x", "v": 9}]}), json!({"list": [{"k": "x", "v": 9}], "b": "x"}), 0),
        ("rule, unchanged",     json!({"rule": 9}),          json!({"rule": 9, "b": "x"}),         0),
        ("rule, changed",       json!({"rule": 9}),          json!({"rule": 8}),                   1),
    ];
    for (name, old, new, expected) in cases {
        let found = messages(&schema, &json!({"spec": new}), Some(&json!({"spec": old})));
        assert_eq!(found.len(), expected, "{name}: {found:?}");
    }
}

#[test]
fn an_invalid_object_is_answered_with_one_cause_per_field() {
    let schema = field_schema(&json!({"type": "integer"}));
    let errors = schema.validate(&json!({"spec": {"f": "x"}}), None);
    let status = invalid("Gadget", "example.com", "g1", &errors).to_status();
    assert_eq!(status["code"], 422);
    assert_eq!(
        status["message"],
        r#"Gadget.example.com "g1" is invalid: spec.f: Invalid value: "string": spec.f in body must be of type integer: "string""#
    );
    assert_eq!(status["details"]["causes"][0]["reason"], "FieldValueTypeInvalid");
    assert_eq!(status["details"]["causes"][0]["field"], "spec.f");
}

#[test]
fn a_status_is_judged_by_itself() {
    let schema = Schema::compile(&json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {"size": {"type": "integer", "maximum": 5}}},
        "status": {"type": "object", "properties": {"phase": {"type": "string"}}},
    }}))
    .unwrap();
    let found = |status: Value| -> Vec<String> {
        let object = json!({"spec": {"size": 9}, "status": status});
        schema.validate_status(&object, None, Rules::Checked).iter().map(ToString::to_string).collect()
    };
    assert_eq!(found(json!({"phase": "x"})), [""; 0], "spec is not what is written");
    let wrong = r#"status.phase: Invalid value: "integer": phase in body must be of type string: "integer""#;
    assert_eq!(found(json!({"phase": 5})), [wrong]);
    let wrong = r#"status: Invalid value: "array":  in body must be of type object: "array""#;
    assert_eq!(found(json!([])), [wrong]);
}

#[test]
fn depth_is_limited_without_using_the_stack() {
    let deep = (0..200_000).fold(json!(1), |inner, _| Value::Array(vec![inner]));
    assert!(nests_deeper_than(&deep, MAX_DEPTH));
    assert_eq!(Schema::anything().validate(&deep, None).len(), 1);
    drop_deep(deep);
    let shallow = (0..MAX_DEPTH).fold(json!(1), |inner, _| Value::Array(vec![inner]));
    assert!(!nests_deeper_than(&shallow, MAX_DEPTH));
}

/// Takes a value apart from the outside, since dropping it whole would recurse.
pub(crate) fn drop_deep(mut value: Value) {
    while let Value::Array(mut items) = value {
        value = items.pop().unwrap_or_default();
    }
}

/// JSON that is about as likely to fit a small schema as not.
fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-20i64..20).prop_map(Value::from),
        (-4.0f64..4.0).prop_map(Value::from),
        "[a-c]{0,3}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::btree_map("[a-e]", inner, 0..4).prop_map(|map| map.into_iter().collect()),
        ]
    })
}

fn small_schema() -> Schema {
    spec_schema(&json!({"type": "object", "properties": {
        "a": {"type": "integer", "minimum": -5, "default": 1},
        "b": {"type": "object", "default": {"a": "x"}, "properties": {"a": {"type": "string"}, "b": {"type": "integer", "default": 2}}},
        "c": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "d": {"type": "object", "additionalProperties": {"type": "object", "nullable": true, "properties": {"a": {"type": "boolean", "default": true}}}},
        "e": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
    }}))
}

proptest! {
    #[test]
    fn preparing_twice_changes_nothing_more(spec in any_value()) {
        let schema = small_schema();
        let mut once = json!({"spec": spec});
        schema.prune(&mut once);
        schema.default(&mut once);
        let mut twice = once.clone();
        prop_assert_eq!(schema.prune(&mut twice), Vec::<String>::new());
        schema.default(&mut twice);
        prop_assert_eq!(&twice, &once);
        prop_assert_eq!(schema.validate(&twice, None), schema.validate(&once, None));
        prop_assert_eq!(schema.validate(&once, Some(&once)), vec![]);
    }

    #[test]
    fn no_input_panics(openapi in any_value(), object in any_value()) {
        if let Ok(schema) = Schema::compile(&openapi) {
            let mut object = object;
            schema.prune(&mut object);
            schema.default(&mut object);
            schema.validate(&object, None);
        }
    }
}
