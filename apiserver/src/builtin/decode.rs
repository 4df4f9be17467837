//! What makes an object of a built-in kind unreadable for the real server: bytes that are not in base64.

use serde_json::Value;

use crate::kind::Kind;

/// Where the built-in kinds hold bytes; `*` is every element of a list or map.
const BYTES: [(&str, &[&str]); 4] = [
    ("Secret", &["data", "*"]),
    ("ConfigMap", &["binaryData", "*"]),
    ("ValidatingWebhookConfiguration", &["webhooks", "*", "clientConfig", "caBundle"]),
    ("CustomResourceDefinition", &["spec", "conversion", "webhook", "clientConfig", "caBundle"]),
];

/// Why the object cannot be taken for one of its kind, if so.
pub(crate) fn undecodable(kind: &Kind, object: &Value) -> Option<String> {
    let (_, path) = BYTES.iter().find(|(name, _)| kind.built_in && kind.kind == *name)?;
    let offset = first_illegal_in(object, path)?;
    Some(format!("illegal base64 data at input byte {offset}"))
}

fn first_illegal_in(value: &Value, path: &[&str]) -> Option<usize> {
    match (path, value) {
        ([], Value::String(text)) => first_illegal(text),
        (["*", rest @ ..], Value::Array(items)) => items.iter().find_map(|item| first_illegal_in(item, rest)),
        (["*", rest @ ..], Value::Object(map)) => map.values().find_map(|item| first_illegal_in(item, rest)),
        ([step, rest @ ..], Value::Object(map)) => first_illegal_in(map.get(*step)?, rest),
        _ => None,
    }
}

/// Where text stops being base64, as the real server counts it; line ends do not matter.
fn first_illegal(text: &str) -> Option<usize> {
    let mut characters = text.bytes().enumerate().filter(|(_, byte)| !matches!(byte, b'\r' | b'\n'));
    let mut filled = 0;
    while let Some((at, byte)) = characters.next() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'+' | b'/' => filled = (filled + 1) % 4,
            b'=' if filled == 2 => {
                return match characters.next() {
                    None => Some(text.len()),
                    Some((_, b'=')) => characters.next().map(|(at, _)| at),
                    Some((at, _)) => Some(at),
                };
            }
            b'=' if filled == 3 => return characters.next().map(|(at, _)| at),
            _ => return Some(at),
        }
    }
    (filled > 0).then(|| text.len() - filled)
}

#[cfg(test)]
mod tests {
    use super::first_illegal;

    #[test]
    fn finds_where_base64_ends() {
        #[rustfmt::skip]
        let cases = [
            ("",            None),
            ("d29ybGQ=",    None),
            ("d29y\nbGQ=\n", None),
            ("aGVsbG8h",    None),
            ("YQ==",        None),
            ("not base64!", Some(3)),
            ("YQ=",         Some(3)),
            ("YQ=x",        Some(3)),
            ("YQ==x",       Some(4)),
            ("=YQ=",        Some(0)),
            ("YWJjZA",      Some(4)),
        ];
        for (text, expected) in cases {
            assert_eq!(first_illegal(text), expected, "{text:?}");
        }
    }
}
