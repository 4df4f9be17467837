//! The rules about rules, and what makes a schema unusable, as tables.

use serde_json::{Value, json};

use super::Schema;

fn compile(spec: &Value) -> Result<Schema, Vec<String>> {
    let whole = json!({"type": "object", "properties": {"spec": spec}});
    Schema::compile(&whole).map_err(|faults| faults.0.iter().map(ToString::to_string).collect())
}

fn numbers_with(rules: &Value) -> Value {
    let number = json!({"type": "integer"});
    json!({"type": "object", "x-kubernetes-validations": rules, "properties": {"a": number, "b": number}})
}

#[test]
fn a_broken_rule_is_told_in_its_own_words() {
    let message = json!([{"rule": "!has(self.a) || !has(self.b) || self.a <= self.b", "message": "a must not exceed b"}]);
    let silent = json!([{"rule": "!has(self.a) || self.a != 55"}]);
    let blamed = json!([{"rule": "self.b < 100", "message": "b too big", "fieldPath": ".b", "reason": "FieldValueForbidden"}]);
    let spoken = json!([{"rule": "self.a < 5", "messageExpression": "self.a > 7 ? 'very big' : 'big'"}]);
    let divides = json!([{"rule": "10 / self.b >= 0", "message": "div"}]);
    let absent = json!([{"rule": "self.b > 0"}]);
    #[rustfmt::skip]
    let cases = [
        (&message, json!({"a": 1, "b": 2}), ""),
        (&message, json!({"a": 3, "b": 2}), "spec: Invalid value: a must not exceed b"),
        (&silent,  json!({"a": 55}),        "spec: Invalid value: failed rule: !has(self.a) || self.a != 55"),
        (&blamed,  json!({"b": 200}),       "spec.b: Forbidden: b too big"),
        (&spoken,  json!({"a": 6}),         "spec: Invalid value: big"),
        (&spoken,  json!({"a": 9}),         "spec: Invalid value: very big"),
        (&divides, json!({"b": 0}),         r#"spec: Invalid value: "object": division by zero evaluating rule: div"#),
        (&absent,  json!({"a": 1}),         r#"spec: Invalid value: "object": no such key: b evaluating rule: self.b > 0"#),
    ];
    for (rules, spec, expected) in cases {
        let schema = compile(&numbers_with(rules)).unwrap();
        let found: Vec<String> =
            schema.validate(&json!({"spec": spec}), None).iter().map(ToString::to_string).collect();
        let expected: Vec<&str> = Some(expected).filter(|text| !text.is_empty()).into_iter().collect();
        assert_eq!(found, expected, "{rules} with {spec}");
    }
}

#[test]
fn rules_see_values_as_the_schema_types_them() {
    let cases = [
        (json!({"type": "number"}), json!(3), "self == 3.0"),
        (json!({"type": "integer"}), json!(3), "self + 1 == 4"),
        (json!({"x-kubernetes-int-or-string": true}), json!("5"), "self == '5'"),
        (
            json!({"type": "string", "format": "date-time"}),
            json!("2020-01-02T00:00:00Z"),
            "self > timestamp('2020-01-01T00:00:00Z')",
        ),
        (json!({"type": "string", "format": "duration"}), json!("90s"), "self > duration('1m')"),
        (json!({"type": "string", "format": "byte"}), json!("YWI="), "self == b'ab'"),
        (
            json!({"type": "array", "items": {"type": "string"}}),
            json!(["a", "b"]),
            "self.all(x, x.size() == 1) && 'a' in self",
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "integer"}}),
            json!({"x-y": 1}),
            "self['x-y'] == 1",
        ),
        (
            json!({"type": "object", "properties": {"x-y": {"type": "integer"}, "in": {"type": "integer"}, "a_b": {"type": "integer"}}}),
            json!({"x-y": 1, "in": 2, "a_b": 3}),
            "self.x__dash__y == 1 && self.__in__ == 2 && self.a_b == 3",
        ),
        (
            json!({"type": "object", "properties": {"s": {"type": "string"}}}),
            json!({}),
            "!has(self.s) && self.?s.orValue('d') == 'd'",
        ),
        (json!({"type": "string"}), json!("10Gi"), "quantity(self).isGreaterThan(quantity('1Gi'))"),
    ];
    for (mut field, value, rule) in cases {
        field["x-kubernetes-validations"] = json!([{"rule": rule}]);
        let schema = compile(&json!({"type": "object", "properties": {"f": field}})).unwrap();
        let found = schema.validate(&json!({"spec": {"f": value}}), None);
        assert_eq!(found, vec![], "{rule}");
    }
}

