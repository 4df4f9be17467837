//! How one change of one object lies on disk.
//!
//! ```text
//! row key    version
//! row value  crc32 (4) | tag (1) | length of key (4) | key | JSON      little endian
//! key        group / plural / namespace / name                        namespace is empty for cluster-scoped kinds
//! ```
//!
//! The tag says whether the object is there or deleted; a deletion has no JSON.
//! The crc covers the version and all that follows it.
//!
//! The one invariant: a record that decodes is the record that was encoded.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::kind::ResourceId;
use crate::store::history::Event;
use crate::store::key::{Key, Version};

const HEADER: usize = 9;
const DELETED: u8 = 0;
const PRESENT: u8 = 1;

/// What one record says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) key: Key,
    /// `None` for a deletion.
    pub(super) json: Option<Bytes>,
}

/// Why a record is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Damage {
    #[error("it is too short")]
    Short,

    #[error("its checksum does not match")]
    Checksum,

    #[error("its key has not four parts")]
    Key,

    #[error("it has an unknown tag")]
    Tag,
}

pub(super) fn encode(event: &Event) -> Vec<u8> {
    let Key { resource: ResourceId { group, plural }, namespace, name } = &event.key;
    let namespace = namespace.as_deref().unwrap_or_default();
    let key = [&**group, "/", plural, "/", namespace, "/", name];
    let length: usize = key.iter().map(|part| part.len()).sum();
    let (tag, json) = match &event.after {
        Some(stored) => (PRESENT, &stored.bytes[..]),
        None => (DELETED, &[][..]),
    };

    let mut value = Vec::with_capacity(HEADER + length + json.len());
    value.extend_from_slice(&[0; 4]);
    value.push(tag);
    value.extend_from_slice(&u32::try_from(length).expect("a key is far shorter than 4 GiB").to_le_bytes());
    for part in key {
        value.extend_from_slice(part.as_bytes());
    }
    value.extend_from_slice(json);
    let crc = checksum(event.version, &value[4..]);
    value[..4].copy_from_slice(&crc.to_le_bytes());
    value
}

/// Reads records. Remembers the resources it met, so that all objects of a
/// resource share its name.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    resources: HashMap<String, ResourceId>,
}

impl Decoder {
    pub(super) fn decode(&mut self, version: Version, value: &[u8]) -> Result<Record, Damage> {
        let (crc, covered) = value.split_first_chunk::<4>().ok_or(Damage::Short)?;
        if u32::from_le_bytes(*crc) != checksum(version, covered) {
            return Err(Damage::Checksum);
        }
        let (tag, rest) = covered.split_first().ok_or(Damage::Short)?;
        let (length, rest) = rest.split_first_chunk::<4>().ok_or(Damage::Short)?;
        let (key, json) = rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or(Damage::Short)?;
        let key = self.key(std::str::from_utf8(key).map_err(|_| Damage::Key)?)?;
        match *tag {
            DELETED => Ok(Record { key, json: None }),
            PRESENT => Ok(Record { key, json: Some(Bytes::copy_from_slice(json)) }),
            _ => Err(Damage::Tag),
        }
    }

    fn key(&mut self, text: &str) -> Result<Key, Damage> {
        let slash = text.match_indices('/').nth(1).ok_or(Damage::Key)?.0;
        let (resource, path) = (&text[..slash], &text[slash + 1..]);
        let (namespace, name) = path.split_once('/').ok_or(Damage::Key)?;
        let namespace = (!namespace.is_empty()).then(|| Arc::from(namespace));
        Ok(Key { resource: self.resource(resource)?, namespace, name: name.into() })
    }

    fn resource(&mut self, text: &str) -> Result<ResourceId, Damage> {
        if let Some(known) = self.resources.get(text) {
            return Ok(known.clone());
        }
        let (group, plural) = text.split_once('/').ok_or(Damage::Key)?;
        let resource = ResourceId { group: group.into(), plural: plural.into() };
        self.resources.insert(text.to_owned(), resource.clone());
        Ok(resource)
    }
}

fn checksum(version: Version, covered: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&version.get().to_le_bytes());
    crc.update(covered);
    crc.finalize()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::store::body::Stored;

    fn event(namespace: Option<&str>, name: &str, json: Option<&str>) -> Event {
        let version = Version::new(77);
        let resource = ResourceId { group: "example.com".into(), plural: "gadgets".into() };
        let bytes = Bytes::copy_from_slice(json.unwrap_or_default().as_bytes());
        let after = json.map(|_| Arc::new(Stored { version, bytes: bytes.clone() }));
        Event { version, key: Key::new(resource, namespace, name), before: None, after, last: bytes }
    }

    proptest! {
        #[test]
        fn decodes_what_was_encoded(
            namespace in proptest::option::of("[a-z.-]{1,20}"), name in "[^/]{1,40}", json in proptest::option::of(".*"),
        ) {
            let event = event(namespace.as_deref(), &name, json.as_deref());
            let record = Decoder::default().decode(event.version, &encode(&event)).unwrap();
            prop_assert_eq!(record.key, event.key);
            prop_assert_eq!(record.json, event.after.map(|stored| stored.bytes.clone()));
        }

        #[test]
        fn a_changed_or_cut_record_is_refused(json in ".{0,200}", at in 0..10_000usize, change in 1..=255u8) {
            let event = event(Some("default"), "a", Some(&json));
            let whole = encode(&event);
            let at = at % whole.len();
            let mut changed = whole.clone();
            changed[at] ^= change;
            prop_assert_eq!(Decoder::default().decode(event.version, &changed), Err(Damage::Checksum));
            prop_assert!(Decoder::default().decode(event.version, &whole[..at]).is_err());
            prop_assert!(Decoder::default().decode(event.version.next(), &whole).is_err());
        }
    }
}
