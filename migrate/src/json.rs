//! The one form in which migrations write JSON: compact, with sorted keys, and with the numbers that were read.
//!
//! The one invariant: equal values have equal bytes, whichever kind of
//! migration wrote them and however the libraries were built.

use serde_json::{Map, Number, Value};

/// The largest row a migration may read or write: what etcd takes in one request.
pub const MAX_ROW: usize = 1536 * 1024;

/// Appends the canonical form of an object.
pub(crate) fn write_object(out: &mut Vec<u8>, object: &Map<String, Value>) {
    let mut separator = b'{';
    let mut entry = |(name, value): (&String, &Value)| {
        out.push(std::mem::replace(&mut separator, b','));
        write_text(out, name);
        out.push(b':');
        write_value(out, value);
    };
    if object.keys().is_sorted() {
        object.iter().for_each(entry);
    } else {
        let mut entries: Vec<_> = object.iter().collect();
        entries.sort_unstable_by_key(|(name, _)| *name);
        entries.into_iter().for_each(&mut entry);
    }
    if object.is_empty() {
        out.push(b'{');
    }
    out.push(b'}');
}

/// Appends the canonical form of any value.
pub(crate) fn write_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Object(object) => write_object(out, object),
        Value::Array(items) => {
            let mut separator = b'[';
            for item in items {
                out.push(std::mem::replace(&mut separator, b','));
                write_value(out, item);
            }
            if items.is_empty() {
                out.push(b'[');
            }
            out.push(b']');
        }
        Value::String(text) => write_text(out, text),
        Value::Null | Value::Bool(_) | Value::Number(_) => {
            serde_json::to_writer(out, value).expect("writing to memory cannot fail");
        }
    }
}

/// Appends a string in quotes. Nearly all of them are copied as they are.
pub(crate) fn write_text(out: &mut Vec<u8>, text: &str) {
    if text.as_bytes().chunks(64).any(has_special) {
        serde_json::to_writer(out, text).expect("writing to memory cannot fail");
    } else {
        out.push(b'"');
        out.extend_from_slice(text.as_bytes());
        out.push(b'"');
    }
}

/// Whether a byte cannot stand in a string as it is. Looks at all of them, many at a time.
fn has_special(bytes: &[u8]) -> bool {
    bytes.iter().fold(false, |found, &byte| found | (byte < 0x20) | (byte == b'"') | (byte == b'\\'))
}

/// Whether a number in it is kept as a double. All that would lose digits is read as one, and nearly no row holds any.
pub(crate) fn has_fraction(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.is_f64(),
        Value::Array(items) => items.iter().any(has_fraction),
        Value::Object(object) => object.values().any(has_fraction),
        Value::Null | Value::Bool(_) | Value::String(_) => false,
    }
}

/// Numbers in a text of JSON that would be others once they were written again, in order: whole numbers beyond 64
/// bits, and fractions with more digits than a double has.
pub(crate) fn inexact(text: &[u8]) -> Vec<&str> {
    let mut found: Vec<&str> = numbers(text).filter(|number| !is_exact(number)).collect();
    found.sort_unstable();
    found
}

/// One of those numbers that `after` still holds.
pub(crate) fn inexact_in<'t>(text: &'t [u8], after: &Value) -> Option<&'t str> {
    if !has_fraction(after) {
        return None;
    }
    // Read in the same way as `after` was.
    let read = |number: &str| serde_json::from_str::<Number>(number).ok()?.as_f64();
    inexact(text).into_iter().find(|number| read(number).is_some_and(|double| holds(after, double)))
}

/// What is said of such a number.
pub(crate) fn too_long(number: &str) -> String {
    format!("the number {number} has more digits than are kept (64 bits, or those of a double)")
}

fn holds(value: &Value, double: f64) -> bool {
    match value {
        Value::Number(number) => number.is_f64() && number.as_f64() == Some(double),
        Value::Array(items) => items.iter().any(|item| holds(item, double)),
        Value::Object(object) => object.values().any(|member| holds(member, double)),
        Value::Null | Value::Bool(_) | Value::String(_) => false,
    }
}

fn is_exact(number: &str) -> bool {
    match serde_json::from_str::<Number>(number) {
        Ok(kept) if kept.is_f64() => {
            let (was, is) = (Decimal::of(number), Decimal::of(&kept.to_string()));
            // A whole number would come back as a fraction.
            was == is && (number.contains(['.', 'e', 'E']) || was.digits.is_empty())
        }
        Ok(_) => true,
        Err(_) => false,
    }
}

/// The numbers in a text of JSON.
fn numbers(text: &[u8]) -> impl Iterator<Item = &str> {
    let mut at = 0;
    std::iter::from_fn(move || {
        while let Some(&byte) = text.get(at) {
            match byte {
                b'"' => at = end_of_text(text, at),
                b'-' | b'0'..=b'9' => {
                    let of_number =
                        |byte: &u8| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
                    let length = text[at..].iter().take_while(|byte| of_number(byte)).count();
                    let number = &text[at..at + length];
                    at += length;
                    return std::str::from_utf8(number).ok();
                }
                _ => at += 1,
            }
        }
        None
    })
}

