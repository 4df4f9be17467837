//! Reads the few protobuf bodies that kubectl sends although it takes JSON back:
//! reviews, and what `kubectl create` makes of its flags.
//!
//! The wire format is that of Kubernetes: a magic number, an envelope with the
//! type, and the object. Field numbers are public API and never change.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::protobuf_kinds::{Field, Message, message_of};

const MAGIC: &[u8] = b"k8s\0";
const MAX_DEPTH: usize = 16;

/// The object as JSON; `None` if it is not protobuf of a kind that is read here.
pub(crate) fn object(bytes: &[u8]) -> Option<Value> {
    let envelope = fields(bytes.strip_prefix(MAGIC)?)?;
    let bytes_of =
        |number: u32| envelope.iter().find(|(n, _)| *n == number).and_then(|(_, wire)| wire.bytes());
    let names = fields(bytes_of(1).unwrap_or_default())?;
    let name = |number: u32| {
        let found = names.iter().find(|(n, _)| *n == number).and_then(|(_, wire)| wire.bytes());
        std::str::from_utf8(found.unwrap_or_default()).ok()
    };
    let (api_version, kind) = (name(1)?, name(2)?);
    let mut object = read(bytes_of(2).unwrap_or_default(), message_of(kind)?, MAX_DEPTH)?;
    object.insert("apiVersion".into(), json!(api_version));
    object.insert("kind".into(), json!(kind));
    Some(Value::Object(object))
}

/// A field's value as it stands on the wire.
#[derive(Debug, Clone, Copy)]
enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Wire<'a> {
    fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Wire::Bytes(bytes) => Some(bytes),
            Wire::Number(_) => None,
        }
    }
}

fn fields(mut bytes: &[u8]) -> Option<Vec<(u32, Wire<'_>)>> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let value = match tag & 7 {
            0 => Wire::Number(varint(&mut bytes)?),
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).ok()?;
                Wire::Bytes(bytes.split_off(..length)?)
            }
            _ => return None,
        };
        found.push((u32::try_from(tag >> 3).ok()?, value));
    }
    Some(found)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.split_off_first()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn read(bytes: &[u8], message: &Message, depth: usize) -> Option<Map<String, Value>> {
    if depth == 0 {
        return None;
    }
    let mut object = Map::new();
    for (number, wire) in fields(bytes)? {
        // A field that is not listed is one this server has no use for.
        let Some((_, name, field)) = message.0.iter().find(|(n, _, _)| *n == number) else { continue };
        add(&mut object, name, field, wire, depth)?;
    }
    Some(object)
}

/// Empty text and empty messages mean absence, as in Go.
fn add(
    object: &mut Map<String, Value>,
    name: &str,
    field: &Field,
    wire: Wire<'_>,
    depth: usize,
) -> Option<()> {
    match (field, wire) {
        (Field::Bool, Wire::Number(number)) => drop(object.insert(name.into(), json!(number != 0))),
        (Field::Integer, Wire::Number(number)) => drop(object.insert(name.into(), json!(number as i64))),
        (Field::Text, Wire::Bytes([])) => {}
        (Field::Text, Wire::Bytes(bytes)) => drop(object.insert(name.into(), text(bytes)?)),
        (Field::Time, Wire::Bytes([])) => {}
        (Field::Time, Wire::Bytes(bytes)) => drop(object.insert(name.into(), time(bytes)?)),
        (Field::Message(message), Wire::Bytes(bytes)) => {
            let inner = read(bytes, message, depth - 1)?;
            if !inner.is_empty() {
                object.insert(name.into(), Value::Object(inner));
            }
        }
        (Field::Texts, Wire::Bytes(bytes)) => list(object, name).push(text(bytes)?),
        (Field::Messages(message), Wire::Bytes(bytes)) => {
            let inner = read(bytes, message, depth - 1)?;
            list(object, name).push(Value::Object(inner));
        }
        (Field::TextMap, Wire::Bytes(bytes)) => {
            let (key, value) = entry(bytes)?;
            map(object, name).insert(key, text(value)?);
        }
        (Field::BytesMap, Wire::Bytes(bytes)) => {
            let (key, value) = entry(bytes)?;
            map(object, name).insert(key, json!(STANDARD.encode(value)));
        }
        (_, Wire::Number(_)) | (Field::Bool | Field::Integer, Wire::Bytes(_)) => return None,
    }
    Some(())
}

fn text(bytes: &[u8]) -> Option<Value> {
    std::str::from_utf8(bytes).ok().map(Value::from)
}

fn time(bytes: &[u8]) -> Option<Value> {
    let (mut seconds, mut nanos) = (0, 0);
    for (number, wire) in fields(bytes)? {
        match (number, wire) {
            (1, Wire::Number(number)) => seconds = number as i64,
            (2, Wire::Number(number)) => nanos = number as i32,
            _ => {}
        }
    }
    let time = jiff::Timestamp::new(seconds, nanos).ok()?;
    let shown = if nanos == 0 {
        crate::lifecycle::rfc3339(time)
    } else {
        time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
    };
    Some(json!(shown))
}

fn entry(bytes: &[u8]) -> Option<(String, &[u8])> {
    let (mut key, mut value): (&[u8], &[u8]) = (&[], &[]);
    for (number, wire) in fields(bytes)? {
        match number {
            1 => key = wire.bytes()?,
            2 => value = wire.bytes()?,
            _ => {}
        }
    }
    Some((std::str::from_utf8(key).ok()?.to_owned(), value))
}

fn list<'a>(object: &'a mut Map<String, Value>, name: &str) -> &'a mut Vec<Value> {
    let place = object.entry(name).or_insert_with(|| json!([]));
    place.as_array_mut().expect("a repeated field is always a list")
}

fn map<'a>(object: &'a mut Map<String, Value>, name: &str) -> &'a mut Map<String, Value> {
    let place = object.entry(name).or_insert_with(|| json!({}));
    place.as_object_mut().expect("a map field is always a map")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One length-delimited field.
    fn put(number: u8, content: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, content.len() as u8], content].concat()
    }

    fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
        let names = [put(1, api_version.as_bytes()), put(2, kind.as_bytes())].concat();
        [MAGIC.to_vec(), put(1, &names), put(2, raw), put(3, b""), put(4, b"")].concat()
    }

    #[test]
    fn reads_what_kubectl_create_sends() {
        let metadata =
            [put(1, b"c1"), put(2, b""), put(8, b""), put(11, &[put(1, b"a"), put(2, b"b")].concat())]
                .concat();
        let data = put(2, &[put(1, b"key"), put(2, b"value")].concat());
        let bytes = envelope("v1", "ConfigMap", &[put(1, &metadata), data.clone(), vec![4 << 3, 1]].concat());
        let expected = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c1", "labels": {"a": "b"}},
            "data": {"key": "value"}, "immutable": true,
        });
        assert_eq!(object(&bytes), Some(expected));
        let secret = object(&envelope("v1", "Secret", &data)).unwrap();
        assert_eq!(secret["data"]["key"], "dmFsdWU=");
    }

    #[test]
    fn refuses_what_it_does_not_know_or_cannot_read() {
        let good = envelope("v1", "Namespace", &put(1, &put(1, b"n")));
        assert!(object(&good).is_some());
        assert_eq!(object(&envelope("v1", "Pod", b"")), None);
        assert_eq!(object(b"{}"), None);
        for cut in 0..good.len() - 4 {
            let _ = object(&good[..cut]);
        }
        assert_eq!(object(&[MAGIC, &[0xff; 20]].concat()), None);
    }
}