#[test]
fn transition_rules_run_where_the_old_value_is_known() {
    let fixed = json!({"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "immutable"}]});
    let grows = json!({"type": "integer", "x-kubernetes-validations": [
        {"rule": "!oldSelf.hasValue() || self >= oldSelf.value()", "message": "shrinks", "optionalOldSelf": true},
        {"rule": "self != 13 || oldSelf.hasValue()", "message": "13 at birth", "optionalOldSelf": true}]});
    let items =
        json!({"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}, "v": fixed}});
    let schema = compile(&json!({"type": "object", "properties": {"fixed": fixed, "grows": grows,
        "map": {"type": "array", "items": items, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]}}}))
    .unwrap();
    #[rustfmt::skip]
    let cases = [
        ("create",            None,                          json!({"fixed": "a"}),    ""),
        ("added",             Some(json!({})),               json!({"fixed": "a"}),    ""),
        ("kept",              Some(json!({"fixed": "a"})),   json!({"fixed": "a"}),    ""),
        ("changed",           Some(json!({"fixed": "a"})),   json!({"fixed": "b"}),    r#"spec.fixed: Invalid value: "b": immutable"#),
        ("optional, birth",   None,                          json!({"grows": 13}),     "spec.grows: Invalid value: 13: 13 at birth"),
        ("optional, later",   Some(json!({"grows": 1})),     json!({"grows": 13}),     ""),
        ("optional, shrinks", Some(json!({"grows": 14})),    json!({"grows": 12}),     "spec.grows: Invalid value: 12: shrinks"),
        ("item moved",        Some(json!({"map": [{"k": "a", "v": "x"}]})), json!({"map": [{"k": "b", "v": "y"}, {"k": "a", "v": "x"}]}), ""),
        ("item changed",      Some(json!({"map": [{"k": "a", "v": "x"}]})), json!({"map": [{"k": "b", "v": "y"}, {"k": "a", "v": "z"}]}),
            r#"spec.map[1].v: Invalid value: "z": immutable"#),
    ];
    for (name, old, new, expected) in cases {
        let old = old.map(|spec| json!({"spec": spec}));
        let found: Vec<String> =
            schema.validate(&json!({"spec": new}), old.as_ref()).iter().map(ToString::to_string).collect();
        let expected: Vec<&str> = Some(expected).filter(|text| !text.is_empty()).into_iter().collect();
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn rules_are_not_run_on_what_has_the_wrong_shape() {
    let schema = compile(&numbers_with(&json!([{"rule": "self.a > 0"}]))).unwrap();
    let found: Vec<String> =
        schema.validate(&json!({"spec": {"a": "x"}}), None).iter().map(ToString::to_string).collect();
    assert_eq!(
        found,
        [
            r#"spec.a: Invalid value: "string": spec.a in body must be of type integer: "string""#,
            "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; \
         correct the existing errors to complete validation",
        ]
    );
}

#[test]
fn rules_that_cannot_be_right_are_refused_with_the_schema() {
    let at = "openAPIV3Schema.properties[spec].x-kubernetes-validations[0]";
    let cases = [
        ("self.c == 1", "undefined field 'c'", "....^"),
        ("x == 1", "undeclared reference to 'x' (in container '')", " | ^"),
        ("grow(self.a) > 1", "undeclared reference to 'grow' (in container '')", "....^"),
        ("self.a == 'x'", "found no matching overload for '_==_' applied to '(int, string)'", ".......^"),
        ("self.a ==", "Syntax error", ".........^"),
        ("self.a", "cel expression must evaluate to a bool", ""),
    ];
    for (rule, fault, pointer) in cases {
        let faults = compile(&numbers_with(&json!([{"rule": rule}]))).unwrap_err();
        assert_eq!(faults.len(), 1, "{rule}: {faults:?}");
        assert!(faults[0].starts_with(&format!("{at}.rule: Invalid value: {{\"Rule\":")), "{}", faults[0]);
        assert!(faults[0].contains(fault) && faults[0].ends_with(pointer), "{rule}: {}", faults[0]);
    }
}

#[test]
fn a_schema_that_is_not_structural_says_where() {
    let object = |fields: Value| json!({"type": "object", "properties": fields});
    let text = json!({"type": "string"});
    let with = |mut schema: Value, name: &str, value: Value| {
        schema[name] = value;
        schema
    };
    let spec = "openAPIV3Schema.properties[spec]";
    #[rustfmt::skip]
    let cases = [
        (json!({}), format!("{spec}.type: Required value: must not be empty for specified object fields")),
        (json!({"type": "foo"}), format!(r#"{spec}.type: Unsupported value: "foo": supported values: "array", "boolean", "integer", "number", "object", "string""#)),
        (json!({"type": "array"}), format!("{spec}.items: Required value: must be specified")),
        (json!({"type": "array", "items": {}}), format!("{spec}.items.type: Required value: must not be empty for specified array items")),
        (with(object(json!({"a": text})), "additionalProperties", text.clone()), format!("{spec}.additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive")),
        (with(object(json!({"a": text})), "allOf", json!([{"properties": {"a": {"type": "string"}}}])), format!("{spec}.allOf[0].properties[a].type: Forbidden: must be empty to be structural")),
        (with(object(json!({"a": text})), "not", json!({"nullable": true})), format!("{spec}.not.nullable: Forbidden: must be false to be structural")),
        (json!({"$ref": "#/x"}), format!("{spec}.$ref: Forbidden: $ref is not supported")),
        (json!({"type": "array", "items": text, "uniqueItems": true}), format!("{spec}.uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic")),
        (json!({"type": "array", "items": object(json!({"k": text})), "x-kubernetes-list-type": "map"}), format!("{spec}.x-kubernetes-list-map-keys: Required value: must not be empty if x-kubernetes-list-type is map")),
        (json!({"type": "array", "items": object(json!({"k": text})), "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]}), format!("{spec}.items.properties[k].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property")),
        (json!({"type": "object", "x-kubernetes-embedded-resource": true}), format!("{spec}.properties: Required value: must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields")),
        (object(json!({"a": {"type": "string", "default": 5}})), format!(r#"{spec}.properties[a].default: Invalid value: "integer":  in body must be of type string: "integer""#)),
        (object(json!({"a": {"type": "object", "properties": {"x": text}, "default": {"y": 1}}})), format!(r#"{spec}.properties[a].default: Invalid value: {{"y":1}}: must not have unknown fields"#)),
        (with(object(json!({"a": text})), "x-kubernetes-validations", json!([{"rule": ""}])), format!("{spec}.x-kubernetes-validations[0].rule: Required value: rule is not specified")),
    ];
    for (schema, expected) in cases {
        assert_eq!(compile(&schema).map(|_| ()), Err(vec![expected]), "{schema}");
    }
}
