use proptest::prelude::*;
use serde_json::json;

use super::*;

#[test]
fn finds_what_columns_ask_for() {
    let object = json!({
        "metadata": {"name": "a", "labels": {"app.kubernetes.io/name": "web"}},
        "spec": {"ports": [{"port": 80}, {"port": 443, "name": "tls"}], "size": 3, "on": true},
        "status": {"conditions": [{"type": "Ready", "status": "False"}, {"type": "Other", "status": "True"}]},
    });
    #[rustfmt::skip]
    let cases = [
        (".metadata.name",                                       json!(["a"])),
        ("{.metadata.name}",                                     json!(["a"])),
        ("$.metadata.name",                                      json!(["a"])),
        (r".metadata.labels.app\.kubernetes\.io/name",           json!(["web"])),
        (r".metadata.labels['app\.kubernetes\.io/name']",        json!(["web"])),
        (".spec['size']",                                        json!([3])),
        (".spec.ports[0].port",                                  json!([80])),
        (".spec.ports[-1].name",                                 json!(["tls"])),
        (".spec.ports[*].port",                                  json!([80, 443])),
        (".spec.ports[0:1].port",                                json!([80])),
        (".spec.ports[7].port",                                  json!([])),
        (r#".status.conditions[?(@.type=="Ready")].status"#,     json!(["False"])),
        (".status.conditions[?(@.type=='Other')].status",        json!(["True"])),
        (".spec.ports[?(@.port>100)].port",                      json!([443])),
        (".spec.ports[?(@.name)].port",                          json!([443])),
        (".spec['size','on']",                                   json!([3, true])),
        ("..port",                                               json!([80, 443])),
        (".nothing.here",                                        json!([])),
        (".metadata.name.deeper",                                json!([])),
    ];
    for (path, expected) in cases {
        let found = JsonPath::parse(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(json!(found.all(&object)), expected, "{path}");
    }
}

#[test]
fn refuses_what_is_no_path() {
    for text in ["spec.a", ".a[", ".a[x]", ".a[?(@.b==\"c\"]", "....", ".a[?(@.b=1)]"] {
        assert!(JsonPath::parse(text).is_err(), "{text}");
    }
}

#[test]
fn knows_its_fields_when_it_has_nothing_else() {
    assert_eq!(JsonPath::parse(".spec.replicas").unwrap().fields(), Some(vec!["spec", "replicas"]));
    assert_eq!(JsonPath::parse(".spec.a[0]").unwrap().fields(), None);
}

proptest! {
    #[test]
    fn no_text_is_too_strange_to_answer(text in r#"[.\[\]?()@='"a-c0-9*:,\\ ]{0,24}"#) {
        if let Ok(path) = JsonPath::parse(&text) {
            path.all(&json!({"a": [{"b": 1}, {"b": [2]}], "b": {"c": "x"}}));
        }
    }
}
