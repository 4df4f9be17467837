//! What settings accept, as a table and against the rules of the schema.

use kube::core::CustomResourceExt;
use kube_cel::Validator;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::longhorn::Setting;

/// The values that a person might try.
#[rustfmt::skip]
const CASES: &[(&str, &str, bool)] = &[
    (ENGINE_UPGRADE_LIMIT, "0",          true),
    (ENGINE_UPGRADE_LIMIT, "3",          true),
    (ENGINE_UPGRADE_LIMIT, "1000000",    true),
    (ENGINE_UPGRADE_LIMIT, "1000001",    false),
    (ENGINE_UPGRADE_LIMIT, "-1",         false),
    (ENGINE_UPGRADE_LIMIT, "three",      false),
    (ENGINE_UPGRADE_LIMIT, "3.5",        false),
    (ENGINE_UPGRADE_LIMIT, "+3",         false),
    (ENGINE_UPGRADE_LIMIT, "",           false),
    (ENGINE_UPGRADE_LIMIT, " 3",         false),
    (ENGINE_UPGRADE_LIMIT, "9999999999", false),
    ("automatic-engine-upgrade-deadline-seconds",          "0",          false),
    ("start-pre-pull-manager-images",                      "true",       true),
    ("start-pre-pull-manager-images",                      "True",       false),
    ("start-pre-pull-manager-images",                      "1",          false),
    ("default-engine-image", "midflight.local/engine:v2",                true),
    ("default-engine-image", "registry:5000/a/b@sha256:0123",            true),
    ("default-engine-image", "",                                         false),
    ("default-engine-image", "engine:v2; rm",                            false),
    ("node-drain-policy", "always-allow",                                true),
    ("node-drain-policy", "never",                                       false),
    ("engine-replica-timeout", "8",                                      true),
    ("engine-replica-timeout", "7",                                      false),
    ("engine-replica-timeout", r#"{"v1":"8","v2":"30"}"#,                true),
    ("engine-replica-timeout", r#"{ "v2" : "9" }"#,                      true),
    ("engine-replica-timeout", r#"{"v2":"9","v1":"8"}"#,                 true),
    ("engine-replica-timeout", r#"{"v1":"8","v2":"31"}"#,                false),
    ("engine-replica-timeout", r#"{"v1":"8","v1":"8"}"#,                 false),
    ("engine-replica-timeout", r#"{"v1":8}"#,                            false),
    ("engine-replica-timeout", r#"{"v3":"8"}"#,                          false),
    ("engine-replica-timeout", r#"{}"#,                                  false),
    ("engine-replica-timeout", r#"{"v1":"8"} "#,                         false),
    ("fast-replica-rebuild-enabled", "false",                            true),
    ("fast-replica-rebuild-enabled", r#"{"v1":"true","v2":"false"}"#,    true),
    ("fast-replica-rebuild-enabled", r#"{"v1":"yes"}"#,                  false),
    ("no-such-setting", "1",                                             false),
];

#[test]
fn accepts_what_the_format_says_and_the_schema_agrees() {
    let schema = schema();
    for (name, value, expected) in CASES {
        assert_eq!(check(name, value).is_ok(), *expected, "{name}={value}");
        assert_eq!(schema_accepts(&schema, name, value), *expected, "{name}={value} by the schema");
    }
}

#[test]
fn every_default_is_accepted() {
    let schema = schema();
    for definition in TABLE {
        check(definition.name, definition.default).unwrap();
        assert!(schema_accepts(&schema, definition.name, definition.default), "{}", definition.name);
    }
}

/// A setting that nothing acts on says so where people look it up, and gets no fellow unnoticed.
#[test]
fn what_is_without_effect_is_said_to_be() {
    let without_effect: Vec<&str> =
        TABLE.iter().filter(|setting| !setting.acted_on).map(|setting| setting.name).collect();
    assert_eq!(
        without_effect,
        [
            "fast-replica-rebuild-enabled",
            "auto-delete-pod-when-volume-detached-unexpectedly",
            "upgrade-checker"
        ]
    );
    let text = crate::reference(&crate::crds());
    for definition in TABLE {
        let row = text.lines().find(|line| line.starts_with(&format!("| `{}` |", definition.name))).unwrap();
        let said = row.contains("Kept for Longhorn's tools, without effect here.");
        assert_eq!(said, !definition.acted_on, "{row}");
    }
}

#[test]
fn a_refusal_names_the_range() {
    let refused = check("engine-replica-timeout", "99").unwrap_err();
    assert!(refused.to_string().contains("from 8 to 30"), "{refused}");
    let refused = check("replica-timeout", "8").unwrap_err();
    assert!(refused.to_string().contains("no setting \"replica-timeout\""), "{refused}");
}

#[test]
fn a_number_may_be_another_for_each_data_engine() {
    for (value, expected) in [
        ("7", [Some(7), Some(7)]),
        (r#"{"v2":"0"}"#, [None, Some(0)]),
        (r#"{"v1":"8","v2":"30"}"#, [Some(8), Some(30)]),
        ("", [None, None]),
    ] {
        assert_eq!(
            [DataEngine::V1, DataEngine::V2].map(|engine| number_for(value, engine)),
            expected,
            "{value}"
        );
    }
}

#[test]
fn names_are_unique() {
    for (index, definition) in TABLE.iter().enumerate() {
        assert!(TABLE[index + 1..].iter().all(|other| other.name != definition.name), "{}", definition.name);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn check_and_schema_accept_the_same(
        at in 0..TABLE.len(),
        value in r#"(true|false|-?[0-9]{1,11}|\{ ?"v[123]" ?: ?"([0-9]{1,3}|true)"(, ?"v[12]":"([0-9]{1,2}|false)")? ?\}|[a-z:/.-]{0,8})"#,
    ) {
        let name = TABLE[at].name;
        prop_assert_eq!(check(name, &value).is_ok(), schema_accepts(&schema(), name, &value), "{}={}", name, value);
    }
}

fn schema() -> Value {
    let schema = Setting::crd().spec.versions[0].schema.clone().unwrap().open_api_v3_schema.unwrap();
    serde_json::to_value(schema).unwrap()
}

fn schema_accepts(schema: &Value, name: &str, value: &str) -> bool {
    let object = json!({ "metadata": { "name": name }, "value": value });
    Validator::new().validate(schema, &object, None).is_ok()
}
