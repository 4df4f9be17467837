use proptest::prelude::*;
use serde_json::json;

use super::*;

fn selector(text: &str) -> LabelSelector {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn selects_as_the_real_server_does() {
    let labels = json!({"app": "web", "tier": "a", "size": "7", "empty": ""});
    #[rustfmt::skip]
    let cases = [
        ("",                       true),
        ("app=web",                true),
        ("app==web",               true),
        ("app!=web",               false),
        ("other!=web",             true),
        ("app=web,tier=b",         false),
        ("tier in (a, b)",         true),
        ("tier notin (a,b)",       false),
        ("other notin (a)",        true),
        ("other in (a)",           false),
        ("app",                    true),
        ("!app",                   false),
        ("! other",                true),
        ("empty=",                 true),
        ("empty in ()",            true),
        ("size>6",                 true),
        ("size<6",                 false),
        ("app>6",                  false),
        ("in in (in,notin)",       false),
        (" app = web , tier ",     true),
    ];
    for (text, expected) in cases {
        assert_eq!(selector(text).matches(Some(&labels)), expected, "{text}");
    }
    assert!(selector("!a").matches(None));
    assert!(!selector("a").matches(None));
}

#[test]
fn refuses_with_the_real_servers_words() {
    #[rustfmt::skip]
    let cases = [
        (",a",         "found ',', expected: !, identifier, or 'end of string'"),
        ("a,",         "found '', expected: identifier after ','"),
        ("a=b c",      "found 'c', expected: ',' or 'end of string'"),
        ("a b",        "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
        ("a in b",     "unable to parse requirement: found 'b' expected: '('"),
        ("a in (b",    "unable to parse requirement: found '', expected: ',' or ')'"),
        ("!",          "unable to parse requirement: found '', expected: identifier"),
        ("a=(b)",      "unable to parse requirement: found '(', expected: identifier"),
        ("!a=b",       "found '=', expected: ',' or 'end of string'"),
        ("a>b",        "unable to parse requirement: values[0]: Invalid value: \"b\": for 'Gt', 'Lt' operators, the value must be an integer"),
    ];
    for (text, expected) in cases {
        let error = text.parse::<LabelSelector>().unwrap_err();
        assert_eq!(error.message, expected, "{text}");
        assert_eq!(error.reason, Reason::BadRequest);
    }
    let error = "a=b$".parse::<LabelSelector>().unwrap_err();
    assert!(
        error
            .message
            .starts_with("unable to parse requirement: values[0][a]: Invalid value: \"b$\": a valid label")
    );
    let error = "$".parse::<LabelSelector>().unwrap_err();
    assert!(
        error.message.starts_with("unable to parse requirement: <nil>: Invalid value: \"$\": name part must")
    );
}

#[test]
fn reads_the_object_form() {
    let object = json!({"matchLabels": {"app": "web"}, "matchExpressions": [
        {"key": "tier", "operator": "In", "values": ["b", "a"]}, {"key": "old", "operator": "DoesNotExist"}]});
    assert_eq!(LabelSelector::from_object(Some(&object)).unwrap().to_string(), "app=web,!old,tier in (a,b)");
    assert!(LabelSelector::from_object(None).unwrap().is_empty());
    let wrong = json!({"matchExpressions": [{"key": "tier", "operator": "Near"}]});
    assert_eq!(
        LabelSelector::from_object(Some(&wrong)).unwrap_err().message,
        "\"Near\" is not a valid label selector operator"
    );
}

fn requirement() -> impl Strategy<Value = String> {
    let word = "[a-z][a-z0-9.-]{0,5}[a-z0-9]";
    let key = prop_oneof![word.boxed(), "[a-z]{1,5}[.][a-z]{2}/[a-zA-Z]{1,5}".boxed()];
    let values = proptest::collection::vec(prop_oneof![word.boxed(), Just(String::new()).boxed()], 1..4);
    (key, values, 0..8usize).prop_map(|(key, values, form)| match form {
        0 => key,
        1 => format!("!{key}"),
        2 => format!("{key}={}", values[0]),
        3 => format!("{key}!={}", values[0]),
        4 => format!("{key} in ({})", values.join(",")),
        5 => format!("{key} notin ({})", values.join(", ")),
        6 => format!("{key}>{}", values.len()),
        _ => format!("{key} == {}", values[0]),
    })
}

proptest! {
    #[test]
    fn what_is_written_reads_back_equal(parts in proptest::collection::vec(requirement(), 0..5)) {
        let parsed = selector(&parts.join(","));
        prop_assert_eq!(selector(&parsed.to_string()), parsed);
    }

    #[test]
    fn no_text_is_too_strange_to_answer(text in ".{0,40}") {
        let _ = text.parse::<LabelSelector>();
    }

    #[test]
    fn a_selector_and_its_opposite_part_the_world(value in proptest::option::of("[a-c]")) {
        let labels = value.map(|value| json!({"k": value})).unwrap_or_else(|| json!({}));
        for (one, other) in [("k=a", "k!=a"), ("k in (a,b)", "k notin (a,b)"), ("k", "!k")] {
            prop_assert_ne!(selector(one).matches(Some(&labels)), selector(other).matches(Some(&labels)));
        }
    }
}