/// Where the string ends that begins here.
fn end_of_text(text: &[u8], begin: usize) -> usize {
    let mut at = begin + 1;
    while let Some(&byte) = text.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    at
}

/// A number as digits and the place of the last of them: the same for every way to write it.
#[derive(Debug, PartialEq, Eq)]
struct Decimal {
    digits: String,
    exponent: i64,
}

impl Decimal {
    fn of(number: &str) -> Decimal {
        let number = number.trim_start_matches('-');
        let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all = format!("{whole}{fraction}");
        let digits = all.trim_start_matches('0').trim_end_matches('0').to_owned();
        if digits.is_empty() {
            return Decimal { digits, exponent: 0 };
        }
        let zeros = all.len() - all.trim_end_matches('0').len();
        let exponent = exponent.trim_start_matches('+').parse::<i64>().unwrap_or(i64::MAX);
        Decimal {
            digits,
            exponent: exponent.saturating_add(zeros as i64).saturating_sub(fraction.len() as i64),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_that_are_not_kept_are_found() {
        #[rustfmt::skip]
        let cases = [
            ("64 bits",         "[18446744073709551615, -9223372036854775808]", vec![]),
            ("beyond",          "[18446744073709551617, 1]",                    vec!["18446744073709551617"]),
            ("a round one",     "[100000000000000000000, 1e300, -0, 0.0]",      vec!["100000000000000000000"]),
            ("as Python says",  "[0.1, 5e-324, 0.30000000000000004, 1.7976931348623157e308]", vec![]),
            ("written longer",  "[0.10, 1.50e+1, 1E5]",                         vec![]),
            ("digits too many", r#"{"a": 0.1000000000000000055}"#,              vec!["0.1000000000000000055"]),
            ("too small",       "1e-400",                                       vec!["1e-400"]),
            ("in a string",     r#"["18446744073709551617", "a\\", "\"0.1000000000000000055"]"#, vec![]),
        ];
        for (name, text, expected) in cases {
            assert_eq!(inexact(text.as_bytes()), expected, "{name}");
        }
    }

    #[test]
    fn a_number_that_is_gone_is_not_lost() {
        let text = br#"{"a": 18446744073709551617, "b": 0.5}"#;
        let after = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        assert_eq!(inexact_in(text, &after(r#"{"b": 0.5, "new": 1}"#)), None);
        let kept = after(r#"{"deep": [{"a": 18446744073709551617}]}"#);
        assert_eq!(inexact_in(text, &kept), Some("18446744073709551617"));
    }

    proptest! {
        #[test]
        fn every_number_is_kept_or_found(numbers in prop::collection::vec("-?(0|[1-9][0-9]{0,24})(\\.[0-9]{1,20})?(e-?[0-9]{1,2})?", 1..5)) {
            let text = format!(r#"{{"x": [{}]}}"#, numbers.join(" , "));
            let value: Value = serde_json::from_str(&text).unwrap();
            let mut out = vec![];
            write_value(&mut out, &value);
            let kept: Vec<&str> = super::numbers(&out).collect();
            let lost = inexact(text.as_bytes());
            prop_assert_eq!(kept.len(), numbers.len());
            for (number, kept) in numbers.iter().zip(kept) {
                let same = Decimal::of(number) == Decimal::of(kept);
                let long = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-') && number.len() > 19;
                prop_assert!(same || lost.contains(&number.as_str()), "{} became {}", number, kept);
                prop_assert!(!same || long || !lost.contains(&number.as_str()), "{} is {}", number, kept);
            }
            prop_assert_eq!(inexact_in(text.as_bytes(), &value), lost.first().copied());
        }
    }

    #[test]
    fn sorts_keys_at_every_depth() {
        let value: Value =
            serde_json::from_str(r#"{ "b": [ {"z":1, "a":2} ], "a": {"y":null,"x":1.5} }"#).unwrap();
        let mut out = vec![];
        write_value(&mut out, &value);
        assert_eq!(out, br#"{"a":{"x":1.5,"y":null},"b":[{"a":2,"z":1}]}"#);
    }
    #[test]
    fn writes_what_the_library_writes() {
        let texts = ["", "plain", "ü\u{7f}\u{80}", "a\"b", "a\\b", "line\nbreak", "\u{1}", "x\u{0}"];
        for text in texts {
            for padding in [0, 1, 63, 64, 65, 200] {
                let value = Value::from(format!("{}{text}", "y".repeat(padding)));
                let mut out = vec![];
                write_value(&mut out, &value);
                assert_eq!(out, serde_json::to_vec(&value).unwrap());
            }
        }
        for text in ["{}", "[]", "[[],{}]", r#"{"a":[1,-2,3.5,null,true],"b":{}}"#, "1e300", "17"] {
            let value: Value = serde_json::from_str(text).unwrap();
            let mut out = vec![];
            write_value(&mut out, &value);
            assert_eq!(out, serde_json::to_vec(&value).unwrap());
        }
    }
}
