use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::builtin::builtin_kinds;

fn kind(name: &str) -> Kind {
    builtin_kinds().into_iter().find(|kind| kind.kind == name).unwrap()
}

fn parse(kind_name: &str, text: &str) -> Result<FieldSelector, ApiError> {
    let kind = kind(kind_name);
    FieldSelector::parse(text, &kind, &kind.versions[0])
}

#[test]
fn selects_as_the_real_server_does() {
    let pod = json!({"metadata": {"name": "a", "namespace": "n"}, "spec": {"nodeName": "n1"},
        "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}]}});
    #[rustfmt::skip]
    let cases = [
        ("",                                          true),
        ("metadata.name=a",                           true),
        ("metadata.name==a,metadata.namespace=n",     true),
        ("metadata.name!=a",                          false),
        ("spec.nodeName=n1,status.phase=Running",     true),
        ("status.phase!=Running",                     false),
        ("status.podIP=",                             true),
        ("status.podIPs=10.0.0.1",                    true),
        ("spec.hostNetwork=false",                    true),
    ];
    for (text, expected) in cases {
        assert_eq!(parse("Pod", text).unwrap().matches(&pod), expected, "{text}");
    }
}

#[test]
fn refuses_with_the_real_servers_words() {
    #[rustfmt::skip]
    let cases = [
        ("Pod",       "spec.colour=red",     "field label not supported: spec.colour"),
        ("Node",      "metadata.namespace=", "field label not supported: metadata.namespace"),
        ("ConfigMap", "data=1",              "\"data\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\""),
        ("Pod",       "metadata.name",       "invalid selector: 'metadata.name'; can't understand 'metadata.name'"),
        ("Pod",       "metadata.name=a=b",   "invalid field selector: unescaped character in value: 61"),
        ("Pod",       "metadata.name=a\\b",  "invalid field selector: invalid escape sequence: \\b"),
    ];
    for (kind, text, expected) in cases {
        assert_eq!(parse(kind, text).unwrap_err().message, expected, "{text}");
    }
}

#[test]
fn knows_the_one_name_a_request_asks_for() {
    let selector = parse("Pod", "metadata.name=a,status.phase!=Failed").unwrap();
    assert_eq!(selector.required("metadata.name"), Some("a"));
    assert_eq!(selector.required("status.phase"), None);
}

proptest! {
    #[test]
    fn what_is_written_reads_back_equal(values in proptest::collection::vec((".{0,6}", any::<bool>()), 0..4)) {
        let terms = values.into_iter().map(|(value, equal)| Term { field: "a.b".into(), value, equal });
        let mut selector = FieldSelector { terms: terms.collect() };
        selector.terms.sort();
        prop_assert_eq!(FieldSelector::syntax(&selector.to_string()).unwrap(), selector);
    }

    #[test]
    fn no_text_is_too_strange_to_answer(text in ".{0,40}") {
        let _ = FieldSelector::syntax(&text);
    }
}
