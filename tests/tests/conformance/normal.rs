//! Takes out of an answer what differs from run to run and leaves what must not.
//!
//! A value that is random but meaningful keeps its identity: the first uid of
//! a scenario becomes `UID-1` wherever it shows up, and a resourceVersion that
//! stays the same over two answers has the same name in both.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// The names given so far in one scenario.
#[derive(Default)]
pub(crate) struct Normaliser {
    /// Literal text and what stands for it, longest first when applied.
    literal: Vec<(String, String)>,
    versions: BTreeMap<String, String>,
    uids: BTreeMap<String, String>,
}

impl Normaliser {
    pub(crate) fn new(literal: &[(&str, &str)]) -> Self {
        let literal = literal.iter().map(|(text, name)| ((*text).to_owned(), (*name).to_owned())).collect();
        Normaliser { literal, ..Normaliser::default() }
    }

    pub(crate) fn value(&mut self, value: &mut Value) {
        if *value == json!("404 page not found\n") {
            // A path that no handler has: the embedded server answers that with a Status too.
            *value = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "NotFound",
                "message": "the server could not find the requested resource", "code": 404});
        }
        self.learn_generated_names(value);
        self.walk(value);
    }

    pub(crate) fn text(&mut self, text: &str) -> String {
        let mut out = text.to_owned();
        for (literal, name) in &self.literal {
            out = out.replace(literal, name);
        }
        mask_versions(&mask_times(&without_go(&self.mask_uids(&out))))
    }

    fn walk(&mut self, value: &mut Value) {
        match value {
            Value::Object(map) => {
                // A list's or bookmark's version moves with the whole store, an object's with the object.
                let own = map.contains_key("uid");
                map.remove("storageVersionHash");
                if map.get("details").is_some_and(|details| *details == json!({})) {
                    map.remove("details");
                }
                // Go leaves an empty continue out of some lists and not out of others.
                if map.get("continue").is_some_and(|token| token == "") {
                    map.remove("continue");
                }
                // The describing texts of the columns that every kind has are not ours to repeat.
                let general = |name: &Value| name == "Name" || name == "Age" || name == "Created At";
                if map.contains_key("priority") && map.get("name").is_some_and(general) {
                    map.remove("description");
                }
                let manager = map.contains_key("fieldsV1");
                for (key, inner) in map.iter_mut() {
                    match (key.as_str(), &mut *inner) {
                        ("resourceVersion", Value::String(version)) if !version.is_empty() => {
                            *version = if own { self.version(version) } else { "RV".to_owned() };
                        }
                        ("continue", Value::String(token)) if !token.is_empty() => {
                            *token = "CONTINUE".to_owned();
                        }
                        ("managedFields", Value::Array(managers)) => {
                            self.walk_all(managers);
                            managers.sort_by_key(manager_order);
                        }
                        ("fieldsV1", _) if manager => {}
                        ("cells", Value::Array(cells)) => {
                            self.walk_all(cells);
                            cells
                                .iter_mut()
                                .filter(|cell| is_age(cell))
                                .for_each(|cell| *cell = "AGE".into());
                        }
                        ("resources", Value::Array(resources)) => {
                            self.walk_all(resources);
                            resources.sort_by_key(|resource| resource["name"].to_string());
                        }
                        ("causes", Value::Array(causes)) => {
                            self.walk_all(causes);
                            causes.sort_by_key(|cause| format!("{} {}", cause["field"], cause["message"]));
                        }
                        ("message", Value::String(text)) => *text = sort_faults(&self.text(text)),
                        _ => self.walk(inner),
                    }
                }
            }
            Value::Array(items) => self.walk_all(items),
            Value::String(text) => {
                *text = if is_time(text) { "TIME".to_owned() } else { self.text(text) };
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn walk_all(&mut self, values: &mut [Value]) {
        for value in values {
            self.walk(value);
        }
    }

    fn learn_generated_names(&mut self, value: &Value) {
        if let (Some(prefix), Some(name)) =
            (value["metadata"]["generateName"].as_str(), value["metadata"]["name"].as_str())
            && name.starts_with(prefix)
            && name != prefix
            && !self.literal.iter().any(|(literal, _)| literal == name)
        {
            self.literal.insert(0, (name.to_owned(), format!("{prefix}GENERATED")));
        }
        match value {
            Value::Object(map) => map.values().for_each(|inner| self.learn_generated_names(inner)),
            Value::Array(items) => items.iter().for_each(|inner| self.learn_generated_names(inner)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    fn version(&mut self, version: &str) -> String {
        let next = format!("RV-{}", self.versions.len() + 1);
        self.versions.entry(version.to_owned()).or_insert(next).clone()
    }

    fn mask_uids(&mut self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(start) = rest.char_indices().map(|(at, _)| at).find(|&at| starts_with_uid(&rest[at..]))
        {
            let uid = &rest[start..start + UID_LENGTH];
            let next = format!("UID-{}", self.uids.len() + 1);
            let name = self.uids.entry(uid.to_owned()).or_insert(next);
            out.push_str(&rest[..start]);
            out.push_str(name);
            rest = &rest[start + UID_LENGTH..];
        }
        out + rest
    }
}

/// Takes out what only the real server's inside explains: its storage and the media types of Go clients.
fn without_go(text: &str) -> String {
    let text = text
        .replace(", application/vnd.kubernetes.protobuf", "")
        .replace(", application/apply-patch+cbor", "");
    match (text.find("StorageError: "), text.find("AdditionalErrorMsg: ")) {
        (Some(start), Some(end)) if start < end => format!("{}{}", &text[..start], &text[end + 20..]),
        _ => text,
    }
}

const UID_LENGTH: usize = 36;

fn starts_with_uid(text: &str) -> bool {
    text.len() >= UID_LENGTH
        && text.bytes().take(UID_LENGTH).enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

/// `2026-11-15T20:17:31Z`, with or without a fraction.
fn is_time(text: &str) -> bool {
    let bytes = text.as_bytes();
    (20..=30).contains(&bytes.len())
        && bytes[..4].iter().all(u8::is_ascii_digit)
        && (bytes[4], bytes[7], bytes[10], bytes[13]) == (b'-', b'-', b'T', b':')
        && bytes.ends_with(b"Z")
        && !text.starts_with("2020-")
}

/// Times in sentences.
fn mask_times(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.char_indices().map(|(at, _)| at).find(|&at| starts_with_time(&rest[at..])) {
        out.push_str(&rest[..start]);
        out.push_str("TIME");
        rest = &rest[start + TIME_LENGTH..];
    }
    out + rest
}

const TIME_LENGTH: usize = 20;

fn starts_with_time(text: &str) -> bool {
    text.get(..TIME_LENGTH).is_some_and(is_time)
}

/// Numbers in sentences about resourceVersions.
fn mask_versions(text: &str) -> String {
    if !text.to_ascii_lowercase().replace(' ', "").contains("resourceversion") {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '0'..='9' if out.ends_with('#') => {}
            '0'..='9' if !out.ends_with(|before: char| before.is_alphabetic() || before == '-') => {
                out.push('#');
            }
            _ => out.push(character),
        }
    }
    out
}

/// The age of an object in a table: `0s`, `12s`.
fn is_age(cell: &Value) -> bool {
    let seconds = cell.as_str().and_then(|text| text.strip_suffix('s'));
    seconds.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The real server lists several faults in no order: here they have one.
fn sort_faults(text: &str) -> String {
    let mut lines = text.split('\n').map(str::to_owned).collect::<Vec<_>>();
    if let Some((head, list)) = lines[0].split_once(": [")
        && let Some(list) = list.strip_suffix(']')
    {
        let mut faults = list.split(", ").collect::<Vec<_>>();
        faults.sort_unstable();
        lines[0] = format!("{head}: [{}]", faults.join(", "));
    }
    lines[1..].sort();
    lines.join("\n")
}

fn manager_order(entry: &Value) -> [String; 4] {
    ["operation", "manager", "subresource", "apiVersion"]
        .map(|key| entry[key].as_str().unwrap_or_default().to_owned())
}
