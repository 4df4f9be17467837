//! What the real server answered, kept in files, and how an answer is held against it.
//!
//! One file per area, one entry per scenario, one record per step. Recorded
//! with `MIDFLIGHT_RECORD=1 dev/kubernetes test --test conformance`.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

/// The records of one area, by scenario.
pub(crate) type Golden = BTreeMap<String, Vec<Value>>;

fn path(area: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/golden").join(format!("{area}.json"))
}

pub(crate) fn read(area: &str) -> Golden {
    fs::read(path(area)).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

pub(crate) fn write(area: &str, golden: &Golden) -> anyhow::Result<()> {
    let path = path(area);
    fs::create_dir_all(path.parent().expect("the file stands in a folder"))?;
    fs::write(path, serde_json::to_string_pretty(golden)? + "\n")?;
    Ok(())
}

/// Where two values differ: `/body/spec/size: wanted 1, got 2`.
pub(crate) fn differences(wanted: &Value, got: &Value) -> Vec<String> {
    let mut found = Vec::new();
    compare("", wanted, got, &mut found);
    found
}

/// Go's types write a time or a source that was never set; leaving it out says the same.
fn says_nothing(key: &str, value: &Value) -> bool {
    let time = key.ends_with("Time") || key.ends_with("Timestamp");
    let source = key.eq_ignore_ascii_case("source") || key == "deprecatedSource";
    (time && value.is_null()) || (source && value.as_object().is_some_and(|fields| fields.is_empty()))
}

/// Whether a text is how a library of Go words a fault: that it is told matters, not how.
fn in_words_of_go(text: &str) -> bool {
    const MARKS: &[&str] = &[
        "json:",
        "json parse error",
        "end of JSON input",
        "looking for beginning of value",
        "strconv.",
        "yaml:",
        "YAML",
        "unmarshal",
        "Go struct",
        "Go value",
        "parsing time",
        "is missing in '",
        "our request due to an error",
        "DeprecationWarning",
    ];
    MARKS.iter().any(|mark| text.contains(mark))
}

fn compare(at: &str, wanted: &Value, got: &Value, found: &mut Vec<String>) {
    match (wanted, got) {
        (Value::Object(left), Value::Object(right)) => {
            for (key, value) in left {
                match right.get(key) {
                    Some(other) => compare(&format!("{at}/{key}"), value, other, found),
                    None if says_nothing(key, value) => {}
                    None => found.push(format!("{at}/{key}: missing, wanted {value}")),
                }
            }
            for (key, value) in right.iter().filter(|(key, _)| !left.contains_key(*key)) {
                found.push(format!("{at}/{key}: not wanted, got {value}"));
            }
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            for (index, (value, other)) in left.iter().zip(right).enumerate() {
                compare(&format!("{at}/{index}"), value, other, found);
            }
        }
        (Value::String(text), Value::String(_)) if in_words_of_go(text) => {}
        _ if wanted == got => {}
        _ => found.push(format!("{at}: wanted {wanted}\n      {:width$}  got {got}", "", width = at.len())),
    }
}

/// The comparison judges everything else, so it is judged first: what it must and must not let pass.
pub(crate) fn check_the_comparison() -> anyhow::Result<()> {
    #[rustfmt::skip]
    let cases = [
        (json!({"a": [1, 2]}),             json!({"a": [1, 2]}),             true),
        (json!({"a": [1, 2]}),             json!({"a": [1]}),                false),
        (json!({"a": 1}),                  json!({"a": "1"}),                false),
        (json!({}),                        json!({"a": 1}),                  false),
        (json!({"lastTime": null}),        json!({}),                        true),
        (json!({"message": "json: bad"}),  json!({"message": "another"}),    true),
        (json!({"message": "json: bad"}),  json!({}),                        false),
        (json!({"message": "json: bad"}),  json!({"message": null}),         false),
        (json!({"message": "json: bad"}),  json!({"message": {"code": 1}}),  false),
    ];
    for (wanted, got, passes) in cases {
        let found = differences(&wanted, &got);
        anyhow::ensure!(found.is_empty() == passes, "{wanted} compared with {got} gives {found:?}");
    }
    Ok(())
}
