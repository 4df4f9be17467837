//! The syntax of names, label keys and label values.
//!
//! Each check returns what is wrong in the words of the real server; an empty
//! list means that the value is well formed.

use crate::schema::show_value;

const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const SUBDOMAIN: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const LABEL_KEY: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const LABEL_KEY_RULE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";

/// A lowercase RFC 1123 label: names of namespaces, for one.
pub fn dns_label(value: &str) -> Vec<String> {
    let mut wrong = too_long(value, 63, "characters");
    if !is_label(value) {
        if is_subdomain(value) {
            wrong.push("must not contain dots".into());
        } else {
            wrong.push(rule(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character",
                LABEL,
                &["my-name", "123-abc"],
            ));
        }
    }
    wrong
}

/// A lowercase RFC 1123 subdomain: names of most objects.
pub fn dns_subdomain(value: &str) -> Vec<String> {
    let mut wrong = too_long(value, 253, "characters");
    if !is_subdomain(value) {
        wrong.push(rule(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character",
            SUBDOMAIN,
            &["example.com"],
        ));
    }
    wrong
}

/// A DNS-1035 label: plurals, singulars and short names of custom resources.
pub fn dns1035_label(value: &str) -> Vec<String> {
    let mut wrong = too_long(value, 63, "characters");
    if !is_label(value) || !value.starts_with(|c: char| c.is_ascii_lowercase()) {
        wrong.push(rule(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character",
            "[a-z]([-a-z0-9]*[a-z0-9])?",
            &["my-name", "abc-123"],
        ));
    }
    wrong
}

/// A name that may stand in a URL path; what holds for kinds without a stricter rule.
pub fn path_segment(value: &str) -> Vec<String> {
    if value == "." || value == ".." {
        return vec![format!("may not be '{value}'")];
    }
    ["/", "%"]
        .into_iter()
        .filter(|bad| value.contains(bad))
        .map(|bad| format!("may not contain '{bad}'"))
        .collect()
}

/// `[prefix/]name`: keys of labels and annotations, finalizers.
pub fn label_key(value: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let parts: Vec<&str> = value.split('/').collect();
    let name = match parts[..] {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                wrong.push("prefix part must be non-empty".into());
            } else {
                wrong.extend(dns_subdomain(prefix).into_iter().map(|text| format!("prefix part {text}")));
            }
            name
        }
        _ => {
            let rule = rule(LABEL_KEY_RULE, LABEL_KEY, &["MyName", "my.name", "123-abc"]);
            return vec![format!(
                "a valid label key {rule} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
    };
    if name.is_empty() {
        wrong.push("name part must be non-empty".into());
    } else if name.len() > 63 {
        wrong.push("name part must be no more than 63 bytes".into());
    }
    if !is_label_word(name) {
        let rule = rule(LABEL_KEY_RULE, LABEL_KEY, &["MyName", "my.name", "123-abc"]);
        wrong.push(format!("name part {rule}"));
    }
    wrong
}

pub fn label_value(value: &str) -> Vec<String> {
    let mut wrong = too_long(value, 63, "bytes");
    if !value.is_empty() && !is_label_word(value) {
        wrong.push(rule(
            &format!("a valid label must be an empty string or {}", LABEL_KEY_RULE.replacen("must ", "", 1)),
            &format!("({LABEL_KEY})?"),
            &["MyValue", "my_value", "12345"],
        ));
    }
    wrong
}

/// A string as the real server shows it in messages.
pub(crate) fn quoted(text: &str) -> String {
    show_value(&text.into())
}

/// The real server counts bytes whatever it calls them.
fn too_long(value: &str, limit: usize, unit: &str) -> Vec<String> {
    if value.len() > limit { vec![format!("must be no more than {limit} {unit}")] } else { Vec::new() }
}

fn rule(words: &str, regex: &str, examples: &[&str]) -> String {
    let examples: Vec<String> = examples.iter().map(|example| format!("'{example}', ")).collect();
    format!("{words} (e.g. {}regex used for validation is '{regex}')", examples.join(" or "))
}

fn is_label(value: &str) -> bool {
    let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    framed(value.as_bytes(), inner, |c| inner(c) || c == b'-')
}

fn is_subdomain(value: &str) -> bool {
    value.split('.').all(is_label)
}

fn is_label_word(value: &str) -> bool {
    framed(
        value.as_bytes(),
        |c| c.is_ascii_alphanumeric(),
        |c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.'),
    )
}

/// Whether the ends satisfy `edge` and all that is between them `inner`.
fn framed(bytes: &[u8], edge: impl Fn(u8) -> bool, inner: impl Fn(u8) -> bool) -> bool {
    match bytes {
        [] => false,
        [only] => edge(*only),
        [first, middle @ .., last] => edge(*first) && edge(*last) && middle.iter().all(|c| inner(*c)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Check = fn(&str) -> Vec<String>;

    #[test]
    fn accepts_what_the_real_server_accepts() {
        #[rustfmt::skip]
        let cases: &[(Check, &str, bool)] = &[
            (dns_label, "a", true), (dns_label, "a-1", true), (dns_label, "a.b", false), (dns_label, "-a", false),
            (dns_label, "A", false), (dns_label, "", false), (dns_label, "a_b", false),
            (dns_subdomain, "a.b-c", true), (dns_subdomain, "a..b", false), (dns_subdomain, ".a", false),
            (dns1035_label, "a1", true), (dns1035_label, "1a", false),
            (label_key, "a", true), (label_key, "example.com/A_b", true), (label_key, "/a", false),
            (label_key, "a/", false), (label_key, "a/b/c", false), (label_key, "A.b/c", false),
            (label_value, "", true), (label_value, "A.b_c-1", true), (label_value, "-a", false),
            (path_segment, "a:b", true), (path_segment, "..", false), (path_segment, "a/b", false),
        ];
        for (check, value, good) in cases {
            assert_eq!(check(value).is_empty(), *good, "{value:?}: {:?}", check(value));
        }
    }

    #[test]
    fn says_what_is_wrong_in_the_real_servers_words() {
        assert_eq!(
            dns_subdomain("A_b"),
            [
                r"a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
            ]
        );
        assert_eq!(
            label_value("a b"),
            [
                "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
            ]
        );
        assert_eq!(dns_label("a.b"), ["must not contain dots"]);
    }
}
